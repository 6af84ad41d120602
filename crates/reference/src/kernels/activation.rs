//! Functions of one element.

use super::Call;
use crate::values::each_element;
use partita_program::Activation;
use partita_program::fields::{ActivationBackward, ActivationForward};
use partita_run::RunError;
use std::f64::consts::{FRAC_1_SQRT_2, PI};

/// Cumulative distribution function of the standard normal distribution, to about 2e-16.
///
/// Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.6 and 7.1.14.
fn normal_below(x: f64) -> f64 {
    let z = x.abs() * FRAC_1_SQRT_2;
    let bell = (-z * z).exp() / PI.sqrt();
    let above = if z < 2.0 {
        let (mut term, mut sum) = (z, z);
        for n in 1..100 {
            term *= 2.0 * z * z / f64::from(2 * n + 1);
            sum += term;
        }
        0.5 - bell * sum
    } else {
        let mut fraction = 0.0;
        for n in (1..200).rev() {
            fraction = 0.5 * f64::from(n) / (z + fraction);
        }
        0.5 * bell / (z + fraction)
    };
    if x > 0.0 { 1.0 - above } else { above }
}

/// `1 / (1 + exp(-x))`, without overflow.
fn sigmoid(x: f64) -> f64 {
    let small = (-x.abs()).exp();
    let part = if x > 0.0 { 1.0 } else { small };
    part / (1.0 + small)
}

fn value(function: Activation, x: f64) -> f64 {
    match function {
        Activation::Gelu => x * normal_below(x),
        Activation::Silu => x * sigmoid(x),
        Activation::Sigmoid => sigmoid(x),
        Activation::Tanh => x.tanh(),
        Activation::Elu { alpha } => {
            if x > 0.0 {
                x
            } else {
                alpha * x.exp_m1()
            }
        }
        Activation::GeluTanh => x * sigmoid(2.0 * bent(x)[0]),
        Activation::Mish => x * mish_gate(x),
        Activation::Softplus { beta } => match beta * x {
            far if far > SOFTPLUS_EDGE => x,
            inside => (inside.max(0.0) + (-inside.abs()).exp().ln_1p()) / beta,
        },
        Activation::Hardtanh { low, high } | Activation::Clamp { low, high } => {
            if x < low {
                low
            } else if x > high {
                high
            } else {
                x
            }
        }
        Activation::HardSigmoid => hard_sigmoid(x),
        Activation::HardSwish => x * hard_sigmoid(x),
        Activation::Affine { scale, shift } => scale * x + shift,
    }
}

/// Beyond it PyTorch takes a softplus for the identity.
const SOFTPLUS_EDGE: f64 = 20.0;

/// The argument of tanh in the approximation of GELU, and its derivative.
fn bent(x: f64) -> [f64; 2] {
    const CUBIC: f64 = 0.044_715;
    let factor = (2.0 / PI).sqrt();
    [
        factor * (x + CUBIC * x.powi(3)),
        factor * (1.0 + 3.0 * CUBIC * x * x),
    ]
}

/// `tanh(ln(1 + exp(x)))`
fn mish_gate(x: f64) -> f64 {
    let small = (-x.abs()).exp();
    let (above, rest) = if x > 0.0 {
        (1.0 + 2.0 * small, 2.0 * small * small)
    } else {
        (small * (small + 2.0), 2.0)
    };
    above / (above + rest)
}

fn hard_sigmoid(x: f64) -> f64 {
    if x <= -3.0 {
        0.0
    } else if x >= 3.0 {
        1.0
    } else {
        (x + 3.0) / 6.0
    }
}

fn slope(function: Activation, x: f64) -> f64 {
    match function {
        Activation::Gelu => {
            let density = (-0.5 * x * x).exp() / (2.0 * PI).sqrt();
            normal_below(x) + x * density
        }
        Activation::Silu => sigmoid(x) * (1.0 + x * sigmoid(-x)),
        Activation::Sigmoid => sigmoid(x) * sigmoid(-x),
        Activation::Tanh => 1.0 / x.cosh().powi(2),
        Activation::Elu { alpha } => {
            if x > 0.0 {
                1.0
            } else {
                alpha * x.exp()
            }
        }
        Activation::GeluTanh => {
            let [at, rise] = bent(x);
            let (gate, rest) = (sigmoid(2.0 * at), sigmoid(-2.0 * at));
            gate + 2.0 * x * gate * rest * rise
        }
        Activation::Mish => {
            let gate = mish_gate(x);
            gate + x * sigmoid(x) * (1.0 - gate * gate)
        }
        Activation::Softplus { beta } => match beta * x {
            far if far > SOFTPLUS_EDGE => 1.0,
            inside => sigmoid(inside),
        },
        Activation::Hardtanh { low, high } => f64::from(u8::from(low < x && x < high)),
        Activation::Clamp { low, high } => f64::from(u8::from(low <= x && x <= high)),
        Activation::HardSigmoid => f64::from(u8::from(-3.0 < x && x < 3.0)) / 6.0,
        Activation::HardSwish => {
            if x <= -3.0 {
                0.0
            } else if x >= 3.0 {
                1.0
            } else {
                x / 3.0 + 0.5
            }
        }
        Activation::Affine { scale, .. } => scale,
    }
}

