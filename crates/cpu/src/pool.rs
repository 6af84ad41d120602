//! Maximum, average and norm pooling; taps outside the box of the input are clipped.
//!
//! Here the window and the reductions that both directions share.
//! Legend: o output, i input position, k tap; i = o * stride + k * dilation + shift.

pub(crate) mod backward;
pub(crate) mod forward;
pub(crate) mod rows;
pub(crate) mod slabs;

use crate::grid::{Grid, Shared, View, Window};
use crate::simd::{LANES_MAX, Simd};
use partita_program::PoolKind;
use std::ops::Range;

/// A pooling operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pooling {
    /// Maximum, average or norm; a NaN wins a maximum.
    pub kind: PoolKind,
    /// Taps, strides, dilations.
    pub window: Window,
    /// Input position of tap 0 of output 0, relative to the first element of the input box.
    pub shift: [i64; 3],
}

impl Pooling {
    /// Taps of output `o` in dim `dim` whose input lies in `range`.
    #[inline(always)]
    pub(crate) fn taps(&self, dim: usize, o: usize, range: &Range<usize>) -> Range<usize> {
        let w = &self.window;
        let start = (o * w.stride[dim]) as i64 + self.shift[dim];
        let step = w.dilation[dim] as i64;
        let first = |at: usize| ((at as i64 - start + step - 1).div_euclid(step)).max(0) as usize;
        let end = first(range.end).min(w.kernel[dim]);
        first(range.start).min(end)..end
    }

    /// Distance of the last tap from the first.
    #[inline(always)]
    pub(crate) fn reach(&self, dim: usize) -> usize {
        (self.window.kernel[dim] - 1) * self.window.dilation[dim]
    }

    /// Input position of a tap; may lie outside.
    #[inline(always)]
    pub(crate) fn input(&self, dim: usize, o: usize, tap: usize) -> i64 {
        let at = o * self.window.stride[dim] + tap * self.window.dilation[dim];
        at as i64 + self.shift[dim]
    }

    /// Input positions between the outer taps of some outputs, clipped to the input.
    #[inline(always)]
    pub(crate) fn inputs(&self, dim: usize, o: &Range<usize>, extent: usize) -> Range<usize> {
        let inside = |at: i64| at.clamp(0, extent as i64) as usize;
        let start = inside(self.input(dim, o.start, 0));
        let end = inside(
            self.input(dim, o.end, 0) - self.window.stride[dim] as i64 + self.reach(dim) as i64 + 1,
        );
        start..end.max(start)
    }

    /// Outputs among `outputs` with a tap in `range` at least at the outer taps.
    pub(crate) fn outputs(&self, dim: usize, outputs: usize, range: &Range<usize>) -> Range<usize> {
        let w = &self.window;
        let (stride, reach) = (w.stride[dim] as i64, self.reach(dim) as i64);
        let low = range.start as i64 - self.shift[dim] - reach;
        let low = (low + stride - 1).div_euclid(stride).max(0) as usize;
        let high = (range.end as i64 - 1 - self.shift[dim]).div_euclid(stride) + 1;
        let high = (high.max(0) as usize).min(outputs);
        low.min(high)..high
    }

    /// Whether a window with `at` between its ends has a tap there.
    #[inline(always)]
    pub(crate) fn holds(&self, dim: usize, o: usize, at: usize) -> bool {
        let from = at as i64 - self.shift[dim] - (o * self.window.stride[dim]) as i64;
        from % self.window.dilation[dim] as i64 == 0
    }

    /// Whether the divisor of an average is the volume of the window, not the taps inside the input.
    pub(crate) fn counts_padding(&self) -> bool {
        self.kind == PoolKind::AverageAll
    }

    /// 1 over the divisor of an average over a window with `inside` taps inside the input.
    #[inline(always)]
    pub(crate) fn weight(&self, inside: usize) -> f32 {
        let count = if self.counts_padding() {
            self.window.volume()
        } else {
            inside
        };
        1.0 / count.max(1) as f32
    }

    /// Outputs whose taps all lie in `0..extent`.
    pub(crate) fn interior(&self, dim: usize, outputs: usize, extent: usize) -> Range<usize> {
        let w = &self.window;
        let (stride, reach) = (w.stride[dim] as i64, self.reach(dim) as i64);
        let low = (stride - 1 - self.shift[dim]).div_euclid(stride).max(0) as usize;
        let high = (extent as i64 - 1 - reach - self.shift[dim]).div_euclid(stride) + 1;
        let high = (high.max(0) as usize).min(outputs);
        low.min(high)..high
    }

