//! Samples keep their names from the files that are converted to errors in reading them.

#![allow(clippy::unwrap_used, reason = "helper functions of tests")]

use crate::made;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use made::{npy, spec};
use partita_data::{Conversion, ConvertSpec, Dataset, DatasetWriter, Split, inspect};
use partita_formats::{DType, Layout, Samples, VolumeShape};
use partita_input::{Accepted, CheckScope, DataCheck, Preparation};
use partita_program::Transform;

fn convert(sources: &[PathBuf], targets: Option<PathBuf>, out: &Path) -> Dataset {
    let asked = ConvertSpec {
        fractions: [0.5, 0.5, 0.0],
        targets,
        ..made::conversion(sources.to_vec(), out.to_owned())
    };
    let conversion = Conversion::find(&asked).unwrap();
    conversion.write(|_| true).unwrap().unwrap().0
}

/// A volume of 2x2x3 bytes of one value.
fn volume(path: &Path, value: u8) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, npy(&[2, 2, 3], "|u1", &[value; 12])).unwrap();
}

/// The names of all samples, each with the first value of its volume, sorted.
fn named(dataset: &Dataset) -> Vec<(String, i16)> {
    let mut found = Vec::new();
    for split in Split::ALL {
        let mut reader = dataset.reader(split);
        for (sample, name) in dataset.names(split).into_iter().enumerate() {
            let mut out = Samples::new(dataset.dtype());
            reader
                .read_volume(sample, [0..1, 0..1, 0..1, 0..1], &mut out)
                .unwrap();
            let Samples::I16(values) = out else {
                panic!("bytes become int16");
            };
            found.push((name, values[0]));
        }
    }
    found.sort();
    found
}

fn expected(names: &[(&str, i16)]) -> Vec<(String, i16)> {
    let owned = |&(name, value): &(&str, i16)| (name.to_owned(), value);
    names.iter().map(owned).collect()
}

#[test]
fn a_case_has_the_name_of_its_files_without_the_modality() {
    let folder = tempfile::tempdir().unwrap();
    let task = folder.path().join("task");
    for case in [7, 20, 21] {
        volume(&task.join(format!("imagesTr/case{case}_0000.npy")), case);
        volume(&task.join(format!("labelsTr/case{case}.npy")), case % 2);
    }
    let dataset = convert(&[task], None, &folder.path().join("set"));
    assert_eq!(
        named(&dataset),
        expected(&[("case20", 20), ("case21", 21), ("case7", 7)])
    );
    // Other files that end so keep their whole names.
    for (name, value) in [("a/s_0000", 1), ("b/s_0001", 2)] {
        volume(&folder.path().join(format!("series/{name}.npy")), value);
    }
    let dataset = convert(
        &[folder.path().join("series")],
        None,
        &folder.path().join("two"),
    );
    assert_eq!(named(&dataset), expected(&[("s_0000", 1), ("s_0001", 2)]));
    let summary = inspect(folder.path().join("two")).unwrap();
    assert_eq!(summary.splits[0].names, dataset.names(Split::Train));
}

#[test]
fn equal_names_are_told_apart_by_folder_place_or_number() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for (name, value) in [("cat/1", 1), ("cat/2", 2), ("dog/1", 3)] {
        volume(&at("classes").join(format!("{name}.npy")), value);
    }
    let dataset = convert(&[at("classes")], None, &at("set"));
    assert_eq!(
        named(&dataset),
        expected(&[("2", 2), ("cat/1", 1), ("dog/1", 3)])
    );

    // Two stacks of one name, and one of them alone.
    for (name, first) in [("x", 1), ("y", 3)] {
        for (kind, first) in [("images", first), ("labels", 0)] {
            let path = at(&format!("stacks/{name}/{kind}/all.npy"));
            volume(&path, 0);
            let values = [[first; 12], [first + 1; 12]].concat();
            fs::write(path, npy(&[2, 1, 2, 2, 3], "|u1", &values)).unwrap();
        }
    }
    let dataset = convert(&[at("stacks")], None, &at("stack"));
    let stacked = [
        ("x/images/all/0", 1),
        ("x/images/all/1", 2),
        ("y/images/all/0", 3),
        ("y/images/all/1", 4),
    ];
    assert_eq!(named(&dataset), expected(&stacked));
    let labels = at("stacks/x/labels/all.npy");
    let one = convert(&[at("stacks/x/images/all.npy")], Some(labels), &at("one"));
    assert_eq!(named(&one), expected(&[("all/0", 1), ("all/1", 2)]));
}

