//! Why a calibration fails.

use crate::error::{ErrorKind, Fault};
use crate::launch::LaunchError;
use crate::model::ModelError;
use partita_lower::{LowerError, StrategyError};
use partita_space::Bytes;
use std::io;
use std::path::PathBuf;

/// Why this machine is not calibrated.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    /// The machine has no name.
    #[error("a machine needs a name; possible is any other than an empty one, like `--name mine`")]
    NoName,
    /// Something that is no file is in the place of the machine file.
    #[error(
        "{} is no regular file that could be replaced; possible is another `--output`",
        file.display()
    )]
    NoFile {
        /// The machine file.
        file: PathBuf,
    },
    /// The machine file exists.
    #[error(
        "{} exists, and a calibration does not write over it unasked; possible are `--replace` and another \
         `--output`",
        file.display()
    )]
    Exists {
        /// The machine file.
        file: PathBuf,
    },
    /// The folder of the machine file does not exist.
    #[error(
        "{} cannot be written: there is no folder {}; make it first",
        file.display(), folder.display()
    )]
    NoFolder {
        /// The machine file.
        file: PathBuf,
        /// Its folder.
        folder: PathBuf,
    },
    /// An entry of the models is empty.
    #[error(
        "`--models` has an empty entry; possible are names with or without batches, separated by commas, like \
         `cosmoflow@32:4,resnet50@64`"
    )]
    EmptyModel,
    /// A model with something else than a batch.
    #[error(
        "`{text}`: `{batch}` is no batch; after the colon stands a number of samples from 1 on, like `{model}:1`"
    )]
    NoBatch {
        /// The entry.
        text: String,
        /// What is after the colon.
        batch: String,
        /// What is before it.
        model: String,
    },
    /// A model too large to measure.
    #[error(
        "`{model}` with {batch} samples needs at least {needed} a rank, and half of what is free is {room} for \
         each of {ranks} ranks; possible are fewer samples, a smaller model, and fewer `--ranks`"
    )]
    TooLarge {
        /// The model.
        model: String,
        /// Samples of a step.
        batch: usize,
        /// What a rank needs at least.
        needed: Bytes,
        /// What a rank may fill.
        room: Bytes,
        /// Ranks at work together.
        ranks: usize,
    },
    /// There is no such model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A strategy is not understood.
    #[error(transparent)]
    Strategy(#[from] StrategyError),
    /// A model cannot be lowered.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// The ranks do not start, or something cannot be measured.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The machine file cannot be written.
    #[error("{} cannot be written: {source}", file.display())]
    Unwritable {
        /// The machine file.
        file: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

impl Fault for CalibrateError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NoName
            | Self::NoFile { .. }
            | Self::Exists { .. }
            | Self::NoFolder { .. }
            | Self::EmptyModel
            | Self::NoBatch { .. }
            | Self::TooLarge { .. }
            | Self::Model(_)
            | Self::Strategy(_)
            | Self::Lower(_) => ErrorKind::Request,
            Self::Launch(error) => error.kind(),
            Self::Unwritable { .. } => ErrorKind::Failure,
        }
    }

    fn is_reported(&self) -> bool {
        matches!(self, Self::Launch(error) if error.is_reported())
    }
}
