//! Errors of measurements and of the database.

use partita_run::RunError;
use partita_space::{Bytes, Rank};
use std::io;
use std::path::PathBuf;

/// Why something could not be measured, or a time not stored.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    /// A kernel without a pinned implementation.
    #[error(
        "{signature} has no implementation and cannot be measured; lower the program with a set of \
         kernels that can run"
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
        /// Its error.
        source: Box<RunError>,
    },
    /// A message or collective failed while it was measured.
    #[error("{what} failed while it was measured: {source}")]
    Transport {
        /// Which one, with its bytes.
        what: String,
        /// The error of the transport.
        source: Box<RunError>,
    },
    /// No memory for a measurement.
    #[error(
        "rank {rank}: cannot allocate {bytes} to measure {what}; raise the memory limit of this process \
         (`ulimit -v` shows it), or measure once without it: times are stored"
    )]
    Memory {
        /// The rank that allocated.
        rank: Rank,
        /// `kernels`, `allreduces`.
        what: &'static str,
        /// Size of the allocation.
        bytes: Bytes,
    },
    /// A read failed while it was measured.
    #[error("rank {rank}: a read failed while it was measured: {source}")]
    Read {
        /// The rank that read.
        rank: Rank,
        /// The error of the reader.
        source: io::Error,
    },
    /// A rank's thread ended without a result.
    #[error("a rank stopped while {what} was measured: {reason}")]
    Stopped {
        /// What was measured.
        what: &'static str,
        /// The cause, as far as known.
        reason: String,
    },
    /// The file of a database cannot be read.
    #[error("the measured times in {} cannot be read: {reason}; they are measured again and not stored", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        reason: String,
    },
    /// The file of a database cannot be written.
    #[error(
        "measured times cannot be written to {}: {reason}; this run uses them, and the next one measures again",
        path.display()
    )]
    NotKept {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        reason: String,
    },
    /// The file is no database and has been renamed.
    #[error(
        "{} is not a file of measured times ({reason}); it has been renamed to {}, and missing times are \
         measured again",
        path.display(), renamed.display()
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
        /// Its new name.
        renamed: PathBuf,
    },
    /// A file of a newer format, which is left unchanged.
    #[error(
        "{} has format {found} of a newer version, this version reads up to format {format}; it is left \
         unchanged, and times are stored in {}",
        path.display(), replacement.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The newest readable format.
        format: u32,
        /// The file that is used instead.
        replacement: PathBuf,
    },
    /// The file system of the file has no locks.
    #[error(
        "{} cannot be locked: {reason}; continuing without a lock: times that other processes write at \
         the same time may be lost, and are then measured again",
        path.display()
    )]
    Unlocked {
        /// The file.
        path: PathBuf,
        /// The error of SQLite.
        reason: String,
    },
    /// Another process holds the lock of the file for too long.
    #[error(
        "{} is locked: another process holds the lock and does not release it; this run keeps its times in \
         memory, and writes them if the lock is released before it measures others",
        path.display()
    )]
    Busy {
        /// The file.
        path: PathBuf,
    },
}
