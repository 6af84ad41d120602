//! What axes split of layers, and what redistributions between layers that are split in different ways cost.

use crate::layers::{LayersError, StageCosts, nodes_of_tasks, of_one_rank};
use partita_graph::NodeId;
use partita_lower::{Request, Strategy};
use partita_oracle::closed::Link;
use partita_program::{Lane, Phase, Task};
use partita_space::{AXES, Axis, Mesh};

/// The dims that a group of axes splits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AxisTarget {
    /// The default dims: samples for the data axis, positions for the spatial axes.
    Default,
    Samples,
    Filters,
    Channels,
    /// None: its ranks compute the same.
    Repeated,
}

/// Kind of the time of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeKind {
    Computation,
    /// Communication that layers wait for.
    Exposed,
    Overlappable,
}

/// Passes the seconds of each task of the rank with most neighbors on, with its node and kind, except for redistributions of
/// the tensors `crossing`.
pub(crate) fn add_seconds(
    request: &Request<'_>,
    costs: &dyn StageCosts,
    crossing: &[NodeId],
    add: &mut dyn FnMut(&Task, usize, TimeKind, f64),
) -> Result<(), LayersError> {
    let graph = request.graph;
    let rank = request.strategy.mesh().middle();
    let program = of_one_rank(request, rank)?;
    let seconds = costs.seconds(&program, rank)?;
    let passed: Vec<String> = crossing
        .iter()
        .map(|id| format!("{}.moved", graph.node(*id).name))
        .collect();
    let is_passed = |task: &Task| passed.contains(&task.origin.layer);
    let body = &program.bodies[0];
    let nodes = nodes_of_tasks(graph, body);
    for ((task, seconds), node) in body.tasks.iter().zip(seconds).zip(nodes) {
        let kind = match (task.work.lane(), task.origin.phase) {
            (Lane::Compute, _) => TimeKind::Computation,
            (Lane::Collective, Phase::Forward | Phase::Backward) if is_passed(task) => continue,
            (Lane::Exchange, Phase::Forward | Phase::Backward) if is_passed(task) => continue,
            (Lane::Collective, Phase::Forward | Phase::Backward | Phase::Report) => {
                TimeKind::Exposed
            }
            (Lane::Collective, Phase::Load | Phase::Reduce | Phase::Update) => {
                TimeKind::Overlappable
            }
            (Lane::Exchange | Lane::Io, _) => TimeKind::Overlappable,
        };
        add(task, node, kind, seconds.0);
    }
    Ok(())
}

/// Costs of redistributions between layers, forward and backward.
pub(crate) struct MoveCosts {
    sizes: Vec<f64>,
    rings: Vec<Link>,
    pairs: Vec<Link>,
}

/// What a group of axes splits of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    Spatial,
    Samples,
    Channels,
    /// Nothing.
    Replicated,
}

impl MoveCosts {
    /// Of groups of axes, the first of which is the data axis.
    pub fn new(mesh: &Strategy, groups: &[Vec<Axis>], costs: &dyn StageCosts) -> Self {
        let world: Mesh = mesh.mesh();
        let members = groups.iter().map(|axes| {
            let ranks = (0..world.ranks()).filter(|&rank| {
                let here =
                    |axis: Axis| world.coord(rank)[axis.index()] == 0 || axes.contains(&axis);
                AXES.into_iter().all(here)
            });
            ranks.collect::<Vec<_>>()
        });
        let members: Vec<Vec<usize>> = members.collect();
        let pair = |members: &Vec<usize>| costs.pair(members[0], members[members.len() - 1]);
        Self {
            sizes: members.iter().map(|members| members.len() as f64).collect(),
            rings: members.iter().map(|members| costs.ring(members)).collect(),
            pairs: members.iter().map(pair).collect(),
        }
    }

    /// Seconds of both directions, for one group of axes after the other.
    pub fn seconds(&self, from: &[AxisTarget], to: &[AxisTarget], bytes: f64) -> f64 {
        let layouts = from.iter().zip(to).enumerate();
        let layouts: Vec<(Layout, Layout)> = layouts
            .map(|(group, (from, to))| (output_layout(group, *from), input_layout(group, *to)))
            .collect();
        let mut seconds = 0.0;
        for (group, &(has, wants)) in layouts.iter().enumerate() {
            let size = self.sizes[group];
            let is_split = |(has, wants): (Layout, Layout)| {
                has != Layout::Replicated && wants != Layout::Replicated
            };
            let others =
                (0..layouts.len()).filter(|&other| other != group && is_split(layouts[other]));
            let here = others.fold(bytes, |bytes, other| bytes / self.sizes[other]);
            let steps = (size - 1.0).max(0.0);
            let over = |link: Link, bytes: f64| steps * (link.latency.0 + bytes * link.byte.0);
            // An allgather, and a reduce-scatter of its gradient, or the reverse.
            let gather = 2.0 * over(self.rings[group], here / size);
            seconds += match (has, wants) {
                _ if has == wants => 0.0,
                (Layout::Replicated, _) => 0.5 * gather,
                (_, Layout::Replicated) => gather,
                _ => 2.0 * over(self.pairs[group], here / size / size),
            };
        }
        seconds
    }
}

/// Layout of the output of a layer.
fn output_layout(group: usize, target: AxisTarget) -> Layout {
    match target {
        AxisTarget::Default if group == 0 => Layout::Samples,
        AxisTarget::Default => Layout::Spatial,
        AxisTarget::Samples => Layout::Samples,
        AxisTarget::Filters | AxisTarget::Channels => Layout::Channels,
        AxisTarget::Repeated => Layout::Replicated,
    }
}

/// Layout of the input of a layer.
fn input_layout(group: usize, target: AxisTarget) -> Layout {
    match target {
        AxisTarget::Default if group == 0 => Layout::Samples,
        AxisTarget::Default => Layout::Spatial,
        AxisTarget::Samples => Layout::Samples,
        AxisTarget::Filters | AxisTarget::Repeated => Layout::Replicated,
        AxisTarget::Channels => Layout::Channels,
    }
}
