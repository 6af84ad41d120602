//! Shape inference.

use crate::sizes::{check_sizes, check_volume};
use crate::{
    Activation, Convolution, GraphError, Initialization, Op, ParameterRole, Pool, Shape,
    TransposedConvolution,
};
use partita_space::Window;

mod loss;
mod resample;
mod sequence;

/// Names of the spatial dims.
pub(crate) const DIM_NAMES: [&str; 3] = ["D", "H", "W"];

/// Largest number an attribute may hold; keeps products inside 64 bits.
pub(crate) const MAX_NUMBER: usize = 1 << 31;
/// Shape of what an operation computes, after all checks of its attributes.
pub(crate) fn infer(
    node: &str,
    op: &Op,
    inputs: &[Shape],
    spatial_rank: usize,
) -> Result<Shape, GraphError> {
    let input = check_inputs(node, op, inputs)?;
    let shape = match op {
        Op::Input | Op::Features => input,
        Op::Loss(kind) => {
            loss::check_loss(node, kind, input)?;
            input
        }
        Op::AuxiliaryLoss { loss: kind, weight } => {
            let weight = *weight;
            loss::check_loss(node, kind, input)?;
            let ok = weight > 0.0 && in_f32(weight);
            let possible = "finite and above 0, as f32 holds it";
            in_range(node, "weight", ok, weight, possible, 1.0)?;
            input
        }
        Op::Convolution(convolution) => infer_convolution(node, convolution, input, spatial_rank)?,
        Op::TransposedConvolution(convolution) => {
            infer_transposed(node, convolution, input, spatial_rank)?
        }
        Op::Pool(pool) => infer_pool(node, pool, input, spatial_rank)?,
        Op::Resample(resample) => resample::infer(node, resample, input, spatial_rank)?,
        &Op::BatchNorm { epsilon, momentum } => {
            check_batch_norm(node, epsilon, momentum)?;
            input
        }
        &Op::LeakyRelu { negative_slope } => {
            check_slope(node, negative_slope)?;
            input
        }
        &Op::Linear { features, bias: _ } => infer_linear(node, features, input)?,
        &Op::Dropout { rate, mask: _ } => {
            check_share(node, "rate", rate)?;
            input
        }
        Op::Flatten => Shape {
            extent: [1; 3],
            channels: input.volume(),
        },
        &Op::Activation(activation) => {
            check_activation(node, activation)?;
            input
        }
        Op::Add | Op::Multiply | Op::Prelu(_) | Op::Softmax => input,
        Op::Concat => Shape {
            channels: inputs
                .iter()
                .fold(0, |all, input| all.saturating_add(input.channels)),
            ..input
        },
        Op::Slice { .. }
        | Op::ChannelShuffle { .. }
        | Op::Embedding { .. }
        | Op::Positions
        | Op::PositionEmbedding { .. }
        | Op::LayerNorm { .. }
        | Op::GroupNorm { .. }
        | Op::Attention { .. } => sequence::infer(node, op, inputs)?,
        &Op::Reshape { extent } => resample::reshape(node, extent, input, spatial_rank)?,
    };
    check_sizes(node, op, inputs, shape)?;
    Ok(shape)
}

/// Checks the extents and channels of the model's input.
pub(crate) fn check_input(node: &str, shape: Shape) -> Result<(), GraphError> {
    for extent in shape.extent {
        number(node, "extent", extent)?;
    }
    number(node, "channels", shape.channels)?;
    check_volume(node, shape)
}

/// Checks the features of a model.
pub(crate) fn check_features(node: &str, count: usize) -> Result<(), GraphError> {
    number(node, "features", count)
}

