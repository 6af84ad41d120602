//! Maximum and average pooling; taps outside the box of the input are clipped.
//!
//! Legend: o output, i input position, k tap; i = o * stride + k * dilation + shift.

use crate::grid::{Call, Canceled, Grid, Shared, View, ViewMut, Window, Work};
use crate::simd::{Op, Simd};
use crate::team::ELEMENT;
use std::ops::Range;

/// Work of one slab of the backward pass.
const COST_PER_SLAB: u64 = 2_000_000;

/// What a window becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolKind {
    /// The maximum; a not-a-number wins.
    Max,
    /// The sum, divided by a count.
    Average {
        /// Divide by the volume of the window, not by the taps inside the input.
        count_include_pad: bool,
    },
}

/// A pooling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pooling {
    /// What a window becomes.
    pub kind: PoolKind,
    /// Taps, strides, dilations.
    pub window: Window,
    /// Input position of tap 0 of output 0, relative to the first element of the input box.
    pub shift: [i64; 3],
}

impl Pooling {
    /// Taps of output `o` in dim `dim` whose input lies in `range`.
    #[inline(always)]
    fn taps(&self, dim: usize, o: usize, range: &Range<usize>) -> Range<usize> {
        let w = &self.window;
        let start = (o * w.stride[dim]) as i64 + self.shift[dim];
        let step = w.dilation[dim] as i64;
        let first = |at: usize| ((at as i64 - start + step - 1).div_euclid(step)).max(0) as usize;
        let end = first(range.end).min(w.kernel[dim]);
        first(range.start).min(end)..end
    }

    /// Input position of a tap that lies inside the input.
    #[inline(always)]
    fn input(&self, dim: usize, o: usize, k: usize) -> usize {
        let at = o * self.window.stride[dim] + k * self.window.dilation[dim];
        (at as i64 + self.shift[dim]) as usize
    }

    /// Outputs among `outputs` with a tap in `range` at least at the outer taps.
    fn outputs(&self, dim: usize, outputs: usize, range: &Range<usize>) -> Range<usize> {
        let w = &self.window;
        let (stride, reach) = (
            w.stride[dim] as i64,
            ((w.kernel[dim] - 1) * w.dilation[dim]) as i64,
        );
        let low = range.start as i64 - self.shift[dim] - reach;
        let low = (low + stride - 1).div_euclid(stride).max(0) as usize;
        let high = (range.end as i64 - 1 - self.shift[dim]).div_euclid(stride) + 1;
        let high = (high.max(0) as usize).min(outputs);
        low.min(high)..high
    }

    /// 1 over the divisor of a window with `inside` taps inside the input.
    #[inline(always)]
    fn weight(&self, include: bool, inside: usize) -> f32 {
        let count = if include {
            self.window.volume()
        } else {
            inside
        };
        1.0 / count.max(1) as f32
    }

    fn flops(&self, y: &Grid) -> u64 {
        (self.window.volume() * y.elements()) as u64
    }

    fn assert_valid(&self, x: &Grid, y: &Grid) {
        self.window.assert_valid();
        assert!(
            x.samples == y.samples && x.channels == y.channels,
            "pooling of {x:?} to {y:?}"
        );
        assert!(
            self.window.volume() < 1 << 24,
            "the number of a tap must be exact in f32"
        );
    }
}

/// y[n, o, c] = maximum or average over the taps inside the input; zero if there are none.
///
/// Shapes: x (N, D, H, W, C), y likewise with its own extent. Counts one flop a tap and output.
/// Errors: [`Canceled`]. Panics if samples or channels differ.
pub fn pool_forward(
    call: &mut Call,
    x: View,
    y: ViewMut,
    pooling: &Pooling,
) -> Result<Work, Canceled> {
    let (xg, yg) = (x.grid, y.grid);
    pooling.assert_valid(xg, yg);
    let work = Work {
        flops: pooling.flops(yg),
        bytes: xg.bytes() + yg.bytes(),
    };
    let out = Shared(y.data.as_mut_ptr());
    let level = call.team.level();
    let cost = ELEMENT * (pooling.window.volume() * yg.extent[2] * yg.channels) as u64;
    call.team.ranges(call.progress, yg.rows(), cost, &|rows| {
        level.run(Forward {
            x: x.data,
            xg,
            y: out,
            yg,
            pooling,
            rows,
        });
    })?;
    Ok(work)
}

