//! Runs a session on one rank.

use crate::durations::Durations;
use crate::persistent::{InitialValues, first_not_finite, set_initial};
use crate::resume::{Boundary, Next, NoHook, Position, StepHook};
use crate::schedule::ScheduleState;
use crate::session::Session;
use crate::steps::PlannedStep;
use partita_program::ProgramKind;
use partita_run::{CountedBody, RankRunner, RunError, StepReport, Trace};
use partita_space::{Rank, Seconds};
use serde::{Deserialize, Serialize};

/// Progress of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// A training step is done.
    Step {
        /// Epoch, from 0.
        epoch: u64,
        /// Step of the whole run, from 1.
        step: u64,
        /// Mean loss over its samples, before the update.
        loss: f64,
        /// Learning rate of the update.
        learning_rate: f64,
        /// Samples of all ranks.
        samples: usize,
        /// Time on rank 0, read-ahead included.
        seconds: Seconds,
    },
    /// A step of an evaluation is done.
    Evaluated {
        /// Epoch, from 0.
        epoch: u64,
        /// Samples of all ranks.
        samples: usize,
    },
    /// An epoch and its evaluation are done.
    Epoch(EpochReport),
    /// The run is done.
    Done {
        /// Training steps.
        steps: u64,
        /// Time of all steps, evaluations included.
        seconds: Seconds,
    },
}

/// Results of an epoch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EpochReport {
    /// Epoch, from 0.
    pub epoch: u64,
    /// Mean loss over its samples, each before the update to which it contributed.
    pub training_loss: f64,
    /// Training samples.
    pub samples: usize,
    /// Time of its training steps, fetches included.
    pub training_seconds: Seconds,
    /// Evaluation with the parameters at its end.
    pub validation: Option<Validation>,
}

/// Results of an evaluation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Validation {
    /// Mean loss over its samples.
    pub loss: f64,
    /// Number of samples.
    pub samples: usize,
    /// Sum of absolute errors over samples, for each target of a regression.
    pub absolute: Vec<f64>,
    /// Sum of squared errors over samples, for each target of a regression.
    pub squared: Vec<f64>,
    /// Counts over positions of all samples, for each class of a classifier.
    pub classes: Vec<ClassCount>,
    /// Time, fetches included.
    pub seconds: Seconds,
}

/// Confusion counts of one class, in positions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClassCount {
    /// True positives.
    pub hits: f64,
    /// Positions predicted as the class: its score is the greatest, the first of equals.
    pub predicted: f64,
    /// Positions labeled with the class.
    pub actual: f64,
}

impl ClassCount {
    /// The Dice coefficient, `2 hits / (predicted + actual)`; `None` if the class is neither predicted nor
    /// labeled.
    ///
    /// Source: Dice, Ecology 26(3), 1945.
    pub fn dice(&self) -> Option<f64> {
        let sum = self.predicted + self.actual;
        (sum > 0.0).then(|| 2.0 * self.hits / sum)
    }

    /// Intersection over union, `hits / (predicted + actual - hits)`; `None` as for [`Self::dice`].
    pub fn iou(&self) -> Option<f64> {
        let union = self.predicted + self.actual - self.hits;
        (union > 0.0).then(|| self.hits / union)
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum RunEnd {
    /// All steps were done.
    Finished,
    /// The hook ended it before its last step.
    Stopped {
        /// Epoch of the next step, from 0.
        epoch: u64,
        /// Training steps done in all.
        steps: u64,
    },
    /// The loss was infinite or NaN.
    NotFinite {
        /// Training or evaluation.
        kind: ProgramKind,
        /// Epoch, from 0.
        epoch: u64,
        /// Training step, from 1; for an evaluation the next one.
        step: u64,
        /// The loss.
        loss: f64,
    },
}

/// Results of a run on one rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// The rank.
    pub rank: Rank,
    /// How it ended.
    pub end: RunEnd,
    /// Training steps done.
    pub steps: u64,
    /// Time of all steps.
    pub seconds: Seconds,
    /// Equal on all ranks but for times.
    pub epochs: Vec<EpochReport>,
    /// Training steps of full batch size after two warm-up steps.
    pub measured_steps: u64,
    /// Median time of the measured steps.
    pub step_seconds: Seconds,
    /// Median time of every task of the main program's body over the measured steps.
    pub task_seconds: Vec<Seconds>,
    /// Traces of the last measured steps.
    pub traces: Vec<Trace>,
}

struct SessionRun<'p, 's> {
    session: &'p Session<'s>,
    report: &'p mut dyn FnMut(Progress),
    /// The fetch body and the step body of each program.
    bodies: Vec<[CountedBody<'p>; 2]>,
    /// The program whose next samples have been read ahead.
    staged: Option<usize>,
    epochs: Vec<EpochReport>,
    current: EpochReport,
    durations: Durations,
    main: usize,
    steps: u64,
    /// What the learning-rate schedule has learned from validation losses.
    schedule: ScheduleState,
    /// When the run started, and the time of all steps before.
    start: (Seconds, Seconds),
    hook: &'p mut dyn StepHook,
}

impl Session<'_> {
    /// Runs the whole plan on a rank. `initial` gives the initial values of parameters, states and optimizer
    /// buffers. `report` is called on rank 0 only.
    ///
    /// A loss that is infinite or NaN ends the run on every rank, with [`RunEnd::NotFinite`].
    /// Errors: those of [`RankRunner::step`]. Panics on an arena smaller than
    /// [`arena_bytes`](Self::arena_bytes).
    pub fn run(
        &self,
        runner: &mut RankRunner<'_>,
        initial: &InitialValues<'_>,
        report: &mut dyn FnMut(Progress),
    ) -> Result<Outcome, RunError> {
        self.run_from(runner, initial, Position::default(), &mut NoHook, report)
    }

