//! Tokens: trained rows that are added to positions, and class tokens that are put before them.
//!
//! A class token is an embedding of the first position behind a padding: the positions become a sequence, which is padded
//! before its first one.

use super::attention::positions;
use super::{Fault, Read, Tensor, Translation, Value, reason};
use crate::layout::{Axis, Layout};
use crate::network::Call;
use partita_graph::{NodeId, Op, PadMode, ParameterRole, Resample};

impl Translation<'_> {
    /// The parameter that a call repeats for each sample; none if it repeats another value.
    pub(super) fn token(&self, call: &Call) -> Result<Option<Read>, Fault> {
        let name = call.inputs.first().and_then(Option::as_ref);
        if !matches!(
            name.and_then(|name| self.values.get(name)),
            Some(Value::Stored { .. })
        ) {
            return Ok(None);
        }
        let Some(read) = self.parameter(call, 0)? else {
            return Ok(None);
        };
        let sizes = self.output_extents(call);
        let is_token = sizes.len() == 3 && read.shape[..] == [1, sizes[1], sizes[2]];
        if is_token && sizes[0] == self.samples {
            return Ok(Some(read));
        }
        reason(format!(
            "it repeats the parameter `{}` in a way that is not read; possible are class tokens, 1 x tokens x channels",
            read.name
        ))
    }

    /// A sum with a parameter, the input `index`, that has a row for each position; none if it has not.
    pub(super) fn position_embedding(
        &mut self,
        call: &Call,
        index: usize,
    ) -> Result<Option<Tensor>, Fault> {
        let tensor = self.tensor(call, 1 - index)?;
        let Some(rows) = self.parameter(call, index)? else {
            return reason("it has no rows that are read");
        };
        let shape = self.shape(&tensor);
        // Dims are aligned at their ends.
        let extents = self.extents(&tensor);
        let first = extents.len().checked_sub(rows.shape.len());
        let is_per_sample = first.is_some_and(|first| {
            let mut dims = rows.shape.iter().enumerate();
            dims.all(|(dim, &extent)| match tensor.layout.axes(first + dim) {
                [Axis::Sample] => extent == 1,
                _ => extent == extents[first + dim],
            })
        });
        let dims = (0..tensor.layout.dims()).flat_map(|dim| tensor.layout.axes(dim));
        let axes: Vec<Axis> = dims.copied().filter(|axis| *axis != Axis::Sample).collect();
        let mut wanted = positions(shape);
        if shape.channels > 1 {
            wanted.push(Axis::Channel);
        }
        let count: usize = shape.extent.iter().product();
        let is_of_all = rows.shape.iter().product::<usize>() == count * shape.channels;
        if count == 1 || !is_of_all || !is_per_sample || axes != wanted {
            return Ok(None);
        }
        let node = self.rows(tensor.node, count, rows)?;
        let layout = tensor.layout;
        Ok(Some(Tensor { node, layout }))
    }

    fn rows(&mut self, input: NodeId, count: usize, rows: Read) -> Result<NodeId, Fault> {
        let op = Op::PositionEmbedding { rows: count };
        let name = rows.name.clone();
        let name = name.strip_suffix(".weight").unwrap_or(&name);
        self.named(name, op, &[input], &[(ParameterRole::Weight, Some(rows))])
    }

    /// Whether a call puts a class token before other positions.
    pub(super) fn reads_token(&self, call: &Call) -> bool {
        let values = call.inputs.iter().flatten();
        let mut values = values.map(|name| self.values.get(name));
        values.any(|value| matches!(value, Some(Value::Token(_))))
    }

    /// A class token before other positions, along a dim.
    pub(super) fn prepend(&mut self, call: &Call, dim: usize) -> Result<Tensor, Fault> {
        let first = call.inputs.first().and_then(Option::as_ref);
        let (Some(Value::Token(token)), 2) = (
            first.and_then(|name| self.values.get(name)),
            call.inputs.len(),
        ) else {
            return reason("only a class token before all other positions is read");
        };
        let (token, tensor) = (token.clone(), self.tensor(call, 1)?);
        let shape = self.shape(&tensor);
        let is_tokens = dim == 1
            && tensor.layout.dims() == 3
            && *tensor.layout.axes(0) == [Axis::Sample]
            && *tensor.layout.axes(1) == positions(shape)
            && matches!(tensor.layout.axes(2), [] | [Axis::Channel]);
        let &[_, count, channels] = &token.shape[..] else {
            return reason("its class token has other dims than 1 x tokens x channels");
        };
        if !is_tokens || channels != shape.channels {
            return reason(
                "a class token before what is no list of positions and their channels is not read",
            );
        }
        let wide = shape.extent.iter().product();
        let mut node = tensor.node;
        if shape.extent != [1, 1, wide] {
            let extent = [1, 1, wide];
            node = self.named(
                &format!("{}.sequence", token.name),
                Op::Reshape { extent },
                &[node],
                &[],
            )?;
        }
        let pad = Resample::Pad {
            sides: [(0, 0), (0, 0), (count, 0)],
            mode: PadMode::Zero,
        };
        let name = format!("{}.pad", token.name);
        let node = self.named(&name, Op::Resample(pad), &[node], &[])?;
        let node = self.rows(node, count, token)?;
        let axes = [
            &[Axis::Sample][..],
            &[Axis::Space(2)],
            tensor.layout.axes(2),
        ];
        Ok(Tensor {
            node,
            layout: Layout::of(axes.map(<[Axis]>::to_vec).to_vec()),
        })
    }
}
