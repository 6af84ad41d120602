//! Submeshes: meshes of some of the ranks.

use crate::{AXES, Axis, AxisSet, Coord, Mesh, MeshError, Rank};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A mesh of some of the ranks, on which a stage or a branch of a network runs.
///
/// The rank at `coord` is `first` plus the sum of coordinate times stride over all axes; along `data`,
/// coordinates are in runs of `run`, and each run begins `jump` ranks after the one before it.
///
/// Example: with stages of 2 and 4 ranks, repeated for two parts of the mini-batch, the second may have `data=8`:
/// ranks 2 to 5 and 8 to 11, `first` 2, in runs of 4 with a jump of 6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "Fields")]
pub struct Submesh {
    extents: [u32; 7],
    strides: [u32; 7],
    first: u32,
    run: u32,
    jump: u32,
}

/// A submesh before validation.
#[derive(Deserialize)]
#[serde(rename = "Grid")]
struct Fields {
    extents: [u32; 7],
    strides: [u32; 7],
    first: u32,
    run: u32,
    jump: u32,
}

/// A text that is no submesh.
#[derive(Debug)]
enum SubmeshError {
    /// Its extents are those of no mesh.
    Mesh(MeshError),
    /// Runs that do not divide the coordinates along `data`.
    Runs { data: u32, run: u32 },
    /// An axis whose ranks would be one.
    NoStride,
    /// A rank beyond the most.
    Rank(u64),
}

impl fmt::Display for SubmeshError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mesh(error) => error.fmt(f),
            Self::Runs { data, run } => write!(
                f,
                "a submesh has {data} coordinates along data in runs of {run}, which must divide them"
            ),
            Self::NoStride => write!(f, "a submesh has an axis of stride 0"),
            Self::Rank(rank) => write!(
                f,
                "a submesh has rank {rank}; at most {} ranks are possible",
                Mesh::RANKS_MAX
            ),
        }
    }
}

impl TryFrom<Fields> for Submesh {
    type Error = SubmeshError;

    fn try_from(fields: Fields) -> Result<Self, SubmeshError> {
        let Fields {
            extents,
            strides,
            first,
            run,
            jump,
        } = fields;
        let submesh = Self {
            extents,
            strides,
            first,
            run,
            jump,
        };
        Mesh::try_from(extents.map(|extent| extent as usize)).map_err(SubmeshError::Mesh)?;
        if run == 0 || !extents[0].is_multiple_of(run) {
            return Err(SubmeshError::Runs {
                data: extents[0],
                run,
            });
        }
        let runs = extents[0] / run;
        let mut steps = vec![(runs, jump), (run, strides[0])];
        steps.extend(extents.into_iter().zip(strides).skip(1));
        if steps
            .iter()
            .any(|&(extent, stride)| extent > 1 && stride == 0)
        {
            return Err(SubmeshError::NoStride);
        }
        let last = steps.iter().fold(u64::from(first), |last, step| {
            last.saturating_add(u64::from(step.0 - 1) * u64::from(step.1))
        });
        if last < Mesh::RANKS_MAX as u64 {
            Ok(submesh)
        } else {
            Err(SubmeshError::Rank(last))
        }
    }
}

impl Submesh {
    /// A mesh of consecutive ranks from `first` on, repeated `copies` times along `data` with `jump`
    /// ranks from one copy to the next.
    pub fn repeated(mesh: &Mesh, first: Rank, copies: usize, jump: usize) -> Self {
        let mut extents = AXES.map(|axis| mesh.extent(axis) as u32);
        let mut strides = [1; 7];
        for axis in (0..6).rev() {
            strides[axis] = strides[axis + 1] * extents[axis + 1];
        }
        let run = extents[0];
        extents[0] *= copies as u32;
        Self {
            extents,
            strides,
            first: first as u32,
            run,
            jump: jump as u32,
        }
    }

    /// The part of it with `extent` coordinates along an axis other than `data`, beginning at `from`.
    pub fn slice(&self, axis: Axis, from: usize, extent: usize) -> Self {
        assert!(axis != Axis::Data, "along data ranks stand in runs");
        let mut part = *self;
        part.first += from as u32 * self.strides[axis.index()];
        part.extents[axis.index()] = extent as u32;
        part
    }

    /// Its mesh.
    pub fn mesh(&self) -> Mesh {
        Mesh::new(self.extents.map(|extent| extent as usize))
    }

    /// Number of ranks.
    pub fn len(&self) -> usize {
        self.extents.iter().map(|&extent| extent as usize).product()
    }

    /// Never: an axis has at least one coordinate.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The rank at a coordinate of its mesh.
    pub fn rank(&self, coord: &Coord) -> Rank {
        let data = coord[Axis::Data.index()];
        let (runs, within) = (data / self.run as usize, data % self.run as usize);
        let mut rank = self.first as usize + runs * self.jump as usize;
        rank += within * self.strides[Axis::Data.index()] as usize;
        for axis in 1..7 {
            rank += coord[axis] * self.strides[axis] as usize;
        }
        rank
    }

