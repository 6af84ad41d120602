//! Weights to points, and points to gradients of weights.

use super::tile::{AnyRoom, Tile};
use super::tiling::Points;
use super::{Transform, with_tile};
use crate::conv::convolution::Convolution;
use crate::conv::tiles::Tiles;
use crate::grid::{Canceled, Shared, product};
use crate::simd::{LANES_MAX, Level, Op, Simd};
use crate::team::{ELEMENT, Team};
use std::ops::Range;

/// Rows of a unit of packing, whole vectors of any level.
const ROWS: usize = LANES_MAX;

/// Weights (Kd, Kh, Kw, C, F), and how a direction sees them: rows of channels that are summed over
/// and columns of channels that are written.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub w: &'a [f32],
    /// Distances of neighboring taps in the order of the dims.
    tap: [usize; 3],
    /// Elements between neighboring weights of C.
    f: usize,
    /// Taps flipped, rows of F and columns of C.
    transposed: bool,
    pub rows: usize,
    pub transform: Transform,
    pub tiles: Tiles,
}

impl<'a> Source<'a> {
    pub(crate) fn new(
        level: Level,
        (w, conv): (&'a [f32], &Convolution),
        (c, f): (usize, usize),
        transform: Transform,
        transposed: bool,
    ) -> Source<'a> {
        let [_, kh, kw] = conv.window.kernel;
        let pitch = [kh * kw * c * f, kw * c * f, c * f];
        let (rows, columns) = if transposed { (f, c) } else { (c, f) };
        Source {
            w,
            tap: super::tiling::order(conv).map(|dim| pitch[dim]),
            f,
            transposed,
            rows,
            transform,
            tiles: Tiles { level, f: columns },
        }
    }

    /// Rows of the matrix at a point: of complex ones the real parts, then the imaginary ones.
    pub(crate) fn depth(&self) -> usize {
        self.transform.parts() * self.rows
    }

    /// Elements between the points of as many columns.
    pub(crate) fn point(&self, columns: usize) -> usize {
        // Points a power of two apart would share the sets of a cache.
        self.depth() * columns + LANES_MAX
    }

    /// Elements of the points of as many columns.
    pub(crate) fn elements(&self, columns: usize) -> usize {
        product([self.transform.points(), self.point(columns)])
    }

    /// Writes the points of all columns.
    pub(crate) fn pack(
        &self,
        team: &mut Team,
        progress: &mut dyn FnMut() -> bool,
        out: &mut [f32],
    ) -> Result<(), Canceled> {
        let padded = self.tiles.padded();
        let (point, parts) = (self.point(padded), self.rows.div_ceil(ROWS));
        let out = Shared(out[..self.elements(padded)].as_mut_ptr());
        let units = self.tiles.count() * parts;
        let elements = self.transform.points() * self.depth() * padded / units.max(1);
        team.units(progress, units, ELEMENT * elements as u64, &|unit, _| {
            let (tile, rows) = (unit / parts, unit % parts * ROWS);
            let rows = rows..(rows + ROWS).min(self.rows);
            // SAFETY: units are disjoint parts of the elements; the team has the level.
            unsafe {
                self.tile(
                    tile,
                    rows,
                    out.get().add(self.depth() * self.tiles.tile(tile).0),
                    point,
                )
            };
        })
    }

    /// Writes the points of some rows, the first a multiple of the lanes, of a tile of columns:
    /// rows of whole vectors from `out` on for each point.
    ///
    /// # Safety
    /// The processor has the level; the elements can be written, and no other thread accesses them.
    pub(crate) unsafe fn tile(&self, tile: usize, rows: Range<usize>, out: *mut f32, point: usize) {
        let (first, v) = self.tiles.tile(tile);
        let part = Part {
            source: self,
            columns: first..(first + v * self.tiles.level.lanes()).min(self.tiles.f),
            rows,
            out,
            layout: Points {
                row: v * self.tiles.level.lanes(),
                point,
                part: self.rows * v * self.tiles.level.lanes(),
            },
        };
        // SAFETY: guaranteed by the caller.
        with_tile!(self.transform, tile => unsafe {
            self.tiles.level.run(Pack(&part, tile))
        })
    }
}

/// Some rows of a tile of columns. Pointers as those of [`Source::tile`].
struct Part<'a> {
    source: &'a Source<'a>,
    columns: Range<usize>,
    rows: Range<usize>,
    out: *mut f32,
    layout: Points,
}

struct Pack<'a, T>(&'a Part<'a>, T);

