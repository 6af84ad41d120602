//! Calibration of a machine.

mod entry;

use partita_space::{Bytes, Seconds};
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
    pub message: Option<LinkFit>,
    /// Collectives by name, then by number of members.
    pub collectives: BTreeMap<String, BTreeMap<String, LinkFit>>,
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
    pub message: LinkFit,
    /// The same while each rank of both hosts has one with its counterpart on the other.
    pub messages_together: LinkFit,
    /// Collectives by name, then by [`HostGroup`].
    pub collectives: BTreeMap<String, BTreeMap<HostGroup, LinkFit>>,
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

/// Seconds of a message, collective or read over its bytes: below the first measured size as there, then linear between
/// each two, beyond the last as between the last two.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkFit {
    /// Seconds of 0 bytes by a line through all sizes.
    pub latency: Seconds,
    /// Seconds per byte by that line.
    pub seconds_per_byte: f64,
    /// Host overhead per byte, in seconds, over all sizes.
    pub host_seconds_per_byte: f64,
    /// What was measured, by ascending size; with fewer than two points, as in older files, the line holds.
    #[serde(default)]
    pub points: Vec<TransferTime>,
}

/// The time of a message, collective or read of one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransferTime {
    /// The size.
    pub bytes: Bytes,
    /// Median over repeats of the slowest rank's time, from a common start to completion.
    pub seconds: Seconds,
    /// Host overhead in it: time in which the thread of the rank could not run a kernel.
    pub host: Seconds,
}

impl LinkFit {
    /// The line alone.
    pub fn line(latency: Seconds, seconds_per_byte: f64, host_seconds_per_byte: f64) -> Self {
        Self {
            latency,
            seconds_per_byte,
            host_seconds_per_byte,
            points: Vec::new(),
        }
    }

    /// The time of the least size, which all others take, too.
    pub fn start(&self) -> Seconds {
        match self.points[..] {
            [TransferTime { seconds, .. }, _, ..] => seconds,
            _ => self.latency,
        }
    }

    /// The time of this many bytes.
    pub fn seconds(&self, bytes: Bytes) -> Seconds {
        let line = || self.latency.0 + self.seconds_per_byte * bytes.0 as f64;
        Seconds(
            self.between(bytes, |point| point.seconds)
                .unwrap_or_else(line),
        )
    }

    /// The host overhead in it.
    pub fn host(&self, bytes: Bytes) -> Seconds {
        let line = || self.host_seconds_per_byte * bytes.0 as f64;
        Seconds(self.between(bytes, |point| point.host).unwrap_or_else(line))
    }

    fn between(&self, bytes: Bytes, value: impl Fn(&TransferTime) -> Seconds) -> Option<f64> {
        let above = self.points.partition_point(|point| point.bytes <= bytes);
        let last = self.points.len().checked_sub(1).filter(|&last| last > 0)?;
        let high = above.clamp(1, last);
        let [low, high] = [high - 1, high].map(|at| {
            let point = &self.points[at];
            (point.bytes.0 as f64, value(point).0)
        });
        let slope = ((high.1 - low.1) / (high.0 - low.0)).max(0.0);
        let over = (bytes.0 as f64 - low.0).max(0.0);
        Some(low.1 + slope * over)
    }
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
