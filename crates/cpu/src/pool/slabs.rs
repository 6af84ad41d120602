//! Gradients of maximum and norm pooling: each thread owns slabs of dx.

use crate::grid::{Call, Canceled, View};
use crate::pool::rows::{Blocks, CLEARED, Columns, Join, Source};
use crate::pool::{Backward, WindowTaps, each, lanes, load, maximum, offset, squares, store};
use crate::simd::{Level, Op, Simd};
use crate::team::{ELEMENT, Poll};
use partita_program::PoolKind;
use std::ops::Range;

/// Elements of the planes of dx that one plane of windows adds to; they stay in the L2 cache.
const PLANES: usize = 128 * 1024;
/// Rows of dx that columns are given to together.
const ROWS: usize = 16;
/// Slabs for each thread, as far as their number matters.
const PARTS: usize = 4;

/// Threads own slabs of dx, so that overlapping windows need no care. An element gets its sum in the
/// order of the windows, whatever the slab.
///
/// # Safety
/// The pointer requirements of [`Backward`] hold; x is like dx.
pub(crate) unsafe fn slabs(back: &Backward, call: &mut Call, x: View) -> Result<(), Canceled> {
    let (level, xg, p) = (call.team.level(), back.xg, back.pooling);
    let (stride, row) = (p.window.stride, xg.extent[2] * xg.channels);
    let planes = (p.reach(0) + 1).min(xg.extent[0]);
    let height = (PLANES / (planes * row)).max(4 * stride[1]);
    let height = height.next_multiple_of(stride[1]).min(xg.extent[1]);
    let strips = xg.samples * xg.extent[1].div_ceil(height);
    let parts = match call.team.threads() {
        1 => 1,
        threads => (PARTS * threads).div_ceil(strips),
    };
    let depth = xg.extent[0].div_ceil(parts).max(4 * stride[0]);
    let depth = depth.next_multiple_of(stride[0]).min(xg.extent[0]);
    let counts = [xg.extent[0].div_ceil(depth), xg.extent[1].div_ceil(height)];
    let units = xg.samples * counts[0] * counts[1];
    let blocks = match p.kind {
        PoolKind::Max => Blocks::with_neighbors(p, back.dy.grid),
        PoolKind::L2 | PoolKind::AverageAll | PoolKind::AverageInside => None,
    };
    let cost = 4 * ELEMENT * (depth * height * row) as u64;
    call.team.units(call.progress, units, cost, &|unit, poll| {
        let (h, rest) = (unit % counts[1], unit / counts[1]);
        let (d, n) = (rest % counts[0], rest / counts[0]);
        let own = [
            d * depth..((d + 1) * depth).min(xg.extent[0]),
            h * height..((h + 1) * height).min(xg.extent[1]),
        ];
        let slab = Slab { back, x, n, own };
        // SAFETY: guaranteed by the caller; each slab is one unit's, and the team has the level.
        unsafe { slab.planes(level, blocks, poll) };
    })
}

/// Pointers: its part of dx, which no other thread accesses.
#[derive(Clone)]
struct Slab<'a, 'b> {
    back: &'a Backward<'b>,
    x: View<'a>,
    n: usize,
    /// The part of dx that is written, in D and H.
    own: [Range<usize>; 2],
}

impl Slab<'_, '_> {
    /// Goes through planes of windows; planes of dx are cleared just before the first of them, and
    /// masked just after the last.
    ///
    /// # Safety
    /// The processor has the level, and the pointer requirements of [`Slab`] hold.
    unsafe fn planes(&self, level: Level, blocks: Option<Blocks>, poll: &mut Poll) {
        let (yg, p) = (self.back.dy.grid, self.back.pooling);
        let own = &self.own[0];
        let (mut begun, mut done) = (own.start, own.start);
        let cost = 4 * ELEMENT * (self.own[1].len() * p.window.stride[0]) as u64;
        let cost = cost * (yg.extent[2] * p.window.stride[2] * yg.channels) as u64;
        let last = p.outputs(0, yg.extent[0], own).end;
        let written = blocks.is_some() && !self.back.accumulate && self.is_covered();
        for od in p.outputs(0, yg.extent[0], own) {
            let reached = self.plane(p.input(0, od, p.window.kernel[0] - 1) + 1);
            if !written {
                // SAFETY: guaranteed by the caller.
                unsafe { self.clear(begun..reached) };
            }
            match blocks {
                // SAFETY: guaranteed by the caller.
                Some(blocks) => unsafe {
                    level.run(Rows {
                        slab: self,
                        blocks,
                        od,
                        new: if written { begun } else { usize::MAX },
                    })
                },
                // SAFETY: guaranteed by the caller.
                None => unsafe { level.run(Outputs { slab: self, od }) },
            }
            begun = begun.max(reached);
            if od + 1 < last {
                let left = self.plane(p.input(0, od + 1, 0));
                let planes = done..left;
                // SAFETY: guaranteed by the caller.
                unsafe { level.run(Masks { slab: self, planes }) };
                done = done.max(left);
            }
            if !poll.tick(cost) {
                return;
            }
        }
        let planes = done..own.end;
        // SAFETY: guaranteed by the caller.
        unsafe {
            self.clear(begun..own.end);
            level.run(Masks { slab: self, planes });
        }
    }

