//! Compares predicted with measured times.

use crate::prediction::{Prediction, TaskPrediction};
use partita_program::{Lane, Program, Task};
use partita_run::Trace;
use partita_space::{Rank, Seconds, median};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Why a prediction and traces cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompareError {
    /// Prediction and traces are of different programs.
    #[error(
        "the prediction is of program {prediction}, the traces are of {measured}, the program is \
         {program}; predict and measure the same program"
    )]
    Digests {
        /// Digest in the prediction.
        prediction: String,
        /// Digest in the traces.
        measured: String,
        /// Digest of the program.
        program: String,
    },
    /// The prediction is invalid.
    #[error(transparent)]
    Prediction(#[from] PredictionFault),
    /// No traces.
    #[error("no traces were given")]
    NoTraces,
    /// A rank outside the program.
    #[error("a trace is of rank {rank}, but the program has {ranks} ranks")]
    Rank {
        /// Rank of the trace.
        rank: Rank,
        /// Ranks of the program.
        ranks: usize,
    },
    /// A task that a step does not have exactly once.
    #[error(
        "step {step} has task {task} of rank {rank}{what} {times} times; each of the {tasks} tasks of that rank \
         must occur once, as in traces of `partita train`"
    )]
    Times {
        /// Rank of the trace.
        rank: Rank,
        /// Step of the trace.
        step: u64,
        /// Number in the body of the rank.
        task: u32,
        /// Its layer and work in parentheses, if the program has it.
        what: String,
        /// How often it occurs.
        times: usize,
        /// Number of tasks of the rank.
        tasks: usize,
    },
    /// A step without duration.
    #[error(
        "the tasks of rank {rank} in step {step} take 0 s; a time above 0 is needed, as in traces of \
         `partita train`"
    )]
    NoTime {
        /// Rank of the trace.
        rank: Rank,
        /// Step of the trace.
        step: u64,
    },
}

/// Why a prediction is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PredictionFault {
    /// It has no tasks.
    #[error(
        "the prediction has no tasks; predict again with tasks: `partita predict --tasks --json`"
    )]
    NoTasks,
    /// A negative, too long or invalid time.
    #[error(
        "{entry} is {seconds}, expected seconds from 0 to {SECONDS_MAX:e}; predict again with tasks"
    )]
    Seconds {
        /// The key and its task.
        entry: String,
        /// The value.
        seconds: String,
    },
    /// A task that the program does not have.
    #[error(
        "tasks[{index}] is task {task} of class {class}, but the program has {possible}; predict again with tasks"
    )]
    Task {
        /// Its index in the list.
        index: usize,
        /// Class.
        class: u32,
        /// Number in the body of the class.
        task: u32,
        /// What the program has.
        possible: String,
    },
    /// A task with two entries.
    #[error(
        "tasks[{first}] and tasks[{second}] are both task {task} of class {class}; a task has one entry; predict \
         again with tasks"
    )]
    Duplicate {
        /// Index in the list.
        first: usize,
        /// Index in the list.
        second: usize,
        /// Class.
        class: u32,
        /// Number in the body of the class.
        task: u32,
    },
    /// An entry that contradicts the program.
    #[error(
        "`{key}` of tasks[{index}] (task {task} of class {class}) is `{asked}`, but `{possible}` in the program; \
         predict again with tasks"
    )]
    Mismatch {
        /// The key.
        key: &'static str,
        /// Index in the list.
        index: usize,
        /// Class.
        class: u32,
        /// Number in the body of the class.
        task: u32,
        /// Value in the entry.
        asked: String,
        /// Value in the program.
        possible: String,
    },
    /// A task without an entry.
    #[error(
        "`tasks` has no entry for task {task} of class {class}{what}; predict again with tasks"
    )]
    Missing {
        /// Class.
        class: u32,
        /// Number in the body of the class.
        task: u32,
        /// Its layer and work in parentheses.
        what: String,
    },
}

/// Longest valid time, about 30 years.
pub const SECONDS_MAX: f64 = 1e9;

