//! Saturation of convolutions: the fraction of the achievable rate that small shapes reach.
//!
//! Where a machine file has half-saturation extents, which were fitted to published times, they count:
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
//!
//! Elsewhere a convolution is the matrix product of its implicit lowering, rows times columns over a depth,
//! in tiles, if the machine file has them. Channels are first padded to the alignment. Each processor
//! computes one tile at a time, so the last wave of tiles may leave most processors idle, and tiles at the
//! edges are computed whole. A tile takes `start + 2 r c depth / rate`; a small one loads its factors more
//! often for each multiply-add, so its rate is lower by `side / (side + half_side)`, with
//! `side = 2 r c / (r + c)`. Libraries choose the tile and may split the depth among processors, so the
//! fastest choice counts.
//! Source: NVIDIA, Matrix Multiplication Background User's Guide, sections on tile and wave quantization,
//! and Convolutional Layers User's Guide, section on implicit GEMM dimensions and on alignment of channels.

use partita_cluster::{ConvSaturation, Device, HalfSaturation, LayerPrecision, Tiles};
use partita_program::descriptor::Pass;
use partita_space::FlopsPerSecond;

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

/// A convolution or linear layer as matrix products.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Product {
    /// Products of equal extents, one for each group of channels.
    pub count: usize,
    /// The pass of the layer.
    pub pass: Pass,
    /// Input and output channels of the layer, in a group.
    pub channels: [usize; 2],
    /// Taps of the window.
    pub taps: usize,
    /// Positions over all samples: those that are written, or summed over.
    pub positions: usize,
    /// Multiply-adds of all products.
    pub multiply_adds: f64,
}

/// The least side of a tile.
const SIDE_MIN: usize = 16;

/// A device and the rate that it reaches with large products.
#[derive(Clone, Copy)]
pub struct Tiling<'d> {
    tiles: &'d Tiles,
    processors: usize,
    precision: LayerPrecision,
    rate: FlopsPerSecond,
}

impl<'d> Tiling<'d> {
    /// None where the tiles of the device are not known.
    pub fn of(device: &'d Device, precision: LayerPrecision, rate: FlopsPerSecond) -> Option<Self> {
        Some(Self {
            tiles: device.tiles.as_ref()?,
            processors: device.processors.as_ref()?.value,
            precision,
            rate,
        })
    }

    /// The fraction of the rate that a product reaches, above 0 and at most 1.
    pub fn reached(&self, product: &Product) -> f64 {
        let alone = 2.0 * product.multiply_adds / self.rate.0;
        let extents = self.extents(product);
        let Tiles { rows, columns, .. } = self.tiles;
        let mut least = f64::INFINITY;
        for rows in halves(rows.value) {
            for columns in halves(columns.value) {
                least = least.min(self.seconds(product.count, extents, [rows, columns]));
            }
        }
        (alone / least).min(1.0)
    }

    /// Rows, columns and depth of a product, padded to the alignment.
    fn extents(&self, product: &Product) -> [f64; 3] {
        let [inputs, outputs] = product.channels.map(|channels| self.padded(channels));
        let [own_inputs, own_outputs] = product.channels.map(|channels| channels.max(1) as f64);
        let positions = product.positions.max(1) as f64;
        let all = product.multiply_adds / product.count.max(1) as f64;
        match product.pass {
            Pass::Forward => {
                let taps = all / (positions * own_inputs * own_outputs);
                [positions, outputs, taps * inputs]
            }
            Pass::BackwardData => {
                // With strides only some taps reach a position.
                let taps = all / (positions * own_inputs * own_outputs);
                [positions, inputs, taps * outputs]
            }
            Pass::BackwardWeight => {
                let taps = product.taps as f64;
                let depth = all / (taps * own_inputs * own_outputs);
                [taps * inputs, outputs, depth]
            }
        }
    }

    fn padded(&self, channels: usize) -> f64 {
        let element = match self.precision {
            LayerPrecision::F32 => return channels.max(1) as f64,
            LayerPrecision::Tf32 => 4,
            LayerPrecision::Bf16 | LayerPrecision::F16 => 2,
        };
        let multiple = (self.tiles.alignment.value.0 as usize / element).max(1);
        channels.max(1).next_multiple_of(multiple) as f64
    }

