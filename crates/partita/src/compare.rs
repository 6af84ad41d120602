use crate::args::CompareArgs;
use crate::error::CliError;
use crate::table::{Side, Table, write_json, write_pairs};
use crate::trace;
use partita_oracle::compare::{CompareError, Pair};
use partita_oracle::{Comparison, Prediction, compare};
use std::fs;
use std::io::Write;
use std::path::Path;

/// Holds a prediction against a run of the same program.
pub fn run(args: &CompareArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let prediction = read_prediction(&args.prediction)?;
    let recorded = trace::read(&args.trace)?;
    let comparison = compare(
        &prediction,
        &recorded.program,
        &recorded.digest,
        &recorded.traces,
    )
    .map_err(|error| {
        let (predicted, measured) = (args.prediction.display(), args.trace.display());
        CliError::User(match error {
            CompareError::Prediction(fault) => format!("{predicted}: {fault}"),
            CompareError::Digests { prediction, .. } => format!(
                "{predicted} is of program {prediction}, {measured} is of program {}; predict and measure \
                 the same program",
                recorded.digest
            ),
            CompareError::NoTraces
            | CompareError::Rank { .. }
            | CompareError::Times { .. }
            | CompareError::NoTime { .. } => format!("{measured}: {error}"),
        })
    })?;
    if args.json {
        return write_json(out, &comparison);
    }
    write_report(&comparison, out)
}

fn read_prediction(path: &Path) -> Result<Prediction, CliError> {
    let text =
        fs::read_to_string(path).map_err(|error| CliError::file("read", path.display(), &error))?;
    serde_json::from_str(&text).map_err(|error| {
        CliError::User(format!(
            "{} is no prediction: {error}; possible is what `partita predict --tasks --json` prints",
            path.display()
        ))
    })
}

/// An accuracy as tables show it; none of what was predicted but took no time.
pub fn accuracy(pair: &Pair) -> String {
    match pair.accuracy.is_finite() {
        true => format!("{:.1} %", 100.0 * pair.accuracy),
        false => "-".to_owned(),
    }
}

fn write_report(comparison: &Comparison, out: &mut dyn Write) -> Result<(), CliError> {
    write_pairs(
        out,
        &[
            ("program", comparison.digest.clone()),
            ("steps", comparison.steps.to_string()),
        ],
    )?;
    writeln!(out)?;
    let mut table = Table::new(&[
        ("seconds of a step", Side::Left),
        ("predicted", Side::Right),
        ("measured", Side::Right),
        ("accuracy", Side::Right),
    ]);
    let mut row = |name: &str, pair: &Pair| {
        table.row(vec![
            name.to_owned(),
            pair.predicted.to_string(),
            pair.measured.to_string(),
            accuracy(pair),
        ]);
    };
    row("iteration", &comparison.iteration);
    row("all kernels", &comparison.compute);
    for (phase, pair) in &comparison.by_phase {
        row(&format!("phase {phase}"), pair);
    }
    for (kind, pair) in &comparison.by_kind {
        row(kind, pair);
    }
    table.write(out)
}