#[test]
fn an_index_may_be_without_names_and_not_with_wrong_ones() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for (name, value) in [("cat/a", 1), ("cat/b", 2), ("dog/c", 3)] {
        volume(&at("files").join(format!("{name}.npy")), value);
    }
    convert(&[at("files")], None, &at("set"));
    let path = at("set").join("dataset.toml");
    let text = fs::read_to_string(&path).unwrap();
    let of_train: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("names"))
        .collect();
    assert_eq!(of_train.len(), 2, "{text}");
    let open = |change: &dyn Fn(&str) -> String| {
        fs::write(&path, change(&text)).unwrap();
        Dataset::open(at("set")).map_err(|error| error.to_string())
    };
    let old = open(&|text| text.replace(of_train[0], "").replace(of_train[1], "")).unwrap();
    assert_eq!(old.names(Split::Train).len(), old.samples(Split::Train));
    assert!(
        old.names(Split::Train)[0].starts_with("train"),
        "{:?}",
        old.names(Split::Train)
    );
    assert!(old.given_names(Split::Train).is_empty());

    let twice = open(&|text| {
        text.replace("\"a\"", "\"same\"")
            .replace("\"b\"", "\"same\"")
            .replace("\"c\"", "\"same\"")
    });
    assert!(
        twice
            .unwrap_err()
            .contains("\"same\" among `names` for a second time")
    );
    let empty = open(&|text| text.replace("\"a\"", "\"\"")).unwrap_err();
    assert!(empty.contains("\"\" among `names`"), "{empty}");
    let few = open(&|text| text.replace(of_train[0], "names = []")).unwrap_err();
    assert!(few.contains("0 entries of `names`"), "{few}");
}

#[test]
fn files_of_an_index_name_their_samples() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for (name, value) in [
        ("a/x", 1),
        ("b/x", 2),
        ("b/y", 3),
        ("a/x-l", 0),
        ("b/x-l", 0),
        ("b/y-l", 0),
    ] {
        volume(&at(&format!("{name}.npy")), value);
    }
    let index = "format = 1\nkind = \"other\"\nsamples = 3\nchannels = 1\nextent = [2, 2, 3]\n\
                 dtype = \"int16\"\ntargets = [\"a\"]\nlabels = [2, 2, 3]\nlayout = \"DHW\"\n[train]\n\
                 files = [\"a/x.npy\", \"b/x.npy\"]\ntarget_files = [\"a/x-l.npy\", \"b/x-l.npy\"]\n\
                 universes = [0, 1]\n[test]\nfiles = [\"b/y.npy\"]\ntarget_files = [\"b/y-l.npy\"]\n\
                 universes = [2]\n";
    fs::write(at("dataset.toml"), index).unwrap();
    let dataset = Dataset::open(folder.path()).unwrap();
    assert_eq!(
        named(&dataset),
        expected(&[("a/x", 1), ("b/x", 2), ("y", 3)])
    );
}

/// Three training samples and one for validation, all with names; the second holds a NaN.
fn faulty(path: &Path, shape: VolumeShape) -> Dataset {
    let mut spec = spec(shape, DType::Float32, Layout::Contiguous);
    spec.labels = Some([1, 2, 2]);
    spec.targets = vec!["nothing".to_owned(), "organ".to_owned()];
    (spec.train, spec.validation, spec.test) = (vec![0, 1, 2], vec![3], Vec::new());
    let names = |names: &[&str]| {
        names
            .iter()
            .map(|&name| name.to_owned())
            .collect::<Vec<_>>()
    };
    let writer = DatasetWriter::create(path, &spec).unwrap();
    let given = [
        names(&["case1", "case7", "b/9"]),
        names(&["case2"]),
        Vec::new(),
    ];
    let mut writer = writer.naming(given).unwrap();
    for sample in 0..4 {
        let mut values = vec![1.0, 2.0, 3.0, 4.0];
        if sample == 1 {
            values[2] = f32::NAN;
        }
        let split = if sample < 3 {
            Split::Train
        } else {
            Split::Validation
        };
        let labels = Samples::I16(vec![0, 1, i16::from(sample == 3), 0]);
        writer
            .append_labeled(split, &Samples::F32(values), &labels)
            .unwrap();
    }
    writer.finish().unwrap()
}

#[test]
fn errors_name_the_sample_beside_its_file_and_position() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("set");
    let shape = [1, 1, 2, 2];
    let dataset = faulty(&path, shape);
    let looked = |classes: usize| {
        let check = DataCheck {
            dataset: &dataset,
            preparation: &Preparation::default(),
            accepted: Accepted {
                classes: Some(classes),
                ..Accepted::from(Transform::Identity)
            },
            scope: CheckScope::All,
            share: (
                if classes == 2 { 0 } else { 2 },
                if classes == 2 { 1 } else { 3 },
            ),
            threads: 1,
            cancel: &AtomicBool::new(false),
        };
        check.run().unwrap_err().to_string()
    };
    let text = looked(2);
    let place =
        "train.h5: key `full`, sample 1 of split train (`case7`), at (C, D, H, W) = (0, 0, 1, 0)";
    assert!(text.contains(place), "{text}");
    let text = looked(1);
    assert!(
        text.contains("sample 2 of split train (`b/9`), at"),
        "{text}"
    );

    // A file that is cut while it is read.
    let file = path.join("train.h5");
    let bytes = fs::read(&file).unwrap();
    let mut reader = dataset.reader(Split::Train);
    let mut out = Samples::new(DType::Float32);
    reader
        .read_volume(0, shape.map(|extent| 0..extent), &mut out)
        .unwrap();
    fs::OpenOptions::new()
        .write(true)
        .open(&file)
        .unwrap()
        .set_len(64)
        .unwrap();
    let cut = reader.read_volume(2, shape.map(|extent| 0..extent), &mut out);
    assert!(bytes.len() > 64);
    let text = cut.unwrap_err().to_string();
    assert!(text.contains("in sample `b/9`"), "{text}");
}