    /// Whether the windows fill the input and touch neither each other nor its border.
    pub(crate) fn tiles(&self, x: &Grid, y: &Grid) -> bool {
        let w = &self.window;
        (0..3).all(|i| {
            w.stride[i] == w.kernel[i]
                && (w.dilation[i] == 1 || w.kernel[i] == 1)
                && self.shift[i] == 0
                && x.extent[i] == y.extent[i] * w.stride[i]
        })
    }

    /// A tap counts one, and two in a norm, which squares and adds.
    pub(crate) fn flops(&self, y: &Grid) -> u64 {
        let of_tap = if self.kind == PoolKind::L2 { 2 } else { 1 };
        (of_tap * self.window.volume() * y.elements()) as u64
    }

    pub(crate) fn assert_valid(&self, x: &Grid, y: &Grid) {
        self.window.assert_valid();
        assert!(
            x.samples == y.samples && x.channels == y.channels,
            "pooling of {x:?} to {y:?}"
        );
        assert!(
            self.window.volume() < 1 << 24,
            "the number of a tap must be exact in f32"
        );
        self.window.assert_near(self.shift, x.extent, y.extent);
    }
}

/// What the gradient of a pooling is multiplied by, in part of its box, on its way back through the
/// activation before the pooling: 1 where y > 0, `slope` elsewhere.
#[derive(Clone, Copy)]
pub struct PoolMask<'a> {
    /// Output of the activation; samples and channels are those of dx.
    pub y: View<'a>,
    /// Factor of the negative side.
    pub slope: f32,
    /// Position in dx of the first element of y; what lies in dx outside of y stays as it is.
    pub at: [usize; 3],
}

impl PoolMask<'_> {
    pub(crate) fn assert_inside(&self, dx: &Grid) {
        let g = self.y.grid;
        let inside = (0..3).all(|i| {
            let end = self.at[i].checked_add(g.extent[i]);
            end.is_some_and(|end| end <= dx.extent[i])
        });
        assert!(
            inside && g.samples == dx.samples && g.channels == dx.channels,
            "mask of {g:?} at {:?} in {dx:?}",
            self.at
        );
    }

    pub(crate) fn covers(&self, dx: &Grid) -> bool {
        self.at == [0; 3] && self.y.grid.extent == dx.extent
    }
}

/// The backward pass of one call. Pointers: dx is valid for its box, and no other thread accesses it.
#[derive(Clone, Copy)]
pub(crate) struct Backward<'a> {
    pub(crate) dy: View<'a>,
    pub(crate) dx: Shared,
    pub(crate) xg: &'a Grid,
    pub(crate) pooling: &'a Pooling,
    pub(crate) accumulate: bool,
    pub(crate) mask: Option<PoolMask<'a>>,
}

/// The taps of one output, in N boxes of the geometry of the input.
pub(crate) struct WindowTaps<const N: usize> {
    pub(crate) count: [usize; 3],
    pub(crate) tap: usize,
    pub(crate) tap_step: [usize; 3],
    pub(crate) start: [usize; N],
    pub(crate) step: [[usize; 3]; N],
}

impl<const N: usize> WindowTaps<N> {
    /// `taps` lie inside the input.
    #[inline(always)]
    pub(crate) fn new(
        p: &Pooling,
        grids: [&Grid; N],
        (n, o): (usize, [usize; 3]),
        taps: &[Range<usize>; 3],
    ) -> Self {
        let w = &p.window;
        let tap_step = [w.kernel[1] * w.kernel[2], w.kernel[2], 1];
        let first = |i: usize| {
            let at = o[i] * w.stride[i] + taps[i].start * w.dilation[i];
            // Without taps there is no such input, and the offset is never used.
            (at as i64 + p.shift[i]).max(0) as usize
        };
        let at = [first(0), first(1), first(2)];
        WindowTaps {
            count: [taps[0].len(), taps[1].len(), taps[2].len()],
            tap: (0..3).map(|i| taps[i].start * tap_step[i]).sum(),
            tap_step,
            start: grids.map(|g| offset(g, n, at)),
            step: grids.map(|g| [0, 1, 2].map(|i| w.dilation[i] * g.pitch[i + 1])),
        }
    }

    #[inline(always)]
    pub(crate) fn volume(&self) -> usize {
        self.count.iter().product()
    }
}

