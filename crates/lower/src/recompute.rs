//! Blocks of layers whose values are dropped after the forward pass and computed again for the backward
//! pass: those that it reads, and those from which these come.
//!
//! Example: a block of two convolutions, each behind a batch norm and an activation, and a sum that is
//! read by the next block. The sum is kept, so what the last convolution gives it is not computed again:
//! the gradient of a sum is handed on without its inputs.

use crate::emit::Emit;
use crate::network::LayerId;
use partita_graph::Op;
use partita_program::Phase;

impl Emit<'_> {
    /// What is needed again backward of layers that are computed again is forgotten after them.
    pub(crate) fn forget(&mut self, layers: &[LayerId]) {
        for &id in layers {
            let storage = self.storages.of(id);
            // Another stage of the same ranks reads what it reads forward, too.
            let block = |id: &LayerId| self.layer(*id).block.map(|of| (of, self.layer(*id).stage));
            let first = block(&storage.members[0]);
            let last = storage.members[storage.members.len() - 1];
            let mut all = storage.members.iter().chain(self.network.readers(last));
            if first.is_some() && all.all(|id| block(id) == first) {
                self.values[self.storages.of[id.0]] = None;
            }
        }
    }

    /// Computes again what is needed of what has been forgotten of a block. Moments of a batch norm are
    /// known from the first time, and have entered the running statistics.
    pub(crate) fn recall(&mut self, block: usize, layers: &[LayerId]) {
        let needed = self.needed(block, layers);
        self.pass = Phase::Backward;
        let of_block = |id: &&LayerId| self.network.layer(**id).block == Some(block);
        let layers: Vec<LayerId> = layers.iter().filter(of_block).copied().collect();
        let turn = self.builder.turn;
        for id in layers {
            let is_here = self.enter(id);
            self.builder.turn = turn;
            if is_here && needed[self.storages.of[id.0]] {
                self.forward_layer(id);
                if self.storages.of(id).members.last() == Some(&id) {
                    self.complete_value(id);
                }
            }
        }
        self.pass = Phase::Forward;
    }

    /// Storages of a block that have been forgotten and that the backward pass reads, or that others of
    /// them are computed from.
    fn needed(&self, block: usize, layers: &[LayerId]) -> Vec<bool> {
        let is_missing = |index: usize| {
            let first = self.layer(self.storages.all[index].members[0]);
            let is_here = self.builder.is_in(first.distribution.submesh);
            first.block == Some(block) && is_here && self.values[index].is_none()
        };
        let mut needed = vec![false; self.storages.all.len()];
        for &id in layers.iter().rev() {
            let (layer, own) = (self.network.layer(id), self.storages.of[id.0]);
            let reads = if self.storages.all[own].has_gradient {
                layer.op().map_or(Backward::Neither, read_backward)
            } else {
                Backward::Neither
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
        | Op::Activation(_)
        | Op::Attention { .. } => Backward::Input,
        Op::Pool(pool) => {
            if pool.kind.backward_reads_input() {
                Backward::Input
            } else {
                Backward::Neither
            }
        }
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
