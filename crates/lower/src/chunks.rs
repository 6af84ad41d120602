//! Blocks of layers computed slab by slab, one after the other on each rank, so that what lies between their layers never
//! exists whole.
//!
//! Example: two convolutions and a pooling with `chunks=4` on 64 planes. For planes 8 to 15 of the pooling's output, a rank
//! computes planes 16 to 31 of the second convolution and 15 to 32 of the first, and copies the result to the whole output.
//! The next slab takes the same memory.
//!
//! Backward, each slab is computed again as far as its gradients read it, the gradient of its part of the output is copied,
//! and contributions to the gradients of weights and of what enters the block add up over slabs. A slab is to its rank what
//! a rank is to a halo group ([`crate::overlap`]): what two slabs compute is a copy of each, whose gradient holds what the
//! slab's own outputs contribute. So no sum counts anything twice, and nothing is exchanged inside.

use crate::emit::Emit;
use crate::network::{Chunks, LayerId};
use crate::slabs::{Block, Slab};
use partita_program::{Kernel, Phase};

impl Emit<'_> {
    /// The forward pass of a layer of a block: at the first one all slabs, at the copy of an output what follows it.
    pub(crate) fn forward_in_chunks(&mut self, id: LayerId, chunks: Chunks) {
        let storages = self.storages;
        let block = &storages.blocks[&chunks.block];
        if block.inner.first() == Some(&id) {
            let is_here = self.enter(id);
            self.forward_slabs(block, is_here);
        }
        if block.exits.contains(&id) {
            let is_here = self.enter(id);
            if is_here && self.storages.of(id).members.last() == Some(&id) {
                self.complete_value(id);
                self.send_values(id);
            }
        }
    }

    /// All in the turn of the first layer.
    fn forward_slabs(&mut self, block: &Block, is_here: bool) {
        let turn = self.builder.turn;
        self.gather_block(block, self.pass);
        for &exit in block.exits.iter().filter(|_| is_here) {
            self.hold_value(exit);
        }
        for number in 0..block.chunks.count {
            self.enter_slab(block, number);
            for &id in &block.inner {
                if self.enter_in_turn(id, turn) {
                    self.forward_whole_layer(id);
                }
            }
            for &exit in block.exits.iter().filter(|_| is_here) {
                let layer = self.layer(exit).name.clone();
                let part = self.state().gradients.of_exit(exit);
                let source = self.value(self.layer(exit).inputs[0]).view(&part);
                let target = self.value(exit).view(&part);
                self.copy(&layer, source, target);
            }
            self.leave_slab(block);
        }
        self.gathered.clear();
    }

    /// The backward pass of a layer of a block: gradients of whole outputs are completed, and at the last layer comes that
    /// of all slabs.
    pub(crate) fn backward_in_chunks(&mut self, id: LayerId, chunks: Chunks) {
        let storages = self.storages;
        let block = &storages.blocks[&chunks.block];
        let has_gradient = storages.of(id).has_gradient;
        if block.exits.contains(&id) {
            let is_last = storages.of(id).members.last() == Some(&id);
            if has_gradient && self.enter(id) && is_last {
                self.receive_gradients(id);
                self.complete_gradient(id);
            }
        } else if block.inner.last() == Some(&id) {
            let mut all = block.inner.iter();
            if all.any(|id| storages.of(*id).has_gradient) {
                let is_here = self.enter(id);
                self.backward_slabs(block, is_here);
            }
        }
    }

    /// All in the turn of the last layer. Gradients of weights are not deferred, as slabs do not stay in memory.
    fn backward_slabs(&mut self, block: &Block, is_here: bool) {
        let turn = self.builder.turn;
        let deferring = self.gradients.deferring.take();
        self.gather_block(block, Phase::Backward);
        for number in 0..block.chunks.count {
            self.enter_slab(block, number);
            self.recompute_slab(block, turn);
            for &exit in block.exits.iter().rev().filter(|_| is_here) {
                self.copy_gradient_of_slab(exit);
            }
            for &id in block.inner.iter().rev() {
                let has_gradient = self.storages.of(id).has_gradient;
                if has_gradient && self.enter_in_turn(id, turn) {
                    if self.storages.of(id).members.last() == Some(&id) {
                        self.complete_gradient(id);
                    }
                    self.backward_layer(id);
                }
            }
            self.leave_slab(block);
        }
        self.gathered.clear();
        self.gradients.deferring = deferring;
    }

    /// Enters a layer in the turn of its block; false if the rank does not run it.
    fn enter_in_turn(&mut self, id: LayerId, turn: u32) -> bool {
        let is_here = self.enter(id);
        self.builder.turn = turn;
        is_here
    }

    /// Gathers the sharded parameters of a block, once for all slabs.
    fn gather_block(&mut self, block: &Block, phase: Phase) {
        let turn = self.builder.turn;
        self.gathered.clear();
        for &id in &block.inner {
            if self.enter_in_turn(id, turn) {
                self.gather_more(id, phase);
            }
        }
    }

    fn enter_slab(&mut self, block: &Block, number: usize) {
        let first = self.layer(block.inner[0]).distribution.submesh;
        let slab = if self.builder.is_in(first) {
            let of = |id: LayerId| [self.owned(id), self.present(id)];
            Slab::new(block, self.network, number, of)
        } else {
            Slab::default()
        };
        self.state_mut().gradients.enter_slab(slab);
    }

    /// Lets go of what the slab has computed.
    fn leave_slab(&mut self, block: &Block) {
        let storages = self.storages;
        let state = self.state_mut();
        for id in &block.inner {
            state.values[storages.of[id.0]] = None;
        }
        state.gradients.leave_slab(&block.inner);
    }

    /// Computes what the backward pass of a slab reads.
    fn recompute_slab(&mut self, block: &Block, turn: u32) {
        let storages = self.storages;
        let is_inner = |index: usize| block.inner.contains(&storages.all[index].members[0]);
        let needed = self.needed(&block.inner, is_inner);
        self.pass = Phase::Backward;
        for &id in &block.inner {
            let is_here = self.enter_in_turn(id, turn);
            if is_here && needed[storages.of[id.0]] {
                self.forward_whole_layer(id);
            }
        }
        self.pass = Phase::Forward;
    }

    /// The slab's part of the gradient of an output.
    fn copy_gradient_of_slab(&mut self, exit: LayerId) {
        let input = self.layer(exit).inputs[0];
        let part = self.state().gradients.of_exit(exit);
        if !self.storages.of(input).has_gradient || part.is_empty() {
            return;
        }
        let layer = self.layer(exit).name.clone();
        let source = self.gradient(exit).view(&part);
        let (target, accumulate) = self.contribute(input, &part);
        let copy = Kernel::Copy {
            source,
            target,
            accumulate,
        };
        self.builder.kernel(&layer, Phase::Backward, copy);
    }
}
