//! Text of a training.

use super::compare::write_seconds;
use crate::table::{Side, Table, write_pairs};
use partita::{Classification, RunResult, TargetError, TargetResult, Trained};
use partita_session::LossScale;
use std::io::{self, Write};

/// Most classes that are listed.
const CLASSES_SHOWN_MAX: usize = 20;

/// Writes times, memory, errors and files of a run.
pub fn train(trained: &Trained, out: &mut dyn Write) -> io::Result<()> {
    let result = &trained.result;
    write_summary(&trained.program, result, out)?;
    writeln!(out)?;
    match &result.comparison {
        Some(comparison) => write_seconds(comparison, false, out)?,
        None => writeln!(
            out,
            "Times were not predicted for this run, so there is nothing to compare."
        )?,
    }
    let validation = result.epochs.last();
    if let Some(validation) = validation.and_then(|epoch| epoch.validation.as_ref()) {
        writeln!(out)?;
        match &validation.classification {
            Some(classification) => write_classes(classification, "validation", out)?,
            None => write_errors(&validation.errors, "validation", out)?,
        }
    }
    writeln!(out)?;
    let files = &result.files;
    let best = result
        .best
        .as_ref()
        .map(|best| ("best", best.path.as_deref()));
    let files = [
        ("trace", files.trace.as_deref()),
        ("weights", files.weights.as_deref()),
        ("result", files.result.as_deref()),
    ];
    for (name, file) in files.into_iter().chain(best) {
        writeln!(out, "{name:8} {}", file.unwrap_or("not written"))?;
    }
    Ok(())
}

fn write_summary(program: &str, result: &RunResult, out: &mut dyn Write) -> io::Result<()> {
    let memory = &result.memory;
    let peak = memory.measured_peak_bytes;
    let peak = peak.map_or_else(|| "unknown".to_owned(), |peak| peak.to_string());
    let utilization = &result.utilization;
    let rate = utilization.flops_per_second;
    let mut pairs = vec![
        ("program", program.to_owned()),
        ("steps", format!("{} in {}", result.steps, result.seconds)),
        (
            "throughput",
            format!("{:.1} samples/s, {rate}", result.samples_per_second),
        ),
    ];
    pairs.extend(
        result
            .ended_early
            .as_ref()
            .map(|end| ("early end", end.to_string())),
    );
    pairs.extend(
        result
            .target
            .as_ref()
            .map(|target| ("target", target_text(target))),
    );
    let best = result.best.as_ref();
    pairs.extend(best.map(|best| {
        let text = format!("{}, with {} {}", best.epoch, best.metric, best.value);
        ("best epoch", text)
    }));
    let machine = result.machine.as_ref();
    pairs.extend(machine.map(|name| ("machine", format!("{name}, by its machine file"))));
    pairs.extend(utilization_text(result).map(|text| ("MFU", text)));
    pairs.extend(slowest_text(result).map(|text| ("slowest rank", text)));
    let scale = result.loss_scale.as_ref();
    pairs.extend(scale.map(|scale| {
        let LossScale { scale, skipped, .. } = scale;
        let steps = result.steps;
        let text = format!("{scale}, {skipped} of {steps} updates skipped");
        ("loss scale", text)
    }));
    pairs.extend([
        (
            "step",
            match result.steps_measured {
                0 => "not measured: too few steps".to_owned(),
                steps => format!("{} (median of {steps})", result.step_seconds_median),
            },
        ),
        (
            "memory predicted",
            format!(
                "{}: {} in all arenas, {} in the largest, and {} of buffers",
                memory.predicted_bytes,
                memory.predicted_arena_bytes,
                memory.predicted_arena_bytes_max.unwrap_or_default(),
                memory.predicted.beside_arena() + memory.predicted_snapshot_bytes
            ),
        ),
        (
            "memory measured",
            format!("{peak} at the peak of the steps, beyond what was held before the arenas"),
        ),
    ]);
    write_pairs(out, &pairs)
}

