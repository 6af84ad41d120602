//! The performance model: how long a program takes on a machine, and why.
//!
//! Does: costs kernels, messages, collectives and reads; simulates a program with the runner's own driver;
//! finds the critical path; compares with measured traces; fits models to measurements.
//! Knows: programs, machines, published cost models.
//! Must not know: models, strategies, how a program was made, files, or the clock of this machine.
//!
//! # Parts
//!
//! - Kernels that were never measured are estimated by `kernel_model`, fitted to those that were by features of
//!   their shape. A calibration in a machine file holds the measurements of the fit.
//! - Kernels on one node slow each other down: `cost::Contention` follows from their times alone and beside their
//!   own kind; `simulate/engine` knows which run at once.
//! - Transfers share the links of their ranks and the adapters of their nodes: all that meet at a full one are
//!   slowed by the same factor (`simulate/network`, `simulate/usage`).
//! - A collective costs what a measured fit, the fit of the machine file, or the algorithms of the library say
//!   (`cost/machine/collectives`, `cost/collective`). Collectives of one group run at once with ranks as threads
//!   and over MPI; on GPUs they run one after the other, as a communicator of NCCL runs them ([`Progress`]). What
//!   switches add to a path is `cost/crossing`; it looks at the span of nodes alone, so that ranks stay in few
//!   classes.
//! - How sure a cost is: `Costs::uncertainty`, by source of time; the numbers stand in `uncertainty/table`.
//!   Intervals follow in `uncertainty/interval`, over the paths that `simulate/composition` tells apart by source.
//! - What bounds a program: [`explain()`], from its buffers, tasks and simulation. A change of the machine is a
//!   simulation with other costs (`cost/scaled`).
//!
//! ```
//! use partita_oracle::fit_line;
//! use partita_space::{Bytes, Seconds};
//!
//! // Latency and bandwidth of a link from measured messages.
//! let points = [(1_000, 3e-6), (10_000, 12e-6), (100_000, 102e-6)];
//! let fit = fit_line(&points.map(|(bytes, seconds)| (Bytes(bytes), Seconds(seconds))))?;
//! assert!((fit.latency.0 - 2e-6).abs() < 1e-9);
//! assert!((fit.seconds_per_byte - 1e-9).abs() < 1e-12);
//! # Ok::<(), partita_oracle::FitError>(())
//! ```

mod cholesky;
pub mod closed;
pub mod compare;
pub mod cost;
pub mod explain;
pub mod fit;
pub mod kernel_model;
pub mod lower_bound;
pub mod offload;
mod prediction;
pub mod simulate;
pub mod uncertainty;

pub use compare::{CompareError, Comparison, PredictionFault, compare};
pub use cost::precision;
pub use cost::{
    AlltoallBlocks, CollectiveCost, Contention, CostBasis, CostError, Costs, KernelBasis,
    KernelCost, LayerFactors, LoadCost, MessageCost, PassFactors, Progress, SampleRead,
};
pub use cost::{
    KernelTimes, LinkSizes, LinkTimes, MachineCosts, MeasuredCosts, ScaledCosts, SoftwareCosts,
    SpeedFactors, host_seconds_per_byte, rough_seconds,
};
pub use explain::{
    Change, Crossover, CrossoverSearch, Finding, LimitingFactor, WhatIf, crossover, explain,
    what_ifs,
};
pub use fit::{FitError, LineFit, fit_line};
pub use kernel_model::{CrossValidation, ErrorStatistics, Features, KernelModel, KernelSample};
pub use lower_bound::{durations, rank_seconds, task_seconds};
pub use offload::{OffloadedEpoch, OffloadedWork, ProcessWork};
pub use partita_cluster::{LayerPrecision, TransferTime};
pub use prediction::{Prediction, TaskPrediction, predict};
pub use simulate::{
    Breakdown, Classes, Contracted, Mode, SimulateError, Simulation, add_paths, refine, simulate,
};
pub use uncertainty::{
    Interval, Probability, Spread, StepUncertainty, TimeSource, Uncertainty, probabilities_fastest,
};
