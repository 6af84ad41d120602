use crate::args::PlanArgs;
use crate::error::CliError;
use crate::local_machine::say;
use crate::planner::Planner;
use partita_lower::{LowerError, Request, Strategy, lower};
use partita_oracle::{Prediction, Simulation};
use partita_plan::Candidate;
use partita_program::Program;
use partita_program::{Itemized, itemize};
use partita_space::{Bytes, Seconds};
use std::collections::BTreeMap;

/// Candidates of the ranking whose memory is itemized.
const ITEMIZED_MAX: usize = 7;
/// Candidates that do not fit and are itemized all the same.
const MISFITS_MAX: usize = 4;
/// Candidates that the plan passed over, and are costed for the figures all the same.
const PASSED_OVER_MAX: usize = 24;
/// As many on this machine, where kernels are measured for each.
const PASSED_OVER_HERE_MAX: usize = 4;

/// All that is shown.
pub struct Facts<'a> {
    /// Of the training.
    pub model: &'a str,
    /// See `model`.
    pub batch: usize,
    /// See `model`.
    pub ranks: usize,
    /// On what.
    pub machine: &'a str,
    /// Whether reading is left out.
    pub no_io: bool,
    /// That a rank may fill.
    pub memory: Bytes,
    /// What the plan says, best first, then those refused.
    pub candidates: &'a [Candidate],
    /// By number of ranks.
    pub scaling: Vec<Count>,
    /// What the largest rank holds, of some strategies.
    pub itemized: Vec<(String, Itemized)>,
    /// Time and memory of strategies.
    pub points: Vec<Point>,
    /// The best strategy, if any fits.
    pub best: Option<Best<'a>>,
}

/// What can be reached with a number of ranks.
pub struct Count {
    /// How many.
    pub ranks: usize,
    /// The best plan, if any fits.
    pub best: Option<(String, Prediction)>,
    /// Samples split alone, where there is one for each rank.
    pub data: Option<Data>,
}

/// Data parallelism alone.
pub struct Data {
    /// Samples of all ranks by the time of a step; none where that is not known.
    pub samples_per_second: Option<f64>,
    /// Of the largest rank.
    pub memory: Bytes,
    /// Whether it may fill so much.
    pub fits: bool,
}

/// A strategy in the plane of time and memory.
pub struct Point {
    /// Its short form.
    pub strategy: String,
    /// Of a step.
    pub seconds: Seconds,
    /// Of the largest rank.
    pub memory: Bytes,
    /// Whether it may fill so much.
    pub fits: bool,
}

/// The strategy that the plan recommends.
pub struct Best<'a> {
    /// How it splits.
    pub strategy: &'a Strategy,
    /// What is said of it.
    pub prediction: &'a Prediction,
    /// What its ranks do.
    pub program: Program,
    /// And when.
    pub simulation: Simulation,
}

/// Everything that the page needs beyond the ranking: smaller numbers of ranks, programs of some
/// strategies, and a step of the best one.
///
/// Errors: a cost that cannot be had.
pub fn gather<'a>(
    planner: &'a Planner,
    args: &'a PlanArgs,
    training: Request<'a>,
    candidates: &'a [Candidate],
) -> Result<Facts<'a>, CliError> {
    let ranks = args.training.ranks;
    let mut facts = Facts {
        model: &training.graph.name,
        batch: training.batch,
        ranks,
        machine: planner.name(),
        no_io: args.no_io,
        memory: planner.memory(ranks),
        candidates,
        scaling: scaling(planner, training, ranks, candidates)?,
        itemized: Vec::new(),
        points: Vec::new(),
        best: best(planner, training, candidates)?,
    };
    add_ranked(&mut facts, training)?;
    add_refused(&mut facts, planner, training)?;
    say("", false);
    Ok(facts)
}

/// Those that fit, with their predictions.
pub fn ranked(candidates: &[Candidate]) -> impl Iterator<Item = (&Candidate, &Prediction)> {
    let fitting = candidates.iter().filter(|one| one.reason.is_none());
    fitting.filter_map(|one| Some((one, one.prediction.as_ref()?)))
}

fn program(training: Request<'_>, strategy: &Strategy) -> Result<Program, LowerError> {
    lower(&Request {
        strategy,
        ..training
    })
}

