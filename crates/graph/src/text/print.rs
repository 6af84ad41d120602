//! Writes the text form of a model.

use super::loss;
use super::values::real;
use crate::constant::shuffle_factors;
use crate::keyword::Keyword;
use crate::{
    Activation, Convolution, DropoutMask, Graph, Initialization, Interpolation, Node, Op,
    Parameter, ParameterRole, Pool, PoolKind, Resample, Shape, TransposedConvolution,
};
use partita_space::{AttentionWindow, Window};
use std::fmt::Display;

/// The text form of a model; [`super::parse`] reads it back as an equal graph.
pub fn print(graph: &Graph) -> String {
    let mut text = format!("model {}\n", graph.name);
    for node in &graph.nodes {
        text += &line(graph, node);
        text.push('\n');
    }
    text
}

fn line(graph: &Graph, node: &Node) -> String {
    let word = Keyword::of(&node.op).name();
    let rank = graph.spatial_rank;
    if node.op == Op::Features {
        return format!("{word} {} features={}", node.name, node.shape.channels);
    }
    if node.op == Op::Input {
        let extent = join(&node.shape.extent[3 - rank..]);
        return format!(
            "{word} {} channels={} extent={extent}",
            node.name, node.shape.channels
        );
    }
    if let Some(factors) = shuffle_factors(graph, node) {
        let factors = per_dim(&factors[3 - rank..], |&factor| factor);
        let word = Keyword::PixelShuffle.name();
        let input = &graph.node(node.inputs[0]).name;
        return format!("{} = {word} {input} factor={factors}", node.name);
    }
    let mut line = format!("{} = {word}", node.name);
    for &input in &node.inputs {
        line += &format!(" {}", graph.node(input).name);
    }
    for (key, value) in attributes(node, rank) {
        line += &format!(" {key}={value}");
    }
    let own = || node.parameters.iter().map(|&id| graph.parameter(id));
    let has_scale = own().any(|one| one.role == ParameterRole::Gamma && !one.is_constant);
    for one in own() {
        line += &parameter(node, one, has_scale);
    }
    line
}

fn attributes(node: &Node, rank: usize) -> Vec<(&'static str, String)> {
    match &node.op {
        Op::Convolution(convolution) => convolution_attributes(convolution, rank),
        Op::TransposedConvolution(convolution) => transposed_attributes(convolution, rank),
        Op::Pool(pool) if pool.is_adaptive() => adaptive_attributes(pool, node.shape, rank),
        Op::Pool(pool) => pool_attributes(pool, rank),
        Op::Resample(resample) => resample_attributes(resample, rank),
        Op::BatchNorm { epsilon, momentum } => {
            vec![("epsilon", real(*epsilon)), ("momentum", real(*momentum))]
        }
        Op::LeakyRelu { negative_slope } if *negative_slope == 0.0 => Vec::new(),
        Op::LeakyRelu { negative_slope } => vec![("slope", real(*negative_slope))],
        Op::Prelu(slopes) => vec![("slopes", slopes.name().to_owned())],
        Op::Linear { features, bias: _ } => vec![("features", features.to_string())],
        Op::Dropout { rate, mask } => [("rate", real(*rate))]
            .into_iter()
            .chain((*mask != DropoutMask::Element).then(|| ("mask", mask.name().to_owned())))
            .collect(),
        Op::ChannelShuffle { groups } => vec![("groups", groups.to_string())],
        Op::Loss(loss) => loss::attributes(loss),
        Op::AuxiliaryLoss { loss, weight } => [("weight", real(*weight))]
            .into_iter()
            .chain(loss::attributes(loss))
            .collect(),
        Op::Slice { start, channels } => vec![
            ("start", start.to_string()),
            ("channels", channels.to_string()),
        ],
        Op::Embedding { rows, channels } => vec![
            ("rows", rows.to_string()),
            ("channels", channels.to_string()),
        ],
        Op::PositionEmbedding { rows } => vec![("rows", rows.to_string())],
        Op::Reshape { extent } => vec![("extent", per_dim(&extent[3 - rank..], |&number| number))],
        Op::LayerNorm { epsilon, .. } => vec![("epsilon", real(*epsilon))],
        Op::GroupNorm { groups, epsilon } => groups
            .map(|groups| ("groups", groups.to_string()))
            .into_iter()
            .chain([("epsilon", real(*epsilon))])
            .collect(),
        Op::Attention { .. } => attention_attributes(&node.op, rank),
        Op::Activation(activation) => {
            let constants = activation.constants().into_iter();
            // A clamp without a bound has that of the type.
            let is_clamp = matches!(activation, Activation::Clamp { .. });
            let open = f64::from(f32::MAX);
            let said = constants.filter(|(_, value)| !is_clamp || value.abs() < open);
            said.map(|(key, value)| (key, real(value))).collect()
        }
        Op::Input
        | Op::Features
        | Op::Flatten
        | Op::Add
        | Op::Multiply
        | Op::Concat
        | Op::Positions
        | Op::Softmax => Vec::new(),
    }
    .into_iter()
    .chain(no_bias(&node.op))
    .collect()
}

