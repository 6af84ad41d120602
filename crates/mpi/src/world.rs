//! Start, failure handling and shutdown of the ranks of a job.

use crate::call::{Mpi, MpiError, Question, Raw};
use crate::collectives::LibraryCollectives;
use crate::control::{Control, ControlKind, lock};
use crate::guard::{Guard, OnTimeout, Timeout};
use crate::library::Library;
use crate::point_to_point::{MpiPointToPoint, Tags};
use crate::transport::{Collectives, MpiTransport};
use partita_program::{Group, Program, Staging, Work};
use partita_run::{MessageTransport, SampleMessages, Transport};
use partita_space::{Mesh, Rank, Seconds};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Time between the heartbeats of a rank that works long.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(500);
/// Time in which ranks must answer a failure.
const ANSWER_LIMIT: Duration = Duration::from_secs(4);
/// Time that ranks wait for each other's shutdown messages.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(5);
/// Time in which a rank completes its last sends where some ranks no longer receive.
const DRAIN_TIME: Duration = Duration::from_millis(100);
/// Time that `MPI_Abort` may take.
const ABORT_LIMIT: Duration = Duration::from_secs(4);
/// First polling interval of a rank that waits outside of a program.
const POLL_INTERVAL: Duration = Duration::from_micros(200);
/// Longest polling interval.
const POLL_INTERVAL_MAX: Duration = Duration::from_millis(20);

/// Levels of threads: their names, and those in messages.
const THREAD_LEVELS: [(&str, &str); 4] = [
    ("single", "SINGLE"),
    ("funneled", "FUNNELED"),
    ("serialized", "SERIALIZED"),
    ("multiple", "MULTIPLE"),
];
/// The level from which on any thread may call, one at a time.
const SERIALIZED: usize = 2;

/// A failure of the job outside of a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorldError {
    /// MPI cannot be started.
    #[error("MPI cannot be started: {0}")]
    Start(MpiError),
    /// MPI was finalized in this process.
    #[error(
        "MPI was finalized in this process, and cannot be started again; for several trainings in one process \
         initialize MPI before the first one, and finalize it after the last one"
    )]
    Finalized,
    /// Another library initialized MPI, for calls of its own thread alone.
    #[error(
        "MPI was initialized for calls of one thread (MPI_THREAD_{level}), and this is another one; initialize it \
         with MPI_THREAD_SERIALIZED or more, or train on the thread that initialized it"
    )]
    Thread {
        /// The provided level.
        level: &'static str,
    },
    /// A call failed.
    #[error("rank {rank}: {error}")]
    Call {
        /// The caller.
        rank: Rank,
        /// The call and its error.
        error: MpiError,
    },
    /// Ranks sent no message for longer than the limit.
    #[error(
        "rank {rank} waited for {what} and received nothing from rank(s) {missing:?} for {limit}"
    )]
    Silent {
        /// The rank that waited.
        rank: Rank,
        /// What it waited for.
        what: &'static str,
        /// The ranks that sent nothing.
        missing: Vec<Rank>,
        /// The limit.
        limit: String,
    },
    /// Another rank failed; [`World::report_failure`] gives the reasons.
    #[error("another rank failed")]
    Failed,
    /// The messages of the programs need more tags than the library has.
    #[error(
        "rank {rank}: the messages of this run need tags up to {needed}, the library has tags up \
         to {max}; split over fewer ranks or use another MPI"
    )]
    Tags {
        /// The rank that reports it.
        rank: Rank,
        /// The largest tag needed.
        needed: u64,
        /// `MPI_TAG_UB`.
        max: u64,
    },
    /// The packets could not be allocated.
    #[error("{0}")]
    Memory(String),
}

/// Options of [`World::open`].
#[derive(Clone)]
pub struct WorldOptions {
    /// Longest time that a blocking call may take, and that other ranks may be silent.
    pub limit: Seconds,
    /// Called when a call does not return.
    pub on_timeout: OnTimeout,
}

