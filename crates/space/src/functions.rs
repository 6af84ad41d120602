//! Functions of one element, which models and kernels share.

use serde::{Deserialize, Serialize};

/// Smooth functions of one element.
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
}

impl Activation {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Gelu,
        Self::Silu,
        Self::Sigmoid,
        Self::Tanh,
        Self::Elu { alpha: 1.0 },
    ];

    /// Its word in a model's text.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gelu => "gelu",
            Self::Silu => "silu",
            Self::Sigmoid => "sigmoid",
            Self::Tanh => "tanh",
            Self::Elu { .. } => "elu",
        }
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
