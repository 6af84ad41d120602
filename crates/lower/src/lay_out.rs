//! From a model and a strategy to the network that is lowered: how the dims of each tensor lie on the
//! axes, and where a reader wants them otherwise.
//!
//! Example: `filter=2` over two convolutions. The filters of the first are split, so its output is
//! owned by channels; the weights of the second read all channels, so a change of distribution comes
//! between. Forward it gathers; backward it adds what each rank's filters give, and each rank keeps
//! the sum of its own channels.

mod axis_assignment;
mod check;
mod choices;
mod flatten;
mod shared;
mod shares;

pub(crate) use self::choices::layers;
use self::choices::{blocks, can_carry, choices, groups_of};
use self::shares::shares;
use crate::network::{Layer, LayerId, Network, Step};
use crate::placement::Placement;
use crate::strategy::LayerDim;
use crate::{Shard, Strategy, StrategyError};
use partita_graph::{Convolution, Graph, NodeId, Op, ParameterId, ParameterRole, Pool, readers};
use partita_program::Distribution;
use partita_space::{Axis, AxisList, AxisSet, Mesh, Window};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};

/// Axes of a tensor's dims (N, D, H, W, C).
type Axes = [AxisList; 5];

/// A node of the model, and how it lies.
type NodeAxes = (NodeId, Axes);

/// The network of a model under a strategy for mini-batches of so many samples.
///
/// Errors: layers that the model lacks, dims that a layer cannot carry, splits finer than the dim, one
/// parameter split in two ways.
pub(crate) fn lay_out(
    graph: &Graph,
    strategy: &Strategy,
    placement: &Placement,
    batch: usize,
) -> Result<Network, StrategyError> {
    lay_out_once(graph, strategy, placement, batch).map_err(|error| match error {
        StrategyError::Shared(mut shared) => {
            shared.nearest = shared::nearest(graph, strategy, batch, &shared);
            StrategyError::Shared(shared)
        }
        other => other,
    })
}

/// As [`lay_out`], without looking for the nearest strategy where layers share a parameter that they split
/// differently.
fn lay_out_once(
    graph: &Graph,
    strategy: &Strategy,
    placement: &Placement,
    batch: usize,
) -> Result<Network, StrategyError> {
    let samples = batch.div_ceil(strategy.micro_batches(batch));
    let layout = Layout::of(graph, strategy, placement, (batch, samples))?;
    let shape = |id: usize| graph.parameters[id].shape;
    let distribution = |(id, known): (usize, &Vec<(Distribution, NodeId)>)| {
        if known.is_empty() {
            vec![Distribution::replicated(shape(id))]
        } else {
            known
                .iter()
                .map(|(distribution, _)| *distribution)
                .collect()
        }
    };
    let distributions: Vec<Vec<Distribution>> = layout
        .parameters
        .iter()
        .enumerate()
        .map(distribution)
        .collect();
    // What outlives a step must not depend on how many samples it has, and one sample is not split over
    // the ranks of branches.
    let has_branches = || {
        placement
            .rank_sets
            .iter()
            .any(|rank_set| rank_set.mesh.extent(Axis::Branch) > 1)
    };
    let shares = if strategy.shard != Shard::Off && has_branches() {
        let least = Layout::of(graph, strategy, placement, (batch, 1))?;
        shares(graph, strategy, &least.layers, &distributions)
    } else {
        shares(graph, strategy, &layout.layers, &distributions)
    };
    Ok(Network::new(
        layout.layers,
        distributions,
        shares,
        layout.needs_gradient,
    ))
}

/// Whether the channels of a node are those of the sample.
fn reads_input(graph: &Graph) -> Vec<bool> {
    let mut all: Vec<bool> = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let is_of_input = node.inputs.iter().all(|input| all[input.0]);
        all.push(is_of_input && !node.op.has_weights());
    }
    all
}

