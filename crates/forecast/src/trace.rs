//! The trace file of a run: times of tasks, and the program.
//!
//! An object in the Chrome trace format, which Perfetto draws as it is: `traceEvents` hold the tasks
//! (`ts` and `dur` in microseconds, `pid` the rank, `args.task` and `args.step`); beside them stand
//! `digest` and `program`, the program's text, so that a comparison needs no other file, and `steps` and
//! `span_us`, the steps that are held and the microseconds from the first start to the last end, so that
//! a part of a trace is not taken for the whole.

mod fault;

use partita_oracle::compare::SECONDS_MAX;
use partita_program::{Program, TaskId};
use partita_run::{Event, Trace};
use partita_site::{ErrorKind, Fault};
use partita_space::Seconds;
use partita_verify::verify;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

pub use fault::{TraceFault, TracedTask};

/// A trace file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// It cannot be read.
    #[error("{} cannot be read: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// It is not a trace.
    #[error("{} is not a trace of `partita train`: {fault}", path.display())]
    Faulty {
        /// The file.
        path: PathBuf,
        /// The first fault, and what is valid there.
        fault: Box<TraceFault>,
    },
}

impl Fault for TraceError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Request
    }
}

/// The kind of event that has a start and a duration.
const COMPLETE: &str = "X";

/// A trace file that was read.
pub struct Recorded {
    /// Digest of the program.
    pub digest: String,
    /// The program.
    pub program: Program,
    /// One per rank and step, in that order.
    pub traces: Vec<Trace>,
}

#[derive(Deserialize)]
struct File {
    digest: String,
    program: String,
    /// `None` in files of earlier versions.
    steps: Option<BTreeSet<u64>>,
    /// `None` in files of earlier versions, or without steps.
    span_us: Option<[f64; 2]>,
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

/// The contents of the trace file of a run.
pub fn record(program: &Program, traces: &[Trace]) -> Value {
    let events: Vec<Value> = traces
        .iter()
        .flat_map(|trace| trace.to_chrome(program.body(trace.rank)))
        .collect();
    let steps: BTreeSet<u64> = traces.iter().map(|trace| trace.step).collect();
    let all = || traces.iter().flat_map(|trace| &trace.events);
    let start = all().map(|event| event.start.0).reduce(f64::min);
    let end = all().map(|event| event.end.0).reduce(f64::max);
    json!({
        "digest": program.digest(),
        "program": program.to_text(),
        "steps": steps,
        "span_us": start.zip(end).map(|(start, end)| [1e6 * start, 1e6 * end]),
        "displayTimeUnit": "ms",
        "traceEvents": events,
    })
}

/// Reads a trace file.
///
/// Errors: an unreadable file; not a trace; a faulty program or another digest; other events; no tasks, unknown
/// or duplicate ones; invalid times or order; other steps or another span than stated.
pub fn read(path: &Path) -> Result<Recorded, TraceError> {
    let own = || path.to_owned();
    let text = partita_files::read_record(path);
    let text = text.map_err(|source| TraceError::Unreadable {
        path: own(),
        source,
    })?;
    parse(&text).map_err(|fault| TraceError::Faulty {
        path: own(),
        fault: Box::new(fault),
    })
}

fn parse(text: &str) -> Result<Recorded, TraceFault> {
    let file: File = serde_json::from_str(text)?;
    let program = Program::parse(&file.program)?;
    // The file may contain anything, so the program is verified before it is used.
    verify(&program)?;
    let found = program.digest();
    if found != file.digest {
        let stated = file.digest;
        return Err(TraceFault::Digest { found, stated });
    }
    let mut by_step: ByStep = BTreeMap::new();
    for (index, event) in file.events.iter().enumerate() {
        check_event(&program, index, event)?;
        let task = event.task(index);
        let events = by_step.entry((task.rank, task.step)).or_default();
        if let Some((first, _)) = events.insert(task.task, (index, event)) {
            return Err(TraceFault::Twice { first, again: task });
        }
    }
    if by_step.is_empty() {
        return Err(TraceFault::Empty);
    }
    check_whole(&file, &by_step)?;
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

/// Tasks by rank and step, with their indices in the file.
type ByStep<'f> = BTreeMap<(usize, u64), BTreeMap<u32, (usize, &'f ChromeEvent)>>;

impl ChromeEvent {
    fn end(&self) -> f64 {
        self.ts + self.dur
    }

    /// Where it is; `index` is its own in the file.
    fn task(&self, index: usize) -> TracedTask {
        TracedTask {
            index,
            task: self.args.task,
            rank: self.pid,
            step: self.args.step,
        }
    }

    fn is_before(&self, later: &Self) -> bool {
        is_until(self.end(), later.ts)
    }
}

/// Whether a rounded time in microseconds is at most another.
fn is_until(time: f64, other: f64) -> bool {
    time <= other + 0.01 + 1e-12 * other
}

/// Checks that the events cover the steps and the span that the file states.
fn check_whole(file: &File, by_step: &ByStep<'_>) -> Result<(), TraceFault> {
    let found: BTreeSet<u64> = by_step.keys().map(|&(_, step)| step).collect();
    let steps = file.steps.as_ref().unwrap_or(&found);
    if let Some(&step) = steps.difference(&found).next() {
        return Err(TraceFault::Missing { step });
    }
    for (index, event) in file.events.iter().enumerate() {
        let task = event.task(index);
        if !steps.contains(&task.step) {
            let steps = steps.clone();
            return Err(TraceFault::OtherStep { task, steps });
        }
        if let Some(span) = file.span_us
            && !(is_until(span[0], event.ts) && is_until(event.end(), span[1]))
        {
            let lasts = [event.ts, event.end()];
            return Err(TraceFault::OutsideSpan { task, lasts, span });
        }
    }
    Ok(())
}

fn check_event(program: &Program, index: usize, event: &ChromeEvent) -> Result<(), TraceFault> {
    if event.ph != COMPLETE {
        let found = event.ph.clone();
        return Err(TraceFault::Kind { index, found });
    }
    let task = event.task(index);
    let ranks = program.mesh.ranks();
    let is_known = task.rank < ranks && (task.task as usize) < program.body(task.rank).tasks.len();
    if !is_known {
        return Err(TraceFault::Unknown { task, ranks });
    }
    for (key, micros) in [("ts", event.ts), ("dur", event.dur)] {
        if !(0.0..=1e6 * SECONDS_MAX).contains(&micros) {
            return Err(TraceFault::Time { key, task, micros });
        }
    }
    Ok(())
}

/// Checks that tasks end before their successors start, and steps before the next one of their rank.
fn check_order(program: &Program, by_step: &ByStep<'_>) -> Result<(), TraceFault> {
    let mut last: Option<(usize, u64, usize, &ChromeEvent)> = None;
    for (&(rank, step), events) in by_step {
        for (&task, &(index, event)) in events {
            for before in &program.body(rank).tasks[task as usize].after {
                // Missing tasks are found by the comparison.
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

fn overlap(
    first: (usize, &ChromeEvent),
    second: (usize, &ChromeEvent),
    why: &'static str,
) -> TraceFault {
    TraceFault::Overlap {
        first: first.1.task(first.0),
        end: first.1.end(),
        second: second.1.task(second.0),
        start: second.1.ts,
        why,
    }
}
