//! Forward pooling.

use crate::grid::{Call, Canceled, Grid, Shared, View, ViewMut, Work};
use crate::pool::rows::{Blocks, CLEARED, Columns, Join, Source};
use crate::pool::{Pooling, WindowTaps, each, lanes, load, maximum, offset, split, squares, store};
use crate::simd::{Op, Simd};
use crate::team::ELEMENT;
use partita_program::PoolKind;
use std::ops::Range;

/// y[n, o, c] = maximum, average or norm over the taps inside the input; zero if there are none. With
/// `negative_slope`, times that where not positive.
///
/// Shapes: x (N, D, H, W, C), y likewise with its own extent. Counts one flop a tap and output, two
/// of a norm, and one an output with a slope. Errors: [`Canceled`]. Panics if samples or channels differ.
pub fn pool_forward(
    call: &mut Call,
    x: View,
    y: ViewMut,
    pooling: &Pooling,
    negative_slope: Option<f32>,
) -> Result<Work, Canceled> {
    let (xg, yg) = (x.grid, y.grid);
    pooling.assert_valid(xg, yg);
    let sloped = u64::from(negative_slope.is_some()) * yg.elements() as u64;
    let work = Work {
        flops: pooling.flops(yg) + sloped,
        bytes: xg.bytes() + yg.bytes(),
    };
    let forward = Forward {
        x,
        y: Shared(y.data.as_mut_ptr()),
        yg,
        pooling,
        slope: negative_slope.unwrap_or(1.0),
    };
    let level = call.team.level();
    let row = (yg.extent[2] * yg.channels) as u64;
    let blocks = Blocks::of(pooling, yg);
    let taps = match blocks {
        // A vector of taps is joined in about the time of an element from memory.
        Some(_) => pooling.window.volume().div_ceil(4),
        None => pooling.window.volume(),
    };
    let cost = ELEMENT * taps as u64 * row;
    call.team
        .ranges(call.progress, yg.rows(), cost, &|rows| match blocks {
            // SAFETY: the boxes hold their slices, and y is borrowed alone; each row is in one range,
            // and the team has the level.
            Some(blocks) => unsafe {
                level.run(Rows {
                    forward,
                    blocks,
                    rows,
                })
            },
            // SAFETY: as above.
            None => unsafe { level.run(Outputs { forward, rows }) },
        })?;
    Ok(work)
}

#[derive(Clone, Copy)]
struct Forward<'a> {
    x: View<'a>,
    y: Shared,
    yg: &'a Grid,
    pooling: &'a Pooling,
    slope: f32,
}

impl Forward<'_> {
    /// # Safety
    /// The processor has the features of `S`.
    #[inline(always)]
    unsafe fn sloped<S: Simd>(&self, r: S::V) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe { S::where_positive(r, r, S::mul(r, S::splat(self.slope))) }
    }
}

/// The reduction of a window.
trait Fold: Copy {
    /// What an element of the input counts.
    #[inline(always)]
    fn element<S: Simd>(x: S::V) -> S::V {
        x
    }
    fn fold<S: Simd>(all: S::V, x: S::V) -> S::V;
    /// What a window of this many taps inside the input becomes is multiplied by.
    #[inline(always)]
    fn weight(self, _: &Pooling, _: usize) -> f32 {
        1.0
    }
    /// An output from the elements of its window.
    ///
    /// # Safety
    /// The processor has the features of `S`.
    #[inline(always)]
    unsafe fn output<S: Simd>(all: S::V, weight: f32) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe { S::mul(all, S::splat(weight)) }
    }
}

#[derive(Clone, Copy)]
struct Larger;

impl Fold for Larger {
    #[inline(always)]
    fn fold<S: Simd>(all: S::V, x: S::V) -> S::V {
        S::max(x, all)
    }
}

#[derive(Clone, Copy)]
struct Sum;

impl Fold for Sum {
    #[inline(always)]
    fn fold<S: Simd>(all: S::V, x: S::V) -> S::V {
        S::add(all, x)
    }
    #[inline(always)]
    fn weight(self, p: &Pooling, inside: usize) -> f32 {
        p.weight(inside)
    }
}

