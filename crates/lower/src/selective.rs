//! Selective recomputation: cheap activations are dropped after the forward pass, and each is computed again right before
//! the backward pass of a layer that reads it.
//!
//! Cheap are norms, activations, concatenations and the like. What they are computed from is kept: outputs of layers with
//! weights, sums and poolings. So no convolution runs again, and a convolution, its norm and its activation keep one tensor
//! instead of two.
//!
//! Example: of `conv1, bn1, relu1, conv2` the output of `conv1` is kept, as the backward pass of `bn1` reads it. That of
//! `relu1`, which shares its buffer with `bn1`, is dropped, and computed again for the backward passes of `conv2` and `relu1`.
//! Where a later concatenation reads it, too, it is dropped again between both.
//! Source of the idea: Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models (2022).

use crate::network::{LayerId, Network};
use crate::storage::{Storage, Storages};
use partita_graph::{Graph, Op, Resample};
use std::collections::BTreeMap;

/// Most storages one after the other that are computed again for one layer.
const DEPTH_MAX: usize = 3;
/// A storage is kept if what it is computed from, and would not be kept otherwise, is more than one in this many parts as large.
/// While it is computed again, both are in memory.
const COST_FACTOR: u128 = 4;
/// Between two backward passes that read a storage, it stays in memory over at most this many layers with weights. The
/// branches of an Inception block read one tensor with fewer between them; those of a skip connection have more.
const WEIGHTED_BETWEEN: usize = 4;

/// Activations that are dropped, and when they are computed again. The same on all ranks and for all micro-batches.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Selective {
    /// Storages that are dropped after the forward pass.
    pub dropped: Vec<usize>,
    /// By layer, the layers that run again before its backward pass, in the order of the network.
    pub restored: BTreeMap<LayerId, Vec<LayerId>>,
    /// By layer, the storages that are dropped after its backward pass.
    pub released: BTreeMap<LayerId, Vec<usize>>,
}

impl Selective {
    pub fn new(graph: &Graph, (network, storages): &(Network, Storages)) -> Self {
        if network.layers.iter().all(|layer| !layer.selective) {
            return Self::default();
        }
        let search = Search::new(graph, network, (&storages.of, &storages.all));
        search.in_backward(&search.cheap())
    }
}

/// A storage that may be computed again.
#[derive(Clone, Copy, Default)]
struct Cheap {
    /// Storages that are computed one after the other for it, itself included; 0 if it is kept.
    depth: usize,
    /// Elements of what it is computed from that would not be kept otherwise.
    cost: u128,
}

struct Search<'a> {
    network: &'a Network,
    of: &'a [usize],
    all: &'a [Storage],
    /// By layer, the storages that its backward pass reads.
    reads: Vec<Vec<usize>>,
    /// By storage, the layers whose backward pass reads it, in the order of the network.
    readers: Vec<Vec<LayerId>>,
    /// By storage, those that it is computed from.
    inputs: Vec<Vec<usize>>,
}

impl<'a> Search<'a> {
    fn new(graph: &Graph, network: &'a Network, (of, all): (&'a [usize], &'a [Storage])) -> Self {
        let mut search = Self {
            network,
            of,
            all,
            reads: Vec::with_capacity(of.len()),
            readers: vec![Vec::new(); all.len()],
            inputs: Vec::with_capacity(all.len()),
        };
        for (at, layer) in network.layers.iter().enumerate() {
            let own = of[at];
            let is_run = all[own].has_gradient && layer.loss().is_none();
            let keeps = || graph.keeps_statistics(&layer.parameters);
            let mut reads = match layer.op().map_or(Backward::Neither, read_backward) {
                Backward::Input if is_run && !keeps() => {
                    layer.inputs.iter().map(|input| of[input.0]).collect()
                }
                Backward::Output if is_run => vec![own],
                Backward::Input | Backward::Output | Backward::Neither => Vec::new(),
            };
            reads.sort_unstable();
            reads.dedup();
            for &storage in &reads {
                search.readers[storage].push(LayerId(at));
            }
            search.reads.push(reads);
        }
        for (index, storage) in all.iter().enumerate() {
            let inputs = storage.members.iter();
            let inputs = inputs.flat_map(|id| &network.layer(*id).inputs);
            let mut inputs: Vec<usize> = inputs.map(|id| of[id.0]).collect();
            inputs.retain(|&input| input != index);
            inputs.sort_unstable();
            inputs.dedup();
            search.inputs.push(inputs);
        }
        search
    }

    /// By storage, whether it is computed again rather than kept.
    fn cheap(&self) -> Vec<bool> {
        let mut cheap = vec![Cheap::default(); self.all.len()];
        let mut is_kept: Vec<bool> = self.readers.iter().map(|all| !all.is_empty()).collect();
        for index in 0..self.all.len() {
            if !self.may_run_again(index) {
                continue;
            }
            let inputs = &self.inputs[index];
            let depth = 1 + inputs.iter().map(|&at| cheap[at].depth).max().unwrap_or(0);
            let cost = inputs.iter().map(|&at| {
                let of = if cheap[at].depth > 0 {
                    cheap[at].cost
                } else {
                    self.elements(at)
                };
                if is_kept[at] { 0 } else { of }
            });
            let cost = cost.sum::<u128>();
            let is_read = !self.readers[index].is_empty();
            if depth > DEPTH_MAX || is_read && COST_FACTOR * cost > self.elements(index) {
                continue;
            }
            cheap[index] = Cheap { depth, cost };
            if is_read {
                self.keep_inputs(index, &cheap, &mut is_kept);
            }
        }
        cheap.into_iter().map(|one| one.depth > 0).collect()
    }