    /// Whether every element of dx lies in a window, the next of which begins in it or just behind.
    fn is_covered(&self) -> bool {
        let (p, outs, extent) = (
            self.back.pooling,
            self.back.dy.grid.extent,
            self.back.xg.extent,
        );
        let w = &p.window;
        (0..3).all(|i| {
            let last = w.kernel[i] - 1;
            outs[i] > 0
                && w.kernel[i] >= w.stride[i]
                && (w.dilation[i] == 1 || i == 2)
                && p.shift[i] <= 0
                && p.input(i, 0, last) >= 0
                && p.input(i, outs[i] - 1, 0) < extent[i] as i64
                && p.input(i, outs[i] - 1, last) + 1 >= extent[i] as i64
        })
    }

    fn plane(&self, at: i64) -> usize {
        at.clamp(self.own[0].start as i64, self.own[0].end as i64) as usize
    }

    /// # Safety
    /// The pointer requirements of [`Slab`] hold, and the planes are of the slab.
    unsafe fn clear(&self, planes: Range<usize>) {
        let g = self.back.xg;
        let (count, len) = if g.pitch[3] == g.channels {
            (1, g.extent[2] * g.channels)
        } else {
            (g.extent[2], g.channels)
        };
        if self.back.accumulate {
            return;
        }
        for d in planes {
            for h in self.own[1].clone() {
                for w in 0..count {
                    let at = offset(g, self.n, [d, h, w]);
                    // SAFETY: a stretch of the box, owned by this slab.
                    unsafe { self.back.dx.get().add(at).write_bytes(0, len) };
                }
            }
        }
    }

    /// Windows of a plane that reach the slab.
    fn heights(&self) -> Range<usize> {
        let (p, yg) = (self.back.pooling, self.back.dy.grid);
        p.outputs(1, yg.extent[1], &self.own[1])
    }

    /// Taps of a window inside of a part of the input.
    fn taps(&self, o: [usize; 2], within: &[Range<usize>; 2]) -> [Range<usize>; 2] {
        [0, 1].map(|i| self.back.pooling.taps(i, o[i], &within[i]))
    }
}

/// Pointers as those of [`Slab`], of which the planes are.
struct Masks<'a> {
    slab: &'a Slab<'a, 'a>,
    planes: Range<usize>,
}

impl Op for Masks<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for d in self.planes {
            for h in self.slab.own[1].clone() {
                // SAFETY: a row of the slab.
                unsafe { self.slab.back.mask_row::<S>(self.slab.n, [d, h]) };
            }
        }
    }
}

/// The largest of each column, and the mark of the first row that has it. Pointers: the columns of a
/// block and a vector more, which no other thread accesses.
#[derive(Clone, Copy)]
struct Largest {
    values: *mut f32,
    marks: *mut f32,
}

impl Join for Largest {
    type State<S: Simd> = (S::V, S::V);
    #[inline(always)]
    fn start<S: Simd>(x: S::V, mark: S::V) -> (S::V, S::V) {
        (x, mark)
    }
    #[inline(always)]
    fn join<S: Simd>(best: (S::V, S::V), x: S::V, mark: S::V) -> (S::V, S::V) {
        S::take_max(x, best.0, mark, best.1)
    }
    #[inline(always)]
    unsafe fn put<S: Simd>(self, (value, mark): (S::V, S::V), at: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            S::store(self.values.add(at), value);
            S::store(self.marks.add(at), mark);
        }
    }
}

