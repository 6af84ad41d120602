//! Text of what bounds a step.

use crate::table::{Side, Table};
use partita::Explanation;
use partita_oracle::Finding;
use std::io::{self, Write};

/// Changes that bring less than this are not shown.
const SPEEDUP_MIN: f64 = 1.005;

/// Writes a line for each of the `most` heaviest bounds, those of time before those of memory.
pub fn write_findings(findings: &[Finding], most: usize, out: &mut dyn Write) -> io::Result<()> {
    let mut sorted: Vec<&Finding> = findings.iter().collect();
    sorted.sort_by(|a, b| {
        let weight = |one: &Finding| (one.share, one.rank_seconds.map_or(0.0, |most| most.0));
        let ((a_share, a_most), (b_share, b_most)) = (weight(a), weight(b));
        let by_area = a.bytes.is_some().cmp(&b.bytes.is_some());
        let by_share = b_share.total_cmp(&a_share);
        by_area.then(by_share).then(b_most.total_cmp(&a_most))
    });
    let mut table = Table::new(&[
        ("what bounds it", Side::Left),
        ("kind", Side::Left),
        ("costs", Side::Right),
        ("share", Side::Right),
        ("most on a rank", Side::Right),
        ("where", Side::Left),
    ]);
    for finding in sorted
        .into_iter()
        .filter(|one| one.ranks.is_none())
        .take(most)
    {
        let phases = finding.phases.iter().map(|phase| phase.name());
        let phases: Vec<&str> = phases.collect();
        let of = if finding.bytes.is_some() {
            "memory"
        } else {
            "step"
        };
        let costs = finding.seconds.map(|seconds| {
            if seconds.0 > 0.0 {
                seconds.to_string()
            } else {
                "hidden".to_owned()
            }
        });
        let costs = costs.or_else(|| finding.bytes.map(|bytes| bytes.to_string()));
        table.row(vec![
            finding.factor.to_string(),
            finding.nature.to_string(),
            costs.unwrap_or_default(),
            format!("{:.1} % of {of}", 100.0 * finding.share),
            finding
                .rank_seconds
                .map(|seconds| seconds.to_string())
                .unwrap_or_default(),
            phases.join(", "),
        ]);
    }
    table.write(out)?;
    for finding in findings.iter().filter(|one| one.ranks.is_some()) {
        writeln!(out, "{}: {}", finding.factor, finding.message)?;
    }
    Ok(())
}

/// Writes what changes would bring, in a few lines.
pub fn write_changes(explanation: &Explanation, out: &mut dyn Write) -> io::Result<()> {
    let told = explanation.what_ifs.iter().filter(|one| {
        one.speedup >= SPEEDUP_MIN || one.change == "batch" || one.change == "device_memory"
    });
    let told: Vec<String> = told
        .map(|one| format!("{} x{:.2}", one.says, one.speedup))
        .collect();
    if !explanation.what_ifs.is_empty() {
        let told = if told.is_empty() {
            "none brings anything".to_owned()
        } else {
            told.join("; ")
        };
        writeln!(out, "changes: {told}")?;
    }
    if let Some(rival) = &explanation.rival {
        writeln!(out, "of another kind: {}", rival.says)?;
    }
    if let Some(scaling) = &explanation.scaling {
        let points = scaling.points.iter().map(|point| {
            let percent = 100.0 * point.efficiency;
            format!("{} ranks x {percent:.0} %", point.ranks)
        });
        let points: Vec<String> = points.collect();
        let points = if points.is_empty() {
            "not at all".to_owned()
        } else {
            points.join(", ")
        };
        writeln!(out, "with more ranks: {points}; {}", scaling.end)?;
    }
    Ok(())
}
