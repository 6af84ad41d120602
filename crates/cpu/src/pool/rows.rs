//! Separable reduction of blocks of neighboring windows: first over rows for all, then over columns of each.

use crate::grid::{Grid, View};
use crate::pool::{Pooling, offset};
use crate::simd::{LANES_MAX, Simd};
use std::ops::Range;

/// Elements of the joined columns of a block; a few buffers of them stay in the L1 cache.
const ELEMENTS: usize = 2048;
/// Joined columns, and room for the last vector to end behind them.
pub(crate) type Columns = [f32; ELEMENTS + LANES_MAX];
pub(crate) const CLEARED: Columns = [0.0; ELEMENTS + LANES_MAX];
/// Elements of a cache line.
const LINE: usize = 16;
/// Outputs that a block should have at least, as it shares columns with its neighbors.
const FEW: usize = 8;

/// How rows are cut to blocks.
#[derive(Clone, Copy)]
pub(crate) struct Blocks {
    /// Outputs in W.
    pub(crate) outputs: usize,
    /// A multiple of [`LANES_MAX`], or all.
    pub(crate) channels: usize,
}

impl Blocks {
    /// `None` where windows skip columns, or one is too wide for a block.
    pub(crate) fn of(p: &Pooling, y: &Grid) -> Option<Blocks> {
        Self::reaching(p, y, p.reach(2) + 1)
    }

    /// As `of`, with room for all windows that hold a column of the block.
    pub(crate) fn with_neighbors(p: &Pooling, y: &Grid) -> Option<Blocks> {
        let stride = p.window.stride[2];
        let shared = (p.reach(2) + 1)
            .saturating_sub(stride)
            .next_multiple_of(stride);
        Self::reaching(p, y, p.reach(2) + 1 + shared)
    }

    fn reaching(p: &Pooling, y: &Grid, reach: usize) -> Option<Blocks> {
        let (kernel, stride) = (p.window.kernel[2], p.window.stride[2]);
        let most = ELEMENTS / LANES_MAX;
        if kernel < stride || reach > most || y.elements() == 0 {
            return None;
        }
        let columns = ((y.extent[2].min(FEW) - 1) * stride + reach).min(most);
        let channels = match ELEMENTS / columns {
            room if room < y.channels => room / LANES_MAX * LANES_MAX,
            _ => y.channels,
        };
        Some(Blocks {
            outputs: (ELEMENTS / channels - reach) / stride + 1,
            channels,
        })
    }

    /// Parts of the columns of the input, each up to the next block's first window.
    pub(crate) fn owned(
        self,
        p: &Pooling,
        y: &Grid,
        extent: usize,
    ) -> impl Iterator<Item = Range<usize>> {
        let shift = p.shift[2];
        let stride = p.window.stride[2];
        let start = move |o: usize, outs: usize| match o {
            0 => 0,
            o if o >= outs => extent,
            o => ((o * stride) as i64 + shift).clamp(0, extent as i64) as usize,
        };
        let (outs, step) = (y.extent[2], self.outputs);
        (0..outs)
            .step_by(step)
            .map(move |o| start(o, outs)..start(o + step, outs))
    }
}

/// How elements of a window become one. Functions of a trait and no closures, which would not always
/// be compiled for the level that asks.
pub(crate) trait Join: Copy {
    /// What is known after some elements.
    type State<S: Simd>: Copy;
    fn start<S: Simd>(x: S::V, mark: S::V) -> Self::State<S>;
    /// Marks go down from row to row: a row has that of its tap 0, of which 1 is the last tap.
    fn join<S: Simd>(state: Self::State<S>, x: S::V, mark: S::V) -> Self::State<S>;
    /// Stores a vector.
    ///
    /// # Safety
    /// There is room for a vector from `at` on, which no other thread accesses.
    unsafe fn put<S: Simd>(self, state: Self::State<S>, at: usize);
}

/// What is joined: parts of the input rows of a window.
#[derive(Clone, Copy)]
pub(crate) struct Source {
    from: *const f32,
    /// Taps in D and H inside of the input.
    pub(crate) count: [usize; 2],
    step: [usize; 2],
    /// In W.
    taps: usize,
    /// First row in H that the windows below do not share with these.
    new: usize,
    /// Distance of the windows below.
    below: usize,
    columns: usize,
    pitch: usize,
    channels: usize,
}

