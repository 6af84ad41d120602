//! The random cases that one run of the tests takes.

use std::env;
use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

/// The day, counted from 1970, that decides which cases are taken; the suite sets and prints it.
const DAY: &str = "PARTITA_DAY";
/// The first seed, in place of those of the day.
const SEED: &str = "PARTITA_SEED";
/// Takes all cases, and more seeds.
const LONG: &str = "PARTITA_TEST_LONG";

/// One of equal parts of a suite's cases, another one each day; as many days as there are parts run all. A long
/// run takes all at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    part: u64,
    parts: u64,
}

impl Share {
    /// The share of this run where the cases are divided into `parts`. With `PARTITA_SEED` it has all cases, so that
    /// the seed of a failure repeats it on any day.
    ///
    /// Panics if `PARTITA_DAY` is not a whole number.
    pub fn of(parts: u64) -> Self {
        if is_long() || env::var_os(SEED).is_some() {
            return Self { part: 0, parts: 1 };
        }
        let part = day() % parts;
        Self { part, parts }
    }

    /// Whether it has all cases.
    pub fn is_all(self) -> bool {
        self.parts == 1
    }

    /// Whether a case of an enumeration belongs to it. Multiples of the golden ratio lie evenly between integers, and so
    /// do every n-th of them: whatever varies with the number is divided evenly.
    pub fn has(self, number: u64) -> bool {
        const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
        let fraction = number.wrapping_mul(GOLDEN);
        (u128::from(fraction) * u128::from(self.parts)) >> 64 == u128::from(self.part)
    }

    /// Items in turn with the other shares, so that each has some where there are as many items as shares.
    pub fn of_items<T>(self, items: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
        let (part, parts) = (self.part as usize, self.parts as usize);
        items.into_iter().skip(part).step_by(parts)
    }

    /// The share of a least count over all cases. Shares of an enumeration differ, so it asks for a tenth less.
    pub fn least(self, count: usize) -> usize {
        match self.parts {
            1 => count,
            parts => count * 9 / (10 * parts as usize),
        }
    }
}

/// The seeds of a random suite in this run: of `cases` the share of the day in `parts`, or all `long` of a long run.
/// `PARTITA_SEED` is the first of as many others.
///
/// Panics if a variable is not a whole number.
pub fn seeds(cases: u64, parts: u64, long: u64) -> Range<u64> {
    let share = Share::of(parts);
    let count = if is_long() {
        long
    } else {
        cases.div_ceil(parts)
    };
    let first = variable(SEED).unwrap_or(share.part * count);
    first..first + count
}

/// What `seeds` must have at least of something that all `cases` have `count` times or more. Random cases differ, so it asks
/// for a third of that where they are not all.
pub fn least_of(count: usize, cases: u64, seeds: &Range<u64>) -> usize {
    let taken = seeds.end - seeds.start;
    if taken >= cases {
        return count;
    }
    (count as u64 * taken / (cases * 3)) as usize
}

fn is_long() -> bool {
    env::var_os(LONG).is_some()
}

fn day() -> u64 {
    let today = || {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        since.map_or(0, |since| since.as_secs() / 86_400)
    };
    variable(DAY).unwrap_or_else(today)
}

fn variable(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name} is `{text}`, not a whole number")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_least_count_follows_the_seeds_that_are_taken() {
        assert_eq!(least_of(40, 100, &(0..100)), 40);
        assert_eq!(least_of(40, 100, &(0..1000)), 40);
        assert_eq!(least_of(40, 100, &(25..50)), 3);
    }

    #[test]
    fn each_share_has_some_of_the_items() {
        let shares = (0..3).map(|part| Share { part, parts: 3 });
        let taken: Vec<Vec<usize>> = shares.map(|share| share.of_items(0..7).collect()).collect();
        assert_eq!(taken, [vec![0, 3, 6], vec![1, 4], vec![2, 5]]);
    }

    #[test]
    fn shares_divide_all_cases_evenly() {
        for parts in [1, 3, 4] {
            let shares: Vec<Share> = (0..parts).map(|part| Share { part, parts }).collect();
            let counts = shares.iter().map(|share| {
                let of_it = (0..1000).filter(|&number| share.has(number));
                of_it.count() as u64
            });
            let counts: Vec<u64> = counts.collect();
            assert_eq!(counts.iter().sum::<u64>(), 1000, "{counts:?}");
            let even = counts.iter().all(|count| count.abs_diff(1000 / parts) <= 3);
            assert!(even, "{counts:?}");
        }
    }

    #[test]
    fn shares_have_every_remainder() {
        let share = Share { part: 1, parts: 4 };
        for of in [2, 3, 4, 5, 8] {
            for remainder in 0..of {
                let numbers = (0..40 * of).filter(|number| number % of == remainder);
                let count = numbers.filter(|&number| share.has(number)).count();
                assert!(
                    (5..=15).contains(&count),
                    "{count} of 40: {remainder} of {of}"
                );
            }
        }
    }
}
