//! Closed-form estimates of strategies, from a table of the layers of a model.

use crate::candidates::SPATIAL;
use crate::layers::{LayersError, StageCosts, nodes_of_tasks, of_one_rank};
use partita_graph::{Graph, Node, Op};
use partita_lower::{LayerDim, Request, Shard, Strategy};
use partita_oracle::closed::{Estimate, LayerRow, LayerTable, Links, Parallelism, hybrid_seconds};
use partita_program::{Lane, Phase, ProgramKind};
use partita_space::{AXES, Axis, AxisList, Rank, Seconds};
use std::ops::Range;

/// The closed-form estimate of a strategy.
#[derive(Clone, Debug, PartialEq)]
pub struct ClosedForm {
    /// The kind of parallelism.
    pub split: Parallelism,
    /// The estimate.
    pub estimate: Estimate,
}

/// The closed-form estimate of a training, with kernel times of one rank with the mean number of samples of a
/// rank. None where the strategy has no closed form.
///
/// Errors: a kernel that the menu lacks, an unknown cost.
pub fn closed_form(
    training: &Request<'_>,
    costs: &dyn StageCosts,
) -> Result<Option<ClosedForm>, LayersError> {
    let ranks = training.strategy.ranks();
    let forms = ClosedForms::new(training, ranks, costs)?;
    Ok(forms.of(training.strategy))
}

/// Closed forms for all strategies of a number of ranks. A row of the table is a layer with weights and all
/// layers up to the next one.
pub(crate) struct ClosedForms<'a> {
    graph: &'a Graph,
    costs: &'a dyn StageCosts,
    batch: usize,
    item: usize,
    weight_item: usize,
    rows: Vec<LayerRow>,
    /// Nodes by row.
    nodes: Vec<Range<usize>>,
}

impl<'a> ClosedForms<'a> {
    /// Errors: a kernel that the menu lacks, an unknown cost.
    pub fn new(
        training: &Request<'a>,
        ranks: usize,
        costs: &'a dyn StageCosts,
    ) -> Result<Self, LayersError> {
        let graph = training.graph;
        let strategy = Strategy::single();
        // Two samples where one would leave a batch norm a single value.
        let samples = training.batch.div_ceil(ranks);
        let samples = match strategy.check_norms(graph, samples) {
            Ok(()) => samples,
            Err(_) => samples.max(2),
        };
        let request = Request {
            strategy: &strategy,
            batch: samples,
            kind: ProgramKind::Train,
            ..*training
        };
        let program = of_one_rank(&request, 0)?;
        let seconds = costs.seconds(&program, 0)?;
        let nodes = rows_of_nodes(graph);
        let mut rows: Vec<LayerRow> = nodes.iter().map(|range| row(graph, range)).collect();
        let mut row_of = vec![0; graph.nodes.len()];
        for (at, range) in nodes.iter().enumerate() {
            row_of[range.clone()].fill(at);
        }
        let body = &program.bodies[0];
        let per_sample = 1.0 / samples as f64;
        for ((task, seconds), node) in body
            .tasks
            .iter()
            .zip(seconds)
            .zip(nodes_of_tasks(graph, body))
        {
            let row = &mut rows[row_of[node]];
            match (task.work.lane(), task.origin.phase) {
                (Lane::Compute, Phase::Load | Phase::Forward | Phase::Report) => {
                    row.forward += seconds * per_sample;
                }
                (Lane::Compute, Phase::Backward) => {
                    row.backward += seconds * per_sample;
                }
                (Lane::Compute, Phase::Reduce | Phase::Update) => {
                    row.update += seconds;
                }
                // Only computation is measured.
                (Lane::Exchange | Lane::Collective | Lane::Io, _) => {}
            }
        }
        Ok(Self {
            graph,
            costs,
            batch: training.batch,
            item: training.dtype.size(),
            weight_item: training.dtype.arithmetic().size(),
            rows,
            nodes,
        })
    }

    /// The closed form of a strategy, if it has one.
    pub fn of(&self, strategy: &Strategy) -> Option<ClosedForm> {
        let split = self.split(strategy)?;
        let estimate = self.estimate(strategy, &split);
        Some(ClosedForm { split, estimate })
    }

