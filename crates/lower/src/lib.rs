//! Lowering: graph and strategy become an explicit program.
//!
//! Does: chooses the distribution of every tensor, derives all communication from regions, orders tasks in
//! lanes, plans the memory of each rank, and groups ranks into classes.
//! Knows: the model, the strategy, and what kernels a menu offers.
//! Must not know: seconds, devices, threads, files; it never decides by a measured time.
//!
//! ```
//! use partita_lower::Strategy;
//!
//! let strategy: Strategy = "data=2; stages=[depth=2|1]; micro=4".parse()?;
//! assert_eq!(strategy.ranks(), 2 * (2 + 1));
//!
//! // An invalid split is an error with the layer and its limit.
//! let model = partita_graph::zoo::build("cosmoflow@32").unwrap();
//! let refusal = "filter=8".parse::<Strategy>()?.check(&model, 8).unwrap_err();
//! assert!(refusal.to_string().contains("filters of `fc3` of 4 into 8 parts"));
//! # Ok::<(), partita_lower::StrategyError>(())
//! ```

mod arena;
mod backward;
mod body;
mod branches;
mod check;
mod chunks;
mod classes;
mod depend;
mod emit;
mod exchange;
mod forward;
mod fuse;
mod geometry;
mod gradients;
mod group_norm;
mod lay_out;
mod loss;
mod lowering;
mod nearest;
mod network;
mod network_text;
mod overlap;
mod pack;
mod parameters;
mod passes;
mod placement;
mod product;
mod recompute;
mod redistribute;
mod request;
mod resample;
mod resharding;
mod schedule;
mod select;
mod selective;
mod slabs;
mod step_plan;
mod storage;
mod strategy;
mod timeline;
mod totals;
mod transformer;
mod trust;
mod update;
mod windows;

pub use lay_out::can_be_chunked;
pub use loss::class_terms;
pub use lowering::{class_count, lower, lower_after, lower_rank, lower_ranks};
pub use nearest::StrategyChecks;
pub use passes::{LoweringPass, NoPass};
pub use placement::balanced;
pub use request::{LowerError, Request, SampleFormat};
pub use schedule::{Pass, Schedule, Slot, fitting_micro, forward_slots, slots};
pub use strategy::{
    BatchNormStatistics, Branches, Halo, LayerChoice, LayerDim, Recompute, Setting, Shard,
    SharedParameter, Sharer, StageChoice, Strategy, StrategyError, WorkspaceLimit,
};
