//! Files of h5py, numpy, nibabel and other tools are read exactly, region by region.

#![allow(clippy::unwrap_used, reason = "helper functions of tests")]

use crate::made;

use std::fs;
use std::path::{Path, PathBuf};

use made::{Random, SHAPE, target, volume, whole};
use partita_data::{Dataset, Keys, Reader, Split};
use partita_formats::{DType, DataError, Samples};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fixtures/formats")
        .join(name)
}

fn keys(volume: &str, target: &str, label: &str, order: &str) -> Keys {
    Keys {
        volume: volume.to_owned(),
        target: target.to_owned(),
        label: label.to_owned(),
        order: Some(order.parse().expect("an order of dims")),
        fill: false,
        external: false,
    }
}

/// Values that every element type holds.
fn small(n: usize, dtype: DType) -> Samples {
    let Samples::I16(values) = volume(n, SHAPE, DType::Int16) else {
        unreachable!()
    };
    let values: Vec<i16> = values
        .into_iter()
        .map(|value| value.rem_euclid(200))
        .collect();
    match dtype {
        DType::Int16 => Samples::I16(values),
        DType::Float32 => Samples::F32(values.into_iter().map(f32::from).collect()),
    }
}

fn labels(n: usize) -> Samples {
    let [_, depth, height, width] = SHAPE;
    let mut values = Vec::new();
    for d in 0..depth {
        for h in 0..height {
            values.extend((0..width).map(|w| ((n + d + h + w) % 3) as i16));
        }
    }
    Samples::I16(values)
}

fn floats(n: usize) -> Samples {
    let mut values = Vec::new();
    volume(n, SHAPE, DType::Int16).write_f32(&mut values);
    Samples::F32(values)
}

/// Every sample whole and in parts equals what was stored.
fn check(reader: &mut Reader, dtype: DType, stored: impl Fn(usize) -> Samples, case: &str) {
    let mut random = Random(2_026);
    let mut out = Samples::new(dtype);
    for round in 0..30 {
        let n = random.below(reader.samples());
        let region = match round {
            0 => whole(SHAPE),
            _ => random.region(SHAPE),
        };
        reader
            .read_volume(n, region.clone(), &mut out)
            .expect("a region");
        assert_eq!(
            out,
            stored(n).slice(SHAPE, &region),
            "{case}, {n}, {region:?}"
        );
    }
}

#[test]
fn hdf5_of_any_key_type_and_order_is_read() {
    for (element, dtype) in [
        ("uint8", DType::Int16),
        ("uint16", DType::Float32),
        ("int32", DType::Float32),
        ("int64", DType::Float32),
        ("float16", DType::Float32),
        ("float64", DType::Float32),
    ] {
        let keys = keys("/scans/image", "none", "scans/mask", "NDHWC");
        let dataset = Dataset::open_with(file(&format!("scan_{element}.h5")), &keys).unwrap();
        assert_eq!(
            (dataset.shape(), dataset.dtype()),
            (SHAPE, dtype),
            "{element}"
        );
        assert_eq!(
            (dataset.samples(Split::Train), dataset.labels()),
            (3, Some([6, 5, 7]))
        );
        let mut reader = dataset.reader(Split::Train);
        check(&mut reader, dtype, |n| small(n, dtype), element);
        let mut out = Samples::new(DType::Int16);
        let region = [0..1, 1..4, 2..5, 3..7];
        reader.read_labels(2, region.clone(), &mut out).unwrap();
        assert_eq!(out, labels(2).slice([1, 6, 5, 7], &region), "{element}");
    }
}

#[test]
fn chunks_with_channels_last_are_read() {
    let dataset =
        Dataset::open_with(file("chunked_last.h5"), &keys("x", "y", "none", "NDHWC")).unwrap();
    let mut reader = dataset.reader(Split::Train);
    check(
        &mut reader,
        DType::Int16,
        |n| volume(n, SHAPE, DType::Int16),
        "chunked",
    );
    assert_eq!(reader.read_target(1).unwrap(), target(1));
    // A slab of 3 planes is one chunk deep and two wide.
    let before = reader.tally();
    reader
        .read_volume(0, [0..2, 0..3, 0..5, 0..7], &mut Samples::new(DType::Int16))
        .unwrap();
    let after = reader.tally();
    assert_eq!(after.file_pieces - before.file_pieces, 2);
    assert_eq!(
        after.file_bytes.0 - before.file_bytes.0,
        2 * 2 * (3 * 5 * 4 * 2)
    );
}

/// An index over files that lie elsewhere.
fn index(folder: &Path, head: &str, train: &str) -> Result<Dataset, DataError> {
    let text = format!(
        "format = 1\nkind = \"other\"\nsamples = 3\nchannels = 2\nextent = [6, 5, 7]\n{head}\n[train]\n{train}\n\
         universes = [0, 1, 2]\n"
    );
    fs::write(folder.join("dataset.toml"), text).expect("room for a file");
    Dataset::open_with(folder, &Keys::allowing(true))
}

