//! ATen's operators as operations.
//!
//! Source: PyTorch, `aten/src/ATen/native/native_functions.yaml`: names, order and defaults of arguments.

use super::schema::{Argument, NodeJson, Number, OptionalTensor};
use crate::Reason;
use crate::network::{Noise, Operation, Padding};
use partita_graph::{Activation, PadMode, PoolKind};

/// The operation of a call with the tensors that it reads, or why it has none.
pub(super) type Translated = Result<(Operation, Vec<Option<String>>), Reason>;

/// A call with its arguments by name.
pub(super) struct Arguments<'a> {
    node: &'a NodeJson,
    /// Name of the first tensor.
    first: Option<String>,
    /// Extents of the first tensor.
    input: &'a [usize],
    /// Extents of the outputs.
    outputs: Vec<&'a [usize]>,
    /// Whether all tensors are of one type.
    is_one_type: bool,
    /// The type of the first output.
    output_type: Option<u64>,
    is_in_place: bool,
}

impl<'a> Arguments<'a> {
    pub(super) fn new(
        node: &'a NodeJson,
        shape: &impl Fn(&str) -> &'a [usize],
        dtype: &impl Fn(&str) -> Option<u64>,
    ) -> Self {
        let outputs = tensors_of(node.outputs.iter());
        let read = tensors_of(node.inputs.iter().map(|input| &input.arg));
        let all = read.iter().take(1).chain(&outputs).map(|name| dtype(name));
        let all: Vec<Option<u64>> = all.collect();
        Self {
            node,
            input: read.first().map_or(&[], |name| shape(name)),
            first: read.into_iter().next(),
            outputs: outputs.iter().map(|name| shape(name)).collect(),
            is_one_type: all.iter().all(|one| *one == all[0]),
            output_type: outputs.first().and_then(|name| dtype(name)),
            is_in_place: super::is_in_place(&node.target),
        }
    }

    /// The name of the operator without `aten` and an underscore, and of its overload.
    pub(super) fn name(&self) -> (&'a str, &'a str) {
        let target = self.node.target.as_str();
        let name = target.strip_prefix("torch.ops.aten.").unwrap_or(target);
        let (base, overload) = name.split_once('.').unwrap_or((name, ""));
        let base = base
            .strip_suffix('_')
            .filter(|base| !base.is_empty())
            .unwrap_or(base);
        (base, overload)
    }

    /// Extents of the outputs.
    pub(super) fn outputs(&self) -> &[&'a [usize]] {
        &self.outputs
    }

    pub(super) fn output_type(&self) -> Option<u64> {
        self.output_type
    }

    pub(super) fn is_one_type(&self) -> bool {
        self.is_one_type
    }

    pub(super) fn is_in_place(&self) -> bool {
        self.is_in_place
    }

    /// Names of all tensors that it reads.
    pub(super) fn all_tensors(&self) -> Vec<String> {
        tensors_of(self.node.inputs.iter().map(|input| &input.arg))
    }

    /// Dims of the first tensor.
    pub(super) fn dims_of_input(&self) -> usize {
        self.input.len()
    }

    /// The first tensor alone.
    fn only(&self) -> Vec<Option<String>> {
        vec![self.first.clone()]
    }

