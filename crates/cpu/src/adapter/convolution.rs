//! Convolutions of programs on the kernels of this crate.

use super::Run;
use super::native::Native;
use super::operand::Output;
use super::tail::{TailOperands, scale_elements};
use crate::conv::convolution::{Convolution, Weights};
use crate::conv::data::pack_backward_data;
use crate::conv::forward::pack_forward;
use crate::grid::{Call, Window};
use partita_program::fields::{ConvolutionBackwardData, ConvolutionForward, PackWeights};
use partita_program::fused::Tail;
use partita_program::{Direction, Fields, Kernel, Role, Taps, View};
use partita_run::{Block, RunError};

/// Taps as the kernels of this crate describe them.
pub(super) fn window(taps: &Taps) -> Window {
    Window {
        kernel: taps.kernel,
        stride: taps.stride,
        dilation: taps.dilation,
    }
}

/// Taps and groups as the kernels of this crate describe them.
pub(super) fn convolution(taps: &Taps, groups: usize) -> Convolution {
    Convolution {
        window: window(taps),
        groups,
    }
}

pub(super) fn execute<E: Native>(
    kernel: &Kernel,
    tail: &Tail<'_>,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    match kernel.fields() {
        Fields::PackWeights(of) => pack(of, run),
        Fields::ConvolutionForward(of) => forward::<E>(of, tail, run),
        Fields::ConvolutionBackwardData(of) => backward_data::<E>(of, tail, run),
        Fields::ConvolutionBackwardWeight(_) => backward_weight::<E>(kernel, None, run),
        Fields::BiasBackward(of) => {
            let (dy, adds) = (run.input_of::<E>(of.dy), *of.accumulate);
            let mut db = run.result(of.db, adds);
            run.flops(|call| E::bias_backward(call, dy.view(), db.slice(), adds))
        }
        _ => panic!("{} is no convolution", kernel.name()),
    }
}

fn forward<E: Native>(
    of: ConvolutionForward<'_>,
    tail: &Tail<'_>,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    let (conv, flops) = (convolution(of.taps, *of.groups), tail.flops(of.y));
    let (is_packed, adds) = (is_packed(of.w, run), *of.accumulate);
    let mut held = TailOperands::new(tail, run);
    let (x, w, mut y) = (
        run.input_of::<E>(of.x),
        run.dense(of.w),
        run.output_of(of.y, adds),
    );
    let bias = of.bias.map(|bias| run.dense(&bias));
    let values = bias.as_ref().map(|bias| bias.data());
    let scales = scale_elements(tail, of.y.extent[4]);
    let method = run.method;
    Ok(run.flops(|call| {
        with_scales(call, scales, |call, scales| {
            let (w, epilogue) = (weights(is_packed, &w), held.epilogue(values, scales));
            E::forward(method, call, x.view(), w, y.view(), &conv, adds, epilogue)
        })
    })? + flops)
}

fn is_packed(w: &View, run: &Run<'_, '_>) -> bool {
    run.memory.body().buffer(w.buffer).role == Role::PackedWeights
}

fn weights<'w>(is_packed: bool, w: &'w Block<'_, f32>) -> Weights<'w> {
    if is_packed {
        Weights::Packed(w.data())
    } else {
        Weights::Plain(w.data())
    }
}

fn pack(of: PackWeights<'_>, run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    let (conv, [.., channels, f]) = (convolution(of.taps, *of.groups), of.w.extent);
    let (c, w, mut packed) = (channels * of.groups, run.dense(of.w), run.output(of.packed));
    run.flops(|call| {
        let (w, packed) = (w.data(), packed.slice());
        match of.direction {
            Direction::Forward => pack_forward(call, w, packed, &conv, c, f),
            Direction::BackwardData => pack_backward_data(call, w, packed, &conv, c, f),
        }
    })
}

/// Calls `body` with the first elements of the scratch apart.
fn with_scales<R>(
    call: &mut Call,
    scales: usize,
    body: impl FnOnce(&mut Call, &mut [f32]) -> R,
) -> R {
    let (scales, scratch) = call.scratch.split_at_mut(scales);
    let mut call = Call {
        team: &mut *call.team,
        scratch,
        progress: &mut *call.progress,
    };
    body(&mut call, scales)
}

fn backward_data<E: Native>(
    of: ConvolutionBackwardData<'_>,
    tail: &Tail<'_>,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    let (conv, flops) = (convolution(of.taps, *of.groups), tail.flops(of.dx));
    let (is_packed, adds) = (is_packed(of.w, run), *of.accumulate);
    let mut held = TailOperands::new(tail, run);
    let (dy, w, mut dx) = (
        run.input_of::<E>(of.dy),
        run.dense(of.w),
        run.output_of(of.dx, adds),
    );
    let bias = of.bias.map(|bias| run.dense(&bias));
    let values = bias.as_ref().map(|bias| bias.data());
    let scales = scale_elements(tail, of.dx.extent[4]);
    let method = run.method;
    Ok(run.flops(|call| {
        with_scales(call, scales, |call, scales| {
            let (w, epilogue) = (weights(is_packed, &w), held.epilogue(values, scales));
            let (dy, dx, shift) = (dy.view(), dx.view(), *of.shift);
            E::backward_data(method, call, dy, w, dx, &conv, shift, adds, epilogue)
        })
    })? + flops)
}

/// With `db`, the gradient of the bias too; it adds where that of the weights does.
pub(super) fn backward_weight<E: Native>(
    kernel: &Kernel,
    db: Option<&View>,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    let Fields::ConvolutionBackwardWeight(of) = kernel.fields() else {
        panic!("{} is no weight gradient", kernel.name());
    };
    let (conv, adds) = (convolution(of.taps, *of.groups), *of.accumulate);
    let bias_flops = db.map_or(0, |_| of.dy.volume() as u64);
    let mut db = db.map(|db| run.result(db, adds));
    let (x, dy) = (run.input_of::<E>(of.x), run.input_of::<E>(of.dy));
    let mut dw = run.result(of.dw, adds);
    let method = run.method;
    Ok(run.flops(|call| {
        let db = db.as_mut().map(Output::slice);
        let (x, dy, dw) = (x.view(), dy.view(), dw.slice());
        E::backward_weight(method, call, x, dy, dw, db, &conv, adds)
    })? + bias_flops)
}
