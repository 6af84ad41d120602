//! Where ranks run: as threads of this process, or as processes under a launcher.
//!
//! Does: launches ranks and ends them, holds cores for them, makes their kernels, and says what this host offers. It
//! interprets all environment variables, keeps measured times, and hands events to the caller of a verb.
//! Knows: processors, devices, MPI and its launchers, and other libraries that are loaded at run time.
//! Must not know: the model, strategies, predictions, run files; arguments, the terminal. It never prints.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests read what they wrote")
)]

mod error;
mod losses;
mod progress;

mod environment;
pub mod foreign;
pub mod free_folder;
mod host;
mod launcher;
pub mod near_file;
pub mod size;

pub mod cores;
pub mod kernel_set;
mod thread_limit;
mod times;

mod context;
pub mod launch;
mod local_ranks;

pub use context::Context;
pub use environment::{Environment, EnvironmentError};
pub use error::{ErrorKind, Fault, full_text};
pub use host::{Cache, Host};
pub use launcher::Launcher;
pub use local_ranks::{PinningTimes, RankConfig, Ranks, setting};
pub use losses::{CurvePoint, LossHistory};
pub use progress::{Event, Progress, Silent};
pub use thread_limit::TooManyThreads;
pub use times::NoScratch;
