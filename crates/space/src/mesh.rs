//! Meshes of ranks and their axes.

use crate::Help;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A participant, numbered from 0.
pub type Rank = usize;

/// An axis of a mesh of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Axis {
    /// Splits samples.
    Data,
    /// Splits D.
    Depth,
    /// Splits H.
    Height,
    /// Splits W.
    Width,
    /// Splits the output channels of a layer.
    Filter,
    /// Splits the input channels of a layer.
    Channel,
    /// Places branches.
    Branch,
}

/// All axes, slowest first in the rank order.
pub const AXES: [Axis; 7] = [
    Axis::Data,
    Axis::Depth,
    Axis::Height,
    Axis::Width,
    Axis::Filter,
    Axis::Channel,
    Axis::Branch,
];

impl Axis {
    /// Position in `AXES`.
    pub fn index(self) -> usize {
        self as usize
    }

    /// The word used in strategies.
    pub fn name(self) -> &'static str {
        match self {
            Axis::Data => "data",
            Axis::Depth => "depth",
            Axis::Height => "height",
            Axis::Width => "width",
            Axis::Filter => "filter",
            Axis::Channel => "channel",
            Axis::Branch => "branch",
        }
    }

    /// The axis of that name.
    pub fn from_name(name: &str) -> Option<Axis> {
        AXES.into_iter().find(|axis| axis.name() == name)
    }
}

/// A set of axes; a collective runs over all ranks that differ only along these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AxisSet(u8);

impl AxisSet {
    /// No axis: a group of one.
    pub const NONE: AxisSet = AxisSet(0);

    /// The set of these axes.
    pub fn of(axes: impl IntoIterator<Item = Axis>) -> Self {
        Self(
            axes.into_iter()
                .fold(0, |bits, axis| bits | 1 << axis.index()),
        )
    }

    /// Whether `axis` is a member.
    pub fn has(self, axis: Axis) -> bool {
        self.0 >> axis.index() & 1 == 1
    }

    /// Members in rank order.
    pub fn iter(self) -> impl Iterator<Item = Axis> {
        AXES.into_iter().filter(move |&axis| self.has(axis))
    }

    /// Members of either.
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Members of `self` that are not in `other`.
    pub fn minus(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether it has no member.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for AxisSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.iter().map(Axis::name).collect();
        write!(f, "{}", names.join("+"))
    }
}

impl Serialize for AxisSet {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for AxisSet {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let mut set = AxisSet::NONE;
        for name in text.split('+').filter(|name| !name.is_empty()) {
            let axis = Axis::from_name(name)
                .ok_or_else(|| serde::de::Error::custom(format!("`{name}` is not an axis")))?;
            set = set.union(AxisSet::of([axis]));
        }
        Ok(set)
    }
}

/// Coordinates of a rank in a mesh, per axis.
pub type Coord = [usize; 7];

/// Difference of the coordinates of two ranks, per axis.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Offset(pub [i32; 7]);

impl Offset {
    /// The offset in the opposite direction.
    pub fn reversed(self) -> Self {
        Self(self.0.map(|step| -step))
    }
}

/// A grid of ranks, row-major with `data` slowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct Mesh {
    extents: [usize; 7],
}

/// Invalid extents of a mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeshError {
    /// An axis without a rank.
    Empty(Axis),
    /// More ranks than [`Mesh::RANKS_MAX`].
    TooMany,
}

impl fmt::Display for MeshError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty(axis) => write!(
                f,
                "the axis {} of a mesh has extent 0{}",
                axis.name(),
                Help::possible("1 or more").nearest(1)
            ),
            Self::TooMany => write!(
                f,
                "a mesh has more than {} ranks; at most {} are possible",
                Mesh::RANKS_MAX,
                Mesh::RANKS_MAX
            ),
        }
    }
}

impl std::error::Error for MeshError {}

impl TryFrom<[usize; 7]> for Mesh {
    type Error = MeshError;

    fn try_from(extents: [usize; 7]) -> Result<Self, MeshError> {
        if let Some(axis) = AXES.into_iter().find(|axis| extents[axis.index()] == 0) {
            return Err(MeshError::Empty(axis));
        }
        let ranks = extents
            .iter()
            .try_fold(1usize, |ranks, &extent| ranks.checked_mul(extent));
        match ranks {
            Some(ranks) if ranks <= Self::RANKS_MAX => Ok(Self { extents }),
            Some(_) | None => Err(MeshError::TooMany),
        }
    }
}

impl<'de> Deserialize<'de> for Mesh {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let extents = <[usize; 7]>::deserialize(deserializer)?;
        Self::try_from(extents).map_err(serde::de::Error::custom)
    }
}

impl Mesh {
    /// Largest number of ranks. Products of ranks with extents of tensors then fit in 128 bits, and ranks in 32.
    pub const RANKS_MAX: usize = 1 << 20;

