//! Batch norm of programs on the kernels of this crate.

use super::Run;
use super::operand::Input;
use crate::norm::{
    Inference, Normalization, norm_backward, norm_backward_statistics, norm_forward,
    norm_inference, norm_inference_backward, norm_statistics,
};
use partita_program::fields::{
    BatchNormBackwardData, BatchNormBackwardParameters, BatchNormBackwardStatistics,
    BatchNormForward, BatchNormInference, BatchNormInferenceBackward, BatchNormRunning,
};
use partita_program::fused::Tail;
use partita_program::{Fields, Kernel};
use partita_run::{Block, RunError};

pub(super) fn execute(
    kernel: &Kernel,
    tail: &Tail<'_>,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    match kernel.fields() {
        Fields::BatchNormStatistics(of) => {
            let (x, mut sums) = (run.input(of.x), run.totals(of.sums, *of.accumulate));
            run.flops(|call| norm_statistics(call, x.view(), sums.data_mut(), *of.accumulate))
        }
        Fields::BatchNormForward(of) => forward(of, tail, run),
        Fields::BatchNormRunning(of) => Ok(running(of, run)),
        Fields::BatchNormInference(of) => inference(of, tail, run),
        Fields::BatchNormInferenceBackward(of) => inference_backward(of, run),
        Fields::BatchNormBackwardStatistics(of) => backward_statistics(of, run),
        Fields::BatchNormBackwardData(of) => backward_data(of, run),
        Fields::BatchNormBackwardParameters(of) => Ok(backward_parameters(of, run)),
        _ => panic!("{} is no batch norm kernel", kernel.name()),
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
    of: BatchNormForward<'_>,
    tail: &Tail<'_>,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    let (more, slope) = after(tail, run);
    let (x, sums, mut y) = (run.input(of.x), run.sums(of.sums), run.output(of.y));
    let (gamma, beta) = (run.dense(of.gamma), run.dense(of.beta));
    let norm = Normalization {
        gamma: gamma.data(),
        beta: beta.data(),
        ..by(&sums, *of.count, *of.epsilon)
    };
    run.flops(|call| {
        let more = more.as_ref().map(Input::view);
        norm_forward(call, x.view(), y.view(), &norm, more, slope)
    })
}

fn running(of: BatchNormRunning<'_>, run: &Run<'_, '_>) -> u64 {
    let [mut mean, mut variance] = [of.mean, of.variance].map(|view| run.result(view, true));
    let (sums, count, momentum) = (run.sums(of.sums), *of.count, *of.momentum);
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
    flops
}

fn inference(
    of: BatchNormInference<'_>,
    tail: &Tail<'_>,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    let (more, slope) = after(tail, run);
    let (x, mut y) = (run.input(of.x), run.output(of.y));
    let vectors = [of.mean, of.variance, of.gamma, of.beta].map(|view| run.dense(view));
    let [mean, variance, gamma, beta] = [0, 1, 2, 3].map(|i: usize| vectors[i].data());
    let norm = Inference {
        mean,
        variance,
        epsilon: *of.epsilon,
        gamma,
        beta,
    };
    run.flops(|call| {
        let more = more.as_ref().map(Input::view);
        norm_inference(call, x.view(), y.view(), &norm, more, slope)
    })
}

fn inference_backward(
    of: BatchNormInferenceBackward<'_>,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    let (dy, mut dx) = (run.input(of.dy), run.result(of.dx, *of.accumulate));
    let (variance, gamma) = (run.dense(of.variance), run.dense(of.gamma));
    let scale = (variance.data(), gamma.data(), *of.epsilon);
    run.flops(|call| norm_inference_backward(call, dy.view(), dx.view(), scale, *of.accumulate))
}

fn backward_statistics(
    of: BatchNormBackwardStatistics<'_>,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    let (x, sums, dy) = (run.input(of.x), run.sums(of.sums), run.input(of.dy));
    let mut gradient_sums = run.totals(of.gradient_sums, *of.accumulate);
    let norm = by(&sums, *of.count, *of.epsilon);
    run.flops(|call| {
        let totals = gradient_sums.data_mut();
        norm_backward_statistics(call, x.view(), dy.view(), &norm, totals, *of.accumulate)
    })
}

fn backward_data(of: BatchNormBackwardData<'_>, run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    let (x, dy, mut dx) = (
        run.input(of.x),
        run.input(of.dy),
        run.result(of.dx, *of.accumulate),
    );
    let (sums, gamma) = (run.sums(of.sums), run.dense(of.gamma));
    let gradient_sums = run.sums(of.gradient_sums);
    let norm = Normalization {
        gamma: gamma.data(),
        ..by(&sums, *of.count, *of.epsilon)
    };
    let (totals, adds) = (gradient_sums.data(), *of.accumulate);
    run.flops(|call| norm_backward(call, x.view(), dy.view(), dx.view(), &norm, totals, adds))
}

fn backward_parameters(of: BatchNormBackwardParameters<'_>, run: &Run<'_, '_>) -> u64 {
    let accumulate = *of.accumulate;
    let [mut dgamma, mut dbeta] = [of.dgamma, of.dbeta].map(|view| run.result(view, accumulate));
    let sums = run.sums(of.gradient_sums);
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
    flops
}
