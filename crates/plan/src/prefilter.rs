//! Prefilter: rejects candidates by lowering a few ranks, before all are lowered.

use crate::need::{Need, need};
use crate::plan::{PlanError, Refusal, Rejection, SearchRequest};
use crate::repeats::Shortened;
use partita_lower::{LowerError, Request, Strategy, lower_rank};
use partita_oracle::precision;
use partita_space::help::Message;
use partita_space::{Axis, Rank, Seconds};

/// The part of the memory up to which an estimate by shortened models shows that a rank fits.
const PLENTY: f64 = 0.8;

/// Lowers a few ranks of a candidate.
pub(crate) struct Prefilter<'r, 'a> {
    pub request: &'r SearchRequest<'a>,
    /// The model with fewer layers, if it has many that are alike.
    pub shortened: Option<&'r Shortened>,
    /// The best candidate so far, and its step.
    pub best: Option<&'r (Seconds, Strategy)>,
}

impl Prefilter<'_, '_> {
    /// Lower bound of the time of a step from the last rank, which has the largest part of a balanced split, or why
    /// the candidate is rejected: invalid, out of memory, or slower than the best.
    pub fn at_last_rank(
        &self,
        strategy: &Strategy,
    ) -> Result<Result<Seconds, Rejection>, PlanError> {
        let training = &self.request.training;
        if let Err(error) = strategy.check_splits(training.graph, training.batch) {
            return Ok(Err((Refusal::Unsuited, Message::of(&error).inline())));
        }
        self.at_rank(strategy, strategy.mesh().ranks() - 1)
    }

    /// Lower bound from the bodies of a rank in the shortened models. None where there are none, where the strategy does
    /// not fit them, or where memory may be scarce.
    fn extrapolated(&self, strategy: &Strategy, rank: Rank) -> Result<Option<Seconds>, PlanError> {
        let request = self.request;
        let short = Shortened::of_strategy(self.shortened, strategy);
        let Some((shortened, short)) = short else {
            return Ok(None);
        };
        let found = shortened.extrapolated(|graph| -> Result<[f64; 2], LowerError> {
            let training = Request {
                graph,
                strategy: &short,
                ..request.training
            };
            let body = lower_rank(&training, rank)?;
            let needed = precision::memory(&body, request.stages.precision());
            let seconds = (request.lower_bound)(&body, rank, &short.mesh());
            Ok([seconds.0, needed.0 as f64])
        });
        match found {
            Ok([seconds, needed]) => {
                let is_plenty = needed <= PLENTY * request.memory.0 as f64;
                Ok(is_plenty.then_some(Seconds(seconds)))
            }
            Err(error) if error.is_of_strategy() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// As [`Self::at_last_rank`], from the middle rank, which has most neighbors.
    pub fn at_middle_rank(
        &self,
        strategy: &Strategy,
    ) -> Result<Result<Seconds, Rejection>, PlanError> {
        let mesh = strategy.mesh();
        let middle = mesh.middle();
        if middle == mesh.ranks() - 1 {
            return Ok(Ok(Seconds(0.0)));
        }
        self.at_rank(strategy, middle)
    }

    /// As [`Self::at_last_rank`], from one rank; where the model has shortened ones, from those.
    fn at_rank(
        &self,
        strategy: &Strategy,
        rank: Rank,
    ) -> Result<Result<Seconds, Rejection>, PlanError> {
        let Some(lower_bound) = self.extrapolated(strategy, rank)? else {
            return self.at_ranks(strategy, &[rank]);
        };
        let slower = self
            .best
            .and_then(|best| slower_than_best(lower_bound, best));
        Ok(slower.map_or(Ok(lower_bound), |reason| Err((Refusal::Slower, reason))))
    }

    /// Lower bound from one rank of every group of branches, as any of them may be the slowest.
    pub fn at_groups(&self, strategy: &Strategy) -> Result<Result<Seconds, Rejection>, PlanError> {
        let mesh = strategy.mesh();
        let mut coord = mesh.coord(mesh.ranks() - 1);
        let others = (0..mesh.extent(Axis::Branch) - 1).map(|group| {
            coord[Axis::Branch.index()] = group;
            mesh.rank(coord)
        });
        self.at_ranks(strategy, &others.collect::<Vec<Rank>>())
    }

    /// As [`Self::at_last_rank`], from these ranks.
    pub fn at_ranks(
        &self,
        strategy: &Strategy,
        ranks: &[Rank],
    ) -> Result<Result<Seconds, Rejection>, PlanError> {
        let slower = |need: &Need| {
            let best = self.best;
            best.and_then(|best| slower_than_best(need.lower_bound, best))
        };
        let is_enough = |need: &Need| need.reason.is_some() || slower(need).is_some();
        let limit = self.request.memory;
        let need = match need(self.request, strategy, (ranks, limit), &is_enough)? {
            Ok(need) => need,
            Err(no) => return Ok(Err(no)),
        };
        let slower = slower(&need);
        Ok(if let Some(reason) = need.reason {
            Err((Refusal::Memory(need.memory), reason))
        } else if let Some(reason) = slower {
            Err((Refusal::Slower, reason))
        } else {
            Ok(need.lower_bound)
        })
    }
}

/// Why a candidate cannot beat the best one.
pub(crate) fn slower_than_best(
    lower_bound: Seconds,
    (least, strategy): &(Seconds, Strategy),
) -> Option<String> {
    (lower_bound > *least).then(|| {
        let (lower_bound, least) = (lower_bound.to_string(), least.to_string());
        let length = if lower_bound == least { "as long as" } else { "longer than" };
        format!(
            "a single rank takes at least {lower_bound}, {length} a whole step of `{strategy}` ({least}); not \
             evaluated"
        )
    })
}