fn target_text(target: &TargetResult) -> String {
    let TargetResult { metric, value, .. } = target;
    match target.epoch.zip(target.seconds) {
        Some((epoch, seconds)) => {
            format!("{metric} {value}, reached in {seconds}, with epoch {epoch}")
        }
        None => format!("{metric} {value}, not reached"),
    }
}

/// Model flops utilization, and of which peak.
fn utilization_text(result: &RunResult) -> Option<String> {
    let utilization = &result.utilization;
    let (mfu, peak) = (utilization.mfu?, utilization.peak.as_ref()?);
    let ranks = match result.ranks {
        1 => String::new(),
        ranks => format!("{ranks} times "),
    };
    Some(format!(
        "{:.1} % of {ranks}{}, {}",
        100.0 * mfu,
        peak.flops_per_second,
        peak.source
    ))
}

/// The rank that computes longest.
fn slowest_text(result: &RunResult) -> Option<String> {
    let compute = result.compute.as_ref().filter(|_| result.ranks > 1)?;
    let above = compute.seconds_max.0 / compute.seconds_mean.0 - 1.0;
    Some(format!(
        "{}, with {} in kernels of a step, {:.1} % above the mean",
        compute.slowest_rank,
        compute.seconds_max,
        100.0 * above
    ))
}

/// A number with four decimals, or with four digits where these would be none of its own or too many.
fn four_digits(number: f64) -> String {
    if number == 0.0 || (0.001..1000.0).contains(&number) {
        format!("{number:.4}")
    } else {
        format!("{number:.3e}")
    }
}

/// Writes the errors of each target on a split: physical ones where they are known.
pub(super) fn write_errors(
    errors: &[TargetError],
    split: &str,
    out: &mut dyn Write,
) -> io::Result<()> {
    let title = format!("{split} error");
    let mut table = Table::new(&[
        (&title, Side::Left),
        ("mean absolute", Side::Right),
        ("rms", Side::Right),
        ("unit", Side::Left),
    ]);
    for error in errors {
        let (mean_absolute, rms, unit) = match &error.physical {
            None => (error.mean_absolute, error.rms, "as stored"),
            Some(physical) => {
                let unit = physical.unit.as_deref().unwrap_or("physical");
                (physical.mean_absolute, physical.rms, unit)
            }
        };
        table.row(vec![
            error.target.clone(),
            four_digits(mean_absolute),
            four_digits(rms),
            unit.to_owned(),
        ]);
    }
    table.write(out)
}

/// Writes accuracy and overlap on a split.
pub(super) fn write_classes(
    found: &Classification,
    split: &str,
    out: &mut dyn Write,
) -> io::Result<()> {
    let percent = |share: f64| format!("{:.2} %", 100.0 * share);
    let or_none =
        |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"));
    let accuracy = format!(
        "{} ({} by always answering the most frequent class)",
        percent(found.accuracy),
        percent(found.largest_share)
    );
    let mut pairs = vec![
        ("accuracy", accuracy),
        ("mean Dice", or_none(found.mean_dice)),
        ("mean overlap", or_none(found.mean_overlap)),
    ];
    let of_samples = found.sample_dice.is_some();
    pairs.extend(of_samples.then(|| ("Dice of samples", or_none(found.sample_dice))));
    write_pairs(out, &pairs)?;
    if found.classes.len() > CLASSES_SHOWN_MAX {
        return Ok(());
    }
    writeln!(out)?;
    let mut table = Table::new(&[
        (split, Side::Left),
        ("share", Side::Right),
        ("Dice", Side::Right),
        ("overlap", Side::Right),
    ]);
    for one in &found.classes {
        let (dice, overlap) = (or_none(one.dice), or_none(one.overlap));
        table.row(vec![one.class.clone(), percent(one.share), dice, overlap]);
    }
    table.write(out)
}
