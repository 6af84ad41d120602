//! Targets that read files of arrays, statistics beside them, and checkpoints.

use super::files::read_split;
use super::{put, text, verb};
use partita_data::{Dataset, Split};
use partita_input::{STATISTICS_FILE, Step, fit};
use partita_program::Dtype;
use partita_weights::checkpoint::{
    Checkpoint, CheckpointFolder, MANIFEST, Manifest, PartLayout, ShardSpec, TensorKind,
};
use serde_json::{Value, json};
use std::fs;
use std::io;
use std::path::Path;

/// Most elements that are read: a small file may state any number.
const ELEMENTS_MAX: usize = 1 << 20;
const GZIP: &[u8] = b"\x1f\x8b";
/// Stands for the files of a dataset in statistics, which are of these alone.
const IDENTITY: &str = "IDENTITY";
const IDENTITY_FILE: &str = "identity";
/// Steps whose statistics are kept.
const STEPS: [Step; 2] = [
    Step::Standardize,
    Step::Percentiles {
        low: 1.0,
        high: 99.0,
    },
];

/// NPY.
pub(super) fn npy(bytes: &[u8], folder: &Path) -> Result<(), String> {
    read(bytes, &folder.join("input.npy"))
}

/// NPZ.
pub(super) fn npz(bytes: &[u8], folder: &Path) -> Result<(), String> {
    read(bytes, &folder.join("input.npz"))
}

/// NIfTI, gzipped or not.
pub(super) fn nifti(bytes: &[u8], folder: &Path) -> Result<(), String> {
    let is_gzipped = bytes.starts_with(GZIP);
    read(
        bytes,
        &folder.join(if is_gzipped {
            "input.nii.gz"
        } else {
            "input.nii"
        }),
    )
}

/// PNG or JPEG; also as the picture of a dataset.
pub(super) fn image(bytes: &[u8], folder: &Path) -> Result<(), String> {
    let path = folder.join("input.image");
    read(bytes, &path)?;
    partita_data::picture(&path)
        .map(drop)
        .map_err(|error| error.to_string())
}

/// TFRecord, gzipped or not.
pub(super) fn tfrecord(bytes: &[u8], folder: &Path) -> Result<(), String> {
    read(bytes, &folder.join("input.tfrecord"))
}

/// Inspects a file, and reads its samples if it can have some.
fn read(bytes: &[u8], path: &Path) -> Result<(), String> {
    let shown = put(path, bytes);
    verb(&["data", "inspect", &shown, "--json"])?;
    let Ok(dataset) = Dataset::open_samples(path) else {
        return Ok(());
    };
    let shape = dataset.shape();
    let elements = shape
        .iter()
        .try_fold(1usize, |product, &extent| product.checked_mul(extent));
    if elements.is_none_or(|elements| elements > ELEMENTS_MAX) {
        return Ok(());
    }
    read_split(&dataset, Split::Train, shape, false)
}

/// Copies the chunks of stores whose metadata are the input.
pub(super) fn write_chunks(folder: &Path) -> io::Result<()> {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/formats/zarr");
    for version in ["second", "third"] {
        let chunks = folder.join(version).join("c/0/0/0/0");
        fs::create_dir_all(&chunks)?;
        let shard = "v3.zarr/sharded/x/c/0/0/0/0/0";
        fs::copy(from.join(shard), chunks.join("0"))?;
        let chunk = "v2_blosc_lz4.zarr/0.0.0.0.0";
        fs::copy(from.join(chunk), folder.join(version).join("0.0.0.0.0"))?;
        let chunk = "v2_gzip.zarr/0.0.0.0.0";
        fs::copy(from.join(chunk), folder.join(version).join("0.0.1.0.0"))?;
    }
    Ok(())
}

/// Metadata of an array of Zarr 2 or 3.
pub(super) fn zarr(bytes: &[u8], folder: &Path) -> Result<(), String> {
    let header: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let is_third = header.get("node_type").is_some();
    let extents = header.get("shape").and_then(Value::as_array);
    let elements = extents.and_then(|extents| {
        let mut extents = extents.iter().map(Value::as_u64);
        extents.try_fold(1u64, |product, extent| product.checked_mul(extent?))
    });
    if elements.is_some_and(|elements| elements > ELEMENTS_MAX as u64 >> 6) {
        // Each chunk is a file to be looked for.
        return Err("more elements than are read here".to_owned());
    }
    let (store, name) = if is_third {
        ("third", "zarr.json")
    } else {
        ("second", ".zarray")
    };
    let path = folder.join(store);
    put(&path.join(name), bytes);
    verb(&["data", "inspect", &path.display().to_string(), "--json"]).map(drop)
}

