//! The thread pool of a rank.

use crate::simd::Level;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Flops between two calls of `progress`, at about 50 GFLOP/s: 0.2 ms.
const FLOPS_PER_TICK: u64 = 10_000_000;
/// Cost of an element read from memory, in flops.
pub(crate) const ELEMENT: u64 = 8;
/// Work of one range, small enough that the last ranges end at about the same time.
const COST_PER_RANGE: u64 = 500_000;
/// A kernel below this runs on the caller alone: waking a thread costs as much.
const FLOPS_PARALLEL_MIN: u64 = 1_000_000;
/// Interval of `progress` calls while the caller waits for the others.
const WAIT: Duration = Duration::from_millis(1);
/// Polls of an atomic between two reads of the clock: about 2 us.
const LOOKS: usize = 32;

/// Ids that fit the fixed set through which Linux is asked; one beyond it would be an overrun.
const CORES_MAX: usize = 1024;

/// The threads of a rank: the caller and `threads - 1` workers.
///
/// Between kernels the workers spin for the limit of [`Team::spin_for`], then sleep.
pub struct Team {
    level: Level,
    threads: usize,
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

/// The properties of a team that determine the scratch of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TeamKind {
    /// Threads, the caller included.
    pub threads: usize,
    /// Instruction level.
    pub level: Level,
}

/// The caller canceled the call; the outputs are incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the kernel was canceled")]
pub struct Canceled;

/// Cannot make a team.
#[derive(Debug, thiserror::Error)]
pub enum TeamError {
    /// No thread asked for.
    #[error("a team needs at least one thread")]
    Empty,
    /// The processor lacks the level.
    #[error("this processor lacks {0:?}; it has {1:?}")]
    Level(Level, Level),
    /// The system refused the pinning.
    #[error("cannot pin a thread to core {0}")]
    Pin(usize),
    /// The system refused a thread.
    #[error("cannot start a thread: {0}")]
    Spawn(#[from] std::io::Error),
}

/// The task of a kernel; its lifetime is erased, see `Team::each`.
type Task = &'static (dyn Fn(usize) + Sync);

#[derive(Default)]
struct State {
    epoch: u64,
    job: Option<Task>,
    working: usize,
    panicked: bool,
    stop: bool,
    /// Workers that wait on `Shared::start`; a notification is a system call.
    sleeping: usize,
    /// Whether the caller waits on `Shared::done`.
    caller_sleeps: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    start: Condvar,
    done: Condvar,
    /// Nanoseconds that a waiting thread spins before it sleeps.
    spin_ns: AtomicU64,
    /// Copies of `State::epoch` and `State::working` to spin on without the lock. `epoch` also moves
    /// when the team ends.
    epoch: AtomicU64,
    working: AtomicUsize,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spin_limit(&self) -> Duration {
        Duration::from_nanos(self.spin_ns.load(Ordering::Relaxed))
    }

    /// Spins until `is_over`, at most as long as the team's limit, which may change meanwhile, and `most`.
    fn spin(&self, most: Duration, is_over: impl Fn() -> bool) {
        if self.spin_limit().is_zero() {
            return;
        }
        let start = Instant::now();
        while start.elapsed() < self.spin_limit().min(most) {
            for _ in 0..LOOKS {
                if is_over() {
                    return;
                }
                std::hint::spin_loop();
            }
        }
    }
}

impl Team {
    /// A team of `threads` threads, the caller included, not pinned.
    ///
    /// Errors: no thread, or a level that this processor lacks.
    pub fn new(threads: usize, level: Level) -> Result<Team, TeamError> {
        Team::build(&vec![None; threads], level)
    }

    /// A team with a thread for each of the core ids; pins the caller to the first of them,
    /// which it stays after the team is gone.
    ///
    /// Errors: no core, a core the system refuses, or a level that this processor lacks.
    pub fn pinned(cores: &[usize], level: Level) -> Result<Team, TeamError> {
        let cores: Vec<_> = cores.iter().map(|c| Some(*c)).collect();
        Team::build(&cores, level)
    }

    /// A team pinned to the first cores that this process may use; not pinned where there are fewer
    /// cores than threads.
    ///
    /// Errors: as [`Team::new`] and [`Team::pinned`].
    pub fn on_first_cores(threads: usize, level: Level) -> Result<Team, TeamError> {
        let cores: Vec<usize> = core_affinity::get_core_ids()
            .unwrap_or_default()
            .iter()
            .map(|core| core.id)
            .take(threads)
            .collect();
        if cores.len() < threads {
            Team::new(threads, level)
        } else {
            Team::pinned(&cores, level)
        }
    }

