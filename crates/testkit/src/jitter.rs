use crate::Draws;
use partita_local::ReferenceKernels;
use partita_program::{Algorithm, Kernel, View};
use partita_run::{Inputs, Kernels, Memory, RunError, Worked};
use partita_space::{Mesh, Rank};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Kernels of adversarial timing: some start late, by other delays in every run.
struct Jitter {
    kernels: ReferenceKernels<f64>,
    draws: Draws,
}

/// f64 reference kernels that dawdle at random.
pub fn jittery_kernels() -> impl Fn(Mesh, Rank) -> Box<dyn Kernels> + Sync {
    let runs = AtomicU64::new(0);
    move |mesh, rank| {
        let run = runs.fetch_add(1, Ordering::Relaxed);
        Box::new(Jitter {
            kernels: ReferenceKernels::new(mesh, rank),
            draws: Draws::new(run),
        })
    }
}

impl Kernels for Jitter {
    fn execute(
        &mut self,
        kernel: &Kernel,
        algorithm: &Algorithm,
        workspace: Option<&View>,
        memory: &Memory<'_>,
        inputs: &Inputs,
        progress: &mut dyn FnMut() -> bool,
    ) -> Result<Worked, RunError> {
        if self.draws.one_in(8) {
            std::thread::sleep(Duration::from_micros(self.draws.between(0, 400) as u64));
        }
        self.kernels
            .execute(kernel, algorithm, workspace, memory, inputs, progress)
    }
}
