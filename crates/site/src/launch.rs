//! Launches the ranks of a run: as threads of this process, or this process as one rank of an MPI job.

mod agreement;
mod error;
mod memory_baseline;
mod preload;
mod processes;
mod ranks;
mod saving;

pub use agreement::{Agreement, Decision, RepeatFrom, Vote};
pub use error::{DIVERGENCE_ADVICE, LaunchError, NotSaved};
pub use memory_baseline::{MemoryBaseline, PEAK_METHOD};
pub use ranks::{
    InitialValues, InnerRun, Listener, MakeJoins, MakeSink, MakeSource, MakeStepHook,
    MakeValidators, RunSetup,
};
pub use ranks::{RankResults, run_ranks};
pub use saving::{MemoryUsage, TensorSink};

use crate::context::Context;
use crate::error::Fault;
use crate::host::Host;
use crate::kernel_set::{KernelSet, cores};
use crate::local_ranks::Ranks;
use crate::thread_limit;
use partita_input::SampleStore;
use partita_mpi::Collectives;
use partita_program::Menu;
use partita_run::Arena;
use partita_session::{Outcome, RunEnd, Session};
use partita_space::{Rank, Seconds};
use partita_tune::{HostLayout, LinkSizes, LinkTimes, NetworkTimes};
use processes::Job;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;

/// The ranks of a run.
pub enum Launch<'c> {
    /// Threads of this process.
    Threads(&'c Context<'c>),
    /// Processes under a launcher, of which this is one.
    Processes(Job<'c>),
}

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

impl<'c> Launch<'c> {
    /// An MPI job if a launcher started several processes, else threads.
    ///
    /// Errors: no MPI library for the launcher.
    pub fn join(context: &'c Context<'c>) -> Result<Self, LaunchError> {
        let launcher = context.environment().launcher.as_ref();
        let Some(launcher) = launcher.filter(|launcher| launcher.has_several()) else {
            return Ok(Self::Threads(context));
        };
        let job = Job::join(context, launcher)?;
        Ok(job.map_or(Self::Threads(context), Self::Processes))
    }

    /// The context of the verb.
    pub fn context(&self) -> &'c Context<'c> {
        match self {
            Self::Threads(context) => context,
            Self::Processes(job) => job.context(),
        }
    }

    /// Whether this process has rank 0, which reports and writes.
    pub fn is_first(&self) -> bool {
        match self {
            Self::Threads(_) => true,
            Self::Processes(job) => job.rank() == 0,
        }
    }

    /// Index of this process among those of the job, and their number.
    pub fn share(&self) -> (usize, usize) {
        match self {
            Self::Threads(_) => (0, 1),
            Self::Processes(job) => (job.rank(), job.size()),
        }
    }

    /// The number of ranks: of the launcher, the request or the run file. A request must agree with the launcher.
    pub fn ranks(&self, asked: Option<usize>, of_file: usize) -> Result<usize, LaunchError> {
        let size = match self {
            Self::Threads(_) => return Ok(asked.unwrap_or(of_file)),
            Self::Processes(job) => job.size(),
        };
        match asked.filter(|&ranks| ranks != size) {
            None => Ok(size),
            Some(asked) => Err(LaunchError::OtherRanks { asked, size }),
        }
    }

    /// The collectives of the MPI library, if there is one.
    pub fn library_collectives(&self) -> Result<Collectives, LaunchError> {
        match self {
            Self::Processes(_) => Ok(Collectives::Library),
            Self::Threads(_) => Err(LaunchError::NoLibrary),
        }
    }

    /// Sets how long other ranks may be silent.
    pub fn set_limit(&self, limit: Seconds) -> Result<(), LaunchError> {
        match self {
            Self::Threads(_) => Ok(()),
            Self::Processes(job) => job.set_limit(limit),
        }
    }

    /// Number of ranks on this host, and of the cores that they share.
    pub fn local(&self, ranks: usize, host: &Host) -> (usize, usize) {
        match self {
            Self::Threads(_) => (ranks, host.cores_usable),
            Self::Processes(job) => (job.local().ranks, job.local().cores),
        }
    }

    /// The kernels of a run, by what rank 0 has measured; choices of strategies use it, too.
    pub fn menu(&self, rank_config: RankConfig) -> Result<Box<dyn Menu + Sync>, LaunchError> {
        let ranks = self.on_this_host(rank_config)?;
        let (context, kernels) = (self.context(), rank_config.kernels);
        let choose = || {
            let catalog = context.catalog(kernels, &ranks);
            let version = context.version_for(&catalog);
            Ok::<_, LaunchError>((catalog, version))
        };
        let (catalog, wanted) = self.choose(choose)?;
        let found = context.version_for(&catalog);
        if found != wanted {
            return Err(LaunchError::OtherOneDnn {
                wanted: wanted.unwrap_or_default(),
                found: found.unwrap_or_else(|| "none".to_owned()),
            });
        }
        context.share(catalog);
        Ok(context.menu(kernels, &ranks))
    }