/// Which ranks have failed and which no longer answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LivenessReport {
    /// The reason of each failed rank, this one included, in rank order.
    pub failures: Vec<(Rank, Vec<u8>)>,
    /// Ranks that did not answer.
    pub silent: Vec<Rank>,
}

/// MPI that a world started and left running.
static LEFT_RUNNING: Mutex<Option<Arc<Mpi>>> = Mutex::new(None);

/// Whether a world started MPI and left it running.
pub fn is_left_running() -> bool {
    lock(&LEFT_RUNNING).is_some()
}

/// Finalizes MPI if a world has [left it running](World::leave_running), unless somebody else has finalized it. It waits
/// for the other ranks, and is called by the thread that opened the world where MPI wants that.
///
/// Errors: a call that fails.
pub fn finalize() -> Result<(), MpiError> {
    match lock(&LEFT_RUNNING).take() {
        Some(mpi) if mpi.ask(Question::IsFinalized)? == 0 => mpi.finalize(),
        Some(_) | None => Ok(()),
    }
}

/// All ranks of a job under a launcher, seen by one of them. All methods are called by one thread, which may be another
/// than the one that opened it where [`thread_level`](Self::thread_level) is `serialized` or `multiple`.
pub struct World {
    library: Library,
    mpi: Arc<Mpi>,
    rank: Rank,
    size: usize,
    thread_level: usize,
    /// Whether this world initialized MPI, and finalizes it.
    is_own: bool,
    tag_max: u64,
    messages: Raw,
    control: Arc<Mutex<Control>>,
    on_timeout: OnTimeout,
    limit: Cell<Duration>,
}

impl World {
    /// Starts MPI, unless it is initialized already, as by mpi4py: then it is not finalized either.
    ///
    /// Errors: a call that fails; MPI that was finalized, or may not be called by this thread. `on_timeout` is called where
    /// a call does not return.
    pub fn open(library: Library, options: WorldOptions) -> Result<Self, WorldError> {
        let ask = |question| library.mpi.ask(question).map_err(WorldError::Start);
        if ask(Question::IsFinalized)? != 0 {
            return Err(WorldError::Finalized);
        }
        let is_own = ask(Question::IsInitialized)? == 0;
        if !is_own {
            let level = library.thread_level(ask(Question::ThreadLevel)?);
            if level < SERIALIZED && ask(Question::IsThreadMain)? == 0 {
                let level = THREAD_LEVELS[level].1;
                return Err(WorldError::Thread { level });
            }
        }
        Self::start(library, options, is_own).map_err(WorldError::Start)
    }

    fn start(library: Library, options: WorldOptions, is_own: bool) -> Result<Self, MpiError> {
        let limit = Duration::from_secs_f64(options.limit.0);
        let mpi = Arc::clone(&library.mpi);
        let guard = Guard::over("MPI_Init_thread", limit, &options.on_timeout);
        let provided = if is_own {
            mpi.init()?
        } else {
            mpi.ask(Question::ThreadLevel)?
        };
        let (rank, size) = mpi.rank_and_size()?;
        let messages = mpi.dup(mpi.comm_world)?;
        let control = mpi.dup(mpi.comm_world)?;
        drop(guard);
        let tag_max = mpi.tag_max()?.max(0) as u64;
        let control = Control::new(Arc::clone(&mpi), control, size)?;
        Ok(Self {
            thread_level: library.thread_level(provided),
            is_own,
            library,
            mpi,
            rank,
            size,
            tag_max,
            messages,
            control: Arc::new(Mutex::new(control)),
            on_timeout: options.on_timeout,
            limit: Cell::new(limit),
        })
    }

    /// Leaves MPI running when this world closes, for worlds that are opened later in this process; [`finalize`] then ends it.
    pub fn leave_running(&mut self) {
        if std::mem::replace(&mut self.is_own, false) {
            *lock(&LEFT_RUNNING) = Some(Arc::clone(&self.mpi));
        }
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// All ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The MPI library.
    pub fn library(&self) -> &Library {
        &self.library
    }

    /// The provided thread level: `MPI_THREAD_*` in lower case.
    pub fn thread_level(&self) -> &'static str {
        THREAD_LEVELS[self.thread_level].0
    }

