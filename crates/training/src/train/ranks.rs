//! The ranks of a training in this process.

use super::checkpoint::{self, Checkpoints, Resume};
use super::error::TrainError;
use super::joined::JoinedValidation;
use super::measured::Measured;
use super::start::initial_values;
use super::weights::WeightSink;
use super::{Task, ending, results};
use partita_program::Role;
use partita_run::{NoSink, SystemClock};
use partita_session::{EpochReport, Outcome};
use partita_site::launch::{
    Listener, MakeJoins, MakeValidators, MemoryBaseline, MemoryUsage, OnEpoch, RunSetup,
};
use std::sync::atomic::AtomicBool;

/// Outcomes of all ranks and their memory, in the process that has them.
type Ended = Option<(Vec<Outcome>, MemoryUsage)>;

/// Runs the ranks of this process from where the training stands.
pub fn run(
    task: &Task<'_, '_>,
    checkpoints: Option<&Checkpoints<'_>>,
    listener: Listener<'_>,
    baseline: MemoryBaseline,
    sink: &mut WeightSink<'_>,
) -> Result<Ended, TrainError> {
    // Placing the weights removes what they are read from.
    let earlier = Measured::of(task, sink.output_folder());
    let mut ended = run_ranks(task, checkpoints, listener, baseline, sink)?;
    if let Some((earlier, (outcomes, _))) = earlier.zip(ended.as_mut()) {
        earlier.complete(task.session.main_program(), outcomes);
    }
    Ok(ended)
}

fn run_ranks(
    task: &Task<'_, '_>,
    checkpoints: Option<&Checkpoints<'_>>,
    listener: Listener<'_>,
    baseline: MemoryBaseline,
    sink: &mut WeightSink<'_>,
) -> Result<Ended, TrainError> {
    let (launch, run, session) = (task.launch, task.run, task.session);
    let context = launch.context();
    let samples = (task.graph, task.dataset, task.preprocessing);
    let stored = task.resume.map(Resume::values);
    let position = checkpoint::start(task.resume.map(|resume| &resume.state));
    // With checkpoints, a request to stop ends the run between two steps.
    let flag = AtomicBool::new(false);
    let cancel = match checkpoints {
        Some(_) => &flag,
        None => context.cancel(),
    };
    let scratch = run.scratch(context.environment());
    let create = |joined: &JoinedValidation| joined.files(launch, scratch);
    let files = task.joined.map(create).transpose()?;
    let files = task.joined.zip(files.as_ref());
    let files = files.map(|(joined, (files, _))| joined.inner(files, context, cancel));
    let (graph, start) = (task.graph, task.start);
    let from = (position.epoch, position.done);
    let validators =
        task.offload
            .validators(run, session, task.on_epoch.is_some(), context.cancel());
    let mesh = session.main_program().mesh;
    let on_epoch = on_epoch(task);
    let setup = RunSetup {
        kernels: run.kernels,
        precision: run.precision,
        processing: context.processing(run.threads),
        watchdog: run.watchdog,
        cancel,
        source: &|rank, wake| {
            let loading = task.loading.clone();
            task.offload
                .source(run, session, samples, (rank, wake), (from, loading))
        },
        loading: task.loading,
        sink: &|rank| match &files {
            Some(files) => files.sink(mesh, rank),
            None => Ok(Box::new(NoSink)),
        },
        clock: SystemClock::start(),
        initial: &|buffer, elements| match &stored {
            Some(stored) if buffer.role != Role::Constant => {
                stored.read(buffer, elements).map(Some)
            }
            _ => initial_values(graph, run.seed, start, buffer, elements),
        },
        position: &position,
        hook: match checkpoints {
            Some(checkpoints) => checkpoints,
            None => &checkpoint::Off,
        },
        validators: validators.as_ref().map(|it| it as &dyn MakeValidators),
        joins: files.as_ref().map(|files| files as &dyn MakeJoins),
        is_followed: false,
        on_epoch: on_epoch.as_deref(),
        shares_loads: !run.metrics.is_empty(),
    };
    let results = launch.run(session, &setup, run.collectives, listener, baseline, sink);
    let last = checkpoints.and_then(Checkpoints::last);
    results.map_err(|error| ending::of_ranks(error, task.resume, last.as_ref()))
}

/// The callback of the training, if it has one.
fn on_epoch<'t>(task: &'t Task<'_, '_>) -> Option<Box<OnEpoch<'t>>> {
    let (callback, tally) = (task.on_epoch?, &task.loading.tally);
    let metrics = results::Metrics {
        targets: task.dataset.targets(),
        record: task.record.targets.as_ref(),
    };
    Some(Box::new(move |report: &EpochReport| {
        callback.is_break(&metrics.epoch(report, tally))
    }))
}
