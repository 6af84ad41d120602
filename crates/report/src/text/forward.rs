//! Text of what is done with trained weights.

use super::train::{write_classes, write_errors};
use crate::table::{Side, Table, write_pairs};
use partita::{
    Classification, ConvertResult, EvaluateResult, InferResult, SampleResult, TilesResult,
    ValidationResult,
};
use std::io::{self, Write};

/// Writes loss and metrics of an evaluation.
pub fn evaluate(found: &EvaluateResult, out: &mut dyn Write) -> io::Result<()> {
    let metrics = &found.metrics;
    let mut pairs = vec![
        ("program", found.program.clone()),
        ("weights", found.weights.clone()),
        (
            "samples",
            samples(metrics.samples, &found.data, (found.split, found.volumes)),
        ),
        (
            "throughput",
            format!("{:.1} samples/s", found.samples_per_second),
        ),
        ("loss", loss(metrics)),
    ];
    insert_tiles(&mut pairs, found.tiles.as_ref());
    insert_mirrored(&mut pairs, &found.mirrored);
    write_pairs(out, &pairs)?;
    writeln!(out)?;
    match &metrics.classification {
        Some(classification) => write_classes(classification, found.split, out)?,
        None => write_errors(&metrics.errors, found.split, out)?,
    }
    write_samples(found, out)
}

/// The loss; without a label that counts it is a sum over nothing.
fn loss(metrics: &ValidationResult) -> String {
    let is_empty = |found: &Classification| found.classes.iter().all(|one| one.share == 0.0);
    let note = match &metrics.classification {
        Some(found) if is_empty(found) => " (no label of the split counts: all are ignored)",
        Some(_) | None => "",
    };
    format!("{:.6}{note}", metrics.loss)
}

/// Writes a line for each sample, where samples have results of their own.
fn write_samples(found: &EvaluateResult, out: &mut dyn Write) -> io::Result<()> {
    if found.samples.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    let titles = titles(found);
    let mut columns = vec![("sample", Side::Left), ("loss", Side::Right)];
    columns.extend(titles.iter().map(|title| (title.as_str(), Side::Right)));
    let mut table = Table::new(&columns);
    for sample in &found.samples {
        let (_, mut figures) = figures(sample);
        figures.resize(titles.len(), None);
        let figure = |value: Option<f64>| {
            value.map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"))
        };
        let mut row = vec![sample.name.clone(), format!("{:.6}", sample.loss)];
        row.extend(figures.into_iter().map(figure));
        table.row(row);
    }
    table.write(out)
}

/// Titles of the columns for samples: a sample without a label that counts has nothing but its loss.
fn titles(found: &EvaluateResult) -> Vec<String> {
    let all = found.samples.iter().map(|sample| figures(sample).0);
    all.max_by_key(Vec::len).unwrap_or_default()
}

/// The columns for a sample beside its loss, with their titles: accuracy and the Dice of each class, or the absolute error
/// of each target, physical with its unit where its range is known.
fn figures(sample: &SampleResult) -> (Vec<String>, Vec<Option<f64>>) {
    let Some(found) = &sample.classification else {
        let each = sample.errors.iter().map(|error| {
            let (value, unit) = match &error.physical {
                Some(physical) => (physical.mean_absolute, physical.unit.as_deref()),
                None => (error.mean_absolute, None),
            };
            let unit = unit.map_or_else(String::new, |unit| format!(" ({unit})"));
            (format!("error {}{unit}", error.target), Some(value))
        });
        return each.unzip();
    };
    let accuracy = ("accuracy".to_owned(), Some(found.accuracy));
    let classes = found.classes.iter();
    let dice = classes.map(|class| (format!("Dice {}", class.class), class.dice));
    std::iter::once(accuracy).chain(dice).unzip()
}

/// How each table of [`samples_csv`] begins.
const SAMPLES_CSV_HEAD: &str = "name,sample,loss";

/// Whether a first line is that of a table of [`samples_csv`], of any samples.
pub fn is_samples_csv(line: &str) -> bool {
    let Some(titles) = line.strip_prefix(SAMPLES_CSV_HEAD) else {
        return false;
    };
    // A quoted title may have commas, and begins as the others.
    let mut titles = titles.split(',');
    let is_known = |title: &str| {
        let title = title.trim_start_matches('"');
        title == "accuracy" || title.starts_with("Dice ") || title.starts_with("error ")
    };
    titles.next() == Some("") && (line.contains('"') || titles.all(is_known))
}

/// Loss and metrics of each sample as comma-separated values; a class that a sample does not have has none.
///
/// Source: RFC 4180.
pub fn samples_csv(found: &EvaluateResult) -> String {
    let quoted = |text: &str| {
        if text.contains(['"', ',', '\n', '\r']) {
            format!("\"{}\"", text.replace('"', "\"\""))
        } else {
            text.to_owned()
        }
    };
    let titles = titles(found);
    let quotes = titles.iter().map(|title| format!(",{}", quoted(title)));
    let mut text = SAMPLES_CSV_HEAD.to_owned() + &quotes.collect::<String>() + "\n";
    for sample in &found.samples {
        let mut row = vec![
            quoted(&sample.name),
            sample.sample.to_string(),
            sample.loss.to_string(),
        ];
        let (_, mut figures) = figures(sample);
        figures.resize(titles.len(), None);
        let figure = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
        row.extend(figures.into_iter().map(figure));
        text += &(row.join(",") + "\n");
    }
    text
}

