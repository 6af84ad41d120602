//! A session played on one rank.

use crate::durations::Durations;
use crate::persistent::{Initial, first_not_finite, set_initial};
use crate::session::Session;
use crate::turns::Turn;
use partita_program::ProgramKind;
use partita_run::{Counted, RankRunner, RunError, StepReport, Trace};
use partita_space::{Rank, Seconds};
use serde::{Deserialize, Serialize};

/// What happened, as it happens.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// A training step.
    Step {
        /// From 0.
        epoch: u64,
        /// Over the whole run, from 1.
        step: u64,
        /// Mean over its samples, before the update.
        loss: f64,
        /// As it was.
        learning_rate: f64,
        /// Over all ranks.
        samples: usize,
        /// On rank 0, reading ahead included.
        seconds: Seconds,
    },
    /// A step of an evaluation.
    Evaluated {
        /// From 0.
        epoch: u64,
        /// Over all ranks.
        samples: usize,
    },
    /// An epoch with its evaluation.
    Epoch(EpochReport),
    /// The run.
    Done {
        /// Training steps.
        steps: u64,
        /// From the first to the last, evaluations included.
        seconds: Seconds,
    },
}

/// What an epoch gave.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EpochReport {
    /// From 0.
    pub epoch: u64,
    /// Mean over its samples, each before the update to which it contributed.
    pub training_loss: f64,
    /// Training samples.
    pub samples: usize,
    /// Of its training steps, fetches included.
    pub training_seconds: Seconds,
    /// With the parameters as they stood at its end.
    pub validation: Option<Validation>,
}

/// What an evaluation gave.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Validation {
    /// Mean over its samples.
    pub loss: f64,
    /// How many.
    pub samples: usize,
    /// Per target, the sum of absolute errors over samples; empty where the loss knows none.
    pub absolute: Vec<f64>,
    /// Per target, the sum of squared errors.
    pub squared: Vec<f64>,
    /// Per class of a classifier, over positions of all samples; empty of a regression.
    pub classes: Vec<ClassCount>,
    /// Fetches included.
    pub seconds: Seconds,
}

/// Positions that an evaluation gave to a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClassCount {
    /// Given to it, and of it.
    pub hits: f64,
    /// Given to it: its score is the greatest, the first of equals.
    pub given: f64,
    /// Of it.
    pub actual: f64,
}

impl ClassCount {
    /// The Dice coefficient, `2 hits / (given + actual)`; `None` of a class that nothing is given to
    /// or of.
    ///
    /// Source: Dice, Ecology 26(3), 1945.
    pub fn dice(&self) -> Option<f64> {
        let sum = self.given + self.actual;
        (sum > 0.0).then(|| 2.0 * self.hits / sum)
    }