impl<T: Tile> Op for Pack<'_, T> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (Pack(p, tile), s) = (&self, self.0.source);
        let size = tile.taps();
        let mut block = T::Block::new();
        let block = block.start();
        let tap = S::LANES * S::LANES;
        let pitch = [size[1] * size[2] * tap, size[2] * tap, tap];
        for row in p.rows.clone().step_by(S::LANES) {
            let rows = (p.rows.end - row).min(S::LANES);
            for (i, column) in p.columns.clone().step_by(S::LANES).enumerate() {
                let columns = (p.columns.end - column).min(S::LANES);
                // SAFETY: weights that exist, and room for their taps; the rest is guaranteed by
                // the caller.
                unsafe {
                    fetch::<S>(s, (row, rows), (column, columns), size, block);
                    for r in 0..rows {
                        let at = (row + r) * p.layout.row + i * S::LANES;
                        let (from, to) = (block.add(r * S::LANES), p.out.add(at));
                        tile.weights::<S>(from, pitch, to, p.layout);
                    }
                }
            }
        }
    }
}

/// Some rows of a vector of columns for each tap, zero where there is none; rows and columns with
/// their counts.
///
/// # Safety
/// The processor has the features of `S`, the weights exist, and the block has room.
#[inline(always)]
unsafe fn fetch<S: Simd>(
    s: &Source,
    (row, rows): (usize, usize),
    (column, columns): (usize, usize),
    size: [usize; 3],
    block: *mut f32,
) {
    let (mut to, w) = (block, s.w.as_ptr());
    for d in 0..size[0] {
        for h in 0..size[1] {
            for k in 0..size[2] {
                let at = if s.transposed {
                    [size[0] - 1 - d, size[1] - 1 - h, size[2] - 1 - k]
                } else {
                    [d, h, k]
                };
                let tap: usize = (0..3).map(|i| at[i] * s.tap[i]).sum();
                // SAFETY: guaranteed by the caller.
                unsafe {
                    if s.transposed {
                        let w = w.add(tap + column * s.f + row);
                        for c in (0..S::LANES).step_by(4) {
                            let line = |i: usize| {
                                if c + i < columns {
                                    S::load_part(w.wrapping_add((c + i) * s.f), rows)
                                } else {
                                    S::splat(0.0)
                                }
                            };
                            let lines = [line(0), line(1), line(2), line(3)];
                            S::store_columns(lines, to.add(c), S::LANES);
                        }
                    } else {
                        let w = w.add(tap + row * s.f + column);
                        for r in 0..rows {
                            let line = S::load_part(w.wrapping_add(r * s.f), columns);
                            S::store(to.add(r * S::LANES), line);
                        }
                    }
                    to = to.add(S::LANES * S::LANES);
                }
            }
        }
    }
}

/// Points of gradients to gradients of weights.
///
/// Pointers: from `from` on rows of whole vectors for each point; the weights `dw`, of whose rows
/// no other thread accesses those of the range.
pub(crate) struct Taps<'a> {
    pub from: *const f32,
    pub layout: Points,
    pub rows: Range<usize>,
    /// Of the first row and column of the points in the weights.
    pub first: (usize, usize),
    pub columns: usize,
    pub dw: *mut f32,
    /// How the weights lie.
    pub source: &'a Source<'a>,
    /// Add to the old contents.
    pub load: bool,
}

impl Taps<'_> {
    /// Gradients of weights from their points.
    ///
    /// # Safety
    /// The processor has the level, and the pointer requirements of [`Taps`] hold.
    pub(crate) unsafe fn run(&self) {
        let (level, transform) = (self.source.tiles.level, self.source.transform);
        // SAFETY: guaranteed by the caller.
        with_tile!(transform, tile => unsafe { level.run(Fold(self, tile)) })
    }
}

struct Fold<'a, T>(&'a Taps<'a>, T);

impl<T: Tile> Op for Fold<'_, T> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (Fold(t, tile), s) = (&self, self.0.source);
        let size = tile.taps();
        let mut patch = T::Patch::new();
        let patch = patch.start();
        for row in t.rows.clone() {
            for column in (0..t.columns).step_by(S::LANES) {
                let lanes = (t.columns - column).min(S::LANES);
                // SAFETY: guaranteed by the caller; the patch has room for the taps.
                unsafe {
                    let from = t.from.add(row * t.layout.row + column);
                    let pitch = tile.fold::<S>(from, t.layout, patch);
                    let to = t.dw.add((t.first.0 + row) * s.f + t.first.1 + column);
                    for d in 0..size[0] {
                        for h in 0..size[1] {
                            for k in 0..size[2] {
                                let from = patch.add(d * pitch[0] + h * pitch[1] + k * pitch[2]);
                                let to = to.add(d * s.tap[0] + h * s.tap[1] + k * s.tap[2]);
                                let mut a = S::load(from);
                                if t.load {
                                    a = S::add(a, S::load_part(to, lanes));
                                }
                                S::store_part(to, lanes, a);
                            }
                        }
                    }
                }
            }
        }
    }
}
