//! What is searched for, and what a search finds.

use crate::layers::{StageCosts, UnknownCost};
use partita_lower::{LowerError, Request, Strategy};
use partita_oracle::Prediction;
use partita_program::{Body, Program};
use partita_space::{Bytes, Mesh, Rank, Seconds};

/// Predicts the time of a program.
pub type Cost<'a> = dyn Fn(&Program) -> Result<Prediction, UnknownCost> + 'a;

/// Lower bound of the time of a step from the body of one rank, as [`partita_oracle::rank_seconds`].
pub type LowerBound<'a> = dyn Fn(&Body, Rank, &Mesh) -> Seconds + 'a;

/// What to plan.
pub struct SearchRequest<'a> {
    /// The training; its strategy is replaced by each candidate in turn, which takes the statistics of batch norms
    /// as it does.
    pub training: Request<'a>,
    /// Number of ranks.
    pub ranks: usize,
    /// Memory limit of a rank.
    pub memory: Bytes,
    /// Lower bound of the time of a step; 0 where nothing is known.
    pub lower_bound: &'a LowerBound<'a>,
    /// Candidates that take more than this many times as long as the best, by closed forms, are pruned; where it is
    /// infinite, only those are pruned that cannot be the fastest by their lower bound.
    pub prune_factor: f64,
    /// Whether pipelines may cut the mini-batch in micro-batches where the model has batch norms or Dice over a batch,
    /// whose sums are then those of a micro-batch: this changes the training.
    pub micro_statistics: bool,
    /// Whether slower candidates of less memory are evaluated, too, down to the least that is possible.
    pub front: bool,
    /// Whether lower bounds know all costs, so that those of similar candidates tell what to expect of others.
    pub knows_costs: bool,
    /// Predicts the time of a program.
    pub cost: &'a Cost<'a>,
    /// Costs of the stages of pipelines.
    pub stages: &'a dyn StageCosts,
    /// Called with the current candidate and the number of candidates left.
    pub progress: &'a dyn Fn(&Strategy, usize),
    /// True when the search has to end. Arguments: whether it has evaluated or refused a candidate; the share of the
    /// budget after which its current phase ends.
    pub is_over: &'a dyn Fn(bool, f64) -> bool,
}

/// A strategy with its prediction, or the reason of its rejection.
#[derive(Clone, Debug, PartialEq)]
pub struct RankedStrategy {
    /// The strategy.
    pub strategy: Strategy,
    /// The prediction; none where it was rejected.
    pub prediction: Option<Prediction>,
    /// Why it was rejected, and a remedy; none where it was not.
    pub reason: Option<String>,
    /// Kind of the rejection.
    pub refusal: Option<Refusal>,
}

impl RankedStrategy {
    /// What a rank needs, where that is why it was rejected.
    pub fn memory_needed(&self) -> Option<Bytes> {
        if let Some(Refusal::Memory(needed)) = self.refusal {
            Some(needed)
        } else {
            None
        }
    }
}

/// Kind of a rejection, the nearest to a valid candidate first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// A rank needs this much memory, more than the limit.
    Memory(Bytes),
    /// It cannot be the fastest.
    Slower,
    /// Its program is too large to be simulated in a search.
    Large,
    /// The search ended before.
    Untried,
    /// It does not fit the model, the mini-batch or the number of ranks.
    Unsuited,
    /// A cost is unknown.
    Unknown,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// All candidates were rejected.
    #[error(
        "no strategy fits {ranks} rank(s) with {memory} each for batch {batch}; the nearest is \
         `{nearest}`: {reason}"
    )]
    NoneFits {
        /// The requested value.
        ranks: usize,
        /// The requested value.
        memory: Bytes,
        /// The requested value.
        batch: usize,
        /// The rejected strategy nearest to a valid one.
        nearest: Box<Strategy>,
        /// Why it was rejected.
        reason: String,
        /// All rejected candidates.
        refused: Vec<RankedStrategy>,
    },
    /// The search was ended before it looked at a candidate.
    #[error("the search was ended before a strategy was looked at")]
    Ended,
    /// A kernel is missing, whatever the strategy.
    #[error(transparent)]
    Lower(#[from] LowerError),
}

/// Kind and reason of a rejection.
pub(crate) type Rejection = (Refusal, String);

impl RankedStrategy {
    pub(crate) fn refused(strategy: Strategy, (refusal, reason): Rejection) -> Self {
        Self {
            strategy,
            prediction: None,
            reason: Some(reason),
            refusal: Some(refusal),
        }
    }

    /// Seconds of a step; none where it was rejected.
    pub fn seconds(&self) -> Option<Seconds> {
        let prediction = self.prediction.as_ref();
        prediction.map(|prediction| prediction.iteration_seconds)
    }

    /// The bottleneck, or why it was rejected.
    pub fn explanation(&self) -> &str {
        match (&self.reason, &self.prediction) {
            (Some(reason), _) => reason,
            (None, Some(prediction)) => &prediction.bottleneck,
            (None, None) => "",
        }
    }
}
