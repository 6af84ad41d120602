//! Runs that end before their time: a loss that is not finite, and a request to stop.

use super::checkpoint::{Checkpoints, LastCheckpoint, Resume, ResumeError};
use super::curve::LossCurve;
use super::error::TrainError;
use super::run::Run;
use super::{Task, divergence};
use partita_graph::Graph;
use partita_run::RunError;
use partita_session::{LossScale, LossScaling, Outcome, RunEnd};
use partita_site::launch::LaunchError;
use partita_site::{Event, Fault as _};
use std::sync::{Mutex, PoisonError};

/// Tells the losses of a run that ended early.
///
/// Errors: why it did.
pub fn refuse_early(
    task: &Task<'_, '_>,
    outcomes: &[Outcome],
    (curve, checkpoints): (&Mutex<LossCurve>, Option<&Checkpoints<'_>>),
) -> Result<(), TrainError> {
    let (run, first) = (task.run, &outcomes[0]);
    if first.end == RunEnd::Finished {
        return Ok(());
    }
    if let Some(output) = &run.output {
        let curve = curve.lock().unwrap_or_else(PoisonError::into_inner);
        let names = (run.model.name(), output.clone());
        let history = curve.history(names, &first.epochs);
        task.launch.context().report(Event::EndedEarly(&history));
    }
    let last = checkpoints.and_then(Checkpoints::last);
    refuse_divergence(run, task.graph, outcomes)
        .map_err(|error| after_checkpoint(error, last.as_ref()))?;
    match (first.end, checkpoints) {
        (RunEnd::Stopped { epoch, steps }, Some(checkpoints)) => {
            Err(stopped(epoch, steps, checkpoints))
        }
        (RunEnd::Stopped { .. } | RunEnd::Finished | RunEnd::NotFinite { .. }, _) => Ok(()),
    }
}

/// A warning of a training whose updates were all skipped.
pub fn no_update(run: &Run, outcome: &Outcome) -> Option<String> {
    let LossScale { scale, skipped, .. } = outcome.loss_scale?;
    let advice = match run.loss_scaling? {
        LossScaling::Fixed(_) => {
            "lower `loss_scale`, or omit it, and the scale follows the gradients"
        }
        LossScaling::Dynamic => {
            "train for more steps, in which the scale is halved again and again"
        }
    };
    (skipped > 0 && skipped == outcome.steps).then(|| {
        format!(
            "all {skipped} updates were skipped, as gradients in f16 are infinite or NaN with a loss scale of {scale:e}, the \
             last one: the weights are those of the start; {advice}"
        )
    })
}

/// A failure of the ranks. Where they could not read the checkpoint from which they resume, another one is named.
pub fn of_ranks(
    error: LaunchError,
    resume: Option<&Resume>,
    last: Option<&LastCheckpoint>,
) -> TrainError {
    match (&error, resume) {
        (LaunchError::Rank(RunError::Initial { .. }), Some(resume)) => {
            ResumeError::damaged(resume.path(), error.to_string()).into()
        }
        (_, Some(_) | None) => after_checkpoint(error.into(), last),
    }
}

/// A failure, with the checkpoint from which the training may resume.
pub fn after_checkpoint(error: TrainError, last: Option<&LastCheckpoint>) -> TrainError {
    match last {
        Some(checkpoint) if !error.is_reported() => TrainError::AfterCheckpoint {
            error: Box::new(error),
            checkpoint: checkpoint.clone(),
        },
        Some(_) | None => error,
    }
}

/// The end of a run that was stopped on request.
fn stopped(epoch: u64, steps: u64, checkpoints: &Checkpoints<'_>) -> TrainError {
    match (checkpoints.failure(), checkpoints.last()) {
        (None, Some(checkpoint)) => TrainError::Stopped {
            steps,
            epoch,
            checkpoint,
        },
        (reason, checkpoint) => TrainError::StoppedWithout {
            steps,
            reason: reason.unwrap_or_else(|| "its end is unknown".to_owned()),
            checkpoint,
        },
    }
}

/// Errors: a loss or an output that is infinite or NaN, where nothing is trained.
pub fn refuse_not_finite(run: &Run, graph: &Graph, outcomes: &[Outcome]) -> Result<(), TrainError> {
    match outcomes[0].end {
        RunEnd::Finished | RunEnd::Stopped { .. } => Ok(()),
        RunEnd::NotFinite { loss, .. } => Err(TrainError::NotFinite {
            loss,
            precision: run.precision,
            origin: divergence::origin(graph, outcomes).map(Box::new),
        }),
    }
}

/// Errors: a loss that is infinite or NaN.
fn refuse_divergence(run: &Run, graph: &Graph, outcomes: &[Outcome]) -> Result<(), TrainError> {
    match outcomes[0].end {
        RunEnd::Finished | RunEnd::Stopped { .. } => Ok(()),
        RunEnd::NotFinite {
            kind,
            epoch,
            step,
            loss,
        } => {
            let rate = run.schedule.base_rate();
            Err(TrainError::Diverged {
                loss,
                kind,
                epoch,
                step,
                rate,
                clip: run.clip,
                precision: run.precision,
                origin: divergence::origin(graph, outcomes).map(Box::new),
            })
        }
    }
}
