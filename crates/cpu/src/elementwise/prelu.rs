//! PReLU: a trained slope per channel, or one for all, for negative inputs.

use crate::grid::{Call, Canceled, View, ViewMut, Work};
use crate::norm::reduce;
use crate::rows::{Apply, Formula, Rows, formula, leaky};

formula!(Forward {}, true, |S, [x, ..], _, k| leaky::<S>(x, x, k[0]));
formula!(Back {}, true, |S, [x, dy, _], _, k| leaky::<S>(x, dy, k[0]));
formula!(BackAgain {}, true, |S, [x, dy, _], dx, k| {
    S::add(dx, leaky::<S>(x, dy, k[0]))
});

/// y = x where it is positive, else x times the slope of its channel. Needs scratch for C elements. Counts one
/// flop an element.
///
/// Errors of all kernels of this module: [`Canceled`]. They panic if boxes differ in shape, or if there are neither
/// one nor C slopes.
pub(crate) fn prelu_forward(
    call: &mut Call,
    x: View,
    slopes: &[f32],
    y: ViewMut,
) -> Result<Work, Canceled> {
    let work = Work {
        flops: y.grid.elements() as u64,
        bytes: x.grid.bytes() + y.grid.bytes(),
    };
    apply([x], slopes, y, Forward {}, call)?;
    Ok(work)
}

/// dx (+)= dy where x is positive, else dy times the slope. Needs scratch for C elements. Counts one flop an
/// element.
pub(crate) fn prelu_backward(
    call: &mut Call,
    [x, dy]: [View; 2],
    slopes: &[f32],
    dx: ViewMut,
    accumulate: bool,
) -> Result<Work, Canceled> {
    let work = Work {
        flops: dx.grid.elements() as u64,
        bytes: (3 + u64::from(accumulate)) * dx.grid.bytes(),
    };
    if accumulate {
        apply([x, dy], slopes, dx, BackAgain {}, call)?;
    } else {
        apply([x, dy], slopes, dx, Back {}, call)?;
    }
    Ok(work)
}

fn apply<const N: usize, F: Formula>(
    inputs: [View; N],
    slopes: &[f32],
    y: ViewMut,
    f: F,
    call: &mut Call,
) -> Result<(), Canceled> {
    let channels = y.grid.channels;
    let fits = [1, channels].contains(&slopes.len());
    assert!(fits, "{} slopes of {channels} channels", slopes.len());
    let column = &mut call.scratch[..channels];
    let known = slopes.iter().cycle();
    column
        .iter_mut()
        .zip(known)
        .for_each(|(to, slope)| *to = *slope);
    let column: &[f32] = column;
    let apply = Apply::with_columns(inputs, Rows::from(y), [column; 4], f);
    // SAFETY: the written box is borrowed alone.
    unsafe { apply.all(call.team, call.progress) }
}

/// The slopes' gradients (+)= sums of x dy over positions where x is not positive: per channel, or over all
/// channels if there is one slope. Needs the scratch of sums over positions. Counts 2 flops an element.
pub(crate) fn prelu_backward_slopes(
    call: &mut Call,
    [x, dy]: [View; 2],
    dslopes: &mut [f32],
    accumulate: bool,
) -> Result<Work, Canceled> {
    let channels = x.grid.channels;
    let product = |x: f64, dy: f64| if x > 0.0 { 0.0 } else { x * dy };
    let totals = &reduce(call, [x, dy], |[x, dy, _]| (product(x, dy), 0.0))?[..channels];
    let fits = [1, channels].contains(&dslopes.len());
    assert!(fits, "{} slopes of {channels} channels", dslopes.len());
    let of_each = channels / dslopes.len().max(1);
    for (slope, totals) in dslopes.iter_mut().zip(totals.chunks(of_each.max(1))) {
        let old = if accumulate { f64::from(*slope) } else { 0.0 };
        *slope = (old + totals.iter().sum::<f64>()) as f32;
    }
    Ok(Work {
        flops: 2 * x.grid.elements() as u64,
        bytes: x.grid.bytes() + dy.grid.bytes(),
    })
}
