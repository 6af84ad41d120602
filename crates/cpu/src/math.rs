//! Branch-free scalar functions in f32, so that loops over them vectorize.

use crate::simd::Simd;
use std::f32::consts::{LN_2, LOG2_E};

/// e^x for x up to about 0, with a relative error of 2e-7; 0 on underflow.
///
/// x = n ln 2 + r with |r| <= ln(2) / 2, and e^r by its series.
#[inline(always)]
pub(crate) fn exp<S: Simd>(x: f32) -> f32 {
    /// Adding it leaves the nearest integer in the low bits of the mantissa.
    const ROUND: f32 = 12_582_912.0;
    const LEAST: f32 = -87.0;
    /// ln 2 in two parts: products of the first with integers are exact.
    const HIGH: f32 = 0.693_359_4;
    const LOW: f32 = -2.121_944_4e-4;
    const { assert!(HIGH + LOW == LN_2) };
    let fma = S::multiply_add;
    let inside = if x < LEAST { LEAST } else { x };
    let shifted = fma(inside, LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = fma(-n, LOW, fma(-n, HIGH, inside));
    let (r2, r4) = (r * r, (r * r) * (r * r));
    let low = fma(r2, fma(r, 1.0 / 6.0, 1.0 / 2.0), 1.0 + r);
    let high = fma(r, 1.0 / 120.0, 1.0 / 24.0);
    let high = fma(r2, fma(r, 1.0 / 5_040.0, 1.0 / 720.0), high);
    let power = fma(r4, high, low) * f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    if x < LEAST { 0.0 } else { power }
}

/// e^x - 1 for x up to about 0, with a relative error of 4e-7.
#[inline(always)]
pub(crate) fn exp_minus_one<S: Simd>(x: f32) -> f32 {
    /// Its series is exact enough above; below, the difference of the power and 1 is.
    const FAR: f32 = -0.5;
    let near = if x < FAR { FAR } else { x };
    let next = |factor: f32, sum: f32| S::multiply_add(near, sum, factor);
    let low = next(1.0 / 120.0, next(1.0 / 720.0, 1.0 / 5_040.0));
    let low = next(1.0 / 6.0, next(1.0 / 24.0, low));
    let series = near * next(1.0, next(0.5, low));
    if x < FAR { exp::<S>(x) - 1.0 } else { series }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Level, Op};

    struct Exponentials;

    impl Op for Exponentials {
        type Out = ();

        #[inline(always)]
        unsafe fn run<S: Simd>(self) {
            for i in 0..200_000 {
                let x = -f32::from(i as u16) / 700.0;
                let (got, want) = (f64::from(exp::<S>(x)), f64::from(x).exp());
                let error = (got - want).abs();
                assert!(error <= 2e-7 * want + 1e-37, "{x}: {got} {want}");
            }
            let none = [0.0, -1e9, f32::NEG_INFINITY].map(exp::<S>);
            assert_eq!(none, [1.0, 0.0, 0.0]);
            assert!(exp::<S>(f32::NAN).is_nan());
            for i in 0..200_000 {
                let x = -f32::from(i as u16) / 20_000.0;
                let (got, want) = (f64::from(exp_minus_one::<S>(x)), f64::from(x).exp_m1());
                let error = (got - want).abs();
                assert!(error <= 4e-7 * want.abs(), "{x}: {got} {want}");
            }
            assert!(exp_minus_one::<S>(f32::NAN).is_nan());
        }
    }

    #[test]
    fn exponentials_are_those_of_the_library() {
        for level in Level::all_available() {
            // SAFETY: the level is available.
            unsafe { level.run(Exponentials) };
        }
    }
}