/// A plane of windows by blocks. Pointers as those of [`Slab`].
struct Rows<'a> {
    slab: &'a Slab<'a, 'a>,
    blocks: Blocks,
    od: usize,
    /// First plane of dx that is not added to but written.
    new: usize,
}

/// Columns of a block: of the box of x, of which a part is written, and of the channels.
///
/// Pointers as those of [`Largest`].
struct Block<'a> {
    source: Source,
    largest: Largest,
    /// What each column is given.
    gradients: *mut f32,
    columns: &'a Range<usize>,
    c: &'a Range<usize>,
}

impl Op for Rows<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let [mut values, mut marks, mut gradients]: [Columns; 3] = [CLEARED; 3];
        let (slab, p) = (self.slab, self.slab.back.pooling);
        let (xg, yg) = (slab.back.xg, slab.back.dy.grid);
        let largest = Largest {
            values: values.as_mut_ptr(),
            marks: marks.as_mut_ptr(),
        };
        let mut begun = slab.own[1].start;
        for oh in slab.heights() {
            let o = [self.od, oh];
            let new = [self.new, begun];
            begun = begun.max(p.input(1, oh, p.window.kernel[1] - 1).max(0) as usize + 1);
            let taps = slab.taps(o, &[0..xg.extent[0], 0..xg.extent[1]]);
            for own in self.blocks.owned(p, yg, xg.extent[2]) {
                let outs = p.outputs(2, yg.extent[2], &own);
                let columns = p.inputs(2, &outs, xg.extent[2]);
                let own = own.start.max(columns.start)..own.end.min(columns.end);
                for c in (0..xg.channels).step_by(self.blocks.channels) {
                    let c = &(c..(c + self.blocks.channels).min(xg.channels));
                    // SAFETY: taps inside the input; a block has room in the columns.
                    unsafe {
                        let block = Block {
                            source: Source::new(slab.x, p, (slab.n, o), &taps, &columns, c),
                            largest,
                            gradients: gradients.as_mut_ptr(),
                            columns: &columns,
                            c,
                        };
                        if block.source.is_empty() || own.is_empty() {
                            continue;
                        }
                        block.source.join::<S, _>(largest);
                        gradients[..columns.len() * c.len()].fill(0.0);
                        slab.winners::<S>(o, outs.clone(), &block);
                        slab.spread::<S>((o, new), &taps, &own, &block);
                    }
                }
            }
        }
    }
}

impl Slab<'_, '_> {
    /// Gives the gradients of outputs to the columns that have their maxima.
    ///
    /// # Safety
    /// The processor has the features of `S`, and the pointer requirements of [`Block`] hold; its columns
    /// are joined, and those of all taps of the outputs.
    #[inline(always)]
    unsafe fn winners<S: Simd>(&self, [od, oh]: [usize; 2], outs: Range<usize>, block: &Block) {
        let (p, dy) = (self.back.pooling, self.back.dy);
        let (extent, kernel, len) = (self.back.xg.extent[2], p.window.kernel[2], block.c.len());
        let inner = p.interior(2, dy.grid.extent[2], extent);
        let step = p.window.dilation[2];
        for ow in outs {
            let taps = if inner.contains(&ow) {
                0..kernel
            } else {
                p.taps(2, ow, &(0..extent))
            };
            if taps.is_empty() {
                continue;
            }
            let column = p.input(2, ow, taps.start) as usize - block.columns.start;
            let from = dy.data[offset(dy.grid, self.n, [od, oh, ow]) + block.c.start..].as_ptr();
            for c in (0..len).step_by(S::LANES) {
                let lanes = (len - c).min(S::LANES);
                let at = (column * len + c, step * len);
                // SAFETY: columns of the block; lanes behind the channels get nothing.
                unsafe {
                    let dy = load::<S>(from.add(c), lanes);
                    let again = |first| {
                        let columns = (column, taps.len(), step);
                        block.source.last_nan::<S>(columns, (c, lanes), first)
                    };
                    match taps.len() {
                        2 => block.window::<S>(at, 2, dy, again),
                        3 => block.window::<S>(at, 3, dy, again),
                        taps => block.window::<S>(at, taps, dy, again),
                    }
                }
            }
        }
    }