struct Layout<'a> {
    graph: &'a Graph,
    strategy: &'a Strategy,
    placement: &'a Placement,
    /// The site of the node at hand, and its mesh.
    rank_set: usize,
    mesh: Mesh,
    batch: usize,
    /// Samples of a micro-batch.
    samples: usize,
    choices: Vec<[Option<AxisList>; 6]>,
    blocks: Vec<Option<usize>>,
    /// Of each node of the model.
    groups: Vec<Option<usize>>,
    layers: Vec<Layer>,
    /// Of each node of the model.
    needs_gradient: Vec<bool>,
    /// For each node of the model the layer that has its value.
    of: Vec<LayerId>,
    moves: BTreeMap<(LayerId, usize, Axes, AxisSet, bool), LayerId>,
    /// Whether the channels of a node are those of the sample.
    reads_input: Vec<bool>,
    /// Who reads a node of the model, each once.
    readers: Vec<Vec<NodeId>>,
    /// Places and who wanted them.
    parameters: Vec<Vec<(Distribution, NodeId)>>,
    /// Elements that move, of the movements that were looked at.
    moved: RefCell<HashMap<(Mesh, Distribution, AxisSet, Distribution), f64>>,
    /// Where gradients are handed on to, from layers of a site that lie so.
    ways: RefCell<HashMap<(usize, NodeId, Axes), Option<NodeAxes>>>,
}

impl<'a> Layout<'a> {
    /// For mini-batches and micro-batches of so many samples.
    fn of(
        graph: &'a Graph,
        strategy: &'a Strategy,
        placement: &'a Placement,
        (batch, samples): (usize, usize),
    ) -> Result<Self, StrategyError> {
        let mut layout = Self {
            graph,
            strategy,
            placement,
            rank_set: 0,
            mesh: placement.rank_sets[0].mesh,
            batch,
            samples,
            choices: choices(graph, strategy)?,
            blocks: blocks(graph, strategy)?,
            groups: groups_of(graph, strategy)?,
            layers: Vec::new(),
            needs_gradient: graph.needs_gradient(),
            of: Vec::new(),
            moves: BTreeMap::new(),
            reads_input: reads_input(graph),
            readers: readers(graph.nodes.iter().map(|node| &node.inputs[..])),
            parameters: vec![Vec::new(); graph.parameters.len()],
            moved: RefCell::default(),
            ways: RefCell::default(),
        };
        for index in 0..graph.nodes.len() {
            layout.add(NodeId(index))?;
        }
        Ok(layout)
    }

    fn add(&mut self, id: NodeId) -> Result<(), StrategyError> {
        let graph = self.graph;
        let node = graph.node(id);
        self.rank_set = self.placement.rank_set_of[id.0];
        self.mesh = self.placement.rank_sets[self.rank_set].mesh;
        self.check_dims(id)?;
        let value = match node.op {
            // It comes with the loss; nobody reads it.
            Op::AuxiliaryLoss { .. } => self.of[node.inputs[0].0],
            Op::Loss(_) => self.losses(id)?,
            _ if node.op.has_weights() => self.weighted(id)?,
            _ => self.follower(id, id)?,
        };
        self.of.push(value);
        Ok(())
    }

    /// The axes that the strategy specifies for a dim of a layer, without those of extent 1.
    fn specified(&self, id: NodeId, dim: LayerDim) -> Option<AxisList> {
        self.choices[id.0][dim as usize].map(|axes| axes.within(self.mesh.split_axes()))
    }

    /// The axes of a dim for which none are specified: samples also over the ranks of branches, if there
    /// are enough of them.
    fn default_axes(&self, dim: LayerDim) -> AxisList {
        let axes = AxisList::of([dim.axis()]).within(self.mesh.split_axes());
        if dim != LayerDim::N || self.mesh.extent(Axis::Branch) == 1 {
            return axes;
        }
        let both = axes.inside(Axis::Branch);
        if self.mesh.parts(both) <= self.samples {
            both
        } else {
            axes
        }
    }

    /// The axes that are not specified for any dim of a layer: one that is specified for a dim is taken
    /// from the others.
    fn free(&self, id: NodeId) -> AxisSet {
        let specified = LayerDim::ALL
            .into_iter()
            .filter_map(|dim| self.specified(id, dim));
        let taken = specified.fold(AxisSet::NONE, |all, list| all.union(list.set()));
        self.mesh.split_axes().minus(taken)
    }

    /// The loss, and before it the auxiliary ones, which lie as it does since they read its target.
    fn losses(&mut self, loss: NodeId) -> Result<LayerId, StrategyError> {
        for (index, node) in self.graph.nodes.iter().enumerate() {
            if let Op::AuxiliaryLoss { .. } = node.op {
                self.follower(NodeId(index), loss)?;
            }
        }
        self.follower(loss, loss)
    }