    /// Its largest rank.
    pub fn last(&self) -> Rank {
        self.rank(&self.extents.map(|extent| extent as usize - 1))
    }

    /// The coordinates of a rank; none if it is not a member.
    pub fn coord(&self, rank: Rank) -> Option<Coord> {
        let mut rest = rank.checked_sub(self.first as usize)?;
        let runs = (self.extents[0] / self.run).max(1) as usize;
        // Digits with the largest strides first.
        let mut digits: [(usize, usize, usize); 8] = [(0, 1, 0); 8];
        for axis in 0..7 {
            let extent = match axis {
                0 => self.run.min(self.extents[0]),
                _ => self.extents[axis],
            };
            digits[axis] = (self.strides[axis] as usize, extent as usize, axis);
        }
        digits[7] = (self.jump as usize, runs, 7);
        digits.sort_unstable_by(|a, b| b.cmp(a));
        let mut coord = [0; 7];
        for (stride, extent, axis) in digits {
            if extent <= 1 {
                continue;
            }
            let digit = (rest / stride).min(extent - 1);
            rest -= digit * stride;
            match axis {
                7 => coord[0] += digit * self.run as usize,
                _ => coord[axis] += digit,
            }
        }
        (rest == 0).then_some(coord)
    }

    /// All ranks, in the order of the mesh.
    pub fn ranks(&self) -> impl Iterator<Item = Rank> {
        let (submesh, mesh) = (*self, self.mesh());
        (0..mesh.ranks()).map(move |at| submesh.rank(&mesh.coord(at)))
    }

    /// All ranks that differ from one of its ranks only along `axes`, in the order of the mesh.
    pub fn group(&self, rank: Rank, axes: AxisSet) -> Vec<Rank> {
        let mesh = self.mesh();
        let Some(coord) = self.coord(rank) else {
            return Vec::new();
        };
        let members = mesh.group(mesh.rank(coord), axes).into_iter();
        members.map(|at| self.rank(&mesh.coord(at))).collect()
    }

    /// The same mesh with every rank moved up by `ranks`.
    pub fn shifted(&self, ranks: i64) -> Self {
        let first = i64::from(self.first) + ranks;
        Self {
            first: u32::try_from(first).expect("a submesh begins at a rank"),
            ..*self
        }
    }

    /// Its first rank.
    pub fn first(&self) -> Rank {
        self.first as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(submesh: &Submesh, ranks: usize, expected: &[Rank]) {
        assert_eq!(submesh.ranks().collect::<Vec<_>>(), expected, "{submesh:?}");
        for rank in 0..ranks {
            let coord = submesh.coord(rank);
            assert_eq!(
                coord.is_some(),
                expected.contains(&rank),
                "{rank} of {submesh:?}"
            );
            if let Some(coord) = coord {
                assert_eq!(submesh.rank(&coord), rank);
            }
        }
    }

    #[test]
    fn grids_that_are_read_have_ranks() {
        let submesh = Submesh::repeated(&Mesh::new([4, 1, 2, 1, 1, 1, 1]), 2, 2, 10);
        assert_eq!(submesh.last(), 19);
        let text = serde_json::to_string(&submesh).unwrap();
        assert_eq!(serde_json::from_str::<Submesh>(&text).unwrap(), submesh);
        for (from, to) in [
            ("\"run\":4", "\"run\":0"),
            ("\"run\":4", "\"run\":3"),
            ("\"jump\":10", "\"jump\":0"),
            ("\"jump\":10", "\"jump\":4294967295"),
            ("\"first\":2", "\"first\":1048570"),
            ("[8,1,2", "[8,0,2"),
            ("[8,1,2", "[8,4294967295,2"),
        ] {
            assert!(text.contains(from), "{from} in {text}");
            let wrong = text.replacen(from, to, 1);
            assert!(serde_json::from_str::<Submesh>(&wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn ranks_and_coordinates_of_a_grid_are_inverse() {
        let square = Mesh::new([1, 1, 2, 2, 1, 1, 1]);
        check(
            &Submesh::repeated(&square, 0, 2, 6),
            12,
            &[0, 1, 2, 3, 6, 7, 8, 9],
        );
        let samples = Mesh::new([4, 1, 1, 1, 1, 1, 1]);
        let repeated = Submesh::repeated(&samples, 2, 2, 6);
        check(&repeated, 12, &[2, 3, 4, 5, 8, 9, 10, 11]);
        assert_eq!(repeated.mesh().extent(Axis::Data), 8);
        check(&repeated.shifted(-2), 12, &[0, 1, 2, 3, 6, 7, 8, 9]);
        let all = Submesh::repeated(&Mesh::new([2, 1, 2, 1, 1, 1, 3]), 0, 1, 12);
        check(
            &all.slice(Axis::Branch, 1, 2),
            12,
            &[1, 2, 4, 5, 7, 8, 10, 11],
        );
        let group = repeated.group(4, AxisSet::of([Axis::Data]));
        assert_eq!(group, [2, 3, 4, 5, 8, 9, 10, 11]);
        assert_eq!(repeated.group(0, AxisSet::NONE), [0; 0]);
    }
}
