//! Ranks that are processes under a launcher: what they decide together, and how they end together.

use super::error::LaunchError;
use super::memory::Mark;
use super::ranks::{self, Listener, World};
use super::saving::{MemoryUsage, TensorSink};
use crate::context::Context;
use crate::error::{ErrorKind, Fault, full_text};
use crate::kernel_set::{self, CoreSlot, spin};
use crate::launcher::Launcher;
use crate::progress::Event;
use partita_mpi::{Census, Collectives, Library, MpiTransport, Setting};
use partita_mpi::{World as Processes, WorldError};
use partita_program::Program;
use partita_run::{Arena, PackedTensor, RunError, Transport};
use partita_session::{End, Outcome, PersistentTensor, Session};
use partita_space::{Bytes, Rank, Seconds};
use partita_tune::{LinkTimes, RankTimes, TuneError, link_times_of_ranks, measure_links_of_rank};
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::AtomicBool;

/// Until the run file tells another limit.
const LIMIT: Seconds = Seconds(60.0);

/// All ranks of a job, seen by one of them.
pub struct Job<'c> {
    context: &'c Context<'c>,
    /// Gone once MPI has ended.
    world: RefCell<Option<Processes>>,
    rank: Rank,
    size: usize,
    slot: CoreSlot,
    local: Local,
    /// Those that the ranks of this host may use together.
    cores: Vec<usize>,
    has_played: Cell<bool>,
    error: RefCell<Option<RunError>>,
}

/// The ranks on the host of this rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    /// How many there are.
    pub ranks: usize,
    /// Cores that they may use together.
    pub cores: usize,
}

/// Host and cores of a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Site {
    host: String,
    cores: Vec<usize>,
}

/// Why a rank cannot go on, as it tells the others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Reason {
    /// 0 for a cause, more for what follows from a failure elsewhere.
    distance: u8,
    kind: ErrorKind,
    text: String,
    /// The failure of the program's run, if it is one.
    error: Option<RunError>,
}

/// What rank 0 receives of a rank at the end of a run.
#[derive(Serialize, Deserialize)]
struct Given {
    outcome: Outcome,
    peak: Option<Bytes>,
    arena: Bytes,
}

