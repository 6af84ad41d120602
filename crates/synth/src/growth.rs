//! How fast linear density contrasts grow.

/// Growth factor of the linear density contrast at a redshift, relative to today.
///
/// For flat universes of matter and a cosmological constant; 1 at redshift 0, `1 / (1 + z)` when
/// all is matter. `omega_m` in (0, 1], `redshift >= 0`. Errors: none.
/// Source: Heath 1977, growing mode D(a) ~ H(a) * integral of da' / (a' H(a'))^3 from 0 to a.
pub fn growth_factor(omega_m: f64, redshift: f64) -> f64 {
    growing_mode(omega_m, 1.0 / (1.0 + redshift)) / growing_mode(omega_m, 1.0)
}

/// The growing mode, not normalized, at scale factor `a`.
fn growing_mode(omega_m: f64, a: f64) -> f64 {
    let omega_lambda = 1.0 - omega_m;
    // With a' = t^2 the integrand 2 t^4 / (Omega_m + Omega_Lambda t^6)^(3/2) is smooth at zero,
    // and Simpson's rule converges at its full fourth order.
    let integrand = |t: f64| 2.0 * t.powi(4) / (omega_m + omega_lambda * t.powi(6)).powf(1.5);
    let hubble = (omega_m / a.powi(3) + omega_lambda).sqrt();
    hubble * simpson(integrand, 0.0, a.sqrt(), 256)
}

/// Simpson's rule over an even number of intervals.
pub(crate) fn simpson(f: impl Fn(f64) -> f64, low: f64, high: f64, intervals: usize) -> f64 {
    assert!(
        intervals.is_multiple_of(2),
        "Simpson's rule needs an even number of intervals"
    );
    let step = (high - low) / intervals as f64;
    let inner: f64 = (1..intervals)
        .map(|i| f(low + step * i as f64) * if i % 2 == 1 { 4.0 } else { 2.0 })
        .sum();
    step / 3.0 * (f(low) + inner + f(high))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Carroll, Press and Turner 1992, equation 29, with the densities at redshift z.
    fn carroll_press_turner(omega_m: f64, redshift: f64) -> f64 {
        let suppression = |z: f64| {
            let matter = omega_m * (1.0 + z).powi(3);
            let total = matter + 1.0 - omega_m;
            let (m, l) = (matter / total, (1.0 - omega_m) / total);
            2.5 * m / (m.powf(4.0 / 7.0) - l + (1.0 + m / 2.0) * (1.0 + l / 70.0))
        };
        suppression(redshift) / suppression(0.0) / (1.0 + redshift)
    }

    #[test]
    fn is_one_today_and_falls_into_the_past() {
        for omega_m in [0.2, 0.3, 0.4, 1.0] {
            assert!((growth_factor(omega_m, 0.0) - 1.0).abs() < 1e-12);
            let factors: Vec<f64> = [0.0, 0.5, 1.5, 3.0, 10.0]
                .map(|z| growth_factor(omega_m, z))
                .into();
            assert!(
                factors.windows(2).all(|pair| pair[1] < pair[0]),
                "{factors:?}"
            );
        }
    }

    #[test]
    fn grows_with_the_scale_factor_when_all_is_matter() {
        for z in [0.5, 3.0, 100.0] {
            assert!((growth_factor(1.0, z) * (1.0 + z) - 1.0).abs() < 1e-9);
        }
        // With a cosmological constant the same law holds between two early times.
        let early = growth_factor(0.3, 100.0) / growth_factor(0.3, 50.0);
        assert!((early - 51.0 / 101.0).abs() < 1e-4, "{early}");
    }

    #[test]
    fn agrees_with_the_published_approximation() {
        for omega_m in [0.2, 0.27, 0.3, 0.33, 0.5] {
            for z in [0.5, 1.5, 3.0, 10.0] {
                let ratio = growth_factor(omega_m, z) / carroll_press_turner(omega_m, z);
                assert!(
                    (ratio - 1.0).abs() < 0.01,
                    "Omega_m {omega_m}, z {z}: ratio {ratio}"
                );
            }
        }
    }
}
