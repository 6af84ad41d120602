//! Branch-free scalar functions in f32, so that loops over them vectorize.

use std::f32::consts::{LN_2, LOG2_E};

/// e^x for x up to about 0, with a relative error of 2e-7; 0 on underflow.
///
/// x = n ln 2 + r with |r| <= ln(2) / 2, and e^r by its series.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    /// Adding it leaves the nearest integer in the low bits of the mantissa.
    const ROUND: f32 = 12_582_912.0;
    const LEAST: f32 = -87.0;
    /// ln 2 in two parts: products of the first with integers are exact.
    const HIGH: f32 = 0.693_359_4;
    const LOW: f32 = -2.121_944_4e-4;
    const { assert!(HIGH + LOW == LN_2) };
    let inside = if x < LEAST { LEAST } else { x };
    let shifted = inside * LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (inside - n * HIGH) - n * LOW;
    let (r2, r4) = (r * r, (r * r) * (r * r));
    let low = (1.0 + r) + r2 * (1.0 / 2.0 + r * (1.0 / 6.0));
    let high = (1.0 / 24.0 + r * (1.0 / 120.0)) + r2 * (1.0 / 720.0 + r * (1.0 / 5_040.0));
    let power = (low + r4 * high) * f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    if x < LEAST { 0.0 } else { power }
}

/// e^x - 1 for x up to about 0, with a relative error of 4e-7.
#[inline(always)]
pub(crate) fn exp_minus_one(x: f32) -> f32 {
    /// Its series is exact enough above; below, the difference of the power and 1 is.
    const FAR: f32 = -0.5;
    let near = if x < FAR { FAR } else { x };
    let low = 1.0 / 24.0 + near * (1.0 / 120.0 + near * (1.0 / 720.0 + near * (1.0 / 5_040.0)));
    let series = near * (1.0 + near * (0.5 + near * (1.0 / 6.0 + near * low)));
    if x < FAR { exp(x) - 1.0 } else { series }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_those_of_the_library() {
        for i in 0..200_000 {
            let x = -f32::from(i as u16) / 700.0;
            let (got, want) = (f64::from(exp(x)), f64::from(x).exp());
            assert!(
                (got - want).abs() <= 2e-7 * want + 1e-37,
                "{x}: {got} {want}"
            );
        }
        assert_eq!(
            [exp(0.0), exp(-1e9), exp(f32::NEG_INFINITY)],
            [1.0, 0.0, 0.0]
        );
        assert!(exp(f32::NAN).is_nan());
        for i in 0..200_000 {
            let x = -f32::from(i as u16) / 20_000.0;
            let (got, want) = (f64::from(exp_minus_one(x)), f64::from(x).exp_m1());
            assert!((got - want).abs() <= 4e-7 * want.abs(), "{x}: {got} {want}");
        }
        assert!(exp_minus_one(f32::NAN).is_nan());
    }
}
