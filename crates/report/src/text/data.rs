//! Text of a dataset.

use crate::table::{Side, Table, write_pairs};
use partita_data::{ArraySummary, DatasetSummary, Kind, StorageSummary};
use std::io::{self, Write};

/// Writes a summary of a dataset.
pub fn dataset(summary: &DatasetSummary, out: &mut dyn Write) -> io::Result<()> {
    write_head(summary, out)?;
    writeln!(out)?;
    write_splits(summary, out)?;
    let first = summary.splits.iter().find(|split| split.samples > 0);
    if let Some(split) = first {
        writeln!(out)?;
        write_arrays(&split.arrays, out)?;
    }
    Ok(())
}

fn write_head(summary: &DatasetSummary, out: &mut dyn Write) -> io::Result<()> {
    let [depth, height, width] = summary.extent;
    let kind = match summary.kind {
        Some(Kind::Cosmology) => "cosmology",
        Some(Kind::Segmentation) => "segmentation",
        Some(Kind::Shapes) => "shapes",
        Some(Kind::Digits) => "digits",
        Some(Kind::Other) => "other",
        None => "not said",
    };
    write_pairs(
        out,
        &[
            ("dataset", summary.path.display().to_string()),
            ("kind", kind.to_owned()),
            (
                "sample",
                format!(
                    "{depth}x{height}x{width} with {} channels, {}, {}",
                    summary.channels,
                    summary.dtype.name(),
                    summary.sample_bytes
                ),
            ),
            answers(summary),
        ],
    )?;
    for (key, value) in &summary.spec {
        writeln!(out, "  {key} = {value}")?;
    }
    Ok(())
}

/// The targets of a sample: numbers or classes.
fn answers(summary: &DatasetSummary) -> (&'static str, String) {
    /// Most classes whose names are all shown.
    const NAMED_MAX: usize = 20;
    let Some(extent) = summary.labels else {
        return ("targets", summary.targets.join(", "));
    };
    let of = if extent == [1; 3] {
        "one per sample"
    } else {
        "one per position"
    };
    let names = match summary.targets.len() {
        0 => "classes without names".to_owned(),
        count if count <= NAMED_MAX => summary.targets.join(", "),
        count => format!("{count} from {} on", summary.targets[0]),
    };
    ("classes", format!("{names}; {of}"))
}

fn write_splits(summary: &DatasetSummary, out: &mut dyn Write) -> io::Result<()> {
    let mut table = Table::new(&[
        ("split", Side::Left),
        ("samples", Side::Right),
        ("universes", Side::Right),
        ("files", Side::Right),
        ("on disk", Side::Right),
        ("min", Side::Right),
        ("mean", Side::Right),
        ("max", Side::Right),
    ]);
    for split in &summary.splits {
        let [min, mean, max] = match &split.values {
            Some(values) => {
                [values.min, values.mean, values.max].map(|value| format!("{value:.3}"))
            }
            None => ["-", "-", "-"].map(str::to_owned),
        };
        table.row(vec![
            split.split.to_string(),
            split.samples.to_string(),
            split.universes.to_string(),
            split.files.to_string(),
            split.file_bytes.to_string(),
            min,
            mean,
            max,
        ]);
    }
    table.write(out)
}

fn write_arrays(arrays: &[ArraySummary], out: &mut dyn Write) -> io::Result<()> {
    let mut table = Table::new(&[
        ("array", Side::Left),
        ("shape", Side::Left),
        ("type", Side::Left),
        ("storage", Side::Left),
    ]);
    for array in arrays {
        let storage = match &array.storage {
            StorageSummary::Contiguous => "contiguous".to_owned(),
            StorageSummary::Chunked { chunk, filters } => {
                format!("chunks of {chunk:?} {}", filters.join(" "))
            }
            StorageSummary::Compact => "compact".to_owned(),
            StorageSummary::Virtual => "virtual".to_owned(),
            StorageSummary::Stream { filter } => format!("{filter} from end to end"),
        };
        table.row(vec![
            array.key.clone(),
            format!("{:?}", array.shape),
            array.dtype.clone(),
            storage,
        ]);
    }
    table.write(out)
}
