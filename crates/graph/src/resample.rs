//! Operations that map positions to positions, dim by dim and channel by channel.

use partita_space::{ResampleRule, Resampling};

/// A resampling of the positions of a tensor: along each spatial dim an output is a weighted mean of a few inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resample {
    /// Upsampling by whole factors. Source: PyTorch, `Upsample`.
    Upsample {
        /// Outputs per input in D, H, W, at least 1.
        factors: [usize; 3],
        /// What lies between the inputs.
        interpolation: Interpolation,
    },
    /// Mean over `outputs` windows that cover the input: window `i` of `m` over `n` inputs is
    /// `floor(i n / m) .. ceil((i + 1) n / m)`. Where all windows are equal tiles, a graph has a [`Pool`](crate::Pool) instead.
    /// Source: PyTorch, `AdaptiveAvgPool3d`.
    AdaptiveAverage {
        /// Extents of the output in D, H, W, at least 1.
        outputs: [usize; 3],
    },
    /// Outputs before and after the inputs. Source: PyTorch, `ZeroPad3d`, `ReplicationPad3d`, `ReflectionPad3d`.
    Pad {
        /// Before and after the inputs in D, H, W.
        sides: [(usize, usize); 3],
        /// What they hold.
        mode: PadMode,
    },
    /// Interpolation to extents that need be no multiples of the input's. Source: PyTorch, `interpolate` with a size.
    Resize {
        /// Extents of the output in D, H, W, at least 1.
        outputs: [usize; 3],
        /// What lies between the inputs.
        interpolation: Interpolation,
    },
    /// A range of the positions, or every few of it: `x[start : : step]`.
    Crop {
        /// First input in D, H, W.
        starts: [usize; 3],
        /// Inputs from one output to the next in D, H, W, at least 1.
        steps: [usize; 3],
        /// Extents of the output in D, H, W, at least 1.
        outputs: [usize; 3],
    },
}

/// Interpolation of an upsampling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interpolation {
    /// Repeats each input.
    Nearest,
    /// Linear in each dim: bilinear in 2D, trilinear in 3D.
    Linear {
        /// Whether the first and last inputs of a dim are its first and last outputs; else pixels are cells, whose
        /// outer borders are aligned.
        align_corners: bool,
    },
}

/// What padding holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PadMode {
    /// Zeros.
    Zero,
    /// The nearest input, on the border.
    Replicate,
    /// The inputs mirrored at the border, which is not repeated; less than the extent of them.
    Reflect,
}

impl PadMode {
    /// All modes.
    pub const ALL: [Self; 3] = [Self::Zero, Self::Replicate, Self::Reflect];

    /// Its word in a model's text.
    pub fn name(self) -> &'static str {
        match self {
            Self::Zero => "zero",
            Self::Replicate => "replicate",
            Self::Reflect => "reflect",
        }
    }

    fn rule(self) -> ResampleRule {
        match self {
            Self::Zero => ResampleRule::Zero,
            Self::Replicate => ResampleRule::Nearest,
            Self::Reflect => ResampleRule::Reflect,
        }
    }
}

impl Resample {
    /// The map along each of D, H, W, from inputs of these extents.
    pub fn maps(&self, extent: [usize; 3]) -> [Resampling; 3] {
        std::array::from_fn(|dim| match self {
            Self::Upsample {
                factors,
                interpolation: Interpolation::Nearest,
            } => Resampling::nearest(factors[dim]),
            Self::Upsample {
                factors,
                interpolation: Interpolation::Linear { align_corners },
            } => Resampling::linear(extent[dim], factors[dim], *align_corners),
            Self::AdaptiveAverage { outputs } => Resampling::average(extent[dim], outputs[dim]),
            Self::Pad { sides, mode } => match sides[dim] {
                (0, 0) => Resampling::IDENTITY,
                (low, _) => Resampling::pad(mode.rule(), low),
            },
            Self::Resize {
                outputs,
                interpolation: Interpolation::Nearest,
            } => Resampling::nearest_of(extent[dim], outputs[dim]),
            Self::Resize {
                outputs,
                interpolation: Interpolation::Linear { align_corners },
            } => Resampling::linear_of(extent[dim], outputs[dim], *align_corners),
            Self::Crop { starts, steps, .. } => Resampling::strided(starts[dim], steps[dim]),
        })
    }

    /// Extents of the output; saturates.
    pub(crate) fn output_extent(&self, extent: [usize; 3]) -> [usize; 3] {
        std::array::from_fn(|dim| match self {
            Self::Upsample { factors, .. } => extent[dim].saturating_mul(factors[dim]),
            Self::AdaptiveAverage { outputs }
            | Self::Resize { outputs, .. }
            | Self::Crop { outputs, .. } => outputs[dim],
            Self::Pad { sides, .. } => extent[dim]
                .saturating_add(sides[dim].0)
                .saturating_add(sides[dim].1),
        })
    }
}
