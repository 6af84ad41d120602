//! Text of what is done with trained weights.

use super::train::{write_classes, write_errors};
use crate::table::write_pairs;
use partita::{ConvertResult, EvaluateResult, InferResult};
use std::io::{self, Write};

/// Writes loss and metrics of an evaluation.
pub fn evaluate(found: &EvaluateResult, out: &mut dyn Write) -> io::Result<()> {
    let metrics = &found.metrics;
    write_pairs(
        out,
        &[
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
            ("loss", format!("{:.6}", metrics.loss)),
        ],
    )?;
    writeln!(out)?;
    match &metrics.classification {
        Some(classification) => write_classes(classification, found.split, out),
        None => write_errors(&metrics.errors, found.split, out),
    }
}

/// Writes what was predicted, and where it is.
pub fn infer(found: &InferResult, out: &mut dyn Write) -> io::Result<()> {
    let shape: Vec<String> = found.shape.iter().map(usize::to_string).collect();
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
        (found.output, format!("{} ({})", files, shape.join(" x "))),
    ];
    if !found.physical.is_empty() {
        pairs.push(("physical", found.physical.join(", ")));
    }
    write_pairs(out, &pairs)
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
    write_pairs(
        out,
        &[
            ("model", converted.model.clone()),
            ("source", converted.source.clone()),
            ("file", converted.file.clone()),
            ("tensors", converted.tensors.to_string()),
        ],
    )
}
