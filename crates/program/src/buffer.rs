//! Buffers, views, and distributions of tensors over ranks.

use partita_space::{AxisList, AxisSet, Bytes, Coord, Interval, Mesh, Rank, Region, Submesh};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// Type of the elements of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// 32-bit IEEE float.
    F32,
    /// 64-bit IEEE float.
    F64,
    /// The upper half of a 32-bit IEEE float.
    Bf16,
    /// 16-bit IEEE float.
    F16,
    /// 16-bit signed integer.
    I16,
}

impl Dtype {
    /// Its word in kernel keys.
    pub fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "f32",
            Dtype::F64 => "f64",
            Dtype::Bf16 => "bf16",
            Dtype::F16 => "f16",
            Dtype::I16 => "i16",
        }
    }

    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::F64 => 8,
            Dtype::Bf16 | Dtype::F16 | Dtype::I16 => 2,
        }
    }

    /// Whether it is a float of two bytes.
    pub fn is_half(self) -> bool {
        match self {
            Dtype::Bf16 | Dtype::F16 => true,
            Dtype::F32 | Dtype::F64 | Dtype::I16 => false,
        }
    }

    /// The type in which values of this type are computed and summed, and in which a program whose activations
    /// have this type keeps its parameters.
    pub fn arithmetic(self) -> Self {
        match self {
            Dtype::Bf16 | Dtype::F16 => Dtype::F32,
            Dtype::F32 | Dtype::F64 | Dtype::I16 => self,
        }
    }

    /// The type of a buffer with this role in a program of this type, unless it holds sums or samples: activations
    /// and their gradients have that of the program, all else its [`Self::arithmetic`].
    pub fn of_role(self, role: Role) -> Self {
        if role.is_activation() {
            self
        } else {
            self.arithmetic()
        }
    }
}

/// Index of a buffer in its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BufferId(pub u32);

/// What is appended to the name of a parameter for that of its average.
pub const AVERAGE: &str = ".average";

/// What a buffer is for; decides its lifetime and the category of its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// A trained parameter; lives across steps.
    Parameter,
    /// Running statistics; live across steps.
    State,
    /// What a layer reads in place of a parameter that it lacks; lives across steps, and nothing changes or saves it.
    Constant,
    /// Momentum or second moment of a parameter; lives across steps.
    Optimizer,
    /// Exponential moving average of a parameter over the steps, which evaluations read in its place; lives across steps.
    Average,
    /// Gradient of a parameter.
    Gradient,
    /// Samples and targets as they were read; live across steps.
    Staging,
    /// Value of a tensor with its halo and padding.
    Activation,
    /// Gradient of a tensor with its halo and padding.
    ActivationGradient,
    /// Weights in the layout of a kernel implementation.
    PackedWeights,
    /// Sharded parameters, gathered for one layer.
    Gathered,
    /// Sums over ranks and scalars.
    Statistics,
    /// Workspace of one kernel.
    Workspace,
}

impl Role {
    /// Whether it holds values of a tensor of the model, or their gradient.
    pub fn is_activation(self) -> bool {
        match self {
            Role::Activation | Role::ActivationGradient => true,
            Role::Parameter
            | Role::State
            | Role::Constant
            | Role::Optimizer
            | Role::Average
            | Role::Gradient
            | Role::Staging
            | Role::PackedWeights
            | Role::Gathered
            | Role::Statistics
            | Role::Workspace => false,
        }
    }

    /// Whether the contents persist across steps. Such buffers come first in every body of a run, at the same
    /// offsets in each of its programs.
    pub fn is_persistent(self) -> bool {
        match self {
            Role::Parameter
            | Role::State
            | Role::Constant
            | Role::Optimizer
            | Role::Average
            | Role::Staging => true,
            Role::Gradient
            | Role::Activation
            | Role::ActivationGradient
            | Role::PackedWeights
            | Role::Gathered
            | Role::Statistics
            | Role::Workspace => false,
        }
    }

