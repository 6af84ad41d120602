//! Smooth activations: GELU, SiLU, sigmoid, tanh, ELU.

use crate::grid::{Call, Canceled, View, ViewMut, Work};
use crate::math::{exp, exp_minus_one};
use crate::row_kernels::{each_range, read, write};
use crate::rows::Rows;
use crate::simd::{Op, Simd};
use std::ops::Range;

/// An elementwise function in a form that the compiler vectorizes.
pub trait Function: Copy + Sync {
    /// Nominal flops of an element, forward and backward.
    const FLOPS: [u64; 2];

    /// The value at x.
    fn value(self, x: f32) -> f32;

    /// The derivative at x.
    fn slope(self, x: f32) -> f32;
}

/// x / 2 (1 + erf(x / sqrt(2)))
#[derive(Clone, Copy, Debug)]
pub struct Gelu;

/// x / (1 + exp(-x))
#[derive(Clone, Copy, Debug)]
pub struct Silu;

/// 1 / (1 + exp(-x))
#[derive(Clone, Copy, Debug)]
pub struct Sigmoid;

/// tanh(x)
#[derive(Clone, Copy, Debug)]
pub struct Tanh;

/// x for x > 0, else alpha (exp(x) - 1)
#[derive(Clone, Copy, Debug)]
pub struct Elu {
    /// Minus the limit for very negative inputs.
    pub alpha: f32,
}

/// Cumulative distribution function of the standard normal distribution at x, to 2e-7, and its density.
///
/// Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26.
#[inline(always)]
fn normal(x: f32) -> (f32, f32) {
    const INVERSE_ROOT_TAU: f32 = 0.398_942_3;
    let bell = exp(-0.5 * x * x);
    let t = 1.0 / (1.0 + 0.327_591_1 * std::f32::consts::FRAC_1_SQRT_2 * x.abs());
    let series = t
        * (0.254_829_6
            + t * (-0.284_496_72 + t * (1.421_413_8 + t * (-1.453_152_1 + t * 1.061_405_4))));
    let beyond = 0.5 * series * bell;
    let below = if x > 0.0 { 1.0 - beyond } else { beyond };
    (below, INVERSE_ROOT_TAU * bell)
}

impl Function for Gelu {
    const FLOPS: [u64; 2] = [20, 30];

    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        x * normal(x).0
    }

    #[inline(always)]
    fn slope(self, x: f32) -> f32 {
        let (below, density) = normal(x);
        below + x * density
    }
}

/// `1 / (1 + exp(-x))`
#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    let small = exp(-x.abs());
    let part = if x > 0.0 { 1.0 } else { small };
    part / (1.0 + small)
}

impl Function for Silu {
    const FLOPS: [u64; 2] = [20, 25];

    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        x * sigmoid(x)
    }

    #[inline(always)]
    fn slope(self, x: f32) -> f32 {
        let sigmoid = sigmoid(x);
        sigmoid * (1.0 + x * (1.0 - sigmoid))
    }
}

impl Function for Sigmoid {
    const FLOPS: [u64; 2] = [20, 25];

    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        sigmoid(x)
    }

    #[inline(always)]
    fn slope(self, x: f32) -> f32 {
        let small = exp(-x.abs());
        small / ((1.0 + small) * (1.0 + small))
    }
}

impl Function for Tanh {
    const FLOPS: [u64; 2] = [25, 25];

    /// From the magnitude, with the sign of x.
    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        let below = exp_minus_one(-2.0 * x.abs());
        let magnitude = -below / (2.0 + below);
        if x < 0.0 { -magnitude } else { magnitude }
    }

    /// 4 e / (1 + e)^2 with e = exp(-2 |x|), which cancels nothing.
    #[inline(always)]
    fn slope(self, x: f32) -> f32 {
        let small = exp(-2.0 * x.abs());
        4.0 * small / ((1.0 + small) * (1.0 + small))
    }
}

impl Function for Elu {
    const FLOPS: [u64; 2] = [25, 25];

    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        let below = self.alpha * exp_minus_one(if x > 0.0 { 0.0 } else { x });
        if x > 0.0 { x } else { below }
    }

    #[inline(always)]
    fn slope(self, x: f32) -> f32 {
        let below = self.alpha * exp(if x > 0.0 { 0.0 } else { x });
        if x > 0.0 { 1.0 } else { below }
    }
}

/// y = the value at x.
///
/// Errors of all kernels of this module: [`Canceled`]. They panic if boxes differ in shape.
pub fn activation_forward<F: Function>(
    call: &mut Call,
    function: F,
    x: View,
    y: ViewMut,
) -> Result<Work, Canceled> {
    x.grid.assert_like(y.grid);
    let (x, y) = (Rows::from(x), Rows::from(y));
    // SAFETY: boxes of one shape, of which y is borrowed alone.
    unsafe {
        each_range(call, y.grid, 2, |positions| Forward::<F> {
            x,
            y,
            positions,
            function,
        })?
    };
    Ok(Work {
        flops: F::FLOPS[0] * y.grid.elements() as u64,
        bytes: x.grid.bytes() + y.grid.bytes(),
    })
}

/// Pointers: the boxes have the positions, and no other thread accesses those of y.
struct Forward<'a, F> {
    x: Rows<'a>,
    y: Rows<'a>,
    positions: Range<usize>,
    function: F,
}

