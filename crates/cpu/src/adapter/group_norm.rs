//! Group norm of programs on the kernels of this crate, sample by sample.

use super::Run;
use super::operand::sample;
use crate::norm::group::{
    GroupNormalization, group_norm_backward, group_norm_backward_statistics, group_norm_forward,
};
use crate::norm::norm_statistics;
use partita_program::{Kernel, View};
use partita_run::{Block, RunError};
use std::ops::Range;

/// Groups, values per group, and epsilon.
type Constants = (usize, u64, f64);

pub(super) fn execute(kernel: &Kernel, run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    match kernel {
        Kernel::GroupNormStatistics { x, sums } => statistics([x, sums], run),
        Kernel::GroupNormForward {
            x,
            sums,
            gamma,
            beta,
            y,
            groups,
            count,
            epsilon,
        } => forward([x, sums, gamma, beta, y], (*groups, *count, *epsilon), run),
        Kernel::GroupNormBackwardStatistics {
            x,
            sums,
            dy,
            gradient_sums,
            dgamma,
            dbeta,
            groups,
            count,
            epsilon,
            accumulate,
        } => {
            let (views, constants) = ([x, sums, dy, dgamma, dbeta], (*groups, *count, *epsilon));
            backward_statistics(views, gradient_sums.as_ref(), constants, *accumulate, run)
        }
        Kernel::GroupNormBackwardData {
            x,
            sums,
            gamma,
            dy,
            gradient_sums,
            dx,
            groups,
            count,
            epsilon,
            accumulate,
        } => {
            let views = [x, sums, gamma, dy, gradient_sums, dx];
            backward_data(views, (*groups, *count, *epsilon), *accumulate, run)
        }
        other => panic!("{} is no group norm kernel", other.name()),
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

fn statistics([x, sums]: [&View; 2], run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    let mut totals = run.totals(sums, false);
    let mut flops = 0;
    for n in 0..x.extent[0] {
        let x = run.input(&sample(x, n));
        flops += run.flops(|call| {
            let sums = &mut totals.data_mut()[of_sample(n, sums.extent[4])];
            norm_statistics(call, x.view(), sums, false)
        })?;
    }
    Ok(flops)
}

fn forward(
    [x, sums, gamma, beta, y]: [&View; 5],
    constants: Constants,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    let (sums, gamma, beta) = (run.sums(sums), run.dense(gamma), run.dense(beta));
    let mut flops = 0;
    for n in 0..x.extent[0] {
        let (x, mut y) = (run.input(&sample(x, n)), run.output(&sample(y, n)));
        let norm = by(&sums, n, constants);
        flops += run.flops(|call| {
            let scales = [gamma.data(), beta.data()];
            group_norm_forward(call, x.view(), y.view(), &norm, scales)
        })?;
    }
    Ok(flops)
}

fn backward_statistics(
    [x, sums, dy, dgamma, dbeta]: [&View; 5],
    gradient_sums: Option<&View>,
    constants: Constants,
    accumulate: bool,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    let [mut dgamma, mut dbeta] = [dgamma, dbeta].map(|view| run.result(view, accumulate));
    let sums = run.sums(sums);
    let mut totals = gradient_sums.map(|view| run.totals(view, false));
    let mut flops = 0;
    for n in 0..x.extent[0] {
        let (x, dy) = (run.input(&sample(x, n)), run.input(&sample(dy, n)));
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

fn backward_data(
    [x, sums, gamma, dy, gradient_sums, dx]: [&View; 6],
    constants: Constants,
    accumulate: bool,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    let (sums, gamma, gradient_sums) = (run.sums(sums), run.dense(gamma), run.sums(gradient_sums));
    let mut flops = 0;
    for n in 0..x.extent[0] {
        let (x, dy) = (run.input(&sample(x, n)), run.input(&sample(dy, n)));
        let mut dx = run.result(&sample(dx, n), accumulate);
        let norm = by(&sums, n, constants);
        let totals = &gradient_sums.data()[of_sample(n, sums.extent[4])];
        flops += run.flops(|call| {
            let (views, gamma) = ([x.view(), dy.view()], gamma.data());
            group_norm_backward(call, views, dx.view(), &norm, gamma, totals, accumulate)
        })?;
    }
    Ok(flops)
}
