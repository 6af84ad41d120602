//! First-order motion of particles, and their counts in voxels.

use rustfft::num_complex::Complex32;

use crate::field::LinearModes;
use crate::fourier::CubeTransform;

/// Binary places of a position in voxels; positions up to 2^15 voxels from home are exact.
///
/// Rounding down is then a shift, where `f32::floor` is a call on the baseline processor.
const FIXED_BITS: u32 = 16;

/// Displacement of lattice particles today, and the linear density contrast at the same points.
///
/// Source: Zel'dovich 1970, A&A 5, 84: a particle from q is at q + D(z) psi(q), where the linear
/// density contrast today is -div psi.
pub struct Displacement {
    n: usize,
    box_mpc_h: f64,
    /// psi_w + i psi_h in Mpc/h: one complex transform yields two real fields.
    wh: Vec<Complex32>,
    /// psi_d in Mpc/h + i times the density contrast.
    d_density: Vec<Complex32>,
}

impl Displacement {
    /// Displacements of a field, whose mode of wave vector k is `i k / k^2` times the density's.
    pub fn new(modes: &LinearModes) -> Self {
        let n = modes.points_per_dim();
        let unit = std::f64::consts::TAU / modes.box_mpc_h();
        let mut wh = vec![Complex32::default(); n * n * n];
        let mut d_density = wh.clone();
        let index = |wave: [i32; 3]| {
            let [d, h, w] = wave.map(|w| w.rem_euclid(n as i32) as usize);
            (d * n + h) * n + w
        };
        modes.for_each_pair(|wave, density| {
            let square: i32 = wave.iter().map(|w| w * w).sum();
            let per_wave = density * Complex32::i() / (unit * f64::from(square)) as f32;
            let [d, h, w] = wave.map(|w| w as f32);
            // The opposite wave carries the conjugate mode of each real field; for the gradient
            // the sign of the wave cancels that of the imaginary unit.
            let (here, opposite) = (index(wave), index(wave.map(|w| -w)));
            wh[here] = Complex32::new(w, h) * per_wave;
            wh[opposite] = Complex32::new(w, h) * per_wave.conj();
            d_density[here] = per_wave * d + Complex32::i() * density;
            d_density[opposite] = per_wave.conj() * d + Complex32::i() * density.conj();
        });
        let transform = CubeTransform::to_points(n);
        let mut spare = vec![Complex32::default(); n * n * n];
        transform.process(&mut wh, &mut spare);
        transform.process(&mut d_density, &mut spare);
        Self {
            n,
            box_mpc_h: modes.box_mpc_h(),
            wh,
            d_density,
        }
    }

    /// Displacement of lattice point `i` along (d, h, w), Mpc/h, today.
    pub fn at(&self, i: usize) -> [f32; 3] {
        [self.d_density[i].re, self.wh[i].im, self.wh[i].re]
    }

    /// Linear density contrast at lattice point `i`, today.
    pub fn linear_density(&self, i: usize) -> f32 {
        self.d_density[i].im
    }