    /// Gives the gradients of columns to the rows that have their maxima.
    ///
    /// # Safety
    /// As for `winners`; `own` are columns of the block, and the pointer requirements of [`Slab`] hold.
    #[inline(always)]
    unsafe fn spread<S: Simd>(
        &self,
        (o, new): ([usize; 2], [usize; 2]),
        taps: &[Range<usize>; 2],
        own: &Range<usize>,
        block: &Block,
    ) {
        let (p, g, len) = (self.back.pooling, self.back.xg, block.c.len());
        let mine = self.taps(o, &self.own);
        let nothing = Row {
            to: self.back.dx.get(),
            mark: 0.0,
            new: false,
        };
        let (mut rows, mut count) = ([nothing; ROWS], 0);
        let left = mine[0].len() * mine[1].len();
        for (i, kd) in mine[0].clone().enumerate() {
            for (j, kh) in mine[1].clone().enumerate() {
                let row = (kd - taps[0].start) * taps[1].len() + kh - taps[1].start;
                let mark = (block.source.rows() - row) * p.window.kernel[2];
                let [d, h] = [p.input(0, o[0], kd), p.input(1, o[1], kh)].map(|at| at as usize);
                let to = offset(g, self.n, [d, h, own.start]) + block.c.start;
                rows[count] = Row {
                    // SAFETY: a row of the slab.
                    to: unsafe { self.back.dx.get().add(to) },
                    mark: mark as f32,
                    new: d >= new[0] && h >= new[1],
                };
                count += 1;
                if count == ROWS || i * mine[1].len() + j + 1 == left {
                    let start = (own.start - block.columns.start) * len;
                    // SAFETY: rows of the slab, and columns of the block.
                    unsafe { block.spread::<S>(&rows[..count], start, own.len(), g.pitch[3]) };
                    count = 0;
                }
            }
        }
    }
}

/// Part of a row of dx. Pointers: the columns of a block, which no other thread accesses.
#[derive(Clone, Copy)]
struct Row {
    to: *mut f32,
    /// Of the columns whose gradient is given to it.
    mark: f32,
    new: bool,
}

impl Block<'_> {
    /// Gives the gradient of an output to the column that has its maximum; `again` finds the number
    /// of the tap where one is NaN.
    ///
    /// # Safety
    /// The processor has the features of `S`, the pointer requirements of [`Block`] hold, and the taps are
    /// among its columns.
    #[inline(always)]
    unsafe fn window<S: Simd>(
        &self,
        (at, step): (usize, usize),
        taps: usize,
        dy: S::V,
        again: impl Fn(S::V) -> S::V,
    ) {
        let Largest { values, marks } = self.largest;
        // SAFETY: guaranteed by the caller.
        unsafe {
            let value = |i: usize| S::load(values.add(at + i * step));
            let number = |i: usize| S::sub(S::load(marks.add(at + i * step)), S::splat(i as f32));
            let mut most = value(0);
            for i in 1..taps {
                most = S::max(value(i), most);
            }
            let mut first = S::where_eq(value(0), most, number(0));
            for i in 1..taps {
                first = S::max(S::where_eq(value(i), most, number(i)), first);
            }
            if S::any_nan(most) {
                first = again(first);
            }
            for i in 0..taps {
                let to = self.gradients.add(at + i * step);
                let mine = S::where_eq(first, number(i), dy);
                S::store(to, S::add(S::load(to), mine));
            }
        }
    }

    /// Gives columns from an element on to rows.
    ///
    /// # Safety
    /// The processor has the features of `S`, the pointer requirements of [`Block`] and [`Row`] hold, and
    /// both have `columns` columns.
    #[inline(always)]
    unsafe fn spread<S: Simd>(&self, rows: &[Row], start: usize, columns: usize, pitch: usize) {
        let len = self.c.len();
        let (count, length) = if pitch == len {
            (1, columns * len)
        } else {
            (columns, len)
        };
        for w in 0..count {
            let from = start + w * len;
            let to = w * pitch;
            // SAFETY: guaranteed by the caller.
            unsafe {
                let mut i = 0;
                while i + 4 * S::LANES <= length {
                    self.give::<S, 4>(rows, from + i, to + i, S::LANES);
                    i += 4 * S::LANES;
                }
                while i < length {
                    self.give::<S, 1>(rows, from + i, to + i, (length - i).min(S::LANES));
                    i += S::LANES;
                }
            }
        }
    }

    /// Gives N vectors to rows.
    ///
    /// # Safety
    /// As for `spread`; the block has whole vectors, and the rows `lanes` lanes of each.
    #[inline(always)]
    unsafe fn give<S: Simd, const N: usize>(
        &self,
        rows: &[Row],
        from: usize,
        to: usize,
        lanes: usize,
    ) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let (mut marks, mut gradients) = ([S::splat(0.0); N], [S::splat(0.0); N]);
            for i in 0..N {
                marks[i] = S::load(self.largest.marks.add(from + i * S::LANES));
                gradients[i] = S::load(self.gradients.add(from + i * S::LANES));
            }
            for row in rows {
                let (to, mark) = (row.to.add(to), S::splat(row.mark));
                for i in 0..N {
                    let to = to.add(i * S::LANES);
                    let mine = S::where_eq(marks[i], mark, gradients[i]);
                    let sum = if row.new {
                        mine
                    } else {
                        S::add(load::<S>(to, lanes), mine)
                    };
                    store::<S>(to, lanes, sum);
                }
            }
        }
    }
}