/// dx (+)= gradient of [`pool_forward`]; the first maximal tap in (d, h, w) order takes it all.
///
/// Shapes: dx as the input x, dy as the output. x is needed for the maximum only. Without
/// `accumulate` dx is overwritten. Counts one flop a tap and output. Bit-reproducible for any
/// number of threads. Errors: [`Canceled`]. Panics if boxes differ, or if x is missing.
pub fn pool_backward(
    call: &mut Call,
    x: Option<View>,
    dy: View,
    dx: ViewMut,
    pooling: &Pooling,
    accumulate: bool,
) -> Result<Work, Canceled> {
    let (yg, xg) = (dy.grid, dx.grid);
    pooling.assert_valid(xg, yg);
    let read = match (pooling.kind, x) {
        (PoolKind::Max, Some(x)) => {
            x.grid.assert_like(xg);
            x.grid.bytes()
        }
        (PoolKind::Max, None) => panic!("the gradient of a maximum needs its input"),
        (PoolKind::Average { .. }, _) => 0,
    };
    let bytes = read + yg.bytes() + xg.bytes() * (1 + u64::from(accumulate));
    let work = Work {
        flops: pooling.flops(yg),
        bytes,
    };
    if xg.elements() == 0 {
        return Ok(work);
    }
    // Threads own slabs of dx, so that overlapping windows need no care; whole strides keep
    // windows that do not overlap within one slab.
    let dim = (0..3).find(|i| xg.extent[*i] > 1).unwrap_or(0);
    let (extent, stride) = (xg.extent[dim], pooling.window.stride[dim]);
    let plane = (xg.elements() / xg.samples / extent) as u64 * ELEMENT * 4;
    let step = ((COST_PER_SLAB / plane.max(1)) as usize).clamp(1, extent);
    let step = step.next_multiple_of(stride);
    let slabs = extent.div_ceil(step);
    let out = Shared(dx.data.as_mut_ptr());
    let level = call.team.level();
    call.team.units(
        call.progress,
        xg.samples * slabs,
        plane * step as u64,
        &|unit, _| {
            let (n, slab) = (unit / slabs, unit % slabs);
            let mut own = xg.extent.map(|e| 0..e);
            own[dim] = slab * step..((slab + 1) * step).min(extent);
            level.run(Backward {
                x,
                dy,
                dx: out,
                xg,
                pooling,
                n,
                own,
                accumulate,
            });
        },
    )?;
    Ok(work)
}

struct Forward<'a> {
    x: &'a [f32],
    xg: &'a Grid,
    y: Shared,
    yg: &'a Grid,
    pooling: &'a Pooling,
    rows: Range<usize>,
}

impl Op for Forward<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (xg, yg, p) = (self.xg, self.yg, self.pooling);
        let whole = xg.extent.map(|e| 0..e);
        for row in self.rows {
            let (oh, rest) = (row % yg.extent[1], row / yg.extent[1]);
            let (od, n) = (rest % yg.extent[0], rest / yg.extent[0]);
            let (kd, kh) = (p.taps(0, od, &whole[0]), p.taps(1, oh, &whole[1]));
            for ow in 0..yg.extent[2] {
                let kw = p.taps(2, ow, &whole[2]);
                let place = Place {
                    n,
                    o: [od, oh, ow],
                    k: [kd.clone(), kh.clone(), kw],
                };
                for c in (0..yg.channels).step_by(S::LANES) {
                    let lanes = (yg.channels - c).min(S::LANES);
                    // SAFETY: taps inside the input, channels inside the boxes.
                    unsafe {
                        let r = match p.kind {
                            PoolKind::Max => {
                                maximum::<S>(p, self.x.as_ptr().add(c), xg, &place, lanes).0
                            }
                            PoolKind::Average { count_include_pad } => {
                                let x = self.x.as_ptr().add(c);
                                let sum = total::<S>(p, x, xg, &place, lanes);
                                S::mul(sum, S::splat(p.weight(count_include_pad, place.count())))
                            }
                        };
                        let at = yg.row_offset(row) + ow * yg.pitch[3] + c;
                        store::<S>(self.y.get().add(at), lanes, r);
                    }
                }
            }
        }
    }
}

struct Backward<'a> {
    x: Option<View<'a>>,
    dy: View<'a>,
    dx: Shared,
    xg: &'a Grid,
    pooling: &'a Pooling,
    n: usize,
    /// The part of dx that is written.
    own: [Range<usize>; 3],
    accumulate: bool,
}

impl Op for Backward<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (yg, p) = (self.dy.grid, self.pooling);
        if !self.accumulate {
            self.clear();
        }
        let outs: [Range<usize>; 3] =
            std::array::from_fn(|i| p.outputs(i, yg.extent[i], &self.own[i]));
        for od in outs[0].clone() {
            for oh in outs[1].clone() {
                for ow in outs[2].clone() {
                    // SAFETY: the features are those of the caller.
                    unsafe { self.output::<S>([od, oh, ow]) };
                }
            }
        }
    }
}

