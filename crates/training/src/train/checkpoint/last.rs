//! The last checkpoint of a run.

use std::path::PathBuf;

/// A whole checkpoint of this run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastCheckpoint {
    /// Its folder.
    pub path: PathBuf,
    /// Epoch of the next step, from 0.
    pub epoch: u64,
    /// Training steps done.
    pub steps: u64,
}
