//! The oracle: how long a program takes on a machine, and why.
//!
//! Does: costs kernels, messages, collectives and reads; plays a program in virtual time with the
//! runner's own driver; names the critical path; compares with measured traces; fits laws to points.
//! Knows: programs, machines, the published formulas of cost.
//! Must not know: models, strategies, how a program was made, files, or the clock of this machine.
//!
//! ```
//! use partita_oracle::fit_line;
//! use partita_space::{Bytes, Seconds};
//!
//! // Latency and rate of a link from measured messages.
//! let points = [(1_000, 3e-6), (10_000, 12e-6), (100_000, 102e-6)];
//! let law = fit_line(&points.map(|(bytes, seconds)| (Bytes(bytes), Seconds(seconds))))?;
//! assert!((law.latency.0 - 2e-6).abs() < 1e-9);
//! assert!((law.seconds_per_byte - 1e-9).abs() < 1e-12);
//! # Ok::<(), partita_oracle::FitError>(())
//! ```

pub mod closed;
pub mod compare;
pub mod cost;
pub mod efficiency;
pub mod explain;
pub mod fit;
mod linear;
pub mod lower_bound;
pub mod prediction;
pub mod simulate;

pub use compare::{CompareError, Comparison, PredictionFault, compare};
pub use cost::{
    Blocks, CollectiveCost, CostBasis, CostError, Costs, KernelCost, Known, MessageCost,
};
pub use cost::{
    KernelTimes, LinkFit, LinkTimes, MachineCosts, MeasuredCosts, Point, Scaled, Speeds,
    host_seconds_per_byte, rough_seconds,
};
pub use efficiency::{Efficiency, Errors, Features, Sample, Validation};
pub use explain::{Change, Finding, Item, Turn, WhatIf, explain, turning_point, what_ifs};
pub use fit::{FitError, LineFit, fit_line};
pub use lower_bound::{durations, rank_seconds, task_seconds};
pub use prediction::{Prediction, TaskPrediction, predict};
pub use simulate::{Breakdown, Classes, Mode, SimulateError, Simulation, refine, simulate};
