//! Kernels that treat every element alike: activations, sums, copies, import of planar images.

use crate::grid::{Call, Canceled, Grid, Shared, View, ViewMut, Work};
use crate::simd::{Op, Simd};
use crate::team::ELEMENT;

/// Elements that are transformed together on import.
const IMPORT: usize = 64;

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

/// y = f(x). Counts one flop an element.
///
/// Errors of all kernels of this module: [`Canceled`]. They panic if boxes differ in shape.
pub fn activate(call: &mut Call, kind: Activation, x: View, y: ViewMut) -> Result<Work, Canceled> {
    let out = Out::new(y, 1, x.grid.bytes());
    match kind {
        Activation::Relu => map(call, x, x, out, |x, _, _| relu(x)),
        Activation::LeakyRelu { slope } => map(call, x, x, out, move |x, _, _| leaky(x, x, slope)),
    }
}

/// y = f(y). Counts one flop an element.
pub fn activate_in_place(call: &mut Call, kind: Activation, y: ViewMut) -> Result<Work, Canceled> {
    let bytes = y.grid.bytes();
    match kind {
        Activation::Relu => update(call, Out::new(y, 1, bytes), relu),
        Activation::LeakyRelu { slope } => {
            update(call, Out::new(y, 1, bytes), move |y| leaky(y, y, slope))
        }
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
    match (kind, accumulate) {
        (Activation::Relu, false) => map(call, y, dy, out, |y, dy, _| leaky_zero(y, dy)),
        (Activation::Relu, true) => map(call, y, dy, out, |y, dy, dx| dx + leaky_zero(y, dy)),
        (Activation::LeakyRelu { slope }, false) => {
            map(call, y, dy, out, move |y, dy, _| leaky(y, dy, slope))
        }
        (Activation::LeakyRelu { slope }, true) => {
            map(call, y, dy, out, move |y, dy, dx| dx + leaky(y, dy, slope))
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
        Activation::Relu => map(call, y, y, out, |y, _, dx| leaky_zero(y, dx)),
        Activation::LeakyRelu { slope } => {
            map(call, y, y, out, move |y, _, dx| leaky(y, dx, slope))
        }
    }
}

/// y = a + b. Counts one flop an element.
pub fn add(call: &mut Call, a: View, b: View, y: ViewMut) -> Result<Work, Canceled> {
    let out = Out::new(y, 1, a.grid.bytes() + b.grid.bytes());
    map(call, a, b, out, |a, b, _| a + b)
}

/// y += x. Counts one flop an element.
pub fn accumulate(call: &mut Call, x: View, y: ViewMut) -> Result<Work, Canceled> {
    let bytes = x.grid.bytes() + y.grid.bytes();
    map(call, x, x, Out::new(y, 1, bytes), |x, _, y| y + x)
}

/// y *= factor. Counts one flop an element.
pub fn scale(call: &mut Call, factor: f32, y: ViewMut) -> Result<Work, Canceled> {
    let bytes = y.grid.bytes();
    update(call, Out::new(y, 1, bytes), move |y| factor * y)
}

/// y = x. Counts no flop.
pub fn copy(call: &mut Call, x: View, y: ViewMut) -> Result<Work, Canceled> {
    map(call, x, x, Out::new(y, 0, x.grid.bytes()), |x, _, _| x)
}

/// y = value. Counts no flop.
pub fn fill(call: &mut Call, value: f32, y: ViewMut) -> Result<Work, Canceled> {
    update(call, Out::new(y, 0, 0), move |_| value)
}

/// Where the images of [`import`] lie.
#[derive(Clone, Copy, Debug)]
pub enum Planes<'a> {
    /// 16-bit counts.
    I16(&'a [i16]),
    /// Floats.
    F32(&'a [f32]),
}

/// What [`import`] does to a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Transform {
    /// y = x.
    Identity,
    /// y = factor * x.
    Scale(f32),
    /// y = ln(1 + x), to 4 units in the last place; minus infinity at -1, not a number below.
    Log1p,
}

/// Turns a planar box (N, C, D, H, W) into a channels-last one: y = f(x).
///
/// `pitch` is the distance of neighbors in N, C, D, H of the planes, in elements; that of W is 1.
/// Counts one flop an element, and 2 or 4 bytes for an element read.
pub fn import(
    call: &mut Call,
    planes: Planes,
    pitch: [usize; 4],
    transform: Transform,
    y: ViewMut,
) -> Result<Work, Canceled> {
    let g = y.grid;
    let size = match planes {
        Planes::I16(_) => 2,
        Planes::F32(_) => 4,
    };
    let elements = g.elements() as u64;
    let work = Work {
        flops: elements,
        bytes: elements * size + g.bytes(),
    };
    if elements == 0 {
        return Ok(work);
    }
    let last = [g.samples, g.channels, g.extent[0], g.extent[1]];
    let last = (0..4).map(|i| (last[i] - 1) * pitch[i]).sum::<usize>() + g.extent[2];
    let length = match planes {
        Planes::I16(data) => data.len(),
        Planes::F32(data) => data.len(),
    };
    assert!(length >= last, "planes of {length}, need {last}");
    let out = Shared(y.data.as_mut_ptr());
    let level = call.team.level();
    let cost = 2 * ELEMENT * (g.extent[2] * g.channels) as u64;
    call.team.ranges(call.progress, g.rows(), cost, &|rows| {
        for row in rows {
            let (h, rest) = (row % g.extent[1], row / g.extent[1]);
            let (d, n) = (rest % g.extent[0], rest / g.extent[0]);
            let from = n * pitch[0] + d * pitch[2] + h * pitch[3];
            // SAFETY: a row of the box.
            let to = unsafe { out.get().add(g.row_offset(row)) };
            level.run(ImportRow {
                planes,
                from,
                plane: pitch[1],
                transform,
                to,
                grid: g,
            });
        }
    })?;
    Ok(work)
}

struct ImportRow<'a> {
    planes: Planes<'a>,
    from: usize,
    plane: usize,
    transform: Transform,
    to: *mut f32,
    grid: &'a Grid,
}

impl Op for ImportRow<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (width, w_pitch) = (self.grid.extent[2], self.grid.pitch[3]);
        let mut values = [0f32; IMPORT];
        for c in 0..self.grid.channels {
            for w0 in (0..width).step_by(IMPORT) {
                let n = (width - w0).min(IMPORT);
                let at = self.from + c * self.plane + w0;
                match self.planes {
                    Planes::I16(x) => {
                        for (v, x) in values.iter_mut().zip(&x[at..at + n]) {
                            *v = f32::from(*x);
                        }
                    }
                    Planes::F32(x) => values[..n].copy_from_slice(&x[at..at + n]),
                }
                match self.transform {
                    Transform::Identity => {}
                    Transform::Scale(factor) => values.iter_mut().for_each(|v| *v *= factor),
                    Transform::Log1p => values.iter_mut().for_each(|v| *v = ln_1p(*v)),
                }
                for (i, v) in values[..n].iter().enumerate() {
                    // SAFETY: inside the row.
                    unsafe { *self.to.add((w0 + i) * w_pitch + c) = *v };
                }
            }
        }
    }
}

