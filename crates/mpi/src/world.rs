//! The start and the orderly end of a job, and what ranks tell each other about failures.

use crate::call::{Mpi, MpiError, Raw};
use crate::collectives::LibraryCollectives;
use crate::control::{Control, Kind};
use crate::guard::{End, Guard, Timeout};
use crate::library::Library;
use crate::mail::{MpiMail, Tags};
use crate::transport::{Collectives, MpiTransport};
use partita_program::{Group, Program, Staging, Work};
use partita_run::{MessageTransport, Transport};
use partita_space::{Mesh, Rank, Seconds};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Between signs of life of a rank that works long.
const PULSE: Duration = Duration::from_millis(500);
/// How long ranks may take to answer once one has failed.
const CENSUS: Duration = Duration::from_secs(4);
/// How long ranks wait for each other's last words.
const FAREWELL: Duration = Duration::from_secs(2);
/// How long a rank then still helps its own last words out, where some ranks take none.
const LAST_WORDS: Duration = Duration::from_millis(100);
/// How long MPI may take to end the job.
const ABORT: Duration = Duration::from_secs(4);
/// Between looks of a rank that waits outside of a program, at first.
const NAP: Duration = Duration::from_micros(200);
/// Between its looks when it has waited long.
const NAP_MAX: Duration = Duration::from_millis(20);

/// Why the ranks cannot go on together, outside of a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorldError {
    /// MPI cannot be started.
    #[error("MPI cannot be started: {0}")]
    Start(MpiError),
    /// A call failed.
    #[error("rank {rank}: {error}")]
    Call {
        /// Who called.
        rank: Rank,
        /// What.
        error: MpiError,
    },
    /// Ranks gave no sign of life for longer than the limit.
    #[error("rank {rank} waited for {what} and heard nothing from rank(s) {missing:?} for {limit}")]
    Silent {
        /// Who waited.
        rank: Rank,
        /// For what.
        what: &'static str,
        /// From whom.
        missing: Vec<Rank>,
        /// The limit.
        limit: String,
    },
    /// Another rank failed; [`World::census`] tells which and why.
    #[error("another rank failed")]
    Failed,
    /// The messages of the programs need more tags than the library has.
    #[error(
        "rank {rank}: the messages of this run need tags up to {needed}, the library has tags up \
         to {max}; split over fewer ranks or use another MPI"
    )]
    Tags {
        /// Who found out.
        rank: Rank,
        /// Largest that is needed.
        needed: u64,
        /// `MPI_TAG_UB`.
        max: u64,
    },
    /// The system gives no memory for packets.
    #[error("{0}")]
    Memory(String),
}

/// How a rank takes part.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// How long calls that wait for others may take, and how long others may be silent.
    pub limit: Seconds,
    /// What ends the process when a call does not come back.
    pub end: End,
}

/// Who lives and who failed, after a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Census {
    /// What each failed rank said, in rank order, this one's own words included.
    pub failures: Vec<(Rank, Vec<u8>)>,
    /// Ranks that did not answer.
    pub silent: Vec<Rank>,
}

/// All ranks of a job under a launcher, seen by one of them. All methods are called by one thread.
pub struct World {
    library: Library,
    mpi: Rc<Mpi>,
    rank: Rank,
    size: usize,
    thread_level: usize,
    tag_max: u64,
    messages: Raw,
    control: Rc<RefCell<Control>>,
    end: End,
    limit: Cell<Duration>,
}

impl World {
    /// Starts MPI.
    ///
    /// Errors: a call that fails. One that does not come back ends the process.
    pub fn open(library: Library, setting: Setting) -> Result<Self, WorldError> {
        Self::start(library, setting).map_err(WorldError::Start)
    }