    pub(super) fn find(&self, name: &str) -> Option<&'a Argument> {
        let mut inputs = self.node.inputs.iter();
        let found = inputs
            .find(|input| input.name == name)
            .map(|input| &input.arg);
        found.filter(|argument| !matches!(argument, Argument::AsNone(_)))
    }

    fn tensor(&self, name: &str) -> Option<String> {
        match self.find(name)? {
            Argument::AsTensor(tensor) => Some(tensor.name.clone()),
            _ => None,
        }
    }

    pub(super) fn tensors(&self, names: &[&str]) -> Vec<Option<String>> {
        names.iter().map(|name| self.tensor(name)).collect()
    }

    /// A number, or the default where it is left out.
    pub(super) fn number(&self, name: &str, default: f64) -> Result<f64, Reason> {
        match self.find(name) {
            None => Ok(default),
            Some(Argument::AsFloat(value)) => value.value().ok_or_else(|| strange(name)),
            Some(Argument::AsInt(value)) => Ok(*value as f64),
            Some(_) => Err(strange(name)),
        }
    }

    pub(super) fn whole(&self, name: &str, default: i64) -> Result<i64, Reason> {
        match self.find(name) {
            None => Ok(default),
            Some(Argument::AsInt(value)) => Ok(*value),
            Some(_) => Err(strange(name)),
        }
    }

    pub(super) fn flag(&self, name: &str, default: bool) -> Result<bool, Reason> {
        match self.find(name) {
            None => Ok(default),
            Some(Argument::AsBool(value)) => Ok(*value),
            Some(_) => Err(strange(name)),
        }
    }

    pub(super) fn wholes(&self, name: &str) -> Result<Option<Vec<i64>>, Reason> {
        match self.find(name) {
            None => Ok(None),
            Some(Argument::AsInts(values)) => Ok(Some(values.clone())),
            Some(Argument::AsInt(value)) => Ok(Some(vec![*value])),
            Some(_) => Err(strange(name)),
        }
    }

    /// Whole numbers per spatial dim; one counts for all of them.
    fn amounts(&self, name: &str, dims: usize, default: usize) -> Result<Vec<usize>, Reason> {
        let values = self.wholes(name)?.filter(|values| !values.is_empty());
        let Some(values) = values else {
            return Ok(vec![default; dims]);
        };
        let values: Option<Vec<usize>> = values
            .iter()
            .map(|&one| usize::try_from(one).ok())
            .collect();
        match values.ok_or_else(|| strange(name))? {
            one if one.len() == 1 => Ok(vec![one[0]; dims]),
            all if all.len() == dims => Ok(all),
            _ => Err(strange(name)),
        }
    }

    /// The index of a dim of the input; negative ones count from the end.
    pub(super) fn dim(&self, name: &str, default: i64) -> Result<usize, Reason> {
        self.index(self.whole(name, default)?)
    }

    pub(super) fn index(&self, dim: i64) -> Result<usize, Reason> {
        let count = self.input.len() as i64;
        let from_start = if dim < 0 { dim + count } else { dim };
        let is_valid = (0..count).contains(&from_start);
        let index = usize::try_from(from_start).ok().filter(|_| is_valid);
        index.ok_or_else(|| format!("it has no dim {dim}").into())
    }

    /// The dims of a reduction; all if none is named.
    fn dims(&self, name: &str) -> Result<Vec<usize>, Reason> {
        match self.wholes(name)?.filter(|dims| !dims.is_empty()) {
            Some(dims) => dims.into_iter().map(|dim| self.index(dim)).collect(),
            None => Ok((0..self.input.len()).collect()),
        }
    }

    pub(super) fn has_scalar(&self, name: &str, value: f64) -> Result<bool, Reason> {
        Ok((self.number(name, value)? - value).abs() < f64::EPSILON)
    }
}

/// Names of all tensors among arguments.
pub(super) fn tensors_of<'a>(arguments: impl Iterator<Item = &'a Argument>) -> Vec<String> {
    let mut names = Vec::new();
    for argument in arguments {
        match argument {
            Argument::AsTensor(one) => names.push(one.name.clone()),
            Argument::AsTensors(all) => names.extend(all.iter().map(|one| one.name.clone())),
            Argument::AsOptionalTensors(all) => {
                names.extend(all.iter().filter_map(|one| match one {
                    OptionalTensor::AsTensor(one) => Some(one.name.clone()),
                    OptionalTensor::AsNone(_) => None,
                }));
            }
            _ => {}
        }
    }
    names
}

fn strange(name: &str) -> Reason {
    format!("its argument `{name}` has a value that is not read").into()
}

/// The operation of a call.
///
/// `is_training`: some operator says that the module was exported in training mode.
pub(super) fn translate(call: &Arguments<'_>, is_training: bool) -> Translated {
    let (base, overload) = call.name();
    let is_off = |name| is_training && matches!(call.flag(name, true), Ok(false));
    match base {
        "dropout" | "feature_dropout" if is_off("train") => {
            return Ok((Operation::Identity, call.only()));
        }
        "batch_norm" if is_off("training") => {
            return Err("a batch norm in evaluation mode within a network in training mode is not read; export it \
                        in training mode, and freeze it in the run file".into());
        }
        _ => {}
    }
    let found = layer(base, overload, call)
        .or_else(|| elementwise(base, overload, call))
        .or_else(|| arranging(base, call));
    found.unwrap_or_else(|| Err("no layer of Partita does this".into()))
}

