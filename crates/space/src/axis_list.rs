//! Ordered lists of axes that split one dim.

use crate::{Axis, AxisSet, Coord, Interval, Mesh, Split};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;

/// Bits for one axis: its index and 1.
const BITS: u32 = 4;

/// Nested axes that split one dim: the first splits the extent into parts, the next each of these, and so on.
/// Axes are distinct.
///
/// Text form: names joined by `+`; nothing where no axis splits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AxisList(u32);

impl AxisList {
    /// No axis: the dim is not split.
    pub const NONE: AxisList = AxisList(0);

    /// These axes, outermost first.
    ///
    /// Panics on a repeated axis.
    pub fn of(axes: impl IntoIterator<Item = Axis>) -> Self {
        axes.into_iter().fold(Self::NONE, Self::inside)
    }

    /// With one more axis that splits each part.
    ///
    /// Panics if the axis is a member.
    #[must_use]
    pub fn inside(self, axis: Axis) -> Self {
        assert!(!self.has(axis), "{} splits `{self}` twice", axis.name());
        Self(self.0 | (axis.index() as u32 + 1) << (BITS * self.len() as u32))
    }

    /// Members, outermost first.
    pub fn iter(self) -> impl DoubleEndedIterator<Item = Axis> {
        (0..self.len()).map(move |at| {
            let index = (self.0 >> (BITS * at as u32)) & ((1 << BITS) - 1);
            crate::AXES[index as usize - 1]
        })
    }

    /// Number of axes.
    pub fn len(self) -> usize {
        (u32::BITS - self.0.leading_zeros()).div_ceil(BITS) as usize
    }

    /// Whether it has no member.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether `axis` is a member.
    pub fn has(self, axis: Axis) -> bool {
        self.iter().any(|other| other == axis)
    }

    /// Members without their order.
    pub fn set(self) -> AxisSet {
        AxisSet::of(self.iter())
    }

    /// The list without the prefix `outer`, if it has that.
    pub fn strip_prefix(self, outer: Self) -> Option<Self> {
        let begins =
            outer.len() <= self.len() && self.iter().zip(outer.iter()).all(|(a, b)| a == b);
        begins.then(|| Self::of(self.iter().skip(outer.len())))
    }

    /// The list followed by another one with other axes.
    #[must_use]
    pub fn then(self, inner: Self) -> Self {
        inner.iter().fold(self, Self::inside)
    }

    /// The members before the first that is in `set`.
    #[must_use]
    pub fn before(self, set: AxisSet) -> Self {
        Self::of(self.iter().take_while(|&axis| !set.has(axis)))
    }

    /// The members that are in `set`, in their order.
    #[must_use]
    pub fn within(self, set: AxisSet) -> Self {
        Self::of(self.iter().filter(|&axis| set.has(axis)))
    }
}

impl From<Option<Axis>> for AxisList {
    fn from(axis: Option<Axis>) -> Self {
        Self::of(axis)
    }
}

impl fmt::Display for AxisList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.iter().map(Axis::name).collect();
        f.write_str(&names.join("+"))
    }
}

impl Serialize for AxisList {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = (!self.is_empty()).then(|| self.to_string());
        text.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for AxisList {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?.unwrap_or_default();
        let mut list = AxisList::NONE;
        for name in text.split('+').filter(|name| !name.is_empty()) {
            let axis = Axis::from_name(name).filter(|&axis| !list.has(axis));
            let axis = axis.ok_or_else(|| {
                serde::de::Error::custom(format!("`{text}` is no list of different axes"))
            })?;
            list = list.inside(axis);
        }
        Ok(list)
    }
}

impl Mesh {
    /// Number of parts into which a dim is split.
    pub fn parts(&self, axes: AxisList) -> usize {
        axes.iter().map(|axis| self.extent(axis)).product()
    }

    /// Index of the part at coordinates.
    pub fn part_index(&self, axes: AxisList, coord: &Coord) -> usize {
        let step = |index, axis: Axis| index * self.extent(axis) + coord[axis.index()];
        axes.iter().fold(0, step)
    }

