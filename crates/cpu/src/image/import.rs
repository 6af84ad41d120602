//! Import of planar images: (N, C, D, H, W) as stored to channels last, cast and transformed.

use crate::grid::{Call, Canceled, Grid, Shared, ViewMut, Work};
use crate::simd::{Op, Simd};
use crate::team::ELEMENT;

/// Elements that are transformed together.
const IMPORT: usize = 64;

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
            // SAFETY: a row of the box, which is borrowed alone; each is in one range, and the team has
            // the level.
            unsafe {
                let to = out.get().add(g.row_offset(row));
                level.run(ImportRow {
                    planes,
                    from,
                    plane: pitch[1],
                    transform,
                    to,
                    grid: g,
                });
            }
        }
    })?;
    Ok(work)
}

/// Pointers: a row of the box, which no other thread accesses.
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
        let (width, channels) = (self.grid.extent[2], self.grid.channels);
        let mut values = [[0f32; IMPORT]; 4];
        for c0 in (0..channels).step_by(4) {
            let planes = (channels - c0).min(4);
            for w0 in (0..width).step_by(IMPORT) {
                let n = (width - w0).min(IMPORT);
                for (c, values) in values[..planes].iter_mut().enumerate() {
                    self.transformed((c0 + c) * self.plane + w0, n, values);
                }
                // SAFETY: inside the row.
                unsafe { self.store::<S>(&values[..planes], (w0, n), c0) };
            }
        }
    }
}

impl ImportRow<'_> {
    /// `n` values of the row, from an offset on.
    #[inline(always)]
    fn transformed(&self, offset: usize, n: usize, values: &mut [f32; IMPORT]) {
        let at = self.from + offset;
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
    }

    /// Stores `n` values from position `w0` on, of up to four channels from `c0` on.
    ///
    /// # Safety
    /// Positions and channels are in the row.
    #[inline(always)]
    unsafe fn store<S: Simd>(&self, values: &[[f32; IMPORT]], (w0, n): (usize, usize), c0: usize) {
        let w_pitch = self.grid.pitch[3];
        let mut done = 0;
        // SAFETY: guaranteed by the caller; a vector of positions only where there are as many.
        unsafe {
            let to = self.to.add(w0 * w_pitch + c0);
            if let [a, b, c, d] = values {
                while done + S::LANES <= n {
                    let four = [a, b, c, d].map(|v| S::load(v.as_ptr().add(done)));
                    S::store_columns(four, to.add(done * w_pitch), w_pitch);
                    done += S::LANES;
                }
            }
            for (c, values) in values.iter().enumerate() {
                for (i, v) in values[..n].iter().enumerate().skip(done) {
                    *to.add(i * w_pitch + c) = *v;
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