    /// Approximate time of a step. For mixtures of closed forms: the computation, divided evenly, and the longer
    /// of the communications of data-spatial and of data-filter parallelism. Branch axes count as data axes, and
    /// of filters and channels the larger extent.
    pub fn approximate_seconds(&self, strategy: &Strategy) -> Option<Seconds> {
        if let Some(form) = self.of(strategy) {
            return Some(form.estimate.seconds());
        }
        let extent = |axis| strategy.extent(axis);
        let mixed = Strategy::of(AXES.map(|axis| match axis {
            Axis::Branch => 1,
            _ => extent(axis),
        }));
        if !strategy.stages.is_empty() || !is_whole(strategy) {
            return None;
        }
        let tiles: usize = SPATIAL.into_iter().map(extent).product();
        let shares = extent(Axis::Filter).max(extent(Axis::Channel));
        let groups = extent(Axis::Data) * extent(Axis::Branch);
        let estimate = |split: Parallelism| self.estimate(&mixed, &split);
        let by_tiles = estimate(Parallelism::DataSpatial([groups, tiles]));
        let by_shares = estimate(Parallelism::DataFilter([groups * tiles, shares]));
        let serial = estimate(Parallelism::Serial);
        let forms = [&by_tiles, &by_shares];
        Some(hybrid_seconds(&serial, forms, strategy.ranks(), shares))
    }

    fn estimate(&self, strategy: &Strategy, split: &Parallelism) -> Estimate {
        let rows: Vec<LayerRow> = self
            .rows
            .iter()
            .zip(&self.nodes)
            .map(|(row, nodes)| self.split_row(*row, nodes, strategy, split))
            .collect();
        let table = LayerTable {
            layers: &rows,
            batch: self.batch,
            item: self.item,
            weight_item: self.weight_item,
        };
        table.estimate(split, &self.links(strategy))
    }

    fn split(&self, strategy: &Strategy) -> Option<Parallelism> {
        let extent = |axis| strategy.extent(axis);
        let tiles: usize = SPATIAL.into_iter().map(extent).product();
        let [data, filters, channels] = [Axis::Data, Axis::Filter, Axis::Channel].map(extent);
        let is_plain = strategy.shard == Shard::Off && extent(Axis::Branch) == 1;
        if !strategy.stages.is_empty() {
            let is_one = strategy.stages.iter().all(|one| one.extents == [1; 7]);
            let is_chain = strategy.mesh().ranks() == strategy.stages.len() && is_one;
            return if is_plain && is_chain && strategy.layers.is_empty() {
                self.stages(strategy)
            } else {
                None
            };
        }
        if !is_plain || !is_whole(strategy) || strategy.micro > 1 {
            return None;
        }
        Some(match [data, tiles, filters, channels] {
            [1, 1, 1, 1] => Parallelism::Serial,
            [data, 1, 1, 1] => Parallelism::Data(data),
            [1, tiles, 1, 1] => Parallelism::Spatial(tiles),
            [1, 1, filters, 1] => Parallelism::Filter(filters),
            [1, 1, 1, channels] => Parallelism::Channel(channels),
            [data, 1, filters, 1] => Parallelism::DataFilter([data, filters]),
            [data, tiles, 1, 1] => Parallelism::DataSpatial([data, tiles]),
            _ => return None,
        })
    }

    /// Stages of one rank each, with specified layers.
    fn stages(&self, strategy: &Strategy) -> Option<Parallelism> {
        let mut stages = Vec::new();
        let mut first = 0;
        for stage in &strategy.stages {
            let [(_, to)] = &stage.layers[..] else {
                return None;
            };
            let end = if to.is_empty() {
                self.graph.nodes.len()
            } else {
                self.graph.find(to)?.0 + 1
            };
            let until = self.nodes.iter().filter(|nodes| nodes.start < end).count();
            stages.push(first..until.max(first));
            first = until;
        }
        Some(Parallelism::Pipeline(stages, strategy.micro))
    }

    /// A row with the values that depend on the strategy.
    fn split_row(
        &self,
        mut row: LayerRow,
        nodes: &Range<usize>,
        strategy: &Strategy,
        split: &Parallelism,
    ) -> LayerRow {
        let parts = SPATIAL.map(|axis| strategy.extent(axis));
        row.is_split = match split {
            Parallelism::Serial | Parallelism::Data(_) | Parallelism::Pipeline(..) => true,
            Parallelism::Spatial(_) | Parallelism::DataSpatial(_) => {
                let carries = |node: &Node| {
                    let extent = node.shape.extent;
                    !matches!(node.op, Op::Flatten | Op::Linear { .. })
                        && (0..3).any(|dim| extent[dim].min(parts[dim]) > 1)
                };
                self.graph.nodes[nodes.clone()].iter().any(carries)
            }
            Parallelism::Filter(ranks) | Parallelism::DataFilter([_, ranks]) => {
                row.filters >= *ranks
            }
            Parallelism::Channel(ranks) => row.channels >= *ranks,
        };
        for node in &self.graph.nodes[nodes.clone()] {
            let (inputs, outputs) = halo(self.graph, node, parts);
            row.halo_inputs += inputs;
            row.halo_outputs += outputs;
        }
        row
    }

