//! Random numbers that are a pure function of (seed, universe, stream, item).

/// What a number is drawn for; streams never share numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// The cosmological parameters.
    Parameters,
    /// The Fourier modes of the linear density.
    Modes,
    /// What a volume or an image shows.
    Scene,
    /// What disturbs its values.
    Noise,
}

impl Stream {
    fn tag(self) -> u32 {
        match self {
            Stream::Parameters => 1 << 16,
            Stream::Modes => 2 << 16,
            Stream::Scene => 3 << 16,
            Stream::Noise => 4 << 16,
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
        let [a, b, _, _] = self.rng.words(Stream::Scene, self.next);
        self.next += 1;
        low + (high - low) * to_53_bits(a, b) / (1u64 << 53) as f64
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
    fn streams_universes_and_seeds_differ() {
        let base = CounterRng::new(1, 2).words(Stream::Modes, 3);
        assert_ne!(base, CounterRng::new(1, 2).words(Stream::Parameters, 3));
        assert_ne!(base, CounterRng::new(1, 3).words(Stream::Modes, 3));
        assert_ne!(base, CounterRng::new(2, 2).words(Stream::Modes, 3));
        assert_eq!(base, CounterRng::new(1, 2).words(Stream::Modes, 3));
    }
}
