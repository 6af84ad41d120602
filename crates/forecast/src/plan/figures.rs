//! Figures of a plan's report: scaling with ranks, memory of strategies by item, and a step of the best one.

use crate::explain::simulated;
use crate::input::InputSource;
use crate::planning::PlanningError;
use crate::search::Limits;
use crate::target::Target;
use partita_lower::{LowerError, Request, Strategy, lower};
use partita_oracle::{Prediction, Simulation, precision};
use partita_plan::{PlanError, RankedStrategy};
use partita_program::Program;
use partita_run::Footprint;
use partita_site::Context;
use partita_space::{Bytes, Seconds};

/// Candidates of the ranking whose memory is itemized.
const ITEMIZED_MAX: usize = 7;
/// Most candidates among them that do not fit.
const TOO_LARGE_MAX: usize = 4;
/// Most pruned candidates that are costed for the figures.
const PRUNED_MAX: usize = 24;
/// The same on this machine, where the kernels of each are measured.
const PRUNED_LOCAL_MAX: usize = 4;

/// A plan with all figures of its report.
pub struct Figures {
    /// Name of the model.
    pub model: String,
    /// Samples per step over all ranks.
    pub batch: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// Name of the machine.
    pub machine: String,
    /// Whether input time is ignored.
    pub no_io: bool,
    /// Memory limit of a rank.
    pub memory: Bytes,
    /// All strategies, best first, then those refused.
    pub candidates: Vec<RankedStrategy>,
    /// Results by number of ranks.
    pub scaling: Vec<Count>,
    /// Memory of the largest rank by item, of some strategies.
    pub itemized: Vec<(String, Footprint)>,
    /// Time and memory of strategies.
    pub points: Vec<Point>,
    /// The best strategy, if any fits.
    pub best: Option<Best>,
}

/// Results for a number of ranks.
pub struct Count {
    /// Number of ranks.
    pub ranks: usize,
    /// The best plan, if any fits.
    pub best: Option<(String, Prediction)>,
    /// Data parallelism alone, if there is a sample for each rank.
    pub data: Option<Data>,
}

/// Data parallelism alone.
pub struct Data {
    /// Samples per second of all ranks, if known.
    pub samples_per_second: Option<f64>,
    /// Memory of the largest rank.
    pub memory: Bytes,
    /// Whether it fits.
    pub fits: bool,
}

/// A strategy in the plane of time and memory.
pub struct Point {
    /// Its text.
    pub strategy: String,
    /// Time of a step.
    pub seconds: Seconds,
    /// Memory of the largest rank.
    pub memory: Bytes,
    /// Whether it fits.
    pub fits: bool,
}

/// The strategy that the plan recommends.
pub struct Best {
    /// The strategy.
    pub strategy: Strategy,
    /// Its prediction.
    pub prediction: Prediction,
    /// The program of all ranks.
    pub program: Program,
    /// A simulated step.
    pub simulation: Simulation,
}

/// Gathers the figures of a plan.
///
/// Errors: a missing cost.
pub fn gather(
    context: &Context,
    target: &Target<'_>,
    training: Request<'_>,
    (ranks, budget): (usize, Option<Seconds>),
    candidates: &[RankedStrategy],
) -> Result<Figures, PlanningError> {
    let mut facts = Figures {
        model: training.graph.name.clone(),
        batch: training.batch,
        ranks,
        machine: target.machine.name().to_owned(),
        no_io: target.input.source == InputSource::Ignored,
        memory: target.machine.memory(ranks),
        candidates: candidates.to_vec(),
        scaling: scaling(context, target, training, (ranks, budget), candidates)?,
        itemized: Vec::new(),
        points: Vec::new(),
        best: best(target, training, candidates)?,
    };
    add_ranked((context, target), &mut facts, training, candidates)?;
    add_refused(context, &mut facts, target, training, candidates)?;
    context.status("", false);
    Ok(facts)
}

/// The candidates that fit, with their predictions.
pub fn ranked(
    candidates: &[RankedStrategy],
) -> impl Iterator<Item = (&RankedStrategy, &Prediction)> {
    let fitting = candidates.iter().filter(|one| one.reason.is_none());
    fitting.filter_map(|one| Some((one, one.prediction.as_ref()?)))
}

fn program(training: Request<'_>, strategy: &Strategy) -> Result<Program, LowerError> {
    lower(&Request {
        strategy,
        ..training
    })
}

fn best(
    target: &Target<'_>,
    training: Request<'_>,
    candidates: &[RankedStrategy],
) -> Result<Option<Best>, PlanningError> {
    let Some((candidate, prediction)) = ranked(candidates).next() else {
        return Ok(None);
    };
    let strategy = candidate.strategy.clone();
    let program = program(training, &strategy)?;
    let simulation = simulated(&program, target.machine.costs(&program)?.as_ref())?;
    Ok(Some(Best {
        strategy,
        prediction: prediction.clone(),
        program,
        simulation,
    }))
}

/// Powers of two below a number of ranks, and that number.
fn counts(ranks: usize) -> Vec<usize> {
    let powers = (0..usize::BITS).map(|power| 1 << power);
    let below = powers.take_while(|&power| power < ranks);
    below.chain([ranks]).collect()
}

