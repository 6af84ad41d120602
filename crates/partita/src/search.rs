//! Search over strategies and stages, on machines with known costs and on this machine.

use crate::context::Context;
use crate::input::InputSource;
use crate::kernel_set::KernelSet;
use crate::local_machine::{LocalMachine, Ranks};
use crate::machine;
use crate::planning::PlanningError;
use partita_cluster::LayerPrecision;
use partita_lower::{Request, Strategy};
use partita_oracle::closed::Link;
use partita_oracle::{Costs, MeasuredCosts, Prediction, predict, rank_seconds};
use partita_plan::{
    Candidate, FixedCosts, LowerBound, PlanError, PlanRequest, StageCosts, Steps, balance, plan,
};
use partita_program::{Body, Program};
use partita_space::{Bytes, Mesh, Rank, Seconds};
use std::cell::RefCell;
use std::time::Instant;

/// A strategy is pruned if its closed form is this many times slower than the best one: twice the largest ratio
/// of any strategy that was best in trials of models, machines, ranks and mini-batches.
const PRUNE_FACTOR: f64 = 3.0;

/// Tasks of all programs that are simulated to choose the layers of stages. A few seconds of a core.
const TASKS_SIMULATED: usize = 250_000;

/// Limits of a search.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Memory of a rank.
    pub memory: Bytes,
    /// Time after which what is left is refused; a first candidate is looked at in any case. None: no limit.
    pub budget: Option<Seconds>,
    /// Whether batch norms and Dice over a batch may take their sums over micro-batches.
    pub micro_statistics: bool,
}

/// All strategies for a number of ranks on a machine with known costs: those that fit the memory, fastest first,
/// then the refused ones. It ends early when the context is cancelled.
///
/// Errors: a missing cost, a kernel that the catalog lacks, cancelled before the first candidate.
pub fn search(
    context: &Context<'_>,
    training: Request<'_>,
    ranks: usize,
    limits: Limits,
    costs: &dyn Costs,
) -> Result<Vec<Candidate>, PlanningError> {
    let lower_bound = |body: &Body, rank, mesh: &Mesh| rank_seconds(body, rank, mesh, costs);
    let cost = |program: &Program| {
        Ok(predict(
            program,
            costs,
            machine::mode(costs, ranks),
            1,
            false,
        )?)
    };
    ranked(
        context,
        training,
        ranks,
        limits,
        (&lower_bound, true),
        &FixedCosts(costs),
        &cost,
    )
}

/// As [`search`], on this machine, measuring what is missing.
pub fn search_local(
    context: &Context<'_>,
    training: Request<'_>,
    ranks: usize,
    limits: Limits,
    here: LocalMachine<'_>,
) -> Result<Vec<Candidate>, PlanningError> {
    let here = RefCell::new(here);
    let lower_bound =
        |body: &Body, rank, mesh: &Mesh| rank_seconds(body, rank, mesh, &here.borrow().known());
    let cost = |program: &Program| Ok(here.borrow_mut().predict(program, false)?);
    let stages = MeasuredStages::new(&here);
    ranked(
        context,
        training,
        ranks,
        limits,
        (&lower_bound, false),
        &stages,
        &cost,
    )
}

/// The strategy with layers for all stages. Open layers are chosen for the shortest predicted step that fits
/// `memory`.
///
/// Errors: a strategy that does not fit, no layers that fit in memory, a missing cost.
pub fn staged(
    context: &Context<'_>,
    training: &Request<'_>,
    memory: Bytes,
    costs: &dyn Costs,
) -> Result<Strategy, PlanningError> {
    let cost = |program: &Program| {
        let mode = machine::mode(costs, program.mesh.ranks());
        let prediction = predict(program, costs, mode, 1, false);
        prediction.map_err(|error| error.to_string())
    };
    let steps = Steps {
        cost: &cost,
        tasks_max: TASKS_SIMULATED,
        is_over: &|| context.is_cancelled(),
    };
    balanced(context, training, memory, &FixedCosts(costs), Some(steps))
}

