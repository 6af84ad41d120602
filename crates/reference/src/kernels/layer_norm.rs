//! Layer norm.

use super::Call;
use crate::values::{Values, each_element, entry};
use partita_program::{Kernel, View};
use partita_run::RunError;

pub(super) fn execute(kernel: &Kernel, call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    match kernel {
        Kernel::LayerNormStatistics { x, sums, rms } => statistics([x, sums], *rms, call),
        Kernel::LayerNormForward {
            x,
            sums,
            gamma,
            beta,
            y,
            count,
            epsilon,
        } => normalize([x, sums, gamma, beta, y], (*count, *epsilon), call),
        Kernel::LayerNormBackwardStatistics {
            x,
            sums,
            gamma,
            dy,
            gradient_sums,
            count,
            epsilon,
            rms,
        } => {
            let views = [x, sums, gamma, dy, gradient_sums];
            backward_statistics(views, (*count, *epsilon), *rms, call)
        }
        Kernel::LayerNormBackwardData {
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
            backward_data(views, (*count, *epsilon), *accumulate, call)
        }
        Kernel::LayerNormBackwardParameters {
            x,
            sums,
            dy,
            dgamma,
            dbeta,
            count,
            epsilon,
            accumulate,
        } => {
            let views = [x, sums, dy, dgamma, dbeta];
            backward_parameters(views, (*count, *epsilon), *accumulate, call)
        }
        other => panic!("{} is no layer norm kernel", other.name()),
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

fn statistics([x, sums]: [&View; 2], rms: bool, call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    let (x, sums) = (call.values(x), call.values(sums));
    let visits = each_element(x.extent(), call.progress, |i| {
        let value = x.get(i);
        let first = if rms { 0.0 } else { value };
        add_to_row(&sums, i, [first, value * value]);
    })?;
    Ok(3 * visits)
}

fn normalize(
    [x, sums, gamma, beta, y]: [&View; 5],
    constants: (u64, f64),
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    assert_eq!(x.extent, y.extent, "{x} and {y} have one shape");
    let rows = Rows::new(call.values(sums), constants);
    let (x, gamma, beta, y) = (
        call.values(x),
        call.values(gamma),
        call.values(beta),
        call.values(y),
    );
    let visits = each_element(x.extent(), call.progress, |i| {
        let normalized = rows.normalized(i, x.get(i));
        let c = entry(i[4]);
        y.set(i, normalized * gamma.get(c) + beta.get(c));
    })?;
    Ok(4 * visits)
}

fn backward_statistics(
    [x, sums, gamma, dy, gradient_sums]: [&View; 5],
    constants: (u64, f64),
    rms: bool,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    let rows = Rows::new(call.values(sums), constants);
    let (x, gamma, dy) = (call.values(x), call.values(gamma), call.values(dy));
    let gradient_sums = call.values(gradient_sums);
    let visits = each_element(x.extent(), call.progress, |i| {
        let gradient = dy.get(i) * gamma.get(entry(i[4]));
        let scaled = gradient * rows.normalized(i, x.get(i));
        let first = if rms { 0.0 } else { gradient };
        add_to_row(&gradient_sums, i, [first, scaled]);
    })?;
    Ok(6 * visits)
}

fn backward_data(
    [x, sums, gamma, dy, gradient_sums, dx]: [&View; 6],
    constants: (u64, f64),
    accumulate: bool,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    assert_eq!(x.extent, dx.extent, "{x} and {dx} have one shape");
    let rows = Rows::new(call.values(sums), constants);
    let (x, gamma, dy) = (call.values(x), call.values(gamma), call.values(dy));
    let (gradient_sums, dx) = (call.values(gradient_sums), call.result(dx, accumulate));
    let visits = each_element(x.extent(), call.progress, |i| {
        let [n, d, h, w, c] = i;
        let mean = |row| gradient_sums.get([n, d, h, w, row]) / rows.count;
        let (_, inverse) = rows.inverse(i);
        let normalized = rows.normalized(i, x.get(i));
        let gradient = dy.get(i) * gamma.get(entry(c));
        let value = inverse * (gradient - mean(0) - normalized * mean(1));
        dx.put(i, value, accumulate);
    })?;
    Ok(7 * visits)
}

fn backward_parameters(
    [x, sums, dy, dgamma, dbeta]: [&View; 5],
    constants: (u64, f64),
    accumulate: bool,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    let rows = Rows::new(call.values(sums), constants);
    let (x, dy) = (call.values(x), call.values(dy));
    let [dgamma, dbeta] = [dgamma, dbeta].map(|view| call.result(view, accumulate));
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
