//! Text of a prediction.

use super::explain::{write_changes, write_findings};
use crate::number::counted;
use crate::table::{Side, Table, write_pairs};
use partita::{EpochPrediction, LayerPrecision, Predicted};
use partita_oracle::simulate::Category;
use partita_oracle::{CostBasis, Interval, OffloadedWork, Prediction, TaskPrediction};
use partita_program::ProgramKind;
use partita_run::Footprint;
use std::io::{self, Write};

/// The precision of layers, and whether ranks on this machine could compute in it.
pub(super) fn precision_text(precision: LayerPrecision) -> String {
    match precision {
        LayerPrecision::F32 | LayerPrecision::Bf16 | LayerPrecision::F16 => {
            precision.name().to_owned()
        }
        LayerPrecision::Tf32 => {
            format!(
                "{}: predicted only; ranks compute in f32, bf16 or f16",
                precision.name()
            )
        }
    }
}

/// Writes a prediction with its limiting factors, and its tasks if it has them.
pub fn predict(predicted: &Predicted, out: &mut dyn Write) -> io::Result<()> {
    if let Some(text) = &predicted.not_built {
        writeln!(out, "{text}")?;
    }
    write_summary(predicted, out)?;
    writeln!(out)?;
    write_breakdown(&predicted.prediction, out)?;
    writeln!(out)?;
    write_memory(&predicted.prediction.memory, out)?;
    writeln!(out, "\n{}", predicted.prediction.bottleneck)?;
    for limit in &predicted.prediction.limits {
        writeln!(out, "- {limit}")?;
    }
    writeln!(out)?;
    write_findings(&predicted.explanation.findings, usize::MAX, out)?;
    write_changes(&predicted.explanation, out)?;
    if let Some(tasks) = &predicted.prediction.tasks {
        writeln!(out)?;
        write_tasks(tasks, out)?;
    }
    Ok(())
}

/// What costs are based on.
pub fn basis(basis: CostBasis) -> &'static str {
    match basis {
        CostBasis::Modeled => "modeled from the machine file",
        CostBasis::Measured => "measured on the machine",
        CostBasis::Calibrated => "estimated from other kernels measured on the machine",
    }
}

/// A factor with three digits at least.
fn significant(factor: f64) -> String {
    if (0.01..1e6).contains(&factor) {
        format!("{factor:.3}")
    } else {
        format!("{factor:.2e}")
    }
}

/// Where the time of a step lies, and what that is due to most.
pub(super) fn interval_text(interval: &Interval) -> String {
    let (low, high) = (interval.low_seconds, interval.high_seconds);
    let percent = 100.0 * interval.confidence;
    let sources = interval.due_to.iter();
    let sources = sources.map(|(source, share)| (source.to_string(), *share));
    let model = (
        "what the simulation leaves out".to_owned(),
        interval.due_to_model,
    );
    let most = sources.chain([model]).max_by(|a, b| a.1.total_cmp(&b.1));
    let most = most.map_or(String::new(), |(source, share)| {
        format!("; {:.0} % of the variance is {source}", 100.0 * share)
    });
    format!("{percent:.0} % between {low} and {high}{most}")
}

/// Assumed facts that decide, with their shares of the step, the largest first.
pub(super) fn assumed_text(interval: &Interval) -> Option<String> {
    let mut assumed: Vec<_> = interval.assumed.iter().collect();
    assumed.sort_by(|a, b| b.1.total_cmp(a.1));
    let texts = assumed.iter();
    let texts = texts.map(|(source, share)| format!("{source} ({:.0} %)", 100.0 * *share));
    let texts: Vec<String> = texts.collect();
    (!texts.is_empty()).then(|| texts.join(", "))
}

