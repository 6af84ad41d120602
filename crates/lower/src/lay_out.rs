//! Chooses the distribution of each tensor of a model under a strategy, and inserts redistributions where a
//! reader needs another one.
//!
//! Example: `filter=2` over two convolutions. The filters of the first are split, so its output is split by
//! channels; the second reads all channels, so a redistribution comes between: an allgather forward, and a
//! reduce-scatter of the partial sums of the gradient backward.
//!
//! # Layers with weights
//!
//! A layer with weights reads the channels that its C axes leave it, and computes the filters that its F axes leave
//! it. Its output is then a partial sum over the C axes, and the gradient of its input one over the F axes. The
//! redistribution after it reduces the sum. The backward pass is always the adjoint: that of an allgather is a
//! reduce-scatter, that of a slice an allgather.
//!
//! Two choices avoid movement:
//!
//! - Equal slabs of the outermost positions are ranges of the features of a flatten. Where a linear layer reads
//!   shares of these, they stay with the ranks of the slabs ([`flatten`]).
//! - Where the strategy specifies nothing for a layer, its filters and channels swap their two axes if its input
//!   then need not move ([`axis_assignment`]). They do not where the output is added to a tensor on which the axes
//!   are nested the other way round, and moving the input costs less.
//!
//! # Layers with their own rules
//!
//! - Attention reads all positions: it is split by samples and heads, so its inputs are redistributed as those of
//!   a flatten are, and so are those of a reshape, which is split by samples and channels. A layer norm stays where its input lies; where channels are split, two sums per position go
//!   over the ranks that share them, forward and backward. An embedding is split by columns alone.
//! - A group or instance norm has two sums per sample and channel over the positions, which the ranks that split
//!   these share. Channels are split by whole groups.
//! - The second factor of a product may have one position or one channel. All ranks that split the positions or
//!   channels of the first factor hold it whole, and its gradient is a partial sum over them.
//! - A tensor that is read with periodic and with other padding has a copy for the periodic readers, so that each
//!   padding has a halo of its own.
//! - All losses of a model read one target. Auxiliary losses have the distribution of the last one and come just
//!   before it; their values are added before the sum over ranks.
//!
//! Parameters have distributions too. With `shard` the training state of a weight is split further than the weight
//! ([`crate::parameters`]). A micro-batch is an interval of N in the distribution, so indices stay those of the
//! mini-batch.

mod axis_assignment;
mod check;
mod choices;
mod chunked;
mod flatten;
mod shared;
mod shares;

pub(crate) use self::choices::layers;
use self::choices::{blocks, can_carry, choices, groups_of, selective};
pub use self::chunked::can_be_chunked;
pub(crate) use self::chunked::check_kind;
use self::chunked::{chunks_of, join};
pub(crate) use self::shared::Remedy;
use self::shares::shares;
use crate::network::{Chunks, Layer, LayerId, Network, Step};
use crate::placement::Placement;
use crate::strategy::LayerDim;
use crate::{Shard, Strategy, StrategyError};
use partita_graph::{
    Convolution, Graph, NodeId, Op, ParameterId, ParameterRole, Pool, PreluSlopes, readers,
};
use partita_program::Distribution;
use partita_space::{Axis, AxisList, AxisSet, Mesh, Window};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};

/// Axes of a tensor's dims (N, D, H, W, C).
type Axes = [AxisList; 5];

/// A node of the model, and the axes of its dims.
type NodeAxes = (NodeId, Axes);

