//! The space in which everything happens: dims, intervals, regions, splits, windows, meshes, units.
//!
//! Does: the algebra of half-open boxes from which every movement of data is derived.
//! Knows: integers, names of dims and axes, physical units.
//! Must not know: models, machines, programs, time, files, or any other crate of the workspace.

mod axis_list;
mod grid;
mod interval;
pub mod limits;
mod mesh;
mod region;
mod units;
mod window;

pub use axis_list::AxisList;
pub use grid::Grid;
pub use interval::{Interval, Split};
pub use mesh::{AXES, Axis, AxisSet, Coord, Mesh, MeshError, Offset, Rank};
pub use region::{DIMS, Dim, Region};
pub use units::{Bytes, BytesPerSecond, Flops, FlopsPerSecond, Seconds};
pub use window::Window;