    /// Whether it is part of the model: parameters, averages of them, running statistics and constants.
    pub fn is_of_model(self) -> bool {
        match self {
            Role::Parameter | Role::State | Role::Constant | Role::Average => true,
            Role::Optimizer
            | Role::Gradient
            | Role::Staging
            | Role::Activation
            | Role::ActivationGradient
            | Role::PackedWeights
            | Role::Gathered
            | Role::Statistics
            | Role::Workspace => false,
        }
    }
}

/// How the dims of a tensor are split over the axes of a mesh; the region that each rank owns follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Distribution {
    /// Global extents (N, D, H, W, C).
    pub shape: [usize; 5],
    /// The axes that split each dim; a dim without one is replicated.
    pub axes: [AxisList; 5],
    /// First sample and number of samples of the micro-batch; without it, all of N.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro: Option<(usize, usize)>,
    /// The submesh over which it is split, where that is not the mesh of all ranks.
    #[serde(rename = "on", default, skip_serializing_if = "Option::is_none")]
    pub submesh: Option<Submesh>,
}

impl Distribution {
    /// Every rank owns the whole tensor.
    pub fn replicated(shape: [usize; 5]) -> Self {
        Self {
            shape,
            axes: [AxisList::NONE; 5],
            micro: None,
            submesh: None,
        }
    }

    /// The mesh over which the tensor is split: the submesh, or that of all ranks.
    pub fn mesh(&self, world: &Mesh) -> Mesh {
        self.submesh.map_or(*world, |submesh| submesh.mesh())
    }

    /// The coordinates in the mesh of the tensor of the rank at `coord` of the mesh of all ranks; none where
    /// it is not a member.
    pub fn local_coord(&self, world: &Mesh, coord: &Coord) -> Option<Coord> {
        match self.submesh {
            None => Some(*coord),
            Some(submesh) => submesh.coord(world.rank(*coord)),
        }
    }

    /// The rank at coordinates in the mesh of the tensor.
    pub fn rank(&self, world: &Mesh, local: &Coord) -> Rank {
        match self.submesh {
            None => world.rank(*local),
            Some(submesh) => submesh.rank(local),
        }
    }

    /// The indices of a dim that are split: the whole extent, or the samples of the micro-batch.
    pub fn split_range(&self, dim: usize) -> Interval {
        match self.micro {
            Some((first, samples)) if dim == 0 => Interval::all(samples).shift(first as i64),
            _ => Interval::all(self.shape[dim]),
        }
    }

    /// One part of a dim, in global indices; parts are numbered by [`Mesh::part_index`] on the mesh of the
    /// tensor.
    pub fn part(&self, mesh: &Mesh, dim: usize, part: usize) -> Interval {
        let range = self.split_range(dim);
        mesh.part(self.axes[dim], range.len(), part)
            .shift(range.start)
    }

    /// The parts of a dim from the first to the last that intersect `wanted`.
    pub fn part_range(&self, mesh: &Mesh, dim: usize, wanted: &Interval) -> Range<usize> {
        let range = self.split_range(dim);
        mesh.part_range(self.axes[dim], range.len(), &wanted.shift(-range.start))
    }

    /// The global region that the rank at `coord` of the mesh of all ranks owns; empty for ranks outside
    /// of the submesh.
    pub fn owned(&self, world: &Mesh, coord: &Coord) -> Region {
        match self.local_coord(world, coord) {
            Some(local) => self.owned_at(&self.mesh(world), &local),
            None => Region::default(),
        }
    }

    /// The region owned at coordinates in the mesh of the tensor.
    pub fn owned_at(&self, mesh: &Mesh, local: &Coord) -> Region {
        let mut region = Region::all(self.shape);
        for (dim, &axes) in self.axes.iter().enumerate() {
            region.0[dim] = self.part(mesh, dim, mesh.part_index(axes, local));
        }
        region
    }

    /// Global index of the first element of a view that begins `halo_low` elements before the owned region
    /// of the rank at `coord`.
    pub fn corner(&self, halo_low: &[usize; 5], mesh: &Mesh, coord: &Coord) -> [usize; 5] {
        let owned = self.owned(mesh, coord);
        std::array::from_fn(|dim| owned.0[dim].start as usize - halo_low[dim])
    }

