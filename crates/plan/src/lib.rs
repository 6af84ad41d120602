//! The planner: finds the fastest strategy that fits in memory, and says why not the others.
//!
//! Does: enumerates strategies, rejects those that do not fit, prunes slow ones, evaluates and ranks the others.
//! Knows: models, strategies, programs, predictions, how much memory a rank may fill.
//! Must not know: machines by name, how costs are measured or modeled, kernels, files, the environment.
//!
//! # How a plan is found
//!
//! Closed forms (`oracle/closed`) estimate the step of each candidate from a table of layers that one rank's
//! program gives. What takes three times as long by them as the best is not lowered; in trials on 16 models,
//! machines and batches the best stayed the same at one and a half times. Of the others the last rank is lowered,
//! then the middle one and one of each group of branches, and all only where these take less than a step of the
//! best (`oracle/lower_bound`). Of candidates that split filters, channels and branches alike, the one with the
//! fewest tiles is simulated first. How much longer than its lower bound its step is predicts the others; paths on
//! one mesh and pipelines of one kind likewise (`expectation`).
//!
//! For each level of a model, such as those of a U-Net, `levels` and `level_costs` choose which spatial axes go on to split
//! it in space, and which repeat it or split its filters or channels. They do so for the first candidate with data and
//! spatial parallelism alone, so that the result prunes all others. Where that does not fit in memory, they go on with the
//! meshes that can split the deepest weights into the most parts, and what still does not fit comes first among the savings.
//! Programs of very many tasks, by the classes of ranks and the body of one, are not simulated (`size`), nor are large ones after
//! three that were slower; then the levels below one have the same axes, which makes fewer classes.
//!
//! On the meshes of the best strategies so far, `per_layer` lowers one rank for each distribution and finds the
//! cheapest path over the segments of the model, which end where a single tensor connects the layers before and
//! after.
//!
//! Pipelines come in the order of their expected time: balanced stages as estimated (`balance`), and what the rank
//! that works longest takes beyond that once it is lowered, such as gradient sums between nodes. The estimate alone
//! was 1.15 to 2.9 times too short in 80 pipelines of five networks, with that rank 1.02 to 2.5 times, and never
//! too long. After two that were not the fastest, and many tasks, no more are simulated. If the best pipeline is
//! nearly the best of all, its stages are chosen again by simulating many cuts (`simulated_cuts`). The best two,
//! and data parallelism alone, are simulated again with gradients in buckets.
//!
//! Candidates that need more memory than there is are tried again with sharded training state, micro-batches and
//! recomputed blocks (`savings`, `recompute`), while they may beat the best; of a pipeline each stage with blocks of its own
//! (`stage_savings`).
//!
//! The front of time against memory is completed on request, by savings under ever lower limits (`front`).
//!
//! A model with long runs of equal blocks is shortened (`repeats`): a step of ResNet-1001 is extrapolated from
//! those with two and three blocks per run, since each further block adds as much; in trials this was exact to
//! rounding. Candidates are pruned by these, and the fastest are lowered whole.
//!
//! Closed forms, paths and estimates only choose what is simulated: every number that is reported was simulated.
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
mod buckets;
mod candidates;
mod chunks;
mod closed;
mod expectation;
mod front;
mod growth;
mod layers;
mod level_costs;
mod levels;
mod moves;
mod need;
mod partition;
mod per_layer;
mod pipelines;
mod plan;
mod prefilter;
mod ranking;
mod recompute;
mod repeats;
#[cfg(test)]
#[path = "../tests/requests/mod.rs"]
mod requests;
mod savings;
mod search;
mod simulated_cuts;
mod size;
mod stage_savings;

pub use balance::{BalanceError, Balanced};
pub use candidates::{candidates, hybrids};
pub use closed::{ClosedForm, closed_form};
pub use growth::{CannotGrow, doubled, ranks_max};
pub use layers::{FixedCosts, LayersError, StageCosts, UnknownCost};
pub use partition::balance;
pub use per_layer::PerLayer;
pub use pipelines::pipelines;
pub use plan::{Cost, LowerBound, PlanError, RankedStrategy, Refusal, SearchRequest};
pub use search::plan;
pub use simulated_cuts::Steps;