/// The distributed network of a model under a strategy.
///
/// Errors: layers that the model lacks, dims that a layer cannot carry, splits finer than the dim, one
/// parameter split in two ways.
pub(crate) fn lay_out(
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
    // The distribution of persistent state must not depend on the number of samples, and a single sample is
    // not split over the ranks of branches.
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

/// For each node, whether its channels are those of the sample.
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
    /// The rank set of the current node, and its mesh.
    rank_set: usize,
    mesh: Mesh,
    batch: usize,
    /// Samples of a micro-batch.
    samples: usize,
    choices: Vec<[Option<AxisList>; 6]>,
    blocks: Vec<Option<usize>>,
    /// Whether a node of the model is recomputed selectively.
    selective: Vec<bool>,
    /// Halo groups by node of the model.
    groups: Vec<Option<usize>>,
    /// Blocks in chunks by node of the model.
    chunks: Vec<Option<Chunks>>,
    layers: Vec<Layer>,
    /// By node of the model.
    needs_gradient: Vec<bool>,
    /// For each node of the model the layer with its value.
    of: Vec<LayerId>,
    moves: BTreeMap<(LayerId, usize, Axes, AxisSet, bool), LayerId>,
    /// For each node, whether its channels are those of the sample.
    reads_input: Vec<bool>,
    /// The readers of each node of the model, each once.
    readers: Vec<Vec<NodeId>>,
    /// Distributions of each parameter, with the node that chose them.
    parameters: Vec<Vec<(Distribution, NodeId)>>,
    /// Cache of [`Self::elements`].
    moved: RefCell<HashMap<(Mesh, Distribution, AxisSet, Distribution), f64>>,
    /// Cache of [`Self::end_of_linear_chain`].
    chains: RefCell<HashMap<(usize, NodeId, Axes), Option<NodeAxes>>>,
}

