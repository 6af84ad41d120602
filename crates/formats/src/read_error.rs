//! Why an array cannot be read: damage, a part of its format that is not read here, or the system.

use std::io;
use std::path::Path;

use crate::error::DataError;
use crate::shortage::Shortage;

/// Why an array cannot be read. Texts are taken as damage unless their place says otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// The bytes contradict their format, or end too early.
    Damaged(String),
    /// A valid file that is not read; says what can be done.
    Unsupported(String),
    /// The error of the system.
    System(String),
    /// Decoding takes more memory than it may.
    Memory(Shortage),
}

impl ReadError {
    pub(crate) fn unsupported(reason: impl Into<String>) -> Self {
        Self::Unsupported(reason.into())
    }

    /// The same with its reason changed.
    pub(crate) fn map(self, change: impl FnOnce(String) -> String) -> Self {
        match self {
            Self::Damaged(reason) => Self::Damaged(change(reason)),
            Self::Unsupported(reason) => Self::Unsupported(change(reason)),
            Self::System(reason) => Self::System(change(reason)),
            Self::Memory(shortage) => Self::Memory(shortage),
        }
    }

    /// The error of a file, where reading got to that key and sample.
    pub fn of(self, path: &Path, key: Option<&str>, sample: Option<usize>) -> DataError {
        let (path, key) = (path.to_path_buf(), key.map(str::to_owned));
        match self {
            Self::Damaged(reason) => DataError::Unreadable {
                path,
                key,
                sample,
                reason,
            },
            Self::Unsupported(reason) => DataError::Unsupported {
                path,
                key,
                sample,
                reason,
            },
            Self::System(reason) => DataError::Unopenable { path, reason },
            Self::Memory(shortage) => DataError::DecodeMemory {
                path,
                key,
                sample,
                shortage,
            },
        }
    }
}

impl From<String> for ReadError {
    fn from(reason: String) -> Self {
        Self::Damaged(reason)
    }
}

impl From<&str> for ReadError {
    fn from(reason: &str) -> Self {
        Self::Damaged(reason.to_owned())
    }
}

impl From<std::collections::TryReserveError> for ReadError {
    fn from(error: std::collections::TryReserveError) -> Self {
        Self::System(error.to_string())
    }
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        let reason = error.to_string();
        match error.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::InvalidData
            | io::ErrorKind::InvalidInput => Self::Damaged(reason),
            _ => Self::System(reason),
        }
    }
}