/// Visits the taps of a window in order: number of the tap, offsets of its input. A macro and no
/// function of a closure, which would not always be compiled for the level that asks.
macro_rules! each {
    ($window:expr, |$tap:ident, $at:ident| $body:expr) => {
        // The common window, whole, to be unrolled with the numbers of its taps known.
        match ($window.count, $window.tap, $window.tap_step) {
            ([2, 2, 2], 0, [4, 2, 1]) => {
                each!($window, [2, 2, 2], 0, [4, 2, 1], |$tap, $at| $body)
            }
            (count, tap, step) => each!($window, count, tap, step, |$tap, $at| $body),
        }
    };
    ($window:expr, $count:expr, $first:expr, $step:expr, |$tap:ident, $at:ident| $body:expr) => {{
        let (count, first, step): ([usize; 3], usize, [usize; 3]) = ($count, $first, $step);
        for d in 0..count[0] {
            for h in 0..count[1] {
                let row = first + d * step[0] + h * step[1];
                let mut $at = $window.start;
                for i in 0..$at.len() {
                    $at[i] += d * $window.step[i][0] + h * $window.step[i][1];
                }
                for w in 0..count[2] {
                    let $tap = row + w;
                    $body;
                    for i in 0..$at.len() {
                        $at[i] += $window.step[i][2];
                    }
                }
            }
        }
    }};
}
pub(crate) use each;

/// Sample and (D, H) of a flat row.
#[inline(always)]
pub(crate) fn split(row: usize, g: &Grid) -> (usize, [usize; 2]) {
    let (h, rest) = (row % g.extent[1], row / g.extent[1]);
    (rest / g.extent[0], [rest % g.extent[0], h])
}

#[inline(always)]
pub(crate) fn offset(g: &Grid, n: usize, at: [usize; 3]) -> usize {
    n * g.pitch[0] + at[0] * g.pitch[1] + at[1] * g.pitch[2] + at[2] * g.pitch[3]
}

/// # Safety
/// The processor has the features of `S`; `lanes` elements can be read.
#[inline(always)]
pub(crate) unsafe fn load<S: Simd>(p: *const f32, lanes: usize) -> S::V {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if lanes == S::LANES {
            S::load(p)
        } else {
            S::load_part(p, lanes)
        }
    }
}

/// # Safety
/// `lanes` elements can be written.
#[inline(always)]
pub(crate) unsafe fn store<S: Simd>(p: *mut f32, lanes: usize, a: S::V) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if lanes == S::LANES {
            S::store(p, a)
        } else {
            S::store_part(p, lanes, a)
        }
    }
}

/// Sum of squares over the taps; zero without taps.
///
/// # Safety
/// The processor has the features of `S`; `lanes` lanes can be read from `x` on at each tap.
#[inline(always)]
pub(crate) unsafe fn squares<S: Simd>(window: &WindowTaps<1>, x: *const f32, lanes: usize) -> S::V {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut sum = S::splat(0.0);
        each!(window, |_tap, at| {
            let x = load::<S>(x.add(at[0]), lanes);
            sum = S::fma(x, x, sum);
        });
        sum
    }
}

/// A function of the lanes of two vectors.
///
/// # Safety
/// The processor has the features of `S`.
#[inline(always)]
pub(crate) unsafe fn lanes<S: Simd>(a: S::V, b: S::V, of: impl Fn(f32, f32) -> f32) -> S::V {
    let [mut left, mut right] = [[0.0; LANES_MAX]; 2];
    // SAFETY: guaranteed by the caller; the arrays hold a vector.
    unsafe {
        S::store(left.as_mut_ptr(), a);
        S::store(right.as_mut_ptr(), b);
        for (a, b) in left[..S::LANES].iter_mut().zip(right) {
            *a = of(*a, b);
        }
        S::load(left.as_ptr())
    }
}

/// Maximum over the taps and the number of the first tap that has it; (0, -1) without taps.
///
/// # Safety
/// The processor has the features of `S`; `lanes` lanes can be read from `x` on at each tap.
#[inline(always)]
pub(crate) unsafe fn maximum<S: Simd>(
    window: &WindowTaps<1>,
    x: *const f32,
    lanes: usize,
) -> (S::V, S::V) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if window.volume() == 0 {
            return (S::splat(0.0), S::splat(-1.0));
        }
        let mut best = (
            load::<S>(x.add(window.start[0]), lanes),
            S::splat(window.tap as f32),
        );
        each!(window, |tap, at| {
            let number = S::splat(tap as f32);
            best = S::take_max(load::<S>(x.add(at[0]), lanes), best.0, number, best.1);
        });
        best
    }
}
