//! Softmax over the channels of each position.

use crate::grid::{Call, Canceled, View, ViewMut, Work};
use crate::math::exp;
use crate::rows::Rows;
use crate::sequence::row_kernels::{each_range, load, read, sum_pair, sum_vectors, write};
use crate::sequence::scores::maximum;
use crate::simd::{Op, Simd};
use std::ops::Range;

/// y = exp(x) over its sum over the channels. Counts 20 flops an element.
///
/// Errors of all kernels of this module: [`Canceled`]. They panic if boxes differ in shape.
pub(crate) fn softmax(call: &mut Call, x: View, y: ViewMut) -> Result<Work, Canceled> {
    x.grid.assert_like(y.grid);
    let (x, y) = (Rows::from(x), Rows::from(y));
    // SAFETY: boxes of one shape, of which y is borrowed alone.
    unsafe { each_range(call, y.grid, 4, |positions| Forward { x, y, positions })? };
    Ok(Work {
        flops: 20 * y.grid.elements() as u64,
        bytes: x.grid.bytes() + y.grid.bytes(),
    })
}

/// Pointers: the boxes have the positions, and no other thread accesses those of y.
struct Forward<'a> {
    x: Rows<'a>,
    y: Rows<'a>,
    positions: Range<usize>,
}

impl Op for Forward<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for at in self.positions {
            // SAFETY: each position is in one range.
            let (x, y) = unsafe { (read(&self.x, at), write(&self.y, at)) };
            // A NaN stays one through its exponential.
            let most = maximum(x);
            y.iter_mut()
                .zip(x)
                .for_each(|(y, x)| *y = exp::<S>(*x - most));
            let [sum, _] = sum_pair([y, y, y], |[y, ..]| (f64::from(y), 0.0));
            let inverse = (1.0 / sum) as f32;
            y.iter_mut().for_each(|y| *y *= inverse);
        }
    }
}

/// dx (+)= y (dy - s), s being the sum of y dy over the channels. Counts 4 flops an element.
pub(crate) fn softmax_backward(
    call: &mut Call,
    [y, dy]: [View; 2],
    dx: ViewMut,
    accumulate: bool,
) -> Result<Work, Canceled> {
    y.grid.assert_like(dx.grid);
    dy.grid.assert_like(dx.grid);
    let (y, dy, dx) = (Rows::from(y), Rows::from(dy), Rows::from(dx));
    // SAFETY: boxes of one shape, of which dx is borrowed alone.
    unsafe {
        each_range(call, dx.grid, 2, |positions| Backward {
            y,
            dy,
            dx,
            accumulate,
            positions,
        })?;
    }
    Ok(Work {
        flops: 4 * dx.grid.elements() as u64,
        bytes: (3 + u64::from(accumulate)) * dx.grid.bytes(),
    })
}

/// Pointers: the boxes have the positions, and no other thread accesses those of dx.
struct Backward<'a> {
    y: Rows<'a>,
    dy: Rows<'a>,
    dx: Rows<'a>,
    accumulate: bool,
    positions: Range<usize>,
}

impl Op for Backward<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for at in self.positions {
            // SAFETY: each position is in one range.
            let (y, dy, dx) =
                unsafe { (read(&self.y, at), read(&self.dy, at), write(&self.dx, at)) };
            let rows = [y, dy].map(<[f32]>::as_ptr);
            let [sum, _] = sum_vectors::<S>(y.len(), |at, lanes| {
                // SAFETY: elements of the rows.
                let [y, dy] = unsafe { rows.map(|row| load::<S>(row, at, lanes)) };
                let product = S::mul(y, dy);
                [product, product]
            });
            let (sum, all) = (sum as f32, dx.iter_mut().zip(y).zip(dy));
            if self.accumulate {
                all.for_each(|((dx, y), dy)| *dx += *y * (*dy - sum))
            } else {
                all.for_each(|((dx, y), dy)| *dx = *y * (*dy - sum))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{softmax, softmax_backward};
    use crate::grid::{Call, Grid, View, ViewMut};
    use crate::simd::Level;
    use crate::team::Team;

    fn with_call<R>(body: impl FnOnce(&mut Call) -> R) -> R {
        let mut team = Team::new(1, Level::detect()).expect("a team of one thread");
        body(&mut Call {
            team: &mut team,
            scratch: &mut [],
            progress: &mut || true,
        })
    }

    #[test]
    fn large_numbers_do_not_overflow() {
        let grid = Grid::dense(1, [1, 1, 2], 3);
        let x = [1e30, 1e30, -1e30, -3e38, -3e38, -3e38];
        let mut y = [0.0; 6];
        with_call(|call| softmax(call, View::new(&x, &grid), ViewMut::new(&mut y, &grid)))
            .expect("nothing cancels it");
        let third = 1.0 / 3.0;
        assert_eq!(y, [0.5, 0.5, 0.0, third, third, third]);
        let dy = [1.0, 3.0, 5.0, 2.0, 2.0, 2.0];
        let mut dx = [0.0; 6];
        with_call(|call| {
            let inputs = [View::new(&y, &grid), View::new(&dy, &grid)];
            softmax_backward(call, inputs, ViewMut::new(&mut dx, &grid), false)
        })
        .expect("nothing cancels it");
        assert_eq!(dx[..3], [-0.5, 0.5, 0.0]);
        assert!(dx[3..].iter().all(|dx| dx.abs() < 1e-6), "{dx:?}");
    }

    #[test]
    fn nan_stays_within_its_position() {
        let grid = Grid::dense(1, [1, 1, 2], 2);
        let x = [f32::NAN, 0.0, 0.0, 0.0];
        let mut y = [0.0; 4];
        with_call(|call| softmax(call, View::new(&x, &grid), ViewMut::new(&mut y, &grid)))
            .expect("nothing cancels it");
        assert!(y[0].is_nan() && y[1].is_nan(), "{y:?}");
        assert_eq!(y[2..], [0.5, 0.5]);
    }
}
