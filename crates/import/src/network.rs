//! Operations between named values, as a file describes them. Dims have PyTorch's order: samples, channels, then space.

use crate::Reason;
use partita_graph::{Activation, PadMode, PoolKind};
use std::collections::{BTreeMap, BTreeSet};

/// A network before it is translated.
#[derive(Debug, Default)]
pub(crate) struct Network {
    /// Values that the user passes.
    pub(crate) inputs: Vec<String>,
    /// Names in the state dict of values that are parameters or buffers.
    pub(crate) stored: BTreeMap<String, String>,
    /// Those of them that have no gradient.
    pub(crate) fixed: BTreeSet<String>,
    /// In order of execution.
    pub(crate) calls: Vec<Call>,
    /// Values that the network returns.
    pub(crate) outputs: Vec<String>,
    /// Values that do not depend on the input.
    pub(crate) constants: BTreeMap<String, Constant>,
    /// Extents of all values.
    pub(crate) shapes: BTreeMap<String, Vec<usize>>,
}

/// A tensor of known numbers.
#[derive(Clone, Debug)]
pub(crate) struct Constant {
    /// The value of the parameter whose elements these are, by their numbers.
    pub(crate) of: Option<String>,
    pub(crate) shape: Vec<usize>,
    /// In row-major order.
    pub(crate) values: Vec<f32>,
    pub(crate) is_bool: bool,
}

/// One operation.
#[derive(Debug)]
pub(crate) struct Call {
    /// The operator's name in the file.
    pub(crate) operator: String,
    /// The operation; the reason where it has none.
    pub(crate) operation: Result<Operation, Reason>,
    /// Path of the module that calls it; empty for the network itself.
    pub(crate) module: String,
    /// File and line of the module's source, where the export has it.
    pub(crate) source: Option<String>,
    /// Tensors that it reads, in the order of [`Operation`].
    pub(crate) inputs: Vec<Option<String>>,
    pub(crate) outputs: Vec<String>,
}

/// What an operation computes. Amounts per spatial dim have one entry for each, outermost first.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operation {
    /// Input, weight, bias.
    Convolution {
        stride: Vec<usize>,
        padding: Padding,
        dilation: Vec<usize>,
        groups: usize,
    },
    /// Input, weight, bias.
    TransposedConvolution {
        stride: Vec<usize>,
        padding: Vec<usize>,
        output_padding: Vec<usize>,
        dilation: Vec<usize>,
        groups: usize,
    },
    /// Input, weight, bias.
    Linear,
    /// Input, weight, bias, running mean, running variance.
    BatchNorm { epsilon: f64, momentum: f64 },
    /// Input, weight, bias; none for a group per channel.
    GroupNorm { groups: Option<usize>, epsilon: f64 },
    /// Input, weight, bias; over the last dims. An RMS norm does not center, and has no bias.
    LayerNorm {
        dims: usize,
        epsilon: f64,
        centers: bool,
    },
    /// Input.
    Pool {
        kind: PoolKind,
        kernel: Vec<usize>,
        stride: Vec<usize>,
        padding: Vec<usize>,
        rounds_up: bool,
    },
    /// Input; the outputs' extents are those of the value.
    AdaptivePool { kind: PoolKind },
    /// Input; over these dims.
    Reduce { kind: PoolKind, dims: Vec<usize> },
    /// Input; over these dims.
    Sum { dims: Vec<usize> },
    /// Input; the outputs' extents are those of the value.
    Upsample {
        is_linear: bool,
        align_corners: bool,
    },
    /// Input; before and after each dim, the last dim first.
    Pad {
        sides: Vec<(usize, usize)>,
        mode: Option<PadMode>,
    },
    /// Input; minus infinity before and after each dim, the last dim first.
    PadLowest { sides: Vec<(usize, usize)> },
    /// Input. ReLU has slope 0.
    LeakyRelu { slope: f64 },
    /// Input.
    Activation(Activation),
    /// Input, slopes.
    Prelu,
    /// Input; over this dim.
    Softmax { dim: usize },
    /// Input, on which they act one after the other.
    Functions(Vec<Activation>),
    /// Input.
    Dropout { rate: f64 },
    /// Input; all positions of a channel are zeroed together.
    ChannelDropout { rate: f64 },
    /// Random numbers in the value's extents, which a product makes a dropout.
    Noise(Noise),
    /// Input, which is noise.
    Floor,
    /// Two inputs: the sum of their products over the letters that the output lacks; of both and of the output one
    /// letter for each dim.
    Contraction([String; 3]),
    /// Queries, keys and values of (..., positions, channels), and a mask that is added to scores, or is true where they
    /// count.
    Attention { causal: bool, scale: Option<f64> },
    /// Two inputs.
    Add,
    /// Two inputs, the second times a factor taken from the first.
    Subtract { factor: f64 },
    /// Input times itself.
    Square,
    /// Two inputs.
    Multiply,
    /// Two inputs: the larger one, or the smaller one.
    Extreme { is_maximum: bool },
    /// Inputs, along this dim.
    Concat { dim: usize },
    /// Inputs, along a new dim.
    Stack { dim: usize },
    /// Input; blocks of this many positions along each dim of space become channels: all positions of one channel
    /// after those of the one before it, or all channels of one position.
    PixelUnshuffle { factor: usize, by_block: bool },
    /// Input; channels become blocks of this many positions along each dim of space, in the order of
    /// [`PixelUnshuffle`](Self::PixelUnshuffle).
    PixelShuffle { factor: usize, by_block: bool },
    /// Input; the parts begin at these indices along this dim, and have the values' extents.
    Parts { dim: usize, starts: Vec<usize> },
    /// Input; every `step`th index along this dim, as many as the value's extent.
    Stride {
        dim: usize,
        start: usize,
        step: usize,
    },
    /// Input; one index along this dim, which the output lacks.
    Select { dim: usize, index: usize },
    /// Input; an output for each index along this dim, which they lack.
    Unbind { dim: usize },
    /// Input; the same elements in the value's extents.
    Reshape,
    /// Input; each element this many indices further along these dims, from the end to the start.
    Roll { amounts: Vec<(usize, i64)> },
    /// Input; dim `order[i]` becomes dim `i`.
    Permute { order: Vec<usize> },
    /// Input; as often along each dim as makes the value's extents.
    Repeat,
    /// Input, unchanged.
    Identity,
}

