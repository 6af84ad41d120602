//! Ranks that are processes under a launcher: collective decisions, failure handling and shutdown.

mod agreement;
mod held_cores;
mod links;
mod world;

use super::agreement::Agreement;
use super::error::LaunchError;
use super::memory_baseline::MemoryBaseline;
use super::ranks::{self, InnerRun, Listener, RunSetup};
use super::saving::{MemoryUsage, TensorSink};
use crate::context::Context;
use crate::error::{ErrorKind, Fault, full_text};
use crate::kernel_set::{self, CoreSlot};
use crate::launcher::Launcher;
use crate::progress::Event;
use agreement::ProcessAgreement;
use held_cores::core_slot;
use partita_files::host_name;
use partita_input::EpochLoads;
use partita_mpi::{Collectives, Library, LivenessReport, MpiTransport, WorldOptions};
use partita_mpi::{World as MpiWorld, WorldError};
use partita_program::Program;
use partita_run::{Arena, PackedTensor, RunError};
use partita_session::{Outcome, PersistentTensor, RunEnd, Session};
use partita_space::help::extend;
use partita_space::{Bytes, Rank, Seconds};
use partita_tune::HostLayout;
use serde::{Deserialize, Serialize};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

/// Limit until that of the run file is known.
const LIMIT: Seconds = Seconds(60.0);

/// All ranks of a job, seen by one of them.
pub struct Job<'c> {
    context: &'c Context,
    /// `None` once MPI is finalized.
    world: RefCell<Option<MpiWorld>>,
    rank: Rank,
    size: usize,
    slot: CoreSlot,
    /// The cores of the ranks of this host, in their order, once they hold them; an empty list is of a rank that is not
    /// pinned.
    held: OnceCell<Vec<Vec<usize>>>,
    local: HostRanks,
    /// The ranks of this host.
    of_host: Vec<Rank>,
    /// Cores that the ranks of this host share.
    cores: Vec<usize>,
    /// The hosts, if they have equally many ranks each and ranks fill one after the other.
    layout: Option<HostLayout>,
    has_run: Cell<bool>,
    error: RefCell<Option<RunError>>,
}

/// Inner runs of a rank that is a process.
struct InnerProcess<'a, 'c>(&'a Job<'c>);

impl InnerRun for InnerProcess<'_, '_> {
    fn run(&mut self, session: &Session<'_>, setup: &RunSetup<'_>) -> Result<Outcome, RunError> {
        let Self(job) = self;
        let transport = job.transport(session, setup, Collectives::Ordered);
        let transport = transport.map_err(|error| RunError::Agreement {
            rank: job.rank,
            after: "the outputs of a validation".to_owned(),
            reason: error.to_string(),
        })?;
        let waker = Box::new(transport.waker());
        let agreements =
            [(); 4].map(|()| Box::new(ProcessAgreement::new(job)) as Box<dyn Agreement>);
        let transport = Box::new(transport);
        let slot = &job.slot();
        let (outcome, _) = ranks::run_rank(
            session, setup, job.rank, slot, transport, waker, None, agreements, None,
        )?;
        Ok(outcome)
    }
}

/// The ranks on the host of this rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostRanks {
    /// Number of ranks.
    pub ranks: usize,
    /// Cores that they share.
    pub cores: usize,
}

/// Host and cores of a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RankHost {
    host: String,
    cores: Vec<usize>,
}

/// The reason of a rank's failure, as it is sent to the others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Reason {
    /// 0 for a cause, more for a consequence of another rank's failure.
    distance: u8,
    kind: ErrorKind,
    text: String,
    /// The error of the run, if any.
    error: Option<RunError>,
}

/// Results of a rank, sent to rank 0.
#[derive(Serialize, Deserialize)]
struct RankReport {
    outcome: Outcome,
    peak: Option<Bytes>,
    arena: Bytes,
    /// What was loaded for each epoch.
    loads: BTreeMap<u64, EpochLoads>,
}

