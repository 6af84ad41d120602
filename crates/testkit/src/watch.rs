//! Ends a case that hangs, and reports the state of each rank.

use crate::wrap_kernels;
use partita_program::{Collective, Exchange, Load, Staging, TaskId, Work};
use partita_run::{Inputs, Kernels, Memory, RunError, Source, Transport};
use partita_space::{Rank, Seconds};
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time for ranks to stop after a cancellation.
const GRACE: Duration = Duration::from_secs(20);

/// Default time limit of a case (`PARTITA_CASE_SECONDS`): many times that of the slowest one on a busy machine.
const LIMIT: Duration = Duration::from_secs(300);

pub(crate) fn limit() -> Duration {
    let asked = std::env::var("PARTITA_CASE_SECONDS")
        .ok()
        .and_then(|seconds| seconds.parse().ok());
    asked.map_or(LIMIT, Duration::from_secs)
}

/// Watches one case from lowering to its end.
pub(crate) struct Watch {
    case: Arc<Watched>,
    thread: Option<JoinHandle<()>>,
}

struct Watched {
    /// Description of the case.
    name: String,
    limit: Duration,
    state: Mutex<State>,
    changed: Condvar,
    /// Cancels all ranks.
    cancel: AtomicBool,
}

#[derive(Default)]
struct State {
    /// The phase.
    phase: String,
    statuses: Vec<Arc<RankStatus>>,
    is_over: bool,
    has_ended: bool,
}

impl Watch {
    /// Starts watching a case with this name.
    pub fn start(name: String, limit: Duration) -> Self {
        let case = Arc::new(Watched {
            name,
            limit,
            state: Mutex::default(),
            changed: Condvar::new(),
            cancel: AtomicBool::new(false),
        });
        let watched = Arc::clone(&case);
        let thread = std::thread::Builder::new()
            .name("watch of a case".to_owned())
            .spawn(move || watched.run());
        Self {
            case,
            thread: Some(thread.expect("the system gives one more thread")),
        }
    }

    /// Sets the phase.
    pub fn phase(&self, phase: &str) {
        phase.clone_into(&mut self.case.state().phase);
    }

    /// The status records of the ranks.
    pub fn statuses(&self, ranks: usize) -> Vec<Arc<RankStatus>> {
        let statuses: Vec<Arc<RankStatus>> = (0..ranks).map(|_| Arc::default()).collect();
        self.case.state().statuses.clone_from(&statuses);
        statuses
    }

    /// The cancellation flag.
    pub fn cancel(&self) -> &AtomicBool {
        &self.case.cancel
    }

    /// The case and the status of each rank.
    pub fn report(&self, what: &str) -> String {
        self.case.report(&self.case.state(), what)
    }

    /// Panics if the time limit was exceeded.
    pub fn check(&self) {
        let state = self.case.state();
        if state.is_over {
            let report = self.case.report(&state, &self.case.overdue());
            drop(state);
            panic!("{report}");
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.case.state().has_ended = true;
        self.case.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // Its result is in its status.
            drop(thread.join());
        }
    }
}

impl Watched {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn overdue(&self) -> String {
        format!("did not end within {:?}", self.limit)
    }

    fn run(&self) {
        if self.has_ended_within(self.limit) {
            return;
        }
        // The status now, before the cancellation.
        let mut state = self.state();
        state.is_over = true;
        state.statuses.iter().for_each(|status| status.close());
        drop(state);
        self.cancel.store(true, Ordering::Relaxed);
        if !self.has_ended_within(GRACE) {
            // Nothing else ends a thread in an endless loop.
            eprintln!("{}", self.report(&self.state(), &self.overdue()));
            std::process::abort();
        }
    }

    fn has_ended_within(&self, limit: Duration) -> bool {
        let (start, mut state) = (Instant::now(), self.state());
        while !state.has_ended {
            let Some(left) = limit.checked_sub(start.elapsed()) else {
                return false;
            };
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn report(&self, state: &State, what: &str) -> String {
        let mut text = format!("{what}, at {}: {}\n", state.phase, self.name);
        for (rank, status) in state.statuses.iter().enumerate() {
            writeln!(text, "rank {rank} {}", status.note()).expect("a text takes any line");
        }
        text
    }
}

/// The status of one rank.
#[derive(Default)]
pub(crate) struct RankStatus(Mutex<Activity>);

#[derive(Default)]
struct Activity {
    kernel: Option<String>,
    /// Pending exchanges, collectives and reads, with the ranks that they wait for.
    pending: Vec<(TaskId, String, Vec<Rank>)>,
    /// No longer updated.
    is_closed: bool,
}

impl RankStatus {
    fn at(&self, change: impl FnOnce(&mut Activity)) {
        let mut at = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !at.is_closed {
            change(&mut at);
        }
    }

    fn close(&self) {
        self.at(|at| at.is_closed = true);
    }

    /// Kernels that record which of them is running.
    pub fn recording(self: Arc<Self>, kernels: Box<dyn Kernels>) -> Box<dyn Kernels> {
        wrap_kernels(kernels, move |kernel, _, execute| {
            self.at(|at| at.kernel = Some(kernel.name().to_owned()));
            let tally = execute(kernel);
            self.at(|at| at.kernel = None);
            tally
        })
    }

    fn begin(&self, task: TaskId, memory: Option<&Memory<'_>>, sequence: u32) {
        let task_of = |memory: &Memory<'_>| {
            let known = &memory.body().tasks[task.0 as usize];
            let (work, layer) = (known.work.name(), &known.origin.layer);
            format!(
                "{work} of layer `{layer}` (task {}, sequence {sequence})",
                task.0
            )
        };
        let what = memory.map_or_else(|| format!("a read (task {})", task.0), task_of);
        self.at(|at| at.pending.push((task, what, Vec::new())));
    }

    fn end(&self, done: &[TaskId]) {
        if !done.is_empty() {
            self.at(|at| at.pending.retain(|(task, ..)| !done.contains(task)));
        }
    }

    fn note(&self) -> String {
        let at = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = &at.kernel {
            return format!("computes {kernel}");
        }
        let all = at.pending.iter().map(|(_, what, missing)| {
            let missing = missing.iter().map(Rank::to_string);
            match missing.collect::<Vec<_>>().join(", ") {
                none if none.is_empty() => what.clone(),
                ranks => format!("{what} for rank(s) {ranks}"),
            }
        });
        match all.collect::<Vec<_>>().join("; ") {
            none if none.is_empty() => "waits for nothing".to_owned(),
            all => format!("waits in {all}"),
        }
    }
}

/// A transport or source that records its status.
pub(crate) struct Recorded<T> {
    pub inner: T,
    pub status: Arc<RankStatus>,
}

impl<T: Transport> Transport for Recorded<T> {
    fn allocate(&mut self, staging: &Staging) -> Result<(), RunError> {
        self.inner.allocate(staging)
    }

