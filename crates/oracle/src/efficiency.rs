//! What kernels take that were never measured, from those that were.
//!
//! `T(k) = trend(k) exp(r(k))`: a trend of flops and bytes for each family of kernels (`trend`), times
//! what the shape makes of it, interpolated between the measured shapes (`kriging`). Both are fitted
//! to measured kernels, and how far they err is known from folds that they were not fitted to.

mod features;
mod kriging;
mod trend;

pub use features::Features;

use crate::cost::{KernelCost, Known};
use kriging::Kriging;
use partita_space::{Seconds, upper_median};
use std::collections::BTreeMap;
use trend::Trend;

/// Fewest kernels to which a trend of a family is fitted; fewer take that of all kernels.
const FAMILY_MIN: usize = 6;

/// Most kernels of a family that are fitted; of more, as many are taken evenly.
const FAMILY_MAX: usize = 600;

/// Parts into which the kernels of a family are dealt out to validate.
const FOLDS: usize = 5;

/// A kernel that was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Its shape.
    pub features: Features,
    /// Its times.
    pub cost: KernelCost,
}

/// Laws of all families of kernels.
#[derive(Clone, Debug, PartialEq)]
pub struct Efficiency {
    families: BTreeMap<String, Law>,
    /// Of all kernels together, for families of which none or few were measured.
    pooled: Trend,
    samples: usize,
}

/// Of a family: kernels alone, and how much longer they take together.
#[derive(Clone, Debug, PartialEq)]
struct Law {
    trend: Trend,
    alone: Kriging,
    slowdown: Kriging,
}

/// How far estimates are off, for kernels that the laws were not fitted to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Validation {
    /// By family.
    pub families: BTreeMap<String, Errors>,
    /// Of all kernels.
    pub all: Errors,
}

/// Errors of estimates, `|estimated / measured - 1|`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Errors {
    /// Kernels estimated.
    pub kernels: usize,
    /// The middle error.
    pub median: f64,
    /// The mean error, each kernel weighed by its time.
    pub mean_by_time: f64,
    /// All estimated times by all measured ones, less 1.
    pub total: f64,
}

impl Efficiency {
    /// Fits laws to measured kernels; none to no kernels.
    pub fn fit(samples: &[Sample]) -> Option<Self> {
        let mut by_family: BTreeMap<&str, Vec<&Sample>> = BTreeMap::new();
        let timed = samples.iter().filter(|sample| sample.cost.alone.0 > 0.0);
        for sample in timed {
            let family = by_family.entry(&sample.features.family).or_default();
            family.push(sample);
        }
        let all: Vec<&Sample> = by_family.values().flatten().copied().collect();
        let pooled = Trend::fit(&all)?;
        let law = |(family, samples): (&str, Vec<&Sample>)| {
            (family.to_owned(), Law::fit(&thinned(samples), pooled))
        };
        Some(Self {
            families: by_family.into_iter().map(law).collect(),
            pooled,
            samples: all.len(),
        })
    }

    /// Kernels that the laws were fitted to.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// What a kernel takes. Where no measured kernel of its family is near it, it is
    /// [`Known::Outside`], and no more than a trend.
    pub fn estimate(&self, features: &Features) -> KernelCost {
        match self.families.get(&features.family) {
            Some(law) => law.estimate(features),
            None => KernelCost {
                known: Known::Outside,
                ..KernelCost::undisturbed(Seconds(self.pooled.seconds(features)))
            },
        }
    }

