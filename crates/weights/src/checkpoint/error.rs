//! Errors of checkpoints.

use partita_space::Help;
use std::path::{Path, PathBuf};

/// Why a checkpoint cannot be written or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// No checkpoint at a path.
    #[error("{} is no checkpoint: {found}; a checkpoint is a folder with a `manifest.json`", path.display())]
    Missing {
        /// The path.
        path: PathBuf,
        /// What is there.
        found: String,
    },
    /// A manifest of a newer version.
    #[error(
        "{} has format version {version}; this version of Partita reads up to {known}{}",
        path.display(),
        Help::advice("read it with the version that wrote it, or a newer one")
    )]
    Newer {
        /// The manifest.
        path: PathBuf,
        /// Its version.
        version: u64,
        /// The newest version that can be read.
        known: u64,
    },
    /// A damaged manifest.
    #[error("the manifest {} is damaged: {found}", path.display())]
    BadManifest {
        /// The manifest.
        path: PathBuf,
        /// What is wrong.
        found: String,
    },
    /// A file that the manifest names is not there.
    #[error(
        "the checkpoint lacks the file {}, written by rank {rank} (`files` of its manifest)",
        path.display()
    )]
    MissingFile {
        /// The file.
        path: PathBuf,
        /// The rank that wrote it.
        rank: usize,
    },
    /// A file has another size.
    #[error(
        "{}, written by rank {rank}, has {found} B, and the manifest says {expected} B: the file is \
         damaged",
        path.display()
    )]
    Size {
        /// The file.
        path: PathBuf,
        /// The rank that wrote it.
        rank: usize,
        /// Bytes found.
        found: u64,
        /// Bytes written.
        expected: u64,
    },
    /// A checksum differs.
    #[error(
        "{}, written by rank {rank}, is damaged: bytes {start} to {end}{} have another SHA-256 checksum than when \
         they were written",
        path.display(), of_tensor(tensor.as_deref())
    )]
    Checksum {
        /// The file.
        path: PathBuf,
        /// The rank that wrote it.
        rank: usize,
        /// First byte of the block.
        start: u64,
        /// End of the block.
        end: u64,
        /// The tensor that was read.
        tensor: Option<String>,
    },
    /// No tensor of that name.
    #[error("the checkpoint {} has no tensor `{tensor}`{}", path.display(), near(nearest.as_deref()))]
    NoTensor {
        /// The checkpoint.
        path: PathBuf,
        /// The name.
        tensor: String,
        /// A similar name.
        nearest: Option<String>,
    },
    /// The system refused to read.
    #[error("{} cannot be read: {reason}", path.display())]
    Unreadable {
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        reason: String,
    },
    /// The system refused to write.
    #[error("{} cannot be written: {reason}", path.display())]
    Unwritable {
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        reason: String,
    },
}

impl CheckpointError {
    /// The folder of the damaged checkpoint, if it is a damage that this says.
    pub fn damaged(&self) -> Option<&Path> {
        match self {
            Self::BadManifest { path, .. }
            | Self::MissingFile { path, .. }
            | Self::Size { path, .. }
            | Self::Checksum { path, .. } => path.parent(),
            Self::Missing { .. }
            | Self::Newer { .. }
            | Self::NoTensor { .. }
            | Self::Unreadable { .. }
            | Self::Unwritable { .. } => None,
        }
    }

    pub(super) fn unreadable(path: &Path, error: &std::io::Error) -> Self {
        Self::Unreadable {
            path: path.to_owned(),
            reason: error.to_string(),
        }
    }

    pub(super) fn unwritable(path: &Path, error: &std::io::Error) -> Self {
        Self::Unwritable {
            path: path.to_owned(),
            reason: error.to_string(),
        }
    }
}

fn of_tensor(tensor: Option<&str>) -> String {
    tensor.map_or_else(String::new, |tensor| format!(" (tensor `{tensor}`)"))
}

fn near(nearest: Option<&str>) -> Help {
    Help::none().maybe_code(nearest)
}
