//! Reads the text form of a model.

use super::TextError;
use super::loss;
use super::synonym;
use super::values::{Attributes, Padding, initialization_key};
use crate::constant::shuffle;
use crate::infer::list;
use crate::keyword::Keyword;
use crate::{
    Activation, Convolution, GraphBuilder, GraphError, Loss, NodeId, Op, PadMode, ParameterRole,
    ParameterSource, Pool, PoolKind, Resample, ScoreBias, Shape, TransposedConvolution,
};
use partita_space::{AttentionWindow, Window};

const FORMS: &str = "`input NAME channels=C extent=DxHxW`, `input NAME features=N` and `NAME = OPERATION INPUT KEY=VALUE`";

/// Shape of an input that is not known.
const ONE: Shape = Shape {
    extent: [1; 3],
    channels: 1,
};

type Sources = Vec<(ParameterRole, ParameterSource)>;

pub(super) fn refuse(line: usize, error: GraphError) -> TextError {
    let error = Box::new(error);
    TextError::Graph { line, error }
}

/// Adds the node of a line.
pub(super) fn parse_line(
    builder: &mut GraphBuilder,
    line: usize,
    words: &[&str],
) -> Result<NodeId, TextError> {
    match words {
        [name, "=", operation, rest @ ..] => {
            let keyword = find_keyword(line, operation)?;
            let (inputs, attributes) = split_words(line, keyword, rest)?;
            parse_node(builder, line, name, &inputs, &attributes, keyword)
        }
        ["input", name, rest @ ..] if !name.contains('=') => {
            let (inputs, attributes) = split_words(line, Keyword::Input, rest)?;
            if !inputs.is_empty() {
                return Err(bad_form(line, words));
            }
            if attributes.get("features").is_some() {
                return parse_features(builder, line, name, &attributes);
            }
            let extent = attributes.extent("extent")?;
            let channels = attributes.whole("channels", None)?;
            let input = builder.input(name, &extent, channels);
            input.map_err(|error| refuse(line, error))
        }
        _ => Err(bad_form(line, words)),
    }
}

/// The input of numbers beside the samples, which has neither extents nor channels.
fn parse_features(
    builder: &mut GraphBuilder,
    line: usize,
    name: &str,
    attributes: &Attributes,
) -> Result<NodeId, TextError> {
    for key in ["channels", "extent"] {
        attributes.refuse_key(key, || "an input of `features` has one position".to_owned())?;
    }
    let count = attributes.whole("features", None)?;
    let features = builder.features(name, count);
    features.map_err(|error| refuse(line, error))
}

/// Checks the words of a line without what it reads.
pub(super) fn check_values(
    builder: &GraphBuilder,
    line: usize,
    operation: &str,
    words: &[&str],
) -> Result<(), TextError> {
    let keyword = find_keyword(line, operation)?;
    let (_, attributes) = split_words(line, keyword, words)?;
    parse_op(keyword, &attributes, (builder.spatial_rank(), ONE))?;
    parse_sources(builder, line, keyword, &attributes).map(drop)
}

fn bad_form(line: usize, words: &[&str]) -> TextError {
    // The usual slips: an input without its name or with two, and no blanks around the `=`.
    let nearest = match words {
        ["input", rest @ ..] => {
            let pairs: Vec<&str> = rest
                .iter()
                .copied()
                .filter(|word| word.contains('='))
                .collect();
            let name = rest.iter().find(|word| !word.contains('=')).unwrap_or(&"x");
            format!("input {name} {}", pairs.join(" "))
        }
        [first, rest @ ..] => match first.split_once('=') {
            Some((name, operation)) => format!("{name} = {operation} {}", rest.join(" ")),
            None => format!("{first} = {}", rest.join(" ")),
        },
        [] => String::new(),
    };
    TextError::Form {
        line,
        asked: words.join(" "),
        possible: FORMS,
        nearest: nearest.trim_end().to_owned(),
    }
}

fn find_keyword(line: usize, word: &str) -> Result<Keyword, TextError> {
    let found = Keyword::operations().find(|keyword| keyword.name() == word);
    found.ok_or_else(|| {
        let names: Vec<&str> = Keyword::operations().map(Keyword::name).collect();
        TextError::UnknownOperation {
            line,
            asked: word.to_owned(),
            possible: list(names.iter().copied()),
            nearest: synonym::operation(word, &names).to_owned(),
        }
    })
}

