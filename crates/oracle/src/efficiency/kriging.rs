//! Interpolation of a value between the shapes at which it is known.
//!
//! `r(x) = m + sum_i a_i exp(-|x - x_i|^2 / 2 s^2)`, with `m` the middle of the known values and `a` from
//! `(K + n I) a = r - m`. The reach `s` and the noise `n` are those that, of a small grid, estimate
//! folds best that were left out. Far from all that is known it falls back to `m`.
//! Assumes that times change smoothly with the logarithms of extents, and that what was measured is
//! itself uncertain by some percent.
//! Source: simple kriging (Gaussian process regression) as in Rasmussen and Williams, Gaussian Processes
//! for Machine Learning (2006), section 2.2.

use crate::linear::Factor;
use partita_space::upper_median;

/// Distances over which values are alike, in natural logarithms of extents.
const REACHES: [f64; 3] = [1.0, 2.0, 4.0];

/// Variances of what was measured, of a logarithm of time, for a variance of 1 between shapes.
const NOISES: [f64; 3] = [0.002, 0.02, 0.1];

/// Parts in which values are left out.
const FOLDS: usize = 4;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Kriging {
    shapes: Vec<Vec<f64>>,
    weights: Vec<f64>,
    middle: f64,
    reach: f64,
}

impl Kriging {
    /// Through `values` at `shapes`; of none it is 0 everywhere.
    pub fn fit(shapes: &[&[f64]], values: Vec<f64>) -> Self {
        let settings = REACHES
            .into_iter()
            .flat_map(|reach| NOISES.map(|noise| (reach, noise)));
        let scored =
            settings.map(|(reach, noise)| (error(shapes, &values, reach, noise), reach, noise));
        let best = scored.min_by(|a, b| a.0.total_cmp(&b.0));
        let (_, reach, noise) = best.unwrap_or((0.0, REACHES[0], NOISES[0]));
        Self::through(shapes, &values, reach, noise)
    }

    fn through(shapes: &[&[f64]], values: &[f64], reach: f64, noise: f64) -> Self {
        let middle = upper_median(values);
        let size = shapes.len();
        let mut matrix = vec![0.0; size * size];
        for a in 0..size {
            for b in 0..=a {
                let alike = alike(shapes[a], shapes[b], reach);
                matrix[a * size + b] = alike;
                matrix[b * size + a] = alike;
            }
            matrix[a * size + a] += noise;
        }
        let right = values.iter().map(|value| value - middle).collect();
        // With noise on its diagonal the matrix has a factor; without one the middle is all there is.
        let weights = Factor::new(matrix, size).map(|factor| factor.solve(right));
        Self {
            shapes: shapes.iter().map(|shape| shape.to_vec()).collect(),
            weights: weights.unwrap_or_else(|| vec![0.0; size]),
            middle,
            reach,
        }
    }

    pub fn at(&self, shape: &[f64]) -> f64 {
        let known = self.shapes.iter().zip(&self.weights);
        let sum: f64 = known
            .map(|(one, weight)| weight * alike(one, shape, self.reach))
            .sum();
        self.middle + sum
    }

    /// Whether nothing known is as near as values are alike.
    pub fn is_outside(&self, shape: &[f64]) -> bool {
        let nearest = self.shapes.iter().map(|one| distance(one, shape));
        nearest.fold(f64::INFINITY, f64::min) > (2.0 * self.reach) * (2.0 * self.reach)
    }
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
}

fn alike(a: &[f64], b: &[f64], reach: f64) -> f64 {
    (-0.5 * distance(a, b) / (reach * reach)).exp()
}

/// Mean error of values that were left out, none above 1, so that one wrong value does not decide.
fn error(shapes: &[&[f64]], values: &[f64], reach: f64, noise: f64) -> f64 {
    let mut sum = 0.0;
    for fold in 0..FOLDS {
        let kept = (0..values.len()).filter(|at| at % FOLDS != fold);
        let (some, known): (Vec<&[f64]>, Vec<f64>) =
            kept.map(|at| (shapes[at], values[at])).unzip();
        let law = Kriging::through(&some, &known, reach, noise);
        let left_out = (fold..values.len()).step_by(FOLDS);
        sum += left_out
            .map(|at| (law.at(shapes[at]) - values[at]).abs().min(1.0))
            .sum::<f64>();
    }
    sum
}