    /// Sets how long other ranks may be silent.
    pub fn set_limit(&self, limit: Seconds) {
        self.limit.set(Duration::from_secs_f64(limit.0));
    }

    /// Runs long work on another thread, while this one sends heartbeats.
    pub fn with_heartbeats<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        // Without a thread, the work runs here and no heartbeats are sent.
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
            let mut is_told = false;
            while !worker.is_finished() {
                self.send_heartbeats(&mut last);
                // Ranks that wait for a rank that cannot be reached will notice.
                let _ = lock(&self.control).progress();
                if !lock(&self.control).failures().is_empty() {
                    let patience = || Timeout::start(ANSWER_LIMIT + SHUTDOWN_LIMIT);
                    let is_late = failed.get_or_insert_with(patience).is_over();
                    if is_late && !std::mem::replace(&mut is_told, true) {
                        (self.on_timeout)("another rank failed while this one was at work");
                    }
                }
                thread::sleep(poll_interval(start.elapsed()));
            }
            match worker.join() {
                Ok(answer) => answer,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        });
        done.expect("work is done by the thread that takes it")
    }

    /// Where the last ones are long ago, rank 0 sends heartbeats to all ranks, and the others to rank 0.
    fn send_heartbeats(&self, last: &mut Instant) {
        if last.elapsed() <= HEARTBEAT_INTERVAL {
            return;
        }
        *last = Instant::now();
        let mut control = lock(&self.control);
        let peers = if self.rank == 0 { 1..self.size } else { 0..1 };
        for peer in peers {
            let _ = control.send(peer, ControlKind::Heartbeat, []);
        }
    }

    /// Broadcasts the bytes of rank 0.
    pub fn broadcast(&self, bytes: &[u8]) -> Result<Vec<u8>, WorldError> {
        if self.rank > 0 {
            let bytes = self.receive(&[0], "data of rank 0")?;
            return Ok(bytes.into_iter().next().unwrap_or_default());
        }
        for peer in 1..self.size {
            self.send(peer, bytes)?;
        }
        Ok(bytes.to_vec())
    }

    /// Gathers the bytes of all ranks on rank 0, in rank order; empty on the others.
    pub fn gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, WorldError> {
        if self.rank > 0 {
            self.send(0, bytes)?;
            return Ok(Vec::new());
        }
        let others: Vec<Rank> = (1..self.size).collect();
        let mut all = vec![bytes.to_vec()];
        all.extend(self.receive(&others, "data of all ranks")?);
        Ok(all)
    }

    /// Carries the messages of a sample store from now on, while this rank runs programs and wherever it waits. All
    /// ranks call it, at the same point.
    ///
    /// Errors: a call that fails. `on_timeout` is called where one does not return.
    pub fn carry_samples(&self, messages: Box<dyn SampleMessages>) -> Result<(), WorldError> {
        let guard = Guard::over("MPI_Comm_dup", self.limit.get(), &self.on_timeout);
        let comm = self.mpi.dup(self.mpi.comm_world);
        drop(guard);
        let carried = comm.and_then(|comm| lock(&self.control).carry(comm, messages));
        carried.map_err(|error| self.call_error(error))
    }

    fn send(&self, to: Rank, bytes: &[u8]) -> Result<(), WorldError> {
        let sent = lock(&self.control).send(to, ControlKind::Data, bytes);
        sent.map_err(|error| self.call_error(error))
    }

    fn call_error(&self, error: MpiError) -> WorldError {
        let rank = self.rank;
        WorldError::Call { rank, error }
    }

    /// Receives a data message of each of these ranks.
    fn receive(&self, from: &[Rank], what: &'static str) -> Result<Vec<Vec<u8>>, WorldError> {
        let start = Instant::now();
        let mut data: Vec<Option<Vec<u8>>> = vec![None; from.len()];
        let timeout = |&rank| PeerTimeout::start(&lock(&self.control), rank, self.limit.get());
        let mut timeouts: Vec<PeerTimeout> = from.iter().map(timeout).collect();
        let mut last = start;
        loop {
            let mut control = lock(&self.control);
            control.progress().map_err(|error| self.call_error(error))?;
            for (slot, &rank) in data.iter_mut().zip(from) {
                if slot.is_none() {
                    *slot = control.take_data(rank);
                }
            }
            if data.iter().all(Option::is_some) {
                return Ok(data.into_iter().flatten().collect());
            }
            if !control.failures().is_empty() {
                return Err(WorldError::Failed);
            }
            let open = timeouts.iter_mut().zip(&data);
            let open = open.filter(|(_, data)| data.is_none());
            let missing: Vec<Rank> = open
                .filter_map(|(timeout, _)| timeout.is_over(&control).then_some(timeout.rank))
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
            // Those that wait for rank 0 do not take it for silent while it waits for another one, which it names.
            if self.rank == 0 {
                self.send_heartbeats(&mut last);
            }
            thread::sleep(poll_interval(start.elapsed()));
        }
    }

    /// The transport of this rank for these programs, which must be the same on all ranks, as must
    /// `collectives`. `spin` is how long a waiting rank polls before it sleeps: zero where ranks share
    /// cores. A failure of another rank sets `cancel`.
    ///
    /// Errors: too few tags, a call that fails, no memory for packets.
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
        let point_to_point = MpiPointToPoint::new(
            Arc::clone(&self.mpi),
            self.messages,
            self.rank,
            tags,
            Arc::clone(&self.control),
            cancel,
            Duration::from_secs_f64(spin.0),
        );
        let mut transport = MpiTransport::new(MessageTransport::new(mesh, point_to_point), library);
        let staging = programs
            .iter()
            .map(|program| program.body(self.rank).staging);
        let staging = staging.reduce(Staging::max).unwrap_or_default();
        let allocated = transport.allocate(&staging);
        allocated.map_err(|error| WorldError::Memory(error.to_string()))?;
        Ok(transport)
    }

    /// One communicator for each group specification that a program has collectives over. A rank outside
    /// of all groups of a specification gets a communicator of itself.
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
                Work::Compute { .. } | Work::Exchange(_) | Work::Load(_) | Work::Store(_) => None,
            })
            .collect();
        let mut collectives = LibraryCollectives::new(Arc::clone(&self.mpi), self.rank);
        for group in sets {
            let mut members = group.members(&mesh, self.rank);
            if members.is_empty() {
                members.push(self.rank);
            }
            let guard = Guard::over("MPI_Comm_split", self.limit.get(), &self.on_timeout);
            let place = members.iter().position(|&member| member == self.rank);
            let key = place.unwrap_or_default();
            let comm = self.mpi.split(self.mpi.comm_world, members[0], key);
            drop(guard);
            collectives.add(
                group,
                comm.map_err(|error| self.call_error(error))?,
                members,
            );
        }
        Ok(collectives)
    }

    /// Sends the reason of this rank's failure to all ranks, and collects their answers for up to four
    /// seconds.
    pub fn report_failure(&self, reason: &[u8]) -> LivenessReport {
        let mut control = lock(&self.control);
        for peer in (0..self.size).filter(|&peer| peer != self.rank) {
            // A rank that cannot be reached will not answer.
            let _ = control.send(peer, ControlKind::Failure, reason);
        }
        let mut answering = Timeout::start(ANSWER_LIMIT);
        while control.answered().len() + 1 < self.size && !answering.is_over() {
            let _ = control.progress();
            thread::sleep(POLL_INTERVAL);
        }
        let is_silent = |&rank: &Rank| rank != self.rank && !control.answered().contains(&rank);
        let silent = (0..self.size).filter(is_silent).collect();
        let mut failures = control.failures().clone();
        failures.insert(self.rank, reason.to_vec());
        LivenessReport {
            failures: failures.into_iter().collect(),
            silent,
        }
    }

    /// Exchanges shutdown messages with the ranks that live, for up to five seconds: a launcher kills all
    /// ranks as soon as one has exited with an error.
    pub fn shut_down(&self, silent: &[Rank]) {
        let mut control = lock(&self.control);
        let is_peer = |peer: &Rank| *peer != self.rank && !silent.contains(peer);
        let peers: Vec<Rank> = (0..self.size).filter(is_peer).collect();
        for &peer in &peers {
            let _ = control.send(peer, ControlKind::Shutdown, []);
        }
        let mut leaving = Timeout::start(SHUTDOWN_LIMIT);
        let is_open =
            |control: &Control| peers.iter().any(|peer| !control.shut_down().contains(peer));
        // Sends to silent ranks never complete.
        let is_sending = |control: &Control| silent.is_empty() && control.is_sending();
        while (is_open(&control) || is_sending(&control)) && !leaving.is_over() {
            let _ = control.progress();
            thread::sleep(POLL_INTERVAL);
        }
        if !silent.is_empty() {
            let mut draining = Timeout::start(DRAIN_TIME);
            while !draining.is_over() {
                let _ = control.progress();
                thread::sleep(POLL_INTERVAL);
            }
        }
    }

    /// Finalizes MPI on all ranks, after their shutdown messages; or frees what this world made, where MPI was initialized
    /// before it.
    ///
    /// Errors: a call that fails. `on_timeout` is called where one does not return.
    pub fn close(self) -> Result<(), WorldError> {
        self.shut_down(&[]);
        let fault = |error| WorldError::Call {
            rank: self.rank,
            error,
        };
        {
            let mut control = lock(&self.control);
            control.close().map_err(fault)?;
            let mut closing = Timeout::start(SHUTDOWN_LIMIT);
            while !control.is_closed().map_err(fault)? && !closing.is_over() {
                thread::sleep(POLL_INTERVAL);
            }
        }
        if self.is_own {
            let _guard = Guard::over("MPI_Finalize", self.limit.get(), &self.on_timeout);
            return self.mpi.finalize().map_err(fault);
        }
        let _guard = Guard::over("MPI_Comm_free", self.limit.get(), &self.on_timeout);
        let comms = lock(&self.control).comms();
        let mut all = comms.into_iter().chain([self.messages]);
        all.try_for_each(|comm| self.mpi.free(comm)).map_err(fault)
    }

    /// Aborts the job on all hosts.
    pub fn abort(self, code: u8) {
        let _guard = Guard::over("MPI_Abort", ABORT_LIMIT, &self.on_timeout);
        // If it fails, this process exits with an error, which its launcher sees.
        let _ = self.mpi.abort(code.into());
    }
}

