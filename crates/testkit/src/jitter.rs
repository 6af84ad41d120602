//! Kernels with adversarial timing.

use crate::{Draws, wrap_kernels};
use partita_reference::ReferenceKernels;
use partita_run::Kernels;
use partita_space::{Mesh, Rank};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// f64 reference kernels with random delays, different in every run.
pub fn jittery_kernels() -> impl Fn(Mesh, Rank) -> Box<dyn Kernels> + Sync {
    let runs = AtomicU64::new(0);
    move |mesh, rank| {
        let mut draws = Draws::new(runs.fetch_add(1, Ordering::Relaxed));
        let kernels = Box::new(ReferenceKernels::<f64>::new(mesh, rank));
        wrap_kernels(kernels, move |kernel, _, execute| {
            if draws.one_in(8) {
                std::thread::sleep(Duration::from_micros(draws.between(0, 400) as u64));
            }
            execute(kernel)
        })
    }
}
