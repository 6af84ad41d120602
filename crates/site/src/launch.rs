//! Launches the ranks of a run: as threads of this process, or this process as one rank of an MPI job.

mod agreement;
mod error;
mod memory_baseline;
mod preload;
mod processes;
mod ranks;
mod saving;
mod threads;
mod world;

pub use agreement::{Agreement, Decision, RepeatFrom, Vote};
pub use error::{DIVERGENCE_ADVICE, LaunchError, NotSaved};
pub use memory_baseline::{MemoryBaseline, PEAK_METHOD};
pub use ranks::{
    InitialValues, InnerRun, Listener, MakeJoins, MakeSink, MakeSource, MakeStepHook,
    MakeValidators, OnEpoch, RunSetup,
};
pub use ranks::{RankResults, run_ranks};
pub use saving::{MemoryUsage, TensorSink};

use crate::context::Context;
use crate::error::Fault;
use crate::host::Host;
use crate::kernel_set::KernelSet;
use crate::local_ranks::{PinningTimes, RankConfig, Ranks, setting};
use crate::thread_limit;
use partita_input::SampleStore;
use partita_mpi::Collectives;
use partita_program::Menu;
use partita_session::{Outcome, Session};
use partita_space::{Rank, Seconds};
use partita_tune::{Catalog, HostLayout, LinkSizes, LinkTimes, NetworkTimes};
use processes::Job;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use threads::Threads;
use world::World;

/// The ranks of a run: threads of this process, or processes under a launcher, of which this is one.
pub struct Launch<'c> {
    context: &'c Context,
    world: Box<dyn World + 'c>,
}

