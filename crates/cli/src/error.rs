//! Errors of the command line, and their exit codes.

use partita::{ErrorKind, Fault, full_text};
use std::error::Error;
use std::fmt::Display;
use std::io;
use std::path::Path;

/// The error of a verb.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// An error of the library.
    #[error("{text}")]
    Library {
        /// Its text, with all its sources.
        text: String,
        /// Determines the exit code.
        kind: ErrorKind,
    },
    /// An error of the library that was reported already.
    #[error("the job has ended")]
    AlreadyReported(ErrorKind),
    /// A requested file cannot be written.
    #[error("{path} cannot be written: {reason}")]
    Unwritable {
        /// The file.
        path: String,
        /// The cause.
        reason: String,
        /// Determines the exit code.
        kind: ErrorKind,
    },
    /// Signals cannot be handled.
    #[error("signal handlers cannot be installed: {0}")]
    Signals(io::Error),
    /// The output cannot be written.
    #[error("the output cannot be written: {0}")]
    Output(String),
    /// The reader of the output closed the pipe; not a failure.
    #[error("the output was closed")]
    ClosedPipe,
}

/// The exit code of a kind of error; 130 after Ctrl-C, as of shells.
pub fn exit_code(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Request => 2,
        ErrorKind::Failure => 1,
        ErrorKind::Interrupted => 130,
    }
}

impl CliError {
    /// An error of the library.
    pub fn of(error: &(impl Fault + 'static)) -> Self {
        if error.is_reported() {
            Self::AlreadyReported(error.kind())
        } else {
            Self::request_or_failure(error, error.kind())
        }
    }

    /// An error with all its sources.
    pub fn request_or_failure(error: &dyn Error, kind: ErrorKind) -> Self {
        let text = full_text(error);
        Self::Library { text, kind }
    }

    /// A requested file cannot be written.
    pub fn unwritable(path: &Path, reason: &dyn Display, kind: ErrorKind) -> Self {
        Self::Unwritable {
            path: path.display().to_string(),
            reason: reason.to_string(),
            kind,
        }
    }

    /// 2 for the user's errors, 1 for failures, 130 after Ctrl-C.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Library { kind, .. }
            | Self::AlreadyReported(kind)
            | Self::Unwritable { kind, .. } => exit_code(*kind),
            Self::Signals(_) | Self::Output(_) => exit_code(ErrorKind::Failure),
            Self::ClosedPipe => 0,
        }
    }
}

macro_rules! from_library {
    ($($error:ident),+ $(,)?) => {
        $(impl From<partita::$error> for CliError {
            fn from(error: partita::$error) -> Self {
                Self::of(&error)
            }
        })+
    };
}

from_library!(
    CalibrateError,
    CompareError,
    DatasetError,
    ImportModelError,
    ModelError,
    PlanningError,
    RunFileError,
    TrainError,
    WeightsError,
);

impl From<partita::demo::DemoError> for CliError {
    fn from(error: partita::demo::DemoError) -> Self {
        Self::of(&error)
    }
}

impl From<partita::EnvironmentError> for CliError {
    fn from(error: partita::EnvironmentError) -> Self {
        Self::request_or_failure(&error, ErrorKind::Request)
    }
}

impl From<partita::NoSuchCores> for CliError {
    fn from(error: partita::NoSuchCores) -> Self {
        Self::request_or_failure(&error, ErrorKind::Request)
    }
}

/// A bare `io::Error` is always one of writing the output.
impl From<io::Error> for CliError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::ClosedPipe,
            _ => Self::Output(error.to_string()),
        }
    }
}

impl From<serde_json::Error> for CliError {
    fn from(error: serde_json::Error) -> Self {
        match error.io_error_kind() {
            Some(io::ErrorKind::BrokenPipe) => Self::ClosedPipe,
            Some(_) | None => Self::Output(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_pipe_is_no_failure() {
        let closed = CliError::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!(closed.exit_code(), 0);
        let full = CliError::from(io::Error::from(io::ErrorKind::StorageFull));
        assert_eq!(full.exit_code(), 1);
    }
}
