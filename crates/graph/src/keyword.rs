//! The words of the text form: operations and their keys.

use crate::{Activation, ElementFunction, Loss, Op, Pool, PoolKind, Resample};

/// The words of the text form that name operations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Keyword {
    Input,
    Conv,
    ConvTranspose,
    PixelShuffle,
    Pool(PoolKind),
    /// A pooling whose window is the whole input.
    GlobalPool(PoolKind),
    /// A mean over windows that cover the input, by the extents of the output.
    AdaptiveAveragePool,
    Upsample,
    Pad,
    Resize,
    Crop,
    BatchNorm,
    Relu,
    LeakyRelu,
    Prelu,
    Softmax,
    Linear,
    Dropout,
    Flatten,
    Add,
    Multiply,
    Concat,
    Slice,
    ChannelShuffle,
    Embedding,
    Positions,
    PositionEmbedding,
    Reshape,
    LayerNorm,
    RmsNorm,
    GroupNorm,
    InstanceNorm,
    Activation(Activation),
    Attention,
    Mse,
    SoftmaxCrossEntropy,
    Dice,
    DiceCrossEntropy,
    BceWithLogits,
    L1,
    Huber,
    SmoothL1,
}

/// The keys of `conv`.
const CONV_KEYS: [&str; 11] = [
    "filters",
    "kernel",
    "stride",
    "dilation",
    "pad",
    "padding",
    "groups",
    "bias",
    "weight",
    "init",
    "init_bias",
];

/// The keys of `conv_transpose`.
const CONV_TRANSPOSE_KEYS: [&str; 11] = [
    "filters",
    "kernel",
    "stride",
    "dilation",
    "pad",
    "output_padding",
    "groups",
    "bias",
    "weight",
    "init",
    "init_bias",
];

/// The keys of `layer_norm`.
const LAYER_NORM_KEYS: [&str; 7] = [
    "epsilon",
    "affine",
    "bias",
    "gamma",
    "beta",
    "init_gamma",
    "init_beta",
];

/// The keys of `attention`.
const ATTENTION_KEYS: [&str; 9] = [
    "heads", "causal", "window", "shift", "mask", "bias", "table", "weight", "init",
];

/// The keys of `group_norm`; `instance_norm` has all but the first.
const GROUP_NORM_KEYS: [&str; 7] = [
    "groups",
    "epsilon",
    "affine",
    "gamma",
    "beta",
    "init_gamma",
    "init_beta",
];

/// The keys of `dice`.
const DICE_KEYS: [&str; 6] = [
    "weight",
    "smooth",
    "background",
    "batch",
    "weights",
    "ignore",
];

/// The keys of `dice_cross_entropy`.
const DICE_CROSS_ENTROPY_KEYS: [&str; 11] = [
    "weight",
    "dice",
    "cross_entropy",
    "smooth",
    "background",
    "batch",
    "smoothing",
    "weights",
    "cross_entropy_weights",
    "dice_weights",
    "ignore",
];

impl Keyword {
    /// All words that may follow `NAME =`.
    pub(crate) fn operations() -> impl Iterator<Item = Keyword> {
        let pools = PoolKind::ALL
            .into_iter()
            .filter(|kind| *kind != PoolKind::AverageInside);
        let global = [PoolKind::Max, PoolKind::AverageInside].map(Self::GlobalPool);
        let activations = Activation::ALL.map(Self::Activation);
        let others = Self::OTHERS.into_iter();
        let pools = pools.map(Self::Pool).chain(global);
        others.chain(pools).chain(activations)
    }

    const OTHERS: [Keyword; 38] = [
        Self::AdaptiveAveragePool,
        Self::Upsample,
        Self::Pad,
        Self::Resize,
        Self::Crop,
        Self::Conv,
        Self::ConvTranspose,
        Self::PixelShuffle,
        Self::BatchNorm,
        Self::Relu,
        Self::LeakyRelu,
        Self::Prelu,
        Self::Softmax,
        Self::Linear,
        Self::Dropout,
        Self::Flatten,
        Self::Add,
        Self::Multiply,
        Self::Concat,
        Self::Slice,
        Self::ChannelShuffle,
        Self::Embedding,
        Self::Positions,
        Self::PositionEmbedding,
        Self::Reshape,
        Self::LayerNorm,
        Self::RmsNorm,
        Self::GroupNorm,
        Self::InstanceNorm,
        Self::Attention,
        Self::Mse,
        Self::SoftmaxCrossEntropy,
        Self::Dice,
        Self::DiceCrossEntropy,
        Self::BceWithLogits,
        Self::L1,
        Self::Huber,
        Self::SmoothL1,
    ];

