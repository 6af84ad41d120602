//! MPI as a world: ranks are processes that a launcher started, on one node or many.
//!
//! Does: loads the MPI library at run time, carries packets and collectives, broadcasts failures, and
//! detects ranks that no longer answer.
//! Knows: three families of constants (the standard ABI, MPICH, Open MPI), programs, the traits of `run`.
//! Must not know: models, strategies, the environment, files, or the contents of control messages.

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
pub use guard::EndProcess;
pub use library::{Library, LibrarySearch, LoadError};
pub use transport::{Collectives, MpiTransport};
pub use world::{LivenessReport, World, WorldError, WorldOptions};
