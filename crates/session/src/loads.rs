//! What a rank loads over a whole plan, in order, so that it can be read ahead.

use crate::session::Session;
use partita_program::{Load, ProgramKind, When};
use partita_space::Rank;
use std::collections::VecDeque;
use std::sync::Arc;

/// Order of the training samples in an epoch.
pub type SharedOrder = Arc<dyn Fn(u64) -> Vec<usize> + Send + Sync>;

/// A load of a rank.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedLoad {
    /// The load.
    pub load: Load,
    /// Epoch of its samples, from 0.
    pub epoch: u64,
    /// Samples of its step, of all ranks.
    pub samples: Arc<[usize]>,
}

/// Loads of a program.
struct ProgramLoads {
    kind: ProgramKind,
    batch: usize,
    fetch: Vec<Load>,
    step: Vec<Load>,
}

/// A step of the plan: its program, epoch and samples.
type Step = (usize, u64, Arc<[usize]>);

/// The loads of a rank, in the order in which they start.
pub struct LoadSequence {
    programs: Vec<ProgramLoads>,
    order: SharedOrder,
    /// Of each group.
    validation: Vec<Vec<usize>>,
    forward: ProgramKind,
    batch: usize,
    epochs: u64,
    /// The next epoch whose steps are listed.
    epoch: u64,
    steps: VecDeque<Step>,
    staged: Option<usize>,
    loads: VecDeque<PlannedLoad>,
}

impl Session<'_> {
    /// The loads of a rank after the first `done` steps of an epoch. `order` is that of the plan; `evaluates` is whether
    /// the ranks evaluate each epoch themselves.
    pub fn loads(
        &self,
        rank: Rank,
        (epoch, done): (u64, u64),
        order: SharedOrder,
        evaluates: bool,
    ) -> LoadSequence {
        let programs = self.programs.iter().map(|one| ProgramLoads {
            kind: one.step.kind,
            batch: one.step.batch,
            fetch: one.fetch.body(rank).loads().cloned().collect(),
            step: one.step.body(rank).loads().cloned().collect(),
        });
        let mut sequence = LoadSequence {
            programs: programs.collect(),
            order,
            validation: if evaluates {
                let groups = self.groups().into_iter();
                groups
                    .map(|group| self.plan.validation[group].to_vec())
                    .collect()
            } else {
                Vec::new()
            },
            forward: self.forward_kind(),
            batch: self.plan.batch,
            epochs: self.plan.epochs,
            epoch,
            steps: VecDeque::new(),
            staged: None,
            loads: VecDeque::new(),
        };
        sequence.list_epoch();
        let done = (done as usize).min(sequence.steps.len());
        sequence.steps.drain(..done);
        sequence
    }
}

impl LoadSequence {
    /// Lists the steps of the next epoch, if there is one.
    fn list_epoch(&mut self) {
        if self.epoch >= self.epochs {
            return;
        }
        let order = (self.order)(self.epoch);
        let of = |kind: ProgramKind, samples: &[usize]| {
            let fits = |one: &ProgramLoads| one.kind == kind && one.batch == samples.len();
            let program = self.programs.iter().position(fits)?;
            Some((program, self.epoch, samples.into()))
        };
        let training = order.chunks(self.batch);
        let training = training.filter_map(|samples| of(ProgramKind::Train, samples));
        let groups = self.validation.iter();
        let validation = groups.flat_map(|group| group.chunks(self.batch));
        let validation = validation.filter_map(|samples| of(self.forward, samples));
        let steps: Vec<Step> = training.chain(validation).collect();
        self.steps.extend(steps);
        self.epoch += 1;
    }

    fn next_step(&mut self) -> Option<()> {
        while self.steps.len() < 2 && self.epoch < self.epochs {
            self.list_epoch();
        }
        let step = self.steps.pop_front()?;
        let program = step.0;
        let next = self.steps.front().filter(|next| next.0 == program).cloned();
        let loads = &self.programs[program];
        if self.staged != Some(program) {
            extend(&mut self.loads, &loads.fetch, &step, None);
        }
        extend(&mut self.loads, &loads.step, &step, next.as_ref());
        self.staged = next.map(|next| next.0);
        Some(())
    }
}

/// A load for the next step reads nothing where there is none.
fn extend(all: &mut VecDeque<PlannedLoad>, loads: &[Load], now: &Step, next: Option<&Step>) {
    let planned = |load: &Load| {
        let (_, epoch, samples) = match load.when {
            When::Now => now,
            When::Next => next?,
        };
        Some(PlannedLoad {
            load: load.clone(),
            epoch: *epoch,
            samples: Arc::clone(samples),
        })
    };
    all.extend(loads.iter().filter_map(planned));
}

impl Iterator for LoadSequence {
    type Item = PlannedLoad;

    fn next(&mut self) -> Option<PlannedLoad> {
        while self.loads.is_empty() {
            self.next_step()?;
        }
        self.loads.pop_front()
    }
}