    /// The word for an operation.
    pub(crate) fn of(op: &Op) -> Self {
        match op {
            Op::Input | Op::Features => Self::Input,
            Op::Convolution(_) => Self::Conv,
            Op::TransposedConvolution(_) => Self::ConvTranspose,
            Op::Pool(pool) => Self::of_pool(pool),
            Op::Resample(Resample::Upsample { .. }) => Self::Upsample,
            Op::Resample(Resample::AdaptiveAverage { .. }) => Self::AdaptiveAveragePool,
            Op::Resample(Resample::Pad { .. }) => Self::Pad,
            Op::Resample(Resample::Resize { .. }) => Self::Resize,
            Op::Resample(Resample::Crop { .. }) => Self::Crop,
            Op::BatchNorm { .. } => Self::BatchNorm,
            Op::LeakyRelu { negative_slope } if *negative_slope == 0.0 => Self::Relu,
            Op::LeakyRelu { .. } => Self::LeakyRelu,
            Op::Prelu(_) => Self::Prelu,
            Op::Softmax => Self::Softmax,
            Op::Linear { .. } => Self::Linear,
            Op::Dropout { .. } => Self::Dropout,
            Op::Flatten => Self::Flatten,
            Op::Add => Self::Add,
            Op::Multiply => Self::Multiply,
            Op::Concat => Self::Concat,
            Op::Slice { .. } => Self::Slice,
            Op::ChannelShuffle { .. } => Self::ChannelShuffle,
            Op::Embedding { .. } => Self::Embedding,
            Op::Positions => Self::Positions,
            Op::PositionEmbedding { .. } => Self::PositionEmbedding,
            Op::Reshape { .. } => Self::Reshape,
            Op::LayerNorm { centers: true, .. } => Self::LayerNorm,
            Op::LayerNorm { centers: false, .. } => Self::RmsNorm,
            Op::GroupNorm {
                groups: Some(_), ..
            } => Self::GroupNorm,
            Op::GroupNorm { groups: None, .. } => Self::InstanceNorm,
            Op::Activation(activation) => Self::Activation(*activation),
            Op::Attention { .. } => Self::Attention,
            Op::Loss(loss) | Op::AuxiliaryLoss { loss, .. } => Self::of_loss(loss),
        }
    }

    fn of_pool(pool: &Pool) -> Self {
        match pool.kind {
            PoolKind::Max if pool.is_adaptive() => Self::GlobalPool(PoolKind::Max),
            PoolKind::AverageAll | PoolKind::AverageInside if pool.is_adaptive() => {
                Self::AdaptiveAveragePool
            }
            kind => Self::Pool(kind),
        }
    }

    /// The word for a loss.
    pub(crate) fn of_loss(loss: &Loss) -> Self {
        match loss {
            Loss::MeanSquaredError => Self::Mse,
            Loss::SoftmaxCrossEntropy { .. } => Self::SoftmaxCrossEntropy,
            Loss::Elements(loss) => match loss.function {
                ElementFunction::Squared => Self::Mse,
                ElementFunction::Absolute => Self::L1,
                ElementFunction::Huber { .. } => Self::Huber,
                ElementFunction::SmoothL1 { .. } => Self::SmoothL1,
                ElementFunction::LogisticEntropy => Self::BceWithLogits,
            },
            Loss::Classes(loss) if loss.dice == 0.0 => Self::SoftmaxCrossEntropy,
            Loss::Classes(loss) if loss.cross_entropy == 0.0 => Self::Dice,
            Loss::Classes(_) => Self::DiceCrossEntropy,
        }
    }

    /// The words for losses.
    pub(crate) const LOSSES: [Self; 8] = [
        Self::Mse,
        Self::SoftmaxCrossEntropy,
        Self::Dice,
        Self::DiceCrossEntropy,
        Self::BceWithLogits,
        Self::L1,
        Self::Huber,
        Self::SmoothL1,
    ];

