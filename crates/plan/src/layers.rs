//! Costs of the layers of a model on a stage: seconds and bytes of a micro-batch.

use crate::repeats::Shortened;
use partita_graph::{Graph, NodeId, readers};
use partita_lower::{LowerError, Request, Strategy, lower_rank};
use partita_oracle::LayerPrecision;
use partita_oracle::closed::Link;
use partita_oracle::{Costs, SimulateError, durations, task_seconds};
use partita_program::{Body, Count, Phase, Program, ProgramKind, Role};
use partita_space::{Axis, Bytes, Rank, Seconds};
use std::collections::HashMap;
use std::ops::Range;

/// Costs of tasks and messages, for stages of pipelines.
pub trait StageCosts {
    /// Precision of the layers.
    fn precision(&self) -> LayerPrecision;

    /// By how much each task of a rank delays its end if its peers are always ready (its exposed time). All ranks
    /// of the program have the same body.
    ///
    /// Errors: an unknown cost.
    fn delays(&self, program: &Program, rank: Rank) -> Result<Vec<Seconds>, UnknownCost>;

    /// Seconds of a message; 0 if unknown.
    fn message(&self, from: Rank, to: Rank, bytes: Bytes) -> Seconds;

    /// Duration of each task of a rank.
    ///
    /// Errors: an unknown cost.
    fn seconds(&self, program: &Program, rank: Rank) -> Result<Vec<Seconds>, UnknownCost>;

    /// Cost of a link in a ring allreduce over these ranks; 0 if unknown.
    fn ring(&self, members: &[Rank]) -> Link;

    /// Cost of the link between two ranks.
    fn pair(&self, from: Rank, to: Rank) -> Link {
        let empty = self.message(from, to, Bytes(0));
        let long = self.message(from, to, LONG_MESSAGE);
        Link {
            latency: empty,
            byte: Seconds((long - empty).0.max(0.0) / LONG_MESSAGE.0 as f64),
        }
    }
}

/// Size of a message from which the bandwidth is derived.
const LONG_MESSAGE: Bytes = Bytes(1 << 20);

/// Costs that do not depend on the program.
pub struct FixedCosts<'a>(pub &'a dyn Costs);

impl StageCosts for FixedCosts<'_> {
    fn precision(&self) -> LayerPrecision {
        self.0.precision()
    }

    fn delays(&self, program: &Program, rank: Rank) -> Result<Vec<Seconds>, UnknownCost> {
        Ok(task_seconds(
            program.body(rank),
            rank,
            &program.mesh,
            self.0,
        ))
    }

    fn message(&self, from: Rank, to: Rank, bytes: Bytes) -> Seconds {
        let cost = self.0.message(from, to, bytes, 1.0);
        cost.map_or(Seconds(0.0), |cost| cost.seconds())
    }

    fn seconds(&self, program: &Program, rank: Rank) -> Result<Vec<Seconds>, UnknownCost> {
        Ok(durations(program.body(rank), rank, &program.mesh, self.0))
    }

    fn ring(&self, members: &[Rank]) -> Link {
        let sum = |bytes| {
            let cost = self.0.allreduce(members, bytes, 1.0);
            cost.map_or(0.0, |cost| cost.seconds().0)
        };
        let steps = 2.0 * members.len().saturating_sub(1).max(1) as f64;
        let empty = sum(Bytes(0));
        let bytes = LONG_SUM.0 as f64 / members.len().max(1) as f64;
        Link {
            latency: Seconds(empty / steps),
            byte: Seconds((sum(LONG_SUM) - empty).max(0.0) / steps / bytes),
        }
    }
}

/// Size of an allreduce from which the bandwidth is derived.
const LONG_SUM: Bytes = Bytes(1 << 26);

/// Prefix sums of the costs of layers, for one rank of a stage.
pub(crate) struct Layers {
    /// Number of tasks.
    pub tasks: usize,
    sums: Vec<LayerCost>,
}

/// Cost of some layers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct LayerCost {
    /// Floating-point operations of a micro-batch, the same on all machines.
    pub flops: f64,
    /// Seconds of the forward pass of a micro-batch.
    pub forward: f64,
    /// Seconds of its backward pass.
    pub backward: f64,
    /// Seconds per step, independent of micro-batches.
    pub per_step: f64,
    /// Bytes of parameters, their gradients and optimizer state.
    pub persistent: f64,
    /// Bytes of optimizer state.
    pub state: f64,
    /// Bytes of activations that a micro-batch keeps for its backward pass.
    pub activations: f64,
}

