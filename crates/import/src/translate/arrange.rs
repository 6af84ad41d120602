//! Operations that move elements, or nothing.

use super::{Fault, Tensor, Translation, reason};
use crate::layout::Axis;
use crate::network::{Call, Operation};
use partita_graph::Op;

impl Translation<'_> {
    /// The outputs of a call that arranges; none if it computes.
    pub(super) fn arrange(
        &mut self,
        call: &Call,
        operation: &Operation,
    ) -> Result<Option<Vec<Tensor>>, Fault> {
        let one = match operation {
            Operation::Identity => self.tensor(call, 0)?,
            Operation::Dropout { rate } if *rate == 0.0 => self.tensor(call, 0)?,
            Operation::Reshape => self.reshape(call)?,
            Operation::Permute { order } => self.permute(call, order)?,
            &Operation::Concat { dim } => self.concat(call, dim)?,
            Operation::Repeat => self.repeat(call)?,
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
            | Operation::Upsample { .. }
            | Operation::Pad { .. }
            | Operation::LeakyRelu { .. }
            | Operation::Activation(_)
            | Operation::Prelu
            | Operation::Softmax { .. }
            | Operation::Dropout { .. }
            | Operation::Add
            | Operation::Multiply => return Ok(None),
        };
        Ok(Some(vec![one]))
    }

    fn reshape(&self, call: &Call) -> Result<Tensor, Fault> {
        let tensor = self.tensor(call, 0)?;
        let sizes = self.output_extents(call);
        let layout = tensor
            .layout
            .reshaped(self.shape(&tensor), self.samples, sizes);
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

    fn concat(&mut self, call: &Call, dim: usize) -> Result<Tensor, Fault> {
        let tensors: Vec<Tensor> = (0..call.inputs.len())
            .map(|index| self.tensor(call, index))
            .collect::<Result<_, _>>()?;
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
            return reason("only channels are concatenated");
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
            if *tensor.layout.axes(dim) != [Axis::Channel] {
                return reason("a part of samples or of space is not read");
            }
            let op = Op::Slice {
                start,
                channels: part,
            };
            let node = self.plain(call, op, &[tensor.node])?;
            let layout = tensor.layout.with_channels(dim, part);
            parts.push(Tensor { node, layout });
        }
        Ok(parts)
    }
}
