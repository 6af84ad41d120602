//! Limiting factors of the time of a step.

use super::{Finding, LimitingFactor, SHARE_MIN};
use crate::cost::{Costs, ScaledCosts, SpeedFactors};
use crate::simulate::{Category, Segment, SimulateError, Simulation, simulate};
use partita_program::{Body, Collective, Phase, Program, Role, Task, Work};
use partita_space::Seconds;
use std::collections::{BTreeMap, BTreeSet};

/// Seconds of a factor.
#[derive(Default)]
struct Sum {
    /// On the critical path, per step.
    path: f64,
    /// Per participant, per step.
    ranks: Vec<f64>,
    phases: BTreeSet<Phase>,
}

/// Limiting factors of the time of a step.
pub(super) fn findings(program: &Program, simulation: &Simulation) -> Vec<Finding> {
    let step = step(simulation);
    let mut sums: BTreeMap<LimitingFactor, Sum> = BTreeMap::new();
    for (at, participant) in simulation.participants.iter().enumerate() {
        let body = &program.bodies[participant.body as usize];
        for (task, duration) in body.tasks.iter().zip(&simulation.durations[at]) {
            let Some(factor) = factor(task, body).filter(|_| duration.0 > 0.0) else {
                continue;
            };
            let sum = sums.entry(factor).or_default();
            sum.ranks.resize(simulation.participants.len(), 0.0);
            sum.ranks[at] += duration.0;
            sum.phases.insert(task.origin.phase);
        }
    }
    for segment in &simulation.path {
        if let Some(sum) =
            factor_of_segment(program, segment).and_then(|factor| sums.get_mut(&factor))
        {
            sum.path += segment.seconds.0 / simulation.steps as f64;
        }
    }
    let found = sums.into_iter().filter_map(|(factor, sum)| {
        let most = sum.ranks.iter().copied().fold(0.0, f64::max);
        is_significant(sum.path.max(most), step).then(|| {
            let message = format!(
                "{factor}: {} per step on the rank with the most, {} on the critical path.",
                Seconds(most),
                Seconds(sum.path)
            );
            let phases = sum.phases.into_iter().collect();
            let finding = Finding::new(factor, phases, sum.path / step, message);
            timed(finding, sum.path, most)
        })
    });
    found.collect()
}

/// The factor that a task belongs to.
fn factor(task: &Task, body: &Body) -> Option<LimitingFactor> {
    let phase = task.origin.phase;
    match &task.work {
        Work::Load(_) | Work::Store(_) => Some(LimitingFactor::Reading),
        Work::Compute { .. } => match phase {
            Phase::Load => Some(LimitingFactor::Reading),
            Phase::Reduce => Some(LimitingFactor::GradientExchange),
            Phase::Update => Some(LimitingFactor::WeightUpdate),
            Phase::Forward | Phase::Backward | Phase::Report => None,
        },
        Work::Exchange(_) => match phase {
            Phase::Load => Some(LimitingFactor::Reading),
            Phase::Forward | Phase::Backward => Some(LimitingFactor::Messages),
            Phase::Reduce | Phase::Update => Some(LimitingFactor::GradientExchange),
            Phase::Report => None,
        },
        Work::Collective(collective) => match phase {
            Phase::Load => Some(LimitingFactor::Reading),
            Phase::Reduce | Phase::Update => Some(LimitingFactor::GradientExchange),
            Phase::Report => None,
            Phase::Forward | Phase::Backward => Some(if is_of_weights(collective, body) {
                LimitingFactor::GradientExchange
            } else {
                LimitingFactor::LayerCollectives
            }),
        },
    }
}

/// Whether a collective moves parameters or their gradients, which are sharded.
fn is_of_weights(collective: &Collective, body: &Body) -> bool {
    let views = collective.kind.sources().joined().iter();
    let mut roles = views.map(|view| body.buffer(view.buffer).role);
    roles.any(|role| match role {
        Role::Parameter
        | Role::State
        | Role::Constant
        | Role::Optimizer
        | Role::Average
        | Role::Gradient
        | Role::PackedWeights
        | Role::Gathered => true,
        Role::Staging
        | Role::Activation
        | Role::ActivationGradient
        | Role::Statistics
        | Role::Workspace => false,
    })
}

