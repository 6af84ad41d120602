//! How tiles of a volume overlap, and what each of them counts where several have a voxel.

use std::ops::Range;

/// Least weight of a voxel of a tile, as that of MONAI.
const WEIGHT_MIN: f64 = 1e-3;
/// Standard deviation of the Gaussian weights as a fraction of a tile's extent.
const SIGMA: f64 = 0.125;

/// How volumes are joined of tiles: the outputs of tiles, before any softmax, are averaged by weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tiling {
    /// Least fraction of its extent that a tile shares with the next one along each dim, at least 0 and below 1.
    pub overlap: f64,
    /// What each tile counts where several have a voxel.
    pub weights: TileWeights,
}

impl Default for Tiling {
    fn default() -> Self {
        Self {
            overlap: 0.5,
            weights: TileWeights::Gaussian,
        }
    }
}

impl Tiling {
    /// Voxels that neighbors share along a dim, at least.
    pub(crate) fn shared(&self, extent: usize) -> usize {
        let shared = (extent as f64 * self.overlap).ceil() as usize;
        shared.min(extent - 1)
    }
}

/// What each tile counts where several have a voxel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TileWeights {
    /// A Gaussian around the middle of the tile, with a standard deviation of 1/8 of its extent, and at least 0.001.
    /// Source: Isensee et al., "nnU-Net", Nature Methods 18, 2021, supplementary note 4; MONAI,
    /// `compute_importance_map`.
    Gaussian,
    /// All tiles count the same.
    Constant,
    /// A voxel is taken from one tile: neighbors meet in the middle of what they share.
    Middle,
}

impl TileWeights {
    /// The word used in results and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gaussian => "gaussian",
            Self::Constant => "constant",
            Self::Middle => "middle",
        }
    }

    /// The voxels of a tile that count.
    pub(crate) fn covered(self, tile: &Tile) -> &[Range<usize>; 3] {
        match self {
            Self::Gaussian | Self::Constant => &tile.inside,
            Self::Middle => &tile.part,
        }
    }

    /// Factors of the weights along each dim of a tile.
    pub(crate) fn profiles(self, extent: [usize; 3]) -> [Vec<f64>; 3] {
        extent.map(|extent| {
            let of = |at: usize| match self {
                Self::Gaussian => {
                    let middle = (extent as f64 - 1.0) / 2.0;
                    let distance = (at as f64 - middle) / (SIGMA * extent as f64);
                    (-0.5 * distance * distance).exp()
                }
                Self::Constant | Self::Middle => 1.0,
            };
            (0..extent).map(of).collect()
        })
    }

    /// The weight of a voxel, by the factors along the dims.
    pub(crate) fn weight(factors: [f64; 3]) -> f64 {
        let [d, h, w] = factors;
        (d * h * w).max(WEIGHT_MIN)
    }
}

/// The part of a volume that one of its crops, of several that cover it, is the source of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Number of the volume in its split.
    pub volume: usize,
    /// Where the crop begins in the volume, D, H, W. In one with `padding`, that is counted.
    pub origin: [usize; 3],
    /// Positions before those of the volume, of one that is smaller than the crop: a position p of the crop is
    /// `origin + p - padding` in the volume.
    pub padding: [usize; 3],
    /// The positions of the crop that are not padding.
    pub inside: [Range<usize>; 3],
    /// The part in the crop. Those of all crops of a volume cover it, and none shares a voxel with another; they
    /// meet in the middle of what the crops share.
    pub part: [Range<usize>; 3],
}

impl Tile {
    /// Where a position of the crop is in the volume; none of padding.
    pub(crate) fn in_volume(&self, at: [usize; 3]) -> Option<[usize; 3]> {
        let is_inside = (0..3).all(|dim| self.inside[dim].contains(&at[dim]));
        is_inside.then(|| std::array::from_fn(|dim| self.origin[dim] + at[dim] - self.padding[dim]))
    }

    /// Where a range of positions of the crop without padding is in the volume, along a dim.
    pub(crate) fn moved(&self, dim: usize, range: &Range<usize>) -> Range<usize> {
        let moved = |at: usize| self.origin[dim] + at - self.padding[dim];
        moved(range.start)..moved(range.end)
    }
}
