//! What ranks of a candidate need of memory, and how long they work at least.

use crate::plan::{PlanError, Refusal, Rejection, SearchRequest};
use partita_lower::{LowerError, Request, Strategy, lower_ranks};
use partita_oracle::precision;
use partita_program::{Body, Role};
use partita_space::help::Message;
use partita_space::{Bytes, Rank, Seconds};

/// What some ranks of a candidate need, and a lower bound of its step.
#[derive(Clone, Default)]
pub(crate) struct Need {
    /// Of the largest.
    pub memory: Bytes,
    /// Of each, in the order of the ranks.
    pub each: Vec<Bytes>,
    /// Of it parameters, their gradients, moments of the optimizer and averages, which ranks may share out.
    pub state: Bytes,
    pub lower_bound: Seconds,
    pub tasks: usize,
    /// Why it does not fit, if it does not.
    pub reason: Option<String>,
}

/// What these ranks of a candidate need, with this much memory each, or why it cannot be lowered. Further ranks are not
/// lowered once `is_enough`.
pub(crate) fn need(
    request: &SearchRequest<'_>,
    strategy: &Strategy,
    (ranks, limit): (&[Rank], Bytes),
    is_enough: &dyn Fn(&Need) -> bool,
) -> Result<Result<Need, Rejection>, PlanError> {
    let training = Request {
        strategy,
        ..request.training
    };
    let mesh = strategy.mesh();
    let mut need = Need::default();
    let bodies = match lower_ranks(&training, ranks) {
        Ok(bodies) => bodies,
        Err(error) => return unsuited(error),
    };
    for (&rank, body) in ranks.iter().zip(bodies) {
        let body = match body {
            Ok(body) => body,
            Err(error) => return unsuited(error),
        };
        need.tasks += body.tasks.len();
        let memory = precision::memory(&body, request.stages.precision());
        if memory > need.memory.max(limit) {
            need.reason = Some(memory_reason(&body, memory, limit, training.batch));
        }
        need.memory = need.memory.max(memory);
        need.each.push(memory);
        let state = [
            Role::Parameter,
            Role::Gradient,
            Role::Optimizer,
            Role::Average,
        ];
        let state = state.map(|role| body.bytes_of(role)).into_iter().sum();
        need.state = need.state.max(state);
        if is_enough(&need) {
            break;
        }
        let lower_bound = (request.lower_bound)(&body, rank, &mesh);
        need.lower_bound = need.lower_bound.max(lower_bound);
        if is_enough(&need) {
            break;
        }
    }
    Ok(Ok(need))
}

/// The rejection of a candidate that cannot be lowered. Errors: those that are not of its strategy.
pub(crate) fn unsuited<T>(error: LowerError) -> Result<Result<T, Rejection>, PlanError> {
    if error.is_of_strategy() {
        Ok(Err((Refusal::Unsuited, Message::of(&error).inline())))
    } else {
        Err(error.into())
    }
}

/// Reason of a candidate that does not fit in memory, with a remedy.
pub(crate) fn memory_reason(body: &Body, needed: Bytes, memory: Bytes, batch: usize) -> String {
    let of = |roles: &[Role]| -> Bytes { roles.iter().map(|&role| body.bytes_of(role)).sum() };
    let lasting = of(&[
        Role::Parameter,
        Role::State,
        Role::Constant,
        Role::Optimizer,
        Role::Average,
    ]);
    let parameters = lasting + of(&[Role::Gradient, Role::PackedWeights, Role::Gathered]);
    // Not all of them are alive at a time.
    let all = of(&[
        Role::Activation,
        Role::ActivationGradient,
        Role::Staging,
        Role::Statistics,
        Role::Workspace,
    ]);
    let activations = all.min(Bytes(needed.0.saturating_sub(parameters.0)));
    let remedy = match (activations >= parameters, batch) {
        (true, 1) => "activations decide, and more ranks would lower them",
        (true, _) => "activations decide, and more ranks or a smaller batch would lower them",
        (false, _) => {
            "parameters decide, and no split of samples lowers them; plain gradient descent keeps less beside each \
             than Adam"
        }
    };
    format!(
        "a rank needs {needed}, it may fill {memory}; activations take about {activations}, parameters with all \
         that belongs to them {parameters}: {remedy}"
    )
}
