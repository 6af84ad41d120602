//! Errors of loading and converting weights.

use crate::error::{ErrorKind, Fault};
use crate::model::ModelError;
use partita_data::DataError;
use partita_data::checkpoint::{CheckpointError, CheckpointFolder};
use std::path::{Path, PathBuf};

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
    #[error("{error}{}", instead(error, whole.as_deref()))]
    Checkpoint {
        /// Why.
        error: CheckpointError,
        /// Another one, if it is damaged and there is one.
        whole: Option<PathBuf>,
    },
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
    /// A training has no weights of a best epoch.
    #[error(
        "--best: there is no {}: a training writes it with `best = \"validation_loss\"` or another metric in \
         `[checkpoint]` of its run file{}",
        file.display(),
        if *last { "; without --best the weights of its last epoch are taken" } else { "" }
    )]
    NoBest {
        /// The file.
        file: PathBuf,
        /// Whether there are weights of the last epoch.
        last: bool,
    },
    /// A run that was not trained yet.
    #[error(
        "{} has no weights; train first, with `partita train {}`, or name weights with `--weights FILE`",
        folder.display(), run_file.display()
    )]
    NotTrained {
        /// The output folder.
        folder: PathBuf,
        /// The run file.
        run_file: PathBuf,
    },
    /// A value that is not finite.
    #[error(
        "{}: the tensor `{tensor}` holds {value}, with which nothing can be computed; take the weights of another training, \
         or of an earlier checkpoint",
        file.display()
    )]
    NotFinite {
        /// The file.
        file: PathBuf,
        /// Its name in the file.
        tensor: String,
        /// The value.
        value: String,
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
    /// Weights whose statistics cannot be taken.
    #[error(
        "`statistics = \"weights\"` under [weights]: {} {reason}; nearest is `statistics = \"data\"`, which takes those of \
         the training split",
        file.display()
    )]
    NoStatistics {
        /// The weights.
        file: PathBuf,
        /// Why not.
        reason: String,
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
        "{} has no tensor `{tensor}`, which the model needs for `{parameter}`{nearest}; in `[weights]` of a run file, \
         {rename}`new = [\"{layer}*\"]` keeps initial values",
        file.display(),
        layer = tensor.rsplit_once('.').map_or(tensor.as_str(), |(layer, _)| layer)
    )]
    Missing {
        /// The file.
        file: PathBuf,
        /// Name in the file.
        tensor: String,
        /// Name of the parameter.
        parameter: String,
        /// The nearest tensors of the file: of its shape, if there are some.
        nearest: String,
        /// How a key `rename` takes one of them, if one has its shape.
        rename: String,
    },
    /// A tensor of the file is none of the model.
    #[error("{} has a tensor `{tensor}`, which the model does not have{nearest}; `skip = [\"{tensor}\"]` in `[weights]` of a run \
            file leaves it out", file.display())]
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
        "{}: tensor `{tensor}` has the shape {found:?}, the model needs {expected:?}; `skip = \
         [\"{tensor}\"]` in `[weights]` of a run file leaves it out",
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

impl From<CheckpointError> for WeightsError {
    fn from(error: CheckpointError) -> Self {
        let whole = error.damaged().and_then(CheckpointFolder::instead_of);
        Self::Checkpoint { error, whole }
    }
}

fn instead(error: &CheckpointError, whole: Option<&Path>) -> String {
    match whole {
        Some(path) => format!("; the nearest whole checkpoint is {}", path.display()),
        None if error.damaged().is_some() => "; no other checkpoint beside it is whole".to_owned(),
        None => String::new(),
    }
}

impl Fault for WeightsError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Request
    }
}
