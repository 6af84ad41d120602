use partita_run::RunError;
use partita_space::Rank;
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
    /// The database cannot be read or written.
    #[error("the measurements in {} cannot be {verb}: {reason}", path.display())]
    File {
        /// `read` or `written`.
        verb: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// The database is no database.
    #[error(
        "{} holds no measurements that can be read: {reason}; remove or mend the file, what it held \
         is then measured again",
        path.display()
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Where it is wrong.
        reason: String,
    },
}
