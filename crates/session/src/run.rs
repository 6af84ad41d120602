//! Runs a session on one rank.

use crate::durations::Durations;
use crate::loss_scale::{LossScale, tell};
use crate::persistent::{InitialValues, first_not_finite, set_initial};
use crate::position::{EpochReport, Position};
use crate::resume::{Boundary, Next, NoHook, StepHook};
use crate::schedule::ScheduleState;
use crate::session::{Plan, Session};
use crate::snapshot::{Snapshot, Validators};
use crate::steps::PlannedStep;
use crate::validation::{Evaluated, EvaluatedBatch, JoinOutputs, Validation};
use partita_program::{
    Body, BufferId, DICE_SUMS, ENTROPY, GRADIENT_SQUARES, Kernel, ProgramKind, Task,
};
use partita_run::{
    CountedBody, FiniteCheck, NotFiniteOrigin, RankRunner, RunError, StepReport, Trace,
};
use partita_space::{Rank, Seconds};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

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
        /// Where the loss scale stands after the update, where gradients are scaled.
        loss_scale: Option<LossScale>,
    },
    /// A step of an evaluation is done.
    Evaluated {
        /// Epoch, from 0.
        epoch: u64,
        /// Samples of all ranks.
        samples: usize,
        /// Its results.
        batch: EvaluatedBatch,
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

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum RunEnd {
    /// All steps were done, or all until the plan ended the training early.
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
    /// Where values began on this rank that are not finite, if the loss was not and it could be found.
    #[serde(default)]
    pub origin: Option<NotFiniteOrigin>,
    /// Training steps done.
    pub steps: u64,
    /// Time of all steps.
    pub seconds: Seconds,
    /// The time at which [`Plan::ends`](crate::Plan::ends), or the hook, ended the run after the last of `epochs`, if it did.
    #[serde(default)]
    pub ended: Option<Seconds>,
    /// Equal on all ranks but for times.
    pub epochs: Vec<EpochReport>,
    /// Training steps of full batch size after two warm-up steps.
    pub measured_steps: u64,
    /// Median time of the measured steps.
    pub step_seconds: Seconds,
    /// Where the loss scale stands, where gradients are scaled.
    #[serde(default)]
    pub loss_scale: Option<LossScale>,
    /// Median time of every task of the main program's body over the measured steps.
    pub task_seconds: Vec<Seconds>,
    /// Traces of the last measured steps.
    pub traces: Vec<Trace>,
}

pub(crate) struct SessionRun<'p, 's> {
    pub(crate) session: &'p Session<'s>,
    /// Values of the persistent buffers where the run starts.
    pub(crate) initial: &'p InitialValues<'p>,
    /// Epoch and steps of it where the run starts.
    pub(crate) from: (u64, u64),
    report: &'p mut dyn FnMut(Progress),
    /// The fetch body and the step body of each program.
    bodies: Vec<[CountedBody<'p>; 2]>,
    /// The program whose next samples have been read ahead.
    pub(crate) staged: Option<usize>,
    pub(crate) epochs: Vec<EpochReport>,
    current: EpochReport,
    durations: Durations,
    main: usize,
    pub(crate) steps: u64,
    /// What the learning-rate schedule has learned from validation losses.
    pub(crate) schedule: ScheduleState,
    /// The loss scale, where gradients are scaled or were so before a checkpoint: of this moment, and where the run starts.
    pub(crate) loss_scale: [Option<LossScale>; 2],
    /// When the run started, and the time of all steps before.
    pub(crate) start: (Seconds, Seconds),
    pub(crate) hook: &'p mut dyn StepHook,
    validators: Option<&'p mut dyn Validators>,
    /// Joins outputs, where the plan has groups of them.
    joins: Option<&'p mut dyn JoinOutputs>,
    pending: Option<Pending>,
    /// The memory of the last snapshot.
    spare: Option<Arc<Snapshot>>,
    origin: Option<NotFiniteOrigin>,
    ended: Option<Seconds>,
}

/// A snapshot that is validated elsewhere.
struct Pending {
    epoch: u64,
    snapshot: Arc<Snapshot>,
    /// Its results, where this rank had them early.
    known: Option<Evaluated>,
}

impl Session<'_> {
    /// Runs the whole plan on a rank. `initial` gives the initial values of parameters, states and optimizer
    /// buffers. `report` is called on rank 0 only.
    ///
    /// A loss that is infinite or NaN ends the run on every rank, with [`RunEnd::NotFinite`]. The steps up to it are
    /// then repeated with checks, which find [`Outcome::origin`].
    /// Errors: those of [`RankRunner::step`]. Panics on an arena smaller than
    /// [`arena_bytes`](Self::arena_bytes).
    pub fn run(
        &self,
        runner: &mut RankRunner<'_>,
        initial: &InitialValues<'_>,
        report: &mut dyn FnMut(Progress),
    ) -> Result<Outcome, RunError> {
        let start = Position::default();
        self.run_from(runner, initial, start, &mut NoHook, (None, None), report)
    }

    /// As [`run`](Self::run), from a position on. `initial` gives the values of the persistent buffers there, and `hook`
    /// is called after each step. With `validators`, epochs are evaluated elsewhere while the next one trains; the report of
    /// an epoch then comes when its results are there. `joins` joins the outputs of the plan's groups. The outcome covers the
    /// steps before the position too, but for measured times.
    ///
    /// Errors: also those of the hook. Panics on a position beyond the plan.
    pub fn run_from(
        &self,
        runner: &mut RankRunner<'_>,
        initial: &InitialValues<'_>,
        position: Position,
        hook: &mut dyn StepHook,
        (validators, joins): (Option<&mut dyn Validators>, Option<&mut dyn JoinOutputs>),
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
        for validation in position.epochs.iter().flat_map(|it| &it.validation) {
            self.plan.schedule.observe(&mut schedule, validation.loss);
        }
        let loss_scale = self.loss_scale_at(position.loss_scale);
        let mut run = SessionRun {
            session: self,
            initial,
            from: (position.epoch, position.done),
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
            validators: validators.map(|all| all as &mut dyn Validators),
            joins: joins.map(|all| all as &mut dyn JoinOutputs),
            pending: None,
            spare: None,
            schedule,
            loss_scale: [loss_scale; 2],
            origin: None,
            ended: None,
        };
        let end = run.execute(runner)?;
        let seconds = run.seconds(runner);
        if runner.rank == 0 && end == RunEnd::Finished {
            let steps = run.steps;
            (run.report)(Progress::Done { steps, seconds });
        }
        let loss_scale = run.scaled();
        let (medians, traces) = run.durations.finish();
        Ok(Outcome {
            rank: runner.rank,
            end,
            origin: run.origin,
            steps: run.steps,
            seconds,
            ended: run.ended,
            epochs: run.epochs,
            measured_steps: medians.steps,
            step_seconds: medians.step,
            loss_scale,
            task_seconds: medians.tasks,
            traces,
        })
    }
}

impl Session<'_> {
    /// The loss scale where a run starts, `known` from a checkpoint, whose skipped updates count in every precision.
    pub(crate) fn loss_scale_at(&self, known: Option<LossScale>) -> Option<LossScale> {
        match self.plan.loss_scaling {
            Some(scaling) => Some(scaling.start(known)),
            None => known,
        }
    }
}