fn scaling(
    context: &Context,
    target: &Target<'_>,
    training: Request<'_>,
    (ranks, budget): (usize, Option<Seconds>),
    candidates: &[RankedStrategy],
) -> Result<Vec<Count>, PlanningError> {
    let mut scaling = Vec::new();
    for count in counts(ranks) {
        if context.is_cancelled() && count < ranks {
            continue;
        }
        context.status(&format!("planning for {count} of {ranks} ranks"), false);
        let found;
        let candidates = if count == ranks {
            candidates
        } else {
            let limits = Limits::new(target.machine.memory(count), budget);
            found = match target.search(context, training, count, limits) {
                Err(PlanningError::Plan(PlanError::Ended)) => break,
                found => found?,
            };
            &found
        };
        let best = ranked(candidates).next();
        scaling.push(Count {
            ranks: count,
            best: best.map(|(one, prediction)| (one.strategy.to_string(), prediction.clone())),
            data: data(target, training, count, candidates)?,
        });
    }
    Ok(scaling)
}

/// Data parallelism alone; `None` if a rank would have no sample.
fn data(
    target: &Target<'_>,
    training: Request<'_>,
    ranks: usize,
    candidates: &[RankedStrategy],
) -> Result<Option<Data>, PlanningError> {
    let strategy = Strategy::hybrid(ranks, [1; 3]).with_settings_of(training.strategy, &[]);
    if strategy.check(training.graph, training.batch).is_err() {
        return Ok(None);
    }
    let known = ranked(candidates).find(|(one, _)| one.strategy == strategy);
    if let Some((_, prediction)) = known {
        return Ok(Some(Data {
            samples_per_second: Some(prediction.samples_per_second),
            memory: prediction.memory_bytes_max,
            fits: true,
        }));
    }
    let program = program(training, &strategy)?;
    let largest = precision::largest(&program, target.machine.precision());
    let memory = largest.map_or(Bytes(0), |(bytes, _)| bytes) + target.reserve.total();
    let fits = memory <= target.machine.memory(ranks);
    let samples_per_second = if can_be_simulated(target, fits) {
        let simulation = simulated(&program, target.machine.costs(&program)?.as_ref())?;
        Some(Prediction::of(&program, &simulation, false).samples_per_second)
    } else {
        None
    };
    Ok(Some(Data {
        samples_per_second,
        memory,
        fits,
    }))
}

/// Kernels that do not fit in memory cannot be measured.
fn can_be_simulated(target: &Target<'_>, fits: bool) -> bool {
    fits || target.machine.described().is_some()
}

fn add_ranked(
    (context, target): (&Context, &Target<'_>),
    facts: &mut Figures,
    training: Request<'_>,
    candidates: &[RankedStrategy],
) -> Result<(), PlanningError> {
    for (candidate, prediction) in ranked(candidates) {
        let strategy = candidate.strategy.to_string();
        let most = if context.is_cancelled() {
            1
        } else {
            ITEMIZED_MAX
        };
        if facts.itemized.len() < most {
            let program = program(training, &candidate.strategy)?;
            let items = precision::footprint(&program, target.machine.precision());
            let items = target.reserve.added(items);
            // Candidates that differ only in the order of work are shown once.
            if facts.itemized.last().is_none_or(|(_, last)| *last != items) {
                facts.itemized.push((strategy.clone(), items));
            }
        }
        facts.points.push(Point {
            strategy,
            seconds: prediction.iteration_seconds,
            memory: prediction.memory_bytes_max,
            fits: true,
        });
    }
    Ok(())
}

/// Adds refused and pruned candidates that can be lowered, those that do not fit in memory first. Pipelines with
/// open layers are omitted.
fn add_refused(
    context: &Context,
    facts: &mut Figures,
    target: &Target<'_>,
    training: Request<'_>,
    candidates: &[RankedStrategy],
) -> Result<(), PlanningError> {
    let most = match target.machine.described() {
        Some(_) => PRUNED_MAX,
        None => PRUNED_LOCAL_MAX,
    };
    let data = Strategy::hybrid(facts.ranks, [1; 3]);
    let data = data.with_settings_of(training.strategy, &[]);
    let (mut too_large, mut others) = (0, 0);
    for candidate in candidates.iter().filter(|one| one.reason.is_some()) {
        let strategy = &candidate.strategy;
        let is_open = !strategy.stages.is_empty() && !strategy.has_layers();
        if context.is_cancelled() {
            break;
        }
        if is_open || strategy.check(training.graph, training.batch).is_err() {
            continue;
        }
        if too_large + others >= most && *strategy != data {
            continue;
        }
        let Ok(program) = program(training, strategy) else {
            continue;
        };
        context.status(&format!("costing {strategy} for the report"), false);
        let reserved = target.reserve.total();
        let largest = precision::largest(&program, target.machine.precision());
        let fits = largest.is_none_or(|(bytes, _)| bytes + reserved <= facts.memory);
        if fits {
            others += 1
        } else {
            too_large += 1
        }
        if *strategy == data || !fits && too_large <= TOO_LARGE_MAX {
            let items = precision::footprint(&program, target.machine.precision());
            let items = target.reserve.added(items);
            facts.itemized.push((strategy.to_string(), items));
        }
        if can_be_simulated(target, fits) {
            let simulation = simulated(&program, target.machine.costs(&program)?.as_ref())?;
            let mut prediction = Prediction::of(&program, &simulation, false);
            target.reserve.add_to(&mut prediction);
            facts.points.push(Point {
                strategy: strategy.to_string(),
                seconds: prediction.iteration_seconds,
                memory: prediction.memory_bytes_max,
                fits,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_ranks_double_up_to_those_asked_for() {
        assert_eq!(counts(1), [1]);
        assert_eq!(counts(8), [1, 2, 4, 8]);
        assert_eq!(counts(12), [1, 2, 4, 8, 12]);
    }
}
