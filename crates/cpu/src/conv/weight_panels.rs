//! Copies of x and dy for the gradient with respect to the weights.
//!
//! A tile reads a few channels at each of many positions: parts of cache lines, whose distance puts them into few
//! sets of the caches. Where several tiles read the same channels, these are first copied into panels, which the
//! tiles read densely: a panel of a tile's x stays in the L1 cache, those of dy in the L2 cache.
//! Legend: Q input channels of a tile, L lanes.

use crate::conv::weight_walk::{Rows, WalkArgs};
use crate::simd::{Op, Simd};

/// Positions of a block with panels.
pub(crate) const POSITIONS: usize = 256;
/// Positions of a block, at most; panels of more do not stay in the caches.
const POSITIONS_MAX: usize = 1024;
/// Elements of the panels of dy: half of an L2 cache of 512 KiB.
const DY_ELEMENTS: usize = 64 * 1024;
/// Elements of the panels of x.
const X_ELEMENTS: usize = 16 * 1024;
/// Tiles that must read a panel for it to pay.
const READERS_MIN: usize = 4;
/// The same for large tiles, which read each channel less often.
const READERS_OF_LARGE_MIN: usize = 8;
/// Elements from which on a tile is large.
const LARGE_TILE: usize = 128;
/// Bytes of a way of an L1 cache.
const L1_WAY_BYTES: usize = 4 * 1024;
/// Bytes of a way of an L2 cache, and its ways.
const L2_WAY_BYTES: usize = 64 * 1024;
const L2_WAYS: usize = 16;
/// Vectors of the panels of one kind, at most.
const PIECES_MAX: usize = 64;
/// Panels of dy, at most.
pub(crate) const F_TILES_MAX: usize = PIECES_MAX / 2;
/// Elements of a cache line.
const LINE: usize = 16;
/// Positions from a read to its prefetch.
const AHEAD: usize = 8;

/// How much a thread copies at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Panels {
    /// Tiles of rows whose x is copied at a time, and of output channels whose dy is.
    pub q_tiles: usize,
    pub f_tiles: usize,
    /// Distance in elements of the positions in a panel.
    pub x_row: usize,
    pub y_row: usize,
    /// Distance of the panels.
    x_pitch: usize,
    y_pitch: usize,
}

impl Panels {
    /// For tiles of `q_max` rows and two vectors of `lanes`, and blocks of `positions` positions, which are
    /// `x_step` and `y_step` elements apart in x and dy. There are `q_tiles` tiles of rows and `f_tiles` of output
    /// channels. None where copies do not pay.
    pub(crate) fn new(
        positions: usize,
        (q_max, lanes): (usize, usize),
        (q_tiles, f_tiles): (usize, usize),
        (x_step, y_step): (usize, usize),
    ) -> Option<Panels> {
        let readers = q_tiles.min(f_tiles);
        let pays = if q_max * lanes < LARGE_TILE {
            readers >= READERS_MIN && x_step >= LINE
        } else {
            let conflicts = evicts(positions, x_step) || evicts(positions, y_step);
            readers >= READERS_OF_LARGE_MIN && conflicts
        };
        if positions > POSITIONS_MAX || !pays {
            return None;
        }
        let (x_row, y_row) = (q_max.next_multiple_of(lanes), 2 * lanes);
        // Panels begin in different sets of the caches.
        let pitch = |row: usize| (positions * row).next_multiple_of(LINE) + LINE;
        let (x_pitch, y_pitch) = (pitch(x_row), pitch(y_row));
        let x_most = (X_ELEMENTS / x_pitch).min(PIECES_MAX * lanes / x_row);
        let y_most = (DY_ELEMENTS / y_pitch).min(F_TILES_MAX);
        Some(Panels {
            q_tiles: x_most.clamp(1, q_tiles),
            f_tiles: y_most.clamp(1, f_tiles),
            x_row,
            y_row,
            x_pitch,
            y_pitch,
        })
    }

    /// Elements of the panels of one thread, and room to align them.
    pub(crate) fn elements(&self) -> usize {
        self.q_tiles * self.x_pitch + self.f_tiles * self.y_pitch + LINE
    }
}

/// True if this stride thrashes L1 and L2: a few channels at these positions, `step` elements apart, fall into
/// one set of the L1 cache and fill half of their sets of the L2 cache.
fn evicts(positions: usize, step: usize) -> bool {
    let step_bytes = (4 * step).max(1);
    let apart = 1
        << step_bytes
            .trailing_zeros()
            .min(L2_WAY_BYTES.trailing_zeros());
    apart >= L1_WAY_BYTES && positions > L2_WAYS * (L2_WAY_BYTES / apart) / 2
}

