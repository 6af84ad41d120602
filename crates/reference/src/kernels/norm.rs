//! Batch norm.

use super::Call;
use crate::values::{Values, cell, each_element, entry};
use partita_program::fields::{
    BatchNormBackwardData, BatchNormBackwardParameters, BatchNormBackwardStatistics,
    BatchNormInferenceBackward, BatchNormRunning, BatchNormStatistics,
};
use partita_program::{Fields, Kernel, View};
use partita_run::RunError;

pub(super) fn execute(kernel: &Kernel, call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    match kernel.fields() {
        Fields::BatchNormStatistics(of) => statistics(of, call),
        Fields::BatchNormForward(of) => {
            let sums = call.values(of.sums);
            let moments = (0..of.x.extent[4]).map(|c| Moments::of_sums(&sums, c, *of.count));
            let scales: Vec<_> = moments.map(|moments| moments.scale(*of.epsilon)).collect();
            normalize([of.x, of.gamma, of.beta, of.y], &scales, call)
        }
        Fields::BatchNormRunning(of) => running(of, call),
        Fields::BatchNormInference(of) => {
            let (mean, variance) = (call.values(of.mean), call.values(of.variance));
            let moments = (0..of.x.extent[4]).map(|c| Moments {
                mean: mean.get(entry(c)),
                variance: variance.get(entry(c)),
            });
            let scales: Vec<_> = moments.map(|moments| moments.scale(*of.epsilon)).collect();
            normalize([of.x, of.gamma, of.beta, of.y], &scales, call)
        }
        Fields::BatchNormInferenceBackward(of) => inference_backward(of, call),
        Fields::BatchNormBackwardStatistics(of) => backward_statistics(of, call),
        Fields::BatchNormBackwardData(of) => backward_data(of, call),
        Fields::BatchNormBackwardParameters(of) => backward_parameters(of, call),
        _ => panic!("{} is no batch norm kernel", kernel.name()),
    }
}

struct Moments {
    mean: f64,
    /// Biased.
    variance: f64,
}

/// Normalized x is `(x - mean) * inverse`.
struct Scale {
    mean: f64,
    inverse: f64,
}

impl Moments {
    fn of_sums(sums: &Values<'_>, c: usize, count: u64) -> Self {
        let mean = sums.get(cell(0, c)) / count as f64;
        let variance = (sums.get(cell(1, c)) / count as f64 - mean * mean).max(0.0);
        Self { mean, variance }
    }

    fn scale(&self, epsilon: f64) -> Scale {
        Scale {
            mean: self.mean,
            inverse: 1.0 / (self.variance + epsilon).sqrt(),
        }
    }
}

fn statistics(of: BatchNormStatistics<'_>, call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    let (x, sums) = (call.values(of.x), call.result(of.sums, *of.accumulate));
    let mut totals = vec![[0.0; 2]; x.extent()[4]];
    let visits = each_element(x.extent(), call.progress, |i| {
        let value = x.get(i);
        totals[i[4]][0] += value;
        totals[i[4]][1] += value * value;
    })?;
    put_totals(&sums, &totals, *of.accumulate);
    Ok(3 * visits)
}

fn put_totals(sums: &Values<'_>, totals: &[[f64; 2]], accumulate: bool) {
    for (c, total) in totals.iter().enumerate() {
        sums.put(cell(0, c), total[0], accumulate);
        sums.put(cell(1, c), total[1], accumulate);
    }
}

fn normalize(
    [x, gamma, beta, y]: [&View; 4],
    scales: &[Scale],
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    let (x, y) = (call.values(x), call.values(y));
    let (gamma, beta) = (call.values(gamma), call.values(beta));
    let visits = each_element(x.extent(), call.progress, |i| {
        let scale = &scales[i[4]];
        let normalized = (x.get(i) - scale.mean) * scale.inverse;
        y.set(
            i,
            normalized * gamma.get(entry(i[4])) + beta.get(entry(i[4])),
        );
    })?;
    Ok(2 * visits)
}

