//! Errors of making and reading datasets.

use partita_formats::DataError;
use partita_site::{ErrorKind, Fault};
use partita_space::Bytes;
use partita_space::Help;
use partita_synth::SynthError;
use std::io;
use std::path::PathBuf;

/// An error of making or reading a dataset.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    /// It cannot be read or written.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Invalid samples.
    #[error(transparent)]
    Spec(SynthError),
    /// A sample cannot be made.
    #[error(transparent)]
    Sample(SynthError),
    /// No training samples remain.
    #[error(
        "of {samples} {noun}, {validation} are for validation and {test} for the test, which leaves none to \
         train on{}",
        Help::possible("shares whose sum is less than 1").code("--validation 0 --test 0")
    )]
    NothingToTrainOn {
        /// Plural noun for the samples, like `universes`.
        noun: &'static str,
        /// Requested samples.
        samples: usize,
        /// Samples for validation.
        validation: usize,
        /// Samples for the test.
        test: usize,
    },
    /// The disk is too full.
    #[error("{samples} {noun} take {needed} at {}, and {free} are free there{way_out}", path.display())]
    NoRoom {
        /// Plural noun for the samples, like `universes`.
        noun: &'static str,
        /// Requested samples.
        samples: usize,
        /// Size of the dataset.
        needed: Bytes,
        /// Folder of the dataset.
        path: PathBuf,
        /// Free space.
        free: Bytes,
        /// Valid alternatives.
        way_out: Box<Help>,
    },
    /// A thread cannot be started.
    #[error("no thread could be started to make samples: {source}; choose fewer threads")]
    NoThread {
        /// The error of the system.
        source: io::Error,
    },
    /// A thread panicked.
    #[error("a thread panicked while making samples")]
    ThreadDied,
    /// The caller cancelled the work.
    #[error("stopped on request; all files were removed from {}", path.display())]
    Interrupted {
        /// Folder of the dataset.
        path: PathBuf,
    },
}

impl Fault for DatasetError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Data(error) => kind_of(error),
            Self::Spec(_) | Self::NothingToTrainOn { .. } | Self::NoRoom { .. } => {
                ErrorKind::Request
            }
            Self::Sample(_) | Self::NoThread { .. } | Self::ThreadDied => ErrorKind::Failure,
            Self::Interrupted { .. } => ErrorKind::Interrupted,
        }
    }
}

/// Write errors and those of sources are failures; all other errors are of the request.
fn kind_of(error: &DataError) -> ErrorKind {
    match error {
        DataError::Unwritable { .. }
        | DataError::Store { .. }
        | DataError::StoreMemory { .. }
        | DataError::Source { .. }
        | DataError::Spill { .. } => ErrorKind::Failure,
        DataError::Missing { .. }
        | DataError::Unopenable { .. }
        | DataError::NotHdf5 { .. }
        | DataError::MissingKey { .. }
        | DataError::WrongRank { .. }
        | DataError::WrongShape { .. }
        | DataError::WrongDtype { .. }
        | DataError::OutOfRange { .. }
        | DataError::Unfit { .. }
        | DataError::NoImages { .. }
        | DataError::MixedShapes { .. }
        | DataError::OtherGrid { .. }
        | DataError::NoAnswers { .. }
        | DataError::NoSamples { .. }
        | DataError::BadTask { .. }
        | DataError::SamplesAlone { .. }
        | DataError::AllIgnored { .. }
        | DataError::LeftOut { .. }
        | DataError::BadTable { .. }
        | DataError::SampleOutOfRange { .. }
        | DataError::RegionOutOfRange { .. }
        | DataError::Unreadable { .. }
        | DataError::Skippable(_)
        | DataError::DecodeMemory { .. }
        | DataError::Unsupported { .. }
        | DataError::NoClass(_)
        | DataError::Constant { .. }
        | DataError::Augmentation { .. }
        | DataError::NoCrop { .. }
        | DataError::OneArray { .. }
        | DataError::Untrainable { .. }
        | DataError::Incomplete { .. }
        | DataError::BadIndex { .. }
        | DataError::NoRoom { .. }
        | DataError::Occupied { .. }
        | DataError::BadValue { .. }
        | DataError::DamagedTensor { .. }
        | DataError::OtherTargets { .. }
        | DataError::BadWeights { .. } => ErrorKind::Request,
    }
}
