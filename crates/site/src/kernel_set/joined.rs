//! The CPU kernels, joined with the convolutions of oneDNN.

use super::Processing;
use partita_cpu::CpuKernels;
use partita_onednn::{NAME, OneDnnKernels, OneDnnMenu};
use partita_program::{
    Access, Algorithm, Buffer, BufferId, Choice, Configuration, Family, Kernel, KernelShape, Menu,
    MenuError, View,
};
use partita_run::{Inputs, KernelTally, Kernels, Memory, RunError};
use partita_space::{Bytes, Rank, Seconds};
use std::sync::Arc;

/// What a library adds to the kernels of a backend.
pub(crate) trait Supplement: Sync {
    /// The name of its implementations in algorithms.
    fn name(&self) -> &'static str;

    /// How many parts of a kernel it computes, from the first on, and in which workspace; none if it computes none.
    fn offer(&self, parts: &[Kernel], buffers: &[Buffer]) -> Option<(usize, Bytes)>;
}

impl Supplement for OneDnnMenu {
    fn name(&self) -> &'static str {
        NAME
    }

    fn offer(&self, parts: &[Kernel], buffers: &[Buffer]) -> Option<(usize, Bytes)> {
        let offer = self.offer(parts, buffers)?;
        Some((offer.parts, offer.workspace))
    }
}

/// The implementations of a backend, and those that libraries add to it.
///
/// Parts of a fused kernel that a library does not compute follow one by one by the backend.
pub(crate) struct JoinedMenu {
    /// The backend.
    pub usual: Box<dyn Menu>,
    /// The libraries.
    pub supplements: Vec<Box<dyn Supplement>>,
}

impl JoinedMenu {
    fn supplied(&self, by: &dyn Supplement, shape: &KernelShape<'_>) -> Option<Choice> {
        let parts = shape.kernel.parts();
        let (done, mut workspace) = by.offer(parts, shape.buffers)?;
        for part in &parts[done..] {
            let shape = KernelShape {
                kernel: &standalone(part)?,
                buffers: shape.buffers,
            };
            let rest = self.usual.choose(&shape).ok()?;
            workspace = workspace.max(rest.workspace);
        }
        Some(Choice {
            algorithm: Algorithm(by.name().to_owned()),
            workspace,
            packed_weights: 0,
        })
    }
}

/// A part of a fused kernel as a kernel of its own; none if the CPU kernels have none, as for a normalization in place.
fn standalone(part: &Kernel) -> Option<Kernel> {
    if let Kernel::Add { a, b, y } = part
        && (a == y) != (b == y)
    {
        return Some(Kernel::Copy {
            source: if a == y { *b } else { *a },
            target: *y,
            accumulate: true,
        });
    }
    let accesses = part.accesses();
    let is_read = |buffer: BufferId| {
        let mut all = accesses.iter();
        all.any(|(view, access)| view.buffer == buffer && *access == Access::Read)
    };
    let mut written = accesses.iter().filter(|(_, access)| access.writes());
    let is_apart = !written.any(|(view, _)| is_read(view.buffer));
    (is_apart || part.family() == Family::Pointwise).then(|| part.clone())
}

impl Menu for JoinedMenu {
    fn choose(&self, shape: &KernelShape<'_>) -> Result<Choice, MenuError> {
        self.usual.choose(shape)
    }

    fn implementations(&self, shape: &KernelShape<'_>) -> Result<Vec<Choice>, MenuError> {
        let mut all = self.usual.implementations(shape)?;
        let supplements = self.supplements.iter();
        all.extend(supplements.filter_map(|by| self.supplied(&**by, shape)));
        Ok(all)
    }

    fn expected(&self, shape: &KernelShape<'_>, method: &str) -> Option<Seconds> {
        self.usual.expected(shape, method)
    }

    fn measured(&self, shape: &KernelShape<'_>, configuration: &str) -> Option<Seconds> {
        self.usual.measured(shape, configuration)
    }

    fn fuses(&self) -> bool {
        self.usual.fuses()
    }
}

/// The kernels of a rank. The library is loaded by the first kernel that names it.
pub struct JoinedKernels {
    rank: Rank,
    cpu: CpuKernels,
    processing: Processing,
    /// Empty if the rank is not pinned.
    cores: Vec<usize>,
    onednn: Option<OneDnnKernels>,
}

/// The arguments of [`Kernels::execute`] that its parts share.
struct Execution<'e, 'm> {
    workspace: Option<&'e View>,
    memory: &'e Memory<'m>,
    inputs: &'e Inputs,
    progress: &'e mut dyn FnMut() -> bool,
}

