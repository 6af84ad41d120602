//! The kernels of programs, computed by the kernels of this crate.

mod class_loss;
mod convolution;
mod dropout;
mod element_loss;
mod expected;
mod fused;
mod group_norm;
mod layer;
mod linear;
mod loss;
mod menu;
mod method;
mod native;
mod norm;
mod operand;
mod pieces;
mod pointwise;
mod pool;
mod prelu;
mod product;
mod resample;
mod sequence;
mod tail;
mod update;

pub use menu::CpuMenu;

use crate::bf16::convert;
use crate::grid::{self, Call, Canceled, ViewMut, Work};
use crate::team::Team;
use half::bf16;
use method::{Method, Plan};
use native::{Native, is_native};
use operand::{AnyBlock, Input, Output, vector};
use partita_program::fused::Tail;
use partita_program::{Algorithm, Family, Kernel, KernelShape, View};
use partita_run::{
    Block, BlockMut, Element, Inputs, KernelTally, Kernels, Memory, RunError, WideExecutor,
    execute_widened,
};
use partita_space::{Coord, Mesh, Rank};
use pieces::execute_pieces;
use std::cell::Cell;

/// The kernels of this crate for a rank: programs in f32 or bf16, every kernel by the algorithm `cpu`, convolutions also by
/// others and in micro-batches (see [`partita_program::Configuration`]).
///
/// Workspaces must be those that [`CpuMenu`] asks for with as many threads and the same level.
/// Sums over elements are taken in f64, some over a few elements in f32 first, as are losses; products of
/// convolutions, linear layers and attention, and gradients of embeddings, add up in f32.
pub struct CpuKernels {
    mesh: Mesh,
    rank: Rank,
    coord: Coord,
    team: Team,
}

impl CpuKernels {
    /// The kernels of this rank of a mesh, on a team of its own.
    pub fn new(mesh: Mesh, rank: Rank, team: Team) -> Self {
        Self {
            mesh,
            rank,
            coord: mesh.coord(rank),
            team,
        }
    }

    /// Names of the implementations of convolutions.
    pub fn implementations() -> impl Iterator<Item = &'static str> {
        Method::ALL.into_iter().map(Method::name)
    }

    /// As [`Team::at_rest`] of its team.
    pub fn at_rest<R>(&mut self, body: impl FnOnce() -> R) -> R {
        self.team.at_rest(body)
    }
}

/// The context of a running kernel.
struct Run<'r, 'm> {
    team: &'r mut Team,
    memory: &'r Memory<'m>,
    inputs: &'r Inputs,
    workspace: Option<&'r View>,
    progress: &'r mut dyn FnMut() -> bool,
    /// How convolutions are computed.
    method: Method,
    /// Bytes of the boxes that were read and written.
    bytes: Cell<u64>,
}

