//! Decides with all ranks when a checkpoint is due, takes the snapshot, and has it written.

use super::super::curve::LossCurve;
use super::super::record::BestResult;
use super::super::run::Run;
use super::best::{self, Best, BestError, BestFile};
use super::config::CheckpointConfig;
use super::last::LastCheckpoint;
use super::repeat::{Repetition, is_short};
use super::state::TrainingState;
use super::write::{Lead, Writing, Written};
use super::{folder, snapshot_bytes};
use partita_program::Role;
use partita_run::RunError;
use partita_session::{Boundary, Failed, Next, OwnedShard, Position, Repeat, Session, StepHook};
use partita_site::launch::{Agreement, Decision, MakeStepHook, RepeatFrom, Vote};
use partita_site::{Context, Event};
use partita_space::{Bytes, Rank, Seconds};
use partita_weights::checkpoint::{
    CheckpointError, CheckpointFolder, PartLayout, ShardSpec, TensorKind,
};
use serde_json::json;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Time between two meetings of the ranks that are not due for another reason.
const MEETING: Seconds = Seconds(0.25);
/// Least time between two checkpoints at ends of epochs where the run file does not ask for them.
const PAUSE: Seconds = Seconds(10.0);

/// The checkpoints of a run, seen by all ranks of this process.
pub struct Checkpoints<'r> {
    context: &'r Context,
    config: CheckpointConfig,
    folder: CheckpointFolder,
    session: &'r Session<'r>,
    /// The settings of the run.
    state: TrainingState,
    /// Serial number of the first checkpoint, and whether earlier ones belong to this run.
    first_serial: u64,
    is_resumed: bool,
    last: Mutex<Option<LastCheckpoint>>,
    /// The best epoch so far with its file, on the rank that leads.
    best: Mutex<Option<Best>>,
    best_file: Arc<BestFile>,
    /// Losses of steps, on the rank that listens.
    curve: Arc<Mutex<LossCurve>>,
    /// Why the last attempt failed, if it did.
    failure: Mutex<Option<String>>,
    /// The checkpoint from which steps are repeated.
    repetition: Repetition,
}

impl<'r> Checkpoints<'r> {
    /// The checkpoints of a run that starts from `state`; `last` is the one from which it resumes, with the
    /// losses of its steps, and the file of the best weights.
    pub fn new(
        context: &'r Context,
        run: &Run,
        session: &'r Session<'r>,
        state: TrainingState,
        (last, curve, best): (Option<LastCheckpoint>, Arc<Mutex<LossCurve>>, BestFile),
    ) -> Self {
        let folder = folder(run);
        let newest = folder.readable().pop();
        Self {
            context,
            config: run.checkpoint,
            first_serial: newest.map_or(1, |newest| newest.serial + 1),
            folder,
            session,
            best: Mutex::new(state.best.clone()),
            best_file: Arc::new(best),
            state,
            is_resumed: last.is_some(),
            last: Mutex::new(last),
            curve,
            failure: Mutex::new(None),
            repetition: Repetition::default(),
        }
    }

    /// Makes the folder, on the rank that has the output folder; if that fails, every checkpoint tells why. Puts the weights
    /// of the best epoch before a resume in place. Gives a warning where there are none.
    pub fn begin(&self) -> Option<String> {
        let _ = self.folder.make();
        let from = self.last()?;
        let (known, metric) = (self.state.best.clone(), self.config.best);
        let best = best::resumed(&self.best_file, metric, known, &from.path);
        let (best, warning) = match best {
            Ok(best) => (best, None),
            Err(begins_anew) => (None, Some(begins_anew.to_string())),
        };
        *self.lock_best() = best;
        let warning = warning?;
        self.context.report(Event::Warning(&warning));
        Some(warning)
    }