/// A predicted and a measured time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Pair {
    /// Predicted time.
    pub predicted: Seconds,
    /// Measured time.
    pub measured: Seconds,
    /// `1 - |predicted - measured| / measured`; negative beyond twice the measured time,
    /// minus infinity (`null` in JSON) if the measured time is 0.
    pub accuracy: f64,
}

/// A prediction compared with a run of the same program. Seconds of kinds and phases are means over ranks
/// per step, from start to completion: tasks of different lanes overlap, and exchanges and collectives
/// include waiting.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Digest of the program.
    pub digest: String,
    /// Steps of the measured run.
    pub steps: usize,
    /// Predicted tasks of classes without ranks, which have no trace; they are left out.
    pub tasks_unmeasured: usize,
    /// The time of a step: the median over the steps of the slowest rank's.
    pub iteration: Pair,
    /// All kernels together.
    pub compute: Pair,
    /// The rest of the step: ranks wait for messages, sums, input, or each other.
    pub waiting: Pair,
    /// Kinds of work that are kernels; of the others seconds include waits, and overlap.
    #[serde(skip)]
    pub kernel_kinds: BTreeSet<String>,
    /// By kind of work.
    pub by_kind: BTreeMap<String, Pair>,
    /// By part of the step.
    pub by_phase: BTreeMap<String, Pair>,
}

impl Pair {
    /// The accuracy is 1 if both times are 0.
    pub fn new(predicted: Seconds, measured: Seconds) -> Self {
        let off = (predicted - measured).0.abs();
        let accuracy = if off == 0.0 {
            1.0
        } else {
            1.0 - off / measured.0
        };
        Self {
            predicted,
            measured,
            accuracy,
        }
    }
}

/// Compares a prediction that has tasks with the traces of a run: any number of steps of all
/// ranks, under the digest that was recorded with them. Each task counts with the median over a
/// rank's steps, then with the mean over the ranks of its class.
///
/// Errors: different digests; tasks of the prediction that do not match the program, or have invalid times;
/// no traces, a rank outside the program, a step that does not have each task of each rank exactly once, or
/// has no duration.
pub fn compare(
    prediction: &Prediction,
    program: &Program,
    measured_digest: &str,
    traces: &[Trace],
) -> Result<Comparison, CompareError> {
    let digest = program.digest();
    let predicted = prediction.digest.as_deref().unwrap_or_default();
    if predicted != digest || measured_digest != digest {
        return Err(CompareError::Digests {
            prediction: predicted.to_owned(),
            measured: measured_digest.to_owned(),
            program: digest,
        });
    }
    let tasks = tasks_of(prediction, program)?;
    if traces.is_empty() {
        return Err(CompareError::NoTraces);
    }
    check_traces(program, traces)?;
    let measured = MeasuredTasks::new(program, traces);
    let mut sums = Sums::default();
    let ranks = program.mesh.ranks() as f64;
    let sizes = program.class_sizes();
    let mut tasks_unmeasured = 0;
    for task in tasks {
        let Some(seconds) = measured.task(task) else {
            tasks_unmeasured += 1;
            continue;
        };
        let weight = sizes[task.class as usize] as f64 / ranks;
        let work = &program.bodies[task.class as usize].tasks[task.task as usize].work;
        sums.add(task, weight, seconds, work.lane());
    }
    let (steps, measured) = iteration(traces);
    let iteration = Pair::new(prediction.iteration_seconds, Seconds(measured));
    let compute = sums.compute.pair();
    Ok(Comparison {
        digest,
        steps,
        tasks_unmeasured,
        waiting: Pair::new(
            iteration.predicted - compute.predicted,
            iteration.measured - compute.measured,
        ),
        iteration,
        compute,
        kernel_kinds: sums.kernel_kinds,
        by_kind: sums
            .by_kind
            .into_iter()
            .map(|(kind, sum)| (kind, sum.pair()))
            .collect(),
        by_phase: sums
            .by_phase
            .into_iter()
            .map(|(phase, sum)| (phase, sum.pair()))
            .collect(),
    })
}

