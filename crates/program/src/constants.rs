//! Constants of kernels: windows, directions, kinds of pooling, transformations.

use serde::{Deserialize, Serialize};

/// Taps of a window: kernel, stride and dilation per spatial dim (D, H, W).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Taps {
    /// Taps per dim.
    pub kernel: [usize; 3],
    /// Inputs between neighboring outputs.
    pub stride: [usize; 3],
    /// Inputs between neighboring taps.
    pub dilation: [usize; 3],
}

impl Taps {
    /// Taps in all.
    pub fn volume(&self) -> usize {
        self.kernel.iter().product()
    }
}

/// Which pass of a convolution uses the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Direction {
    /// y from x and w.
    Forward,
    /// dx from dy and w.
    BackwardData,
}

impl Direction {
    /// Its word in kernel keys.
    pub fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::BackwardData => "backward_data",
        }
    }
}

/// Transformation of a stored value when it is imported.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Transform {
    /// `x`
    Identity,
    /// `factor * x`
    Scale {
        /// The factor.
        factor: f64,
    },
    /// `ln(1 + x)`
    LogOnePlus,
}

impl Transform {
    /// Its word in kernel keys.
    pub fn name(self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::Scale { .. } => "scale",
            Self::LogOnePlus => "log_one_plus",
        }
    }
}
