//! Portable pseudo-random numbers.
//!
//! Source: SplitMix64; Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
//! OOPSLA 2014.

/// Increment of the state.
const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// A stream of random words.
#[derive(Clone, Debug)]
pub struct SplitMix(pub u64);

impl SplitMix {
    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN_GAMMA);
        mix(self.0)
    }

    /// Uniform in `low..=high`, up to a relative error of 2^-64 times the range.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + (self.bits() % (high - low + 1) as u64) as usize
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.between(0, items.len() - 1)]
    }
}

/// The first word of the stream of a seed: a bijection of 64-bit words.
#[inline]
pub fn split_mix(seed: u64) -> u64 {
    mix(seed.wrapping_add(GOLDEN_GAMMA))
}

/// Mixes a word into a key. Two rounds of the output function avoid collisions of adjacent words and keys.
#[inline]
pub fn absorb(key: u64, word: u64) -> u64 {
    mix(key.wrapping_add(GOLDEN_GAMMA) ^ split_mix(word))
}

/// The upper 53 bits of a word as a number in `[0, 1)`.
#[inline]
pub fn unit(word: u64) -> f64 {
    (word >> 11) as f64 / (1u64 << 53) as f64
}

/// The output function.
#[inline]
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_that_of_splitmix64() {
        // First output for seed 0 of Vigna's splitmix64.c.
        assert_eq!(SplitMix(0).bits(), 0xe220_a839_7b1d_cdaf);
        assert_eq!(split_mix(0), 0xe220_a839_7b1d_cdaf);
    }
}
