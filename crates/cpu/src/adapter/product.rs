//! Products of two boxes, or of a box and a factor for each channel of a sample or for each position.

use super::operand::sample;
use super::sequence::tally;
use super::{Run, touched};
use crate::elementwise::product::{
    multiply, multiply_channel_sum, multiply_channels, multiply_positions, multiply_sum,
};
use partita_program::{Kernel, View};
use partita_run::{KernelTally, RunError};

pub(super) fn execute(kernel: &Kernel, run: &mut Run<'_, '_>) -> Result<KernelTally, RunError> {
    match kernel {
        Kernel::Multiply {
            a,
            b,
            y,
            accumulate,
        } if a.extent == b.extent => {
            let (a, b, mut y) = (run.input(a), run.input(b), run.output(y));
            let adds = *accumulate;
            let work = run.compute(|call| multiply(call, [a.view(), b.view()], y.view(), adds))?;
            Ok(KernelTally {
                flops: work.flops,
                bytes: a.bytes() + b.bytes() + touched(y.bytes(), adds),
            })
        }
        Kernel::Multiply {
            a,
            b,
            y,
            accumulate,
        } if a.extent[..4] == b.extent[..4] => {
            let (a, b, mut y) = (run.input(a), run.input(b), run.output(y));
            let (views, adds) = ([a.view(), b.view()], *accumulate);
            let work = run.compute(|call| multiply_positions(call, views, y.view(), adds))?;
            Ok(tally(work))
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
            let (a, b, mut y) = (run.input(a), run.input(b), run.output(y));
            let (views, adds) = ([a.view(), b.view()], *accumulate);
            let work = run.compute(|call| multiply_channel_sum(call, views, y.view(), adds))?;
            Ok(tally(work))
        }
        other => panic!("{} is no product", other.name()),
    }
}

fn by_channels(
    [a, b, y]: [&View; 3],
    accumulate: bool,
    run: &mut Run<'_, '_>,
) -> Result<KernelTally, RunError> {
    let mut tally = KernelTally::default();
    for n in 0..a.extent[0] {
        let (a, factors) = (run.input(&sample(a, n)), run.input(&sample(b, n)));
        let mut y = run.output(&sample(y, n));
        let work = run.compute(|call| {
            let factors = &factors.block().data()[..b.extent[4]];
            multiply_channels(call, a.view(), factors, y.view(), accumulate)
        })?;
        tally.flops += work.flops;
        tally.bytes += a.bytes() + factors.bytes() + touched(y.bytes(), accumulate);
    }
    Ok(tally)
}

fn sum(
    [a, b, y]: [&View; 3],
    accumulate: bool,
    run: &mut Run<'_, '_>,
) -> Result<KernelTally, RunError> {
    let mut tally = KernelTally::default();
    for n in 0..a.extent[0] {
        let (a, b) = (run.input(&sample(a, n)), run.input(&sample(b, n)));
        let mut y = run.output(&sample(y, n));
        let work = run.compute(|call| {
            let views = [a.view(), b.view()];
            multiply_sum(call, views, y.slice(), accumulate)
        })?;
        tally.flops += work.flops;
        tally.bytes += a.bytes() + b.bytes() + touched(y.bytes(), accumulate);
    }
    Ok(tally)
}
