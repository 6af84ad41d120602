//! The kinds of pooling.

use serde::{Deserialize, Serialize};

/// What a pooling makes of the inputs under its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PoolKind {
    /// Maximum; the first one in (D, H, W) order takes the gradient.
    Max,
    /// Sum over the taps inside, divided by the window's volume.
    AverageAll,
    /// Mean over the taps inside.
    AverageInside,
    /// Euclidean norm of the taps inside, `sqrt(sum x^2)`; no gradient where it is zero.
    /// Source: PyTorch, `LPPool2d` with `norm_type=2`.
    L2,
}

impl PoolKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Max, Self::AverageAll, Self::AverageInside, Self::L2];

    /// The mean over the window, with or without its taps over padding.
    pub fn average(count_padding: bool) -> Self {
        if count_padding {
            Self::AverageAll
        } else {
            Self::AverageInside
        }
    }

    /// Whether a mean divides by the whole window, even where that lies over padding; none for other kinds.
    pub fn counts_padding(self) -> Option<bool> {
        match self {
            Self::AverageAll => Some(true),
            Self::AverageInside => Some(false),
            Self::Max | Self::L2 => None,
        }
    }

    /// Its word in kernel keys.
    pub fn name(self) -> &'static str {
        match self {
            Self::Max => "max",
            Self::AverageAll => "average_all",
            Self::AverageInside => "average_inside",
            Self::L2 => "l2",
        }
    }

    /// Whether its gradient depends on its input.
    pub fn backward_reads_input(self) -> bool {
        match self {
            Self::AverageAll | Self::AverageInside => false,
            Self::Max | Self::L2 => true,
        }
    }
}
