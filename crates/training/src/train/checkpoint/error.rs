//! Why a training cannot resume.

use partita_site::{ErrorKind, Fault};
use partita_space::help::extend;
use partita_weights::checkpoint::{CheckpointError, CheckpointFolder};
use std::path::{Path, PathBuf};

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
    /// The newest one is asked for, and there is no folder for checkpoints.
    #[error(
        "the newest checkpoint is asked for, and the training has no output folder that could hold one; possible is \
         a training with an output folder, or the path of a checkpoint"
    )]
    NoFolder,
    /// It cannot be read.
    #[error(transparent)]
    Checkpoint(CheckpointError),
    /// It is damaged.
    #[error("{}", extend(error, format_args!("; {}", instead(whole.as_deref()))))]
    Damaged {
        /// File, rank and damage.
        error: String,
        /// The next older whole checkpoint, else the next newer one.
        whole: Option<PathBuf>,
    },
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
    /// Its data are others.
    #[error(
        "the checkpoint {} was made on {was} with {stored}, and {data} has {asked}; these must stay to resume: set \
         `data` to the dataset of then, or omit --resume and name another `output`",
        checkpoint.display()
    )]
    OtherData {
        /// The checkpoint.
        checkpoint: PathBuf,
        /// Its dataset.
        was: String,
        /// What differs, in the checkpoint.
        stored: String,
        /// The dataset now.
        data: String,
        /// What differs, now.
        asked: String,
    },
    /// A key of the run file has another value that must stay.
    #[error(
        "the checkpoint {} was made {}, and the run file {}; {key} must stay to resume: {}, or omit --resume and \
         name another `output`",
        checkpoint.display(),
        stored.as_ref().map_or_else(|| format!("without {key}"), |stored| format!("with {key} = {stored}")),
        asked.as_ref().map_or_else(|| format!("has no {key}"), |asked| format!("has {key} = {asked}")),
        stored.as_ref().map_or_else(|| "leave it out".to_owned(), |stored| format!("set it to {stored}"))
    )]
    OtherValue {
        /// The checkpoint.
        checkpoint: PathBuf,
        /// The key.
        key: String,
        /// Its value in the checkpoint, if it has one.
        stored: Option<String>,
        /// Its value now, if it has one.
        asked: Option<String>,
    },
}

impl ResumeError {
    /// A checkpoint whose numbers are of no training, or of another one.
    pub fn of_numbers(checkpoint: &Path, fault: &str) -> Self {
        let path = checkpoint.display();
        let error = format!("the checkpoint {path} cannot be of this training: {fault}");
        Self::damaged(checkpoint, error)
    }

    /// The damage of a checkpoint.
    pub fn damaged(checkpoint: &Path, error: String) -> Self {
        let whole = CheckpointFolder::instead_of(checkpoint);
        Self::Damaged { error, whole }
    }
}

impl From<CheckpointError> for ResumeError {
    fn from(error: CheckpointError) -> Self {
        match error.damaged() {
            Some(checkpoint) => Self::damaged(checkpoint, error.to_string()),
            None => Self::Checkpoint(error),
        }
    }
}

fn instead(whole: Option<&Path>) -> String {
    match whole {
        Some(path) => {
            let path = path.display();
            format!("the nearest whole checkpoint is {path}, resume from it with `--resume {path}`")
        }
        None => "no other checkpoint beside it is whole; restore its files, or omit --resume and name another \
                 `output` to start from the beginning"
            .to_owned(),
    }
}

impl Fault for ResumeError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Nothing { .. }
            | Self::NoFolder
            | Self::OtherModel { .. }
            | Self::OtherData { .. }
            | Self::OtherValue { .. } => ErrorKind::Request,
            Self::Checkpoint(_) | Self::Damaged { .. } | Self::NoTraining { .. } => {
                ErrorKind::Failure
            }
        }
    }
}
