//! Products of two boxes, and their sums over positions or channels.

use crate::grid::{Call, Canceled, View, ViewMut, Work};
use crate::norm::reduce;
use crate::rows::{Apply, Formula, Rows, formula};
use crate::sequence::row_kernels::{each_range, read, sum_pair, write};
use crate::simd::{Op, Simd};
use std::ops::Range;

formula!(Times {}, false, |S, [a, b, _], _, _k| S::mul(a, b));
formula!(TimesAndAdd {}, false, |S, [a, b, _], y, _k| S::fma(a, b, y));
formula!(TimesColumn {}, true, |S, [a, ..], _, k| S::mul(a, k[0]));
formula!(TimesColumnAndAdd {}, true, |S, [a, ..], y, k| {
    S::fma(a, k[0], y)
});

/// y (+)= a b. Counts one flop an element.
///
/// Errors of all kernels of this module: [`Canceled`]. They panic if boxes differ in shape.
pub(crate) fn multiply(
    call: &mut Call,
    [a, b]: [View; 2],
    y: ViewMut,
    accumulate: bool,
) -> Result<Work, Canceled> {
    let work = Work {
        flops: y.grid.elements() as u64,
        bytes: (3 + u64::from(accumulate)) * y.grid.bytes(),
    };
    let y = Rows::from(y);
    if accumulate {
        apply(call, Apply::new([a, b], y, TimesAndAdd {}))?;
    } else {
        apply(call, Apply::new([a, b], y, Times {}))?;
    }
    Ok(work)
}

/// y (+)= a times the factor of the channel. Counts one flop an element.
pub(crate) fn multiply_channels(
    call: &mut Call,
    a: View,
    factors: &[f32],
    y: ViewMut,
    accumulate: bool,
) -> Result<Work, Canceled> {
    let work = Work {
        flops: y.grid.elements() as u64,
        bytes: (2 + u64::from(accumulate)) * y.grid.bytes(),
    };
    let (y, columns) = (Rows::from(y), [factors; 4]);
    if accumulate {
        apply(
            call,
            Apply::with_columns([a], y, columns, TimesColumnAndAdd {}),
        )?;
    } else {
        apply(call, Apply::with_columns([a], y, columns, TimesColumn {}))?;
    }
    Ok(work)
}

fn apply<F: Formula>(call: &mut Call, apply: Apply<F>) -> Result<(), Canceled> {
    // SAFETY: the written box is borrowed alone.
    unsafe { apply.all(call.team, call.progress) }
}

/// y\[c\] (+)= sum over all positions of a b\[.., c\]. Counts 2 flops an element of a.
pub(crate) fn multiply_sum(
    call: &mut Call,
    [a, b]: [View; 2],
    y: &mut [f32],
    accumulate: bool,
) -> Result<Work, Canceled> {
    let total = reduce(call, [a, b], |[a, b, _]| (a * b, 0.0))?;
    for (y, sum) in y.iter_mut().zip(total) {
        let old = if accumulate { f64::from(*y) } else { 0.0 };
        *y = (old + sum) as f32;
    }
    Ok(Work {
        flops: 2 * a.grid.elements() as u64,
        bytes: a.grid.bytes() + b.grid.bytes(),
    })
}

/// y (+)= a times the factor of the position, b with one channel. Counts one flop an element.
pub(crate) fn multiply_positions(
    call: &mut Call,
    [a, b]: [View; 2],
    y: ViewMut,
    accumulate: bool,
) -> Result<Work, Canceled> {
    a.grid.assert_like(y.grid);
    assert_map(b, a);
    let work = Work {
        flops: y.grid.elements() as u64,
        bytes: (2 + u64::from(accumulate)) * y.grid.bytes() + b.grid.bytes(),
    };
    let (a, b, y) = (Rows::from(a), Rows::from(b), Rows::from(y));
    // SAFETY: boxes of the same positions, of which y is borrowed alone.
    unsafe {
        each_range(call, y.grid, 1, |positions| TimesPosition {
            a,
            b,
            y,
            accumulate,
            positions,
        })?;
    }
    Ok(work)
}

/// Panics unless `map` has one channel at the positions of `of`.
fn assert_map(map: View, of: View) {
    assert_eq!(map.grid.channels, 1, "channels of a factor of positions");
    assert_eq!(map.grid.counts(), of.grid.counts(), "positions of factors");
}

/// Pointers: the boxes have the positions, and no other thread accesses those of y.
struct TimesPosition<'a> {
    a: Rows<'a>,
    b: Rows<'a>,
    y: Rows<'a>,
    accumulate: bool,
    positions: Range<usize>,
}

impl Op for TimesPosition<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for at in self.positions {
            // SAFETY: each position is in one range.
            let (a, b, y) = unsafe { (read(&self.a, at), read(&self.b, at), write(&self.y, at)) };
            let (factor, all) = (b[0], y.iter_mut().zip(a));
            if self.accumulate {
                all.for_each(|(y, a)| *y += *a * factor)
            } else {
                all.for_each(|(y, a)| *y = *a * factor)
            }
        }
    }
}

/// y with one channel (+)= sum over the channels of a b. Counts 2 flops an element of a.
pub(crate) fn multiply_channel_sum(
    call: &mut Call,
    [a, b]: [View; 2],
    y: ViewMut,
    accumulate: bool,
) -> Result<Work, Canceled> {
    a.grid.assert_like(b.grid);
    assert_eq!(y.grid.channels, 1, "channels of a sum over channels");
    assert_eq!(y.grid.counts(), a.grid.counts(), "positions of a sum");
    let work = Work {
        flops: 2 * a.grid.elements() as u64,
        bytes: 2 * a.grid.bytes() + (1 + u64::from(accumulate)) * y.grid.bytes(),
    };
    let (a, b, y) = (Rows::from(a), Rows::from(b), Rows::from(y));
    // SAFETY: boxes of the same positions, of which y is borrowed alone.
    unsafe {
        each_range(call, a.grid, 1, |positions| Dot {
            a,
            b,
            y,
            accumulate,
            positions,
        })?;
    }
    Ok(work)
}

/// Pointers: the boxes have the positions, and no other thread accesses those of y.
struct Dot<'a> {
    a: Rows<'a>,
    b: Rows<'a>,
    y: Rows<'a>,
    accumulate: bool,
    positions: Range<usize>,
}

impl Op for Dot<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for at in self.positions {
            // SAFETY: each position is in one range.
            let (a, b, y) = unsafe { (read(&self.a, at), read(&self.b, at), write(&self.y, at)) };
            let [sum, _] = sum_pair([a, b, a], |[a, b, _]| (f64::from(a) * f64::from(b), 0.0));
            let old = if self.accumulate {
                f64::from(y[0])
            } else {
                0.0
            };
            y[0] = (old + sum) as f32;
        }
    }
}