/// The tasks of a prediction. Errors: they do not match the program, or have invalid times.
fn tasks_of<'p>(
    prediction: &'p Prediction,
    program: &Program,
) -> Result<&'p [TaskPrediction], PredictionFault> {
    let check = |entry: &dyn Fn() -> String, Seconds(seconds): Seconds| {
        if (0.0..=SECONDS_MAX).contains(&seconds) {
            return Ok(());
        }
        Err(PredictionFault::Seconds {
            entry: entry(),
            seconds: seconds.to_string(),
        })
    };
    let tasks = prediction.tasks.as_deref().unwrap_or_default();
    if tasks.is_empty() {
        return Err(PredictionFault::NoTasks);
    }
    check(
        &|| "iteration_seconds".to_owned(),
        prediction.iteration_seconds,
    )?;
    let mut seen = HashMap::new();
    for (index, one) in tasks.iter().enumerate() {
        let (class, task) = (one.class, one.task);
        check_description(program, index, one)?;
        if let Some(first) = seen.insert((class, task), index) {
            return Err(PredictionFault::Duplicate {
                first,
                second: index,
                class,
                task,
            });
        }
        let entry = || format!("`seconds` of tasks[{index}] (task {task} of class {class})");
        check(&entry, one.seconds)?;
    }
    for (class, (body, &ranks)) in program
        .bodies
        .iter()
        .zip(&program.class_sizes())
        .enumerate()
    {
        let (class, all) = (class as u32, 0..body.tasks.len() as u32);
        let missing = all
            .into_iter()
            .find(|&task| !seen.contains_key(&(class, task)));
        if let (Some(task), 1..) = (missing, ranks) {
            let what = described(body.tasks.get(task as usize));
            return Err(PredictionFault::Missing { class, task, what });
        }
    }
    Ok(tasks)
}

/// Errors: an entry for no task of the program, or one that contradicts it.
fn check_description(
    program: &Program,
    index: usize,
    one: &TaskPrediction,
) -> Result<(), PredictionFault> {
    let (class, task) = (one.class, one.task);
    let body = program.bodies.get(class as usize);
    let Some(in_program) = body.and_then(|body| body.tasks.get(task as usize)) else {
        let possible = match body {
            Some(body) => format!(
                "tasks 0 to {} of that class",
                body.tasks.len().saturating_sub(1)
            ),
            None => format!("classes 0 to {}", program.bodies.len().saturating_sub(1)),
        };
        return Err(PredictionFault::Task {
            index,
            class,
            task,
            possible,
        });
    };
    for (key, asked, possible) in [
        ("kind", one.kind.as_str(), in_program.work.name()),
        ("phase", one.phase.name(), in_program.origin.phase.name()),
        ("layer", &one.layer, &in_program.origin.layer),
    ] {
        if asked != possible {
            return Err(PredictionFault::Mismatch {
                key,
                index,
                class,
                task,
                asked: asked.to_owned(),
                possible: possible.to_owned(),
            });
        }
    }
    Ok(())
}

fn described(task: Option<&Task>) -> String {
    task.map_or_else(String::new, |task| {
        format!(" ({} of `{}`)", task.work.name(), task.origin.layer)
    })
}

/// Errors: a step that does not have each task of each rank exactly once, or has no duration.
fn check_traces(program: &Program, traces: &[Trace]) -> Result<(), CompareError> {
    let ranks = program.mesh.ranks();
    let mut seen: BTreeMap<u64, BTreeSet<Rank>> = BTreeMap::new();
    for trace in traces {
        let (rank, step) = (trace.rank, trace.step);
        if rank >= ranks {
            return Err(CompareError::Rank { rank, ranks });
        }
        let tasks = &program.body(rank).tasks;
        // A second trace of the step repeats all of its tasks.
        let before = usize::from(!seen.entry(step).or_default().insert(rank));
        let mut times = vec![before; tasks.len()];
        let mut unknown = None;
        for event in &trace.events {
            match times.get_mut(event.task.0 as usize) {
                Some(times) => *times += 1,
                None => unknown = Some((event.task.0 as usize, 1)),
            }
        }
        let wrong = times.into_iter().enumerate().find(|&(_, times)| times != 1);
        if let Some((task, times)) = unknown.or(wrong) {
            return Err(times_of(program, rank, step, task, times));
        }
        let seconds: f64 = trace
            .events
            .iter()
            .map(|event| (event.end - event.start).0)
            .sum();
        if seconds <= 0.0 && !tasks.is_empty() {
            return Err(CompareError::NoTime { rank, step });
        }
    }
    for (step, seen) in seen {
        let lacks = |&rank: &Rank| !seen.contains(&rank) && !program.body(rank).tasks.is_empty();
        if let Some(rank) = (0..ranks).find(lacks) {
            return Err(times_of(program, rank, step, 0, 0));
        }
    }
    Ok(())
}