impl<'c> Job<'c> {
    /// Joins the job of a launcher. `None` if it has one process.
    ///
    /// Errors: no MPI library, or one of another launcher.
    pub fn join(context: &'c Context, launcher: &Launcher) -> Result<Option<Self>, LaunchError> {
        let sign = launcher.sign;
        let library = Library::load(&context.environment().mpi());
        let library = library.map_err(|reason| LaunchError::NoMpi { sign, reason })?;
        let options = WorldOptions {
            limit: LIMIT,
            on_timeout: context.on_timeout(),
        };
        let file = library.file.clone();
        let mut world = MpiWorld::open(library, options)?;
        if context.environment().keeps_mpi {
            world.leave_running();
        }
        if let Some(processes) = launcher.processes.filter(|&count| count != world.size()) {
            return Err(LaunchError::OtherMpi {
                processes,
                sign,
                file,
                seen: world.size(),
                advice: launcher.advice(),
            });
        }
        if world.size() == 1 {
            world.close()?;
            return Ok(None);
        }
        let (rank, size) = (world.rank(), world.size());
        let mut job = Self {
            context,
            world: RefCell::new(Some(world)),
            rank,
            size,
            slot: CoreSlot::among(0, 1, &[]),
            held: OnceCell::new(),
            local: HostRanks { ranks: 1, cores: 1 },
            of_host: Vec::new(),
            cores: Vec::new(),
            layout: None,
            has_run: Cell::new(false),
            error: RefCell::new(None),
        };
        let rank_hosts = job.rank_hosts();
        let rank_hosts = rank_hosts.map_err(|error| job.end_with(&error).unwrap_or(error))?;
        (job.slot, job.local) = core_slot(&rank_hosts, rank);
        job.of_host = ranks_of_host(&rank_hosts, rank);
        job.cores = cores_of_host(&rank_hosts, rank);
        job.layout = layout(&rank_hosts);
        Ok(Some(job))
    }

    /// Host and cores of all ranks, in rank order.
    fn rank_hosts(&self) -> Result<Vec<RankHost>, LaunchError> {
        let own = RankHost {
            host: host_name(),
            cores: kernel_set::cores().to_vec(),
        };
        let all = self.gather(&own)?;
        self.broadcast_value(&all)
    }

    fn with<R>(
        &self,
        work: impl FnOnce(&MpiWorld) -> Result<R, WorldError>,
    ) -> Result<R, LaunchError> {
        let world = self.world.borrow();
        let world = world
            .as_ref()
            .unwrap_or_else(|| panic!("MPI has ended already"));
        Ok(work(world)?)
    }

    /// Runs long work, while heartbeats are sent to the others.
    fn while_working<R: Send, E: Send + From<LaunchError>>(
        &self,
        work: impl FnOnce() -> Result<R, E> + Send,
    ) -> Result<R, E> {
        self.with(|world| Ok(world.with_heartbeats(work)))?
    }

    /// Carries messages of samples in memory, if there are some.
    fn carry_samples(&self, setup: &RunSetup<'_>) -> Result<(), LaunchError> {
        if let Some(store) = &setup.loading.store {
            let messages = store.connect(self.rank).map_err(LaunchError::from)?;
            self.with(|world| world.carry_samples(messages))?;
        }
        Ok(())
    }

    /// Waits until all ranks are here.
    fn wait_for_all(&self) -> Result<(), LaunchError> {
        self.gather(&())?;
        self.broadcast_value(&())
    }

    /// Broadcasts a value of rank 0.
    fn broadcast_value<T: Serialize + for<'t> Deserialize<'t>>(
        &self,
        own: &T,
    ) -> Result<T, LaunchError> {
        let bytes = serde_json::to_vec(own)?;
        let bytes = self.with(|world| world.broadcast(&bytes))?;
        Ok(serde_json::from_slice(&bytes)?)
    }

    /// Gathers the values of all ranks on rank 0; empty on the others.
    fn gather<T: Serialize + for<'t> Deserialize<'t>>(
        &self,
        own: &T,
    ) -> Result<Vec<T>, LaunchError> {
        let bytes = serde_json::to_vec(own)?;
        let all = self.with(|world| world.gather(&bytes))?;
        let all = all.iter().map(|bytes| serde_json::from_slice(bytes));
        Ok(all.collect::<Result<Vec<T>, _>>()?)
    }

    /// How long a rank spins before it sleeps.
    fn spin(&self, threads: usize) -> Seconds {
        self.context
            .spin(self.local.ranks, threads, self.local.cores)
    }

