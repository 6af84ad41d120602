//! What bounds a strategy, and the effect of changes of machine, batch and ranks.
use crate::machine;
use crate::planning::PlanningError;
use partita_lower::{Request, Strategy, lower};
use partita_oracle::{
    Costs, Crossover, CrossoverSearch, Finding, Prediction, Simulation, crossover, explain,
    precision, simulate, what_ifs,
};
use partita_plan::{doubled, ranks_max};
use partita_program::Program;
use partita_space::help::Message;
use partita_space::{Bytes, Seconds};
use serde::Serialize;

/// Least parallel efficiency at which a strategy counts as scaling.
const EFFICIENCY_MIN: f64 = 0.5;

/// Steps that are simulated; without jitter in the model, all are alike.
const STEPS: usize = 1;

/// Returns the costs of a program.
pub type CostsOf<'a> = dyn Fn(&Program) -> Result<Box<dyn Costs + 'a>, PlanningError> + 'a;

/// A prediction to explain.
pub struct Subject<'a, 'c> {
    /// The training, with its strategy.
    pub training: Request<'a>,
    /// Program of all ranks.
    pub program: &'a Program,
    /// Its prediction.
    pub prediction: &'a Prediction,
    /// Memory limit of a rank.
    pub memory: Bytes,
    /// Costs of this program.
    pub own: &'a dyn Costs,
    /// Costs of other programs.
    pub costs: &'a CostsOf<'c>,
    /// Whether no more predictions are to be made.
    pub is_late: &'a dyn Fn() -> bool,
}

/// What bounds a strategy, and what would change that.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// What bounds it.
    pub findings: Vec<Finding>,
    /// What one change would bring.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub what_ifs: Vec<Change>,
    /// How it scales.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scaling: Option<Scaling>,
    /// The fastest strategy of another kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rival: Option<Rival>,
}

impl Explanation {
    /// Findings alone, without further predictions.
    pub fn new(findings: Vec<Finding>) -> Self {
        Self {
            findings,
            what_ifs: Vec::new(),
            scaling: None,
            rival: None,
        }
    }
}

/// A change of machine or batch, with its effect.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    /// Name of the change: of the machine, or `batch` or `device_memory`, which double.
    pub change: String,
    /// Strategy after the change.
    pub strategy: String,
    /// Time of a step after the change.
    pub iteration_seconds: Seconds,
    /// Throughput of all ranks after the change.
    pub samples_per_second: f64,
    /// Ratio to the present throughput.
    pub speedup: f64,
    /// Memory of the largest rank.
    pub memory_bytes_max: Bytes,
    /// The change in words.
    pub says: String,
}

/// How far a strategy scales with the same mini-batch.
#[derive(Clone, Debug, Serialize)]
pub struct Scaling {
    /// Doublings of the ranks.
    pub points: Vec<Point>,
    /// Why it ends there.
    pub end: String,
}

/// A number of ranks.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// Number of ranks.
    pub ranks: usize,
    /// Strategy.
    pub strategy: String,
    /// Time of a step.
    pub iteration_seconds: Seconds,
    /// Throughput of all ranks.
    pub samples_per_second: f64,
    /// Throughput per rank, relative to the explained strategy.
    pub efficiency: f64,
}

/// The fastest strategy of another kind.
#[derive(Clone, Debug, Serialize)]
pub struct Rival {
    /// Strategy.
    pub strategy: String,
    /// Time of a step.
    pub iteration_seconds: Seconds,
    /// Link bandwidth from which it is faster, if any.
    #[serde(flatten)]
    pub turn: Option<BandwidthCrossover>,
    /// The rival in words.
    pub says: String,
}

/// The link bandwidth at which two strategies are equally fast.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BandwidthCrossover {
    /// Ratio to the present bandwidth.
    pub link_bandwidth: f64,
    /// Time of a step of both there.
    pub turn_seconds: Seconds,
}

/// A simulated step of a program.
///
/// Errors: a missing cost.
pub fn simulated(program: &Program, costs: &dyn Costs) -> Result<Simulation, PlanningError> {
    let mode = machine::mode(costs, program.mesh.ranks());
    Ok(simulate(program, costs, mode, STEPS)?)
}

/// What bounds a program: as found in a simulation, and how many ranks can take part.
///
/// Errors: a missing cost.
pub fn findings(
    subject: &Subject<'_, '_>,
    simulation: &Simulation,
) -> Result<Vec<Finding>, PlanningError> {
    let mut findings = explain(subject.program, simulation, subject.own)?;
    let training = &subject.training;
    let (ranks, reason) = ranks_max(training.strategy, training.graph, training.batch);
    let why = format!("{ranks} at most by doubling the axes of the strategy: {reason}");
    findings.push(Finding::of_ranks(ranks, why));
    Ok(findings)
}

/// Predicts this strategy under changes of the machine, and with twice the mini-batch, until it is late.
///
/// Errors: a missing cost.
pub fn changes(subject: &Subject<'_, '_>) -> Result<Vec<Change>, PlanningError> {
    let now = subject.prediction.iteration_seconds;
    let mode = machine::mode(subject.own, subject.program.mesh.ranks());
    let own = (subject.program, subject.own);
    let found = what_ifs(own, mode, now, subject.is_late)?;
    let (strategy, batch) = (subject.training.strategy, subject.training.batch);
    let mut changes: Vec<Change> = Vec::new();
    for one in found {
        let name = serde_json::to_value(one.change);
        let name = name.as_ref().ok().and_then(|name| name.as_str());
        changes.push(Change {
            change: name.unwrap_or_default().to_owned(),
            strategy: strategy.to_string(),
            iteration_seconds: one.iteration_seconds,
            samples_per_second: subject.prediction.samples_per_second * one.speedup,
            speedup: one.speedup,
            memory_bytes_max: subject.prediction.memory_bytes_max,
            says: one.change.to_string(),
        });
    }
    let twice = Request {
        batch: 2 * batch,
        ..subject.training
    };
    if (subject.is_late)() {
        return Ok(changes);
    }
    if let Ok(then) = predicted(subject, &twice)? {
        let too_large = if then.memory_bytes_max > subject.memory {
            format!(", which needs {}, too much", then.memory_bytes_max)
        } else {
            String::new()
        };
        let says = format!("a batch of {}{too_large}", 2 * batch);
        changes.push(change("batch", strategy, &then, subject.prediction, says));
    }
    Ok(changes)
}

