use crate::args::PlanArgs;
use crate::error::CliError;
use crate::search::search;
use crate::table::{Side, Table, write_json};
use crate::{machine, model, predict};
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
    let machine = machine::resolve(&args.machine)?;
    let graph = model::resolve(&args.training.model)?;
    machine::check_capacity(&machine, args.training.ranks)?;
    let memory = args.memory.unwrap_or(machine.device.memory.value);
    let costs = predict::costs(&machine, args.no_io);
    let candidates = search(&graph, costs.as_ref(), &args.training, memory)?;
    write_ranking(&candidates, memory, args.json, out)?;
    if candidates
        .iter()
        .all(|candidate| candidate.reason.is_some())
    {
        return Err(CliError::User(format!(
            "no strategy fits {} ranks with {memory} each for batch {}; possible are more ranks, a \
             smaller batch or more memory; what became of each strategy is listed",
            args.training.ranks, args.training.batch
        )));
    }
    Ok(())
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
        ("strategy", Side::Left),
        ("iteration", Side::Right),
        ("samples/s", Side::Right),
        ("memory", Side::Right),
        ("bottleneck", Side::Left),
    ]);
    let mut refused = Vec::new();
    for candidate in candidates {
        match (&candidate.reason, &candidate.prediction) {
            (None, Some(prediction)) => table.row(vec![
                candidate.strategy.clone(),
                prediction.iteration_seconds.to_string(),
                format!("{:.2}", prediction.samples_per_second),
                prediction.memory_bytes_max.to_string(),
                prediction.bottleneck.clone(),
            ]),
            (Some(reason), _) => refused.push((&candidate.strategy, reason)),
            (None, None) => {}
        }
    }
    table.write(out)?;
    if !refused.is_empty() {
        writeln!(out, "\nRefused, with {memory} a rank:")?;
    }
    for (strategy, reason) in refused {
        writeln!(out, "- {strategy}: {reason}")?;
    }
    Ok(())
}
