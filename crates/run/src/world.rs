//! The traits of a world, the environment of a rank: kernels, transport, source, clock.

use crate::{Arena, Memory, RunError};
use partita_program::{
    Algorithm, Buffer, Collective, Count, Exchange, Kernel, Load, Staging, Store, TaskId, View,
};
use partita_space::{Bytes, Rank, Seconds};
use std::ops::AddAssign;
use std::time::{Duration, Instant};

/// Inputs of one step; not part of the program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inputs {
    /// Steps of training so far plus one.
    pub step: u64,
    /// Epoch; part of the key of random numbers.
    pub epoch: u64,
    /// Seed of the run; part of the key of random numbers.
    pub seed: u64,
    /// Learning rate.
    pub learning_rate: f64,
    /// Loss scale: all gradients are multiplied by it from the loss on, and updates divide them again; an update whose
    /// gradients are not finite is skipped, and leaves everything as it is. None: gradients are not scaled, and every
    /// update happens.
    pub loss_scale: Option<f64>,
    /// Updates before this one that were skipped.
    pub skipped: u64,
    /// Samples of this step, in batch order, over all ranks.
    pub samples: Vec<usize>,
    /// Samples of the next step; empty where nothing is to be read ahead.
    pub next_samples: Vec<usize>,
    /// Epoch of the next step.
    pub next_epoch: u64,
}

/// Added to the norm of the gradients before it divides, as `torch.nn.utils.clip_grad_norm_` does (PyTorch 2,
/// `torch/nn/utils/clip_grad.py`).
const CLIP_EPSILON: f64 = 1e-6;

impl Inputs {
    /// Factor of the gradients of losses.
    pub fn gradient_factor(&self) -> f64 {
        self.loss_scale.unwrap_or(1.0)
    }

    /// Updates that happened, with this one (Adam's bias correction).
    pub fn update(&self) -> u64 {
        self.step - self.skipped
    }

    /// Whether the update of a step happens, if the sum of the squares of all gradients is `total`: not where they are scaled
    /// and not finite.
    pub fn updates(&self, total: f64) -> bool {
        self.loss_scale.is_none() || total.is_finite()
    }

    /// Factor of the gradients in an update that bounds their norm by `maximum`, if the sum of their squares is `total`;
    /// none if the update leaves everything as it is.
    pub fn update_factor(&self, total: f64, maximum: f64) -> Option<f64> {
        if !self.updates(total) {
            return None;
        }
        let scale = self.gradient_factor();
        let norm = total.sqrt() / scale;
        Some((maximum / (norm + CLIP_EPSILON)).min(1.0) / scale)
    }
}

/// The work of a kernel, counted from the bounds of its loops, not taken from the task. At the end of a step
/// the sums over all kernels must equal those of [`KernelTally::expected`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelTally {
    /// Floating-point operations; of a fused kernel those of all its parts.
    pub flops: u64,
    /// Bytes read and written; 0 for a fused kernel, because intermediate values may stay in registers or
    /// caches. Its [`Count`] has the bytes of its views, which no run checks.
    pub bytes: u64,
}

impl KernelTally {
    /// The tally that a kernel must report.
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

impl AddAssign for KernelTally {
    fn add_assign(&mut self, other: Self) {
        self.flops += other.flops;
        self.bytes += other.bytes;
    }
}

/// When a device ran a kernel, before [`Kernels::finish`] returned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KernelSpan {
    /// How long ago the device could have begun it: it had been given, and the one before it had ended.
    pub begun: Seconds,
    /// How long ago it ended.
    pub ended: Seconds,
    /// How long it ran, without what it waited for the device.
    pub ran: Seconds,
}

impl KernelSpan {
    /// How long it took, with what it waited for the device.
    pub fn seconds(&self) -> Seconds {
        self.begun - self.ended
    }
}

/// The kernels of a rank.
pub trait Kernels {
    /// Wakes the threads of the kernels, as a kernel leaves them, before a measurement.
    fn wake(&mut self) {}

    /// The arena of a rank, where these kernels work: the memory of the host, unless they say otherwise.
    ///
    /// Errors: out of memory.
    fn arena(&self, rank: Rank, bytes: Bytes) -> Result<Arena, RunError> {
        Arena::of_rank(rank, bytes)
    }

    /// Waits until all that a device was given has been done. Returns when each of the kernels executed since the last
    /// call ran, in their order; nothing where kernels end before `execute` returns, or where it is not known.
    ///
    /// Errors: those of kernels and of accesses to memory that were not reported yet.
    fn finish(&mut self) -> Result<Vec<KernelSpan>, RunError> {
        Ok(Vec::new())
    }

