//! Events that the library reports to its caller while it works.

use crate::losses::LossHistory;
use partita_session::Progress as TrainingProgress;

/// An event during a verb.
#[derive(Debug)]
pub enum Event<'e> {
    /// A warning beside the result.
    Warning(&'e str),
    /// Progress of a measurement or a search. Replaces the status before; an empty text clears it.
    Status {
        /// The current work.
        text: &'e str,
        /// Whether this work is done.
        is_last: bool,
    },
    /// Files are written from now on, so the process must not be killed: to stop it, set the flag of
    /// [`Context::cancel`](crate::context::Context::cancel).
    Writing,
    /// A training writes checkpoints from now on: the first request to stop, through the same flag, ends it after the
    /// current step with a checkpoint. The process may then be killed.
    Checkpoints {
        /// Whether this process has rank 0, and speaks for all.
        is_first: bool,
    },
    /// A line for the user.
    Note(&'e str),
    /// Progress of making a dataset. The first event has `made == 0`.
    Samples {
        /// Plural noun for the samples, like `universes`.
        noun: &'static str,
        /// Samples written so far.
        made: usize,
        /// Samples in all.
        total: usize,
    },
    /// Making a dataset was cancelled.
    SamplesStopped,
    /// A training step, an evaluation or an epoch is done.
    Training {
        /// Epochs of the run.
        epochs: u64,
        /// Training steps of the run.
        steps: u64,
        /// What is done.
        progress: &'e TrainingProgress,
    },
    /// A training ended before its time: its loss is not finite, or it was stopped and left a checkpoint.
    EndedEarly(&'e LossHistory),
    /// The failure of a job of several processes, reported by this process for all of them.
    Failure(&'e str),
}

/// Receives events, on any thread.
pub trait Progress: Send + Sync {
    /// Handles an event. The work waits until it returns.
    fn report(&self, event: Event<'_>);
}

/// Ignores all events.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn report(&self, _: Event<'_>) {}
}

impl<F: Fn(Event<'_>) + Send + Sync> Progress for F {
    fn report(&self, event: Event<'_>) {
        self(event);
    }
}
