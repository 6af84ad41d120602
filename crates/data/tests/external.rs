//! Values in other files than those that a user names: raw files, links, sources of virtual datasets, paths of an index.

use crate::made;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use made::{SHAPE, conversion, fixture, volume, whole};
use partita_data::{Conversion, ConvertSpec, Dataset, Keys, Split};
use partita_formats::{DType, Samples};
use rust_hdf5::H5File;

const SECRET: &[u8; 64] = b"a secret of another user, which no data set has to do with. ....";

/// A file of another folder, and a folder of a dataset.
fn folders() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let [elsewhere, data] = ["elsewhere", "data"].map(|name| root.path().join(name));
    fs::create_dir(&elsewhere).unwrap();
    fs::create_dir(&data).unwrap();
    (root, elsewhere, data)
}

/// A file whose values are 64 bytes of `raw`.
fn of_raw_file(path: &Path, raw: &Path) {
    let file = H5File::create(path).unwrap();
    let array = file.new_dataset::<u8>().shape([1, 1, 1, 8, 8]);
    let name = raw.to_str().unwrap();
    array.external(&[(name, 0, 64)]).create("full").unwrap();
    file.close().unwrap();
    fs::write(raw, SECRET).unwrap();
}

fn of_values(path: &Path) {
    let file = H5File::create(path).unwrap();
    let array = file.new_dataset::<u8>().shape([1, 1, 1, 8, 8]);
    let array = array.create("full").unwrap();
    array.write_raw(SECRET).unwrap();
    file.close().unwrap();
}

fn of_link(path: &Path, name: &str) {
    let file = H5File::create(path).unwrap();
    file.create_external_link("full", name, "/full").unwrap();
    file.close().unwrap();
}

fn secret_of(path: &Path) -> Result<Vec<PathBuf>, String> {
    let dataset = Dataset::open_samples_with(path, &Keys::allowing(true));
    let dataset = dataset.map_err(|error| error.to_string())?;
    let mut read = Samples::new(DType::Int16);
    let mut reader = dataset.reader(Split::Train);
    let values = reader.read_volume(0, [0..1, 0..1, 0..8, 0..8], &mut read);
    values.map_err(|error| error.to_string())?;
    let expected = SECRET.iter().map(|&byte| i16::from(byte)).collect();
    assert_eq!(read, Samples::I16(expected));
    dataset.external_files().map_err(|error| error.to_string())
}

#[track_caller]
fn refused(path: &Path, named: &Path) {
    let error = Dataset::open_samples(path).unwrap_err().to_string();
    let name = named.file_name().unwrap().to_str().unwrap();
    for part in [name, "--allow-external", "allow_external = true"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let converted = Conversion::find(&ConvertSpec {
        no_targets: true,
        ..conversion(vec![path.to_owned()], path.with_file_name("set"))
    });
    assert!(converted.err().unwrap().to_string().contains(name));
}

#[test]
fn raw_files_are_read_by_permission_alone_and_are_named() {
    let (_root, elsewhere, data) = folders();
    let (path, secret) = (data.join("a.h5"), elsewhere.join("secret"));
    of_raw_file(&path, &secret);
    refused(&path, &secret);
    assert_eq!(secret_of(&path).unwrap(), std::slice::from_ref(&secret));

    let conversion = Conversion::find(&ConvertSpec {
        no_targets: true,
        keys: Keys::allowing(true),
        ..conversion(vec![path], data.join("set"))
    });
    let notes = conversion.unwrap().notes().join("\n");
    assert!(notes.contains(secret.to_str().unwrap()), "{notes}");
}

#[test]
fn links_and_virtual_datasets_stay_in_the_folder_of_their_file() {
    let (_root, elsewhere, data) = folders();
    let target = elsewhere.join("b.h5");
    of_values(&target);
    let link = data.join("link.h5");
    for name in [target.to_str().unwrap(), "../elsewhere/b.h5"] {
        of_link(&link, name);
        refused(&link, &target);
        assert_eq!(secret_of(&link).unwrap().len(), 1, "{name}");
    }
    // A link of the file system counts as where it leads.
    symlink(&target, data.join("near.h5")).unwrap();
    of_link(&link, "near.h5");
    refused(&link, &target);
    fs::remove_file(data.join("near.h5")).unwrap();
    fs::create_dir(data.join("below")).unwrap();
    of_values(&data.join("below/near.h5"));
    of_link(&link, "below/near.h5");
    Dataset::open_samples(&link).unwrap();
    assert!(secret_of(&link).unwrap().is_empty());
    // A file in the folder that leads on to a raw file.
    let secret = elsewhere.join("secret");
    of_raw_file(&data.join("below/near.h5"), &secret);
    refused(&link, &secret);
    assert_eq!(secret_of(&link).unwrap(), [secret]);

    let path = fixture("foreign/virtual.h5");
    let error = Dataset::open(&path).unwrap_err().to_string();
    assert!(
        error.contains("u0.h5") && error.contains("--allow-external"),
        "{error}"
    );
    let dataset = Dataset::open_with(&path, &Keys::allowing(true)).unwrap();
    let mut read = Samples::new(DType::Int16);
    let mut reader = dataset.reader(Split::Train);
    reader.read_volume(1, whole(SHAPE), &mut read).unwrap();
    assert_eq!(read, volume(1, SHAPE, DType::Int16));
    assert_eq!(dataset.external_files().unwrap().len(), 3);
}

#[test]
fn the_files_of_an_index_lie_below_its_folder() {
    let (_root, elsewhere, data) = folders();
    let file = elsewhere.join("b.h5");
    of_values(&file);
    for name in [
        file.to_str().unwrap(),
        "../elsewhere/b.h5",
        "x/../../elsewhere/b.h5",
    ] {
        fs::create_dir_all(data.join("x")).unwrap();
        let index = format!(
            "format = 1\nkind = \"other\"\nsamples = 1\nchannels = 1\nextent = [1, 8, 8]\ndtype = \"int16\"\n\
             targets = []\n[train]\nfile = \"{name}\"\nuniverses = [0]\n"
        );
        fs::write(data.join("dataset.toml"), index).unwrap();
        let error = Dataset::open_samples(&data).unwrap_err().to_string();
        for part in [name, "below", "allow_external = true"] {
            assert!(error.contains(part), "{part}: {error}");
        }
        Dataset::open_samples_with(&data, &Keys::allowing(true)).unwrap();
    }
}
