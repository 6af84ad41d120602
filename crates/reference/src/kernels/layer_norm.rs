//! Layer norm.

use super::Call;
use crate::values::{Values, each_element, entry};
use partita_program::fields::{
    LayerNormBackwardData, LayerNormBackwardParameters, LayerNormBackwardStatistics,
    LayerNormForward, LayerNormStatistics,
};
use partita_program::{Fields, Kernel};
use partita_run::RunError;

pub(super) fn execute(kernel: &Kernel, call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    match kernel.fields() {
        Fields::LayerNormStatistics(of) => statistics(of, call),
        Fields::LayerNormForward(of) => normalize(of, call),
        Fields::LayerNormBackwardStatistics(of) => backward_statistics(of, call),
        Fields::LayerNormBackwardData(of) => backward_data(of, call),
        Fields::LayerNormBackwardParameters(of) => backward_parameters(of, call),
        _ => panic!("{} is no layer norm kernel", kernel.name()),
    }
}

/// How the elements of a position are normalized: `(x - mean) * inverse`.
struct Rows<'c> {
    sums: Values<'c>,
    count: f64,
    epsilon: f64,
}

impl<'c> Rows<'c> {
    fn new(sums: Values<'c>, (count, epsilon): (u64, f64)) -> Self {
        Self {
            sums,
            count: count as f64,
            epsilon,
        }
    }

    fn inverse(&self, mut at: [usize; 5]) -> (f64, f64) {
        let mut mean_of = |row| {
            at[4] = row;
            self.sums.get(at) / self.count
        };
        let (mean, square) = (mean_of(0), mean_of(1));
        let variance = (square - mean * mean).max(0.0);
        (mean, 1.0 / (variance + self.epsilon).sqrt())
    }

    fn normalized(&self, at: [usize; 5], x: f64) -> f64 {
        let (mean, inverse) = self.inverse(at);
        (x - mean) * inverse
    }
}

/// Adds to the two numbers of the position of an element.
fn add_to_row(sums: &Values<'_>, mut at: [usize; 5], values: [f64; 2]) {
    let is_first = at[4] == 0;
    for (row, value) in values.into_iter().enumerate() {
        at[4] = row;
        sums.put(at, value, !is_first);
    }
}

fn statistics(of: LayerNormStatistics<'_>, call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    let (x, sums) = (call.values(of.x), call.values(of.sums));
    let visits = each_element(x.extent(), call.progress, |i| {
        let value = x.get(i);
        let first = if *of.rms { 0.0 } else { value };
        add_to_row(&sums, i, [first, value * value]);
    })?;
    Ok(3 * visits)
}

fn normalize(of: LayerNormForward<'_>, call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    assert_eq!(
        of.x.extent, of.y.extent,
        "{} and {} have one shape",
        of.x, of.y
    );
    let rows = Rows::new(call.values(of.sums), (*of.count, *of.epsilon));
    let [x, gamma, beta, y] = [of.x, of.gamma, of.beta, of.y].map(|view| call.values(view));
    let visits = each_element(x.extent(), call.progress, |i| {
        let normalized = rows.normalized(i, x.get(i));
        let c = entry(i[4]);
        y.set(i, normalized * gamma.get(c) + beta.get(c));
    })?;
    Ok(4 * visits)
}

fn backward_statistics(
    of: LayerNormBackwardStatistics<'_>,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    let rows = Rows::new(call.values(of.sums), (*of.count, *of.epsilon));
    let [x, gamma, dy] = [of.x, of.gamma, of.dy].map(|view| call.values(view));
    let gradient_sums = call.values(of.gradient_sums);
    let visits = each_element(x.extent(), call.progress, |i| {
        let gradient = dy.get(i) * gamma.get(entry(i[4]));
        let scaled = gradient * rows.normalized(i, x.get(i));
        let first = if *of.rms { 0.0 } else { gradient };
        add_to_row(&gradient_sums, i, [first, scaled]);
    })?;
    Ok(6 * visits)
}

fn backward_data(of: LayerNormBackwardData<'_>, call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    assert_eq!(
        of.x.extent, of.dx.extent,
        "{} and {} have one shape",
        of.x, of.dx
    );
    let rows = Rows::new(call.values(of.sums), (*of.count, *of.epsilon));
    let [x, gamma, dy] = [of.x, of.gamma, of.dy].map(|view| call.values(view));
    let (gradient_sums, dx) = (
        call.values(of.gradient_sums),
        call.result(of.dx, *of.accumulate),
    );
    let visits = each_element(x.extent(), call.progress, |i| {
        let [n, d, h, w, c] = i;
        let mean = |row| gradient_sums.get([n, d, h, w, row]) / rows.count;
        let (_, inverse) = rows.inverse(i);
        let normalized = rows.normalized(i, x.get(i));
        let gradient = dy.get(i) * gamma.get(entry(c));
        let value = inverse * (gradient - mean(0) - normalized * mean(1));
        dx.put(i, value, *of.accumulate);
    })?;
    Ok(7 * visits)
}

fn backward_parameters(
    of: LayerNormBackwardParameters<'_>,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    let rows = Rows::new(call.values(of.sums), (*of.count, *of.epsilon));
    let (x, dy, accumulate) = (call.values(of.x), call.values(of.dy), *of.accumulate);
    let [dgamma, dbeta] = [of.dgamma, of.dbeta].map(|view| call.result(view, accumulate));
    let mut totals = vec![[0.0; 2]; x.extent()[4]];
    let visits = each_element(x.extent(), call.progress, |i| {
        let gradient = dy.get(i);
        totals[i[4]][0] += gradient * rows.normalized(i, x.get(i));
        totals[i[4]][1] += gradient;
    })?;
    for (c, total) in totals.iter().enumerate() {
        dgamma.put(entry(c), total[0], accumulate);
        dbeta.put(entry(c), total[1], accumulate);
    }
    Ok(5 * visits)
}