/// The effect of a change, from two predictions.
pub fn change(
    name: &str,
    strategy: &Strategy,
    then: &Prediction,
    now: &Prediction,
    says: String,
) -> Change {
    let speedup = if now.samples_per_second > 0.0 {
        then.samples_per_second / now.samples_per_second
    } else {
        1.0
    };
    Change {
        change: name.to_owned(),
        strategy: strategy.to_string(),
        iteration_seconds: then.iteration_seconds,
        samples_per_second: then.samples_per_second,
        speedup,
        memory_bytes_max: then.memory_bytes_max,
        says,
    }
}

/// Doubles the ranks until the parallel efficiency is below one half, they cannot be doubled, or it is late.
///
/// Errors: a kernel that the catalog lacks.
pub fn scaling(subject: &Subject<'_, '_>) -> Result<Scaling, PlanningError> {
    let training = &subject.training;
    let per_rank =
        |prediction: &Prediction| prediction.samples_per_second / prediction.ranks as f64;
    let now = per_rank(subject.prediction);
    let mut strategy = training.strategy.clone();
    let mut points: Vec<Point> = Vec::new();
    loop {
        if (subject.is_late)() {
            let end = "more ranks were not looked at: the time is used up".to_owned();
            return Ok(Scaling { points, end });
        }
        strategy = match doubled(&strategy, training.graph, training.batch) {
            Ok(strategy) => strategy,
            Err(error) => {
                let end = error.to_string();
                return Ok(Scaling { points, end });
            }
        };
        let then = Request {
            strategy: &strategy,
            ..*training
        };
        let prediction = match predicted(subject, &then)? {
            Ok(prediction) => prediction,
            Err(end) => {
                let end = end.inline();
                return Ok(Scaling { points, end });
            }
        };
        let efficiency = if now > 0.0 {
            per_rank(&prediction) / now
        } else {
            1.0
        };
        let point = Point {
            ranks: prediction.ranks,
            strategy: strategy.to_string(),
            iteration_seconds: prediction.iteration_seconds,
            samples_per_second: prediction.samples_per_second,
            efficiency,
        };
        points.push(point);
        if efficiency < EFFICIENCY_MIN {
            let end = format!(
                "with {} ranks each does less than half of what it does now: {}",
                prediction.ranks, prediction.bottleneck
            );
            return Ok(Scaling { points, end });
        }
    }
}

/// Finds the link bandwidth from which another strategy is faster; nothing where it is late before.
///
/// Errors: a missing cost.
pub fn rival(
    subject: &Subject<'_, '_>,
    strategy: &Strategy,
) -> Result<Option<Rival>, PlanningError> {
    let training = Request {
        strategy,
        ..subject.training
    };
    let Ok(program) = lower(&training) else {
        return Ok(None);
    };
    let largest = precision::largest(&program, subject.own.precision());
    if largest.is_some_and(|(bytes, _)| bytes > subject.memory) {
        return Ok(None);
    }
    if (subject.is_late)() {
        return Ok(None);
    }
    let costs = (subject.costs)(&program)?;
    let now = simulated(&program, costs.as_ref())?.makespan;
    let mode = machine::mode(subject.own, program.mesh.ranks());
    let own = (subject.program, subject.own);
    let other = (&program, costs.as_ref());
    let turn = match crossover(own, other, mode, subject.is_late)? {
        CrossoverSearch::Found(turn) => Some(turn),
        CrossoverSearch::Never => None,
        CrossoverSearch::Ended => return Ok(None),
    };
    Ok(Some(Rival {
        strategy: strategy.to_string(),
        iteration_seconds: now,
        turn: turn.map(|turn| BandwidthCrossover {
            link_bandwidth: turn.bandwidth,
            turn_seconds: turn.iteration_seconds,
        }),
        says: describe_rival(strategy, now, turn),
    }))
}

fn describe_rival(strategy: &Strategy, now: Seconds, turn: Option<Crossover>) -> String {
    let head = format!("`{strategy}` ({now})");
    match turn {
        None => format!("{head}. It stays slower for any link bandwidth from 1/16x to 16x."),
        Some(Crossover { bandwidth, .. }) => {
            format!("{head}. It is faster at {bandwidth:.2}x the link bandwidth.")
        }
    }
}

/// The prediction of another training, or the reason why there is none.
fn predicted(
    subject: &Subject<'_, '_>,
    training: &Request<'_>,
) -> Result<Result<Prediction, Message>, PlanningError> {
    let strategy = training.strategy;
    if let Err(error) = strategy.check(training.graph, training.batch) {
        return Ok(Err(Message::of(&error)));
    }
    let program = lower(training)?;
    // Too few devices for the doubled ranks are not an error of the request.
    let costs = match (subject.costs)(&program) {
        Ok(costs) => costs,
        Err(error) => return Ok(Err(Message::of(&error))),
    };
    let simulation = simulated(&program, costs.as_ref());
    Ok(simulation
        .map(|simulation| Prediction::of(&program, &simulation, false))
        .map_err(|error| Message::of(&error)))
}
