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
pub(crate) use ranks::InitialValues;
pub use ranks::{
    InnerRun, Listener, MakeJoins, MakeSink, MakeSource, MakeStepHook, MakeValidators, RunSetup,
};
#[cfg(test)]
pub use ranks::{RankResults, run_ranks};
pub use saving::{MemoryUsage, TensorSink};

use crate::context::Context;
use crate::error::Fault;
use crate::host::Host;
use crate::input::InputSource;
use crate::kernel_set::{KernelSet, cores};
use crate::local_machine::{CalibrationRun, LocalError, LocalMachine, Ranks};
use crate::machine;
use crate::thread_limit;
use partita_input::SampleStore;
use partita_lower::Strategy;
use partita_mpi::Collectives;
use partita_oracle::{Costs, Prediction, predict};
use partita_program::{Menu, Program};
use partita_run::Arena;
use partita_session::{Outcome, RunEnd, Session};
use partita_space::{Rank, Seconds};
use partita_tune::{HostLayout, LinkSizes, LinkTimes};
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

    /// Chooses a strategy on rank 0 and broadcasts it. If it is open (`is_open`), processes first measure their
    /// links together.
    pub fn choose_strategy<E: Send + From<LaunchError>>(
        &self,
        rank_config: RankConfig,
        is_open: bool,
        choose: impl FnOnce(Ranks) -> Result<Strategy, E> + Send,
    ) -> Result<Strategy, E> {
        let ranks = self.on_this_host(rank_config)?;
        let job = match self {
            Self::Threads(_) => return choose(ranks),
            Self::Processes(job) => job,
        };
        if is_open && ranks.library.is_some() {
            let groups = (2..=ranks.count).collect();
            let wanted = (&groups, LinkSizes::ALL);
            measure_links(job, rank_config.kernels, &ranks, wanted)?;
        }
        let own = match job.rank() {
            0 => job.with_heartbeats(|| choose(ranks))?.to_string(),
            _ => String::new(),
        };
        let chosen: String = job.broadcast(&own)?;
        let chosen: Strategy = chosen.parse().map_err(LaunchError::Strategy)?;
        Ok(chosen)
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

    /// Predicts a program with its tasks, on rank 0. `None` if the ranks are on several hosts, or too many share
    /// its cores for useful measurements.
    ///
    /// Errors: a failed measurement.
    pub fn predict(
        &self,
        program: &Program,
        rank_config: RankConfig,
        input: InputSource,
    ) -> Result<Option<Prediction>, LaunchError> {
        let ranks = self.on_this_host(rank_config)?;
        let Self::Processes(job) = self else {
            return predict_locally(self.context(), program, rank_config.kernels, (ranks, input));
        };
        if ranks.library.is_none() {
            return Ok(None);
        }
        let wanted = (&program.group_sizes(), LinkSizes::of(program));
        measure_links(job, rank_config.kernels, &ranks, wanted)?;
        let context = self.context();
        let predict = || predict_locally(context, program, rank_config.kernels, (ranks, input));
        on_first(job, predict)
    }

    /// Predicts a program with its tasks by the costs of a machine file, on rank 0.
    ///
    /// Errors: a missing cost.
    pub fn predict_on(
        &self,
        program: &Program,
        costs: &dyn Costs,
    ) -> Result<Option<Prediction>, LaunchError> {
        let predict = || {
            let mode = machine::mode(costs, program.mesh.ranks());
            let predicted = predict(program, costs, mode, 1, true);
            Ok(Some(predicted.map_err(LocalError::Simulate)?))
        };
        let Self::Processes(job) = self else {
            return predict();
        };
        on_first(job, predict)
    }

    /// Measures the ranks of this host anew, and the network where there are several hosts; rank 0 gets the result.
    /// `ranks` are those of [`calibrated_ranks`](Self::calibrated_ranks). All ranks call [`close`](Self::close)
    /// afterwards.
    ///
    /// Errors: a failed measurement; too many ranks on a host.
    pub fn calibrate(
        &self,
        kernels: KernelSet,
        (ranks, layout): (&Ranks, HostLayout),
        programs: &[Program],
        passes: usize,
    ) -> Result<Option<CalibrationRun>, LaunchError> {
        let context = self.context();
        let local = || LocalMachine::of(context, kernels, ranks.clone(), InputSource::FileSystem);
        let Self::Processes(job) = self else {
            return Ok(Some(local()?.calibrate(programs, None, passes)?));
        };
        if job.rank() == 0 {
            job.with_heartbeats(|| {
                context.before_measuring();
                Ok::<_, LaunchError>(())
            })?;
        }
        let groups = layout.groups_on_a_host();
        let by = (kernels, ranks.threads);
        let links = job.measure_links((&groups, LinkSizes::ALL), &LinkTimes::default(), by)?;
        let network = job.measure_network(layout, by)?;
        let found = match job.rank() {
            0 => job.with_heartbeats(|| {
                let mut found = local()?.calibrate(programs, Some(links), passes)?;
                found.add_network(&network)?;
                Ok::<_, LaunchError>(Some(found))
            })?,
            _ => None,
        };
        Ok(found)
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

/// A prediction from kernels and links measured on this machine. Called once, before the ranks start.
fn predict_locally(
    context: &Context<'_>,
    program: &Program,
    kernels: KernelSet,
    (ranks, input): (Ranks, InputSource),
) -> Result<Option<Prediction>, LaunchError> {
    if ranks.count > ranks.most() {
        return Ok(None);
    }
    let mut here = LocalMachine::of(context, kernels, ranks, input)?;
    Ok(Some(here.predict(program, true)?))
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

/// Does work on rank 0, while the others wait and receive its heartbeats.
fn on_first<T: Send>(
    job: &Job<'_>,
    work: impl FnOnce() -> Result<Option<T>, LaunchError> + Send,
) -> Result<Option<T>, LaunchError> {
    let done = match job.rank() {
        0 => job.with_heartbeats(work)?,
        _ => None,
    };
    job.broadcast(&())?;
    Ok(done)
}

/// Measures messages and collectives of all processes, for groups of these sizes that are not measured yet up to so
/// many bytes.
/// Rank 0 keeps the times.
fn measure_links(
    job: &Job<'_>,
    kernels: KernelSet,
    ranks: &Ranks,
    (groups, sizes): (&BTreeSet<usize>, LinkSizes),
) -> Result<(), LaunchError> {
    let context = job.context();
    // Another process may hold the lock of the cache for longer than the others wait.
    let open = || {
        let here = LocalMachine::of(context, kernels, ranks.clone(), InputSource::FileSystem)?;
        if !here.links().has_all(ranks.count, groups, sizes) {
            context.before_measuring();
        }
        Ok::<_, LaunchError>(here)
    };
    let here = (job.rank() == 0).then(|| job.with_heartbeats(open));
    let here = here.transpose()?;
    let known = here.as_ref().map(LocalMachine::links).unwrap_or_default();
    let found = job.measure_links((groups, sizes), &known, (kernels, ranks.threads))?;
    let Some(mut here) = here else {
        return Ok(());
    };
    job.with_heartbeats(|| {
        here.keep_links(found);
        Ok::<_, LaunchError>(())
    })
}