/// A plane of windows by outputs, one after the other. Pointers as those of [`Slab`].
struct Outputs<'a> {
    slab: &'a Slab<'a, 'a>,
    od: usize,
}

impl Op for Outputs<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (slab, p) = (self.slab, self.slab.back.pooling);
        let (xg, yg) = (slab.back.xg, slab.back.dy.grid);
        for oh in slab.heights() {
            let o = [self.od, oh];
            let [d, h] = slab.taps(o, &[0..xg.extent[0], 0..xg.extent[1]]);
            let own = slab.taps(o, &slab.own);
            for ow in 0..yg.extent[2] {
                let w = p.taps(2, ow, &(0..xg.extent[2]));
                let all = [d.clone(), h.clone(), w.clone()];
                let own = [own[0].clone(), own[1].clone(), w];
                // SAFETY: the features are those of the caller.
                unsafe { slab.output::<S>([self.od, oh, ow], &all, &own) };
            }
        }
    }
}

impl Slab<'_, '_> {
    /// Gives the gradient of one output to its winner, or to all its taps by their part in the norm, as
    /// far in their plain layout in the slab.
    ///
    /// # Safety
    /// The processor has the features of `S`, the pointer requirements of [`Slab`] hold, and the taps lie
    /// inside of the input and, of `own`, inside of the slab.
    #[inline(always)]
    unsafe fn output<S: Simd>(
        &self,
        o: [usize; 3],
        all: &[Range<usize>; 3],
        own: &[Range<usize>; 3],
    ) {
        let (back, p, n) = (self.back, self.back.pooling, self.n);
        let all = WindowTaps::new(p, [self.x.grid], (n, o), all);
        let own = WindowTaps::new(p, [back.xg, self.x.grid], (n, o), own);
        let from = offset(back.dy.grid, n, o);
        for c in (0..back.xg.channels).step_by(S::LANES) {
            let count = (back.xg.channels - c).min(S::LANES);
            // SAFETY: taps inside the input, channels inside the boxes.
            unsafe {
                let dy = load::<S>(back.dy.data.as_ptr().add(from + c), count);
                let (x, dx) = (self.x.data.as_ptr().add(c), back.dx.get().add(c));
                if p.kind == PoolKind::L2 {
                    let part = lanes::<S>(dy, squares::<S>(&all, x, count), of_norm);
                    each!(own, |_tap, at| {
                        let to = dx.add(at[0]);
                        let sum =
                            S::fma(load::<S>(x.add(at[1]), count), part, load::<S>(to, count));
                        store::<S>(to, count, sum);
                    });
                    continue;
                }
                let winner = maximum::<S>(&all, x, count).1;
                each!(own, |tap, at| {
                    let to = dx.add(at[0]);
                    let mine = S::where_eq(winner, S::splat(tap as f32), dy);
                    store::<S>(to, count, S::add(load::<S>(to, count), mine));
                });
            }
        }
    }
}

/// The gradient of a norm over the norm, from the sum of squares.
#[inline(always)]
fn of_norm(dy: f32, squares: f32) -> f32 {
    if squares == 0.0 {
        0.0
    } else {
        dy / squares.sqrt()
    }
}