/// The panels of one thread: x of the tiles of rows from `q_tile` on, dy of those of output channels from
/// `f_tile` on. There is room for [`Panels::elements`], which nobody else touches.
#[derive(Clone, Copy)]
pub(crate) struct Copies {
    pub panels: Panels,
    pub room: *mut f32,
    pub q_tile: usize,
    pub f_tile: usize,
}

impl Copies {
    fn x(&self) -> *mut f32 {
        let off = self.room.align_offset(4 * LINE).min(LINE);
        self.room.wrapping_add(off)
    }

    fn y(&self) -> *mut f32 {
        self.x()
            .wrapping_add(self.panels.q_tiles * self.panels.x_pitch)
    }

    /// The walk of a tile over its panels, in place of one over the boxes.
    pub(crate) fn walk(&self, q_tile: usize, f_tile: usize, positions: usize) -> WalkArgs {
        let p = &self.panels;
        WalkArgs {
            x: self.x().wrapping_add((q_tile - self.q_tile) * p.x_pitch),
            y: self.y().wrapping_add((f_tile - self.f_tile) * p.y_pitch),
            rows: (0, 1),
            counts: [1; 4],
            x_step: [0; 4],
            y_step: [0; 4],
            inner: (positions, p.x_row, p.y_row),
        }
    }

    /// The copy into the panels of x, of tiles that begin at these channels of a stretch of this many.
    pub(crate) fn of_x(
        &self,
        lanes: usize,
        firsts: impl Iterator<Item = usize>,
        end: usize,
    ) -> CopyPieces {
        let p = &self.panels;
        CopyPieces::new(self.x(), (p.x_row, p.x_pitch, lanes), firsts, end)
    }

    /// The copy into the panels of dy.
    pub(crate) fn of_dy(
        &self,
        lanes: usize,
        firsts: impl Iterator<Item = usize>,
        end: usize,
    ) -> CopyPieces {
        let p = &self.panels;
        CopyPieces::new(self.y(), (p.y_row, p.y_pitch, lanes), firsts, end)
    }
}

/// A vector of each position: from which channel to where in the panels, and how many lanes exist.
#[derive(Clone, Copy, Default)]
struct Piece {
    from: usize,
    to: usize,
    lanes: usize,
}

/// What is copied at each position of a walk: from `from` on the pieces.
pub(crate) struct CopyPieces {
    pieces: [Piece; PIECES_MAX],
    count: usize,
    to: *mut f32,
    row: usize,
}

impl CopyPieces {
    fn new(
        to: *mut f32,
        (row, pitch, lanes): (usize, usize, usize),
        firsts: impl Iterator<Item = usize>,
        end: usize,
    ) -> CopyPieces {
        let (mut pieces, mut count) = ([Piece::default(); PIECES_MAX], 0);
        for (panel, first) in firsts.enumerate() {
            for at in (0..row).step_by(lanes).filter(|at| first + at < end) {
                pieces[count] = Piece {
                    from: first + at,
                    to: panel * pitch + at,
                    lanes: (end - first - at).min(lanes),
                };
                count += 1;
            }
        }
        CopyPieces {
            pieces,
            count,
            to,
            row,
        }
    }
}

/// The pieces at each position of the x or the y of a walk.
///
/// Pointers: from that of the walk the channels of the pieces at each position, and the panels, which no other
/// thread accesses.
pub(crate) struct CopyPanels<'a, const OF_X: bool>(pub CopyPieces, pub &'a WalkArgs);

impl<const OF_X: bool> Op for CopyPanels<'_, OF_X> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let CopyPanels(copy, walk) = self;
        let (count, x_step, y_step) = walk.inner;
        let (base, step) = if OF_X {
            (walk.x, x_step)
        } else {
            (walk.y, y_step)
        };
        let mut rows = Rows::new(walk);
        let mut to = copy.to;
        for _ in walk.rows.0..walk.rows.1 {
            let mut from = base.wrapping_add(if OF_X { rows.x } else { rows.y });
            rows.step();
            for _ in 0..count {
                let ahead = from.wrapping_add(AHEAD * step);
                // SAFETY: channels of a position, in the panels, as the caller says; a prefetch reads nothing.
                unsafe {
                    for piece in &copy.pieces[..copy.count] {
                        S::prefetch(ahead.wrapping_add(piece.from));
                        let from = from.add(piece.from);
                        let vector = if piece.lanes == S::LANES {
                            S::load(from)
                        } else {
                            S::load_part(from, piece.lanes)
                        };
                        S::store(to.add(piece.to), vector);
                    }
                    to = to.add(copy.row);
                }
                // The last step may leave the slice.
                from = from.wrapping_add(step);
            }
        }
    }
}
