//! Functions of single numbers in f32, without branches, so that loops over them become vectors.

use std::f32::consts::{LN_2, LOG2_E};

/// e^x for x up to about 0, to 2e-7; 0 for what f32 does not hold.
///
/// x = n ln 2 + r with |r| <= ln(2) / 2, and e^r by its series.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    /// Adding it leaves the nearest whole number in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LEAST: f32 = -87.0;
    /// ln 2 in two parts: products of the first with whole numbers are exact.
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

/// Of the standard normal distribution up to x, to 2e-7, and its density at x.
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

/// x / 2 (1 + erf(x / sqrt(2)))
#[inline(always)]
pub(crate) fn gelu(x: f32) -> f32 {
    x * normal(x).0
}

/// The derivative of [`gelu`].
#[inline(always)]
pub(crate) fn gelu_slope(x: f32) -> f32 {
    let (below, density) = normal(x);
    below + x * density
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
    }

    #[test]
    fn the_gate_is_within_a_millionth() {
        // By mpmath 1.3.
        for (x, value, slope) in GATE {
            assert!((gelu(x) - value).abs() < 1e-6, "{x}: {} {value}", gelu(x));
            assert!(
                (gelu_slope(x) - slope).abs() < 1e-6,
                "{x}: {}",
                gelu_slope(x)
            );
        }
    }

    const GATE: [(f32, f32, f32); 12] = [
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