    /// Intersection over union, `hits / (given + actual - hits)`; `None` as of [`Self::dice`].
    pub fn overlap(&self) -> Option<f64> {
        let union = self.given + self.actual - self.hits;
        (union > 0.0).then(|| self.hits / union)
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum End {
    /// As planned.
    Finished,
    /// With a loss that is no number.
    NotFinite {
        /// What was done.
        kind: ProgramKind,
        /// From 0.
        epoch: u64,
        /// Training step, from 1; for an evaluation the one it would come before.
        step: u64,
        /// Infinite or not a number.
        loss: f64,
    },
}

/// What a run gave on one rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Whose.
    pub rank: Rank,
    /// How it ended.
    pub end: End,
    /// Training steps played.
    pub steps: u64,
    /// From the first to the last step.
    pub seconds: Seconds,
    /// The same on all ranks but for seconds.
    pub epochs: Vec<EpochReport>,
    /// Training steps of full size after the warm-up of two.
    pub measured_steps: u64,
    /// Median of these.
    pub step_seconds: Seconds,
    /// Median of every task of the main program's body over these steps.
    pub task_seconds: Vec<Seconds>,
    /// The last of these steps.
    pub traces: Vec<Trace>,
}

struct Player<'p, 's> {
    session: &'p Session<'s>,
    report: &'p mut dyn FnMut(Progress),
    /// Of each program, the body that reads the first samples and that of its steps.
    bodies: Vec<[Counted<'p>; 2]>,
    /// The program whose next samples are staged.
    staged: Option<usize>,
    epochs: Vec<EpochReport>,
    current: EpochReport,
    durations: Durations,
    main: usize,
    steps: u64,
}

impl Session<'_> {
    /// Plays the whole plan on a rank. `initial` gives the contents of the parameters, states and
    /// optimizer buffers, zeros where it gives none. `report` is called on rank 0 only.
    ///
    /// A loss that is no number ends the run on every rank alike, with [`End::NotFinite`].
    /// Errors: those of [`RankRunner::step`]. Panics on an arena smaller than
    /// [`arena_bytes`](Self::arena_bytes).
    pub fn play(
        &self,
        runner: &mut RankRunner<'_>,
        initial: &Initial<'_>,
        report: &mut dyn FnMut(Progress),
    ) -> Result<Outcome, RunError> {
        assert!(
            runner.arena.bytes() >= self.arena_bytes(runner.rank),
            "the arena holds every program"
        );
        set_initial(self.main_program(), runner.rank, &mut runner.arena, initial);
        let bodies = self.programs.iter().map(|one| {
            let programs = [&one.fetch, &one.step];
            programs.map(|program| Counted::from(program.body(runner.rank)))
        });
        let mut player = Player {
            session: self,
            report,
            bodies: bodies.collect(),
            staged: None,
            epochs: Vec::new(),
            current: EpochReport::default(),
            durations: Durations::new(self.plan.traces_kept),
            main: self.main(),
            steps: 0,
        };
        let start = runner.clock.now();
        let end = player.run(runner)?;
        let seconds = runner.clock.now() - start;
        if runner.rank == 0 && end == End::Finished {
            let steps = player.steps;
            (player.report)(Progress::Done { steps, seconds });
        }
        let (medians, traces) = player.durations.finish();
        Ok(Outcome {
            rank: runner.rank,
            end,
            steps: player.steps,
            seconds,
            epochs: player.epochs,
            measured_steps: medians.steps,
            step_seconds: medians.step,
            task_seconds: medians.tasks,
            traces,
        })
    }
}

impl Player<'_, '_> {
    fn run(&mut self, runner: &mut RankRunner<'_>) -> Result<End, RunError> {
        let session = self.session;
        let mut turns = session.turns().peekable();
        while let Some(turn) = turns.next() {
            let next = turns.peek();
            let start = runner.clock.now();
            let step = self.step(runner, &turn, next)?;
            let seconds = runner.clock.now() - start;
            let loss = output(session, &turn, runner.rank, &step, "loss").map_or(0.0, |v| v[0]);
            if !loss.is_finite() {
                let (kind, epoch, step) = (turn.kind, turn.epoch, turn.updates + 1);
                return Ok(End::NotFinite {
                    kind,
                    epoch,
                    step,
                    loss,
                });
            }
            self.account(runner.rank, &turn, step, loss, seconds);
            let is_in_training =
                |next: &Turn| next.kind == ProgramKind::Train && next.epoch == turn.epoch;
            if turn.kind == ProgramKind::Train && !next.is_some_and(is_in_training) {
                self.check_finite(runner, &turn)?;
            }
            if next.is_none_or(|next| next.epoch != turn.epoch) {
                self.end_epoch(runner.rank, turn.epoch);
            }
        }
        Ok(End::Finished)
    }

    /// What persists is finite after the training of an epoch. A loss may stay finite beside
    /// values that are not: running statistics are not read in training, and the last update by no loss.
    ///
    /// Errors: `NotFinite`, on each rank for its own shares.
    fn check_finite(&self, runner: &mut RankRunner<'_>, turn: &Turn) -> Result<(), RunError> {
        let body = self.session.main_program().body(runner.rank);
        match first_not_finite(body, &runner.arena.memory(body)) {
            None => Ok(()),
            Some(found) => Err(RunError::NotFinite {
                rank: runner.rank,
                tensor: found.buffer.name.clone(),
                role: found.buffer.role,
                value: found.value.to_string(),
                count: found.count,
                elements: found.buffer.dims.iter().product(),
                step: turn.updates + 1,
                epoch: turn.epoch + 1,
            }),
        }
    }