impl<'c> Launch<'c> {
    /// An MPI job if a launcher started several processes, else threads.
    ///
    /// Errors: no MPI library for the launcher.
    pub fn join(context: &'c Context) -> Result<Self, LaunchError> {
        let launcher = context.environment().launcher.as_ref();
        let Some(launcher) = launcher.filter(|launcher| launcher.has_several()) else {
            return Ok(Self::threads(context));
        };
        let of_job = |job: Job<'c>| Self {
            context,
            world: Box::new(job),
        };
        let job = Job::join(context, launcher)?;
        Ok(job.map_or_else(|| Self::threads(context), of_job))
    }

    /// Threads of this process.
    pub fn threads(context: &'c Context) -> Self {
        Self {
            context,
            world: Box::new(Threads { context }),
        }
    }

    /// The context of the verb.
    pub fn context(&self) -> &'c Context {
        self.context
    }

    /// Whether ranks are processes.
    pub fn has_processes(&self) -> bool {
        self.world.has_processes()
    }

    /// Whether this process has rank 0, which reports and writes.
    pub fn is_first(&self) -> bool {
        self.share().0 == 0
    }

    /// Index of this process among those of the job, and their number.
    pub fn share(&self) -> (usize, usize) {
        self.world.share()
    }

    /// The number of ranks: of the launcher, the request or the run file. A request must agree with the launcher.
    pub fn ranks(&self, asked: Option<usize>, of_file: usize) -> Result<usize, LaunchError> {
        self.world.ranks(asked, of_file)
    }

    /// The collectives of the MPI library, if there is one.
    pub fn library_collectives(&self) -> Result<Collectives, LaunchError> {
        self.world.library_collectives()
    }

    /// Sets how long other ranks may be silent.
    pub fn set_limit(&self, limit: Seconds) -> Result<(), LaunchError> {
        self.world.set_limit(limit)
    }

    /// Number of ranks on this host, and of the cores that they share.
    pub fn local(&self, ranks: usize, host: &Host) -> (usize, usize) {
        self.world.local(ranks, host)
    }

    /// The kernels of a run, by what rank 0 knows; choices of strategies use it, too.
    pub fn menu(&self, rank_config: RankConfig) -> Result<Box<dyn Menu>, LaunchError> {
        self.menu_of(rank_config, |context, ranks| {
            context.job_catalog(rank_config.kernels, ranks)
        })
    }

    /// As [`Self::menu`] at the start of a job, and when something was measured: by what rank 0 has measured until now. Kernels
    /// of which `kept` has times under the same conditions are pinned by these.
    pub fn menu_anew(
        &self,
        rank_config: RankConfig,
        kept: Option<&PinningTimes>,
    ) -> Result<Box<dyn Menu>, LaunchError> {
        let kernels = rank_config.kernels;
        self.menu_of(rank_config, |context, ranks| {
            let mut catalog = context.catalog(kernels, ranks);
            let now = setting(context.level(), kernels, ranks).to_string();
            if let Some(kept) = kept.filter(|kept| kept.setting == now) {
                catalog.replace(&kept.catalog);
            }
            catalog
        })
    }

    /// The times by which the kernels of these signatures are pinned.
    ///
    /// Errors: more threads than the system allows.
    pub fn pinning_times(
        &self,
        rank_config: RankConfig,
        signatures: &BTreeSet<String>,
    ) -> Result<PinningTimes, LaunchError> {
        let ranks = self.on_this_host(rank_config)?;
        let context = self.context();
        Ok(context.pinning_times(rank_config.kernels, &ranks, signatures))
    }

    fn menu_of(
        &self,
        rank_config: RankConfig,
        catalog: impl FnOnce(&Context, &Ranks) -> Catalog + Send,
    ) -> Result<Box<dyn Menu>, LaunchError> {
        let ranks = self.on_this_host(rank_config)?;
        let (context, kernels) = (self.context(), rank_config.kernels);
        let choose = || {
            let catalog = catalog(context, &ranks);
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
        context.share(kernels, &ranks, catalog);
        Ok(context.menu(kernels, &ranks))
    }

    /// The ranks of this process.
    pub fn local_ranks(&self, ranks: usize) -> Range<Rank> {
        self.world.local_ranks(ranks)
    }

    /// The ranks of this host.
    pub fn ranks_of_host(&self, ranks: usize) -> Vec<Rank> {
        self.world.ranks_of_host(ranks)
    }

    /// Whether all ranks are on one host.
    pub fn is_on_one_host(&self) -> bool {
        self.world.is_on_one_host()
    }

    /// Runs long work on every rank.
    pub fn prepare<R: Send, E: Send + From<LaunchError>>(
        &self,
        work: impl FnOnce() -> Result<R, E> + Send,
    ) -> Result<R, E> {
        let mut done = None;
        self.world
            .with_heartbeats(Box::new(|| done = Some(work())))?;
        done.unwrap_or_else(|| panic!("work was not done"))
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
        self.prepare(|| preload::open_spill(store, folder, local))?;
        self.world.meet()
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
        let (context, local) = (self.context(), self.local_ranks(ranks));
        self.prepare(|| preload::preload(context, store, local, epoch))?;
        self.world.meet()
    }

    /// Makes a choice on rank 0 and broadcasts it.
    ///
    /// Errors: that of the choice, on rank 0.
    pub fn choose<T, E>(&self, choose: impl FnOnce() -> Result<T, E> + Send) -> Result<T, E>
    where
        T: Default + Send + serde::Serialize + for<'t> serde::Deserialize<'t>,
        E: Send + From<LaunchError>,
    {
        if !self.has_processes() {
            return choose();
        }
        let own = if self.is_first() {
            self.prepare(choose)?
        } else {
            T::default()
        };
        let own = serde_json::to_vec(&own).map_err(LaunchError::from)?;
        let chosen = self.world.broadcast(own)?;
        Ok(serde_json::from_slice(&chosen).map_err(LaunchError::from)?)
    }

    /// Does work on rank 0, while the others wait and receive its heartbeats.
    ///
    /// Errors: those of the work.
    pub fn on_first<T: Send, E: Send + From<LaunchError>>(
        &self,
        work: impl FnOnce() -> Result<Option<T>, E> + Send,
    ) -> Result<Option<T>, E> {
        let done = if self.is_first() {
            self.prepare(work)?
        } else {
            None
        };
        self.world.broadcast(Vec::new())?;
        Ok(done)
    }

    /// Checks that all ranks have the same programs and plan, which `identity` describes.
    pub fn check_agreement(&self, identity: impl Fn() -> String) -> Result<(), LaunchError> {
        self.world.check_agreement(&identity)
    }

    /// Measures messages and collectives of processes, of groups of these sizes and up to these bytes, except `known` of
    /// rank 0. Threads measure none.
    ///
    /// Errors: a transport that fails.
    pub fn measure_links(
        &self,
        wanted: (&BTreeSet<usize>, LinkSizes),
        known: &LinkTimes,
        by: (KernelSet, usize),
    ) -> Result<LinkTimes, LaunchError> {
        self.world.measure_links(wanted, known, by)
    }

    /// Measures messages and collectives between hosts; rank 0 gets the times. Empty on one host.
    ///
    /// Errors: a transport that fails.
    pub fn measure_network(
        &self,
        layout: HostLayout,
        by: (KernelSet, usize),
    ) -> Result<NetworkTimes, LaunchError> {
        self.world.measure_network(layout, by)
    }

    /// Finalizes MPI when all ranks are done.
    pub fn close(&self) -> Result<(), LaunchError> {
        self.world.close()
    }

    /// The ranks of a host that a calibration measures, and how all ranks lie on hosts.
    ///
    /// Errors: processes that are not spread evenly over their hosts.
    pub fn calibrated_ranks(
        &self,
        rank_config: RankConfig,
    ) -> Result<(Ranks, HostLayout), LaunchError> {
        self.check_threads(rank_config)?;
        self.world.calibrated_ranks(rank_config)
    }

    /// Whether the ranks of this process can start their threads.
    fn check_threads(&self, rank_config: RankConfig) -> Result<(), LaunchError> {
        let ranks = self.local_ranks(rank_config.ranks).len();
        let cores = self.world.local_cores();
        Ok(thread_limit::check(ranks, rank_config, cores)?)
    }

    /// The ranks of a run on this machine; ranks on several hosts are treated as threads of this process.
    pub fn on_this_host(&self, rank_config: RankConfig) -> Result<Ranks, LaunchError> {
        self.check_threads(rank_config)?;
        self.world.on_this_host(rank_config)
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
        let world = &self.world;
        world.run(session, setup, collectives, listener, baseline, sink)
    }

    /// Ends a failed run on all ranks. The error knows whether it was reported already.
    pub fn shut_down<E: Fault + From<LaunchError>>(&self, error: E) -> E {
        let told = self.world.shut_down(&error);
        told.map_or(error, E::from)
    }
}
