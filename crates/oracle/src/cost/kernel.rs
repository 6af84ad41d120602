//! Kernels by the roofline.

use super::saturation::Extents;
use partita_program::{Kernel, KernelShape, Taps, View};
use partita_space::{Bytes, BytesPerSecond, Flops, FlopsPerSecond, Seconds};

/// Which pass of a convolution or linear layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// y from x and w.
    Forward,
    /// dx from dy and w.
    BackwardData,
    /// dw from x and dy.
    BackwardWeight,
}

/// Which rate of a device a kernel is held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Character {
    /// A convolution over 2 or 3 spatial dims.
    Convolution {
        /// 2 or 3.
        spatial_dims: usize,
        /// Its pass.
        pass: Pass,
        /// What its rate is judged by.
        extents: Extents,
    },
    /// A linear layer or attention, matrix products like the 2D convolution of one tap.
    Linear {
        /// Its pass.
        pass: Pass,
    },
    /// Few flops per byte.
    Memory,
}

/// Time of a kernel: the longer of its arithmetic and its traffic, after its start.
///
/// Source: Williams, Waterman and Patterson, Roofline (2009), with a term for the launch.
pub fn roofline(
    flops: Flops,
    rate: FlopsPerSecond,
    traffic: Bytes,
    memory: BytesPerSecond,
    launch: Seconds,
) -> Seconds {
    launch + (flops / rate).max(traffic / memory)
}

/// The character of a kernel. A convolution counts as 3D when its window or its data have depth.
pub fn character(shape: &KernelShape<'_>) -> Character {
    match &shape.kernel.parts()[0] {
        Kernel::Fused { .. } => panic!("the parts of a fused kernel are not fused themselves"),
        Kernel::ConvolutionForward {
            x, y, taps, groups, ..
        } => convolution(taps, *groups, [x, y, y], Pass::Forward),
        Kernel::ConvolutionBackwardData {
            dy,
            dx,
            taps,
            groups,
            ..
        } => convolution(taps, *groups, [dx, dy, dx], Pass::BackwardData),
        Kernel::ConvolutionBackwardWeight {
            x,
            dy,
            taps,
            groups,
            ..
        } => convolution(taps, *groups, [x, dy, dy], Pass::BackwardWeight),
        Kernel::LinearForward { .. } => Character::Linear {
            pass: Pass::Forward,
        },
        Kernel::LinearBackwardData { .. } => Character::Linear {
            pass: Pass::BackwardData,
        },
        Kernel::LinearBackwardWeight { .. } => Character::Linear {
            pass: Pass::BackwardWeight,
        },
        // Of its backward products as many are of one kind as of the other.
        Kernel::AttentionForward { .. } => Character::Linear {
            pass: Pass::Forward,
        },
        Kernel::AttentionBackward { .. } => Character::Linear {
            pass: Pass::BackwardData,
        },
        Kernel::Fill { .. }
        | Kernel::Copy { .. }
        | Kernel::Import { .. }
        | Kernel::PackWeights { .. }
        | Kernel::BiasBackward { .. }
        | Kernel::PoolForward { .. }
        | Kernel::PoolBackward { .. }
        | Kernel::BatchNormStatistics { .. }
        | Kernel::BatchNormForward { .. }
        | Kernel::BatchNormRunning { .. }
        | Kernel::BatchNormInference { .. }
        | Kernel::BatchNormBackwardStatistics { .. }
        | Kernel::BatchNormBackwardData { .. }
        | Kernel::BatchNormBackwardParameters { .. }
        | Kernel::LeakyReluForward { .. }
        | Kernel::LeakyReluBackward { .. }
        | Kernel::Dropout { .. }
        | Kernel::Add { .. }
        | Kernel::EmbeddingForward { .. }
        | Kernel::EmbeddingBackward { .. }
        | Kernel::Positions { .. }
        | Kernel::LayerNormStatistics { .. }
        | Kernel::LayerNormForward { .. }
        | Kernel::LayerNormBackwardStatistics { .. }
        | Kernel::LayerNormBackwardData { .. }
        | Kernel::LayerNormBackwardParameters { .. }
        | Kernel::GeluForward { .. }
        | Kernel::GeluBackward { .. }
        | Kernel::MeanSquaredError { .. }
        | Kernel::SoftmaxCrossEntropy { .. }
        | Kernel::OutputErrors { .. }
        | Kernel::ClassCounts { .. }
        | Kernel::SumOfSquares { .. }
        | Kernel::Update { .. } => Character::Memory,
    }
}

/// `input` and `output` are those of the layer; the kernel goes through the positions of `written`.
fn convolution(
    taps: &Taps,
    groups: usize,
    [input, output, written]: [&View; 3],
    pass: Pass,
) -> Character {
    let has_depth = taps.kernel[0] > 1 || output.extent[1] > 1;
    let [_, depth, height, width, _] = written.extent;
    let plane = height.min(width);
    Character::Convolution {
        spatial_dims: if has_depth { 3 } else { 2 },
        pass,
        extents: Extents {
            channels: input.extent[4] / groups,
            thickness: if has_depth { plane.min(depth) } else { plane },
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_of_arithmetic_and_traffic_counts() {
        let time = |flops, bytes| {
            roofline(
                Flops(flops),
                FlopsPerSecond(100.0),
                Bytes(bytes),
                BytesPerSecond(10.0),
                Seconds(1.0),
            )
        };
        assert_eq!(time(500, 20), Seconds(6.0));
        assert_eq!(time(100, 30), Seconds(4.0));
    }
}
