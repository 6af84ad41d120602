//! The programs of a training and its plan.
//!
//! Every rank derives the same steps from the same plan, without communication. Each step reads the samples
//! of the next step ahead; where another program comes next, its fetch program reads its first samples.

use crate::durations;
use crate::loss_scale::LossScaling;
use crate::position::EpochReport;
use crate::schedule::LearningRateSchedule;
use partita_program::{
    Body, Buffer, ClassTerms, GRADIENT_SQUARES, Program, ProgramKind, Role, Staging,
};
use partita_run::Footprint;
use partita_space::{Bytes, Rank};
use std::ops::Range;

/// A program with the fetch program that reads the samples of its first step.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The program that trains or evaluates.
    pub step: Program,
    /// The program that reads the first samples.
    pub fetch: Program,
}

/// The plan of a training. Equal on all ranks.
pub struct Plan<'s> {
    /// Number of epochs; 1 where nothing is trained.
    pub epochs: u64,
    /// Global batch size; the last step of an epoch takes the remaining samples.
    pub batch: usize,
    /// Seed of random numbers.
    pub seed: u64,
    /// Learning-rate schedule.
    pub schedule: LearningRateSchedule,
    /// How gradients are scaled, where they are in f16.
    pub loss_scaling: Option<LossScaling>,
    /// Order of the training samples in an epoch; their number is the same in all epochs, 0 where a network is only
    /// evaluated or makes predictions.
    pub training_order: &'s (dyn Fn(u64) -> Vec<usize> + Sync),
    /// Samples of the evaluation after each epoch; empty for no evaluation.
    pub validation: Vec<usize>,
    /// Parts of `validation` whose outputs are joined together, in order; empty where outputs are not joined. Steps of
    /// two groups are not mixed.
    pub groups: Vec<Range<usize>>,
    /// Constants of the loss, where what is evaluated has no mean loss over samples: weights or an ignored class divide the
    /// sum of the cross-entropy, or Dice is of sums over samples.
    pub divided: Option<ClassTerms>,
    /// Whether an evaluation tells [`Validation::sample_dice`](crate::Validation::sample_dice), for which it takes one
    /// sample a step.
    pub sample_dice: bool,
    /// Whether the training ends after the last of these epochs, though there are more. Called with the reports of all
    /// epochs that are done, which but for times are equal on all ranks, so that all ranks end after the same epoch.
    pub ends: &'s (dyn Fn(&[EpochReport]) -> bool + Sync),
    /// Number of training steps of full batch size whose traces are kept: the last ones.
    pub traces_kept: usize,
}

/// A plan that cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// No sample.
    #[error("the plan has no samples or no epochs; a run needs at least one of each")]
    Empty,
    /// A learning rate that follows the validation loss, without validation.
    #[error("the learning rate follows the validation loss, and there are no validation samples")]
    NoValidation,
    /// A batch size of the plan for which there is no program.
    #[error("the plan needs a program to {} {batch} samples, and there is none", verb(*kind))]
    NoProgram {
        /// Training or evaluation.
        kind: ProgramKind,
        /// Samples per step.
        batch: usize,
    },
}

fn verb(kind: ProgramKind) -> &'static str {
    match kind {
        ProgramKind::Train => "train on",
        ProgramKind::Evaluate => "evaluate",
        ProgramKind::Infer => "infer",
        ProgramKind::Fetch | ProgramKind::FetchSamples => "fetch",
    }
}

/// The programs and the plan of a training.
pub struct Session<'s> {
    pub(crate) programs: Vec<Programs>,
    pub(crate) plan: Plan<'s>,
}

/// Batch sizes of an epoch: the full one, and that of the remaining samples; none of them 0.
pub fn batch_sizes(samples: usize, batch: usize) -> Vec<usize> {
    assert!(batch > 0, "a step has at least one sample");
    let full = (samples >= batch).then_some(batch);
    let rest = samples % batch;
    full.into_iter().chain((rest > 0).then_some(rest)).collect()
}

