//! Kernels with hooks before and after each.

use partita_program::{Algorithm, Kernel, View};
use partita_run::{Arena, Inputs, KernelSpan, KernelTally, Kernels, Memory, RunError};
use partita_space::{Bytes, Rank};

/// Runs a kernel, or a part of it.
pub type Execute<'e> = &'e mut dyn FnMut(&Kernel) -> Result<KernelTally, RunError>;

struct WrappedKernels<'k, F> {
    kernels: Box<dyn Kernels + 'k>,
    execute: F,
}

/// Kernels with hooks: `execute` runs each through the given ones.
pub fn wrap_kernels<'k, F>(kernels: Box<dyn Kernels + 'k>, execute: F) -> Box<dyn Kernels + 'k>
where
    F: FnMut(&Kernel, &Memory<'_>, Execute<'_>) -> Result<KernelTally, RunError> + 'k,
{
    Box::new(WrappedKernels { kernels, execute })
}

impl<F> Kernels for WrappedKernels<'_, F>
where
    F: FnMut(&Kernel, &Memory<'_>, Execute<'_>) -> Result<KernelTally, RunError>,
{
    fn wake(&mut self) {
        self.kernels.wake();
    }

    fn arena(&self, rank: Rank, bytes: Bytes) -> Result<Arena, RunError> {
        self.kernels.arena(rank, bytes)
    }

    fn finish(&mut self) -> Result<Vec<KernelSpan>, RunError> {
        self.kernels.finish()
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
        (self.execute)(kernel, memory, &mut |kernel| {
            self.kernels
                .execute(kernel, algorithm, workspace, memory, inputs, progress)
        })
    }
}
