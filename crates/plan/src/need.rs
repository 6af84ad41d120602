//! What ranks of a candidate need of memory, and how long they work at least.

use crate::plan::{PlanError, Rejection, SearchRequest};
use crate::prefilter::{memory_reason, unsuited};
use partita_lower::{Request, Strategy, lower_ranks};
use partita_oracle::precision;
use partita_program::Role;
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
            need.reason = Some(memory_reason(&body, memory, limit));
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