    fn step(
        &mut self,
        runner: &mut RankRunner<'_>,
        turn: &Turn,
        next: Option<&Turn>,
    ) -> Result<StepReport, RunError> {
        let [fetch, step] = self.bodies[turn.program];
        if self.staged != Some(turn.program) {
            let inputs = self.session.inputs(turn, None);
            runner.step(fetch, &inputs)?;
        }
        let inputs = self.session.inputs(turn, next);
        let report = runner.step(step, &inputs)?;
        self.staged = (!inputs.next_samples.is_empty()).then_some(turn.program);
        Ok(report)
    }

    fn account(&mut self, rank: Rank, turn: &Turn, step: StepReport, loss: f64, seconds: Seconds) {
        let samples = turn.samples.len();
        let epoch = turn.epoch;
        let progress = match turn.kind {
            ProgramKind::Train => {
                self.steps += 1;
                self.current.samples += samples;
                self.current.training_loss += loss * samples as f64;
                self.current.training_seconds += seconds;
                if turn.program == self.main {
                    self.durations.add(step.seconds, step.trace);
                }
                Progress::Step {
                    epoch,
                    step: self.steps,
                    loss,
                    learning_rate: self.session.plan.schedule.rate(turn.epochs_done),
                    samples,
                    seconds,
                }
            }
            ProgramKind::Evaluate => {
                let named = |name| output(self.session, turn, rank, &step, name);
                let (errors, counts) = (named("errors"), named("counts"));
                let validation = self.current.validation.get_or_insert_default();
                validation.add(loss, samples, seconds);
                validation.add_errors(errors.unwrap_or_default());
                validation.add_counts(counts.unwrap_or_default());
                Progress::Evaluated { epoch, samples }
            }
            ProgramKind::Fetch => panic!("a fetch is no turn of its own"),
        };
        if rank == 0 {
            (self.report)(progress);
        }
    }

    fn end_epoch(&mut self, rank: Rank, epoch: u64) {
        let mut report = std::mem::take(&mut self.current);
        report.epoch = epoch;
        report.training_loss /= report.samples as f64;
        if let Some(validation) = &mut report.validation {
            validation.loss /= validation.samples as f64;
        }
        if rank == 0 {
            (self.report)(Progress::Epoch(report.clone()));
        }
        self.epochs.push(report);
    }
}

impl Validation {
    fn add(&mut self, loss: f64, samples: usize, seconds: Seconds) {
        self.loss += loss * samples as f64;
        self.samples += samples;
        self.seconds += seconds;
    }

    /// Share of the positions that were given to their class; `None` of a regression.
    pub fn accuracy(&self) -> Option<f64> {
        let sum = |count: fn(&ClassCount) -> f64| self.classes.iter().map(count).sum::<f64>();
        let actual = sum(|class| class.actual);
        (actual > 0.0).then(|| sum(|class| class.hits) / actual)
    }

    /// `counts` holds the hits of all classes, then what was given to each, then what is of each.
    fn add_counts(&mut self, counts: &[f64]) {
        let number = counts.len() / 3;
        self.classes.resize(number, ClassCount::default());
        for (class, count) in self.classes.iter_mut().enumerate() {
            count.hits += counts[class];
            count.given += counts[number + class];
            count.actual += counts[2 * number + class];
        }
    }

    /// `errors` holds the sums of absolute errors of all targets, then those of squared errors.
    fn add_errors(&mut self, errors: &[f64]) {
        let (absolute, squared) = errors.split_at(errors.len() / 2);
        for (sums, more) in [(&mut self.absolute, absolute), (&mut self.squared, squared)] {
            sums.resize(more.len(), 0.0);
            sums.iter_mut()
                .zip(more)
                .for_each(|(sum, more)| *sum += more);
        }
    }
}

/// The value of a named output of a turn, where its body has it.
fn output<'r>(
    session: &Session<'_>,
    turn: &Turn,
    rank: Rank,
    report: &'r StepReport,
    name: &str,
) -> Option<&'r [f64]> {
    let body = session.programs[turn.program].step.body(rank);
    let at = body.outputs.iter().position(|output| output.name == name)?;
    Some(&report.outputs[at])
}
