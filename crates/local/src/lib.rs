//! The world of one process: ranks as threads, plain kernels, samples in memory.
//!
//! Does: runs one thread per rank, moves messages through mailboxes, computes every kernel exactly.
//! Knows: programs and the traits of `run`.
//! Must not know: models, strategies, how a program was made, files, or which kernels are fast.

mod kernels;
mod launch;
mod mailbox;
mod source;
mod transport;
mod values;

pub use kernels::{Real, ReferenceKernels, ReferenceMenu};
pub use launch::{LaunchError, launch};
pub use mailbox::ThreadMail;
pub use source::{MemorySource, Samples, Stored};
pub use transport::{ThreadTransport, connect};