pub(super) fn forward(of: ActivationForward<'_>, call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    let (function, x, y) = (*of.function, of.x, of.y);
    assert_eq!(x.extent, y.extent, "{x} and {y} have one shape");
    let (x, y) = (call.values(x), call.values(y));
    let visits = each_element(y.extent(), call.progress, |i| {
        y.set(i, value(function, x.get(i)));
    })?;
    Ok(function.flops()[0] * visits)
}

pub(super) fn backward(
    of: ActivationBackward<'_>,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    let (function, x, dy, dx) = (*of.function, of.x, of.dy, of.dx);
    assert_eq!(x.extent, dy.extent, "{x} and {dy} have one shape");
    assert_eq!(x.extent, dx.extent, "{x} and {dx} have one shape");
    let (x, dy, dx) = (
        call.values(x),
        call.values(dy),
        call.result(dx, *of.accumulate),
    );
    let visits = each_element(dy.extent(), call.progress, |i| {
        dx.put(i, slope(function, x.get(i)) * dy.get(i), *of.accumulate);
    })?;
    Ok(function.flops()[1] * visits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_normal_distribution_is_exact() {
        // To 17 digits by mpmath 1.3, ncdf.
        for (x, expected) in NORMAL {
            let got = normal_below(x);
            assert!((got - expected).abs() < 3e-16, "{x}: {got} {expected}");
            assert!(
                (got / expected - 1.0).abs() < 4e-14,
                "{x}: {got} {expected}"
            );
        }
    }

    #[test]
    fn slopes_are_those_of_the_values() {
        for function in Activation::ALL {
            for i in -60..60 {
                // Not at 0, where the second derivative of an ELU jumps.
                let (x, h) = (f64::from(2 * i + 1) / 16.0, 1e-5);
                let ends = [x + h, x - h].map(|x| value(function, x));
                let expected = (ends[0] - ends[1]) / (2.0 * h);
                let got = slope(function, x);
                assert!(
                    (got - expected).abs() < 1e-9,
                    "{function:?} at {x}: {got} {expected}"
                );
            }
        }
        // To 17 digits by Python 3.11.
        for (function, x, expected) in [
            (Activation::Sigmoid, -2.0, 0.119_202_922_022_117_55),
            (Activation::Tanh, 0.5, 0.462_117_157_260_009_74),
            (
                Activation::Elu { alpha: 1.5 },
                -1.0,
                -0.948_180_838_242_836_5,
            ),
            (Activation::Elu { alpha: 1.5 }, 3.0, 3.0),
            // By PyTorch 2.15.
            (Activation::GeluTanh, -0.7, GELU_TANH),
            (Activation::Mish, -0.7, MISH),
            (Activation::Softplus { beta: 2.0 }, -0.7, SOFTPLUS),
            (Activation::Softplus { beta: 2.0 }, 11.0, 11.0),
            (RELU6, 7.0, 6.0),
            (RELU6, -1.0, 0.0),
            (Activation::HardSigmoid, 1.5, 0.75),
            (Activation::HardSwish, 1.5, 1.125),
        ] {
            let got = value(function, x);
            assert!((got - expected).abs() < 1e-15, "{function:?}: {got}");
        }
        let silu = [-800.0, -3.0, 0.5, 40.0].map(|x| value(Activation::Silu, x));
        let expected = [
            0.0,
            -0.142_277_619_532_700_35,
            0.311_229_665_600_927_3,
            40.0,
        ];
        for (got, expected) in silu.into_iter().zip(expected) {
            assert!((got - expected).abs() < 1e-15, "{got} {expected}");
        }
    }

    const RELU6: Activation = Activation::Hardtanh {
        low: 0.0,
        high: 6.0,
    };
    const GELU_TANH: f64 = -0.169_429_865_294_883_21;
    const MISH: f64 = -0.267_870_234_795_500_9;
    const SOFTPLUS: f64 = 0.110_208_704_959_225_47;
    const NORMAL: [(f64, f64); 13] = [
        (-8.5, 9.479534822203318e-18),
        (-3.0, 0.0013498980316300946),
        (-2.8284, 0.0023390656954665975),
        (-2.8285, 0.002338335054464852),
        (-1.0, 0.15865525393145705),
        (-0.3, 0.3820885778110474),
        (0.0, 0.5),
        (0.001, 0.500398942213911),
        (0.7, 0.758036347776927),
        (1.9, 0.9712834401839981),
        (2.8284, 0.9976609343045334),
        (3.5, 0.9997673709209645),
        (6.0, 0.9999999990134123),
    ];
}
