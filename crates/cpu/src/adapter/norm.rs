//! Batch norm of programs on the kernels of this crate.

use super::Run;
use super::operand::Input;
use crate::norm::{
    Inference, Normalization, norm_backward, norm_backward_statistics, norm_forward,
    norm_inference, norm_inference_backward, norm_statistics,
};
use partita_program::fused::Tail;
use partita_program::{Kernel, View};
use partita_run::{Block, RunError};

pub(super) fn execute(
    kernel: &Kernel,
    tail: &Tail<'_>,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    match kernel {
        Kernel::BatchNormStatistics {
            x,
            sums,
            accumulate,
        } => {
            let (x, mut sums) = (run.input(x), run.totals(sums, *accumulate));
            run.flops(|call| norm_statistics(call, x.view(), sums.data_mut(), *accumulate))
        }
        Kernel::BatchNormForward {
            x,
            sums,
            gamma,
            beta,
            y,
            count,
            epsilon,
        } => forward([x, sums, gamma, beta, y], *count, *epsilon, tail, run),
        Kernel::BatchNormRunning {
            sums,
            mean,
            variance,
            count,
            momentum,
        } => running([sums, mean, variance], *count, *momentum, run),
        Kernel::BatchNormInference {
            x,
            mean,
            variance,
            gamma,
            beta,
            y,
            epsilon,
        } => inference([x, mean, variance, gamma, beta, y], *epsilon, tail, run),
        Kernel::BatchNormInferenceBackward { .. }
        | Kernel::BatchNormBackwardStatistics { .. }
        | Kernel::BatchNormBackwardData { .. }
        | Kernel::BatchNormBackwardParameters { .. } => execute_backward(kernel, run),
        other => panic!("{} is no batch norm kernel", other.name()),
    }
}

fn execute_backward(kernel: &Kernel, run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    match kernel {
        Kernel::BatchNormInferenceBackward {
            dy,
            variance,
            gamma,
            dx,
            epsilon,
            accumulate,
        } => inference_backward([dy, variance, gamma, dx], *epsilon, *accumulate, run),
        Kernel::BatchNormBackwardStatistics {
            x,
            sums,
            dy,
            gradient_sums,
            count,
            epsilon,
            accumulate,
        } => {
            let views = [x, sums, dy, gradient_sums];
            backward_statistics(views, *count, *epsilon, *accumulate, run)
        }
        Kernel::BatchNormBackwardData {
            x,
            sums,
            gamma,
            dy,
            gradient_sums,
            dx,
            count,
            epsilon,
            accumulate,
        } => {
            let views = [x, sums, gamma, dy, gradient_sums, dx];
            backward_data(views, *count, *epsilon, *accumulate, run)
        }
        Kernel::BatchNormBackwardParameters {
            gradient_sums,
            dgamma,
            dbeta,
            accumulate,
        } => backward_parameters([gradient_sums, dgamma, dbeta], *accumulate, run),
        other => panic!("{} is no batch norm kernel", other.name()),
    }
}

/// What is added to the normalized values, and the slope of their activation.
fn after<'m>(tail: &Tail<'_>, run: &Run<'m, '_>) -> (Option<Input<'m>>, Option<f32>) {
    let more = tail.add.map(|view| run.input(view));
    (more, tail.slope.map(|slope| slope as f32))
}

/// A normalization by sums, with neither scale nor offset.
pub(super) fn by<'a>(sums: &'a Block<'_, f64>, count: u64, epsilon: f64) -> Normalization<'a> {
    Normalization {
        sums: sums.data(),
        count: count as f64,
        epsilon,
        gamma: &[],
        beta: &[],
    }
}

fn forward(
    [x, sums, gamma, beta, y]: [&View; 5],
    count: u64,
    epsilon: f64,
    tail: &Tail<'_>,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    let (more, slope) = after(tail, run);
    let (x, sums, mut y) = (run.input(x), run.sums(sums), run.output(y));
    let (gamma, beta) = (run.dense(gamma), run.dense(beta));
    let norm = Normalization {
        gamma: gamma.data(),
        beta: beta.data(),
        ..by(&sums, count, epsilon)
    };
    run.flops(|call| {
        let more = more.as_ref().map(Input::view);
        norm_forward(call, x.view(), y.view(), &norm, more, slope)
    })
}