fn write_summary(predicted: &Predicted, out: &mut dyn Write) -> io::Result<()> {
    let prediction = &predicted.prediction;
    let memory = format!(
        "{} of {} on the largest rank, {} of it outside the arena{}",
        prediction.memory_bytes_max,
        predicted.memory_bytes_device,
        prediction.memory.beside_arena(),
        if prediction.memory_bytes_max > predicted.memory_bytes_device {
            "; it does not fit"
        } else {
            ""
        }
    );
    let mut pairs = vec![
        ("model", predicted.model.clone()),
        ("strategy", predicted.strategy.clone()),
        ("machine", predicted.machine.clone()),
        ("software", predicted.software.clone()),
        ("input", predicted.input.name().to_owned()),
        ("ranks", ranks_text(prediction)),
        ("batch", predicted.batch.to_string()),
        ("program", prediction.digest.clone().unwrap_or_default()),
        ("seconds", basis(prediction.basis).to_owned()),
        ("iteration", prediction.iteration_seconds.to_string()),
        ("samples/s", rate_text(predicted)),
        ("memory", memory),
    ];
    if let Some(dataset) = &predicted.dataset {
        pairs.insert(5, ("dataset", dataset.to_string()));
    }
    if let Some(interval) = &prediction.interval {
        let at = before(&pairs, "seconds");
        pairs.insert(at, ("interval", interval_text(interval)));
        if let Some(text) = assumed_text(interval) {
            pairs.insert(at + 1, ("assumed", format!("{text} of the iteration")));
        }
    }
    add_scales(predicted, &mut pairs);
    let precision = prediction.precision;
    if precision != LayerPrecision::F32 {
        pairs.insert(3, ("precision", precision_text(precision)));
    }
    let kind = match predicted.kind {
        ProgramKind::Train | ProgramKind::Fetch | ProgramKind::FetchSamples => None,
        ProgramKind::Evaluate => Some("evaluation: forward pass, loss and errors"),
        ProgramKind::Infer => {
            Some("inference: forward pass without targets, predictions are written")
        }
    };
    if let Some(kind) = kind {
        pairs.insert(1, ("kind", kind.to_owned()));
    }
    if let Some(closed) = &predicted.closed_form {
        let text = format!(
            "{} for {}: compute {}, communication {}; {}",
            closed.seconds,
            closed.strategy,
            closed.compute_seconds,
            closed.communication_seconds,
            closed.memory_bytes
        );
        pairs.push(("closed form", text));
    }
    if let Some(epoch) = &predicted.epoch {
        pairs.extend(epoch_pairs(epoch));
    }
    write_pairs(out, &pairs)
}

/// How many ranks there are, and how many of them are simulated.
fn ranks_text(prediction: &Prediction) -> String {
    let classes = counted(prediction.classes, "class", "classes");
    let ranks = prediction.ranks;
    match prediction.simulated_ranks {
        None => format!("{ranks} in {classes}"),
        Some(some) => {
            format!("{ranks}, of which {some} in {classes} are simulated, inner ones for others")
        }
    }
}

/// Samples per second of steps, and of an epoch whose steps wait for loaders.
fn rate_text(predicted: &Predicted) -> String {
    let of_steps = format!("{:.2}", predicted.prediction.samples_per_second);
    let epoch = predicted.epoch.as_ref();
    match epoch.filter(|epoch| epoch.times.training_or_loading() > epoch.times.training_seconds) {
        Some(epoch) => format!(
            "{:.2}, as ranks wait for loaders; {of_steps} if they did not",
            epoch.samples_per_second
        ),
        None => of_steps,
    }
}

/// Where the time of an epoch lies.
fn between(epoch: &EpochPrediction) -> String {
    epoch.interval.map_or(String::new(), |interval| {
        let (low, high) = (interval.low_seconds, interval.high_seconds);
        if low == high {
            return ", whatever the ranks take within their interval".to_owned();
        }
        let percent = 100.0 * interval.confidence;
        format!(", {percent:.0} % between {low} and {high}")
    })
}

