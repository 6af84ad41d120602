//! Ridge regression, the linear baseline that a network has to beat.

use crate::error::SynthError;

/// One sample in this many of the training set is held out to choose the regularization.
const HELD_OUT_EVERY: usize = 5;

/// Regularizations that are tried, powers of ten relative to the variance of a feature.
const LOG_LAMBDAS: std::ops::RangeInclusive<i32> = -9..=2;

/// A linear law per target, in standardized features and with an intercept.
#[derive(Debug, Clone, PartialEq)]
pub struct Ridge {
    scaling: Scaling,
    targets: Vec<Law>,
}

#[derive(Debug, Clone, PartialEq)]
struct Scaling {
    mean: Vec<f64>,
    inverse_deviation: Vec<f64>,
}

#[derive(Debug, Clone, PartialEq)]
struct Law {
    lambda: f64,
    intercept: f64,
    weights: Vec<f64>,
}

/// Fits every target; `features[sample][feature]`, `targets[sample][target]`.
///
/// Minimizes the mean square error plus lambda times the squared weights of the standardized
/// features. Lambda is chosen per target: the best of a decade grid on every fifth sample, which
/// the law was not fitted on; the law is then fitted on all samples.
/// Source: Hoerl and Kennard 1970. Errors: `Length` for ragged arrays or fewer than ten samples,
/// `Singular` if no regularization gives a finite law.
pub fn fit(features: &[Vec<f64>], targets: &[Vec<f64>]) -> Result<Ridge, SynthError> {
    check_shapes(features, targets)?;
    let held_out = |sample: usize| sample % HELD_OUT_EVERY == HELD_OUT_EVERY - 1;
    let choose = |keep: &dyn Fn(usize) -> bool| -> Vec<usize> {
        (0..features.len()).filter(|sample| keep(*sample)).collect()
    };
    let all = Normal::new(features, targets, &choose(&|_| true));
    let part = Normal::new(features, targets, &choose(&|sample| !held_out(sample)));
    let checked = choose(&held_out);
    let candidates: Vec<(f64, Factor)> = LOG_LAMBDAS
        .map(|log| 10f64.powi(log))
        .filter_map(|lambda| Some((lambda, part.factor(lambda)?)))
        .collect();
    let mut laws = Vec::new();
    for target in 0..targets[0].len() {
        let error = |factor: &Factor, lambda: f64| {
            let law = part.law(factor, target, lambda);
            let square = |sample: &usize| {
                let predicted = law.predict(&part.scaling.apply(&features[*sample]));
                (predicted - targets[*sample][target]).powi(2)
            };
            checked.iter().map(square).sum::<f64>()
        };
        let best = candidates
            .iter()
            .map(|(lambda, factor)| (*lambda, error(factor, *lambda)))
            .filter(|(_, error)| error.is_finite())
            .min_by(|a, b| a.1.total_cmp(&b.1))
            .ok_or(SynthError::Singular)?;
        let factor = all.factor(best.0).ok_or(SynthError::Singular)?;
        laws.push(all.law(&factor, target, best.0));
    }
    Ok(Ridge {
        scaling: all.scaling,
        targets: laws,
    })
}

impl Ridge {
    /// Predicts all targets of one sample. Errors: `Length` for another number of features.
    pub fn predict(&self, features: &[f64]) -> Result<Vec<f64>, SynthError> {
        let (expected, got) = (self.scaling.mean.len(), features.len());
        if expected != got {
            return Err(SynthError::Length {
                what: "features",
                expected,
                got,
            });
        }
        let scaled = self.scaling.apply(features);
        Ok(self
            .targets
            .iter()
            .map(|law| law.predict(&scaled))
            .collect())
    }

    /// The regularization that was chosen for each target.
    pub fn lambdas(&self) -> Vec<f64> {
        self.targets.iter().map(|law| law.lambda).collect()
    }
}

/// Errors of predictions relative to those of predicting one constant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ErrorRatio {
    /// Ratio of the mean absolute errors.
    pub mean_absolute: f64,
    /// Ratio of the root mean square errors.
    pub root_mean_square: f64,
}

/// Compares predictions of a target with always predicting `constant` (the training mean).
///
/// Errors: `Length` if the two arrays differ in length.
pub fn error_ratio(
    truth: &[f64],
    predicted: &[f64],
    constant: f64,
) -> Result<ErrorRatio, SynthError> {
    let (expected, got) = (truth.len(), predicted.len());
    if expected != got {
        return Err(SynthError::Length {
            what: "predictions",
            expected,
            got,
        });
    }
    let sum = |of: &dyn Fn(f64) -> f64, guess: &dyn Fn(usize) -> f64| -> f64 {
        truth
            .iter()
            .enumerate()
            .map(|(sample, truth)| of(truth - guess(sample)))
            .sum()
    };
    let ratio = |of: &dyn Fn(f64) -> f64| sum(of, &|s| predicted[s]) / sum(of, &|_| constant);
    Ok(ErrorRatio {
        mean_absolute: ratio(&f64::abs),
        root_mean_square: ratio(&|error| error * error).sqrt(),
    })
}