impl Backward<'_> {
    fn clear(&self) {
        let g = self.xg;
        for d in self.own[0].clone() {
            for h in self.own[1].clone() {
                for w in self.own[2].clone() {
                    let at = offset(g, self.n, [d, h, w]);
                    // SAFETY: a position of the box, owned by this slab.
                    unsafe { self.dx.get().add(at).write_bytes(0, g.channels) };
                }
            }
        }
    }

    /// Spreads the gradient of one output over the taps in the slab.
    #[inline(always)]
    unsafe fn output<S: Simd>(&self, o: [usize; 3]) {
        let (xg, yg, p, n) = (self.xg, self.dy.grid, self.pooling, self.n);
        let all = std::array::from_fn(|i| p.taps(i, o[i], &(0..xg.extent[i])));
        let own = std::array::from_fn(|i| p.taps(i, o[i], &self.own[i]));
        let (all, own) = (Place { n, o, k: all }, Place { n, o, k: own });
        for c in (0..yg.channels).step_by(S::LANES) {
            let lanes = (yg.channels - c).min(S::LANES);
            // SAFETY: taps inside the input, channels inside the boxes.
            unsafe {
                let dy = load::<S>(self.dy.data.as_ptr().add(offset(yg, n, o) + c), lanes);
                let dx = self.dx.get().add(c);
                match (p.kind, self.x) {
                    (PoolKind::Max, Some(x)) => {
                        let from = x.data.as_ptr().add(c);
                        let winner = maximum::<S>(p, from, x.grid, &all, lanes).1;
                        own.each(p, xg, |tap, at| {
                            let to = dx.add(at);
                            let mine = S::where_eq(winner, S::splat(tap as f32), dy);
                            store::<S>(to, lanes, S::add(load::<S>(to, lanes), mine));
                        });
                    }
                    (PoolKind::Max, None) => {}
                    (PoolKind::Average { count_include_pad }, _) => {
                        let weight = p.weight(count_include_pad, all.count());
                        let mine = S::mul(dy, S::splat(weight));
                        own.each(p, xg, |_, at| {
                            let to = dx.add(at);
                            store::<S>(to, lanes, S::add(load::<S>(to, lanes), mine));
                        });
                    }
                }
            }
        }
    }
}

/// An output and some of its taps.
struct Place {
    n: usize,
    o: [usize; 3],
    k: [Range<usize>; 3],
}

impl Place {
    #[inline(always)]
    fn count(&self) -> usize {
        self.k.iter().map(|k| k.len()).product()
    }

    /// Visits the taps in order: number of the tap, offset of its input.
    #[inline(always)]
    fn each(&self, p: &Pooling, xg: &Grid, mut visit: impl FnMut(usize, usize)) {
        let kernel = p.window.kernel;
        let step = p.window.dilation[2] * xg.pitch[3];
        for kd in self.k[0].clone() {
            for kh in self.k[1].clone() {
                let (d, h) = (p.input(0, self.o[0], kd), p.input(1, self.o[1], kh));
                if self.k[2].is_empty() {
                    continue;
                }
                let w = p.input(2, self.o[2], self.k[2].start);
                let mut at = offset(xg, self.n, [d, h, w]);
                for kw in self.k[2].clone() {
                    visit((kd * kernel[1] + kh) * kernel[2] + kw, at);
                    at += step;
                }
            }
        }
    }
}

#[inline(always)]
fn offset(g: &Grid, n: usize, at: [usize; 3]) -> usize {
    n * g.pitch[0] + at[0] * g.pitch[1] + at[1] * g.pitch[2] + at[2] * g.pitch[3]
}

#[inline(always)]
unsafe fn load<S: Simd>(p: *const f32, lanes: usize) -> S::V {
    unsafe {
        if lanes == S::LANES {
            S::load(p)
        } else {
            S::load_part(p, lanes)
        }
    }
}

#[inline(always)]
unsafe fn store<S: Simd>(p: *mut f32, lanes: usize, a: S::V) {
    unsafe {
        if lanes == S::LANES {
            S::store(p, a)
        } else {
            S::store_part(p, lanes, a)
        }
    }
}

/// Maximum over the taps and the number of the first tap that has it; (0, -1) without taps.
#[inline(always)]
unsafe fn maximum<S: Simd>(
    p: &Pooling,
    x: *const f32,
    xg: &Grid,
    place: &Place,
    lanes: usize,
) -> (S::V, S::V) {
    unsafe {
        let mut best = (S::splat(0.0), S::splat(-1.0));
        let mut first = true;
        place.each(p, xg, |tap, at| {
            let (value, number) = (load::<S>(x.add(at), lanes), S::splat(tap as f32));
            best = match first {
                true => (value, number),
                false => S::take_max(value, best.0, number, best.1),
            };
            first = false;
        });
        best
    }
}

#[inline(always)]
unsafe fn total<S: Simd>(
    p: &Pooling,
    x: *const f32,
    xg: &Grid,
    place: &Place,
    lanes: usize,
) -> S::V {
    unsafe {
        let mut sum = S::splat(0.0);
        place.each(p, xg, |_, at| {
            sum = S::add(sum, load::<S>(x.add(at), lanes))
        });
        sum
    }
}
