//! Text of a comparison of predicted and measured times.

use crate::table::{Side, Table, write_pairs};
use partita_oracle::Comparison;
use partita_oracle::compare::Pair;
use std::io::{self, Write};

/// An accuracy as tables show it; none of what was predicted but took no time.
fn accuracy(pair: &Pair) -> String {
    if pair.accuracy.is_finite() {
        format!("{:.1} %", 100.0 * pair.accuracy)
    } else {
        "-".to_owned()
    }
}

/// Writes predicted and measured seconds of a step.
pub fn compare(comparison: &Comparison, out: &mut dyn Write) -> io::Result<()> {
    write_pairs(
        out,
        &[
            ("program", comparison.digest.clone()),
            ("steps", comparison.steps.to_string()),
        ],
    )?;
    writeln!(out)?;
    write_seconds(comparison, true, out)
}

/// Writes the table of seconds, with a row for each phase where these are wanted.
pub(super) fn write_seconds(
    comparison: &Comparison,
    with_phases: bool,
    out: &mut dyn Write,
) -> io::Result<()> {
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
    row("waiting", &comparison.waiting);
    for (phase, pair) in comparison.by_phase.iter().filter(|_| with_phases) {
        row(&format!("phase {phase}"), pair);
    }
    let of_kernels = |(kind, _): &(&String, &Pair)| comparison.kernel_kinds.contains(*kind);
    for (kind, pair) in comparison.by_kind.iter().filter(of_kernels) {
        row(kind, pair);
    }
    table.write(out)
}
