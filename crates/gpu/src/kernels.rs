//! Implements the kernel trait with the kernels of the device.

mod attention;
mod class_loss;
mod contents;
mod convolution;
mod fused;
mod linear;
mod loss;
mod norm;
mod pointwise;
mod pool;
mod rows;
mod sums;
mod update;

use crate::device::{DeviceError, KernelError};
use crate::launch::{RankPosition, Run, Target};
use crate::memory::{GpuMemory, lock};
use crate::method::pieces;
use crate::opened::Device;
use crate::queue::Queue;
use partita_program::fused::Tail;
use partita_program::{Algorithm, Dtype, Family, Kernel, KernelShape, View};
use partita_run::{Arena, Inputs, KernelSpan, KernelTally, Kernels, Memory, RunError};
use partita_space::{Bytes, Mesh, Rank};
use std::any::Any;
use std::sync::{Arc, Mutex};

/// The kernels of a rank on a device: every kernel of programs in f32, bf16 or f16, by the algorithms `gpu` and, for
/// convolutions, `serial`, also in micro-batches.
///
/// The device runs what it is given in order; [`Kernels::finish`] waits for it. Workspaces must
/// be those that [`crate::GpuMenu`] asks for with as many units. Products add up in f32, other sums in f64, in an order
/// that depends on the shapes and the units alone.
pub struct GpuKernels {
    rank: Rank,
    position: RankPosition,
    queue: Arc<Mutex<Queue>>,
    units: usize,
}

impl GpuKernels {
    /// The kernels of this rank of a mesh.
    ///
    /// Errors: the device refuses a queue.
    pub fn new(device: Arc<Device>, mesh: Mesh, rank: Rank) -> Result<Self, DeviceError> {
        let units = device.facts().units;
        Self::with_units(device, mesh, rank, units)
    }

    /// The kernels of this rank of a mesh, for as many multiprocessors as the catalog was given.
    ///
    /// Errors: the device refuses a queue.
    pub fn with_units(
        device: Arc<Device>,
        mesh: Mesh,
        rank: Rank,
        units: usize,
    ) -> Result<Self, DeviceError> {
        Ok(Self {
            rank,
            position: RankPosition {
                mesh,
                coord: mesh.coord(rank),
            },
            queue: Arc::new(Mutex::new(Queue::new(device)?)),
            units,
        })
    }

    fn failed(&self, fault: KernelError) -> RunError {
        let rank = self.rank;
        match fault {
            KernelError::Device(error) => RunError::Kernels {
                rank,
                reason: error.to_string(),
            },
            KernelError::Source(reason) => RunError::Source { rank, reason },
        }
    }
}

/// Memory of a rank on a device, for messages without kernels.
///
/// Errors: the device refuses a queue or so much memory.
pub fn arena(device: Arc<Device>, rank: Rank, bytes: Bytes) -> Result<Arena, RunError> {
    let queue = Queue::new(device).map_err(|error| RunError::Kernels {
        rank,
        reason: error.to_string(),
    })?;
    arena_of(&Arc::new(Mutex::new(queue)), rank, bytes)
}

fn arena_of(queue: &Arc<Mutex<Queue>>, rank: Rank, bytes: Bytes) -> Result<Arena, RunError> {
    let memory = GpuMemory::new(Arc::clone(queue), bytes).map_err(|error| {
        let queue = lock(queue);
        let facts = queue.device().facts();
        RunError::Kernels {
            rank,
            reason: format!(
                "an arena of {bytes} cannot be allocated on the device, which has {} and allocates up to {} at \
                 once: {error}; lower the batch, or split over more ranks on more devices",
                facts.memory, facts.largest
            ),
        }
    })?;
    Ok(Arena::on_device(Box::new(memory)))
}

impl Kernels for GpuKernels {
    fn arena(&self, rank: Rank, bytes: Bytes) -> Result<Arena, RunError> {
        arena_of(&self.queue, rank, bytes)
    }

    fn execute(
        &mut self,
        kernel: &Kernel,
        algorithm: &Algorithm,
        workspace: Option<&View>,
        memory: &Memory<'_>,
        inputs: &Inputs,
        progress: &mut dyn FnMut() -> bool,
    ) -> Result<KernelTally, RunError> {
        let buffers = &memory.body().buffers;
        let pieces = pieces(&KernelShape { kernel, buffers }, algorithm);
        let pieces = pieces.ok_or_else(|| RunError::Algorithm {
            rank: self.rank,
            kernel: kernel.name().to_owned(),
            algorithm: algorithm.0.clone(),
            backend: "the kernels of a device".to_owned(),
        })?;
        if !progress() {
            return Err(RunError::Cancelled);
        }
        let device: Option<&dyn Any> = memory.device().map(|device| -> &dyn Any { device });
        let arena = device.and_then(|device| device.downcast_ref::<GpuMemory>());
        let arena = arena.expect("the arena of these kernels lies on their device");
        let arena = arena.handle();
        let mut queue = lock(&self.queue);
        let fault = queue.take_fault();
        fault.map_err(|error| self.failed(error.into()))?;
        queue.next_kernel();
        let target = Some(Target {
            queue: &mut queue,
            arena,
            activations: memory.half().unwrap_or(Dtype::F32),
        });
        let mut run = Run::new(
            (buffers, inputs, self.position),
            self.units,
            workspace,
            target,
        );
        let done = pieces.iter().try_for_each(|(piece, method)| {
            run.next_piece(*method);
            execute(piece, &mut run)
        });
        done.map_err(|error| self.failed(error))?;
        // What is launched follows from the views; a device does not count.
        Ok(KernelTally::expected(kernel, buffers))
    }

    fn finish(&mut self) -> Result<Vec<KernelSpan>, RunError> {
        let mut queue = lock(&self.queue);
        let done = queue.finish().and_then(|spans| {
            queue.take_fault()?;
            Ok(spans)
        });
        done.map_err(|error| self.failed(error))
    }
}

/// Gives a kernel to the device, or measures its workspace.
pub(crate) fn execute(kernel: &Kernel, run: &mut Run<'_>) -> Result<(), KernelError> {
    execute_with(kernel, &Tail::default(), run)
}

/// A kernel with an epilogue without sums, which only the first parts of fused kernels have.
fn execute_with(kernel: &Kernel, tail: &Tail<'_>, run: &mut Run<'_>) -> Result<(), KernelError> {
    match kernel.family() {
        Family::Fused => fused::execute_parts(kernel.parts(), run),
        Family::Contents => contents::execute(kernel, run),
        Family::Pointwise => pointwise::execute(kernel, tail, run),
        Family::Convolution => convolution::execute(kernel, tail, run),
        Family::Pool | Family::Resample => pool::execute(kernel, tail, run),
        Family::BatchNorm => norm::execute_batch(kernel, tail, run),
        Family::GroupNorm => norm::execute_groups(kernel, run),
        Family::LayerNorm => rows::execute_layer_norm(kernel, run),
        Family::Linear => linear::execute(kernel, tail, run),
        Family::Sequence => attention::execute(kernel, run),
        Family::Loss => {
            class_loss::execute(kernel, run).unwrap_or_else(|| loss::execute(kernel, run))
        }
        Family::Update => update::execute(kernel, run),
    }
}