/// Words without `=` are inputs, the others attributes.
fn split_words<'a>(
    line: usize,
    keyword: Keyword,
    words: &[&'a str],
) -> Result<(Vec<&'a str>, Attributes<'a>), TextError> {
    let (mut inputs, mut pairs) = (Vec::new(), Vec::new());
    for word in words {
        match word.split_once('=') {
            Some(pair) => pairs.push(pair),
            None => inputs.push(*word),
        }
    }
    Ok((inputs, Attributes::new(line, keyword, pairs)?))
}

fn parse_node(
    builder: &mut GraphBuilder,
    line: usize,
    name: &str,
    inputs: &[&str],
    attributes: &Attributes,
    keyword: Keyword,
) -> Result<NodeId, TextError> {
    let at_line = |error| refuse(line, error);
    let ids: Result<Vec<NodeId>, GraphError> =
        inputs.iter().map(|input| builder.find(input)).collect();
    let ids = ids.map_err(at_line)?;
    let rank = builder.spatial_rank();
    // A missing input is refused below.
    let shape = ids.first().map_or(ONE, |&id| builder.shape(id));
    let mut op = parse_op(keyword, attributes, (rank, shape))?;
    let sources = parse_sources(builder, line, keyword, attributes)?;
    let mut ids = ids;
    if let (Op::Convolution(convolution), Padding::Copies(mode), [input]) =
        (&mut op, attributes.padding()?, &mut ids[..])
    {
        *input = pad_apart(builder, name, *input, convolution, mode).map_err(at_line)?;
    }
    builder.node(name, op, &ids, &sources).map_err(at_line)
}

/// Padding of a convolution with values of its input, as an operation of its own before it.
fn pad_apart(
    builder: &mut GraphBuilder,
    name: &str,
    input: NodeId,
    convolution: &mut Convolution,
    mode: PadMode,
) -> Result<NodeId, GraphError> {
    let sides = convolution
        .window
        .map(|window| (window.pad_low, window.pad_high));
    if sides == [(0, 0); 3] {
        return Ok(input);
    }
    for window in &mut convolution.window {
        (window.pad_low, window.pad_high) = (0, 0);
    }
    let pad = Op::Resample(Resample::Pad { sides, mode });
    let own = format!("{name}.pad");
    let mut free = own.clone();
    let mut suffix = 2;
    while builder.find(&free).is_ok() {
        free = format!("{own}_{suffix}");
        suffix += 1;
    }
    builder.node(&free, pad, &[input], &[])
}

/// The operation of a line, in a model of `rank` spatial dims, on an input of this shape.
fn parse_op(
    keyword: Keyword,
    attributes: &Attributes,
    (rank, input): (usize, Shape),
) -> Result<Op, TextError> {
    let extent = input.extent;
    Ok(match keyword {
        Keyword::Input => Op::Input,
        Keyword::Conv => parse_convolution(attributes, rank)?,
        Keyword::ConvTranspose => parse_transposed(attributes, rank)?,
        Keyword::PixelShuffle => {
            let factors = attributes.dims("factor", rank, None)?;
            Op::TransposedConvolution(shuffle(input.channels, factors))
        }
        Keyword::Pool(PoolKind::AverageAll | PoolKind::AverageInside) => {
            let count_padding = attributes.flag_or("count_padding", true)?;
            parse_pool(attributes, rank, PoolKind::average(count_padding))?
        }
        Keyword::Pool(kind) => parse_pool(attributes, rank, kind)?,
        Keyword::GlobalPool(kind) => Op::Pool(Pool::global(kind, extent)),
        Keyword::AdaptiveAveragePool
        | Keyword::Upsample
        | Keyword::Pad
        | Keyword::Resize
        | Keyword::Crop => Op::Resample(parse_resample(keyword, attributes, rank)?),
        Keyword::BatchNorm
        | Keyword::LayerNorm
        | Keyword::RmsNorm
        | Keyword::GroupNorm
        | Keyword::InstanceNorm => parse_norm(keyword, attributes)?,
        Keyword::Relu => Op::LeakyRelu {
            negative_slope: 0.0,
        },
        Keyword::LeakyRelu => Op::LeakyRelu {
            negative_slope: attributes.real_or("slope", 0.01)?,
        },
        Keyword::Prelu => Op::Prelu(attributes.slopes()?),
        Keyword::Softmax => Op::Softmax,
        Keyword::Linear => Op::Linear {
            features: attributes.whole("features", None)?,
            bias: attributes.flag_or_name("bias")?.0,
        },
        Keyword::Dropout => Op::Dropout {
            rate: attributes.real_or("rate", 0.5)?,
            mask: attributes.dropout_mask()?,
        },
        Keyword::Flatten => Op::Flatten,
        Keyword::Add => Op::Add,
        Keyword::Multiply => Op::Multiply,
        Keyword::Concat => Op::Concat,
        Keyword::Slice => Op::Slice {
            start: attributes.whole("start", None)?,
            channels: attributes.whole("channels", None)?,
        },
        Keyword::ChannelShuffle => Op::ChannelShuffle {
            groups: attributes.whole("groups", None)?,
        },
        Keyword::Activation(activation) => {
            Op::Activation(parse_activation(activation, attributes)?)
        }
        Keyword::Embedding
        | Keyword::Positions
        | Keyword::PositionEmbedding
        | Keyword::Reshape
        | Keyword::Attention => parse_of_sequences(keyword, attributes, (rank, extent))?,
        Keyword::Mse
        | Keyword::SoftmaxCrossEntropy
        | Keyword::Dice
        | Keyword::DiceCrossEntropy
        | Keyword::BceWithLogits
        | Keyword::L1
        | Keyword::Huber
        | Keyword::SmoothL1 => parse_loss(attributes, loss::read(keyword, attributes)?)?,
    })
}

