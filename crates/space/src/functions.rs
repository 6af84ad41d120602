//! Functions of one element, which models and kernels share.

use serde::{Deserialize, Serialize};

/// Functions of one element but ReLU and its leaky form.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Activation {
    /// `x / 2 (1 + erf(x / sqrt(2)))`
    Gelu,
    /// `x / (1 + exp(-x))`
    Silu,
    /// `1 / (1 + exp(-x))`
    Sigmoid,
    /// `tanh(x)`
    Tanh,
    /// `x` for `x > 0`, else `alpha (exp(x) - 1)`
    Elu {
        /// Minus the limit for very negative inputs.
        alpha: f64,
    },
    /// `x / (1 + exp(-2 u))` with `u = sqrt(2 / pi) (x + 0.044715 x^3)`. Source: PyTorch, `GELU(approximate="tanh")`.
    GeluTanh,
    /// `x tanh(ln(1 + exp(x)))`
    Mish,
    /// `ln(1 + exp(beta x)) / beta`; `x` for `beta x > 20`. Source: PyTorch, `Softplus`.
    Softplus {
        /// Above 0.
        beta: f64,
    },
    /// `x` from `low` to `high`, which bound it; gradient 0 at the bounds. Source: PyTorch, `Hardtanh`, `ReLU6`.
    Hardtanh {
        /// Least value.
        low: f64,
        /// Largest value.
        high: f64,
    },
    /// `x` from `low` to `high`, which bound it; gradient 1 at the bounds. Source: PyTorch, `clamp`.
    Clamp {
        /// Least value; that of `f32` for none.
        low: f64,
        /// Largest value; that of `f32` for none.
        high: f64,
    },
    /// `(x + 3) / 6`, bounded by 0 and 1. Source: PyTorch, `Hardsigmoid`.
    HardSigmoid,
    /// `x` times its hard sigmoid. Source: PyTorch, `Hardswish`.
    HardSwish,
    /// `scale x + shift`
    Affine {
        /// Factor.
        scale: f64,
        /// Summand.
        shift: f64,
    },
}

impl Activation {
    /// All of them, with examples of their constants.
    pub const ALL: [Self; 13] = [
        Self::Gelu,
        Self::Silu,
        Self::Sigmoid,
        Self::Tanh,
        Self::Elu { alpha: 1.0 },
        Self::GeluTanh,
        Self::Mish,
        Self::Softplus { beta: 1.0 },
        Self::Hardtanh {
            low: -1.0,
            high: 1.0,
        },
        Self::Clamp {
            low: -0.5,
            high: 1.0,
        },
        Self::HardSigmoid,
        Self::HardSwish,
        Self::Affine {
            scale: -0.75,
            shift: 0.5,
        },
    ];