impl<'s> Session<'s> {
    /// Checks that every step of the plan has its program.
    ///
    /// Panics if programs do not belong to one run: their meshes or the layouts of their persistent buffers
    /// differ; or if gradients are scaled in programs whose updates do not divide them again. Errors: an empty plan, a batch size without a program.
    pub fn new(programs: Vec<Programs>, plan: Plan<'s>) -> Result<Self, SessionError> {
        let samples = (plan.training_order)(0).len();
        if samples + plan.validation.len() == 0 || plan.epochs == 0 {
            return Err(SessionError::Empty);
        }
        if plan.schedule.needs_validation() && plan.validation.is_empty() {
            return Err(SessionError::NoValidation);
        }
        let session = Self { programs, plan };
        let forward = session.forward_kind();
        let groups = session.groups();
        let groups = groups.iter().map(|group| (forward, group.len()));
        let needs: Vec<(ProgramKind, usize)> = [(ProgramKind::Train, samples)]
            .into_iter()
            .chain(groups)
            .collect();
        for (kind, samples) in needs {
            for batch in batch_sizes(samples, session.batch_of(kind)) {
                if session.find(kind, batch).is_none() {
                    return Err(SessionError::NoProgram { kind, batch });
                }
            }
        }
        session.check_alike();
        session.check_scaling();
        Ok(session)
    }

    /// The training program of full batch size, or of all samples if they are fewer; without training samples that
    /// of the evaluation.
    pub fn main_program(&self) -> &Program {
        &self.programs[self.main()].step
    }

    /// All programs of the run, fetch programs included.
    pub fn programs(&self) -> impl Iterator<Item = &Program> {
        self.programs.iter().flat_map(|one| [&one.step, &one.fetch])
    }

    /// The programs that train and evaluate, without fetch programs.
    pub fn step_programs(&self) -> impl Iterator<Item = &Program> {
        self.programs.iter().map(|one| &one.step)
    }

    /// Size of an arena that is large enough for all programs of a rank.
    pub fn arena_bytes(&self, rank: Rank) -> Bytes {
        self.programs()
            .map(|program| program.body(rank).arena)
            .max()
            .unwrap_or_default()
    }

    /// Sizes of pools that are large enough for all programs of a rank.
    pub fn staging(&self, rank: Rank) -> Staging {
        let all = self.programs().map(|program| program.body(rank).staging);
        all.reduce(Staging::max).unwrap_or_default()
    }

    /// Memory of arena and pools of a rank.
    pub fn memory_bytes(&self, rank: Rank) -> Bytes {
        self.arena_bytes(rank) + self.staging(rank).total()
    }

    /// Memory footprint of a rank while it runs the whole plan.
    pub fn footprint(&self, rank: Rank) -> Footprint {
        let main = self.main_program();
        let body = main.body(rank);
        let samples = (self.plan.training_order)(0).len();
        let steps = self.plan.epochs * (samples / main.batch) as u64;
        let one = Footprint::of(main, rank);
        let pools = self.staging(rank);
        Footprint {
            gaps: one.gaps + Bytes(self.arena_bytes(rank).0 - body.arena.0),
            communication_buffers: pools.packets(),
            io_buffers: pools.io,
            records: durations::bytes(steps, body.tasks.len(), self.plan.traces_kept),
            ..one
        }
    }

    pub(crate) fn main(&self) -> usize {
        let (kind, samples) = if self.trains() {
            (ProgramKind::Train, (self.plan.training_order)(0).len())
        } else {
            let groups = self.groups();
            let largest = groups.iter().map(Range::len).max();
            (self.forward_kind(), largest.unwrap_or(0))
        };
        let main = self.find(kind, self.batch_of(kind).min(samples));
        main.expect("a session has a program for its first step")
    }