    /// A layer whose output lies as its input does: pooling, normalization, sums and the like; or as
    /// another one of its shape does.
    fn follower(&mut self, id: NodeId, like: NodeId) -> Result<LayerId, StrategyError> {
        let node = self.graph.node(id);
        let (reads, axes) = match self.graph.node(like).inputs.first() {
            None => {
                let axes = dims_of_tensor(|dim| {
                    if dim == LayerDim::C {
                        AxisList::NONE
                    } else {
                        self.specified(id, dim).unwrap_or(self.default_axes(dim))
                    }
                });
                (axes, axes)
            }
            Some(input) => self.following(like, self.known(like, self.of[input.0])),
        };
        let mut all = axes.to_vec();
        all.push(AxisList::NONE);
        self.check_twice(id, &all)?;
        self.check_extent(id, "channels", node.shape.channels, axes[4])?;
        self.check_heads(id, axes[4])?;
        let partial = self.kept_partial(id, &reads, &axes);
        let inputs: Vec<LayerId> = node
            .inputs
            .iter()
            .map(|input| self.input(id, self.of[input.0], reads, partial))
            .collect();
        for &parameter in &node.parameters {
            self.keep(id, parameter, AxisList::NONE, axes[4])?;
        }
        let step = Step::Layer(node.op.clone());
        let value = self.push(id, step, inputs, axes, AxisSet::NONE);
        self.layers[value.0].partial_gradient = partial;
        Ok(value)
    }

    /// How an input of a layer lies; where it comes from other ranks, as tensors usually lie here.
    fn known(&self, id: NodeId, input: LayerId) -> Axes {
        let (node, x) = (self.graph.node(id), &self.layers[input.0]);
        if x.distribution.submesh == self.placement.rank_sets[self.rank_set].submeshes[0] {
            return x.distribution.axes;
        }
        dims_of_tensor(|dim| {
            if dim != LayerDim::C && can_carry(node, dim) {
                self.default_axes(dim)
            } else {
                AxisList::NONE
            }
        })
    }

    /// How a layer without weights whose first input lies so reads its inputs, and how it lies.
    fn following(&self, id: NodeId, known: Axes) -> (Axes, Axes) {
        let (node, free) = (self.graph.node(id), self.free(id));
        let axes = dims_of_tensor(|dim| {
            if can_carry(node, dim) {
                self.specified(id, dim)
                    .unwrap_or(known[dim as usize].within(free))
            } else {
                AxisList::NONE
            }
        });
        if matches!(node.op, Op::Flatten) {
            self.flattened(id, &known, axes)
        } else {
            (axes, axes)
        }
    }

    /// Axes along which the gradient of a layer that lies so may stay a sum still due: its only reader
    /// adds what its own filters give, what the layer does to it is linear, and its inputs change
    /// owners anyway, where the sum then costs less than here.
    fn kept_partial(&self, id: NodeId, reads: &Axes, axes: &Axes) -> AxisSet {
        let inputs = self.graph.node(id).inputs.iter();
        let inputs: Vec<&Layer> = inputs.map(|of| &self.layers[self.of[of.0].0]).collect();
        let partial = self.partial_axes(id, axes);
        let moves =
            |layer: &&Layer| layer.distribution.axes != *reads || layer.partial_gradient == partial;
        let mut of = self.graph.node(id).inputs.iter();
        let is_trained = of.any(|of| self.needs_gradient[of.0]);
        if inputs.iter().any(moves) && is_trained {
            partial
        } else {
            AxisSet::NONE
        }
    }

    /// Axes along which the only reader of a layer that lies so adds to its gradient.
    fn partial_axes(&self, id: NodeId, axes: &Axes) -> AxisSet {
        let (mut id, mut axes) = (id, *axes);
        loop {
            let Some((last, axes_there)) = self.end_of_linear_chain(id, axes) else {
                return AxisSet::NONE;
            };
            let reader = self.readers[last.0][0];
            let node = self.graph.node(reader);
            if !node.op.has_weights() {
                let (reads, made) = self.following(reader, axes_there);
                if node.inputs[0] != last || reads != axes_there {
                    return AxisSet::NONE;
                }
                (id, axes) = (reader, made);
                continue;
            }
            let (mut wanted, filters, channels) = self.weighted_axes(reader, axes_there);
            wanted[4] = channels;
            return if groups(&node.op) == 1 && wanted == axes_there {
                filters.set()
            } else {
                AxisSet::NONE
            };
        }
    }

