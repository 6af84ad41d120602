//! Operations that move elements, or nothing.

use super::{Fault, Tensor, Translation, reason};
use crate::layout::Axis;
use crate::network::{Call, Operation};
use partita_graph::{Op, Resample};

impl Translation<'_> {
    /// The outputs of a call that arranges; none if it computes.
    pub(super) fn arrange(
        &mut self,
        call: &Call,
        operation: &Operation,
    ) -> Result<Option<Vec<Tensor>>, Fault> {
        let one = match operation {
            Operation::Identity => self.tensor(call, 0)?,
            Operation::Dropout { rate } | Operation::ChannelDropout { rate } if *rate == 0.0 => {
                self.tensor(call, 0)?
            }
            &Operation::Stride { dim, start, step } => self.stride(call, dim, (start, step))?,
            &Operation::Select { dim, index } => self.select(call, dim, index)?,
            Operation::Reshape => self.reshape(call)?,
            Operation::Permute { order } => self.permute(call, order)?,
            Operation::Roll { amounts } => self.roll(call, amounts)?,
            &Operation::Concat { dim } if self.reads_token(call) => self.prepend(call, dim)?,
            &Operation::Concat { dim } => self.concat(call, dim)?,
            &Operation::Stack { dim } => self.stack(call, dim)?,
            Operation::Repeat => self.repeat(call)?,
            &Operation::Unbind { dim } => {
                let parts = (0..call.outputs.len()).map(|index| self.select(call, dim, index));
                return parts.collect::<Result<_, _>>().map(Some);
            }
            Operation::Parts { dim, starts } => return self.parts(call, *dim, starts).map(Some),
            Operation::Convolution { .. }
            | Operation::TransposedConvolution { .. }
            | Operation::Linear
            | Operation::BatchNorm { .. }
            | Operation::GroupNorm { .. }
            | Operation::LayerNorm { .. }
            | Operation::Pool { .. }
            | Operation::AdaptivePool { .. }
            | Operation::Reduce { .. }
            | Operation::Sum { .. }
            | Operation::Extreme { .. }
            | Operation::PixelUnshuffle { .. }
            | Operation::PixelShuffle { .. }
            | Operation::PadLowest { .. }
            | Operation::Upsample { .. }
            | Operation::Pad { .. }
            | Operation::LeakyRelu { .. }
            | Operation::Activation(_)
            | Operation::Prelu
            | Operation::Softmax { .. }
            | Operation::Dropout { .. }
            | Operation::ChannelDropout { .. }
            | Operation::Functions(_)
            | Operation::Noise(_)
            | Operation::Floor
            | Operation::Subtract { .. }
            | Operation::Contraction(_)
            | Operation::Attention { .. }
            | Operation::Square
            | Operation::Add
            | Operation::Multiply => return Ok(None),
        };
        Ok(Some(vec![one]))
    }

    fn reshape(&mut self, call: &Call) -> Result<Tensor, Fault> {
        let tensor = self.tensor(call, 0)?;
        let sizes = self.output_extents(call);
        let shape = self.shape(&tensor);
        let layout = tensor.layout.reshaped(shape, self.samples, sizes);
        if let Some((dim, groups)) = layout.as_ref().and_then(|one| one.shuffle(shape)) {
            let node = self.plain(call, Op::ChannelShuffle { groups }, &[tensor.node])?;
            let layout = layout.unwrap_or(tensor.layout);
            let layout = layout.with_channels(dim, shape.channels);
            return Ok(Tensor { node, layout });
        }
        if let Some(blocks) = layout.as_ref().and_then(|one| one.blocks_of_space(shape)) {
            let node = self.shuffled(call, tensor.node, (blocks.factors, blocks.by_block))?;
            let layout = blocks.layout;
            return Ok(Tensor { node, layout });
        }
        match layout {
            Some(layout) => Ok(Tensor {
                node: tensor.node,
                layout,
            }),
            None => reason(format!(
                "it regroups elements from {:?} to {sizes:?}, which is not read",
                self.extents(&tensor)
            )),
        }
    }

    fn permute(&self, call: &Call, order: &[usize]) -> Result<Tensor, Fault> {
        let tensor = self.tensor(call, 0)?;
        match tensor.layout.permuted(order) {
            Some(layout) => Ok(Tensor {
                node: tensor.node,
                layout,
            }),
            None => reason("it names other dims than its input has"),
        }
    }

    fn roll(&self, call: &Call, amounts: &[(usize, i64)]) -> Result<Tensor, Fault> {
        let Tensor { node, mut layout } = self.tensor(call, 0)?;
        let shape = self.builder.shape(node);
        for &(dim, amount) in amounts {
            layout = match layout.rolled(shape, dim, amount) {
                Some(layout) => layout,
                None => return reason("only whole dims of space are rolled"),
            };
        }
        Ok(Tensor { node, layout })
    }

    fn concat(&mut self, call: &Call, dim: usize) -> Result<Tensor, Fault> {
        let tensors = self.tensors(call)?;
        let Some(first) = tensors.first() else {
            return reason("it reads nothing");
        };
        if let [only] = &tensors[..] {
            return Ok(only.clone());
        }
        let extent = self.shape(first).extent;
        let is_channels = |one: &Tensor| match one.layout.axes(dim) {
            [Axis::Channel] => true,
            [] => self.shape(one).channels == 1 && dim < one.layout.dims(),
            _ => false,
        };
        let plain = first.layout.with_channels(dim, 1);
        let is_alike = |one: &Tensor| {
            one.layout.with_channels(dim, 1) == plain && self.shape(one).extent == extent
        };
        if dim >= first.layout.dims() || !tensors.iter().all(is_channels) {
            return reason(
                "only channels are concatenated; a flattened image goes through a pooling to one position, or a linear layer, before",
            );
        }
        if !tensors.iter().all(is_alike) {
            return reason("its inputs have different extents or orders of dims");
        }
        let nodes: Vec<_> = tensors.iter().map(|one| one.node).collect();
        let layout = first.layout.clone();
        let node = self.plain(call, Op::Concat, &nodes)?;
        let channels = self.builder.shape(node).channels;
        Ok(Tensor {
            node,
            layout: layout.with_channels(dim, channels),
        })
    }

    /// Copies along channels, one after the other.
    fn repeat(&mut self, call: &Call) -> Result<Tensor, Fault> {
        let tensor = self.tensor(call, 0)?;
        let sizes = self.output_extents(call);
        let extents = self.extents(&tensor);
        if sizes.len() != extents.len() {
            return reason("it adds dims, which is not read");
        }
        let mut changed = (0..sizes.len()).filter(|&dim| sizes[dim] != extents[dim]);
        let Some(dim) = changed.next() else {
            return Ok(tensor);
        };
        let is_channel = match tensor.layout.axes(dim) {
            [Axis::Channel] => true,
            [] => dim == 1 && self.shape(&tensor).channels == 1,
            _ => false,
        };
        if changed.next().is_some() || !is_channel || !sizes[dim].is_multiple_of(extents[dim]) {
            return reason("only channels are repeated");
        }
        let copies = vec![tensor.node; sizes[dim] / extents[dim]];
        let node = self.plain(call, Op::Concat, &copies)?;
        Ok(Tensor {
            node,
            layout: tensor.layout.with_channels(dim, sizes[dim]),
        })
    }

    fn parts(&mut self, call: &Call, dim: usize, starts: &[usize]) -> Result<Vec<Tensor>, Fault> {
        let tensor = self.tensor(call, 0)?;
        let whole = self.extents(&tensor);
        let mut parts = Vec::new();
        for (name, &start) in call.outputs.iter().zip(starts) {
            let sizes = self.network.shape(name);
            let (Some(&part), Some(&all)) = (sizes.get(dim), whole.get(dim)) else {
                return reason("it names a dim that its input lacks");
            };
            if (start, part) == (0, all) {
                parts.push(tensor.clone());
                continue;
            }
            parts.push(self.part(call, &tensor, (dim, start, part))?);
        }
        Ok(parts)
    }

    /// So many indices from `start` on along a dim.
    fn part(
        &mut self,
        call: &Call,
        tensor: &Tensor,
        (dim, start, part): (usize, usize, usize),
    ) -> Result<Tensor, Fault> {
        match *tensor.layout.axes(dim) {
            [Axis::Channel] => {
                let op = Op::Slice {
                    start,
                    channels: part,
                };
                let node = self.plain(call, op, &[tensor.node])?;
                let layout = tensor.layout.with_channels(dim, part);
                Ok(Tensor { node, layout })
            }
            // The rest of the channels' parts are those of the part.
            [Axis::Part { stride, extent }] if stride * extent == self.shape(tensor).channels => {
                let op = Op::Slice {
                    start: start * stride,
                    channels: part * stride,
                };
                let node = self.plain(call, op, &[tensor.node])?;
                let layout = tensor.layout.cut(dim, part, self.builder.shape(node));
                Ok(Tensor { node, layout })
            }
            [Axis::Space(_)] => self.crop(call, tensor, dim, (start, 1, part)),
            _ => reason("a part of samples, or of several axes, is not read"),
        }
    }

    fn stride(
        &mut self,
        call: &Call,
        dim: usize,
        (start, step): (usize, usize),
    ) -> Result<Tensor, Fault> {
        let tensor = self.tensor(call, 0)?;
        let output = self.output_extents(call).get(dim).copied().unwrap_or(0);
        self.crop(call, &tensor, dim, (start, step, output))
    }

    /// One index along a dim, which is left out.
    fn select(&mut self, call: &Call, dim: usize, index: usize) -> Result<Tensor, Fault> {
        let tensor = self.tensor(call, 0)?;
        let part = if self.extents(&tensor).get(dim) == Some(&1) {
            tensor
        } else {
            self.part(call, &tensor, (dim, index, 1))?
        };
        if *part.layout.axes(dim) == [Axis::Sample] {
            return reason("a part of samples is not read");
        }
        Ok(Tensor {
            node: part.node,
            layout: part.layout.reduced(&[dim], false),
        })
    }

    /// Every `step`th position from `start` on along a dim of space.
    fn crop(
        &mut self,
        call: &Call,
        tensor: &Tensor,
        dim: usize,
        (start, step, output): (usize, usize, usize),
    ) -> Result<Tensor, Fault> {
        let [Axis::Space(space)] = *tensor.layout.axes(dim) else {
            return reason("a stride over samples or channels is not read");
        };
        let mut outputs = self.shape(tensor).extent;
        let (mut starts, mut steps) = ([0; 3], [1; 3]);
        (starts[space], steps[space], outputs[space]) = (start, step, output);
        let crop = Resample::Crop {
            starts,
            steps,
            outputs,
        };
        let node = self.plain(call, Op::Resample(crop), &[tensor.node])?;
        let layout = if output == 1 {
            tensor.layout.reduced(&[dim], true)
        } else {
            tensor.layout.clone()
        };
        Ok(Tensor { node, layout })
    }
}