fn best<'a>(
    planner: &Planner,
    training: Request<'_>,
    candidates: &'a [Candidate],
) -> Result<Option<Best<'a>>, CliError> {
    let Some((candidate, prediction)) = ranked(candidates).next() else {
        return Ok(None);
    };
    let strategy = &candidate.strategy;
    let program = program(training, strategy).map_err(|error| CliError::user(&error))?;
    let simulation = planner.play(&program)?;
    Ok(Some(Best {
        strategy,
        prediction,
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
    planner: &Planner,
    training: Request<'_>,
    ranks: usize,
    candidates: &[Candidate],
) -> Result<Vec<Count>, CliError> {
    let mut scaling = Vec::new();
    for count in counts(ranks) {
        say(&format!("planning for {count} of {ranks} ranks"), false);
        let found;
        let candidates = match count == ranks {
            true => candidates,
            false => {
                found = planner.plan(training, count)?;
                &found
            }
        };
        let best = ranked(candidates).next();
        scaling.push(Count {
            ranks: count,
            best: best.map(|(one, prediction)| (one.strategy.to_string(), prediction.clone())),
            data: data(planner, training, count, candidates)?,
        });
    }
    Ok(scaling)
}

/// Data parallelism alone; none where a rank would have no sample.
fn data(
    planner: &Planner,
    training: Request<'_>,
    ranks: usize,
    candidates: &[Candidate],
) -> Result<Option<Data>, CliError> {
    let strategy = Strategy::hybrid(ranks, [1; 3]);
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
    let program = program(training, &strategy).map_err(|error| CliError::user(&error))?;
    let memory = program.memory_max();
    let fits = memory <= planner.memory(ranks);
    let samples_per_second = match can_be_played(planner, fits) {
        true => {
            let simulation = planner.play(&program)?;
            Some(Prediction::of(&program, &simulation, false).samples_per_second)
        }
        false => None,
    };
    Ok(Some(Data {
        samples_per_second,
        memory,
        fits,
    }))
}

/// Kernels that do not fit in memory cannot be measured.
fn can_be_played(planner: &Planner, fits: bool) -> bool {
    match planner {
        Planner::Modelled { .. } => true,
        Planner::Measured { .. } => fits,
    }
}

fn add_ranked(facts: &mut Facts<'_>, training: Request<'_>) -> Result<(), CliError> {
    for (candidate, prediction) in ranked(facts.candidates) {
        let strategy = candidate.strategy.to_string();
        if facts.itemized.len() < ITEMIZED_MAX {
            let program = program(training, &candidate.strategy);
            let program = program.map_err(|error| CliError::user(&error))?;
            let items = itemize(&program);
            // Those that differ in the order of their work alone are shown once.
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

/// Some of those that the plan refused or passed over, as far as they can be lowered: those that
/// do not fit in memory come first among them. Pipelines whose layers are open are left out.
fn add_refused(
    facts: &mut Facts<'_>,
    planner: &Planner,
    training: Request<'_>,
) -> Result<(), CliError> {
    let most = match planner {
        Planner::Modelled { .. } => PASSED_OVER_MAX,
        Planner::Measured { .. } => PASSED_OVER_HERE_MAX,
    };
    let data = Strategy::hybrid(facts.ranks, [1; 3]);
    let (mut misfits, mut others) = (0, 0);
    for candidate in facts.candidates.iter().filter(|one| one.reason.is_some()) {
        let strategy = &candidate.strategy;
        let is_open = !strategy.stages.is_empty() && !strategy.has_layers();
        if is_open || strategy.check(training.graph, training.batch).is_err() {
            continue;
        }
        if misfits + others >= most && *strategy != data {
            continue;
        }
        let Ok(program) = program(training, strategy) else {
            continue;
        };
        say(&format!("costing {strategy} for the report"), false);
        let fits = program.memory_max() <= facts.memory;
        match fits {
            true => others += 1,
            false => misfits += 1,
        }
        if *strategy == data || !fits && misfits <= MISFITS_MAX {
            let items = itemize(&program);
            facts.itemized.push((strategy.to_string(), items));
        }
        if can_be_played(planner, fits) {
            let simulation = planner.play(&program)?;
            let prediction = Prediction::of(&program, &simulation, false);
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

/// Ascending numbers of ranks as ranges: `0–3, 8–11`.
pub fn ranges(ranks: impl IntoIterator<Item = usize>) -> String {
    let mut runs: BTreeMap<usize, usize> = BTreeMap::new();
    let mut last = None;
    for rank in ranks {
        match last {
            Some((start, end)) if rank == end + 1 => {
                runs.insert(start, rank);
                last = Some((start, rank));
            }
            Some(_) | None => {
                runs.insert(rank, rank);
                last = Some((rank, rank));
            }
        }
    }
    let run = |(start, end): (usize, usize)| match start == end {
        true => start.to_string(),
        false => format!("{start}–{end}"),
    };
    runs.into_iter().map(run).collect::<Vec<_>>().join(", ")
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

    #[test]
    fn neighbors_are_one_range() {
        assert_eq!(ranges([0, 1, 2, 5, 7, 8]), "0–2, 5, 7–8");
        assert_eq!(ranges([]), "");
    }
}
