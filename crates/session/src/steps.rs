//! The order of steps of a plan.

use crate::position::Position;
use crate::schedule::{SchedulePoint, ScheduleState};
use crate::session::Session;
use partita_program::ProgramKind;
use partita_run::Inputs;

/// A step of one of the programs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PlannedStep {
    /// Index of the program.
    pub program: usize,
    pub kind: ProgramKind,
    pub epoch: u64,
    /// Updates before it.
    pub updates: u64,
    /// Epochs done before it; steps of an epoch count as equal fractions.
    pub epochs_done: f64,
    /// Updates of its epoch.
    pub steps_per_epoch: u64,
    pub samples: Vec<usize>,
    /// The group of outputs that are joined after it.
    pub ends_group: Option<usize>,
}

impl Session<'_> {
    /// The steps of the plan in order, generated epoch by epoch, but for those of the epochs before `epoch` and the first
    /// `done` of that one.
    pub(crate) fn steps_from(
        &self,
        (epoch, done): (u64, u64),
    ) -> impl Iterator<Item = PlannedStep> + '_ {
        let rest = (epoch..self.plan.epochs).flat_map(|epoch| self.epoch(epoch));
        rest.skip(done as usize)
    }

    /// The samples of each step of an epoch of the plan, with the index of its program in
    /// [`step_programs`](Self::step_programs).
    pub fn samples_of_epoch(&self, epoch: u64) -> impl Iterator<Item = (usize, Vec<usize>)> {
        let steps = self.epoch(epoch).into_iter();
        steps.map(|planned| (planned.program, planned.samples))
    }

    /// Training steps of an epoch, one of a partial batch included.
    pub fn steps_per_epoch(&self) -> u64 {
        (self.plan.training_order)(0)
            .len()
            .div_ceil(self.plan.batch) as u64
    }

    /// What is wrong with a position, read from a file, as one of this training; `None` if nothing is.
    pub fn position_fault(&self, position: &Position) -> Option<String> {
        let steps = self.steps_per_epoch();
        let evaluated = self.plan.validation.len() as u64;
        let Position {
            epoch,
            done,
            updates,
            ..
        } = *position;
        if done > steps + evaluated {
            return Some(format!(
                "{done} steps of epoch {} are done, which has {steps} training steps and {evaluated} validation samples",
                epoch + 1
            ));
        }
        let expected = epoch.checked_mul(steps);
        let expected = expected.and_then(|before| before.checked_add(done.min(steps)));
        (expected != Some(updates)).then(|| {
            format!("{updates} updates are done after {epoch} epochs of {steps} steps and {done} steps more")
        })
    }

    fn epoch(&self, epoch: u64) -> Vec<PlannedStep> {
        let order = (self.plan.training_order)(epoch);
        let steps = order.len().div_ceil(self.plan.batch) as u64;
        assert_eq!(steps, self.steps_per_epoch(), "steps of epoch {epoch}");
        let fraction = |index: u64| index as f64 / steps.max(1) as f64;
        let planned = |kind, index: u64, samples: &[usize]| PlannedStep {
            program: self
                .find(kind, samples.len())
                .expect("a session has a program for every step"),
            kind,
            epoch,
            updates: epoch * steps + index,
            steps_per_epoch: steps,
            epochs_done: epoch as f64 + fraction(index),
            samples: samples.to_vec(),
            ends_group: None,
        };
        let training = order.chunks(self.plan.batch).zip(0..);
        let training = training.map(|(samples, index)| planned(ProgramKind::Train, index, samples));
        let forward = self.forward_kind();
        let mut all: Vec<PlannedStep> = training.collect();
        for (group, samples) in self.groups().into_iter().enumerate() {
            let samples = self.plan.validation[samples].chunks(self.batch_of(forward));
            all.extend(samples.map(|samples| planned(forward, steps, samples)));
            let is_joined = !self.plan.groups.is_empty();
            if let Some(last) = all.last_mut().filter(|_| is_joined) {
                last.ends_group = Some(group);
            }
        }
        all
    }

    /// The learning rate of a step.
    pub(crate) fn rate(&self, planned: &PlannedStep, state: ScheduleState) -> f64 {
        self.plan.schedule.rate(&SchedulePoint {
            epochs_done: planned.epochs_done,
            steps_per_epoch: planned.steps_per_epoch,
            state,
        })
    }

    /// The inputs of a step; they name the samples of the next one only if its program is the same.
    pub(crate) fn inputs(
        &self,
        planned: &PlannedStep,
        next: Option<&PlannedStep>,
        state: ScheduleState,
    ) -> Inputs {
        let next = next.filter(|next| next.program == planned.program);
        Inputs {
            step: planned.updates + 1,
            epoch: planned.epoch,
            seed: self.plan.seed,
            learning_rate: self.rate(planned, state),
            loss_scale: None,
            skipped: 0,
            samples: planned.samples.clone(),
            next_epoch: next.map_or(planned.epoch, |next| next.epoch),
            next_samples: next.map_or_else(Vec::new, |next| next.samples.clone()),
        }
    }
}
