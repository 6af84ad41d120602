//! Group norm.

use super::Call;
use crate::values::{Values, each_element, entry};
use partita_program::fields::{
    GroupNormBackwardData, GroupNormBackwardStatistics, GroupNormForward, GroupNormStatistics,
};
use partita_program::{Fields, Kernel};
use partita_run::RunError;

/// Groups, values per group, and epsilon.
type Constants = (usize, u64, f64);

pub(super) fn execute(kernel: &Kernel, call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    match kernel.fields() {
        Fields::GroupNormStatistics(of) => statistics(of, call),
        Fields::GroupNormForward(of) => normalize(of, call),
        Fields::GroupNormBackwardStatistics(of) => backward_statistics(of, call),
        Fields::GroupNormBackwardData(of) => backward_data(of, call),
        _ => panic!("{} is no group norm kernel", kernel.name()),
    }
}

/// A row of the sums of a sample.
fn cell(n: usize, row: usize, c: usize) -> [usize; 5] {
    [n, 0, 0, row, c]
}

/// How elements are normalized: `(x - mean) * inverse`.
struct Groups<'c> {
    sums: Values<'c>,
    /// Channels of a group.
    size: usize,
    count: f64,
    epsilon: f64,
}

impl<'c> Groups<'c> {
    fn new(sums: Values<'c>, (groups, count, epsilon): Constants) -> Self {
        Self {
            size: sums.extent()[4] / groups,
            sums,
            count: count as f64,
            epsilon,
        }
    }

    /// Mean over the group of a channel of what `of` says of each channel in it.
    fn mean(&self, c: usize, of: impl Fn(usize) -> f64) -> f64 {
        let first = c / self.size * self.size;
        (first..first + self.size).map(of).sum::<f64>() / self.count
    }

    fn inverse(&self, n: usize, c: usize) -> (f64, f64) {
        let mean_of = |row| self.mean(c, |c| self.sums.get(cell(n, row, c)));
        let (mean, square) = (mean_of(0), mean_of(1));
        let variance = (square - mean * mean).max(0.0);
        (mean, 1.0 / (variance + self.epsilon).sqrt())
    }

    fn normalized(&self, at: [usize; 5], x: f64) -> f64 {
        let (mean, inverse) = self.inverse(at[0], at[4]);
        (x - mean) * inverse
    }
}

fn statistics(of: GroupNormStatistics<'_>, call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    let (x, sums) = (call.values(of.x), call.values(of.sums));
    let [samples, .., channels] = x.extent();
    let mut totals = vec![[0.0; 2]; samples * channels];
    let visits = each_element(x.extent(), call.progress, |i| {
        let (value, total) = (x.get(i), &mut totals[i[0] * channels + i[4]]);
        total[0] += value;
        total[1] += value * value;
    })?;
    put_totals(&sums, &totals);
    Ok(3 * visits)
}

fn put_totals(sums: &Values<'_>, totals: &[[f64; 2]]) {
    let channels = sums.extent()[4];
    for (i, total) in totals.iter().enumerate() {
        for (row, total) in total.iter().enumerate() {
            sums.put(cell(i / channels, row, i % channels), *total, false);
        }
    }
}

fn normalize(of: GroupNormForward<'_>, call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    assert_eq!(
        of.x.extent, of.y.extent,
        "{} and {} have one shape",
        of.x, of.y
    );
    let groups = Groups::new(call.values(of.sums), (*of.groups, *of.count, *of.epsilon));
    let (x, y) = (call.values(of.x), call.values(of.y));
    let (gamma, beta) = (call.values(of.gamma), call.values(of.beta));
    let visits = each_element(x.extent(), call.progress, |i| {
        let (normalized, c) = (groups.normalized(i, x.get(i)), entry(i[4]));
        y.set(i, normalized * gamma.get(c) + beta.get(c));
    })?;
    Ok(2 * visits)
}

fn backward_statistics(
    of: GroupNormBackwardStatistics<'_>,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    let groups = Groups::new(call.values(of.sums), (*of.groups, *of.count, *of.epsilon));
    let (x, dy, accumulate) = (call.values(of.x), call.values(of.dy), *of.accumulate);
    let [dgamma, dbeta] = [of.dgamma, of.dbeta].map(|view| call.result(view, accumulate));
    let [samples, .., channels] = x.extent();
    let mut totals = vec![[0.0; 2]; samples * channels];
    let visits = each_element(x.extent(), call.progress, |i| {
        let (gradient, total) = (dy.get(i), &mut totals[i[0] * channels + i[4]]);
        total[0] += gradient;
        total[1] += gradient * groups.normalized(i, x.get(i));
    })?;
    for c in 0..channels {
        let of_samples = |row: usize| (0..samples).map(|n| totals[n * channels + c][row]).sum();
        dgamma.put(entry(c), of_samples(1), accumulate);
        dbeta.put(entry(c), of_samples(0), accumulate);
    }
    if let Some(sums) = of.gradient_sums.map(|view| call.values(&view)) {
        put_totals(&sums, &totals);
    }
    Ok(5 * visits)
}

/// `dx = (gamma dy - mean(gamma dy) - normalized x * mean(gamma dy * normalized x)) / sigma`, means over the
/// group.
fn backward_data(of: GroupNormBackwardData<'_>, call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    assert_eq!(
        of.x.extent, of.dx.extent,
        "{} and {} have one shape",
        of.x, of.dx
    );
    let groups = Groups::new(call.values(of.sums), (*of.groups, *of.count, *of.epsilon));
    let [x, gamma, dy] = [of.x, of.gamma, of.dy].map(|view| call.values(view));
    let (gradient_sums, dx) = (
        call.values(of.gradient_sums),
        call.result(of.dx, *of.accumulate),
    );
    let visits = each_element(x.extent(), call.progress, |i| {
        let (n, c) = (i[0], i[4]);
        let mean_of = |row| {
            let term = |c| gamma.get(entry(c)) * gradient_sums.get(cell(n, row, c));
            groups.mean(c, term)
        };
        let (_, inverse) = groups.inverse(n, c);
        let gradient = dy.get(i) * gamma.get(entry(c));
        let normalized = groups.normalized(i, x.get(i));
        let value = inverse * (gradient - mean_of(0) - normalized * mean_of(1));
        dx.put(i, value, *of.accumulate);
    })?;
    Ok(6 * visits)
}