fn shown(name: &str) -> String {
    format!("{:?}", file(name).canonicalize().expect("a fixture"))
}

#[test]
fn an_index_names_npy_files_of_volumes_and_of_answers() {
    let folder = tempfile::tempdir().unwrap();
    let train = format!(
        "file = {}\ntarget_file = {}",
        shown("whole.npy"),
        shown("targets.npy")
    );
    let head = "dtype = \"int16\"\ntargets = [\"a\", \"b\", \"c\", \"d\"]";
    let floats_only = train.replace("whole.npy", "fortran.npy");
    let error = index(folder.path(), head, &floats_only).unwrap_err();
    assert!(
        matches!(&error, DataError::WrongDtype { got, .. } if got == "float32"),
        "{error}"
    );
    let mut reader = index(folder.path(), head, &train)
        .unwrap()
        .reader(Split::Train);
    check(
        &mut reader,
        DType::Int16,
        |n| volume(n, SHAPE, DType::Int16),
        "whole.npy",
    );
    assert_eq!(reader.read_target(2).unwrap(), target(2));

    let train = format!(
        "file = {}\ntarget_file = {}",
        shown("fortran.npy"),
        shown("labels.npy")
    );
    let head = "dtype = \"float32\"\ntargets = [\"a\", \"b\", \"c\"]\nlabels = [6, 5, 7]";
    let mut reader = index(folder.path(), head, &train)
        .unwrap()
        .reader(Split::Train);
    check(&mut reader, DType::Float32, floats, "fortran.npy");
    let mut out = Samples::new(DType::Int16);
    reader
        .read_labels(1, [0..1, 0..6, 0..5, 0..7], &mut out)
        .unwrap();
    assert_eq!(out, labels(1));
}

#[test]
fn npz_members_are_read_stored_or_deflated() {
    for name in ["stored.npz", "deflated.npz"] {
        let dataset = Dataset::open_with(file(name), &keys("x", "y", "none", "NDHWC")).unwrap();
        let mut reader = dataset.reader(Split::Train);
        check(
            &mut reader,
            DType::Int16,
            |n| volume(n, SHAPE, DType::Int16),
            name,
        );
        assert_eq!(reader.read_target(2).unwrap(), target(2), "{name}");
    }
}

#[test]
fn nifti_volumes_and_labels_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let list = |sub: &str| {
        let names = (0..3).map(|n| shown(&format!("task/{sub}/scan_{n:03}.nii.gz")));
        names.collect::<Vec<_>>().join(", ")
    };
    let train = format!(
        "files = [{}]\ntarget_files = [{}]",
        list("imagesTr"),
        list("labelsTr")
    );
    let head = "dtype = \"int16\"\ntargets = [\"a\", \"b\", \"c\"]\nlabels = [6, 5, 7]";
    let mut reader = index(folder.path(), head, &train)
        .unwrap()
        .reader(Split::Train);
    check(
        &mut reader,
        DType::Int16,
        |n| volume(n, SHAPE, DType::Int16),
        "nii.gz",
    );
    let mut out = Samples::new(DType::Int16);
    let region = [0..1, 2..6, 0..5, 1..3];
    reader.read_labels(1, region.clone(), &mut out).unwrap();
    assert_eq!(out, labels(1).slice([1, 6, 5, 7], &region));
}

#[test]
fn nifti_values_are_scaled_as_the_header_says() {
    let folder = tempfile::tempdir().unwrap();
    let open = |name: &str, channels: usize| {
        let text = format!(
            "format = 1\nkind = \"other\"\nsamples = 1\nchannels = {channels}\nextent = [6, 5, 7]\ndtype = \
             \"float32\"\ntargets = [\"a\"]\n[train]\nfiles = [{}]\ntarget_files = [{}]\nuniverses = [0]\n",
            shown(name),
            shown("one_target.npy"),
        );
        fs::write(folder.path().join("dataset.toml"), text).unwrap();
        Dataset::open_with(folder.path(), &Keys::allowing(true)).unwrap()
    };
    let mut out = Samples::new(DType::Float32);
    let shape = [1, 6, 5, 7];
    let mut reader = open("scaled.nii", 1).reader(Split::Train);
    reader.read_volume(0, whole(shape), &mut out).unwrap();
    let Samples::F32(stored) = floats(0).slice(SHAPE, &[0..1, 0..6, 0..5, 0..7]) else {
        unreachable!()
    };
    let scaled = stored.iter().map(|&value| value * 0.5 - 3.0).collect();
    assert_eq!(out, Samples::F32(scaled));
    let mut reader = open("second.nii", 2).reader(Split::Train);
    reader.read_volume(0, whole(SHAPE), &mut out).unwrap();
    assert_eq!(out, floats(1));
}

