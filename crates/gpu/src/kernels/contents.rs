//! Fills, copies and imports.

use super::pointwise::map;
use crate::arg::Arg;
use crate::device::KernelError;
use crate::launch::Run;
use crate::tensor::Tensor;
use partita_program::{Fields, Kernel, Transform};

pub(super) fn execute(kernel: &Kernel, run: &mut Run<'_>) -> Result<(), KernelError> {
    match kernel.fields() {
        Fields::Fill(of) => fill(run.tensor(of.target), *of.value, run),
        Fields::Copy(of) => copy(
            [of.source, of.target].map(|view| run.tensor(view)),
            *of.accumulate,
            run,
        ),
        Fields::Import(of) => import(
            [of.source, of.target].map(|view| run.tensor(view)),
            *of.transform,
            run,
        ),
        _ => panic!("{} neither fills nor copies", kernel.name()),
    }
}

/// Sets every element.
pub(super) fn fill(y: Tensor, value: f64, run: &mut Run<'_>) -> Result<(), KernelError> {
    map("fill", [y], &[Arg::dtype(&y), Arg::Double(value)], run)
}

/// Both boxes in memory order.
pub(super) fn copy(
    [x, y]: [Tensor; 2],
    accumulate: bool,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let rest = [Arg::dtype(&y), Arg::flag(accumulate)];
    if x.extent == y.extent {
        return map("copy", [x, y], &rest, run);
    }
    let count = y.volume();
    let mut args = Vec::new();
    for tensor in [&x, &y] {
        args.extend([Arg::from(tensor), Arg::Extent(tensor.raw_extent())]);
    }
    args.push(Arg::Uint(count as u32));
    args.extend(rest);
    run.items("reshape", &args, count)
}

fn import([x, y]: [Tensor; 2], transform: Transform, run: &mut Run<'_>) -> Result<(), KernelError> {
    let (number, factor) = match transform {
        Transform::Identity => (0, 1.0),
        Transform::Scale { factor } => (1, factor),
        Transform::LogOnePlus => (2, 1.0),
    };
    let args = [
        Arg::from(&x),
        Arg::from(&y),
        Arg::Extent(y.raw_extent()),
        Arg::dtype(&x),
        Arg::dtype(&y),
        Arg::Int(number),
        Arg::Double(factor),
    ];
    run.elements("import", &args, &y)
}
