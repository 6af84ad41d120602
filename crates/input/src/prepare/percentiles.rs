//! Exact percentiles of many values in two passes and little memory.
//!
//! The bits of a float, changed a little, have the order of the floats. The first pass counts values by their upper
//! 16 bits; the second counts by their lower 16 bits those that share the upper bits of a percentile.

const BUCKETS: usize = 1 << 16;

/// Numbers of values by their upper 16 bits.
#[derive(Clone, Debug)]
pub(super) struct Ranks(Vec<u64>);

impl Default for Ranks {
    fn default() -> Self {
        Self(vec![0; BUCKETS])
    }
}

/// Numbers of values by their lower 16 bits, among those with certain upper ones.
#[derive(Clone, Debug)]
pub(super) struct Refined {
    /// Upper bits, the values before them, and the counts.
    buckets: Vec<(u32, u64, Vec<u64>)>,
    /// The order statistics below and above each percentile, and the weight of the second.
    wanted: [([u64; 2], f64); 2],
}

/// A word that is larger for a larger float.
fn ordered(value: f32) -> u32 {
    // Both zeros are one value.
    let bits = (value + 0.0).to_bits();
    if bits >> 31 == 0 {
        bits | 1 << 31
    } else {
        !bits
    }
}

fn float_of(word: u32) -> f32 {
    f32::from_bits(if word >> 31 == 1 {
        word & !(1 << 31)
    } else {
        !word
    })
}

impl Ranks {
    pub(super) fn add(&mut self, values: &[f32]) {
        for &value in values {
            self.0[(ordered(value) >> 16) as usize] += 1;
        }
    }

    /// The sums by channel over threads.
    pub(super) fn sum(threads: Vec<Vec<Self>>) -> Vec<Self> {
        let add = |mut all: Vec<Self>, more: Vec<Self>| {
            for (to, from) in all.iter_mut().zip(more) {
                to.0.iter_mut()
                    .zip(from.0)
                    .for_each(|(to, from)| *to += from);
            }
            all
        };
        threads.into_iter().reduce(add).unwrap_or_default()
    }

    /// What the second pass counts. Between two values, a percentile is interpolated linearly.
    ///
    /// Source: Hyndman, Fan, "Sample quantiles in statistical packages" (1996), definition 7.
    pub(super) fn refine(&self, percentiles: [f64; 2]) -> Refined {
        let count: u64 = self.0.iter().sum();
        let last = count.saturating_sub(1);
        let wanted = percentiles.map(|percentile| {
            let position = percentile / 100.0 * last as f64;
            let below = (position.floor() as u64).min(last);
            ([below, (below + 1).min(last)], position - below as f64)
        });
        let mut buckets: Vec<(u32, u64, Vec<u64>)> = Vec::new();
        let mut before = 0;
        for (upper, &here) in self.0.iter().enumerate() {
            let inside = before..before + here;
            if wanted
                .iter()
                .flat_map(|(pair, _)| pair)
                .any(|rank| inside.contains(rank))
            {
                buckets.push((upper as u32, before, vec![0; BUCKETS]));
            }
            before += here;
        }
        Refined { buckets, wanted }
    }
}

impl Refined {
    pub(super) fn add(&mut self, values: &[f32]) {
        for &value in values {
            let word = ordered(value);
            for (upper, _, counts) in &mut self.buckets {
                if word >> 16 == *upper {
                    counts[(word & 0xffff) as usize] += 1;
                }
            }
        }
    }

    /// The sums by channel over threads.
    pub(super) fn sum(threads: Vec<Vec<Self>>) -> Vec<Self> {
        let add = |mut all: Vec<Self>, more: Vec<Self>| {
            for (to, from) in all.iter_mut().zip(more) {
                for ((.., to), (.., from)) in to.buckets.iter_mut().zip(from.buckets) {
                    to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
                }
            }
            all
        };
        threads.into_iter().reduce(add).unwrap_or_default()
    }

    /// The two percentiles.
    pub(super) fn values(&self) -> [f64; 2] {
        self.wanted.map(|([below, above], weight)| {
            let (low, high) = (self.at(below), self.at(above));
            low + weight * (high - low)
        })
    }

    /// The value with this many below it.
    fn at(&self, rank: u64) -> f64 {
        let holds = |&&(_, before, _): &&(u32, u64, Vec<u64>)| before <= rank;
        let Some((upper, before, counts)) = self.buckets.iter().rev().find(holds) else {
            return 0.0;
        };
        let mut before = *before;
        for (lower, &count) in counts.iter().enumerate() {
            before += count;
            if rank < before {
                return f64::from(float_of(upper << 16 | lower as u32));
            }
        }
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn percentiles(values: &[f32], asked: [f64; 2]) -> [f64; 2] {
        let mut ranks = Ranks::default();
        ranks.add(values);
        let mut refined = ranks.refine(asked);
        refined.add(values);
        refined.values()
    }

    #[test]
    fn they_equal_those_of_sorted_values() {
        let mut values: Vec<f32> = (0..5003u32)
            .map(|i| {
                let word = i.wrapping_mul(2_654_435_761) >> 8;
                (word as f32 / 1e4 - 700.0).powi(3) / 1e5
            })
            .collect();
        values.extend([0.0, -0.0, 0.0, 1e-40, -1e30, 1e30]);
        let mut sorted = values.clone();
        sorted.sort_by(f32::total_cmp);
        for asked in [[1.0, 99.0], [0.0, 100.0], [25.0, 50.0], [33.3, 99.99]] {
            let found = percentiles(&values, asked);
            for (found, asked) in found.into_iter().zip(asked) {
                let position = asked / 100.0 * (sorted.len() - 1) as f64;
                let [low, high] = [position.floor(), position.ceil()]
                    .map(|rank| f64::from(sorted[rank as usize]));
                let plain = low + (position - position.floor()) * (high - low);
                let close = (found - plain).abs() <= 1e-12 * plain.abs().max(1e-30);
                assert!(close, "{asked}: {found} and {plain}");
            }
        }
        assert_eq!(percentiles(&[3.5], [1.0, 99.0]), [3.5, 3.5]);
        // As numpy.percentile([1, 2, 3, 4, 10], [10, 60]) has them.
        assert_eq!(
            percentiles(&[10.0, 2.0, 1.0, 4.0, 3.0], [10.0, 60.0]),
            [1.4, 3.4]
        );
    }

    #[test]
    fn words_have_the_order_of_floats() {
        let values = [f32::MIN, -1.5, -1e-40, 0.0, 1e-40, 2.0, f32::MAX];
        assert!(values.is_sorted_by_key(|&value| ordered(value)));
        assert_eq!(values.map(|value| float_of(ordered(value))), values);
        assert_eq!(ordered(0.0), ordered(-0.0));
    }
}
