//! Why a run ended early.

use partita_program::Role;
use partita_space::{Bytes, Rank, Seconds};
use serde::{Deserialize, Serialize};

/// Why a run ended early.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
pub enum RunError {
    /// Nothing completed for longer than the watchdog allows.
    #[error(
        "rank {rank} stood still for {limit}: {work} of layer `{layer}` (task {task}, sequence \
         {sequence}) waits for rank(s) {missing:?}"
    )]
    Stalled {
        /// Who noticed.
        rank: Rank,
        /// The watchdog's limit.
        limit: Seconds,
        /// Kind of work.
        work: String,
        /// Its layer.
        layer: String,
        /// Its number in the body.
        task: u32,
        /// Number of the exchange or collective.
        sequence: u32,
        /// Ranks from which nothing came.
        missing: Vec<Rank>,
    },
    /// A peer went away.
    #[error(
        "rank {rank} lost rank {peer} in {work} of layer `{layer}` (task {task}, sequence {sequence})"
    )]
    Lost {
        /// Who noticed.
        rank: Rank,
        /// Who is gone.
        peer: Rank,
        /// Kind of work.
        work: String,
        /// Its layer.
        layer: String,
        /// Its number in the body.
        task: u32,
        /// Number of the exchange or collective.
        sequence: u32,
    },
    /// A message could not be sent or received.
    #[error(
        "rank {rank}: {work} of layer `{layer}` (task {task}, sequence {sequence}) with rank {peer} \
         failed: {reason}"
    )]
    Message {
        /// Who tried.
        rank: Rank,
        /// The other side.
        peer: Rank,
        /// Kind of work.
        work: String,
        /// Its layer; empty where the task was one of an earlier body.
        layer: String,
        /// Its number in the body.
        task: u32,
        /// Number of the exchange or collective.
        sequence: u32,
        /// What the carrier said.
        reason: String,
    },
    /// Samples could not be read.
    #[error("rank {rank} could not read its part of the data: {reason}")]
    Source {
        /// Who tried.
        rank: Rank,
        /// File, key and cause.
        reason: String,
    },
    /// The kernel set cannot do what the task pins.
    #[error("rank {rank}: algorithm `{algorithm}` of {kernel} is not offered by {backend}")]
    Algorithm {
        /// Who tried.
        rank: Rank,
        /// The kernel.
        kernel: String,
        /// What the task pins.
        algorithm: String,
        /// Who was asked.
        backend: String,
    },
    /// The kernels of a rank could not be set up, or met what they cannot compute.
    #[error("rank {rank}: {reason}")]
    Kernels {
        /// Which one.
        rank: Rank,
        /// Why.
        reason: String,
    },
    /// The system gives no memory for what a rank holds.
    #[error(
        "rank {rank}: the system gives no memory for its {what} of {bytes}; give its process more \
         (`ulimit -v` shows the limit of its address space), lower the batch, or split over more ranks"
    )]
    Memory {
        /// Whose.
        rank: Rank,
        /// `arena`, `packets`.
        what: String,
        /// How much.
        bytes: Bytes,
    },
    /// What was done is not what the program says.
    #[error("rank {rank}: the step {what}: counted {counted}, expected {expected}")]
    Tally {
        /// Who counted.
        rank: Rank,
        /// Which quantity.
        what: String,
        /// By the run.
        counted: u64,
        /// By the program.
        expected: u64,
    },
    /// What the run trains, or keeps beside it, has left the range of its type.
    #[error(
        "rank {rank}: `{tensor}` holds {value} after step {step} (epoch {epoch}); {count} of its {elements} \
         values are not finite"
    )]
    NotFinite {
        /// Who noticed.
        rank: Rank,
        /// The buffer, named after its tensor.
        tensor: String,
        /// What it is.
        role: Role,
        /// The first such value, as text: JSON has no infinities.
        value: String,
        /// Values that are infinite or not a number.
        count: usize,
        /// All values that the rank has of it.
        elements: usize,
        /// Training step, from 1.
        step: u64,
        /// From 1.
        epoch: u64,
    },
    /// Another rank failed, or the user asked to stop.
    #[error("stopped")]
    Cancelled,
}

impl RunError {
    /// 0 for a cause; more for what follows from a failure elsewhere.
    pub fn distance_from_cause(&self) -> u8 {
        match self {
            RunError::Stalled { .. }
            | RunError::Source { .. }
            | RunError::Algorithm { .. }
            | RunError::Kernels { .. }
            | RunError::Memory { .. }
            | RunError::Tally { .. }
            | RunError::NotFinite { .. } => 0,
            RunError::Lost { .. } | RunError::Message { .. } => 1,
            RunError::Cancelled => 2,
        }
    }
}