/// Operators with parameters, poolings and resamplings.
fn layer(base: &str, overload: &str, call: &Arguments<'_>) -> Option<Translated> {
    Some(match base {
        "conv1d" | "conv2d" | "conv3d" | "convolution" => convolution(overload, call),
        "conv_transpose1d" | "conv_transpose2d" | "conv_transpose3d" => transposed(call),
        "linear" => Ok((
            Operation::Linear,
            call.tensors(&["input", "weight", "bias"]),
        )),
        "rms_norm" if call.find("eps").is_none() => {
            Err("an RMS norm whose eps is that of the type of numbers is not read; give eps".into())
        }
        "batch_norm" | "instance_norm" | "group_norm" | "layer_norm" | "rms_norm" => {
            norm(base, call)
        }
        "max_pool1d" | "max_pool2d" | "max_pool3d" => pool(PoolKind::Max, call),
        "avg_pool1d" | "avg_pool2d" | "avg_pool3d" => average(call),
        "adaptive_avg_pool1d" | "adaptive_avg_pool2d" | "adaptive_avg_pool3d" => {
            let kind = PoolKind::AverageInside;
            Ok((Operation::AdaptivePool { kind }, call.only()))
        }
        "adaptive_max_pool1d" | "adaptive_max_pool2d" | "adaptive_max_pool3d" => Ok((
            Operation::AdaptivePool {
                kind: PoolKind::Max,
            },
            call.only(),
        )),
        "mean" => reduce(PoolKind::AverageInside, call),
        "amax" => reduce(PoolKind::Max, call),
        // Its second output, the indices, is not read.
        "max" if overload == "dim" => {
            let dims = call.dim("dim", 0).map(|dim| vec![dim]);
            let kind = PoolKind::Max;
            dims.map(|dims| (Operation::Reduce { kind, dims }, call.only()))
        }
        "sum" => call
            .dims("dim")
            .map(|dims| (Operation::Sum { dims }, call.only())),
        "pixel_unshuffle" => call
            .whole("downscale_factor", 1)
            .and_then(|factor| positive(factor, "downscale_factor"))
            .map(|factor| {
                let by_block = false;
                (Operation::PixelUnshuffle { factor, by_block }, call.only())
            }),
        "pixel_shuffle" => call
            .whole("upscale_factor", 1)
            .and_then(|factor| positive(factor, "upscale_factor"))
            .map(|factor| {
                let by_block = false;
                (Operation::PixelShuffle { factor, by_block }, call.only())
            }),
        "upsample_nearest1d" | "upsample_nearest2d" | "upsample_nearest3d" => {
            upsample(false, false, call)
        }
        "upsample_linear1d" | "upsample_bilinear2d" | "upsample_trilinear3d" => call
            .flag("align_corners", false)
            .and_then(|corners| upsample(true, corners, call)),
        "pad" | "constant_pad_nd" => pad(call),
        _ => return None,
    })
}

fn convolution(overload: &str, call: &Arguments<'_>) -> Translated {
    let dims = call.input.len().saturating_sub(2);
    if call.flag("transposed", false)? {
        return transposed(call);
    }
    let padding = match (overload, call.find("padding")) {
        ("padding", Some(Argument::AsString(text))) if text == "same" => Padding::Same,
        ("padding", Some(Argument::AsString(text))) if text == "valid" => {
            Padding::Both(vec![0; dims])
        }
        ("padding", _) => return Err(strange("padding")),
        _ => Padding::Both(call.amounts("padding", dims, 0)?),
    };
    let operation = Operation::Convolution {
        stride: call.amounts("stride", dims, 1)?,
        padding,
        dilation: call.amounts("dilation", dims, 1)?,
        groups: positive(call.whole("groups", 1)?, "groups")?,
    };
    Ok((operation, call.tensors(&["input", "weight", "bias"])))
}

fn transposed(call: &Arguments<'_>) -> Translated {
    let dims = call.input.len().saturating_sub(2);
    let operation = Operation::TransposedConvolution {
        stride: call.amounts("stride", dims, 1)?,
        padding: call.amounts("padding", dims, 0)?,
        output_padding: call.amounts("output_padding", dims, 0)?,
        dilation: call.amounts("dilation", dims, 1)?,
        groups: positive(call.whole("groups", 1)?, "groups")?,
    };
    Ok((operation, call.tensors(&["input", "weight", "bias"])))
}

