//! Targets that read files: runs, machines, caches of times, datasets, weights.

use super::{put, text, verb};
use partita_data::{Dataset, INDEX_FILE, Split};
use partita_formats::{Samples, VolumeShape};
use partita_oracle::fit_line;
use partita_tune::{Database, LinkTimes, Measurements, TransferTime};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Most elements of a sample that is read: a small file may state any number.
const ELEMENTS_MAX: usize = 1 << 20;
/// Samples of a split that are read.
const SAMPLES_MAX: usize = 8;

/// A run file.
pub(super) fn run_file(bytes: &[u8], _: &Path) -> Result<(), String> {
    partita_cli::check_run_file(text(bytes)?).map_err(|refusal| {
        assert_eq!(refusal.code, 2, "{}", refusal.text);
        refusal.text
    })
}

/// A machine file, with which a small training is predicted.
pub(super) fn machine(bytes: &[u8], folder: &Path) -> Result<(), String> {
    let machine = put(&folder.join("input.toml"), bytes);
    let model = folder.join("net.model").display().to_string();
    let split = ["--ranks", "2", "--batch", "2", "--strategy", "depth=2"];
    let words = [&["predict", &model, "--machine", &machine][..], &split].concat();
    // Not every machine has an input rate, and explanations need several simulations.
    let more: &[&str] = match bytes.len() % 3 {
        0 => &["--json"],
        1 => &["--no-io", "--json"],
        _ => &["--no-io", "--explain"],
    };
    verb(&[&words, more].concat()).map(drop)
}

/// Writes the files of a dataset whose index is the input.
pub(super) fn write_dataset(folder: &Path) -> io::Result<()> {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/tests/fixtures/universes");
    for name in ["u0.h5", "u1.h5", "u2.h5"] {
        fs::write(folder.join(name), fs::read(from.join(name))?)?;
    }
    Ok(())
}

/// The index of a dataset.
pub(super) fn dataset(bytes: &[u8], folder: &Path) -> Result<(), String> {
    put(&folder.join(INDEX_FILE), bytes);
    read_all(folder)
}

/// A dataset of one HDF5 file.
pub(super) fn hdf5(bytes: &[u8], folder: &Path) -> Result<(), String> {
    let path = folder.join("input.h5");
    put(&path, bytes);
    read_all(&path)
}

/// Reads a whole dataset, as an inspection and as a training do.
fn read_all(path: &Path) -> Result<(), String> {
    let shown = path.display().to_string();
    verb(&["data", "inspect", &shown, "--json"])?;
    let dataset = Dataset::open(path).map_err(|error| error.to_string())?;
    let shape = dataset.shape();
    let elements = shape
        .iter()
        .try_fold(1usize, |product, &extent| product.checked_mul(extent));
    if elements.is_none_or(|elements| elements > ELEMENTS_MAX) {
        return Err("more elements than are read here".to_owned());
    }
    for split in Split::ALL {
        read_split(&dataset, split, shape, true)?;
    }
    Ok(())
}

