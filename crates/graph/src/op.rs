//! The operations, a closed enum.

use crate::{Activation, DropoutMask, Initialization, Loss, ParameterRole, Resample};
use partita_space::{AttentionWindow, PoolKind, ScoreRows, Window};

/// What a node computes.
///
/// Shapes are per sample: spatial extents (D, H, W) and channels C; see [`crate::Shape`].
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// The sample as it comes from the dataset.
    Input,
    /// Numbers of the sample beside its volume, such as age and weight: one position, a channel per number.
    Features,
    /// Convolution (cross-correlation) with weights (Kd, Kh, Kw, C / groups, F).
    Convolution(Convolution),
    /// Adjoint of a convolution, with weights (Kd, Kh, Kw, F / groups, C).
    TransposedConvolution(TransposedConvolution),
    /// Maximum or average over a window.
    Pool(Pool),
    /// Interpolation, padding or a mean over unequal windows.
    Resample(Resample),
    /// Normalization per channel by the mean and biased variance over the mini-batch and all positions.
    BatchNorm {
        /// Added to the variance.
        epsilon: f64,
        /// Weight of the new value in the running statistics: `r = (1 - momentum) r + momentum s`,
        /// the running variance being unbiased.
        momentum: f64,
    },
    /// `y = x` for `x > 0`, else `negative_slope * x`; a ReLU has slope 0.
    LeakyRelu {
        /// Factor for negative inputs, at least 0.
        negative_slope: f64,
    },
    /// `y = x` for `x > 0`, else `slope * x` with trained slopes.
    /// Source: He et al., "Delving deep into rectifiers", ICCV 2015, equation 1; PyTorch, `PReLU`.
    Prelu(PreluSlopes),
    /// `exp(x)` over the sum of `exp(x)` over the channels, at each position.
    Softmax,
    /// `y = x W + b` with weights (C, F), on a flattened input.
    Linear {
        /// Output features F.
        features: usize,
        /// Whether there is a `b`.
        bias: bool,
    },
    /// Zeroes elements, channels or samples with probability `rate` in training and scales the others by
    /// `1 / (1 - rate)`.
    Dropout {
        /// Probability of zero, in `[0, 1)`.
        rate: f64,
        /// What is zeroed together.
        mask: DropoutMask,
    },
    /// (D, H, W, C) to D * H * W * C features, in that order (channels fastest).
    Flatten,
    /// Sum of two inputs of one shape.
    Add,
    /// Product of two inputs of one shape; or the second has one position, and each of its channels is the
    /// factor of that channel at all positions of the first; or it has one channel, which is the factor of all
    /// channels of the first, position by position.
    Multiply,
    /// The channels of two or more inputs of equal extents, one input after the other.
    Concat,
    /// The channels `start .. start + channels` of the input.
    Slice {
        /// First channel.
        start: usize,
        /// Number of channels.
        channels: usize,
    },
    /// Channel `j groups + g` of the output is channel `g C / groups + j` of the input.
    /// Source: Zhang et al., "ShuffleNet", CVPR 2018; PyTorch, `ChannelShuffle`.
    ChannelShuffle {
        /// A divisor of the channels.
        groups: usize,
    },
    /// Rows of a weight (1, 1, 1, rows, channels), by the class indices that the only channel of the
    /// input holds. These come from the sample; they have no gradient.
    Embedding {
        /// Class indices are below this.
        rows: usize,
        /// Output channels.
        channels: usize,
    },
    /// Adds `sin(w / 10000^(2i / C))` to channel `2i` and the cosine to channel `2i + 1` at position `w`
    /// of a sequence. Source: Vaswani et al., "Attention is all you need", NeurIPS 2017, section 3.5.
    Positions,
    /// Adds a row of a trained weight (1, 1, 1, rows, C) to each of the first positions, in (D, H, W) order.
    /// Source: Dosovitskiy et al., "An image is worth 16x16 words", ICLR 2021, equation 1.
    PositionEmbedding {
        /// Positions that get one; all in a position embedding, and one in a class token behind a padding.
        rows: usize,
    },
    /// The positions in the same order, (D, H, W), with other extents.
    Reshape {
        /// Of as many positions.
        extent: [usize; 3],
    },
    /// Normalization per sample and position by the mean and biased variance over the channels.
    LayerNorm {
        /// Added to the variance.
        epsilon: f64,
        /// Whether the mean is subtracted. Else the variance is the mean square: an RMS norm, which has no offset.
        /// Source: Zhang and Sennrich, "Root mean square layer normalization", NeurIPS 2019; PyTorch, `RMSNorm`.
        centers: bool,
    },
    /// Normalization per sample and group of channels by the mean and biased variance over the channels of the
    /// group and all positions, with a scale and an offset per channel.
    /// Source: Wu and He, "Group normalization", ECCV 2018, section 3; PyTorch, `GroupNorm`, `InstanceNorm3d`.
    GroupNorm {
        /// Groups of equally many channels; none for a group per channel, instance norm.
        groups: Option<usize>,
        /// Added to the variance.
        epsilon: f64,
    },
    /// A smooth function of each element.
    Activation(Activation),
    /// Attention between all positions of q, k, v, in (D, H, W) order, for each head, a range of
    /// `channels / heads` channels: `softmax(q k' / sqrt(channels / heads) + bias) v`, the softmax over the positions of k
    /// and v. A bias is a weight (1, 1, 1, rows, heads).
    Attention {
        /// Number of heads, a divisor of the channels.
        heads: usize,
        /// Causal mask: position `i` of q attends to positions up to `i` of k and v.
        causal: bool,
        /// Attention within windows, of q, k and v of the same extents.
        window: Option<AttentionWindow>,
        /// What is added to the scores of each head.
        bias: Option<ScoreBias>,
    },
    /// The loss: the scalar that training minimizes and evaluation reports; the last node.
    Loss(Loss),
    /// An auxiliary loss, which training adds with `weight`: of the same kind as the loss, and with the same
    /// target. Evaluation omits it, and whatever only it reads.
    AuxiliaryLoss {
        /// The kind.
        loss: Loss,
        /// Factor, above 0.
        weight: f64,
    },
}