    /// Runs a session as this rank. Rank 0 gets the results of all ranks and the sum of their peaks, after the
    /// sink has received the trained tensors.
    ///
    /// Errors: that of this rank.
    fn run_session(
        &self,
        session: &Session<'_>,
        setup: &RunSetup<'_>,
        collectives: Collectives,
        listener: Listener<'_>,
        baseline: MemoryBaseline,
        sink: &mut dyn TensorSink,
    ) -> Result<Option<(Vec<Outcome>, MemoryUsage)>, LaunchError> {
        self.has_run.set(true);
        let transport = self.transport(session, setup, collectives)?;
        self.carry_samples(setup)?;
        let (waker, transport) = (Box::new(transport.waker()), Box::new(transport));
        let (slot, listener) = (&self.slot(), (self.rank == 0).then_some(listener));
        let agreements =
            [(); 4].map(|()| Box::new(ProcessAgreement::new(self)) as Box<dyn Agreement>);
        let inner = Some(Box::new(InnerProcess(self)) as Box<dyn InnerRun>);
        let results = ranks::run_rank(
            session, setup, self.rank, slot, transport, waker, listener, agreements, inner,
        );
        let peak = baseline.peak_above();
        let (outcome, mut arena) = results.map_err(|error| {
            *self.error.borrow_mut() = Some(error.clone());
            LaunchError::from(error)
        })?;
        let early = match outcome.end {
            RunEnd::Finished => None,
            RunEnd::Stopped { .. } => Some(ErrorKind::Interrupted),
            RunEnd::NotFinite { .. } => Some(ErrorKind::Failure),
        };
        if let Some(kind) = early {
            // All ranks saw the same loss, or agreed to stop. Rank 0 reports it; a launcher may take the exit code
            // of any rank.
            let origins = self.gather(&outcome.origin)?;
            self.finalize()?;
            let of_rank = |(rank, origin)| Outcome {
                rank,
                origin,
                ..outcome.clone()
            };
            return match self.rank {
                0 => {
                    let outcomes = origins.into_iter().enumerate().map(of_rank);
                    Ok(Some((outcomes.collect(), MemoryUsage::default())))
                }
                _ => Err(LaunchError::AlreadyReported(kind)),
            };
        }
        let reports = self.gather(&RankReport {
            outcome,
            peak,
            arena: arena.bytes(),
            loads: setup.loading.tally.of_rank(self.rank, 0),
        })?;
        for (rank, report) in reports.iter().enumerate().skip(1) {
            setup.loading.tally.set_rank(rank, &report.loads);
        }
        self.save(session, &mut arena, sink)?;
        self.leave(setup)?;
        if self.rank > 0 {
            return Ok(None);
        }
        let usage = MemoryUsage {
            arenas: reports.iter().map(|one| one.arena).collect(),
            peak: reports.iter().map(|one| one.peak).sum(),
            peak_saving: None,
        };
        let outcomes = reports.into_iter().map(|one| one.outcome).collect();
        Ok(Some((outcomes, usage)))
    }

    /// Finalizes MPI after the last run.
    fn leave(&self, setup: &RunSetup<'_>) -> Result<(), LaunchError> {
        if setup.is_followed {
            return Ok(());
        }
        self.finalize()
    }

    /// Gathers all tensors on rank 0 until they are saved. No rank leaves before.
    fn save(
        &self,
        session: &Session<'_>,
        arena: &mut Arena,
        sink: &mut dyn TensorSink,
    ) -> Result<(), LaunchError> {
        loop {
            for tensor in session.persistent_tensors() {
                self.gather_tensor(session, &tensor, arena, sink)?;
            }
            let are_safe = match self.rank {
                // A slow device keeps the others waiting.
                0 => self.while_working(|| Ok::<_, LaunchError>(sink.finish()?))?,
                _ => true,
            };
            if self.broadcast_value(&are_safe)? {
                return Ok(());
            }
        }
    }

    /// Gathers the shards of a tensor on rank 0, one tensor at a time to limit memory.
    fn gather_tensor(
        &self,
        session: &Session<'_>,
        tensor: &PersistentTensor,
        arena: &mut Arena,
        sink: &mut dyn TensorSink,
    ) -> Result<(), LaunchError> {
        let own = tensor.holders.iter().filter(|it| it.0 == self.rank);
        if tensor.holders.iter().all(|it| it.0 == 0) {
            if self.rank == 0 {
                let shards = own.map(|&it| session.shard(it, arena));
                sink.keep(tensor, session.assemble(tensor, shards));
            }
            return Ok(());
        }
        let bytes: Vec<u8> = own
            .flat_map(|&it| session.shard(it, arena).to_le_bytes())
            .collect();
        let all = self.with(|world| world.gather(&bytes))?;
        drop(bytes);
        // A rank that is ahead waits, so that its messages do not pile up.
        self.broadcast_value(&())?;
        if self.rank > 0 {
            return Ok(());
        }
        // The remaining bytes of each rank.
        let mut all: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
        let shards = tensor.holders.iter().map(|&(rank, id)| {
            let buffer = session.main_program().body(rank).buffer(id);
            let (shard, rest) = all[rank].split_at(buffer.bytes().0 as usize);
            all[rank] = rest;
            PackedTensor::from_le_bytes(buffer.dtype, shard)
        });
        sink.keep(tensor, session.assemble(tensor, shards));
        Ok(())
    }

