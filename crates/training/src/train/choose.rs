//! The choice of a strategy by `auto`.

use super::error::{AutoError, TrainError};
use super::programs;
use super::run::{PredictionChoice, Run};
use partita_forecast::search::{Limits, search};
use partita_forecast::{
    DescribedMachine, MeasuredMachine, MeasuringBudget, StrategyChoice, TargetMachine, micro_note,
};
use partita_formats::DType;
use partita_graph::{Graph, count};
use partita_input::Sampling;
use partita_lower::{BatchNormStatistics, Strategy, StrategyChecks, lower_rank};
use partita_plan::RankedStrategy;
use partita_site::launch::Launch;
use partita_site::{Context, Event, Ranks};
use partita_space::Bytes;
use std::sync::Arc;

/// Strategies that `auto` chooses at most for what a run needs.
const CHOICES: usize = 4;

/// The strategy for `auto`: the one with the shortest predicted step that fits in `memory`, by the costs of a machine
/// file, or on this machine, measuring what is missing within the budget.
///
/// Errors: no strategy fits, or a failed measurement.
pub fn choose_strategy(
    context: &Context,
    (run, statistics): (&Run, BatchNormStatistics),
    graph: &Graph,
    stored: DType,
    memory: Bytes,
    (here, described): (Ranks, Option<&DescribedMachine>),
    budget: &Arc<MeasuringBudget>,
) -> Result<Strategy, TrainError> {
    let ranks = run.ranks;
    let first = first_fitting(run, statistics, graph)?;
    let menu = context.menu(run.kernels, &here);
    let snapshot = snapshot_max(run, graph);
    if ranks == 1 {
        // The only candidate, unless memory has to be saved.
        let body = lower_rank(&programs::request(run, graph, &first, stored, &*menu), 0);
        if body.is_ok_and(|body| body.memory() + snapshot <= memory) {
            return Ok(first);
        }
    }
    let mut asked = first.clone();
    asked.batch_norm = statistics;
    let request = programs::request(run, graph, &asked, stored, &*menu);
    let input = run.store.input();
    let by = (run.kernels, here);
    let measured = MeasuredMachine::new(context, by, input, None, Arc::clone(budget));
    let machine = described.map_or(&measured as &dyn TargetMachine, |machine| machine);
    let within = |memory: Bytes, micro_statistics| {
        let limits = Limits {
            micro_statistics,
            ..Limits::new(memory, None)
        };
        let found = search(context, request, ranks, limits, machine);
        found.map_err(TrainError::from)
    };
    let fits = |found: &[RankedStrategy]| found.first().is_some_and(|best| best.reason.is_none());
    let mut found = within(Bytes(memory.0.saturating_sub(snapshot.0)), false)?;
    if snapshot > Bytes(0) && !fits(&found) {
        // Ranks whose parameters are split have smaller snapshots; the run checks its strategy exactly.
        found = within(memory, false)?;
    }
    let mut allowing = String::new();
    if graph.sums_samples() && !fits(&found) {
        let more = within(memory, true)?;
        if run.micro_statistics {
            found = more;
        } else if let Some(best) = more.first().filter(|best| best.reason.is_none()) {
            allowing = format!(
                "; `micro_statistics = true` allows `{}`, under which {}",
                best.strategy,
                micro_note(&best.strategy, graph, 1).unwrap_or_default()
            );
        }
    }
    match found.first() {
        Some(best) if best.reason.is_none() => Ok(best.strategy.clone()),
        Some(nearest) => Err(TrainError::Auto(AutoError::Memory {
            ranks,
            memory,
            nearest: Box::new(nearest.strategy.clone()),
            reason: nearest.explanation().to_owned() + &allowing,
        })),
        None => Ok(first),
    }
}

/// Time for measurements before a run: as given, or a share of the run; all that a prediction that was asked for needs.
pub fn measuring_budget(run: &Run, sampling: &Sampling) -> MeasuringBudget {
    match (run.budget, run.prediction) {
        (Some(time), _) => MeasuringBudget::of(time),
        (None, PredictionChoice::Asked) if !run.has_open_strategy() => MeasuringBudget::unlimited(),
        (None, _) => {
            let [training, _] = run.samples(sampling);
            MeasuringBudget::of_training((run.epochs * training.div_ceil(run.batch)) as u64)
        }
    }
}

