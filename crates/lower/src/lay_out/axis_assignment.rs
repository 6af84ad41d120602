//! Assignment of axes to the filters and channels of a layer, where the strategy does not specify it.
//!
//! Example: an input split by filter+channel is gathered along channel if the two axes are swapped, and the
//! output is then split by channel+filter. Where the output is added to a tensor split by filter+channel, one
//! of them has to be moved; if the input is smaller, as in the last layer of a bottleneck, that one is.

use super::{Axes, Layout};
use crate::redistribute::moved;
use partita_graph::{NodeId, Op};
use partita_program::Distribution;
use partita_space::{AxisList, AxisSet};

impl Layout<'_> {
    /// Whether the axes of filters and channels are swapped, so that the input need not be redistributed, or,
    /// where the value is added to another one, so that less is moved before and after the layer.
    pub(super) fn swaps_axes(
        &self,
        id: NodeId,
        known: &Axes,
        axes: &Axes,
        (filters, channels): (AxisList, AxisList),
    ) -> bool {
        let stays =
            known[4].strip_prefix(channels).is_none() && known[4].strip_prefix(filters).is_some();
        let other = self.added_to(id);
        let Some(other) = other.filter(|_| !filters.is_empty() && !channels.is_empty()) else {
            return stays;
        };
        let as_usual = self.elements_moved(id, known, axes, (filters, channels), other);
        let turned = self.elements_moved(id, known, axes, (channels, filters), other);
        if as_usual == turned {
            return stays;
        }
        turned < as_usual
    }

    /// Elements moved, forward and backward, by the redistributions before and after a layer.
    fn elements_moved(
        &self,
        id: NodeId,
        known: &Axes,
        axes: &Axes,
        (filters, channels): (AxisList, AxisList),
        other: Axes,
    ) -> f64 {
        let distribution = |id: NodeId, axes: Axes| {
            let shape = self.graph.node(id).shape.batched(self.batch);
            Distribution {
                axes,
                ..Distribution::replicated(shape)
            }
        };
        let of_channels = |list: AxisList| {
            let mut axes = *axes;
            axes[4] = list;
            axes
        };
        // `partial` is of the value and of the gradient.
        let both_ways = |id, from: Axes, to: Axes, partial: [AxisSet; 2]| {
            let (from, to) = (distribution(id, from), distribution(id, to));
            self.elements(&from, partial[0], &to) + self.elements(&to, partial[1], &from)
        };
        let input = self.graph.node(id).inputs[0];
        let reads = of_channels(channels);
        let is_there = self.of.get(input.0).is_some_and(|&x| {
            let key = (
                x,
                self.rank_set,
                reads,
                filters.set(),
                self.needs_periodic_copy(id, x),
            );
            let is_moved = self.moves.contains_key(&key);
            is_moved && self.layers[x.0].distribution.axes == *known
        });
        let before = if is_there {
            0.0
        } else {
            both_ways(input, *known, reads, [AxisSet::NONE, filters.set()])
        };
        let made = of_channels(filters.then(channels));
        let sum = [channels.set(), AxisSet::NONE];
        before
            + both_ways(id, of_channels(filters), made, sum)
            + both_ways(id, made, other, [AxisSet::NONE; 2])
    }

    /// As [`moved`], cached since the blocks of a network are alike.
    fn elements(&self, from: &Distribution, partial: AxisSet, to: &Distribution) -> f64 {
        let key = (self.mesh, *from, partial, *to);
        let mut known = self.moved.borrow_mut();
        *known
            .entry(key)
            .or_insert_with(|| moved(&self.mesh, from, partial, to))
    }

    /// The axes of the tensor to which the value of a layer is added, if it is known and all layers between
    /// keep the distribution.
    fn added_to(&self, mut id: NodeId) -> Option<Axes> {
        loop {
            let &[reader] = &self.readers[id.0][..] else {
                return None;
            };
            if self.placement.rank_set_of[reader.0] != self.placement.rank_set_of[id.0] {
                return None;
            }
            let node = self.graph.node(reader);
            match &node.op {
                Op::Add => {
                    let other = node.inputs.iter().find(|&&input| input != id)?;
                    let other = &self.layers[self.of.get(other.0)?.0];
                    let is_here = other.distribution.submesh
                        == self.placement.rank_sets[self.rank_set].submeshes[0];
                    return is_here.then_some(other.distribution.axes);
                }
                Op::BatchNorm { .. }
                | Op::LeakyRelu { .. }
                | Op::Prelu(_)
                | Op::Dropout { .. }
                | Op::Positions
                | Op::PositionEmbedding { .. }
                | Op::LayerNorm { .. }
                | Op::GroupNorm { .. }
                | Op::Activation(_) => id = reader,
                Op::Input
                | Op::Features
                | Op::Convolution(_)
                | Op::TransposedConvolution(_)
                | Op::Pool(_)
                | Op::Resample(_)
                | Op::Linear { .. }
                | Op::Flatten
                | Op::Reshape { .. }
                | Op::Multiply
                | Op::Softmax
                | Op::Concat
                | Op::Slice { .. }
                | Op::ChannelShuffle { .. }
                | Op::Embedding { .. }
                | Op::Attention { .. }
                | Op::Loss(_)
                | Op::AuxiliaryLoss { .. } => return None,
            }
        }
    }
}