    fn start(library: Library, setting: Setting) -> Result<Self, MpiError> {
        let limit = Duration::from_secs_f64(setting.limit.0);
        let mpi = Rc::clone(&library.mpi);
        let guard = Guard::over("MPI_Init_thread", limit, setting.end);
        let provided = mpi.init()?;
        let (rank, size) = mpi.rank_and_size()?;
        let messages = mpi.dup(mpi.comm_world)?;
        let control = mpi.dup(mpi.comm_world)?;
        drop(guard);
        let levels = mpi.constants.thread_levels;
        let tag_max = mpi.tag_max()?.max(0) as u64;
        let control = Control::new(Rc::clone(&mpi), control, size)?;
        Ok(Self {
            library,
            mpi,
            rank,
            size,
            thread_level: levels
                .iter()
                .rposition(|&level| level <= provided)
                .unwrap_or(0),
            tag_max,
            messages,
            control: Rc::new(RefCell::new(control)),
            end: setting.end,
            limit: Cell::new(limit),
        })
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// All ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// What carries the messages.
    pub fn library(&self) -> &Library {
        &self.library
    }

    /// The level of threads that the library provides, as the standard calls it.
    pub fn thread_level(&self) -> &'static str {
        ["single", "funneled", "serialized", "multiple"][self.thread_level]
    }

    /// How long others may be silent from now on.
    pub fn set_limit(&self, limit: Seconds) {
        self.limit.set(Duration::from_secs_f64(limit.0));
    }

    /// Does long work on a thread of its own, while this one tells the others that the rank lives.
    pub fn while_pulsing<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        // Of one who gets no thread the others hear nothing until the work is done.
        let work = Mutex::new(Some(work));
        let take = || work.lock().unwrap_or_else(PoisonError::into_inner).take();
        let do_it = || take().map(|work| work());
        let done = thread::scope(|scope| {
            let builder = thread::Builder::new().name("work".to_owned());
            let Ok(worker) = builder.spawn_scoped(scope, do_it) else {
                return do_it();
            };
            let start = Instant::now();
            let mut last = Instant::now();
            let mut failed: Option<Timeout> = None;
            while !worker.is_finished() {
                if last.elapsed() > PULSE {
                    last = Instant::now();
                    self.pulse();
                }
                // A rank that cannot be told is found missing by those who wait for it.
                let _ = self.control.borrow_mut().look();
                if !self.control.borrow().failures().is_empty() {
                    let patience = || Timeout::start(CENSUS + FAREWELL);
                    if failed.get_or_insert_with(patience).is_over() {
                        (self.end)("another rank failed while this one was at work");
                    }
                }
                thread::sleep(nap(start.elapsed()));
            }
            match worker.join() {
                Ok(answer) => answer,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        });
        done.expect("work is done by the thread that takes it")
    }

    /// Rank 0 is heard by all, and hears all.
    fn pulse(&self) {
        let mut control = self.control.borrow_mut();
        let peers = if self.rank == 0 { 1..self.size } else { 0..1 };
        for peer in peers {
            let _ = control.send(peer, Kind::Pulse, &[]);
        }
    }

    /// Gives all ranks the words of rank 0.
    pub fn broadcast(&self, words: &[u8]) -> Result<Vec<u8>, WorldError> {
        if self.rank > 0 {
            let words = self.receive(&[0], "word of rank 0")?;
            return Ok(words.into_iter().next().unwrap_or_default());
        }
        for peer in 1..self.size {
            self.send(peer, words)?;
        }
        Ok(words.to_vec())
    }

    /// Gives rank 0 the words of all ranks, in rank order; nothing to the others.
    pub fn gather(&self, words: &[u8]) -> Result<Vec<Vec<u8>>, WorldError> {
        if self.rank > 0 {
            self.send(0, words)?;
            return Ok(Vec::new());
        }
        let others: Vec<Rank> = (1..self.size).collect();
        let mut all = vec![words.to_vec()];
        all.extend(self.receive(&others, "words of all ranks")?);
        Ok(all)
    }

    fn send(&self, to: Rank, words: &[u8]) -> Result<(), WorldError> {
        let sent = self.control.borrow_mut().send(to, Kind::Parcel, words);
        sent.map_err(|error| self.call_error(error))
    }

    fn call_error(&self, error: MpiError) -> WorldError {
        let rank = self.rank;
        WorldError::Call { rank, error }
    }

