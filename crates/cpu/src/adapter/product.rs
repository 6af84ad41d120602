//! Products of two boxes, or of a box and a factor for each channel of a sample or for each position.

use super::Run;
use super::operand::sample;
use crate::elementwise::product::{
    multiply, multiply_channel_sum, multiply_channels, multiply_positions, multiply_sum,
};
use partita_program::{Fields, Kernel, View};
use partita_run::RunError;

pub(super) fn execute(kernel: &Kernel, run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    match kernel.fields() {
        Fields::Multiply(of) => {
            if of.a.extent != of.b.extent && of.a.extent[..4] != of.b.extent[..4] {
                return by_channels([of.a, of.b, of.y], *of.accumulate, run);
            }
            let (a, b, adds) = (run.input(of.a), run.input(of.b), *of.accumulate);
            let (mut y, views) = (run.result(of.y, adds), [a.view(), b.view()]);
            if of.a.extent == of.b.extent {
                run.flops(|call| multiply(call, views, y.view(), adds))
            } else {
                run.flops(|call| multiply_positions(call, views, y.view(), adds))
            }
        }
        Fields::MultiplySum(of) => sum([of.a, of.b, of.y], *of.accumulate, run),
        Fields::MultiplyChannelSum(of) => {
            let (a, b, adds) = (run.input(of.a), run.input(of.b), *of.accumulate);
            let (mut y, views) = (run.result(of.y, adds), [a.view(), b.view()]);
            run.flops(|call| multiply_channel_sum(call, views, y.view(), adds))
        }
        _ => panic!("{} is no product", kernel.name()),
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