    fn lock_best(&self) -> MutexGuard<'_, Option<Best>> {
        self.best.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The best epoch so far, if the run looks for it, and the file of its weights, if they are there.
    pub fn best(&self) -> Option<BestResult> {
        let best = self
            .lock_best()
            .clone()
            .filter(|_| self.config.best.is_some())?;
        let path = self.best_file.holds(&best).then(|| self.best_file.path());
        Some(BestResult {
            epoch: best.epoch,
            metric: best.metric,
            value: best.value,
            path: path.map(|path| path.display().to_string()),
        })
    }

    /// The last whole checkpoint.
    pub fn last(&self) -> Option<LastCheckpoint> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.clone()
    }

    /// Why the last attempt failed, if it did.
    pub fn failure(&self) -> Option<String> {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.clone()
    }

    /// Removes what was begun and not completed, and the folder if it holds nothing. Only when all ranks have ended.
    pub fn clean(&self) {
        self.folder.remove_leftovers();
        // A folder that is not empty is kept.
        let _ = std::fs::remove_dir(self.folder.path());
    }

    fn ranks_with_parts(&self) -> Vec<usize> {
        let ranks = 0..self.session.main_program().mesh.ranks();
        let has_part = |rank: &Rank| snapshot_bytes(self.session, *rank) > Bytes(0);
        ranks.filter(has_part).collect()
    }
}

impl MakeStepHook for Checkpoints<'_> {
    /// Errors: no memory for its snapshot.
    fn hook<'a>(
        &'a self,
        rank: Rank,
        agreement: Box<dyn Agreement + 'a>,
    ) -> Result<Box<dyn StepHook + 'a>, RunError> {
        let bytes = snapshot_bytes(self.session, rank);
        let mut snapshot = Vec::new();
        let reserved = snapshot.try_reserve_exact(bytes.0 as usize);
        reserved.map_err(|_| RunError::Memory {
            rank,
            what: "snapshot for checkpoints (`keep = 0` under [checkpoint] does without)"
                .to_owned(),
            bytes,
        })?;
        snapshot.resize(bytes.0 as usize, 0);
        let owned = self.session.owned_shards(rank);
        let layout = PartLayout::new(rank, owned.iter().map(spec).collect());
        let named = |name: &str| owned.iter().find(|shard| shard.name == name).cloned();
        let shards = layout.shards().filter_map(|(spec, _)| named(&spec.tensor));
        Ok(Box::new(Checkpointer {
            all: self,
            agreement,
            rank,
            shards: shards.collect(),
            layout: Arc::new(layout),
            snapshot,
            thread: None,
            failure: None,
            until_meeting: 1,
            at_epoch_end: false,
            lead: Leading {
                serial: self.first_serial,
                met: (Seconds(0.0), 0),
                taken: None,
                best_before: None,
                begun: None,
                is_abandoned: Arc::default(),
            },
        }))
    }
}

/// What only rank 0 knows.
struct Leading {
    /// Serial number of the next checkpoint.
    serial: u64,
    /// Time and steps since the ranks met.
    met: (Seconds, u64),
    /// When the last checkpoint was taken.
    taken: Option<Seconds>,
    /// What was best before the best epoch so far.
    best_before: Option<Best>,
    /// The checkpoint that is under way.
    begun: Option<LastCheckpoint>,
    is_abandoned: Arc<AtomicBool>,
}

/// The hook of one rank.
struct Checkpointer<'a> {
    all: &'a Checkpoints<'a>,
    agreement: Box<dyn Agreement + 'a>,
    rank: Rank,
    /// In the order of the file.
    shards: Vec<OwnedShard>,
    layout: Arc<PartLayout>,
    /// Empty while it is written.
    snapshot: Vec<u8>,
    thread: Option<JoinHandle<Written>>,
    failure: Option<String>,
    /// Steps until the ranks meet.
    until_meeting: u64,
    at_epoch_end: bool,
    lead: Leading,
}