    /// A parcel of each of these ranks.
    fn receive(&self, from: &[Rank], what: &'static str) -> Result<Vec<Vec<u8>>, WorldError> {
        let start = Instant::now();
        let mut parcels: Vec<Option<Vec<u8>>> = vec![None; from.len()];
        let silence = |&rank| Silence::start(&self.control.borrow(), rank, self.limit.get());
        let mut silences: Vec<Silence> = from.iter().map(silence).collect();
        loop {
            let mut control = self.control.borrow_mut();
            control.look().map_err(|error| self.call_error(error))?;
            for (slot, &rank) in parcels.iter_mut().zip(from) {
                if slot.is_none() {
                    *slot = control.parcel(rank);
                }
            }
            if parcels.iter().all(Option::is_some) {
                return Ok(parcels.into_iter().flatten().collect());
            }
            if !control.failures().is_empty() {
                return Err(WorldError::Failed);
            }
            let open = silences.iter_mut().zip(&parcels);
            let open = open.filter(|(_, parcel)| parcel.is_none());
            let missing: Vec<Rank> = open
                .filter_map(|(silence, _)| silence.is_over(&control).then_some(silence.rank))
                .collect();
            if !missing.is_empty() {
                return Err(WorldError::Silent {
                    rank: self.rank,
                    what,
                    missing,
                    limit: Seconds(self.limit.get().as_secs_f64()).to_string(),
                });
            }
            drop(control);
            thread::sleep(nap(start.elapsed()));
        }
    }

    /// The transport of this rank for these programs, which must be the same on all ranks, as must
    /// `collectives`. `spin` is how long a rank that waits tries again at once: none where ranks share
    /// cores. A failure of another rank sets `cancel`.
    ///
    /// Errors: more messages than tags, a call that fails, no memory for packets.
    pub fn transport<'w>(
        &self,
        mesh: Mesh,
        programs: &[&Program],
        collectives: Collectives,
        spin: Seconds,
        cancel: &'w AtomicBool,
    ) -> Result<MpiTransport<'w>, WorldError> {
        let tags = Tags::of(programs);
        if tags.largest() > self.tag_max {
            return Err(WorldError::Tags {
                rank: self.rank,
                needed: tags.largest(),
                max: self.tag_max,
            });
        }
        let library = match collectives {
            Collectives::Ordered => None,
            Collectives::Library => Some(self.library_collectives(mesh, programs)?),
        };
        let mail = MpiMail::new(
            Rc::clone(&self.mpi),
            self.messages,
            self.rank,
            tags,
            Rc::clone(&self.control),
            cancel,
            Duration::from_secs_f64(spin.0),
        );
        let mut transport = MpiTransport::new(MessageTransport::new(mesh, mail), library);
        let staging = programs
            .iter()
            .map(|program| program.body(self.rank).staging);
        let staging = staging.reduce(Staging::max).unwrap_or_default();
        let allocated = transport.allocate(&staging);
        allocated.map_err(|error| WorldError::Memory(error.to_string()))?;
        Ok(transport)
    }

    /// A communicator for each kind of group over which a program has a collective. A rank that is in
    /// none of a kind has one of its own.
    fn library_collectives(
        &self,
        mesh: Mesh,
        programs: &[&Program],
    ) -> Result<LibraryCollectives, WorldError> {
        let bodies = programs.iter().flat_map(|program| &program.bodies);
        let sets: BTreeSet<Group> = bodies
            .flat_map(|body| &body.tasks)
            .filter_map(|task| match &task.work {
                Work::Collective(collective) => Some(collective.group()),
                Work::Compute { .. } | Work::Exchange(_) | Work::Load(_) => None,
            })
            .collect();
        let mut collectives = LibraryCollectives::new(Rc::clone(&self.mpi), self.rank);
        for group in sets {
            let mut members = group.members(&mesh, self.rank);
            if members.is_empty() {
                members.push(self.rank);
            }
            let guard = Guard::over("MPI_Comm_split", self.limit.get(), self.end);
            let comm = self.mpi.split(self.mpi.comm_world, members[0], self.rank);
            drop(guard);
            collectives.add(
                group,
                comm.map_err(|error| self.call_error(error))?,
                members,
            );
        }
        Ok(collectives)
    }

    /// Tells all ranks that this one cannot go on and why, and hears who else lives, within four
    /// seconds.
    pub fn census(&self, words: &[u8]) -> Census {
        let mut control = self.control.borrow_mut();
        for peer in (0..self.size).filter(|&peer| peer != self.rank) {
            // Who cannot be told will not answer.
            let _ = control.send(peer, Kind::Failure, words);
        }
        let mut answering = Timeout::start(CENSUS);
        while control.answered().len() + 1 < self.size && !answering.is_over() {
            let _ = control.look();
            thread::sleep(NAP);
        }
        let is_silent = |&rank: &Rank| rank != self.rank && !control.answered().contains(&rank);
        let silent = (0..self.size).filter(is_silent).collect();
        let mut failures = control.failures().clone();
        failures.insert(self.rank, words.to_vec());
        Census {
            failures: failures.into_iter().collect(),
            silent,
        }
    }

    /// Says that this rank has nothing more to tell, and waits until the others that live say so too,
    /// at most two seconds: a launcher ends all as soon as one has ended badly.
    pub fn farewell(&self, silent: &[Rank]) {
        let mut control = self.control.borrow_mut();
        let is_peer = |peer: &Rank| *peer != self.rank && !silent.contains(peer);
        let peers: Vec<Rank> = (0..self.size).filter(is_peer).collect();
        for &peer in &peers {
            let _ = control.send(peer, Kind::Farewell, &[]);
        }
        let mut leaving = Timeout::start(FAREWELL);
        let is_open =
            |control: &Control| peers.iter().any(|peer| !control.departed().contains(peer));
        // What was sent to silent ranks never leaves.
        let is_sending = |control: &Control| silent.is_empty() && control.is_sending();
        while (is_open(&control) || is_sending(&control)) && !leaving.is_over() {
            let _ = control.look();
            thread::sleep(NAP);
        }
        if !silent.is_empty() {
            let mut speaking = Timeout::start(LAST_WORDS);
            while !speaking.is_over() {
                let _ = control.look();
                thread::sleep(NAP);
            }
        }
    }

    /// Ends MPI on all ranks together, after the last words between them.
    ///
    /// Errors: a call that fails. One that does not come back ends the process.
    pub fn close(self) -> Result<(), WorldError> {
        self.farewell(&[]);
        let fault = |error| WorldError::Call {
            rank: self.rank,
            error,
        };
        {
            let mut control = self.control.borrow_mut();
            control.close().map_err(fault)?;
            let mut closing = Timeout::start(FAREWELL);
            while !control.is_closed().map_err(fault)? && !closing.is_over() {
                thread::sleep(NAP);
            }
        }
        let _guard = Guard::over("MPI_Finalize", self.limit.get(), self.end);
        self.mpi.finalize().map_err(fault)
    }

    /// Ends the job on all hosts, whoever still lives.
    pub fn abort(self, code: u8) {
        let _guard = Guard::over("MPI_Abort", ABORT, self.end);
        // If it fails, this process ends all the same, and its launcher sees how.
        let _ = self.mpi.abort(code.into());
    }
}