#[test]
fn many_files_of_many_samples_are_numbered_through() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "format = 1\nkind = \"other\"\nsamples = 7\nchannels = 2\nextent = [6, 5, 7]\ndtype = \"int16\"\ntargets = \
         [\"a\", \"b\", \"c\", \"d\"]\nvolume = \"x\"\ntarget = \"y\"\nlayout = \"NDHWC\"\n[train]\nfiles = \
         [{0}, {1}]\nsamples = [3, 3]\nuniverses = [0, 1, 2, 3, 4, 5]\n[test]\nfile = {0}\nuniverses = [9]\n",
        shown("stored.npz"),
        shown("chunked_last.h5"),
    );
    fs::write(folder.path().join("dataset.toml"), text).unwrap();
    // The test split has one sample of a file that holds three.
    let error = Dataset::open_with(folder.path(), &Keys::allowing(true))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("stored.npz") && error.contains("[1, 6, 5, 7, 2]"),
        "{error}"
    );
    let text = fs::read_to_string(folder.path().join("dataset.toml")).unwrap();
    let text = text
        .replace("[9]", "[9, 10, 11]")
        .replace("samples = 7", "samples = 9");
    fs::write(folder.path().join("dataset.toml"), text).unwrap();
    let dataset = Dataset::open_with(folder.path(), &Keys::allowing(true)).unwrap();
    assert_eq!(dataset.samples(Split::Train), 6);
    let mut reader = dataset.reader(Split::Train);
    check(
        &mut reader,
        DType::Int16,
        |n| volume(n % 3, SHAPE, DType::Int16),
        "two files",
    );
    assert_eq!(reader.read_target(4).unwrap(), target(1));
}

#[test]
fn a_value_that_does_not_fit_is_named_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = fs::read(file("scan_float64.h5")).unwrap();
    // The second channel at the first position is 93, as a big-endian double.
    let word = 93f64.to_be_bytes();
    let at = bytes.windows(8).position(|window| window == word).unwrap();
    bytes[at..at + 8].copy_from_slice(&1e300f64.to_be_bytes());
    let path = folder.path().join("large.h5");
    fs::write(&path, bytes).unwrap();
    let keys = keys("scans/image", "none", "scans/mask", "NDHWC");
    let mut reader = Dataset::open_with(&path, &keys)
        .unwrap()
        .reader(Split::Train);
    let mut out = Samples::new(DType::Float32);
    let error = reader
        .read_volume(0, whole(SHAPE), &mut out)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("large.h5: key `scans/image`: sample 0 of the file at (C, D, H, W) = (1, 0, 0, 0) is 1e300"),
        "{error}"
    );
}

#[test]
fn zarr_2_is_read_with_every_compressor() {
    let folder = tempfile::tempdir().unwrap();
    let head = "dtype = \"int16\"\ntargets = [\"a\", \"b\", \"c\", \"d\"]";
    for name in [
        "blosc_lz4",
        "blosc_lz",
        "blosc_bits",
        "blosc_zlib",
        "gzip",
        "zlib",
        "zstd",
        "lz4",
        "none",
        "crc32",
        "crc32c",
    ] {
        let store = shown(&format!("zarr/v2_{name}.zarr"));
        let train = format!("file = {store}\ntarget_file = {}", shown("targets.npy"));
        let mut reader = index(folder.path(), head, &train)
            .unwrap()
            .reader(Split::Train);
        check(
            &mut reader,
            DType::Int16,
            |n| volume(n, SHAPE, DType::Int16),
            name,
        );
    }
}

#[test]
fn zarr_3_is_read_from_groups() {
    let path = file("zarr/v3.zarr");
    let dataset = Dataset::open_with(&path, &keys("in/x", "y", "none", "NDHWC")).unwrap();
    let mut reader = dataset.reader(Split::Train);
    check(
        &mut reader,
        DType::Int16,
        |n| volume(n, SHAPE, DType::Int16),
        "v3",
    );
    assert_eq!(reader.read_target(2).unwrap(), target(2));
    // What was never written has the fill value.
    let dataset = Dataset::open_with(&path, &keys("in/x", "holes", "none", "NDHWC")).unwrap();
    let mut reader = dataset.reader(Split::Train);
    assert_eq!(reader.read_target(2).unwrap(), [0.5; 4]);
    assert_eq!(reader.read_target(1).unwrap()[..3], target(1)[..3]);
}

/// Shards with holes: of a chunk, at the edges, and of a whole file; the index at either end.
#[test]
fn zarr_3_is_read_from_shards() {
    let path = file("zarr/v3.zarr");
    let keys = keys("sharded/x", "sharded/y", "none", "NDHWC");
    let mut reader = Dataset::open_with(&path, &keys)
        .unwrap()
        .reader(Split::Train);
    let stored = |n| volume(n, SHAPE, DType::Int16);
    check(&mut reader, DType::Int16, stored, "sharded");
    assert_eq!(reader.read_target(1).unwrap(), target(1));
    assert_eq!(reader.read_target(2).unwrap(), [0.5; 4]);
}