    /// The ranks of this process.
    pub fn local_ranks(&self, ranks: usize) -> Range<Rank> {
        match self {
            Self::Threads(_) => 0..ranks,
            Self::Processes(job) => job.rank()..job.rank() + 1,
        }
    }

    /// The ranks of this host.
    pub fn ranks_of_host(&self, ranks: usize) -> Vec<Rank> {
        match self {
            Self::Threads(_) => (0..ranks).collect(),
            Self::Processes(job) => job.ranks_of_host().to_vec(),
        }
    }

    /// Whether all ranks are on one host.
    pub fn is_on_one_host(&self) -> bool {
        match self {
            Self::Threads(_) => true,
            Self::Processes(job) => job.is_on_one_host(),
        }
    }

    /// Runs long work on every rank.
    pub fn prepare<R: Send, E: Send + From<LaunchError>>(
        &self,
        work: impl FnOnce() -> Result<R, E> + Send,
    ) -> Result<R, E> {
        match self {
            Self::Threads(_) => work(),
            Self::Processes(job) => job.with_heartbeats(work),
        }
    }

    /// Makes the files of what ranks keep of a dataset beside their memory, on all ranks before any of them goes on.
    ///
    /// Errors: the first rank whose file cannot be made.
    pub fn open_spill(
        &self,
        store: &SampleStore,
        folder: &Path,
        ranks: usize,
    ) -> Result<(), LaunchError> {
        let local = self.local_ranks(ranks);
        match self {
            Self::Threads(_) => preload::open_spill(store, folder, local),
            Self::Processes(job) => {
                job.with_heartbeats(|| preload::open_spill(store, folder, local))?;
                job.meet()
            }
        }
    }

    /// Reads what ranks keep of a dataset into memory, on all ranks before any of them goes on; counted for an epoch.
    ///
    /// Errors: the first rank that cannot read its samples or has no memory for them; a stop.
    pub fn preload(
        &self,
        store: &SampleStore,
        ranks: usize,
        epoch: u64,
    ) -> Result<(), LaunchError> {
        let local = self.local_ranks(ranks);
        match self {
            Self::Threads(context) => preload::preload(context, store, local, epoch),
            Self::Processes(job) => {
                let context = job.context();
                job.with_heartbeats(|| preload::preload(context, store, local, epoch))?;
                job.meet()
            }
        }
    }

    /// Makes a choice on rank 0 and broadcasts it.
    ///
    /// Errors: that of the choice, on rank 0.
    pub fn choose<T, E>(&self, choose: impl FnOnce() -> Result<T, E> + Send) -> Result<T, E>
    where
        T: Default + Send + serde::Serialize + for<'t> serde::Deserialize<'t>,
        E: Send + From<LaunchError>,
    {
        let job = match self {
            Self::Threads(_) => return choose(),
            Self::Processes(job) => job,
        };
        let own = match job.rank() {
            0 => job.with_heartbeats(choose)?,
            _ => T::default(),
        };
        Ok(job.broadcast(&own)?)
    }

    /// Checks that all ranks have the same programs and plan, which `identity` describes.
    pub fn check_agreement(&self, identity: impl FnOnce() -> String) -> Result<(), LaunchError> {
        match self {
            Self::Threads(_) => Ok(()),
            Self::Processes(job) => job.check_agreement(&identity()),
        }
    }

    /// Whether ranks are processes.
    pub fn has_processes(&self) -> bool {
        match self {
            Self::Threads(_) => false,
            Self::Processes(_) => true,
        }
    }

    /// Does work on rank 0, while the others wait and receive its heartbeats.
    ///
    /// Errors: those of the work.
    pub fn on_first<T: Send, E: Send + From<LaunchError>>(
        &self,
        work: impl FnOnce() -> Result<Option<T>, E> + Send,
    ) -> Result<Option<T>, E> {
        let job = match self {
            Self::Threads(_) => return work(),
            Self::Processes(job) => job,
        };
        let done = match job.rank() {
            0 => job.with_heartbeats(work)?,
            _ => None,
        };
        job.broadcast(&())?;
        Ok(done)
    }

    /// Measures messages and collectives of processes, of groups of these sizes up to so many bytes, except `known` of
    /// rank 0. Threads measure none.
    ///
    /// Errors: a transport that fails.
    pub fn measure_links(
        &self,
        wanted: (&BTreeSet<usize>, LinkSizes),
        known: &LinkTimes,
        by: (KernelSet, usize),
    ) -> Result<LinkTimes, LaunchError> {
        match self {
            Self::Threads(_) => Ok(LinkTimes::default()),
            Self::Processes(job) => job.measure_links(wanted, known, by),
        }
    }