/// Refuses an initialization that does not suit the role: fans are those of weights, and what is not
/// trained is not drawn.
pub(crate) fn check_initialization(
    node: &str,
    role: ParameterRole,
    initialization: Initialization,
) -> Result<(), GraphError> {
    let ok = match initialization {
        Initialization::GlorotUniform
        | Initialization::HeNormal
        | Initialization::HeNormalFanOut => role == ParameterRole::Weight,
        Initialization::Normal(width) | Initialization::Uniform(width) => {
            role.is_trained() && in_f32(width) && width >= 0.0
        }
        Initialization::Constant(value) => in_f32(value),
        // It is no start of what is trained.
        Initialization::Shuffle => false,
    };
    if ok {
        return Ok(());
    }
    let nearest = match role.default_initialization() {
        Initialization::Constant(value) => value,
        Initialization::GlorotUniform
        | Initialization::HeNormal
        | Initialization::HeNormalFanOut
        | Initialization::Normal(_)
        | Initialization::Uniform(_)
        | Initialization::Shuffle => 0.0,
    };
    Err(GraphError::Initialization {
        node: node.to_owned(),
        role: role.name(),
        asked: initialization.to_string(),
        nearest,
    })
}

fn check_inputs(node: &str, op: &Op, inputs: &[Shape]) -> Result<Shape, GraphError> {
    let expected = match op {
        Op::Concat => return check_concat(node, inputs),
        Op::Add | Op::Multiply => 2,
        Op::Attention { .. } => 3,
        Op::Input
        | Op::Features
        | Op::Convolution(_)
        | Op::TransposedConvolution(_)
        | Op::Pool(_)
        | Op::Resample(_)
        | Op::BatchNorm { .. }
        | Op::LeakyRelu { .. }
        | Op::Prelu(_)
        | Op::Softmax
        | Op::Linear { .. }
        | Op::Dropout { .. }
        | Op::Flatten
        | Op::Reshape { .. }
        | Op::Slice { .. }
        | Op::ChannelShuffle { .. }
        | Op::Embedding { .. }
        | Op::Positions
        | Op::PositionEmbedding { .. }
        | Op::LayerNorm { .. }
        | Op::GroupNorm { .. }
        | Op::Activation(_)
        | Op::Loss(_)
        | Op::AuxiliaryLoss { .. } => 1,
    };
    if inputs.len() != expected {
        return Err(GraphError::InputCount {
            node: node.to_owned(),
            operation: op.keyword(),
            asked: inputs.len(),
            expected,
        });
    }
    let (left, right) = (inputs[0], inputs[expected - 1]);
    if left == right || matches!(op, Op::Attention { .. }) {
        return Ok(left);
    }
    if *op == Op::Multiply {
        return check_factor(node, left, right);
    }
    let nearest = if left.extent == right.extent {
        format!(
            "a 1x1x1 convolution of one side gives it {} filters",
            left.channels
        )
    } else {
        format!("the other side would need {left}")
    };
    Err(GraphError::AddShapes {
        node: node.to_owned(),
        left,
        right,
        nearest,
    })
}

/// The second factor may have one position, or one channel.
fn check_factor(node: &str, left: Shape, right: Shape) -> Result<Shape, GraphError> {
    let is_possible = |all: Shape, factor: Shape| {
        let is_gate = factor.extent == [1; 3] && factor.channels == all.channels;
        let is_map = factor.channels == 1 && factor.extent == all.extent;
        is_gate || is_map
    };
    if is_possible(left, right) {
        return Ok(left);
    }
    let nearest = if is_possible(right, left) {
        "the other order is possible".to_owned()
    } else if left.extent == right.extent {
        format!(
            "a 1x1x1 convolution gives the second 1 or {} filters",
            left.channels
        )
    } else if right.extent == [1; 3] {
        format!(
            "a 1x1x1 convolution gives the second {} filters",
            left.channels
        )
    } else {
        let gate = Shape {
            extent: [1; 3],
            ..left
        };
        format!("the second would need {left} or {gate}")
    };
    Err(GraphError::MultiplyShapes {
        node: node.to_owned(),
        left,
        right,
        nearest,
    })
}

