//! What a launch needs of the ranks of a run, whether they are threads or processes.

use super::error::LaunchError;
use super::memory_baseline::MemoryBaseline;
use super::ranks::{Listener, RunSetup};
use super::saving::{MemoryUsage, TensorSink};
use crate::error::Fault;
use crate::host::Host;
use crate::kernel_set::KernelSet;
use crate::local_ranks::{RankConfig, Ranks};
use partita_mpi::Collectives;
use partita_session::{Outcome, Session};
use partita_space::{Rank, Seconds};
use partita_tune::{HostLayout, LinkSizes, LinkTimes, NetworkTimes};
use std::collections::BTreeSet;
use std::ops::Range;

/// The ranks of a run, seen by a process that has one or all of them.
pub trait World {
    /// Whether ranks are processes.
    fn has_processes(&self) -> bool;

    /// Index of this process among those of the job, and their number.
    fn share(&self) -> (usize, usize);

    /// The number of ranks: of the launcher, the request or the run file.
    ///
    /// Errors: a request that does not agree with the launcher.
    fn ranks(&self, asked: Option<usize>, of_file: usize) -> Result<usize, LaunchError>;

    /// The collectives of the MPI library.
    ///
    /// Errors: there is none.
    fn library_collectives(&self) -> Result<Collectives, LaunchError>;

    /// Sets how long other ranks may be silent.
    fn set_limit(&self, limit: Seconds) -> Result<(), LaunchError>;

    /// Number of ranks on this host, and of the cores that they share.
    fn local(&self, ranks: usize, host: &Host) -> (usize, usize);

    /// The ranks of this process.
    fn local_ranks(&self, ranks: usize) -> Range<Rank>;

    /// Cores that the ranks of this process share with others of this host.
    fn local_cores(&self) -> usize;

    /// The ranks of this host.
    fn ranks_of_host(&self, ranks: usize) -> Vec<Rank>;

    /// Whether all ranks are on one host.
    fn is_on_one_host(&self) -> bool;

    /// The ranks of a run on this machine; ranks on several hosts are treated as threads of this process.
    fn on_this_host(&self, rank_config: RankConfig) -> Result<Ranks, LaunchError>;

    /// The ranks of a host that a calibration measures, and how all ranks lie on hosts.
    ///
    /// Errors: processes that are not spread evenly over their hosts.
    fn calibrated_ranks(&self, rank_config: RankConfig)
    -> Result<(Ranks, HostLayout), LaunchError>;

    /// Does long work, while heartbeats are sent to the others.
    fn with_heartbeats(&self, work: Box<dyn FnOnce() + Send + '_>) -> Result<(), LaunchError>;

    /// Broadcasts bytes of rank 0.
    fn broadcast(&self, own: Vec<u8>) -> Result<Vec<u8>, LaunchError>;

    /// Waits until all ranks are here.
    fn meet(&self) -> Result<(), LaunchError>;

    /// Checks that all ranks have the same programs and plan, which `identity` describes.
    fn check_agreement(&self, identity: &dyn Fn() -> String) -> Result<(), LaunchError>;

    /// Measures messages and collectives of processes, of groups of these sizes and up to these bytes, except `known` of
    /// rank 0; all ranks call it. Threads measure none.
    ///
    /// Errors: a transport that fails.
    fn measure_links(
        &self,
        wanted: (&BTreeSet<usize>, LinkSizes),
        known: &LinkTimes,
        by: (KernelSet, usize),
    ) -> Result<LinkTimes, LaunchError>;

    /// Measures messages and collectives between hosts; all ranks call it, and rank 0 gets the times. Empty on one
    /// host.
    ///
    /// Errors: a transport that fails.
    fn measure_network(
        &self,
        layout: HostLayout,
        by: (KernelSet, usize),
    ) -> Result<NetworkTimes, LaunchError>;

    /// Runs a session. Rank 0 gets the outcomes and the memory usage of all ranks, and its sink the trained tensors.
    ///
    /// Errors: the first cause.
    fn run(
        &self,
        session: &Session<'_>,
        setup: &RunSetup<'_>,
        collectives: Collectives,
        listener: Listener<'_>,
        baseline: MemoryBaseline,
        sink: &mut dyn TensorSink,
    ) -> Result<Option<(Vec<Outcome>, MemoryUsage)>, LaunchError>;

    /// Ends the world when all ranks are done. No rank leaves before rank 0 is done.
    fn close(&self) -> Result<(), LaunchError>;

    /// Ends a failed run on all ranks. Returns what stands for the error if it was reported.
    fn shut_down(&self, error: &dyn Fault) -> Option<LaunchError>;
}