    /// The last of the layers that hand a gradient on from one to the other as it is, the only reader of
    /// which has weights or is a flatten, and how it lies; none where the way ends otherwise. What such a
    /// reader does may depend on layers that are still to come, the way to it does not, and is kept: every
    /// layer of a long chain asks for it.
    fn end_of_linear_chain(&self, id: NodeId, axes: Axes) -> Option<NodeAxes> {
        let (mut id, mut axes) = (id, axes);
        let mut way = Vec::new();
        let end = loop {
            if let Some(&known) = self.ways.borrow().get(&(self.rank_set, id, axes)) {
                break known;
            }
            way.push((self.rank_set, id, axes));
            let &[reader] = &self.readers[id.0][..] else {
                break None;
            };
            let is_here = self.placement.rank_set_of[reader.0] == self.placement.rank_set_of[id.0];
            if !is_here || !has_linear_gradient(&self.graph.node(id).op) {
                break None;
            }
            let node = self.graph.node(reader);
            if node.op.has_weights() || matches!(node.op, Op::Flatten) {
                break Some((id, axes));
            }
            let (reads, made) = self.following(reader, axes);
            if node.inputs[0] != id || reads != axes {
                break None;
            }
            (id, axes) = (reader, made);
        };
        let mut ways = self.ways.borrow_mut();
        ways.extend(way.into_iter().map(|from| (from, end)));
        end
    }

    /// A layer with weights (C, F): each rank reads its share of the channels and computes its share
    /// of the filters.
    fn weighted(&mut self, id: NodeId) -> Result<LayerId, StrategyError> {
        let node = self.graph.node(id);
        let input = node.inputs[0];
        let x = self.of[input.0];
        let known = self.known(id, x);
        let (mut axes, filters, channels) = self.weighted_axes(id, known);
        let all = [&axes[..], &[filters, channels]].concat();
        self.check_twice(id, &all)?;
        let groups = groups(&node.op);
        if groups > 1 {
            // By whole groups nothing has to move.
            let shares = channels.then(filters);
            self.check_groups(id, groups, shares)?;
            axes[4] = shares;
            let x = self.input(id, x, axes, AxisSet::NONE);
            self.check_periodic(id, x)?;
            self.keep_weights(id, AxisList::NONE, shares)?;
            return Ok(self.push(
                id,
                Step::Layer(node.op.clone()),
                vec![x],
                axes,
                AxisSet::NONE,
            ));
        }
        let (outputs, inputs) = (node.shape.channels, self.graph.node(input).shape.channels);
        self.check_extent(id, "filters", outputs, filters)?;
        self.check_extent(id, "channels read", inputs, channels)?;
        axes[4] = channels;
        let x = self.input(id, x, axes, filters.set());
        self.check_periodic(id, x)?;
        axes[4] = filters;
        self.keep_weights(id, channels, filters)?;
        let step = Step::Layer(node.op.clone());
        let raw = self.push(id, step, vec![x], axes, channels.set());
        if channels.is_empty() {
            return Ok(raw);
        }
        let scattered = filters.then(channels);
        // Who reads whole channels would gather at once what was scattered.
        let is_gathered = self.readers[id.0]
            .iter()
            .all(|&reader| !can_carry(self.graph.node(reader), LayerDim::C));
        if self.mesh.parts(scattered) <= outputs && !is_gathered {
            axes[4] = scattered;
        }
        let name = format!("{}.sum", node.name);
        Ok(self.push_move(raw, name, axes, AxisSet::NONE))
    }

    /// N, D, H and W of a layer with weights whose input lies so, its filters and its channels.
    fn weighted_axes(&self, id: NodeId, known: Axes) -> (Axes, AxisList, AxisList) {
        let (node, free) = (self.graph.node(id), self.free(id));
        let specified_or_free =
            |dim, list: AxisList| self.specified(id, dim).unwrap_or(list.within(free));
        let axes = dims_of_tensor(|dim| match (dim, can_carry(node, dim)) {
            (LayerDim::C, _) => AxisList::NONE,
            (dim, true) => specified_or_free(dim, self.default_axes(dim)),
            (_, false) => known[dim as usize].within(free),
        });
        let both = [LayerDim::F, LayerDim::C];
        let is_specified = both.map(|dim| self.specified(id, dim).is_some());
        let [mut filters, mut channels] =
            both.map(|dim| specified_or_free(dim, self.default_axes(dim)));
        let is_narrow = matches!(node.op, Op::Embedding { .. });
        if !is_specified[1] && (is_narrow || self.reads_input[node.inputs[0].0]) {
            // Samples are not stored by channels, and these may be few.
            filters = filters.then(channels);
            channels = AxisList::NONE;
        } else if is_specified == [false; 2] {
            let swaps = || self.swaps_axes(id, &known, &axes, (filters, channels));
            if self
                .swaps_as_shared(id, filters, channels)
                .unwrap_or_else(swaps)
            {
                std::mem::swap(&mut filters, &mut channels);
            }
        }
        (axes, filters, channels)
    }

