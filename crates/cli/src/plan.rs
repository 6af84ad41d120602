use crate::args::{KindName, PlanArgs};
use crate::error::CliError;
use crate::lowered::{lower_verified, request};
use crate::model;
use crate::planner::Planner;
use crate::report::{self, Draft};
use crate::table::{Side, Table, write_json};
use partita_lower::{Request, Strategy};
use partita_oracle::Prediction;
use partita_space::Bytes;
use serde::Serialize;
use std::io::Write;

/// What became of a strategy.
#[derive(Clone, Debug, Serialize)]
pub struct Candidate {
    /// Its short form.
    pub strategy: String,
    /// What the oracle says of it; absent if there is no program.
    #[serde(flatten)]
    pub prediction: Option<Prediction>,
    /// Why it cannot be used here, where it cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

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
    let found = planner.plan(request, asked.ranks)?;
    verify_best(&request, &found)?;
    if let Some(draft) = draft {
        draft.publish(&report::page(&planner, args, request, &found)?)?;
    }
    let candidates: Vec<Candidate> = found.into_iter().map(Candidate::from).collect();
    write_ranking(&candidates, memory, args.json, out)?;
    if candidates
        .iter()
        .all(|candidate| candidate.reason.is_some())
    {
        return Err(CliError::User(format!(
            "no strategy fits {} ranks with {memory} each for batch {}; possible are more ranks, a \
             smaller batch or more memory; what became of each strategy is listed",
            asked.ranks, asked.batch
        )));
    }
    Ok(())
}

/// The program that is recommended passes `verify`.
fn verify_best(training: &Request<'_>, found: &[partita_plan::Candidate]) -> Result<(), CliError> {
    let best = found.iter().find(|candidate| candidate.reason.is_none());
    let Some(strategy) = best.map(|candidate| &candidate.strategy) else {
        return Ok(());
    };
    lower_verified(&Request {
        strategy,
        ..*training
    })
    .map(drop)
}

impl From<partita_plan::Candidate> for Candidate {
    fn from(candidate: partita_plan::Candidate) -> Self {
        Self {
            strategy: candidate.strategy.to_string(),
            prediction: candidate.prediction,
            reason: candidate.reason,
        }
    }
}

/// Prints candidates in the order given, those refused with their reasons.
fn write_ranking(
    candidates: &[Candidate],
    memory: Bytes,
    json: bool,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    if json {
        return write_json(out, &candidates);
    }
    let mut table = Table::new(&[
        ("iteration", Side::Right),
        ("samples/s", Side::Right),
        ("memory", Side::Right),
        ("strategy", Side::Left),
    ]);
    let mut refused = Vec::new();
    let mut bottleneck = None;
    for candidate in candidates {
        match (&candidate.reason, &candidate.prediction) {
            (None, Some(prediction)) => {
                bottleneck.get_or_insert(&prediction.bottleneck);
                table.row(vec![
                    prediction.iteration_seconds.to_string(),
                    format!("{:.2}", prediction.samples_per_second),
                    prediction.memory_bytes_max.to_string(),
                    candidate.strategy.clone(),
                ]);
            }
            (Some(reason), _) => refused.push((&candidate.strategy, reason)),
            (None, None) => {}
        }
    }
    table.write(out)?;
    if let Some(bottleneck) = bottleneck {
        writeln!(out, "\nOf the first: {bottleneck}")?;
    }
    if !refused.is_empty() {
        writeln!(out, "\nNot chosen, with {memory} a rank:")?;
    }
    for (strategy, reason) in refused {
        writeln!(out, "- {strategy}: {reason}")?;
    }
    Ok(())
}