/// Shards in shards, with holes in both.
#[test]
fn zarr_3_is_read_from_shards_in_shards() {
    let keys = keys("nested/x", "sharded/y", "none", "NDHWC");
    let mut reader = Dataset::open_with(file("zarr/v3.zarr"), &keys)
        .unwrap()
        .reader(Split::Train);
    let stored = |n| {
        let mut all = volume(n, SHAPE, DType::Int16);
        let Samples::I16(values) = &mut all else {
            panic!("whole numbers");
        };
        if n == 2 {
            // What was written as the fill value is left out.
            for at in (0..values.len()).filter(|at| at / 35 < 3 && at % 7 < 4) {
                values[at] = 0;
            }
        }
        all
    };
    check(&mut reader, DType::Int16, stored, "nested");
}

/// Copies a folder.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

#[test]
fn checksums_of_chunks_shards_and_members_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("v3.zarr");
    copy(&file("zarr/v3.zarr"), &store);
    let shard = store.join("sharded/x/c/0/0/0/0/0");
    let sound = fs::read(&shard).unwrap();
    let mut out = Samples::new(DType::Int16);
    let mut refusal = |at: usize| {
        let mut bytes = sound.clone();
        bytes[at] ^= 0x40;
        fs::write(&shard, bytes).unwrap();
        let keys = keys("sharded/x", "sharded/y", "none", "NDHWC");
        let mut reader = Dataset::open_with(&store, &keys)
            .unwrap()
            .reader(Split::Train);
        let read = reader.read_volume(0, whole(SHAPE), &mut out);
        read.unwrap_err().to_string()
    };
    // A byte of the first chunk, and one of the index at the end.
    let chunk = refusal(30);
    let says = "key `sharded/x`, sample 0 of the file cannot be read: chunk [0, 0, 0, 0, 0] of shard c/0/0/0/0/0: its \
                checksum (crc32c) does not match";
    assert!(chunk.contains(says), "{chunk}");
    let index = refusal(sound.len() - 20);
    assert!(
        index.contains("the checksum of its index (CRC-32C) does not match"),
        "{index}"
    );
    let first = store.join("sharded/y/c/0/0");
    let bytes = fs::read(&first).unwrap();
    fs::write(&first, &bytes[..20]).unwrap();
    fs::write(&shard, &sound).unwrap();
    let keys_of = keys("sharded/x", "sharded/y", "none", "NDHWC");
    let mut reader = Dataset::open_with(&store, &keys_of)
        .unwrap()
        .reader(Split::Train);
    let short = reader.read_target(0).unwrap_err().to_string();
    assert!(short.contains("fewer than those of its index"), "{short}");

    for (name, at) in [("stored.npz", 200), ("deflated.npz", 250)] {
        let path = folder.path().join(name);
        let mut bytes = fs::read(file(name)).unwrap();
        bytes[at] ^= 1;
        fs::write(&path, bytes).unwrap();
        // The whole array `x` at once, as an inspection reads it.
        let error = partita_data::inspect_path(&path, partita_data::ValueScope::First);
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("key `x`") && error.contains("cannot be read"),
            "{error}"
        );
        if name == "stored.npz" {
            assert!(error.contains("CRC-32"), "{error}");
        }
    }
}

#[test]
fn a_damaged_chunk_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("v3.zarr");
    let array = store.join("in/x");
    fs::create_dir_all(array.join("c/0/0/0/0")).unwrap();
    fs::copy(file("zarr/v3.zarr/zarr.json"), store.join("zarr.json")).unwrap();
    fs::copy(file("zarr/v3.zarr/in/x/zarr.json"), array.join("zarr.json")).unwrap();
    fs::create_dir_all(store.join("y")).unwrap();
    fs::copy(file("zarr/v3.zarr/y/zarr.json"), store.join("y/zarr.json")).unwrap();
    let chunk = fs::read(file("zarr/v3.zarr/in/x/c/0/0/0/0/0")).unwrap();
    fs::write(array.join("c/0/0/0/0/0"), &chunk[..chunk.len() / 2]).unwrap();
    let mut reader = Dataset::open_with(&store, &keys("in/x", "y", "none", "NDHWC"))
        .unwrap()
        .reader(Split::Train);
    let mut out = Samples::new(DType::Int16);
    let error = reader
        .read_volume(0, whole(SHAPE), &mut out)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains(
            "v3.zarr: key `in/x`, sample 0 of the file cannot be read: chunk c/0/0/0/0/0"
        ),
        "{error}"
    );
}