/// Embeddings, positions, attention, and the arrangement of positions.
fn parse_of_sequences(
    keyword: Keyword,
    attributes: &Attributes,
    (rank, extent): (usize, [usize; 3]),
) -> Result<Op, TextError> {
    Ok(match keyword {
        Keyword::Embedding => Op::Embedding {
            rows: attributes.whole("rows", None)?,
            channels: attributes.whole("channels", None)?,
        },
        Keyword::PositionEmbedding => Op::PositionEmbedding {
            rows: attributes.whole("rows", Some(extent.iter().product()))?,
        },
        Keyword::Reshape => Op::Reshape {
            extent: attributes.dims("extent", rank, None)?,
        },
        Keyword::Attention => parse_attention(attributes, (rank, extent))?,
        _ => Op::Positions,
    })
}

/// A table is that of the windows, or of all positions, unless the line says otherwise.
fn parse_attention(
    attributes: &Attributes,
    (rank, extent): (usize, [usize; 3]),
) -> Result<Op, TextError> {
    let dims = |key| {
        let given = attributes.get(key);
        given.map(|_| attributes.dims(key, rank, None)).transpose()
    };
    let window = dims("window")?;
    let needs = |key, other: &str| attributes.refuse_key(key, || format!("there is no `{other}`"));
    if window.is_none() {
        needs("shift", "window")?;
        needs("mask", "window")?;
    }
    let is_relative = attributes.score_bias()?;
    if is_relative != Some(true) {
        needs("table", "bias=relative")?;
    }
    let bias = match is_relative {
        None => None,
        Some(false) => Some(ScoreBias::Pairs),
        Some(true) => Some(ScoreBias::Relative(
            dims("table")?.or(window).unwrap_or(extent),
        )),
    };
    let window = match window {
        None => None,
        Some(extent) => Some(AttentionWindow {
            extent,
            shift: attributes.extras("shift", rank)?,
            mask: attributes.real_or("mask", AttentionWindow::MASK)?,
        }),
    };
    Ok(Op::Attention {
        heads: attributes.whole("heads", None)?,
        causal: attributes.flag_or("causal", false)?,
        window,
        bias,
    })
}

/// An activation with the constants of its line.
fn parse_activation(
    activation: Activation,
    attributes: &Attributes,
) -> Result<Activation, TextError> {
    Ok(match activation {
        Activation::Elu { alpha } => Activation::Elu {
            alpha: attributes.real_or("alpha", alpha)?,
        },
        Activation::Softplus { beta } => Activation::Softplus {
            beta: attributes.real_or("beta", beta)?,
        },
        Activation::Hardtanh { low, high } => Activation::Hardtanh {
            low: attributes.real_or("low", low)?,
            high: attributes.real_or("high", high)?,
        },
        Activation::Clamp { .. } => Activation::Clamp {
            low: attributes.real_or("low", f64::from(f32::MIN))?,
            high: attributes.real_or("high", f64::from(f32::MAX))?,
        },
        Activation::Affine { .. } => Activation::Affine {
            scale: attributes.real_or("scale", 1.0)?,
            shift: attributes.real_or("shift", 0.0)?,
        },
        Activation::Gelu
        | Activation::Silu
        | Activation::Sigmoid
        | Activation::Tanh
        | Activation::GeluTanh
        | Activation::Mish
        | Activation::HardSigmoid
        | Activation::HardSwish => activation,
    })
}