fn positive(value: i64, name: &str) -> Result<usize, Reason> {
    let value = usize::try_from(value).ok().filter(|&value| value > 0);
    value.ok_or_else(|| strange(name))
}

fn norm(base: &str, call: &Arguments<'_>) -> Translated {
    let epsilon = call.number("eps", 1e-5)?;
    let affine = call.tensors(&["input", "weight", "bias"]);
    let operation = match base {
        "batch_norm" => {
            let momentum = call.number("momentum", 0.1)?;
            let statistics = call.tensors(&["running_mean", "running_var"]);
            if statistics.iter().any(Option::is_none) {
                return Err("a batch norm without running statistics is not read; leave track_running_stats \
                            on".into());
            }
            let inputs = affine.into_iter().chain(statistics).collect();
            return Ok((Operation::BatchNorm { epsilon, momentum }, inputs));
        }
        "instance_norm" => {
            if call.tensor("running_mean").is_some() {
                return Err("an instance norm with running statistics is not read; leave track_running_stats \
                            off".into());
            }
            Operation::GroupNorm {
                groups: None,
                epsilon,
            }
        }
        "group_norm" => Operation::GroupNorm {
            groups: Some(positive(call.whole("num_groups", 1)?, "num_groups")?),
            epsilon,
        },
        _ => {
            let shape = call.wholes("normalized_shape")?.unwrap_or_default();
            Operation::LayerNorm {
                dims: shape.len(),
                epsilon,
                centers: base == "layer_norm",
            }
        }
    };
    Ok((operation, affine))
}

fn pool(kind: PoolKind, call: &Arguments<'_>) -> Translated {
    let dims = call.input.len().saturating_sub(2);
    if call
        .amounts("dilation", dims, 1)?
        .iter()
        .any(|&one| one != 1)
    {
        return Err("a pooling with dilation is not read".into());
    }
    let kernel = call.amounts("kernel_size", dims, 1)?;
    let stride = match call.wholes("stride")?.filter(|stride| !stride.is_empty()) {
        Some(_) => call.amounts("stride", dims, 1)?,
        None => kernel.clone(),
    };
    let operation = Operation::Pool {
        kind,
        kernel,
        stride,
        padding: call.amounts("padding", dims, 0)?,
        rounds_up: call.flag("ceil_mode", false)?,
    };
    Ok((operation, call.only()))
}

fn average(call: &Arguments<'_>) -> Translated {
    if call.find("divisor_override").is_some() {
        return Err("an average with another divisor is not read".into());
    }
    let count_padding = call.flag("count_include_pad", true)?;
    pool(PoolKind::average(count_padding), call)
}

fn reduce(kind: PoolKind, call: &Arguments<'_>) -> Translated {
    let dims = call.dims("dim")?;
    Ok((Operation::Reduce { kind, dims }, call.only()))
}

fn upsample(is_linear: bool, align_corners: bool, call: &Arguments<'_>) -> Translated {
    // A scale decides where outputs lie, even where their extents are a whole multiple.
    let is_whole = |scale: f64| scale.fract() == 0.0;
    let listed = match call.find("scale_factors") {
        Some(Argument::AsFloats(scales)) => scales.iter().filter_map(Number::value).all(is_whole),
        Some(_) | None => true,
    };
    let mut single = ["scales", "scales_d", "scales_h", "scales_w"].into_iter();
    let singly = single.all(|name| call.number(name, 1.0).is_ok_and(is_whole));
    if !(listed && singly || is_linear && align_corners) {
        return Err(
            "a resize by a factor that is not whole is not read; give a size, or \
                    recompute_scale_factor=True"
                .into(),
        );
    }
    let operation = Operation::Upsample {
        is_linear,
        align_corners,
    };
    Ok((operation, call.only()))
}

fn pad(call: &Arguments<'_>) -> Translated {
    let amounts = call.wholes("pad")?.unwrap_or_default();
    let sides = amounts.chunks_exact(2).map(|pair| {
        let [low, high] = [pair[0], pair[1]].map(usize::try_from);
        Some((low.ok()?, high.ok()?))
    });
    let sides = sides.collect::<Option<Vec<_>>>();
    let sides = sides.ok_or("a pad of less than nothing cuts, which is not read")?;
    let mode = match call.find("mode") {
        None => "constant",
        Some(Argument::AsString(text)) => text.as_str(),
        Some(_) => return Err(strange("mode")),
    };
    if mode == "constant" && call.number("value", 0.0)? == f64::NEG_INFINITY {
        return Ok((Operation::PadLowest { sides }, call.only()));
    }
    let mode = match mode {
        "constant" if call.has_scalar("value", 0.0)? => Some(PadMode::Zero),
        "reflect" => Some(PadMode::Reflect),
        "replicate" => Some(PadMode::Replicate),
        "circular" => None,
        _ => {
            return Err("a pad with other values than 0, or minus infinity before a maximum pooling, is not read".into());
        }
    };
    Ok((Operation::Pad { sides, mode }, call.only()))
}

