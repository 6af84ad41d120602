//! Implements the kernel trait with the plain loops of each family.

mod activation;
mod attention;
mod class_loss;
mod convolution;
mod group_norm;
mod layer_norm;
mod linear;
mod loss;
mod norm;
mod pointwise;
mod pool;
mod prelu;
mod product;
mod resample;
mod sequence;
mod update;

use crate::values::Values;
use partita_program::{Algorithm, Choice, Family, Kernel, KernelShape, Menu, MenuError, View};
use partita_run::{
    Block, BlockMut, Element, Inputs, KernelTally, Kernels, Memory, RunError, execute_widened,
};
use partita_space::{Coord, Mesh, Rank};
use std::cell::Cell;
use std::marker::PhantomData;

const NAME: &str = "reference";

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

/// The element type of activations and parameters: `f32` or `f64`.
pub trait Real: Element + sealed::Sealed {
    /// Exact.
    fn wide(self) -> f64;
    /// Rounded to nearest.
    fn narrow(value: f64) -> Self;
}

impl Real for f32 {
    fn wide(self) -> f64 {
        f64::from(self)
    }
    fn narrow(value: f64) -> Self {
        value as f32
    }
}

impl Real for f64 {
    fn wide(self) -> f64 {
        self
    }
    fn narrow(value: f64) -> Self {
        value
    }
}

/// Every kernel as plain loops that follow its definition: slow, and exact in that every sum is taken
/// in f64 and rounded to `T` once.
///
/// Offers the algorithm `reference` for every kernel and needs no workspace, but for copies of bf16 and f16 in f32. With
/// `clip`, gradients are scaled by `min(1, maximum / (sqrt(total) + 1e-6))`, as `torch.nn.utils.clip_grad_norm_` does
/// (PyTorch 2, `torch/nn/utils/clip_grad.py`).
pub struct ReferenceKernels<T: Real> {
    mesh: Mesh,
    rank: Rank,
    coord: Coord,
    scratch: Vec<f64>,
    real: PhantomData<T>,
}

/// The context of a kernel call.
struct Call<'c, 'm> {
    memory: &'c Memory<'m>,
    inputs: &'c Inputs,
    progress: &'c mut dyn FnMut() -> bool,
    /// Bytes of the boxes that were read and written.
    bytes: Cell<u64>,
}

impl<'c> Call<'c, '_> {
    fn count(&self, bytes: u64, accumulate: bool) {
        self.bytes
            .set(self.bytes.get() + bytes * (1 + u64::from(accumulate)));
    }

    /// A box that is read or written.
    fn values(&self, view: &View) -> Values<'c> {
        self.result(view, false)
    }

    /// A box that is written, and also read if it accumulates.
    fn result(&self, view: &View, accumulate: bool) -> Values<'c> {
        let values = Values::of(self.memory, view);
        self.count(values.bytes(), accumulate);
        values
    }

    fn read<T: Real>(&self, view: &View) -> Block<'c, T> {
        let block = self.memory.read(view);
        self.count(block.box_bytes(), false);
        block
    }

    fn write<T: Real>(&self, view: &View, accumulate: bool) -> BlockMut<'c, T> {
        let block = self.memory.write(view);
        self.count(block.box_bytes(), accumulate);
        block
    }

    /// The flops of a kernel that leaves everything as it is; its bytes are counted.
    fn skipped(&self, kernel: &Kernel) -> u64 {
        let expected = KernelTally::expected(kernel, &self.memory.body().buffers);
        self.bytes.set(expected.bytes);
        expected.flops
    }
}

impl<T: Real> ReferenceKernels<T> {
    /// The kernels of this rank of a mesh.
    pub fn new(mesh: Mesh, rank: Rank) -> Self {
        Self {
            mesh,
            rank,
            coord: mesh.coord(rank),
            scratch: Vec::new(),
            real: PhantomData,
        }
    }
}

impl<T: Real> Kernels for ReferenceKernels<T> {
    fn execute(
        &mut self,
        kernel: &Kernel,
        algorithm: &Algorithm,
        workspace: Option<&View>,
        memory: &Memory<'_>,
        inputs: &Inputs,
        progress: &mut dyn FnMut() -> bool,
    ) -> Result<KernelTally, RunError> {
        if algorithm.0 != NAME {
            return Err(RunError::Algorithm {
                rank: self.rank,
                kernel: kernel.name().to_owned(),
                algorithm: algorithm.0.clone(),
                backend: "the reference kernels".to_owned(),
            });
        }
        let buffers = &memory.body().buffers;
        if memory.half().is_some() && (KernelShape { kernel, buffers }).computes_in_half() {
            return execute_widened(
                kernel,
                workspace,
                memory,
                &mut |kernel: &Kernel, _: Option<&View>, memory: &Memory<'_>| {
                    self.execute(kernel, algorithm, None, memory, inputs, progress)
                },
            );
        }
        if let Kernel::Fused { parts } = kernel {
            let mut worked = KernelTally::default();
            for part in parts {
                worked += self.execute(part, algorithm, None, memory, inputs, progress)?;
            }
            return Ok(KernelTally { bytes: 0, ..worked });
        }
        let mut call = Call {
            memory,
            inputs,
            progress,
            bytes: Cell::new(0),
        };
        let flops = match kernel.family() {
            Family::Fused => unreachable!("a fused kernel is executed part by part"),
            Family::Contents | Family::Pointwise => {
                pointwise::execute(kernel, &self.mesh, &self.coord, &mut call)
            }
            Family::Convolution => convolution::execute::<T>(kernel, &mut self.scratch, &mut call),
            Family::Pool => pool::execute(kernel, &mut self.scratch, &mut call),
            Family::Resample => resample::execute(kernel, &mut self.scratch, &mut call),
            Family::BatchNorm => norm::execute(kernel, &mut call),
            Family::LayerNorm => layer_norm::execute(kernel, &mut call),
            Family::GroupNorm => group_norm::execute(kernel, &mut call),
            Family::Linear => linear::execute::<T>(kernel, &mut self.scratch, &mut call),
            Family::Sequence => {
                sequence::execute(kernel, (&self.mesh, self.rank, &self.coord), &mut call)
            }
            Family::Loss if class_loss::has(kernel) => {
                class_loss::execute(kernel, self.rank, &mut call)
            }
            Family::Loss => loss::execute(kernel, self.rank, &mut call),
            Family::Update => update::execute(kernel, &mut call),
        }?;
        let bytes = call.bytes.get();
        Ok(KernelTally { flops, bytes })
    }
}

/// The catalog of the reference kernels: `reference` for every kernel, no workspace but for copies of bf16 and
/// f16 in f32.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReferenceMenu;

impl Menu for ReferenceMenu {
    fn choose(&self, shape: &KernelShape<'_>) -> Result<Choice, MenuError> {
        let wide = shape
            .computes_in_half()
            .then(|| shape.largest_widened().bytes);
        Ok(Choice {
            algorithm: Algorithm(NAME.to_owned()),
            workspace: wide.unwrap_or_default(),
            packed_weights: 0,
        })
    }
}