    /// Seconds of `count` products in tiles of one size, with the best split of the depth.
    fn seconds(&self, count: usize, [rows, columns, depth]: [f64; 3], tile: [usize; 2]) -> f64 {
        let [r, c] = tile.map(|side| side as f64);
        let side = |r: f64, c: f64| 2.0 * r * c / (r + c);
        let reached = |side: f64| side / (side + self.tiles.half_side.value.0);
        let largest = [&self.tiles.rows, &self.tiles.columns].map(|side| side.value as f64);
        let relative = reached(side(r, c)) / reached(side(largest[0], largest[1]));
        let processors = self.processors as f64;
        let rate = self.rate.0 / processors * relative;
        let tiles = (rows / r).ceil() * (columns / c).ceil() * count.max(1) as f64;
        let with_parts = |parts: f64| {
            let waves = (tiles * parts / processors).ceil();
            waves * (self.tiles.start.value.0 + 2.0 * r * c * (depth / parts).max(1.0) / rate)
        };
        // As many parts as fill one wave, and half and twice as many.
        let fill = (processors / tiles).floor().max(1.0);
        let few = with_parts(1.0).min(with_parts((fill / 2.0).floor().max(1.0)));
        few.min(with_parts(fill)).min(with_parts(2.0 * fill))
    }
}

/// A side, its half, and so on.
fn halves(largest: usize) -> impl Iterator<Item = usize> {
    let halve = |side: &usize| Some(side / 2).filter(|&half| half >= SIDE_MIN);
    std::iter::successors(Some(largest), halve)
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

    fn device() -> Device {
        let dgx = partita_cluster::Machine::load("dgx-a100", &[]);
        dgx.unwrap_or_else(|error| panic!("{error}")).device
    }

    fn product(positions: usize, channels: [usize; 2], pass: Pass) -> Product {
        Product {
            count: 1,
            pass,
            channels,
            taps: 9,
            positions,
            multiply_adds: (9 * positions * channels[0] * channels[1]) as f64,
        }
    }

    fn reached(product: &Product, precision: LayerPrecision) -> f64 {
        let device = device();
        let rate = FlopsPerSecond(100e12);
        let tiling = Tiling::of(&device, precision, rate);
        tiling.unwrap_or_else(|| panic!("tiles")).reached(product)
    }

    #[test]
    fn large_products_reach_the_rate_and_small_ones_less() {
        let large = product(256 * 108 * 16, [512, 512], Pass::Forward);
        assert!(reached(&large, LayerPrecision::F16) > 0.9);
        let mut before = 0.0;
        for positions in [49, 7 * 49, 32 * 196, 32 * 3136, 256 * 3136] {
            let share = reached(
                &product(positions, [64, 64], Pass::Forward),
                LayerPrecision::F16,
            );
            assert!(share > 0.0 && share <= 1.0);
            assert!(share >= 0.9 * before, "{positions}: {share} after {before}");
            before = share;
        }
    }

    /// Rows of 109 tiles on 108 processors take two waves, as the guide of the source shows.
    #[test]
    fn the_last_wave_counts_whole() {
        let seconds = |positions| {
            let product = product(positions, [512, 512], Pass::Forward);
            product.multiply_adds / reached(&product, LayerPrecision::F16)
        };
        assert!(seconds(27 * 1024 * 4) < seconds(27 * 1024 * 4 + 512));
        // A split of filters halves the work of a rank, but not its time, once a wave is not full.
        let time = |channels| {
            let product = product(196, channels, Pass::Forward);
            product.multiply_adds / reached(&product, LayerPrecision::F16)
        };
        assert!(time([512, 32]) > 0.6 * time([512, 64]));
    }

    #[test]
    fn channels_are_padded_below_f32_only() {
        let first = product(1 << 20, [3, 64], Pass::Forward);
        let padded = product(1 << 20, [8, 64], Pass::Forward);
        let time =
            |product: &Product, precision| product.multiply_adds / reached(product, precision);
        let [three, eight] = [&first, &padded].map(|one| time(one, LayerPrecision::F16));
        assert!((three / eight - 1.0).abs() < 1e-9, "{three} {eight}");
        let [three, eight] = [&first, &padded].map(|one| time(one, LayerPrecision::F32));
        assert!(three < 0.75 * eight, "{three} {eight}");
    }

    #[test]
    fn gradients_of_weights_may_split_their_depth() {
        // One tile of output alone would leave all other processors idle.
        let weights = product(32 * 3136, [64, 64], Pass::BackwardWeight);
        assert!(reached(&weights, LayerPrecision::F16) > 0.3);
    }
}