/// ln(1 + x) without branches, so that loops over it become vectors.
///
/// 1 + x = 2^e * m with m in [sqrt(1/2), sqrt(2)), and ln m = 2 artanh((m - 1) / (m + 1)) by its
/// series; what rounding 1 + x loses is put back to first order.
#[inline(always)]
fn ln_1p(x: f32) -> f32 {
    const SQRT_HALF: u32 = 0x3f35_04f3;
    let u = 1.0 + x;
    let lost = (x - (u - 1.0)) / u;
    let shifted = u.to_bits().wrapping_sub(SQRT_HALF);
    let exponent = ((shifted as i32) >> 23) as f32;
    let m = f32::from_bits((shifted & 0x007f_ffff).wrapping_add(SQRT_HALF));
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    let series = z * (2.0 / 3.0 + z * (2.0 / 5.0 + z * (2.0 / 7.0 + z * (2.0 / 9.0))));
    let ln = exponent * std::f32::consts::LN_2 + (2.0 * s + (s * series + lost));
    let ln = if u > 0.0 { ln } else { f32::NEG_INFINITY };
    let ln = if u < 0.0 || x.is_nan() { f32::NAN } else { ln };
    if x == f32::INFINITY { x } else { ln }
}

#[inline(always)]
fn relu(x: f32) -> f32 {
    // Not-a-number stays what it is.
    if x <= 0.0 { 0.0 } else { x }
}

