//! The linear power spectrum of matter today.

use std::f64::consts::{E, PI};

use crate::growth::simpson;
use crate::parameters::{Cosmology, OMEGA_B};

/// Temperature of the microwave background, K (Fixsen 2009).
const CMB_TEMPERATURE_K: f64 = 2.7255;

/// Radius of the spheres that define sigma_8, Mpc/h.
const SIGMA_RADIUS_MPC_H: f64 = 8.0;

/// The transfer function without acoustic oscillations.
///
/// Source: Eisenstein and Hu 1998, ApJ 496, 605, equations 26 and 28 to 31.
#[derive(Debug, Clone, Copy)]
pub struct Transfer {
    /// Omega_m h, the shape parameter without baryons.
    gamma: f64,
    little_h: f64,
    theta_squared: f64,
    sound_horizon_mpc: f64,
    alpha_gamma: f64,
}

impl Transfer {
    /// The transfer function of a cosmology with the given baryon density.
    ///
    /// Equations 26 (sound horizon) and 31 (suppression by baryons).
    pub fn new(cosmology: &Cosmology, omega_b: f64) -> Self {
        let little_h = cosmology.little_h();
        let matter = cosmology.omega_m * little_h * little_h;
        let baryons = omega_b * little_h * little_h;
        let fraction = omega_b / cosmology.omega_m;
        Self {
            gamma: cosmology.omega_m * little_h,
            little_h,
            theta_squared: (CMB_TEMPERATURE_K / 2.7).powi(2),
            sound_horizon_mpc: 44.5 * (9.83 / matter).ln()
                / (1.0 + 10.0 * baryons.powf(0.75)).sqrt(),
            alpha_gamma: 1.0 - 0.328 * (431.0 * matter).ln() * fraction
                + 0.38 * (22.3 * matter).ln() * fraction * fraction,
        }
    }

    /// Transfer function at a wave number in h/Mpc; 1 at the largest scales.
    ///
    /// Equations 28 (effective wave number), 29 (form) and 30 (effective shape).
    pub fn at(&self, k_h_mpc: f64) -> f64 {
        let k_mpc = k_h_mpc * self.little_h;
        let acoustic = (0.43 * k_mpc * self.sound_horizon_mpc).powi(4);
        let shape = self.gamma * (self.alpha_gamma + (1.0 - self.alpha_gamma) / (1.0 + acoustic));
        let q = k_h_mpc * self.theta_squared / shape;
        let logarithm = (2.0 * E + 1.8 * q).ln();
        let curvature = 14.2 + 731.0 / (1.0 + 62.5 * q);
        logarithm / (logarithm + curvature * q * q)
    }

    /// Comoving sound horizon at the drag epoch, Mpc (equation 26).
    pub fn sound_horizon_mpc(&self) -> f64 {
        self.sound_horizon_mpc
    }
}

/// The linear power spectrum today, `A k^n_s T(k)^2`, with A fixed by sigma_8.
#[derive(Debug, Clone, Copy)]
pub struct LinearPower {
    transfer: Transfer,
    n_s: f64,
    amplitude: f64,
}

impl LinearPower {
    /// The spectrum of a cosmology.
    pub fn new(cosmology: &Cosmology) -> Self {
        let transfer = Transfer::new(cosmology, OMEGA_B);
        let unit = Self {
            transfer,
            n_s: cosmology.n_s,
            amplitude: 1.0,
        };
        let variance = unit.variance_in_spheres(SIGMA_RADIUS_MPC_H);
        Self {
            amplitude: cosmology.sigma_8 * cosmology.sigma_8 / variance,
            ..unit
        }
    }

    /// Power at a wave number in h/Mpc (greater than 0), in (Mpc/h)^3.
    pub fn at(&self, k_h_mpc: f64) -> f64 {
        self.amplitude * k_h_mpc.powf(self.n_s) * self.transfer.at(k_h_mpc).powi(2)
    }

    /// Variance of the density contrast averaged over spheres of a radius in Mpc/h.
    ///
    /// The integral of k^3 P(k) W(kR)^2 / (2 pi^2) over ln k.
    pub fn variance_in_spheres(&self, radius_mpc_h: f64) -> f64 {
        let integrand = |ln_k: f64| {
            let k = ln_k.exp();
            k.powi(3) * self.at(k) * top_hat(k * radius_mpc_h).powi(2) / (2.0 * PI * PI)
        };
        simpson(integrand, 1e-5_f64.ln(), (50.0 / radius_mpc_h).ln(), 1536)
    }
}

