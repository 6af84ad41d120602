//! The trace file of a run: what ran when, and the program it belongs to.
//!
//! An object in the Chrome trace format, which Perfetto draws as it is: `traceEvents` hold the tasks
//! (`ts` and `dur` in microseconds, `pid` the rank, `args.task` and `args.step`); beside them stand
//! `digest` and `program`, the program's text, so that a comparison needs no other file.

use crate::error::CliError;
use partita_oracle::compare::SECONDS_MAX;
use partita_program::verify::verify;
use partita_program::{Program, TaskId};
use partita_run::{Event, Trace};
use partita_space::Seconds;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A trace file that was read.
pub struct Recorded {
    /// Digest under which it was recorded.
    pub digest: String,
    /// What was run.
    pub program: Program,
    /// One per rank and step, in that order.
    pub traces: Vec<Trace>,
}

#[derive(Deserialize)]
struct File {
    digest: String,
    program: String,
    #[serde(rename = "traceEvents")]
    events: Vec<ChromeEvent>,
}

#[derive(Deserialize)]
struct ChromeEvent {
    ph: String,
    pid: usize,
    ts: f64,
    dur: f64,
    args: Arguments,
}

#[derive(Deserialize)]
struct Arguments {
    task: u32,
    step: u64,
}

/// The trace file of a run.
pub fn record(program: &Program, traces: &[Trace]) -> Value {
    let events: Vec<Value> = traces
        .iter()
        .flat_map(|trace| trace.to_chrome(program.body(trace.rank)))
        .collect();
    json!({
        "digest": program.digest(),
        "program": program.to_text(),
        "displayTimeUnit": "ms",
        "traceEvents": events,
    })
}

/// Reads a trace file.
///
/// Errors: a file that cannot be read, is no trace, holds a program with faults, names no tasks, tasks that
/// its program does not have or one twice, or times that nothing takes.
pub fn read(path: &Path) -> Result<Recorded, CliError> {
    let text =
        fs::read_to_string(path).map_err(|error| CliError::file("read", path.display(), &error))?;
    parse(&text).map_err(|reason| {
        CliError::User(format!(
            "{} is no trace of `partita train`: {reason}",
            path.display()
        ))
    })
}

fn parse(text: &str) -> Result<Recorded, String> {
    let file: File = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let program = Program::parse(&file.program).map_err(|error| error.to_string())?;
    // What is read may name anything; only then can it be counted and its tasks looked up.
    verify(&program).map_err(|faults| faults.to_string())?;
    let mut by_step: BTreeMap<(usize, u64), Vec<Event>> = BTreeMap::new();
    let mut seen: BTreeMap<(usize, u64, u32), usize> = BTreeMap::new();
    let tasks = file.events.iter().enumerate();
    for (index, event) in tasks.filter(|(_, event)| event.ph == "X") {
        let (rank, task) = (event.pid, event.args.task);
        let known = rank < program.mesh.ranks() && (task as usize) < program.body(rank).tasks.len();
        if !known {
            return Err(format!("its program has no task {task} on rank {rank}"));
        }
        for (key, micros) in [("ts", event.ts), ("dur", event.dur)] {
            if !(0.0..=1e6 * SECONDS_MAX).contains(&micros) {
                return Err(format!(
                    "`{key}` of traceEvents[{index}] (task {task}, rank {rank}) is {micros}; possible is a \
                     number of microseconds from 0 to {:e}",
                    1e6 * SECONDS_MAX
                ));
            }
        }
        let step = event.args.step;
        if let Some(first) = seen.insert((rank, step, task), index) {
            return Err(format!(
                "traceEvents[{first}] and traceEvents[{index}] are both task {task} of rank {rank} in step \
                 {step}; possible is one event for each task of a step"
            ));
        }
        by_step
            .entry((rank, event.args.step))
            .or_default()
            .push(Event {
                task: TaskId(task),
                start: Seconds(event.ts / 1e6),
                end: Seconds((event.ts + event.dur) / 1e6),
            });
    }
    if by_step.is_empty() {
        return Err(
            "its `traceEvents` hold no task; possible is a task (`\"ph\": \"X\"`) or more"
                .to_owned(),
        );
    }
    let traces = by_step
        .into_iter()
        .map(|((rank, step), events)| Trace { rank, step, events })
        .collect();
    Ok(Recorded {
        digest: file.digest,
        program,
        traces,
    })
}
