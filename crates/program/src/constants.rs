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

/// The kinds of pooling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PoolKind {
    /// Maximum; the first one in (D, H, W) order takes the gradient.
    Max,
    /// Sum over the taps inside, divided by the window's volume.
    AverageAll,
    /// Mean over the taps inside.
    AverageInside,
    /// Euclidean norm of the taps inside; no gradient where it is zero.
    L2,
}

impl PoolKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Max, Self::AverageAll, Self::AverageInside, Self::L2];

    /// Its word in kernel keys.
    pub fn name(self) -> &'static str {
        match self {
            Self::Max => "max",
            Self::AverageAll => "average_all",
            Self::AverageInside => "average_inside",
            Self::L2 => "l2",
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
