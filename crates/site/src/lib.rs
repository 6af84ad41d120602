//! Where ranks run: as threads of this process, or as processes under a launcher.
//!
//! Does: launches ranks and ends them, holds cores for them, makes their kernels, and says what this host offers. It
//! interprets all environment variables, keeps measured times, and hands events to the caller of a verb.
//! Knows: processors, devices, MPI and its launchers, and other libraries that are loaded at run time.
//! Must not know: the model, strategies, predictions, run files; arguments, the terminal. It never prints.

pub mod error;
pub mod losses;
pub mod progress;

pub mod environment;
pub mod foreign;
pub mod free_folder;
pub mod host;
pub mod launcher;
pub mod near_file;
pub mod size;

pub mod cores;
pub mod kernel_set;
pub mod thread_limit;
pub mod times;

pub mod context;
pub mod launch;
pub mod local_ranks;