impl<'r> Run<'r, '_> {
    fn count(&self, bytes: u64) {
        self.bytes.set(self.bytes.get() + bytes);
    }

    fn input(&self, view: &View) -> Input<'r> {
        self.input_of(view)
    }

    fn output(&self, view: &View) -> Output<'r> {
        self.output_of(view, false)
    }

    /// A box that is also read if it accumulates.
    fn result(&self, view: &View, accumulate: bool) -> Output<'r> {
        self.output_of(view, accumulate)
    }

    /// Of activations in any type.
    fn input_of<E: Element>(&self, view: &View) -> Input<'r, E> {
        Input::new(self.read(view))
    }

    fn output_of<E: Element>(&self, view: &View, accumulate: bool) -> Output<'r, E> {
        Output::new(self.write(view, accumulate))
    }

    /// A contiguous box.
    fn dense(&self, view: &View) -> Block<'r, f32> {
        vector(self.read(view))
    }

    /// Contiguous sums over channels.
    fn sums(&self, view: &View) -> Block<'r, f64> {
        vector(self.read(view))
    }

    /// Sums that are written.
    fn totals(&self, view: &View, accumulate: bool) -> BlockMut<'r, f64> {
        self.write(view, accumulate)
    }

    fn any(&self, view: &View) -> AnyBlock<'r> {
        let block = AnyBlock::of(self.memory, view);
        self.count(block.bytes());
        block
    }

    fn read<E: Element>(&self, view: &View) -> Block<'r, E> {
        let block = self.memory.read(view);
        self.count(block.box_bytes());
        block
    }

    fn write<E: Element>(&self, view: &View, accumulate: bool) -> BlockMut<'r, E> {
        let block = self.memory.write(view);
        self.count(block.box_bytes() * (1 + u64::from(accumulate)));
        block
    }

    /// The flops of a kernel that leaves everything as it is; its bytes are counted.
    fn skipped(&self, parts: &[Kernel]) -> u64 {
        let mut all = KernelTally::default();
        for part in parts {
            all += KernelTally::expected(part, &self.memory.body().buffers);
        }
        self.bytes.set(all.bytes);
        all.flops
    }

    /// The work of a kernel that did these flops.
    fn tally(&self, kernel: &Kernel, flops: u64) -> KernelTally {
        let is_fused = matches!(kernel, Kernel::Fused { .. });
        let bytes = if is_fused { 0 } else { self.bytes.get() };
        KernelTally { flops, bytes }
    }

    /// Calls a kernel of this crate with the workspace as its scratch.
    fn compute<R>(
        &mut self,
        body: impl FnOnce(&mut Call) -> Result<R, Canceled>,
    ) -> Result<R, RunError> {
        let mut workspace = self.workspace.map(|view| self.memory.write::<f32>(view));
        let scratch = match &mut workspace {
            Some(block) => block.data_mut(),
            None => &mut [],
        };
        let mut call = Call {
            team: self.team,
            scratch,
            progress: self.progress,
        };
        body(&mut call).map_err(|Canceled| RunError::Cancelled)
    }

    /// The same; returns its flops.
    fn flops(
        &mut self,
        body: impl FnOnce(&mut Call) -> Result<Work, Canceled>,
    ) -> Result<u64, RunError> {
        Ok(self.compute(body)?.flops)
    }

    /// For loops outside of the team: call it once a row.
    fn go_on(&mut self) -> Result<(), RunError> {
        if (self.progress)() {
            Ok(())
        } else {
            Err(RunError::Cancelled)
        }
    }
}

impl Kernels for CpuKernels {
    fn wake(&mut self) {
        self.team.wake();
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
        let unknown = || RunError::Algorithm {
            rank: self.rank,
            kernel: kernel.name().to_owned(),
            algorithm: algorithm.0.clone(),
            backend: "the CPU kernels".to_owned(),
        };
        let plan = Plan::of(algorithm).ok_or_else(unknown)?;
        let mut run = Run {
            team: &mut self.team,
            memory,
            inputs,
            workspace,
            progress,
            method: Method::Direct,
            bytes: Cell::new(0),
        };
        // Small kernels end before they would ask.
        run.go_on()?;
        match plan {
            Plan::Undivided(method) => {
                run.method = method;
                let place = (&self.mesh, self.rank, &self.coord);
                widened(kernel, &mut run, |kernel, run| {
                    undivided(kernel, place, run)
                })
            }
            Plan::Divided { dim, pieces } => {
                execute_pieces(kernel, (dim, &pieces), &mut run)?.ok_or_else(unknown)
            }
        }
    }
}

/// Executes a kernel on f32, which may stand for one on floats of two bytes, or one on bf16 itself. `execute` returns
/// its flops.
fn widened(
    kernel: &Kernel,
    run: &mut Run<'_, '_>,
    execute: impl Fn(&Kernel, &mut Run<'_, '_>) -> Result<u64, RunError>,
) -> Result<KernelTally, RunError> {
    let buffers = &run.memory.body().buffers;
    if run.memory.half().is_none() || !(KernelShape { kernel, buffers }).computes_in_half() {
        let flops = execute(kernel, run)?;
        return Ok(run.tally(kernel, flops));
    }
    if is_native(run.method, kernel, buffers) {
        let flops = fused::execute_convolution::<bf16>(kernel.parts(), run)?;
        return Ok(run.tally(kernel, flops));
    }
    let (workspace, memory) = (run.workspace, run.memory);
    execute_widened(kernel, workspace, memory, &mut Wide { run, execute })
}