    /// Moves the particles by `growth` times their displacement and counts them in voxels.
    ///
    /// `counts` has the layout (D, H, W) with `grid` voxels a side, a power of two that divides
    /// the lattice, and receives one for each particle. A particle belongs to the voxel that it is
    /// in. Returns false if a voxel overflows.
    pub fn count(&self, growth: f64, grid: usize, counts: &mut [i16]) -> bool {
        let per_voxel = self.n / grid;
        assert!(
            grid.is_power_of_two() && per_voxel * grid == self.n,
            "grid divides lattice"
        );
        assert!(counts.len() == grid * grid * grid, "one count per voxel");
        let to_fixed = (growth * grid as f64 / self.box_mpc_h) as f32 * (1 << FIXED_BITS) as f32;
        let home = |i: usize| (2 * i + 1) as i32 * (1 << (FIXED_BITS - 1)) / per_voxel as i32;
        let voxel = |home: i32, shift: f32| {
            // The box is periodic and a power of two wide, so the low bits are the voxel.
            (home.wrapping_add((to_fixed * shift) as i32) >> FIXED_BITS) as usize & (grid - 1)
        };
        let mut particle = 0;
        for d in 0..self.n {
            for h in 0..self.n {
                for w in 0..self.n {
                    let [shift_d, shift_h, shift_w] = self.at(particle);
                    particle += 1;
                    let row = voxel(home(d), shift_d) * grid + voxel(home(h), shift_h);
                    let slot = &mut counts[row * grid + voxel(home(w), shift_w)];
                    match slot.checked_add(1) {
                        Some(more) => *slot = more,
                        None => return false,
                    }
                }
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fourier::signed_wave;
    use crate::parameters::Cosmology;
    use crate::power::{LinearPower, top_hat};
    use crate::random::CounterRng;

    const FIDUCIAL: Cosmology = Cosmology {
        omega_m: 0.3,
        sigma_8: 0.8,
        n_s: 0.96,
        h_0: 70.0,
    };

    fn displacement(n: usize, side: f64, universe: u64) -> Displacement {
        let power = LinearPower::new(&FIDUCIAL);
        Displacement::new(&LinearModes::new(
            n,
            side,
            &power,
            CounterRng::new(9, universe),
        ))
    }

    fn to_modes(n: usize, values: impl Iterator<Item = f32>) -> Vec<Complex32> {
        let mut cube: Vec<Complex32> = values.map(|x| Complex32::new(x, 0.0)).collect();
        let mut spare = cube.clone();
        CubeTransform::to_modes(n).process(&mut cube, &mut spare);
        cube
    }

    #[test]
    fn divergence_of_the_displacement_is_minus_the_density() {
        let (n, side) = (16, 100.0);
        let moved = displacement(n, side, 0);
        let count = n * n * n;
        let axes: Vec<Vec<Complex32>> = (0..3)
            .map(|axis| to_modes(n, (0..count).map(|i| moved.at(i)[axis])))
            .collect();
        let density = to_modes(n, (0..count).map(|i| moved.linear_density(i)));
        let largest = density.iter().map(|mode| mode.norm()).fold(0.0, f32::max);
        for i in 0..count {
            let waves = [i / n / n, i / n % n, i % n].map(|w| signed_wave(w, n) as f32);
            let unit = std::f32::consts::TAU / side as f32;
            let divergence: Complex32 = (0..3)
                .map(|axis| Complex32::i() * unit * waves[axis] * axes[axis][i])
                .sum();
            assert!(
                (divergence + density[i]).norm() < 1e-4 * largest,
                "mode {i}"
            );
        }
    }

    #[test]
    fn linear_density_smoothed_over_8_mpc_h_has_the_wanted_variance() {
        let (n, side) = (64, 256.0);
        let mut variance = 0.0;
        let universes = 4;
        for universe in 0..universes {
            let moved = displacement(n, side, universe);
            let modes = to_modes(n, (0..n * n * n).map(|i| moved.linear_density(i)));
            for (i, mode) in modes.iter().enumerate() {
                let square: i32 = [i / n / n, i / n % n, i % n]
                    .map(|w| signed_wave(w, n).pow(2))
                    .iter()
                    .sum();
                let k = std::f64::consts::TAU / side * f64::from(square).sqrt();
                let amplitude = f64::from(mode.norm()) / (n * n * n) as f64;
                variance += (amplitude * top_hat(8.0 * k)).powi(2) / universes as f64;
            }
        }
        // Some 3000 pairs of modes per universe carry the variance.
        assert!(
            (variance.sqrt() / 0.8 - 1.0).abs() < 0.04,
            "sigma_8 {}",
            variance.sqrt()
        );
    }

    #[test]
    fn particles_that_do_not_move_fill_all_voxels_alike() {
        let moved = displacement(32, 100.0, 0);
        let mut counts = vec![0i16; 16 * 16 * 16];
        assert!(moved.count(0.0, 16, &mut counts));
        assert!(counts.iter().all(|count| *count == 8));
    }

    #[test]
    fn an_overflowing_voxel_is_noticed() {
        let moved = displacement(16, 100.0, 0);
        let mut counts = vec![i16::MAX - 3; 16 * 16 * 16];
        assert!(!moved.count(1.0, 16, &mut counts));
    }
}