fn attention_attributes(op: &Op, rank: usize) -> Vec<(&'static str, String)> {
    let &Op::Attention {
        heads,
        causal,
        window,
        bias,
    } = op
    else {
        return Vec::new();
    };
    let dims = |all: [usize; 3]| per_dim(&all[3 - rank..], |&number| number);
    let mut attributes = vec![("heads", heads.to_string()), ("causal", causal.to_string())];
    if let Some(window) = window {
        attributes.push(("window", dims(window.extent)));
        if window.shift != [0; 3] {
            attributes.push(("shift", dims(window.shift)));
        }
        if window.mask != AttentionWindow::MASK {
            attributes.push(("mask", real(window.mask)));
        }
    }
    attributes.extend(bias.map(|bias| ("bias", bias.name().to_owned())));
    let table = bias.and_then(|bias| bias.table());
    attributes.extend(table.map(|table| ("table", dims(table))));
    attributes
}

/// An existing bias is printed with its source, see [`parameter`].
fn no_bias(op: &Op) -> Option<(&'static str, String)> {
    let lacks = match op {
        Op::Convolution(convolution) => !convolution.bias,
        Op::TransposedConvolution(convolution) => !convolution.bias,
        Op::Linear { bias, .. } => !bias,
        Op::Input
        | Op::Features
        | Op::Pool(_)
        | Op::Resample(_)
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
        | Op::Attention { .. }
        | Op::Loss(_)
        | Op::AuxiliaryLoss { .. } => false,
    };
    lacks.then(|| ("bias", "false".to_owned()))
}

fn convolution_attributes(convolution: &Convolution, rank: usize) -> Vec<(&'static str, String)> {
    let Convolution {
        filters,
        window,
        periodic,
        groups,
        bias: _,
    } = convolution;
    let mut attributes = window_attributes(*filters, &window[3 - rank..]);
    if *periodic {
        attributes.push(("padding", "periodic".to_owned()));
    }
    attributes.extend(groups_attribute(*groups));
    attributes
}

fn transposed_attributes(
    convolution: &TransposedConvolution,
    rank: usize,
) -> Vec<(&'static str, String)> {
    let TransposedConvolution {
        filters,
        window,
        output_padding,
        groups,
        bias: _,
    } = convolution;
    let mut attributes = window_attributes(*filters, &window[3 - rank..]);
    let extras = &output_padding[3 - rank..];
    if extras.iter().any(|&extra| extra != 0) {
        attributes.push(("output_padding", per_dim(extras, |&extra| extra)));
    }
    attributes.extend(groups_attribute(*groups));
    attributes
}

fn window_attributes(filters: usize, window: &[Window]) -> Vec<(&'static str, String)> {
    let mut attributes = vec![
        ("filters", filters.to_string()),
        ("kernel", per_dim(window, |window| window.kernel)),
        ("stride", per_dim(window, |window| window.stride)),
    ];
    if window.iter().any(|window| window.dilation != 1) {
        attributes.push(("dilation", per_dim(window, |window| window.dilation)));
    }
    attributes.push(("pad", per_dim(window, padding)));
    attributes
}

fn groups_attribute(groups: usize) -> Option<(&'static str, String)> {
    (groups != 1).then(|| ("groups", groups.to_string()))
}

