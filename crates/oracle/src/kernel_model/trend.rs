//! The trend of a family of kernels: `T = start + flops / rate + bytes / bandwidth`.
//!
//! Non-negative least squares of relative errors. Assumes that arithmetic and memory traffic add up, as they
//! do if neither hides all of the other. The Gaussian process corrects for the shape.
//! Source: the linear form of Amdahl's balance; relative errors, since times span six decades.

use super::Features;
use super::KernelSample;
use crate::cholesky::solve;

/// Seconds per launch, per flop and per byte.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Trend([f64; 3]);

impl Trend {
    /// None without samples.
    pub fn fit(samples: &[&KernelSample]) -> Option<Self> {
        let row =
            |sample: &&KernelSample| terms(&sample.features).map(|term| term / sample.cost.alone.0);
        let rows: Vec<[f64; 3]> = samples.iter().map(row).collect();
        // The best non-negative solution is that of some subset of the terms.
        let subsets = (1..8usize).map(|subset| {
            let chosen: Vec<usize> = (0..3).filter(|at| subset >> at & 1 == 1).collect();
            let numbers = least_squares(&rows, &chosen)?;
            let is_valid = numbers.iter().all(|number| *number >= 0.0);
            let error = |row: &[f64; 3]| {
                let sum: f64 = row.iter().zip(&numbers).map(|(a, b)| a * b).sum();
                (sum - 1.0) * (sum - 1.0)
            };
            let total: f64 = rows.iter().map(error).sum();
            (is_valid && total.is_finite()).then_some((total, Self(numbers)))
        });
        let best = subsets.flatten().min_by(|a, b| a.0.total_cmp(&b.0));
        best.map(|(_, trend)| trend)
    }

    /// Always above 0.
    pub fn seconds(&self, features: &Features) -> f64 {
        let terms = terms(features);
        let sum: f64 = terms.iter().zip(&self.0).map(|(a, b)| a * b).sum();
        sum.max(1e-9)
    }
}

fn terms(features: &Features) -> [f64; 3] {
    [1.0, features.flops, features.bytes]
}

/// Least squares solution of `row numbers = 1` over all rows; terms that are not chosen are 0.
fn least_squares(rows: &[[f64; 3]], chosen: &[usize]) -> Option<[f64; 3]> {
    let size = chosen.len();
    // Columns of equal length keep the normal equations well conditioned.
    let length = |at: usize| rows.iter().map(|row| row[at] * row[at]).sum::<f64>().sqrt();
    let lengths: Vec<f64> = chosen.iter().map(|&at| length(at)).collect();
    if lengths.iter().any(|length| *length <= 0.0) {
        return None;
    }
    let column = |index: usize, row: &[f64; 3]| row[chosen[index]] / lengths[index];
    let mut matrix = vec![0.0; size * size];
    let mut right = vec![0.0; size];
    for row in rows {
        for a in 0..size {
            right[a] += column(a, row);
            for b in 0..size {
                matrix[a * size + b] += column(a, row) * column(b, row);
            }
        }
    }
    for a in 0..size {
        matrix[a * size + a] += 1e-9;
    }
    let solution = solve(matrix, right)?;
    let mut numbers = [0.0; 3];
    for (index, &at) in chosen.iter().enumerate() {
        numbers[at] = solution[index] / lengths[index];
    }
    Some(numbers)
}
