//! Kernels that treat every element alike: activations, sums, copies.

use crate::grid::{Call, Canceled, Grid, Shared, View, ViewMut, Work};
use crate::norm::{Rows, reduce_rows};
use crate::simd::{Op, Simd};
use crate::team::ELEMENT;
use std::ops::Range;

/// Elements that are loaded together.
const WIDTH: usize = 16;

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

/// What a gradient is multiplied by on its way back through an activation: 1 where y > 0, `slope`
/// elsewhere.
#[derive(Clone, Copy)]
pub struct Mask<'a> {
    /// Output of the activation, a box like the gradient.
    pub y: View<'a>,
    /// Factor of the negative side.
    pub slope: f32,
}

/// The gradient of an output, as its consumers left it.
#[derive(Clone, Copy)]
pub struct Gradient<'a> {
    /// The box.
    pub dy: View<'a>,
    /// To be applied while it is read.
    pub mask: Option<Mask<'a>>,
}

impl<'a> From<View<'a>> for Gradient<'a> {
    fn from(dy: View<'a>) -> Self {
        Gradient { dy, mask: None }
    }
}

/// y = f(x). Counts one flop an element.
///
/// Errors of all kernels of this module: [`Canceled`]. They panic if boxes differ in shape.
pub fn activate(call: &mut Call, kind: Activation, x: View, y: ViewMut) -> Result<Work, Canceled> {
    let out = Out::new(y, 1, x.grid.bytes());
    match kind {
        Activation::Relu => map(call, [x], out, |[x], _| relu(x)),
        Activation::LeakyRelu { slope } => map(call, [x], out, move |[x], _| leaky(x, x, slope)),
    }
}

