//! Gaussian process regression with a squared exponential covariance.
//!
//! `r(x) = m + sum_i a_i exp(-|x - x_i|^2 / 2 s^2)`, with the constant mean `m`, which is the median of the
//! observed values, and `a` from `(K + n I) a = r - m`. The length scale `s` and the noise variance `n` are
//! chosen from a small grid by cross-validation. Far from all observations the prediction is `m`.
//! Assumes that times change smoothly with the logarithms of extents, and that measurements have an error
//! of some percent.
//! Source: Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), section 2.2.

use crate::cholesky::Cholesky;
use partita_space::upper_median;

/// Candidate length scales, in natural logarithms of extents.
const LENGTH_SCALES: [f64; 3] = [1.0, 2.0, 4.0];

/// Candidate noise variances of the logarithm of a time, relative to the variance of the process.
const NOISE_VARIANCES: [f64; 3] = [0.002, 0.02, 0.1];

/// Folds of the cross-validation.
const FOLDS: usize = 4;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct GaussianProcess {
    shapes: Vec<Vec<f64>>,
    weights: Vec<f64>,
    mean: f64,
    length_scale: f64,
}

impl GaussianProcess {
    /// From observed `values` at `shapes`; without any, the mean is 0.
    pub fn fit(shapes: &[&[f64]], values: Vec<f64>) -> Self {
        let settings = LENGTH_SCALES
            .into_iter()
            .flat_map(|length_scale| NOISE_VARIANCES.map(|noise| (length_scale, noise)));
        let scored = settings.map(|(length_scale, noise)| {
            (
                error(shapes, &values, length_scale, noise),
                length_scale,
                noise,
            )
        });
        let best = scored.min_by(|a, b| a.0.total_cmp(&b.0));
        let (_, length_scale, noise) = best.unwrap_or((0.0, LENGTH_SCALES[0], NOISE_VARIANCES[0]));
        Self::with(shapes, &values, length_scale, noise)
    }

    fn with(shapes: &[&[f64]], values: &[f64], length_scale: f64, noise: f64) -> Self {
        let mean = upper_median(values);
        let size = shapes.len();
        let mut matrix = vec![0.0; size * size];
        for a in 0..size {
            for b in 0..=a {
                let value = covariance(shapes[a], shapes[b], length_scale);
                matrix[a * size + b] = value;
                matrix[b * size + a] = value;
            }
            matrix[a * size + a] += noise;
        }
        let right = values.iter().map(|value| value - mean).collect();
        // Noise on its diagonal makes the matrix positive definite; if it is not, predict the mean.
        let weights = Cholesky::new(matrix, size).map(|factor| factor.solve(right));
        Self {
            shapes: shapes.iter().map(|shape| shape.to_vec()).collect(),
            weights: weights.unwrap_or_else(|| vec![0.0; size]),
            mean,
            length_scale,
        }
    }

    pub fn at(&self, shape: &[f64]) -> f64 {
        let observed = self.shapes.iter().zip(&self.weights);
        let sum: f64 = observed
            .map(|(one, weight)| weight * covariance(one, shape, self.length_scale))
            .sum();
        self.mean + sum
    }

    /// Whether all observations are more than two length scales away.
    pub fn is_extrapolation(&self, shape: &[f64]) -> bool {
        let nearest = self.shapes.iter().map(|one| distance(one, shape));
        nearest.fold(f64::INFINITY, f64::min)
            > (2.0 * self.length_scale) * (2.0 * self.length_scale)
    }
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
}

fn covariance(a: &[f64], b: &[f64], length_scale: f64) -> f64 {
    (-0.5 * distance(a, b) / (length_scale * length_scale)).exp()
}

/// Sum of the errors of values that were left out, each at most 1 to bound the weight of outliers.
fn error(shapes: &[&[f64]], values: &[f64], length_scale: f64, noise: f64) -> f64 {
    let mut sum = 0.0;
    for fold in 0..FOLDS {
        let kept = (0..values.len()).filter(|at| at % FOLDS != fold);
        let (fitted, observed): (Vec<&[f64]>, Vec<f64>) =
            kept.map(|at| (shapes[at], values[at])).unzip();
        let model = GaussianProcess::with(&fitted, &observed, length_scale, noise);
        let left_out = (fold..values.len()).step_by(FOLDS);
        sum += left_out
            .map(|at| (model.at(shapes[at]) - values[at]).abs().min(1.0))
            .sum::<f64>();
    }
    sum
}