    fn transport<'w>(
        &self,
        session: &Session<'_>,
        setup: &RunSetup<'w>,
        collectives: Collectives,
    ) -> Result<MpiTransport<'w>, LaunchError> {
        let mesh = session.main_program().mesh;
        let programs: Vec<&Program> = session.programs().collect();
        let spin = self.spin(setup.processing.threads);
        self.with(|world| world.transport(mesh, &programs, collectives, spin, setup.cancel))
    }

    /// Finalizes MPI.
    fn finalize(&self) -> Result<(), LaunchError> {
        match self.world.take() {
            Some(world) => Ok(world.close()?),
            None => Ok(()),
        }
    }

    /// Ends the job after an error of this rank. All ranks exchange their reasons, and rank 0 reports the cause.
    /// If ranks no longer answer, all others report them and abort the job.
    /// Returns what stands for the error, as it was reported.
    fn end_with(&self, error: &dyn Fault) -> Option<LaunchError> {
        let world = self.world.take()?;
        let own = self.reason(error);
        let liveness = world.report_failure(&serde_json::to_vec(&own).unwrap_or_default());
        let reasons = failure_reasons(&liveness);
        let report = |text: &str| self.context.report(Event::Failure(text));
        if !liveness.silent.is_empty() {
            report(&silence_report(self.rank, &own, &reasons, &liveness.silent));
            world.shut_down(&liveness.silent);
            world.abort(1);
            return Some(LaunchError::AlreadyReported(ErrorKind::Failure));
        }
        let cause = reasons
            .iter()
            .min_by_key(|(rank, reason)| (reason.distance, *rank));
        let cause = cause.map_or(&own, |(_, reason)| reason);
        if self.rank == 0 {
            report(&cause.text);
        }
        world.shut_down(&[]);
        if !self.has_run.get() {
            // Nothing is pending, so MPI can be finalized; the cause is reported already.
            let _ = world.close();
        }
        Some(LaunchError::AlreadyReported(cause.kind))
    }

    fn reason(&self, error: &dyn Fault) -> Reason {
        let run = self.error.take();
        let text = full_text(error);
        let distance = match &run {
            Some(run) => run.distance_from_cause(),
            None if error.follows_failure() => 3,
            None => 0,
        };
        let stopped = LaunchError::Interrupted;
        let (kind, text) = if run == Some(RunError::Cancelled) {
            (stopped.kind(), stopped.to_string())
        } else {
            (error.kind(), text)
        };
        Reason {
            distance,
            kind,
            text,
            error: run,
        }
    }
}

/// The reasons of all failed ranks.
fn failure_reasons(report: &LivenessReport) -> Vec<(Rank, Reason)> {
    let reasons = report.failures.iter();
    reasons
        .filter_map(|(rank, reason)| Some((*rank, serde_json::from_slice(reason).ok()?)))
        .collect()
}

/// The report of a rank when others no longer answer: its own failure, or else the first one, with the silent
/// ranks as the missing ones.
fn silence_report(rank: Rank, own: &Reason, all: &[(Rank, Reason)], silent: &[Rank]) -> String {
    let follows = |one: &Reason| one.error == Some(RunError::Cancelled) || one.distance > 2;
    let first = all
        .iter()
        .map(|(_, reason)| reason)
        .filter(|reason| !follows(reason));
    let first = first.min_by_key(|reason| reason.distance).unwrap_or(own);
    let reported = if follows(own) { first } else { own };
    let text = match reported.error.clone() {
        Some(RunError::Stalled {
            rank,
            limit,
            work,
            layer,
            task,
            sequence,
            ..
        }) => RunError::Stalled {
            rank,
            limit,
            work,
            layer,
            task,
            sequence,
            missing: silent.to_vec(),
        }
        .to_string(),
        Some(_) | None => {
            let more = format!("; rank(s) {silent:?} no longer answer");
            extend(&reported.text, more).to_string()
        }
    };
    if follows(own) {
        format!("rank {rank} ends with the others: {text}")
    } else {
        text
    }
}