impl<'c> Job<'c> {
    /// Joins the job of a launcher. None where it is a job of one.
    ///
    /// Errors: no MPI, or none that works with this launcher.
    pub fn join(
        context: &'c Context<'c>,
        launcher: &Launcher,
    ) -> Result<Option<Self>, LaunchError> {
        let sign = launcher.sign;
        let library = Library::load(&context.environment().mpi());
        let library = library.map_err(|reason| LaunchError::NoMpi { sign, reason })?;
        let setting = Setting {
            limit: LIMIT,
            end: context.environment().end_stuck,
        };
        let file = library.file.clone();
        let world = Processes::open(library, setting)?;
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
            slot: CoreSlot { slot: 0, slots: 1 },
            local: Local { ranks: 1, cores: 1 },
            cores: Vec::new(),
            has_played: Cell::new(false),
            error: RefCell::new(None),
        };
        let sites = job.sites();
        let sites = sites.map_err(|error| job.shut_down(error))?;
        (job.slot, job.local) = slot_of(&sites, rank);
        job.cores = cores_of_host(&sites, rank);
        Ok(Some(job))
    }

    /// The sites of all ranks, in rank order.
    fn sites(&self) -> Result<Vec<Site>, LaunchError> {
        let own = Site {
            host: host(),
            cores: kernel_set::cores().to_vec(),
        };
        let all = self.gathered(&own)?;
        self.shared(&all)
    }

    /// What the verb was given.
    pub fn context(&self) -> &'c Context<'c> {
        self.context
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// All ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The ranks of this host.
    pub fn local(&self) -> Local {
        self.local
    }

    fn with<R>(
        &self,
        work: impl FnOnce(&Processes) -> Result<R, WorldError>,
    ) -> Result<R, LaunchError> {
        let world = self.world.borrow();
        let world = world
            .as_ref()
            .unwrap_or_else(|| panic!("MPI has ended already"));
        Ok(work(world)?)
    }

    /// How long the others may be silent.
    pub fn set_limit(&self, limit: Seconds) -> Result<(), LaunchError> {
        self.with(|world| {
            world.set_limit(limit);
            Ok(())
        })
    }

    /// Does what takes long, and sends the others heartbeats meanwhile.
    pub fn while_pulsing<R: Send, E: Send + From<LaunchError>>(
        &self,
        work: impl FnOnce() -> Result<R, E> + Send,
    ) -> Result<R, E> {
        self.with(|world| Ok(world.while_pulsing(work)))?
    }

    /// Gives all ranks what rank 0 has.
    pub fn shared<T: Serialize + for<'t> Deserialize<'t>>(
        &self,
        own: &T,
    ) -> Result<T, LaunchError> {
        let words = serde_json::to_vec(own)?;
        let words = self.with(|world| world.broadcast(&words))?;
        Ok(serde_json::from_slice(&words)?)
    }

    /// Gives rank 0 what all ranks have; nothing to the others.
    fn gathered<T: Serialize + for<'t> Deserialize<'t>>(
        &self,
        own: &T,
    ) -> Result<Vec<T>, LaunchError> {
        let words = serde_json::to_vec(own)?;
        let all = self.with(|world| world.gather(&words))?;
        let all = all.iter().map(|words| serde_json::from_slice(words));
        Ok(all.collect::<Result<Vec<T>, _>>()?)
    }

    /// Makes sure that all ranks have the same programs and plan; `identity` tells one from another.
    pub fn agree(&self, identity: &str) -> Result<(), LaunchError> {
        let all = self.gathered(&identity.to_owned())?;
        let other = all.iter().position(|one| one != identity);
        let verdict = other.map(|rank| (rank, all[rank].clone(), identity.to_owned()));
        match self.shared(&verdict)? {
            None => Ok(()),
            Some((rank, other, own)) => Err(LaunchError::Differ { rank, other, own }),
        }
    }

    /// The cores that the ranks of this host may use together.
    pub fn cores(&self) -> &[usize] {
        &self.cores
    }

    /// Whether all ranks are on one host.
    pub fn is_on_one_host(&self) -> bool {
        self.local.ranks == self.size
    }

    /// The library that carries messages, for people and to tell measurements apart.
    pub fn library(&self) -> Result<String, LaunchError> {
        self.with(|world| Ok(world.library().version.clone()))
    }

    /// Measures messages and collectives of these groups, of which rank 0 knows `known`; all ranks call
    /// it. Gives what was not known.
    ///
    /// Errors: a transport that fails.
    pub fn measure_links(
        &self,
        groups: &BTreeSet<usize>,
        known: &LinkTimes,
        threads: usize,
    ) -> Result<LinkTimes, LaunchError> {
        let (groups, known) = self.shared(&(groups.clone(), known.clone()))?;
        let cancel = AtomicBool::new(false);
        let mut transports = |program: &Program| -> Result<Box<dyn Transport + '_>, TuneError> {
            let made = self.with(|world| {
                let spin = self.spin(threads);
                world.transport(
                    program.mesh,
                    &[program],
                    Collectives::Ordered,
                    spin,
                    &cancel,
                )
            });
            let failed = |error: LaunchError| TuneError::Stopped {
                what: "links",
                reason: error.to_string(),
            };
            Ok(Box::new(made.map_err(failed)?))
        };
        let own = measure_links_of_rank((self.rank, self.size), &groups, &known, &mut transports);
        let own = own.map_err(LaunchError::Links)?;
        let all: Vec<RankTimes> = self.gathered(&own)?;
        let found = match self.rank {
            0 => link_times_of_ranks(&groups, &known, &all),
            _ => LinkTimes::default(),
        };
        self.shared(&found)
    }

    /// How long a rank spins before it sleeps.
    fn spin(&self, threads: usize) -> Seconds {
        spin(self.local.ranks, threads, self.local.cores)
    }

    /// Plays a session as this rank. On rank 0 gives what all ranks gave, and the sum of their peaks,
    /// after the sink has taken the tensors that the run leaves.
    ///
    /// Errors: what made this rank end.
    pub fn play(
        &self,
        session: &Session<'_>,
        world: &World<'_>,
        collectives: Collectives,
        listener: Listener<'_>,
        mark: Mark,
        sink: &mut dyn TensorSink,
    ) -> Result<Option<(Vec<Outcome>, MemoryUsage)>, LaunchError> {
        self.has_played.set(true);
        let transport = self.transport(session, world, collectives)?;
        let waker = Box::new(transport.waker());
        let transport = Box::new(transport);
        let listener = (self.rank == 0).then_some(listener);
        let played = ranks::play_rank(
            session, world, self.rank, self.slot, transport, waker, listener,
        );
        let peak = mark.peak_above();
        let (outcome, mut arena) = played.map_err(|error| {
            *self.error.borrow_mut() = Some(error.clone());
            LaunchError::from(error)
        })?;
        if outcome.end != End::Finished {
            // All ranks saw the same loss.
            self.close()?;
            return Ok((self.rank == 0).then_some((vec![outcome], MemoryUsage::default())));
        }
        let given = self.gathered(&Given {
            outcome,
            peak,
            arena: arena.bytes(),
        })?;
        self.save(session, &mut arena, sink)?;
        self.close()?;
        if self.rank > 0 {
            return Ok(None);
        }
        let usage = MemoryUsage {
            arenas: given.iter().map(|one| one.arena).collect(),
            peak: given.iter().map(|one| one.peak).sum(),
            peak_saving: None,
        };
        let outcomes = given.into_iter().map(|one| one.outcome).collect();
        Ok(Some((outcomes, usage)))
    }

    /// Gives rank 0 all tensors until they are safe. Nobody leaves before.
    fn save(
        &self,
        session: &Session<'_>,
        arena: &mut Arena,
        sink: &mut dyn TensorSink,
    ) -> Result<(), LaunchError> {
        loop {
            for tensor in session.persistent_tensors() {
                self.leave(session, &tensor, arena, sink)?;
            }
            let are_safe = match self.rank {
                // A slow device keeps the others waiting.
                0 => self.while_pulsing(|| Ok::<_, LaunchError>(sink.finish()?))?,
                _ => true,
            };
            if self.shared(&are_safe)? {
                return Ok(());
            }
        }
    }

    /// Gives rank 0 the shares of a tensor, which it keeps. One tensor at a time, so that the shares of
    /// all never lie beside the arenas.
    fn leave(
        &self,
        session: &Session<'_>,
        tensor: &PersistentTensor,
        arena: &mut Arena,
        sink: &mut dyn TensorSink,
    ) -> Result<(), LaunchError> {
        let own = tensor.holders.iter().filter(|it| it.0 == self.rank);
        if tensor.holders.iter().all(|it| it.0 == 0) {
            if self.rank == 0 {
                let shares = own.map(|&it| session.share(it, arena));
                sink.keep(tensor, session.whole(tensor, shares));
            }
            return Ok(());
        }
        let bytes: Vec<u8> = own
            .flat_map(|&it| session.share(it, arena).to_le_bytes())
            .collect();
        let all = self.with(|world| world.gather(&bytes))?;
        drop(bytes);
        // A rank that is ahead waits, or its messages would pile up.
        self.shared(&())?;
        if self.rank > 0 {
            return Ok(());
        }
        // Of each rank the bytes that are left.
        let mut all: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
        let shares = tensor.holders.iter().map(|&(rank, id)| {
            let buffer = session.main_program().body(rank).buffer(id);
            let (share, rest) = all[rank].split_at(buffer.bytes().0 as usize);
            all[rank] = rest;
            PackedTensor::from_le_bytes(buffer.dtype, share)
        });
        sink.keep(tensor, session.whole(tensor, shares));
        Ok(())
    }

    fn transport<'w>(
        &self,
        session: &Session<'_>,
        world: &World<'w>,
        collectives: Collectives,
    ) -> Result<MpiTransport<'w>, LaunchError> {
        let mesh = session.main_program().mesh;
        let programs: Vec<&Program> = session.programs().collect();
        let spin = self.spin(world.threads);
        self.with(|processes| processes.transport(mesh, &programs, collectives, spin, world.cancel))
    }

    /// Ends MPI in order.
    pub fn close(&self) -> Result<(), LaunchError> {
        match self.world.take() {
            Some(world) => Ok(world.close()?),
            None => Ok(()),
        }
    }

    /// Ends the job after an error of this rank: all ranks are told, those that no longer answer are named,
    /// and rank 0 reports the cause. Where a rank is silent all others report, and do not return.
    pub fn shut_down<E: Fault + From<LaunchError>>(&self, error: E) -> E {
        let Some(world) = self.world.take() else {
            return error;
        };
        let own = self.reason(&error);
        let census = world.census(&serde_json::to_vec(&own).unwrap_or_default());
        let reasons = heard(&census);
        let report = |text: &str| self.context.report(Event::Failure(text));
        if !census.silent.is_empty() {
            report(&accusation(self.rank, &own, &reasons, &census.silent));
            world.farewell(&census.silent);
            world.abort(1);
            return LaunchError::AlreadyReported(ErrorKind::Failure).into();
        }
        let cause = reasons
            .iter()
            .min_by_key(|(rank, reason)| (reason.distance, *rank));
        let cause = cause.map_or(&own, |(_, reason)| reason);
        if self.rank == 0 {
            report(&cause.text);
        }
        world.farewell(&[]);
        if !self.has_played.get() {
            // Nothing is under way, so MPI can be ended in order; the cause is reported already.
            let _ = world.close();
        }
        LaunchError::AlreadyReported(cause.kind).into()
    }

    fn reason(&self, error: &dyn Fault) -> Reason {
        let run = self.error.take();
        let text = full_text(error);
        let distance = match &run {
            Some(run) => run.distance_from_cause(),
            None if text == WorldError::Failed.to_string() => 3,
            None => 0,
        };
        let stopped = LaunchError::Interrupted;
        match run == Some(RunError::Cancelled) {
            true => Reason {
                distance,
                kind: stopped.kind(),
                text: stopped.to_string(),
                error: run,
            },
            false => Reason {
                distance,
                kind: error.kind(),
                text,
                error: run,
            },
        }
    }
}

