//! MPI as a world: ranks are processes that a launcher started, on one node or many.
//!
//! Does: loads the MPI library at run time, carries packets and collectives, broadcasts failures, and
//! detects ranks that no longer answer.
//! Knows: three families of constants (the standard ABI, MPICH, Open MPI), programs, the traits of `run`.
//! Must not know: models, strategies, the environment, files, or the contents of control messages.
//!
//! # Failures
//!
//! Ranks exchange control messages on a communicator of their own (`control`): heartbeats while a rank prepares,
//! and the reason when one fails. A rank whose watchdog fires reports its failure to all others. A rank that does
//! not answer within four seconds is the missing one, however many ranks wait for each other. Blocking calls of MPI
//! (Init, Comm_split, Finalize, Abort) are guarded by a thread that calls back (`OnTimeout`), where the binary ends the process. All timeouts are polled
//! (`run::Watchdog`), and a gap between two polls counts for at most a tenth of the limit: a process that was
//! stopped (SIGSTOP, Ctrl-Z) does not blame others for it.
//!
//! # Waiting
//!
//! A rank that waits polls for a millisecond before it sleeps, since waking takes longer than most messages; where
//! ranks share cores it sleeps at once. Threads of a rank wait between kernels in the same way (`cpu/team`).
//!
//! # Agreement
//!
//! Rank 0 chooses a strategy that is left open and sends it to all. Every rank lowers for itself, and digests are
//! compared before anything starts. Rank 0 alone prints and writes; what the others measured is sent to it at the
//! end.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests read what they wrote")
)]

mod abi;
mod call;
mod collectives;
mod control;
#[cfg(test)]
mod fake;
mod guard;
mod library;
mod point_to_point;
mod transport;
mod world;

pub use abi::{Constants, Family, Handles, Predefined};
pub use call::MpiError;
pub use guard::OnTimeout;
pub use library::{Library, LibrarySearch, LoadError};
pub use transport::{Collectives, MpiTransport};
pub use world::{LivenessReport, World, WorldError, WorldOptions, finalize, is_left_running};
