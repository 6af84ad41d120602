//! Random numbers keyed by global element indices, so that they do not depend on the distribution.

use partita_space::random::absorb;

/// Random numbers of one operation on one sample, by element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draws {
    key: u64,
}

impl Draws {
    /// Keyed by seed, epoch, sample and operation.
    pub fn new(seed: u64, epoch: u64, sample: u64, operation: u32) -> Self {
        let words = [seed, epoch, sample, u64::from(operation)];
        Self {
            key: words.into_iter().fold(0, absorb),
        }
    }

    /// What [`absorb`] mixes the number of an element into.
    pub fn key(&self) -> u64 {
        self.key
    }

    /// Uniform in `[0, 1)`, a multiple of 2^-53. `element` is the index within the sample, in
    /// (D, H, W, C) of the global shape.
    pub fn unit(&self, element: u64) -> f64 {
        self.whole(element) as f64 / (1u64 << 53) as f64
    }

    /// [`Draws::unit`] in units of 2^-53.
    #[inline]
    pub fn whole(&self, element: u64) -> u64 {
        absorb(self.key, element) >> 11
    }
}

/// Uniform in `[0, 1)`, a function of its arguments; see [`Draws`].
pub fn unit_draw(seed: u64, epoch: u64, sample: u64, operation: u32, element: u64) -> f64 {
    Draws::new(seed, epoch, sample, operation).unit(element)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_uniform_and_neighbors_are_uncorrelated() {
        const COUNT: u64 = 100_000;
        let mut buckets = [0u64; 20];
        let mut products = [0.0; 4];
        for element in 0..COUNT {
            let here = unit_draw(7, 1, 3, 2, element);
            buckets[(here * 20.0) as usize] += 1;
            let neighbors = [
                unit_draw(7, 1, 3, 2, element + 1),
                unit_draw(7, 1, 4, 2, element),
                unit_draw(7, 2, 3, 2, element),
                unit_draw(8, 1, 3, 2, element),
            ];
            for (sum, other) in products.iter_mut().zip(neighbors) {
                *sum += (here - 0.5) * (other - 0.5);
            }
        }
        let expected = COUNT as f64 / 20.0;
        let chi: f64 = buckets
            .iter()
            .map(|&n| (n as f64 - expected).powi(2) / expected)
            .sum();
        assert!(chi < 43.8, "chi squared {chi} of 19 degrees of freedom");
        for sum in products {
            let correlation = sum / COUNT as f64 * 12.0;
            assert!(correlation.abs() < 0.015, "{correlation}");
        }
    }

    #[test]
    fn draws_never_change() {
        // Training runs are compared across versions; a change here is a change of every dropout.
        assert_eq!(unit_draw(1, 2, 3, 4, 5), 0.2959291350375478);
        assert_eq!(Draws::new(1, 2, 3, 4).unit(5), 0.2959291350375478);
        assert_ne!(unit_draw(1, 2, 3, 4, 5), unit_draw(2, 1, 3, 4, 5));
    }
}
