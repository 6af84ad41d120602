use partita_space::{Rank, Seconds};

/// Why a run ended early.
#[derive(Clone, Debug, thiserror::Error)]
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
    #[error("rank {rank} lost rank {peer} in {work} of layer `{layer}` (sequence {sequence})")]
    Lost {
        /// Who noticed.
        rank: Rank,
        /// Who is gone.
        peer: Rank,
        /// Kind of work.
        work: String,
        /// Its layer.
        layer: String,
        /// Number of the exchange or collective.
        sequence: u32,
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
    /// Another rank failed, or the user asked to stop.
    #[error("stopped")]
    Cancelled,
}