    /// Runs a kernel, or gives it to a device, which runs it before it does anything else with the arena. Calls
    /// `progress` between tiles, and returns `Cancelled` when that returns false.
    fn execute(
        &mut self,
        kernel: &Kernel,
        algorithm: &Algorithm,
        workspace: Option<&View>,
        memory: &Memory<'_>,
        inputs: &Inputs,
        progress: &mut dyn FnMut() -> bool,
    ) -> Result<KernelTally, RunError>;
}

/// Exchanges and collectives of a rank. Only `wait` blocks.
///
/// Tasks of a lane start in order. A task for which there are too few packets does not start; start it again
/// after `poll`.
pub trait Transport {
    /// Allocates the packet pools. No later call allocates packets.
    ///
    /// Errors: out of memory.
    fn allocate(&mut self, staging: &Staging) -> Result<(), RunError>;

    /// Starts all sends and receives of an exchange; false if there are too few packets.
    fn start_exchange(
        &mut self,
        task: TaskId,
        exchange: &Exchange,
        memory: &Memory<'_>,
    ) -> Result<bool, RunError>;

    /// Starts a collective beside those that are under way, of the same group too; false if there are too few
    /// packets.
    fn start_collective(
        &mut self,
        task: TaskId,
        collective: &Collective,
        memory: &Memory<'_>,
    ) -> Result<bool, RunError>;

    /// Progresses messages without touching the arena. Called between the tiles of a kernel.
    fn advance(&mut self);

    /// Progresses messages, unpacks those that have arrived, and appends the tasks that completed.
    fn poll(&mut self, memory: &Memory<'_>, done: &mut Vec<TaskId>) -> Result<(), RunError>;

    /// Sleeps until a message may have arrived, at most `limit`.
    fn wait(&mut self, limit: Duration);

    /// Ranks that a task in flight waits for.
    fn missing(&self, task: TaskId) -> Vec<Rank>;

    /// Messages sent, their bytes, collectives started and their bytes since the last call, counted from the
    /// packets sent.
    fn take_tally(&mut self) -> [u64; 4];
}

/// Samples of a rank.
pub trait Source {
    /// Starts reading this rank's part.
    fn start(&mut self, task: TaskId, load: &Load, inputs: &Inputs) -> Result<(), RunError>;

    /// Copies samples that have been read into the arena, and appends the tasks that completed.
    fn poll(&mut self, memory: &Memory<'_>, done: &mut Vec<TaskId>) -> Result<(), RunError>;

    /// The rank has waited so long for samples of an epoch alone: no message was under way, and no kernel could start.
    fn waited(&mut self, _epoch: u64, _time: Seconds) {}

    /// Bytes delivered since the last call.
    fn take_tally(&mut self) -> u64;
}

/// Messages between the sample stores of processes, carried by the world while its rank computes or waits.
///
/// Neither method blocks. Messages between two ranks may overtake each other.
pub trait SampleMessages: Send {
    /// The next message to send, if there is one.
    fn next(&mut self) -> Option<(Rank, Vec<u8>)>;

    /// Takes a message of a rank.
    fn deliver(&mut self, from: Rank, message: Vec<u8>);
}

/// Receives the predictions of a rank.
pub trait Sink {
    /// Starts storing this rank's part.
    fn start(&mut self, task: TaskId, store: &Store, inputs: &Inputs) -> Result<(), RunError>;

    /// Copies predictions out of the arena, and appends the tasks that completed.
    fn poll(&mut self, memory: &Memory<'_>, done: &mut Vec<TaskId>) -> Result<(), RunError>;

    /// Bytes taken since the last call.
    fn take_tally(&mut self) -> u64;
}

/// The sink of programs that store nothing.
#[derive(Clone, Copy, Debug)]
pub struct NoSink;

impl Sink for NoSink {
    fn start(&mut self, task: TaskId, _: &Store, _: &Inputs) -> Result<(), RunError> {
        panic!("task {} stores predictions, and nobody takes them", task.0);
    }

    fn poll(&mut self, _: &Memory<'_>, _: &mut Vec<TaskId>) -> Result<(), RunError> {
        Ok(())
    }

    fn take_tally(&mut self) -> u64 {
        0
    }
}

/// A monotonic clock.
pub trait Clock {
    /// Time since some fixed instant.
    fn now(&self) -> Seconds;
}

/// The monotonic clock of the system.
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