    /// As written.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Conv => "conv",
            Self::ConvTranspose => "conv_transpose",
            Self::PixelShuffle => "pixel_shuffle",
            Self::Pool(PoolKind::Max) => "max_pool",
            Self::Pool(PoolKind::AverageAll | PoolKind::AverageInside) => "average_pool",
            Self::Pool(PoolKind::L2) => "l2_pool",
            Self::GlobalPool(PoolKind::Max) => "global_max_pool",
            Self::GlobalPool(PoolKind::AverageAll | PoolKind::AverageInside) => {
                "global_average_pool"
            }
            Self::GlobalPool(PoolKind::L2) => "global_l2_pool",
            Self::AdaptiveAveragePool => "adaptive_average_pool",
            Self::Upsample => "upsample",
            Self::Pad => "pad",
            Self::Resize => "resize",
            Self::Crop => "crop",
            Self::BatchNorm => "batch_norm",
            Self::Relu => "relu",
            Self::LeakyRelu => "leaky_relu",
            Self::Prelu => "prelu",
            Self::Softmax => "softmax",
            Self::Linear => "linear",
            Self::Dropout => "dropout",
            Self::Flatten => "flatten",
            Self::Add => "add",
            Self::Multiply => "multiply",
            Self::Concat => "concat",
            Self::Slice => "slice",
            Self::ChannelShuffle => "channel_shuffle",
            Self::Embedding => "embedding",
            Self::Positions => "positions",
            Self::PositionEmbedding => "position_embedding",
            Self::Reshape => "reshape",
            Self::LayerNorm => "layer_norm",
            Self::RmsNorm => "rms_norm",
            Self::GroupNorm => "group_norm",
            Self::InstanceNorm => "instance_norm",
            Self::Activation(activation) => activation.name(),
            Self::Attention => "attention",
            Self::Mse => "mse",
            Self::SoftmaxCrossEntropy => "softmax_cross_entropy",
            Self::Dice => "dice",
            Self::DiceCrossEntropy => "dice_cross_entropy",
            Self::BceWithLogits => "bce_with_logits",
            Self::L1 => "l1",
            Self::Huber => "huber",
            Self::SmoothL1 => "smooth_l1",
        }
    }

    /// The keys that its line may carry.
    pub(crate) fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Input => &["channels", "extent", "features"],
            Self::Conv => &CONV_KEYS,
            Self::ConvTranspose => &CONV_TRANSPOSE_KEYS,
            Self::PixelShuffle => &["factor"],
            Self::Pool(PoolKind::AverageAll | PoolKind::AverageInside) => {
                &["kernel", "stride", "pad", "count_padding"]
            }
            Self::Pool(_) => &["kernel", "stride", "pad"],
            Self::AdaptiveAveragePool => &["output"],
            Self::Upsample => &["factor", "mode", "align_corners"],
            Self::Pad => &["pad", "padding"],
            Self::Resize => &["output", "mode", "align_corners"],
            Self::Crop => &["start", "step", "output"],
            Self::BatchNorm => &[
                "epsilon",
                "momentum",
                "affine",
                "gamma",
                "beta",
                "init_gamma",
                "init_beta",
                "init_running_mean",
                "init_running_variance",
            ],
            Self::LeakyRelu => &["slope"],
            Self::Prelu => &["slopes", "slope", "init_slope"],
            Self::Linear => &["features", "bias", "weight", "init", "init_bias"],
            Self::Dropout => &["rate", "mask"],
            Self::Slice => &["start", "channels"],
            Self::ChannelShuffle => &["groups"],
            Self::Embedding => &["rows", "channels", "weight", "init"],
            Self::PositionEmbedding => &["rows", "weight", "init"],
            Self::Reshape => &["extent"],
            Self::LayerNorm => &LAYER_NORM_KEYS,
            Self::RmsNorm => &["epsilon", "affine", "gamma", "init_gamma"],
            Self::InstanceNorm => &GROUP_NORM_KEYS[1..],
            Self::GroupNorm => &GROUP_NORM_KEYS,
            Self::Attention => &ATTENTION_KEYS,
            Self::Mse | Self::L1 | Self::BceWithLogits => &["weight", "weights"],
            Self::Huber => &["weight", "delta", "weights"],
            Self::SmoothL1 => &["weight", "beta", "weights"],
            Self::SoftmaxCrossEntropy => &["weight", "smoothing", "weights", "ignore"],
            Self::Dice => &DICE_KEYS,
            Self::DiceCrossEntropy => &DICE_CROSS_ENTROPY_KEYS,
            Self::Activation(Activation::Elu { .. }) => &["alpha"],
            Self::Activation(Activation::Softplus { .. }) => &["beta"],
            Self::Activation(Activation::Hardtanh { .. } | Activation::Clamp { .. }) => {
                &["low", "high"]
            }
            Self::Activation(Activation::Affine { .. }) => &["scale", "shift"],
            Self::Relu
            | Self::Softmax
            | Self::GlobalPool(_)
            | Self::Flatten
            | Self::Add
            | Self::Multiply
            | Self::Concat
            | Self::Positions
            | Self::Activation(_) => &[],
        }
    }
}

impl Op {
    /// The word of the text form for this operation, `conv`, `average_pool`, `mse`.
    pub fn keyword(&self) -> &'static str {
        Keyword::of(self).name()
    }
}
