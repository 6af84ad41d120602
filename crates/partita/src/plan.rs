mod answer;

use crate::args::{KindName, PlanArgs, TrainingArgs};
use crate::error::CliError;
use crate::explain::{self, Explanation, Subject};
use crate::local_machine;
use crate::model;
use crate::pareto::front;
use crate::planner::Planner;
use crate::predict;
use crate::report::{self, Draft};
use crate::training::{lower_verified, request};
use answer::{Answer, Candidate};
use partita_lower::{Request, Strategy};
use partita_oracle::Prediction;
use partita_plan::Refusal;
use partita_program::Program;
use partita_space::{Axis, Bytes};
use std::io::{self, Write};

/// Ranks up to which the best strategy is explained without being asked: that takes a second at most.
const RANKS_EXPLAINED: usize = 1024;

/// Ranks the strategies for a number of ranks, best first.
pub fn run(args: &PlanArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let asked = &args.training;
    // What cannot be written is said before the search.
    let draft = args.report.as_deref().map(Draft::new).transpose()?;
    let planner = Planner::new(args)?;
    let graph = model::resolve(&asked.model)?;
    let menu = planner.menu();
    let single = Strategy::single();
    let request = request(&graph, &single, asked, KindName::Train, &*menu);
    let memory = planner.memory(asked.ranks);
    if let Some(warning) =
        local_machine::sharing(asked.ranks).filter(|_| planner.name() == local_machine::NAME)
    {
        writeln!(io::stderr(), "partita: {warning}")?;
    }
    let found = planner.plan(request, asked.ranks)?;
    let best = found.iter().find(|candidate| candidate.reason.is_none());
    let explanation = match best.and_then(|best| Some((&best.strategy, best.prediction.as_ref()?)))
    {
        None => None,
        Some((strategy, prediction)) => {
            let training = Request {
                strategy,
                ..request
            };
            // The program that is recommended passes `verify`.
            let program = lower_verified(&training)?;
            Some(explained(
                args,
                &planner,
                (training, &program),
                prediction,
                &found,
            )?)
        }
    };
    if let Some(draft) = draft {
        draft.publish(&report::page(&planner, args, request, &found)?)?;
    }
    let answer = Answer {
        candidates: candidates(&found, explanation),
        memory,
    };
    match args.json {
        true => answer.write_json(out)?,
        false => answer.write(args.all, out)?,
    }
    if best.is_none() {
        return Err(CliError::User(none_fits(&found, asked, memory)));
    }
    Ok(())
}

/// Why nothing is recommended, and what would change that.
fn none_fits(found: &[partita_plan::Candidate], asked: &TrainingArgs, memory: Bytes) -> String {
    let (ranks, batch) = (asked.ranks, asked.batch);
    let is_memory = |one: &partita_plan::Candidate| match one.refusal {
        Some(Refusal::Memory(_)) => true,
        Some(Refusal::Slower | Refusal::Unsuited | Refusal::Unknown) | None => false,
    };
    let remedy = if found.iter().any(is_memory) {
        let smaller = if batch > 1 { ", a smaller batch" } else { "" };
        format!("possible are more ranks{smaller} or more memory")
    } else {
        // Samples can always be split when there are as many for each.
        let nearest = ranks * (batch as f64 / ranks as f64).round().max(1.0) as usize;
        format!(
            "none splits the model and {batch} samples so; the nearest batch that suits is {nearest}"
        )
    };
    format!(
        "no strategy fits {ranks} ranks with {memory} each for batch {batch}; {remedy}; what became \
         of each strategy is listed"
    )
}

/// Everything told of them, in the same order; the explanation is that of the first.
fn candidates(
    found: &[partita_plan::Candidate],
    mut explanation: Option<Explanation>,
) -> Vec<Candidate> {
    let fitting = found.iter().filter(|one| one.reason.is_none());
    let costed = fitting.filter_map(|one| Some((&one.strategy, one.prediction.as_ref()?)));
    let costed: Vec<(&Strategy, &Prediction)> = costed.collect();
    let front = front(&costed, |(_, prediction)| {
        (prediction.memory_bytes_max, prediction.iteration_seconds)
    });
    let candidate = |one: &partita_plan::Candidate| Candidate {
        strategy: one.strategy.to_string(),
        front: front.iter().any(|(strategy, _)| **strategy == one.strategy),
        prediction: one.prediction.clone(),
        reason: one.reason.clone(),
        refusal: one.refusal,
        explanation: match one.reason {
            None => explanation.take(),
            Some(_) => None,
        },
    };
    found.iter().map(candidate).collect()
}