fn check_concat(node: &str, inputs: &[Shape]) -> Result<Shape, GraphError> {
    let [first, rest @ ..] = inputs else {
        return Err(few_inputs(node, 0));
    };
    if rest.is_empty() {
        return Err(few_inputs(node, 1));
    }
    match rest.iter().find(|other| other.extent != first.extent) {
        None => Ok(*first),
        Some(other) => {
            let [d, h, w] = first.extent;
            Err(GraphError::ConcatExtents {
                node: node.to_owned(),
                first: *first,
                other: *other,
                nearest: format!("{d}x{h}x{w}"),
            })
        }
    }
}

fn few_inputs(node: &str, asked: usize) -> GraphError {
    GraphError::FewInputs {
        node: node.to_owned(),
        operation: Op::Concat.keyword(),
        asked,
        nearest: 2,
    }
}

fn infer_convolution(
    node: &str,
    convolution: &Convolution,
    input: Shape,
    spatial_rank: usize,
) -> Result<Shape, GraphError> {
    let Convolution {
        filters,
        window,
        periodic,
        groups,
        bias: _,
    } = convolution;
    number(node, "filters", *filters)?;
    number(node, "groups", *groups)?;
    let extent = slide(node, window, input, spatial_rank)?;
    check_groups(node, *groups, input.channels, *filters)?;
    for ((window, dim), extent) in window.iter().zip(DIM_NAMES).zip(input.extent) {
        let asked = window.pad_low.max(window.pad_high);
        if *periodic && asked > extent {
            return Err(GraphError::PeriodicPadding {
                node: node.to_owned(),
                dim,
                asked,
                extent,
            });
        }
    }
    Ok(Shape {
        extent,
        channels: *filters,
    })
}

fn infer_transposed(
    node: &str,
    convolution: &TransposedConvolution,
    input: Shape,
    spatial_rank: usize,
) -> Result<Shape, GraphError> {
    let TransposedConvolution {
        filters,
        window,
        output_padding,
        groups,
        bias: _,
    } = convolution;
    number(node, "filters", *filters)?;
    number(node, "groups", *groups)?;
    let mut extent = [1; 3];
    for (i, dim) in DIM_NAMES.into_iter().enumerate() {
        let window = &window[i];
        if i < 3 - spatial_rank && (*window != Window::ONE || output_padding[i] != 0) {
            return Err(GraphError::MissingDim {
                node: node.to_owned(),
                dim,
                spatial_rank,
            });
        }
        check_window(node, window)?;
        extent[i] = unslide(node, dim, window, output_padding[i], input.extent[i])?;
    }
    check_groups(node, *groups, input.channels, *filters)?;
    Ok(Shape {
        extent,
        channels: *filters,
    })
}

/// Extent of what a transposed convolution computes along a dim.
fn unslide(
    node: &str,
    dim: &'static str,
    window: &Window,
    asked: usize,
    extent: usize,
) -> Result<usize, GraphError> {
    let below = window.stride.max(window.dilation);
    if asked >= below {
        return Err(GraphError::OutputPadding {
            node: node.to_owned(),
            dim,
            asked,
            stride: window.stride,
            dilation: window.dilation,
            nearest: below - 1,
        });
    }
    let full = (extent - 1)
        .saturating_mul(window.stride)
        .saturating_add(window.span() + asked);
    let pads = window.pad_low + window.pad_high;
    if pads >= full {
        return Err(GraphError::NothingLeft {
            node: node.to_owned(),
            dim,
            low: window.pad_low,
            high: window.pad_high,
            full,
            nearest: (full - 1) / 2,
        });
    }
    Ok(full - pads)
}

fn infer_pool(
    node: &str,
    pool: &Pool,
    input: Shape,
    spatial_rank: usize,
) -> Result<Shape, GraphError> {
    for (window, dim) in pool.window.iter().zip(DIM_NAMES) {
        let asked = window.pad_low.max(window.pad_high);
        if asked > window.kernel / 2 && window.kernel >= 1 {
            return Err(GraphError::PoolPadding {
                node: node.to_owned(),
                dim,
                asked,
                kernel: window.kernel,
                nearest: window.kernel / 2,
            });
        }
        if window.dilation != 1 {
            return Err(GraphError::PoolDilation {
                node: node.to_owned(),
                dim,
                asked: window.dilation,
            });
        }
    }
    Ok(Shape {
        extent: slide(node, &pool.window, input, spatial_rank)?,
        channels: input.channels,
    })
}