impl Source {
    /// # Safety
    /// Taps and columns lie inside the box, and so do the channels from `c` on.
    #[inline(always)]
    pub(crate) unsafe fn new(
        x: View,
        p: &Pooling,
        (n, [od, oh]): (usize, [usize; 2]),
        taps: &[Range<usize>; 2],
        columns: &Range<usize>,
        c: &Range<usize>,
    ) -> Source {
        let (g, w) = (x.grid, &p.window);
        // Without taps there is no such input, and the offset is never used.
        let first = |i: usize, o| p.input(i, o, taps[i].start).max(0) as usize;
        let at = [first(0, od), first(1, oh), columns.start];
        Source {
            // SAFETY: guaranteed by the caller, where there are taps.
            from: x.data.as_ptr().wrapping_add(offset(g, n, at) + c.start),
            count: [taps[0].len(), taps[1].len()],
            step: [w.dilation[0] * g.pitch[1], w.dilation[1] * g.pitch[2]],
            taps: w.kernel[2],
            new: w.kernel[1].saturating_sub(w.stride[1]),
            below: w.stride[1] * g.pitch[2],
            columns: columns.len(),
            pitch: g.pitch[3],
            channels: c.len(),
        }
    }

    /// Whether there is nothing to join.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.contains(&0) || self.columns == 0
    }

    /// Rows that are joined.
    pub(crate) fn rows(&self) -> usize {
        self.count[0] * self.count[1]
    }

    /// `first`, or the number of the last tap that is NaN: of the channels from `c` on, over
    /// some columns at a distance.
    ///
    /// # Safety
    /// The processor has the features of `S`; these are columns and channels.
    #[inline(always)]
    pub(crate) unsafe fn last_nan<S: Simd>(
        &self,
        (column, taps, step): (usize, usize, usize),
        (c, lanes): (usize, usize),
        first: S::V,
    ) -> S::V {
        let (mut mark, mut last) = (self.rows() * self.taps, first);
        // SAFETY: guaranteed by the caller.
        unsafe {
            // Nothing is larger, so that only what is NaN is taken.
            let most = S::splat(f32::INFINITY);
            for d in 0..self.count[0] {
                for h in 0..self.count[1] {
                    let row = self.from.add(d * self.step[0] + h * self.step[1] + c);
                    for i in 0..taps {
                        let x = S::load_part(row.add((column + i * step) * self.pitch), lanes);
                        let number = S::splat((mark - i) as f32);
                        last = S::take_max(x, most, number, last).1;
                    }
                    mark -= self.taps;
                }
            }
        }
        last
    }

    /// Number and length of contiguous stretches.
    #[inline(always)]
    fn stretches(&self) -> (usize, usize) {
        if self.pitch == self.channels {
            (1, self.columns * self.channels)
        } else {
            (self.columns, self.channels)
        }
    }

    /// Joins the rows to columns; behind the last of them a vector may be overwritten.
    ///
    /// # Safety
    /// The processor has the features of `S`, there is something to join, and
    /// `join` has room.
    #[inline(always)]
    pub(crate) unsafe fn join<S: Simd, J: Join>(&self, join: J) {
        let (count, length) = self.stretches();
        for w in 0..count {
            let start = w * self.channels;
            // SAFETY: stretches of the box.
            unsafe {
                let from = self.from.add(w * self.pitch);
                let whole = |from| S::load(from);
                let mut at = 0;
                while at + 4 * S::LANES <= length {
                    self.vectors::<S, J, 4>(join, from.add(at), start + at, whole);
                    at += 4 * S::LANES;
                }
                while at + S::LANES <= length {
                    self.vectors::<S, J, 1>(join, from.add(at), start + at, whole);
                    at += S::LANES;
                }
                if at < length {
                    let part = |from| S::load_part(from, length - at);
                    self.vectors::<S, J, 1>(join, from.add(at), start + at, part);
                }
            }
        }
    }

    /// Joins N vectors of the rows.
    ///
    /// # Safety
    /// As for `join`; `load` can load each of them in each row.
    #[inline(always)]
    unsafe fn vectors<S: Simd, J: Join, const N: usize>(
        &self,
        join: J,
        from: *const f32,
        at: usize,
        load: impl Fn(*const f32) -> S::V,
    ) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let mut mark = S::splat((self.count[0] * self.count[1] * self.taps) as f32);
            let step = S::splat(self.taps as f32);
            let mut all = [J::start::<S>(load(from), mark); N];
            for (i, one) in all.iter_mut().enumerate().skip(1) {
                *one = J::start::<S>(load(from.add(i * S::LANES)), mark);
            }
            for d in 0..self.count[0] {
                for h in self.new..self.count[1] {
                    let next = d * self.step[0] + h * self.step[1] + self.below;
                    let next = from.wrapping_add(next);
                    for line in 0..(N * S::LANES).div_ceil(LINE) {
                        S::expect(next.wrapping_add(line * LINE));
                    }
                }
                for h in usize::from(d == 0)..self.count[1] {
                    let from = from.add(d * self.step[0] + h * self.step[1]);
                    mark = S::sub(mark, step);
                    for (i, one) in all.iter_mut().enumerate() {
                        *one = J::join::<S>(*one, load(from.add(i * S::LANES)), mark);
                    }
                }
            }
            for (i, one) in all.into_iter().enumerate() {
                join.put::<S>(one, at + i * S::LANES);
            }
        }
    }
}