    /// Samples of a full step of a kind.
    pub(crate) fn batch_of(&self, kind: ProgramKind) -> usize {
        if self.plan.sample_dice && kind == ProgramKind::Evaluate {
            1
        } else {
            self.plan.batch
        }
    }

    /// Whether the plan has training samples.
    pub(crate) fn trains(&self) -> bool {
        !(self.plan.training_order)(0).is_empty()
    }

    /// Parts of [`Plan::validation`] whose samples no step mixes.
    pub(crate) fn groups(&self) -> Vec<Range<usize>> {
        if self.plan.groups.is_empty() {
            return std::iter::once(0..self.plan.validation.len()).collect();
        }
        self.plan.groups.clone()
    }

    /// What is done with the samples of [`Plan::validation`].
    pub(crate) fn forward_kind(&self) -> ProgramKind {
        let infers = |one: &Programs| one.step.kind == ProgramKind::Infer;
        if self.programs.iter().any(infers) {
            ProgramKind::Infer
        } else {
            ProgramKind::Evaluate
        }
    }

    pub(crate) fn find(&self, kind: ProgramKind, batch: usize) -> Option<usize> {
        let fits = |one: &Programs| one.step.kind == kind && one.step.batch == batch;
        self.programs.iter().position(fits)
    }

    /// Gradients are scaled only where updates divide them again: programs that do have the sum of their squares.
    fn check_scaling(&self) {
        if self.plan.loss_scaling.is_none() {
            return;
        }
        let steps = self.step_programs();
        for program in steps.filter(|program| program.kind == ProgramKind::Train) {
            for rank in 0..program.mesh.ranks() {
                let body = program.body(rank);
                let has_gradients = body.buffers.iter().any(|one| one.role == Role::Gradient);
                let mut outputs = body.outputs.iter();
                assert!(
                    !has_gradients || outputs.any(|output| output.name == GRADIENT_SQUARES),
                    "`{}` does not divide scaled gradients",
                    program.title
                );
            }
        }
    }

    fn check_alike(&self) {
        let first = self.main_program();
        for one in &self.programs {
            let (step, fetch) = (&one.step, &one.fetch);
            for program in [step, fetch] {
                assert_eq!(program.mesh, first.mesh, "mesh of `{}`", program.title);
                for rank in 0..first.mesh.ranks() {
                    let (expected, found) =
                        (persistent(first.body(rank)), persistent(program.body(rank)));
                    assert_eq!(found, expected, "persistent buffers of `{}`", program.title);
                }
            }
            for rank in 0..first.mesh.ranks() {
                let (expected, found) = (staging(step.body(rank)), staging(fetch.body(rank)));
                assert_eq!(found, expected, "staging of `{}`", step.title);
            }
        }
    }
}

/// Whether buffers of a role persist from program to program. Staged samples persist only from step to step of
/// one program.
pub fn persists_over_programs(role: Role) -> bool {
    match role {
        Role::Parameter | Role::State | Role::Constant | Role::Optimizer | Role::Average => true,
        Role::Staging
        | Role::Gradient
        | Role::Activation
        | Role::ActivationGradient
        | Role::PackedWeights
        | Role::Gathered
        | Role::Statistics
        | Role::Workspace => false,
    }
}

fn persistent(body: &Body) -> Vec<&Buffer> {
    body.buffers
        .iter()
        .filter(|buffer| persists_over_programs(buffer.role))
        .collect()
}

fn staging(body: &Body) -> Vec<&Buffer> {
    body.buffers
        .iter()
        .filter(|buffer| buffer.role == Role::Staging)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::batch_sizes;

    #[test]
    fn sizes_cover_all_samples() {
        assert_eq!(batch_sizes(10, 4), [4, 2]);
        assert_eq!(batch_sizes(8, 4), [4]);
        assert_eq!(batch_sizes(3, 4), [3]);
        assert!(batch_sizes(0, 4).is_empty());
    }
}
