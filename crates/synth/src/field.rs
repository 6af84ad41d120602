//! The Gaussian random field: Fourier modes of the linear density contrast today.

use rustfft::num_complex::Complex32;

use crate::power::LinearPower;
use crate::random::{CounterRng, Stream};

/// The modes of a periodic box on a lattice of `n` points a side.
///
/// The density contrast is the sum of `mode * exp(i k x)`, k = 2 pi wave / box, over all waves of
/// -n/2 < wave < n/2. A mode and its opposite are conjugate; the mean and the Nyquist planes,
/// whose gradient a lattice cannot represent, are empty.
pub struct LinearModes {
    n: usize,
    box_mpc_h: f64,
    /// Root mean square of a mode, indexed by the square of its wave vector.
    amplitudes: Vec<f32>,
    rng: CounterRng,
}

impl LinearModes {
    /// The field of one universe: `<|mode|^2> = P(k) / volume`, phases from `rng`.
    ///
    /// A mode depends on its wave vector, not on `n`: a finer lattice adds modes and keeps others.
    pub fn new(n: usize, box_mpc_h: f64, power: &LinearPower, rng: CounterRng) -> Self {
        let largest = n.div_ceil(2) - 1;
        let amplitude = |square: usize| {
            let k = std::f64::consts::TAU / box_mpc_h * (square as f64).sqrt();
            (power.at(k) / box_mpc_h.powi(3)).sqrt() as f32
        };
        let mut amplitudes = vec![0.0];
        amplitudes.extend((1..=3 * largest * largest).map(amplitude));
        Self {
            n,
            box_mpc_h,
            amplitudes,
            rng,
        }
    }

    /// Points of the lattice a side.
    pub fn points_per_dim(&self) -> usize {
        self.n
    }

    /// Side of the box, Mpc/h.
    pub fn box_mpc_h(&self) -> f64 {
        self.box_mpc_h
    }

    /// Calls `visit(wave, mode)` once for each pair of opposite waves; `wave` is (d, h, w).
    pub fn for_each_pair(&self, mut visit: impl FnMut([i32; 3], Complex32)) {
        let largest = self.n.div_ceil(2) as i32 - 1;
        for d in 0..=largest {
            for h in -largest..=largest {
                for w in -largest..=largest {
                    if d > 0 || h > 0 || (h == 0 && w > 0) {
                        visit([d, h, w], self.mode([d, h, w]));
                    }
                }
            }
        }
    }

    fn mode(&self, wave: [i32; 3]) -> Complex32 {
        let square: i32 = wave.iter().map(|w| w * w).sum();
        // Half of the variance lies in the real part, half in the imaginary part.
        let scale = self.amplitudes[square as usize] * std::f32::consts::FRAC_1_SQRT_2;
        let item = wave
            .iter()
            .fold(0, |item, w| item << 16 | u64::from(*w as i16 as u16));
        let [re, im] = self.rng.normal_pair(Stream::Modes, item);
        Complex32::new(scale * re as f32, scale * im as f32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::Cosmology;

    const FIDUCIAL: Cosmology = Cosmology {
        omega_m: 0.3,
        sigma_8: 0.8,
        n_s: 0.96,
        h_0: 70.0,
    };

    #[test]
    fn power_of_the_modes_is_the_linear_power() {
        let (n, side) = (48, 300.0);
        let power = LinearPower::new(&FIDUCIAL);
        // Per shell of wave number: sum of |mode|^2 V / P(k), and number of pairs.
        let mut shells = vec![(0.0f64, 0usize); n];
        for universe in 0..4 {
            let modes = LinearModes::new(n, side, &power, CounterRng::new(5, universe));
            modes.for_each_pair(|wave, mode| {
                let length = f64::from(wave.iter().map(|w| w * w).sum::<i32>()).sqrt();
                let expected = power.at(std::f64::consts::TAU / side * length) / side.powi(3);
                let shell = &mut shells[length.round() as usize];
                shell.0 += f64::from(mode.norm_sqr()) / expected;
                shell.1 += 1;
            });
        }
        let filled: Vec<_> = shells.into_iter().filter(|(_, pairs)| *pairs > 0).collect();
        assert!(filled.len() > 30);
        for (sum, pairs) in filled {
            // |mode|^2 of a complex normal number has a relative standard deviation of one.
            let deviation = (sum / pairs as f64 - 1.0) * (pairs as f64).sqrt();
            assert!(
                deviation.abs() < 4.0,
                "{pairs} pairs: {deviation} standard errors"
            );
        }
    }

    #[test]
    fn a_finer_lattice_keeps_the_coarse_modes() {
        let power = LinearPower::new(&FIDUCIAL);
        let collect = |n| {
            let mut all = std::collections::HashMap::new();
            let modes = LinearModes::new(n, 100.0, &power, CounterRng::new(1, 0));
            modes.for_each_pair(|wave, mode| {
                assert!(all.insert(wave, mode).is_none(), "{wave:?} visited twice");
            });
            all
        };
        let (coarse, fine) = (collect(8), collect(16));
        assert_eq!(
            (coarse.len(), fine.len()),
            ((7 * 7 * 7 - 1) / 2, (15 * 15 * 15 - 1) / 2)
        );
        assert!(coarse.iter().all(|(wave, mode)| fine[wave] == *mode));
    }
}
