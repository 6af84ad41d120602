//! Links, virtual datasets and values that were never written, in files of h5py.

#![allow(clippy::unwrap_used, reason = "helper functions of tests")]

use crate::made;

use std::fs;
use std::path::Path;

use made::{SHAPE, fixture, target, volume, whole};
use partita_data::{Conversion, ConvertSpec, Dataset, Keys, Reader, Split, inspect_path};
use partita_formats::{DType, Samples};

fn read(reader: &mut Reader, n: usize) -> Result<Samples, String> {
    let mut out = Samples::new(DType::Int16);
    let read = reader.read_volume(n, whole(SHAPE), &mut out);
    read.map(|()| out).map_err(|error| error.to_string())
}

fn open(name: &str) -> Reader {
    let dataset = Dataset::open_with(fixture(name), &Keys::allowing(true));
    dataset.unwrap().reader(Split::Train)
}

/// The error of opening a file with an array of that name.
fn refused(path: impl AsRef<Path>, key: &str) -> String {
    let keys = Keys {
        volume: key.to_owned(),
        ..Keys::allowing(true)
    };
    let opened = Dataset::open_with(path, &keys);
    opened.expect_err("it is refused").to_string()
}

fn is_no_damage(error: &str, parts: &[&str]) {
    for part in parts {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert!(
        !error.contains("damaged") && !error.contains("restore"),
        "{error}"
    );
}

#[test]
fn soft_and_external_links_are_followed() {
    let mut reader = open("foreign/links.h5");
    for n in 0..3 {
        assert_eq!(
            read(&mut reader, n).unwrap(),
            volume(n, SHAPE, DType::Int16)
        );
        assert_eq!(reader.read_target(n).unwrap(), target(n));
    }
    let links = fixture("foreign/links.h5");
    for (key, parts) in [
        ("a", &["circle"][..]),
        ("self", &["circle"]),
        ("gone", &["`gone`", "gone.h5", "does not exist beside it"]),
        ("lost", &["nowhere"]),
        ("raw/nothing", &["nothing"]),
    ] {
        is_no_damage(&refused(&links, key), parts);
    }
    let error = refused(&links, "ful");
    assert!(error.contains("no key `ful`"), "{error}");
}

#[test]
fn a_virtual_dataset_is_read_from_its_sources() {
    let mut reader = open("foreign/virtual.h5");
    let mut out = Samples::new(DType::Int16);
    for n in [1, 0, 2] {
        let stored = volume(n, SHAPE, DType::Int16);
        assert_eq!(read(&mut reader, n).unwrap(), stored);
        assert_eq!(reader.read_target(n).unwrap(), target(n));
        let region = [1..2, 2..5, 0..5, 3..6];
        reader.read_volume(n, region.clone(), &mut out).unwrap();
        assert_eq!(out, stored.slice(SHAPE, &region));
    }
}

#[test]
fn a_virtual_dataset_without_its_sources_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("v").join("virtual.h5");
    fs::create_dir(folder.path().join("v")).unwrap();
    fs::copy(fixture("foreign/virtual.h5"), &path).unwrap();
    is_no_damage(
        &refused(&path, "full"),
        &["virtual dataset", "../universes/u0.h5", "--fill"],
    );
    // A source that Git LFS has not fetched.
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 12345\n";
    let universes = folder.path().join("universes");
    fs::create_dir(&universes).unwrap();
    for source in fs::read_dir(fixture("universes")).unwrap() {
        fs::write(universes.join(source.unwrap().file_name()), pointer).unwrap();
    }
    is_no_damage(
        &refused(&path, "full"),
        &["universes/u0.h5", "git lfs pull"],
    );
    let part = fixture("foreign/virtual_part.h5");
    is_no_damage(
        &refused(part, "full"),
        &["840 of its 1260 values", "--fill"],
    );
    let strided = fixture("foreign/virtual_strided.h5");
    is_no_damage(&refused(strided, "full"), &["no single boxes"]);
}

#[test]
fn values_that_were_never_written_are_refused() {
    let mut reader = open("foreign/unwritten.h5");
    let error = read(&mut reader, 0).unwrap_err();
    is_no_damage(&error, &["none of its values were ever written", "--fill"]);
    for name in ["chunks", "latest", "growing"] {
        let mut reader = open(&format!("foreign/unwritten_{name}.h5"));
        for n in 0..2 {
            let stored = volume(n, SHAPE, DType::Int16);
            assert_eq!(read(&mut reader, n).unwrap(), stored, "{name}");
        }
        let error = read(&mut reader, 2).unwrap_err();
        is_no_damage(&error, &["sample 2", "[2, 0, 0, 0, 0]", "--fill"]);
    }
    let path = fixture("foreign/unwritten_chunks.h5");
    let inspected = inspect_path(path, partita_data::ValueScope::First);
    is_no_damage(
        &inspected.unwrap_err().to_string(),
        &["ever written", "--fill"],
    );
}

#[test]
fn fill_takes_the_value_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    for (name, samples) in [
        ("unwritten", 0),
        ("unwritten_chunks", 2),
        ("unwritten_latest", 2),
        ("unwritten_growing", 2),
        ("virtual_part", 2),
    ] {
        let asked = ConvertSpec {
            keys: Keys {
                fill: true,
                ..Keys::allowing(true)
            },
            ..made::conversion(
                vec![fixture(&format!("foreign/{name}.h5"))],
                folder.path().join(name),
            )
        };
        let conversion = Conversion::find(&asked).unwrap();
        let (dataset, _) = conversion.write(|_| true).unwrap().unwrap();
        let mut reader = dataset.reader(Split::Train);
        let fill = if name == "virtual_part" { 9 } else { 7 };
        let expected = (0..3).map(|n| {
            if n < samples {
                volume(n, SHAPE, DType::Int16)
            } else {
                Samples::I16(vec![fill; 420])
            }
        });
        let mut expected: Vec<Samples> = expected.collect();
        for n in 0..3 {
            let found = read(&mut reader, n).unwrap();
            let at = expected.iter().position(|expected| *expected == found);
            expected.remove(at.unwrap_or_else(|| panic!("{name}, sample {n}: {found:?}")));
        }
    }
}
