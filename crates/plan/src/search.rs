//! The search: prunes, evaluates and ranks candidates.

use crate::plan::{PlanError, RankedStrategy, Refusal, SearchRequest};
use crate::ranking::Ranking;
use crate::repeats::Shortened;
use partita_lower::Strategy;
use partita_oracle::Prediction;
use partita_space::Bytes;

/// Ranks all candidate strategies: those that fit, fastest first, then those rejected.
///
/// A candidate is rejected if it does not fit the model, the mini-batch or the memory, if a cost is unknown, or if it
/// cannot be the fastest: one rank alone, with peers that are always ready ([`SearchRequest::lower_bound`]), takes
/// longer than a whole step of the best candidate so far.
///
/// The search has six steps, and one on request:
/// 1. Prune. Candidates are sorted by closed forms. The first valid one with data and spatial parallelism alone is
///    evaluated at once, with other axes for deep levels, too (`level_costs`), and those that take
///    [`SearchRequest::prune_factor`] times as long are not lowered. Of the others the last rank is lowered, which has the
///    largest part of a balanced split.
/// 2. Evaluate, in the order of lower bounds: first the middle rank, which has most neighbors, and one rank of each
///    group of branches, then the whole program. Candidates whose expected time is longer than the best step are
///    pruned (`expectation`).
/// 3. Choose a distribution for each layer on the meshes of the best candidates.
/// 4. Pipelines, in the order of their estimated time with balanced stages ([`crate::balance`]), pruned as in 2, until
///    many programs of them are evaluated without one being the fastest. The layers of the best one's stages are
///    chosen again by simulated steps, if it is nearly the best candidate.
/// 5. Save memory: candidates that did not fit, with sharded training state, micro-batches and recomputation
///    (`savings`).
/// 6. Sum gradients in buckets in the best candidates and under data parallelism alone; what is no faster is rejected.
///    Where the time is limited, a part of it is left for this.
/// 7. Evaluate slower candidates of less memory, for the front of time against memory (`front`).
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
    ranking.evaluate_chunks()?;
    ranking.evaluate_simulated_cuts()?;
    ranking.share = 1.0;
    ranking.evaluate_buckets()?;
    ranking.evaluate_front()?;
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