impl Layers {
    /// Costs of all layers on a stage with these extents; where not all layers can be split so, those of one rank,
    /// divided evenly. Layers with the like in a shortened model have the costs of those.
    ///
    /// Errors: an unknown cost, a kernel that the menu lacks.
    pub fn new(
        training: &Request<'_>,
        extents: [usize; 7],
        shortened: Option<&Shortened>,
        costs: &dyn StageCosts,
    ) -> Result<Self, LayersError> {
        let pipeline = training.strategy;
        let batch = training.batch / pipeline.micro;
        let whole = |mut extents: [usize; 7]| {
            extents[Axis::Data.index()] *= pipeline.extent(Axis::Data);
            let mut strategy = Strategy::of(extents);
            strategy.overlap = pipeline.overlap;
            strategy.fuse = pipeline.fuse;
            strategy.batch_norm = pipeline.batch_norm;
            strategy.workspace = pipeline.workspace;
            strategy.shard = pipeline.shard;
            strategy.layers.clone_from(&pipeline.layers);
            strategy
        };
        let mut strategy = whole(extents);
        let short = Shortened::of_strategy(shortened, &strategy);
        let (graph, like) = match short {
            None => (training.graph, None),
            Some((one, short)) => {
                strategy = short;
                (&one.graph, Some(&one.like))
            }
        };
        let mut parts = 1.0;
        if strategy.check(graph, batch).is_err() {
            parts = extents.iter().product::<usize>() as f64;
            strategy = whole([1; 7]);
            strategy.layers.clear();
        }
        let request = Request {
            graph,
            strategy: &strategy,
            batch,
            kind: ProgramKind::Train,
            ..*training
        };
        let rank = strategy.mesh().middle();
        let program = of_one_rank(&request, rank)?;
        let delays = costs.delays(&program, rank)?;
        let each = Self::each(graph, &program.bodies[0], &delays);
        let each: Vec<LayerCost> = match like {
            None => each,
            Some(like) => like.iter().map(|&at| each[at]).collect(),
        };
        let tasks = program.tasks() * each.len() / graph.nodes.len().max(1);
        Ok(Self::of(&each, parts, tasks))
    }

    /// Costs of each layer, from the body of a rank.
    fn each(graph: &Graph, body: &Body, delays: &[Seconds]) -> Vec<LayerCost> {
        let nodes_of_tasks = nodes_of_tasks(graph, body);
        let nodes = graph.nodes.len();
        let mut each = vec![LayerCost::default(); nodes];
        for ((task, delay), &node) in body.tasks.iter().zip(delays).zip(&nodes_of_tasks) {
            let cost = &mut each[node];
            cost.flops += Count::of(task, &body.buffers).flops.0 as f64;
            match task.origin.phase {
                Phase::Load | Phase::Forward | Phase::Report => cost.forward += delay.0,
                Phase::Backward => cost.backward += delay.0,
                Phase::Reduce | Phase::Update => cost.per_step += delay.0,
            }
        }
        for (node, bytes) in activations(body, &nodes_of_tasks) {
            each[node].activations += bytes;
        }
        let roles = [
            Role::Parameter,
            Role::State,
            Role::Constant,
            Role::Optimizer,
            Role::Average,
            Role::Gradient,
        ];
        let persistent: Bytes = roles.iter().map(|&role| body.bytes_of(role)).sum();
        let state = body.bytes_of(Role::Optimizer) + body.bytes_of(Role::Average);
        for (node, fraction) in parameter_fractions(graph) {
            each[node].persistent += fraction * persistent.0 as f64;
            each[node].state += fraction * state.0 as f64;
        }
        each
    }

    fn of(each: &[LayerCost], parts: f64, tasks: usize) -> Self {
        let mut sums = vec![LayerCost::default()];
        for cost in each {
            sums.push(sums[sums.len() - 1].with(cost, |sum, own| sum + own / parts));
        }
        Self { tasks, sums }
    }

    /// Cost of a range of layers.
    pub fn cost(&self, range: &Range<usize>) -> LayerCost {
        self.sums[range.end].with(&self.sums[range.start], |end, start| end - start)
    }
}

impl LayerCost {
    /// Each number with that of another cost.
    fn with(&self, other: &Self, join: impl Fn(f64, f64) -> f64) -> Self {
        Self {
            flops: join(self.flops, other.flops),
            forward: join(self.forward, other.forward),
            backward: join(self.backward, other.backward),
            per_step: join(self.per_step, other.per_step),
            persistent: join(self.persistent, other.persistent),
            state: join(self.state, other.state),
            activations: join(self.activations, other.activations),
        }
    }
}

/// Why the costs of layers are unknown.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LayersError {
    /// The layers cannot be lowered, like those with a kernel that the menu lacks.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// The cost of a kernel or message is unknown.
    #[error(transparent)]
    Cost(#[from] UnknownCost),
}

/// Why the cost of a program is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnknownCost(pub String);