fn running(of: BatchNormRunning<'_>, call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    let [mean, variance] = [of.mean, of.variance].map(|view| call.result(view, true));
    let (sums, count, momentum) = (call.values(of.sums), *of.count, *of.momentum);
    // One element has no unbiased variance; its biased one, 0, stands in.
    let unbiased = count as f64 / (count.max(2) - 1) as f64;
    let visits = each_element(mean.extent(), call.progress, |i| {
        let moments = Moments::of_sums(&sums, i[4], count);
        let moved = |old: f64, new: f64| (1.0 - momentum) * old + momentum * new;
        mean.set(i, moved(mean.get(i), moments.mean));
        variance.set(i, moved(variance.get(i), moments.variance * unbiased));
    })?;
    Ok(8 * visits)
}

fn backward_statistics(
    of: BatchNormBackwardStatistics<'_>,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    let (x, sums, dy) = (call.values(of.x), call.values(of.sums), call.values(of.dy));
    let gradient_sums = call.result(of.gradient_sums, *of.accumulate);
    let channels = x.extent()[4];
    let scales: Vec<_> = (0..channels)
        .map(|c| Moments::of_sums(&sums, c, *of.count).scale(*of.epsilon))
        .collect();
    let mut totals = vec![[0.0; 2]; channels];
    let visits = each_element(x.extent(), call.progress, |i| {
        let (scale, gradient) = (&scales[i[4]], dy.get(i));
        totals[i[4]][0] += gradient;
        totals[i[4]][1] += gradient * (x.get(i) - scale.mean) * scale.inverse;
    })?;
    put_totals(&gradient_sums, &totals, *of.accumulate);
    Ok(5 * visits)
}

/// `dx = gamma / sigma * dy`.
fn inference_backward(
    of: BatchNormInferenceBackward<'_>,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    let [dy, variance, gamma] = [of.dy, of.variance, of.gamma].map(|view| call.values(view));
    let dx = call.result(of.dx, *of.accumulate);
    let flops = each_element(dy.extent(), call.progress, |i| {
        let c = entry(i[4]);
        let deviation = (variance.get(c) + of.epsilon).sqrt();
        dx.put(i, gamma.get(c) / deviation * dy.get(i), *of.accumulate);
    })?;
    Ok(flops)
}

/// `dx = gamma / sigma * (dy - mean(dy) - normalized x * mean(dy * normalized x))`.
fn backward_data(of: BatchNormBackwardData<'_>, call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    let [x, sums, gamma] = [of.x, of.sums, of.gamma].map(|view| call.values(view));
    let (dy, gradient_sums) = (call.values(of.dy), call.values(of.gradient_sums));
    let dx = call.result(of.dx, *of.accumulate);
    let scales: Vec<_> = (0..x.extent()[4])
        .map(|c| Moments::of_sums(&sums, c, *of.count).scale(*of.epsilon))
        .collect();
    let visits = each_element(x.extent(), call.progress, |i| {
        let (c, scale) = (i[4], &scales[i[4]]);
        let normalized = (x.get(i) - scale.mean) * scale.inverse;
        let mean = |row: usize| gradient_sums.get(cell(row, c)) / *of.count as f64;
        let centered = dy.get(i) - mean(0) - normalized * mean(1);
        let value = gamma.get(entry(c)) * scale.inverse * centered;
        dx.put(i, value, *of.accumulate);
    })?;
    Ok(6 * visits)
}

fn backward_parameters(
    of: BatchNormBackwardParameters<'_>,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    let (gradient_sums, accumulate) = (call.values(of.gradient_sums), *of.accumulate);
    let [dgamma, dbeta] = [of.dgamma, of.dbeta].map(|view| call.result(view, accumulate));
    let visits = each_element(dgamma.extent(), call.progress, |i| {
        dbeta.put(i, gradient_sums.get(cell(0, i[4])), accumulate);
        dgamma.put(i, gradient_sums.get(cell(1, i[4])), accumulate);
    })?;
    Ok(2 * visits)
}