    /// Axes that split any dim.
    pub fn split_axes(&self) -> AxisSet {
        let sets = self.axes.iter().map(|axes| axes.set());
        sets.fold(AxisSet::NONE, AxisSet::union)
    }
}

/// The region of a tensor that a buffer holds: what the rank owns, and a halo or padding around it; or a chunk of both.
///
/// Element `i` of dim `d` holds global index `owned(coord).start[d] - halo_low[d] + i`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TensorRegion {
    /// Number of the tensor, the same on all ranks.
    #[serde(rename = "tensor")]
    pub id: u32,
    /// How the tensor is split.
    #[serde(rename = "place")]
    pub distribution: Distribution,
    /// Width of the halo or padding below the owned region, per dim; negative where a chunk begins inside that region.
    #[serde(rename = "low")]
    pub halo_low: [i64; 5],
    /// Whether the rank computes the halo itself, redundantly with its owners: no message brings it, and
    /// its gradient is that of the copy.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub redundant: bool,
}

impl TensorRegion {
    /// Elements of a buffer of this extent below and above the owned region of this length along a dim.
    pub fn around(&self, dim: usize, extent: usize, owned: usize) -> [usize; 2] {
        let low = self.halo_low[dim];
        let high = extent as i64 - low - owned as i64;
        [low, high].map(|width| usize::try_from(width).unwrap_or(0))
    }

    /// The global region of a view of this buffer on the rank at `coord`.
    pub fn region(&self, view: &View, mesh: &Mesh, coord: &Coord) -> Region {
        let owned = self.distribution.owned(mesh, coord);
        let mut region = view.region();
        for dim in 0..5 {
            region.0[dim] = region.0[dim].shift(owned.0[dim].start - self.halo_low[dim]);
        }
        region
    }
}

/// A dense array in the memory of one rank, the last dim fastest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffer {
    /// Readable name, unique in the body.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Extents in memory order, halo and padding included.
    pub dims: [usize; 5],
    /// The region of a tensor that it holds; none where its contents are never moved between ranks.
    #[serde(rename = "home")]
    pub tensor: Option<TensorRegion>,
    /// Its offset in the arena.
    pub offset: Bytes,
}

impl Buffer {
    /// Size in the arena.
    pub fn bytes(&self) -> Bytes {
        Bytes((self.dims.iter().product::<usize>() * self.dtype.size()) as u64)
    }

    /// Whether the values are of the types of a program in f32, bf16 or f16. Sums and scalars are in f64 in any program, and
    /// samples lie as they were read.
    pub fn is_f32_or_half(&self) -> bool {
        match self.role {
            Role::Activation | Role::ActivationGradient => match self.dtype {
                Dtype::F32 | Dtype::Bf16 | Dtype::F16 => true,
                Dtype::F64 | Dtype::I16 => false,
            },
            Role::Parameter
            | Role::State
            | Role::Constant
            | Role::Optimizer
            | Role::Average
            | Role::Gradient
            | Role::PackedWeights
            | Role::Gathered
            | Role::Workspace => self.dtype == Dtype::F32,
            Role::Staging | Role::Statistics => true,
        }
    }

    /// Elements between neighbors along each dim.
    pub fn pitches(&self) -> [usize; 5] {
        let mut pitches = [1; 5];
        for dim in (0..4).rev() {
            pitches[dim] = pitches[dim + 1] * self.dims[dim + 1];
        }
        pitches
    }

    /// The view of all of it.
    pub fn view(&self, id: BufferId) -> View {
        View {
            buffer: id,
            start: [0; 5],
            extent: self.dims,
        }
    }
}

/// A box inside a buffer, in the buffer's own indices. Its pitches are those of the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct View {
    /// The buffer.
    pub buffer: BufferId,
    /// First element per dim.
    pub start: [usize; 5],
    /// Extent per dim.
    pub extent: [usize; 5],
}