impl StepHook for Checkpointer<'_> {
    fn after_step(&mut self, boundary: &mut Boundary<'_, '_>) -> Result<Next, RunError> {
        self.until_meeting = self.until_meeting.saturating_sub(1);
        self.lead.met.1 += 1;
        let is_due = self.is_due(boundary);
        if !is_due && self.until_meeting > 0 {
            return Ok(Next::Continue);
        }
        let decision = self.meet(boundary, is_due)?;
        self.until_meeting = decision.next;
        self.at_epoch_end = decision.at_epoch_end;
        if let Some(serial) = decision.checkpoint {
            self.begin(boundary, serial);
        }
        if decision.stop || boundary.is_last {
            self.settle(boundary.updates)?;
        }
        Ok(if decision.stop {
            Next::Stop
        } else {
            Next::Continue
        })
    }

    fn repeat_from(&mut self, failed: &Failed) -> Result<Repeat<'_>, RunError> {
        if self.rank > 0 {
            self.wait();
        }
        let own = self.own_vote();
        let votes = self.agreement.vote(failed.steps, own)?;
        let decision = votes.map(|votes| {
            self.hear_failures(&votes);
            self.wait();
            Decision {
                repeat: self.choose_repeat(failed),
                ..Decision::default()
            }
        });
        let decision = self.agreement.decide(failed.steps, decision)?;
        self.all.repetition.start(self.rank, decision.repeat)
    }
}

