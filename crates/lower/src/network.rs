//! The network as it is lowered: the layers of the model with their distribution, and changes of
//! distribution between them.

use crate::placement::RankSet;
use partita_graph::{Loss, NodeId, Op, ParameterId, needed_by_last, readers};
use partita_program::Distribution;
use partita_space::{AxisSet, Submesh};

/// Index of a layer of the lowered network, and of the tensor that it makes. A node of the model has an
/// id of its own, [`NodeId`]: changes of distribution, which the model lacks, stand between them.
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

/// What is done to make a tensor.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// An operation of the model.
    Layer(Op),
    /// Another distribution of the input: its value along whatever axes, summed along those on which
    /// it is partial.
    Move,
}

/// A tensor and how it is made.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub name: String,
    pub step: Step,
    pub inputs: Vec<LayerId>,
    pub parameters: Vec<ParameterId>,
    /// The node of the model that it is, or whose value it is.
    pub origin: NodeId,
    /// Who owns what of the value.
    pub distribution: Distribution,
    /// The ranks on which it lies, as a site of the placement.
    pub rank_set: usize,
    /// The stage that it belongs to.
    pub stage: usize,
    /// The block with which it is computed again for the backward pass.
    pub block: Option<usize>,
    /// Axes along which the value is a sum still due.
    pub partial: AxisSet,
    /// Axes along which the gradient is a sum still due, since each rank adds only what its own share
    /// of the readers' filters gives.
    pub partial_gradient: AxisSet,
    /// Layers of one group exchange halos only where tensors enter it.
    pub group: Option<usize>,
}

impl Layer {
    /// The operation of the model; a change of distribution has none.
    pub fn op(&self) -> Option<&Op> {
        match &self.step {
            Step::Layer(op) => Some(op),
            Step::Move => None,
        }
    }

    /// The kind of a loss, auxiliary or not.
    pub fn loss(&self) -> Option<Loss> {
        self.op().and_then(Op::loss)
    }
}

/// All layers, each after its inputs, and where the parameters lie.
#[derive(Clone)]
pub(crate) struct Network {
    pub layers: Vec<Layer>,
    /// Of each parameter of the model, as layers use it: once for each site with ranks of its own, those
    /// first that keep the state of the optimizer.
    pub parameters: Vec<Vec<Distribution>>,
    /// Of what is kept of it, in whatever of the training state is shared out.
    pub shares: Vec<Vec<Distribution>>,
    readers: Vec<Vec<LayerId>>,
    /// Of each node of the model.
    needs_gradient: Vec<bool>,
}

impl Network {
    /// Whether training needs the gradient is known of the nodes of the model.
    pub fn new(
        layers: Vec<Layer>,
        parameters: Vec<Vec<Distribution>>,
        shares: Vec<Vec<Distribution>>,
        needs_gradient: Vec<bool>,
    ) -> Self {
        let readers = readers(layers.iter().map(|layer| &layer.inputs[..]));
        Self {
            layers,
            parameters,
            shares,
            readers,
            needs_gradient,
        }
    }

    /// The same without what the loss does not depend on: auxiliary losses, and what only they read.
    /// Parameters stay.
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

    /// The same for one micro-batch, given by its first sample and their number.
    pub fn of_micro_batch(&self, samples: (usize, usize)) -> Self {
        let mut part = self.clone();
        for layer in &mut part.layers {
            layer.distribution.micro = Some(samples);
        }
        part
    }

    /// The same on the ranks of another replica.
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

    /// Whether a layer brings a tensor to other ranks of the same stage.
    pub fn reshards_within_stage(&self, id: LayerId) -> bool {
        let layer = self.layer(id);
        self.reshards(id) && self.layer(layer.inputs[0]).stage == layer.stage
    }

    /// Whether a layer brings a tensor to the ranks of another site.
    pub fn reshards(&self, id: LayerId) -> bool {
        let layer = self.layer(id);
        let is_move = matches!(layer.step, Step::Move);
        is_move && self.layer(layer.inputs[0]).distribution.submesh != layer.distribution.submesh
    }

    pub fn layer(&self, id: LayerId) -> &Layer {
        &self.layers[id.0]
    }

    /// Who reads a tensor, each once.
    pub fn readers(&self, id: LayerId) -> &[LayerId] {
        &self.readers[id.0]
    }

    /// Whether the gradient of a tensor is needed for that of a parameter.
    pub fn needs_gradient(&self, id: LayerId) -> bool {
        self.needs_gradient[self.layer(id).origin.0]
    }
}

/// Whether positions of the output are not those of the inputs, which each rank has whole.
pub(crate) fn reads_whole(op: &Op) -> bool {
    matches!(op, Op::Flatten | Op::Attention { .. })
}

/// Axes that split samples and positions; a sum over these is due along them.
pub(crate) fn positions(distribution: &Distribution) -> AxisSet {
    let sets = distribution.axes[..4].iter().map(|axes| axes.set());
    sets.fold(AxisSet::NONE, AxisSet::union)
}