/// The reasons of all ranks that have failed.
fn heard(census: &Census) -> Vec<(Rank, Reason)> {
    let reasons = census.failures.iter();
    reasons
        .filter_map(|(rank, reason)| Some((*rank, serde_json::from_slice(reason).ok()?)))
        .collect()
}

/// What a rank reports when others no longer answer: its own failure or the first it heard of, with the
/// silent ranks as those that are missing, whoever was waited for in between.
fn accusation(rank: Rank, own: &Reason, all: &[(Rank, Reason)], silent: &[Rank]) -> String {
    let follows = |one: &Reason| one.error == Some(RunError::Cancelled) || one.distance > 2;
    let first = all
        .iter()
        .map(|(_, reason)| reason)
        .filter(|reason| !follows(reason));
    let first = first.min_by_key(|reason| reason.distance).unwrap_or(own);
    let told = if follows(own) { first } else { own };
    let text = match told.error.clone() {
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
        Some(_) | None => format!("{}; rank(s) {silent:?} no longer answer", told.text),
    };
    match follows(own) {
        true => format!("rank {rank} ends with the others: {text}"),
        false => text,
    }
}

fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

fn cores_of_host(sites: &[Site], rank: Rank) -> Vec<usize> {
    let here = sites.iter().filter(|site| site.host == sites[rank].host);
    let cores: BTreeSet<usize> = here.flat_map(|site| site.cores.clone()).collect();
    cores.into_iter().collect()
}

