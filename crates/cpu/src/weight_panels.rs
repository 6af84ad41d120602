//! Copies of x and dy for the gradient with respect to the weights.
//!
//! A tile reads a few channels at each of many positions. Where positions are a power of two of bytes
//! apart, these fall into few sets of the caches and evict each other. So the first tile that reads some
//! channels also copies them densely, and the tiles after it read the copies.
//! Legend: Q input channels of a tile, L lanes.

use crate::weight_walk::WalkArgs;

/// Elements of dy that a thread copies at a time: half of an L2 cache.
const DY_ELEMENTS: usize = 128 * 1024;
/// Tiles that must read a copy for it to pay.
const READERS_MIN: usize = 8;
/// Positions of a block, at most; copies of more do not stay in the caches.
const POSITIONS_MAX: usize = 1024;
/// Bytes of a way of an L1 cache.
const L1_WAY_BYTES: usize = 4 * 1024;
/// Bytes of a way of an L2 cache, and its ways.
const L2_WAY_BYTES: usize = 64 * 1024;
const L2_WAYS: usize = 16;

/// How much a thread copies at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Panels {
    /// Positions of a block, at most.
    positions: usize,
    /// Tiles of output channels whose dy is copied.
    pub f_tiles: usize,
    /// Distance in elements of positions in the copy of x, and of tiles in that of dy.
    x_pitch: usize,
    y_pitch: usize,
}

impl Panels {
    /// For tiles of `q_max` rows and two vectors of `lanes`, and blocks of so many positions. So many tiles
    /// read the same dy and the same x, whose positions are so many elements apart. None where copies do not
    /// pay.
    pub(crate) fn new(
        positions: usize,
        (q_max, lanes): (usize, usize),
        (q_tiles, f_tiles): (usize, usize),
        (x_step, y_step): (usize, usize),
    ) -> Option<Panels> {
        let x_pays = f_tiles >= READERS_MIN && evicts(positions, x_step);
        let dy_pays = q_tiles >= READERS_MIN && evicts(positions, y_step);
        if positions > POSITIONS_MAX || !(x_pays || dy_pays) {
            return None;
        }
        // Tiles of dy begin in different sets of the caches.
        let y_pitch = (positions + 1) * 2 * lanes;
        Some(Panels {
            positions,
            f_tiles: (DY_ELEMENTS / y_pitch).clamp(1, f_tiles),
            x_pitch: q_max,
            y_pitch,
        })
    }

    /// Elements of the copies of one thread: those of x, then those of dy.
    pub(crate) fn elements(&self) -> usize {
        self.x_elements() + self.f_tiles * self.y_pitch
    }

    fn x_elements(&self) -> usize {
        self.positions * self.x_pitch
    }
}

/// Whether a few channels at so many positions, so many elements apart, fall into one set of the L1 cache
/// and fill half of their sets of the L2 cache.
fn evicts(positions: usize, step: usize) -> bool {
    let step_bytes = (4 * step).max(1);
    let apart = 1
        << step_bytes
            .trailing_zeros()
            .min(L2_WAY_BYTES.trailing_zeros());
    apart >= L1_WAY_BYTES && positions > L2_WAYS * (L2_WAY_BYTES / apart) / 2
}

/// The copies of one thread: x of one tile of rows, dy of the tiles of output channels from `f_tile` on.
///
/// There is room for [`Panels::elements`], which nobody else touches.
#[derive(Clone, Copy)]
pub(crate) struct Copies {
    pub panels: Panels,
    pub room: *mut f32,
    pub f_tile: usize,
}

/// What a tile copies while it reads, to where. Positions are `x_pitch` and `y_pitch` apart.
#[derive(Clone, Copy)]
pub(crate) struct CopyTo {
    pub x: *mut f32,
    pub x_pitch: usize,
    pub y: *mut f32,
    pub y_pitch: usize,
}

impl Copies {
    /// Where a tile of `width` output channels finds its copies, and puts them.
    pub(crate) fn of_tile(&self, f_tile: usize, width: usize) -> CopyTo {
        let before = self.panels.x_elements() + (f_tile - self.f_tile) * self.panels.y_pitch;
        CopyTo {
            x: self.room,
            x_pitch: self.panels.x_pitch,
            y: self.room.wrapping_add(before),
            y_pitch: width,
        }
    }
}

impl CopyTo {
    /// The walk over the copies alone, in place of `walk`.
    pub(crate) fn walk(&self, walk: &WalkArgs) -> WalkArgs {
        let rows = walk.rows.1 - walk.rows.0;
        WalkArgs {
            x: self.x,
            y: self.y,
            rows: (0, 1),
            counts: [1; 4],
            inner: (rows * walk.inner.0, self.x_pitch, self.y_pitch),
            ..*walk
        }
    }

    /// The same walk with dy as copied.
    pub(crate) fn walk_dy(&self, walk: &WalkArgs) -> WalkArgs {
        let row = walk.inner.0 * self.y_pitch;
        let (counts, (count, x_step, _)) = (&walk.counts, walk.inner);
        WalkArgs {
            y: self.y.wrapping_sub(walk.rows.0 * row),
            y_step: [row * counts[1] * counts[2], row * counts[2], row, 0],
            inner: (count, x_step, self.y_pitch),
            ..*walk
        }
    }
}
