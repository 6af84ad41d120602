//! `compare`: compares a prediction with the trace of a run, task by task.

use partita_forecast::trace;
use partita_forecast::trace::TraceError;
use partita_oracle::compare::CompareError as Unequal;
use partita_oracle::{Comparison, Prediction, compare as compare_times};
use partita_site::{ErrorKind, Fault};
use partita_space::Help;
use std::io;
use std::path::{Path, PathBuf};

/// A prediction and a trace cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// The prediction cannot be read.
    #[error("{} cannot be read: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file holds no prediction.
    #[error(
        "{} is no prediction: {source}{}",
        path.display(),
        Help::none().nearest("what `partita predict --tasks --json` prints")
    )]
    NoPrediction {
        /// The file.
        path: PathBuf,
        /// The first error.
        source: serde_json::Error,
    },
    /// The file holds no trace.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// Their programs differ.
    #[error(
        "{} is of program {prediction}, {} is of program {measured}; predict and measure the same program",
        predicted_file.display(), measured_file.display()
    )]
    Digests {
        /// File of the prediction.
        predicted_file: PathBuf,
        /// Digest of the predicted program.
        prediction: String,
        /// File of the trace.
        measured_file: PathBuf,
        /// Digest of the measured program.
        measured: String,
    },
    /// One of the files does not describe the program.
    #[error("{}: {reason}", path.display())]
    Faulty {
        /// The file.
        path: PathBuf,
        /// The error.
        reason: Box<Unequal>,
    },
}

impl Fault for CompareError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Request
    }
}

/// Compares the JSON of a [`Predicted`](crate::Predicted) with tasks and the trace of a run of the same program.
///
/// Errors: a file that cannot be read; different programs.
pub fn compare(prediction: &Path, trace: &Path) -> Result<Comparison, CompareError> {
    let predicted = read_prediction(prediction)?;
    let recorded = trace::read(trace)?;
    let (digest, traces) = (&recorded.digest, &recorded.traces);
    compare_times(&predicted, &recorded.program, digest, traces).map_err(|error| {
        let path = match error {
            Unequal::Digests { prediction: of, .. } => {
                return CompareError::Digests {
                    predicted_file: prediction.to_owned(),
                    prediction: of,
                    measured_file: trace.to_owned(),
                    measured: recorded.digest.clone(),
                };
            }
            Unequal::Prediction(_) => prediction,
            Unequal::NoTraces
            | Unequal::Rank { .. }
            | Unequal::Times { .. }
            | Unequal::NoTime { .. } => trace,
        };
        CompareError::Faulty {
            path: path.to_owned(),
            reason: Box::new(error),
        }
    })
}

fn read_prediction(path: &Path) -> Result<Prediction, CompareError> {
    let own = || path.to_owned();
    let text = partita_files::read_record(path);
    let text = text.map_err(|source| CompareError::Unreadable {
        path: own(),
        source,
    })?;
    serde_json::from_str(&text).map_err(|source| CompareError::NoPrediction {
        path: own(),
        source,
    })
}
