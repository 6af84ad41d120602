//! Ranks that are processes under a launcher: what they decide together, and how they end together.

use super::company::{Taken, TensorSink, rank_failure};
use super::kernel_set::spin;
use super::memory::Mark;
use super::ranks::{self, Listener, Seat, World};
use crate::error::CliError;
use crate::launcher::{self, Launcher};
use partita_mpi::{Census, Collectives, Library, LoadError, MpiTransport, Setting};
use partita_mpi::{World as Processes, WorldError};
use partita_program::Program;
use partita_run::{Arena, End, Lasting, Outcome, PackedTensor, RunError, Session, Transport};
use partita_space::{Bytes, Rank, Seconds};
use partita_tune::{LinkTimes, OwnTimes, TuneError, measure_links_of_rank};
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::sync::atomic::AtomicBool;

/// Until the run file tells another limit.
const LIMIT: Seconds = Seconds(60.0);

/// All ranks of a job, seen by one of them.
pub struct Job {
    /// Gone once MPI has ended.
    world: RefCell<Option<Processes>>,
    rank: Rank,
    size: usize,
    seat: Seat,
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

/// Where a rank lies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Place {
    host: String,
    cores: Vec<usize>,
}

/// The last words of a rank that cannot go on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Words {
    /// 0 for a cause, more for what follows from a failure elsewhere.
    distance: u8,
    /// As the process will end.
    code: u8,
    text: String,
    /// The failure of the program's run, if it is one.
    error: Option<RunError>,
}

/// What a rank gives to rank 0 at the end of a run.
#[derive(Serialize, Deserialize)]
struct Given {
    outcome: Outcome,
    peak: Option<Bytes>,
    arena: Bytes,
}

impl Job {
    /// Joins the job of a launcher. None where it is a job of one.
    ///
    /// Errors: no MPI, or none that works with this launcher.
    pub fn join(launcher: &Launcher) -> Result<Option<Self>, CliError> {
        let library =
            Library::load(&launcher::wanted()).map_err(|error| missing(launcher, &error))?;
        let setting = Setting {
            limit: LIMIT,
            end: crate::end_stuck,
        };
        let file = library.file.display().to_string();
        let world = Processes::open(library, setting).map_err(|error| CliError::run(&error))?;
        if let Some(processes) = launcher.processes.filter(|&count| count != world.size()) {
            return Err(CliError::User(format!(
                "the launcher started {processes} processes ({}), but {file} sees {}: {}",
                launcher.sign,
                world.size(),
                launcher.advice()
            )));
        }
        if world.size() == 1 {
            world.close().map_err(|error| CliError::run(&error))?;
            return Ok(None);
        }
        let (rank, size) = (world.rank(), world.size());
        let mut job = Self {
            world: RefCell::new(Some(world)),
            rank,
            size,
            seat: Seat { slot: 0, slots: 1 },
            local: Local { ranks: 1, cores: 1 },
            cores: Vec::new(),
            has_played: Cell::new(false),
            error: RefCell::new(None),
        };
        let places = job.places();
        let places = places.map_err(|error| job.part(error))?;
        (job.seat, job.local) = seat(&places, rank);
        job.cores = cores_of_host(&places, rank);
        Ok(Some(job))
    }

    /// Where all ranks lie, in rank order.
    fn places(&self) -> Result<Vec<Place>, CliError> {
        let own = Place {
            host: host(),
            cores: super::kernel_set::cores().to_vec(),
        };
        let all = self.gathered(&own)?;
        self.shared(&all)
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
    ) -> Result<R, CliError> {
        let world = self.world.borrow();
        let world = world
            .as_ref()
            .unwrap_or_else(|| panic!("MPI has ended already"));
        work(world).map_err(|error| CliError::run(&error))
    }

    /// How long the others may be silent.
    pub fn set_limit(&self, limit: Seconds) -> Result<(), CliError> {
        self.with(|world| {
            world.set_limit(limit);
            Ok(())
        })
    }

    /// Does what takes long, while the others are told that this rank lives.
    pub fn while_pulsing<R: Send>(
        &self,
        work: impl FnOnce() -> Result<R, CliError> + Send,
    ) -> Result<R, CliError> {
        self.with(|world| Ok(world.while_pulsing(work)))?
    }

    /// Gives all ranks what rank 0 has.
    pub fn shared<T: Serialize + for<'t> Deserialize<'t>>(&self, own: &T) -> Result<T, CliError> {
        let words = serde_json::to_vec(own)?;
        let words = self.with(|world| world.broadcast(&words))?;
        Ok(serde_json::from_slice(&words)?)
    }

