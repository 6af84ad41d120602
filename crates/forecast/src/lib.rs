//! A machine, described by a file or measured, and what it predicts of a training.
//!
//! Does: resolves models, machines and software by name; lowers, predicts and plans a training on a machine; measures and
//! calibrates this machine; explains what bounds a program.
//! Knows: the model and its strategies, the cost model, the search, and how ranks of this machine are launched.
//! Must not know: run files, samples and weights; arguments, the terminal, the environment. It never prints.

pub mod model;
mod pareto;
pub mod trace;

mod budget;
mod input;
mod layer_times;
pub mod machine;
mod planning;
pub mod software;
mod training;

mod compute_scale;
mod explain;
pub mod launched;
mod local_machine;
pub mod search;
mod target;

mod calibrate;
mod lower;
mod pinned;
mod plan;
mod predict;
mod trials;
mod tune;

pub use budget::MeasuringBudget;
pub use calibrate::{CalibrateError, CalibrateRequest, Calibrated, CalibrationSummary, calibrate};
pub use compute_scale::ComputeScale;
pub use explain::{BandwidthCrossover, Change, Explanation, Point as ScalingPoint, Rival, Scaling};
pub use input::{Dataset, DatasetBasis, InputRequest, InputSource, IoChoice};
pub use layer_times::{LayerScale, LayerTimesError};
pub use local_machine::{LocalError, LocalMachine, PASSES};
pub use lower::{ClassSummary, LowerRequest, LowerSummary, WorkCount, lower, lower_after};
pub use pareto::pareto;
pub use pinned::{PinnedConvolutions, signatures};
pub use plan::{Candidate, PlanRequest, Planned, figures, plan, ties};
pub use planning::{EpochError, PlanningError};
pub use predict::{
    ClosedForm, EpochPrediction, OffloadRequest, PredictRequest, Predicted, predict,
};
pub use target::{DescribedMachine, MeasuredMachine, TargetMachine};
pub use training::{
    ADAM, ADAMW, COUNTS, EMA_MAX, FLOATS, LAMB, LARS, Lowered, NESTEROV, SCALED_COUNTS, SGD,
    StrategyChoice, Training, accumulating, micro_note,
};
pub use trials::{TrialMenu, Trials, telling};
pub use tune::{TuneRequest, Tuned, TunedKernel, TunedPoint, TunedStep, tune};