impl<'a> Layout<'a> {
    /// `batch` and `samples` are the sizes of mini-batches and micro-batches.
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
            selective: selective(graph, strategy)?,
            groups: groups_of(graph, strategy)?,
            chunks: chunks_of(graph, strategy)?,
            layers: Vec::new(),
            needs_gradient: graph.needs_gradient(),
            of: Vec::new(),
            moves: BTreeMap::new(),
            reads_input: reads_input(graph),
            readers: readers(graph.nodes.iter().map(|node| &node.inputs[..])),
            parameters: vec![Vec::new(); graph.parameters.len()],
            moved: RefCell::default(),
            chains: RefCell::default(),
        };
        let both = (&layout.blocks[..], &mut layout.groups[..]);
        join(graph, strategy, &layout.chunks, both)?;
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
            // It is added with the loss and has no readers.
            Op::AuxiliaryLoss { .. } => self.of[node.inputs[0].0],
            Op::Loss(_) => self.losses(id)?,
            _ if node.op.has_weights() => self.weighted(id)?,
            _ => self.unweighted(id, id)?,
        };
        self.of.push(value);
        self.end_chunks(id)
    }

    /// The axes that the strategy specifies for a dim of a layer, except those of extent 1.
    fn specified(&self, id: NodeId, dim: LayerDim) -> Option<AxisList> {
        self.choices[id.0][dim as usize].map(|axes| axes.within(self.mesh.split_axes()))
    }

    /// The default axes of a dim; samples are also split over the ranks of branches if there are enough.
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

    /// The axes that are not specified for any dim of a layer; an axis specified for one dim is not used by
    /// default for another.
    fn free(&self, id: NodeId) -> AxisSet {
        let specified = LayerDim::ALL
            .into_iter()
            .filter_map(|dim| self.specified(id, dim));
        let taken = specified.fold(AxisSet::NONE, |all, list| all.union(list.set()));
        self.mesh.split_axes().minus(taken)
    }

    /// The loss, after the auxiliary losses, which have its distribution since they read its target.
    fn losses(&mut self, loss: NodeId) -> Result<LayerId, StrategyError> {
        for (index, node) in self.graph.nodes.iter().enumerate() {
            if let Op::AuxiliaryLoss { .. } = node.op {
                self.unweighted(NodeId(index), loss)?;
            }
        }
        self.unweighted(loss, loss)
    }

    /// A layer without weights: its output has the distribution of its input, or that of layer `like`.
    fn unweighted(&mut self, id: NodeId, like: NodeId) -> Result<LayerId, StrategyError> {
        let node = self.graph.node(id);
        let (reads, axes) = match self.graph.node(like).inputs.first() {
            None => {
                let axes = dims_of_tensor(|dim| {
                    if dim != LayerDim::C && can_carry(node, dim) {
                        self.specified(id, dim).unwrap_or(self.default_axes(dim))
                    } else {
                        AxisList::NONE
                    }
                });
                (axes, axes)
            }
            Some(input) => self.axes_of_unweighted(like, self.known(like, self.of[input.0])),
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
            .map(|&input| {
                let (reads, partial) = self.reads_of(id, input, reads, partial);
                self.input(id, self.of[input.0], reads, partial)
            })
            .collect();
        for &parameter in &node.parameters {
            let is_one = node.op == Op::Prelu(PreluSlopes::One);
            let columns = if is_one { AxisList::NONE } else { axes[4] };
            self.keep(id, parameter, AxisList::NONE, columns)?;
        }
        let step = Step::Layer(node.op.clone());
        let value = self.push(id, step, inputs, axes, AxisSet::NONE);
        self.layers[value.0].partial_gradient = partial;
        Ok(value)
    }

    /// The axes with which a layer reads an input, and those over which it makes its gradient a partial sum: a
    /// factor for all positions is on all ranks that split them, and one for all channels on those that split
    /// these.
    fn reads_of(
        &self,
        id: NodeId,
        input: NodeId,
        reads: Axes,
        partial: AxisSet,
    ) -> (Axes, AxisSet) {
        let node = self.graph.node(id);
        let (factor, product) = (self.graph.node(input).shape, node.shape);
        if node.op != Op::Multiply || factor == product {
            return (reads, partial);
        }
        let dims = if factor.extent == product.extent {
            4..5
        } else {
            1..4
        };
        let mut whole = reads;
        whole[dims.clone()].fill(AxisList::NONE);
        let split = reads[dims].iter().map(|list| list.set());
        (whole, split.fold(partial, AxisSet::union))
    }

    /// The axes of an input of a layer; the default ones where it comes from another submesh.
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

    /// For a layer without weights, the axes of its inputs and of its output, given those of its first input.
    fn axes_of_unweighted(&self, id: NodeId, known: Axes) -> (Axes, Axes) {
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

    /// Axes over which the gradient of a layer may stay a partial sum: its only reader has split filters, its
    /// own gradient is linear, and its inputs are redistributed anyway, where the reduction costs less.
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

    /// Axes over which the only reader of a layer makes its gradient a partial sum.
    fn partial_axes(&self, id: NodeId, axes: &Axes) -> AxisSet {
        let (mut id, mut axes) = (id, *axes);
        loop {
            let Some((last, axes_there)) = self.end_of_linear_chain(id, axes) else {
                return AxisSet::NONE;
            };
            let reader = self.readers[last.0][0];
            let node = self.graph.node(reader);
            if !node.op.has_weights() {
                let (reads, made) = self.axes_of_unweighted(reader, axes_there);
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

    /// The last layer of a chain of layers with linear gradients and single readers, whose reader has weights
    /// or is a flatten, and its axes; none for other chains. Cached, since every layer of a chain needs it.
    fn end_of_linear_chain(&self, id: NodeId, axes: Axes) -> Option<NodeAxes> {
        let (mut id, mut axes) = (id, axes);
        let mut chain = Vec::new();
        let end = loop {
            if let Some(&known) = self.chains.borrow().get(&(self.rank_set, id, axes)) {
                break known;
            }
            chain.push((self.rank_set, id, axes));
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
            let (reads, made) = self.axes_of_unweighted(reader, axes);
            if node.inputs[0] != id || reads != axes {
                break None;
            }
            (id, axes) = (reader, made);
        };
        let mut chains = self.chains.borrow_mut();
        chains.extend(chain.into_iter().map(|from| (from, end)));
        end
    }

    /// A layer with weights (C, F): each rank reads its part of the channels and computes its part of the
    /// filters.
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
            // A split by whole groups needs no communication.
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
        // Readers of unsplit channels would gather at once what was scattered.
        let is_gathered = self.readers[id.0]
            .iter()
            .all(|&reader| !can_carry(self.graph.node(reader), LayerDim::C));
        if self.mesh.parts(scattered) <= outputs && !is_gathered {
            axes[4] = scattered;
        }
        let name = format!("{}.sum", node.name);
        Ok(self.push_move(raw, name, axes, AxisSet::NONE))
    }

    /// Axes of N, D, H and W, of the filters and of the channels of a layer with weights, given those of its
    /// input.
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
            // Samples are not split by channels, which may be few.
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

    /// Whether a layer needs a copy with a halo of its own, since another halo group computes the halo of the
    /// tensor redundantly.
    fn needs_halo_copy(&self, id: NodeId, x: LayerId) -> bool {
        let (group, of) = (self.groups[id.0], &self.layers[x.0]);
        let windows = self.graph.node(id).op.window();
        let slides = windows.is_some_and(|windows| *windows != [Window::ONE; 3])
            || matches!(self.graph.node(id).op, Op::Resample(_));
        let is_read_inside = || {
            let mut readers = self.readers[of.origin.0].iter();
            readers.any(|reader| self.groups[reader.0] == of.group)
        };
        of.group.is_some() && of.group != group && (slides || group.is_some()) && is_read_inside()
    }

    /// The layer with the distribution that a reader needs.
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
        let wraps = self.needs_periodic_copy(id, x);
        if is_here && !wraps && !self.needs_halo_copy(id, x) {
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

    /// Whether a layer reads a tensor with periodic padding that others read with other padding: it gets a copy
    /// with a halo of its own.
    fn needs_periodic_copy(&self, id: NodeId, x: LayerId) -> bool {
        let padding = |id: NodeId| padding(&self.graph.node(id).op);
        let mut readers = self.readers[self.layers[x.0].origin.0].iter();
        padding(id) == Padding::Periodic && readers.any(|&other| padding(other) == Padding::Other)
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
            // Reshardings are not recomputed.
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
        let (group, chunks) = match &step {
            Step::Layer(_) => (self.groups[origin.0], self.chunks[origin.0]),
            Step::Move => (None, None),
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
            selective: self.selective[origin.0],
            partial,
            partial_gradient: AxisSet::NONE,
            group,
            chunks,
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
        // The second replica of one layer may run on the ranks of another layer of the first.
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

/// Axes of the last two dims of the weights, given those of the channels and filters of the layer.
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

/// Padding of an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Padding {
    /// None, or its values do not matter.
    Irrelevant,
    /// Periodic.
    Periodic,
    /// Any other, as zeros.
    Other,
}

fn padding(op: &Op) -> Padding {
    match op {
        Op::Convolution(convolution) if convolution.periodic => Padding::Periodic,
        Op::Convolution(Convolution { window, .. }) | Op::Pool(Pool { window, .. }) => {
            let pads = |window: &Window| window.pad_low > 0 || window.pad_high > 0;
            if window.iter().any(pads) {
                Padding::Other
            } else {
                Padding::Irrelevant
            }
        }
        Op::Input
        | Op::Features
        | Op::Resample(_)
        | Op::TransposedConvolution(_)
        | Op::BatchNorm { .. }
        | Op::LeakyRelu { .. }
        | Op::Prelu(_)
        | Op::Softmax
        | Op::Linear { .. }
        | Op::Dropout { .. }
        | Op::Flatten
        | Op::Reshape { .. }
        | Op::Add
        | Op::Multiply
        | Op::Concat
        | Op::Slice { .. }
        | Op::ChannelShuffle { .. }
        | Op::Embedding { .. }
        | Op::Positions
        | Op::PositionEmbedding { .. }
        | Op::LayerNorm { .. }
        | Op::GroupNorm { .. }
        | Op::Activation(_)
        | Op::Attention { .. }
        | Op::Loss(_)
        | Op::AuxiliaryLoss { .. } => Padding::Irrelevant,
    }
}

/// Whether the gradient of an input is linear in that of the output, whatever the values.
fn has_linear_gradient(op: &Op) -> bool {
    match op {
        Op::Flatten
        | Op::Reshape { .. }
        | Op::Concat
        | Op::Slice { .. }
        | Op::ChannelShuffle { .. }
        | Op::Positions
        | Op::Activation(_)
        | Op::Dropout { .. }
        | Op::Softmax
        | Op::LeakyRelu { .. } => true,
        Op::Input
        | Op::Features
        | Op::Convolution(_)
        | Op::TransposedConvolution(_)
        | Op::Pool(_)
        | Op::Resample(_)
        | Op::BatchNorm { .. }
        | Op::Prelu(_)
        | Op::Linear { .. }
        | Op::Add
        | Op::Multiply
        | Op::Embedding { .. }
        | Op::PositionEmbedding { .. }
        | Op::LayerNorm { .. }
        | Op::GroupNorm { .. }
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