/// As [`staged`], on this machine, measuring what is missing. More ranks than can be measured are treated as
/// the most that can.
pub fn staged_local(
    context: &Context<'_>,
    training: &Request<'_>,
    memory: Bytes,
    kernels: KernelSet,
    ranks: Ranks,
) -> Result<Strategy, PlanningError> {
    let strategy = training.strategy;
    if strategy.stages.is_empty() || strategy.has_layers() {
        return Ok(strategy.clone());
    }
    let ranks = Ranks {
        count: strategy.ranks().min(ranks.most()),
        ..ranks
    };
    let here = RefCell::new(LocalMachine::of(
        context,
        kernels,
        ranks,
        InputSource::Ignored,
    )?);
    balanced(context, training, memory, &MeasuredStages::new(&here), None)
}

fn balanced(
    context: &Context<'_>,
    training: &Request<'_>,
    memory: Bytes,
    costs: &dyn StageCosts,
    steps: Option<Steps<'_>>,
) -> Result<Strategy, PlanningError> {
    let balanced = balance(training, memory, costs, steps);
    context.status("", false);
    Ok(balanced?.strategy)
}

/// Stages on this machine.
struct MeasuredStages<'h, 'c> {
    here: &'h RefCell<LocalMachine<'c>>,
    /// Of the previous program.
    costs: RefCell<MeasuredCosts>,
}

impl<'h, 'c> MeasuredStages<'h, 'c> {
    fn new(here: &'h RefCell<LocalMachine<'c>>) -> Self {
        Self {
            here,
            costs: RefCell::new(MeasuredCosts::default()),
        }
    }
}

impl MeasuredStages<'_, '_> {
    /// The costs, once the kernels of a program are measured.
    fn measured<T>(
        &self,
        program: &Program,
        with: impl Fn(FixedCosts<'_>) -> Result<T, String>,
    ) -> Result<T, String> {
        let costs = self.here.borrow_mut().costs(program);
        let costs = costs.map_err(|error| error.to_string())?;
        let found = with(FixedCosts(&costs));
        self.costs.replace(costs);
        found
    }
}

impl StageCosts for MeasuredStages<'_, '_> {
    fn precision(&self) -> LayerPrecision {
        LayerPrecision::F32
    }

    fn delays(&self, program: &Program, rank: Rank) -> Result<Vec<Seconds>, String> {
        self.measured(program, |known| known.delays(program, rank))
    }

    fn message(&self, from: Rank, to: Rank, bytes: Bytes) -> Seconds {
        FixedCosts(&*self.costs.borrow()).message(from, to, bytes)
    }

    fn seconds(&self, program: &Program, rank: Rank) -> Result<Vec<Seconds>, String> {
        self.measured(program, |known| known.seconds(program, rank))
    }

    fn ring(&self, members: &[Rank]) -> Link {
        FixedCosts(&*self.costs.borrow()).ring(members)
    }
}

fn ranked(
    context: &Context<'_>,
    training: Request<'_>,
    ranks: usize,
    limits: Limits,
    (lower_bound, knows_costs): (&LowerBound<'_>, bool),
    stages: &dyn StageCosts,
    cost: &dyn Fn(&Program) -> Result<Prediction, PlanningError>,
) -> Result<Vec<Candidate>, PlanningError> {
    let begin = Instant::now();
    // A missing cost is an error of the request, not of one candidate.
    let failure: RefCell<Option<PlanningError>> = RefCell::new(None);
    let request = PlanRequest {
        training,
        ranks,
        memory: limits.memory,
        lower_bound,
        prune_factor: PRUNE_FACTOR,
        micro_statistics: limits.micro_statistics,
        knows_costs,
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
        stages,
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
        Ok(candidates) => Ok(candidates),
        Err(PlanError::NoneFits { refused, .. }) => Ok(refused),
        Err(error @ (PlanError::Lower(_) | PlanError::Ended)) => Err(error.into()),
    }
}
