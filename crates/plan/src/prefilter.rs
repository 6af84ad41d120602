//! Prefilter: rejects candidates by lowering a few ranks, before all are lowered.

use crate::plan::{PlanError, PlanRequest, Refusal};
use partita_lower::{LowerError, Request, Strategy, lower_ranks};
use partita_oracle::precision;
use partita_program::{Body, Role};
use partita_space::{AXES, Axis, Bytes, Rank, Seconds};

/// Kind and reason of a rejection.
pub(crate) type Rejection = (Refusal, String);

/// Lowers a few ranks of a candidate.
pub(crate) struct Prefilter<'r, 'a> {
    pub request: &'r PlanRequest<'a>,
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
            return Ok(Err((Refusal::Unsuited, error.to_string())));
        }
        self.lower_ranks_at(strategy, &[strategy.mesh().ranks() - 1])
    }

    /// As [`Self::at_last_rank`], from the middle rank, which has most neighbors.
    pub fn at_middle_rank(
        &self,
        strategy: &Strategy,
    ) -> Result<Result<Seconds, Rejection>, PlanError> {
        let mesh = strategy.mesh();
        let middle = mesh.rank(AXES.map(|axis| mesh.extent(axis) / 2));
        if middle == mesh.ranks() - 1 {
            return Ok(Ok(Seconds(0.0)));
        }
        self.lower_ranks_at(strategy, &[middle])
    }

    /// Lower bound from one rank of every group of branches, as any of them may be the slowest.
    pub fn at_groups(&self, strategy: &Strategy) -> Result<Result<Seconds, Rejection>, PlanError> {
        let mesh = strategy.mesh();
        let mut coord = mesh.coord(mesh.ranks() - 1);
        let others = (0..mesh.extent(Axis::Branch) - 1).map(|group| {
            coord[Axis::Branch.index()] = group;
            mesh.rank(coord)
        });
        self.lower_ranks_at(strategy, &others.collect::<Vec<Rank>>())
    }

    /// As [`Self::at_last_rank`], from these ranks.
    fn lower_ranks_at(
        &self,
        strategy: &Strategy,
        ranks: &[Rank],
    ) -> Result<Result<Seconds, Rejection>, PlanError> {
        let request = self.request;
        let training = Request {
            strategy,
            ..request.training
        };
        let mesh = strategy.mesh();
        let mut lower_bound = Seconds(0.0);
        let refused = |error: LowerError| {
            if error.is_of_strategy() {
                Ok(Err((Refusal::Unsuited, error.to_string())))
            } else {
                Err(error.into())
            }
        };
        let bodies = match lower_ranks(&training, ranks) {
            Ok(bodies) => bodies,
            Err(error) => return refused(error),
        };
        for (&rank, body) in ranks.iter().zip(bodies) {
            let body = match body {
                Ok(body) => body,
                Err(error) => return refused(error),
            };
            let needed = precision::memory(&body, request.stages.precision());
            if needed > request.memory {
                let reason = memory_reason(&body, needed, request.memory);
                return Ok(Err((Refusal::Memory(needed), reason)));
            }
            lower_bound = lower_bound.max((request.lower_bound)(&body, rank, &mesh));
            // Further ranks need not be lowered.
            if let Some(reason) = self
                .best
                .and_then(|best| slower_than_best(lower_bound, best))
            {
                return Ok(Err((Refusal::Slower, reason)));
            }
        }
        Ok(Ok(lower_bound))
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

/// Reason of a candidate that does not fit in memory, with a remedy.
pub(crate) fn memory_reason(body: &Body, needed: Bytes, memory: Bytes) -> String {
    let of = |roles: &[Role]| -> Bytes { roles.iter().map(|&role| body.bytes_of(role)).sum() };
    let lasting = of(&[Role::Parameter, Role::State, Role::Optimizer]);
    let parameters = lasting + of(&[Role::Gradient, Role::PackedWeights, Role::Gathered]);
    let activations = of(&[
        Role::Activation,
        Role::ActivationGradient,
        Role::Staging,
        Role::Statistics,
        Role::Workspace,
    ]);
    let remedy = if activations >= parameters {
        "more ranks or a smaller batch would lower the first"
    } else {
        "no split of samples lowers the second; plain gradient descent keeps less beside each \
         parameter than Adam"
    };
    format!(
        "a rank needs {needed}, it may fill {memory}; activations of a step come to {activations}, not all \
         of them at a time, parameters with all that belongs to them to {parameters}: {remedy}"
    )
}