/// Functions of elements, and sums and products of two tensors.
fn elementwise(base: &str, overload: &str, call: &Arguments<'_>) -> Option<Translated> {
    let input = || call.only();
    let function = |operation| Ok((operation, input()));
    let activation = |activation| function(Operation::Activation(activation));
    Some(match base {
        "relu" => function(Operation::LeakyRelu { slope: 0.0 }),
        "leaky_relu" => call
            .number("negative_slope", 0.01)
            .map(|slope| (Operation::LeakyRelu { slope }, input())),
        "prelu" => Ok((Operation::Prelu, call.tensors(&["self", "weight"]))),
        "elu" => elu(call),
        "gelu" => match call.find("approximate") {
            None => activation(Activation::Gelu),
            Some(Argument::AsString(text)) if text == "none" => activation(Activation::Gelu),
            Some(Argument::AsString(text)) if text == "tanh" => activation(Activation::GeluTanh),
            Some(_) => Err(strange("approximate")),
        },
        "silu" => activation(Activation::Silu),
        "sigmoid" => activation(Activation::Sigmoid),
        "tanh" => activation(Activation::Tanh),
        "mish" => activation(Activation::Mish),
        "hardswish" => activation(Activation::HardSwish),
        "hardsigmoid" => activation(Activation::HardSigmoid),
        "relu6" => activation(Activation::Hardtanh {
            low: 0.0,
            high: 6.0,
        }),
        "hardtanh" => hardtanh(call),
        "clamp" | "clip" | "clamp_min" | "clamp_max" => clamp(call),
        "softplus" => softplus(call),
        "selu" | "celu" => scaled_elu(base, call),
        "softmax" | "_softmax" => call
            .dim("dim", -1)
            .map(|dim| (Operation::Softmax { dim }, input())),
        "dropout" => call
            .number("p", 0.5)
            .map(|rate| (Operation::Dropout { rate }, call.only())),
        "feature_dropout" => call
            .number("p", 0.5)
            .map(|rate| (Operation::ChannelDropout { rate }, call.only())),
        "add" | "sub" | "rsub" | "mul" | "multiply" | "div" | "neg" | "square" | "pow" => {
            arithmetic(base, overload, call)
        }
        "empty" | "new_empty" => Ok((Operation::Noise(Noise::Empty), Vec::new())),
        "rand" => Ok((Operation::Noise(Noise::Uniform), Vec::new())),
        "bernoulli" => call
            .number("p", 0.5)
            .map(|keep| (Operation::Noise(Noise::Bernoulli { keep }), call.only())),
        "floor" => function(Operation::Floor),
        "maximum" | "minimum" | "max" | "min" if call.tensor("other").is_some() => {
            let is_maximum = base.starts_with("max");
            let inputs = call.tensors(&["self", "other"]);
            Ok((Operation::Extreme { is_maximum }, inputs))
        }
        "stack" => match call.find("tensors") {
            Some(argument) => stack(argument, call),
            None => Err(strange("tensors")),
        },
        "cat" | "concat" => match call.find("tensors") {
            Some(argument) => call.dim("dim", 0).map(|dim| {
                let inputs = tensors_of([argument].into_iter()).into_iter().map(Some);
                (Operation::Concat { dim }, inputs.collect())
            }),
            None => Err(strange("tensors")),
        },
        _ => return None,
    })
}

fn stack(argument: &Argument, call: &Arguments<'_>) -> Translated {
    // The new dim counts, too.
    let dim = call.whole("dim", 0)?;
    let dim = if dim < 0 {
        dim + call.input.len() as i64 + 1
    } else {
        dim
    };
    let dim = positive_or_zero(dim, "dim")?;
    let inputs = tensors_of([argument].into_iter()).into_iter().map(Some);
    Ok((Operation::Stack { dim }, inputs.collect()))
}