impl<F: Function> Op for Forward<'_, F> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let function = self.function;
        for at in self.positions {
            // SAFETY: each position is in one range.
            let (x, y) = unsafe { (read(&self.x, at), write(&self.y, at)) };
            y.iter_mut()
                .zip(x)
                .for_each(|(y, x)| *y = function.value(*x));
        }
    }
}

/// dx (+)= dy times the derivative at x.
pub fn activation_backward<F: Function>(
    call: &mut Call,
    function: F,
    x: View,
    dy: View,
    dx: ViewMut,
    accumulate: bool,
) -> Result<Work, Canceled> {
    x.grid.assert_like(dx.grid);
    dy.grid.assert_like(dx.grid);
    let (x, dy, dx) = (Rows::from(x), Rows::from(dy), Rows::from(dx));
    // SAFETY: boxes of one shape, of which dx is borrowed alone.
    unsafe {
        each_range(call, dx.grid, 2, |positions| Backward::<F> {
            x,
            dy,
            dx,
            accumulate,
            positions,
            function,
        })?;
    }
    Ok(Work {
        flops: F::FLOPS[1] * dx.grid.elements() as u64,
        bytes: (3 + u64::from(accumulate)) * dx.grid.bytes(),
    })
}

/// Pointers: the boxes have the positions, and no other thread accesses those of dx.
struct Backward<'a, F> {
    x: Rows<'a>,
    dy: Rows<'a>,
    dx: Rows<'a>,
    accumulate: bool,
    positions: Range<usize>,
    function: F,
}

impl<F: Function> Op for Backward<'_, F> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let function = self.function;
        for at in self.positions {
            // SAFETY: each position is in one range.
            let (x, dy, dx) =
                unsafe { (read(&self.x, at), read(&self.dy, at), write(&self.dx, at)) };
            let all = dx.iter_mut().zip(dy).zip(x);
            if self.accumulate {
                all.for_each(|((dx, dy), x)| *dx += *dy * function.slope(*x))
            } else {
                all.for_each(|((dx, dy), x)| *dx = *dy * function.slope(*x))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gelu_is_within_a_millionth() {
        // By mpmath 1.3.
        for (x, value, slope) in GELU {
            let got = [Gelu.value(x), Gelu.slope(x)];
            assert!((got[0] - value).abs() < 1e-6, "{x}: {got:?} {value}");
            assert!((got[1] - slope).abs() < 1e-6, "{x}: {got:?} {slope}");
        }
    }

    #[test]
    fn silu_is_within_a_millionth() {
        for i in -4000..=4000 {
            let x = i as f32 / 100.0;
            let wide = f64::from(x);
            let sigmoid = 1.0 / (1.0 + (-wide).exp());
            let slope = sigmoid * (1.0 + wide * (1.0 - sigmoid));
            let got = [Silu.value(x), Silu.slope(x)].map(f64::from);
            let value = wide * sigmoid;
            assert!(
                (got[0] - value).abs() < 1e-6 * (1.0 + value.abs()),
                "{x}: {got:?} {value}"
            );
            assert!((got[1] - slope).abs() < 1e-6, "{x}: {got:?} {slope}");
        }
        assert_eq!([Silu.value(-1e30), Silu.value(1e30)], [0.0, 1e30]);
        assert!(Silu.value(f32::NAN).is_nan());
    }

    /// Values and derivatives against f64, relative to the value where it is above `least`.
    fn check<F: Function>(function: F, exact: impl Fn(f64) -> [f64; 2], least: f64) {
        let fine = (-1000..=1000).map(|i| i as f32 / 1e6);
        for x in (-4000..=4000).map(|i| i as f32 / 100.0).chain(fine) {
            let got = [function.value(x), function.slope(x)].map(f64::from);
            for (got, exact) in got.into_iter().zip(exact(f64::from(x))) {
                let error = (got - exact).abs();
                assert!(error <= 1e-6 * exact.abs().max(least), "{x}: {got} {exact}");
            }
        }
        assert!(function.value(f32::NAN).is_nan());
        assert!(function.slope(f32::NAN).is_nan());
    }

    #[test]
    fn sigmoid_tanh_and_elu_are_within_a_millionth() {
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        check(Sigmoid, |x| [sigmoid(x), sigmoid(x) * sigmoid(-x)], 1e-30);
        check(Tanh, |x| [x.tanh(), x.cosh().powi(-2)], 1e-30);
        let elu = |x: f64| {
            if x > 0.0 {
                [x, 1.0]
            } else {
                [1.5 * x.exp_m1(), 1.5 * x.exp()]
            }
        };
        check(Elu { alpha: 1.5 }, elu, 1e-30);
        for function in [1e30, -1e30].map(|x| (Sigmoid.value(x), Tanh.value(x))) {
            assert!(
                [(1.0, 1.0), (0.0, -1.0)].contains(&function),
                "{function:?}"
            );
        }
    }

    const GELU: [(f32, f32, f32); 12] = [
        (-6.0, -5.9195258e-09, -3.546871e-08),
        (-3.0, -0.004049694, -0.011945647),
        (-1.5, -0.1002108, -0.1274692),
        (-0.75, -0.16997051, 0.00077427825),
        (-0.125, -0.05628272, 0.40078208),
        (0.0, 0.0, 0.5),
        (0.125, 0.06871728, 0.59921795),
        (0.5, 0.34573123, 0.8674951),
        (1.0, 0.8413448, 1.0833155),
        (2.0, 1.9544997, 1.0852318),
        (4.5, 4.4999847, 1.0000685),
        (8.0, 8.0, 1.0),
    ];
}
