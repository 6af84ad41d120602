//! Why samples cannot stay in memory.

use crate::error::{ErrorKind, Fault};
use partita_space::{Bytes, Rank};

/// Why samples cannot stay in memory.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Nothing to fill.
    #[error(
        "`preload` reads all samples into memory before the first step, and `store` is \"none\"; possible is \
         `store = \"memory\"` in `[data]` of the run file, or `--store memory`, or no `preload`"
    )]
    Preload,
    /// Other processes read.
    #[error(
        "`store` is \"memory\", and `loaders` of `[offload]` read in processes of their own, which keep no samples; \
         possible is either of them: `store = \"none\"`, or no `loaders`"
    )]
    Loaders,
    /// They do not fit.
    #[error(
        "rank {rank} would keep {samples} ({} B) of samples in memory beside {others} of its program, the limit is \
         {limit} per rank ({origin}); possible is {ranks}`store = \"none\"`, which reads the files in every epoch",
        samples.0
    )]
    Memory {
        /// The rank that needs most.
        rank: Rank,
        /// Its samples.
        samples: Bytes,
        /// What else it needs.
        others: Bytes,
        /// Memory limit.
        limit: Bytes,
        /// Where the limit comes from.
        origin: String,
        /// Advice on more ranks, if these help.
        ranks: String,
    },
}

impl Fault for StoreError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Request
    }
}
