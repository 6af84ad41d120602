//! Text of a dataset.

use crate::table::{Side, Table, write_pairs};
use partita_data::{
    ArraySummary, ClassSummary, DatasetSummary, FileSummary, Inspected, Kind, SplitSummary,
    StorageLayout, ValueStatistics, WrittenFeatures,
};
use std::io::{self, Write};

/// Channels and classes that are shown; JSON has all.
const ROWS_MAX: usize = 20;
/// Names of samples that are shown of a split.
const NAMES_SHOWN_MAX: usize = 8;

/// Writes a summary of a dataset or of a file of arrays.
pub fn inspected(found: &Inspected, out: &mut dyn Write) -> io::Result<()> {
    match found {
        Inspected::Dataset(summary) => dataset(summary, out),
        Inspected::File(summary) => file(summary, out),
    }
}

/// Says which features samples were given.
pub fn features(written: &WrittenFeatures, out: &mut dyn Write) -> io::Result<()> {
    let (names, samples) = (written.names.join(", "), written.samples);
    writeln!(out, "{samples} samples have the features {names}")?;
    if written.unused > 0 {
        writeln!(out, "{} rows of the table are of no sample", written.unused)?;
    }
    Ok(())
}

fn file(summary: &FileSummary, out: &mut dyn Write) -> io::Result<()> {
    write_pairs(
        out,
        &[
            ("file", summary.path.display().to_string()),
            ("on disk", summary.file_bytes.to_string()),
            ("no dataset", summary.no_dataset.clone()),
        ],
    )?;
    writeln!(out)?;
    let arrays: Vec<ArraySummary> = summary.arrays.iter().map(|one| one.array.clone()).collect();
    write_arrays(&arrays, out)?;
    let mut table = statistics_table(&["array", "channel"]);
    let mut rows = 0;
    for array in &summary.arrays {
        let key = &array.array.key;
        let Some(values) = &array.values else {
            continue;
        };
        table.row(statistics_row(&[key, "all"], values));
        rows += 1;
        for (channel, values) in array.channels.iter().enumerate().take(ROWS_MAX) {
            table.row(statistics_row(&[key, &channel.to_string()], values));
        }
    }
    if rows > 0 {
        writeln!(out)?;
        table.write(out)?;
    }
    Ok(())
}

/// Writes a summary of a dataset.
pub fn dataset(summary: &DatasetSummary, out: &mut dyn Write) -> io::Result<()> {
    write_head(summary, out)?;
    writeln!(out)?;
    write_splits(summary, out)?;
    write_names(summary, out)?;
    write_channels(summary, out)?;
    write_classes(summary, out)?;
    let first = summary.splits.iter().find(|split| split.samples > 0);
    if let Some(split) = first {
        writeln!(out)?;
        write_arrays(&split.arrays, out)?;
    }
    for warning in &summary.warnings {
        writeln!(out, "\nwarning: {warning}")?;
    }
    Ok(())
}

fn write_head(summary: &DatasetSummary, out: &mut dyn Write) -> io::Result<()> {
    let text = |[depth, height, width]: [usize; 3]| format!("{depth}x{height}x{width}");
    let largest = text(summary.extent);
    let extents = summary.smallest_extent.map_or(largest.clone(), |smallest| {
        format!("from {} to {largest}", text(smallest))
    });
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
                    "{extents} with {} channels, {}, {}{}",
                    summary.channels,
                    summary.dtype.name(),
                    if summary.smallest_extent.is_some() {
                        "at most "
                    } else {
                        ""
                    },
                    summary.sample_bytes
                ),
            ),
            answers(summary),
        ],
    )?;
    if !summary.features.is_empty() {
        write_pairs(out, &[("features", summary.features.join(", "))])?;
    }
    for (key, value) in &summary.spec {
        writeln!(out, "  {key} = {}", shortened(&value.to_string()))?;
    }
    Ok(())
}

/// The beginning of a text that is too long for a line.
fn shortened(text: &str) -> String {
    /// Most characters that are shown.
    const SHOWN_MAX: usize = 100;
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{} ...", &text[..end]),
        None => text.to_owned(),
    }
}