fn times_of(program: &Program, rank: Rank, step: u64, task: usize, times: usize) -> CompareError {
    let tasks = &program.body(rank).tasks;
    CompareError::Times {
        rank,
        step,
        task: task as u32,
        what: described(tasks.get(task)),
        times,
        tasks: tasks.len(),
    }
}

/// Mean over the measured ranks of a class of the medians over their steps, by (class, task).
struct MeasuredTasks {
    by_task: HashMap<(u32, u32), (f64, usize)>,
}

impl MeasuredTasks {
    fn new(program: &Program, traces: &[Trace]) -> Self {
        let mut samples: HashMap<(Rank, u32), Vec<f64>> = HashMap::new();
        for trace in traces {
            for event in &trace.events {
                let seconds = (event.end - event.start).0;
                samples
                    .entry((trace.rank, event.task.0))
                    .or_default()
                    .push(seconds);
            }
        }
        let mut by_task: HashMap<(u32, u32), (f64, usize)> = HashMap::new();
        for ((rank, task), seconds) in samples {
            let entry = by_task.entry((program.class_of[rank], task)).or_default();
            entry.0 += median(&seconds);
            entry.1 += 1;
        }
        Self { by_task }
    }

    fn task(&self, task: &TaskPrediction) -> Option<f64> {
        let (sum, ranks) = self.by_task.get(&(task.class, task.task))?;
        Some(sum / *ranks as f64)
    }
}

#[derive(Clone, Copy, Default)]
struct Sum {
    predicted: f64,
    measured: f64,
}

impl Sum {
    fn pair(self) -> Pair {
        Pair::new(Seconds(self.predicted), Seconds(self.measured))
    }

    fn add(&mut self, predicted: f64, measured: f64) {
        self.predicted += predicted;
        self.measured += measured;
    }
}

#[derive(Default)]
struct Sums {
    compute: Sum,
    kernel_kinds: BTreeSet<String>,
    by_kind: BTreeMap<String, Sum>,
    by_phase: BTreeMap<String, Sum>,
}

impl Sums {
    fn add(&mut self, task: &TaskPrediction, weight: f64, measured: f64, lane: Lane) {
        let (predicted, measured) = (task.seconds.0 * weight, measured * weight);
        match lane {
            Lane::Compute => {
                self.kernel_kinds.insert(task.kind.clone());
                self.compute.add(predicted, measured);
            }
            Lane::Exchange | Lane::Collective | Lane::Io => {}
        }
        self.by_kind
            .entry(task.kind.clone())
            .or_default()
            .add(predicted, measured);
        let phase = task.phase.name().to_owned();
        self.by_phase
            .entry(phase)
            .or_default()
            .add(predicted, measured);
    }
}

/// Number of steps, and the median over them of the slowest rank's seconds.
fn iteration(traces: &[Trace]) -> (usize, f64) {
    let mut by_step: BTreeMap<u64, f64> = BTreeMap::new();
    for trace in traces {
        let starts = trace.events.iter().map(|event| event.start.0);
        let ends = trace.events.iter().map(|event| event.end.0);
        let first = starts.fold(f64::INFINITY, f64::min);
        let seconds = (ends.fold(first, f64::max) - first).max(0.0);
        let slowest = by_step.entry(trace.step).or_insert(0.0);
        *slowest = slowest.max(seconds);
    }
    let seconds: Vec<f64> = by_step.values().copied().collect();
    (seconds.len(), median(&seconds))
}