    /// Its word in a model's text.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gelu => "gelu",
            Self::Silu => "silu",
            Self::Sigmoid => "sigmoid",
            Self::Tanh => "tanh",
            Self::Elu { .. } => "elu",
            Self::GeluTanh => "gelu_tanh",
            Self::Mish => "mish",
            Self::Softplus { .. } => "softplus",
            Self::Hardtanh { .. } => "hardtanh",
            Self::Clamp { .. } => "clamp",
            Self::HardSigmoid => "hard_sigmoid",
            Self::HardSwish => "hard_swish",
            Self::Affine { .. } => "affine",
        }
    }

    /// The words of its constants, with their values.
    pub fn constants(self) -> Vec<(&'static str, f64)> {
        match self {
            Self::Elu { alpha } => vec![("alpha", alpha)],
            Self::Softplus { beta } => vec![("beta", beta)],
            Self::Hardtanh { low, high } | Self::Clamp { low, high } => {
                vec![("low", low), ("high", high)]
            }
            Self::Affine { scale, shift } => vec![("scale", scale), ("shift", shift)],
            Self::Gelu
            | Self::Silu
            | Self::Sigmoid
            | Self::Tanh
            | Self::GeluTanh
            | Self::Mish
            | Self::HardSigmoid
            | Self::HardSwish => Vec::new(),
        }
    }

    /// Where its derivative jumps.
    pub fn kinks(self) -> Vec<f64> {
        match self {
            Self::Hardtanh { low, high } | Self::Clamp { low, high } => vec![low, high],
            Self::HardSigmoid | Self::HardSwish => vec![-3.0, 3.0],
            Self::Elu { alpha: 1.0 }
            | Self::Gelu
            | Self::Silu
            | Self::Sigmoid
            | Self::Tanh
            | Self::GeluTanh
            | Self::Mish
            | Self::Softplus { .. }
            | Self::Affine { .. } => Vec::new(),
            Self::Elu { .. } => vec![0.0],
        }
    }

    /// Nominal flops of an element, forward and backward.
    pub fn flops(self) -> [u64; 2] {
        match self {
            // With an error function.
            Self::Gelu => [20, 30],
            Self::Silu | Self::Sigmoid => [20, 25],
            Self::Tanh | Self::Elu { .. } => [25, 25],
            Self::GeluTanh => [25, 35],
            Self::Mish => [25, 40],
            Self::Softplus { .. } => [40, 25],
            Self::Hardtanh { .. } | Self::Clamp { .. } => [2, 3],
            Self::HardSigmoid => [4, 3],
            Self::HardSwish => [5, 6],
            Self::Affine { .. } => [2, 1],
        }
    }
}

/// What of a sample a dropout keeps or zeroes together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DropoutMask {
    /// Each element for itself. Source: PyTorch, `Dropout`.
    #[default]
    Element,
    /// All positions of a channel. Source: PyTorch, `Dropout2d`, `Dropout3d`.
    Channel,
    /// The whole sample: stochastic depth. Source: Huang et al., "Deep networks with stochastic depth", ECCV 2016;
    /// torchvision, `StochasticDepth` in mode `row`.
    Sample,
}

impl DropoutMask {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Element, Self::Channel, Self::Sample];

    /// Its word in a model's text.
    pub fn name(self) -> &'static str {
        match self {
            Self::Element => "element",
            Self::Channel => "channel",
            Self::Sample => "sample",
        }
    }

    /// Whether each element has a random number of its own.
    pub fn is_element(&self) -> bool {
        *self == Self::Element
    }
}

/// Losses of one element, with `e = x - target`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum ElementFunction {
    /// `e^2`
    Squared,
    /// `|e|`, gradient 0 at `e = 0`. Source: PyTorch, `L1Loss`.
    Absolute,
    /// `e^2 / 2` for `|e| < delta`, else `delta (|e| - delta / 2)`. Source: PyTorch, `HuberLoss`.
    Huber {
        /// Above 0.
        delta: f64,
    },
    /// The same divided by `beta`, which is its delta. Source: PyTorch, `SmoothL1Loss`.
    SmoothL1 {
        /// Above 0.
        beta: f64,
    },
    /// Binary cross-entropy of the sigmoid of x and a target from 0 to 1. Source: PyTorch,
    /// `BCEWithLogitsLoss`.
    LogisticEntropy,
}

impl ElementFunction {
    /// One of each.
    pub const ALL: [Self; 5] = [
        Self::Squared,
        Self::Absolute,
        Self::Huber { delta: 0.3 },
        Self::SmoothL1 { beta: 0.4 },
        Self::LogisticEntropy,
    ];

    /// Its word in kernel keys.
    pub fn name(self) -> &'static str {
        match self {
            Self::Squared => "weighted_squared_error",
            Self::Absolute => "absolute_error",
            Self::Huber { .. } => "huber_loss",
            Self::SmoothL1 { .. } => "smooth_l1_loss",
            Self::LogisticEntropy => "logistic_entropy",
        }
    }
}
