//! How sure a prediction is: the relative standard uncertainty of every source of time, and the interval of a
//! step that follows from it.
//!
//! The time of a step is that of its longest path, `T = max over paths of sum over sources f_s t_s`, with the
//! seconds `t_s` of a path that belong to a source and a factor `f_s` that is 1 in the prediction. What is not
//! known of a source is a lognormal error of its factor: one that all tasks of the source share (a bandwidth that
//! is not what the data sheet says), and one of each task of its own (an estimate of one kernel). Sources are
//! independent of each other. What the simulation leaves out is an error of the step as a whole.
//!
//! Does: states spreads, samples factors, makes intervals and probabilities of ranks.
//! Assumes: spreads of facts by their basis are those of `table`, which are fitted to measured steps.

mod fact;
mod interval;
mod normal;
mod table;

pub use interval::{
    CONFIDENCE, Interval, PathSeconds, Probability, StepUncertainty, probabilities_fastest,
};

pub(crate) use fact::{Facts, of_machine, of_measurements};

use serde::{Deserialize, Serialize};
use std::fmt;

/// What seconds of a step are due to, as far as their errors are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimeSource {
    /// Kernels that were measured.
    MeasuredKernels,
    /// Kernels estimated from measured ones of similar shapes.
    EstimatedKernels,
    /// Kernels estimated from measured ones, none of which has a similar shape.
    ExtrapolatedKernels,
    /// Convolutions over up to two spatial dims and matrix products, by a rate of the machine file.
    Convolutions2d,
    /// Convolutions over three spatial dims, by a rate of the machine file.
    Convolutions3d,
    /// Memory-bound kernels, by the bandwidth of the machine file.
    MemoryBoundKernels,
    /// What communication takes from the kernels of its rank.
    HostOverhead,
    /// Latency of messages within a node.
    MessageLatencyWithin,
    /// Bytes of messages within a node.
    MessageTransferWithin,
    /// Latency of messages between nodes.
    MessageLatencyBetween,
    /// Bytes of messages between nodes.
    MessageTransferBetween,
    /// Latency of collectives within a node.
    CollectiveLatencyWithin,
    /// Bytes of collectives within a node.
    CollectiveTransferWithin,
    /// Latency of collectives between nodes.
    CollectiveLatencyBetween,
    /// Bytes of collectives between nodes.
    CollectiveTransferBetween,
    /// Reads of samples.
    Reads,
}

impl TimeSource {
    /// All, in the order of [`TimeSource`].
    pub const ALL: [TimeSource; 16] = [
        TimeSource::MeasuredKernels,
        TimeSource::EstimatedKernels,
        TimeSource::ExtrapolatedKernels,
        TimeSource::Convolutions2d,
        TimeSource::Convolutions3d,
        TimeSource::MemoryBoundKernels,
        TimeSource::HostOverhead,
        TimeSource::MessageLatencyWithin,
        TimeSource::MessageTransferWithin,
        TimeSource::MessageLatencyBetween,
        TimeSource::MessageTransferBetween,
        TimeSource::CollectiveLatencyWithin,
        TimeSource::CollectiveTransferWithin,
        TimeSource::CollectiveLatencyBetween,
        TimeSource::CollectiveTransferBetween,
        TimeSource::Reads,
    ];

    /// Whether it is of messages or collectives, without their host overhead.
    pub fn is_communication(self) -> bool {
        match self {
            TimeSource::MessageLatencyWithin
            | TimeSource::MessageTransferWithin
            | TimeSource::MessageLatencyBetween
            | TimeSource::MessageTransferBetween
            | TimeSource::CollectiveLatencyWithin
            | TimeSource::CollectiveTransferWithin
            | TimeSource::CollectiveLatencyBetween
            | TimeSource::CollectiveTransferBetween => true,
            TimeSource::MeasuredKernels
            | TimeSource::EstimatedKernels
            | TimeSource::ExtrapolatedKernels
            | TimeSource::Convolutions2d
            | TimeSource::Convolutions3d
            | TimeSource::MemoryBoundKernels
            | TimeSource::HostOverhead
            | TimeSource::Reads => false,
        }
    }
}