/// Instance norm, unless it is another one. Without an epsilon it is PyTorch's.
fn parse_norm(keyword: Keyword, attributes: &Attributes) -> Result<Op, TextError> {
    let default = match keyword {
        Keyword::RmsNorm => f64::from(f32::EPSILON),
        _ => 1e-5,
    };
    let epsilon = attributes.real_or("epsilon", default)?;
    Ok(match keyword {
        Keyword::BatchNorm => Op::BatchNorm {
            epsilon,
            momentum: attributes.real_or("momentum", 0.1)?,
        },
        Keyword::LayerNorm | Keyword::RmsNorm => Op::LayerNorm {
            epsilon,
            centers: keyword == Keyword::LayerNorm,
        },
        Keyword::GroupNorm => Op::GroupNorm {
            groups: Some(attributes.whole("groups", None)?),
            epsilon,
        },
        _ => Op::GroupNorm {
            groups: None,
            epsilon,
        },
    })
}

/// The weight is what makes a loss auxiliary.
fn parse_loss(attributes: &Attributes, loss: Loss) -> Result<Op, TextError> {
    Ok(match attributes.get("weight") {
        None => Op::Loss(loss),
        Some(_) => Op::AuxiliaryLoss {
            loss,
            weight: attributes.real("weight")?,
        },
    })
}

fn parse_convolution(attributes: &Attributes, rank: usize) -> Result<Op, TextError> {
    let kernel = attributes.dims("kernel", rank, None)?;
    let stride = attributes.dims("stride", rank, Some(1))?;
    let dilation = attributes.dims("dilation", rank, Some(1))?;
    let pads = attributes.pads("pad", rank)?;
    Ok(Op::Convolution(Convolution {
        filters: attributes.whole("filters", None)?,
        window: windows(kernel, stride, dilation, pads),
        periodic: attributes.padding()? == Padding::Periodic,
        groups: attributes.whole("groups", Some(1))?,
        bias: attributes.flag_or_name("bias")?.0,
    }))
}

fn parse_transposed(attributes: &Attributes, rank: usize) -> Result<Op, TextError> {
    let kernel = attributes.dims("kernel", rank, None)?;
    let stride = attributes.dims("stride", rank, Some(1))?;
    let dilation = attributes.dims("dilation", rank, Some(1))?;
    let pads = attributes.pads("pad", rank)?;
    Ok(Op::TransposedConvolution(TransposedConvolution {
        filters: attributes.whole("filters", None)?,
        window: windows(kernel, stride, dilation, pads),
        output_padding: attributes.extras("output_padding", rank)?,
        groups: attributes.whole("groups", Some(1))?,
        bias: attributes.flag_or_name("bias")?.0,
    }))
}

fn parse_pool(attributes: &Attributes, rank: usize, kind: PoolKind) -> Result<Op, TextError> {
    let kernel = attributes.dims("kernel", rank, None)?;
    let stride = match attributes.get("stride") {
        None => kernel,
        Some(_) => attributes.dims("stride", rank, None)?,
    };
    let pads = attributes.pads("pad", rank)?;
    let window = windows(kernel, stride, [1; 3], pads);
    Ok(Op::Pool(Pool::new(kind, window)))
}

/// An upsampling, unless it is another one.
fn parse_resample(
    keyword: Keyword,
    attributes: &Attributes,
    rank: usize,
) -> Result<Resample, TextError> {
    Ok(match keyword {
        Keyword::AdaptiveAveragePool => Resample::AdaptiveAverage {
            outputs: attributes.dims("output", rank, None)?,
        },
        Keyword::Pad => Resample::Pad {
            sides: attributes.pads("pad", rank)?,
            mode: attributes.pad_mode()?,
        },
        Keyword::Resize => Resample::Resize {
            outputs: attributes.dims("output", rank, None)?,
            interpolation: attributes.interpolation()?,
        },
        Keyword::Crop => Resample::Crop {
            starts: attributes.extras("start", rank)?,
            steps: attributes.dims("step", rank, Some(1))?,
            outputs: attributes.dims("output", rank, None)?,
        },
        _ => Resample::Upsample {
            factors: attributes.dims("factor", rank, None)?,
            interpolation: attributes.interpolation()?,
        },
    })
}

