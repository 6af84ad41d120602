//! Intervals of indices.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A half-open interval `[start, end)` of indices; empty when `end <= start`.
///
/// Global intervals may reach below 0 or beyond the extent: that part is padding.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct Interval {
    /// First index.
    pub start: i64,
    /// One past the last index.
    pub end: i64,
}

impl Interval {
    /// `[start, end)`.
    pub fn new(start: i64, end: i64) -> Self {
        Self { start, end }
    }

    /// `[0, extent)`.
    pub fn all(extent: usize) -> Self {
        Self {
            start: 0,
            end: extent as i64,
        }
    }

    /// Number of indices, 0 when empty.
    pub fn len(&self) -> usize {
        (self.end - self.start).max(0) as usize
    }

    /// Whether no index lies inside.
    pub fn is_empty(&self) -> bool {
        self.end <= self.start
    }

    /// The intersection.
    pub fn intersect(&self, other: &Self) -> Self {
        Self {
            start: self.start.max(other.start),
            end: self.end.min(other.end),
        }
    }

    /// Whether an index lies in both.
    pub fn touches(&self, other: &Self) -> bool {
        !self.intersect(other).is_empty()
    }

    /// The smallest interval that contains both; an empty one is ignored.
    pub fn hull(&self, other: &Self) -> Self {
        if self.is_empty() {
            return *other;
        }
        if other.is_empty() {
            return *self;
        }
        Self {
            start: self.start.min(other.start),
            end: self.end.max(other.end),
        }
    }

    /// Shifted by `by` indices.
    pub fn shift(&self, by: i64) -> Self {
        Self {
            start: self.start + by,
            end: self.end + by,
        }
    }

    /// Whether `other` is a subset.
    pub fn holds(&self, other: &Self) -> bool {
        other.is_empty() || (self.start <= other.start && other.end <= self.end)
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.start, self.end)
    }
}

/// A balanced split of `[0, extent)` into `parts`: part `i` is
/// `[floor(i * extent / parts), floor((i + 1) * extent / parts))`.
///
/// Parts differ by at most one index; some are empty when `extent < parts`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Split {
    /// Number of indices.
    pub extent: usize,
    /// Number of parts, at least 1.
    pub parts: usize,
}

impl Split {
    /// The interval that part `i` owns. `i < parts`.
    pub fn part(&self, i: usize) -> Interval {
        assert!(i < self.parts, "part {i} of {}", self.parts);
        // As `i * extent / parts`, whose product does not fit in 64 bits for large extents.
        let (whole, rest) = (self.extent / self.parts, self.extent % self.parts);
        let at = |i: usize| (i * whole + i * rest / self.parts) as i64;
        Interval::new(at(i), at(i + 1))
    }

    /// The parts that own at least one index of `wanted` (which is clipped to the extent), in order.
    pub fn owners(&self, wanted: &Interval) -> impl Iterator<Item = usize> + use<> {
        let split = *self;
        let wanted = wanted.intersect(&Interval::all(split.extent));
        let range = if wanted.is_empty() {
            0..0
        } else {
            let part_of = |index: i64| {
                let (next, extent) = (index as usize + 1, split.extent);
                match next.checked_mul(split.parts) {
                    Some(scaled) => (scaled - 1) / extent,
                    None => ((next as u128 * split.parts as u128 - 1) / extent as u128) as usize,
                }
            };
            part_of(wanted.start)..part_of(wanted.end - 1) + 1
        };
        range.filter(move |&i| !split.part(i).is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_covers_each_index_once_and_owners_are_those_that_intersect() {
        for extent in 0..30 {
            for parts in 1..12 {
                let split = Split { extent, parts };
                let mut next = 0;
                for i in 0..parts {
                    let part = split.part(i);
                    assert_eq!(part.start, next);
                    next = part.end;
                }
                assert_eq!(next as usize, extent);
                for start in 0..extent as i64 {
                    for end in start..extent as i64 + 2 {
                        let wanted = Interval::new(start, end);
                        let slow: Vec<_> = (0..parts)
                            .filter(|&i| split.part(i).touches(&wanted))
                            .collect();
                        assert_eq!(split.owners(&wanted).collect::<Vec<_>>(), slow);
                    }
                }
            }
        }
    }

    #[test]
    fn large_extents_are_split_exactly() {
        let split = Split {
            extent: (1 << 48) - 1,
            parts: (1 << 20) - 3,
        };
        let last = split.part(split.parts - 1);
        assert_eq!(last.end as usize, split.extent);
        for i in [0, 1, split.parts / 2, split.parts - 1] {
            let part = split.part(i);
            let exact = i as u128 * split.extent as u128 / split.parts as u128;
            assert_eq!(part.start as u128, exact);
            assert_eq!(split.owners(&part).collect::<Vec<_>>(), [i]);
        }
    }

    #[test]
    fn intersection_and_hull() {
        let (a, b) = (Interval::new(0, 5), Interval::new(3, 9));
        assert_eq!(a.intersect(&b), Interval::new(3, 5));
        assert_eq!(a.hull(&b), Interval::new(0, 9));
        assert!(!a.touches(&Interval::new(6, 7)));
        assert_eq!(Interval::new(4, 4).hull(&b), b);
    }
}
