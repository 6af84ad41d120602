//! Why a training cannot resume.

use crate::error::{ErrorKind, Fault};
use partita_data::checkpoint::CheckpointError;
use std::path::PathBuf;

/// Why a training cannot resume from a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// There is none.
    #[error(
        "--resume: {} holds no checkpoint; omit --resume to start from the beginning, name one with \
         `--resume PATH`, or use `--resume auto` to resume only if there is one",
        folder.display()
    )]
    Nothing {
        /// The folder of the checkpoints.
        folder: PathBuf,
    },
    /// It cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Its manifest describes no training.
    #[error("the checkpoint {} describes no training: {found}", checkpoint.display())]
    NoTraining {
        /// The checkpoint.
        checkpoint: PathBuf,
        /// What is wrong.
        found: String,
    },
    /// It is of another model.
    #[error(
        "the checkpoint {} is of another model: {difference}; resume with the run file that made it, or omit \
         --resume and name another `output`",
        checkpoint.display()
    )]
    OtherModel {
        /// The checkpoint.
        checkpoint: PathBuf,
        /// The first tensor or line that differs.
        difference: String,
    },
    /// A key of the run file has another value that must stay.
    #[error(
        "the checkpoint {} was made with {key} = {stored}, and the run file has {key} = {asked}; {key} must stay \
         to resume: set it to {stored}, or omit --resume and name another `output`",
        checkpoint.display()
    )]
    OtherValue {
        /// The checkpoint.
        checkpoint: PathBuf,
        /// The key.
        key: String,
        /// Its value in the checkpoint.
        stored: String,
        /// Its value now.
        asked: String,
    },
}

impl Fault for ResumeError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Nothing { .. } | Self::OtherModel { .. } | Self::OtherValue { .. } => {
                ErrorKind::Request
            }
            Self::Checkpoint(_) | Self::NoTraining { .. } => ErrorKind::Failure,
        }
    }
}
