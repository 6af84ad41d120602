//! Where the tiles of a box are.

use super::maps::Maps;
use super::nest::Sizes;
use crate::convolution::Convolution;
use crate::grid::Grid;

/// The order of the dims D, H, W in which a dim with one tap comes first.
pub(super) fn order(conv: &Convolution) -> [usize; 3] {
    match conv.window.kernel {
        [_, 1, _] => [1, 0, 2],
        [_, _, 1] => [2, 0, 1],
        [..] => [0, 1, 2],
    }
}

/// A box with its dims in the order of the tiles.
#[derive(Clone, Copy)]
pub(super) struct Ordered {
    pub samples: usize,
    pub extent: [usize; 3],
    /// Of samples, then of the dims.
    pub pitch: [usize; 4],
}

impl Ordered {
    pub(super) fn new(grid: &Grid, order: [usize; 3]) -> Ordered {
        let [d, h, w] = order.map(|dim| grid.pitch[dim + 1]);
        Ordered {
            samples: grid.samples,
            extent: order.map(|dim| grid.extent[dim]),
            pitch: [grid.pitch[0], d, h, w],
        }
    }

    /// The distance between neighbors along the dims.
    pub(super) fn steps(&self) -> [usize; 3] {
        let [_, d, h, w] = self.pitch;
        [d, h, w]
    }
}

/// The tiles of a box of outputs.
#[derive(Clone, Copy)]
pub(super) struct Tiling {
    /// Samples, and tiles along the dims.
    counts: [usize; 4],
    /// Outputs of a tile along the dims.
    m: [usize; 3],
}

impl Tiling {
    pub(super) fn new(outputs: &Ordered, m: [usize; 3]) -> Tiling {
        let [d, h, w] = std::array::from_fn(|i| outputs.extent[i].div_ceil(m[i]));
        Tiling {
            counts: [outputs.samples, d, h, w],
            m,
        }
    }

    pub(super) fn count(&self) -> usize {
        self.counts.iter().product()
    }

    /// Outputs of a tile along the last dim.
    pub(super) fn step(&self) -> usize {
        self.m[2]
    }

    /// Sample and first output of a tile.
    #[inline]
    pub(super) fn at(&self, tile: usize) -> (usize, [usize; 3]) {
        let [_, d, h, w] = self.counts;
        let (iw, rest) = (tile % w, tile / w);
        let (ih, rest) = (rest % h, rest / h);
        let (id, n) = (rest % d, rest / d);
        (n, [id * self.m[0], ih * self.m[1], iw * self.m[2]])
    }
}

/// Points of a tile along a dim of `m` outputs.
pub(super) fn points_along(m: usize) -> usize {
    match m {
        1 => 1,
        m => m + 2,
    }
}

/// Points of a tile.
pub(super) fn points(m: [usize; 3]) -> usize {
    m.map(points_along).iter().product()
}

/// Where the points of many tiles or of many weights are: rows of channels.
#[derive(Clone, Copy)]
pub(super) struct Points {
    /// Elements between neighboring rows of a point.
    pub row: usize,
    /// Elements between the same row of neighboring points.
    pub point: usize,
}

impl Points {
    /// The distances of neighboring points along the dims.
    #[inline(always)]
    pub(super) fn steps<Z: Sizes>(&self) -> [usize; 3] {
        use super::maps::Map;
        let h = <<Z::H as Maps>::Input as Map>::I;
        let w = <<Z::W as Maps>::Input as Map>::I;
        [h * w * self.point, w * self.point, self.point]
    }
}
