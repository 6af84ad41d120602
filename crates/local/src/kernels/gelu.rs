use super::Call;
use super::pointwise::touched;
use crate::values::each_element;
use partita_program::View;
use partita_run::{RunError, Worked};
use std::f64::consts::{FRAC_1_SQRT_2, PI};

/// Of the standard normal distribution up to `x`, to about 2e-16.
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

pub(super) fn forward([x, y]: [&View; 2], call: &mut Call<'_, '_>) -> Result<Worked, RunError> {
    assert_eq!(x.extent, y.extent, "{x} and {y} have one shape");
    let (x, y) = (call.values(x), call.values(y));
    let visits = each_element(y.extent(), call.progress, |i| {
        let value = x.get(i);
        y.set(i, value * normal_below(value));
    })?;
    Ok(Worked {
        flops: 20 * visits,
        bytes: x.bytes() + y.bytes(),
    })
}

pub(super) fn backward(
    [x, dy, dx]: [&View; 3],
    accumulate: bool,
    call: &mut Call<'_, '_>,
) -> Result<Worked, RunError> {
    assert_eq!(x.extent, dy.extent, "{x} and {dy} have one shape");
    assert_eq!(x.extent, dx.extent, "{x} and {dx} have one shape");
    let (x, dy, dx) = (call.values(x), call.values(dy), call.values(dx));
    let visits = each_element(dy.extent(), call.progress, |i| {
        let value = x.get(i);
        let density = (-0.5 * value * value).exp() / (2.0 * PI).sqrt();
        let slope = normal_below(value) + value * density;
        dx.put(i, slope * dy.get(i), accumulate);
    })?;
    Ok(Worked {
        flops: 30 * visits,
        bytes: x.bytes() + dy.bytes() + touched(dx.bytes(), accumulate),
    })
}

#[cfg(test)]
mod tests {
    use super::normal_below;

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