    /// Whether a layer reads around its own part what another group computes for itself: it gets a copy
    /// with a frame of its own.
    fn is_apart(&self, id: NodeId, x: LayerId) -> bool {
        let (group, of) = (self.groups[id.0], &self.layers[x.0]);
        let windows = self.graph.node(id).op.window();
        let slides = windows.is_some_and(|windows| *windows != [Window::ONE; 3]);
        let is_read_inside = || {
            let mut readers = self.readers[of.origin.0].iter();
            readers.any(|reader| self.groups[reader.0] == of.group)
        };
        of.group.is_some() && of.group != group && (slides || group.is_some()) && is_read_inside()
    }

    /// The tensor as a reader wants it.
    fn input(&mut self, id: NodeId, x: LayerId, axes: Axes, partial_gradient: AxisSet) -> LayerId {
        let partial_gradient = if self.needs_gradient[self.layers[x.0].origin.0] {
            partial_gradient
        } else {
            AxisSet::NONE
        };
        let known = &self.layers[x.0];
        let submesh = self.placement.rank_sets[self.rank_set].submeshes[0];
        let is_here = known.distribution.submesh == submesh
            && known.distribution.axes == axes
            && known.partial_gradient == partial_gradient;
        let wraps = self.wraps_apart(id, x);
        if is_here && !wraps && !self.is_apart(id, x) {
            return x;
        }
        let key = (x, self.rank_set, axes, partial_gradient, wraps);
        if let Some(&known) = self.moves.get(&key) {
            return known;
        }
        let name = format!("{}.{}", known.name, if wraps { "wrapped" } else { "moved" });
        let moved = self.push_move(x, name, axes, partial_gradient);
        self.moves.insert(key, moved);
        moved
    }

    /// Whether a layer reads a tensor with a periodic border that others read with another one: it gets
    /// a copy, around which lies what it reads.
    fn wraps_apart(&self, id: NodeId, x: LayerId) -> bool {
        let border = |id: NodeId| border(&self.graph.node(id).op);
        let mut readers = self.readers[self.layers[x.0].origin.0].iter();
        border(id) == Border::Periodic && readers.any(|&other| border(other) == Border::Outside)
    }

    fn push_move(
        &mut self,
        of: LayerId,
        name: String,
        axes: Axes,
        partial_gradient: AxisSet,
    ) -> LayerId {
        let origin = self.layers[of.0].origin;
        let id = self.push(origin, Step::Move, vec![of], axes, AxisSet::NONE);
        let from = self.layers[of.0].distribution.submesh;
        let layer = &mut self.layers[id.0];
        if from != layer.distribution.submesh {
            // What comes from other ranks comes once.
            layer.block = None;
        }
        layer.name = name;
        layer.parameters.clear();
        layer.partial_gradient = partial_gradient;
        id
    }

    fn push(
        &mut self,
        origin: NodeId,
        step: Step,
        inputs: Vec<LayerId>,
        axes: Axes,
        partial: AxisSet,
    ) -> LayerId {
        let node = self.graph.node(origin);
        let group = match &step {
            Step::Layer(_) => self.groups[origin.0],
            Step::Move => None,
        };
        let mut distribution = Distribution::replicated(node.shape.batched(self.batch));
        distribution.axes = axes;
        let rank_set = &self.placement.rank_sets[self.rank_set];
        distribution.submesh = rank_set.submeshes[0];
        self.layers.push(Layer {
            rank_set: self.rank_set,
            stage: rank_set.stage,
            name: node.name.clone(),
            step,
            inputs,
            parameters: node.parameters.clone(),
            origin,
            distribution,
            block: self.blocks[origin.0],
            partial,
            partial_gradient: AxisSet::NONE,
            group,
        });
        LayerId(self.layers.len() - 1)
    }

