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

/// The kind of event that has a start and a duration.
const COMPLETE: &str = "X";

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
/// Errors: a file that cannot be read, is no trace, holds a program with faults or one of another digest,
/// events of another kind, no tasks, tasks that its program does not have or one twice, times that nothing
/// takes, or an order that no rank follows.
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
    let found = program.digest();
    if found != file.digest {
        return Err(format!(
            "the program under `program` has the digest {found}, `digest` is {}; possible is a trace as it \
             was written",
            file.digest
        ));
    }
    let mut by_step: ByStep = BTreeMap::new();
    for (index, event) in file.events.iter().enumerate() {
        check_event(&program, index, event)?;
        let (rank, step, task) = (event.pid, event.args.step, event.args.task);
        let events = by_step.entry((rank, step)).or_default();
        if let Some(first) = events.insert(task, (index, event)) {
            return Err(format!(
                "traceEvents[{}] and traceEvents[{index}] are both task {task} of rank {rank} in step \
                 {step}; possible is one event for each task of a step",
                first.0
            ));
        }
    }
    if by_step.is_empty() {
        return Err(format!(
            "its `traceEvents` hold no task; possible is a task (`\"ph\": \"{COMPLETE}\"`) or more"
        ));
    }
    check_order(&program, &by_step)?;
    let event = |(task, (_, event)): (u32, (usize, &ChromeEvent))| Event {
        task: TaskId(task),
        start: Seconds(event.ts / 1e6),
        end: Seconds(event.end() / 1e6),
    };
    let traces = by_step
        .into_iter()
        .map(|((rank, step), events)| Trace {
            rank,
            step,
            events: events.into_iter().map(event).collect(),
        })
        .collect();
    Ok(Recorded {
        digest: file.digest,
        program,
        traces,
    })
}

/// Of each rank and step its tasks, with their numbers in the file.
type ByStep<'f> = BTreeMap<(usize, u64), BTreeMap<u32, (usize, &'f ChromeEvent)>>;

impl ChromeEvent {
    fn end(&self) -> f64 {
        self.ts + self.dur
    }

    /// Microseconds by which what follows it may start before its end: both were rounded.
    fn is_before(&self, later: &Self) -> bool {
        self.end() <= later.ts + 0.01 + 1e-12 * later.ts
    }
}

fn check_event(program: &Program, index: usize, event: &ChromeEvent) -> Result<(), String> {
    if event.ph != COMPLETE {
        return Err(format!(
            "`ph` of traceEvents[{index}] is {:?}; possible is {COMPLETE:?}",
            event.ph
        ));
    }
    let (rank, task) = (event.pid, event.args.task);
    let known = rank < program.mesh.ranks() && (task as usize) < program.body(rank).tasks.len();
    if !known {
        return Err(format!(
            "its program has no task {task} on rank {rank}, which traceEvents[{index}] is; possible are \
             tasks of its {} ranks",
            program.mesh.ranks()
        ));
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
    Ok(())
}

/// Whether tasks end before those that wait for them start, and steps before the next of their rank.
fn check_order(program: &Program, by_step: &ByStep<'_>) -> Result<(), String> {
    let mut last: Option<(usize, u64, usize, &ChromeEvent)> = None;
    for (&(rank, step), events) in by_step {
        for (&task, &(index, event)) in events {
            for before in &program.body(rank).tasks[task as usize].after {
                // Whether all tasks are there is found when they are compared.
                match events.get(&before.0) {
                    Some((first, before)) if !before.is_before(event) => {
                        return Err(overlap((*first, before), (index, event), "waits for it"));
                    }
                    Some(_) | None => {}
                }
            }
            match last {
                Some((of, earlier, first, before))
                    if of == rank && earlier < step && !before.is_before(event) =>
                {
                    let why = "is of a later step";
                    return Err(overlap((first, before), (index, event), why));
                }
                Some(_) | None => {}
            }
        }
        let ends = events
            .values()
            .max_by(|a, b| a.1.end().total_cmp(&b.1.end()));
        last = ends.map(|&(index, event)| (rank, step, index, event));
    }
    Ok(())
}

fn overlap(first: (usize, &ChromeEvent), second: (usize, &ChromeEvent), why: &str) -> String {
    let (end, start) = (first.1.end(), second.1.ts);
    format!(
        "traceEvents[{}] (task {}, rank {}, step {}) ends at {end} us, and traceEvents[{}] (task {}, step {}), \
         which {why}, starts at {start} us; possible is a `ts` + `dur` of up to {start}",
        first.0,
        first.1.args.task,
        first.1.pid,
        first.1.args.step,
        second.0,
        second.1.args.task,
        second.1.args.step,
    )
}
