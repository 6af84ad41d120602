//! Estimates of kernels that were not measured, from those that were.
//!
//! `T(k) = trend(k) exp(r(k))`: a trend in flops and bytes for each family of kernels (`trend`), times a
//! correction by shape, a Gaussian process over the measured shapes (`gaussian_process`). Both are fitted
//! to measured kernels; their error is estimated by cross-validation.

mod features;
mod gaussian_process;
mod trend;

pub use features::Features;

use crate::cost::{KernelBasis, KernelCost};
use gaussian_process::GaussianProcess;
use partita_space::{Seconds, upper_median};
use std::collections::BTreeMap;
use trend::Trend;

/// A family with fewer kernels uses the trend of all kernels.
const FAMILY_MIN: usize = 6;

/// Most kernels of a family in a fit; larger families are subsampled evenly.
const FAMILY_MAX: usize = 600;

/// Folds of the cross-validation.
const FOLDS: usize = 5;

/// A measured kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelSample {
    /// Features.
    pub features: Features,
    /// Measured times.
    pub cost: KernelCost,
}

/// A model of the time of every family of kernels.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelModel {
    families: BTreeMap<String, FamilyModel>,
    /// Trend of all kernels, for families with few or no measurements.
    pooled: Trend,
    samples: usize,
}

/// The model of a family: its trend, and the corrections of `alone` and of `together / alone`.
#[derive(Clone, Debug, PartialEq)]
struct FamilyModel {
    trend: Trend,
    alone: GaussianProcess,
    slowdown: GaussianProcess,
}

/// Errors of estimates of kernels that the model was not fitted to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CrossValidation {
    /// By family.
    pub families: BTreeMap<String, ErrorStatistics>,
    /// Over all kernels.
    pub all: ErrorStatistics,
}

/// Errors of estimates, `|estimated / measured - 1|`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ErrorStatistics {
    /// Number of kernels.
    pub kernels: usize,
    /// Median error.
    pub median: f64,
    /// Mean error weighted by time.
    pub mean_by_time: f64,
    /// Sum of the estimated times by the sum of the measured ones, minus 1.
    pub total: f64,
}

impl KernelModel {
    /// None without samples.
    pub fn fit(samples: &[KernelSample]) -> Option<Self> {
        let mut by_family: BTreeMap<&str, Vec<&KernelSample>> = BTreeMap::new();
        let timed = samples.iter().filter(|sample| sample.cost.alone.0 > 0.0);
        for sample in timed {
            let family = by_family.entry(&sample.features.family).or_default();
            family.push(sample);
        }
        let all: Vec<&KernelSample> = by_family.values().flatten().copied().collect();
        let pooled = Trend::fit(&all)?;
        let model = |(family, samples): (&str, Vec<&KernelSample>)| {
            (
                family.to_owned(),
                FamilyModel::fit(&subsampled(samples), pooled),
            )
        };
        Some(Self {
            families: by_family.into_iter().map(model).collect(),
            pooled,
            samples: all.len(),
        })
    }

    /// Number of kernels in the fit.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// Estimates a kernel, as [`KernelBasis::Extrapolated`] if no kernel of its family with a similar shape
    /// was measured.
    pub fn estimate(&self, features: &Features) -> KernelCost {
        match self.families.get(&features.family) {
            Some(model) => model.estimate(features),
            None => KernelCost {
                basis: KernelBasis::Extrapolated,
                ..KernelCost::uncontended(Seconds(self.pooled.seconds(features)))
            },
        }
    }

    /// Cross-validation: estimates each fold by a model fitted to the others.
    pub fn validate(samples: &[KernelSample]) -> CrossValidation {
        let mut pairs: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
        for fold in 0..FOLDS {
            let is_in = |&(at, _): &(usize, &KernelSample)| at % FOLDS == fold;
            let numbered = || samples.iter().enumerate();
            let rest: Vec<KernelSample> = numbered()
                .filter(|one| !is_in(one))
                .map(|(_, sample)| sample.clone())
                .collect();
            let Some(model) = Self::fit(&rest) else {
                continue;
            };
            for (_, sample) in numbered().filter(is_in) {
                let estimate = model.estimate(&sample.features);
                let pair = (estimate.together.0, sample.cost.together.0);
                pairs.entry(&sample.features.family).or_default().push(pair);
            }
        }
        let all: Vec<(f64, f64)> = pairs.values().flatten().copied().collect();
        let of = |(family, pairs): (&str, Vec<(f64, f64)>)| {
            (family.to_owned(), ErrorStatistics::of(&pairs))
        };
        CrossValidation {
            families: pairs.into_iter().map(of).collect(),
            all: ErrorStatistics::of(&all),
        }
    }
}