impl SessionRun<'_, '_> {
    /// Where the loss scale stands, where gradients are scaled.
    fn scaled(&self) -> Option<LossScale> {
        let scaling = self.session.plan.loss_scaling;
        self.loss_scale[0].filter(|_| scaling.is_some())
    }

    fn execute(&mut self, runner: &mut RankRunner<'_>) -> Result<RunEnd, RunError> {
        let (session, from) = (self.session, self.from);
        if let Some(end) = self.evaluate_missing(runner, from)? {
            return Ok(end);
        }
        if from.1 == 0 && self.ends(runner, false)? {
            return Ok(RunEnd::Finished);
        }
        // An epoch that begins in its evaluation is evaluated here to its end.
        let begins_later = self.is_apart() && from.1 < session.steps_per_epoch();
        let is_elsewhere = |step: &PlannedStep| {
            step.kind != ProgramKind::Train && (begins_later || step.epoch > from.0)
        };
        let offloads = self.is_apart() && session.trains();
        let steps = session.steps_from(from);
        let mut steps = steps
            .filter(|step| !(offloads && is_elsewhere(step)))
            .peekable();
        let mut done = from.1;
        while let Some(planned) = steps.next() {
            let next = steps.peek();
            let start = runner.clock.now();
            let step = self.step(runner, &planned, next, None)?;
            self.join(&planned)?;
            let seconds = runner.clock.now() - start;
            let loss = output(session, &planned, runner.rank, &step, "loss").map_or(0.0, |v| v[0]);
            if !loss.is_finite() {
                self.origin = self.find_origin(runner, &planned)?;
                let (kind, epoch, step) = (planned.kind, planned.epoch, planned.updates + 1);
                return Ok(RunEnd::NotFinite {
                    kind,
                    epoch,
                    step,
                    loss,
                });
            }
            self.account(runner.rank, &planned, step, loss, seconds);
            self.check_updates(runner.rank, &planned)?;
            let is_in_training =
                |next: &PlannedStep| next.kind == ProgramKind::Train && next.epoch == planned.epoch;
            if planned.kind == ProgramKind::Train && !next.is_some_and(is_in_training) {
                self.check_finite(runner, &planned)?;
            }
            done += 1;
            let mut is_last = next.is_none();
            if next.is_none_or(|next| next.epoch != planned.epoch) {
                if let Some(end) = self.end_epoch(runner, planned.epoch, is_last)? {
                    return Ok(end);
                }
                done = 0;
                if self.ends(runner, true)? && !is_last {
                    is_last = true;
                    if let Some(end) = self.settle(runner)? {
                        return Ok(end);
                    }
                }
            }
            self.look_for_results(runner.rank);
            let next = self.call_hook(runner, &planned, done, is_last)?;
            if is_last {
                break;
            }
            if next == Next::Stop {
                let epoch = planned.epoch + u64::from(done == 0);
                let steps = self.steps;
                return Ok(RunEnd::Stopped { epoch, steps });
            }
        }
        Ok(RunEnd::Finished)
    }

