//! Every kernel as plain loops that follow its definition, in f32 and f64.
//!
//! Does: computes kernels exactly, which is what the fast ones are compared with.
//! Knows: programs and the kernel trait of `run`.
//! Must not know: models, strategies, how a program was made, threads, files, or which kernels are
//! fast.

mod kernels;
mod values;

pub use kernels::{Real, ReferenceKernels, ReferenceMenu};
