//! Predictions: time and memory of a program, and what bounds them.

use crate::cost::precision;
use crate::cost::{CostBasis, Costs, KernelBasis};
use crate::simulate::{Breakdown, Category, Mode, Segment, SimulateError, Simulation, simulate};
use crate::uncertainty::{Interval, StepUncertainty};
use partita_cluster::LayerPrecision;
use partita_program::{Count, Lane, Phase, Program};
use partita_run::Footprint;
use partita_space::{Bytes, Flops, Seconds};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Prediction for one program on one machine. Seconds are those of one step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// Digest of the program, where it was asked for: to make the text of a large one takes time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Ranks of the program.
    pub ranks: usize,
    /// Time of a step.
    pub iteration_seconds: Seconds,
    /// How sure that time is; absent in older files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<Interval>,
    /// What the interval was made from; not in files.
    #[serde(skip)]
    pub uncertainty: StepUncertainty,
    /// Samples per second over all ranks; 0 if a step takes no time.
    pub samples_per_second: f64,
    /// Largest memory of a rank: arena and staging.
    pub memory_bytes_max: Bytes,
    /// Memory of that rank by purpose, buffers outside of the arena included.
    #[serde(default)]
    pub memory: Footprint,
    /// Seconds of the critical path by category; they sum to the time of a step.
    pub breakdown: Breakdown,
    /// The category with the most time, in words.
    pub bottleneck: String,
    /// What bounds the time, one sentence each.
    pub limits: Vec<String>,
    /// Participants of the simulation.
    pub classes: usize,
    /// How many ranks were simulated, where inner ranks of a large mesh in space stand for others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simulated_ranks: Option<usize>,
    /// What the costs are based on.
    pub basis: CostBasis,
    /// Precision of the layers. Ranks compute in f32, so others are predicted only.
    #[serde(default)]
    pub precision: LayerPrecision,
    /// Shares of the time of kernels by what their cost is based on.
    #[serde(default, rename = "known")]
    pub kernel_bases: BTreeMap<KernelBasis, f64>,
    /// Seconds of kernels by name, on the rank that computes longest.
    pub by_kind: BTreeMap<String, Seconds>,
    /// Every task of every class of the program, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks: Option<Vec<TaskPrediction>>,
}

/// A task of a class of the program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskPrediction {
    /// Class of the program.
    pub class: u32,
    /// Index in the body.
    pub task: u32,
    /// Layer of the model.
    pub layer: String,
    /// Kind of work.
    pub kind: String,
    /// Part of the step.
    pub phase: Phase,
    /// Floating-point operations.
    #[serde(default)]
    pub flops: Flops,
    /// Bytes that its kernel reads and writes, each view once; 0 for communication and reads.
    #[serde(default)]
    pub bytes: Bytes,
    /// From start to completion, the mean over the ranks of the class and over the steps.
    pub seconds: Seconds,
}

/// Simulates `steps` steps and summarizes them.
///
/// `with_tasks` adds the table that a comparison with measured traces needs.
/// Errors: those of [`simulate`].
pub fn predict(
    program: &Program,
    costs: &dyn Costs,
    mode: Mode,
    steps: usize,
    with_tasks: bool,
) -> Result<Prediction, SimulateError> {
    let simulation = simulate(program, costs, mode, steps)?;
    let mut prediction = Prediction::of(program, &simulation, with_tasks);
    prediction.digest = with_tasks.then(|| program.digest());
    Ok(prediction)
}

