//! The optimizers, a closed enum.

use serde::{Deserialize, Serialize};

/// The optimizer, with the constants that do not change from step to step.
///
/// Below `g` is the gradient, scaled if gradients are clipped, `w` the parameter and `rate` the learning rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Optimizer {
    /// `v = momentum * v + g; w -= rate * v`, with `g` including `weight_decay * w`.
    Sgd {
        /// Factor on the old velocity; 0 needs no velocity.
        momentum: f64,
        /// Factor on the weight added to the gradient.
        weight_decay: f64,
    },
    /// `v = momentum * v + g; w -= rate * (g + momentum * v)`, with `g` including `weight_decay * w`.
    ///
    /// Source: PyTorch documentation, torch.optim.SGD with `nesterov=True`.
    Nesterov {
        /// Factor on the old velocity.
        momentum: f64,
        /// Factor on the weight added to the gradient.
        weight_decay: f64,
    },
    /// Adam with bias correction (Kingma and Ba 2015, algorithm 1); `g` includes `weight_decay * w`.
    Adam {
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the second moment.
        beta2: f64,
        /// Added to the root of the second moment.
        epsilon: f64,
        /// Factor on the weight added to the gradient.
        weight_decay: f64,
    },
    /// Adam after `w -= rate * weight_decay * w` (Loshchilov and Hutter 2019, algorithm 2; torch.optim.AdamW).
    AdamW {
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the second moment.
        beta2: f64,
        /// Added to the root of the second moment.
        epsilon: f64,
        /// Decoupled weight decay.
        weight_decay: f64,
    },
    /// `v = momentum * v + rate * ratio * (g + weight_decay * w); w -= v` with the trust ratio
    /// `ratio = trust * |w| / (|g| + weight_decay * |w| + epsilon)`, 1 where a norm is 0 or without norms.
    ///
    /// Source: You et al., "Large Batch Training of Convolutional Networks", 2017, algorithm 1.
    Lars {
        /// Factor on the old velocity.
        momentum: f64,
        /// Factor on the weight added to the gradient.
        weight_decay: f64,
        /// Trust coefficient.
        trust: f64,
        /// Added to the divisor of the trust ratio.
        epsilon: f64,
    },
    /// `w -= rate * ratio * u`, where `u` is the step of Adam with bias correction plus `weight_decay * w`, and
    /// `ratio = |w| / |u|`, 1 where a norm is 0.
    ///
    /// Source: You et al., "Large Batch Optimization for Deep Learning", ICLR 2020, algorithm 2, with the identity
    /// as phi.
    Lamb {
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the second moment.
        beta2: f64,
        /// Added to the root of the second moment.
        epsilon: f64,
        /// Factor on the weight added to the direction.
        weight_decay: f64,
    },
}

impl Optimizer {
    /// Its word in kernel keys.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Sgd { .. } => "sgd",
            Self::Nesterov { .. } => "nesterov",
            Self::Adam { .. } => "adam",
            Self::AdamW { .. } => "adamw",
            Self::Lars { .. } => "lars",
            Self::Lamb { .. } => "lamb",
        }
    }

    /// Names of the moments that it keeps of each parameter.
    pub fn moments(&self) -> &'static [&'static str] {
        match *self {
            Self::Sgd { momentum: 0.0, .. } => &[],
            Self::Sgd { .. } | Self::Nesterov { .. } | Self::Lars { .. } => &["velocity"],
            Self::Adam { .. } | Self::AdamW { .. } | Self::Lamb { .. } => {
                &["first_moment", "second_moment"]
            }
        }
    }

    /// Whether it scales each update by a trust ratio, for which norms of whole parameters are needed.
    pub fn has_trust_ratio(&self) -> bool {
        match self {
            Self::Lars { .. } | Self::Lamb { .. } => true,
            Self::Sgd { .. } | Self::Nesterov { .. } | Self::Adam { .. } | Self::AdamW { .. } => {
                false
            }
        }
    }

    /// The same without weight decay and, as it then is, without trust ratio: for biases, scales and shifts.
    #[must_use]
    pub fn without_decay(&self) -> Self {
        let mut plain = *self;
        match &mut plain {
            Self::Sgd { weight_decay, .. }
            | Self::Nesterov { weight_decay, .. }
            | Self::Adam { weight_decay, .. }
            | Self::AdamW { weight_decay, .. }
            | Self::Lars { weight_decay, .. } => *weight_decay = 0.0,
            Self::Lamb {
                beta1,
                beta2,
                epsilon,
                ..
            } => {
                plain = Self::AdamW {
                    beta1: *beta1,
                    beta2: *beta2,
                    epsilon: *epsilon,
                    weight_decay: 0.0,
                };
            }
        }
        plain
    }
}