fn windows(
    kernel: [usize; 3],
    stride: [usize; 3],
    dilation: [usize; 3],
    pads: [(usize, usize); 3],
) -> [Window; 3] {
    std::array::from_fn(|i| Window {
        kernel: kernel[i],
        stride: stride[i],
        dilation: dilation[i],
        pad_low: pads[i].0,
        pad_high: pads[i].1,
    })
}

/// Shared parameters and initializations that the line gives.
fn parse_sources(
    builder: &GraphBuilder,
    line: usize,
    keyword: Keyword,
    attributes: &Attributes,
) -> Result<Sources, TextError> {
    let mut sources = Vec::new();
    for &role in roles(keyword) {
        attributes.refuse_number(role, initialization_key(role))?;
        let shared = match role {
            ParameterRole::Bias => attributes.flag_or_name("bias")?.1,
            ParameterRole::Weight
            | ParameterRole::Gamma
            | ParameterRole::Beta
            | ParameterRole::Slope => attributes.get(role.name()),
            ParameterRole::RunningMean | ParameterRole::RunningVariance => None,
        };
        let key = initialization_key(role);
        if attributes.constant(role)? {
            sources.push((role, ParameterSource::Constant));
        } else if let Some(name) = shared {
            attributes.refuse_with_shared(key, name)?;
            let found = builder.find_parameter(name);
            let id = found.map_err(|error| refuse(line, error))?;
            sources.push((role, ParameterSource::Shared(id)));
        } else if let Some(start) = attributes.initialization(key, role != ParameterRole::Weight)? {
            sources.push((role, ParameterSource::Own(start)));
        }
    }
    match keyword {
        Keyword::RmsNorm => sources.push((ParameterRole::Beta, ParameterSource::Constant)),
        Keyword::PixelShuffle => sources.push((ParameterRole::Weight, ParameterSource::Constant)),
        _ => {}
    }
    Ok(sources)
}

/// Parameters whose sources a line may give.
fn roles(keyword: Keyword) -> &'static [ParameterRole] {
    match keyword {
        Keyword::Conv | Keyword::ConvTranspose | Keyword::Linear => {
            &[ParameterRole::Weight, ParameterRole::Bias]
        }
        Keyword::Embedding | Keyword::PositionEmbedding | Keyword::Attention => {
            &[ParameterRole::Weight]
        }
        Keyword::Prelu => &[ParameterRole::Slope],
        Keyword::RmsNorm => &[ParameterRole::Gamma],
        Keyword::LayerNorm | Keyword::GroupNorm | Keyword::InstanceNorm => {
            &[ParameterRole::Gamma, ParameterRole::Beta]
        }
        Keyword::BatchNorm => &[
            ParameterRole::Gamma,
            ParameterRole::Beta,
            ParameterRole::RunningMean,
            ParameterRole::RunningVariance,
        ],
        Keyword::Input
        | Keyword::PixelShuffle
        | Keyword::Pool(_)
        | Keyword::GlobalPool(_)
        | Keyword::AdaptiveAveragePool
        | Keyword::Upsample
        | Keyword::Pad
        | Keyword::Resize
        | Keyword::Crop
        | Keyword::Relu
        | Keyword::LeakyRelu
        | Keyword::Softmax
        | Keyword::Dropout
        | Keyword::Flatten
        | Keyword::Add
        | Keyword::Multiply
        | Keyword::Concat
        | Keyword::Slice
        | Keyword::ChannelShuffle
        | Keyword::Positions
        | Keyword::Reshape
        | Keyword::Activation(_)
        | Keyword::Mse
        | Keyword::SoftmaxCrossEntropy
        | Keyword::Dice
        | Keyword::DiceCrossEntropy
        | Keyword::BceWithLogits
        | Keyword::L1
        | Keyword::Huber
        | Keyword::SmoothL1 => &[],
    }
}
