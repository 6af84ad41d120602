//! Operations that compute.

use super::{Border, Fault, Read, Tensor, Translation, Value, reason};
use crate::layout::{Axis, Layout};
use crate::network::{Call, Operation, Padding};
use partita_graph::ParameterRole::{
    Beta, Bias, Gamma, RunningMean, RunningVariance, Slope, Weight,
};
use partita_graph::{
    Convolution, DropoutMask, Interpolation, NodeId, Op, PadMode, ParameterRole, Pool, PoolKind,
    PreluSlopes, Resample, TransposedConvolution,
};
use partita_space::Window;

/// Parameters of a node; none for those that are constant.
type Parameters = Vec<(ParameterRole, Option<Read>)>;

impl Translation<'_> {
    /// The outputs of a call.
    pub(super) fn operate(
        &mut self,
        call: &Call,
        operation: &Operation,
    ) -> Result<Vec<Tensor>, Fault> {
        if let Some(values) = self.arrange(call, operation)? {
            return Ok(values);
        }
        if let Some(one) = self.of_parameters(call, operation)? {
            return Ok(vec![one]);
        }
        let tensor = self.first(call, operation)?;
        let one = match operation {
            Operation::Convolution { .. } => self.convolution(call, operation, &tensor),
            Operation::TransposedConvolution { .. } => self.transposed(call, operation, &tensor),
            Operation::Linear => self.linear(call, &tensor),
            Operation::BatchNorm { .. } | Operation::GroupNorm { .. } => {
                self.statistics(call, operation, &tensor)
            }
            &Operation::LayerNorm {
                dims,
                epsilon,
                centers,
            } => self.layer_norm(call, (dims, epsilon, centers), &tensor),
            Operation::Pool { .. } => self.pool(call, operation, &tensor),
            &Operation::AdaptivePool { kind } => self.adaptive(call, kind, &tensor),
            Operation::Reduce { kind, dims } => self.reduce(call, (*kind, dims), &tensor),
            &Operation::Upsample {
                is_linear,
                align_corners,
            } => self.upsample(call, (is_linear, align_corners), &tensor),
            Operation::Pad { sides, mode } => self.pad(call, (sides, *mode), &tensor),
            Operation::LeakyRelu { .. }
            | Operation::Activation(_)
            | Operation::Functions(_)
            | Operation::ChannelDropout { .. }
            | Operation::Dropout { .. } => self.of_elements(call, operation, tensor),
            Operation::Prelu => self.prelu(call, &tensor),
            &Operation::Softmax { dim } => self.softmax(call, dim, &tensor),
            Operation::Sum { dims } => self.sum_over(call, dims, &tensor),
            &Operation::Extreme { is_maximum } => self.extreme(call, is_maximum),
            &Operation::PixelShuffle { factor, by_block } => {
                self.shuffle(call, (factor, by_block), &tensor)
            }
            Operation::PadLowest { .. } => {
                reason("a pad of what is no image with minus infinity is not read")
            }
            &Operation::PixelUnshuffle { factor, by_block } => {
                self.unshuffle(call, (factor, by_block), &tensor)
            }
            &Operation::Subtract { factor } => self.subtract(call, factor, &tensor),
            Operation::Square => self.square(call, &tensor),
            &Operation::Attention { causal, scale } => {
                self.attention(call, (causal, scale), &tensor)
            }
            Operation::Floor | Operation::Noise(_) | Operation::Contraction(_) => {
                reason("no layer of Partita does this")
            }
            Operation::Add => self.add(call, &tensor),
            Operation::Multiply => self.multiply(call, &tensor),
            Operation::Concat { .. }
            | Operation::Stack { .. }
            | Operation::Parts { .. }
            | Operation::Stride { .. }
            | Operation::Select { .. }
            | Operation::Unbind { .. }
            | Operation::Reshape
            | Operation::Permute { .. }
            | Operation::Roll { .. }
            | Operation::Repeat
            | Operation::Identity => return Ok(vec![tensor]),
        };
        Ok(vec![one?])
    }

    /// What is made with random numbers, parameters or scores in place of a tensor; none if the call takes tensors alone.
    fn of_parameters(
        &mut self,
        call: &Call,
        operation: &Operation,
    ) -> Result<Option<Tensor>, Fault> {
        let drawn = (0..2).find(|&index| self.drawn(call, index).is_some());
        let one = match (operation, drawn, self.factor(call)) {
            (Operation::Multiply, Some(index), _) => self.drop(call, index)?,
            (Operation::Multiply, None, Some(index)) => self.scale(call, index)?,
            (Operation::Add, _, Some(index)) => match self.position_embedding(call, index)? {
                Some(tensor) => tensor,
                None => self.shift(call, index)?,
            },
            (Operation::Contraction(letters), ..) => self.contract(call, letters)?,
            _ => return Ok(None),
        };
        Ok(Some(one))
    }

    /// Functions of each element, and dropout.
    fn of_elements(
        &mut self,
        call: &Call,
        operation: &Operation,
        tensor: Tensor,
    ) -> Result<Tensor, Fault> {
        let op = match *operation {
            Operation::LeakyRelu { slope } => Op::LeakyRelu {
                negative_slope: slope,
            },
            Operation::Activation(activation) => Op::Activation(activation),
            Operation::Dropout { rate } => Op::Dropout {
                rate,
                mask: DropoutMask::Element,
            },
            Operation::ChannelDropout { rate } => Op::Dropout {
                rate,
                mask: DropoutMask::Channel,
            },
            Operation::Functions(ref functions) => {
                let mut all = functions.iter();
                return all.try_fold(tensor, |tensor, function| {
                    self.function(call, Op::Activation(*function), &tensor)
                });
            }
            _ => return reason("it is no function of each element"),
        };
        self.function(call, op, &tensor)
    }

    /// A batch or group norm.
    fn statistics(
        &mut self,
        call: &Call,
        operation: &Operation,
        tensor: &Tensor,
    ) -> Result<Tensor, Fault> {
        let mut parameters = self.affine(call)?;
        let op = match *operation {
            Operation::BatchNorm { epsilon, momentum } => {
                for (role, index) in [(RunningMean, 3), (RunningVariance, 4)] {
                    parameters.push((role, self.parameter(call, index)?));
                }
                Op::BatchNorm { epsilon, momentum }
            }
            Operation::GroupNorm { groups, epsilon } => Op::GroupNorm { groups, epsilon },
            _ => return reason("it is no batch or group norm"),
        };
        if let (Op::GroupNorm { .. }, [(_, Some(_)), (_, None)]) = (&op, &parameters[..]) {
            // A scale without an offset stands for itself.
            let plain = vec![(Gamma, None), (Beta, None)];
            let found = self.norm(call, op, tensor, &plain)?;
            return self.scaled(call, 1, &found);
        }
        self.norm(call, op, tensor, &parameters)
    }

    fn pad(
        &mut self,
        call: &Call,
        (sides, mode): (&[(usize, usize)], Option<PadMode>),
        tensor: &Tensor,
    ) -> Result<Tensor, Fault> {
        let Some(mode) = mode else {
            return reason("circular padding of what is no image is not read");
        };
        if sides.iter().all(|pad| *pad == (0, 0)) {
            return Ok(tensor.clone());
        }
        let is_image = tensor.layout.is_image(self.shape(tensor), self.rank);
        let (space, others) = sides.split_at(sides.len().min(self.rank));
        if let [channels, ref samples @ ..] = *others
            && mode == PadMode::Zero
            && is_image
            && channels != (0, 0)
            && samples.iter().all(|pad| *pad == (0, 0))
        {
            let tensor = if space.iter().all(|pad| *pad == (0, 0)) {
                tensor.clone()
            } else {
                self.pad(call, (space, Some(mode)), tensor)?
            };
            return self.pad_channels(call, channels, &tensor);
        }
        let sides = self.sides(tensor, sides)?;
        let padded = self.resample(call, Resample::Pad { sides, mode }, tensor)?;
        Ok(if is_image {
            padded
        } else {
            let layout = tensor.layout.clone();
            Tensor { layout, ..padded }
        })
    }

    pub(super) fn function(
        &mut self,
        call: &Call,
        op: Op,
        tensor: &Tensor,
    ) -> Result<Tensor, Fault> {
        let node = self.plain(call, op, &[tensor.node])?;
        Ok(Tensor {
            node,
            layout: tensor.layout.clone(),
        })
    }

    /// The first tensor that a call reads, without its border.
    fn first(&self, call: &Call, operation: &Operation) -> Result<Tensor, Fault> {
        let border = match operation {
            Operation::Convolution { .. } => Some(Border::Opposite),
            Operation::Pool {
                kind: PoolKind::Max,
                ..
            } => Some(Border::Lowest),
            _ => None,
        };
        match border.and_then(|border| self.bordered(call, border)) {
            Some((tensor, _)) => Ok(tensor),
            None => self.tensor(call, 0),
        }
    }

    /// What a call reads with such a border around it.
    fn bordered(&self, call: &Call, border: Border) -> Option<(Tensor, [(usize, usize); 3])> {
        let name = call.inputs.first()?.as_ref()?;
        match self.values.get(name) {
            Some(Value::Bordered(tensor, found, sides)) if *found == border => {
                Some((tensor.clone(), *sides))
            }
            _ => None,
        }
    }

    /// A node whose output is an image, with the axes of `image` where these are not in the order of images.
    pub(super) fn image(&self, node: NodeId) -> Tensor {
        let layout = Layout::image(self.builder.shape(node), self.rank);
        Tensor { node, layout }
    }

    pub(super) fn check_image(&self, tensor: &Tensor) -> Result<(), Fault> {
        if tensor.layout.is_image(self.shape(tensor), self.rank) {
            return Ok(());
        }
        reason("its input is no image: samples, channels, then space")
    }

    fn convolution(
        &mut self,
        call: &Call,
        operation: &Operation,
        tensor: &Tensor,
    ) -> Result<Tensor, Fault> {
        let Operation::Convolution {
            stride,
            padding,
            dilation,
            groups,
        } = operation
        else {
            return reason("it is no convolution");
        };
        self.check_image(tensor)?;
        let wrapped = self.bordered(call, Border::Opposite);
        let wrapped = wrapped.map(|(_, sides)| sides);
        let (weight, bias) = self.weights(call)?;
        let kernel = weight.shape.get(2..).unwrap_or_default();
        let missing = 3 - self.rank;
        let window = self.windows(kernel, |dim| {
            if let Some(sides) = wrapped {
                let (pad_low, pad_high) = sides[missing + dim];
                return Window {
                    kernel: kernel[dim],
                    stride: stride[dim],
                    dilation: dilation[dim],
                    pad_low,
                    pad_high,
                };
            }
            let (low, high) = match padding {
                Padding::Both(both) => (both[dim], both[dim]),
                Padding::Sides(sides) => sides[dim],
                Padding::Same => {
                    let all = dilation[dim] * kernel[dim].saturating_sub(1);
                    (all / 2, all - all / 2)
                }
            };
            Window {
                kernel: kernel[dim],
                stride: stride[dim],
                dilation: dilation[dim],
                pad_low: low,
                pad_high: high,
            }
        })?;
        let is_padded = match padding {
            Padding::Both(both) => both.iter().any(|&one| one > 0),
            Padding::Sides(sides) => sides.iter().any(|&one| one != (0, 0)),
            Padding::Same => true,
        };
        if wrapped.is_some() && is_padded {
            return reason(
                "a convolution that pads what is padded by its opposite border is not read",
            );
        }
        let op = Op::Convolution(Convolution {
            filters: weight.shape[0],
            window,
            periodic: wrapped.is_some(),
            groups: *groups,
            bias: bias.is_some(),
        });
        let node = self.node(call, op, &[tensor.node], &weighted(weight, bias))?;
        Ok(self.image(node))
    }

    fn transposed(
        &mut self,
        call: &Call,
        operation: &Operation,
        tensor: &Tensor,
    ) -> Result<Tensor, Fault> {
        let Operation::TransposedConvolution {
            stride,
            padding,
            output_padding,
            dilation,
            groups,
        } = operation
        else {
            return reason("it is no transposed convolution");
        };
        self.check_image(tensor)?;
        let (weight, bias) = self.weights(call)?;
        let kernel = weight.shape.get(2..).unwrap_or_default();
        let window = self.windows(kernel, |dim| Window {
            kernel: kernel[dim],
            stride: stride[dim],
            dilation: dilation[dim],
            pad_low: padding[dim],
            pad_high: padding[dim],
        })?;
        let mut more = [0; 3];
        more[3 - self.rank..].copy_from_slice(output_padding);
        let op = Op::TransposedConvolution(TransposedConvolution {
            filters: weight
                .shape
                .get(1)
                .copied()
                .unwrap_or_default()
                .saturating_mul(*groups),
            window,
            output_padding: more,
            groups: *groups,
            bias: bias.is_some(),
        });
        let node = self.node(call, op, &[tensor.node], &weighted(weight, bias))?;
        Ok(self.image(node))
    }

    fn linear(&mut self, call: &Call, tensor: &Tensor) -> Result<Tensor, Fault> {
        let (weight, bias) = self.weights(call)?;
        let features = weight.shape.first().copied().unwrap_or_default();
        let shape = self.shape(tensor);
        let last = tensor.layout.dims() - 1;
        let (input, layout, rows) = match tensor.layout.axes(last) {
            [] | [Axis::Channel] => (tensor.node, tensor.layout.clone(), None),
            axes if tensor.layout.dims() == 2 && is_flat(axes) => {
                let name = self.free(&format!(
                    "{}.flatten",
                    self.name(call, &[(Weight, Some(weight.clone()))])
                ));
                let node = self.builder.flatten(&name, tensor.node)?;
                let rows = Some(self.shape(tensor));
                (node, Layout::features(self.builder.shape(node)), rows)
            }
            _ => {
                return reason(
                    "its last dim is neither channels nor all of an image in PyTorch's order",
                );
            }
        };
        if *self.rows.entry(weight.value.clone()).or_insert(rows) != rows {
            return reason(
                "it shares its weight with a layer whose features are ordered otherwise, which is not read",
            );
        }
        let op = if self.builder.shape(input).extent == [1; 3] {
            Op::Linear {
                features,
                bias: bias.is_some(),
            }
        } else {
            if shape.channels == 1 {
                return reason("a linear layer over one of several dims of space is not read");
            }
            Op::Convolution(Convolution {
                filters: features,
                window: [Window::ONE; 3],
                periodic: false,
                groups: 1,
                bias: bias.is_some(),
            })
        };
        let node = self.node(call, op, &[input], &weighted(weight, bias))?;
        Ok(Tensor {
            node,
            layout: layout.with_channels(last, features),
        })
    }

    fn weights(&self, call: &Call) -> Result<(Read, Option<Read>), Fault> {
        match self.parameter(call, 1)? {
            Some(weight) if weight.shape.len() >= 2 => Ok((weight, self.parameter(call, 2)?)),
            Some(_) | None => reason("it has no weight that is read"),
        }
    }

    /// A window for each of D, H, W.
    fn windows(
        &self,
        kernel: &[usize],
        window: impl Fn(usize) -> Window,
    ) -> Result<[Window; 3], Fault> {
        if kernel.len() != self.rank {
            return reason(format!(
                "its window has {} dims, and the network's input {}",
                kernel.len(),
                self.rank
            ));
        }
        let missing = 3 - self.rank;
        Ok(std::array::from_fn(|dim| match dim.checked_sub(missing) {
            Some(dim) => window(dim),
            None => Window::ONE,
        }))
    }

    /// Scale and shift; constant where there is none.
    fn affine(&self, call: &Call) -> Result<Parameters, Fault> {
        Ok(vec![
            (Gamma, self.parameter(call, 1)?),
            (Beta, self.parameter(call, 2)?),
        ])
    }

    fn norm(
        &mut self,
        call: &Call,
        op: Op,
        tensor: &Tensor,
        parameters: &Parameters,
    ) -> Result<Tensor, Fault> {
        let shape = self.shape(tensor);
        if *tensor.layout.axes(0) != [Axis::Sample]
            || (shape.channels > 1 && *tensor.layout.axes(1) != [Axis::Channel])
        {
            return reason("its second dim is not channels");
        }
        let node = self.node(call, op, &[tensor.node], parameters)?;
        Ok(Tensor {
            node,
            layout: tensor.layout.clone(),
        })
    }

    fn layer_norm(
        &mut self,
        call: &Call,
        (dims, epsilon, centers): (usize, f64, bool),
        tensor: &Tensor,
    ) -> Result<Tensor, Fault> {
        let count = tensor.layout.dims();
        let axes: Vec<Axis> = (count.saturating_sub(dims)..count)
            .flat_map(|dim| tensor.layout.axes(dim))
            .copied()
            .collect();
        if axes != [Axis::Channel] {
            return reason(
                "a layer norm over more than the channels, as the last dim, is not read",
            );
        }
        let parameters = self.affine(call)?;
        let op = Op::LayerNorm { epsilon, centers };
        let node = self.node(call, op, &[tensor.node], &parameters)?;
        Ok(Tensor {
            node,
            layout: tensor.layout.clone(),
        })
    }

    fn pool(
        &mut self,
        call: &Call,
        operation: &Operation,
        tensor: &Tensor,
    ) -> Result<Tensor, Fault> {
        let Operation::Pool {
            kind,
            kernel,
            stride,
            padding,
            rounds_up,
        } = operation
        else {
            return reason("it is no pooling");
        };
        self.check_image(tensor)?;
        let output = self.output_extents(call);
        let extent = self.shape(tensor).extent;
        let missing = 3 - self.rank;
        let lowest = self.bordered(call, Border::Lowest);
        let lowest = lowest.map_or([(0, 0); 3], |(_, sides)| sides);
        let mut overhangs = false;
        let window = self.windows(kernel, |dim| {
            let outputs = output.get(dim + 2).copied().unwrap_or(1);
            let read = outputs.saturating_sub(1) * stride[dim] + kernel[dim];
            let (low, high) = lowest[missing + dim];
            let (pad_low, pad_high) = (padding[dim] + low, padding[dim] + high);
            let more = read.saturating_sub(extent[missing + dim] + pad_low + pad_high);
            Window {
                kernel: kernel[dim],
                stride: stride[dim],
                dilation: 1,
                pad_low,
                pad_high: pad_high + if *rounds_up { more } else { 0 },
            }
        })?;
        for (one, both) in window[missing..].iter().zip(padding) {
            overhangs |= one.pad_high > *both;
        }
        if overhangs && *kind == PoolKind::AverageAll {
            return reason(
                "an average with ceil_mode that counts padding is not read; set count_include_pad=False",
            );
        }
        let node = self.plain(call, Op::Pool(Pool::new(*kind, window)), &[tensor.node])?;
        Ok(self.image(node))
    }

    fn adaptive(&mut self, call: &Call, kind: PoolKind, tensor: &Tensor) -> Result<Tensor, Fault> {
        self.check_image(tensor)?;
        let extent = self.shape(tensor).extent;
        let sizes = self.output_extents(call);
        let mut outputs = [1; 3];
        let missing = 3 - self.rank;
        for (dim, output) in outputs[missing..].iter_mut().enumerate() {
            *output = sizes.get(dim + 2).copied().unwrap_or(1);
        }
        if outputs == extent {
            return Ok(tensor.clone());
        }
        let op = match kind {
            _ if outputs == [1; 3] => Op::Pool(Pool::global(kind, extent)),
            PoolKind::AverageAll | PoolKind::AverageInside => {
                Op::Resample(Resample::AdaptiveAverage { outputs })
            }
            PoolKind::Max | PoolKind::L2 => {
                let mut dims = extent.iter().zip(outputs);
                if dims.any(|(extent, outputs)| outputs == 0 || !extent.is_multiple_of(outputs)) {
                    return reason(
                        "an adaptive maximum over windows of different extents is not read",
                    );
                }
                let tiles = std::array::from_fn(|dim| Window::tile(extent[dim] / outputs[dim]));
                Op::Pool(Pool::new(kind, tiles))
            }
        };
        let node = self.plain(call, op, &[tensor.node])?;
        Ok(self.image(node))
    }

    /// Mean or maximum over dims of space.
    pub(super) fn reduce(
        &mut self,
        call: &Call,
        (kind, dims): (PoolKind, &[usize]),
        tensor: &Tensor,
    ) -> Result<Tensor, Fault> {
        let shape = self.shape(tensor);
        let axes: Vec<Axis> = dims
            .iter()
            .flat_map(|&dim| tensor.layout.axes(dim))
            .copied()
            .collect();
        if let PoolKind::AverageAll | PoolKind::AverageInside = kind
            && let Some(mean) = self.mean_of_blocks(call, dims, tensor)?
        {
            return Ok(mean);
        }
        if axes[..] == [Axis::Channel] {
            return self.over_channels(call, (kind, dims), tensor);
        }
        if axes.iter().any(|axis| !matches!(axis, Axis::Space(_))) {
            return reason(
                "a mean or maximum over samples, or over channels and space, is not read",
            );
        }
        let sizes = self.output_extents(call);
        let keeps = sizes.len() == tensor.layout.dims();
        let layout = tensor.layout.reduced(dims, keeps);
        let is_read = |dim: usize| axes.contains(&Axis::Space(dim));
        let node = if axes.is_empty() {
            tensor.node
        } else {
            let is_all = (0..3).all(|dim| is_read(dim) || shape.extent[dim] == 1);
            let tile = |dim| {
                if is_read(dim) {
                    Window::tile(shape.extent[dim])
                } else {
                    Window::ONE
                }
            };
            let pool = if is_all {
                Pool::global(kind, shape.extent)
            } else {
                Pool::new(kind, std::array::from_fn(tile))
            };
            self.plain(call, Op::Pool(pool), &[tensor.node])?
        };
        Ok(Tensor { node, layout })
    }

    fn upsample(
        &mut self,
        call: &Call,
        (is_linear, align_corners): (bool, bool),
        tensor: &Tensor,
    ) -> Result<Tensor, Fault> {
        self.check_image(tensor)?;
        let extent = self.shape(tensor).extent;
        let sizes = self.output_extents(call);
        let missing = 3 - self.rank;
        let mut outputs = [1; 3];
        for dim in missing..3 {
            outputs[dim] = sizes.get(dim - missing + 2).copied().unwrap_or(0);
        }
        if outputs == extent {
            return Ok(tensor.clone());
        }
        let interpolation = if is_linear {
            Interpolation::Linear { align_corners }
        } else {
            Interpolation::Nearest
        };
        let is_whole = (0..3).all(|dim| outputs[dim].is_multiple_of(extent[dim]));
        let resample = if is_whole {
            Resample::Upsample {
                factors: std::array::from_fn(|dim| outputs[dim] / extent[dim]),
                interpolation,
            }
        } else if is_linear || (0..3).all(|dim| rounds_alike(extent[dim], outputs[dim])) {
            Resample::Resize {
                outputs,
                interpolation,
            }
        } else {
            return reason(format!(
                "it resizes {extent:?} to {outputs:?}, where PyTorch rounds positions otherwise"
            ));
        };
        self.resample(call, resample, tensor)
    }

    fn resample(
        &mut self,
        call: &Call,
        resample: Resample,
        tensor: &Tensor,
    ) -> Result<Tensor, Fault> {
        let node = self.plain(call, Op::Resample(resample), &[tensor.node])?;
        Ok(self.image(node))
    }

    /// Pads of D, H, W from those of dims, the last dim first.
    pub(super) fn sides(
        &self,
        tensor: &Tensor,
        pads: &[(usize, usize)],
    ) -> Result<[(usize, usize); 3], Fault> {
        let mut sides = [(0, 0); 3];
        let dims = tensor.layout.dims();
        for (index, &pad) in pads.iter().enumerate() {
            if pad == (0, 0) {
                continue;
            }
            let dim = (dims.checked_sub(index + 1))
                .ok_or_else(|| Fault::Reason("it pads other dims than its input has".into()))?;
            // A dim of extent 1 has no axis, and is that of an image.
            let space = match tensor.layout.axes(dim) {
                [Axis::Space(space)] => Some(*space),
                [] if tensor.layout.is_image(self.shape(tensor), self.rank) => {
                    (dim >= 2).then(|| dim + 1 - self.rank)
                }
                _ => None,
            };
            let Some(space) = space else {
                return reason("padding of samples or channels is not read");
            };
            sides[space] = pad;
        }
        Ok(sides)
    }

    fn prelu(&mut self, call: &Call, tensor: &Tensor) -> Result<Tensor, Fault> {
        let Some(slopes) = self.parameter(call, 1)? else {
            return reason("it has no slopes that are read");
        };
        let count = slopes.shape.iter().product::<usize>();
        let kind = if count == 1 {
            PreluSlopes::One
        } else {
            PreluSlopes::Channel
        };
        self.norm(call, Op::Prelu(kind), tensor, &vec![(Slope, Some(slopes))])
    }
}