/// Kernels on f32 in place of those on floats of two bytes.
struct Wide<'w, 'r, 'm, F> {
    run: &'w mut Run<'r, 'm>,
    execute: F,
}

impl<F> Wide<'_, '_, '_, F> {
    /// One box to the other, on the team.
    fn convert<A: Native, B: Native>(
        &mut self,
        from: &Block<'_, A>,
        to: &mut BlockMut<'_, B>,
        rounds: bool,
    ) -> Result<(), RunError> {
        let grids = [(from.extent, from.pitch), (to.extent, to.pitch)];
        let [from_grid, to_grid] = grids.map(|(extent, pitch)| operand::grid(extent, pitch));
        let mut call = Call {
            team: &mut *self.run.team,
            scratch: &mut [],
            progress: &mut *self.run.progress,
        };
        let x = grid::View::new(from.data(), &from_grid);
        let y = ViewMut::new(to.data_mut(), &to_grid);
        convert(&mut call, x, y, rounds).map_err(|Canceled| RunError::Cancelled)
    }
}

impl<F> WideExecutor for Wide<'_, '_, '_, F>
where
    F: Fn(&Kernel, &mut Run<'_, '_>) -> Result<u64, RunError>,
{
    fn execute(
        &mut self,
        kernel: &Kernel,
        workspace: Option<&View>,
        memory: &Memory<'_>,
    ) -> Result<KernelTally, RunError> {
        let mut wide = Run {
            team: &mut *self.run.team,
            memory,
            inputs: self.run.inputs,
            workspace,
            progress: &mut *self.run.progress,
            method: self.run.method,
            bytes: Cell::new(0),
        };
        let flops = (self.execute)(kernel, &mut wide)?;
        Ok(wide.tally(kernel, flops))
    }

    fn widen(
        &mut self,
        from: &Block<'_, bf16>,
        to: &mut BlockMut<'_, f32>,
    ) -> Result<(), RunError> {
        self.convert(from, to, false)
    }

    fn round(&mut self, from: &Block<'_, f32>, to: &mut BlockMut<'_, f32>) -> Result<(), RunError> {
        self.convert(from, to, true)
    }

    fn narrow(
        &mut self,
        from: &Block<'_, f32>,
        to: &mut BlockMut<'_, bf16>,
    ) -> Result<(), RunError> {
        self.convert(from, to, false)
    }
}

/// Returns the flops.
fn undivided(
    kernel: &Kernel,
    (mesh, rank, coord): (&Mesh, Rank, &Coord),
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    match kernel.family() {
        Family::Fused => fused::execute(kernel.parts(), run),
        Family::Contents | Family::Pointwise => pointwise::execute(kernel, (mesh, coord), run),
        Family::Convolution => convolution::execute::<f32>(kernel, &Tail::default(), run),
        Family::Pool => pool::execute(kernel, &Tail::default(), run),
        Family::Resample => resample::execute(kernel, run),
        Family::BatchNorm => norm::execute(kernel, &Tail::default(), run),
        Family::GroupNorm => group_norm::execute(kernel, run),
        Family::Linear => linear::execute(kernel, &Tail::default(), run),
        Family::Loss if matches!(kernel, Kernel::ElementLoss { .. }) => {
            element_loss::execute(kernel, run)
        }
        Family::Loss if class_loss::has(kernel) => class_loss::execute(kernel, rank, run),
        Family::Loss => loss::execute(kernel, rank, run),
        Family::LayerNorm | Family::Sequence => sequence::execute(kernel, (mesh, rank, coord), run),
        Family::Update => update::execute(kernel, run),
    }
}