    /// Measures messages and collectives between hosts; rank 0 gets the times. Empty on one host.
    ///
    /// Errors: a transport that fails.
    pub fn measure_network(
        &self,
        layout: HostLayout,
        by: (KernelSet, usize),
    ) -> Result<NetworkTimes, LaunchError> {
        match self {
            Self::Threads(_) => Ok(NetworkTimes::new()),
            Self::Processes(job) => job.measure_network(layout, by),
        }
    }

    /// Finalizes MPI when all ranks are done.
    pub fn close(&self) -> Result<(), LaunchError> {
        match self {
            Self::Threads(_) => Ok(()),
            Self::Processes(job) => {
                // No rank leaves before rank 0 is done.
                job.broadcast(&())?;
                job.close()
            }
        }
    }

    /// The ranks of a host that a calibration measures, and how all ranks lie on hosts.
    ///
    /// Errors: processes that are not spread evenly over their hosts.
    pub fn calibrated_ranks(
        &self,
        rank_config: RankConfig,
    ) -> Result<(Ranks, HostLayout), LaunchError> {
        self.check_threads(rank_config)?;
        let Self::Processes(job) = self else {
            let ranks = Ranks::threads(rank_config.ranks, rank_config.threads);
            return Ok((ranks, HostLayout::single(rank_config.ranks)));
        };
        let uneven = LaunchError::UnevenHosts { ranks: job.size() };
        let layout = job.layout().ok_or(uneven)?;
        let ranks = Ranks {
            cores: job.cores().to_vec(),
            library: Some(job.library()?),
            pinned: job.hold_cores(rank_config)?,
            ..Ranks::threads(layout.ranks_per_host, rank_config.threads)
        };
        Ok((ranks, layout))
    }

    /// Whether the ranks of this process can start their threads.
    fn check_threads(&self, rank_config: RankConfig) -> Result<(), LaunchError> {
        let (ranks, cores) = match self {
            Self::Threads(_) => (rank_config.ranks, cores().len()),
            Self::Processes(job) => (1, job.local().cores),
        };
        Ok(thread_limit::check(ranks, rank_config, cores)?)
    }

    /// The ranks of a run on this machine; ranks on several hosts are treated as threads of this process.
    pub fn on_this_host(&self, rank_config: RankConfig) -> Result<Ranks, LaunchError> {
        self.check_threads(rank_config)?;
        let threads = Ranks::threads(rank_config.ranks, rank_config.threads);
        let Self::Processes(job) = self else {
            return Ok(threads);
        };
        let ranks = Ranks {
            cores: job.cores().to_vec(),
            library: Some(job.library()?),
            pinned: job.hold_cores(rank_config)?,
            ..threads.clone()
        };
        let is_known = job.is_on_one_host() && ranks.count <= ranks.most();
        Ok(if is_known { ranks } else { threads })
    }

    /// Runs a session. Rank 0 gets the outcomes and the memory usage of all ranks, and its sink the trained tensors.
    ///
    /// Errors: the first cause.
    pub fn run(
        &self,
        session: &Session<'_>,
        setup: &RunSetup<'_>,
        collectives: Collectives,
        listener: Listener<'_>,
        baseline: MemoryBaseline,
        sink: &mut dyn TensorSink,
    ) -> Result<Option<(Vec<Outcome>, MemoryUsage)>, LaunchError> {
        let job = match self {
            Self::Threads(context) => {
                let (ranks, threads) = (
                    session.main_program().mesh.ranks(),
                    setup.processing.threads,
                );
                let pinned = context.hold_cores(setup.kernels, ranks * threads);
                let spin = context.spin(ranks, threads, cores().len());
                let results = ranks::run_ranks(session, setup, listener, (&pinned, spin));
                let peak = baseline.peak_above();
                let results = results?;
                let (outcomes, mut arenas) = (results.outcomes, results.arenas);
                if outcomes[0].end == RunEnd::Finished {
                    save(session, &mut arenas, sink)?;
                }
                let usage = MemoryUsage {
                    arenas: arenas.iter().map(Arena::bytes).collect(),
                    peak,
                    peak_saving: baseline.peak_above(),
                };
                return Ok(Some((outcomes, usage)));
            }
            Self::Processes(job) => job,
        };
        job.run(session, setup, collectives, listener, baseline, sink)
    }

    /// Ends a failed run on all ranks. The error knows whether it was reported already.
    pub fn shut_down<E: Fault + From<LaunchError>>(&self, error: E) -> E {
        match self {
            Self::Threads(_) => error,
            Self::Processes(job) => job.shut_down(error),
        }
    }
}

/// Passes all tensors to the sink until they are saved.
fn save(
    session: &Session<'_>,
    arenas: &mut [Arena],
    sink: &mut dyn TensorSink,
) -> Result<(), LaunchError> {
    loop {
        for tensor in session.persistent_tensors() {
            let holders = tensor.holders.iter();
            let shares = holders.map(|&it| session.shard(it, &mut arenas[it.0]));
            sink.keep(&tensor, session.assemble(&tensor, shares));
        }
        if sink.finish()? {
            return Ok(());
        }
    }
}
