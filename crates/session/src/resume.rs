//! What may happen between two steps of a training.

use crate::loss_scale::LossScale;
use crate::persistent::{InitialValues, OwnedShard, set_initial, write_shard};
use crate::position::{EpochReport, Position};
use crate::session::Session;
use partita_run::{Arena, RunError};
use partita_space::{Rank, Seconds};

/// Whether a training goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// With the next step.
    Continue,
    /// Not: it ends here, with [`RunEnd::Stopped`](crate::RunEnd::Stopped).
    Stop,
}

/// A training step whose loss was infinite or NaN, on one rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Failed {
    /// Training steps done before it.
    pub steps: u64,
    /// Time of all steps.
    pub seconds: Seconds,
    /// Time of the steps of this run.
    pub seconds_of_run: Seconds,
}

/// Where the repetition of steps starts.
pub enum Repeat<'h> {
    /// Nothing is repeated.
    Nothing,
    /// Where the run started.
    Start,
    /// At a later position, with the values of the persistent buffers there.
    From(Position, Box<InitialValues<'h>>),
}

/// Called between steps.
pub trait StepHook {
    /// Called on every rank after each step.
    ///
    /// Errors: those that end the run.
    fn after_step(&mut self, boundary: &mut Boundary<'_, '_>) -> Result<Next, RunError>;

    /// Called on every rank once the steps of an epoch are done, before it is reported.
    ///
    /// Errors: those that end the run.
    fn before_report(&mut self, _epoch: u64) -> Result<(), RunError> {
        Ok(())
    }

    /// Called on every rank after an epoch, with the reports of all: whether the training ends there. All ranks must answer
    /// the same.
    ///
    /// Errors: those that end the run.
    fn ends(&mut self, _: &[EpochReport]) -> Result<bool, RunError> {
        Ok(false)
    }

    /// Called on every rank after a training step whose loss is infinite or NaN: where the repetition starts that looks
    /// for the layer. All ranks must answer the same.
    ///
    /// Errors: the ranks cannot agree.
    fn repeat_from(&mut self, _: &Failed) -> Result<Repeat<'_>, RunError> {
        Ok(Repeat::Start)
    }
}

/// The moment after a step, on one rank.
pub struct Boundary<'b, 's> {
    pub(crate) session: &'b Session<'s>,
    pub(crate) rank: Rank,
    pub(crate) arena: &'b mut Arena,
    /// As in [`Position`].
    pub epoch: u64,
    /// As in [`Position`].
    pub done: u64,
    /// Training steps done in all.
    pub updates: u64,
    /// Time of all steps.
    pub seconds: Seconds,
    /// Epochs that are done; the last of them ended with this step if `done` is 0.
    pub epochs: &'b [EpochReport],
    /// As in [`Position`].
    pub current: &'b EpochReport,
    /// As in [`Position`].
    pub loss_scale: Option<LossScale>,
    /// Whether the step was one of training.
    pub is_update: bool,
    /// Whether this was the last step of the plan, or of a training that ends early.
    pub is_last: bool,
}

impl Boundary<'_, '_> {
    /// Whether the step ended an epoch, its evaluation included.
    pub fn ends_epoch(&self) -> bool {
        self.done == 0
    }

    /// The position.
    pub fn position(&self) -> Position {
        Position {
            epoch: self.epoch,
            done: self.done,
            updates: self.updates,
            seconds: self.seconds,
            epochs: self.epochs.to_vec(),
            current: self.current.clone(),
            loss_scale: self.loss_scale,
        }
    }

    /// Sets persistent buffers of the rank, as at the start of a run.
    ///
    /// Errors: `Initial`.
    pub fn set_values(&mut self, values: &InitialValues<'_>) -> Result<(), RunError> {
        set_initial(self.session.main_program(), self.rank, self.arena, values)
    }

    /// Copies a shard of the rank as little-endian bytes.
    ///
    /// Panics where `bytes` has another size than the shard.
    pub fn write_shard(&mut self, shard: &OwnedShard, bytes: &mut [u8]) {
        let body = self.session.main_program().body(self.rank);
        write_shard(body, self.arena, shard, bytes);
    }
}

/// A hook that does nothing.
pub(crate) struct NoHook;

impl StepHook for NoHook {
    fn after_step(&mut self, _: &mut Boundary<'_, '_>) -> Result<Next, RunError> {
        Ok(Next::Continue)
    }
}