/// Whether PyTorch, which computes positions with a rounded scale, takes the inputs that exact positions have.
fn rounds_alike(extent: usize, outputs: usize) -> bool {
    let narrow = extent as f32 / outputs as f32;
    let wide = extent as f64 / outputs as f64;
    (0..outputs).all(|output| {
        let exact = output * extent / outputs;
        let rounded = [
            (output as f32 * narrow).floor() as usize,
            (output as f64 * wide).floor() as usize,
        ];
        rounded == [exact; 2]
    })
}

/// Whether the axes are channels, then space in order.
fn is_flat(axes: &[Axis]) -> bool {
    let is_cut = |axis: &Axis| matches!(axis, Axis::Part { .. } | Axis::Block { .. });
    if axes.iter().any(is_cut) {
        return false;
    }
    let order = |axis: &Axis| match axis {
        Axis::Sample => 0,
        Axis::Channel | Axis::Part { .. } => 1,
        Axis::Space(dim) | Axis::Block { dim, .. } => 2 + dim,
    };
    axes.first() != Some(&Axis::Sample) && axes.is_sorted_by_key(order)
}

pub(super) fn weighted(weight: Read, bias: Option<Read>) -> Parameters {
    let bias = bias.map(|bias| (Bias, Some(bias)));
    [(Weight, Some(weight))].into_iter().chain(bias).collect()
}