/// The targets of a sample: numbers or classes.
fn answers(summary: &DatasetSummary) -> (&'static str, String) {
    /// Most classes whose names are all shown.
    const NAMED_MAX: usize = 20;
    let Some(extent) = summary.labels else {
        let names = match summary.targets.as_slice() {
            [] => "none; samples alone, for `partita infer`".to_owned(),
            names => names.join(", "),
        };
        return ("targets", names);
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

/// Names of the first samples of each split, where the index gives them.
fn write_names(summary: &DatasetSummary, out: &mut dyn Write) -> io::Result<()> {
    let named = summary
        .splits
        .iter()
        .filter(|split| !split.names.is_empty());
    let mut table = Table::new(&[("split", Side::Left), ("names", Side::Left)]);
    for split in named.clone() {
        let mut names = split.names[..split.names.len().min(NAMES_SHOWN_MAX)].join(", ");
        if split.names.len() > NAMES_SHOWN_MAX {
            names += &format!(", ... {}", split.names[split.names.len() - 1]);
        }
        table.row(vec![split.split.to_string(), names]);
    }
    if named.count() == 0 {
        return Ok(());
    }
    writeln!(out)?;
    table.write(out)
}

fn statistics_table(columns: &[&str]) -> Table {
    let names = columns.iter().map(|&name| (name, Side::Left));
    let numbers = ["min", "mean", "max", "deviation", "NaN", "infinite"];
    let numbers = numbers.map(|name| (name, Side::Right));
    Table::new(&names.chain(numbers).collect::<Vec<_>>())
}

fn statistics_row(names: &[&str], values: &ValueStatistics) -> Vec<String> {
    let names = names.iter().map(|&name| name.to_owned());
    let numbers = [
        values.min,
        values.mean,
        values.max,
        values.standard_deviation,
    ];
    let has_finite = values.nan + values.infinite < values.elements;
    let number = |value: f64| {
        if has_finite {
            decimal(value)
        } else {
            "-".to_owned()
        }
    };
    let counts = [values.nan, values.infinite].map(|count| count.to_string());
    names.chain(numbers.map(number)).chain(counts).collect()
}

/// Three decimals, or scientific notation where these say too little or too much.
fn decimal(value: f64) -> String {
    if value != 0.0 && !(1e-2..1e9).contains(&value.abs()) {
        format!("{value:.3e}")
    } else {
        format!("{value:.3}")
    }
}

/// Statistics of each channel, where the table of splits does not say all.
fn write_channels(summary: &DatasetSummary, out: &mut dyn Write) -> io::Result<()> {
    let mut table = statistics_table(&["split", "channel"]);
    let mut rows = 0;
    for split in &summary.splits {
        let channels = split.values.iter().flat_map(|values| &values.channels);
        for (channel, values) in channels.enumerate().take(ROWS_MAX) {
            let name = split.split.to_string();
            table.row(statistics_row(&[&name, &channel.to_string()], values));
            rows += 1;
        }
    }
    if rows > 0 {
        writeln!(out)?;
        table.write(out)?;
    }
    Ok(())
}

/// A number of class indices.
type Count = fn(&ClassSummary) -> u64;

/// How often each class occurs in each split.
fn write_classes(summary: &DatasetSummary, out: &mut dyn Write) -> io::Result<()> {
    let splits: Vec<&SplitSummary> = summary.splits.iter().collect();
    let counted = splits.iter().filter_map(|split| split.classes.as_ref());
    let Some(classes) = counted.clone().map(|found| found.counts.len()).max() else {
        return Ok(());
    };
    let mut columns = vec![("class", Side::Right), ("name", Side::Left)];
    let names: Vec<String> = splits.iter().map(|one| one.split.to_string()).collect();
    columns.extend(names.iter().map(|name| (name.as_str(), Side::Right)));
    let mut table = Table::new(&columns);
    for class in 0..classes.min(ROWS_MAX) {
        let name = summary.targets.get(class).cloned().unwrap_or_default();
        let mut row = vec![class.to_string(), name];
        row.extend(splits.iter().map(|split| match &split.classes {
            Some(found) => found.counts.get(class).unwrap_or(&0).to_string(),
            None => "-".to_owned(),
        }));
        table.row(row);
    }
    let others: [(&str, Count); 2] = [
        ("ignored", |found| found.ignored),
        ("invalid", |found| found.invalid),
    ];
    for (name, count) in others {
        if counted.clone().map(count).sum::<u64>() > 0 {
            let mut row = vec!["-".to_owned(), name.to_owned()];
            row.extend(splits.iter().map(|split| match &split.classes {
                Some(found) => count(found).to_string(),
                None => "-".to_owned(),
            }));
            table.row(row);
        }
    }
    writeln!(out)?;
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
            StorageLayout::Contiguous => "contiguous".to_owned(),
            StorageLayout::Chunked { chunk, filters } => {
                format!("chunks of {chunk:?} {}", filters.join(" "))
            }
            StorageLayout::Compact => "compact".to_owned(),
            StorageLayout::Virtual => "virtual".to_owned(),
            StorageLayout::Stream { filter } => format!("{filter} from end to end"),
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
