//! Times of the steps of a finished run, for the same run where it is resumed and nothing is left to train.

use super::Task;
use super::output::{RESULT, TRACE};
use partita_forecast::trace;
use partita_program::Program;
use partita_run::Trace;
use partita_session::Outcome;
use partita_space::Seconds;
use serde::Deserialize;
use std::path::Path;

/// Times of the steps of a run, from its result and its trace.
pub struct Measured {
    stored: Stored,
    traces: Vec<Trace>,
}

/// What is read of a result.
#[derive(Deserialize)]
struct Stored {
    digest: String,
    steps: u64,
    step_seconds_median: Seconds,
    steps_measured: u64,
    tasks: Vec<StoredTask>,
}

#[derive(Deserialize)]
struct StoredTask {
    class: usize,
    task: usize,
    seconds_median: Seconds,
}

impl Measured {
    /// Of the run that is resumed, if it ended in this folder and measured steps.
    pub fn of(task: &Task<'_, '_>, folder: Option<&Path>) -> Option<Self> {
        task.resume?;
        Self::read(folder?, task.session.main_program())
    }

    fn read(folder: &Path, program: &Program) -> Option<Self> {
        let text = partita_files::read_text(folder.join(RESULT)).ok()?;
        let stored: Stored = serde_json::from_str(&text).ok()?;
        let recorded = trace::read(&folder.join(TRACE)).ok()?;
        let digest = program.digest();
        let is_same = stored.digest == digest && recorded.digest == digest;
        (is_same && stored.steps_measured > 0).then_some(Self {
            stored,
            traces: recorded.traces,
        })
    }

    /// Gives the times to the outcomes of all ranks, if these made no step more.
    pub fn complete(&self, program: &Program, outcomes: &mut [Outcome]) {
        let is_new = |one: &Outcome| one.measured_steps > 0 || one.steps != self.stored.steps;
        if outcomes.iter().any(is_new) {
            return;
        }
        for outcome in outcomes {
            let class = program.class_of[outcome.rank] as usize;
            let mut seconds = vec![Seconds(0.0); program.bodies[class].tasks.len()];
            for one in self.stored.tasks.iter().filter(|one| one.class == class) {
                if let Some(of_task) = seconds.get_mut(one.task) {
                    *of_task = one.seconds_median;
                }
            }
            let own = self.traces.iter().filter(|it| it.rank == outcome.rank);
            outcome.traces = own.cloned().collect();
            outcome.measured_steps = self.stored.steps_measured;
            outcome.step_seconds = self.stored.step_seconds_median;
            outcome.task_seconds = seconds;
        }
    }
}