    /// A mesh of these extents; for unchecked input use [`Mesh::try_from`].
    ///
    /// Panics on an axis of extent 0 and beyond [`Self::RANKS_MAX`].
    pub fn new(extents: [usize; 7]) -> Self {
        match Self::try_from(extents) {
            Ok(mesh) => mesh,
            Err(error) => panic!("{error}: {extents:?}"),
        }
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.extents.iter().product()
    }

    /// Extent of one axis.
    pub fn extent(&self, axis: Axis) -> usize {
        self.extents[axis.index()]
    }

    /// Axes of extent above 1.
    pub fn split_axes(&self) -> AxisSet {
        AxisSet::of(AXES.into_iter().filter(|&axis| self.extent(axis) > 1))
    }

    /// Coordinates of a rank below `ranks()`.
    pub fn coord(&self, rank: Rank) -> Coord {
        assert!(rank < self.ranks(), "rank {rank} of {}", self.ranks());
        let mut rest = rank;
        let mut coord = [0; 7];
        for axis in (0..7).rev() {
            coord[axis] = rest % self.extents[axis];
            rest /= self.extents[axis];
        }
        coord
    }

    /// The rank at these coordinates.
    pub fn rank(&self, coord: Coord) -> Rank {
        let mut rank = 0;
        for axis in 0..7 {
            assert!(
                coord[axis] < self.extents[axis],
                "{coord:?} lies outside {:?}",
                self.extents
            );
            rank = rank * self.extents[axis] + coord[axis];
        }
        rank
    }

    /// The rank at an offset, if it is in the mesh.
    pub fn neighbor(&self, rank: Rank, offset: Offset) -> Option<Rank> {
        let mut coord = self.coord(rank);
        for axis in 0..7 {
            let at = coord[axis] as i64 + i64::from(offset.0[axis]);
            if at < 0 || at >= self.extents[axis] as i64 {
                return None;
            }
            coord[axis] = at as usize;
        }
        Some(self.rank(coord))
    }

    /// The offset that leads from `from` to `to`.
    pub fn offset(&self, from: Rank, to: Rank) -> Offset {
        let (from, to) = (self.coord(from), self.coord(to));
        let mut steps = [0; 7];
        for axis in 0..7 {
            steps[axis] = to[axis] as i32 - from[axis] as i32;
        }
        Offset(steps)
    }

    /// Ranks of a group along `axes`.
    pub fn group_size(&self, axes: AxisSet) -> usize {
        axes.iter().map(|axis| self.extent(axis)).product()
    }

    /// The rank in the middle, with most neighbors.
    pub fn middle(&self) -> Rank {
        self.rank(self.extents.map(|extent| extent / 2))
    }

    /// All ranks that differ from `rank` only along `axes`, ascending, `rank` included.
    pub fn group(&self, rank: Rank, axes: AxisSet) -> Vec<Rank> {
        let coord = self.coord(rank);
        let mut strides = [1; 7];
        for axis in (0..6).rev() {
            strides[axis] = strides[axis + 1] * self.extents[axis + 1];
        }
        let indices = || axes.iter().map(Axis::index);
        let back: usize = indices().map(|axis| coord[axis] * strides[axis]).sum();
        let mut ranks = vec![rank - back];
        for axis in indices().filter(|&axis| self.extents[axis] > 1) {
            let along =
                |first: Rank| (0..self.extents[axis]).map(move |i| first + i * strides[axis]);
            ranks = ranks.into_iter().flat_map(along).collect();
        }
        ranks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_that_are_read_are_those_of_a_mesh() {
        let read = |text: &str| serde_json::from_str::<Mesh>(text);
        assert_eq!(read("[2,1,1,3,1,1,1]").unwrap().ranks(), 6);
        let error = |text: &str| read(text).unwrap_err().to_string();
        assert!(error("[2,1,0,1,1,1,1]").contains("height"));
        assert!(error("[1048577,1,1,1,1,1,1]").contains("1048576"));
        assert!(error("[4294967296,4294967296,1,1,1,1,1]").contains("1048576"));
    }

    #[test]
    fn ranks_and_coordinates_are_inverse_and_groups_partition() {
        let mesh = Mesh::new([2, 3, 1, 2, 1, 1, 1]);
        for rank in 0..mesh.ranks() {
            assert_eq!(mesh.rank(mesh.coord(rank)), rank);
            for other in 0..mesh.ranks() {
                assert_eq!(mesh.neighbor(rank, mesh.offset(rank, other)), Some(other));
            }
            let group = mesh.group(rank, AxisSet::of([Axis::Depth, Axis::Width]));
            assert_eq!(group.len(), 6);
            assert!(group.contains(&rank) && group.is_sorted());
            assert_eq!(
                mesh.group(group[5], AxisSet::of([Axis::Depth, Axis::Width])),
                group
            );
        }
        assert_eq!(mesh.neighbor(0, Offset([-1, 0, 0, 0, 0, 0, 0])), None);
    }
}