impl Op {
    /// Whether it has weights whose columns split its output channels.
    pub fn has_weights(&self) -> bool {
        match self {
            Self::Convolution(_)
            | Self::TransposedConvolution(_)
            | Self::Linear { .. }
            | Self::Embedding { .. } => true,
            Self::Input
            | Self::Features
            | Self::Pool(_)
            | Self::Resample(_)
            | Self::BatchNorm { .. }
            | Self::LeakyRelu { .. }
            | Self::Prelu(_)
            | Self::Softmax
            | Self::Dropout { .. }
            | Self::Flatten
            | Self::Reshape { .. }
            | Self::Add
            | Self::Multiply
            | Self::Concat
            | Self::Slice { .. }
            | Self::ChannelShuffle { .. }
            | Self::Positions
            | Self::PositionEmbedding { .. }
            | Self::LayerNorm { .. }
            | Self::GroupNorm { .. }
            | Self::Activation(_)
            | Self::Attention { .. }
            | Self::Loss(_)
            | Self::AuxiliaryLoss { .. } => false,
        }
    }

    /// Whether a norm has an offset per channel, unless the model says otherwise.
    pub(crate) fn has_offset(&self) -> bool {
        !matches!(self, Self::LayerNorm { centers: false, .. })
    }

    /// How a parameter of this role starts unless the model says otherwise.
    pub(crate) fn default_initialization(&self, role: ParameterRole) -> Initialization {
        match (self, role) {
            (Self::Embedding { .. }, ParameterRole::Weight) => Initialization::Normal(1.0),
            (Self::PositionEmbedding { .. } | Self::Attention { .. }, ParameterRole::Weight) => {
                Initialization::Normal(0.02)
            }
            _ => role.default_initialization(),
        }
    }

    /// Kind of the loss, auxiliary or not.
    pub fn loss(&self) -> Option<&Loss> {
        match self {
            Self::Loss(loss) | Self::AuxiliaryLoss { loss, .. } => Some(loss),
            Self::Input
            | Self::Features
            | Self::Convolution(_)
            | Self::TransposedConvolution(_)
            | Self::Pool(_)
            | Self::Resample(_)
            | Self::BatchNorm { .. }
            | Self::LeakyRelu { .. }
            | Self::Prelu(_)
            | Self::Softmax
            | Self::Linear { .. }
            | Self::Dropout { .. }
            | Self::Flatten
            | Self::Reshape { .. }
            | Self::Add
            | Self::Multiply
            | Self::Concat
            | Self::Slice { .. }
            | Self::ChannelShuffle { .. }
            | Self::Embedding { .. }
            | Self::Positions
            | Self::PositionEmbedding { .. }
            | Self::LayerNorm { .. }
            | Self::GroupNorm { .. }
            | Self::Activation(_)
            | Self::Attention { .. } => None,
        }
    }

    /// Per spatial dim D, H, W the window of a convolution, of a pooling, or of the convolution whose
    /// adjoint a transposed one is; nothing else has one.
    pub fn window(&self) -> Option<&[Window; 3]> {
        match self {
            Self::Convolution(convolution) => Some(&convolution.window),
            Self::TransposedConvolution(convolution) => Some(&convolution.window),
            Self::Pool(pool) => Some(&pool.window),
            Self::Input
            | Self::Features
            | Self::Resample(_)
            | Self::BatchNorm { .. }
            | Self::LeakyRelu { .. }
            | Self::Prelu(_)
            | Self::Softmax
            | Self::Linear { .. }
            | Self::Dropout { .. }
            | Self::Flatten
            | Self::Reshape { .. }
            | Self::Add
            | Self::Multiply
            | Self::Concat
            | Self::Slice { .. }
            | Self::ChannelShuffle { .. }
            | Self::Embedding { .. }
            | Self::Positions
            | Self::PositionEmbedding { .. }
            | Self::LayerNorm { .. }
            | Self::GroupNorm { .. }
            | Self::Activation(_)
            | Self::Attention { .. }
            | Self::Loss(_)
            | Self::AuxiliaryLoss { .. } => None,
        }
    }
}