/// The share of a rank in the cores of its host. Where ranks have the same cores, they are dealt out; where
/// a launcher gave each its own, or they overlap in another way, each takes what it has.
fn slot_of(sites: &[Site], rank: Rank) -> (CoreSlot, Local) {
    let own = &sites[rank];
    let here: Vec<Rank> = (0..sites.len())
        .filter(|&r| sites[r].host == own.host)
        .collect();
    let local = Local {
        ranks: here.len(),
        cores: cores_of_host(sites, rank).len(),
    };
    let are_shared = here.iter().all(|&r| sites[r].cores == own.cores);
    let share = if are_shared {
        let slot = here.iter().position(|&r| r == rank).unwrap_or_default();
        let slots = here.len();
        CoreSlot { slot, slots }
    } else {
        CoreSlot { slot: 0, slots: 1 }
    };
    (share, local)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(host: &str, cores: &[usize]) -> Site {
        Site {
            host: host.to_owned(),
            cores: cores.to_vec(),
        }
    }

    #[test]
    fn ranks_of_a_host_share_its_cores() {
        let sites = [
            site("a", &[0, 1]),
            site("b", &[0, 1]),
            site("a", &[0, 1]),
            site("b", &[2, 3]),
        ];
        let (shared, local) = slot_of(&sites, 2);
        assert_eq!((shared.slot, shared.slots), (1, 2));
        assert_eq!((local.ranks, local.cores), (2, 2));
        let (own, local) = slot_of(&sites, 3);
        assert_eq!((own.slot, own.slots), (0, 1));
        assert_eq!((local.ranks, local.cores), (2, 4));
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
    fn the_silent_are_named_and_not_those_who_wait_too() {
        let own = stalled(0, vec![1]);
        let text = accusation(0, &own, &[(0, own.clone())], &[3]);
        assert!(
            text.contains("rank 0 stood still") && text.ends_with("rank(s) [3]"),
            "{text}"
        );
        let cancelled = Reason {
            distance: 2,
            kind: ErrorKind::Interrupted,
            text: "stopped".to_owned(),
            error: Some(RunError::Cancelled),
        };
        let all = [(0, own), (2, cancelled.clone())];
        let text = accusation(2, &cancelled, &all, &[3]);
        assert!(
            text.starts_with("rank 2 ends with the others: rank 0 stood still"),
            "{text}"
        );
        assert!(
            text.contains("`conv2` (task 17, sequence 4)") && text.ends_with("[3]"),
            "{text}"
        );
    }
}
