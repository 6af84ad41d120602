//! The distributed network: the layers of the model with their distributions, and redistributions between
//! them.
//!
//! An evaluation is lowered from the same network without the layers that the last loss does not depend on, so its
//! parameters have the same distributions.

use crate::placement::RankSet;
use partita_graph::{Loss, NodeId, Op, ParameterId, PreluSlopes, needed_by_last, readers};
use partita_program::Distribution;
use partita_space::{AxisSet, Submesh};

/// Index of a layer of the distributed network, and of its output. Nodes of the model have a [`NodeId`]:
/// redistributions are layers here, but no nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct LayerId(pub usize);

impl From<usize> for LayerId {
    fn from(index: usize) -> Self {
        Self(index)
    }
}

impl From<LayerId> for usize {
    fn from(id: LayerId) -> Self {
        id.0
    }
}

/// How a tensor is made.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// An operation of the model.
    Layer(Op),
    /// Redistribution of the input, summed over the axes along which it is partial.
    Move,
}

/// The block of a layer that is computed in chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunks {
    /// Number of the block.
    pub block: usize,
    /// How many there are.
    pub count: usize,
    /// The dim along which they lie.
    pub dim: usize,
}

/// A tensor and how it is made.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub name: String,
    pub step: Step,
    pub inputs: Vec<LayerId>,
    pub parameters: Vec<ParameterId>,
    /// The node of the model with this value.
    pub origin: NodeId,
    /// Distribution of the value.
    pub distribution: Distribution,
    /// Index of its rank set in the placement.
    pub rank_set: usize,
    /// The stage that it belongs to.
    pub stage: usize,
    /// The recomputation block that it belongs to.
    pub block: Option<usize>,
    /// Whether it may be computed again for single layers.
    pub selective: bool,
    /// Axes over which the value is a partial sum.
    pub partial: AxisSet,
    /// Axes over which the gradient is a partial sum, since each rank contributes only for its share of the
    /// readers' filters.
    pub partial_gradient: AxisSet,
    /// Halo group: halos are exchanged only for tensors that enter it.
    pub group: Option<usize>,
    /// The block that it belongs to, if that is computed in chunks.
    pub chunks: Option<Chunks>,
}

impl Layer {
    /// The operation of the model; none for a redistribution.
    pub fn op(&self) -> Option<&Op> {
        match &self.step {
            Step::Layer(op) => Some(op),
            Step::Move => None,
        }
    }

    /// The kind of a loss, auxiliary or not.
    pub fn loss(&self) -> Option<&Loss> {
        self.op().and_then(Op::loss)
    }
}

/// All layers in topological order, and the distributions of the parameters.
#[derive(Clone)]
pub(crate) struct Network {
    pub layers: Vec<Layer>,
    /// Distributions of each parameter as layers use it, one per submesh; the first keeps the optimizer state.
    pub parameters: Vec<Vec<Distribution>>,
    /// Distributions of the sharded training state of each parameter.
    pub shares: Vec<Vec<Distribution>>,
    /// The layer that reads the features of the samples, if any does.
    pub features: Option<LayerId>,
    readers: Vec<Vec<LayerId>>,
    /// By node of the model.
    needs_gradient: Vec<bool>,
}

impl Network {
    /// `needs_gradient` is by node of the model.
    pub fn new(
        layers: Vec<Layer>,
        parameters: Vec<Vec<Distribution>>,
        shares: Vec<Vec<Distribution>>,
        needs_gradient: Vec<bool>,
    ) -> Self {
        let readers = readers(layers.iter().map(|layer| &layer.inputs[..]));
        let is_features = |layer: &Layer| layer.op() == Some(&Op::Features);
        let features = layers.iter().position(is_features).map(LayerId);
        Self {
            layers,
            parameters,
            shares,
            features,
            readers,
            needs_gradient,
        }
    }

    /// Without auxiliary losses, and layers that only they read. Parameters stay.
    pub fn without_auxiliary(self) -> Self {
        let is_needed = needed_by_last(self.layers.iter().map(|layer| &layer.inputs[..]));
        let mut ids = Vec::with_capacity(is_needed.len());
        let mut layers = Vec::with_capacity(is_needed.len());
        for (mut layer, is_needed) in self.layers.into_iter().zip(is_needed) {
            ids.push(LayerId(layers.len()));
            if is_needed {
                layer
                    .inputs
                    .iter_mut()
                    .for_each(|input| *input = ids[input.0]);
                layers.push(layer);
            }
        }
        Self::new(layers, self.parameters, self.shares, self.needs_gradient)
    }