impl ErrorStatistics {
    /// From pairs of an estimate and a measurement.
    fn of(pairs: &[(f64, f64)]) -> Self {
        let pairs = pairs.iter().filter(|(_, measured)| *measured > 0.0);
        let mut errors = Vec::new();
        let (mut estimated, mut measured, mut off) = (0.0, 0.0, 0.0);
        for &(estimate, time) in pairs {
            errors.push((estimate / time - 1.0).abs());
            estimated += estimate;
            measured += time;
            off += (estimate - time).abs();
        }
        let share = |part: f64| if measured > 0.0 { part / measured } else { 0.0 };
        Self {
            kernels: errors.len(),
            median: upper_median(&errors),
            mean_by_time: share(off),
            total: share(estimated - measured),
        }
    }
}

fn subsampled(samples: Vec<&KernelSample>) -> Vec<&KernelSample> {
    let step = samples.len().div_ceil(FAMILY_MAX).max(1);
    samples.into_iter().step_by(step).collect()
}

impl FamilyModel {
    fn fit(samples: &[&KernelSample], pooled: Trend) -> Self {
        let own = if samples.len() >= FAMILY_MIN {
            Trend::fit(samples)
        } else {
            None
        };
        let trend = own.unwrap_or(pooled);
        let shapes: Vec<&[f64]> = samples.iter().map(|one| &one.features.shape[..]).collect();
        let residual = |sample: &&KernelSample| {
            let expected = trend.seconds(&sample.features);
            (sample.cost.alone.0 / expected).ln()
        };
        let slowdown = |sample: &&KernelSample| (sample.cost.together.0 / sample.cost.alone.0).ln();
        Self {
            trend,
            alone: GaussianProcess::fit(&shapes, samples.iter().map(residual).collect()),
            slowdown: GaussianProcess::fit(&shapes, samples.iter().map(slowdown).collect()),
        }
    }

    fn estimate(&self, features: &Features) -> KernelCost {
        let alone = self.trend.seconds(features) * self.alone.at(&features.shape).exp();
        let slowdown = self.slowdown.at(&features.shape).exp();
        KernelCost {
            alone: Seconds(alone),
            together: Seconds(alone * slowdown),
            basis: if self.alone.is_extrapolation(&features.shape) {
                KernelBasis::Extrapolated
            } else {
                KernelBasis::Estimated
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Convolutions whose rate grows with their channels and falls for short rows.
    fn sample(positions: usize, channels: usize, row: usize) -> KernelSample {
        let flops = (2 * positions * row * channels * channels * 27) as f64;
        let bytes = (8 * positions * row * channels) as f64;
        let ln = |extent: usize| (extent as f64).ln();
        let mut shape = [0.0; Features::NAMES.len()];
        shape[0] = ln(positions);
        shape[1] = ln(row);
        shape[2] = ln(channels);
        shape[3] = ln(channels);
        shape[10] = flops.ln();
        shape[11] = bytes.ln();
        let rate =
            1e11 * channels as f64 / (channels as f64 + 20.0) * row as f64 / (row as f64 + 2.0);
        let alone = Seconds(2e-6 + flops / rate + bytes / 1e10);
        KernelSample {
            features: Features {
                family: "convolution_forward".to_owned(),
                flops,
                bytes,
                shape,
            },
            cost: KernelCost {
                alone,
                together: alone * (1.0 + 4.0 / channels as f64),
                basis: KernelBasis::Measured,
            },
        }
    }

    fn grid() -> Vec<KernelSample> {
        let mut all = Vec::new();
        for positions in [16, 64, 256, 1024] {
            for channels in [4, 8, 16, 32, 64, 128] {
                all.extend([4, 8, 16, 32].map(|row| sample(positions, channels, row)));
            }
        }
        all
    }

    #[test]
    fn a_shape_between_measured_ones_is_estimated_within_a_few_percent() {
        let model = KernelModel::fit(&grid()).unwrap();
        for between in [sample(100, 24, 12), sample(500, 96, 7), sample(40, 12, 20)] {
            let estimate = model.estimate(&between.features);
            assert!(estimate.basis == KernelBasis::Estimated);
            let times = [
                (estimate.alone, between.cost.alone),
                (estimate.together, between.cost.together),
            ];
            for (estimated, measured) in times {
                let error = (estimated.0 / measured.0 - 1.0).abs();
                assert!(error < 0.05, "{estimated} {measured}");
            }
        }
        let validation = KernelModel::validate(&grid());
        assert!(validation.all.mean_by_time < 0.05, "{validation:?}");
        assert_eq!(validation.all.kernels, grid().len());
    }

    #[test]
    fn a_shape_far_from_all_measured_ones_is_extrapolated() {
        let model = KernelModel::fit(&grid()).unwrap();
        let far = model.estimate(&sample(1 << 20, 2048, 512).features);
        assert_eq!(far.basis, KernelBasis::Extrapolated);
        let mut other = sample(64, 16, 8).features;
        other.family = "pool_forward".to_owned();
        assert_eq!(model.estimate(&other).basis, KernelBasis::Extrapolated);
        assert!(KernelModel::fit(&[]).is_none());
    }
}