impl Checkpointer<'_> {
    /// Whether every rank knows by itself that the ranks meet after this step.
    fn is_due(&self, boundary: &Boundary<'_, '_>) -> bool {
        self.is_periodic(boundary)
            || boundary.ends_epoch() && self.all.config.best.is_some()
            || boundary.is_last
    }

    /// Whether every rank knows by itself that a checkpoint is taken after this step.
    fn is_periodic(&self, boundary: &Boundary<'_, '_>) -> bool {
        let config = &self.all.config;
        let is_multiple =
            |count: u64, of: Option<u64>| of.is_some_and(|of| of > 0 && count.is_multiple_of(of));
        let by_step = boundary.is_update && is_multiple(boundary.updates, config.every_steps);
        let by_epoch = self.at_epoch_end || is_multiple(boundary.epoch, config.every_epochs);
        by_step || boundary.ends_epoch() && by_epoch
    }

    fn meet(&mut self, boundary: &Boundary<'_, '_>, is_due: bool) -> Result<Decision, RunError> {
        let step = boundary.updates;
        if is_due && self.rank > 0 {
            self.wait();
        }
        let own = self.own_vote();
        let votes = self.agreement.vote(step, own)?;
        let decision = votes.map(|votes| self.decide(boundary, is_due, &votes));
        self.agreement.decide(step, decision)
    }

    fn own_vote(&mut self) -> Vote {
        if self.thread.as_ref().is_some_and(JoinHandle::is_finished) {
            self.wait();
        }
        Vote {
            stop: self.all.context.is_cancelled(),
            is_busy: self.thread.is_some(),
            failure: self.failure.take(),
        }
    }

    /// The decision of rank 0.
    fn decide(&mut self, boundary: &Boundary<'_, '_>, is_due: bool, votes: &[Vote]) -> Decision {
        self.hear_failures(votes);
        if is_due {
            self.wait();
        }
        let now = boundary.seconds;
        let config = &self.all.config;
        let stop = votes.iter().any(|vote| vote.stop) && !boundary.is_last;
        let is_busy = !is_due && votes.iter().any(|vote| vote.is_busy);
        let since = now - *self.lead.taken.get_or_insert(now);
        let is_timed = config.every.is_some_and(|every| since >= every) && !is_busy;
        let is_best = self.is_best(boundary);
        let takes = self.is_periodic(boundary) || boundary.is_last || stop || is_timed || is_best;
        let (met, steps) = std::mem::replace(&mut self.lead.met, (now, 0));
        let per_step = (now - met).0 / steps.max(1) as f64;
        let next = (MEETING.0 / per_step.max(1e-9)).clamp(1.0, 1e6) as u64;
        let is_unset =
            config.every_epochs.is_none() && config.every_steps.is_none() && config.every.is_none();
        let at_epoch_end = !takes && is_unset && since >= PAUSE && !is_busy;
        let serial = self.lead.serial;
        if takes {
            self.lead.serial += 1;
            self.lead.taken = Some(now);
        }
        Decision {
            checkpoint: takes.then_some(serial),
            at_epoch_end,
            stop,
            next,
            ..Decision::default()
        }
    }

    /// Whether an epoch ends with the best value of the metric so far, which it then is.
    fn is_best(&mut self, boundary: &Boundary<'_, '_>) -> bool {
        let (Some(metric), Some(epoch)) = (self.all.config.best, boundary.epochs.last()) else {
            return false;
        };
        let Some(value) = metric.value(epoch).filter(|_| boundary.ends_epoch()) else {
            return false;
        };
        let mut known = self.all.lock_best();
        let is_best = known
            .as_ref()
            .is_none_or(|best| metric.is_better(value, best.value));
        if is_best {
            self.lead.best_before = known.replace(Best {
                metric: metric.name().to_owned(),
                value,
                epoch: epoch.epoch + 1,
                checkpoint: name(boundary.updates),
            });
        }
        is_best
    }

    /// Takes the snapshot and starts to write it.
    fn begin(&mut self, boundary: &mut Boundary<'_, '_>, serial: u64) {
        self.wait();
        let mut data = std::mem::take(&mut self.snapshot);
        for (shard, (_, at)) in self.shards.iter().zip(self.layout.shards()) {
            boundary.write_shard(shard, &mut data[at]);
        }
        let lead = (self.rank == 0).then(|| self.lead(boundary));
        let writing = Writing {
            folder: self.all.folder.clone(),
            name: name(boundary.updates),
            serial,
            rank: self.rank,
            layout: Arc::clone(&self.layout),
            data,
            lead,
        };
        self.thread = Some(writing.start());
    }

    fn lead(&mut self, boundary: &Boundary<'_, '_>) -> Lead {
        let all = self.all;
        self.lead.begun = Some(LastCheckpoint {
            path: all.folder.path().join(name(boundary.updates)),
            epoch: boundary.epoch,
            steps: boundary.updates,
        });
        self.lead.is_abandoned = Arc::default();
        let best = all.lock_best().clone();
        let state = TrainingState {
            position: boundary.position(),
            best: best.clone(),
            curve: Some(
                all.curve
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .clone(),
            ),
            ..all.state.clone()
        };
        Lead {
            training: json!(state),
            ranks: all.ranks_with_parts(),
            keep: all.config.keep,
            best: best.map(|best| (best, Arc::clone(&all.best_file))),
            first_serial: if all.is_resumed { 0 } else { all.first_serial },
            is_abandoned: Arc::clone(&self.lead.is_abandoned),
        }
    }

    /// Where steps are repeated from: the last checkpoint if the steps since then took little time.
    fn choose_repeat(&self, failed: &Failed) -> RepeatFrom {
        let last = self.all.last();
        let from = last.and_then(|last| self.all.repetition.after(&last.path, failed.seconds));
        let from = from.or_else(|| is_short(failed.seconds_of_run).then_some(RepeatFrom::Start));
        if from.is_some() {
            let text = "the loss is not finite; repeating steps to find the layer where this began";
            self.all.context.report(Event::Note(text));
        }
        from.unwrap_or_default()
    }

    /// Waits until all ranks have written their parts.
    fn settle(&mut self, step: u64) -> Result<(), RunError> {
        if self.rank > 0 {
            self.wait();
        }
        let own = self.own_vote();
        let votes = self.agreement.vote(step, own)?;
        let decision = votes.map(|votes| {
            self.hear_failures(&votes);
            self.wait();
            Decision::default()
        });
        self.agreement.decide(step, decision)?;
        Ok(())
    }

    /// Gives up the checkpoint under way if a rank could not write its part.
    fn hear_failures(&mut self, votes: &[Vote]) {
        if let Some(failure) = votes.iter().find_map(|vote| vote.failure.as_ref()) {
            self.lead.is_abandoned.store(true, Ordering::Relaxed);
            self.all.note_failure(Some(failure.clone()));
        }
    }

    /// Waits until what is under way is written.
    fn wait(&mut self) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        let mut written = None;
        self.agreement.while_others_wait(Box::new(|| {
            written = thread.join().ok();
        }));
        let Some(written) = written else {
            self.failure = Some(format!("rank {}: the thread that writes ended", self.rank));
            self.snapshot = vec![0; self.layout.bytes()];
            return;
        };
        self.snapshot = written.data;
        self.finish(written.result, written.best_failure);
    }

    fn finish(
        &mut self,
        result: Result<Option<PathBuf>, CheckpointError>,
        best_failure: Option<BestError>,
    ) {
        if self.rank > 0 {
            let failed = |error| format!("rank {}: {error}", self.rank);
            self.failure = result.err().map(failed);
            return;
        }
        let begun = self.lead.begun.take();
        match (result, begun) {
            (Ok(_), begun) => {
                let mut last = self.all.last.lock().unwrap_or_else(PoisonError::into_inner);
                *last = begun.or(last.take());
                drop(last);
                self.all.note_failure(None);
                if let Some(error) = best_failure {
                    let path = self.all.best_file.path().display();
                    let text = format!(
                        "the weights of the best epoch could not be written to {path}: {error}; training goes on"
                    );
                    self.all.context.report(Event::Warning(&text));
                }
            }
            (Err(error), begun) => {
                let is_begun = |best: &Best| {
                    let begun = begun.as_ref();
                    begun.is_some_and(|begun| name(begun.steps) == best.checkpoint)
                };
                let mut best = self.all.lock_best();
                if best.as_ref().is_some_and(is_begun) {
                    *best = self.lead.best_before.take();
                }
                drop(best);
                self.tell_failure(error.to_string(), begun);
            }
        }
    }

    fn tell_failure(&self, reason: String, begun: Option<LastCheckpoint>) {
        let all = self.all;
        let steps = begun.map_or(0, |begun| begun.steps);
        let last = match all.last() {
            Some(last) => format!("the last whole one is {}", last.path.display()),
            None => "there is no earlier one of this run".to_owned(),
        };
        // A reason that another rank gave is the cause.
        let reason = all.failure().unwrap_or(reason);
        let text = format!(
            "the checkpoint of step {steps} could not be written: {reason}; training goes on, and {last}"
        );
        all.context.report(Event::Warning(&text));
        all.note_failure(Some(reason));
    }
}

