//! Group norm of programs on the kernels of this crate, sample by sample.

use super::Run;
use super::operand::sample;
use crate::norm::group::{
    GroupNormalization, group_norm_backward, group_norm_backward_statistics, group_norm_forward,
};
use crate::norm::norm_statistics;
use partita_program::fields::{
    GroupNormBackwardData, GroupNormBackwardStatistics, GroupNormForward, GroupNormStatistics,
};
use partita_program::{Fields, Kernel};
use partita_run::{Block, RunError};
use std::ops::Range;

/// Groups, values per group, and epsilon.
type Constants = (usize, u64, f64);

pub(super) fn execute(kernel: &Kernel, run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    match kernel.fields() {
        Fields::GroupNormStatistics(of) => statistics(of, run),
        Fields::GroupNormForward(of) => forward(of, run),
        Fields::GroupNormBackwardStatistics(of) => backward_statistics(of, run),
        Fields::GroupNormBackwardData(of) => backward_data(of, run),
        _ => panic!("{} is no group norm kernel", kernel.name()),
    }
}

/// Where the sums of a sample are among those of all.
fn of_sample(n: usize, channels: usize) -> Range<usize> {
    2 * channels * n..2 * channels * (n + 1)
}

fn by<'a>(
    sums: &'a Block<'_, f64>,
    n: usize,
    (groups, count, epsilon): Constants,
) -> GroupNormalization<'a> {
    GroupNormalization {
        sums: &sums.data()[of_sample(n, sums.extent[4])],
        groups,
        count: count as f64,
        epsilon,
    }
}

fn statistics(of: GroupNormStatistics<'_>, run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    let mut totals = run.totals(of.sums, false);
    let mut flops = 0;
    for n in 0..of.x.extent[0] {
        let x = run.input(&sample(of.x, n));
        flops += run.flops(|call| {
            let sums = &mut totals.data_mut()[of_sample(n, of.sums.extent[4])];
            norm_statistics(call, x.view(), sums, false)
        })?;
    }
    Ok(flops)
}

fn forward(of: GroupNormForward<'_>, run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    let (sums, gamma, beta) = (run.sums(of.sums), run.dense(of.gamma), run.dense(of.beta));
    let constants = (*of.groups, *of.count, *of.epsilon);
    let mut flops = 0;
    for n in 0..of.x.extent[0] {
        let (x, mut y) = (run.input(&sample(of.x, n)), run.output(&sample(of.y, n)));
        let norm = by(&sums, n, constants);
        flops += run.flops(|call| {
            let scales = [gamma.data(), beta.data()];
            group_norm_forward(call, x.view(), y.view(), &norm, scales)
        })?;
    }
    Ok(flops)
}

fn backward_statistics(
    of: GroupNormBackwardStatistics<'_>,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    let (sums, accumulate) = (run.sums(of.sums), *of.accumulate);
    let [mut dgamma, mut dbeta] = [of.dgamma, of.dbeta].map(|view| run.result(view, accumulate));
    let mut totals = of.gradient_sums.map(|view| run.totals(&view, false));
    let constants = (*of.groups, *of.count, *of.epsilon);
    let mut flops = 0;
    for n in 0..of.x.extent[0] {
        let (x, dy) = (run.input(&sample(of.x, n)), run.input(&sample(of.dy, n)));
        let norm = by(&sums, n, constants);
        flops += run.flops(|call| {
            let range = of_sample(n, sums.extent[4]);
            let totals = totals.as_mut().map(|totals| &mut totals.data_mut()[range]);
            let gradients = [dgamma.slice(), dbeta.slice()];
            let adds = accumulate || n > 0;
            let views = [x.view(), dy.view()];
            group_norm_backward_statistics(call, views, &norm, totals, gradients, adds)
        })?;
    }
    Ok(flops)
}

fn backward_data(of: GroupNormBackwardData<'_>, run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    let (sums, gamma) = (run.sums(of.sums), run.dense(of.gamma));
    let (gradient_sums, accumulate) = (run.sums(of.gradient_sums), *of.accumulate);
    let constants = (*of.groups, *of.count, *of.epsilon);
    let mut flops = 0;
    for n in 0..of.x.extent[0] {
        let (x, dy) = (run.input(&sample(of.x, n)), run.input(&sample(of.dy, n)));
        let mut dx = run.result(&sample(of.dx, n), accumulate);
        let norm = by(&sums, n, constants);
        let totals = &gradient_sums.data()[of_sample(n, sums.extent[4])];
        flops += run.flops(|call| {
            let (views, gamma) = ([x.view(), dy.view()], gamma.data());
            group_norm_backward(call, views, dx.view(), &norm, gamma, totals, accumulate)
        })?;
    }
    Ok(flops)
}