impl View {
    /// Number of elements.
    pub fn volume(&self) -> usize {
        self.extent.iter().product()
    }

    /// Whether it holds no element.
    pub fn is_empty(&self) -> bool {
        self.extent.contains(&0)
    }

    /// As a region of buffer indices.
    pub fn region(&self) -> Region {
        let mut region = Region::default();
        for dim in 0..5 {
            let start = self.start[dim] as i64;
            region.0[dim] = Interval::new(start, start + self.extent[dim] as i64);
        }
        region
    }

    /// From a region of buffer indices, none negative.
    pub fn of(buffer: BufferId, region: &Region) -> Self {
        let start = region.0.map(|interval| {
            usize::try_from(interval.start).expect("a view starts inside its buffer")
        });
        Self {
            buffer,
            start,
            extent: region.shape(),
        }
    }

    /// Bytes of its elements.
    pub fn bytes(&self, buffers: &[Buffer]) -> Bytes {
        let size = buffers[self.buffer.0 as usize].dtype.size();
        Bytes((self.volume() * size) as u64)
    }
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b{}{}", self.buffer.0, self.region())
    }
}

impl From<View> for String {
    /// As it prints. Digests of programs write every view, which takes most of their time with formatters.
    fn from(view: View) -> String {
        let mut text = String::with_capacity(48);
        text.push('b');
        push_number(&mut text, view.buffer.0 as usize);
        for dim in 0..5 {
            text.push(if dim == 0 { '[' } else { ',' });
            push_number(&mut text, view.start[dim]);
            text.push(':');
            push_number(&mut text, view.start[dim] + view.extent[dim]);
        }
        text.push(']');
        text
    }
}

fn push_number(text: &mut String, number: usize) {
    if number >= 10 {
        push_number(text, number / 10);
    }
    text.push(char::from(b'0' + (number % 10) as u8));
}

/// A text that is not a view.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a view; a view reads `b7[0:1,0:4,0:4,0:4,0:16]`")]
pub struct ViewError(String);

impl FromStr for View {
    type Err = ViewError;
    fn from_str(text: &str) -> Result<Self, ViewError> {
        parse_view(text).ok_or_else(|| ViewError(text.to_owned()))
    }
}

impl TryFrom<String> for View {
    type Error = ViewError;
    fn try_from(text: String) -> Result<Self, ViewError> {
        text.parse()
    }
}

fn parse_view(text: &str) -> Option<View> {
    let (buffer, rest) = text.strip_prefix('b')?.split_once('[')?;
    let mut view = View {
        buffer: BufferId(buffer.parse().ok()?),
        start: [0; 5],
        extent: [0; 5],
    };
    let mut dims = rest.strip_suffix(']')?.split(',');
    for dim in 0..5 {
        let (start, end) = dims.next()?.split_once(':')?;
        view.start[dim] = start.parse().ok()?;
        // Regions count in i64.
        let end = usize::try_from(end.parse::<i64>().ok()?).ok()?;
        view.extent[dim] = end.checked_sub(view.start[dim])?;
    }
    dims.next().is_none().then_some(view)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_reads_as_it_prints() {
        let view = View {
            buffer: BufferId(7),
            start: [0, 1, 2, 3, 4],
            extent: [1, 2, 0, 4, 5],
        };
        assert_eq!(view.to_string(), "b7[0:1,1:3,2:2,3:7,4:9]");
        assert_eq!(view.to_string().parse(), Ok(view));
        for number in [0, 9, 10, 99, 100, 1 << 40] {
            let view = View {
                start: [number; 5],
                extent: [0, 1, 9, 10, number],
                ..view
            };
            assert_eq!(String::from(view), view.to_string());
        }
        for wrong in [
            "b7",
            "b7[1:0,0:1,0:1,0:1,0:1]",
            "b7[1:9223372036854775808,0:1,0:1,0:1,0:1]",
            "b7[0:1,0:1,0:1,0:1]",
            "x[0:1]",
        ] {
            assert!(wrong.parse::<View>().is_err(), "{wrong}");
        }
    }
}