/// Reads the samples of a split whole and in part, with their answers if they have some.
pub(super) fn read_split(
    dataset: &Dataset,
    split: Split,
    shape: VolumeShape,
    has_answers: bool,
) -> Result<(), String> {
    let mut reader = dataset.reader(split);
    let mut out = Samples::new(dataset.dtype());
    let [channels, depth, height, width] = shape;
    for sample in 0..reader.samples().min(SAMPLES_MAX) {
        let whole = [0..channels, 0..depth, 0..height, 0..width];
        let part = [
            0..channels,
            depth / 2..depth,
            height / 2..height,
            0..width.div_ceil(2),
        ];
        for region in [whole, part] {
            let read = reader.read_volume(sample, region, &mut out);
            read.map_err(|error| error.to_string())?;
        }
        if !has_answers {
            continue;
        }
        match dataset.labels() {
            None => drop(
                reader
                    .read_target(sample)
                    .map_err(|error| error.to_string())?,
            ),
            Some([d, h, w]) => {
                let region = [0..1, 0..d, 0..h, 0..w];
                let read = reader.read_labels(sample, region, &mut out);
                read.map_err(|error| error.to_string())?;
            }
        }
        reader
            .read_physical(sample)
            .map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// A file of weights: read, written and read again.
pub(super) fn safetensors(bytes: &[u8], folder: &Path) -> Result<(), String> {
    let path = folder.join("input.safetensors");
    put(&path, bytes);
    let read = partita_weights::load(&path).map_err(|error| error.to_string())?;
    let copy = folder.join("copy.safetensors");
    if let Err(error) = partita_weights::save(&copy, &read) {
        panic!("what was read cannot be written: {error}");
    }
    let again = partita_weights::load(&copy);
    let is_same = again.as_ref().is_ok_and(|again| {
        again.metadata == read.metadata
            && again.tensors.keys().eq(read.tensors.keys())
            && again
                .tensors
                .values()
                .zip(read.tensors.values())
                .all(|(a, b)| {
                    // Compared as texts, because NaN is not equal to itself.
                    format!("{a:?}") == format!("{b:?}")
                })
    });
    assert!(is_same, "what is written reads as something else");
    Ok(())
}

/// Makes the folder of the measurements.
pub(super) fn make_cache(folder: &Path) -> io::Result<()> {
    fs::create_dir(folder.join("cache"))
}

/// The database of measurements: read, fitted as a prediction does, written and read again.
pub(super) fn cache(bytes: &[u8], folder: &Path) -> Result<(), String> {
    let folder = emptied_cache(folder);
    let path = folder.join("kernels.sqlite");
    put(&path, bytes);
    read_and_keep(&path)
}

/// A file that is no database is renamed and kept: each input has the folder for itself.
fn emptied_cache(folder: &Path) -> PathBuf {
    let folder = folder.join("cache");
    if let Err(error) = fs::remove_dir_all(&folder).and_then(|()| fs::create_dir(&folder)) {
        panic!("{} cannot be emptied: {error}", folder.display());
    }
    folder
}

fn read_and_keep(path: &Path) -> Result<(), String> {
    let mut database = opened(path)?;
    let settings = database.settings();
    first_warning(&mut database)?;
    for setting in settings.iter().take(8) {
        let measured = database.measurements(setting);
        // Texts that are not UTF-8 are found when they are read.
        first_warning(&mut database)?;
        fit(&measured);
        database.keep(setting, &measured);
        if let Err(warning) = first_warning(&mut database) {
            panic!("what was read cannot be kept: {warning}");
        }
        let again = opened(path).map(|mut again| again.measurements(setting));
        let wanted = database.measurements(setting);
        assert_eq!(again, Ok(wanted), "what was kept reads as something else");
    }
    Ok(())
}

/// The database of a file; its warnings are the errors of the file.
fn opened(path: &Path) -> Result<Database, String> {
    let mut database = Database::open(path);
    first_warning(&mut database)?;
    Ok(database)
}

fn first_warning(database: &mut Database) -> Result<(), String> {
    match database.take_warnings().first() {
        Some(warning) => Err(warning.to_string()),
        None => Ok(()),
    }
}

/// Fits all points. An error is fine.
fn fit(measured: &Measurements) {
    let line = |points: &Vec<TransferTime>| {
        let points: Vec<_> = points
            .iter()
            .map(|point| (point.bytes, point.seconds))
            .collect();
        drop(fit_line(&points));
    };
    measured.loads.values().for_each(line);
    let links: Option<&LinkTimes> = measured.links.as_ref();
    if let Some(links) = links {
        line(&links.message);
        for groups in [
            &links.allreduce,
            &links.allgather,
            &links.reduce_scatter,
            &links.alltoall,
        ] {
            groups.values().for_each(line);
        }
    }
}
