//! Search over strategies and stages.

use crate::planning::PlanningError;
use crate::target::TargetMachine;
use partita_lower::{Request, Strategy, lower};
use partita_oracle::{KernelBasis, Prediction};
use partita_plan::{PlanError, RankedStrategy, SearchRequest, Steps, UnknownCost, balance, plan};
use partita_program::Program;
use partita_site::Context;
use partita_space::help::Message;
use partita_space::{Bytes, Seconds};
use std::cell::RefCell;
use std::time::Instant;

/// A strategy is pruned if its closed form is this many times slower than the best one: twice the largest ratio
/// of any strategy that was best in trials of models, machines, ranks and mini-batches.
const PRUNE_FACTOR: f64 = 3.0;

/// Tasks of all programs that are simulated to choose the layers of stages. A few seconds of a core.
const TASKS_SIMULATED: usize = 250_000;

/// Most candidates that are measured again after the search.
const SETTLED_MAX: usize = 8;

/// Limits of a search.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Memory of a rank.
    pub memory: Bytes,
    /// Time after which what is left is refused; a first candidate is looked at in any case. None: no limit.
    pub budget: Option<Seconds>,
    /// Whether batch norms and Dice over a batch may take their sums over micro-batches.
    pub micro_statistics: bool,
    /// Whether slower strategies of less memory are evaluated, too, down to the least that is possible.
    pub front: bool,
    /// Whether predictions have the digests of their programs.
    pub digests: bool,
}

impl Limits {
    /// Of memory and time alone.
    pub fn new(memory: Bytes, budget: Option<Seconds>) -> Self {
        Self {
            memory,
            budget,
            micro_statistics: true,
            front: false,
            digests: false,
        }
    }
}

/// All strategies for a number of ranks on a machine: those that fit the memory, fastest first, then the refused ones.
/// It ends early when the context is cancelled.
///
/// Errors: a missing cost, a failed measurement, a kernel that the catalog lacks, cancelled before the first candidate.
pub fn search(
    context: &Context,
    training: Request<'_>,
    ranks: usize,
    limits: Limits,
    machine: &dyn TargetMachine,
) -> Result<Vec<RankedStrategy>, PlanningError> {
    let begin = Instant::now();
    // A missing cost is an error of the request, not of one candidate.
    let failure: RefCell<Option<PlanningError>> = RefCell::new(None);
    let stages = machine.stages(ranks)?;
    let request = SearchRequest {
        training,
        ranks,
        memory: limits.memory,
        lower_bound: &|body, rank, mesh| machine.lower_bound(body, rank, mesh),
        prune_factor: PRUNE_FACTOR,
        micro_statistics: limits.micro_statistics,
        front: limits.front,
        knows_costs: machine.described().is_some(),
        cost: &|program| {
            if failure.borrow().is_some() {
                return Err(UnknownCost("no cost".to_owned()));
            }
            let mut prediction = machine.predict(program).map_err(|error| {
                let text = Message::of(&error).inline();
                failure.replace(Some(error));
                UnknownCost(text)
            })?;
            prediction.digest = limits.digests.then(|| program.digest());
            Ok(prediction)
        },
        stages: &*stages,
        progress: &|strategy, left| context.status(&format!("{strategy} ({left} left)"), false),
        is_over: &|has_looked, share| {
            let is_late = |budget: Seconds| begin.elapsed().as_secs_f64() > share * budget.0;
            context.is_cancelled() || has_looked && limits.budget.is_some_and(is_late)
        },
    };
    let candidates = plan(&request);
    context.status("", false);
    if let Some(error) = failure.take() {
        return Err(error);
    }
    match candidates {
        Ok(mut candidates) => {
            settle(context, training, machine, &mut candidates)?;
            Ok(candidates)
        }
        Err(PlanError::NoneFits { refused, .. }) => Ok(refused),
        Err(error @ (PlanError::Lower(_) | PlanError::Ended)) => Err(error.into()),
    }
}

/// Measures kernels of the best candidate that were estimated, until the best one has none, or the time for that is over: of
/// many estimates the least is likely too low.
///
/// Errors: a failed measurement.
fn settle(
    context: &Context,
    training: Request<'_>,
    machine: &dyn TargetMachine,
    candidates: &mut [RankedStrategy],
) -> Result<(), PlanningError> {
    for _ in 0..SETTLED_MAX {
        let Some(best) = candidates.first_mut() else {
            return Ok(());
        };
        let is_sure = |prediction: &Prediction| {
            let bases = [KernelBasis::Estimated, KernelBasis::Extrapolated];
            bases
                .iter()
                .all(|basis| !prediction.kernel_bases.contains_key(basis))
        };
        let is_settled = best.reason.is_some() || best.prediction.as_ref().is_none_or(is_sure);
        if is_settled || context.is_cancelled() || !machine.settle() {
            return Ok(());
        }
        let program = lower(&Request {
            strategy: &best.strategy,
            ..training
        })?;
        let had_digest = best.prediction.take().is_some_and(|it| it.digest.is_some());
        let mut prediction = machine.predict(&program)?;
        prediction.digest = had_digest.then(|| program.digest());
        best.prediction = Some(prediction);
        candidates.sort_by(|a, b| order(a).total_cmp(&order(b)));
    }
    Ok(())
}

/// Candidates that fit come first, by the seconds of a step.
fn order(candidate: &RankedStrategy) -> f64 {
    let chosen = candidate
        .prediction
        .as_ref()
        .filter(|_| candidate.reason.is_none());
    chosen.map_or(f64::INFINITY, |prediction| prediction.iteration_seconds.0)
}

/// The strategy with layers for all stages. Open layers are chosen for the shortest predicted step that fits
/// `memory`. More ranks than can be measured are treated as the most that can.
///
/// Errors: a strategy that does not fit, no layers that fit in memory, a missing cost, a failed measurement.
pub fn staged(
    context: &Context,
    training: &Request<'_>,
    memory: Bytes,
    machine: &dyn TargetMachine,
) -> Result<Strategy, PlanningError> {
    let strategy = training.strategy;
    let is_closed = strategy.stages.is_empty() || strategy.has_layers();
    if is_closed && machine.described().is_none() {
        return Ok(strategy.clone());
    }
    let predict = |program: &Program| {
        let prediction = machine.predict(program);
        prediction.map_err(|error| UnknownCost(Message::of(&error).inline()))
    };
    let is_over = || context.is_cancelled();
    // Kernels of whole programs would all have to be measured.
    let steps = machine.described().map(|_| Steps {
        cost: &predict,
        tasks_max: TASKS_SIMULATED,
        is_over: &is_over,
    });
    let stages = machine.stages(strategy.ranks().min(machine.ranks_max()))?;
    let balanced = balance(training, memory, &*stages, steps);
    context.status("", false);
    Ok(balanced?.strategy)
}