    fn keep_weights(
        &mut self,
        id: NodeId,
        channels: AxisList,
        filters: AxisList,
    ) -> Result<(), StrategyError> {
        let node = self.graph.node(id);
        for &parameter in &node.parameters {
            let [rows, columns] = match self.graph.parameter(parameter).role {
                ParameterRole::Weight => rows_and_columns(&node.op, channels, filters),
                _ => [AxisList::NONE, filters],
            };
            self.keep(id, parameter, rows, columns)?;
        }
        Ok(())
    }

    /// Splits the last two dims of a parameter.
    fn keep(
        &mut self,
        id: NodeId,
        parameter: ParameterId,
        rows: AxisList,
        columns: AxisList,
    ) -> Result<(), StrategyError> {
        let mut distribution = Distribution::replicated(self.graph.parameter(parameter).shape);
        distribution.axes[3] = rows;
        distribution.axes[4] = columns;
        let [own, mirrored] = self.placement.rank_sets[self.rank_set].submeshes;
        distribution.submesh = own;
        let has_replicas = self.strategy.schedule.replicas() > 1;
        let is_mirrored = |known: &Distribution| {
            has_replicas && known.submesh == mirrored && known.axes != distribution.axes
        };
        let distributions = &mut self.parameters[parameter.0];
        // The second replica of one layer has the ranks of another one in the first.
        let other = distributions.iter().find(|(known, _)| is_mirrored(known));
        let same = || distributions.iter().find(|(known, _)| known.submesh == own);
        let Some(known) = other.or_else(same) else {
            distributions.push((distribution, id));
            return Ok(());
        };
        if known.0 == distribution {
            return Ok(());
        }
        let known = *known;
        Err(self.shared(parameter, known, (distribution, id)))
    }
}

/// Axes of the last two dims of the weights of a layer that reads these channels and gives these filters.
fn rows_and_columns(op: &Op, channels: AxisList, filters: AxisList) -> [AxisList; 2] {
    match op {
        // A transposed convolution keeps the weights of the convolution whose adjoint it is.
        Op::TransposedConvolution(convolution) if convolution.groups == 1 => [filters, channels],
        _ => [channels, filters],
    }
}

/// The axes of N, D, H, W and C.
fn dims_of_tensor(axes: impl Fn(LayerDim) -> AxisList) -> Axes {
    std::array::from_fn(|dim| axes(LayerDim::ALL[dim]))
}

/// What an operation reads beyond the image.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Border {
    /// Nothing, or it does not matter what lies there.
    Inside,
    /// The other end of the image.
    Periodic,
    /// Something else, as zeros.
    Outside,
}

fn border(op: &Op) -> Border {
    match op {
        Op::Convolution(convolution) if convolution.periodic => Border::Periodic,
        Op::Convolution(Convolution { window, .. }) | Op::Pool(Pool { window, .. }) => {
            let pads = |window: &Window| window.pad_low > 0 || window.pad_high > 0;
            if window.iter().any(pads) {
                Border::Outside
            } else {
                Border::Inside
            }
        }
        Op::Input
        | Op::TransposedConvolution(_)
        | Op::BatchNorm { .. }
        | Op::LeakyRelu { .. }
        | Op::Linear { .. }
        | Op::Dropout { .. }
        | Op::Flatten
        | Op::Add
        | Op::Concat
        | Op::Slice { .. }
        | Op::Embedding { .. }
        | Op::Positions
        | Op::LayerNorm { .. }
        | Op::Activation(_)
        | Op::Attention { .. }
        | Op::Loss(_)
        | Op::AuxiliaryLoss { .. } => Border::Inside,
    }
}

/// Whether the gradient of an input is linear in that of the output, whatever the values.
fn has_linear_gradient(op: &Op) -> bool {
    match op {
        Op::Flatten
        | Op::Concat
        | Op::Slice { .. }
        | Op::Positions
        | Op::Activation(_)
        | Op::Dropout { .. }
        | Op::LeakyRelu { .. } => true,
        Op::Input
        | Op::Convolution(_)
        | Op::TransposedConvolution(_)
        | Op::Pool(_)
        | Op::BatchNorm { .. }
        | Op::Linear { .. }
        | Op::Add
        | Op::Embedding { .. }
        | Op::LayerNorm { .. }
        | Op::Attention { .. }
        | Op::Loss(_)
        | Op::AuxiliaryLoss { .. } => false,
    }
}

fn groups(op: &Op) -> usize {
    match op {
        Op::Convolution(convolution) => convolution.groups,
        Op::TransposedConvolution(convolution) => convolution.groups,
        _ => 1,
    }
}
