use crate::args::{CosmologyArgs, DataInspectArgs};
use crate::error::CliError;
use crate::interrupt;
use crate::table::{Side, Table, write_json, write_pairs};
use indicatif::{ProgressBar, ProgressStyle};
use partita_data::{
    ArraySummary, DType, DataError, DatasetSpec, DatasetSummary, DatasetWriter, Kind, Layout,
    Samples, Split, StorageSummary,
};
use partita_synth::{CHANNELS, CosmologySpec, ParameterRange, SynthError, Universe, make_universe};
use std::collections::BTreeMap;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// Names of the parameters of a universe, in the order of the published targets.
const TARGETS: [&str; 4] = ["Omega_m", "sigma_8", "n_s", "H_0"];

/// Universes that a thread makes before what was made is written.
const PER_WAVE: usize = 4;

/// Makes a dataset of universes.
///
/// On Ctrl-C the writer is dropped, which removes what was written.
pub fn make_cosmology(args: &CosmologyArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let mut spec = CosmologySpec {
        seed: args.seed,
        ..CosmologySpec::small(args.grid)
    };
    for (range, spread) in [
        (&mut spec.ranges.n_s, args.n_s_spread),
        (&mut spec.ranges.h_0, args.h_0_spread),
    ] {
        *range = ParameterRange::around(range.center, spread);
    }
    spec.validate().map_err(|error| CliError::user(&error))?;
    let splits = splits(args)?;
    interrupt::listen()?;
    let dataset = dataset_spec(args, &spec, &splits);
    let mut writer = DatasetWriter::create(&args.out, &dataset).map_err(data_error)?;
    let threads = args
        .threads
        .or_else(|| thread::available_parallelism().ok().map(NonZeroUsize::get))
        .unwrap_or(1);
    let bar = progress_bar(args.universes);
    let samples: Vec<(Split, u64)> = Split::ALL
        .into_iter()
        .zip(&splits)
        .flat_map(|(split, universes)| universes.iter().map(move |&universe| (split, universe)))
        .collect();
    for wave in samples.chunks(threads * PER_WAVE) {
        let made = make_wave(&spec, wave, threads);
        if interrupt::asked() {
            bar.abandon();
            return Err(CliError::Interrupted(format!(
                "nothing is left at {}",
                args.out.display()
            )));
        }
        for (&(split, _), universe) in wave.iter().zip(made?) {
            let counts = Samples::I16(universe.counts);
            writer
                .append(
                    split,
                    &counts,
                    &universe.unit_parameters,
                    &universe.physical_parameters,
                )
                .map_err(data_error)?;
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    writer.finish().map_err(data_error)?;
    write_summary(&args.out, out)
}

/// Universes of train, validation and test; numbered through, so that no two splits share one.
fn splits(args: &CosmologyArgs) -> Result<[Vec<u64>; 3], CliError> {
    let of = |share: f64| (share * args.universes as f64).round() as usize;
    let (validation, test) = (of(args.validation), of(args.test));
    let Some(train @ 1..) = args.universes.checked_sub(validation + test) else {
        return Err(CliError::User(format!(
            "of {} universes {validation} are for validation and {test} for the test, which leaves \
             none to train on; possible are shares whose sum is less than 1, nearest is \
             `--validation 0 --test 0`",
            args.universes
        )));
    };
    let bounds = [0, train, train + validation, args.universes].map(|bound| bound as u64);
    Ok([0, 1, 2].map(|split| (bounds[split]..bounds[split + 1]).collect()))
}

fn dataset_spec(args: &CosmologyArgs, spec: &CosmologySpec, splits: &[Vec<u64>; 3]) -> DatasetSpec {
    let [train, validation, test] = splits.clone();
    let mut asked = toml::Table::new();
    asked.insert("maker".to_owned(), "partita data cosmology".into());
    asked.insert("universes".to_owned(), integer(args.universes as u64));
    asked.insert("grid".to_owned(), integer(spec.grid as u64));
    asked.insert("seed".to_owned(), integer(spec.seed));
    asked.insert("box_mpc_h".to_owned(), spec.box_mpc_h.into());
    asked.insert(
        "particles_per_dim".to_owned(),
        integer(spec.particles_per_dim as u64),
    );
    asked.insert("redshifts".to_owned(), spec.redshifts.to_vec().into());
    let ranges = &spec.ranges;
    let ranges = [ranges.omega_m, ranges.sigma_8, ranges.n_s, ranges.h_0];
    for (name, range) in TARGETS.iter().zip(ranges) {
        let bounds = [
            range.center - range.half_width,
            range.center + range.half_width,
        ];
        asked.insert(format!("{name}_range"), bounds.to_vec().into());
    }
    DatasetSpec {
        kind: Kind::Cosmology,
        shape: [CHANNELS, spec.grid, spec.grid, spec.grid],
        dtype: DType::Int16,
        targets: TARGETS.map(str::to_owned).to_vec(),
        layout: Layout::Contiguous,
        train,
        validation,
        test,
        spec: asked,
    }
}

/// TOML has no integers above 2^63; such a seed is written as text.
fn integer(number: u64) -> toml::Value {
    match i64::try_from(number) {
        Ok(number) => number.into(),
        Err(_) => number.to_string().into(),
    }
}

fn progress_bar(universes: usize) -> ProgressBar {
    let bar = ProgressBar::new(universes as u64);
    let template = "{bar:32} {pos}/{len} universes, {per_sec}, {eta} left";
    // The template is fixed; were it faulty, the bar's own would do.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// The universes of a wave, in its order whoever makes them. On a request to stop returns at once with
/// none: the threads are left to themselves, and end with the process.
fn make_wave(
    spec: &CosmologySpec,
    wave: &[(Split, u64)],
    threads: usize,
) -> Result<Vec<Universe>, CliError> {
    let (sender, receiver) = mpsc::channel();
    for (share, part) in wave.chunks(wave.len().div_ceil(threads)).enumerate() {
        let (spec, sender) = (*spec, sender.clone());
        let universes: Vec<u64> = part.iter().map(|&(_, universe)| universe).collect();
        thread::spawn(move || {
            let made: Result<Vec<Universe>, SynthError> = universes
                .into_iter()
                .map(|universe| make_universe(&spec, universe))
                .collect();
            // Nobody listens any more once a stop was asked for.
            let _ = sender.send((share, made));
        });
    }
    drop(sender);
    let mut parts = BTreeMap::new();
    loop {
        match receiver.recv_timeout(Duration::from_millis(100)) {
            Ok((share, made)) => {
                parts.insert(share, made.map_err(|error| CliError::run(&error))?);
            }
            Err(RecvTimeoutError::Timeout) if interrupt::asked() => return Ok(Vec::new()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let universes: Vec<Universe> = parts.into_values().flatten().collect();
    if universes.len() < wave.len() {
        return Err(CliError::Run(
            "a thread that made universes died".to_owned(),
        ));
    }
    Ok(universes)
}

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
            ("targets", summary.targets.join(", ")),
        ],
    )?;
    for (key, value) in &summary.spec {
        writeln!(out, "  {key} = {value}")?;
    }
    Ok(())
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
        | DataError::Incomplete { .. }
        | DataError::BadIndex { .. }
        | DataError::Occupied { .. }
        | DataError::BadValue { .. }
        | DataError::BadWeights { .. } => CliError::user(&error),
    }
}