impl Prediction {
    /// From a simulation of this program, without its digest.
    pub fn of(program: &Program, simulation: &Simulation, with_tasks: bool) -> Self {
        let per_step = 1.0 / simulation.steps as f64;
        let seconds = simulation.makespan * per_step;
        let slowest = slowest(simulation);
        let kernels = slowest
            .map(|at| simulation.kernels[at].clone())
            .unwrap_or_default();
        let largest = precision::largest(program, simulation.precision);
        let own = |(name, seconds): (&str, Seconds)| (name.to_owned(), seconds);
        Self {
            digest: None,
            ranks: program.mesh.ranks(),
            iteration_seconds: seconds,
            interval: Some(simulation.uncertainty.interval(seconds)),
            uncertainty: simulation.uncertainty.clone(),
            samples_per_second: if seconds.0 > 0.0 {
                program.batch as f64 / seconds.0
            } else {
                0.0
            },
            memory_bytes_max: largest.map_or(Bytes(0), |(bytes, _)| bytes),
            memory: precision::footprint(program, simulation.precision),
            breakdown: simulation.breakdown.scaled(per_step),
            bottleneck: bottleneck(program, simulation),
            limits: limits(program, simulation),
            classes: simulation.participants.len(),
            simulated_ranks: simulation.contracted.as_ref().map(|one| one.ranks),
            basis: simulation.basis,
            precision: precision::of_program(program, simulation.precision),
            kernel_bases: kernel_bases(simulation),
            by_kind: kernels.into_iter().map(own).collect(),
            tasks: with_tasks.then(|| tasks(program, simulation)),
        }
    }
}

fn compute_seconds(simulation: &Simulation, participant: usize) -> f64 {
    simulation.kernels[participant]
        .values()
        .map(|seconds| seconds.0)
        .sum()
}

fn slowest(simulation: &Simulation) -> Option<usize> {
    let seconds = |at: &usize| compute_seconds(simulation, *at);
    (0..simulation.kernels.len()).max_by(|a, b| seconds(a).total_cmp(&seconds(b)))
}

fn kernel_bases(simulation: &Simulation) -> BTreeMap<KernelBasis, f64> {
    let whole: f64 = simulation
        .kernel_bases
        .values()
        .map(|seconds| seconds.0)
        .sum();
    let share = |(&basis, seconds): (&KernelBasis, &Seconds)| (basis, seconds.0 / whole);
    let all = simulation.kernel_bases.iter().filter(|_| whole > 0.0);
    all.map(share).collect()
}

fn percent(part: f64, whole: f64) -> f64 {
    if whole > 0.0 {
        100.0 * part / whole
    } else {
        0.0
    }
}

/// The category with the most seconds, and the layer with the most in it.
fn bottleneck(program: &Program, simulation: &Simulation) -> String {
    let whole = simulation.makespan.0;
    let most = Category::ALL.into_iter().max_by(|&a, &b| {
        let of = |category| simulation.breakdown.of(category).0;
        of(a).total_cmp(&of(b))
    });
    let (Some(most), true) = (most, whole > 0.0) else {
        return "The step takes no time.".to_owned();
    };
    let mut by_work: BTreeMap<(&str, &str), f64> = BTreeMap::new();
    for segment in simulation
        .path
        .iter()
        .filter(|segment| segment.category == most)
    {
        let task = task_of(program, segment);
        *by_work
            .entry((&task.origin.layer, task.work.name()))
            .or_insert(0.0) += segment.seconds.0;
    }
    let heaviest = by_work.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
    let share = percent(simulation.breakdown.of(most).0, whole);
    let head = format!("{share:.0} % of the critical path is {most}");
    let heaviest = heaviest.map(|(origin, seconds)| (origin, percent(seconds, whole)));
    match heaviest {
        Some(((layer, work), part)) if part >= 0.5 => {
            format!("{head}, {part:.0} % is {work} of `{layer}` alone.")
        }
        Some(_) | None => format!("{head}."),
    }
}

fn task_of<'p>(program: &'p Program, segment: &Segment) -> &'p partita_program::Task {
    &program.bodies[segment.body as usize].tasks[segment.task.0 as usize]
}

fn limits(program: &Program, simulation: &Simulation) -> Vec<String> {
    let mut limits = Vec::new();
    let per_step = 1.0 / simulation.steps as f64;
    let iteration = simulation.makespan.0 * per_step;
    let Some(slowest) = slowest(simulation) else {
        return limits;
    };
    let compute = compute_seconds(simulation, slowest);
    limits.push(format!(
        "Rank {} computes longest: {}, {:.0} % of the step.",
        simulation.participants[slowest].rank,
        Seconds(compute),
        percent(compute, iteration)
    ));
    let ranks: usize = simulation.participants.iter().map(|one| one.ranks).sum();
    let sum: f64 = (0..simulation.participants.len())
        .map(|at| compute_seconds(simulation, at) * simulation.participants[at].ranks as f64)
        .sum();
    let mean = sum / ranks.max(1) as f64;
    if compute > 1.02 * mean {
        limits.push(format!(
            "Load imbalance: it computes {:.2} times as long as the mean rank.",
            compute / mean
        ));
    }
    communication_limits(program, simulation, slowest, &mut limits);
    if let Some(share) = kernel_bases(simulation).get(&KernelBasis::Extrapolated) {
        limits.push(format!(
            "{:.1} % of the time of kernels is extrapolated: no kernel of a similar shape was measured.",
            100.0 * share
        ));
    }
    limits
}