    /// Estimates every kernel from laws fitted without it, a fifth of each family at a time.
    pub fn validate(samples: &[Sample]) -> Validation {
        let mut pairs: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
        for fold in 0..FOLDS {
            let is_in = |&(at, _): &(usize, &Sample)| at % FOLDS == fold;
            let numbered = || samples.iter().enumerate();
            let rest: Vec<Sample> = numbered()
                .filter(|one| !is_in(one))
                .map(|(_, sample)| sample.clone())
                .collect();
            let Some(laws) = Self::fit(&rest) else {
                continue;
            };
            for (_, sample) in numbered().filter(is_in) {
                let estimate = laws.estimate(&sample.features);
                let pair = (estimate.together.0, sample.cost.together.0);
                pairs.entry(&sample.features.family).or_default().push(pair);
            }
        }
        let all: Vec<(f64, f64)> = pairs.values().flatten().copied().collect();
        let of = |(family, pairs): (&str, Vec<(f64, f64)>)| (family.to_owned(), Errors::of(&pairs));
        Validation {
            families: pairs.into_iter().map(of).collect(),
            all: Errors::of(&all),
        }
    }
}

impl Errors {
    /// Of pairs of an estimate and a measurement.
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

fn thinned(samples: Vec<&Sample>) -> Vec<&Sample> {
    let step = samples.len().div_ceil(FAMILY_MAX).max(1);
    samples.into_iter().step_by(step).collect()
}

impl Law {
    fn fit(samples: &[&Sample], pooled: Trend) -> Self {
        let own = if samples.len() >= FAMILY_MIN {
            Trend::fit(samples)
        } else {
            None
        };
        let trend = own.unwrap_or(pooled);
        let shapes: Vec<&[f64]> = samples.iter().map(|one| &one.features.shape[..]).collect();
        let residual = |sample: &&Sample| {
            let expected = trend.seconds(&sample.features);
            (sample.cost.alone.0 / expected).ln()
        };
        let slowdown = |sample: &&Sample| (sample.cost.together.0 / sample.cost.alone.0).ln();
        Self {
            trend,
            alone: Kriging::fit(&shapes, samples.iter().map(residual).collect()),
            slowdown: Kriging::fit(&shapes, samples.iter().map(slowdown).collect()),
        }
    }

    fn estimate(&self, features: &Features) -> KernelCost {
        let alone = self.trend.seconds(features) * self.alone.at(&features.shape).exp();
        let slowdown = self.slowdown.at(&features.shape).exp();
        KernelCost {
            alone: Seconds(alone),
            together: Seconds(alone * slowdown),
            known: if self.alone.is_outside(&features.shape) {
                Known::Outside
            } else {
                Known::Estimated
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Convolutions whose rate grows with their channels and falls for short rows.
    fn sample(positions: usize, channels: usize, row: usize) -> Sample {
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
        Sample {
            features: Features {
                family: "convolution_forward".to_owned(),
                flops,
                bytes,
                shape,
            },
            cost: KernelCost {
                alone,
                together: alone * (1.0 + 4.0 / channels as f64),
                known: Known::Measured,
            },
        }
    }

    fn grid() -> Vec<Sample> {
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
        let laws = Efficiency::fit(&grid()).unwrap();
        for between in [sample(100, 24, 12), sample(500, 96, 7), sample(40, 12, 20)] {
            let estimate = laws.estimate(&between.features);
            assert!(estimate.known == Known::Estimated);
            let times = [
                (estimate.alone, between.cost.alone),
                (estimate.together, between.cost.together),
            ];
            for (estimated, measured) in times {
                let error = (estimated.0 / measured.0 - 1.0).abs();
                assert!(error < 0.05, "{estimated} {measured}");
            }
        }
        let validation = Efficiency::validate(&grid());
        assert!(validation.all.mean_by_time < 0.05, "{validation:?}");
        assert_eq!(validation.all.kernels, grid().len());
    }

    #[test]
    fn what_is_far_from_all_that_was_measured_says_so() {
        let laws = Efficiency::fit(&grid()).unwrap();
        let far = laws.estimate(&sample(1 << 20, 2048, 512).features);
        assert_eq!(far.known, Known::Outside);
        let mut other = sample(64, 16, 8).features;
        other.family = "pool_forward".to_owned();
        assert_eq!(laws.estimate(&other).known, Known::Outside);
        assert!(Efficiency::fit(&[]).is_none());
    }
}
