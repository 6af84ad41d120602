//! Errors of loading and converting weights.

use crate::error::{ErrorKind, Fault};
use crate::model::ModelError;
use partita_data::DataError;
use partita_data::checkpoint::CheckpointError;
use std::path::PathBuf;

/// Weights that cannot be loaded or converted.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// The file cannot be read or written.
    #[error(transparent)]
    Data(#[from] DataError),
    /// There is no such model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A checkpoint cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A training that was stopped or failed has checkpoints and no weights.
    #[error(
        "{} has no weights, as its training did not come to its end; nearest is its last checkpoint, {}",
        folder.display(), checkpoint.display()
    )]
    NotAtEnd {
        /// The output folder.
        folder: PathBuf,
        /// The checkpoint, which can be named in its place.
        checkpoint: PathBuf,
    },
    /// A pattern fits no tensor.
    #[error("{}: `{key}` names `{pattern}`, which fits no tensor{nearest}", file.display())]
    Pattern {
        /// The file.
        file: PathBuf,
        /// Key of the pattern.
        key: &'static str,
        /// The pattern.
        pattern: String,
        /// The nearest tensor.
        nearest: String,
    },
    /// A weight file does not name its model.
    #[error(
        "{} does not say of which model its weights are; name it with `--model MODEL`, or give the run file of the \
         training instead",
        file.display()
    )]
    NoModel {
        /// The file.
        file: PathBuf,
    },
    /// The file to write is no file of weights.
    #[error("{} exists and is not a weight file; choose another file", file.display())]
    Taken {
        /// The file.
        file: PathBuf,
    },
    /// The run file has a fault.
    #[error("{0}")]
    RunFile(String),
    /// A parameter of the model is not in the file.
    #[error(
        "{} has no tensor `{tensor}`, which the model needs for `{parameter}`{nearest}",
        file.display()
    )]
    Missing {
        /// The file.
        file: PathBuf,
        /// Name in the file.
        tensor: String,
        /// Name of the parameter.
        parameter: String,
        /// The nearest tensor of the file.
        nearest: String,
    },
    /// A tensor of the file is none of the model.
    #[error("{} has a tensor `{tensor}`, which the model does not have{nearest}", file.display())]
    Unexpected {
        /// The file.
        file: PathBuf,
        /// Name in the file.
        tensor: String,
        /// The nearest tensor of the model.
        nearest: String,
    },
    /// A tensor has another shape.
    #[error(
        "{}: tensor `{tensor}` has the shape {found:?}, the model needs {expected:?}",
        file.display()
    )]
    Shape {
        /// The file.
        file: PathBuf,
        /// Name in the file.
        tensor: String,
        /// Its shape.
        found: Vec<usize>,
        /// The shape that the model needs.
        expected: Vec<usize>,
    },
}

impl Fault for WeightsError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Request
    }
}
