//! Where a training stands between two steps, and what may happen there.

use crate::loss_scale::LossScale;
use crate::origin::Repeat;
use crate::persistent::{OwnedShard, write_shard};
use crate::run::EpochReport;
use crate::session::Session;
use partita_run::{Arena, RunError};
use partita_space::{Rank, Seconds};
use serde::{Deserialize, Serialize};

/// Where a training stands between two steps. A run that starts here with the persistent buffers of that moment goes
/// on as if it had not ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Position {
    /// Epoch of the next step, from 0.
    pub epoch: u64,
    /// Steps of that epoch that are done: training steps, then those of its evaluation.
    pub done: u64,
    /// Training steps done in all.
    pub updates: u64,
    /// Time of all steps.
    pub seconds: Seconds,
    /// Epochs that are done.
    pub epochs: Vec<EpochReport>,
    /// Sums over the steps of the current epoch that are done: losses are not yet divided by their samples.
    pub current: EpochReport,
    /// The loss scale, where gradients are scaled or were so before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScale>,
}

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