    /// As [`run`](Self::run), from a position on. `initial` gives the values of the persistent buffers there, and `hook`
    /// is called after each step. The outcome covers the steps before the position too, but for measured times.
    ///
    /// Errors: also those of the hook. Panics on a position beyond the plan.
    pub fn run_from(
        &self,
        runner: &mut RankRunner<'_>,
        initial: &InitialValues<'_>,
        position: Position,
        hook: &mut dyn StepHook,
        report: &mut dyn FnMut(Progress),
    ) -> Result<Outcome, RunError> {
        assert!(
            runner.arena.bytes() >= self.arena_bytes(runner.rank),
            "the arena is large enough for every program"
        );
        set_initial(self.main_program(), runner.rank, &mut runner.arena, initial)?;
        let bodies = self.programs.iter().map(|one| {
            let programs = [&one.fetch, &one.step];
            programs.map(|program| CountedBody::from(program.body(runner.rank)))
        });
        // The schedule learns from losses alone, so those of the epochs before tell all.
        let mut schedule = ScheduleState::default();
        for validation in position
            .epochs
            .iter()
            .filter_map(|it| it.validation.as_ref())
        {
            self.plan.schedule.observe(&mut schedule, validation.loss);
        }
        let mut run = SessionRun {
            session: self,
            report,
            bodies: bodies.collect(),
            staged: None,
            epochs: position.epochs,
            current: position.current,
            durations: Durations::new(self.plan.traces_kept),
            main: self.main(),
            steps: position.updates,
            start: (runner.clock.now(), position.seconds),
            hook,
            schedule,
        };
        let end = run.execute(runner, (position.epoch, position.done))?;
        let seconds = run.seconds(runner);
        if runner.rank == 0 && end == RunEnd::Finished {
            let steps = run.steps;
            (run.report)(Progress::Done { steps, seconds });
        }
        let (medians, traces) = run.durations.finish();
        Ok(Outcome {
            rank: runner.rank,
            end,
            steps: run.steps,
            seconds,
            epochs: run.epochs,
            measured_steps: medians.steps,
            step_seconds: medians.step,
            task_seconds: medians.tasks,
            traces,
        })
    }
}

impl SessionRun<'_, '_> {
    fn execute(
        &mut self,
        runner: &mut RankRunner<'_>,
        from: (u64, u64),
    ) -> Result<RunEnd, RunError> {
        let session = self.session;
        let mut steps = session.steps_from(from).peekable();
        let mut done = from.1;
        while let Some(planned) = steps.next() {
            let next = steps.peek();
            let start = runner.clock.now();
            let step = self.step(runner, &planned, next)?;
            let seconds = runner.clock.now() - start;
            let loss = output(session, &planned, runner.rank, &step, "loss").map_or(0.0, |v| v[0]);
            if !loss.is_finite() {
                let (kind, epoch, step) = (planned.kind, planned.epoch, planned.updates + 1);
                return Ok(RunEnd::NotFinite {
                    kind,
                    epoch,
                    step,
                    loss,
                });
            }
            self.account(runner.rank, &planned, step, loss, seconds);
            let is_in_training =
                |next: &PlannedStep| next.kind == ProgramKind::Train && next.epoch == planned.epoch;
            if planned.kind == ProgramKind::Train && !next.is_some_and(is_in_training) {
                self.check_finite(runner, &planned)?;
            }
            done += 1;
            if next.is_none_or(|next| next.epoch != planned.epoch) {
                self.end_epoch(runner.rank, planned.epoch);
                done = 0;
            }
            let is_last = next.is_none();
            if self.call_hook(runner, &planned, done, is_last)? == Next::Stop && !is_last {
                let epoch = planned.epoch + u64::from(done == 0);
                let steps = self.steps;
                return Ok(RunEnd::Stopped { epoch, steps });
            }
        }
        Ok(RunEnd::Finished)
    }