fn running(
    [sums, mean, variance]: [&View; 3],
    count: u64,
    momentum: f64,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    let [mut mean, mut variance] = [mean, variance].map(|view| run.result(view, true));
    let sums = run.sums(sums);
    // One element has no unbiased variance; its biased one, 0, stands in.
    let unbiased = count as f64 / (count.max(2) - 1) as f64;
    let norm = by(&sums, count, 0.0);
    let moved = |old: f32, new: f64| ((1.0 - momentum) * f64::from(old) + momentum * new) as f32;
    let mut flops = 0;
    for (c, (mean, variance)) in mean.slice().iter_mut().zip(variance.slice()).enumerate() {
        let (new_mean, new_variance) = norm.moments(c);
        *mean = moved(*mean, new_mean);
        *variance = moved(*variance, new_variance * unbiased);
        flops += 8;
    }
    Ok(flops)
}

fn inference(
    [x, mean, variance, gamma, beta, y]: [&View; 6],
    epsilon: f64,
    tail: &Tail<'_>,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    let (more, slope) = after(tail, run);
    let (x, mut y) = (run.input(x), run.output(y));
    let vectors = [mean, variance, gamma, beta].map(|view| run.dense(view));
    let [mean, variance, gamma, beta] = [0, 1, 2, 3].map(|i: usize| vectors[i].data());
    let norm = Inference {
        mean,
        variance,
        epsilon,
        gamma,
        beta,
    };
    run.flops(|call| {
        let more = more.as_ref().map(Input::view);
        norm_inference(call, x.view(), y.view(), &norm, more, slope)
    })
}

fn inference_backward(
    [dy, variance, gamma, dx]: [&View; 4],
    epsilon: f64,
    accumulate: bool,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    let (dy, mut dx) = (run.input(dy), run.result(dx, accumulate));
    let (variance, gamma) = (run.dense(variance), run.dense(gamma));
    let scale = (variance.data(), gamma.data(), epsilon);
    run.flops(|call| norm_inference_backward(call, dy.view(), dx.view(), scale, accumulate))
}

fn backward_statistics(
    [x, sums, dy, gradient_sums]: [&View; 4],
    count: u64,
    epsilon: f64,
    accumulate: bool,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    let (x, sums, dy) = (run.input(x), run.sums(sums), run.input(dy));
    let mut gradient_sums = run.totals(gradient_sums, accumulate);
    let norm = by(&sums, count, epsilon);
    run.flops(|call| {
        let totals = gradient_sums.data_mut();
        norm_backward_statistics(call, x.view(), dy.view(), &norm, totals, accumulate)
    })
}

fn backward_data(
    [x, sums, gamma, dy, gradient_sums, dx]: [&View; 6],
    count: u64,
    epsilon: f64,
    accumulate: bool,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    let (x, dy, mut dx) = (run.input(x), run.input(dy), run.result(dx, accumulate));
    let (sums, gamma, gradient_sums) = (run.sums(sums), run.dense(gamma), run.sums(gradient_sums));
    let norm = Normalization {
        gamma: gamma.data(),
        ..by(&sums, count, epsilon)
    };
    let totals = gradient_sums.data();
    run.flops(|call| {
        norm_backward(
            call,
            x.view(),
            dy.view(),
            dx.view(),
            &norm,
            totals,
            accumulate,
        )
    })
}

fn backward_parameters(
    [gradient_sums, dgamma, dbeta]: [&View; 3],
    accumulate: bool,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    let [mut dgamma, mut dbeta] = [dgamma, dbeta].map(|view| run.result(view, accumulate));
    let sums = run.sums(gradient_sums);
    let put = |target: &mut f32, sum: f64| {
        let old = if accumulate { f64::from(*target) } else { 0.0 };
        *target = (old + sum) as f32;
    };
    let mut flops = 0;
    let (first, second) = sums.data().split_at(sums.extent[4]);
    let targets = dbeta.slice().iter_mut().zip(dgamma.slice());
    for ((dbeta, dgamma), (of_dy, of_product)) in targets.zip(first.iter().zip(second)) {
        put(dbeta, *of_dy);
        put(dgamma, *of_product);
        flops += 2;
    }
    Ok(flops)
}
