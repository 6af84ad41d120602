//! Kinds of work that bound the time of a step.

use super::{Finding, Item, SHARE_MIN};
use crate::cost::{Costs, Scaled, Speeds};
use crate::simulate::{Category, Segment, SimulateError, Simulation, simulate};
use partita_program::{Body, Collective, Phase, Program, Role, Task, Work};
use partita_space::Seconds;
use std::collections::{BTreeMap, BTreeSet};

/// What counts for an item.
#[derive(Default)]
struct Sum {
    /// On the critical path of a step.
    path: f64,
    /// Per participant, in a step.
    ranks: Vec<f64>,
    phases: BTreeSet<Phase>,
}

/// Kinds of work that bound the time of a step.
pub(super) fn findings(program: &Program, simulation: &Simulation) -> Vec<Finding> {
    let step = step(simulation);
    let mut sums: BTreeMap<Item, Sum> = BTreeMap::new();
    for (at, participant) in simulation.participants.iter().enumerate() {
        let body = &program.bodies[participant.body as usize];
        for (task, duration) in body.tasks.iter().zip(&simulation.durations[at]) {
            let Some(item) = item(task, body).filter(|_| duration.0 > 0.0) else {
                continue;
            };
            let sum = sums.entry(item).or_default();
            sum.ranks.resize(simulation.participants.len(), 0.0);
            sum.ranks[at] += duration.0;
            sum.phases.insert(task.origin.phase);
        }
    }
    for segment in &simulation.path {
        if let Some(sum) = item_of_segment(program, segment).and_then(|item| sums.get_mut(&item)) {
            sum.path += segment.seconds.0 / simulation.steps as f64;
        }
    }
    let found = sums.into_iter().filter_map(|(item, sum)| {
        let most = sum.ranks.iter().copied().fold(0.0, f64::max);
        is_much(sum.path.max(most), step).then(|| {
            let says = format!(
                "{item}: {} a step where most, {} of the critical path.",
                Seconds(most),
                Seconds(sum.path)
            );
            let phases = sum.phases.into_iter().collect();
            let finding = Finding::new(item, phases, sum.path / step, says);
            timed(finding, sum.path, most)
        })
    });
    found.collect()
}

/// What a task is counted under.
fn item(task: &Task, body: &Body) -> Option<Item> {
    let phase = task.origin.phase;
    match &task.work {
        Work::Load(_) => Some(Item::Reading),
        Work::Compute { .. } => match phase {
            Phase::Load => Some(Item::Reading),
            Phase::Reduce => Some(Item::GradientExchange),
            Phase::Update => Some(Item::WeightUpdate),
            Phase::Forward | Phase::Backward | Phase::Report => None,
        },
        Work::Exchange(_) => match phase {
            Phase::Load => Some(Item::Reading),
            Phase::Forward | Phase::Backward => Some(Item::Messages),
            Phase::Reduce | Phase::Update => Some(Item::GradientExchange),
            Phase::Report => None,
        },
        Work::Collective(collective) => match phase {
            Phase::Load => Some(Item::Reading),
            Phase::Reduce | Phase::Update => Some(Item::GradientExchange),
            Phase::Report => None,
            Phase::Forward | Phase::Backward => Some(if is_of_weights(collective, body) {
                Item::GradientExchange
            } else {
                Item::LayerCollectives
            }),
        },
    }
}

/// Whether a collective moves parameters or their gradients, which ranks keep by shares.
fn is_of_weights(collective: &Collective, body: &Body) -> bool {
    let views = collective.kind.sources().iter();
    let mut roles = views.map(|view| body.buffer(view.buffer).role);
    roles.any(|role| match role {
        Role::Parameter
        | Role::State
        | Role::Optimizer
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

/// Where a message holds a kernel up, what the message is counted under.
fn item_of_segment(program: &Program, segment: &Segment) -> Option<Item> {
    let body = &program.bodies[segment.body as usize];
    let task = &body.tasks[segment.task.0 as usize];
    if Category::of(task) == segment.category {
        return item(task, body);
    }
    match segment.category {
        Category::ForwardExchange | Category::BackwardExchange => Some(Item::Messages),
        Category::GradientAllreduceExposed => Some(Item::GradientExchange),
        Category::Redistribution => Some(Item::LayerCollectives),
        Category::Io => Some(Item::Reading),
        Category::Update => Some(Item::WeightUpdate),
        Category::ForwardCompute | Category::BackwardCompute => None,
    }
}

/// How much longer messages and collectives take because they share adapters.
pub(super) fn congestion(
    program: &Program,
    simulation: &Simulation,
    costs: &dyn Costs,
) -> Result<Option<Finding>, SimulateError> {
    let speeds = Speeds {
        sharing: false,
        ..Speeds::default()
    };
    let costs = Scaled::new(costs, speeds);
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
    if !is_much(lost.max(most), step) {
        return Ok(None);
    }
    let says = format!(
        "{}: sharing the adapters of a node lengthens messages and collectives by {} a step where \
         most; a step in which nobody shared would be {} shorter.",
        Item::Congestion,
        Seconds(most),
        Seconds(lost)
    );
    let phases = phases.into_iter().collect();
    let finding = Finding::new(Item::Congestion, phases, lost / step, says);
    Ok(Some(timed(finding, lost, most)))
}

/// How long ranks do nothing but wait for others.
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
    is_much(most, step).then(|| {
        let says = format!(
            "{}: ranks wait for others {} a step in the mean, {} where most.",
            Item::WorkloadBalance,
            Seconds(mean),
            Seconds(most)
        );
        let finding = Finding::new(Item::WorkloadBalance, Vec::new(), mean / step, says);
        timed(finding, mean, most)
    })
}

/// Seconds in which a participant computes, reads, or has something under way.
fn busy(body: &Body, simulation: &Simulation, at: usize) -> f64 {
    let mut spans: Vec<(f64, f64)> = Vec::new();
    for event in simulation.traces[at].iter().flat_map(|trace| &trace.events) {
        let id = event.task.0 as usize;
        let (start, end) = (event.start.0, event.end.0);
        spans.push(match &body.tasks[id].work {
            Work::Compute { .. } | Work::Load(_) => (start, end),
            // Before that it waits for the others to start.
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

pub(super) fn is_much(seconds: f64, step: f64) -> bool {
    seconds > 0.0 && seconds >= SHARE_MIN * step
}

pub(super) fn timed(finding: Finding, path: f64, most: f64) -> Finding {
    Finding {
        seconds: Some(Seconds(path)),
        rank_seconds: Some(Seconds(most)),
        ..finding
    }
}
