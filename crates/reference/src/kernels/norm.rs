//! Batch norm.

use super::Call;
use crate::values::{Values, cell, each_element, entry};
use partita_program::{Kernel, View};
use partita_run::RunError;

pub(super) fn execute(kernel: &Kernel, call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    match kernel {
        Kernel::BatchNormStatistics {
            x,
            sums,
            accumulate,
        } => statistics(x, sums, *accumulate, call),
        Kernel::BatchNormForward {
            x,
            sums,
            gamma,
            beta,
            y,
            count,
            epsilon,
        } => {
            let sums = call.values(sums);
            let moments = (0..x.extent[4]).map(|c| Moments::of_sums(&sums, c, *count));
            let scales: Vec<_> = moments.map(|moments| moments.scale(*epsilon)).collect();
            normalize([x, gamma, beta, y], &scales, call)
        }
        Kernel::BatchNormRunning {
            sums,
            mean,
            variance,
            count,
            momentum,
        } => running([sums, mean, variance], *count, *momentum, call),
        Kernel::BatchNormInference {
            x,
            mean,
            variance,
            gamma,
            beta,
            y,
            epsilon,
        } => {
            let (mean, variance) = (call.values(mean), call.values(variance));
            let moments = (0..x.extent[4]).map(|c| Moments {
                mean: mean.get(entry(c)),
                variance: variance.get(entry(c)),
            });
            let scales: Vec<_> = moments.map(|moments| moments.scale(*epsilon)).collect();
            normalize([x, gamma, beta, y], &scales, call)
        }
        Kernel::BatchNormInferenceBackward { .. } => inference_backward(kernel, call),
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
            backward_statistics(views, *count, *epsilon, *accumulate, call)
        }
        Kernel::BatchNormBackwardData { .. } => backward_data(kernel, call),
        Kernel::BatchNormBackwardParameters {
            gradient_sums,
            dgamma,
            dbeta,
            accumulate,
        } => backward_parameters([gradient_sums, dgamma, dbeta], *accumulate, call),
        other => panic!("{} is no batch norm kernel", other.name()),
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

fn statistics(
    x: &View,
    sums: &View,
    accumulate: bool,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    let (x, sums) = (call.values(x), call.result(sums, accumulate));
    let mut totals = vec![[0.0; 2]; x.extent()[4]];
    let visits = each_element(x.extent(), call.progress, |i| {
        let value = x.get(i);
        totals[i[4]][0] += value;
        totals[i[4]][1] += value * value;
    })?;
    put_totals(&sums, &totals, accumulate);
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

fn running(
    [sums, mean, variance]: [&View; 3],
    count: u64,
    momentum: f64,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    let [mean, variance] = [mean, variance].map(|view| call.result(view, true));
    let sums = call.values(sums);
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
    [x, sums, dy, gradient_sums]: [&View; 4],
    count: u64,
    epsilon: f64,
    accumulate: bool,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    let (x, sums, dy) = (call.values(x), call.values(sums), call.values(dy));
    let gradient_sums = call.result(gradient_sums, accumulate);
    let channels = x.extent()[4];
    let scales: Vec<_> = (0..channels)
        .map(|c| Moments::of_sums(&sums, c, count).scale(epsilon))
        .collect();
    let mut totals = vec![[0.0; 2]; channels];
    let visits = each_element(x.extent(), call.progress, |i| {
        let (scale, gradient) = (&scales[i[4]], dy.get(i));
        totals[i[4]][0] += gradient;
        totals[i[4]][1] += gradient * (x.get(i) - scale.mean) * scale.inverse;
    })?;
    put_totals(&gradient_sums, &totals, accumulate);
    Ok(5 * visits)
}

/// `dx = gamma / sigma * dy`.
fn inference_backward(kernel: &Kernel, call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    let Kernel::BatchNormInferenceBackward {
        dy,
        variance,
        gamma,
        dx,
        epsilon,
        accumulate,
    } = kernel
    else {
        panic!("{} is no batch norm kernel", kernel.name());
    };
    let [dy, variance, gamma] = [dy, variance, gamma].map(|view| call.values(view));
    let dx = call.result(dx, *accumulate);
    let flops = each_element(dy.extent(), call.progress, |i| {
        let c = entry(i[4]);
        let deviation = (variance.get(c) + epsilon).sqrt();
        dx.put(i, gamma.get(c) / deviation * dy.get(i), *accumulate);
    })?;
    Ok(flops)
}

/// `dx = gamma / sigma * (dy - mean(dy) - normalized x * mean(dy * normalized x))`.
fn backward_data(kernel: &Kernel, call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    let Kernel::BatchNormBackwardData {
        x,
        sums,
        gamma,
        dy,
        gradient_sums,
        dx,
        count,
        epsilon,
        accumulate,
    } = kernel
    else {
        panic!("{} is not the data gradient of a batch norm", kernel.name());
    };
    let (x, sums, gamma) = (call.values(x), call.values(sums), call.values(gamma));
    let (dy, gradient_sums) = (call.values(dy), call.values(gradient_sums));
    let dx = call.result(dx, *accumulate);
    let scales: Vec<_> = (0..x.extent()[4])
        .map(|c| Moments::of_sums(&sums, c, *count).scale(*epsilon))
        .collect();
    let visits = each_element(x.extent(), call.progress, |i| {
        let (c, scale) = (i[4], &scales[i[4]]);
        let normalized = (x.get(i) - scale.mean) * scale.inverse;
        let mean = |row: usize| gradient_sums.get(cell(row, c)) / *count as f64;
        let centered = dy.get(i) - mean(0) - normalized * mean(1);
        dx.put(
            i,
            gamma.get(entry(c)) * scale.inverse * centered,
            *accumulate,
        );
    })?;
    Ok(6 * visits)
}

fn backward_parameters(
    [gradient_sums, dgamma, dbeta]: [&View; 3],
    accumulate: bool,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    let gradient_sums = call.values(gradient_sums);
    let [dgamma, dbeta] = [dgamma, dbeta].map(|view| call.result(view, accumulate));
    let visits = each_element(dgamma.extent(), call.progress, |i| {
        dbeta.put(i, gradient_sums.get(cell(0, i[4])), accumulate);
        dgamma.put(i, gradient_sums.get(cell(1, i[4])), accumulate);
    })?;
    Ok(2 * visits)
}
