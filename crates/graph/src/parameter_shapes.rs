//! Shapes of the parameters of operations.

use crate::{Convolution, Op, ParameterRole, PreluSlopes, Shape, TransposedConvolution};

/// Roles and shapes of the parameters that an operation on `inputs` has, in the order of a node.
pub(crate) fn parameter_shapes(op: &Op, inputs: &[Shape]) -> Vec<(ParameterRole, [usize; 5])> {
    let &Op::Attention {
        heads,
        window,
        bias: Some(bias),
        ..
    } = op
    else {
        return of_input(op, inputs[0]);
    };
    let volume = |shape: Shape| shape.extent.into_iter().fold(1, usize::saturating_mul);
    let own = window.map(|window| window.volume());
    let [outer, inner] = [0, 1].map(|index| own.unwrap_or_else(|| volume(inputs[index])));
    let rows = bias.rows(inner).count(outer);
    weight_and_bias([1, 1, 1, rows, heads], heads, false)
}

/// Those of an operation but attention with a bias, which depend on its first input.
fn of_input(op: &Op, input: Shape) -> Vec<(ParameterRole, [usize; 5])> {
    match op {
        Op::Convolution(Convolution {
            filters,
            window: [d, h, w],
            groups,
            bias,
            periodic: _,
        }) => {
            let channels = input.channels / groups;
            let weight = [d.kernel, h.kernel, w.kernel, channels, *filters];
            weight_and_bias(weight, *filters, *bias)
        }
        Op::TransposedConvolution(TransposedConvolution {
            filters,
            window: [d, h, w],
            output_padding: _,
            groups,
            bias,
        }) => {
            let taps = [d, h, w].map(|window| window.kernel);
            let weight = [taps[0], taps[1], taps[2], filters / groups, input.channels];
            weight_and_bias(weight, *filters, *bias)
        }
        &Op::Linear { features, bias } => {
            weight_and_bias([1, 1, 1, input.channels, features], features, bias)
        }
        &Op::Embedding { rows, channels } => {
            weight_and_bias([1, 1, 1, rows, channels], channels, false)
        }
        &Op::PositionEmbedding { rows } => {
            weight_and_bias([1, 1, 1, rows, input.channels], input.channels, false)
        }
        Op::LayerNorm { .. } | Op::GroupNorm { .. } => {
            per_channel(&[ParameterRole::Gamma, ParameterRole::Beta], input)
        }
        Op::Prelu(PreluSlopes::One) => vec![(ParameterRole::Slope, [1; 5])],
        Op::Prelu(PreluSlopes::Channel) => per_channel(&[ParameterRole::Slope], input),
        Op::BatchNorm { .. } => {
            let roles = [
                ParameterRole::Gamma,
                ParameterRole::Beta,
                ParameterRole::RunningMean,
                ParameterRole::RunningVariance,
            ];
            per_channel(&roles, input)
        }
        Op::Input
        | Op::Features
        | Op::Pool(_)
        | Op::Resample(_)
        | Op::LeakyRelu { .. }
        | Op::Softmax
        | Op::Dropout { .. }
        | Op::Flatten
        | Op::Reshape { .. }
        | Op::Add
        | Op::Multiply
        | Op::Concat
        | Op::Slice { .. }
        | Op::ChannelShuffle { .. }
        | Op::Positions
        | Op::Activation(_)
        | Op::Attention { .. }
        | Op::Loss(_)
        | Op::AuxiliaryLoss { .. } => Vec::new(),
    }
}

/// Vectors with an element per channel.
fn per_channel(roles: &[ParameterRole], input: Shape) -> Vec<(ParameterRole, [usize; 5])> {
    let shape = [1, 1, 1, 1, input.channels];
    roles.iter().map(|&role| (role, shape)).collect()
}

/// A weight, and if there is one the bias of this many output channels.
fn weight_and_bias(
    weight: [usize; 5],
    channels: usize,
    bias: bool,
) -> Vec<(ParameterRole, [usize; 5])> {
    let bias = bias.then_some((ParameterRole::Bias, [1, 1, 1, 1, channels]));
    let weight = (ParameterRole::Weight, weight);
    [weight].into_iter().chain(bias).collect()
}
