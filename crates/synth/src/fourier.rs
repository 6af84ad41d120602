//! Complex Fourier transforms of a cube.

use rustfft::{Fft, FftDirection, FftPlanner, num_complex::Complex32};
use std::sync::Arc;

/// Side of the square tiles of a transposition: two tiles of 8-byte numbers fit the first cache.
const TILE: usize = 16;

/// A transform of cubes of `n` points a side, stored as `[(d * n + h) * n + w]`, not normalized.
pub struct CubeTransform {
    n: usize,
    lines: Arc<dyn Fft<f32>>,
}

impl CubeTransform {
    /// Sum of `f(x) exp(-i k x)`: from points to modes.
    pub fn to_modes(n: usize) -> Self {
        Self::new(n, FftDirection::Forward)
    }

    /// Sum of `f(k) exp(+i k x)`: from modes to points.
    pub fn to_points(n: usize) -> Self {
        Self::new(n, FftDirection::Inverse)
    }

    fn new(n: usize, direction: FftDirection) -> Self {
        Self {
            n,
            lines: FftPlanner::new().plan_fft(n, direction),
        }
    }

    /// Transforms `cube` in place; `spare` is scratch of the same length, `n^3`.
    pub fn process(&self, cube: &mut Vec<Complex32>, spare: &mut Vec<Complex32>) {
        let n = self.n;
        assert!(
            cube.len() == n * n * n && spare.len() == cube.len(),
            "a cube of {n} points"
        );
        let mut scratch = vec![Complex32::default(); self.lines.get_inplace_scratch_len()];
        // Three rotations of the axes bring the cube back to its own order.
        for _ in 0..3 {
            self.lines.process_with_scratch(cube, &mut scratch);
            transpose(cube, spare, n * n, n);
            std::mem::swap(cube, spare);
        }
    }
}

/// `to[c * rows + r] = from[r * columns + c]`.
fn transpose(from: &[Complex32], to: &mut [Complex32], rows: usize, columns: usize) {
    for row_tile in (0..rows).step_by(TILE) {
        for column_tile in (0..columns).step_by(TILE) {
            for column in column_tile..(column_tile + TILE).min(columns) {
                for row in row_tile..(row_tile + TILE).min(rows) {
                    to[column * rows + row] = from[row * columns + column];
                }
            }
        }
    }
}

/// Signed wave number, in units of the fundamental, of position `i` of a transform of length `n`.
pub fn signed_wave(i: usize, n: usize) -> i32 {
    if 2 * i < n {
        i as i32
    } else {
        i as i32 - n as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_mode_becomes_one_plane_wave() {
        for n in [8usize, 12, 20] {
            let mut cube = vec![Complex32::default(); n * n * n];
            // The wave (d, h, w) = (1, 2, -3).
            cube[(n + 2) * n + n - 3] = Complex32::new(1.0, 0.0);
            let mut spare = cube.clone();
            CubeTransform::to_points(n).process(&mut cube, &mut spare);
            for (d, h, w) in [(0, 0, 0), (1, 2, 3), (n - 1, 0, 1), (3, n - 2, 5)] {
                let phase =
                    std::f64::consts::TAU * (d as f64 + 2.0 * h as f64 - 3.0 * w as f64) / n as f64;
                let got = cube[(d * n + h) * n + w];
                assert!((f64::from(got.re) - phase.cos()).abs() < 1e-5);
                assert!((f64::from(got.im) - phase.sin()).abs() < 1e-5);
            }
            CubeTransform::to_modes(n).process(&mut cube, &mut spare);
            let volume = (n * n * n) as f32;
            assert!((cube[(n + 2) * n + n - 3].re / volume - 1.0).abs() < 1e-5);
            assert!(cube[0].norm() / volume < 1e-5);
        }
    }

    #[test]
    fn waves_are_signed() {
        let waves: Vec<i32> = (0..6).map(|i| signed_wave(i, 6)).collect();
        assert_eq!(waves, [0, 1, 2, -3, -2, -1]);
    }
}