/// Random numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Noise {
    /// Not yet drawn.
    Empty,
    /// From 0 to 1.
    Uniform,
    /// Of [`Noise::Empty`], the input: 1 with this probability, else 0.
    Bernoulli { keep: f64 },
}

/// Padding of a convolution.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Padding {
    /// On both sides of each spatial dim.
    Both(Vec<usize>),
    /// Before and behind, of each spatial dim.
    Sides(Vec<(usize, usize)>),
    /// As much as keeps the extents, the larger part behind.
    Same,
}

/// Most positions of a block along a dim.
pub(crate) const BLOCK_MAX: usize = 16;

impl Operation {
    /// The contraction of an equation as in `einsum`.
    pub(crate) fn einsum(equation: &str) -> Result<Self, Reason> {
        let equation: String = equation.chars().filter(|one| *one != ' ').collect();
        let letters = equation.split_once("->").and_then(|(read, output)| {
            let (left, right) = read.split_once(',')?;
            Some([left, right, output])
        });
        let is_plain = |text: &str| {
            let mut letters = text.char_indices();
            letters.all(|(at, one)| one.is_ascii_alphabetic() && text.find(one) == Some(at))
        };
        match letters.filter(|all| all.iter().all(|text| is_plain(text))) {
            Some(letters) => Ok(Self::Contraction(letters.map(str::to_owned))),
            None => Err(format!(
                "the equation {equation} is not read; possible are two factors with their letters once each, as in \
                 bhxd,bhyd->bhxy"
            ).into()),
        }
    }

    /// Products of matrices of two tensors with this number of dims.
    pub(crate) fn matrices(dims: usize) -> Result<Self, Reason> {
        if !(3..=26).contains(&dims) {
            return Err("a product of two tensors is not read but for attention".into());
        }
        let batch: String = ('A'..).take(dims - 2).collect();
        let letters = ["ij", "jk", "ik"].map(|rest| format!("{batch}{rest}"));
        Ok(Self::Contraction(letters))
    }

    /// Whether the output may share the memory of the first input.
    pub(crate) fn is_view(&self) -> bool {
        matches!(
            self,
            Self::Parts { .. }
                | Self::Stride { .. }
                | Self::Select { .. }
                | Self::Unbind { .. }
                | Self::Reshape
                | Self::Permute { .. }
                | Self::Repeat
                | Self::Identity
        )
    }
}

impl Network {
    /// Indices of the calls that an output needs, in order.
    pub(crate) fn needed(&self, output: &str) -> Vec<usize> {
        let mut wanted = BTreeSet::from([output]);
        let mut calls: Vec<usize> = (0..self.calls.len())
            .rev()
            .filter(|&index| {
                let call = &self.calls[index];
                let is_needed = call.outputs.iter().any(|one| wanted.contains(one.as_str()));
                if is_needed {
                    wanted.extend(call.inputs.iter().flatten().map(String::as_str));
                }
                is_needed
            })
            .collect();
        calls.reverse();
        calls
    }

    /// Extents of a value; none if the file does not say.
    pub(crate) fn shape(&self, value: &str) -> &[usize] {
        self.shapes.get(value).map_or(&[], Vec::as_slice)
    }
}
