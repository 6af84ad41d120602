//! The planner: finds the fastest strategy that fits in memory, and says why not the others.
//!
//! Does: enumerates strategies, rejects those that do not fit, prunes slow ones, evaluates and ranks the others.
//! Knows: models, strategies, programs, predictions, how much memory a rank may fill.
//! Must not know: machines by name, how costs are measured or modeled, kernels, files, the environment.
//!
//! ```
//! use partita_plan::candidates;
//!
//! // The ways to split a training over four ranks, before any of them is costed.
//! let model = partita_graph::zoo::build("cosmoflow@32").unwrap();
//! let all: Vec<String> = candidates(&model, 4, 8).iter().map(|one| one.to_string()).collect();
//! assert!(all.contains(&"data=4".to_owned()));
//! assert!(all.contains(&"data=2,depth=2".to_owned()));
//! ```

mod balance;
mod candidates;
mod closed;
mod expectation;
mod growth;
mod layers;
mod per_layer;
mod pipelines;
mod plan;
mod prefilter;
mod ranking;
mod repeats;
#[cfg(test)]
#[path = "../tests/requests/mod.rs"]
mod requests;
mod simulated_cuts;

pub use balance::{BalanceError, Balanced, balance};
pub use candidates::{candidates, hybrids};
pub use closed::{ClosedForm, closed_form};
pub use growth::{doubled, ranks_max};
pub use layers::{FixedCosts, StageCosts};
pub use per_layer::PerLayer;
pub use pipelines::pipelines;
pub use plan::{Candidate, Cost, LowerBound, PlanError, PlanRequest, Refusal, plan};
pub use simulated_cuts::Steps;
