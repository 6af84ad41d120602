//! The search: prunes, evaluates and ranks candidates.

use crate::layers::StageCosts;
use crate::prefilter::Rejection;
use crate::ranking::Ranking;
use crate::repeats::Shortened;
use partita_lower::{LowerError, Request, Strategy};
use partita_oracle::Prediction;
use partita_program::{Body, Program};
use partita_space::{Bytes, Mesh, Rank, Seconds};

/// Why the cost of a program is unknown.
type Unknown = String;

/// Predicts the time of a program.
pub type Cost<'a> = dyn Fn(&Program) -> Result<Prediction, Unknown> + 'a;

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
    /// Whether lower bounds know all costs, so that those of similar candidates tell what to expect of others.
    pub knows_costs: bool,
    /// Predicts the time of a program.
    pub cost: &'a Cost<'a>,
    /// Costs of the stages of pipelines.
    pub stages: &'a dyn StageCosts,
    /// Called with the current candidate and the number of candidates left.
    pub progress: &'a dyn Fn(&Strategy, usize),
    /// Whether the search ends now, given whether it has evaluated a candidate, or found one that does not fit in
    /// memory, and the share of the time of a search after which the current step of it ends: the last step has a
    /// share of its own.
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

/// Kind of a rejection, the nearest to a valid candidate first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// A rank needs this much memory, more than the limit.
    Memory(Bytes),
    /// It cannot be the fastest.
    Slower,
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

/// Ranks all candidate strategies: those that fit, fastest first, then those rejected.
///
/// A candidate is rejected if it does not fit the model, the mini-batch or the memory, if a cost is unknown, or if it
/// cannot be the fastest: one rank alone, with peers that are always ready ([`SearchRequest::lower_bound`]), takes
/// longer than a whole step of the best candidate so far.
///
/// The search has six steps:
/// 1. Prune. Candidates are sorted by closed forms. The first valid one with data and spatial parallelism alone is
///    evaluated at once, and those that take [`SearchRequest::prune_factor`] times as long are not lowered. Of the
///    others the last rank is lowered, which has the largest part of a balanced split.
/// 2. Evaluate, in the order of lower bounds: first the middle rank, which has most neighbors, and one rank of each
///    group of branches, then the whole program. Candidates whose expected time is longer than the best step are
///    pruned (`expectation`).
/// 3. Choose a distribution for each layer on the meshes of the best candidates.
/// 4. Pipelines, in the order of their estimated time with balanced stages ([`crate::balance`]), pruned as in 2, until
///    many programs of them are evaluated without one being the fastest. The layers of the best one's stages are
///    chosen again by simulated steps, if it is nearly the best candidate.
/// 5. Save memory: candidates that did not fit, with sharded training state, micro-batches and recomputed blocks
///    (`savings`).
/// 6. Sum gradients in buckets in the best candidates and under data parallelism alone; what is no faster is rejected.
///    Where the time is limited, a part of it is left for this.
///
/// Of a model with many equal blocks, two shortened models with fewer of them are lowered in 1, 2 and 3, and the tables
/// of 4 follow from theirs; those candidates that are then the fastest by this are evaluated before 5 and 6 (`repeats`).
///
/// Errors: no candidate fits, or the menu lacks a kernel.
pub fn plan(request: &SearchRequest<'_>) -> Result<Vec<RankedStrategy>, PlanError> {
    // Where costs are not known, steps must not be compared with those of other models.
    let is_pruned = request.prune_factor.is_finite() && request.knows_costs;
    let shortened = is_pruned.then(|| Shortened::of(request.training.graph));
    let shortened = shortened.flatten();
    let mut ranking = Ranking::new(request, shortened.as_ref());
    let pending = ranking.prune()?;
    ranking.evaluate_all(pending)?;
    ranking.evaluate_per_layer()?;
    ranking.evaluate_pipelines()?;
    ranking.evaluate_estimated()?;
    ranking.evaluate_savings()?;
    ranking.evaluate_simulated_cuts()?;
    ranking.share = 1.0;
    ranking.evaluate_buckets()?;
    let (mut evaluated, mut refused) = (ranking.evaluated, ranking.refused);
    refused.sort_by_key(|candidate| candidate.refusal);
    if evaluated.is_empty() {
        let is_untried = |one: &RankedStrategy| one.refusal == Some(Refusal::Untried);
        return Err(if refused.iter().all(is_untried) {
            PlanError::Ended
        } else {
            none_fits(request, refused)
        });
    }
    // Ties are broken by memory.
    let key = |candidate: &RankedStrategy| {
        let of = |one: &Prediction| (one.iteration_seconds.0, one.memory_bytes_max);
        let prediction = candidate.prediction.as_ref();
        prediction.map_or((f64::INFINITY, Bytes(u64::MAX)), of)
    };
    evaluated.sort_by(|a, b| {
        let (a, b) = (key(a), key(b));
        a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))
    });
    evaluated.extend(refused);
    Ok(evaluated)
}

fn none_fits(request: &SearchRequest<'_>, refused: Vec<RankedStrategy>) -> PlanError {
    let nearest = refused.first();
    PlanError::NoneFits {
        ranks: request.ranks,
        memory: request.memory,
        batch: request.training.batch,
        nearest: Box::new(nearest.map_or_else(Strategy::single, |one| one.strategy.clone())),
        reason: nearest
            .and_then(|one| one.reason.clone())
            .unwrap_or_default(),
        refused,
    }
}
