//! `partita data`: makes datasets, and shows what they hold.

mod cosmology;
mod digits;
mod labeled;
mod making;

use crate::args::DataInspectArgs;
use crate::error::CliError;
use crate::table::{Side, Table, write_json, write_pairs};
pub use cosmology::make_cosmology;
pub use digits::make_digits;
pub use labeled::{make_segmentation, make_shapes};
use partita_data::{ArraySummary, DataError, DatasetSummary, Kind, StorageSummary};
use std::io::Write;
use std::path::Path;

/// Shows what a dataset holds.
pub fn inspect(args: &DataInspectArgs, out: &mut dyn Write) -> Result<(), CliError> {
    if !args.json {
        return write_summary(&args.path, out);
    }
    let summary = partita_data::inspect(&args.path).map_err(data_error)?;
    write_json(out, &summary)
}

fn write_summary(path: &Path, out: &mut dyn Write) -> Result<(), CliError> {
    let summary = partita_data::inspect(path).map_err(data_error)?;
    write_head(&summary, out)?;
    writeln!(out)?;
    write_splits(&summary, out)?;
    let first = summary.splits.iter().find(|split| split.samples > 0);
    if let Some(split) = first {
        writeln!(out)?;
        write_arrays(&split.arrays, out)?;
    }
    Ok(())
}

fn write_head(summary: &DatasetSummary, out: &mut dyn Write) -> Result<(), CliError> {
    let [depth, height, width] = summary.extent;
    let kind = match summary.kind {
        Some(Kind::Cosmology) => "cosmology",
        Some(Kind::Segmentation) => "segmentation",
        Some(Kind::Shapes) => "shapes",
        Some(Kind::Digits) => "digits",
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

/// What a sample is answered with: numbers, or classes.
fn answers(summary: &DatasetSummary) -> (&'static str, String) {
    /// Classes whose names are all shown.
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

fn write_splits(summary: &DatasetSummary, out: &mut dyn Write) -> Result<(), CliError> {
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

fn write_arrays(arrays: &[ArraySummary], out: &mut dyn Write) -> Result<(), CliError> {
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

/// What cannot be written now may be the disk's fault; all else is in what was asked for.
fn data_error(error: DataError) -> CliError {
    match &error {
        DataError::Unwritable { .. } => CliError::run(&error),
        DataError::Missing { .. }
        | DataError::Unopenable { .. }
        | DataError::NotHdf5 { .. }
        | DataError::MissingKey { .. }
        | DataError::WrongRank { .. }
        | DataError::WrongShape { .. }
        | DataError::WrongDtype { .. }
        | DataError::SampleOutOfRange { .. }
        | DataError::RegionOutOfRange { .. }
        | DataError::Unreadable { .. }
        | DataError::NoClass(_)
        | DataError::Untrainable { .. }
        | DataError::Incomplete { .. }
        | DataError::BadIndex { .. }
        | DataError::Occupied { .. }
        | DataError::BadValue { .. }
        | DataError::BadWeights { .. } => CliError::user(&error),
    }
}
