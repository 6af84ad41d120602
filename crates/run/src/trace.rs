//! Start and end times of tasks.

use partita_program::{Body, Phase, Task, TaskId};
use partita_space::{Rank, Seconds};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Start and end of a task.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// The task.
    pub task: TaskId,
    /// Start time.
    pub start: Seconds,
    /// Time at which its completion was noticed.
    pub end: Seconds,
}

/// One step of one rank, measured or simulated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// The rank.
    pub rank: Rank,
    /// Number of the step.
    pub step: u64,
    /// In order of completion.
    pub events: Vec<Event>,
}

impl Trace {
    /// Events of the Chrome trace format (also read by Perfetto): one process per rank, one thread
    /// per lane, times in microseconds.
    pub fn to_chrome(&self, body: &Body) -> Vec<Value> {
        self.events
            .iter()
            .map(|event| {
                let task = &body.tasks[event.task.0 as usize];
                let lane = task.work.lane();
                json!({
                    "name": format!("{} {}", task.origin.layer, name(task)),
                    "cat": task.origin.phase.name(),
                    "ph": "X",
                    "pid": self.rank,
                    "tid": lane as usize,
                    "ts": event.start.0 * 1e6,
                    "dur": (event.end.0 - event.start.0) * 1e6,
                    "args": { "task": event.task.0, "step": self.step, "lane": lane.name() },
                })
            })
            .collect()
    }
}

/// Name of a task. A transposed convolution runs the kernels of a convolution in the opposite direction; in a trace they have the
/// names of what they compute.
fn name(task: &Task) -> &'static str {
    match (task.origin.phase, task.work.name()) {
        (Phase::Forward, "convolution_backward_data") => "transposed_convolution_forward",
        (Phase::Backward, "convolution_forward") => "transposed_convolution_backward_data",
        (_, name) => name,
    }
}
