//! Weights of convolutions on bf16, rounded and packed.
//!
//! With pairs of bf16, a row has a word for each output channel: the weights of two neighboring input
//! channels, of which the second is zero beyond the last one. Otherwise rows are f32, rounded to bf16.

use crate::conv::convolution::{Convolution, Weights};
use crate::conv::tiles::Tiles;
use crate::conv::transpose::Transpose;
use crate::grid::{Canceled, Shared, product};
use crate::simd::{LANES_MAX, Level, Op, PairOp, Pairs, Simd};
use crate::team::{ELEMENT, Team};
use half::bf16;

/// Channels of a row of packed weights.
pub(super) fn row_channels(level: Level) -> usize {
    if level.has_pairs() { 2 } else { 1 }
}

/// Plain weights as the jobs of a direction see them.
#[derive(Clone, Copy)]
pub(super) struct Plain<'a> {
    pub w: &'a [f32],
    /// Distance in elements of rows.
    pub pitch: usize,
    /// Taps of the kernel, flipped, and channels transposed: the backward-data direction.
    pub flipped_taps: Option<usize>,
    /// Channels of a job that are summed over, and that are written.
    pub c: usize,
    pub f: usize,
}

impl<'a> Plain<'a> {
    /// Of the forward direction.
    pub(super) fn forward(w: &'a [f32], conv: &Convolution, c: usize, f: usize) -> Plain<'a> {
        Plain {
            w,
            pitch: f,
            flipped_taps: None,
            c: c / conv.groups,
            f: f / conv.groups,
        }
    }

    /// Of the data gradient, which sums over F.
    pub(super) fn backward(w: &'a [f32], conv: &Convolution, c: usize, f: usize) -> Plain<'a> {
        Plain {
            w,
            pitch: f,
            flipped_taps: Some(conv.window.volume()),
            c: f / conv.groups,
            f: c / conv.groups,
        }
    }

    pub(super) fn at_channel(self, channel: usize) -> Plain<'a> {
        Plain {
            w: &self.w[channel..],
            ..self
        }
    }

    /// Rows of `width` elements for the channels `within..within + n` of a tap, into `out`, for a tile of
    /// channels from `f0` on. Returns how many rows.
    ///
    /// # Safety
    /// The processor has the level, and there is room for the rows, which no other thread accesses.
    pub(super) unsafe fn pack(
        &self,
        level: Level,
        (tap, within, n): (usize, usize, usize),
        (f0, width): (usize, usize),
        out: *mut f32,
    ) -> usize {
        let take = (self.f - f0).min(width);
        let rows = n.div_ceil(row_channels(level));
        // SAFETY: guaranteed by the caller.
        let out = unsafe { std::slice::from_raw_parts_mut(out, rows * width) };
        let from = match self.flipped_taps {
            None => &self.w[(tap * self.c + within) * self.pitch + f0..],
            Some(taps) => &self.w[((taps - 1 - tap) * self.f + f0) * self.pitch + within..],
        };
        let (pitch, is_transposed) = (self.pitch, self.flipped_taps.is_some());
        let rows_from = Rows {
            from,
            pitch,
            n,
            take,
            out,
            width,
        };
        // SAFETY: guaranteed by the caller.
        unsafe {
            match (level.has_pairs(), is_transposed) {
                (true, false) => level.run_pairs(PairRows(rows_from)),
                (true, true) => level.run_pairs(PairColumns(rows_from)),
                (false, false) => level.run(RoundRows(rows_from)),
                (false, true) => {
                    let Rows { out, .. } = rows_from;
                    level.run(Transpose {
                        from,
                        pitch,
                        rows: take,
                        columns: n,
                        out,
                        width,
                    });
                    level.run(Round(out));
                }
            }
        }
        rows
    }

    /// All weights, by groups, tiles and taps.
    pub(super) fn pack_all(
        &self,
        team: &mut Team,
        progress: &mut dyn FnMut() -> bool,
        (groups, volume): (usize, usize),
        out: &mut [f32],
    ) -> Result<(), Canceled> {
        let level = team.level();
        let tiles = Tiles { level, f: self.f };
        let tap_rows = self.c.div_ceil(row_channels(level));
        let out = Shared(out[..product([groups, volume, tap_rows, tiles.padded()])].as_mut_ptr());
        let width_of_group = match self.flipped_taps {
            None => self.f,
            Some(_) => self.c,
        };
        let flops = ELEMENT * (self.c * tiles.padded() / tiles.count().max(1)) as u64;
        team.units(
            progress,
            groups * tiles.count() * volume,
            flops,
            &|unit, _| {
                let (tap, rest) = (unit % volume, unit / volume);
                let (tile, g) = (rest % tiles.count(), rest / tiles.count());
                let (f0, v) = tiles.tile(tile);
                let width = v * level.lanes();
                let start = volume * tap_rows * (g * tiles.padded() + f0) + tap * tap_rows * width;
                let group = self.at_channel(g * width_of_group);
                // SAFETY: the team has the level, and the units are disjoint parts of the packed elements.
                unsafe {
                    let out = out.get().add(start);
                    group.pack(level, (tap, 0, self.c), (f0, width), out);
                }
            },
        )
    }
}

/// Elements of the packed weights of jobs from C to F channels each.
pub(super) fn packed_elements(level: Level, conv: &Convolution, c: usize, f: usize) -> usize {
    let [kd, kh, kw] = conv.window.kernel;
    let rows = c.div_ceil(row_channels(level));
    product([conv.groups, kd, kh, kw, rows, Tiles { level, f }.padded()])
}

/// The plain or packed elements of weights.
pub(super) fn elements<'a>(w: &Weights<'a>) -> &'a [f32] {
    match w {
        Weights::Plain(w) | Weights::Packed(w) => w,
    }
}

