//! Where the tiles of a box are.

use crate::conv::convolution::Convolution;
use crate::grid::Grid;

/// The order of the dims D, H, W in which a dim with one tap comes first.
pub(crate) fn order(conv: &Convolution) -> [usize; 3] {
    match conv.window.kernel {
        [_, 1, _] => [1, 0, 2],
        [_, _, 1] => [2, 0, 1],
        [..] => [0, 1, 2],
    }
}

/// A box with its dims in the order of the tiles.
#[derive(Clone, Copy)]
pub(crate) struct Ordered {
    pub samples: usize,
    pub extent: [usize; 3],
    /// Of samples, then of the dims.
    pub pitch: [usize; 4],
}

impl Ordered {
    pub(crate) fn new(grid: &Grid, order: [usize; 3]) -> Ordered {
        let [d, h, w] = order.map(|dim| grid.pitch[dim + 1]);
        Ordered {
            samples: grid.samples,
            extent: order.map(|dim| grid.extent[dim]),
            pitch: [grid.pitch[0], d, h, w],
        }
    }

    /// The distance between neighbors along the dims.
    pub(crate) fn steps(&self) -> [usize; 3] {
        let [_, d, h, w] = self.pitch;
        [d, h, w]
    }
}

/// The tiles of a box of outputs.
#[derive(Clone, Copy)]
pub(crate) struct Tiling {
    /// Samples, and tiles along the dims.
    counts: [usize; 4],
    /// Outputs of a tile along the dims.
    m: [usize; 3],
}

impl Tiling {
    pub(crate) fn new(outputs: &Ordered, m: [usize; 3]) -> Tiling {
        let [d, h, w] = std::array::from_fn(|i| outputs.extent[i].div_ceil(m[i]));
        Tiling {
            counts: [outputs.samples, d, h, w],
            m,
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.counts.iter().product()
    }

    /// Outputs of a tile along the last dim.
    pub(crate) fn step(&self) -> usize {
        self.m[2]
    }

    /// Sample and first output of a tile.
    #[inline]
    pub(crate) fn at(&self, tile: usize) -> (usize, [usize; 3]) {
        let [_, d, h, w] = self.counts;
        let (iw, rest) = (tile % w, tile / w);
        let (ih, rest) = (rest % h, rest / h);
        let (id, n) = (rest % d, rest / d);
        (n, [id * self.m[0], ih * self.m[1], iw * self.m[2]])
    }
}

/// Where the points of many tiles or of many weights are: rows of channels.
#[derive(Clone, Copy, Default)]
pub(crate) struct Points {
    /// Elements between neighboring rows of a point.
    pub row: usize,
    /// Elements between the same row of neighboring points.
    pub point: usize,
    /// Elements between the real and the imaginary part of a row at a complex point.
    pub part: usize,
}

impl Points {}
