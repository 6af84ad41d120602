//! Kernels that treat every element alike: activations, sums, copies.
//!
//! Below: smooth activations, PReLU and its trained slopes, and products of two boxes. Loops over boxes are those
//! of [`crate::rows`].

pub(crate) mod activation;
pub(crate) mod prelu;
pub(crate) mod product;
pub(crate) mod shuffle;

use crate::grid::{Call, Canceled, Mask, View, ViewMut, Work};
use crate::norm::{put, reduce_rows};
use crate::rows::{Apply, ApplyRows, Formula, Rows, formula, leaky};

/// An activation whose backward needs only its output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// max(x, 0).
    Relu,
    /// x where positive, `slope * x` elsewhere; slope >= 0.
    LeakyRelu {
        /// Factor of the negative side.
        slope: f32,
    },
}

formula!(Fill { value }, false, |S, _, _, _| value);
formula!(Copied {}, false, |S, [x, ..], _, _| x);
formula!(Scale { factor }, false, |S, _, y, _| S::mul(factor, y));
formula!(Accumulate {}, false, |S, [x, ..], y, _| S::add(y, x));
formula!(AccumulateMasked { slope }, false, |S, [m, x, _], y, _| {
    S::add(y, leaky::<S>(m, x, slope))
});
formula!(Masked { slope }, false, |S, [m, x, _], _, _| leaky::<S>(
    m, x, slope
));
formula!(
    MaskedInPlace { slope },
    false,
    |S, [m, ..], y, _| leaky::<S>(m, y, slope)
);
formula!(Add { slope }, false, |S, [a, b, _], _, _| {
    let sum = S::add(a, b);
    leaky::<S>(sum, sum, slope)
});
formula!(Leaky { slope }, false, |S, [x, ..], _, _| leaky::<S>(
    x, x, slope
));
// The maximum keeps a not-a-number, and makes minus infinity zero, which a product does not.
formula!(Relu {}, false, |S, [x, ..], _, _| {
    let zero = S::splat(0.0);
    S::take_max(x, zero, x, zero).0
});

/// y = f(x). Counts one flop an element.
///
/// Errors of all kernels of this module: [`Canceled`]. They panic if boxes differ in shape.
pub fn activate(call: &mut Call, kind: Activation, x: View, y: ViewMut) -> Result<Work, Canceled> {
    let bytes = x.grid.bytes() + y.grid.bytes();
    match kind {
        Activation::Relu => map(call, [x], y, Relu {}, (1, bytes)),
        Activation::LeakyRelu { slope } => map(call, [x], y, Leaky { slope }, (1, bytes)),
    }
}

/// y = f(y). Counts one flop an element.
pub fn activate_in_place(call: &mut Call, kind: Activation, y: ViewMut) -> Result<Work, Canceled> {
    let bytes = 2 * y.grid.bytes();
    // Without inputs, y stands in for them.
    match kind {
        Activation::Relu => map(call, [], y, Relu {}, (1, bytes)),
        Activation::LeakyRelu { slope } => map(call, [], y, Leaky { slope }, (1, bytes)),
    }
}

/// dx (+)= dy * f'(y), by the sign of the output y. Counts one flop an element.
pub fn activate_backward(
    call: &mut Call,
    kind: Activation,
    y: View,
    dy: View,
    dx: ViewMut,
    accumulate: bool,
) -> Result<Work, Canceled> {
    let bytes = y.grid.bytes() + dy.grid.bytes() + dx.grid.bytes() * (1 + u64::from(accumulate));
    let slope = below(kind);
    if accumulate {
        map(call, [y, dy], dx, AccumulateMasked { slope }, (1, bytes))
    } else {
        map(call, [y, dy], dx, Masked { slope }, (1, bytes))
    }
}

/// dx = dx * f'(y): the gradient with respect to the output becomes that of the input.
/// Counts one flop an element.
pub fn activate_backward_in_place(
    call: &mut Call,
    kind: Activation,
    y: View,
    dx: ViewMut,
) -> Result<Work, Canceled> {
    let bytes = y.grid.bytes() + 2 * dx.grid.bytes();
    let slope = below(kind);
    map(call, [y], dx, MaskedInPlace { slope }, (1, bytes))
}

