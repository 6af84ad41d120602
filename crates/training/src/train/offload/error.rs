//! Errors of processes that load samples or validate.

use partita_offload::{Address, JoinError, Role, SecretError};
use partita_site::{ErrorKind, Fault};
use partita_space::Help;
use partita_space::help::extend;
use std::io;

/// A training cannot use its loaders or validators, or such a process cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum OffloadError {
    /// A process cannot be joined.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// There is no secret.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// No file of a secret is known.
    #[error(
        "the secret of loaders and validators: the user has no home folder{}",
        Help::advice("name a file: `secret` under [offload], and --secret of `partita serve`")
    )]
    NoSecret,
    /// A process cannot be started.
    #[error(
        "a {role} cannot be started: {}",
        extend(&error.to_string(), Help::advice(format_args!(
            "give the address of one that runs, like offload.{role}s = [\"localhost:7700\"]"
        )))
    )]
    Start {
        /// What was to be started.
        role: Role,
        /// Why not.
        error: StartError,
    },
    /// Ranks are on several hosts, and no addresses are given.
    #[error(
        "offload.{role}s = {count}: a training starts processes on one host only, and its ranks are on several{}",
        Help::none().nearest("a list of addresses of processes that run, like [\"node7:7700\"]")
    )]
    Hosts {
        /// What was to be started.
        role: Role,
        /// How many.
        count: usize,
    },
    /// There is nothing to validate.
    #[error(
        "offload.validators: {data} has no validation samples{}",
        Help::none().nearest("a dataset with some, or validators = 0")
    )]
    NoValidation {
        /// The dataset.
        data: String,
    },
    /// The validation cannot be divided.
    #[error(
        "offload.validators: {validators} processes for {batches} mini-batch(es) of validation samples{}",
        Help::possible(format_args!("1 to {batches}")).nearest(batches)
    )]
    ManyValidators {
        /// Processes.
        validators: usize,
        /// Mini-batches.
        batches: usize,
    },
    /// The connection broke at its start.
    #[error("the {role} at {address}: {error}")]
    Broken {
        /// Its role.
        role: Role,
        /// Where.
        address: Address,
        /// The error of the system.
        error: io::Error,
    },
    /// It cannot listen.
    #[error(
        "--listen {address}: {error}{}",
        Help::none().nearest("HOST:PORT of this host, where port 0 takes a free one, or unix:PATH")
    )]
    Listen {
        /// Where.
        address: Address,
        /// The error of the system.
        error: io::Error,
    },
}

/// A process for loading or validation does not listen.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The samples are not those of a dataset.
    #[error(
        "it reads the files of a dataset, and the samples of this training are those of a source"
    )]
    NoDataset,
    /// The training has no run file.
    #[error("it reads a run file, and this training has none")]
    NoRunFile,
    /// There is no folder for its socket.
    #[error("no folder for its socket: {0}")]
    NoFolder(io::Error),
    /// The environment does not say how it is started.
    #[error("no command is known that starts it")]
    NoCommand,
    /// The system cannot start it.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It ended first.
    #[error("it ended before it listened; its error is above")]
    Ended,
}

impl Fault for OffloadError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Join(_)
            | Self::Secret(_)
            | Self::NoSecret
            | Self::Hosts { .. }
            | Self::NoValidation { .. }
            | Self::ManyValidators { .. }
            | Self::Listen { .. } => ErrorKind::Request,
            Self::Start { .. } | Self::Broken { .. } => ErrorKind::Failure,
        }
    }
}
