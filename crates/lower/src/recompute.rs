//! Activation checkpointing: activations of a block of layers are freed after the forward pass and recomputed
//! for the backward pass, as far as it reads them.
//!
//! Example: a block of two convolutions, each with batch norm and activation, and a sum that the next block
//! reads. The sum is kept, and the output of the last convolution is not recomputed, as the gradient of a sum
//! does not depend on its inputs.

use crate::emit::Emit;
use crate::network::LayerId;
use crate::selective::{Backward, read_backward};
use partita_program::Phase;

impl Emit<'_> {
    /// Frees the activations of recomputed layers after their forward pass.
    pub(crate) fn free_activations(&mut self, layers: &[LayerId]) {
        for &id in layers {
            let storage = self.storages.of(id);
            // Another stage on the same ranks may read it in its forward pass.
            let block = |id: &LayerId| self.layer(*id).block.map(|of| (of, self.layer(*id).stage));
            let first = block(&storage.members[0]);
            let last = storage.members[storage.members.len() - 1];
            let mut all = storage.members.iter().chain(self.network.readers(last));
            if first.is_some() && all.all(|id| block(id) == first) {
                let index = self.storages.of[id.0];
                self.state_mut().values[index] = None;
            }
        }
    }

    /// Recomputes the activations of a block that its backward pass needs. Statistics of batch norms are kept
    /// from the forward pass, which has updated the running statistics.
    pub(crate) fn recompute(&mut self, block: usize, layers: &[LayerId]) {
        let is_missing = |index: usize| {
            let first = self.layer(self.storages.all[index].members[0]);
            let is_here = self.builder.is_in(first.distribution.submesh);
            first.block == Some(block) && is_here && self.state().values[index].is_none()
        };
        let needed = self.needed(layers, is_missing);
        self.pass = Phase::Backward;
        let of_block = |id: &&LayerId| self.network.layer(**id).block == Some(block);
        let layers: Vec<LayerId> = layers.iter().filter(of_block).copied().collect();
        let turn = self.builder.turn;
        for id in layers {
            let is_here = self.enter(id);
            self.builder.turn = turn;
            if is_here && needed[self.storages.of[id.0]] {
                self.forward_whole_layer(id);
            }
        }
        self.pass = Phase::Forward;
    }

    /// Missing storages of some layers that their backward pass reads, or that are inputs of their recomputation.
    pub(crate) fn needed(
        &self,
        layers: &[LayerId],
        is_missing: impl Fn(usize) -> bool,
    ) -> Vec<bool> {
        let mut needed = vec![false; self.storages.all.len()];
        for &id in layers.iter().rev() {
            let (layer, own) = (self.network.layer(id), self.storages.of[id.0]);
            let reads = if self.storages.all[own].has_gradient && !self.keeps_statistics(id) {
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

    /// Drops what is computed again.
    pub(crate) fn drop_selected(&mut self, layers: &[LayerId]) {
        let (plan, storages) = (self.plan, self.storages);
        for &index in &plan.selective.dropped {
            let first = storages.all[index].members[0];
            if layers.binary_search(&first).is_ok() {
                self.state_mut().values[index] = None;
            }
        }
    }

    /// Computes again what the backward pass of a layer reads, in its turn.
    pub(crate) fn restore_for(&mut self, id: LayerId) {
        let plan = self.plan;
        let Some(again) = plan.selective.restored.get(&id) else {
            return;
        };
        self.enter(id);
        let turn = self.builder.turn;
        self.pass = Phase::Backward;
        for &one in again {
            let is_here = self.enter(one);
            self.builder.turn = turn;
            if is_here {
                self.forward_whole_layer(one);
            }
        }
        self.pass = Phase::Forward;
    }

    /// Drops what no backward pass reads soon after that of a layer.
    pub(crate) fn release_after(&mut self, id: LayerId) {
        let plan = self.plan;
        for &index in plan.selective.released.get(&id).into_iter().flatten() {
            self.state_mut().values[index] = None;
        }
    }
}