    /// Threads, the caller included.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Lets waiting threads of the team spin this long before they sleep; not at all in a new team.
    ///
    /// Waking a thread takes 50 to 200 us, a tenth of a small kernel. Only for teams whose threads have
    /// cores of their own: elsewhere a spinning thread takes the core that the work needs.
    pub fn spin_for(&mut self, limit: Duration) {
        let limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        self.shared.spin_ns.store(limit_ns, Ordering::Relaxed);
    }

    /// Runs `body` while the workers sleep, so that it may use their cores, and wakes them afterwards.
    pub fn at_rest<R>(&mut self, body: impl FnOnce() -> R) -> R {
        let limit = self.shared.spin_limit();
        if self.threads == 1 || limit.is_zero() {
            return body();
        }
        self.spin_for(Duration::ZERO);
        let result = body();
        self.spin_for(limit);
        self.wake();
        result
    }

    /// Wakes the workers, as a kernel leaves them: spinning if they may.
    pub fn wake(&mut self) {
        if self.threads > 1 {
            self.each(&mut || true, &AtomicBool::new(false), &|_| ());
        }
    }

    /// The instruction level of the kernels that run on this team.
    pub fn level(&self) -> Level {
        self.level
    }

    /// The properties that determine the scratch of its kernels.
    pub fn kind(&self) -> TeamKind {
        TeamKind {
            threads: self.threads,
            level: self.level,
        }
    }

    fn build(cores: &[Option<usize>], level: Level) -> Result<Team, TeamError> {
        let (Some(first), true) = (cores.first(), level.available()) else {
            return Err(if cores.is_empty() {
                TeamError::Empty
            } else {
                TeamError::Level(level, Level::detect())
            });
        };
        pin(*first)?;
        let mut team = Team {
            level,
            threads: cores.len(),
            shared: Arc::default(),
            workers: Vec::new(),
        };
        let (sender, receiver) = std::sync::mpsc::channel();
        for (index, core) in cores.iter().copied().enumerate().skip(1) {
            let (shared, sender) = (team.shared.clone(), sender.clone());
            let body = move || {
                let pinned = pin(core);
                let go = pinned.is_ok();
                // The receiver waits for one answer of each worker, so it is there.
                let heard = sender.send(pinned).is_ok();
                drop(sender);
                if go && heard {
                    work(&shared, index);
                }
            };
            let builder = std::thread::Builder::new().name(format!("partita-cpu-{index}"));
            team.workers.push(builder.spawn(body)?);
        }
        drop(sender);
        receiver.iter().collect::<Result<Vec<()>, _>>()?;
        Ok(team)
    }

    /// Calls `body` for every unit in `0..units`, on any thread, in any order.
    ///
    /// `flops` is the work of one unit: a small call stays on the caller. Units that take long
    /// tick in between; that their work then counts twice only makes progress more frequent.
    pub(crate) fn units(
        &mut self,
        progress: &mut dyn FnMut() -> bool,
        units: usize,
        flops: u64,
        body: &(dyn Fn(usize, &mut Poll) + Sync),
    ) -> Result<(), Canceled> {
        let cancel = AtomicBool::new(false);
        let small = flops.saturating_mul(units as u64) < FLOPS_PARALLEL_MIN;
        let next = AtomicUsize::new(0);
        let share = |poll: &mut Poll| {
            while !poll.canceled() {
                let unit = next.fetch_add(1, Ordering::Relaxed);
                if unit >= units {
                    break;
                }
                body(unit, poll);
                poll.tick(flops);
            }
        };
        if self.threads == 1 || units <= 1 || small {
            share(&mut Poll {
                thread: 0,
                cancel: &cancel,
                progress: Some(progress),
                flops: 0,
            });
        } else {
            self.each(progress, &cancel, &share);
        }
        if cancel.into_inner() {
            Err(Canceled)
        } else {
            Ok(())
        }
    }

    /// Calls `body` for ranges that make up `0..items`; `cost` is that of one item, in flops or,
    /// where memory is the limit, in elements times [`ELEMENT`].
    pub(crate) fn ranges(
        &mut self,
        progress: &mut dyn FnMut() -> bool,
        items: usize,
        cost: u64,
        body: &(dyn Fn(Range<usize>) + Sync),
    ) -> Result<(), Canceled> {
        let step = (COST_PER_RANGE / cost.max(1)).max(1) as usize;
        self.units(
            progress,
            items.div_ceil(step),
            cost * step as u64,
            &|unit, _| {
                body(unit * step..((unit + 1) * step).min(items));
            },
        )
    }

