//! Boxes of global indices.

use crate::Interval;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::{Index, IndexMut};

/// A dim of an activation, in memory order (channels last).
///
/// Every activation has all five: a 2D image has depth 1, a sequence is along W, and a feature vector has
/// extent 1 in D, H and W.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Dim {
    /// Samples.
    N,
    /// Depth.
    D,
    /// Height.
    H,
    /// Width.
    W,
    /// Channels.
    C,
}

/// All dims in memory order.
pub const DIMS: [Dim; 5] = [Dim::N, Dim::D, Dim::H, Dim::W, Dim::C];

impl Dim {
    /// The three spatial dims.
    pub const SPATIAL: [Dim; 3] = [Dim::D, Dim::H, Dim::W];

    /// Position in memory order, 0 to 4.
    pub fn index(self) -> usize {
        self as usize
    }
}

/// A box of global indices, one interval per dim (N, D, H, W, C).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct Region(pub [Interval; 5]);

impl Region {
    /// The whole of a tensor of this shape.
    pub fn all(shape: [usize; 5]) -> Self {
        Self(shape.map(Interval::all))
    }

    /// Number of elements.
    pub fn volume(&self) -> usize {
        self.0.iter().map(Interval::len).product()
    }

    /// Whether it holds no element.
    pub fn is_empty(&self) -> bool {
        self.0.iter().any(Interval::is_empty)
    }

    /// Extents per dim.
    pub fn shape(&self) -> [usize; 5] {
        self.0.map(|interval| interval.len())
    }

    /// The intersection.
    pub fn intersect(&self, other: &Self) -> Self {
        let mut both = *self;
        for (mine, theirs) in both.0.iter_mut().zip(&other.0) {
            *mine = mine.intersect(theirs);
        }
        both
    }

    /// Whether an element lies in both.
    pub fn touches(&self, other: &Self) -> bool {
        let mut dims = self.0.iter().zip(&other.0);
        dims.all(|(mine, theirs)| mine.touches(theirs))
    }

    /// The smallest box that contains both; an empty one is ignored.
    pub fn hull(&self, other: &Self) -> Self {
        if self.is_empty() {
            return *other;
        }
        if other.is_empty() {
            return *self;
        }
        let mut both = *self;
        for (mine, theirs) in both.0.iter_mut().zip(&other.0) {
            *mine = mine.hull(theirs);
        }
        both
    }

    /// The union, if it is a box: equal in all dims but one, where they are adjacent or overlap.
    pub fn joined(&self, other: &Self) -> Option<Self> {
        let mut apart = (0..5).filter(|&dim| self.0[dim] != other.0[dim]);
        let is_box = match (apart.next(), apart.next()) {
            (None, _) => true,
            (Some(dim), None) => {
                let (mine, theirs) = (self.0[dim], other.0[dim]);
                mine.start.max(theirs.start) <= mine.end.min(theirs.end)
            }
            (Some(_), Some(_)) => false,
        };
        is_box.then(|| self.hull(other))
    }

    /// Whether `other` is a subset.
    pub fn holds(&self, other: &Self) -> bool {
        other.is_empty()
            || self
                .0
                .iter()
                .zip(&other.0)
                .all(|(mine, theirs)| mine.holds(theirs))
    }

    /// Shifted by `by` per dim.
    pub fn shift(&self, by: [i64; 5]) -> Self {
        let mut moved = *self;
        for (interval, by) in moved.0.iter_mut().zip(by) {
            *interval = interval.shift(by);
        }
        moved
    }

    /// The difference, as at most ten disjoint boxes: below and above `hole`, dim by dim.
    pub fn minus(&self, hole: &Self) -> Vec<Region> {
        let hole = self.intersect(hole);
        if self.is_empty() {
            return Vec::new();
        }
        if hole.is_empty() {
            return vec![*self];
        }
        let mut rest = *self;
        let mut pieces = Vec::new();
        for dim in 0..5 {
            let (whole, cut) = (rest.0[dim], hole.0[dim]);
            for side in [
                Interval::new(whole.start, cut.start),
                Interval::new(cut.end, whole.end),
            ] {
                if !side.is_empty() {
                    let mut piece = rest;
                    piece.0[dim] = side;
                    pieces.push(piece);
                }
            }
            rest.0[dim] = cut;
        }
        pieces
    }
}

impl Index<Dim> for Region {
    type Output = Interval;
    fn index(&self, dim: Dim) -> &Interval {
        &self.0[dim.index()]
    }
}

impl IndexMut<Dim> for Region {
    fn index_mut(&mut self, dim: Dim) -> &mut Interval {
        &mut self.0[dim.index()]
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [n, d, h, w, c] = &self.0;
        write!(f, "[{n},{d},{h},{w},{c}]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cube(start: i64, end: i64) -> Region {
        Region([Interval::new(start, end); 5])
    }

    #[test]
    fn boxes_that_touch_along_one_dim_are_one() {
        let part = |start, end| {
            let mut part = cube(0, 4);
            part.0[2] = Interval::new(start, end);
            part
        };
        assert_eq!(part(0, 2).joined(&part(2, 4)), Some(cube(0, 4)));
        assert_eq!(part(1, 4).joined(&part(0, 2)), Some(cube(0, 4)));
        assert_eq!(part(0, 1).joined(&part(2, 4)), None);
        assert_eq!(cube(0, 2).joined(&cube(2, 4)), None);
        assert_eq!(cube(0, 2).joined(&cube(0, 2)), Some(cube(0, 2)));
    }

    #[test]
    fn minus_leaves_disjoint_boxes_of_the_right_volume() {
        let whole = cube(0, 4);
        for hole in [cube(1, 3), cube(0, 2), cube(2, 9), cube(5, 6), cube(0, 4)] {
            let pieces = whole.minus(&hole);
            let left: usize = pieces.iter().map(Region::volume).sum();
            assert_eq!(left, whole.volume() - whole.intersect(&hole).volume());
            for (i, a) in pieces.iter().enumerate() {
                assert!(!a.touches(&hole));
                assert!(pieces[i + 1..].iter().all(|b| !a.touches(b)));
            }
        }
    }
}