    /// Gives rank 0 what all ranks have; nothing to the others.
    fn gathered<T: Serialize + for<'t> Deserialize<'t>>(
        &self,
        own: &T,
    ) -> Result<Vec<T>, CliError> {
        let words = serde_json::to_vec(own)?;
        let all = self.with(|world| world.gather(&words))?;
        let all = all.iter().map(|words| serde_json::from_slice(words));
        Ok(all.collect::<Result<Vec<T>, _>>()?)
    }

    /// Makes sure that all ranks have the same programs and plan; `identity` tells one from another.
    pub fn agree(&self, identity: &str) -> Result<(), CliError> {
        let all = self.gathered(&identity.to_owned())?;
        let other = all.iter().position(|one| one != identity);
        let verdict = other.map(|rank| {
            format!(
                "rank {rank} would run something else than rank 0: `{}` instead of `{identity}`; all \
                 ranks need the same run file, dataset and version of Partita, and processors that \
                 offer the same kernels",
                all[rank]
            )
        });
        match self.shared(&verdict)? {
            None => Ok(()),
            Some(text) => Err(CliError::User(text)),
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
    pub fn library(&self) -> Result<String, CliError> {
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
    ) -> Result<LinkTimes, CliError> {
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
            let failed = |error: CliError| TuneError::Stopped {
                what: "links",
                reason: error.to_string(),
            };
            Ok(Box::new(made.map_err(failed)?))
        };
        let own = measure_links_of_rank((self.rank, self.size), &groups, &known, &mut transports);
        let own = own.map_err(|error| CliError::run(&error))?;
        let all: Vec<OwnTimes> = self.gathered(&own)?;
        let found = match self.rank {
            0 => LinkTimes::of_ranks(&groups, &known, &all),
            _ => LinkTimes::default(),
        };
        self.shared(&found)
    }

    /// How long a rank tries again before it naps.
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
        listener: Listener,
        mark: Mark,
        sink: &mut dyn TensorSink,
    ) -> Result<Option<(Vec<Outcome>, Taken)>, CliError> {
        self.has_played.set(true);
        let transport = self.transport(session, world, collectives)?;
        let waker = Box::new(transport.waker());
        let transport = Box::new(transport);
        let listener = (self.rank == 0).then_some(listener);
        let played = ranks::play_rank(
            session, world, self.rank, self.seat, transport, waker, listener,
        );
        let peak = mark.peak_above();
        let (outcome, mut arena) = played.map_err(|error| {
            let text = rank_failure(&error);
            *self.error.borrow_mut() = Some(error);
            text
        })?;
        if outcome.end != End::Finished {
            // All ranks saw the same loss.
            self.close()?;
            return Ok((self.rank == 0).then_some((vec![outcome], Taken::default())));
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
        let taken = Taken {
            arenas: given.iter().map(|one| one.arena).collect(),
            peak: given.iter().map(|one| one.peak).sum(),
            peak_saving: None,
        };
        let outcomes = given.into_iter().map(|one| one.outcome).collect();
        Ok(Some((outcomes, taken)))
    }

    /// Gives rank 0 all tensors until they are safe. Nobody leaves before.
    fn save(
        &self,
        session: &Session<'_>,
        arena: &mut Arena,
        sink: &mut dyn TensorSink,
    ) -> Result<(), CliError> {
        loop {
            for tensor in session.lasting() {
                self.leave(session, &tensor, arena, sink)?;
            }
            let are_safe = match self.rank {
                // A slow device keeps the others waiting.
                0 => self.while_pulsing(|| sink.finish())?,
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
        tensor: &Lasting,
        arena: &mut Arena,
        sink: &mut dyn TensorSink,
    ) -> Result<(), CliError> {
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
        // Who is ahead waits, or its letters would pile up.
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
    ) -> Result<MpiTransport<'w>, CliError> {
        let mesh = session.main_program().mesh;
        let programs: Vec<&Program> = session.programs().collect();
        let spin = self.spin(world.threads);
        self.with(|processes| processes.transport(mesh, &programs, collectives, spin, world.cancel))
    }

    /// Ends MPI in order.
    pub fn close(&self) -> Result<(), CliError> {
        match self.world.take() {
            Some(world) => world.close().map_err(|error| CliError::run(&error)),
            None => Ok(()),
        }
    }

    /// Ends the job after an error of this rank: all ranks hear of it, those that no longer answer are
    /// named, and one tells the cause. Where a rank is silent all others tell, and do not return.
    pub fn part(&self, error: CliError) -> CliError {
        let Some(world) = self.world.take() else {
            return error;
        };
        let own = self.words(&error);
        let census = world.census(&serde_json::to_vec(&own).unwrap_or_default());
        let words = heard(&census);
        if !census.silent.is_empty() {
            tell(&accusation(self.rank, &own, &words, &census.silent));
            world.farewell(&census.silent);
            world.abort(1);
            return CliError::Told(1);
        }
        let cause = words
            .iter()
            .min_by_key(|(rank, words)| (words.distance, *rank));
        let cause = cause.map_or(&own, |(_, words)| words);
        if self.rank == 0 {
            tell(&cause.text);
        }
        world.farewell(&[]);
        if !self.has_played.get() {
            // Nothing is under way, so MPI can be ended in order; the cause is told already.
            let _ = world.close();
        }
        CliError::Told(cause.code)
    }

    fn words(&self, error: &CliError) -> Words {
        let run = self.error.take();
        let distance = match (&run, error) {
            (Some(run), _) => run.distance_from_cause(),
            (None, CliError::Run(text)) if *text == WorldError::Failed.to_string() => 3,
            (None, CliError::Run(_) | CliError::User(_) | CliError::Interrupted(_)) => 0,
            (None, CliError::ClosedPipe | CliError::Told(_)) => 0,
        };
        let was_stopped = run == Some(RunError::Cancelled);
        let stopped = CliError::Interrupted(super::NOTHING_WRITTEN.to_owned());
        let error = if was_stopped { &stopped } else { error };
        Words {
            distance,
            code: error.exit_code(),
            text: error.to_string(),
            error: run,
        }
    }
}

/// The words of all ranks that have told why they end.
fn heard(census: &Census) -> Vec<(Rank, Words)> {
    let words = census.failures.iter();
    words
        .filter_map(|(rank, words)| Some((*rank, serde_json::from_slice(words).ok()?)))
        .collect()
}

/// What a rank says when others no longer answer: its own failure or the first it heard of, with the
/// silent ranks as those that are missing, whoever was waited for in between.
fn accusation(rank: Rank, own: &Words, all: &[(Rank, Words)], silent: &[Rank]) -> String {
    let follows = |words: &Words| words.error == Some(RunError::Cancelled) || words.distance > 2;
    let first = all
        .iter()
        .map(|(_, words)| words)
        .filter(|words| !follows(words));
    let first = first.min_by_key(|words| words.distance).unwrap_or(own);
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

fn tell(text: &str) {
    // An error output that is closed has no reader.
    let _ = writeln!(io::stderr(), "partita: {text}");
}

fn missing(launcher: &Launcher, error: &LoadError) -> CliError {
    let advice = match error {
        LoadError::Missing { .. } => {
            "; install the MPI of the launcher, load its module, or name it, like \
             PARTITA_MPI=/path/to/libmpi.so"
        }
        LoadError::File { .. } | LoadError::Strange { .. } => "",
    };
    CliError::User(format!(
        "a launcher started this process ({} is set), so its ranks need MPI: {error}{advice}",
        launcher.sign
    ))
}

fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

fn cores_of_host(places: &[Place], rank: Rank) -> Vec<usize> {
    let here = places
        .iter()
        .filter(|place| place.host == places[rank].host);
    let cores: BTreeSet<usize> = here.flat_map(|place| place.cores.clone()).collect();
    cores.into_iter().collect()
}

/// The place of a rank among the cores of its host. Where ranks have the same cores, they are dealt
/// out; where a launcher gave each its own, or they overlap in another way, each takes what it has.
fn seat(places: &[Place], rank: Rank) -> (Seat, Local) {
    let own = &places[rank];
    let here: Vec<Rank> = (0..places.len())
        .filter(|&r| places[r].host == own.host)
        .collect();
    let local = Local {
        ranks: here.len(),
        cores: cores_of_host(places, rank).len(),
    };
    let are_shared = here.iter().all(|&r| places[r].cores == own.cores);
    let seat = if are_shared {
        let slot = here.iter().position(|&r| r == rank).unwrap_or_default();
        let slots = here.len();
        Seat { slot, slots }
    } else {
        Seat { slot: 0, slots: 1 }
    };
    (seat, local)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(host: &str, cores: &[usize]) -> Place {
        Place {
            host: host.to_owned(),
            cores: cores.to_vec(),
        }
    }

    #[test]
    fn ranks_of_a_host_share_its_cores() {
        let places = [
            place("a", &[0, 1]),
            place("b", &[0, 1]),
            place("a", &[0, 1]),
            place("b", &[2, 3]),
        ];
        let (shared, local) = seat(&places, 2);
        assert_eq!((shared.slot, shared.slots), (1, 2));
        assert_eq!((local.ranks, local.cores), (2, 2));
        let (own, local) = seat(&places, 3);
        assert_eq!((own.slot, own.slots), (0, 1));
        assert_eq!((local.ranks, local.cores), (2, 4));
    }

    fn stalled(rank: Rank, missing: Vec<Rank>) -> Words {
        let error = RunError::Stalled {
            rank,
            limit: Seconds(5.0),
            work: "exchange".to_owned(),
            layer: "conv2".to_owned(),
            task: 17,
            sequence: 4,
            missing,
        };
        Words {
            distance: 0,
            code: 1,
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
        let cancelled = Words {
            distance: 2,
            code: 130,
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
