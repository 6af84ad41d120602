//! How the gradient with respect to the weights is cut into tiles and shared among threads.
//!
//! Legend: Q input channels (taps in W included), V vectors, L lanes.

use crate::conv::convolution::Convolution;
use crate::conv::weight_panels::{self, Panels};
use crate::grid::{Grid, part};
use crate::simd::Level;
use std::ops::Range;

/// Tiles per thread from which on the threads share the tiles, not the positions.
const TILES_PER_THREAD: usize = 8;
/// Rows of positions per thread from which on the threads can share the positions evenly.
const ROWS_PER_THREAD: usize = 8;
/// Cost of summing up a weight of one thread, in elements read.
const SUM_COST: usize = 4;
/// Elements of dy in a block of positions, so that it stays in the L1 cache.
const BLOCK_ELEMENTS: usize = 8 * 1024;
/// Positions of a block, so that loading and storing a tile does not matter.
const BLOCK_POSITIONS_MIN: usize = 512;
/// The tallest tile.
pub(crate) const Q_MAX: usize = 12;

/// Partition of the work among threads.
#[derive(Clone, Copy)]
pub(crate) struct Partition {
    /// Parts of the positions; each but the first sums into scratch.
    pub position_parts: usize,
    /// Parts of the tiles.
    pub tile_parts: usize,
}

/// The weights seen as stretches of rows: taps in W and input channels in one where x allows.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub level: Level,
    pub c: usize,
    pub f: usize,
    pub groups: usize,
    /// Stretches of all taps and rows in each; if depthwise, one stretch of all taps.
    pub stretches: usize,
    pub rows: usize,
    pub depthwise: bool,
}

impl Shape {
    pub(crate) fn new(level: Level, conv: &Convolution, xg: &Grid, f: usize) -> Shape {
        if conv.is_depthwise(xg.channels, f) {
            return Shape {
                level,
                c: 1,
                f,
                groups: 1,
                stretches: 1,
                rows: conv.window.volume(),
                depthwise: true,
            };
        }
        let groups = conv.groups;
        let (c, f) = (xg.channels / groups, f / groups);
        let merges = conv.groups == 1
            && xg.pitch[3] == c
            && (conv.window.dilation[2] == 1 || conv.window.kernel[2] == 1);
        let merged = if merges { conv.window.kernel[2] } else { 1 };
        let stretches = conv.window.volume() / merged;
        Shape {
            level,
            c,
            f,
            groups,
            stretches,
            rows: merged * c,
            depthwise: false,
        }
    }

    fn vectors(&self) -> usize {
        // The last, partial vector is a tile of its own.
        self.f / self.level.lanes()
    }

    pub(crate) fn f_tiles(&self) -> usize {
        self.vectors().div_ceil(2) + usize::from(!self.f.is_multiple_of(self.level.lanes()))
    }

    /// First channel, vectors, and lanes of the last vector.
    pub(crate) fn f_tile(&self, index: usize) -> (usize, usize, usize) {
        let lanes = self.level.lanes();
        let (f0, whole) = (2 * index * lanes, self.vectors());
        match whole.saturating_sub(2 * index) {
            0 => (whole * lanes, 1, self.f % lanes),
            1 => (f0, 1, lanes),
            2.. => (f0, 2, lanes),
        }
    }

    pub(crate) fn q_max(&self) -> usize {
        let v = self.vectors().clamp(1, 2);
        (self.level.accumulators() / v).min(Q_MAX)
    }

    pub(crate) fn q_tiles(&self) -> usize {
        self.rows.div_ceil(self.q_max())
    }

    pub(crate) fn q_tile(&self, index: usize) -> Range<usize> {
        part(self.rows, index, self.q_tiles())
    }

    pub(crate) fn tiles(&self) -> usize {
        self.stretches * self.q_tiles() * self.f_tiles()
    }

    /// Of outputs with these extents in N, D, H, W.
    pub(crate) fn partition(&self, threads: usize, counts: [usize; 4]) -> Partition {
        let positions = counts.iter().product::<usize>();
        let rows = positions / counts[inner_dim(counts)].max(1);
        let weights = self.groups * self.stretches * self.rows * self.f;
        // Threads that share tiles all read dy; those that share positions sum their weights up.
        let read = positions.saturating_mul(self.groups * (self.c + self.f));
        let cheap_sum = weights.saturating_mul(SUM_COST * threads) <= read;
        let shares_tiles = self.tiles() >= TILES_PER_THREAD * threads;
        if shares_tiles && !(cheap_sum && rows >= ROWS_PER_THREAD * threads) {
            Partition {
                position_parts: 1,
                tile_parts: threads,
            }
        } else {
            Partition {
                position_parts: threads,
                tile_parts: 1,
            }
        }
    }
}

/// How the work is shared among threads, and what each copies.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub partition: Partition,
    /// Rows of positions of a block.
    pub rows: usize,
    pub panels: Option<Panels>,
}

impl Plan {
    /// For outputs with these extents in N, D, H, W.
    pub(crate) fn new(
        shape: &Shape,
        threads: usize,
        conv: &Convolution,
        counts: [usize; 4],
    ) -> Plan {
        let [d, h, w] = conv.window.stride;
        let stride = [1, d, h, w];
        let partition = shape.partition(threads, counts);
        let inner = counts[inner_dim(counts)].max(1);
        let rows = counts.iter().product::<usize>() / inner;
        let rows_of_part = rows.div_ceil(partition.position_parts);
        let rows_of_block = |positions: usize| {
            let blocks = rows_of_part.div_ceil(positions.div_ceil(inner)).max(1);
            rows_of_part.div_ceil(blocks).max(1)
        };
        let rows_of_panels = rows_of_block(weight_panels::POSITIONS);
        let readers = (shape.stretches * shape.q_tiles(), shape.f_tiles());
        let tile = (shape.q_max(), shape.level.lanes());
        let steps = (
            shape.c * shape.groups * stride[inner_dim(counts)],
            shape.f * shape.groups,
        );
        let panels = Panels::new(rows_of_panels * inner, tile, readers, steps);
        let panels = panels.filter(|_| !shape.depthwise);
        let rows = match panels {
            Some(_) => rows_of_panels,
            None => rows_of_block((BLOCK_ELEMENTS / shape.f.max(1)).max(BLOCK_POSITIONS_MIN)),
        };
        Plan {
            partition,
            rows,
            panels,
        }
    }

    /// Scratch elements of all threads for copies.
    pub(crate) fn copies(&self, threads: usize) -> usize {
        self.panels.map_or(0, |panels| threads * panels.elements())
    }
}

/// The innermost dim with more than one position (N D H W = 0..4): the tiles stream over it.
pub(crate) fn inner_dim(counts: [usize; 4]) -> usize {
    (0..4).rev().find(|i| counts[*i] > 1).unwrap_or(3)
}