fn cores_of_host(rank_hosts: &[RankHost], rank: Rank) -> Vec<usize> {
    let here = rank_hosts
        .iter()
        .filter(|rank_host| rank_host.host == rank_hosts[rank].host);
    let cores: BTreeSet<usize> = here.flat_map(|rank_host| rank_host.cores.clone()).collect();
    cores.into_iter().collect()
}

/// The hosts, if they have equally many ranks each and ranks fill one after the other.
fn layout(rank_hosts: &[RankHost]) -> Option<HostLayout> {
    let blocks: Vec<&[RankHost]> = rank_hosts.chunk_by(|a, b| a.host == b.host).collect();
    let names: BTreeSet<&String> = rank_hosts.iter().map(|one| &one.host).collect();
    let ranks_per_host = blocks.first()?.len();
    let is_even = blocks.iter().all(|block| block.len() == ranks_per_host);
    (is_even && names.len() == blocks.len()).then_some(HostLayout {
        hosts: blocks.len(),
        ranks_per_host,
    })
}

/// The ranks on the host of a rank.
fn ranks_of_host(rank_hosts: &[RankHost], rank: Rank) -> Vec<Rank> {
    let host = &rank_hosts[rank].host;
    let is_here = |&other: &Rank| rank_hosts[other].host == *host;
    (0..rank_hosts.len()).filter(is_here).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank_host(host: &str, cores: &[usize]) -> RankHost {
        RankHost {
            host: host.to_owned(),
            cores: cores.to_vec(),
        }
    }

    #[test]
    fn ranks_of_a_host_share_its_cores() {
        let rank_hosts = [
            rank_host("a", &[0, 1]),
            rank_host("b", &[0, 1]),
            rank_host("a", &[0, 1]),
            rank_host("b", &[2, 3]),
        ];
        let (shared, local) = core_slot(&rank_hosts, 2);
        assert_eq!((shared.slot, shared.slots), (1, 2));
        assert_eq!((local.ranks, local.cores), (2, 2));
        let (own, local) = core_slot(&rank_hosts, 3);
        assert_eq!((own.slot, own.slots), (0, 1));
        assert_eq!((local.ranks, local.cores), (2, 4));
    }

    #[test]
    fn hosts_with_equally_many_ranks_are_a_layout() {
        let all = |hosts: &[&str]| {
            let ranks: Vec<RankHost> = hosts.iter().map(|host| rank_host(host, &[0])).collect();
            layout(&ranks).map(|found| (found.hosts, found.ranks_per_host))
        };
        assert_eq!(all(&["a", "a", "b", "b"]), Some((2, 2)));
        assert_eq!(all(&["a", "b", "c"]), Some((3, 1)));
        assert_eq!(all(&["a", "a"]), Some((1, 2)));
        assert_eq!(all(&["a", "b", "a", "b"]), None);
        assert_eq!(all(&["a", "a", "b"]), None);
    }

    fn stalled(rank: Rank, missing: Vec<Rank>) -> Reason {
        let error = RunError::Stalled {
            rank,
            limit: Seconds(5.0),
            work: "exchange".to_owned(),
            layer: "conv2".to_owned(),
            task: 17,
            sequence: 4,
            missing,
        };
        Reason {
            distance: 0,
            kind: ErrorKind::Failure,
            text: error.to_string(),
            error: Some(error),
        }
    }

    #[test]
    fn silent_ranks_are_named_and_not_ranks_that_wait_for_them() {
        let own = stalled(0, vec![1]);
        let text = silence_report(0, &own, &[(0, own.clone())], &[3]);
        assert!(
            text.contains("rank 0 made no progress") && text.ends_with("rank(s) [3]"),
            "{text}"
        );
        let cancelled = Reason {
            distance: 2,
            kind: ErrorKind::Interrupted,
            text: "stopped".to_owned(),
            error: Some(RunError::Cancelled),
        };
        let all = [(0, own), (2, cancelled.clone())];
        let text = silence_report(2, &cancelled, &all, &[3]);
        assert!(
            text.starts_with("rank 2 ends with the others: rank 0 made no progress"),
            "{text}"
        );
        assert!(
            text.contains("`conv2` (task 17, sequence 4)") && text.ends_with("[3]"),
            "{text}"
        );
    }
}
