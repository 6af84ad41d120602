//! The roofline model of kernels.

use super::saturation::{Extents, Product};
pub use partita_program::descriptor::Pass;
use partita_program::descriptor::{Cost, Descriptor, Layout};
use partita_program::{KernelShape, View};
use partita_space::{Bytes, BytesPerSecond, Flops, FlopsPerSecond, Seconds};

/// The rate of a device that bounds a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RateClass {
    /// A convolution over 2 or 3 spatial dims.
    Convolution {
        /// 2 or 3.
        spatial_dims: usize,
        /// Its pass.
        pass: Pass,
        /// What its saturation depends on.
        extents: Extents,
        /// As a matrix product.
        product: Product,
    },
    /// A linear layer or attention: matrix products, as a 2D convolution of one tap.
    Linear {
        /// Its pass.
        pass: Pass,
        /// Its extents.
        product: Product,
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
        (Cost::Linear { pass }, _) => RateClass::Linear {
            pass,
            product: linear_product(&descriptor),
        },
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
            let channels = [input, output].map(|view| view.extent[4] / window.groups.max(1));
            let taps = window.taps.kernel.iter().product();
            RateClass::Convolution {
                spatial_dims: if has_depth { 3 } else { 2 },
                pass,
                extents: Extents {
                    channels: channels[0],
                    thickness: if has_depth { plane.min(depth) } else { plane },
                },
                product: Product {
                    count: window.groups,
                    pass,
                    channels,
                    taps,
                    positions: positions(written),
                    multiply_adds: descriptor.flops as f64 / 2.0,
                },
            }
        }
        (Cost::Convolution { .. }, None) => panic!("a convolution has a window"),
    }
}

fn positions(view: &View) -> usize {
    view.extent[..4].iter().product()
}

/// Linear layers have their samples as rows. Attention, a product for each sample and head, counts as one of
/// all positions and channels.
fn linear_product(descriptor: &Descriptor<'_>) -> Product {
    let (pass, of) = match (descriptor.cost, &descriptor.layout) {
        (Cost::Linear { pass }, Layout::Product { w, .. }) => (pass, Some(*w)),
        (Cost::Linear { pass }, Layout::ProductGradient { dw, .. }) => (pass, Some(*dw)),
        (Cost::Linear { pass }, _) => (pass, None),
        (Cost::Convolution { pass, .. }, _) => (pass, None),
        (Cost::Memory, _) => (Pass::Forward, None),
    };
    let multiply_adds = descriptor.flops as f64 / 2.0;
    let first = descriptor.operands[0].view;
    let channels = of.map_or([first.extent[4]; 2], |w| [w.extent[3], w.extent[4]]);
    let rows = match of {
        Some(_) => multiply_adds / (channels[0] * channels[1]).max(1) as f64,
        None => positions(first) as f64,
    };
    Product {
        count: 1,
        pass,
        channels,
        taps: 1,
        positions: rows.round().max(1.0) as usize,
        multiply_adds,
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