    /// Sets the coordinates along these axes to those of a part.
    pub fn go_to_part(&self, axes: AxisList, part: usize, coord: &mut Coord) {
        let mut rest = part;
        for axis in axes.iter().rev() {
            coord[axis.index()] = rest % self.extent(axis);
            rest /= self.extent(axis);
        }
    }

    /// The interval of a part. Each axis splits the interval of the one before it evenly.
    pub fn part(&self, axes: AxisList, extent: usize, part: usize) -> Interval {
        let mut coord = [0; 7];
        self.go_to_part(axes, part, &mut coord);
        let mut inside = Interval::all(extent);
        for axis in axes.iter() {
            let split = Split {
                extent: inside.len(),
                parts: self.extent(axis),
            };
            inside = split.part(coord[axis.index()]).shift(inside.start);
        }
        inside
    }

    /// The parts from the first to the last that intersect `wanted`, which is clipped to the extent; parts between
    /// them may be empty.
    pub fn part_range(&self, axes: AxisList, extent: usize, wanted: &Interval) -> Range<usize> {
        let wanted = wanted.intersect(&Interval::all(extent));
        if wanted.is_empty() {
            return 0..0;
        }
        let first = self.part_of(axes, extent, wanted.start);
        first..self.part_of(axes, extent, wanted.end - 1) + 1
    }

    fn part_of(&self, axes: AxisList, extent: usize, at: i64) -> usize {
        let (mut part, mut inside) = (0, Interval::all(extent));
        for axis in axes.iter() {
            let parts = self.extent(axis);
            let split = Split {
                extent: inside.len(),
                parts,
            };
            let at = at - inside.start;
            let here = split
                .owners(&Interval::new(at, at + 1))
                .next()
                .expect("every index of an extent has an owner");
            inside = split.part(here).shift(inside.start);
            part = part * parts + here;
        }
        part
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Axis::{Channel, Data, Filter};

    #[test]
    fn a_list_reads_as_it_prints_and_keeps_its_order() {
        for axes in [vec![], vec![Filter], vec![Channel, Data, Filter]] {
            let list = AxisList::of(axes.clone());
            assert_eq!(list.iter().collect::<Vec<_>>(), axes);
            let text = serde_json::to_string(&list).unwrap();
            assert_eq!(serde_json::from_str::<AxisList>(&text).unwrap(), list);
        }
        assert!(serde_json::from_str::<AxisList>("\"data+data\"").is_err());
        let list = AxisList::of([Channel, Data, Filter]);
        let outer = AxisList::of([Channel]);
        assert_eq!(list.strip_prefix(outer), Some(AxisList::of([Data, Filter])));
        assert_eq!(list.strip_prefix(AxisList::of([Data])), None);
        assert_eq!(outer.strip_prefix(list), None);
    }

    #[test]
    fn parts_lie_inside_the_parts_of_the_outer_axes_and_cover_each_index_once() {
        let mesh = Mesh::new([3, 1, 1, 1, 2, 4, 1]);
        let (outer, all) = (
            AxisList::of([Filter]),
            AxisList::of([Filter, Data, Channel]),
        );
        for extent in 0..40 {
            let mut next = 0;
            for index in 0..mesh.parts(all) {
                let mut coord = [0; 7];
                mesh.go_to_part(all, index, &mut coord);
                assert_eq!(mesh.part_index(all, &coord), index);
                let part = mesh.part(all, extent, index);
                assert_eq!(part.start, next);
                next = part.end;
                let around = mesh.part(outer, extent, mesh.part_index(outer, &coord));
                assert!(around.holds(&part));
            }
            assert_eq!(next as usize, extent);
            for start in 0..extent as i64 {
                let wanted = Interval::new(start, start + 5);
                let holds = |&i: &usize| {
                    let part = mesh.part(all, extent, i);
                    part.touches(&wanted)
                };
                let slow: Vec<usize> = (0..mesh.parts(all)).filter(holds).collect();
                let range = mesh.part_range(all, extent, &wanted);
                assert_eq!(range, slow[0]..slow[slow.len() - 1] + 1);
            }
        }
    }
}