fn elu(call: &Arguments<'_>) -> Translated {
    if !call.has_scalar("scale", 1.0)? || !call.has_scalar("input_scale", 1.0)? {
        return Err("an ELU with scales (SELU, CELU) is not read".into());
    }
    let alpha = call.number("alpha", 1.0)?;
    Ok((
        Operation::Activation(Activation::Elu { alpha }),
        call.only(),
    ))
}

fn hardtanh(call: &Arguments<'_>) -> Translated {
    let (low, high) = (call.number("min_val", -1.0)?, call.number("max_val", 1.0)?);
    let function = Activation::Hardtanh { low, high };
    Ok((Operation::Activation(function), call.only()))
}

fn clamp(call: &Arguments<'_>) -> Translated {
    if call.tensor("min").is_some() || call.tensor("max").is_some() {
        return Err("a clamp by tensors is not read; use maximum and minimum".into());
    }
    let low = call.number("min", f64::from(f32::MIN))?;
    let high = call.number("max", f64::from(f32::MAX))?;
    let function = Activation::Clamp { low, high };
    Ok((Operation::Activation(function), call.only()))
}

fn softplus(call: &Arguments<'_>) -> Translated {
    if !call.has_scalar("threshold", 20.0)? {
        return Err("a softplus with another threshold than 20 is not read".into());
    }
    let beta = call.number("beta", 1.0)?;
    let function = Activation::Softplus { beta };
    Ok((Operation::Activation(function), call.only()))
}

/// SELU and CELU.
///
/// Source: PyTorch, `SELU`, `CELU`.
fn scaled_elu(base: &str, call: &Arguments<'_>) -> Translated {
    let scaled = |scale| Activation::Affine { scale, shift: 0.0 };
    let functions = if base == "selu" {
        let alpha = 1.673_263_242_354_377_2;
        vec![Activation::Elu { alpha }, scaled(1.050_700_987_355_480_5)]
    } else {
        let alpha = call.number("alpha", 1.0)?;
        vec![
            scaled(1.0 / alpha),
            Activation::Elu { alpha: 1.0 },
            scaled(alpha),
        ]
    };
    Ok((Operation::Functions(functions), call.only()))
}

/// Sums, differences, products and quotients of two tensors, or of one and a number.
fn arithmetic(base: &str, overload: &str, call: &Arguments<'_>) -> Translated {
    let affine = |scale: f64, shift: f64| {
        let function = Activation::Affine { scale, shift };
        Ok((Operation::Activation(function), call.only()))
    };
    if base == "neg" {
        return affine(-1.0, 0.0);
    }
    let both = || call.tensors(&["self", "other"]);
    if base == "square" || base == "pow" {
        let is_square = base == "square" || call.has_scalar("exponent", 2.0)?;
        return if is_square && (base == "square" || overload == "Tensor_Scalar") {
            Ok((Operation::Square, call.only()))
        } else {
            Err("a power but the square is not read".into())
        };
    }
    let alpha = call.number("alpha", 1.0)?;
    if call.tensor("other").is_some() {
        return match base {
            "mul" | "multiply" => Ok((Operation::Multiply, both())),
            "add" if call.has_scalar("alpha", 1.0)? => Ok((Operation::Add, both())),
            "add" => Ok((Operation::Subtract { factor: -alpha }, both())),
            "sub" => Ok((Operation::Subtract { factor: alpha }, both())),
            _ => Err("a quotient of two tensors is not read".into()),
        };
    }
    if call.find("other").is_none() || call.find("rounding_mode").is_some() {
        return Err(strange("other"));
    }
    let number = call.number("other", 0.0)?;
    match base {
        "add" => affine(1.0, alpha * number),
        "sub" => affine(1.0, -alpha * number),
        "rsub" => affine(-alpha, number),
        "div" => affine(1.0 / number, 0.0),
        _ => affine(number, 0.0),
    }
}

