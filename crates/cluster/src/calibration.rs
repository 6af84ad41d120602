//! What a calibration measured on a machine.

use partita_space::Seconds;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What was measured on a machine by `partita calibrate`, and how far estimates from it err.
///
/// Where a machine has one, kernels are estimated from those measured, not by shares of peaks, and
/// messages and sums within a node by the laws.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    /// Day, as in 2026-11-22.
    pub date: String,
    /// Model name of the processor.
    pub processor: String,
    /// Cores that the process could use.
    pub cores: usize,
    /// Instruction level of the kernels.
    pub simd: String,
    /// Set of kernels, with its version.
    pub kernels: String,
    /// What carried the messages: threads, or an MPI library with its version.
    pub world: String,
    /// Ranks at work together.
    pub ranks: usize,
    /// Threads of each.
    pub threads: usize,
    /// Errors of kernels that the laws had not seen.
    pub validation: CalibrationError,
    /// Messages; absent of one rank.
    pub message: Option<Law>,
    /// Collectives by name, then by number of members.
    pub collectives: BTreeMap<String, BTreeMap<String, Law>>,
    /// What the coordinates of the kernels' shapes are; none in files that do not say it.
    pub coordinates: Vec<String>,
    /// Kernels, one a row.
    pub measured: Vec<MeasuredKernel>,
}

/// How far estimates are off for kernels that the laws were not fitted to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalibrationError {
    /// Kernels estimated.
    pub kernels: usize,
    /// The middle of `|estimated / measured - 1|`.
    pub median: f64,
    /// Its mean, each kernel weighed by its time.
    pub mean_by_time: f64,
    /// All estimated times by all measured ones, less 1.
    pub total: f64,
}

/// A law of seconds by bytes.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Law {
    /// Time without bytes.
    pub latency: f64,
    /// Seconds for each byte.
    pub seconds_per_byte: f64,
    /// Seconds for each byte that the processor that computes loses.
    pub host_seconds_per_byte: f64,
}

/// A kernel that was measured: family, flops, bytes, coordinates of its shape, seconds alone, seconds
/// with all ranks of the node at work.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct MeasuredKernel(
    pub String,
    pub f64,
    pub f64,
    pub Vec<f64>,
    pub Seconds,
    pub Seconds,
);
