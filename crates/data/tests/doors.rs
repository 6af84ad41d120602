//! Pipes, and links to devices without end, where files of data are expected.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::made::{conversion, fixture};
use partita_data::{Conversion, Dataset, Split, inspect_path};
use partita_formats::{DType, Samples};

/// Puts a pipe without a writer, then a device without end, at a path, and calls. Neither is read.
#[track_caller]
fn refused(path: &Path, call: impl Fn() -> Result<(), String> + Copy + Send + 'static) {
    let pipe = |path: &Path| {
        let made = Command::new("mkfifo").arg(path).status().unwrap();
        assert!(made.success());
    };
    let device = |path: &Path| symlink("/dev/zero", path).unwrap();
    let places: [&dyn Fn(&Path); 2] = [&pipe, &device];
    for place in places {
        let _ = fs::remove_file(path);
        place(path);
        let (told, answer) = channel();
        std::thread::spawn(move || told.send(call()));
        let answer = answer.recv_timeout(Duration::from_secs(60));
        let answer = answer.unwrap_or_else(|_| panic!("{} is waited for", path.display()));
        let error = answer.expect_err("it is refused");
        assert!(!error.is_empty());
        fs::remove_file(path).unwrap();
    }
}

fn opened(path: &Path) -> Result<(), String> {
    let dataset = Dataset::open_samples(path).map_err(|error| error.to_string())?;
    let mut values = Samples::new(DType::Int16);
    let region = dataset.shape().map(|extent| 0..extent);
    let mut reader = dataset.reader(Split::Train);
    let read = reader.read_volume(0, region, &mut values);
    read.map_err(|error| error.to_string())
}

fn converted(path: &Path) -> Result<(), String> {
    let conversion = Conversion::find(&conversion(vec![path.to_owned()], path.join("../set")));
    let conversion = conversion.map_err(|error| error.to_string())?;
    let written = conversion.write(|_| true);
    written.map(|_| ()).map_err(|error| error.to_string())
}

#[test]
fn arrays_are_read_from_regular_files() {
    let folder = tempfile::tempdir().unwrap();
    for name in [
        "a.h5",
        "a.npy",
        "a.npz",
        "a.nii",
        "a.nii.gz",
        "a.png",
        "a.jpg",
        "a.tfrecord",
    ] {
        let path = Box::leak(folder.path().join(name).into_boxed_path());
        let path: &'static Path = path;
        refused(path, move || opened(path));
        refused(path, move || converted(path));
        refused(path, move || {
            let inspected = inspect_path(path, partita_data::ValueScope::First);
            inspected.map(|_| ()).map_err(|error| error.to_string())
        });
    }
}

#[test]
fn parts_of_stores_and_indexes_are_regular_files() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("s.zarr");
    let array = store.join("full");
    fs::create_dir_all(&array).unwrap();
    fs::write(store.join(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    let header = r#"{"zarr_format": 2, "shape": [1, 1, 4, 4, 4], "chunks": [1, 1, 4, 4, 4], "dtype": "|u1",
                     "compressor": null, "fill_value": 0, "order": "C", "filters": null}"#;
    fs::write(array.join(".zarray"), header).unwrap();
    let store: &'static Path = Box::leak(store.into_boxed_path());
    opened(store).unwrap();
    refused(&array.join("0.0.0.0.0"), move || opened(store));
    for name in [".zarray", "zarr.json"] {
        fs::remove_file(array.join(".zarray")).unwrap();
        refused(&array.join(name), move || opened(store));
        fs::write(array.join(".zarray"), header).unwrap();
    }
    // A header that has no end, of a store that is no group either.
    fs::remove_dir_all(store).unwrap();
    fs::create_dir(store).unwrap();
    refused(&store.join("zarr.json"), move || opened(store));

    let set = folder.path().join("set");
    fs::create_dir(&set).unwrap();
    let set: &'static Path = Box::leak(set.into_boxed_path());
    refused(&set.join("dataset.toml"), move || opened(set));
    for file in fs::read_dir(fixture("universes")).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), set.join(file.file_name())).unwrap();
    }
    refused(&set.join("u0.h5"), move || opened(set));
}
