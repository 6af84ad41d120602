//! Numbers of values, their extremes, means and deviations.

use serde::Serialize;

/// Values that are converted and counted together.
const BLOCK: usize = 4096;

/// Number of values, their mean, and the sum of squared differences from it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moments {
    /// Number of values.
    pub count: f64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Sum of squared differences from the mean.
    pub squares: f64,
}

impl Moments {
    /// Of values, of which there is at least one.
    pub fn of(values: impl ExactSizeIterator<Item = f64> + Clone) -> Self {
        let count = values.len() as f64;
        let mean = values.clone().sum::<f64>() / count;
        let squares = values.map(|value| (value - mean).powi(2));
        Self {
            count,
            mean,
            squares: squares.sum(),
        }
    }

    /// Adds other values to these.
    ///
    /// Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances"
    /// (1979), equations 2.1.
    pub fn join(&mut self, other: Self) {
        let count = self.count + other.count;
        let distance = other.mean - self.mean;
        self.squares += other.squares + distance.powi(2) * self.count * other.count / count;
        self.mean += distance * other.count / count;
        self.count = count;
    }
}

/// Statistics of stored values. NaN and infinities are counted and left out of all else.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ValueStatistics {
    /// Number of values.
    pub elements: usize,
    /// Of these, NaN.
    pub nan: usize,
    /// Of these, infinite.
    pub infinite: usize,
    /// Smallest finite value; infinite if there is none.
    pub min: f64,
    /// Largest finite value; minus infinity if there is none.
    pub max: f64,
    /// Arithmetic mean of the finite values; 0 if there is none.
    pub mean: f64,
    /// Standard deviation of the finite values, divided by their number, not by one less.
    pub standard_deviation: f64,
}

/// Values that are counted.
#[derive(Clone, Copy, Debug)]
pub struct ValueCount {
    elements: usize,
    nan: usize,
    infinite: usize,
    min: f64,
    max: f64,
    moments: Moments,
}

impl Default for ValueCount {
    fn default() -> Self {
        Self {
            elements: 0,
            nan: 0,
            infinite: 0,
            min: f64::INFINITY,
            max: f64::NEG_INFINITY,
            moments: Moments::default(),
        }
    }
}

impl ValueCount {
    /// Counts `length` values that `value` gives by their position.
    pub fn add(&mut self, length: usize, value: impl Fn(usize) -> f64) {
        let mut finite = Vec::with_capacity(length.min(BLOCK));
        for start in (0..length).step_by(BLOCK) {
            finite.clear();
            for at in start..length.min(start + BLOCK) {
                let value = value(at);
                if value.is_finite() {
                    self.min = self.min.min(value);
                    self.max = self.max.max(value);
                    finite.push(value);
                } else if value.is_nan() {
                    self.nan += 1;
                } else {
                    self.infinite += 1;
                }
            }
            if !finite.is_empty() {
                self.moments.join(Moments::of(finite.iter().copied()));
            }
        }
        self.elements += length;
    }

    /// Adds other counted values to these.
    pub fn join(&mut self, other: &Self) {
        self.elements += other.elements;
        self.nan += other.nan;
        self.infinite += other.infinite;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        if other.moments.count > 0.0 {
            self.moments.join(other.moments);
        }
    }

    /// The one value that all have, of which there is at least one.
    pub fn constant(&self) -> Option<f64> {
        (self.min >= self.max && self.moments.count > 0.0).then_some(self.min)
    }

    /// Statistics of all that was counted.
    pub fn statistics(&self) -> ValueStatistics {
        let moments = self.moments;
        let variance = moments.squares / moments.count.max(1.0);
        ValueStatistics {
            elements: self.elements,
            nan: self.nan,
            infinite: self.infinite,
            min: self.min,
            max: self.max,
            mean: moments.mean,
            standard_deviation: variance.sqrt(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_are_not_finite_are_counted_apart() {
        let values: Vec<f64> = (0..10_000)
            .map(|at| match at {
                17 | 9999 => f64::NAN,
                5000 => f64::NEG_INFINITY,
                at => f64::from(at % 7) + 1e6,
            })
            .collect();
        let (mut first, mut rest) = (ValueCount::default(), ValueCount::default());
        first.add(6000, |at| values[at]);
        rest.add(4000, |at| values[6000 + at]);
        first.join(&rest);
        let found = first.statistics();
        let finite: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
        let mean = finite.iter().sum::<f64>() / finite.len() as f64;
        let squares = finite.iter().map(|v| (v - mean).powi(2)).sum::<f64>();
        let deviation = (squares / finite.len() as f64).sqrt();
        assert_eq!((found.elements, found.nan, found.infinite), (10_000, 2, 1));
        assert_eq!((found.min, found.max), (1e6, 1e6 + 6.0));
        assert!((found.mean - mean).abs() < 1e-6, "{found:?}");
        assert!(
            (found.standard_deviation - deviation).abs() < 1e-9,
            "{found:?}"
        );
        assert_eq!(first.constant(), None);
        let mut one = ValueCount::default();
        one.add(3, |_| -2.0);
        assert_eq!(one.constant(), Some(-2.0));
        assert_eq!(ValueCount::default().constant(), None);
    }
}
