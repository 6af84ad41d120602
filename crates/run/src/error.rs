//! Errors of a run.

use partita_program::Role;
use partita_space::{Bytes, Rank, Seconds};
use serde::{Deserialize, Serialize};

/// Why a run ended early.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
pub enum RunError {
    /// No task completed within the limit of the watchdog.
    #[error(
        "rank {rank} made no progress for {limit}: {work} of layer `{layer}` (task {task}, sequence \
         {sequence}) waits for rank(s) {missing:?}"
    )]
    Stalled {
        /// The rank that reports it.
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
    /// A peer ended while this rank waited for it.
    #[error(
        "rank {rank} lost rank {peer} in {work} of layer `{layer}` (task {task}, sequence {sequence})"
    )]
    Lost {
        /// The rank that reports it.
        rank: Rank,
        /// The lost rank.
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
        /// The rank that reports it.
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
        /// The message of the transport, like that of MPI.
        reason: String,
    },
    /// Samples could not be read.
    #[error("rank {rank} could not read its part of the data: {reason}")]
    Source {
        /// The rank that reports it.
        rank: Rank,
        /// File, key and cause.
        reason: String,
    },
    /// Outputs of the network could not be written.
    #[error("rank {rank} could not write its part of the outputs: {reason}")]
    Sink {
        /// The rank that reports it.
        rank: Rank,
        /// File and cause.
        reason: String,
    },
    /// An output of the network is infinite or NaN.
    #[error(
        "the output for sample {sample} is {value} at (C, D, H, W) = {position:?} (rank {rank}); no predictions were \
         written; the weights are not those of this network, or samples after `transform` are far from those of the \
         training; in f16 values are infinite above 65,504, where `precision = \"bf16\"` has the range of f32"
    )]
    OutputNotFinite {
        /// The rank that reports it.
        rank: Rank,
        /// Number of the sample in its split.
        sample: usize,
        /// Where it is.
        position: [usize; 4],
        /// What it is.
        value: f32,
    },
    /// The values with which a training starts could not be had.
    #[error("rank {rank} could not set `{tensor}` to its initial values: {reason}")]
    Initial {
        /// The rank that reports it.
        rank: Rank,
        /// The parameter, statistic or moment.
        tensor: String,
        /// File and cause.
        reason: String,
    },
    /// Ranks could not decide together between two steps, or did not meet at the end of an epoch.
    #[error("rank {rank} could not agree with the other ranks after {after}: {reason}")]
    Agreement {
        /// The rank that reports it.
        rank: Rank,
        /// What was done before: `step 12`, `epoch 3`.
        after: String,
        /// The cause.
        reason: String,
    },
    /// The backend does not offer the algorithm of a task.
    #[error("rank {rank}: algorithm `{algorithm}` of {kernel} is not offered by {backend}")]
    Algorithm {
        /// The rank that reports it.
        rank: Rank,
        /// The kernel.
        kernel: String,
        /// The algorithm of the task.
        algorithm: String,
        /// The kernel library.
        backend: String,
    },
    /// The kernels of a rank could not be set up, or were given invalid data.
    #[error("rank {rank}: {reason}")]
    Kernels {
        /// The rank that reports it.
        rank: Rank,
        /// The cause.
        reason: String,
    },
    /// An allocation failed.
    #[error(
        "rank {rank}: out of memory: its {what} of {bytes} cannot be allocated; give its process more \
         (`ulimit -v` shows the limit of its address space), lower the batch, or split over more ranks"
    )]
    Memory {
        /// The rank that reports it.
        rank: Rank,
        /// `arena`, `packets`.
        what: String,
        /// Its size.
        bytes: Bytes,
    },
    /// The work of a step differs from that of the program.
    #[error("rank {rank}: the step {what}: counted {counted}, expected {expected}")]
    Tally {
        /// The rank that reports it.
        rank: Rank,
        /// The quantity.
        what: String,
        /// Counted by the run.
        counted: u64,
        /// According to the program.
        expected: u64,
    },
    /// A parameter, running statistic or optimizer state is no longer finite.
    #[error(
        "rank {rank}: `{tensor}` of layer `{layer}` holds {value} after step {step} (epoch {epoch}); {count} of its \
         {elements} values are not finite"
    )]
    NotFinite {
        /// The rank that reports it.
        rank: Rank,
        /// The tensor.
        tensor: String,
        /// Its layer.
        layer: Box<str>,
        /// The role of its buffer.
        role: Role,
        /// The first such value, as text: JSON has no infinities.
        value: Box<str>,
        /// Number of values that are infinite or NaN.
        count: usize,
        /// Number of values that the rank has.
        elements: usize,
        /// Training step, from 1.
        step: u64,
        /// Epoch, from 1.
        epoch: u64,
    },
    /// Updates were skipped again and again, as scaled gradients were not finite.
    #[error(
        "the last {updates} updates up to step {step} (epoch {epoch}) were skipped, as gradients are infinite or NaN in \
         f16, at last with a loss scale of {scale:e}"
    )]
    NoUpdate {
        /// The rank that reports it.
        rank: Rank,
        /// Updates skipped one after the other.
        updates: u64,
        /// The loss scale.
        scale: f64,
        /// Training step, from 1.
        step: u64,
        /// Epoch, from 1.
        epoch: u64,
    },
    /// Another rank failed, or the user asked to stop.
    #[error("stopped")]
    Cancelled,
}

impl RunError {
    /// 0 for a cause, more for a consequence of another rank's failure.
    pub fn distance_from_cause(&self) -> u8 {
        match self {
            RunError::Stalled { .. }
            | RunError::Source { .. }
            | RunError::Sink { .. }
            | RunError::OutputNotFinite { .. }
            | RunError::Initial { .. }
            | RunError::Algorithm { .. }
            | RunError::Kernels { .. }
            | RunError::Memory { .. }
            | RunError::Tally { .. }
            | RunError::NotFinite { .. }
            | RunError::NoUpdate { .. } => 0,
            RunError::Lost { .. } | RunError::Message { .. } | RunError::Agreement { .. } => 1,
            RunError::Cancelled => 2,
        }
    }
}
