//! Errors of launching and running ranks.

use crate::cores::NoSuchCores;
use crate::error::{ErrorKind, Fault};
use crate::thread_limit::TooManyThreads;
use partita_mpi::{LoadError, WorldError};
use partita_program::Role;
use partita_run::RunError;
use partita_space::Rank;
use partita_threads::LaunchError as ThreadsError;
use partita_tune::TuneError;
use std::path::PathBuf;

/// Advice when the loss or weights overflow.
pub const DIVERGENCE_ADVICE: &str = "no value of the samples that were read is infinite or extreme, so lower \
                                      `learning_rate` under [schedule] or set `clip` under [optimizer]";

/// The trained tensors could not be saved anywhere.
#[derive(Debug, thiserror::Error)]
#[error("the trained weights could not be written anywhere: {}", faults.join("; "))]
pub struct NotSaved {
    /// For each folder that was tried.
    pub faults: Vec<String>,
}

/// An error of launching or running ranks.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// A launcher started this process, but no MPI library can be loaded.
    #[error(
        "a launcher started this process ({sign} is set), so its ranks need MPI: {reason}{}",
        load_advice(reason)
    )]
    NoMpi {
        /// The variable by which it was recognized.
        sign: &'static str,
        /// The error of loading.
        reason: LoadError,
    },
    /// The MPI library does not see the processes that the launcher started.
    #[error(
        "the launcher started {processes} processes ({sign}), but {} sees {seen}: {advice}",
        file.display()
    )]
    OtherMpi {
        /// Processes that the launcher started.
        processes: usize,
        /// The variable by which it was recognized.
        sign: &'static str,
        /// The library.
        file: PathBuf,
        /// Processes that the library sees.
        seen: usize,
        /// Advice.
        advice: &'static str,
    },
    /// None of the requested cores can be used.
    #[error(transparent)]
    Cores(#[from] NoSuchCores),
    /// MPI failed.
    #[error(transparent)]
    Mpi(#[from] WorldError),
    /// A message between processes cannot be encoded or decoded.
    #[error("a message between ranks cannot be read or written: {0}")]
    Message(#[from] serde_json::Error),
    /// `--ranks` differs from the number of processes that the launcher started.
    #[error(
        "--ranks {asked} is requested, but the launcher started {size} processes; each is one rank; omit \
         --ranks or start {asked}"
    )]
    OtherRanks {
        /// Requested ranks.
        asked: usize,
        /// Processes started.
        size: usize,
    },
    /// Collectives of an MPI library are requested for ranks that are threads.
    #[error(
        "--library-collectives needs MPI, but ranks are threads; start them with a \
         launcher, like `mpirun -n 2 partita train ...`, or omit it"
    )]
    NoLibrary,
    /// More threads than this process can start.
    #[error(transparent)]
    TooManyThreads(#[from] TooManyThreads),
    /// The ranks have different programs.
    #[error(
        "rank {rank} has another program than rank 0: `{other}` instead of `{own}`; all ranks need the \
         same run file, dataset and version of Partita, and processors that offer the same kernels"
    )]
    Differ {
        /// The first rank that differs from rank 0.
        rank: Rank,
        /// Programs and plan of that rank.
        other: String,
        /// Programs and plan of rank 0.
        own: String,
    },
    /// Rank 0 has measured kernels of a oneDNN that this process does not have.
    #[error(
        "rank 0 has measured kernels of oneDNN {wanted}, and this process finds {found}; name the same library on all \
         hosts, like PARTITA_ONEDNN=/path/to/libdnnl.so.3, or use none: PARTITA_ONEDNN=off on all of them"
    )]
    OtherOneDnn {
        /// Version of rank 0.
        wanted: String,
        /// Version of this process, or `none`.
        found: String,
    },
    /// Links between processes could not be measured.
    #[error(transparent)]
    Links(TuneError),
    /// The processes are not spread evenly over their hosts.
    #[error(
        "a calibration needs equally many processes on each host, in the order of their ranks; these {ranks} \
         are spread otherwise; start as many on each host, one host after the other (`--map-by ppr:N:node` with \
         Open MPI, `-ppn N` with MPICH, `--ntasks-per-node=N` with srun)"
    )]
    UnevenHosts {
        /// Processes of the job.
        ranks: usize,
    },
    /// A rank failed.
    #[error(transparent)]
    Rank(RunError),
    /// A tensor is no longer finite.
    #[error("{error}: {}; no results were written; {DIVERGENCE_ADVICE}", origin(*role))]
    NotFinite {
        /// The error of the rank.
        error: RunError,
        /// Role of the buffer.
        role: Role,
    },
    /// Updates of a training in f16 were skipped again and again.
    #[error(
        "{0}; no results were written; omit `loss_scale`, which then follows the gradients, where it is set, or take \
         `precision = \"bf16\"`, which has the range of f32"
    )]
    NoUpdate(RunError),
    /// A thread of a rank could not be started, or panicked.
    #[error(transparent)]
    Threads(ThreadsError),
    /// The caller cancelled the run.
    #[error("stopped on request; all ranks have ended, and nothing of the run was written")]
    Interrupted,
    /// The trained tensors could not be saved.
    #[error(transparent)]
    NotSaved(#[from] NotSaved),
    /// A failure that was reported already.
    #[error("the job has ended")]
    AlreadyReported(ErrorKind),
}

