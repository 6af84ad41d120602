//! The power spectrum of voxel counts: the features of the linear baseline.

use rustfft::num_complex::Complex32;

use crate::error::SynthError;
use crate::fourier::{CubeTransform, signed_wave};

/// Power that stands for "none" where a channel is perfectly even, (Mpc/h)^3.
const POWER_FLOOR: f64 = 1e-6;

/// Spherically averaged power spectra of the channels of a cube of counts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SpectrumSpec {
    /// Voxels a side.
    pub grid: usize,
    /// Side of the periodic box, Mpc/h.
    pub box_mpc_h: f64,
    /// Bins of equal width in wave number, from half the fundamental to just beyond Nyquist.
    pub bins: usize,
}

impl SpectrumSpec {
    /// Log10 of the power in (Mpc/h)^3, bins of the first channel first.
    ///
    /// The contrast is taken to the mean of the channel; neither the noise of the counts nor the
    /// window of the voxel is removed. `counts` has the layout (C, D, H, W), any C.
    /// Errors: `Length` if `counts` is no whole number of channels, `InvalidSpec` for no bins or
    /// for more bins than half the grid.
    pub fn log_power(&self, counts: &[i16]) -> Result<Vec<f64>, SynthError> {
        if self.bins == 0 || self.bins > self.grid / 2 {
            return Err(SynthError::InvalidSpec {
                field: "bins",
                expected: "1 to half the grid",
                got: self.bins.to_string(),
            });
        }
        let voxels = self.grid.pow(3);
        if counts.is_empty() || !counts.len().is_multiple_of(voxels) {
            let expected = counts.len().div_ceil(voxels).max(1) * voxels;
            return Err(SynthError::Length {
                what: "counts",
                expected,
                got: counts.len(),
            });
        }
        let transform = CubeTransform::to_modes(self.grid);
        let mut features = Vec::with_capacity(counts.len() / voxels * self.bins);
        for channel in counts.chunks_exact(voxels) {
            let modes = contrast_modes(channel, &transform);
            features.extend(
                self.binned(&modes)
                    .iter()
                    .map(|p| p.max(POWER_FLOOR).log10()),
            );
        }
        Ok(features)
    }

    /// Mean wave number of the modes of each bin, h/Mpc.
    pub fn wave_numbers(&self) -> Vec<f64> {
        let mut sums = vec![(0.0, 0usize); self.bins];
        self.for_each_mode(|_, bin, length| {
            sums[bin].0 += length * std::f64::consts::TAU / self.box_mpc_h;
            sums[bin].1 += 1;
        });
        sums.into_iter()
            .map(|(sum, modes)| sum / modes as f64)
            .collect()
    }

    fn binned(&self, modes: &[Complex32]) -> Vec<f64> {
        let volume = self.box_mpc_h.powi(3) / (modes.len() as f64).powi(2);
        let mut sums = vec![(0.0, 0usize); self.bins];
        self.for_each_mode(|i, bin, _| {
            sums[bin].0 += f64::from(modes[i].norm_sqr()) * volume;
            sums[bin].1 += 1;
        });
        sums.into_iter()
            .map(|(sum, modes)| sum / modes as f64)
            .collect()
    }

    /// Calls `visit(index, bin, |wave|)` for the modes between half the fundamental and Nyquist.
    fn for_each_mode(&self, mut visit: impl FnMut(usize, usize, f64)) {
        let n = self.grid;
        let squares: Vec<i32> = (0..n).map(|i| signed_wave(i, n).pow(2)).collect();
        for i in 0..n * n * n {
            let square = squares[i / n / n] + squares[i / n % n] + squares[i % n];
            let length = f64::from(square).sqrt();
            let place = (length - 0.5) / (n / 2) as f64;
            if (0.0..1.0).contains(&place) {
                visit(i, (place * self.bins as f64) as usize, length);
            }
        }
    }
}

fn contrast_modes(channel: &[i16], transform: &CubeTransform) -> Vec<Complex32> {
    let total: i64 = channel.iter().map(|count| i64::from(*count)).sum();
    let mean = (total as f64 / channel.len() as f64).max(f64::MIN_POSITIVE);
    let contrast = |count: &i16| Complex32::new((f64::from(*count) / mean - 1.0) as f32, 0.0);
    let mut cube: Vec<Complex32> = channel.iter().map(contrast).collect();
    let mut spare = cube.clone();
    transform.process(&mut cube, &mut spare);
    cube
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{CounterRng, Stream};

    #[test]
    fn noise_is_flat_at_the_inverse_density_of_particles() {
        let spec = SpectrumSpec {
            grid: 32,
            box_mpc_h: 64.0,
            bins: 8,
        };
        let mut counts = vec![0i16; 32 * 32 * 32];
        let particles = 200_000;
        let rng = CounterRng::new(4, 0);
        for item in 0..particles / 4 {
            for word in rng.words(Stream::Modes, item) {
                counts[(word >> 17) as usize] += 1;
            }
        }
        let expected = 64f64.powi(3) / particles as f64;
        for (bin, log) in spec
            .log_power(&counts)
            .unwrap()
            .into_iter()
            .enumerate()
            .skip(1)
        {
            // At least 200 pairs of modes from the second bin on: 7 % standard error.
            let ratio = 10f64.powf(log) / expected;
            assert!((ratio - 1.0).abs() < 0.25, "bin {bin}: {ratio}");
        }
    }

    #[test]
    fn a_plane_wave_appears_in_its_bin_alone() {
        let spec = SpectrumSpec {
            grid: 16,
            box_mpc_h: 100.0,
            bins: 8,
        };
        let counts: Vec<i16> = (0..16 * 16 * 16)
            .map(|i| {
                1000 + (500.0 * (std::f64::consts::TAU * 3.0 * f64::from(i % 16) / 16.0).cos())
                    .round() as i16
            })
            .collect();
        let logs = spec.log_power(&counts).unwrap();
        let strongest = (0..8).max_by(|a, b| logs[*a].total_cmp(&logs[*b]));
        assert_eq!(strongest, Some(2));
        assert!(
            logs.iter()
                .enumerate()
                .all(|(bin, log)| bin == 2 || *log < logs[2] - 4.0)
        );
        assert!(
            (spec.wave_numbers()[2] / (std::f64::consts::TAU * 3.0 / 100.0) - 1.0).abs() < 0.05
        );
    }

    #[test]
    fn refuses_what_does_not_fit() {
        let spec = SpectrumSpec {
            grid: 16,
            box_mpc_h: 100.0,
            bins: 8,
        };
        assert!(matches!(
            spec.log_power(&[0; 100]),
            Err(SynthError::Length { .. })
        ));
        let none = SpectrumSpec { bins: 9, ..spec };
        assert!(matches!(
            none.log_power(&[0; 4096]),
            Err(SynthError::InvalidSpec { .. })
        ));
        assert!(
            spec.log_power(&[0; 4096])
                .unwrap()
                .iter()
                .all(|log| log.is_finite())
        );
    }
}
