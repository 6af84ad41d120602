//! What a process that serves trainings is asked.

use partita_offload::{Address, Role};
use partita_space::Seconds;
use std::path::PathBuf;

/// A process that serves trainings.
#[derive(Clone, Debug, PartialEq)]
pub struct ServeRequest {
    /// The run file of the training.
    pub run_file: PathBuf,
    /// What it does.
    pub role: Role,
    /// Where it listens.
    pub listen: Address,
    /// The file with the secret that trainings must have (default: that of the user).
    pub secret: Option<PathBuf>,
    /// Delay of each piece or validation, to imitate a slow processor.
    pub delay: Seconds,
    /// Ranks of a validator (default: those of the training).
    pub ranks: Option<usize>,
    /// Threads of each (default: those of the training).
    pub threads: Option<usize>,
    /// Its strategy (default: that of the training).
    pub strategy: Option<String>,
    /// Whether connections are reported.
    pub is_quiet: bool,
}