fn infer_linear(node: &str, features: usize, input: Shape) -> Result<Shape, GraphError> {
    if input.extent != [1; 3] {
        return Err(GraphError::LinearBeforeFlatten {
            node: node.to_owned(),
            shape: input,
            nearest: input.volume(),
        });
    }
    number(node, "features", features)?;
    Ok(Shape {
        extent: [1; 3],
        channels: features,
    })
}

fn check_batch_norm(node: &str, epsilon: f64, momentum: f64) -> Result<(), GraphError> {
    check_epsilon(node, epsilon)?;
    let nearest = if momentum > 1.0 { 1.0 } else { 0.0 };
    let ok = (0.0..=1.0).contains(&momentum) && in_f32(momentum);
    let possible = "0 to 1, as f32 holds it";
    in_range(node, "momentum", ok, momentum, possible, nearest)
}

fn check_activation(node: &str, activation: Activation) -> Result<(), GraphError> {
    match activation {
        Activation::Elu { alpha } => {
            let ok = alpha > 0.0 && in_f32(alpha);
            let possible = "finite and above 0, as f32 holds it";
            in_range(node, "alpha", ok, alpha, possible, 1.0)
        }
        Activation::Softplus { beta } => {
            let ok = beta > 0.0 && in_f32(beta);
            let possible = "finite and above 0, as f32 holds it";
            in_range(node, "beta", ok, beta, possible, 1.0)
        }
        Activation::Hardtanh { low, high } | Activation::Clamp { low, high } => {
            let possible = "finite, as f32 holds it";
            in_range(node, "low", in_f32(low), low, possible, -1.0)?;
            let ok = (high as f32) > (low as f32) && in_f32(high);
            let possible = "finite and above `low`, as f32 holds it";
            in_range(node, "high", ok, high, possible, low + low.abs().max(1.0))
        }
        Activation::Affine { scale, shift } => {
            let possible = "finite, as f32 holds it";
            in_range(node, "scale", in_f32(scale), scale, possible, 1.0)?;
            in_range(node, "shift", in_f32(shift), shift, possible, 0.0)
        }
        Activation::Gelu
        | Activation::Silu
        | Activation::Sigmoid
        | Activation::Tanh
        | Activation::GeluTanh
        | Activation::Mish
        | Activation::HardSigmoid
        | Activation::HardSwish => Ok(()),
    }
}

/// Kernels divide by what is left of 1.
fn check_share(node: &str, key: &'static str, share: f64) -> Result<(), GraphError> {
    let ok = share >= 0.0 && in_f32(share) && (share as f32) < 1.0;
    let nearest = if share as f32 >= 1.0 { 0.99 } else { 0.0 };
    let possible = "at least 0 and below 1, as f32 holds it";
    in_range(node, key, ok, share, possible, nearest)
}

fn check_slope(node: &str, slope: f64) -> Result<(), GraphError> {
    let most = f64::from(f32::MAX);
    let ok = slope >= 0.0 && in_f32(slope);
    let nearest = if slope > most { most } else { 0.0 };
    let [asked, nearest] = [slope, nearest].map(|number| {
        if number.abs() < 1e6 {
            number.to_string()
        } else {
            format!("{number:e}")
        }
    });
    let possible = "finite and at least 0, as f32 holds it";
    in_range(node, "slope", ok, asked, possible, nearest)
}

/// Whether kernels have it: f32 makes it neither infinite nor, unless it is that, 0.
fn in_f32(number: f64) -> bool {
    number == 0.0 || (number as f32).is_normal()
}

