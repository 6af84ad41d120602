//! Calibration of a machine.

use partita_space::Seconds;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// What `partita calibrate` measured on a machine, and the errors of estimates from it.
///
/// If a machine has one, kernels are estimated from the measured ones instead of shares of peaks, and messages
/// and collectives within a node follow the fits.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    /// Date, as in 2026-11-22.
    pub date: String,
    /// Model name of the processor.
    pub processor: String,
    /// Cores available to the process.
    pub cores: usize,
    /// Instruction level of the kernels.
    pub simd: String,
    /// Set of kernels, with its version.
    pub kernels: String,
    /// Transport: threads, or an MPI library with its version.
    pub world: String,
    /// Ranks that computed at the same time.
    pub ranks: usize,
    /// Threads per rank.
    pub threads: usize,
    /// Errors of the estimates by cross-validation.
    pub validation: CalibrationError,
    /// Messages; absent for one rank.
    pub message: Option<LinearFit>,
    /// Collectives by name, then by number of members.
    pub collectives: BTreeMap<String, BTreeMap<String, LinearFit>>,
    /// Messages and collectives between hosts; absent where one host was measured.
    pub network: Option<NetworkCalibration>,
    /// Names of the features in [`MeasuredKernel`]; empty in older files.
    pub coordinates: Vec<String>,
    /// Measured kernels.
    pub measured: Vec<MeasuredKernel>,
}

/// What was measured between hosts with equally many ranks each.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkCalibration {
    /// A message between two ranks on two hosts, with nothing else on the network.
    pub message: LinearFit,
    /// The same while each rank of both hosts has one with its counterpart on the other.
    pub messages_together: LinearFit,
    /// Collectives by name, then by [`HostGroup`].
    pub collectives: BTreeMap<String, BTreeMap<HostGroup, LinearFit>>,
}

/// A group with equally many ranks on each of several hosts, written as `2x4`: 4 ranks on each of 2 hosts.
///
/// As many groups as fit on the hosts were measured at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostGroup {
    /// Hosts, at least 2.
    pub hosts: usize,
    /// Ranks on each.
    pub ranks_per_host: usize,
}

impl fmt::Display for HostGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.hosts, self.ranks_per_host)
    }
}

impl HostGroup {
    /// Reads `2x4`; none for fewer than 2 hosts or no rank.
    pub fn parse(text: &str) -> Option<Self> {
        let (hosts, ranks_per_host) = text.split_once('x')?;
        let group = Self {
            hosts: hosts.parse().ok()?,
            ranks_per_host: ranks_per_host.parse().ok()?,
        };
        (group.hosts > 1 && group.ranks_per_host > 0).then_some(group)
    }
}

/// Errors of estimates of kernels that were not in the fit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalibrationError {
    /// Number of kernels.
    pub kernels: usize,
    /// Median of `|estimated / measured - 1|`.
    pub median: f64,
    /// Its mean weighted by time.
    pub mean_by_time: f64,
    /// Sum of the estimated times by the sum of the measured ones, minus 1.
    pub total: f64,
}

/// A linear fit of seconds over bytes.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinearFit {
    /// Seconds of 0 bytes.
    pub latency: f64,
    /// Seconds per byte.
    pub seconds_per_byte: f64,
    /// Host overhead per byte, in seconds.
    pub host_seconds_per_byte: f64,
}

/// A measured kernel: family, flops, bytes, features of its shape, seconds alone, seconds while all ranks of
/// the node compute.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct MeasuredKernel(
    pub String,
    pub f64,
    pub f64,
    pub Vec<f64>,
    pub Seconds,
    pub Seconds,
);
