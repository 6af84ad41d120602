//! What a few ranks of a strategy say, before all are lowered.

use crate::plan::{PlanError, PlanRequest, Refusal};
use partita_lower::{LowerError, Request, Strategy, lower_ranks};
use partita_program::{Body, Role};
use partita_space::{AXES, Axis, Bytes, Rank, Seconds};

/// A refusal.
pub(crate) type Rejection = (Refusal, String);

/// Looks at a few ranks of a candidate.
pub(crate) struct Prefilter<'r, 'a> {
    pub request: &'r PlanRequest<'a>,
    /// The best candidate so far, and its step.
    pub best: Option<&'r (Seconds, Strategy)>,
}

impl Prefilter<'_, '_> {
    /// The least that a step takes, from two ranks; or why the strategy does not suit the model, does not
    /// fit in memory, or is beaten.
    pub fn at_two_ranks(
        &self,
        strategy: &Strategy,
    ) -> Result<Result<Seconds, Rejection>, PlanError> {
        let training = &self.request.training;
        if let Err(error) = strategy.check_splits(training.graph, training.batch) {
            return Ok(Err((Refusal::Unsuited, error.to_string())));
        }
        let mesh = strategy.mesh();
        let middle = mesh.rank(AXES.map(|axis| mesh.extent(axis) / 2));
        self.lower_ranks_at(strategy, &[mesh.ranks() - 1, middle])
    }

    /// The least that a step takes, from the last tile of every group of branches: groups do other layers,
    /// so that any of them may be what the rest waits for. None are looked at where there is one group.
    pub fn at_groups(&self, strategy: &Strategy) -> Result<Result<Seconds, Rejection>, PlanError> {
        let mesh = strategy.mesh();
        let mut coord = mesh.coord(mesh.ranks() - 1);
        let others = (0..mesh.extent(Axis::Branch) - 1).map(|group| {
            coord[Axis::Branch.index()] = group;
            mesh.rank(coord)
        });
        self.lower_ranks_at(strategy, &others.collect::<Vec<Rank>>())
    }

    /// As [`Self::at_two_ranks`], from these.
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
            if body.memory() > request.memory {
                let reason = memory_reason(&body, request.memory);
                return Ok(Err((Refusal::Memory(body.memory()), reason)));
            }
            lower_bound = lower_bound.max((request.lower_bound)(&body, rank, &mesh));
            // The other rank need not be lowered.
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
            "one rank alone takes at least {lower_bound}, {length} a whole step of `{strategy}` ({least}); not \
             costed further"
        )
    })
}

/// What is needed, what there is, what it is needed for, what would help.
pub(crate) fn memory_reason(body: &Body, memory: Bytes) -> String {
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
        "a rank needs {}, it may fill {memory}; activations of a step come to {activations}, not all \
         of them at a time, parameters with all that belongs to them to {parameters}: {remedy}",
        body.memory()
    )
}
