//! Poolings and resamplings.

use crate::arg::Arg;
use crate::device::KernelError;
use crate::epilogue::Epilogue;
use crate::launch::Run;
use crate::tensor::Tensor;
use partita_program::fields::PoolBackward;
use partita_program::fused::Tail;
use partita_program::{Dtype, Fields, Kernel, PoolKind};
use partita_space::Resampling;

pub(super) fn execute(
    kernel: &Kernel,
    tail: &Tail<'_>,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let spatial = |of: &Tensor, dim: usize| of.extent[dim + 1];
    match kernel.fields() {
        Fields::PoolForward(of) => {
            let [x, y] = [of.x, of.y].map(|view| run.tensor(view));
            let args = [
                Arg::from(&x),
                Arg::Extent(x.raw_extent()),
                Arg::from(&y),
                Arg::Extent(y.raw_extent()),
                Arg::taps(of.taps, *of.shift),
                number_of(*of.kind),
                Epilogue::new(tail, run)?.into(),
            ];
            run.elements("pool_forward", &args, &y)
        }
        Fields::PoolBackward(of) => backward(of, tail, run),
        Fields::ResampleForward(of) => {
            let [x, y] = [of.x, of.y].map(|view| run.tensor(view));
            let tables = std::array::from_fn(|dim| {
                TapTable::of_outputs(&of.maps[dim], spatial(&x, dim), spatial(&y, dim))
            });
            resample([x, y], &tables, false, run)
        }
        Fields::ResampleBackward(of) => {
            let [dy, dx] = [of.dy, of.dx].map(|view| run.tensor(view));
            let tables = std::array::from_fn(|dim| {
                TapTable::of_outputs(&of.maps[dim], spatial(&dx, dim), spatial(&dy, dim))
                    .transposed(spatial(&dx, dim))
            });
            resample([dy, dx], &tables, *of.accumulate, run)
        }
        _ => panic!("{} is neither pooling nor resampling", kernel.name()),
    }
}

fn backward(of: PoolBackward<'_>, tail: &Tail<'_>, run: &mut Run<'_>) -> Result<(), KernelError> {
    let [dy, dx] = [of.dy, of.dx].map(|view| run.tensor(view));
    let last = Epilogue {
        accumulate: *of.accumulate,
        ..Epilogue::new(tail, run)?
    };
    let x = run.optional(of.x.as_ref());
    let (kind, taps) = (*of.kind, Arg::taps(of.taps, *of.shift));
    let windows = match x {
        Some(x) => windows([x, dy], (kind, taps), run)?,
        // Averages read nothing of them.
        None => 0,
    };
    let args = [
        Arg::from(&x.unwrap_or(dx)),
        Arg::from(&dy),
        Arg::Extent(dy.raw_extent()),
        Arg::from(&dx),
        Arg::Extent(dx.raw_extent()),
        taps,
        number_of(kind),
        Arg::Ulong(windows),
        last.into(),
    ];
    run.elements("pool_backward", &args, &dx)
}

/// For each output what the gradients of its inputs need, in the workspace.
fn windows(
    [x, dy]: [Tensor; 2],
    (kind, taps): (PoolKind, Arg),
    run: &mut Run<'_>,
) -> Result<u64, KernelError> {
    let first = run.scratch(Dtype::F32, dy.volume());
    let args = [
        Arg::from(&x),
        Arg::Extent(x.raw_extent()),
        Arg::Extent(dy.raw_extent()),
        taps,
        number_of(kind),
        Arg::Ulong(first),
    ];
    run.elements("pool_windows", &args, &dy)?;
    Ok(first)
}

fn number_of(kind: PoolKind) -> Arg {
    Arg::Int(match kind {
        PoolKind::Max => 0,
        PoolKind::AverageAll => 1,
        PoolKind::AverageInside => 2,
        PoolKind::L2 => 3,
    })
}

/// What each element along a dim reads along it, and with which weight.
struct TapTable(Vec<Vec<(usize, f64)>>);

impl TapTable {
    fn of_outputs(map: &Resampling, inputs: usize, outputs: usize) -> Self {
        let taps = |output: usize| {
            let mut taps = Vec::new();
            if inputs > 0 {
                map.taps(output as i64, inputs, |input, weight| {
                    taps.push((input, weight))
                });
            }
            taps
        };
        Self((0..outputs).map(taps).collect())
    }

    fn transposed(&self, inputs: usize) -> Self {
        let mut all = vec![Vec::new(); inputs];
        for (output, taps) in self.0.iter().enumerate() {
            for &(input, weight) in taps {
                all[input].push((output, weight));
            }
        }
        Self(all)
    }

    /// Where the taps of each element begin, where they read, and their weights.
    fn args(&self, run: &mut Run<'_>) -> Result<[Arg; 3], KernelError> {
        let mut firsts = vec![0];
        for taps in &self.0 {
            firsts.push(firsts.last().copied().unwrap_or(0) + taps.len() as u32);
        }
        let reads: Vec<u32> = self.0.iter().flatten().map(|(at, _)| *at as u32).collect();
        let weights: Vec<f32> = self
            .0
            .iter()
            .flatten()
            .map(|(_, weight)| *weight as f32)
            .collect();
        Ok([
            run.table(&firsts)?,
            run.table(&reads)?,
            run.table(&weights)?,
        ])
    }
}

fn resample(
    [x, y]: [Tensor; 2],
    tables: &[TapTable; 3],
    accumulate: bool,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let mut args = vec![Arg::from(&x), Arg::from(&y), Arg::Extent(y.raw_extent())];
    for table in tables {
        args.extend(table.args(run)?);
    }
    args.push(Arg::flag(accumulate));
    run.elements("resample", &args, &y)
}
