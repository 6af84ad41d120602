//! Which step comes when.

use crate::session::Session;
use partita_program::ProgramKind;
use partita_run::Inputs;

/// A step of one of the programs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Turn {
    /// Index among the played programs.
    pub program: usize,
    pub kind: ProgramKind,
    pub epoch: u64,
    /// Updates before it.
    pub updates: u64,
    /// Epochs done before it, steps of an epoch counting alike.
    pub epochs_done: f64,
    pub samples: Vec<usize>,
}

impl Session<'_> {
    /// All turns of the plan in order, made epoch by epoch.
    pub(crate) fn turns(&self) -> impl Iterator<Item = Turn> + '_ {
        (0..self.plan.epochs).flat_map(|epoch| self.epoch(epoch))
    }

    /// Training steps of an epoch, the partial one included.
    pub fn steps_per_epoch(&self) -> u64 {
        (self.plan.training_order)(0)
            .len()
            .div_ceil(self.plan.batch) as u64
    }

    fn epoch(&self, epoch: u64) -> Vec<Turn> {
        let order = (self.plan.training_order)(epoch);
        let steps = order.len().div_ceil(self.plan.batch) as u64;
        assert_eq!(steps, self.steps_per_epoch(), "steps of epoch {epoch}");
        let turn = |kind, index: u64, samples: &[usize]| Turn {
            program: self
                .find(kind, samples.len())
                .expect("a session has a program for every turn"),
            kind,
            epoch,
            updates: epoch * steps + index,
            epochs_done: epoch as f64 + index as f64 / steps as f64,
            samples: samples.to_vec(),
        };
        let training = order.chunks(self.plan.batch).zip(0..);
        let training = training.map(|(samples, index)| turn(ProgramKind::Train, index, samples));
        let validation = self.plan.validation.chunks(self.plan.batch);
        let validation = validation.map(|samples| turn(ProgramKind::Evaluate, steps, samples));
        training.chain(validation).collect()
    }

    /// What a step of this turn is told; the next turn's samples only where its program is the same.
    pub(crate) fn inputs(&self, turn: &Turn, next: Option<&Turn>) -> Inputs {
        let next = next.filter(|next| next.program == turn.program);
        Inputs {
            step: turn.updates + 1,
            epoch: turn.epoch,
            seed: self.plan.seed,
            learning_rate: self.plan.schedule.rate(turn.epochs_done),
            samples: turn.samples.clone(),
            next_samples: next.map_or_else(Vec::new, |next| next.samples.clone()),
        }
    }
}
