//! Robust linear fits to measured times.

use partita_space::{Bytes, Seconds, upper_median};
use serde::{Deserialize, Serialize};

/// `seconds = latency + seconds_per_byte * bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LineFit {
    /// Never negative.
    pub latency: Seconds,
    /// Never negative.
    pub seconds_per_byte: f64,
    /// Mean relative error by leave-one-out cross-validation.
    pub validation_error: f64,
    /// Number of points.
    pub points: usize,
}

/// Why points cannot be fitted.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FitError {
    /// A line needs two points, and cross-validation one more.
    #[error("{points} different sizes were measured; a fit needs at least 3")]
    TooFew {
        /// Number of different sizes.
        points: usize,
    },
    /// A time that is not positive and finite.
    #[error("the time of {bytes} is {seconds}; a time above 0 is needed")]
    Time {
        /// Of the point.
        bytes: Bytes,
        /// Of the point.
        seconds: Seconds,
    },
}

/// Iterations of reweighting; the weights converge after a handful.
const ROUNDS: usize = 20;

/// Multiple of the median relative error beyond which a point loses weight (Huber 1964).
const OUTLIER: f64 = 2.0;

impl LineFit {
    /// The fitted time of a size.
    pub fn seconds(&self, bytes: Bytes) -> Seconds {
        Seconds(self.latency.0 + self.seconds_per_byte * bytes.0 as f64)
    }
}

/// Non-negative least squares of relative errors, robust against outliers (Huber weights).
///
/// Errors: fewer than 3 sizes, or a time that is not positive and finite.
pub fn fit_line(points: &[(Bytes, Seconds)]) -> Result<LineFit, FitError> {
    let is_time = |seconds: Seconds| seconds.0.is_finite() && seconds.0 > 0.0;
    if let Some(&(bytes, seconds)) = points.iter().find(|point| !is_time(point.1)) {
        return Err(FitError::Time { bytes, seconds });
    }
    let mut sizes: Vec<Bytes> = points.iter().map(|point| point.0).collect();
    sizes.sort_unstable();
    sizes.dedup();
    if sizes.len() < 3 {
        return Err(FitError::TooFew {
            points: sizes.len(),
        });
    }
    let plain: Vec<(f64, f64)> = points.iter().map(|&(b, s)| (b.0 as f64, s.0)).collect();
    let (latency, slope) = robust(&plain);
    let mut error = 0.0;
    for left_out in 0..plain.len() {
        let mut others = plain.clone();
        let (bytes, seconds) = others.swap_remove(left_out);
        let (latency, slope) = robust(&others);
        error += ((latency + slope * bytes) / seconds - 1.0).abs();
    }
    Ok(LineFit {
        latency: Seconds(latency),
        seconds_per_byte: slope,
        validation_error: error / plain.len() as f64,
        points: plain.len(),
    })
}

fn robust(points: &[(f64, f64)]) -> (f64, f64) {
    let mut weights: Vec<f64> = points.iter().map(|&(_, y)| 1.0 / (y * y)).collect();
    let mut line = weighted(points, &weights);
    for _ in 0..ROUNDS {
        let errors: Vec<f64> = points
            .iter()
            .map(|&(x, y)| ((line.0 + line.1 * x) / y - 1.0).abs())
            .collect();
        let limit = OUTLIER * upper_median(&errors);
        for ((weight, &error), &(_, y)) in weights.iter_mut().zip(&errors).zip(points) {
            let trust = if error <= limit { 1.0 } else { limit / error };
            *weight = trust / (y * y);
        }
        line = weighted(points, &weights);
    }
    line
}

/// Weighted least squares of a line with both coefficients at least 0.
fn weighted(points: &[(f64, f64)], weights: &[f64]) -> (f64, f64) {
    let (mut w, mut wx, mut wy, mut wxx, mut wxy) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for (&(x, y), &weight) in points.iter().zip(weights) {
        w += weight;
        wx += weight * x;
        wy += weight * y;
        wxx += weight * x * x;
        wxy += weight * x * y;
    }
    let spread = w * wxx - wx * wx;
    let constant = (if w > 0.0 { wy / w } else { 0.0 }, 0.0);
    if spread <= 0.0 {
        return constant;
    }
    let slope = (w * wxy - wx * wy) / spread;
    let latency = (wy - slope * wx) / w;
    if slope < 0.0 {
        return constant;
    }
    if latency < 0.0 {
        return (0.0, wxy / wxx);
    }
    (latency, slope)
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_space::random::{SplitMix, unit};

    fn line(bytes: u64) -> f64 {
        8e-6 + bytes as f64 * 2.661e-11
    }

    fn points(noise: f64) -> Vec<(Bytes, Seconds)> {
        let mut stream = SplitMix(17);
        let point = |power: u32| {
            let bytes = 1 << power;
            let error = noise * (unit(stream.bits()) - 0.5);
            (Bytes(bytes), Seconds(line(bytes) * (1.0 + error)))
        };
        (0..24).map(point).collect()
    }

    #[test]
    fn an_exact_line_is_recovered() {
        let fit = fit_line(&points(0.0)).unwrap();
        assert!((fit.latency.0 / 8e-6 - 1.0).abs() < 1e-6, "{fit:?}");
        assert!(
            (fit.seconds_per_byte / 2.661e-11 - 1.0).abs() < 1e-6,
            "{fit:?}"
        );
        assert!(fit.validation_error < 1e-6);
    }

    #[test]
    fn noise_and_an_outlier_move_it_little() {
        let mut noisy = points(0.1);
        noisy[7].1 = Seconds(noisy[7].1.0 * 20.0);
        let fit = fit_line(&noisy).unwrap();
        assert!((fit.latency.0 / 8e-6 - 1.0).abs() < 0.05, "{fit:?}");
        assert!(
            (fit.seconds_per_byte / 2.661e-11 - 1.0).abs() < 0.05,
            "{fit:?}"
        );
        assert!(
            fit.validation_error > 0.02 && fit.validation_error < 0.2,
            "{fit:?}"
        );
        let expected = fit.latency.0 + 1000.0 * fit.seconds_per_byte;
        assert!((fit.seconds(Bytes(1000)).0 - expected).abs() < 1e-15);
    }

    #[test]
    fn coefficients_stay_physical_and_bad_points_are_refused() {
        let falling: Vec<_> = (1..6)
            .map(|i| (Bytes(i * 100), Seconds(1.0 / i as f64)))
            .collect();
        assert_eq!(fit_line(&falling).unwrap().seconds_per_byte, 0.0);
        let convex: Vec<_> = (1..6)
            .map(|i| (Bytes(i * 100), Seconds(i as f64 * i as f64)))
            .collect();
        assert!(fit_line(&convex).unwrap().latency.0 >= 0.0);
        let two = [
            (Bytes(1), Seconds(1.0)),
            (Bytes(1), Seconds(1.0)),
            (Bytes(2), Seconds(2.0)),
        ];
        assert_eq!(fit_line(&two), Err(FitError::TooFew { points: 2 }));
        let zero = [(Bytes(1), Seconds(0.0))];
        assert!(matches!(fit_line(&zero), Err(FitError::Time { .. })));
    }
}