    /// Without its last layer, the loss. Parameters stay.
    pub fn without_loss(mut self) -> Self {
        self.layers.pop();
        Self::new(
            self.layers,
            self.parameters,
            self.shares,
            self.needs_gradient,
        )
    }

    /// For one micro-batch, given by first sample and number of samples.
    pub fn of_micro_batch(&self, samples: (usize, usize)) -> Self {
        let mut part = self.clone();
        for layer in &mut part.layers {
            layer.distribution.micro = Some(samples);
        }
        part
    }

    /// On the ranks of another replica.
    pub fn of_replica(&self, rank_sets: &[RankSet], replica: usize) -> Self {
        let there = |submesh: Option<Submesh>| {
            let rank_set = rank_sets
                .iter()
                .find(|rank_set| rank_set.submeshes[0] == submesh);
            rank_set.map_or(submesh, |rank_set| rank_set.submeshes[replica])
        };
        let mut other = self.clone();
        for layer in &mut other.layers {
            layer.distribution.submesh = there(layer.distribution.submesh);
        }
        for distributions in other.parameters.iter_mut().chain(&mut other.shares) {
            distributions
                .iter_mut()
                .for_each(|distribution| distribution.submesh = there(distribution.submesh));
        }
        other
    }

    /// Whether a layer reshards a tensor to other ranks of the same stage.
    pub fn reshards_within_stage(&self, id: LayerId) -> bool {
        let layer = self.layer(id);
        self.reshards(id) && self.layer(layer.inputs[0]).stage == layer.stage
    }

    /// Whether a layer reshards a tensor to another submesh.
    pub fn reshards(&self, id: LayerId) -> bool {
        let layer = self.layer(id);
        let is_move = matches!(layer.step, Step::Move);
        is_move && self.layer(layer.inputs[0]).distribution.submesh != layer.distribution.submesh
    }

    pub fn layer(&self, id: LayerId) -> &Layer {
        &self.layers[id.0]
    }

    /// The readers of a tensor, each once.
    pub fn readers(&self, id: LayerId) -> &[LayerId] {
        &self.readers[id.0]
    }

    /// Whether the gradient of a parameter depends on that of the tensor.
    pub fn needs_gradient(&self, id: LayerId) -> bool {
        self.needs_gradient[self.layer(id).origin.0]
    }
}

/// Whether the operation reads unsplit inputs, whose positions are not those of the output.
pub(crate) fn reads_whole(op: &Op) -> bool {
    matches!(op, Op::Flatten | Op::Reshape { .. } | Op::Attention { .. })
}

/// Whether a layer multiplies all positions of its first input by this input, which has one.
pub(crate) fn is_gate(network: &Network, id: LayerId, input: LayerId) -> bool {
    let layer = network.layer(id);
    let extent = |id: LayerId| network.layer(id).distribution.shape[1..4].to_vec();
    matches!(layer.op(), Some(Op::Multiply))
        && layer.inputs[1] == input
        && extent(input) != extent(id)
}

/// Whether a layer multiplies all channels of its first input by this input, which has one.
pub(crate) fn is_map(network: &Network, id: LayerId, input: LayerId) -> bool {
    let layer = network.layer(id);
    let channels = |id: LayerId| network.layer(id).distribution.shape[4];
    matches!(layer.op(), Some(Op::Multiply))
        && layer.inputs[1] == input
        && channels(input) != channels(id)
}

/// Axes over which the gradients of the parameters of a layer are partial sums.
pub(crate) fn gradient_axes(layer: &Layer, local_statistics: AxisSet) -> AxisSet {
    let axes = positions(&layer.distribution);
    match layer.op() {
        // From sums that are complete but for those axes.
        Some(Op::BatchNorm { .. }) => local_statistics,
        // Of all channels.
        Some(Op::Prelu(PreluSlopes::One)) => axes.union(layer.distribution.axes[4].set()),
        _ => axes,
    }
}

/// Axes that split samples and positions; a local sum over these is partial over the axes.
pub(crate) fn positions(distribution: &Distribution) -> AxisSet {
    let sets = distribution.axes[..4].iter().map(|axes| axes.set());
    sets.fold(AxisSet::NONE, AxisSet::union)
}
