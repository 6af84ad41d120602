//! Ranks on this machine, and the conditions under which their kernels are measured.

use crate::host::Host;
use crate::kernel_set::{KernelSet, cores};
use partita_cpu::Level;
use partita_tune::{Catalog, Conditions};
use serde::{Deserialize, Serialize};

/// Most ranks of one thread that share a core while they are measured.
const RANKS_PER_CORE: usize = 4;

/// Number of ranks, their threads and kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankConfig {
    /// Number of ranks.
    pub ranks: usize,
    /// Threads per rank.
    pub threads: usize,
    /// Kernel set.
    pub kernels: KernelSet,
}

/// Ranks on this machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranks {
    /// Number of ranks.
    pub count: usize,
    /// Threads per rank.
    pub threads: usize,
    /// The cores that they share.
    pub cores: Vec<usize>,
    /// The MPI library; `None` if they are threads of one process.
    pub library: Option<String>,
    /// Where they are processes: the cores that they are pinned to, in their order; empty if they are not.
    pub pinned: Vec<usize>,
}

impl Ranks {
    /// Threads of this process.
    pub fn threads(count: usize, threads: usize) -> Self {
        Self {
            count,
            threads,
            cores: cores().to_vec(),
            library: None,
            pinned: Vec::new(),
        }
    }

    /// Most ranks whose kernels are measured: with more than a few per core, times are useless.
    pub fn most(&self) -> usize {
        (RANKS_PER_CORE * self.cores.len() / self.threads).max(1)
    }
}

/// The conditions under which kernels of ranks on this machine are measured, with all of them at work.
pub fn setting(level: Level, kernels: KernelSet, ranks: &Ranks) -> Conditions {
    let host = Host::local(level);
    Conditions {
        processor: host.processor.clone().unwrap_or_default(),
        cores: ranks.cores.len(),
        simd: host.simd.to_owned(),
        backend: kernels.backend(),
        ranks: ranks.count,
        at_work: ranks.count,
        threads: ranks.threads,
    }
}

/// Under which conditions the times of trials are kept: beside other kernels and messages, so that they never stand for those
/// of a kernel by itself.
pub(crate) fn in_place(setting: &Conditions) -> Conditions {
    Conditions {
        backend: format!("{}, in place", setting.backend),
        ..setting.clone()
    }
}

/// The measured times by which the kernels of a training are pinned, so that it can be resumed with the same ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PinningTimes {
    /// The conditions of the measurements.
    pub(crate) setting: String,
    /// A kernel without times is pinned by a model.
    pub(crate) catalog: Catalog,
}