/// How much communication is exposed, and whether latency or bandwidth bounds it.
fn communication_limits(
    program: &Program,
    simulation: &Simulation,
    slowest: usize,
    limits: &mut Vec<String>,
) {
    let exposed: f64 = simulation
        .path
        .iter()
        .filter(|segment| {
            segment.is_overhead || is_communication(task_of(program, segment).work.lane())
        })
        .map(|segment| segment.seconds.0)
        .sum();
    let body = &program.bodies[simulation.participants[slowest].body as usize];
    let under_way = union_seconds(
        simulation.traces[slowest]
            .iter()
            .flat_map(|trace| &trace.events)
            .filter(|event| is_communication(body.tasks[event.task.0 as usize].work.lane()))
            .map(|event| (event.start.0, event.end.0))
            .collect(),
    );
    let per_step = 1.0 / simulation.steps as f64;
    if under_way == 0.0 {
        return;
    }
    limits.push(format!(
        "Communication is under way for {} per step on rank {}, waiting included; {} per step are exposed.",
        Seconds(under_way * per_step),
        simulation.participants[slowest].rank,
        Seconds(exposed * per_step)
    ));
    if exposed > 0.0 {
        let latency = percent(simulation.path_latency.0, exposed);
        let bound = if latency > 50.0 {
            "latency"
        } else {
            "bandwidth"
        };
        limits.push(format!(
            "Exposed communication is {bound}-bound: {latency:.0} % of it is latency."
        ));
    }
}

/// Time in which at least one of these spans is under way.
fn union_seconds(mut spans: Vec<(f64, f64)>) -> f64 {
    spans.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut sum, mut covered) = (0.0, f64::NEG_INFINITY);
    for (start, end) in spans {
        sum += (end - f64::max(start, covered)).max(0.0);
        covered = covered.max(end);
    }
    sum
}

fn is_communication(lane: Lane) -> bool {
    match lane {
        Lane::Exchange | Lane::Collective => true,
        Lane::Compute | Lane::Io => false,
    }
}

fn tasks(program: &Program, simulation: &Simulation) -> Vec<TaskPrediction> {
    let mut sums: Vec<Vec<f64>> = program
        .bodies
        .iter()
        .map(|body| vec![0.0; body.tasks.len()])
        .collect();
    let mut ranks = vec![0.0; program.bodies.len()];
    for (participant, traces) in simulation.participants.iter().zip(&simulation.traces) {
        let weight = participant.ranks as f64;
        let body = participant.body as usize;
        ranks[body] += weight;
        for event in traces.iter().flat_map(|trace| &trace.events) {
            sums[body][event.task.0 as usize] += weight * (event.end - event.start).0;
        }
    }
    let mut table = Vec::new();
    for (class, body) in program.bodies.iter().enumerate() {
        let simulated = match &simulation.contracted {
            Some(contracted) => contracted.classes[class] as usize,
            None => class,
        };
        let parts = ranks[simulated] * simulation.steps as f64;
        if parts == 0.0 {
            continue;
        }
        for (id, task) in body.tasks.iter().enumerate() {
            let count = Count::of(task, &body.buffers);
            table.push(TaskPrediction {
                class: class as u32,
                task: id as u32,
                layer: task.origin.layer.clone(),
                kind: task.work.name().to_owned(),
                phase: task.origin.phase,
                flops: count.flops,
                bytes: count.read + count.written,
                seconds: Seconds(sums[simulated][id] / parts),
            });
        }
    }
    table
}