/// Writes what was predicted, and where it is.
pub fn infer(found: &InferResult, out: &mut dyn Write) -> io::Result<()> {
    let shape = shape_text(found);
    let files = match found.files.last().filter(|last| **last != found.file) {
        Some(last) => format!("{} to {last}", found.file),
        None => found.file.clone(),
    };
    let mut pairs = vec![
        ("program", found.program.clone()),
        ("weights", found.weights.clone()),
        (
            "samples",
            samples(found.samples, &found.data, (found.split, found.volumes)),
        ),
        (
            "throughput",
            format!("{:.1} samples/s", found.samples_per_second),
        ),
        (
            "memory",
            format!("{} in the largest rank", found.memory_bytes_max),
        ),
        (found.output, format!("{files} ({shape})")),
    ];
    if !found.physical.is_empty() {
        pairs.push(("physical", found.physical.join(", ")));
    }
    insert_tiles(&mut pairs, found.tiles.as_ref());
    insert_mirrored(&mut pairs, &found.mirrored);
    write_pairs(out, &pairs)
}

/// Extents of what was written, as ranges where those of samples differ.
fn shape_text(found: &InferResult) -> String {
    let dims = found.shape.len();
    let text = |dim: usize| {
        let extents = found.extents.iter().flatten();
        let along = extents.filter_map(|extent| extent.get((dim + 3).checked_sub(dims)?));
        // A dim that the model lacks is 1 in all samples.
        match (along.clone().min(), along.max()) {
            (Some(least), Some(most)) if least < most => format!("{least} to {most}"),
            (Some(_), Some(most)) if *most > 1 => most.to_string(),
            _ => found.shape[dim].to_string(),
        }
    };
    (0..dims).map(text).collect::<Vec<_>>().join(" x ")
}

/// Says how volumes were joined, after the samples.
fn insert_tiles(pairs: &mut Vec<(&str, String)>, tiles: Option<&TilesResult>) {
    let Some(tiles) = tiles else { return };
    let [d, h, w] = tiles.extent;
    let because = tiles.because.as_ref().map_or_else(String::new, |because| {
        format!("; {because}, which `--volumes whole` would change")
    });
    let (overlap, weights) = (tiles.overlap, tiles.weights);
    let text = format!("{d}x{h}x{w}, overlap {overlap}, {weights} weights{because}");
    pairs.insert(3, ("tiles", text));
}

/// Says along which dims samples are mirrored, after the samples.
fn insert_mirrored(pairs: &mut Vec<(&str, String)>, mirrored: &[&str]) {
    if mirrored.is_empty() {
        return;
    }
    let text = format!(
        "{}: means over {} outputs",
        mirrored.join(", "),
        1 << mirrored.len()
    );
    pairs.insert(3, ("mirrored", text));
}

/// How many samples of which split, and what they are of its volumes.
fn samples(count: usize, data: &str, (split, volumes): (&str, &str)) -> String {
    let what = match volumes {
        "tiles" => ", joined of tiles",
        "crops" => ", crops",
        _ => "",
    };
    format!("{count} of {data} ({split}{what})")
}

/// Writes which weights were converted, and where they are.
pub fn weights(converted: &ConvertResult, out: &mut dyn Write) -> io::Result<()> {
    let mut pairs = vec![
        ("model", converted.model.clone()),
        ("source", converted.source.clone()),
        ("file", converted.file.clone()),
        ("tensors", converted.tensors.to_string()),
    ];
    pairs.extend(converted.taken.iter().map(|taken| ("taken", taken.clone())));
    pairs.extend(converted.assumed_axes.map(|axes| {
        let nibabel = "for a network that was trained on arrays of NiBabel (x, y, z): `--axes WHD`";
        ("axes", format!("{axes}; {nibabel}"))
    }));
    write_pairs(out, &pairs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita::{ClassResult, PhysicalError, TargetError};
    use partita_space::Seconds;

    #[test]
    fn a_loss_over_nothing_says_so() {
        let of = |share: f64| ValidationResult {
            loss: 0.0,
            samples: 2,
            seconds: Seconds(1.0),
            errors: Vec::new(),
            classification: Some(Classification {
                accuracy: 0.0,
                largest_share: share,
                mean_dice: None,
                mean_overlap: None,
                sample_dice: None,
                classes: vec![ClassResult {
                    class: "lesion".to_owned(),
                    share,
                    dice: None,
                    overlap: None,
                }],
            }),
        };
        assert_eq!(loss(&of(1.0)), "0.000000");
        assert!(loss(&of(0.0)).contains("no label of the split counts"));
    }

    #[test]
    fn errors_of_a_sample_are_physical_where_that_is_known() {
        let error = |target: &str, physical| TargetError {
            target: target.to_owned(),
            mean_absolute: 0.5,
            rms: 0.5,
            physical,
        };
        let age = PhysicalError {
            mean_absolute: 25.0,
            rms: 25.0,
            unit: Some("years".to_owned()),
        };
        let sample = SampleResult {
            name: "case7".to_owned(),
            sample: 0,
            loss: 0.25,
            errors: vec![error("age", Some(age)), error("mass", None)],
            classification: None,
        };
        let (titles, values) = figures(&sample);
        assert_eq!(titles, ["error age (years)", "error mass"]);
        assert_eq!(values, [Some(25.0), Some(0.5)]);
    }
}
