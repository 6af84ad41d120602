//! Lowering: graph and strategy become an explicit program.
//!
//! Does: places tensors on the mesh, derives every movement from regions, orders tasks in lanes, plans
//! the arena of each rank, and groups ranks into classes.
//! Knows: the model, the strategy, and what kernels a menu offers.
//! Must not know: seconds, devices, threads, files; it never decides by a measured time.

mod arena;
mod backward;
mod body;
mod branches;
mod check;
mod classes;
mod cross;
mod depend;
mod emit;
mod exchange;
mod forward;
mod fuse;
mod geometry;
mod lay_out;
mod lowering;
mod network;
mod network_text;
mod overlap;
mod pack;
mod parameter_gradient;
mod parameters;
mod passes;
mod placement;
mod plan;
mod recompute;
mod redistribute;
mod request;
mod schedule;
mod sequence;
mod storage;
mod strategy;
mod timeline;
mod update;

pub use lowering::{lower, lower_after, lower_rank, lower_ranks};
pub use passes::{LoweringPass, NoPass};
pub use placement::balanced;
pub use request::{LowerError, Request, SampleFormat};
pub use schedule::{Pass, Schedule, Slot, fitting_micro, forward_slots, slots};
pub use strategy::{
    Branches, Halo, LayerChoice, LayerDim, Shard, SharedParameter, Sharer, StageChoice, Strategy,
    StrategyError,
};
