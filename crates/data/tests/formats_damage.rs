//! Damaged files of every format are refused with their name, or read; they never panic.

use crate::made;

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use made::Random;
use partita_data::{Conversion, ConvertSpec, Keys};

/// What is converted is a few kilobytes; more is what damage made of it.
const ELEMENTS_MAX: usize = 1 << 20;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fixtures/formats")
        .join(name)
}

/// Converts a source as a user would, and returns the error's text.
fn convert(source: &Path, targets: Option<PathBuf>, out: &Path) -> Result<(), String> {
    let asked = ConvertSpec {
        keys: Keys {
            volume: "x".to_owned(),
            target: "y".to_owned(),
            ..Keys::default()
        },
        targets,
        classes: vec!["a".to_owned(), "b".to_owned(), "c".to_owned()],
        ..made::conversion(vec![source.to_path_buf()], out.to_path_buf())
    };
    let conversion = Conversion::find(&asked).map_err(|error| error.to_string())?;
    let elements: usize = conversion.spec().shape.iter().product();
    if elements.saturating_mul(conversion.samples()) > ELEMENTS_MAX {
        return Ok(());
    }
    let written = conversion.write(|_| true);
    written.map(drop).map_err(|error| error.to_string())
}

fn damage(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..1 + random.below(4) {
        let near = if random.below(2) == 0 {
            400
        } else {
            usize::MAX
        };
        let at = random.below(bytes.len().min(near));
        match random.below(4) {
            0 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5)],
            1 => bytes[at] ^= 1 << random.below(8),
            2 => bytes[at] = random.below(256) as u8,
            _ if random.below(8) == 0 => bytes.truncate(at.max(1)),
            _ => bytes[at] = bytes[at].wrapping_add(1),
        }
    }
}

/// Damages `file`, which is the source or lies in it, again and again.
fn check(source: &Path, file: &Path, targets: Option<&str>, rounds: usize) {
    let folder = tempfile::tempdir().expect("a folder");
    let bytes = fs::read(file).expect("a fixture");
    let mut random = Random(7 + bytes.len() as u64);
    for round in 0..rounds {
        let mut damaged = bytes.clone();
        damage(&mut damaged, &mut random);
        fs::write(file, &damaged).expect("room for a file");
        let out = folder.path().join("set");
        let outcome = catch_unwind(|| convert(source, targets.map(fixture), &out));
        let case = format!("{}, round {round}", file.display());
        let outcome = outcome.unwrap_or_else(|_| panic!("{case}: a panic"));
        if let Err(text) = outcome {
            assert!(!text.is_empty(), "{case}");
        }
        if out.exists() {
            fs::remove_dir_all(&out).expect("a dataset");
        }
    }
    fs::write(file, bytes).expect("room for a file");
}

#[test]
fn damaged_files_of_arrays_never_panic() {
    let folder = tempfile::tempdir().unwrap();
    for (name, targets) in [
        ("whole.npy", Some("targets.npy")),
        ("fortran.npy", Some("labels.npy")),
        ("stored.npz", None),
        ("deflated.npz", None),
        ("scaled.nii", Some("one_target.npy")),
        ("second.nii", Some("one_target.npy")),
        ("task/imagesTr/scan_000.nii.gz", Some("one_target.npy")),
        ("gray16.png", Some("one_target.npy")),
        ("pictures/train/cat/0.jpg", Some("one_target.npy")),
        ("pictures/train/cat/1.png", Some("one_target.npy")),
        ("cosmo/univ_ics_2000_000.tfrecord", None),
        ("cosmo/univ_ics_2001_000.tfrecord", None),
        ("chunked_last.h5", None),
    ] {
        let path = folder.path().join(Path::new(name).file_name().unwrap());
        fs::copy(fixture(name), &path).unwrap();
        check(&path, &path, targets, 30);
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let path = entry.expect("an entry").path();
        let to = to.join(path.file_name().expect("a name"));
        if path.is_dir() {
            copy(&path, &to);
        } else {
            fs::copy(&path, &to).expect("a copy");
        }
    }
}

#[test]
fn damaged_stores_never_panic() {
    let folder = tempfile::tempdir().unwrap();
    for name in [
        "blosc_lz4",
        "blosc_lz",
        "blosc_bits",
        "blosc_zlib",
        "gzip",
        "zlib",
        "zstd",
        "lz4",
    ] {
        let store = folder.path().join(format!("{name}.zarr"));
        copy(&fixture(&format!("zarr/v2_{name}.zarr")), &store);
        for file in [".zarray", "0.0.0.0.0"] {
            check(&store, &store.join(file), Some("targets.npy"), 12);
        }
    }
    let store = folder.path().join("v3.zarr");
    copy(&fixture("zarr/v3.zarr"), &store);
    for file in [
        "in/x/zarr.json",
        "in/x/c/0/0/0/0/0",
        "y/zarr.json",
        "y/c/0/0",
    ] {
        check(&store, &store.join(file), None, 12);
    }
}
