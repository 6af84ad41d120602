//! MPI as a world: ranks are processes that a launcher started, on one node or many.
//!
//! Does: loads whichever MPI is there at run time, carries packets and collectives, tells all ranks of
//! a failure, and finds out which ranks no longer answer.
//! Knows: three families of constants (the standard ABI, MPICH, Open MPI), programs, the traits of `run`.
//! Must not know: models, strategies, the environment, files, or what the letters between ranks say.

mod abi;
mod call;
mod collectives;
mod control;
#[cfg(test)]
mod fake;
mod guard;
mod library;
mod mail;
mod transport;
mod world;

pub use abi::{Constants, Family, Handles, Predefined};
pub use call::MpiError;
pub use guard::End;
pub use library::{Library, LoadError, Wanted};
pub use transport::{Collectives, MpiTransport};
pub use world::{Census, Setting, World, WorldError};