fn pool_attributes(pool: &Pool, rank: usize) -> Vec<(&'static str, String)> {
    let window = &pool.window[3 - rank..];
    let mut attributes = vec![
        ("kernel", per_dim(window, |window| window.kernel)),
        ("stride", per_dim(window, |window| window.stride)),
        ("pad", per_dim(window, padding)),
    ];
    if let Some(count_padding) = pool.kind.counts_padding() {
        attributes.push(("count_padding", count_padding.to_string()));
    }
    attributes
}

/// A global pooling has one output, as its word says; an adaptive mean names how many it has.
fn adaptive_attributes(pool: &Pool, output: Shape, rank: usize) -> Vec<(&'static str, String)> {
    match pool.kind {
        PoolKind::Max | PoolKind::L2 => Vec::new(),
        PoolKind::AverageAll | PoolKind::AverageInside => {
            vec![(
                "output",
                per_dim(&output.extent[3 - rank..], |&extent| extent),
            )]
        }
    }
}

fn resample_attributes(resample: &Resample, rank: usize) -> Vec<(&'static str, String)> {
    let numbers = |numbers: &[usize; 3]| per_dim(&numbers[3 - rank..], |&number| number);
    match resample {
        Resample::Upsample {
            factors,
            interpolation,
        } => {
            let attributes = [("factor", numbers(factors))].into_iter();
            attributes
                .chain(interpolation_attributes(*interpolation))
                .collect()
        }
        Resample::AdaptiveAverage { outputs } => vec![("output", numbers(outputs))],
        Resample::Pad { sides, mode } => vec![
            (
                "pad",
                per_dim(&sides[3 - rank..], |&(low, high)| both_sides(low, high)),
            ),
            ("padding", mode.name().to_owned()),
        ],
        Resample::Resize {
            outputs,
            interpolation,
        } => [("output", numbers(outputs))]
            .into_iter()
            .chain(interpolation_attributes(*interpolation))
            .collect(),
        Resample::Crop {
            starts,
            steps,
            outputs,
        } => vec![
            ("start", numbers(starts)),
            ("step", numbers(steps)),
            ("output", numbers(outputs)),
        ],
    }
}

fn interpolation_attributes(interpolation: Interpolation) -> Vec<(&'static str, String)> {
    match interpolation {
        Interpolation::Nearest => vec![("mode", "nearest".to_owned())],
        Interpolation::Linear { align_corners } => vec![
            ("mode", "linear".to_owned()),
            ("align_corners", align_corners.to_string()),
        ],
    }
}

/// Says where a parameter comes from, or nothing where the default holds; begins with a blank.
fn parameter(node: &Node, parameter: &Parameter, has_scale: bool) -> String {
    let role = parameter.role;
    let key = role.name();
    if parameter.name != format!("{}.{key}", node.name) {
        return format!(" {key}={}", parameter.name);
    }
    if parameter.is_constant {
        return match role {
            ParameterRole::Beta if !node.op.has_offset() => "",
            ParameterRole::Gamma => " affine=false",
            _ if has_scale => " bias=false",
            _ => "",
        }
        .to_owned();
    }
    let exists = match role {
        ParameterRole::Bias => " bias=true",
        ParameterRole::Weight
        | ParameterRole::Gamma
        | ParameterRole::Beta
        | ParameterRole::Slope
        | ParameterRole::RunningMean
        | ParameterRole::RunningVariance => "",
    };
    if parameter.initialization == node.op.default_initialization(role) {
        return exists.to_owned();
    }
    match (role, parameter.initialization) {
        (ParameterRole::Weight, initialization) => format!(" init={initialization}"),
        (_, Initialization::Constant(value)) => format!("{exists} init_{key}={}", real(value)),
        (_, initialization) => format!("{exists} init_{key}={initialization}"),
    }
}

fn per_dim<D, T: Display + PartialEq>(dims: &[D], value: impl Fn(&D) -> T) -> String {
    let values: Vec<T> = dims.iter().map(value).collect();
    if values.iter().all(|value| *value == values[0]) {
        return values[0].to_string();
    }
    join(&values)
}

fn padding(window: &Window) -> String {
    let Window {
        pad_low, pad_high, ..
    } = window;
    both_sides(*pad_low, *pad_high)
}

fn both_sides(low: usize, high: usize) -> String {
    if low == high {
        return low.to_string();
    }
    format!("{low}:{high}")
}

fn join<T: Display>(values: &[T]) -> String {
    let values: Vec<String> = values.iter().map(T::to_string).collect();
    values.join("x")
}