/// Operators that move elements, or nothing.
fn arranging(base: &str, call: &Arguments<'_>) -> Option<Translated> {
    let input = || call.only();
    Some(match base {
        "view" | "reshape" | "_unsafe_view" | "flatten" | "unflatten" | "squeeze" | "unsqueeze"
        | "view_as" | "reshape_as" => Ok((Operation::Reshape, input())),
        "permute" => match call.wholes("dims") {
            Ok(Some(dims)) => dims
                .into_iter()
                .map(|dim| call.index(dim))
                .collect::<Result<Vec<_>, _>>()
                .map(|order| (Operation::Permute { order }, input())),
            Ok(None) | Err(_) => Err(strange("dims")),
        },
        "transpose" | "swapaxes" => transpose(call),
        "roll" => roll(call),
        "contiguous" | "clone" | "detach" | "alias" | "lift_fresh_copy" => {
            Ok((Operation::Identity, input()))
        }
        "to" | "_to_copy" | "type_as" if call.is_one_type => Ok((Operation::Identity, input())),
        "to" | "_to_copy" | "type_as" => Err("a change of the type of numbers is not read".into()),
        "repeat" | "expand" => Ok((Operation::Repeat, input())),
        "narrow" => parts(call, |dim| {
            Ok((
                dim,
                vec![positive_or_zero(call.whole("start", 0)?, "start")?],
            ))
        }),
        "slice" if call.whole("step", 1).is_ok_and(|step| step > 1) => stride(call),
        "slice" => parts(call, |dim| slice(call, dim)),
        "select" => select(call),
        "unbind" => call
            .dim("dim", 0)
            .map(|dim| (Operation::Unbind { dim }, input())),
        "split" | "split_with_sizes" | "chunk" | "unsafe_chunk" | "unsafe_split" => {
            parts(call, |dim| {
                let extents = call
                    .outputs
                    .iter()
                    .map(|shape| shape.get(dim).copied().unwrap_or(0));
                let starts = extents.scan(0, |next, extent| {
                    let start = *next;
                    *next += extent;
                    Some(start)
                });
                Ok((dim, starts.collect()))
            })
        }
        _ => return None,
    })
}

fn transpose(call: &Arguments<'_>) -> Translated {
    let names = match call.name().0 {
        "swapaxes" => ["axis0", "axis1"],
        _ => ["dim0", "dim1"],
    };
    let (first, second) = (call.dim(names[0], 0)?, call.dim(names[1], 1)?);
    let mut order: Vec<usize> = (0..call.input.len()).collect();
    order.swap(first, second);
    Ok((Operation::Permute { order }, call.only()))
}

fn roll(call: &Arguments<'_>) -> Translated {
    let (Some(shifts), Some(dims)) = (call.wholes("shifts")?, call.wholes("dims")?) else {
        return Err(strange("dims"));
    };
    if shifts.len() != dims.len() {
        return Err("a roll of all elements in one row is not read".into());
    }
    let dims = dims.into_iter().map(|dim| call.index(dim));
    let dims = dims.collect::<Result<Vec<_>, _>>()?;
    let amounts = dims.into_iter().zip(shifts).collect();
    Ok((Operation::Roll { amounts }, call.only()))
}

fn positive_or_zero(value: i64, name: &str) -> Result<usize, Reason> {
    usize::try_from(value).map_err(|_| strange(name))
}

fn parts(
    call: &Arguments<'_>,
    starts: impl Fn(usize) -> Result<(usize, Vec<usize>), Reason>,
) -> Translated {
    let (dim, starts) = starts(call.dim("dim", 0)?)?;
    Ok((Operation::Parts { dim, starts }, call.only()))
}

fn stride(call: &Arguments<'_>) -> Translated {
    let dim = call.dim("dim", 0)?;
    let start = first(call, dim)?;
    let step = positive(call.whole("step", 1)?, "step")?;
    Ok((Operation::Stride { dim, start, step }, call.only()))
}

fn select(call: &Arguments<'_>) -> Translated {
    let dim = call.dim("dim", 0)?;
    let index = call.whole("index", 0)?;
    let extent = call.input[dim] as i64;
    let index = if index < 0 { index + extent } else { index };
    let index = positive_or_zero(index, "index")?;
    Ok((Operation::Select { dim, index }, call.only()))
}

fn slice(call: &Arguments<'_>, dim: usize) -> Result<(usize, Vec<usize>), Reason> {
    if call.whole("step", 1)? != 1 {
        return Err("a slice with a step is not read".into());
    }
    Ok((dim, vec![first(call, dim)?]))
}

/// The first index of a slice.
fn first(call: &Arguments<'_>, dim: usize) -> Result<usize, Reason> {
    let extent = call.input[dim] as i64;
    let start = call.whole("start", 0)?;
    let start = if start < 0 {
        (start + extent).max(0)
    } else {
        start.min(extent)
    };
    positive_or_zero(start, "start")
}
