//! Counts allocations of a run.

use crate::MemorySource;
use crate::{Case, Setup};
use partita_cpu::{CpuKernels, CpuMenu, Level, Team};
use partita_program::{Dtype, Program, ProgramKind, Staging};
use partita_run::{Arena, Inputs, NoSink, RankRunner, RunError, SystemClock, Transport};
use partita_space::{Bytes, Rank, Seconds};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Bytes that a rank allocates in addition to its programs: lists of tasks, of pending and of received messages.
const OF_A_RANK: u64 = 24 << 10;
/// Bytes of a task in these lists.
const OF_A_TASK: u64 = 640;

/// The system's allocator, which counts the live bytes of this process.
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: partita_testkit::CountingAllocator = partita_testkit::CountingAllocator::new();
///
/// let before = ALLOCATOR.reset();
/// drop(vec![0u8; 1000]);
/// assert!(ALLOCATOR.peak_above(before) >= 1000);
/// ```
pub struct CountingAllocator {
    live: AtomicUsize,
    peak: AtomicUsize,
}

impl CountingAllocator {
    /// A counter at zero.
    #[allow(clippy::new_without_default, reason = "a static is made by a constant")]
    pub const fn new() -> Self {
        Self {
            live: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
        }
    }

    /// Resets the peak; returns the live bytes.
    pub fn reset(&self) -> usize {
        let live = self.live.load(Ordering::SeqCst);
        self.peak.store(live, Ordering::SeqCst);
        live
    }

    /// Peak of live bytes since the last [`Self::reset`], above `before`.
    pub fn peak_above(&self, before: usize) -> u64 {
        self.peak.load(Ordering::SeqCst).saturating_sub(before) as u64
    }

    fn grow(&self, bytes: usize) {
        let live = self.live.fetch_add(bytes, Ordering::SeqCst) + bytes;
        self.peak.fetch_max(live, Ordering::SeqCst);
    }

    fn shrink(&self, bytes: usize) {
        self.live.fetch_sub(bytes, Ordering::SeqCst);
    }
}

// SAFETY: all calls are forwarded to the system's allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.grow(layout.size());
        // SAFETY: the caller's contract is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.grow(layout.size());
        // SAFETY: the caller's contract is the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        self.grow(size);
        self.shrink(layout.size());
        // SAFETY: the caller's contract is the same.
        unsafe { System.realloc(start, layout, size) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        self.shrink(layout.size());
        // SAFETY: the caller's contract is the same.
        unsafe { System.dealloc(start, layout) }
    }
}

/// The programs of a case in f32, and samples for them: fetch, train, evaluate.
pub struct CountedCase<'c> {
    case: &'c Case,
    programs: [Program; 3],
    samples: std::sync::Arc<crate::Samples>,
    level: Level,
}

impl<'c> CountedCase<'c> {
    /// Lowers and verifies. Panics if that fails.
    pub fn new(case: &'c Case) -> Self {
        let level = Level::detect();
        let menu = CpuMenu { threads: 1, level };
        let kernels = |_, _| -> Box<dyn partita_run::Kernels> { panic!("made by rank") };
        let setup = Setup {
            dtype: Dtype::F32,
            menu: &menu,
            ..Setup::of_case(case, &kernels)
        };
        let kinds = [
            ProgramKind::Fetch,
            ProgramKind::Train,
            ProgramKind::Evaluate,
        ];
        Self {
            case,
            programs: kinds.map(|kind| setup.program(kind).expect("a case can be lowered")),
            samples: setup.samples,
            level,
        }
    }

    /// The programs.
    pub fn programs(&self) -> &[Program; 3] {
        &self.programs
    }

    /// Memory of a rank according to its programs: the largest arena and the largest pools.
    pub fn predicted(&self, rank: Rank) -> Bytes {
        let arenas = self.programs.iter().map(|one| one.body(rank).arena);
        // An allocation is never empty.
        let arena = arenas.max().unwrap_or_default().max(Bytes(64));
        arena + self.staging(rank).packets()
    }

    /// Bytes of the source of a rank to convert samples: samples in memory have no pool.
    pub fn io(&self, rank: Rank) -> Bytes {
        self.staging(rank).io
    }

    /// Additional bytes of a rank, independent of the sizes of the model and the mini-batch.
    pub fn allowance(&self, rank: Rank) -> Bytes {
        let tasks = self.programs.iter().map(|one| one.body(rank).tasks.len());
        Bytes(OF_A_RANK + OF_A_TASK * tasks.max().unwrap_or_default() as u64)
    }

    fn staging(&self, rank: Rank) -> Staging {
        let all = self.programs.iter().map(|one| one.body(rank).staging);
        all.fold(Staging::default(), Staging::max)
    }

    /// Trains a few steps and evaluates as one rank, with zeros as weights. All allocations are between two calls of
    /// `barrier`.
    ///
    /// Errors: a rank that fails.
    pub fn run(
        &self,
        rank: Rank,
        mut transport: Box<dyn Transport + '_>,
        cancel: &AtomicBool,
        barrier: &dyn Fn(),
    ) -> Result<(), RunError> {
        let mesh = self.programs[1].mesh;
        let team = Team::new(1, self.level).expect("the level is available");
        let kernels = Box::new(CpuKernels::new(mesh, rank, team));
        let source = MemorySource::new(std::sync::Arc::clone(&self.samples), mesh, rank);
        let source = Box::new(source);
        let all: Vec<usize> = (0..self.case.batch).collect();
        let mut inputs = Inputs {
            step: 0,
            epoch: 0,
            seed: self.case.seed,
            learning_rate: 1e-3,
            loss_scale: None,
            skipped: 0,
            samples: all.clone(),
            next_samples: all,
            next_epoch: 0,
        };
        let [fetch, train, evaluate] = self.programs.each_ref().map(|one| one.body(rank));
        barrier();
        transport.allocate(&self.staging(rank))?;
        let arenas = self.programs.iter().map(|one| one.body(rank).arena);
        let mut runner = RankRunner {
            rank,
            arena: Arena::of_rank(rank, arenas.max().unwrap_or_default())?,
            kernels,
            transport,
            source,
            sink: Box::new(NoSink),
            clock: Box::new(SystemClock::start()),
            cancel,
            watchdog: Seconds(60.0),
        };
        runner.step(fetch, &inputs)?;
        for _ in 0..3 {
            inputs.step += 1;
            runner.step(train, &inputs)?;
        }
        runner.step(fetch, &inputs)?;
        runner.step(evaluate, &inputs)?;
        barrier();
        Ok(())
    }
}