/// The time since the last control message of a rank that this one waits for.
struct PeerTimeout {
    rank: Rank,
    /// Messages received so far.
    received: u64,
    timeout: Timeout,
}

impl PeerTimeout {
    fn start(control: &Control, rank: Rank, limit: Duration) -> Self {
        Self {
            rank,
            received: control.received(rank),
            timeout: Timeout::start(limit),
        }
    }

    fn is_over(&mut self, control: &Control) -> bool {
        let received = control.received(self.rank);
        if received != self.received {
            self.received = received;
            self.timeout.reset();
        }
        self.timeout.is_over()
    }
}

/// Backs off with the time waited: each poll takes microseconds from whatever is measured on that core.
fn poll_interval(waited: Duration) -> Duration {
    (waited / 32).clamp(POLL_INTERVAL, POLL_INTERVAL_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_backs_off_and_is_late_by_a_thirtieth_at_most() {
        let mut waited = Duration::ZERO;
        let mut polls = 0;
        while waited < Duration::from_secs(1) {
            let before = waited;
            waited += poll_interval(waited);
            assert!(
                waited - before <= POLL_INTERVAL.max(waited / 30),
                "{waited:?}"
            );
            polls += 1;
        }
        assert!(polls < 250, "{polls} polls in a second");
        assert_eq!(poll_interval(Duration::from_secs(60)), POLL_INTERVAL_MAX);
    }
}