impl Scaling {
    fn new(features: &[Vec<f64>], samples: &[usize]) -> Self {
        let count = samples.len() as f64;
        let mean: Vec<f64> = (0..features[0].len())
            .map(|f| samples.iter().map(|s| features[*s][f]).sum::<f64>() / count)
            .collect();
        let inverse_deviation = mean.iter().enumerate().map(|(f, mean)| {
            let square: f64 = samples
                .iter()
                .map(|s| (features[*s][f] - mean).powi(2))
                .sum();
            let deviation = (square / count).sqrt();
            // A feature that never varies carries no weight.
            if deviation > 0.0 {
                1.0 / deviation
            } else {
                0.0
            }
        });
        Self {
            inverse_deviation: inverse_deviation.collect(),
            mean,
        }
    }

    fn apply(&self, features: &[f64]) -> Vec<f64> {
        let scale = self.mean.iter().zip(&self.inverse_deviation);
        features
            .iter()
            .zip(scale)
            .map(|(x, (mean, inverse))| (x - mean) * inverse)
            .collect()
    }
}

impl Law {
    fn predict(&self, scaled: &[f64]) -> f64 {
        self.intercept
            + self
                .weights
                .iter()
                .zip(scaled)
                .map(|(w, x)| w * x)
                .sum::<f64>()
    }
}

/// The normal equations of a set of samples, per sample.
struct Normal {
    scaling: Scaling,
    /// Correlation matrix of the features, row by row.
    correlation: Vec<f64>,
    /// Mean of each target.
    means: Vec<f64>,
    /// Covariance of each target with the features.
    moments: Vec<Vec<f64>>,
}

impl Normal {
    fn new(features: &[Vec<f64>], targets: &[Vec<f64>], samples: &[usize]) -> Self {
        let scaling = Scaling::new(features, samples);
        let (width, outputs) = (features[0].len(), targets[0].len());
        let share = 1.0 / samples.len() as f64;
        let means: Vec<f64> = (0..outputs)
            .map(|t| samples.iter().map(|s| targets[*s][t]).sum::<f64>() * share)
            .collect();
        let mut correlation = vec![0.0; width * width];
        let mut moments = vec![vec![0.0; width]; outputs];
        for sample in samples {
            let x = scaling.apply(&features[*sample]);
            for (row, xi) in correlation.chunks_exact_mut(width).zip(&x) {
                row.iter_mut()
                    .zip(&x)
                    .for_each(|(sum, xj)| *sum += share * xi * xj);
            }
            for (t, moment) in moments.iter_mut().enumerate() {
                let y = share * (targets[*sample][t] - means[t]);
                moment
                    .iter_mut()
                    .zip(&x)
                    .for_each(|(sum, xi)| *sum += y * xi);
            }
        }
        Self {
            scaling,
            correlation,
            means,
            moments,
        }
    }

    fn factor(&self, lambda: f64) -> Option<Factor> {
        let width = self.scaling.mean.len();
        let mut matrix = self.correlation.clone();
        (0..width).for_each(|i| matrix[i * width + i] += lambda);
        Factor::new(matrix, width)
    }

    fn law(&self, factor: &Factor, target: usize, lambda: f64) -> Law {
        let weights = factor.solve(&self.moments[target]);
        Law {
            lambda,
            intercept: self.means[target],
            weights,
        }
    }
}

/// Cholesky factor of a symmetric matrix, lower triangle, row by row.
struct Factor {
    lower: Vec<f64>,
    width: usize,
}

impl Factor {
    /// None unless the matrix is positive definite.
    fn new(mut a: Vec<f64>, width: usize) -> Option<Self> {
        for i in 0..width {
            for j in 0..=i {
                let (row_i, row_j) = (&a[i * width..][..j], &a[j * width..][..j]);
                let dot: f64 = row_i.iter().zip(row_j).map(|(x, y)| x * y).sum();
                let rest = a[i * width + j] - dot;
                if i == j && !(rest > 0.0 && rest.is_finite()) {
                    return None;
                }
                a[i * width + j] = if i == j {
                    rest.sqrt()
                } else {
                    rest / a[j * width + j]
                };
            }
        }
        Some(Self { lower: a, width })
    }

