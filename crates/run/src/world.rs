//! The traits of a world: kernels, transport, source, clock.

use crate::{Memory, RunError};
use partita_program::{
    Algorithm, Buffer, Collective, Count, Exchange, Kernel, Load, Staging, TaskId, View,
};
use partita_space::{Rank, Seconds};
use std::ops::AddAssign;
use std::time::{Duration, Instant};

/// What differs from step to step; no part of the program's identity.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inputs {
    /// Updates so far plus one (Adam's bias correction).
    pub step: u64,
    /// Epoch, keys random numbers.
    pub epoch: u64,
    /// Seed of the run.
    pub seed: u64,
    /// Learning rate.
    pub learning_rate: f64,
    /// Samples of this step, in batch order, over all ranks.
    pub samples: Vec<usize>,
    /// Samples of the next step; empty where nothing is to be read ahead.
    pub next_samples: Vec<usize>,
}

/// What a kernel did, counted from the bounds of its loops and the blocks that they went through, not taken
/// from the task. At the end of a step the sums over all kernels must be those of [`Worked::expected`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Worked {
    /// Arithmetic, of a fused kernel that of all its parts.
    pub flops: u64,
    /// Bytes read and written. Not counted of a fused kernel, which has 0 here: what its parts leave to each
    /// other may never reach memory, and no loop knows. Its [`Count`] has the bytes that pass between the
    /// whole and memory; they follow from its views alone, and no run checks them.
    pub bytes: u64,
}

impl Worked {
    /// What a kernel has to count.
    pub fn expected(kernel: &Kernel, buffers: &[Buffer]) -> Self {
        let count = Count::of_kernel(kernel, buffers);
        let bytes = if let Kernel::Fused { .. } = kernel {
            0
        } else {
            count.read.0 + count.written.0
        };
        Self {
            flops: count.flops.0,
            bytes,
        }
    }
}

impl AddAssign for Worked {
    fn add_assign(&mut self, other: Self) {
        self.flops += other.flops;
        self.bytes += other.bytes;
    }
}

/// The kernels of a rank.
pub trait Kernels {
    /// Brings threads of the kernels to the state in which a kernel leaves them, for measuring.
    fn wake(&mut self) {}

    /// Runs a kernel to its end. Calls `progress` between tiles, and returns early with `Cancelled`
    /// when it says false.
    fn execute(
        &mut self,
        kernel: &Kernel,
        algorithm: &Algorithm,
        workspace: Option<&View>,
        memory: &Memory<'_>,
        inputs: &Inputs,
        progress: &mut dyn FnMut() -> bool,
    ) -> Result<Worked, RunError>;
}

/// Messages and collectives of a rank. Nothing here blocks but `wait`.
///
/// Tasks of a lane start in its order. One that finds too few packets has not started, and is to be started
/// again after what has come was delivered.
pub trait Transport {
    /// Makes the pools of packets; nothing that is called later makes more.
    ///
    /// Errors: the system has no memory for them.
    fn allocate(&mut self, staging: &Staging) -> Result<(), RunError>;

    /// Starts all sends and receives of an exchange; false where packets are missing.
    fn start_exchange(
        &mut self,
        task: TaskId,
        exchange: &Exchange,
        memory: &Memory<'_>,
    ) -> Result<bool, RunError>;

    /// Starts a collective; false where packets are missing.
    fn start_collective(
        &mut self,
        task: TaskId,
        collective: &Collective,
        memory: &Memory<'_>,
    ) -> Result<bool, RunError>;

    /// Moves what can be moved without touching the arena. Called between the tiles of a kernel.
    fn advance(&mut self);

    /// Moves what can be moved, delivers what has come, and lists the tasks that completed.
    fn poll(&mut self, memory: &Memory<'_>, done: &mut Vec<TaskId>) -> Result<(), RunError>;

    /// Sleeps until something may have come, at most `limit`.
    fn wait(&mut self, limit: Duration);

    /// Ranks from which a task under way still waits to hear.
    fn missing(&self, task: TaskId) -> Vec<Rank>;

    /// Messages sent, their bytes, collectives started and bytes given to them since the last call,
    /// counted from the lengths of what was handed over.
    fn take_tally(&mut self) -> [u64; 4];
}

/// Samples of a rank.
pub trait Source {
    /// Starts reading this rank's part.
    fn start(&mut self, task: TaskId, load: &Load, inputs: &Inputs) -> Result<(), RunError>;

    /// Delivers what has been read, and lists the tasks that completed.
    fn poll(&mut self, memory: &Memory<'_>, done: &mut Vec<TaskId>) -> Result<(), RunError>;

    /// Bytes delivered since the last call.
    fn take_tally(&mut self) -> u64;
}

/// Time.
pub trait Clock {
    /// Since some fixed instant.
    fn now(&self) -> Seconds;
}

/// The clock of the machine.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// Starts at 0 now; copies share the start.
    pub fn start() -> Self {
        Self {
            start: Instant::now(),
        }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Seconds {
        Seconds(self.start.elapsed().as_secs_f64())
    }
}
