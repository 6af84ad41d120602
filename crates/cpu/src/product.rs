//! Products of two boxes, and their sums over positions.

use crate::grid::{Call, Canceled, View, ViewMut, Work};
use crate::norm::reduce;
use crate::rows::{Apply, Formula, Rows, formula};

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