    fn solve(&self, right: &[f64]) -> Vec<f64> {
        let at = |row: usize, column: usize| self.lower[row * self.width + column];
        let mut x = right.to_vec();
        for i in 0..self.width {
            let dot: f64 = (0..i).map(|j| at(i, j) * x[j]).sum();
            x[i] = (x[i] - dot) / at(i, i);
        }
        for i in (0..self.width).rev() {
            let dot: f64 = (i + 1..self.width).map(|j| at(j, i) * x[j]).sum();
            x[i] = (x[i] - dot) / at(i, i);
        }
        x
    }
}

fn check_shapes(features: &[Vec<f64>], targets: &[Vec<f64>]) -> Result<(), SynthError> {
    let length = |what, expected, got| {
        Err(SynthError::Length {
            what,
            expected,
            got,
        })
    };
    if features.len() < 2 * HELD_OUT_EVERY {
        return length("training samples", 2 * HELD_OUT_EVERY, features.len());
    }
    if features.len() != targets.len() {
        return length("targets", features.len(), targets.len());
    }
    for (what, rows) in [
        ("features of a sample", features),
        ("targets of a sample", targets),
    ] {
        let expected = rows[0].len().max(1);
        if let Some(row) = rows.iter().find(|row| row.len() != expected) {
            return length(what, expected, row.len());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{CounterRng, Stream};

    /// Samples of three features and two linear targets with noise, scales far apart.
    fn samples(count: u64, noise: f64, first: u64) -> (Vec<Vec<f64>>, Vec<Vec<f64>>) {
        let rng = CounterRng::new(21, first);
        (0..count)
            .map(|s| {
                let [a, b] = rng.normal_pair(Stream::Modes, 2 * s);
                let [c, e] = rng.normal_pair(Stream::Modes, 2 * s + 1);
                let x = vec![a, 1e4 + 100.0 * b, 0.01 * c, 7.0];
                let y = vec![
                    3.0 + 2.0 * a - 0.05 * (x[1] - 1e4) + noise * e,
                    50.0 * x[2] - noise * e,
                ];
                (x, y)
            })
            .unzip()
    }

    #[test]
    fn recovers_a_linear_law() {
        let (x, y) = samples(200, 0.0, 0);
        let ridge = fit(&x, &y).unwrap();
        let (x, y) = samples(50, 0.0, 1);
        for (x, y) in x.iter().zip(&y) {
            let got = ridge.predict(x).unwrap();
            assert!(
                (got[0] - y[0]).abs() < 1e-5 && (got[1] - y[1]).abs() < 1e-5,
                "{got:?} {y:?}"
            );
        }
    }

    #[test]
    fn error_approaches_the_noise() {
        let (x, y) = samples(2000, 0.5, 0);
        let ridge = fit(&x, &y).unwrap();
        let (x, y) = samples(2000, 0.5, 1);
        let predicted: Vec<f64> = x.iter().map(|x| ridge.predict(x).unwrap()[0]).collect();
        let truth: Vec<f64> = y.iter().map(|y| y[0]).collect();
        let ratio = error_ratio(&truth, &predicted, 3.0).unwrap();
        // Signal variance 4 + 25, noise variance 0.25.
        let expected = (0.25f64 / 29.25).sqrt();
        assert!(
            (ratio.root_mean_square / expected - 1.0).abs() < 0.08,
            "{ratio:?}"
        );
        assert!(
            (ratio.mean_absolute / expected - 1.0).abs() < 0.08,
            "{ratio:?}"
        );
    }

    #[test]
    fn chooses_strong_regularization_where_there_is_nothing_to_learn() {
        let rng = CounterRng::new(8, 0);
        let row = |s: u64| -> Vec<f64> {
            (0..30)
                .map(|f| rng.normal_pair(Stream::Modes, s * 64 + f)[0])
                .collect()
        };
        let x: Vec<Vec<f64>> = (0..60).map(row).collect();
        let y: Vec<Vec<f64>> = (0..60)
            .map(|s| vec![rng.normal_pair(Stream::Modes, s * 64 + 40)[0]])
            .collect();
        let ridge = fit(&x, &y).unwrap();
        assert!(ridge.lambdas()[0] >= 1.0, "{:?}", ridge.lambdas());
    }

    #[test]
    fn refuses_what_does_not_fit() {
        let (x, mut y) = samples(20, 0.1, 0);
        assert!(matches!(
            fit(&x[..9], &y[..9]),
            Err(SynthError::Length { .. })
        ));
        assert!(matches!(fit(&x, &y[..19]), Err(SynthError::Length { .. })));
        y[3].pop();
        assert!(matches!(fit(&x, &y), Err(SynthError::Length { .. })));
        let (mut x, y) = samples(20, 0.1, 0);
        assert!(fit(&x, &y).unwrap().predict(&[1.0]).is_err());
        x[2][0] = f64::NAN;
        assert_eq!(fit(&x, &y), Err(SynthError::Singular));
    }
}