    /// Runs `share` on all threads and returns when all are done.
    fn each(
        &mut self,
        progress: &mut dyn FnMut() -> bool,
        cancel: &AtomicBool,
        share: &(dyn Fn(&mut Poll) + Sync),
    ) {
        let job = |thread: usize| {
            share(&mut Poll {
                thread,
                cancel,
                progress: None,
                flops: 0,
            })
        };
        let job: &(dyn Fn(usize) + Sync) = &job;
        // SAFETY: this function does not return, nor unwind, before `working` is zero again, that
        // is before the last worker has let go of the job.
        let job: Task = unsafe { std::mem::transmute(job) };
        let mut state = self.shared.lock();
        state.job = Some(job);
        state.working = self.workers.len();
        self.shared.working.store(state.working, Ordering::Relaxed);
        self.next_epoch(state);
        let mine = catch_unwind(AssertUnwindSafe(|| {
            share(&mut Poll {
                thread: 0,
                cancel,
                progress: Some(&mut *progress),
                flops: 0,
            });
        }));
        if mine.is_err() {
            cancel.store(true, Ordering::Relaxed);
        }
        let waited = self.wait(progress, cancel);
        match (mine, waited) {
            (Err(panic), _) | (Ok(()), Err(panic)) => resume_unwind(panic),
            (Ok(()), Ok(panicked)) => assert!(!panicked, "a worker of the team panicked"),
        }
    }

    /// Waits for the workers; returns whether one of them panicked.
    fn wait(
        &self,
        progress: &mut dyn FnMut() -> bool,
        cancel: &AtomicBool,
    ) -> std::thread::Result<bool> {
        let mut broken = None;
        let working = &self.shared.working;
        self.shared
            .spin(WAIT, || working.load(Ordering::Relaxed) == 0);
        let mut state = self.shared.lock();
        while state.working > 0 {
            state.caller_sleeps = true;
            let waited = self.shared.done.wait_timeout(state, WAIT);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            state.caller_sleeps = false;
            if state.working > 0 && !cancel.load(Ordering::Relaxed) {
                drop(state);
                let go = catch_unwind(AssertUnwindSafe(&mut *progress)).unwrap_or_else(|panic| {
                    broken = Some(panic);
                    false
                });
                if !go {
                    cancel.store(true, Ordering::Relaxed);
                }
                state = self.shared.lock();
            }
        }
        state.job = None;
        let panicked = std::mem::take(&mut state.panicked);
        match broken {
            Some(panic) => Err(panic),
            None => Ok(panicked),
        }
    }

    /// Notifies all workers that the state has changed.
    fn next_epoch(&self, mut state: MutexGuard<'_, State>) {
        state.epoch += 1;
        self.shared.epoch.store(state.epoch, Ordering::Relaxed);
        let sleeping = state.sleeping;
        drop(state);
        if sleeping > 0 {
            self.shared.start.notify_all();
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.stop = true;
        self.next_epoch(state);
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its jobs, so there is nothing to learn here.
            let _ended = worker.join();
        }
    }
}

fn pin(core: Option<usize>) -> Result<(), TeamError> {
    let Some(id) = core else {
        return Ok(());
    };
    if id < CORES_MAX && core_affinity::set_for_current(core_affinity::CoreId { id }) {
        Ok(())
    } else {
        Err(TeamError::Pin(id))
    }
}

/// The loop of a worker.
fn work(shared: &Shared, index: usize) {
    let mut seen = 0;
    loop {
        // What was written under the lock is seen under the lock; the copy only tells when to take it.
        shared.spin(Duration::MAX, || {
            shared.epoch.load(Ordering::Relaxed) != seen
        });
        let mut state = shared.lock();
        while state.epoch == seen {
            state.sleeping += 1;
            let woken = shared.start.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
            state.sleeping -= 1;
        }
        seen = state.epoch;
        if state.stop {
            return;
        }
        let Some(job) = state.job else {
            continue;
        };
        drop(state);
        let ok = catch_unwind(AssertUnwindSafe(|| job(index))).is_ok();
        let mut state = shared.lock();
        state.panicked |= !ok;
        state.working -= 1;
        shared.working.store(state.working, Ordering::Relaxed);
        if state.working == 0 && state.caller_sleeps {
            shared.done.notify_all();
        }
    }
}

/// Calls `progress` periodically (on the caller's thread), and records cancellation.
pub(crate) struct Poll<'a> {
    /// Which of the threads of the team this is, the caller being 0.
    pub thread: usize,
    cancel: &'a AtomicBool,
    progress: Option<&'a mut dyn FnMut() -> bool>,
    flops: u64,
}

impl Poll<'_> {
    pub(crate) fn canceled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }

    /// Accounts for `flops` done since the last tick; returns whether to go on.
    pub(crate) fn tick(&mut self, flops: u64) -> bool {
        if let Some(progress) = &mut self.progress {
            self.flops += flops;
            if self.flops >= FLOPS_PER_TICK {
                self.flops = 0;
                if !self.cancel.load(Ordering::Relaxed) && !progress() {
                    self.cancel.store(true, Ordering::Relaxed);
                }
            }
        }
        !self.canceled()
    }
}