    fn call_hook(
        &mut self,
        runner: &mut RankRunner<'_>,
        planned: &PlannedStep,
        done: u64,
        is_last: bool,
    ) -> Result<Next, RunError> {
        let seconds = self.seconds(runner);
        self.hook.after_step(&mut Boundary {
            session: self.session,
            rank: runner.rank,
            arena: &mut runner.arena,
            epoch: planned.epoch + u64::from(done == 0),
            done,
            updates: self.steps,
            seconds,
            epochs: &self.epochs,
            current: &self.current,
            is_update: planned.kind == ProgramKind::Train,
            is_last,
        })
    }

    /// Time of all steps.
    fn seconds(&self, runner: &RankRunner<'_>) -> Seconds {
        let (start, before) = self.start;
        before + (runner.clock.now() - start)
    }

    /// Checks that persistent buffers are finite after the training of an epoch. The loss may be finite although
    /// they are not: training does not read running statistics, and no loss depends on the last update.
    ///
    /// Errors: `NotFinite`, on each rank for its own shards.
    fn check_finite(
        &self,
        runner: &mut RankRunner<'_>,
        planned: &PlannedStep,
    ) -> Result<(), RunError> {
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
                step: planned.updates + 1,
                epoch: planned.epoch + 1,
            }),
        }
    }

    fn step(
        &mut self,
        runner: &mut RankRunner<'_>,
        planned: &PlannedStep,
        next: Option<&PlannedStep>,
    ) -> Result<StepReport, RunError> {
        let [fetch, step] = self.bodies[planned.program];
        if self.staged != Some(planned.program) {
            let inputs = self.session.inputs(planned, None, self.schedule);
            runner.step(fetch, &inputs)?;
        }
        let inputs = self.session.inputs(planned, next, self.schedule);
        let report = runner.step(step, &inputs)?;
        self.staged = (!inputs.next_samples.is_empty()).then_some(planned.program);
        Ok(report)
    }

    fn account(
        &mut self,
        rank: Rank,
        planned: &PlannedStep,
        step: StepReport,
        loss: f64,
        seconds: Seconds,
    ) {
        let samples = planned.samples.len();
        let epoch = planned.epoch;
        let progress = match planned.kind {
            ProgramKind::Train => {
                self.steps += 1;
                self.current.samples += samples;
                self.current.training_loss += loss * samples as f64;
                self.current.training_seconds += seconds;
                if planned.program == self.main {
                    self.durations.add(step.seconds, step.trace);
                }
                Progress::Step {
                    epoch,
                    step: self.steps,
                    loss,
                    learning_rate: self.session.rate(planned, self.schedule),
                    samples,
                    seconds,
                }
            }
            ProgramKind::Evaluate => {
                let named = |name| output(self.session, planned, rank, &step, name);
                let (errors, counts) = (named("errors"), named("counts"));
                let validation = self.current.validation.get_or_insert_default();
                validation.add(loss, samples, seconds);
                validation.add_errors(errors.unwrap_or_default());
                validation.add_counts(counts.unwrap_or_default());
                Progress::Evaluated { epoch, samples }
            }
            ProgramKind::Infer => {
                let validation = self.current.validation.get_or_insert_default();
                validation.add(loss, samples, seconds);
                Progress::Evaluated { epoch, samples }
            }
            ProgramKind::Fetch | ProgramKind::FetchSamples => {
                panic!("a fetch is not a step of the plan")
            }
        };
        if rank == 0 {
            (self.report)(progress);
        }
    }

    fn end_epoch(&mut self, rank: Rank, epoch: u64) {
        let mut report = std::mem::take(&mut self.current);
        report.epoch = epoch;
        report.training_loss /= report.samples.max(1) as f64;
        if let Some(validation) = &mut report.validation {
            validation.loss /= validation.samples as f64;
            let schedule = &self.session.plan.schedule;
            schedule.observe(&mut self.schedule, validation.loss);
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

    /// Fraction of the positions predicted correctly; `None` for a regression.
    pub fn accuracy(&self) -> Option<f64> {
        let sum = |count: fn(&ClassCount) -> f64| self.classes.iter().map(count).sum::<f64>();
        let actual = sum(|class| class.actual);
        (actual > 0.0).then(|| sum(|class| class.hits) / actual)
    }

    /// `counts` has the hits of all classes, then the predicted, then the actual positions.
    fn add_counts(&mut self, counts: &[f64]) {
        let number = counts.len() / 3;
        self.classes.resize(number, ClassCount::default());
        for (class, count) in self.classes.iter_mut().enumerate() {
            count.hits += counts[class];
            count.predicted += counts[number + class];
            count.actual += counts[2 * number + class];
        }
    }

    /// `errors` has the sums of absolute errors of all targets, then those of squared errors.
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

/// The value of a named output of a step, if its body has it.
fn output<'r>(
    session: &Session<'_>,
    planned: &PlannedStep,
    rank: Rank,
    report: &'r StepReport,
    name: &str,
) -> Option<&'r [f64]> {
    let body = session.programs[planned.program].step.body(rank);
    let at = body.outputs.iter().position(|output| output.name == name)?;
    Some(&report.outputs[at])
}