/// y = f(y). Counts one flop an element.
pub fn activate_in_place(call: &mut Call, kind: Activation, y: ViewMut) -> Result<Work, Canceled> {
    let bytes = y.grid.bytes();
    let out = Out::new(y, 1, bytes);
    match kind {
        Activation::Relu => map(call, [], out, |[], y| relu(y)),
        Activation::LeakyRelu { slope } => map(call, [], out, move |[], y| leaky(y, y, slope)),
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
    let again = if accumulate { dx.grid.bytes() } else { 0 };
    let out = Out::new(dx, 1, y.grid.bytes() + dy.grid.bytes() + again);
    let from = [y, dy];
    match (kind, accumulate) {
        (Activation::Relu, false) => map(call, from, out, |[y, dy], _| leaky_zero(y, dy)),
        (Activation::Relu, true) => map(call, from, out, |[y, dy], dx| dx + leaky_zero(y, dy)),
        (Activation::LeakyRelu { slope }, false) => {
            map(call, from, out, move |[y, dy], _| leaky(y, dy, slope))
        }
        (Activation::LeakyRelu { slope }, true) => {
            map(call, from, out, move |[y, dy], dx| dx + leaky(y, dy, slope))
        }
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
    let bytes = y.grid.bytes() + dx.grid.bytes();
    let out = Out::new(dx, 1, bytes);
    match kind {
        Activation::Relu => map(call, [y], out, |[y], dx| leaky_zero(y, dx)),
        Activation::LeakyRelu { slope } => map(call, [y], out, move |[y], dx| leaky(y, dx, slope)),
    }
}

/// y = a + b, or `negative_slope` times that where it is not positive.
///
/// With `sums`, sums\[c\] becomes the sum over positions of what is written and sums[C + c] that
/// of its squares, or grows by them if the flag beside it says so; this needs the scratch of [`crate::norm_scratch`]. Counts one flop an element,
/// one more with a slope and 3 more with sums.
pub fn add(
    call: &mut Call,
    a: View,
    b: View,
    y: ViewMut,
    negative_slope: Option<f32>,
    sums: Option<(&mut [f64], bool)>,
) -> Result<Work, Canceled> {
    let flops = 1 + u64::from(negative_slope.is_some()) + 3 * u64::from(sums.is_some());
    let out = Out::new(y, flops, a.grid.bytes() + b.grid.bytes());
    let slope = negative_slope.unwrap_or(1.0);
    let f = move |[a, b]: [f32; 2], _| leaky(a + b, a + b, slope);
    let Some((sums, accumulate)) = sums else {
        return map(call, [a, b], out, f);
    };
    let (work, level, written) = (out.work, call.team.level(), out.rows());
    let rows = Map::new([a, b], out, f);
    let c = written.grid.channels;
    let total = reduce_rows(
        call,
        [written],
        |row| level.run(rows.at(row..row + 1)),
        |[y]| (y, y * y),
    )?;
    assert!(sums.len() >= 2 * c, "sums of {c} channels");
    crate::norm::put(sums, total, accumulate);
    Ok(work)
}

/// y += x. Counts one flop an element.
pub fn accumulate(call: &mut Call, x: View, y: ViewMut) -> Result<Work, Canceled> {
    let bytes = x.grid.bytes() + y.grid.bytes();
    map(call, [x], Out::new(y, 1, bytes), |[x], y| y + x)
}

/// y += x where the mask is positive, `slope * x` elsewhere. Counts 2 flops an element.
pub fn accumulate_masked(
    call: &mut Call,
    x: View,
    mask: &Mask,
    y: ViewMut,
) -> Result<Work, Canceled> {
    let bytes = x.grid.bytes() + mask.y.grid.bytes() + y.grid.bytes();
    let slope = mask.slope;
    map(
        call,
        [x, mask.y],
        Out::new(y, 2, bytes),
        move |[x, m], y| y + leaky(m, x, slope),
    )
}

/// y *= factor. Counts one flop an element.
pub fn scale(call: &mut Call, factor: f32, y: ViewMut) -> Result<Work, Canceled> {
    let bytes = y.grid.bytes();
    map(call, [], Out::new(y, 1, bytes), move |[], y| factor * y)
}

/// y = x. Counts no flop.
pub fn copy(call: &mut Call, x: View, y: ViewMut) -> Result<Work, Canceled> {
    map(call, [x], Out::new(y, 0, x.grid.bytes()), |[x], _| x)
}

/// y = value. Counts no flop.
pub fn fill(call: &mut Call, value: f32, y: ViewMut) -> Result<Work, Canceled> {
    map(call, [], Out::new(y, 0, 0), move |[], _| value)
}

#[inline(always)]
fn relu(x: f32) -> f32 {
    // Not-a-number stays what it is.
    if x <= 0.0 { 0.0 } else { x }
}

/// `value`, or `slope * value` where the sign is not positive.
#[inline(always)]
pub(crate) fn leaky(sign: f32, value: f32, slope: f32) -> f32 {
    if sign > 0.0 { value } else { slope * value }
}

#[inline(always)]
fn leaky_zero(sign: f32, value: f32) -> f32 {
    if sign > 0.0 { value } else { 0.0 }
}

/// The written box and its counts.
struct Out<'a> {
    data: Shared,
    grid: &'a Grid,
    work: Work,
}

impl<'a> Out<'a> {
    /// `bytes` are those besides one writing of the box.
    fn new(view: ViewMut<'a>, flops: u64, bytes: u64) -> Out<'a> {
        let flops = flops * view.grid.elements() as u64;
        let work = Work {
            flops,
            bytes: bytes + view.grid.bytes(),
        };
        Out {
            data: Shared(view.data.as_mut_ptr()),
            grid: view.grid,
            work,
        }
    }

    fn rows(&self) -> Rows<'a> {
        Rows {
            data: self.data,
            grid: self.grid,
        }
    }
}

/// y = f(inputs, y).
fn map<const N: usize, F>(
    call: &mut Call,
    inputs: [View; N],
    y: Out,
    f: F,
) -> Result<Work, Canceled>
where
    F: Fn([f32; N], f32) -> f32 + Copy + Sync,
{
    let (level, work) = (call.team.level(), y.work);
    let cost = ELEMENT * (y.grid.extent[2] * y.grid.channels) as u64;
    let rows = y.grid.rows();
    let map = Map::new(inputs, y, f);
    call.team
        .ranges(call.progress, rows, cost, &|rows| level.run(map.at(rows)))?;
    Ok(work)
}

/// Rows of y = f(inputs, y).
#[derive(Clone)]
struct Map<'a, const N: usize, F> {
    inputs: [Rows<'a>; N],
    y: Rows<'a>,
    rows: Range<usize>,
    f: F,
}

impl<'a, const N: usize, F: Fn([f32; N], f32) -> f32 + Copy> Map<'a, N, F> {
    fn new(inputs: [View<'a>; N], y: Out<'a>, f: F) -> Self {
        for input in &inputs {
            input.grid.assert_like(y.grid);
        }
        Map {
            inputs: inputs.map(Rows::from),
            y: y.rows(),
            rows: 0..0,
            f,
        }
    }

    fn at(&self, rows: Range<usize>) -> Self {
        Map {
            rows,
            ..self.clone()
        }
    }

    /// A stretch of `len` elements without gaps.
    ///
    /// # Safety
    /// The pointers are valid for as many, and nobody else touches those of y.
    #[inline(always)]
    unsafe fn stretch(&self, inputs: [*const f32; N], y: *mut f32, len: usize) {
        let blocks = len / WIDTH;
        // SAFETY: all offsets are below `len`.
        unsafe {
            for at in (0..blocks).map(|block| block * WIDTH) {
                let a = inputs.map(|a| a.add(at).cast::<[f32; WIDTH]>().read_unaligned());
                let to = y.add(at).cast::<[f32; WIDTH]>();
                let mut r = to.read_unaligned();
                for i in 0..WIDTH {
                    r[i] = (self.f)(a.map(|a| a[i]), r[i]);
                }
                to.write_unaligned(r);
            }
            for at in blocks * WIDTH..len {
                let to = y.add(at);
                *to = (self.f)(inputs.map(|a| *a.add(at)), *to);
            }
        }
    }
}

impl<const N: usize, F: Fn([f32; N], f32) -> f32 + Copy> Op for Map<'_, N, F> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (width, c) = (self.y.grid.extent[2], self.y.grid.channels);
        let step = self.inputs.map(|x| x.grid.pitch[3]);
        let to_step = self.y.grid.pitch[3];
        let dense = step.iter().chain([&to_step]).all(|pitch| *pitch == c);
        let (count, len) = if dense { (1, width * c) } else { (width, c) };
        for row in self.rows.clone() {
            // SAFETY: rows of the box are disjoint, and each is in one range.
            unsafe {
                let (from, to) = (self.inputs.map(|x| x.start(row)), self.y.start(row));
                for w in 0..count {
                    let from = std::array::from_fn(|i| from[i].add(w * step[i]).cast_const());
                    self.stretch(from, to.add(w * to_step), len);
                }
            }
        }
    }
}