fn check_epsilon(node: &str, epsilon: f64) -> Result<(), GraphError> {
    // Kernels add it in f32.
    let ok = epsilon > 0.0 && in_f32(epsilon);
    in_range(
        node,
        "epsilon",
        ok,
        epsilon,
        "above 0, as f32 holds it",
        1e-5,
    )
}

/// Extents after a window has slid over all dims.
fn slide(
    node: &str,
    window: &[Window; 3],
    input: Shape,
    spatial_rank: usize,
) -> Result<[usize; 3], GraphError> {
    let mut output = [1; 3];
    for (i, window) in window.iter().enumerate() {
        let dim = DIM_NAMES[i];
        if i < 3 - spatial_rank && *window != Window::ONE {
            return Err(GraphError::MissingDim {
                node: node.to_owned(),
                dim,
                spatial_rank,
            });
        }
        output[i] = slide_along(node, dim, window, input.extent[i])?;
    }
    Ok(output)
}

fn check_window(node: &str, window: &Window) -> Result<(), GraphError> {
    number(node, "kernel", window.kernel)?;
    number(node, "stride", window.stride)?;
    number(node, "dilation", window.dilation)?;
    for pad in [window.pad_low, window.pad_high] {
        let ok = pad <= MAX_NUMBER;
        in_range(node, "pad", ok, pad, "0 to 2^31", MAX_NUMBER)?;
    }
    Ok(())
}

fn slide_along(
    node: &str,
    dim: &'static str,
    window: &Window,
    extent: usize,
) -> Result<usize, GraphError> {
    check_window(node, window)?;
    let padded = extent + window.pad_low + window.pad_high;
    if window.span() > padded {
        return Err(GraphError::WindowTooLarge {
            node: node.to_owned(),
            dim,
            kernel: window.kernel,
            dilation: window.dilation,
            span: window.span(),
            extent,
            padded,
            nearest: (padded - 1) / window.dilation + 1,
        });
    }
    Ok(window.output_extent(extent))
}

fn check_groups(
    node: &str,
    groups: usize,
    channels: usize,
    filters: usize,
) -> Result<(), GraphError> {
    if channels.is_multiple_of(groups) && filters.is_multiple_of(groups) {
        return Ok(());
    }
    let possible = common_divisors(channels, filters);
    let nearest = possible
        .iter()
        .min_by_key(|&&divisor| divisor.abs_diff(groups));
    Err(GraphError::Groups {
        node: node.to_owned(),
        groups,
        channels,
        filters,
        nearest: nearest.copied().unwrap_or(1),
        possible: list(possible.iter().map(usize::to_string)),
    })
}

/// Ascending.
fn common_divisors(a: usize, b: usize) -> Vec<usize> {
    let (mut common, mut rest) = (a, b);
    while rest != 0 {
        (common, rest) = (rest, common % rest);
    }
    let small: Vec<usize> = (1..=common.isqrt())
        .filter(|&divisor| common.is_multiple_of(divisor))
        .collect();
    let large = small.iter().rev().map(|divisor| common / divisor);
    let mut divisors: Vec<usize> = small.iter().copied().chain(large).collect();
    divisors.dedup();
    divisors
}

fn number(node: &str, key: &'static str, asked: usize) -> Result<(), GraphError> {
    let ok = (1..=MAX_NUMBER).contains(&asked);
    in_range(
        node,
        key,
        ok,
        asked,
        "1 to 2^31",
        asked.clamp(1, MAX_NUMBER),
    )
}

fn in_range<T: ToString>(
    node: &str,
    key: &'static str,
    ok: bool,
    asked: T,
    possible: &'static str,
    nearest: T,
) -> Result<(), GraphError> {
    if ok {
        return Ok(());
    }
    Err(GraphError::OutOfRange {
        node: node.to_owned(),
        key,
        asked: asked.to_string(),
        possible,
        nearest: nearest.to_string(),
    })
}

/// Joined by commas.
pub(crate) fn list<T: AsRef<str>>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<T> = items.into_iter().collect();
    let items: Vec<&str> = items.iter().map(AsRef::as_ref).collect();
    items.join(", ")
}