impl Checkpoints<'_> {
    fn note_failure(&self, failure: Option<String>) {
        let mut known = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        *known = failure;
    }
}

impl Drop for Checkpointer<'_> {
    /// After a failure, what is under way may lack parts for good.
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.lead.is_abandoned.store(true, Ordering::Relaxed);
            if let Ok(written) = thread.join()
                && self.rank == 0
            {
                self.finish(written.result, written.best_failure);
            }
        }
    }
}

fn name(steps: u64) -> String {
    format!("step-{steps:09}")
}

fn spec(shard: &OwnedShard) -> ShardSpec {
    let kind = match shard.role {
        Role::Parameter => TensorKind::Parameter,
        Role::State => TensorKind::State,
        Role::Optimizer => TensorKind::Optimizer,
        Role::Average => TensorKind::Average,
        Role::Constant
        | Role::Gradient
        | Role::Staging
        | Role::Activation
        | Role::ActivationGradient
        | Role::PackedWeights
        | Role::Gathered
        | Role::Statistics
        | Role::Workspace => panic!("`{}` is not saved", shard.name),
    };
    ShardSpec {
        tensor: shard.name.clone(),
        kind,
        dtype: shard.dtype,
        shape: shard.shape,
        region: shard
            .region
            .0
            .map(|interval| [interval.start as usize, interval.end as usize]),
    }
}

/// Where a run starts.
pub fn start(state: Option<&TrainingState>) -> Position {
    state
        .map(|state| state.position.clone())
        .unwrap_or_default()
}
