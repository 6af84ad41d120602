//! What a convolution of a small shape reaches of its share of the peak.
//!
//! `share(c, t) = share c / (c + c_half) t / (t + t_half)`, with c the channels that a group of the
//! layer reads, in every pass, and t the positions along the shortest spatial dim of what the kernel
//! writes (of `dy` for the gradient of the weights).
//!
//! Assumes that a kernel fills tiles of channels and positions, and that what it pays per tile and per
//! border does not shrink with the shape: time is `work + overhead` in each of the two extents, and the
//! two multiply. A layer that reads 4 channels, and slabs a few planes thick, are what it is meant for.
//! Of geometric mean, smaller and first of the two numbers of channels, the first explains published
//! times best (bench/fit_lassen.py).
//! Source: the form is Hockney's half-performance length (Parallel Computers, 1981, section 1.3.3), the
//! observation Oyama et al., section on strong scaling: cuDNN is slow on local domains that are not
//! cubic, and slowest in the first layer.

use super::kernel::Pass;
use partita_cluster::{ConvSaturation, Half};

/// Extents of a convolution by which its rate is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extents {
    /// Channels that a group of the layer reads.
    pub channels: usize,
    /// Positions along the shortest spatial dim of what is written.
    pub thickness: usize,
}

/// The part of its share of the peak that a convolution reaches, above 0 and below 1.
pub fn saturation(extents: Extents, pass: Pass, law: &ConvSaturation) -> f64 {
    let half = match pass {
        Pass::Forward => law.channels_forward.value,
        Pass::BackwardData | Pass::BackwardWeight => law.channels_backward.value,
    };
    reached(extents.channels, half) * reached(extents.thickness, law.thickness.value)
}

fn reached(extent: usize, half: Half) -> f64 {
    extent as f64 / (extent as f64 + half.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_cluster::{Basis, Fact};

    fn half(value: f64) -> Fact<Half> {
        Fact {
            value: Half(value),
            basis: Basis::Assumed,
            source: "a hand example".to_owned(),
        }
    }

    #[test]
    fn half_is_reached_where_the_law_says() {
        let law = ConvSaturation {
            channels_forward: half(8.0),
            channels_backward: half(24.0),
            thickness: half(4.0),
        };
        let at = |channels, thickness| Extents {
            channels,
            thickness,
        };
        assert_eq!(saturation(at(8, 4), Pass::Forward, &law), 0.25);
        assert_eq!(saturation(at(8, 4), Pass::BackwardWeight, &law), 0.125);
        assert_eq!(saturation(at(8, 12), Pass::BackwardData, &law), 0.1875);
        assert!(saturation(at(512, 512), Pass::Forward, &law) > 0.97);
    }
}