/// An epoch, and what its parts take, which run at the same time.
pub(super) fn epoch_pairs(epoch: &EpochPrediction) -> Vec<(&'static str, String)> {
    let (times, samples) = (&epoch.times, epoch.training_samples);
    let mut pairs = vec![
        ("epoch", format!("{}{}", times.seconds, between(epoch))),
        (
            "training",
            format!(
                "{} for {} in {}",
                times.training_seconds,
                counted(samples, "sample", "samples"),
                counted(epoch.steps, "step", "steps")
            ),
        ),
    ];
    let of_others = |work: &OffloadedWork, who: &str| {
        let most = work.seconds_per_sample_max;
        let waits = if work.seconds_per_sample <= most {
            "hidden"
        } else {
            "waited for"
        };
        format!(
            "{} by {}, {} a sample; {waits}, up to {most} would be hidden",
            work.seconds,
            counted(work.processes, who, &format!("{who}s")),
            work.seconds_per_sample
        )
    };
    if let Some(work) = &times.loading {
        pairs.push(("loading", of_others(work, "loader")));
    }
    if let Some(work) = &times.validation {
        let text = of_others(work, "validator");
        pairs.push(("validation", text));
    } else if epoch.validation_samples > 0 {
        let text = format!(
            "{} by the ranks for {}, after the training",
            times.own_validation_seconds,
            counted(epoch.validation_samples, "sample", "samples")
        );
        pairs.push(("validation", text));
    }
    pairs
}

/// Where a pair stands.
fn before(pairs: &[(&str, String)], name: &str) -> usize {
    let at = pairs.iter().position(|(other, _)| *other == name);
    at.unwrap_or(pairs.len())
}

/// How modeled computation is scaled.
fn add_scales(predicted: &Predicted, pairs: &mut Vec<(&str, String)>) {
    if let Some(scale) = &predicted.compute_scale {
        let text = format!(
            "scaled by {}: {} per sample given, {} modeled, at {}",
            significant(scale.factor),
            scale.seconds_per_sample,
            scale.modeled_seconds_per_sample,
            counted(scale.samples, "sample", "samples")
        );
        pairs.insert(before(pairs, "seconds"), ("computation", text));
    }
    if let Some(scale) = &predicted.layer_scale {
        let text = format!(
            "times of {} given, {:.0} % of the modeled computation: {} per sample, {} modeled",
            counted(scale.layers, "layer", "layers"),
            100.0 * scale.share,
            scale.measured_seconds_per_sample,
            scale.modeled_seconds_per_sample
        );
        pairs.insert(before(pairs, "program"), ("computation", text));
    }
}

fn write_breakdown(prediction: &Prediction, out: &mut dyn Write) -> io::Result<()> {
    let mut table = Table::new(&[
        ("critical path", Side::Left),
        ("seconds", Side::Right),
        ("share", Side::Right),
    ]);
    let whole = prediction.iteration_seconds.0;
    for category in Category::ALL {
        let seconds = prediction.breakdown.of(category);
        let share = if whole > 0.0 { seconds.0 / whole } else { 0.0 };
        table.row(vec![
            category.to_string(),
            seconds.to_string(),
            format!("{:.1} %", 100.0 * share),
        ]);
    }
    table.write(out)
}

/// Writes the memory of the largest rank.
fn write_memory(memory: &Footprint, out: &mut dyn Write) -> io::Result<()> {
    let mut table = Table::new(&[
        ("memory", Side::Left),
        ("bytes", Side::Right),
        ("share", Side::Right),
    ]);
    let whole = memory.total().0.max(1) as f64;
    for (name, bytes) in memory.items().into_iter().filter(|item| item.1.0 > 0) {
        let share = format!("{:.1} %", 100.0 * bytes.0 as f64 / whole);
        table.row(vec![name.to_owned(), bytes.to_string(), share]);
    }
    table.write(out)
}

fn write_tasks(tasks: &[TaskPrediction], out: &mut dyn Write) -> io::Result<()> {
    let mut table = Table::new(&[
        ("class", Side::Right),
        ("task", Side::Right),
        ("phase", Side::Left),
        ("layer", Side::Left),
        ("kind", Side::Left),
        ("seconds", Side::Right),
    ]);
    for task in tasks {
        table.row(vec![
            task.class.to_string(),
            task.task.to_string(),
            task.phase.name().to_owned(),
            task.layer.clone(),
            task.kind.clone(),
            task.seconds.to_string(),
        ]);
    }
    table.write(out)
}
