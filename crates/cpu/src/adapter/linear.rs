//! Linear layers of programs on the kernels of this crate.

use super::Run;
use super::operand::{Input, Output, dense, rows};
use super::tail::TailOperands;
use crate::conv::convolution::Weights;
use crate::conv::epilogue::Epilogue;
use crate::conv::linear::{linear_backward_data, linear_backward_weight, linear_forward};
use crate::elementwise::{accumulate as add_to, copy};
use crate::grid::{Call, Canceled, Grid, View, ViewMut, Work};
use partita_program::fields::{LinearBackwardData, LinearForward};
use partita_program::fused::Tail;
use partita_program::{Fields, Kernel, View as ProgramView};
use partita_run::RunError;

pub(super) fn execute(
    kernel: &Kernel,
    tail: &Tail<'_>,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    match kernel.fields() {
        Fields::LinearForward(of) => forward(of, tail, run),
        Fields::LinearBackwardData(of) => backward_data(of, tail, run),
        Fields::LinearBackwardWeight(_) => backward_weight(kernel, None, run),
        _ => panic!("{} is no linear layer", kernel.name()),
    }
}

/// Calls `body` with the samples of `x` as rows; packs them into the scratch where they have gaps.
fn with_rows(
    call: &mut Call,
    x: &Input<'_>,
    body: impl FnOnce(&mut Call, View) -> Result<Work, Canceled>,
) -> Result<Work, Canceled> {
    let block = x.block();
    if let Some(grid) = rows(block.extent, block.pitch) {
        return body(call, View::new(block.data(), &grid));
    }
    let grid = dense(block.extent);
    let (packed, scratch) = call.scratch.split_at_mut(grid.elements());
    let mut call = Call {
        team: &mut *call.team,
        scratch,
        progress: &mut *call.progress,
    };
    copy(&mut call, x.view(), ViewMut::new(packed, &grid))?;
    let grid = Grid::dense(grid.samples, [1; 3], block.extent[1..].iter().product());
    body(&mut call, View::new(packed, &grid))
}

fn forward(of: LinearForward<'_>, tail: &Tail<'_>, run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    let flops = tail.flops(of.y);
    let mut held = TailOperands::new(tail, run);
    let (x, w, mut y) = (run.input(of.x), run.dense(of.w), run.output(of.y));
    let bias = of.bias.map(|bias| run.dense(&bias));
    let epilogue = held.epilogue(bias.as_ref().map(|bias| bias.data()), &mut []);
    Ok(run.flops(|call| {
        with_rows(call, &x, |call, x| {
            linear_forward(call, x, Weights::Plain(w.data()), y.view(), false, epilogue)
        })
    })? + flops)
}

fn backward_data(
    of: LinearBackwardData<'_>,
    tail: &Tail<'_>,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    let (flops, accumulate) = (tail.flops(of.dx), *of.accumulate);
    let mut held = TailOperands::new(tail, run).into_rows();
    let (dy, w, mut dx) = (
        run.input(of.dy),
        run.dense(of.w),
        run.result(of.dx, accumulate),
    );
    let w_data = Weights::Plain(w.data());
    let (extent, pitch) = (dx.block().extent, dx.block().pitch);
    Ok(run.flops(|call| {
        if let Some(grid) = rows(extent, pitch) {
            let dx = ViewMut::new(dx.block().data_mut(), &grid);
            return linear_backward_data(
                call,
                dy.view(),
                w_data,
                dx,
                accumulate,
                held.epilogue(None, &mut []),
            );
        }
        let grid = dense(extent);
        let row_grid = Grid::dense(extent[0], [1; 3], extent[1..].iter().product());
        let (packed, scratch) = call.scratch.split_at_mut(grid.elements());
        let mut call = Call {
            team: &mut *call.team,
            scratch,
            progress: &mut *call.progress,
        };
        let rows = ViewMut::new(packed, &row_grid);
        let work = linear_backward_data(
            &mut call,
            dy.view(),
            w_data,
            rows,
            false,
            Epilogue::default(),
        )?;
        let packed = View::new(packed, &grid);
        if accumulate {
            add_to(&mut call, packed, dx.view())?;
        } else {
            copy(&mut call, packed, dx.view())?;
        }
        Ok(work)
    })? + flops)
}

/// With `db`, the gradient of the bias too; it adds where that of the weights does.
pub(super) fn backward_weight(
    kernel: &Kernel,
    db: Option<&ProgramView>,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    let Fields::LinearBackwardWeight(of) = kernel.fields() else {
        panic!("{} is no weight gradient", kernel.name());
    };
    let (bias_flops, adds) = (db.map_or(0, |_| of.dy.volume() as u64), *of.accumulate);
    let mut db = db.map(|db| run.result(db, adds));
    let (x, dy, mut dw) = (run.input(of.x), run.input(of.dy), run.result(of.dw, adds));
    Ok(run.flops(|call| {
        with_rows(call, &x, |call, x| {
            let db = db.as_mut().map(Output::slice);
            linear_backward_weight(call, x, dy.view(), dw.slice(), db, adds)
        })
    })? + bias_flops)
}
