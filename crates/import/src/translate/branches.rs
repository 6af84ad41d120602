//! Tensors of several branches: stacked, summed and weighed; and operators on two tensors of different extents.
//!
//! Example: selective kernels stack two branches, and weigh them by a softmax over the two.

use super::{Fault, Tensor, Translation, reason};
use crate::layout::{Axis, Layout};
use crate::network::{BLOCK_MAX, Call};
use partita_graph::{Activation, Interpolation, NodeId, Op, Pool, PoolKind, Resample};
use partita_space::Window;

const NEGATIVE: Activation = Activation::Affine {
    scale: -1.0,
    shift: 0.0,
};

impl Translation<'_> {
    /// Channels of the inputs one after the other, the number of the input as a dim of its own.
    pub(super) fn stack(&mut self, call: &Call, dim: usize) -> Result<Tensor, Fault> {
        let tensors = self.tensors(call)?;
        let Some(first) = tensors.first().cloned() else {
            return reason("it reads nothing");
        };
        let shape = self.shape(&first);
        let plain = Layout::image(shape, self.rank);
        let is_alike = |one: &Tensor| one.layout == plain && self.shape(one) == shape;
        if !tensors.iter().all(is_alike) {
            return reason("only images are stacked");
        }
        let nodes: Vec<NodeId> = tensors.iter().map(|one| one.node).collect();
        let node = match nodes[..] {
            [only] => only,
            _ => self.plain(call, Op::Concat, &nodes)?,
        };
        let stacked = Layout::image(self.builder.shape(node), self.rank);
        // The new dim, as if it stood before channels, is moved to its place.
        let mut sizes = self.output_extents(call).to_vec();
        if sizes.len() != plain.dims() + 1 || dim >= sizes.len() {
            return reason("it stacks in a way that is not read");
        }
        let mut order: Vec<usize> = (0..sizes.len()).collect();
        order.remove(1);
        order.insert(dim, 1);
        let blocks = sizes.remove(dim);
        sizes.insert(1, blocks);
        let layout = stacked.reshaped(self.builder.shape(node), self.samples, &sizes);
        let layout = layout.and_then(|one| one.permuted(&order));
        let layout =
            layout.ok_or_else(|| Fault::Reason("it stacks in a way that is not read".into()))?;
        Ok(Tensor { node, layout })
    }

    /// All inputs of a call.
    pub(super) fn tensors(&self, call: &Call) -> Result<Vec<Tensor>, Fault> {
        (0..call.inputs.len())
            .map(|index| self.tensor(call, index))
            .collect()
    }

    /// Sum over dims of space, or over a dim that counts blocks of channels.
    pub(super) fn sum_over(
        &mut self,
        call: &Call,
        dims: &[usize],
        tensor: &Tensor,
    ) -> Result<Tensor, Fault> {
        if let [dim] = *dims
            && let Some(blocks) = self.blocks(tensor, dim)
        {
            return self.sum_of_blocks(call, (dim, blocks), tensor);
        }
        let mean = PoolKind::AverageInside;
        let found = self.reduce(call, (mean, dims), tensor)?;
        let volume = |one: &Tensor| self.shape(one).volume();
        let scale = (volume(tensor) / volume(&found)) as f64;
        let function = Activation::Affine { scale, shift: 0.0 };
        self.function(call, Op::Activation(function), &found)
    }

    /// Blocks of channels that a dim counts, and channels of one; none if it is another dim.
    fn blocks(&self, tensor: &Tensor, dim: usize) -> Option<(usize, usize)> {
        let channels = self.shape(tensor).channels;
        match *tensor.layout.axes(dim) {
            [Axis::Part { stride, extent }] if stride * extent == channels => {
                Some((extent, stride))
            }
            // One channel in each block.
            [Axis::Channel] if tensor.layout.dims() > self.rank + 2 && dim <= 1 => {
                Some((channels, 1))
            }
            _ => None,
        }
    }

    /// Mean over a dim that counts blocks of channels; none where it is another dim.
    pub(super) fn mean_of_blocks(
        &mut self,
        call: &Call,
        dims: &[usize],
        tensor: &Tensor,
    ) -> Result<Option<Tensor>, Fault> {
        let &[dim] = dims else { return Ok(None) };
        let Some(blocks) = self.blocks(tensor, dim) else {
            return Ok(None);
        };
        let sum = self.sum_of_blocks(call, (dim, blocks), tensor)?;
        let scale = 1.0 / blocks.0 as f64;
        let function = Activation::Affine { scale, shift: 0.0 };
        self.function(call, Op::Activation(function), &sum)
            .map(Some)
    }

    fn sum_of_blocks(
        &mut self,
        call: &Call,
        (dim, (blocks, channels)): (usize, (usize, usize)),
        tensor: &Tensor,
    ) -> Result<Tensor, Fault> {
        let keeps = self.output_extents(call).len() == tensor.layout.dims();
        let mut sum = None;
        for block in 0..blocks {
            let start = block * channels;
            let part = self.plain(call, Op::Slice { start, channels }, &[tensor.node])?;
            sum = Some(match sum {
                None => part,
                Some(sum) => self.plain(call, Op::Add, &[sum, part])?,
            });
        }
        let Some(node) = sum else {
            return reason("it sums nothing");
        };
        let layout = tensor.layout.reduced(&[dim], keeps).within(channels);
        Ok(Tensor { node, layout })
    }

    /// Softmax over a dim that counts two blocks of channels: the sigmoid of their difference, and of its negative.
    pub(super) fn softmax(
        &mut self,
        call: &Call,
        dim: usize,
        tensor: &Tensor,
    ) -> Result<Tensor, Fault> {
        match self.blocks(tensor, dim) {
            Some((2, channels)) => {
                let half = |start| Op::Slice { start, channels };
                let first = self.plain(call, half(0), &[tensor.node])?;
                let second = self.plain(call, half(channels), &[tensor.node])?;
                let negative = self.plain(call, Op::Activation(NEGATIVE), &[second])?;
                let difference = self.plain(call, Op::Add, &[first, negative])?;
                let sigmoid = Op::Activation(Activation::Sigmoid);
                let one = self.plain(call, sigmoid.clone(), &[difference])?;
                let negative = self.plain(call, Op::Activation(NEGATIVE), &[difference])?;
                let other = self.plain(call, sigmoid, &[negative])?;
                let node = self.plain(call, Op::Concat, &[one, other])?;
                let layout = tensor.layout.clone();
                Ok(Tensor { node, layout })
            }
            Some(_) if *tensor.layout.axes(dim) != [Axis::Channel] => {
                reason("a softmax over more than two blocks of channels is not read")
            }
            _ if *tensor.layout.axes(dim) == [Axis::Channel] => {
                self.function(call, Op::Softmax, tensor)
            }
            _ => reason("a softmax over another dim than channels is not read"),
        }
    }

    /// The larger or smaller of two tensors: half their sum and half of what they differ by. At a tie each gets half of the
    /// gradient, as in PyTorch.
    pub(super) fn extreme(&mut self, call: &Call, is_maximum: bool) -> Result<Tensor, Fault> {
        let (left, right) = (self.tensor(call, 0)?, self.tensor(call, 1)?);
        let sum = self.sum(call, &left, &right)?;
        let relu = Op::LeakyRelu {
            negative_slope: 0.0,
        };
        let negated = self.plain(call, Op::Activation(NEGATIVE), &[right.node])?;
        let difference = self.plain(call, Op::Add, &[left.node, negated])?;
        let above = self.plain(call, relu.clone(), &[difference])?;
        let below = self.plain(call, Op::Activation(NEGATIVE), &[difference])?;
        let below = self.plain(call, relu, &[below])?;
        let mut distance = self.plain(call, Op::Add, &[above, below])?;
        if !is_maximum {
            distance = self.plain(call, Op::Activation(NEGATIVE), &[distance])?;
        }
        let node = self.plain(call, Op::Add, &[sum.node, distance])?;
        let half = Activation::Affine {
            scale: 0.5,
            shift: 0.0,
        };
        let node = self.plain(call, Op::Activation(half), &[node])?;
        let layout = sum.layout;
        Ok(Tensor { node, layout })
    }

    /// A tensor with one position at all positions of an image.
    pub(super) fn spread(
        &mut self,
        call: &Call,
        tensor: &Tensor,
        extent: [usize; 3],
    ) -> Result<Tensor, Fault> {
        let upsample = Resample::Upsample {
            factors: extent,
            interpolation: Interpolation::Nearest,
        };
        let node = self.plain(call, Op::Resample(upsample), &[tensor.node])?;
        Ok(self.image(node))
    }

    /// Two images, one of which has one position: that one at all positions of the other.
    pub(super) fn at_equal_extents(
        &mut self,
        call: &Call,
        left: &Tensor,
        right: &Tensor,
    ) -> Result<(Tensor, Tensor), Fault> {
        let (one, other) = (self.shape(left).extent, self.shape(right).extent);
        let are_images = [left, right].into_iter().all(|tensor| {
            let dims = tensor.layout.dims();
            dims == self.rank + 2 && tensor.layout.is_image(self.shape(tensor), self.rank)
        });
        if !are_images || one == other {
            return Ok((left.clone(), right.clone()));
        }
        if one == [1; 3] {
            return Ok((self.spread(call, left, other)?, right.clone()));
        }
        if other == [1; 3] {
            return Ok((left.clone(), self.spread(call, right, one)?));
        }
        Ok((left.clone(), right.clone()))
    }

    /// The product of each channel of `channels`, which has one position, and each position of `positions`.
    pub(super) fn outer(
        &mut self,
        call: &Call,
        channels: &Tensor,
        positions: &Tensor,
    ) -> Result<Tensor, Fault> {
        let (channels, positions) = self.at_equal_extents(call, channels, positions)?;
        if self.shape(&channels).extent != self.shape(&positions).extent {
            return reason("a product of tensors of these extents or orders of dims is not read");
        }
        let node = self.plain(call, Op::Multiply, &[channels.node, positions.node])?;
        let layout = channels.layout;
        Ok(Tensor { node, layout })
    }

    /// Blocks of positions as channels: strided crops one after the other, those of one channel then together.
    pub(super) fn unshuffle(
        &mut self,
        call: &Call,
        (factor, by_block): (usize, bool),
        tensor: &Tensor,
    ) -> Result<Tensor, Fault> {
        self.check_image(tensor)?;
        let channels = self.shape(tensor).channels;
        let crops = self.blocks_of_space(call, factor, tensor)?;
        let count = crops.len();
        let mut node = self.plain(call, Op::Concat, &crops)?;
        if channels > 1 && !by_block {
            // Channel `block channels + c` becomes channel `c count + block`.
            node = self.plain(call, Op::ChannelShuffle { groups: count }, &[node])?;
        }
        Ok(self.image(node))
    }

    /// Channels as blocks of positions.
    pub(super) fn shuffle(
        &mut self,
        call: &Call,
        (factor, by_block): (usize, bool),
        tensor: &Tensor,
    ) -> Result<Tensor, Fault> {
        self.check_image(tensor)?;
        let missing = 3 - self.rank;
        let factors = std::array::from_fn(|dim| if dim < missing { 1 } else { factor });
        let node = self.shuffled(call, tensor.node, (factors, by_block))?;
        Ok(self.image(node))
    }

    /// Channels as blocks of positions, as many along each dim as its factor.
    pub(super) fn shuffled(
        &mut self,
        call: &Call,
        mut node: NodeId,
        (factors, by_block): ([usize; 3], bool),
    ) -> Result<NodeId, Fault> {
        if factors
            .iter()
            .any(|factor| !(1..=BLOCK_MAX).contains(factor))
        {
            return reason("it is a shuffle by other than small factors");
        }
        let groups = factors.iter().product();
        let channels = self.builder.shape(node).channels;
        if by_block && channels > groups {
            // Channel `block channels + c` becomes channel `c count + block`.
            node = self.plain(call, Op::ChannelShuffle { groups }, &[node])?;
        }
        let name = self.name(call, &[]);
        Ok(self.builder.pixel_shuffle(&name, node, factors)?)
    }

    /// Mean or maximum over channels: they become positions, whose windows are pooled.
    pub(super) fn over_channels(
        &mut self,
        call: &Call,
        (kind, dims): (PoolKind, &[usize]),
        tensor: &Tensor,
    ) -> Result<Tensor, Fault> {
        let channels = self.shape(tensor).channels;
        let factors = near_equal(channels, self.rank);
        let name = self.name(call, &[]);
        let blocks = self.builder.pixel_shuffle(&name, tensor.node, factors)?;
        let pool = Pool::new(kind, factors.map(Window::tile));
        let node = self.plain(call, Op::Pool(pool), &[blocks])?;
        let keeps = self.output_extents(call).len() == tensor.layout.dims();
        let layout = tensor.layout.reduced(dims, keeps);
        Ok(Tensor { node, layout })
    }

    /// The crops of an image that begin at each position of a block, in order, each with a step as long as the block.
    pub(super) fn blocks_of_space(
        &mut self,
        call: &Call,
        factor: usize,
        tensor: &Tensor,
    ) -> Result<Vec<NodeId>, Fault> {
        let extent = self.shape(tensor).extent;
        let missing = 3 - self.rank;
        let steps: [usize; 3] = std::array::from_fn(|dim| if dim < missing { 1 } else { factor });
        let is_whole = |dim: usize| steps[dim] > 0 && extent[dim].is_multiple_of(steps[dim]);
        if !(0..3).all(is_whole) || !(2..=BLOCK_MAX).contains(&factor) {
            return reason("its extents are no multiples of a small factor");
        }
        let outputs = std::array::from_fn(|dim| extent[dim] / steps[dim]);
        let mut crops = Vec::new();
        for block in 0..steps.iter().product() {
            let [_, height, width] = steps;
            let starts = [
                block / (height * width),
                block / width % height,
                block % width,
            ];
            let crop = Resample::Crop {
                starts,
                steps,
                outputs,
            };
            crops.push(self.plain(call, Op::Resample(crop), &[tensor.node])?);
        }
        Ok(crops)
    }

    /// An image with channels of zeros before and behind its own.
    pub(super) fn pad_channels(
        &mut self,
        call: &Call,
        (low, high): (usize, usize),
        tensor: &Tensor,
    ) -> Result<Tensor, Fault> {
        self.check_image(tensor)?;
        let mut parts = self.zeros(call, low, tensor)?;
        parts.push(tensor.node);
        parts.extend(self.zeros(call, high, tensor)?);
        let node = self.plain(call, Op::Concat, &parts)?;
        Ok(self.image(node))
    }

    /// Channels of zeros: those of an image times 0.
    fn zeros(&mut self, call: &Call, count: usize, tensor: &Tensor) -> Result<Vec<NodeId>, Fault> {
        let all = self.shape(tensor).channels;
        if count > all.saturating_mul(BLOCK_MAX) {
            return reason(format!(
                "a pad with {count} channels of zeros to {all} channels is not read"
            ));
        }
        let zero = Op::Activation(Activation::Affine {
            scale: 0.0,
            shift: 0.0,
        });
        let mut parts = Vec::new();
        for start in (0..count).step_by(all) {
            let channels = all.min(count - start);
            let slice = Op::Slice { start: 0, channels };
            let part = if channels == all {
                tensor.node
            } else {
                self.plain(call, slice, &[tensor.node])?
            };
            parts.push(self.plain(call, zero.clone(), &[part])?);
        }
        Ok(parts)
    }
}

/// Factors of a number along the last dims, as near to each other as the first divisors below their roots.
fn near_equal(number: usize, rank: usize) -> [usize; 3] {
    let mut factors = [1; 3];
    let mut rest = number;
    for left in (1..=rank).rev() {
        let root = (rest as f64).powf(1.0 / left as f64).round() as usize;
        let mut below = (1..=root.max(1)).rev();
        let divisor = below.find(|&one| rest.is_multiple_of(one));
        let factor = if left == 1 {
            rest
        } else {
            divisor.unwrap_or(1)
        };
        factors[3 - left] = factor;
        rest /= factor;
    }
    factors
}

#[cfg(test)]
mod tests {
    use super::near_equal;

    #[test]
    fn numbers_have_near_factors() {
        assert_eq!(near_equal(64, 3), [4, 4, 4]);
        assert_eq!(near_equal(12, 2), [1, 3, 4]);
        assert_eq!(near_equal(7, 2), [1, 1, 7]);
        assert_eq!(near_equal(5, 1), [1, 1, 5]);
    }
}