    /// Whether epochs are evaluated elsewhere, or here by joined outputs.
    fn is_apart(&self) -> bool {
        self.validators.is_some() || self.joins.is_some()
    }

    /// Whether the training ends after the last epoch that is done, by the plan or, where it was done just now, the hook.
    fn ends(&mut self, runner: &RankRunner<'_>, is_new: bool) -> Result<bool, RunError> {
        let by_plan = !self.epochs.is_empty() && (self.session.plan.ends)(&self.epochs);
        let ends = is_new && self.hook.ends(&self.epochs)? || by_plan;
        self.ended = ends.then(|| self.seconds(runner));
        Ok(ends)
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
            loss_scale: self.loss_scale[0],
            is_update: planned.kind == ProgramKind::Train,
            is_last,
        })
    }

    /// Time of all steps.
    pub(crate) fn seconds(&self, runner: &RankRunner<'_>) -> Seconds {
        let (start, before) = self.start;
        before + (runner.clock.now() - start)
    }

    /// Checks that not too many updates in a row were skipped.
    ///
    /// Errors: `NoUpdate`, on every rank.
    fn check_updates(&self, rank: Rank, planned: &PlannedStep) -> Result<(), RunError> {
        match self.scaled() {
            Some(state) if state.is_hopeless() => Err(RunError::NoUpdate {
                rank,
                updates: state.skipped_in_row,
                scale: state.scale,
                step: planned.updates + 1,
                epoch: planned.epoch + 1,
            }),
            Some(_) | None => Ok(()),
        }
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
                layer: layer_of(body, found.id).into(),
                role: found.buffer.role,
                value: found.value.to_string().into(),
                count: found.count,
                elements: found.buffer.dims.iter().product(),
                step: planned.updates + 1,
                epoch: planned.epoch + 1,
            }),
        }
    }

    pub(crate) fn step(
        &mut self,
        runner: &mut RankRunner<'_>,
        planned: &PlannedStep,
        next: Option<&PlannedStep>,
        check: Option<&mut FiniteCheck>,
    ) -> Result<StepReport, RunError> {
        let [fetch, step] = self.bodies[planned.program];
        if self.staged != Some(planned.program) {
            let inputs = self.session.inputs(planned, None, self.schedule);
            runner.step(fetch, &inputs)?;
        }
        let mut inputs = self.session.inputs(planned, next, self.schedule);
        let scaling = self.session.plan.loss_scaling;
        if let Some(state) = &self.loss_scale[0] {
            tell(scaling, state, &mut inputs);
        }
        let report = match check {
            None => runner.step(step, &inputs)?,
            Some(check) => runner.step_checked(step, &inputs, check)?,
        };
        let total = output(
            self.session,
            planned,
            runner.rank,
            &report,
            GRADIENT_SQUARES,
        );
        if let (Some(scaling), Some(state), Some(total)) = (scaling, &mut self.loss_scale[0], total)
        {
            scaling.observe(state, total[0]);
        }
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
                    loss_scale: self.scaled(),
                }
            }
            ProgramKind::Evaluate | ProgramKind::Infer => {
                let batch = self.evaluated(rank, planned, &step, loss);
                let validation = self.current.validation.get_or_insert_default();
                add(validation, &batch, &self.session.plan);
                validation.seconds += seconds;
                Progress::Evaluated {
                    epoch,
                    samples,
                    batch,
                }
            }
            ProgramKind::Fetch | ProgramKind::FetchSamples => {
                panic!("a fetch is not a step of the plan")
            }
        };
        if rank == 0 {
            (self.report)(progress);
        }
    }

    /// Results of a step of an evaluation.
    fn evaluated(
        &self,
        rank: Rank,
        planned: &PlannedStep,
        step: &StepReport,
        loss: f64,
    ) -> EvaluatedBatch {
        let named = |name| output(self.session, planned, rank, step, name).unwrap_or_default();
        let (errors, counts, dice) = (named("errors"), named("counts"), named(DICE_SUMS));
        let batch = EvaluatedBatch::new(planned.samples.len(), loss, errors, counts);
        match (&self.session.plan.divided, named(ENTROPY)) {
            (None, _) => batch,
            (Some(_), &[entropy]) => batch.with_parts(entropy, dice),
            (Some(terms), _) if terms.dice == 0.0 => batch.with_parts(loss, dice),
            (Some(_), _) => batch.with_parts(0.0, dice),
        }
    }

    /// Ends an epoch; where others validate it, its report comes later.
    fn end_epoch(
        &mut self,
        runner: &mut RankRunner<'_>,
        epoch: u64,
        is_last: bool,
    ) -> Result<Option<RunEnd>, RunError> {
        let has_samples = !self.session.plan.validation.is_empty() && self.session.trains();
        let is_evaluated = self.current.validation.is_some() || !has_samples;
        self.hook.before_report(epoch)?;
        if let Some(end) = self.settle(runner)? {
            return Ok(Some(end));
        }
        let mut report = std::mem::take(&mut self.current);
        report.epoch = epoch;
        report.training_loss /= report.samples.max(1) as f64;
        if let Some(validation) = &mut report.validation {
            validation.finish(self.session.plan.divided.as_ref());
        }
        self.epochs.push(report);
        if is_evaluated || !self.is_apart() {
            self.tell(runner.rank, epoch);
            return Ok(None);
        }
        if !self.hand_over(runner, epoch)? {
            return self.evaluate(runner, epoch);
        }
        let is_awaited = self.validators.as_ref().is_some_and(|it| it.is_awaited());
        if is_awaited || is_last {
            return self.settle(runner);
        }
        Ok(None)
    }

    /// The report of an epoch is complete.
    fn tell(&mut self, rank: Rank, epoch: u64) {
        let found = self
            .epochs
            .iter()
            .rev()
            .find(|report| report.epoch == epoch);
        let Some(report) = found else { return };
        if let Some(validation) = &report.validation {
            let schedule = &self.session.plan.schedule;
            schedule.observe(&mut self.schedule, validation.loss);
        }
        if rank == 0 {
            (self.report)(Progress::Epoch(report.clone()));
        }
    }

    /// Gives a snapshot of this moment to the validators. False if they take none.
    fn hand_over(&mut self, runner: &mut RankRunner<'_>, epoch: u64) -> Result<bool, RunError> {
        let Some(validators) = &mut self.validators else {
            return Ok(false);
        };
        let body = self.session.main_program().body(runner.rank);
        let mut snapshot = self.spare.take().unwrap_or_default();
        if Arc::get_mut(&mut snapshot).is_none() {
            snapshot = Arc::default();
        }
        if let Some(snapshot) = Arc::get_mut(&mut snapshot) {
            snapshot.take(body, &mut runner.arena);
        }
        let is_taken = validators.begin(epoch, &snapshot)?;
        if is_taken {
            self.pending = Some(Pending {
                epoch,
                snapshot,
                known: None,
            });
        }
        Ok(is_taken)
    }

    /// Takes results that are there already, so that they are reported early.
    fn look_for_results(&mut self, rank: Rank) {
        let (Some(validators), Some(pending)) = (&mut self.validators, &mut self.pending) else {
            return;
        };
        if pending.known.is_some() {
            return;
        }
        let Some(found) = validators.poll().filter(is_finite) else {
            return;
        };
        let epoch = pending.epoch;
        self.set_validation(epoch, &found);
        if let Some(pending) = &mut self.pending {
            pending.known = Some(found);
        }
        self.tell(rank, epoch);
    }

    /// Waits for the results of the snapshot that is validated elsewhere, if there is one.
    fn settle(&mut self, runner: &mut RankRunner<'_>) -> Result<Option<RunEnd>, RunError> {
        let (Some(validators), Some(pending)) = (&mut self.validators, self.pending.take()) else {
            return Ok(None);
        };
        let epoch = pending.epoch;
        let Some(found) = validators.finish(epoch)? else {
            return self.evaluate_snapshot(runner, pending);
        };
        self.spare = Some(pending.snapshot);
        if pending.known.is_some() {
            return Ok(None);
        }
        if let Some(batch) = found.batches.iter().find(|batch| !batch.loss().is_finite()) {
            return Ok(Some(self.not_finite(epoch, batch.loss())));
        }
        self.set_validation(epoch, &found);
        self.tell(runner.rank, epoch);
        Ok(None)
    }

    fn not_finite(&self, epoch: u64, loss: f64) -> RunEnd {
        RunEnd::NotFinite {
            kind: ProgramKind::Evaluate,
            epoch,
            step: (epoch + 1) * self.session.steps_per_epoch() + 1,
            loss,
        }
    }

    fn set_validation(&mut self, epoch: u64, found: &Evaluated) {
        let (mut validation, plan) = (Validation::default(), &self.session.plan);
        let batches = found.batches.iter();
        batches.for_each(|batch| add(&mut validation, batch, plan));
        validation.finish(plan.divided.as_ref());
        validation.seconds = found.seconds;
        self.put_validation(epoch, validation);
    }

    fn put_validation(&mut self, epoch: u64, validation: Validation) {
        let mut reports = self.epochs.iter_mut().rev();
        if let Some(report) = reports.find(|report| report.epoch == epoch) {
            report.validation = Some(validation);
        }
    }

    /// Evaluates a snapshot here: the parameters of the training wait meanwhile.
    fn evaluate_snapshot(
        &mut self,
        runner: &mut RankRunner<'_>,
        pending: Pending,
    ) -> Result<Option<RunEnd>, RunError> {
        let body = self.session.main_program().body(runner.rank);
        let mut snapshot = Arc::unwrap_or_clone(pending.snapshot);
        snapshot.swap(body, &mut runner.arena);
        let end = self.evaluate(runner, pending.epoch)?;
        snapshot.swap(body, &mut runner.arena);
        Ok(end)
    }

    /// Evaluates an epoch that is done with the parameters of this moment.
    fn evaluate(
        &mut self,
        runner: &mut RankRunner<'_>,
        epoch: u64,
    ) -> Result<Option<RunEnd>, RunError> {
        let session = self.session;
        let steps = session.steps_from((epoch, session.steps_per_epoch()));
        let mut steps = steps.take_while(|step| step.epoch == epoch).peekable();
        let mut found = Evaluated::default();
        while let Some(planned) = steps.next() {
            let start = runner.clock.now();
            let step = self.step(runner, &planned, steps.peek(), None)?;
            self.join(&planned)?;
            found.seconds += runner.clock.now() - start;
            let loss = output(session, &planned, runner.rank, &step, "loss").map_or(0.0, |v| v[0]);
            if !loss.is_finite() {
                self.origin = self.find_origin(runner, &planned)?;
                return Ok(Some(self.not_finite(epoch, loss)));
            }
            let batch = self.evaluated(runner.rank, &planned, &step, loss);
            found.batches.push(batch);
        }
        if let Some(joins) = &mut self.joins {
            let mut validation = joins.evaluate()?;
            if !validation.loss.is_finite() {
                return Ok(Some(self.not_finite(epoch, validation.loss)));
            }
            validation.seconds += found.seconds;
            self.put_validation(epoch, validation);
        } else {
            self.set_validation(epoch, &found);
        }
        self.tell(runner.rank, epoch);
        Ok(None)
    }

    /// Joins the outputs of a group after its last step.
    fn join(&mut self, planned: &PlannedStep) -> Result<(), RunError> {
        match (&mut self.joins, planned.ends_group) {
            (Some(joins), Some(group)) => joins.join(group),
            (None, _) | (_, None) => Ok(()),
        }
    }

    /// Evaluates the last epoch before the start, where its results were still to come when the checkpoint was written.
    fn evaluate_missing(
        &mut self,
        runner: &mut RankRunner<'_>,
        (epoch, done): (u64, u64),
    ) -> Result<Option<RunEnd>, RunError> {
        let has_samples = !self.session.plan.validation.is_empty() && self.session.trains();
        let last = self.epochs.last();
        match last.filter(|last| last.validation.is_none() && last.epoch + 1 == epoch) {
            Some(last) if has_samples && done == 0 => {
                let epoch = last.epoch;
                self.evaluate(runner, epoch)
            }
            Some(_) | None => Ok(None),
        }
    }
}

/// Adds a step of an evaluation.
fn add(validation: &mut Validation, batch: &EvaluatedBatch, plan: &Plan<'_>) {
    validation.add(batch, plan.divided.as_ref());
    // Outputs that are joined first have no counts.
    if plan.sample_dice && !batch.counts().is_empty() {
        validation.add_sample_dice(batch);
    }
}

fn is_finite(found: &Evaluated) -> bool {
    found.batches.iter().all(|batch| batch.loss().is_finite())
}

/// The layer of a persistent buffer: that of the first task that touches it.
fn layer_of(body: &Body, id: BufferId) -> String {
    let touches = |task: &&Task| {
        let views = task.work.kernels().iter().flat_map(Kernel::accesses);
        views.into_iter().any(|(view, _)| view.buffer == id)
    };
    let task = body.tasks.iter().find(touches);
    task.map_or_else(String::new, |task| task.origin.layer.clone())
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