/// Factor of the gradient on the negative side.
fn below(kind: Activation) -> f32 {
    match kind {
        Activation::Relu => 0.0,
        Activation::LeakyRelu { slope } => slope,
    }
}

/// y = a + b, or `negative_slope` times that where it is not positive.
///
/// With `sums`, sums\[c\] becomes the sum over positions of what is written and sums[C + c] that
/// of its squares, or grows by them if the flag beside it says so; this needs the scratch of
/// [`crate::norm_scratch`]. Counts one flop an element, one more with a slope and 3 more with sums.
pub fn add(
    call: &mut Call,
    a: View,
    b: View,
    y: ViewMut,
    negative_slope: Option<f32>,
    sums: Option<(&mut [f64], bool)>,
) -> Result<Work, Canceled> {
    let flops = 1 + u64::from(negative_slope.is_some()) + 3 * u64::from(sums.is_some());
    let bytes = a.grid.bytes() + b.grid.bytes() + y.grid.bytes();
    let slope = negative_slope.unwrap_or(1.0);
    let Some((sums, accumulate)) = sums else {
        return map(call, [a, b], y, Add { slope }, (flops, bytes));
    };
    let (level, y) = (call.team.level(), Rows::from(y));
    let apply = Apply::new([a, b], y, Add { slope });
    let write = |row| {
        let rows = row..row + 1;
        // SAFETY: the team has the level; y is borrowed alone, and each row is written once.
        unsafe { level.run(ApplyRows { apply, rows }) };
    };
    // SAFETY: y is borrowed alone.
    let total = unsafe { reduce_rows(call, [y; 3], write, |[y, ..]| (y, y * y))? };
    assert!(sums.len() >= total.len(), "sums of {}", sums.len());
    put(sums, total, accumulate);
    Ok(Work {
        flops: flops * y.grid.elements() as u64,
        bytes,
    })
}

/// y += x. Counts one flop an element.
pub fn accumulate(call: &mut Call, x: View, y: ViewMut) -> Result<Work, Canceled> {
    let bytes = x.grid.bytes() + 2 * y.grid.bytes();
    map(call, [x], y, Accumulate {}, (1, bytes))
}

/// y += x where the mask is positive, `slope * x` elsewhere. Counts 2 flops an element.
pub fn accumulate_masked(
    call: &mut Call,
    x: View,
    mask: &Mask,
    y: ViewMut,
) -> Result<Work, Canceled> {
    let bytes = x.grid.bytes() + mask.y.grid.bytes() + 2 * y.grid.bytes();
    let slope = mask.slope;
    map(call, [mask.y, x], y, AccumulateMasked { slope }, (2, bytes))
}

/// y *= factor. Counts one flop an element.
pub fn scale(call: &mut Call, factor: f32, y: ViewMut) -> Result<Work, Canceled> {
    let bytes = 2 * y.grid.bytes();
    map(call, [], y, Scale { factor }, (1, bytes))
}

/// y = x. Counts no flop.
pub fn copy(call: &mut Call, x: View, y: ViewMut) -> Result<Work, Canceled> {
    let bytes = x.grid.bytes() + y.grid.bytes();
    map(call, [x], y, Copied {}, (0, bytes))
}

/// y = value. Counts no flop.
pub fn fill(call: &mut Call, value: f32, y: ViewMut) -> Result<Work, Canceled> {
    let bytes = y.grid.bytes();
    map(call, [], y, Fill { value }, (0, bytes))
}

/// y = f(inputs, y); counts `flops` an element, and `bytes` in all.
fn map<const N: usize, F: Formula>(
    call: &mut Call,
    inputs: [View; N],
    y: ViewMut,
    f: F,
    (flops, bytes): (u64, u64),
) -> Result<Work, Canceled> {
    let flops = flops * y.grid.elements() as u64;
    let apply = Apply::new(inputs, Rows::from(y), f);
    // SAFETY: y is borrowed alone.
    unsafe { apply.all(call.team, call.progress)? };
    Ok(Work { flops, bytes })
}
