//! Seeded random numbers.

use partita_space::random::SplitMix;

/// A stream of random numbers from a seed.
#[derive(Clone, Debug)]
pub struct Draws(SplitMix);

impl Draws {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Self {
        // Decorrelates the streams of neighboring seeds.
        let start = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x5851_F42D_4C95_7F2D;
        Self(SplitMix(start))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.bits()
    }

    /// Uniform in `low..=high`.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        self.0.between(low, high)
    }

    /// Uniform in `[-1, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.bits().is_multiple_of(n)
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        self.0.pick(items)
    }
}