impl From<SimulateError> for UnknownCost {
    fn from(error: SimulateError) -> Self {
        Self(error.to_string())
    }
}

/// For each layer the one tensor of those before that it or a later layer reads; none where there are several.
pub(crate) fn single_crossings(graph: &Graph) -> Vec<Option<NodeId>> {
    let readers = readers(graph.nodes.iter().map(|node| &node.inputs[..]));
    let last = |id: usize| readers[id].last().map_or(0, |reader: &NodeId| reader.0);
    let mut ended: Vec<Vec<usize>> = vec![Vec::new(); graph.nodes.len()];
    for id in 0..graph.nodes.len() {
        ended[last(id)].push(id);
    }
    // Number of tensors that are read from here on, and the sum of their ids.
    let (mut open, mut sum) = (0, 0);
    let mut crossings = vec![None; graph.nodes.len()];
    for at in 1..graph.nodes.len() {
        if last(at - 1) >= at {
            (open, sum) = (open + 1, sum + at - 1);
        }
        for id in ended[at - 1].iter().filter(|&&id| id < at - 1) {
            (open, sum) = (open - 1, sum - id);
        }
        crossings[at] = (open == 1).then_some(NodeId(sum));
    }
    crossings
}

/// The node of each task; tasks without node have that of the task before.
pub(crate) fn nodes_of_tasks(graph: &Graph, body: &Body) -> Vec<usize> {
    let nodes = graph.nodes.iter().enumerate();
    let mut known: HashMap<&str, usize> = nodes
        .clone()
        .map(|(at, node)| (node.name.as_str(), at))
        .collect();
    for (at, node) in nodes {
        for id in &node.parameters {
            known.entry(&graph.parameters[id.0].name).or_insert(at);
        }
    }
    let mut last = 0;
    let tasks = body.tasks.iter().map(|task| {
        let mut name = task.origin.layer.as_str();
        loop {
            if let Some(&at) = known.get(name) {
                last = at;
                return at;
            }
            match name.rsplit_once('.') {
                Some((shorter, _)) => name = shorter,
                None => return last,
            }
        }
    });
    tasks.collect()
}

/// Bytes of activations that live from the forward to the backward pass, with their nodes.
fn activations(body: &Body, nodes_of_tasks: &[usize]) -> Vec<(usize, f64)> {
    // For each buffer the first node that uses it, and whether both passes do.
    let mut uses: Vec<(Option<usize>, bool)> = vec![(None, false); body.buffers.len()];
    for (task, &node) in body.tasks.iter().zip(nodes_of_tasks) {
        let is_back = task.origin.phase == Phase::Backward;
        for (view, _) in task.accesses() {
            let (first, both) = &mut uses[view.buffer.0 as usize];
            *both |= is_back && first.is_some();
            if !is_back {
                first.get_or_insert(node);
            }
        }
    }
    let buffers = body.buffers.iter().zip(uses);
    let activations = buffers.filter_map(|(buffer, (first, both))| {
        let is_kept = match buffer.role {
            Role::Activation | Role::Statistics => both,
            Role::Staging => true,
            Role::Parameter
            | Role::State
            | Role::Constant
            | Role::Optimizer
            | Role::Average
            | Role::Gradient
            | Role::ActivationGradient
            | Role::PackedWeights
            | Role::Gathered
            | Role::Workspace => false,
        };
        is_kept.then_some((first?, buffer.bytes().0 as f64))
    });
    activations.collect()
}

/// The fraction of all parameters of each node; shared ones count for the first reader.
fn parameter_fractions(graph: &Graph) -> Vec<(usize, f64)> {
    let volume = |id: usize| graph.parameters[id].shape.iter().product::<usize>() as f64;
    let all: f64 = (0..graph.parameters.len()).map(volume).sum();
    let mut seen = vec![false; graph.parameters.len()];
    let mut shares = Vec::new();
    for (at, node) in graph.nodes.iter().enumerate() {
        for id in &node.parameters {
            if !seen[id.0] {
                seen[id.0] = true;
                shares.push((at, volume(id.0) / all));
            }
        }
    }
    shares
}

/// A program in which all ranks have the body of one.
///
/// Errors: a kernel that the menu lacks.
pub(crate) fn of_one_rank(request: &Request<'_>, rank: Rank) -> Result<Program, LayersError> {
    let mesh = request.strategy.mesh();
    Ok(Program {
        title: format!(
            "{} batch {} {}",
            request.graph.name, request.batch, request.strategy
        ),
        kind: request.kind,
        dtype: request.dtype,
        batch: request.batch,
        mesh,
        local_statistics: request.strategy.local_statistics(),
        bodies: vec![lower_rank(request, rank)?],
        class_of: vec![0; mesh.ranks()],
    })
}
