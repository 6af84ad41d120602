//! The planner: which way of splitting a training is best, and why not the others.
//!
//! Does: enumerates strategies, refuses those that do not fit, costs the others, ranks them.
//! Knows: models, strategies, programs, predictions, how much memory a rank may fill.
//! Must not know: machines by name, how a cost is come by, kernels, files, the environment.

mod candidates;
mod floor;
mod plan;

pub use candidates::{candidates, hybrids};
pub use floor::rank_seconds;
pub use plan::{Candidate, Cost, Floor, PlanError, PlanRequest, plan};
