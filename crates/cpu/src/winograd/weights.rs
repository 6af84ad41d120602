//! Weights to points, and points to gradients of weights.

use super::maps::{Map, Maps};
use super::nest::{Patch, Sizes, TILE_MAX, nest, with_sizes};
use super::tiling::{Points, points};
use crate::convolution::Convolution;
use crate::grid::{Canceled, Shared, product};
use crate::simd::{LANES_MAX, Level, Op, Simd};
use crate::team::{ELEMENT, Team};
use crate::tiles::Tiles;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Rows of a unit of packing, whole vectors of any level.
const ROWS: usize = LANES_MAX;

/// Weights (Kd, Kh, Kw, C, F), and how a direction sees them: rows of channels that are summed over
/// and columns of channels that are written.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub w: &'a [f32],
    /// Distances of neighboring taps in the order of the dims.
    tap: [usize; 3],
    /// Elements between neighboring weights of C.
    f: usize,
    /// Taps flipped, rows of F and columns of C.
    transposed: bool,
    pub rows: usize,
    m: [usize; 3],
    pub tiles: Tiles,
}

impl<'a> Source<'a> {
    pub(super) fn new(
        level: Level,
        (w, conv): (&'a [f32], &Convolution),
        (c, f): (usize, usize),
        m: [usize; 3],
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
            m,
            tiles: Tiles { level, f: columns },
        }
    }

    /// Elements between the points of as many columns.
    pub(super) fn point(&self, columns: usize) -> usize {
        // Points a power of two apart would share the sets of a cache.
        self.rows * columns + LANES_MAX
    }

    /// Elements of the points of as many columns.
    pub(super) fn elements(&self, columns: usize) -> usize {
        product([points(self.m), self.point(columns)])
    }

    /// Writes the points of all columns.
    pub(super) fn pack(
        &self,
        team: &mut Team,
        progress: &mut dyn FnMut() -> bool,
        out: &mut [f32],
    ) -> Result<(), Canceled> {
        let padded = self.tiles.padded();
        let (point, parts) = (self.point(padded), self.rows.div_ceil(ROWS));
        let out = Shared(out[..self.elements(padded)].as_mut_ptr());
        let units = self.tiles.count() * parts;
        let elements = points(self.m) * self.rows * padded / units.max(1);
        team.units(progress, units, ELEMENT * elements as u64, &|unit, _| {
            let (tile, rows) = (unit / parts, unit % parts * ROWS);
            let rows = rows..(rows + ROWS).min(self.rows);
            // SAFETY: units are disjoint parts of the elements; the team has the level.
            unsafe {
                self.tile(
                    tile,
                    rows,
                    out.get().add(self.rows * self.tiles.tile(tile).0),
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
    pub(super) unsafe fn tile(&self, tile: usize, rows: Range<usize>, out: *mut f32, point: usize) {
        let (first, v) = self.tiles.tile(tile);
        let part = Part {
            source: self,
            columns: first..(first + v * self.tiles.level.lanes()).min(self.tiles.f),
            rows,
            out,
            layout: Points {
                row: v * self.tiles.level.lanes(),
                point,
            },
        };
        // SAFETY: guaranteed by the caller.
        with_sizes!(self.m, Z => unsafe { self.tiles.level.run(Pack::<Z>(&part, PhantomData)) })
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

struct Pack<'a, Z>(&'a Part<'a>, PhantomData<Z>);

/// Room for the taps of as many rows as there are lanes.
#[repr(align(64))]
struct Block([MaybeUninit<f32>; 27 * LANES_MAX * LANES_MAX]);

impl<Z: Sizes> Op for Pack<'_, Z> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        type Of<M> = <M as Maps>::Kernel;
        let (p, s) = (self.0, self.0.source);
        let size = [Of::<Z::D>::I, Of::<Z::H>::I, Of::<Z::W>::I];
        let mut block = Block([MaybeUninit::uninit(); 27 * LANES_MAX * LANES_MAX]);
        let block: *mut f32 = block.0.as_mut_ptr().cast();
        let steps = p.layout.steps::<Z>();
        for row in p.rows.clone().step_by(S::LANES) {
            let rows = (p.rows.end - row).min(S::LANES);
            for (i, column) in p.columns.clone().step_by(S::LANES).enumerate() {
                let columns = (p.columns.end - column).min(S::LANES);
                // SAFETY: weights that exist, and room for their taps; the rest is guaranteed by
                // the caller.
                unsafe {
                    fetch::<S>(s, (row, rows), (column, columns), size, block);
                    let tap = S::LANES * S::LANES;
                    let pitch = [size[1] * size[2] * tap, size[2] * tap, tap];
                    for r in 0..rows {
                        let at = (row + r) * p.layout.row + i * S::LANES;
                        let (from, to) = (block.add(r * S::LANES), p.out.add(at));
                        nest::<S, Of<Z::D>, Of<Z::H>, Of<Z::W>>(from, pitch, to, steps);
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
pub(super) struct Taps<'a> {
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
    /// G^T of the points.
    ///
    /// # Safety
    /// The processor has the level, and the pointer requirements of [`Taps`] hold.
    pub(super) unsafe fn run(&self) {
        let (level, m) = (self.source.tiles.level, self.source.m);
        // SAFETY: guaranteed by the caller.
        with_sizes!(m, Z => unsafe { level.run(Fold::<Z>(self, PhantomData)) })
    }
}

struct Fold<'a, Z>(&'a Taps<'a>, PhantomData<Z>);

impl<Z: Sizes> Op for Fold<'_, Z> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        type Of<M> = <M as Maps>::Taps;
        let (t, s) = (self.0, self.0.source);
        let size = [Of::<Z::D>::O, Of::<Z::H>::O, Of::<Z::W>::O];
        let (mut patch, steps) = (Patch::new(), t.layout.steps::<Z>());
        let patch = patch.start();
        let pitch = [size[1] * size[2], size[2], 1].map(|p| p * S::LANES);
        for row in t.rows.clone() {
            for column in (0..t.columns).step_by(S::LANES) {
                let lanes = (t.columns - column).min(S::LANES);
                // SAFETY: guaranteed by the caller; the patch has room for the taps.
                unsafe {
                    let from = t.from.add(row * t.layout.row + column);
                    nest::<S, Of<Z::D>, Of<Z::H>, Of<Z::W>>(from, steps, patch, pitch);
                    let to = t.dw.add((t.first.0 + row) * s.f + t.first.1 + column);
                    let mut from = patch;
                    for d in 0..size[0] {
                        for h in 0..size[1] {
                            for k in 0..size[2] {
                                let to = to.add(d * s.tap[0] + h * s.tap[1] + k * s.tap[2]);
                                let mut a = S::load(from);
                                if t.load {
                                    a = S::add(a, S::load_part(to, lanes));
                                }
                                S::store_part(to, lanes, a);
                                from = from.add(S::LANES);
                            }
                        }
                    }
                }
            }
        }
    }
}

const _: () = assert!(TILE_MAX >= 27, "a patch has room for all taps");
