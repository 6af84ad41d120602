//! What makes a file no trace.

use super::COMPLETE;
use partita_oracle::compare::SECONDS_MAX;
use partita_program::ParseError;
use partita_space::Help;
use partita_verify::Faults;
use std::collections::BTreeSet;
use std::fmt;

/// A fault of a trace file, and what is valid there. Times are in microseconds.
#[derive(Debug, thiserror::Error)]
pub enum TraceFault {
    /// Its JSON is damaged.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// Its program cannot be read.
    #[error(transparent)]
    Program(#[from] ParseError),
    /// Its program cannot be run.
    #[error(transparent)]
    Unsound(#[from] Faults),
    /// Its program is another one than it says.
    #[error(
        "the program under `program` has the digest {found}, `digest` is {stated}{}",
        Help::possible("a trace as it was written")
    )]
    Digest {
        /// That of the program.
        found: String,
        /// That of the file.
        stated: String,
    },
    /// Two events are one task.
    #[error(
        "traceEvents[{first}] and traceEvents[{}] are both task {} of rank {} in step {}{}",
        again.index, again.task, again.rank, again.step,
        Help::possible("one event for each task of a step")
    )]
    Twice {
        /// Index of the first.
        first: usize,
        /// The second.
        again: TracedTask,
    },
    /// It has no tasks.
    #[error(
        "its `traceEvents` hold no task{}",
        Help::possible(format_args!("a task (`\"ph\": \"{COMPLETE}\"`) or more"))
    )]
    Empty,
    /// A step that it states has no tasks.
    #[error(
        "`traceEvents` have no task of step {step}{}",
        Help::possible("a task or more of each of its `steps`")
    )]
    Missing {
        /// The step.
        step: u64,
    },
    /// A task is of a step that it does not state.
    #[error("`step` of {task} is {}{}", task.step, Help::possible(format_args!("its `steps` {}", listed(steps))))]
    OtherStep {
        /// The task.
        task: TracedTask,
        /// Those that it states.
        steps: BTreeSet<u64>,
    },
    /// A task leaves the span that it states.
    #[error(
        "traceEvents[{}] (task {}, rank {}, step {}) lasts from {} to {} us{}",
        task.index, task.task, task.rank, task.step, lasts[0], lasts[1],
        Help::possible(format_args!("from {} to {}, its `span_us`", span[0], span[1]))
    )]
    OutsideSpan {
        /// The task.
        task: TracedTask,
        /// Its start and end.
        lasts: [f64; 2],
        /// Start and end of the span.
        span: [f64; 2],
    },
    /// An event is no task.
    #[error("`ph` of traceEvents[{index}] is {found:?}{}", Help::possible(format_args!("{COMPLETE:?}")))]
    Kind {
        /// Its index.
        index: usize,
        /// Its kind.
        found: String,
    },
    /// Its program has no such task.
    #[error(
        "its program has no task {} on rank {}, which traceEvents[{}] is{}",
        task.task, task.rank, task.index,
        Help::possible(format_args!("tasks of its {ranks} ranks"))
    )]
    Unknown {
        /// The task.
        task: TracedTask,
        /// Ranks of the program.
        ranks: usize,
    },
    /// A time that cannot be.
    #[error(
        "`{key}` of {task} is {micros}{}",
        Help::possible(format_args!("a number of microseconds from 0 to {:e}", 1e6 * SECONDS_MAX))
    )]
    Time {
        /// Key of the event.
        key: &'static str,
        /// The task.
        task: TracedTask,
        /// The time.
        micros: f64,
    },
    /// A task starts before one that it follows has ended.
    #[error(
        "traceEvents[{}] (task {}, rank {}, step {}) ends at {end} us, and traceEvents[{}] (task {}, step {}), \
         which {why}, starts at {start} us{}",
        first.index, first.task, first.rank, first.step, second.index, second.task, second.step,
        Help::possible(format_args!("a `ts` + `dur` of up to {start}"))
    )]
    Overlap {
        /// The one before.
        first: TracedTask,
        /// Its end.
        end: f64,
        /// The one that follows it.
        second: TracedTask,
        /// Its start.
        start: f64,
        /// Why it follows.
        why: &'static str,
    },
}

/// A task in a trace file.
#[derive(Clone, Copy, Debug)]
pub struct TracedTask {
    /// Index of its event.
    pub index: usize,
    /// The task.
    pub task: u32,
    /// Its rank.
    pub rank: usize,
    /// Its step.
    pub step: u64,
}

impl fmt::Display for TracedTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            index, task, rank, ..
        } = self;
        write!(f, "traceEvents[{index}] (task {task}, rank {rank})")
    }
}

fn listed(steps: &BTreeSet<u64>) -> String {
    let steps: Vec<String> = steps.iter().map(u64::to_string).collect();
    steps.join(", ")
}