/// A strategy with what was prepared for it. The search for `auto` counts the program of a step. What else a run holds is known
/// once it is prepared (programs of evaluations, buffers of reading threads, copies for validators), so where `auto` chose
/// what does not fit with all this, it chooses again with as much less memory. Processes do not, as their limits may differ.
///
/// Errors: those of the preparation, and of the choice.
pub fn fitting<T>(
    launch: &Launch<'_>,
    (run, graph): (&Run, &Graph),
    mut strategy: Strategy,
    choose: impl Fn(Bytes) -> Result<Strategy, TrainError>,
    prepare: impl Fn(&Strategy) -> Result<T, TrainError>,
) -> Result<(Strategy, T), TrainError> {
    let is_auto = matches!(run.strategy, StrategyChoice::Auto(_)) && !launch.has_processes();
    let mut beside = Bytes(0);
    for _ in 0..CHOICES {
        let (excess, refused) = match prepare(&strategy) {
            Err(error @ TrainError::Memory { needed, limit, .. }) if is_auto => {
                (needed.0 - limit.0, error)
            }
            prepared => return Ok((strategy, prepared?)),
        };
        beside = Bytes(beside.0 + excess);
        let next = match choose(beside) {
            // The refusal of the first choice says what is needed.
            Err(TrainError::Auto(AutoError::Memory { .. })) => return Err(refused),
            next => next?,
        };
        if let Some(note) = micro_note(&next, graph, run.accumulate) {
            launch.context().report(Event::Warning(&note));
        }
        strategy = next;
    }
    let prepared = prepare(&strategy)?;
    Ok((strategy, prepared))
}

/// The first strategy over samples and spatial dims that fits.
///
/// Errors: none does.
fn first_fitting(
    run: &Run,
    statistics: BatchNormStatistics,
    graph: &Graph,
) -> Result<Strategy, TrainError> {
    let (batch, ranks) = (run.batch, run.ranks);
    let first_strategy = |ranks: usize, holds: &dyn Fn(&Strategy) -> bool| {
        strategies(ranks)
            .map(|one| one.with_batch_norm(statistics))
            .find(holds)
    };
    let fitting = |ranks| first_strategy(ranks, &|one| one.check(graph, batch).is_ok());
    if let Some(first) = fitting(ranks) {
        return Ok(first);
    }
    // A batch norm over a single value is invalid on any number of ranks.
    let laid_out = first_strategy(ranks, &|one| one.check_layout(graph, batch).is_ok());
    if let Some(one) = laid_out {
        let checks = StrategyChecks {
            graph,
            ranks,
            batch,
            check: &|strategy, batch| strategy.check(graph, batch),
            suits: &|_, _| true,
        };
        let checked = checks.check(&one);
        checked.map_err(|error| TrainError::Auto(AutoError::Norm(error)))?;
    }
    let fewer = (1..ranks).rev().find(|&fewer| fitting(fewer).is_some());
    Err(TrainError::Auto(AutoError::Ranks {
        model: graph.name.clone(),
        batch,
        ranks,
        nearest: fewer,
    }))
}

/// The largest snapshot for a checkpoint that a rank can have: all parameters with the moments of the optimizer and averages.
fn snapshot_max(run: &Run, graph: &Graph) -> Bytes {
    if !run.checkpoint.is_on() {
        return Bytes(0);
    }
    let parameters = count(graph).parameters;
    let copies = 1 + run.optimizer.moments().len() as u64 + u64::from(run.ema.is_some());
    Bytes(4 * parameters * copies)
}

/// The strategies over samples and spatial dims, most ranks on the data axis first.
fn strategies(ranks: usize) -> impl Iterator<Item = Strategy> {
    let splits = move |data: usize| {
        let rest = ranks / data;
        divisors(rest).into_iter().flat_map(move |depth| {
            let rest = rest / depth;
            let split = move |height| Strategy::hybrid(data, [depth, height, rest / height]);
            divisors(rest).into_iter().map(split)
        })
    };
    divisors(ranks).into_iter().flat_map(splits)
}

/// Largest first.
fn divisors(number: usize) -> Vec<usize> {
    (1..=number)
        .rev()
        .filter(|&divisor| number.is_multiple_of(divisor))
        .collect()
}
