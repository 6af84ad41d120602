//! Training under the launchers of three MPIs and Slurm's srun: the same bits as threads, one report, and
//! an end when a rank dies or hangs.
//!
//! `crates/mpi/install-test-mpi.sh` installs what these tests need, but not Slurm. A launcher that is not
//! there is named on the error output: its tests have then not run.

#![allow(clippy::disallowed_methods, reason = "tests read what they wrote")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![cfg(target_os = "linux")]

mod case;
mod launchers;
mod predictions;

mod checkpoints;
mod cores;
mod devices;
mod faults;
mod forward;
mod hosts;
mod offload;
mod refusals;
mod runs;
mod slurm;
mod store;
