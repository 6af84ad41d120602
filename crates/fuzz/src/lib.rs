//! Fuzzing: mutated inputs for every reader of a user's files, under limits of time and memory.
//!
//! Does: mutates a kept corpus, calls the fuzz targets in a worker process, saves the inputs that
//! panic, hang, exhaust memory or violate an invariant, and reports inputs and faults per target.
//! Knows: the readers of all rooms, and the verbs of the command line as library calls.
//! Must not know: how a reader works. No room depends on this crate.

#![allow(
    clippy::disallowed_methods,
    reason = "a tool of developers reads their own files"
)]

mod corpus;
mod coverage;
mod limits;
mod mutate;
mod supervise;
mod targets;
mod worker;

pub use corpus::{Corpus, corpus_folder};
pub use limits::LimitedMemory;
pub use supervise::{Fault, FaultKind, Report, Settings, supervise, table};
pub use targets::{TARGETS, Target};
pub use worker::{WorkOrder, reproduce, work};