impl JoinedKernels {
    /// The CPU kernels of a rank, whose team is on these cores.
    pub fn new(rank: Rank, cpu: CpuKernels, processing: Processing, cores: Vec<usize>) -> Self {
        Self {
            rank,
            cpu,
            processing,
            cores,
            onednn: None,
        }
    }

    fn refusal(&self, kernel: &Kernel, algorithm: &Algorithm) -> RunError {
        let possible: Vec<&str> = CpuKernels::implementations().collect();
        let possible = possible.join(", ");
        let reason = match self.processing.onednn.library() {
            Ok(library) => format!("{library:?} has no fast code for this shape and these threads"),
            Err(error) => format!("{error}; PARTITA_ONEDNN=/path/to/libdnnl.so.3 names it"),
        };
        RunError::Algorithm {
            rank: self.rank,
            kernel: kernel.name().to_owned(),
            algorithm: algorithm.0.clone(),
            backend: format!("the CPU kernels ({reason}); possible are {possible}"),
        }
    }

    fn failure(&self, error: impl ToString) -> RunError {
        RunError::Kernels {
            rank: self.rank,
            reason: error.to_string(),
        }
    }

    /// By the CPU kernels.
    fn usual(
        &mut self,
        kernel: &Kernel,
        algorithm: &Algorithm,
        run: &mut Execution<'_, '_>,
    ) -> Result<(), RunError> {
        let (memory, inputs) = (run.memory, run.inputs);
        let worked = self.cpu.execute(
            kernel,
            algorithm,
            run.workspace,
            memory,
            inputs,
            &mut *run.progress,
        );
        worked.map(drop)
    }

    /// By the library, as far as it goes; false if it offers nothing.
    fn onednn(&mut self, kernel: &Kernel, run: &mut Execution<'_, '_>) -> Result<bool, RunError> {
        if !(run.progress)() {
            return Err(RunError::Cancelled);
        }
        let parts = kernel.parts();
        if self.onednn.is_none() {
            let Ok(library) = self.processing.onednn.library() else {
                return Ok(false);
            };
            let (library, threads) = (Arc::clone(library), self.processing.threads);
            let made = OneDnnKernels::new(library, threads, &self.cores);
            self.onednn = Some(made.map_err(|error| self.failure(error))?);
        }
        let Some(onednn) = &mut self.onednn else {
            return Ok(false);
        };
        let (workspace, memory) = (run.workspace, run.memory);
        let done = self
            .cpu
            .at_rest(|| onednn.execute(parts, workspace, memory));
        let Some(done) = done.map_err(|error| self.failure(error))? else {
            return Ok(false);
        };
        let usual = Algorithm("cpu".to_owned());
        for part in &parts[done..] {
            let Some(part) = standalone(part) else {
                return Ok(false);
            };
            self.usual(&part, &usual, run)?;
        }
        Ok(true)
    }
}

impl Kernels for JoinedKernels {
    fn wake(&mut self) {
        self.cpu.wake();
    }

    /// Of kernels by the library, flops and bytes are those of the shape; they call `progress` before and after it only.
    fn execute(
        &mut self,
        kernel: &Kernel,
        algorithm: &Algorithm,
        workspace: Option<&View>,
        memory: &Memory<'_>,
        inputs: &Inputs,
        progress: &mut dyn FnMut() -> bool,
    ) -> Result<KernelTally, RunError> {
        let configuration = Configuration::of(algorithm).ok();
        let Some(configuration) = configuration.filter(|it| it.uses(NAME)) else {
            let cpu = &mut self.cpu;
            return cpu.execute(kernel, algorithm, workspace, memory, inputs, progress);
        };
        let buffers = &memory.body().buffers;
        let mut run = Execution {
            workspace,
            memory,
            inputs,
            progress,
        };
        let is_done = match &configuration {
            Configuration::Undivided { .. } => self.onednn(kernel, &mut run)?,
            Configuration::Divided { dim, .. } => {
                let shape = KernelShape { kernel, buffers };
                let covered: usize = configuration
                    .micro_batches()
                    .map(|(_, extent, _)| extent)
                    .sum();
                let whole = shape.cut_extents().map(|extents| extents[*dim]);
                let mut is_done = whole == Some(covered);
                for (start, extent, method) in configuration.micro_batches() {
                    let piece = shape.piece(*dim, start, extent).filter(|_| is_done);
                    is_done = match piece {
                        None => false,
                        Some(piece) if method == NAME => self.onednn(&piece, &mut run)?,
                        Some(piece) => {
                            self.usual(&piece, &Algorithm(method.to_owned()), &mut run)?;
                            true
                        }
                    };
                }
                is_done
            }
        };
        if !is_done {
            return Err(self.refusal(kernel, algorithm));
        }
        Ok(KernelTally::expected(kernel, buffers))
    }
}

#[cfg(test)]
mod tests;
