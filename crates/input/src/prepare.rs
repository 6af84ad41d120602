//! Preparation of stored values: a chain of steps between the files and the network.
//!
//! [`Step`]s are what is asked for. Some need statistics of the training split; [`fit`] computes these and gives a
//! [`Preparation`], which is saved with a run, so that other verbs prepare values alike.

mod apply;
mod compare;
mod fit;
mod kept;
mod percentiles;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use fit::fit;
pub(crate) use fit::prepare;
pub use kept::STATISTICS_FILE;

/// A step that is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// `ln(1 + x)`.
    LogOnePlus,
    /// `ln(x)`.
    Log,
    /// `factor * x`.
    Scale {
        /// The factor.
        factor: f64,
    },
    /// The nearest value of an interval.
    Clip {
        /// Its lower end.
        low: f64,
        /// Its upper end.
        high: f64,
    },
    /// Mean 0 and standard deviation 1 of each channel over the training split.
    Standardize,
    /// Two percentiles of each channel over the training split become 0 and 1.
    Percentiles {
        /// The percentile that becomes 0. Units: percent.
        low: f64,
        /// The percentile that becomes 1. Units: percent.
        high: f64,
    },
    /// Each channel of class indices becomes a channel for each class: 1 where a position has it, else 0. The last
    /// step.
    OneHot {
        /// Number of classes, at least 2.
        classes: usize,
    },
}

impl Step {
    /// Whether it needs statistics of the training split.
    pub fn needs_statistics(&self) -> bool {
        matches!(self, Self::Standardize | Self::Percentiles { .. })
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LogOnePlus => f.write_str("log1p"),
            Self::Log => f.write_str("log"),
            Self::Scale { factor } => write!(f, "scale = {factor}"),
            Self::Clip { low, high } => write!(f, "clip = [{low}, {high}]"),
            Self::Standardize => f.write_str("standardize"),
            Self::Percentiles { low, high } => write!(f, "percentiles = [{low}, {high}]"),
            Self::OneHot { classes } => write!(f, "one_hot = {classes}"),
        }
    }
}

/// The steps in order, joined by commas.
pub fn chain_text(steps: &[Step]) -> String {
    let steps: Vec<String> = steps.iter().map(Step::to_string).collect();
    steps.join(", ")
}

/// A step with its statistics, an entry for each channel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case", deny_unknown_fields)]
pub enum FittedStep {
    /// `ln(1 + x)`.
    #[serde(rename = "log1p")]
    LogOnePlus,
    /// `ln(x)`.
    Log,
    /// `factor * x`.
    Scale {
        /// The factor.
        factor: f64,
    },
    /// The nearest value of an interval.
    Clip {
        /// Its lower end.
        low: f64,
        /// Its upper end.
        high: f64,
    },
    /// `(x - mean) / standard_deviation`.
    Standardize {
        /// Means of the channels.
        mean: Vec<f64>,
        /// Standard deviations of the channels, divided by the number of values, not by one less.
        standard_deviation: Vec<f64>,
    },
    /// `(x - low) / (high - low)`.
    Percentiles {
        /// The two percentiles. Units: percent.
        percentiles: [f64; 2],
        /// Values of the first in each channel.
        low: Vec<f64>,
        /// Values of the second in each channel.
        high: Vec<f64>,
    },
    /// A channel for each class in place of one of class indices.
    OneHot {
        /// Number of classes.
        classes: usize,
    },
}

impl FittedStep {
    /// The step that was asked for.
    pub fn asked(&self) -> Step {
        match *self {
            Self::LogOnePlus => Step::LogOnePlus,
            Self::Log => Step::Log,
            Self::Scale { factor } => Step::Scale { factor },
            Self::Clip { low, high } => Step::Clip { low, high },
            Self::Standardize { .. } => Step::Standardize,
            Self::Percentiles {
                percentiles: [low, high],
                ..
            } => Step::Percentiles { low, high },
            Self::OneHot { classes } => Step::OneHot { classes },
        }
    }

    /// Whether its statistics are of this many channels, and can be divided by.
    fn is_sound(&self, channels: usize) -> bool {
        let all = |values: &[f64]| {
            values.len() == channels && values.iter().all(|value| value.is_finite())
        };
        match self {
            Self::LogOnePlus | Self::Log | Self::Scale { .. } | Self::Clip { .. } => true,
            Self::Standardize {
                mean,
                standard_deviation,
            } => {
                all(mean)
                    && all(standard_deviation)
                    && standard_deviation.iter().all(|&value| value > 0.0)
            }
            Self::Percentiles { low, high, .. } => {
                let mut pairs = low.iter().zip(high);
                all(low) && all(high) && pairs.all(|(low, high)| low < high)
            }
            Self::OneHot { classes } => *classes >= 2,
        }
    }
}

/// How stored values become those that a network sees.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Preparation {
    steps: Vec<FittedStep>,
}

impl Preparation {
    /// A chain of steps.
    pub fn new(steps: Vec<FittedStep>) -> Self {
        Self { steps }
    }

    /// Its steps, in order.
    pub fn steps(&self) -> &[FittedStep] {
        &self.steps
    }

    /// Whether values stay as they are stored.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The steps that were asked for.
    pub fn asked(&self) -> Vec<Step> {
        self.steps.iter().map(FittedStep::asked).collect()
    }

    /// Classes of each channel, where each becomes a channel for each class.
    pub fn one_hot(&self) -> Option<usize> {
        match self.steps.last() {
            Some(&FittedStep::OneHot { classes }) => Some(classes),
            Some(_) | None => None,
        }
    }

    /// Whether it can prepare volumes of this many channels.
    pub fn suits(&self, channels: usize) -> bool {
        self.steps.iter().all(|step| step.is_sound(channels))
    }
}