#[inline(always)]
fn leaky(sign: f32, value: f32, slope: f32) -> f32 {
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
}

/// y = f(a, b, y).
fn map<F>(call: &mut Call, a: View, b: View, y: Out, f: F) -> Result<Work, Canceled>
where
    F: Fn(f32, f32, f32) -> f32 + Copy + Sync,
{
    a.grid.assert_like(y.grid);
    b.grid.assert_like(y.grid);
    let (level, width, c) = (call.team.level(), y.grid.extent[2], y.grid.channels);
    let dense = [a.grid, b.grid, y.grid].iter().all(|g| g.pitch[3] == c);
    let (count, len) = if dense { (1, width * c) } else { (width, c) };
    let cost = ELEMENT * (width * c) as u64;
    call.team
        .ranges(call.progress, y.grid.rows(), cost, &|rows| {
            for row in rows {
                let (ra, rb, ry) = (
                    a.grid.row_offset(row),
                    b.grid.row_offset(row),
                    y.grid.row_offset(row),
                );
                for w in 0..count {
                    let at = |g: &Grid, row: usize| row + w * g.pitch[3];
                    let (ra, rb) = (at(a.grid, ra), at(b.grid, rb));
                    let (a, b) = (&a.data[ra..ra + len], &b.data[rb..rb + len]);
                    // SAFETY: rows of the box are disjoint, and each is in one range.
                    let y = unsafe {
                        let start = y.data.get().add(at(y.grid, ry));
                        std::slice::from_raw_parts_mut(start, len)
                    };
                    level.run(Map { a, b, y, f });
                }
            }
        })?;
    Ok(y.work)
}

struct Map<'a, F> {
    a: &'a [f32],
    b: &'a [f32],
    y: &'a mut [f32],
    f: F,
}

impl<F: Fn(f32, f32, f32) -> f32> Op for Map<'_, F> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for ((y, a), b) in self.y.iter_mut().zip(self.a).zip(self.b) {
            *y = (self.f)(*a, *b, *y);
        }
    }
}

/// y = f(y).
fn update<F>(call: &mut Call, y: Out, f: F) -> Result<Work, Canceled>
where
    F: Fn(f32) -> f32 + Copy + Sync,
{
    let (level, width, c) = (call.team.level(), y.grid.extent[2], y.grid.channels);
    let (count, len) = if y.grid.pitch[3] == c {
        (1, width * c)
    } else {
        (width, c)
    };
    let cost = ELEMENT * (width * c) as u64;
    call.team
        .ranges(call.progress, y.grid.rows(), cost, &|rows| {
            for row in rows {
                for w in 0..count {
                    let at = y.grid.row_offset(row) + w * y.grid.pitch[3];
                    // SAFETY: rows of the box are disjoint, and each is in one range.
                    let y = unsafe { std::slice::from_raw_parts_mut(y.data.get().add(at), len) };
                    level.run(Update { y, f });
                }
            }
        })?;
    Ok(y.work)
}

struct Update<'a, F> {
    y: &'a mut [f32],
    f: F,
}

impl<F: Fn(f32) -> f32> Op for Update<'_, F> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        self.y.iter_mut().for_each(|y| *y = (self.f)(*y));
    }
}
