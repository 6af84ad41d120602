use crate::error::CliError;
use crate::here::{Here, say};
use crate::predict::cost_error;
use partita_lower::Request;
use partita_oracle::{Costs, Mode, Prediction, predict};
use partita_plan::{Candidate, Floor, PlanError, PlanRequest, plan, rank_seconds};
use partita_program::{Body, Program};
use partita_space::{Bytes, Mesh};
use std::cell::RefCell;

/// Every way to lay the ranks on the data axis and the spatial axes of the model, on a machine whose
/// costs are known: those that fit `memory` by the time of a step, shortest first, then those refused.
///
/// Errors: a cost that is not known, a kernel that the menu lacks.
pub fn search(
    training: Request<'_>,
    ranks: usize,
    memory: Bytes,
    costs: &dyn Costs,
) -> Result<Vec<Candidate>, CliError> {
    let floor = |body: &Body, rank, mesh: &Mesh| rank_seconds(body, rank, mesh, costs);
    let cost = |program: &Program| {
        predict(program, costs, Mode::Classes, 1, false).map_err(|error| cost_error(&error))
    };
    ranked(training, ranks, memory, &floor, &cost)
}

/// The same on this machine, measuring what is missing.
pub fn search_here(
    training: Request<'_>,
    ranks: usize,
    memory: Bytes,
    here: Here,
) -> Result<Vec<Candidate>, CliError> {
    let here = RefCell::new(here);
    let floor =
        |body: &Body, rank, mesh: &Mesh| rank_seconds(body, rank, mesh, &here.borrow().known());
    let cost = |program: &Program| here.borrow_mut().predict(program, false);
    ranked(training, ranks, memory, &floor, &cost)
}

fn ranked(
    training: Request<'_>,
    ranks: usize,
    memory: Bytes,
    floor: &Floor<'_>,
    cost: &dyn Fn(&Program) -> Result<Prediction, CliError>,
) -> Result<Vec<Candidate>, CliError> {
    // A cost that cannot be had is a fault of the request as a whole, not of the one candidate.
    let failure: RefCell<Option<CliError>> = RefCell::new(None);
    let request = PlanRequest {
        training,
        ranks,
        memory,
        floor,
        cost: &|program| {
            if failure.borrow().is_some() {
                return Err("no cost".to_owned());
            }
            cost(program).map_err(|error| {
                let text = error.to_string();
                failure.replace(Some(error));
                text
            })
        },
        progress: &|strategy, left| say(&format!("{strategy} ({left} left)"), false),
    };
    let candidates = plan(&request);
    say("", false);
    if let Some(error) = failure.take() {
        return Err(error);
    }
    match candidates {
        Ok(candidates) => Ok(candidates),
        Err(PlanError::NoneFits { refused, .. }) => Ok(refused),
        Err(error @ PlanError::Lower(_)) => Err(CliError::user(&error)),
    }
}