impl Fault for LaunchError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NoMpi { .. }
            | Self::OtherMpi { .. }
            | Self::OtherRanks { .. }
            | Self::NoLibrary
            | Self::Cores(_)
            | Self::TooManyThreads(_)
            | Self::Differ { .. }
            | Self::OtherOneDnn { .. }
            | Self::UnevenHosts { .. } => ErrorKind::Request,
            Self::Mpi(_)
            | Self::Message(_)
            | Self::Links(_)
            | Self::Rank(_)
            | Self::NotFinite { .. }
            | Self::NoUpdate(_)
            | Self::Threads(_)
            | Self::NotSaved(_) => ErrorKind::Failure,
            Self::Interrupted => ErrorKind::Interrupted,
            Self::AlreadyReported(kind) => *kind,
        }
    }

    fn is_reported(&self) -> bool {
        matches!(self, Self::AlreadyReported(_))
    }

    fn follows_failure(&self) -> bool {
        matches!(self, Self::Mpi(WorldError::Failed))
    }
}

impl From<RunError> for LaunchError {
    fn from(error: RunError) -> Self {
        if let RunError::NotFinite { role, .. } = error {
            return Self::NotFinite { error, role };
        }
        if let RunError::NoUpdate { .. } = error {
            return Self::NoUpdate(error);
        }
        Self::Rank(error)
    }
}

impl From<ThreadsError> for LaunchError {
    fn from(error: ThreadsError) -> Self {
        match error {
            ThreadsError::Rank {
                error: RunError::Cancelled,
                ..
            } => Self::Interrupted,
            ThreadsError::Rank { error, .. } => error.into(),
            ThreadsError::Panicked { .. } | ThreadsError::NoThread { .. } => Self::Threads(error),
        }
    }
}

fn load_advice(error: &LoadError) -> &'static str {
    match error {
        LoadError::Missing { .. } => {
            "; install the MPI of the launcher, load its module, or name it, like \
             PARTITA_MPI=/path/to/libmpi.so"
        }
        LoadError::File { .. } | LoadError::Unsupported { .. } => "",
    }
}

fn origin(role: Role) -> &'static str {
    match role {
        Role::State => "activations in front of that layer are too large for its statistics",
        Role::Optimizer => "a gradient is too large for what the optimizer keeps of it",
        Role::Parameter
        | Role::Average
        | Role::Constant
        | Role::Gradient
        | Role::Staging
        | Role::Activation
        | Role::ActivationGradient
        | Role::PackedWeights
        | Role::Gathered
        | Role::Statistics
        | Role::Workspace => "a step of the optimizer was too large",
    }
}
