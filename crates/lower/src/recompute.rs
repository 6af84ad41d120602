//! Blocks of layers whose values are dropped after the forward pass and computed again for the backward
//! pass: those that it reads, and those from which these come.
//!
//! Example: a block of two convolutions, each behind a batch norm and an activation, and a sum that is
//! read by the next block. The sum is kept, so what the last convolution gives it is not computed again:
//! the gradient of a sum is handed on without its inputs.

use crate::lowering::Emit;
use partita_graph::{NodeId, Op, PoolKind};
use partita_program::Phase;

impl Emit<'_> {
    /// What is needed again backward of layers that are computed again is forgotten after them.
    pub(crate) fn forget(&mut self) {
        for (index, storage) in self.storages.all.iter().enumerate() {
            let block = |id: &NodeId| self.layer(*id).block;
            let first = block(&storage.members[0]);
            let last = storage.members[storage.members.len() - 1];
            let mut all = storage.members.iter().chain(self.network.readers(last));
            if first.is_some() && all.all(|id| block(id) == first) {
                self.values[index] = None;
            }
        }
    }

    /// Computes again what is needed of what has been forgotten of a block. Moments of a batch norm are
    /// known from the first time, and have entered the running statistics.
    pub(crate) fn recall(&mut self, block: usize) {
        let needed = self.needed(block);
        self.pass = Phase::Backward;
        for index in 0..self.network.layers.len() {
            let id = NodeId(index);
            if needed[self.storages.of[index]] {
                self.forward_node(id);
                if self.storages.of(id).members.last() == Some(&id) {
                    self.complete_value(id);
                }
            }
        }
        self.pass = Phase::Forward;
    }

    /// Storages of a block that have been forgotten and that the backward pass reads, or that others of
    /// them are computed from.
    fn needed(&self, block: usize) -> Vec<bool> {
        let is_missing = |index: usize| {
            let first = self.layer(self.storages.all[index].members[0]);
            first.block == Some(block) && self.values[index].is_none()
        };
        let mut needed = vec![false; self.storages.all.len()];
        for index in (0..self.network.layers.len()).rev() {
            let (layer, own) = (&self.network.layers[index], self.storages.of[index]);
            let reads = match self.storages.all[own].has_gradient {
                true => layer.op().map_or(Backward::Neither, read_backward),
                false => Backward::Neither,
            };
            needed[own] |= reads == Backward::Output && is_missing(own);
            if needed[own] || reads == Backward::Input {
                for input in &layer.inputs {
                    let input = self.storages.of[input.0];
                    needed[input] |= is_missing(input);
                }
            }
        }
        needed
    }
}

/// What the backward pass of a layer reads of its values.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Backward {
    Input,
    Output,
    Neither,
}

fn read_backward(op: &Op) -> Backward {
    match op {
        Op::Convolution(_)
        | Op::TransposedConvolution(_)
        | Op::Linear { .. }
        | Op::BatchNorm { .. }
        | Op::Embedding { .. }
        | Op::LayerNorm { .. }
        | Op::Gelu
        | Op::Attention { .. } => Backward::Input,
        Op::Pool(pool) => match pool.kind {
            PoolKind::Max => Backward::Input,
            PoolKind::Average { .. } => Backward::Neither,
        },
        Op::LeakyRelu { .. } => Backward::Output,
        Op::Input
        | Op::Dropout { .. }
        | Op::Flatten
        | Op::Add
        | Op::Concat
        | Op::Slice { .. }
        | Op::Positions
        | Op::Loss(_)
        | Op::AuxiliaryLoss { .. } => Backward::Neither,
    }
}