/// A number for each source.
pub type BySource<T> = [T; TimeSource::ALL.len()];

/// Standard deviations of the logarithm of a time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// Of an error that all tasks of a source share.
    pub shared: f64,
    /// Of an error of each task of its own.
    pub single: f64,
}

/// Standard deviations of the logarithm of a time, below and above the predicted one.
///
/// What a model leaves out takes time: it is more often too fast than too slow.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Skew {
    /// Towards shorter times.
    pub down: f64,
    /// Towards longer times.
    pub up: f64,
}

/// Spreads of all sources, and of the model itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Uncertainty {
    /// By source, in the order of [`TimeSource::ALL`].
    pub sources: BySource<Spread>,
    /// Of the step as a whole: what the simulation leaves out, and noise, alike under every strategy of a machine.
    pub model: Skew,
    /// Beside it, of steps in which ranks exchange activations (halos, parts of a tensor), alike under every such
    /// strategy.
    pub split: Skew,
    /// As `model`, but of a strategy of its own.
    pub own: f64,
    /// Whether a source rests on a fact that its file calls assumed.
    pub assumed: BySource<bool>,
}

impl Skew {
    /// As wide in both directions.
    pub const fn even(spread: f64) -> Self {
        Self {
            down: spread,
            up: spread,
        }
    }

    /// The error of a standard normal number.
    pub fn error(self, z: f64) -> f64 {
        if z > 0.0 { self.up * z } else { self.down * z }
    }

    /// The mean of both variances.
    pub fn variance(self) -> f64 {
        (self.down.powi(2) + self.up.powi(2)) / 2.0
    }
}

impl Uncertainty {
    /// Costs that are exact by definition, such as those of a hand-made example.
    pub const NONE: Self = Self {
        sources: [Spread {
            shared: 0.0,
            single: 0.0,
        }; TimeSource::ALL.len()],
        model: Skew::even(0.0),
        split: Skew::even(0.0),
        own: 0.0,
        assumed: [false; TimeSource::ALL.len()],
    };

    /// With rates of kernels that were scaled to the measured time of a sample on one device.
    pub fn with_measured_sample(mut self) -> Self {
        for source in [
            TimeSource::Convolutions2d,
            TimeSource::Convolutions3d,
            TimeSource::MemoryBoundKernels,
        ] {
            let shared = &mut self.sources[source as usize].shared;
            *shared = shared.min(table::MEASURED_SAMPLE);
            self.assumed[source as usize] = false;
        }
        self
    }

    /// The spread of a source.
    pub fn of(&self, source: TimeSource) -> Spread {
        self.sources[source as usize]
    }
}

impl fmt::Display for TimeSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            TimeSource::MeasuredKernels => "measured kernels",
            TimeSource::EstimatedKernels => "estimated kernels",
            TimeSource::ExtrapolatedKernels => "extrapolated kernels",
            TimeSource::Convolutions2d => "rates of 2D convolutions",
            TimeSource::Convolutions3d => "rates of 3D convolutions",
            TimeSource::MemoryBoundKernels => "memory-bound kernels",
            TimeSource::HostOverhead => "host overhead",
            TimeSource::MessageLatencyWithin => "latency of messages within nodes",
            TimeSource::MessageTransferWithin => "bandwidth of messages within nodes",
            TimeSource::MessageLatencyBetween => "latency of messages between nodes",
            TimeSource::MessageTransferBetween => "bandwidth of messages between nodes",
            TimeSource::CollectiveLatencyWithin => "latency of collectives within nodes",
            TimeSource::CollectiveTransferWithin => "bandwidth of collectives within nodes",
            TimeSource::CollectiveLatencyBetween => "latency of collectives between nodes",
            TimeSource::CollectiveTransferBetween => "bandwidth of collectives between nodes",
            TimeSource::Reads => "reading",
        })
    }
}