#[derive(Clone, Copy)]
struct Norm;

impl Fold for Norm {
    #[inline(always)]
    fn element<S: Simd>(x: S::V) -> S::V {
        S::mul(x, x)
    }
    #[inline(always)]
    fn fold<S: Simd>(all: S::V, x: S::V) -> S::V {
        S::add(all, x)
    }
    #[inline(always)]
    unsafe fn output<S: Simd>(all: S::V, _: f32) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe { lanes::<S>(all, all, |squares, _| squares.sqrt()) }
    }
}

#[derive(Clone, Copy)]
struct Folded<F> {
    to: *mut f32,
    fold: F,
}

impl<F: Fold> Join for Folded<F> {
    type State<S: Simd> = S::V;
    #[inline(always)]
    fn start<S: Simd>(x: S::V, _: S::V) -> S::V {
        F::element::<S>(x)
    }
    #[inline(always)]
    fn join<S: Simd>(state: S::V, x: S::V, _: S::V) -> S::V {
        F::fold::<S>(state, F::element::<S>(x))
    }
    #[inline(always)]
    unsafe fn put<S: Simd>(self, state: S::V, at: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe { S::store(self.to.add(at), state) }
    }
}

/// Rows by blocks. Pointers: the box of y has the rows, which no other thread accesses.
struct Rows<'a> {
    forward: Forward<'a>,
    blocks: Blocks,
    rows: Range<usize>,
}

impl Op for Rows<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let mut columns: Columns = CLEARED;
        let to = columns.as_mut_ptr();
        // SAFETY: guaranteed by the caller; the columns have room for a block.
        unsafe {
            match self.forward.pooling.kind {
                PoolKind::Max => self.all::<S, _>(Folded { to, fold: Larger }),
                PoolKind::AverageAll | PoolKind::AverageInside => {
                    self.all::<S, _>(Folded { to, fold: Sum });
                }
                PoolKind::L2 => self.all::<S, _>(Folded { to, fold: Norm }),
            }
        }
    }
}

impl Rows<'_> {
    /// # Safety
    /// The processor has the features of `S`, the pointer requirements of [`Rows`] hold, and those of
    /// `folded` have room for the columns of a block.
    #[inline(always)]
    unsafe fn all<S: Simd, F: Fold>(&self, folded: Folded<F>) {
        let Forward { x, yg, pooling, .. } = self.forward;
        let (blocks, p) = (self.blocks, pooling);
        for row in self.rows.clone() {
            let at = split(row, yg);
            let taps = [0, 1].map(|i| p.taps(i, at.1[i], &(0..x.grid.extent[i])));
            for o in (0..yg.extent[2]).step_by(blocks.outputs) {
                let o = o..(o + blocks.outputs).min(yg.extent[2]);
                let columns = p.inputs(2, &o, x.grid.extent[2]);
                for c in (0..yg.channels).step_by(blocks.channels) {
                    let c = c..(c + blocks.channels).min(yg.channels);
                    // SAFETY: taps inside the input; a block has room in the columns.
                    unsafe {
                        let source = Source::new(x, p, at, &taps, &columns, &c);
                        if !source.is_empty() {
                            source.join::<S, _>(folded);
                        }
                        let inside = source.count[0] * source.count[1];
                        self.outputs::<S, F>(at, &o, (columns.start, inside), &c, folded);
                    }
                }
            }
        }
    }

    /// Outputs of a block, of columns that begin at one and have this many taps.
    ///
    /// # Safety
    /// As for `all`; the columns of these outputs have been joined where they have taps.
    #[inline(always)]
    unsafe fn outputs<S: Simd, F: Fold>(
        &self,
        (n, [od, oh]): (usize, [usize; 2]),
        o: &Range<usize>,
        (start, inside): (usize, usize),
        c: &Range<usize>,
        folded: Folded<F>,
    ) {
        let Forward { x, yg, pooling, .. } = self.forward;
        let (p, extent) = (pooling, x.grid.extent[2]);
        let inner = p.interior(2, yg.extent[2], extent);
        let whole = folded.fold.weight(p, inside * p.window.kernel[2]);
        let step = p.window.dilation[2] * c.len();
        // A vector may end behind the channels where the next output comes after it.
        let over = if yg.pitch[3] == c.len() {
            yg.extent[2] * c.len()
        } else {
            0
        };
        for ow in o.clone() {
            let (taps, weight) = if inner.contains(&ow) && inside > 0 {
                (0..p.window.kernel[2], whole)
            } else {
                let taps = p.taps(2, ow, &(0..extent));
                let weight = folded.fold.weight(p, inside * taps.len());
                (if inside > 0 { taps } else { 0..0 }, weight)
            };
            // Without taps it may lie before the block, and nothing is read.
            let first = (p.input(2, ow, taps.start) - start as i64) as usize;
            // SAFETY: columns of the block, and an output of this thread.
            unsafe {
                let from = folded
                    .to
                    .cast_const()
                    .wrapping_add(first.wrapping_mul(c.len()));
                let to = offset(yg, n, [od, oh, ow]) + c.start;
                let to = self.forward.y.get().add(to);
                for at in (0..c.len()).step_by(S::LANES) {
                    let from = from.wrapping_add(at);
                    let r = match taps.len() {
                        0 => S::splat(0.0),
                        2 => row::<S, F>(from, 2, step),
                        3 => row::<S, F>(from, 3, step),
                        count => row::<S, F>(from, count, step),
                    };
                    let r = self.forward.sloped::<S>(F::output::<S>(r, weight));
                    if at + S::LANES <= c.len() || ow * c.len() + at + S::LANES <= over {
                        S::store(to.add(at), r)
                    } else {
                        S::store_part(to.add(at), c.len() - at, r)
                    }
                }
            }
        }
    }
}