/// What a bias of attention scores has a value for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScoreBias {
    /// Each pair of a position of q and one of k, of a window if there are any.
    Pairs,
    /// Each distance of two positions of a window of these extents, D, H, W; positions of attention are numbered in
    /// these extents, which may be larger than those that attend. Source: torchvision, `swin_t`.
    Relative([usize; 3]),
}

impl ScoreBias {
    /// Where the value for a pair is in the table, given the positions of k.
    pub(crate) fn rows(self, inner: usize) -> ScoreRows {
        ScoreRows::of(self.table(), inner)
    }

    /// Extents of the window whose distances have values.
    pub fn table(self) -> Option<[usize; 3]> {
        match self {
            Self::Pairs => None,
            Self::Relative(table) => Some(table),
        }
    }

    /// The word of the text form.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pairs => "pairs",
            Self::Relative(_) => "relative",
        }
    }
}

/// How many slopes a PReLU has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PreluSlopes {
    /// One for all channels.
    One,
    /// One per channel.
    Channel,
}

impl PreluSlopes {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::One, Self::Channel];

    /// The word of the text form.
    pub fn name(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Channel => "channel",
        }
    }
}

/// A convolution. Dims that the model does not have carry [`Window::ONE`].
#[derive(Clone, Debug, PartialEq)]
pub struct Convolution {
    /// Output channels F.
    pub filters: usize,
    /// Per spatial dim D, H, W.
    pub window: [Window; 3],
    /// Padding repeats the opposite border instead of being zero.
    pub periodic: bool,
    /// Groups of channels; divides both C and F.
    pub groups: usize,
    /// Whether a value per filter is added.
    pub bias: bool,
}

/// A transposed convolution: what the adjoint of a convolution computes from that one's output.
///
/// Input `i` adds to outputs `i * stride - pad_low + k * dilation` for `k` in `0..kernel`; the extent
/// of the output is `(extent - 1) * stride + span - pad_low - pad_high + output_padding`. So padding
/// takes outputs away, and the weights are those of a convolution of F channels to C filters with the
/// same window, whose gradient of the input it is. Source: PyTorch, `ConvTranspose3d`.
#[derive(Clone, Debug, PartialEq)]
pub struct TransposedConvolution {
    /// Output channels F.
    pub filters: usize,
    /// Per spatial dim D, H, W, of the convolution whose adjoint it is.
    pub window: [Window; 3],
    /// Outputs more at the end of each spatial dim; below the stride or the dilation.
    pub output_padding: [usize; 3],
    /// Groups of channels; divides both C and F.
    pub groups: usize,
    /// Whether a value per filter is added.
    pub bias: bool,
}

/// A pooling. Padding never wins a maximum.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// Maximum, average or Euclidean norm.
    pub kind: PoolKind,
    /// Per spatial dim D, H, W. Dilation is 1; padding is at most half the kernel.
    pub window: [Window; 3],
    /// Whether the windows follow from the input: equal tiles that cover it. Inputs of other extents are pooled
    /// to as many outputs, by other windows.
    pub(crate) is_adaptive: bool,
}

impl Pool {
    /// Windows of these extents on inputs of any extents.
    pub fn new(kind: PoolKind, window: [Window; 3]) -> Self {
        Self {
            kind,
            window,
            is_adaptive: false,
        }
    }

    /// One window over an input of these extents. The norm of [`PoolKind::L2`] grows with its window, so that window
    /// stays in inputs of other extents.
    pub fn global(kind: PoolKind, extent: [usize; 3]) -> Self {
        Self {
            kind: match kind {
                PoolKind::Max | PoolKind::L2 => kind,
                PoolKind::AverageAll | PoolKind::AverageInside => PoolKind::AverageInside,
            },
            window: extent.map(Window::tile),
            is_adaptive: kind != PoolKind::L2,
        }
    }

    /// Means over this many equal tiles of an input of these extents; none where they do not divide it.
    pub fn adaptive_average(extent: [usize; 3], outputs: [usize; 3]) -> Option<Self> {
        let mut dims = extent.into_iter().zip(outputs);
        if dims.any(|(extent, outputs)| outputs == 0 || !extent.is_multiple_of(outputs)) {
            return None;
        }
        Some(Self {
            kind: PoolKind::AverageInside,
            window: std::array::from_fn(|dim| Window::tile(extent[dim] / outputs[dim])),
            is_adaptive: true,
        })
    }

    /// Whether the windows tile an input of these extents.
    pub(crate) fn is_tiling(&self, extent: [usize; 3]) -> bool {
        let mut dims = self.window.iter().zip(extent);
        dims.all(|(window, extent)| {
            *window == Window::tile(window.kernel) && extent.is_multiple_of(window.kernel)
        })
    }

    /// Whether inputs of other extents are pooled to as many outputs, by other windows: a global pooling or an adaptive
    /// mean.
    pub fn is_adaptive(&self) -> bool {
        self.is_adaptive
    }
}
