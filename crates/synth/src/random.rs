//! Random numbers that are a pure function of (seed, universe, stream, item).

/// What a number is drawn for; streams never share numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// The cosmological parameters.
    Parameters,
    /// The Fourier modes of the linear density.
    Modes,
    /// What a volume, an image or a string shows.
    Scene,
    /// What disturbs its values.
    Noise,
    /// Permutations of a dataset.
    Order,
}

impl Stream {
    fn tag(self) -> u32 {
        match self {
            Stream::Parameters => 1 << 16,
            Stream::Modes => 2 << 16,
            Stream::Scene => 3 << 16,
            Stream::Noise => 4 << 16,
            Stream::Order => 5 << 16,
        }
    }
}

/// Philox4x32-10, a counter-based generator: no state, so no order of calls and no threads matter.
///
/// Source: Salmon, Moraes, Dror and Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3",
/// section 3.3 and table 2.
#[derive(Debug, Clone, Copy)]
pub struct CounterRng {
    key: [u32; 2],
    universe: [u32; 2],
}

impl CounterRng {
    /// The generator of one universe of one dataset.
    pub fn new(seed: u64, universe: u64) -> Self {
        Self {
            key: halves(seed),
            universe: halves(universe),
        }
    }

    /// A number from 0 to below 1.
    pub(crate) fn uniform(&self, stream: Stream, item: u64) -> f64 {
        let [low, high, _, _] = self.words(stream, item);
        to_53_bits(low, high) / (1u64 << 53) as f64
    }

    /// Four independent uniform words.
    ///
    /// `item` must be below 2^48; the upper bits name the stream.
    pub fn words(&self, stream: Stream, item: u64) -> [u32; 4] {
        assert!(item < 1 << 48, "random item {item} does not fit 48 bits");
        let [low, high] = halves(item);
        philox(
            [low, high | stream.tag(), self.universe[0], self.universe[1]],
            self.key,
        )
    }

    /// Two independent normal numbers of mean 0 and variance 1 (Box and Muller 1958).
    pub fn normal_pair(&self, stream: Stream, item: u64) -> [f64; 2] {
        let [a, b, c, d] = self.words(stream, item);
        // The half keeps the logarithm away from zero.
        let radius_uniform = (to_53_bits(a, b) + 0.5) / (1u64 << 53) as f64;
        let angle = std::f64::consts::TAU * to_53_bits(c, d) / (1u64 << 53) as f64;
        let radius = (-2.0 * radius_uniform.ln()).sqrt();
        let (sine, cosine) = angle.sin_cos();
        [radius * cosine, radius * sine]
    }
}

/// Uniform numbers of the scene of one sample, one after the other.
#[derive(Debug)]
pub(crate) struct SceneDraws {
    rng: CounterRng,
    next: u64,
}

impl SceneDraws {
    pub(crate) fn new(rng: CounterRng) -> Self {
        Self { rng, next: 0 }
    }

    /// Uniform from `low` to `high`.
    pub(crate) fn between(&mut self, low: f64, high: f64) -> f64 {
        let drawn = self.rng.uniform(Stream::Scene, self.next);
        self.next += 1;
        low + (high - low) * drawn
    }
}

/// Where `place` comes to lie in permutation `which` of the numbers below `len`.
///
/// A Feistel network permutes the numbers of twice as many bits as half of it has; it is gone through
/// again until the number is below `len`. Nothing is kept, so any thread can ask for any place.
/// Panics unless `place < len <= 2^60`. Source: Black and Rogaway 2002, "Ciphers with arbitrary
/// finite domains", the cycle-walking cipher.
pub(crate) fn permuted(seed: u64, which: u64, len: u64, place: u64) -> u64 {
    const ROUNDS: u64 = 8;
    assert!(place < len && len <= 1 << 60, "place {place} of {len}");
    let bits = (64 - (len - 1).leading_zeros()).div_ceil(2).max(1);
    let mask = (1 << bits) - 1;
    let mut number = place;
    loop {
        for round in 0..ROUNDS {
            let (left, right) = (number >> bits, number & mask);
            let words = CounterRng::new(seed, right).words(Stream::Order, which * ROUNDS + round);
            number = right << bits | left ^ u64::from(words[0]) & mask;
        }
        if number < len {
            return number;
        }
    }
}

fn halves(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}

fn to_53_bits(low: u32, high: u32) -> f64 {
    ((u64::from(high) << 32 | u64::from(low)) >> 11) as f64
}

fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let left = 0xD251_1F53 * u64::from(counter[0]);
        let right = 0xCD9E_8D57 * u64::from(counter[2]);
        counter = [
            (right >> 32) as u32 ^ counter[1] ^ key[0],
            right as u32,
            (left >> 32) as u32 ^ counter[3] ^ key[1],
            left as u32,
        ];
        key = [
            key[0].wrapping_add(0x9E37_79B9),
            key[1].wrapping_add(0xBB67_AE85),
        ];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers of the authors' Random123 distribution for philox4x32-10.
    #[test]
    fn agrees_with_the_published_vectors() {
        assert_eq!(
            philox([0; 4], [0; 2]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn normal_numbers_have_normal_moments() {
        let rng = CounterRng::new(3, 7);
        let count = 100_000u64;
        let mut moments = [0.0; 4];
        for item in 0..count {
            for x in rng.normal_pair(Stream::Modes, item) {
                let powers = [x, x * x, x * x * x, x * x * x * x];
                moments
                    .iter_mut()
                    .zip(powers)
                    .for_each(|(sum, p)| *sum += p);
            }
        }
        let [m1, m2, m3, m4] = moments.map(|sum| sum / (2 * count) as f64);
        // Standard errors: 0.0022, 0.0032, 0.0087, 0.022; five of each are allowed.
        assert!(m1.abs() < 0.011 && (m2 - 1.0).abs() < 0.016, "{m1} {m2}");
        assert!(m3.abs() < 0.044 && (m4 - 3.0).abs() < 0.11, "{m3} {m4}");
    }

    #[test]
    fn permutations_meet_every_place_once_and_differ() {
        for len in [1, 2, 3, 10, 17, 256, 1000] {
            let all = |seed, which| -> Vec<u64> {
                (0..len)
                    .map(|place| permuted(seed, which, len, place))
                    .collect()
            };
            let mut sorted = all(3, 1);
            sorted.sort_unstable();
            assert_eq!(sorted, (0..len).collect::<Vec<u64>>());
            if len >= 10 {
                assert_ne!(all(3, 1), all(3, 2), "{len}");
                assert_ne!(all(3, 1), all(4, 1), "{len}");
            }
        }
    }

    /// The mean of every place over many permutations is that of all places.
    #[test]
    fn permutations_favor_no_place() {
        for place in 0..10 {
            let at = |which| permuted(5, which, 10, place) as f64;
            let mean = (0..4000).map(at).sum::<f64>() / 4000.0;
            // Standard error 0.045.
            assert!((mean - 4.5).abs() < 0.2, "{place}: {mean}");
        }
    }

    #[test]
    fn streams_universes_and_seeds_differ() {
        let base = CounterRng::new(1, 2).words(Stream::Modes, 3);
        assert_ne!(base, CounterRng::new(1, 2).words(Stream::Parameters, 3));
        assert_ne!(base, CounterRng::new(1, 3).words(Stream::Modes, 3));
        assert_ne!(base, CounterRng::new(2, 2).words(Stream::Modes, 3));
        assert_eq!(base, CounterRng::new(1, 2).words(Stream::Modes, 3));
    }
}
