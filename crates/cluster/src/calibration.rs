use partita_space::Seconds;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What was measured on a machine by `partita calibrate`, and how far estimates from it err.
///
/// Where a machine has one, kernels are estimated from those measured, not by shares of peaks, and
/// messages and sums within a node by the laws.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Law>,
    /// Collectives by name, then by number of members.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub collectives: BTreeMap<String, BTreeMap<String, Law>>,
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
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredKernel(
    pub String,
    pub f64,
    pub f64,
    pub Vec<f64>,
    pub Seconds,
    pub Seconds,
);

impl Calibration {
    /// What is wrong with the numbers, in words for people; nothing if all make sense.
    pub(crate) fn fault(&self) -> Option<String> {
        let laws = self.collectives.values().flat_map(BTreeMap::values);
        for law in laws.chain(&self.message) {
            let numbers = [law.latency, law.seconds_per_byte, law.host_seconds_per_byte];
            if !numbers
                .iter()
                .all(|number| number.is_finite() && *number >= 0.0)
            {
                return Some(format!(
                    "the law {law:?} is none: times are finite and not negative"
                ));
            }
        }
        let members = self.collectives.values().flat_map(BTreeMap::keys);
        for members in members {
            if members.parse::<usize>().is_err() {
                return Some(format!(
                    "`{members}` is no number of members of a collective"
                ));
            }
        }
        let (ranks, threads) = (self.ranks, self.threads);
        if ranks == 0 || threads == 0 {
            return Some(format!(
                "{ranks} ranks of {threads} threads measured nothing"
            ));
        }
        self.measured.iter().enumerate().find_map(|(row, kernel)| {
            let MeasuredKernel(family, flops, bytes, shape, alone, together) = kernel;
            let numbers = [*flops, *bytes].into_iter().chain(shape.iter().copied());
            let is_finite = numbers.chain([alone.0, together.0]).all(f64::is_finite);
            let is_valid = is_finite && alone.0 > 0.0 && together.0 > 0.0;
            (!is_valid).then(|| format!("row {row} of `measured`, {family}, has no valid times"))
        })
    }
}