/// Writes a dataset, and the word by which statistics know its files.
pub(super) fn write_statistics(folder: &Path) -> io::Result<()> {
    super::files::write_dataset(folder)?;
    let index = "../data/tests/fixtures/universes/dataset.toml";
    let index = Path::new(env!("CARGO_MANIFEST_DIR")).join(index);
    fs::write(folder.join("dataset.toml"), fs::read(index)?)?;
    let dataset = Dataset::open(folder).map_err(io::Error::other)?;
    fit(&STEPS, &dataset, None, 1).map_err(io::Error::other)?;
    let written = fs::read_to_string(folder.join(STATISTICS_FILE))?;
    let identity = written
        .lines()
        .find_map(|line| line.strip_prefix("data = "));
    let identity = identity.ok_or_else(|| io::Error::other("statistics without files"))?;
    fs::write(folder.join(IDENTITY_FILE), identity.trim_matches('"'))
}

/// Statistics that an earlier run kept: whatever the file holds, those that are used are sound.
pub(super) fn statistics(bytes: &[u8], folder: &Path) -> Result<(), String> {
    let identity = fs::read_to_string(folder.join(IDENTITY_FILE));
    let identity = identity.map_err(|error| error.to_string())?;
    let path = folder.join(STATISTICS_FILE);
    match text(bytes) {
        Ok(text) => put(&path, text.replace(IDENTITY, &identity).as_bytes()),
        Err(_) => put(&path, bytes),
    };
    let dataset = Dataset::open(folder).map_err(|error| error.to_string())?;
    let fitted = fit(&STEPS[..1], &dataset, None, 1)
        .unwrap_or_else(|error| panic!("a file of statistics is no error: {error}"));
    assert!(
        fitted.suits(dataset.shape()[0]) && fitted.asked() == STEPS[..1],
        "{fitted:?}"
    );
    let written = fs::read(&path).unwrap_or_default();
    let again = fit(&STEPS[..1], &dataset, None, 1).map_err(|error| error.to_string())?;
    assert_eq!(again, fitted, "statistics are kept");
    let is_same = fs::read(&path).unwrap_or_default() == written;
    assert!(is_same, "statistics that were kept are computed again");
    Ok(())
}

const CHECKPOINTS: &str = "checkpoints";
const CHECKPOINT: &str = "checkpoint";

/// Writes a checkpoint of one small tensor.
pub(super) fn write_checkpoint(folder: &Path) -> io::Result<()> {
    for path in [folder.join(CHECKPOINTS), folder.join(CHECKPOINT)] {
        if path.exists() {
            fs::remove_dir_all(path)?;
        }
    }
    let checkpoints = CheckpointFolder::new(folder.join(CHECKPOINTS));
    checkpoints.make().map_err(io::Error::other)?;
    let shape = [1, 1, 2, 3, 4];
    let shard = ShardSpec {
        tensor: "weight".to_owned(),
        kind: TensorKind::Parameter,
        dtype: Dtype::F32,
        shape,
        region: shape.map(|extent| [0, extent]),
    };
    let layout = PartLayout::new(0, vec![shard]);
    let partial = checkpoints.begin("step-1", 1).map_err(io::Error::other)?;
    let data = vec![0; layout.bytes()];
    layout.write(&partial, &data).map_err(io::Error::other)?;
    let training = json!({"step": 1});
    let whole = checkpoints.complete("step-1", 1, training, &[0]);
    fs::rename(whole.map_err(io::Error::other)?, folder.join(CHECKPOINT))
}

/// The manifest of a checkpoint: as it is, and with the checksum that it should have.
pub(super) fn checkpoint(bytes: &[u8], folder: &Path) -> Result<(), String> {
    let path = folder.join(CHECKPOINT);
    put(&path.join(MANIFEST), bytes);
    let first = Checkpoint::open(&path).map(drop);
    let manifest: Manifest = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    put(&path.join(MANIFEST), manifest.to_text().as_bytes());
    let opened = Checkpoint::open(&path).map_err(|error| error.to_string())?;
    opened.verify().map_err(|error| error.to_string())?;
    let mut reader = opened.reader();
    for tensor in opened.tensors() {
        let elements = tensor.elements();
        if elements <= ELEMENTS_MAX {
            let read = reader.read(&tensor.name, 0..elements);
            read.map_err(|error| error.to_string())?;
        }
    }
    first.map_err(|error| error.to_string())
}