/// For how long a rank has sent no letter to this one, which waits for it.
struct Silence {
    rank: Rank,
    /// Letters until now.
    heard: u64,
    timeout: Timeout,
}

impl Silence {
    fn start(control: &Control, rank: Rank, limit: Duration) -> Self {
        Self {
            rank,
            heard: control.heard(rank),
            timeout: Timeout::start(limit),
        }
    }

    fn is_over(&mut self, control: &Control) -> bool {
        let heard = control.heard(self.rank);
        if heard != self.heard {
            self.heard = heard;
            self.timeout.reset();
        }
        self.timeout.is_over()
    }
}

/// Until the next look of a rank that has waited so long: a look costs the processor some
/// microseconds, which what is measured meanwhile on its core would lose.
fn nap(waited: Duration) -> Duration {
    (waited / 32).clamp(NAP, NAP_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_long_looks_rarely_and_is_late_by_a_thirtieth_at_most() {
        let mut waited = Duration::ZERO;
        let mut looks = 0;
        while waited < Duration::from_secs(1) {
            let before = waited;
            waited += nap(waited);
            assert!(waited - before <= NAP.max(waited / 30), "{waited:?}");
            looks += 1;
        }
        assert!(looks < 250, "{looks} looks in a second");
        assert_eq!(nap(Duration::from_secs(60)), NAP_MAX);
    }
}