/// Fourier transform of a sphere of unit radius and unit integral.
pub fn top_hat(x: f64) -> f64 {
    if x < 1e-2 {
        // Series, because the difference below loses all digits for small x.
        return 1.0 - x * x / 10.0;
    }
    3.0 * (x.sin() - x * x.cos()) / x.powi(3)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIDUCIAL: Cosmology = Cosmology {
        omega_m: 0.3,
        sigma_8: 0.8,
        n_s: 0.96,
        h_0: 70.0,
    };

    fn wave_numbers() -> impl Iterator<Item = f64> {
        (0..120).map(|i| 1e-4 * 10f64.powf(f64::from(i) / 20.0))
    }

    #[test]
    fn transfer_is_one_at_large_scales_and_falls() {
        let transfer = Transfer::new(&FIDUCIAL, OMEGA_B);
        assert!((transfer.at(1e-6) - 1.0).abs() < 1e-4);
        let values: Vec<f64> = wave_numbers().map(|k| transfer.at(k)).collect();
        assert!(values.windows(2).all(|pair| pair[1] < pair[0]));
    }

    #[test]
    fn transfer_without_baryons_agrees_with_bardeen_and_others() {
        // Bardeen, Bond, Kaiser and Szalay 1986, equation G3, for a shape Omega_m h.
        let bbks = |k: f64| {
            let q = k / (0.3 * 0.7);
            let poly =
                1.0 + 3.89 * q + (16.1 * q).powi(2) + (5.46 * q).powi(3) + (6.71 * q).powi(4);
            (1.0 + 2.34 * q).ln() / (2.34 * q) * poly.powf(-0.25)
        };
        let transfer = Transfer::new(&FIDUCIAL, 1e-9);
        for k in wave_numbers().filter(|k| *k < 10.0) {
            let ratio = transfer.at(k) / bbks(k);
            assert!((ratio - 1.0).abs() < 0.1, "k {k}: ratio {ratio}");
        }
    }

    #[test]
    fn sound_horizon_agrees_with_a_published_value() {
        // Anderson et al. 2012, MNRAS 427, 3435: 153.19 Mpc by the exact integral of the same
        // paper (equation 6) for Omega_m 0.274, h 0.7, Omega_b h^2 0.0224. Equation 26 is stated
        // to hold within 2 %.
        let boss = Cosmology {
            omega_m: 0.274,
            ..FIDUCIAL
        };
        let horizon = Transfer::new(&boss, 0.0224 / 0.49).sound_horizon_mpc();
        assert!((horizon / 153.19 - 1.0).abs() < 0.02, "{horizon}");
    }

    #[test]
    fn baryons_suppress_small_scales_only() {
        let (with, without) = (
            Transfer::new(&FIDUCIAL, OMEGA_B),
            Transfer::new(&FIDUCIAL, 1e-9),
        );
        assert!((with.at(1e-4) / without.at(1e-4) - 1.0).abs() < 1e-3);
        let suppression = with.at(1.0) / without.at(1.0);
        assert!((0.6..0.85).contains(&suppression), "{suppression}");
    }

    #[test]
    fn spectrum_has_the_wanted_normalization_and_slope() {
        let power = LinearPower::new(&FIDUCIAL);
        assert!((power.variance_in_spheres(8.0).sqrt() - 0.8).abs() < 1e-9);
        let slope = (power.at(2e-5) / power.at(1e-5)).log2();
        assert!((slope - 0.96).abs() < 1e-2, "{slope}");
        // Cold dark matter turns over near the horizon at equality, about 0.016 h/Mpc.
        let peak = wave_numbers().max_by(|a, b| power.at(*a).total_cmp(&power.at(*b)));
        assert!((0.01..0.025).contains(&peak.unwrap()), "{peak:?}");
    }

    #[test]
    fn top_hat_is_continuous() {
        assert!((top_hat(0.009_999) - top_hat(0.010_001)).abs() < 1e-6);
        assert!(
            top_hat(4.493_409_457_9).abs() < 1e-9,
            "first zero, tan x = x"
        );
    }
}
