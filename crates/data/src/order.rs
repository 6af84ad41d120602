//! The order in which the samples of a split are visited, a pure function of (seed, epoch).
//!
//! Every rank computes the same order alone; nothing is exchanged and no generator has state.

use partita_space::random::split_mix;
use std::num::NonZeroUsize;

/// One mini-batch of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch<'a> {
    /// Position in the epoch.
    pub index: usize,
    /// Sample numbers, in order.
    pub samples: &'a [usize],
    /// Whether it holds fewer samples than the batch size.
    pub partial: bool,
}

/// The permutation of `0..samples` that epoch `epoch` visits.
///
/// Errors: none. Source: Fisher-Yates (Durstenfeld 1964); draw `i` is a hash of
/// (seed, epoch, i, attempt), made unbiased by rejection (Lemire 2019, section 4).
pub fn epoch_order(seed: u64, epoch: u64, samples: usize) -> Vec<usize> {
    let key = split_mix(split_mix(seed).wrapping_add(epoch));
    let mut order: Vec<usize> = (0..samples).collect();
    for last in (1..samples).rev() {
        order.swap(last, below(key, last as u64, last as u64 + 1) as usize);
    }
    order
}

/// The first `kept` samples of [`epoch_order`]: those of an epoch that leaves the others out.
pub fn epoch_samples(seed: u64, epoch: u64, samples: usize, kept: usize) -> Vec<usize> {
    let mut order = epoch_order(seed, epoch, samples);
    order.truncate(kept);
    order
}

/// Cuts an order into batches; the last may be partial.
pub fn batches(order: &[usize], batch: NonZeroUsize) -> impl ExactSizeIterator<Item = Batch<'_>> {
    order
        .chunks(batch.get())
        .enumerate()
        .map(move |(index, samples)| Batch {
            index,
            samples,
            partial: samples.len() < batch.get(),
        })
}

/// A uniform integer in `0..bound`, keyed by (key, counter).
fn below(key: u64, counter: u64, bound: u64) -> u64 {
    let rejected = bound.wrapping_neg() % bound;
    let mut attempt = split_mix(key ^ split_mix(counter));
    loop {
        let product = u128::from(attempt) * u128::from(bound);
        if product as u64 >= rejected {
            return (product >> 64) as u64;
        }
        attempt = split_mix(attempt);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_a_permutation() {
        for samples in [0, 1, 2, 3, 17, 1000] {
            let mut order = epoch_order(7, 3, samples);
            order.sort_unstable();
            assert_eq!(order, (0..samples).collect::<Vec<_>>());
        }
    }

    #[test]
    fn it_depends_on_seed_and_epoch_and_on_nothing_else() {
        let order = epoch_order(7, 3, 100);
        assert_eq!(order, epoch_order(7, 3, 100));
        assert_ne!(order, epoch_order(7, 4, 100));
        assert_ne!(order, epoch_order(8, 3, 100));
        assert_ne!(order, epoch_order(3, 7, 100));
        // Epochs of neighboring seeds must not coincide shifted by one.
        assert_ne!(epoch_order(7, 4, 100), epoch_order(8, 3, 100));
    }

    #[test]
    fn an_epoch_leaves_out_the_end_of_its_order() {
        for epoch in 0..4 {
            let all = epoch_order(7, epoch, 10);
            assert_eq!(epoch_samples(7, epoch, 10, 8), all[..8]);
            assert_eq!(epoch_samples(7, epoch, 10, 10), all);
        }
    }

    #[test]
    fn the_order_of_a_seed_is_fixed_for_good() {
        assert_eq!(epoch_order(1, 0, 8), FIXED);
    }

    /// Computed by an independent transcription of the definition in Python.
    const FIXED: [usize; 8] = [6, 7, 2, 1, 3, 4, 5, 0];

    #[test]
    fn every_sample_reaches_every_position_equally_often() {
        const SAMPLES: usize = 5;
        const EPOCHS: u64 = 20_000;
        let mut seen = [[0u32; SAMPLES]; SAMPLES];
        for epoch in 0..EPOCHS {
            for (position, sample) in epoch_order(11, epoch, SAMPLES).into_iter().enumerate() {
                seen[position][sample] += 1;
            }
        }
        let mean = EPOCHS as f64 / SAMPLES as f64;
        for count in seen.into_iter().flatten() {
            // Standard deviation is 57 for p = 1/5; five of them is a bound a fair shuffle keeps.
            assert!(
                (f64::from(count) - mean).abs() < 285.0,
                "{count} instead of {mean}"
            );
        }
    }

    #[test]
    fn the_last_batch_is_partial() {
        let order = epoch_order(1, 0, 10);
        let all: Vec<Batch> = batches(&order, NonZeroUsize::new(4).unwrap()).collect();
        assert_eq!(
            all.iter().map(|b| b.samples.len()).collect::<Vec<_>>(),
            [4, 4, 2]
        );
        assert_eq!(
            all.iter().map(|b| b.partial).collect::<Vec<_>>(),
            [false, false, true]
        );
        assert_eq!(
            all.iter()
                .flat_map(|b| b.samples)
                .copied()
                .collect::<Vec<_>>(),
            order
        );
        assert_eq!(batches(&[], NonZeroUsize::new(4).unwrap()).len(), 0);
    }
}
