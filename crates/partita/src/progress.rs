//! What the library tells its caller while it works.

use partita_session::Progress as TrainingProgress;

/// Something that happened on the way to an answer.
#[derive(Debug)]
pub enum Event<'e> {
    /// Something to know beside the answer.
    Warning(&'e str),
    /// How far a measurement or a search is. Replaces the status before; an empty text clears it.
    Status {
        /// What is under way.
        text: &'e str,
        /// Whether this work is done.
        is_last: bool,
    },
    /// Files are written from here on, so the work must not be killed: a caller that ends the process when
    /// the user asks to stop sets the flag of [`Context::cancel`](crate::Context::cancel) instead.
    Writing,
    /// A dataset grows. The first event has `made == 0`.
    Samples {
        /// What a sample is called, in the plural.
        noun: &'static str,
        /// Written so far.
        made: usize,
        /// To be written.
        total: usize,
    },
    /// The making of a dataset was stopped.
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
    /// Why a job of several processes fails; this process reports for all of them.
    Failure(&'e str),
}

/// Receives events, on any thread.
pub trait Progress: Sync {
    /// Takes an event. The work waits until it returns.
    fn report(&self, event: Event<'_>);
}

/// Ignores all events.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn report(&self, _: Event<'_>) {}
}

impl<F: Fn(Event<'_>) + Sync> Progress for F {
    fn report(&self, event: Event<'_>) {
        self(event);
    }
}
