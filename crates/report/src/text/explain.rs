//! Text of limiting factors and of what-if analyses.

use crate::table::{Side, Table};
use partita::Explanation;
use partita_oracle::Finding;
use partita_space::Mesh;
use std::io::{self, Write};

/// Smallest speedup that is shown.
const SPEEDUP_MIN: f64 = 1.005;

/// Writes a row for each of the `most` largest limiting factors, those of time before those of memory.
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
        ("limiting factor", Side::Left),
        ("kind", Side::Left),
        ("cost", Side::Right),
        ("share", Side::Right),
        ("most on a rank", Side::Right),
        ("phase", Side::Left),
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
        let cost = finding.seconds.map(|seconds| {
            if seconds.0 > 0.0 {
                seconds.to_string()
            } else {
                "overlapped".to_owned()
            }
        });
        let cost = cost.or_else(|| finding.bytes.map(|bytes| bytes.to_string()));
        table.row(vec![
            finding.factor.to_string(),
            finding.nature.to_string(),
            cost.unwrap_or_default(),
            format!("{:.1} % of {of}", 100.0 * finding.share),
            finding
                .rank_seconds
                .map(|seconds| seconds.to_string())
                .unwrap_or_default(),
            phases.join(", "),
        ]);
    }
    table.write(out)?;
    // The most that any mesh may have bounds nothing.
    let bounds = findings.iter().filter_map(|one| Some((one, one.ranks?)));
    for (finding, ranks) in bounds.filter(|(_, ranks)| *ranks < Mesh::RANKS_MAX) {
        let factor = finding.factor;
        writeln!(
            out,
            "{factor}: {ranks} at most by doubling the axes of the strategy"
        )?;
    }
    Ok(())
}

/// Writes the effects of changes, in a few lines.
pub fn write_changes(explanation: &Explanation, out: &mut dyn Write) -> io::Result<()> {
    let shown = explanation.what_ifs.iter().filter(|one| {
        one.speedup >= SPEEDUP_MIN || one.change == "batch" || one.change == "device_memory"
    });
    let shown: Vec<String> = shown
        .map(|one| format!("{} x{:.2}", one.says, one.speedup))
        .collect();
    if !explanation.what_ifs.is_empty() {
        let shown = if shown.is_empty() {
            "none shortens the step".to_owned()
        } else {
            shown.join("; ")
        };
        writeln!(out, "changes: {shown}")?;
    }
    if let Some(rival) = &explanation.rival {
        writeln!(out, "best of another kind: {}", rival.says)?;
    }
    if let Some(scaling) = &explanation.scaling {
        let points = scaling.points.iter().map(|point| {
            let percent = 100.0 * point.efficiency;
            format!("{percent:.0} % on {} ranks", point.ranks)
        });
        let points: Vec<String> = points.collect();
        let points = if points.is_empty() {
            "none".to_owned()
        } else {
            points.join(", ")
        };
        writeln!(out, "efficiency with more ranks: {points}; {}", scaling.end)?;
    }
    Ok(())
}
