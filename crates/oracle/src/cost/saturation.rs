//! Saturation of convolutions: the fraction of the achievable rate that small shapes reach.
//!
//! `share(c, t) = share c / (c + c_half) t / (t + t_half)`, with c the input channels of a group of the
//! layer, in every pass, and t the positions along the shortest spatial dim of the output of the kernel
//! (of `dy` for the gradient of the weights).
//!
//! Assumes that a kernel fills tiles of channels and positions, and that what it pays per tile and per
//! border does not shrink with the shape: time is `work + overhead` in each of the two extents, and the
//! two multiply. It is meant for layers with 4 input channels and for slabs of a few planes.
//! Of geometric mean, smaller and first of the two numbers of channels, the first explains published
//! times best (bench/fit_lassen.py).
//! Source: the form is Hockney's half-performance length (Parallel Computers, 1981, section 1.3.3), the
//! observation Oyama et al., section on strong scaling: cuDNN is slow on local domains that are not
//! cubic, and slowest in the first layer.

use super::kernel::Pass;
use partita_cluster::{ConvSaturation, HalfSaturation};

/// Extents of a convolution that its saturation depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extents {
    /// Input channels of a group of the layer.
    pub channels: usize,
    /// Positions along the shortest spatial dim of the output.
    pub thickness: usize,
}

/// The fraction of its achievable rate that a convolution reaches, above 0 and below 1.
pub fn saturation(extents: Extents, pass: Pass, half: &ConvSaturation) -> f64 {
    let channels = match pass {
        Pass::Forward => half.channels_forward.value,
        Pass::BackwardData | Pass::BackwardWeight => half.channels_backward.value,
    };
    reached(extents.channels, channels) * reached(extents.thickness, half.thickness.value)
}

fn reached(extent: usize, half: HalfSaturation) -> f64 {
    extent as f64 / (extent as f64 + half.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_cluster::{Basis, Fact};

    fn half(value: f64) -> Fact<HalfSaturation> {
        Fact {
            value: HalfSaturation(value),
            basis: Basis::Assumed,
            source: "a hand example".to_owned(),
        }
    }

    #[test]
    fn half_of_the_rate_is_reached_at_the_half_saturation_extents() {
        let halves = ConvSaturation {
            channels_forward: half(8.0),
            channels_backward: half(24.0),
            thickness: half(4.0),
        };
        let at = |channels, thickness| Extents {
            channels,
            thickness,
        };
        assert_eq!(saturation(at(8, 4), Pass::Forward, &halves), 0.25);
        assert_eq!(saturation(at(8, 4), Pass::BackwardWeight, &halves), 0.125);
        assert_eq!(saturation(at(8, 12), Pass::BackwardData, &halves), 0.1875);
        assert!(saturation(at(512, 512), Pass::Forward, &halves) > 0.97);
    }
}