/// Each rounded to bf16.
pub(super) fn round(from: &[f32], to: &mut [f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = bf16::from_f32(*from).to_f32();
    }
}

/// n rows of `take` elements, or where columns become rows `take` rows of n, to packed rows.
struct Rows<'a> {
    from: &'a [f32],
    pitch: usize,
    n: usize,
    take: usize,
    out: &'a mut [f32],
    width: usize,
}

impl Rows<'_> {
    /// Panics unless there are `rows` rows of `elements`.
    fn assert_rows(&self, rows: usize, elements: usize) {
        let is_there = rows == 0 || self.from.len() >= (rows - 1) * self.pitch + elements;
        assert!(is_there, "{rows} rows of {elements} weights");
    }
}

/// Rounds each row.
struct RoundRows<'a>(Rows<'a>);

impl Op for RoundRows<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let r = self.0;
        r.assert_rows(r.n, r.take);
        for (row, out) in r.out.chunks_exact_mut(r.width).enumerate() {
            for at in (0..r.width).step_by(S::LANES) {
                let lanes = r.take.saturating_sub(at).min(S::LANES);
                // SAFETY: elements of a row that exist, by the assertion; widths are whole vectors.
                unsafe {
                    let from = r.from.as_ptr().add(row * r.pitch).wrapping_add(at);
                    let a = S::round_to_bf16(S::load_part(from, lanes));
                    S::store(out.as_mut_ptr().add(at), a);
                }
            }
        }
    }
}

/// Rounds whole vectors in place.
struct Round<'a>(&'a mut [f32]);

impl Op for Round<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for vector in self.0.chunks_exact_mut(S::LANES) {
            let p = vector.as_mut_ptr();
            // SAFETY: the vector is as long; the features are those of the caller.
            unsafe { S::store(p, S::round_to_bf16(S::load(p))) };
        }
    }
}

/// Two rows become one of pairs.
struct PairRows<'a>(Rows<'a>);

impl PairOp for PairRows<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Pairs>(self) {
        let r = self.0;
        r.assert_rows(r.n, r.take);
        for (pair, out) in r.out.chunks_exact_mut(r.width).enumerate() {
            let has_second = 2 * pair + 1 < r.n;
            for at in (0..r.width).step_by(S::LANES) {
                let lanes = r.take.saturating_sub(at).min(S::LANES);
                // SAFETY: elements of rows that exist, by the assertion; widths are whole vectors.
                unsafe {
                    let first = r.from.as_ptr().add(2 * pair * r.pitch).wrapping_add(at);
                    let second = if has_second {
                        S::load_part(first.wrapping_add(r.pitch), lanes)
                    } else {
                        S::splat(0.0)
                    };
                    let pairs = S::zip(S::load_part(first, lanes), second);
                    S::store(out.as_mut_ptr().add(at), pairs);
                }
            }
        }
    }
}

/// Two columns become a row of pairs.
struct PairColumns<'a>(Rows<'a>);

impl PairOp for PairColumns<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Pairs>(self) {
        let r = self.0;
        r.assert_rows(r.take, r.n);
        let rows = r.n.div_ceil(2);
        assert!(
            r.out.len() >= rows * r.width && r.width.is_multiple_of(4),
            "room for rows"
        );
        // SAFETY: elements that exist and rows that have room, by the assertions.
        unsafe {
            for pair in (0..rows).step_by(S::LANES) {
                for i in (0..r.width).step_by(4) {
                    let four = [
                        words::<S>(&r, i, pair),
                        words::<S>(&r, i + 1, pair),
                        words::<S>(&r, i + 2, pair),
                        words::<S>(&r, i + 3, pair),
                    ];
                    let to = r.out.as_mut_ptr().add(pair * r.width + i);
                    if pair + S::LANES <= rows {
                        S::store_columns(four, to, r.width);
                        continue;
                    }
                    let mut part = [0f32; 4 * LANES_MAX];
                    S::store_columns(four, part.as_mut_ptr(), 4);
                    for (k, columns) in part.chunks_exact(4).enumerate().take(rows - pair) {
                        std::ptr::copy_nonoverlapping(columns.as_ptr(), to.add(k * r.width), 4);
                    }
                }
            }
        }
    }
}

/// A vector of words of a row that becomes a column, zero beyond it.
///
/// # Safety
/// The level has pairs, and `take` rows of n elements are there.
#[inline(always)]
unsafe fn words<S: Pairs>(r: &Rows, row: usize, pair: usize) -> S::V {
    // SAFETY: elements of a row that exists; the rest is guaranteed by the caller.
    unsafe {
        if row >= r.take {
            return S::splat(0.0);
        }
        let from = r.from.as_ptr().add(row * r.pitch + 2 * pair);
        let left = r.n - 2 * pair;
        if left >= 2 * S::LANES {
            return S::neighbors(S::load(from), S::load(from.add(S::LANES)));
        }
        let low = S::load_part(from, left.min(S::LANES));
        let after = left.saturating_sub(S::LANES);
        S::neighbors(low, S::load_part(from.wrapping_add(S::LANES), after))
    }
}