    fn links(&self, strategy: &Strategy) -> Links {
        let mesh = strategy.mesh();
        let ranks = mesh.ranks();
        let groups = strategy.extent(Axis::Data);
        // The data axis is outermost, so that a group has consecutive ranks.
        let size = if strategy.stages.is_empty() {
            ranks / groups
        } else {
            ranks
        };
        let within: Vec<Rank> = (0..size).collect();
        let across: Vec<Rank> = if groups > 1 {
            (0..ranks).step_by(size).collect()
        } else {
            (0..ranks).collect()
        };
        Links {
            pair: self.costs.pair(0, 1.min(ranks - 1)),
            group: self.costs.ring(&within),
            across: self.costs.ring(&across),
        }
    }
}

/// Whether all layers are split alike, except for narrow ones that are not split by filters and channels.
fn is_whole(strategy: &Strategy) -> bool {
    strategy.layers.iter().all(|choice| {
        let specified = LayerDim::ALL.into_iter().zip(choice.dims);
        let mut specified = specified.filter_map(|(dim, axes)| Some((dim, axes?)));
        let is_narrow = |(dim, axes): (LayerDim, AxisList)| match dim {
            LayerDim::C | LayerDim::F => axes.is_empty(),
            LayerDim::N | LayerDim::D | LayerDim::H | LayerDim::W => false,
        };
        let is_again = choice.recompute.is_some() || choice.chunks.is_some();
        let is_own = is_again || choice.halo.is_some();
        !is_own && specified.all(is_narrow)
    })
}

/// The nodes of each row; those before the first layer with weights belong to it. A model without weights has one row.
fn rows_of_nodes(graph: &Graph) -> Vec<Range<usize>> {
    let nodes = graph.nodes.len();
    let weighted = (0..nodes).filter(|&at| graph.nodes[at].op.has_weights());
    let mut starts: Vec<usize> = weighted.collect();
    match starts.first_mut() {
        Some(first) => *first = 0,
        None => starts.push(0),
    }
    let ends = starts.iter().skip(1).copied().chain([nodes]);
    starts
        .iter()
        .copied()
        .zip(ends)
        .map(|(start, end)| start..end)
        .collect()
}

fn row(graph: &Graph, nodes: &Range<usize>) -> LayerRow {
    let all = &graph.nodes[nodes.clone()];
    let weighted = all.iter().find(|node| node.op.has_weights());
    let node = weighted.unwrap_or(&all[0]);
    let input = node
        .inputs
        .first()
        .map_or(node.shape, |input| graph.node(*input).shape);
    let weights = all
        .iter()
        .flat_map(|node| &node.parameters)
        .map(|&id| graph.parameter(id))
        .filter(|parameter| parameter.is_trained());
    let positions = all
        .iter()
        .filter(|node| !matches!(node.op, Op::Flatten))
        .map(|node| node.shape.extent.iter().product::<usize>());
    LayerRow {
        inputs: input.volume() as f64,
        outputs: node.shape.volume() as f64,
        weights: weights.map(|parameter| parameter.volume() as f64).sum(),
        forward: Seconds(0.0),
        backward: Seconds(0.0),
        update: Seconds(0.0),
        is_split: true,
        halo_inputs: 0.0,
        halo_outputs: 0.0,
        positions: positions.min().unwrap_or(1),
        channels: input.channels,
        filters: node.shape.channels,
    }
}

/// Elements of the halos from one neighbor along each split dim, of the input and of the gradient of the output.
fn halo(graph: &Graph, node: &Node, parts: [usize; 3]) -> (f64, f64) {
    let (Some(windows), Some(input)) = (node.op.window(), node.inputs.first()) else {
        return (0.0, 0.0);
    };
    let sides = [graph.node(*input).shape, node.shape].map(|shape| {
        let plane = |dim: usize| {
            let others = (0..3)
                .filter(|&other| other != dim)
                .map(|other| shape.extent[other] as f64 / parts[other] as f64);
            let width = (windows[dim].kernel - 1) * windows[dim].dilation / 2;
            width as f64 * others.product::<f64>() * shape.channels as f64
        };
        let split = (0..3).filter(|&dim| parts[dim] > 1 && shape.extent[dim] >= parts[dim]);
        split.map(plane).sum::<f64>()
    });
    (sides[0], sides[1])
}