/// Joins columns of one output.
///
/// # Safety
/// The processor has the features of `S`, and a vector of each column can be read.
#[inline(always)]
unsafe fn row<S: Simd, F: Fold>(from: *const f32, count: usize, step: usize) -> S::V {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut all = S::load(from);
        for i in 1..count {
            all = F::fold::<S>(all, S::load(from.add(i * step)));
        }
        all
    }
}

/// Rows by outputs, one after the other. Pointers as those of [`Rows`].
struct Outputs<'a> {
    forward: Forward<'a>,
    rows: Range<usize>,
}

impl Op for Outputs<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Forward { x, yg, pooling, .. } = self.forward;
        let (xg, p) = (x.grid, pooling);
        for row in self.rows {
            let (n, [od, oh]) = split(row, yg);
            let inside = |i: usize, o| p.taps(i, o, &(0..xg.extent[i]));
            for ow in 0..yg.extent[2] {
                let taps = [inside(0, od), inside(1, oh), inside(2, ow)];
                let window = WindowTaps::new(p, [xg], (n, [od, oh, ow]), &taps);
                for c in (0..yg.channels).step_by(S::LANES) {
                    let count = (yg.channels - c).min(S::LANES);
                    // SAFETY: taps inside the input, channels inside the boxes.
                    unsafe {
                        let x = x.data.as_ptr().add(c);
                        let r = match p.kind {
                            PoolKind::Max => maximum::<S>(&window, x, count).0,
                            PoolKind::AverageAll | PoolKind::AverageInside => {
                                let weight = p.weight(window.volume());
                                Sum::output::<S>(total::<S>(&window, x, count), weight)
                            }
                            PoolKind::L2 => Norm::output::<S>(squares::<S>(&window, x, count), 1.0),
                        };
                        let to = self.forward.y.get().add(offset(yg, n, [od, oh, ow]) + c);
                        store::<S>(to, count, self.forward.sloped::<S>(r));
                    }
                }
            }
        }
    }
}

/// # Safety
/// The processor has the features of `S`; `lanes` lanes can be read from `x` on at each tap.
#[inline(always)]
unsafe fn total<S: Simd>(window: &WindowTaps<1>, x: *const f32, lanes: usize) -> S::V {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut sum = S::splat(0.0);
        each!(window, |_tap, at| sum =
            S::add(sum, load::<S>(x.add(at[0]), lanes)));
        sum
    }
}
