//! Bounds on sizes of layers and of the model, checked while it is built so that no later product or sum
//! overflows.

use crate::parameter_shapes::parameter_shapes;
use crate::{Convolution, GraphError, Op, ParameterRole, Pool, Shape, TransposedConvolution};
use partita_space::limits::ELEMENTS_MAX;

/// Most flops of a layer per sample.
const MAX_FLOPS: u64 = 1 << 52;
/// Most elements of all layers per sample, or of all parameters: their bytes with gradients fit in 64 bits.
const MAX_MODEL_ELEMENTS: u64 = 1 << 56;
/// Most flops of all layers per sample in the forward pass: those of a training step fit in 64 bits.
const MAX_MODEL_FLOPS: u64 = 1 << 60;

/// Errors: a layer with too many flops or elements.
pub(crate) fn check_sizes(
    node: &str,
    op: &Op,
    inputs: &[Shape],
    output: Shape,
) -> Result<(), GraphError> {
    let flops = work_per_sample(op, inputs, output);
    at_most(node, "flop per sample", flops, MAX_FLOPS)?;
    check_volume(node, output)
}

/// Sums over the layers of a model.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    elements: u128,
    parameters: u128,
    flops: u128,
}

impl Totals {
    /// Adds a node with this many elements of its own parameters. Errors: too many in all.
    pub(crate) fn with(
        mut self,
        node: &str,
        op: &Op,
        inputs: &[Shape],
        output: Shape,
        parameters: u128,
    ) -> Result<Self, GraphError> {
        self.elements += output.volume() as u128;
        self.parameters += parameters;
        self.flops += work_per_sample(op, inputs, output);
        for (what, asked, limit) in [
            (
                "elements of all layers up to it",
                self.elements,
                MAX_MODEL_ELEMENTS,
            ),
            (
                "elements of all parameters up to it",
                self.parameters,
                MAX_MODEL_ELEMENTS,
            ),
            (
                "flop per sample of all layers up to it",
                self.flops,
                MAX_MODEL_FLOPS,
            ),
        ] {
            at_most(node, what, asked, limit)?;
        }
        Ok(self)
    }
}

/// Errors: too many elements with padding.
pub(crate) fn check_padded_volume(node: &str, volume: u128) -> Result<(), GraphError> {
    let what = "elements of its output with the padding that its readers ask for";
    at_most(node, what, volume, ELEMENTS_MAX)
}

/// Padding of an operation before and after each spatial dim of its input, or of the output of a transposed
/// convolution.
pub(crate) fn padding(op: &Op) -> [(usize, usize); 3] {
    match op {
        Op::Convolution(Convolution { window, .. })
        | Op::TransposedConvolution(TransposedConvolution { window, .. })
        | Op::Pool(Pool { window, .. }) => window.map(|window| (window.pad_low, window.pad_high)),
        Op::Input
        | Op::Features
        | Op::Resample(_)
        | Op::BatchNorm { .. }
        | Op::LeakyRelu { .. }
        | Op::Prelu(_)
        | Op::Softmax
        | Op::Linear { .. }
        | Op::Dropout { .. }
        | Op::Flatten
        | Op::Reshape { .. }
        | Op::Add
        | Op::Multiply
        | Op::Concat
        | Op::Slice { .. }
        | Op::ChannelShuffle { .. }
        | Op::Embedding { .. }
        | Op::Positions
        | Op::PositionEmbedding { .. }
        | Op::LayerNorm { .. }
        | Op::GroupNorm { .. }
        | Op::Activation(_)
        | Op::Attention { .. }
        | Op::Loss(_)
        | Op::AuxiliaryLoss { .. } => [(0, 0); 3],
    }
}

/// Flops of the forward pass of convolutions, linear layers and attention, 0 for the others: two per
/// multiplication of a weight, taps over padding included, `2 * K * C / groups * F * outputs`; of a
/// transposed convolution as many per input; of attention `4 * C` per pair of positions of a window, masked or not.
pub(crate) fn flops_per_sample(op: &Op, inputs: &[Shape], output: Shape) -> u128 {
    if let Op::Pool(_) | Op::Resample(_) = op {
        0
    } else {
        work_per_sample(op, inputs, output)
    }
}

/// [`flops_per_sample`], and the elements that a pooling or resampling reads.
pub(crate) fn work_per_sample(op: &Op, inputs: &[Shape], output: Shape) -> u128 {
    let Some(input) = inputs.first() else {
        return 0;
    };
    let weight = || -> u128 {
        parameter_shapes(op, inputs)
            .iter()
            .filter(|(role, _)| *role == ParameterRole::Weight)
            .map(|(_, shape)| product(shape))
            .sum()
    };
    match op {
        Op::Convolution(_) | Op::Linear { .. } => {
            weight().saturating_mul(2 * product(&output.extent))
        }
        Op::TransposedConvolution(_) => weight().saturating_mul(2 * product(&input.extent)),
        Op::Attention { window, .. } => {
            let all = inputs.last().map_or(0, |v| product(&v.extent));
            let seen = window.map_or(all, |window| product(&window.extent));
            (4 * product(&[output.volume()])).saturating_mul(seen)
        }
        Op::Pool(pool) => {
            let [d, h, w] = output.extent;
            let taps = pool.window.map(|window| window.kernel);
            product(&[d, h, w, output.channels]).saturating_mul(product(&taps))
        }
        Op::Resample(resample) => {
            let maps = resample.maps(input.extent).into_iter().zip(output.extent);
            maps.fold(output.channels as u128, |all, (map, outputs)| {
                all.saturating_mul(map.tap_count(outputs))
            })
        }
        Op::Input
        | Op::Features
        | Op::BatchNorm { .. }
        | Op::LeakyRelu { .. }
        | Op::Prelu(_)
        | Op::Softmax
        | Op::Dropout { .. }
        | Op::Flatten
        | Op::Reshape { .. }
        | Op::Add
        | Op::Multiply
        | Op::Concat
        | Op::Slice { .. }
        | Op::ChannelShuffle { .. }
        | Op::Embedding { .. }
        | Op::Positions
        | Op::PositionEmbedding { .. }
        | Op::LayerNorm { .. }
        | Op::GroupNorm { .. }
        | Op::Activation(_)
        | Op::Loss(_)
        | Op::AuxiliaryLoss { .. } => 0,
    }
}

/// Errors: too many elements.
pub(crate) fn check_parameter_volume(node: &str, shape: [usize; 5]) -> Result<(), GraphError> {
    at_most(
        node,
        "elements of a parameter",
        product(&shape),
        ELEMENTS_MAX,
    )
}

/// Errors: too many elements.
pub(crate) fn check_volume(node: &str, shape: Shape) -> Result<(), GraphError> {
    let [d, h, w] = shape.extent;
    let volume = product(&[d, h, w, shape.channels]);
    at_most(node, "elements of its output", volume, ELEMENTS_MAX)
}

fn at_most(node: &str, what: &'static str, asked: u128, limit: u64) -> Result<(), GraphError> {
    if asked <= u128::from(limit) {
        return Ok(());
    }
    Err(GraphError::TooLarge {
        node: node.to_owned(),
        what,
        asked,
        limit,
    })
}

pub(crate) fn product(factors: &[usize]) -> u128 {
    factors.iter().fold(1, |product: u128, &factor| {
        product.saturating_mul(factor as u128)
    })
}