/// The factor of a segment: of the task, or of the message whose host overhead delays it.
fn factor_of_segment(program: &Program, segment: &Segment) -> Option<LimitingFactor> {
    let body = &program.bodies[segment.body as usize];
    let task = &body.tasks[segment.task.0 as usize];
    if Category::of(task) == segment.category {
        return factor(task, body);
    }
    match segment.category {
        Category::ForwardExchange | Category::BackwardExchange => Some(LimitingFactor::Messages),
        Category::GradientAllreduceExposed => Some(LimitingFactor::GradientExchange),
        Category::Redistribution => Some(LimitingFactor::LayerCollectives),
        Category::Io => Some(LimitingFactor::Reading),
        Category::Update => Some(LimitingFactor::WeightUpdate),
        Category::ForwardCompute | Category::BackwardCompute => None,
    }
}

/// How much longer messages and collectives take due to contention.
pub(super) fn congestion(
    program: &Program,
    simulation: &Simulation,
    costs: &dyn Costs,
) -> Result<Option<Finding>, SimulateError> {
    let speeds = SpeedFactors {
        contention: false,
        ..SpeedFactors::default()
    };
    let costs = ScaledCosts::new(costs, speeds);
    let alone = simulate(program, &costs, simulation.mode, simulation.steps)?;
    let mut most = 0.0_f64;
    let mut phases = BTreeSet::new();
    for (at, participant) in simulation.participants.iter().enumerate() {
        let tasks = &program.bodies[participant.body as usize].tasks;
        let mut stretch = 0.0;
        for (id, task) in tasks.iter().enumerate() {
            let longer = simulation.durations[at][id].0 - alone.durations[at][id].0;
            if longer > 0.0 {
                stretch += longer;
                phases.insert(task.origin.phase);
            }
        }
        most = most.max(stretch);
    }
    let step = step(simulation);
    let lost = (step - self::step(&alone)).max(0.0);
    if !is_significant(lost.max(most), step) {
        return Ok(None);
    }
    let message = format!(
        "{}: messages and collectives take {} longer on the rank with the most; without contention the \
         step would be {} shorter.",
        LimitingFactor::Congestion,
        Seconds(most),
        Seconds(lost)
    );
    let phases = phases.into_iter().collect();
    let finding = Finding::new(LimitingFactor::Congestion, phases, lost / step, message);
    Ok(Some(timed(finding, lost, most)))
}

/// How long ranks are idle, waiting for others.
pub(super) fn waiting(program: &Program, simulation: &Simulation) -> Option<Finding> {
    let step = step(simulation);
    let (mut sum, mut ranks, mut most) = (0.0, 0.0, 0.0_f64);
    for (at, participant) in simulation.participants.iter().enumerate() {
        let body = &program.bodies[participant.body as usize];
        let waits = step - busy(body, simulation, at) / simulation.steps as f64;
        sum += waits * participant.ranks as f64;
        ranks += participant.ranks as f64;
        most = most.max(waits);
    }
    let mean = sum / f64::max(ranks, 1.0);
    is_significant(most, step).then(|| {
        let message = format!(
            "{}: ranks wait for others {} per step on average, {} at most.",
            LimitingFactor::WorkloadBalance,
            Seconds(mean),
            Seconds(most)
        );
        let finding = Finding::new(
            LimitingFactor::WorkloadBalance,
            Vec::new(),
            mean / step,
            message,
        );
        timed(finding, mean, most)
    })
}

/// Seconds in which a participant computes, reads or communicates.
fn busy(body: &Body, simulation: &Simulation, at: usize) -> f64 {
    let mut spans: Vec<(f64, f64)> = Vec::new();
    for event in simulation.traces[at].iter().flat_map(|trace| &trace.events) {
        let id = event.task.0 as usize;
        let (start, end) = (event.start.0, event.end.0);
        spans.push(match &body.tasks[id].work {
            Work::Compute { .. } | Work::Load(_) | Work::Store(_) => (start, end),
            // Before that it waits for others to start.
            Work::Exchange(_) | Work::Collective(_) => {
                (start.max(end - simulation.durations[at][id].0), end)
            }
        });
    }
    spans.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut busy, mut until) = (0.0, 0.0_f64);
    for (start, end) in spans {
        busy += (end - start.max(until)).max(0.0);
        until = until.max(end);
    }
    busy
}

pub(super) fn step(simulation: &Simulation) -> f64 {
    simulation.makespan.0 / simulation.steps as f64
}

pub(super) fn is_significant(seconds: f64, step: f64) -> bool {
    seconds > 0.0 && seconds >= SHARE_MIN * step
}

pub(super) fn timed(finding: Finding, path: f64, most: f64) -> Finding {
    Finding {
        seconds: Some(Seconds(path)),
        rank_seconds: Some(Seconds(most)),
        ..finding
    }
}
