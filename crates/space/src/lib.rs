//! Index spaces: dims, intervals, regions, splits, windows, meshes of ranks; units; and shared numerics: random
//! numbers, medians, functions of one element, windows of attention, spelling suggestions, help lines of errors, work of all cores.
//!
//! Does: the algebra of half-open boxes from which all communication is derived.
//! Knows: integers, names of dims and axes, physical units.
//! Must not know: models, machines, programs, time, files, or any other crate of the workspace.
//!
//! ```
//! use partita_space::{Interval, Split, Window};
//!
//! // 64 rows over 4 ranks, read through a window of 3 with padding 1: rank 1 needs a halo of one row on each side.
//! let own = Split { extent: 64, parts: 4 }.part(1);
//! let window = Window { kernel: 3, pad_low: 1, pad_high: 1, ..Window::ONE };
//! assert_eq!(own, Interval::new(16, 32));
//! assert_eq!(window.inputs_of(&own), Interval::new(15, 33));
//! ```

mod attention;
mod axis_list;
mod cores;
mod functions;
pub mod help;
mod interval;
pub mod limits;
mod median;
mod mesh;
mod pool;
pub mod printable;
pub mod random;
mod region;
mod resampling;
mod spelling;
mod submesh;
mod units;
mod window;

pub use attention::{AttentionWindow, ScoreRows};
pub use axis_list::AxisList;
pub use cores::{on_cores, on_threads, threads};
pub use functions::{Activation, DropoutMask, ElementFunction};
pub use help::Help;
pub use interval::{Interval, Split};
pub use median::{median, upper_median};
pub use mesh::{AXES, Axis, AxisSet, Coord, Mesh, MeshError, Offset, Rank};
pub use pool::PoolKind;
pub use region::{DIMS, Dim, Region};
pub use resampling::{ResampleRule, Resampling};
pub use spelling::{fits, near, nearest};
pub use submesh::Submesh;
pub use units::{Bytes, BytesPerSecond, Flops, FlopsPerSecond, Seconds, Unit, UnitTable};
pub use window::Window;
