//! Measurements, and the conditions under which they hold.

use partita_oracle::{Features, LinkTimes, TransferTime};
use partita_space::{Bytes, Seconds};
use std::collections::BTreeMap;
use std::fmt;

/// The conditions of a measurement. Times of different settings are never mixed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conditions {
    /// Model name of the processor.
    pub processor: String,
    /// Cores available to the process.
    pub cores: usize,
    /// Instruction level of the kernels.
    pub simd: String,
    /// Kernel set or transport, with its version.
    pub backend: String,
    /// Ranks that share the caches.
    pub ranks: usize,
    /// Ranks that computed at the same time.
    pub at_work: usize,
    /// Threads per rank.
    pub threads: usize,
}

/// All measurements under a setting.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measurements {
    /// Seconds of kernels by signature, then by algorithm.
    pub kernels: BTreeMap<String, BTreeMap<String, Seconds>>,
    /// Bytes of the workspaces of kernels, where they are known, by signature, then by algorithm.
    pub workspaces: BTreeMap<String, BTreeMap<String, Bytes>>,
    /// Features of kernels by signature.
    pub shapes: BTreeMap<String, Features>,
    /// Messages and collectives.
    pub links: Option<LinkTimes>,
    /// Reads, by what was read.
    pub loads: BTreeMap<String, Vec<TransferTime>>,
}

impl fmt::Display for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {} cores, {}; {}; {} of {} ranks at work, {} threads each",
            self.processor,
            self.cores,
            self.simd,
            self.backend,
            self.at_work,
            self.ranks,
            self.threads
        )
    }
}
