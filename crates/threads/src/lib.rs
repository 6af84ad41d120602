//! The world of one process: ranks as threads.
//!
//! Does: runs one thread per rank, and passes messages through mailboxes.
//! Knows: meshes, and the transport traits of `run`.
//! Must not know: models, strategies, how a program was made, kernels, or files.

mod launch;
mod mailbox;
mod transport;

pub use launch::{LaunchError, launch};
pub use mailbox::ThreadPointToPoint;
pub use transport::{ThreadTransport, connect};