    fn start_exchange(
        &mut self,
        task: TaskId,
        exchange: &Exchange,
        memory: &Memory<'_>,
    ) -> Result<bool, RunError> {
        self.status.begin(task, Some(memory), exchange.sequence);
        self.inner.start_exchange(task, exchange, memory)
    }

    fn start_collective(
        &mut self,
        task: TaskId,
        collective: &Collective,
        memory: &Memory<'_>,
    ) -> Result<bool, RunError> {
        self.status.begin(task, Some(memory), collective.sequence);
        self.inner.start_collective(task, collective, memory)
    }

    fn advance(&mut self) {
        self.inner.advance();
    }

    fn poll(&mut self, memory: &Memory<'_>, done: &mut Vec<TaskId>) -> Result<(), RunError> {
        self.inner.poll(memory, done)?;
        let is_message = |task: &&TaskId| match &memory.body().tasks[task.0 as usize].work {
            Work::Exchange(_) | Work::Collective(_) => true,
            Work::Compute { .. } | Work::Load(_) | Work::Store(_) => false,
        };
        let done: Vec<TaskId> = done.iter().filter(is_message).copied().collect();
        self.status.end(&done);
        Ok(())
    }

    fn wait(&mut self, limit: Duration) {
        let inner = &self.inner;
        self.status.at(|at| {
            for (task, _, missing) in &mut at.pending {
                *missing = inner.missing(*task);
            }
        });
        self.inner.wait(limit);
    }

    fn missing(&self, task: TaskId) -> Vec<Rank> {
        self.inner.missing(task)
    }

    fn take_tally(&mut self) -> [u64; 4] {
        self.inner.take_tally()
    }
}

impl<T: Source> Source for Recorded<T> {
    fn start(&mut self, task: TaskId, load: &Load, inputs: &Inputs) -> Result<(), RunError> {
        self.status.begin(task, None, 0);
        self.inner.start(task, load, inputs)
    }

    fn poll(&mut self, memory: &Memory<'_>, done: &mut Vec<TaskId>) -> Result<(), RunError> {
        let known = done.len();
        self.inner.poll(memory, done)?;
        self.status.end(&done[known..]);
        Ok(())
    }

    fn waited(&mut self, epoch: u64, time: Seconds) {
        self.inner.waited(epoch, time);
    }

    fn take_tally(&mut self) -> u64 {
        self.inner.take_tally()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Setup, random_two_stage_case, run_within};
    use partita_program::{Algorithm, Kernel, ProgramKind, View};
    use partita_reference::ReferenceKernels;
    use partita_run::KernelTally;
    use partita_space::Mesh;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// Kernels of a rank that ends none.
    struct Endless;

    impl Kernels for Endless {
        fn execute(
            &mut self,
            _: &Kernel,
            _: &Algorithm,
            _: Option<&View>,
            _: &Memory<'_>,
            _: &Inputs,
            progress: &mut dyn FnMut() -> bool,
        ) -> Result<KernelTally, RunError> {
            while progress() {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(RunError::Cancelled)
        }
    }

    #[test]
    fn a_case_that_does_not_end_tells_what_it_was_and_where_each_rank_stood() {
        let case = random_two_stage_case(1);
        let kernels = |mesh: Mesh, rank: Rank| -> Box<dyn Kernels> {
            match rank {
                0 => Box::new(Endless),
                _ => Box::new(ReferenceKernels::<f64>::new(mesh, rank)),
            }
        };
        let setup = Setup::of_case(&case, &kernels);
        let programs = [
            ProgramKind::Fetch,
            ProgramKind::Train,
            ProgramKind::Evaluate,
        ];
        let programs = programs.map(|kind| setup.program(kind).expect("the case can be lowered"));
        let run = || run_within(&setup, &programs, Duration::from_secs(4));
        let panic = catch_unwind(AssertUnwindSafe(run)).expect_err("nothing ends it");
        let report = panic.downcast_ref::<String>().expect("a text");
        let last = format!("rank {} ", case.strategy.ranks() - 1);
        for part in [
            "did not end within 4s",
            "seed 1, batch",
            &format!("strategy `{}`", case.strategy),
            &crate::print(&case.graph),
            "rank 0 computes ",
            " waits in ",
            &last,
        ] {
            assert!(report.contains(part), "{part:?} is not in {report}");
        }
    }
}