/// Why the best strategy takes as long as it does, and what would make another one the best.
fn explained(
    args: &PlanArgs,
    planner: &Planner,
    (training, program): (Request<'_>, &Program),
    prediction: &Prediction,
    found: &[partita_plan::Candidate],
) -> Result<Explanation, CliError> {
    let costs = |program: &Program| planner.costs(program);
    let own = planner.costs(program)?;
    let ranks = args.training.ranks;
    let subject = Subject {
        training,
        program,
        prediction,
        memory: planner.memory(ranks),
        own: own.as_ref(),
        costs: &costs,
    };
    let simulation = predict::play(program, own.as_ref())?;
    let mut explanation = Explanation::new(explain::findings(&subject, &simulation)?);
    let is_cheap = match planner {
        Planner::Modelled { .. } => ranks <= RANKS_EXPLAINED,
        Planner::Measured { .. } => false,
    };
    if !is_cheap && !args.explain {
        return Ok(explanation);
    }
    explanation.what_ifs = explain::changes(&subject)?;
    if let Some(rival) = rival_of(training.strategy, found) {
        explanation.rival = explain::rival(&subject, rival)?;
    }
    if args.explain {
        explanation
            .what_ifs
            .extend(with_memory(planner, &subject, found)?);
        explanation.scaling = Some(explain::scaling(&subject)?);
    }
    Ok(explanation)
}

/// The first of another kind among those that may have been the fastest.
fn rival_of<'f>(best: &Strategy, found: &'f [partita_plan::Candidate]) -> Option<&'f Strategy> {
    let is_possible = |one: &partita_plan::Candidate| match one.refusal {
        None => true,
        Some(Refusal::Slower) => one.strategy.stages.is_empty() || one.strategy.has_layers(),
        Some(Refusal::Memory(_) | Refusal::Unsuited | Refusal::Unknown) => false,
    };
    let possible = found.iter().filter(|one| is_possible(one));
    let mut strategies = possible.map(|one| &one.strategy);
    strategies.find(|strategy| kind(strategy) != kind(best))
}

/// What a strategy splits: samples, space, filters, channels, branches, layers.
fn kind(strategy: &Strategy) -> [bool; 6] {
    let splits = |axes: &[Axis]| axes.iter().any(|&axis| strategy.extent(axis) > 1);
    [
        splits(&[Axis::Data]),
        splits(&[Axis::Depth, Axis::Height, Axis::Width]),
        splits(&[Axis::Filter]),
        splits(&[Axis::Channel]),
        splits(&[Axis::Branch]),
        !strategy.stages.is_empty(),
    ]
}

/// What would be the best strategy with twice the memory, where one was refused that would fit then.
fn with_memory(
    planner: &Planner,
    subject: &Subject<'_, '_>,
    found: &[partita_plan::Candidate],
) -> Result<Option<explain::Change>, CliError> {
    let memory = subject.memory * 2;
    let would_fit = |one: &partita_plan::Candidate| match one.refusal {
        Some(Refusal::Memory(needed)) => needed <= memory,
        Some(Refusal::Slower | Refusal::Unsuited | Refusal::Unknown) | None => false,
    };
    let strategy = subject.training.strategy;
    let now = subject.prediction;
    let then = match found.iter().any(would_fit) {
        true => planner.plan_with(subject.training, now.ranks, memory)?,
        false => Vec::new(),
    };
    let best = then.into_iter().find(|one| one.reason.is_none());
    let best = best.filter(|best| best.strategy != *strategy);
    let best = best.and_then(|best| Some((best.strategy, best.prediction?)));
    Ok(Some(match best {
        Some((other, prediction)) => {
            let says = format!("{memory} a rank, with `{other}`");
            explain::change("device_memory", &other, &prediction, now, says)
        }
        None => {
            let says = format!("{memory} a rank, with the same strategy");
            explain::change("device_memory", strategy, now, now, says)
        }
    }))
}
