//! Errors of a calibration.

use crate::local_machine::LocalError;
use crate::model::ModelError;
use partita_lower::{LowerError, StrategyError};
use partita_site::kernel_set::devices::DeviceUseError;
use partita_site::launch::LaunchError;
use partita_site::{ErrorKind, Fault};
use partita_space::Bytes;
use partita_space::Help;
use std::io;
use std::path::PathBuf;

/// An error of a calibration.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    /// The machine has no name.
    #[error("the name of a machine must not be empty; use a name such as `--name mine`")]
    NoName,
    /// There is no such device.
    #[error(transparent)]
    Device(#[from] DeviceUseError),
    /// The path of the machine file is not a regular file.
    #[error(
        "{} is not a regular file; choose another `--output`",
        file.display()
    )]
    NoFile {
        /// The machine file.
        file: PathBuf,
    },
    /// The machine file exists.
    #[error(
        "{} exists; use `--replace` or another `--output`",
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
        "`--models` has an empty entry{}",
        Help::possible(
            "names with or without batches, separated by commas, like `cosmoflow@32:4,resnet50@64`"
        )
    )]
    EmptyModel,
    /// An invalid batch size.
    #[error(
        "`{text}`: `{batch}` is not a batch size; write a number of samples from 1 on after the colon, as in `{model}:1`"
    )]
    NoBatch {
        /// The entry.
        text: String,
        /// The text after the colon.
        batch: String,
        /// The text before the colon.
        model: String,
    },
    /// A model too large to measure.
    #[error(
        "`{model}` with {batch} samples needs at least {needed} a rank, and half of what is free is {room} for \
         each of {ranks} ranks{}",
        Help::none().nearest("fewer samples, a smaller model, and fewer `--ranks`")
    )]
    TooLarge {
        /// The model.
        model: String,
        /// Samples of a step.
        batch: usize,
        /// Least memory of a rank.
        needed: Bytes,
        /// Memory limit of a rank.
        room: Bytes,
        /// Concurrent ranks.
        ranks: usize,
    },
    /// There is no such model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A strategy cannot be parsed.
    #[error(transparent)]
    Strategy(#[from] StrategyError),
    /// A model cannot be lowered.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// The launch failed.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A measurement of this machine failed.
    #[error(transparent)]
    Local(#[from] LocalError),
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
            | Self::Device(_)
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
            Self::Local(error) => error.kind(),
            Self::Unwritable { .. } => ErrorKind::Failure,
        }
    }

    fn is_reported(&self) -> bool {
        matches!(self, Self::Launch(error) if error.is_reported())
    }

    fn follows_failure(&self) -> bool {
        matches!(self, Self::Launch(error) if error.follows_failure())
    }
}
