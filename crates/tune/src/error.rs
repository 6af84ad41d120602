//! Errors of measuring and of keeping times.

use partita_run::RunError;
use partita_space::{Bytes, Rank};
use std::path::PathBuf;

/// Why something could not be measured, or a measurement not kept.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    /// A kernel that pins no implementation cannot run.
    #[error(
        "{signature} leaves its implementation open and cannot be measured; lower the program with \
         a set of kernels that can run"
    )]
    Unpinned {
        /// The kernel and its shapes.
        signature: String,
    },
    /// A kernel failed while it was measured.
    #[error("{signature} with algorithm `{algorithm}` failed while it was measured: {source}")]
    Kernel {
        /// The kernel and its shapes.
        signature: String,
        /// The implementation.
        algorithm: String,
        /// What it returned.
        source: Box<RunError>,
    },
    /// A message or collective failed while it was measured.
    #[error("{what} failed while it was measured: {source}")]
    Transport {
        /// Which one, of how many bytes.
        what: String,
        /// What the transport returned.
        source: Box<RunError>,
    },
    /// The system gives no memory for what is measured.
    #[error(
        "rank {rank}: the system gives no memory for the {bytes} with which {what} are measured; give this \
         process more (`ulimit -v` shows the limit of its address space), or measure once without that \
         limit: times are kept"
    )]
    Memory {
        /// Who asked.
        rank: Rank,
        /// `kernels`, `allreduces`.
        what: &'static str,
        /// How much.
        bytes: Bytes,
    },
    /// A read failed while it was measured.
    #[error("rank {rank} could not read while reading was measured: {reason}")]
    Read {
        /// Who tried.
        rank: Rank,
        /// What the reader said.
        reason: String,
    },
    /// A rank's thread ended without a result.
    #[error("a rank stopped while {what} was measured: {reason}")]
    Stopped {
        /// What was measured.
        what: &'static str,
        /// What is known of it.
        reason: String,
    },
    /// The file of a database cannot be read.
    #[error("the measured times in {} cannot be read: {reason}; they are measured again and not kept", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// The file of a database cannot be written.
    #[error(
        "measured times cannot be kept in {}: {reason}; they are known to this run alone, and the next \
         one measures again",
        path.display()
    )]
    NotKept {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// The file of a database holds something else; it has been renamed.
    #[error(
        "{} holds no measured times ({reason}); it is renamed to {}, and what is missing is measured \
         again",
        path.display(), renamed.display()
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Where it is wrong.
        reason: String,
        /// Its name from now on.
        renamed: PathBuf,
    },
    /// A file of a later version, which has been left as it is.
    #[error(
        "{} has format {found} of a newer version, this one reads up to format {format}; it is left as \
         it is, and the times that this version measures are kept in {}",
        path.display(), instead.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The newest that can be read.
        format: u32,
        /// The file that is used.
        instead: PathBuf,
    },
    /// Keys of kernels that no version of this program has written.
    #[error(
        "{kernels} kernel(s) in {} have keys of version 0 that cannot be converted to version {version}: \
         their times are kept there but not used, and are measured again where they are needed",
        path.display()
    )]
    OldKeys {
        /// The file.
        path: PathBuf,
        /// How many.
        kernels: usize,
        /// Of the keys that are used.
        version: u32,
    },
    /// No lock can be had.
    #[error(
        "{} cannot be locked: {reason}; going on without a lock: times that other processes write at \
         the same moment may be lost, and are then measured again",
        path.display()
    )]
    Unlocked {
        /// The lock's file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
}