    /// Keeps what a storage is computed from.
    fn keep_inputs(&self, index: usize, cheap: &[Cheap], is_kept: &mut [bool]) {
        for &input in &self.inputs[index] {
            if !is_kept[input] {
                is_kept[input] = true;
                if cheap[input].depth > 0 {
                    self.keep_inputs(input, cheap, is_kept);
                }
            }
        }
    }

    fn elements(&self, index: usize) -> u128 {
        let distribution = self.all[index].value.distribution;
        distribution
            .shape
            .iter()
            .map(|&extent| extent as u128)
            .product()
    }

    /// Whether the layers of a storage are cheap, and those that read it, or that it reads, have nothing to do with blocks.
    fn may_run_again(&self, index: usize) -> bool {
        let (network, members) = (self.network, &self.all[index].members);
        let first = network.layer(members[0]);
        let is_plain = |id: &LayerId| {
            let layer = network.layer(*id);
            layer.block.is_none() && layer.chunks.is_none()
        };
        let is_near = |id: &LayerId| {
            let layer = network.layer(*id);
            layer.stage == first.stage && is_plain(id)
        };
        let inputs = members.iter().flat_map(|id| &network.layer(*id).inputs);
        let own = members.iter().all(|id| {
            let layer = network.layer(*id);
            layer.selective && layer.op().is_some_and(is_cheap) && is_plain(id)
        });
        let readers = network.readers(members[members.len() - 1]);
        own && readers.iter().all(is_near) && inputs.copied().all(|id| is_near(&id))
    }

    /// What runs again in the backward pass, the last layers first.
    fn in_backward(&self, is_cheap: &[bool]) -> Selective {
        let mut found = Selective {
            dropped: (0..self.all.len()).filter(|&at| is_cheap[at]).collect(),
            ..Selective::default()
        };
        let mut weighted = Vec::with_capacity(self.of.len());
        let mut count = 0;
        for layer in &self.network.layers {
            weighted.push(count);
            count += usize::from(layer.op().is_some_and(Op::has_weights));
        }
        let mut present: Vec<usize> = Vec::new();
        for at in (0..self.of.len()).rev() {
            let mut again = Vec::new();
            for &storage in &self.reads[at] {
                self.restore(storage, is_cheap, (&mut present, &mut again));
            }
            if !again.is_empty() {
                found.restored.insert(LayerId(at), again);
            }
            let stage = self.network.layers[at].stage;
            let stays = |storage: &usize| {
                let first = self.network.layer(self.all[*storage].members[0]);
                let mut earlier = self.readers[*storage].iter().rev();
                let next = earlier.find(|reader| reader.0 < at);
                first.stage != stage
                    || next
                        .is_some_and(|next| weighted[at] - weighted[next.0 + 1] <= WEIGHTED_BETWEEN)
            };
            let released: Vec<usize> = present.iter().copied().filter(|one| !stays(one)).collect();
            if !released.is_empty() {
                present.retain(stays);
                found.released.insert(LayerId(at), released);
            }
        }
        found
    }

    /// Appends the layers of a storage that is missing, after those that it is computed from.
    fn restore(
        &self,
        index: usize,
        is_cheap: &[bool],
        (present, again): (&mut Vec<usize>, &mut Vec<LayerId>),
    ) {
        if !is_cheap[index] || present.contains(&index) {
            return;
        }
        for &input in &self.inputs[index] {
            self.restore(input, is_cheap, (&mut *present, &mut *again));
        }
        present.push(index);
        again.extend(&self.all[index].members);
    }
}

/// Whether an operation takes little time for what it writes.
fn is_cheap(op: &Op) -> bool {
    match op {
        Op::BatchNorm { .. }
        | Op::GroupNorm { .. }
        | Op::LayerNorm { .. }
        | Op::LeakyRelu { .. }
        | Op::Prelu(_)
        | Op::Activation(_)
        | Op::Dropout { .. }
        | Op::Multiply
        | Op::Concat
        | Op::Slice { .. }
        | Op::ChannelShuffle { .. } => true,
        Op::Resample(resample) => matches!(resample, Resample::Upsample { .. }),
        Op::Input
        | Op::Features
        | Op::Convolution(_)
        | Op::TransposedConvolution(_)
        | Op::Linear { .. }
        | Op::Attention { .. }
        | Op::Pool(_)
        | Op::Softmax
        | Op::Flatten
        | Op::Reshape { .. }
        | Op::Add
        | Op::Embedding { .. }
        | Op::Positions
        | Op::PositionEmbedding { .. }
        | Op::Loss(_)
        | Op::AuxiliaryLoss { .. } => false,
    }
}

/// Which activations the backward pass of a layer reads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backward {
    Input,
    Output,
    Neither,
}

pub(crate) fn read_backward(op: &Op) -> Backward {
    match op {
        Op::Convolution(_)
        | Op::TransposedConvolution(_)
        | Op::Linear { .. }
        | Op::BatchNorm { .. }
        | Op::Embedding { .. }
        | Op::LayerNorm { .. }
        | Op::Multiply
        | Op::Prelu(_)
        | Op::GroupNorm { .. }
        | Op::Activation(_)
        | Op::Attention { .. } => Backward::Input,
        Op::Pool(pool) => {
            if pool.kind.backward_reads_input() {
                Backward::Input
            } else {
                Backward::Neither
            }
        }
        Op::LeakyRelu { .. } | Op::Softmax => Backward::Output,
        Op::Input
        | Op::Features
        | Op::Resample(_)
        | Op::Dropout { .. }
        | Op::Flatten
        | Op::Reshape { .. }
        | Op::Add
        | Op::Concat
        | Op::Slice { .. }
        | Op::ChannelShuffle { .. }
        | Op::Positions
        | Op::PositionEmbedding { .. }
        | Op::Loss(_)
        | Op::AuxiliaryLoss { .. } => Backward::Neither,
    }
}
