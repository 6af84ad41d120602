//! Why samples cannot stay in memory.

use partita_site::{ErrorKind, Fault};
use partita_space::{Bytes, Help, Rank};
use std::path::PathBuf;

/// Why samples cannot stay in memory.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Nothing to fill.
    #[error(
        "`preload` reads all samples into memory before the first step, and `store` is \"{store}\"{}",
        Help::possible(
            "`store = \"memory\"` in `[data]` of the run file, or `--store memory`, or no `preload`"
        )
    )]
    Preload {
        /// Its `store`.
        store: &'static str,
    },
    /// Nothing to limit.
    #[error(
        "`{key}` is for samples that stay in memory, and `store` is \"{store}\"{}",
        Help::none().nearest(format_args!(
            "`store = \"memory\"` in `[data]` of the run file, or `--store memory`, or no `{key}`"
        ))
    )]
    Unused {
        /// The key.
        key: &'static str,
        /// Its `store`.
        store: &'static str,
    },
    /// Other processes read.
    #[error(
        "`store` is \"{store}\", and `loaders` of `[offload]` read in processes of their own, which keep no \
         samples{}",
        Help::none().nearest("either `store = \"none\"`, or no `loaders`")
    )]
    Loaders {
        /// Its `store`.
        store: &'static str,
    },
    /// They do not fit.
    #[error(
        "rank {rank} would keep {samples} ({} B) of samples in memory beside {others} of its program, the limit \
         is {limit} per rank ({origin}){}",
        samples.0,
        Help::none().nearest(format_args!(
            "{ranks}`spill = \"FOLDER\"` in `[data]`, which keeps the rest on a local disk, or `store = \"none\"`, \
             which reads the files in every epoch"
        ))
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
    /// More than the run file allows.
    #[error(
        "rank {rank} would keep {samples} ({} B) of samples in memory, and `store_memory` is {limit}{}",
        samples.0,
        Help::none().nearest(format_args!(
            "`store_memory = \"{}B\"` or more, or {ranks}`spill = \"FOLDER\"` in `[data]`, which keeps the rest on a \
             local disk",
            samples.0
        ))
    )]
    Limit {
        /// The rank that keeps most.
        rank: Rank,
        /// Its samples.
        samples: Bytes,
        /// The limit of the run file.
        limit: Bytes,
        /// Advice on more ranks, if these help.
        ranks: String,
    },
    /// What each sample takes in memory, wherever it lies, is too much.
    #[error(
        "rank {rank} keeps {spilled} of samples on a disk, and needs {entries} of memory to find them beside {others} \
         of its program; the limit is {limit} ({origin}){}",
        Help::none().nearest(format_args!("{memory}more ranks, or `store = \"none\"`"))
    )]
    Entries {
        /// The rank.
        rank: Rank,
        /// Bytes of its file.
        spilled: Bytes,
        /// Memory for finding them.
        entries: Bytes,
        /// What else it needs.
        others: Bytes,
        /// Memory limit.
        limit: Bytes,
        /// Where the limit comes from.
        origin: String,
        /// Advice on a larger limit, if the run file has one.
        memory: String,
    },
    /// A folder that cannot be used.
    #[error(
        "samples that do not fit the memory are to go to {folder}: {reason}{}",
        Help::none().nearest("a folder that exists on every host, like \"/tmp\"")
    )]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// Why not.
        reason: String,
    },
    /// A disk that is too small.
    #[error(
        "samples that do not fit the memory of {ranks} rank(s) of this host take {needed} in {folder}, and \
         {free} are free there{}",
        Help::none().nearest(format_args!("another folder as `spill`, {memory}or more ranks on more hosts"))
    )]
    Space {
        /// The folder.
        folder: PathBuf,
        /// Ranks of the host.
        ranks: usize,
        /// Bytes of their files.
        needed: Bytes,
        /// Free bytes.
        free: Bytes,
        /// Advice on a larger limit of memory, if there is one.
        memory: String,
    },
    /// A limit of the shell.
    #[error(
        "samples that do not fit the memory of a rank take {needed} in a file in {folder}, and a file of this \
         process may have {limit} (`ulimit -f`){}",
        Help::possible(format_args!("a limit of {needed} or more")).code("ulimit -f unlimited")
    )]
    FileLimit {
        /// The folder.
        folder: PathBuf,
        /// Bytes of the largest file.
        needed: Bytes,
        /// The limit.
        limit: Bytes,
    },
}

impl Fault for StoreError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Request
    }
}
