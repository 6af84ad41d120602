//! The roofline model of kernels.

use super::saturation::Extents;
use partita_program::KernelShape;
use partita_program::descriptor::Cost;
pub use partita_program::descriptor::Pass;
use partita_space::{Bytes, BytesPerSecond, Flops, FlopsPerSecond, Seconds};

/// The rate of a device that bounds a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateClass {
    /// A convolution over 2 or 3 spatial dims.
    Convolution {
        /// 2 or 3.
        spatial_dims: usize,
        /// Its pass.
        pass: Pass,
        /// What its saturation depends on.
        extents: Extents,
    },
    /// A linear layer or attention: matrix products, as a 2D convolution of one tap.
    Linear {
        /// Its pass.
        pass: Pass,
    },
    /// A memory-bound kernel.
    Memory,
}

/// Time of a kernel: its launch, then the longer of its arithmetic and its memory traffic.
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

/// The rate class of a kernel, which is that of its first part. A convolution is 3D if its window or its
/// data have depth.
pub fn rate_class(shape: &KernelShape<'_>) -> RateClass {
    let descriptor = shape.kernel.parts()[0].descriptor();
    match (descriptor.cost, descriptor.window) {
        (Cost::Memory, _) => RateClass::Memory,
        (Cost::Linear { pass }, _) => RateClass::Linear { pass },
        (
            Cost::Convolution {
                pass,
                input,
                output,
                written,
            },
            Some(window),
        ) => {
            let has_depth = window.taps.kernel[0] > 1 || output.extent[1] > 1;
            let [_, depth, height, width, _] = written.extent;
            let plane = height.min(width);
            RateClass::Convolution {
                spatial_dims: if has_depth { 3 } else { 2 },
                pass,
                extents: Extents {
                    channels: input.extent[4] / window.groups,
                    thickness: if has_depth { plane.min(depth) } else { plane },
                },
            }
        }
        (Cost::Convolution { .. }, None) => panic!("a convolution has a window"),
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
