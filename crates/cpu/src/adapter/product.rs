//! Products of two boxes, or of a box and a factor for each channel of a sample or for each position.

use super::Run;
use super::operand::sample;
use crate::elementwise::product::{
    multiply, multiply_channel_sum, multiply_channels, multiply_positions, multiply_sum,
};
use partita_program::{Kernel, View};
use partita_run::RunError;

pub(super) fn execute(kernel: &Kernel, run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    match kernel {
        Kernel::Multiply {
            a,
            b,
            y,
            accumulate,
        } if a.extent == b.extent => {
            let (a, b, mut y) = (run.input(a), run.input(b), run.result(y, *accumulate));
            run.flops(|call| multiply(call, [a.view(), b.view()], y.view(), *accumulate))
        }
        Kernel::Multiply {
            a,
            b,
            y,
            accumulate,
        } if a.extent[..4] == b.extent[..4] => {
            let (a, b, mut y) = (run.input(a), run.input(b), run.result(y, *accumulate));
            let (views, adds) = ([a.view(), b.view()], *accumulate);
            run.flops(|call| multiply_positions(call, views, y.view(), adds))
        }
        Kernel::Multiply {
            a,
            b,
            y,
            accumulate,
        } => by_channels([a, b, y], *accumulate, run),
        Kernel::MultiplySum {
            a,
            b,
            y,
            accumulate,
        } => sum([a, b, y], *accumulate, run),
        Kernel::MultiplyChannelSum {
            a,
            b,
            y,
            accumulate,
        } => {
            let (a, b, mut y) = (run.input(a), run.input(b), run.result(y, *accumulate));
            let (views, adds) = ([a.view(), b.view()], *accumulate);
            run.flops(|call| multiply_channel_sum(call, views, y.view(), adds))
        }
        other => panic!("{} is no product", other.name()),
    }
}

fn by_channels(
    [a, b, y]: [&View; 3],
    accumulate: bool,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    let mut flops = 0;
    for n in 0..a.extent[0] {
        let (a, factors) = (run.input(&sample(a, n)), run.input(&sample(b, n)));
        let mut y = run.result(&sample(y, n), accumulate);
        flops += run.flops(|call| {
            let factors = &factors.block().data()[..b.extent[4]];
            multiply_channels(call, a.view(), factors, y.view(), accumulate)
        })?;
    }
    Ok(flops)
}

fn sum([a, b, y]: [&View; 3], accumulate: bool, run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    let mut flops = 0;
    for n in 0..a.extent[0] {
        let (a, b) = (run.input(&sample(a, n)), run.input(&sample(b, n)));
        let mut y = run.result(&sample(y, n), accumulate);
        flops += run.flops(|call| {
            let views = [a.view(), b.view()];
            multiply_sum(call, views, y.slice(), accumulate)
        })?;
    }
    Ok(flops)
}
