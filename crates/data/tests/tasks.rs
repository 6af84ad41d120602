//! Task folders of nnU-Net and of the Medical Segmentation Decathlon become the datasets that they mean.

#![allow(clippy::unwrap_used, reason = "helper functions of tests")]

use crate::made;

use std::fs;
use std::path::{Path, PathBuf};

use made::whole;
use partita_data::{Conversion, ConvertSpec, Dataset, Split, inspect};
use partita_formats::{DType, DataError, Samples};

/// Extents X, Y, Z.
const EXTENTS: [i16; 3] = [4, 3, 2];
const VOXELS: usize = 24;

/// A NIfTI-1 file of float32.
fn nifti(path: &Path, extents: [i16; 3], values: &[f32]) {
    let mut bytes = vec![0; 352];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, &348_i32.to_le_bytes());
    let [x, y, z] = extents;
    for (dim, extent) in [3, x, y, z, 1, 1, 1, 1].into_iter().enumerate() {
        put(40 + 2 * dim, &extent.to_le_bytes());
    }
    put(70, &16_i16.to_le_bytes());
    put(72, &32_i16.to_le_bytes());
    put(108, &352_f32.to_le_bytes());
    put(344, b"n+1\0");
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// Values of a channel of a case.
fn values(case: usize, channel: usize) -> Vec<f32> {
    let value = |at: usize| (1000 * case + 100 * channel + at) as f32 + 0.5;
    (0..VOXELS).map(value).collect()
}

/// Labels that go round in these.
fn labels(case: usize, of: &[f32]) -> Vec<f32> {
    (0..VOXELS).map(|at| of[(case + at) % of.len()]).collect()
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn image(&self, name: &str, case: usize, channel: usize) {
        nifti(&self.at(name), EXTENTS, &values(case, channel));
    }

    /// Cases with this many channels, with labels in turn.
    fn task(&self, cases: usize, channels: usize, of: &[f32]) {
        for case in 0..cases {
            for channel in 0..channels {
                self.image(
                    &format!("task/imagesTr/c{case}_000{channel}.nii"),
                    case,
                    channel,
                );
            }
            let labels = labels(case, of);
            nifti(
                &self.at(&format!("task/labelsTr/c{case}.nii")),
                EXTENTS,
                &labels,
            );
        }
    }

    /// Two cases of a test.
    fn unlabeled(&self) {
        for channel in 0..2 {
            self.image(&format!("task/imagesTs/t0_000{channel}.nii"), 7, channel);
            self.image(&format!("task/imagesTs/t1_000{channel}.nii"), 8, channel);
        }
    }

    fn json(&self, text: &str) {
        fs::create_dir_all(self.at("task")).unwrap();
        fs::write(self.at("task/dataset.json"), text).unwrap();
    }

    fn asked(&self, source: &str) -> ConvertSpec {
        ConvertSpec {
            ..made::conversion(vec![self.at(source)], self.at("set"))
        }
    }
}

struct Converted {
    dataset: Dataset,
    notes: String,
    warnings: String,
}

fn convert(asked: &ConvertSpec) -> Result<Converted, DataError> {
    let _ = fs::remove_dir_all(&asked.out);
    let conversion = Conversion::find(asked)?;
    let (dataset, warnings) = conversion.write(|_| true)?.expect("nobody stopped it");
    Ok(Converted {
        dataset,
        notes: conversion.notes().join("\n"),
        warnings: warnings.join("\n"),
    })
}

/// A refusal, which leaves nothing, with these parts.
fn refused(asked: &ConvertSpec, parts: &[&str]) {
    let Err(error) = convert(asked) else {
        panic!("nothing was refused: {parts:?}");
    };
    let error = error.to_string();
    for part in parts {
        assert!(error.contains(part), "`{part}` is not in: {error}");
    }
    assert!(!asked.out.exists());
}

fn volume(dataset: &Dataset, split: Split, sample: usize) -> Vec<f32> {
    let mut out = Samples::new(dataset.dtype());
    let mut reader = dataset.reader(split);
    reader
        .read_volume(sample, whole(dataset.shape()), &mut out)
        .unwrap();
    let mut values = Vec::new();
    out.write_f32(&mut values);
    values
}

fn labels_of(dataset: &Dataset, split: Split, sample: usize) -> Vec<f32> {
    let mut out = Samples::new(partita_formats::DType::Int16);
    let [_, d, h, w] = dataset.shape();
    let mut reader = dataset.reader(split);
    reader
        .read_labels(sample, [0..1, 0..d, 0..h, 0..w], &mut out)
        .unwrap();
    let mut values = Vec::new();
    out.write_f32(&mut values);
    values
}

#[test]
fn the_files_of_a_case_are_its_channels_in_order() {
    let folder = Folder::new();
    folder.task(3, 2, &[0.0, 1.0, 2.0]);
    folder.json(
        r#"{"channel_names": {"0": "T2", "1": "ADC"}, "labels": {"background": 0, "PZ": 1, "TZ": 2},
            "numTraining": 3, "file_ending": ".nii"}"#,
    );
    let asked = folder.asked("task");
    let found = convert(&asked).unwrap();
    assert_eq!(found.dataset.shape(), [2, 2, 3, 4]);
    assert_eq!(found.dataset.targets(), ["background", "PZ", "TZ"]);
    assert_eq!(found.warnings, "");
    for case in 0..3 {
        let expected = [values(case, 0), values(case, 1)].concat();
        assert_eq!(
            volume(&found.dataset, Split::Train, case),
            expected,
            "{case}"
        );
        let expected = labels(case, &[0.0, 1.0, 2.0]);
        assert_eq!(
            labels_of(&found.dataset, Split::Train, case),
            expected,
            "{case}"
        );
    }
    let spec = found.dataset.spec();
    assert_eq!(spec["channels"].to_string(), "[\"T2\", \"ADC\"]");
    // The labels alone say what numbers in names are; nnU-Net 1 has no more, either.
    fs::remove_file(folder.at("task/dataset.json")).unwrap();
    let found = convert(&asked).unwrap();
    assert_eq!(found.dataset.shape(), [2, 2, 3, 4]);
    assert_eq!(found.dataset.targets(), ["class0", "class1", "class2"]);
    // The folder of the images finds its labels, too.
    let found = convert(&folder.asked("task/imagesTr")).unwrap();
    assert_eq!(found.dataset.samples(Split::Train), 3);
}

#[test]
fn a_case_without_one_of_its_channels_or_labels_is_refused() {
    let folder = Folder::new();
    folder.task(3, 2, &[0.0, 1.0, 2.0]);
    let asked = folder.asked("task");
    fs::remove_file(folder.at("task/imagesTr/c1_0001.nii")).unwrap();
    refused(
        &asked,
        &[
            "imagesTr/c1_0001.nii does not exist",
            "channel 1 of case `c1`",
        ],
    );
    folder.json(r#"{"modality": {"0": "T2", "1": "ADC"}}"#);
    refused(
        &asked,
        &[
            "imagesTr/c1_0001.nii does not exist",
            "channel 1 (`ADC`) of case `c1`",
        ],
    );
    folder.image("task/imagesTr/c1_0001.nii", 1, 1);
    folder.image("task/imagesTr/c2_0002.nii", 1, 1);
    refused(
        &asked,
        &[
            "c2_0002.nii: this is channel 2 of case `c2`",
            "the task has 2",
        ],
    );
    fs::remove_file(folder.at("task/imagesTr/c2_0002.nii")).unwrap();
    nifti(
        &folder.at("task/imagesTr/c0_0001.nii"),
        [4, 2, 3],
        &values(0, 1),
    );
    refused(
        &asked,
        &[
            "c0_0001.nii is 1x3x2x4, the first sample 1x2x3x4",
            "one shape",
        ],
    );
    folder.image("task/imagesTr/c0_0001.nii", 0, 1);
    fs::remove_file(folder.at("task/labelsTr/c2.nii")).unwrap();
    refused(
        &asked,
        &[
            "labelsTr/c2.nii does not exist",
            "imagesTr/c2_0000.nii is needed",
        ],
    );
}

#[test]
fn labels_that_are_named_as_a_channel_are_told() {
    let folder = Folder::new();
    folder.task(2, 2, &[0.0, 1.0]);
    for case in 0..2 {
        let labels = |name: String| folder.at("task/labelsTr").join(name);
        fs::rename(
            labels(format!("c{case}.nii")),
            labels(format!("c{case}_0000.nii")),
        )
        .unwrap();
    }
    let asked = folder.asked("task");
    refused(
        &asked,
        &[
            "labelsTr/c0_0001.nii does not exist",
            "if it is channel 1 of case `c0`, name the labels `c0.nii`",
        ],
    );
    folder.json(r#"{"channel_names": {"0": "T2", "1": "ADC"}}"#);
    refused(
        &asked,
        &[
            "labelsTr/c0_0000.nii: it is named as channel 0 (`T2`) of case `c0` is",
            "name it `c0.nii`",
        ],
    );
}

/// A slope makes floats of integers, in one file of several.
#[test]
fn the_element_type_holds_the_values_of_all_files() {
    let folder = Folder::new();
    folder.task(3, 2, &[0.0, 1.0]);
    let halved = |case: usize, channel: usize| (case, channel) == (1, 1);
    for (case, channel) in (0..6).map(|at| (at / 2, at % 2)) {
        let path = folder.at(&format!("task/imagesTr/c{case}_000{channel}.nii"));
        let mut bytes = fs::read(&path).unwrap();
        bytes.truncate(352);
        let slope = if halved(case, channel) { 0.5_f32 } else { 1.0 };
        for (at, value) in [(70, 4_i16), (72, 16)] {
            bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
        bytes[112..116].copy_from_slice(&slope.to_le_bytes());
        bytes.extend((0..VOXELS as i16).flat_map(i16::to_le_bytes));
        fs::write(&path, bytes).unwrap();
    }
    let mut asked = folder.asked("task");
    let dataset = convert(&asked).unwrap().dataset;
    assert_eq!(dataset.dtype(), DType::Float32);
    for case in 0..3 {
        let value = |(channel, at): (usize, usize)| {
            at as f32 * if halved(case, channel) { 0.5 } else { 1.0 }
        };
        let expected = (0..2 * VOXELS).map(|at| value((at / VOXELS, at % VOXELS)));
        let expected: Vec<f32> = expected.collect();
        assert_eq!(volume(&dataset, Split::Train, case), expected, "{case}");
    }
    asked.dtype = Some(DType::Int16);
    refused(
        &asked,
        &[
            "c1_0001.nii",
            "holds float64\nhelp: possible values: int16; `--dtype float32`",
        ],
    );
}

#[test]
fn a_number_in_the_name_of_a_case_is_no_channel() {
    let folder = Folder::new();
    for case in 0..2 {
        let name = format!("scan_000{case}.nii");
        folder.image(&format!("task/imagesTr/{name}"), case, 0);
        nifti(
            &folder.at(&format!("task/labelsTr/{name}")),
            EXTENTS,
            &labels(case, &[0.0, 1.0]),
        );
    }
    folder.json(r#"{"modality": {"0": "CT"}, "labels": {"0": "background", "1": "liver"}}"#);
    let found = convert(&folder.asked("task")).unwrap();
    assert_eq!(found.dataset.shape(), [1, 2, 3, 4]);
    assert_eq!(found.dataset.targets(), ["background", "liver"]);
    assert_eq!(volume(&found.dataset, Split::Train, 1), values(1, 0));
    // A file that holds all channels needs as many as the task names.
    folder.json(r#"{"modality": {"0": "T1", "1": "T2"}}"#);
    refused(
        &folder.asked("task"),
        &[
            "dataset.json: it names 2 channels (T1, T2)",
            "scan_0000.nii has 1",
        ],
    );
    folder.json("{");
    refused(&folder.asked("task"), &["dataset.json: it is no JSON"]);
}

#[test]
fn the_label_ignore_is_no_class() {
    let folder = Folder::new();
    folder.task(2, 1, &[0.0, 1.0, 2.0, 3.0]);
    folder.json(
        r#"{"channel_names": {"0": "CT"}, "file_ending": ".nii",
            "labels": {"background": 0, "organ": 1, "lesion": 2, "ignore": 3}}"#,
    );
    let mut asked = folder.asked("task");
    let found = convert(&asked).unwrap();
    assert_eq!(found.dataset.targets(), ["background", "organ", "lesion"]);
    assert_eq!(found.dataset.ignored(), Some(3));
    assert_eq!(
        labels_of(&found.dataset, Split::Train, 0)[..4],
        [0.0, 1.0, 2.0, 3.0]
    );
    let counted = inspect(found.dataset.path()).unwrap().splits[0]
        .classes
        .clone()
        .unwrap();
    assert_eq!((counted.counts, counted.ignored), (vec![12, 12, 12], 12));
    // Another number is asked for, and labels are joined.
    asked.ignore = Some(255);
    asked.map = vec!["2=1".parse().unwrap()];
    let found = convert(&asked).unwrap();
    assert_eq!(found.dataset.targets(), ["background", "organ"]);
    assert_eq!(found.dataset.ignored(), Some(255));
    assert_eq!(
        labels_of(&found.dataset, Split::Train, 0)[..4],
        [0.0, 1.0, 1.0, 255.0]
    );
}

#[test]
fn regions_are_their_single_labels_and_that_is_said() {
    let folder = Folder::new();
    folder.task(1, 1, &[0.0, 1.0, 2.0, 3.0, 4.0]);
    let labels = r#""labels": {"background": 0, "whole": [1, 2, 3], "core": [2, 3], "active": 3, "ignore": 4}"#;
    folder.json(&format!("{{{labels}, \"regions_class_order\": [1, 2, 3]}}"));
    let mut asked = folder.asked("task");
    let found = convert(&asked).unwrap();
    assert_eq!(
        found.dataset.targets(),
        ["background", "whole_rest", "core_rest", "active"]
    );
    assert_eq!(found.dataset.ignored(), Some(4));
    assert_eq!(
        labels_of(&found.dataset, Split::Train, 0)[..5],
        [0.0, 1.0, 2.0, 3.0, 4.0]
    );
    assert!(
        found
            .notes
            .contains("`whole` is whole_rest + core_rest + active"),
        "{}",
        found.notes
    );
    folder.json(&format!("{{{labels}}}"));
    refused(&asked, &["no `regions_class_order`", "`--classes`"]);
    asked.classes = ["none", "edema", "necrosis", "active"]
        .map(str::to_owned)
        .to_vec();
    let found = convert(&asked).unwrap();
    assert_eq!(
        found.dataset.targets(),
        ["none", "edema", "necrosis", "active"]
    );
    assert!(
        found.notes.contains("`core` is necrosis + active"),
        "{}",
        found.notes
    );
}

#[test]
fn images_of_a_test_are_a_test_or_left_out() {
    let folder = Folder::new();
    folder.task(4, 2, &[0.0, 1.0]);
    folder.unlabeled();
    let mut asked = folder.asked("task");
    asked.fractions = [0.5, 0.25, 0.25];
    let found = convert(&asked).unwrap();
    assert_eq!(samples(&found), [2, 1, 1]);
    let told = format!(
        "2 cases without labels are left out; `partita data convert {} --out NEW`",
        folder.at("task/imagesTs").display()
    );
    assert!(found.notes.contains(&told), "{}", found.notes);
    let mut other = asked.clone();
    other.dtype = Some(DType::Float32);
    other.keys.order = Some("WHD".parse().unwrap());
    other.map = vec!["1=0".parse().unwrap()];
    let notes = convert(&other).unwrap().notes;
    let told = "imagesTs --out NEW --layout WHD --dtype float32` makes";
    assert!(notes.contains(told), "{notes}");
    // With labels they are the test, and others are drawn to the other splits.
    nifti(
        &folder.at("task/labelsTs/t1.nii"),
        EXTENTS,
        &labels(8, &[0.0, 1.0]),
    );
    let found = convert(&asked).unwrap();
    assert_eq!(samples(&found), [3, 1, 1]);
    assert_eq!(
        volume(&found.dataset, Split::Test, 0),
        [values(8, 0), values(8, 1)].concat()
    );
    assert!(
        found.notes.contains("1 cases without labels are left out"),
        "{}",
        found.notes
    );
}

/// Samples of each split.
fn samples(found: &Converted) -> [usize; 3] {
    Split::ALL.map(|split| found.dataset.samples(split))
}

#[test]
fn images_of_a_test_without_labels_are_samples_alone() {
    let folder = Folder::new();
    folder.task(4, 2, &[0.0, 1.0]);
    folder.unlabeled();
    let alone = folder.asked("task/imagesTs");
    let found = convert(&alone).unwrap();
    assert_eq!(samples(&found), [0, 0, 2]);
    assert_eq!(found.dataset.shape(), [2, 2, 3, 4]);
    assert_eq!(
        volume(&found.dataset, Split::Test, 1),
        [values(8, 0), values(8, 1)].concat()
    );
    assert!(
        found.notes.contains("samples alone, for `partita infer`"),
        "{}",
        found.notes
    );
    let error = Dataset::open(&alone.out).unwrap_err().to_string();
    assert!(
        error.contains("has no answers") && error.contains("partita infer"),
        "{error}"
    );
    assert_eq!(
        Dataset::open_samples(&alone.out)
            .unwrap()
            .samples(Split::Test),
        2
    );
    let summary = inspect(&alone.out).unwrap();
    assert_eq!((summary.targets.len(), summary.splits[2].samples), (0, 2));
    let mut all = folder.asked("task");
    all.no_targets = true;
    let found = convert(&all).unwrap();
    assert_eq!(samples(&found), [0, 0, 6]);
    // One case of several numbers is told apart by the task alone.
    for channel in 0..2 {
        fs::remove_file(folder.at(&format!("task/imagesTs/t1_000{channel}.nii"))).unwrap();
    }
    refused(&alone, &["`t0_0000.nii` and 1 others", "channel_names"]);
    folder.json(r#"{"channel_names": {"0": "a", "1": "b"}}"#);
    assert_eq!(samples(&convert(&alone).unwrap()), [0, 0, 1]);
}

#[test]
fn floats_that_are_whole_numbers_are_labels_and_others_are_refused_with_their_place() {
    let folder = Folder::new();
    folder.task(2, 1, &[0.0, 1.0]);
    let mut halves = labels(1, &[0.0, 1.0]);
    halves[4 * 3 + 4 + 2] = 0.5;
    nifti(&folder.at("task/labelsTr/c1.nii"), EXTENTS, &halves);
    let asked = folder.asked("task");
    let place =
        "c1.nii: key `array`, at (C, D, H, W) = (0, 1, 1, 2) is 0.5, and classes are whole numbers";
    refused(&asked, &[place, "`--label-key`"]);
}

/// The advice starts from what is stored, as a conversion does.
#[test]
fn advice_on_renamed_labels_repeats_what_was_renamed() {
    let folder = Folder::new();
    folder.task(2, 1, &[0.0, 1.0, 2.0, 9.0]);
    let mut asked = folder.asked("task");
    asked.map = vec!["2=1".parse().unwrap()];
    let found = convert(&asked).unwrap();
    assert!(
        found.warnings.contains("`--map 2=1,9=2`"),
        "{}",
        found.warnings
    );
    asked.map = ["2=1", "9=2"].map(|pair| pair.parse().unwrap()).to_vec();
    let found = convert(&asked).unwrap();
    assert_eq!(found.warnings, "");
    assert_eq!(
        labels_of(&found.dataset, Split::Train, 0)[..4],
        [0.0, 1.0, 1.0, 2.0]
    );
}

#[test]
fn masks_of_0_and_255_are_told_and_renamed() {
    let folder = Folder::new();
    folder.task(2, 1, &[0.0, 255.0]);
    let mut asked = folder.asked("task");
    let found = convert(&asked).unwrap();
    assert_eq!(found.dataset.targets().len(), 256);
    for remedy in [
        "labels are 0, 255, so a model needs 256 channels",
        "`--map 255=1`",
        "`--ignore 255`",
    ] {
        assert!(found.warnings.contains(remedy), "{}", found.warnings);
    }
    assert_eq!(
        inspect(found.dataset.path()).unwrap().warnings.join("\n"),
        found.warnings
    );
    asked.map = vec!["255=1".parse().unwrap(), "7=1".parse().unwrap()];
    let found = convert(&asked).unwrap();
    assert_eq!(found.dataset.targets(), ["class0", "class1"]);
    assert_eq!(
        labels_of(&found.dataset, Split::Train, 1),
        labels(1, &[0.0, 1.0])
    );
    assert_eq!(
        found.warnings,
        "`--map` renames 7, and no label is that; labels are 0, 255"
    );
    asked.map = vec!["255=ignore".parse().unwrap()];
    let found = convert(&asked).unwrap();
    assert_eq!(found.dataset.ignored(), Some(-1));
    assert_eq!(labels_of(&found.dataset, Split::Train, 0)[..2], [0.0, -1.0]);
    assert!(
        found.warnings.contains("are class 0 or ignored"),
        "{}",
        found.warnings
    );
    // A label that the task does not name is refused with what would make it one.
    asked.map.clear();
    folder.json(r#"{"labels": {"background": 0, "organ": 1}}"#);
    refused(
        &asked,
        &[
            "255 is no class: they are numbered from 0 to 1",
            "`--map 255=N`",
        ],
    );
    // Nothing but the ignored label teaches nothing.
    folder.task(2, 1, &[255.0]);
    asked.ignore = Some(255);
    let found = convert(&asked).unwrap();
    assert!(
        found
            .warnings
            .contains("are 255, which is ignored, so none counts"),
        "{}",
        found.warnings
    );
}

#[test]
fn class_numbers_of_a_table_are_renamed_too() {
    let folder = Folder::new();
    let table = folder.at("classes.csv");
    for case in 0..9 {
        folder.image(&format!("scans/c{case}.nii"), case, 0);
    }
    let write = |other: &str| {
        let rows =
            (0..9).map(|case| format!("c{case},{}\n", if case % 3 == 0 { other } else { "0" }));
        fs::write(&table, format!("file,class\n{}", rows.collect::<String>())).unwrap();
    };
    write("255");
    let mut asked = folder.asked("scans");
    asked.targets = Some(table.clone());
    let found = convert(&asked).unwrap();
    assert_eq!(found.dataset.targets().len(), 256);
    assert!(
        found.warnings.contains("`--map 255=1`"),
        "{}",
        found.warnings
    );
    asked.map = vec!["255=1".parse().unwrap()];
    asked.classes = ["ring", "spiral"].map(str::to_owned).to_vec();
    let found = convert(&asked).unwrap();
    assert_eq!(
        (found.dataset.targets(), found.warnings.as_str()),
        (&asked.classes[..], "")
    );
    let mut labels = Samples::new(partita_formats::DType::Int16);
    let mut reader = found.dataset.reader(Split::Train);
    let classes = (0..9).map(|sample| {
        reader
            .read_labels(sample, [0..1, 0..1, 0..1, 0..1], &mut labels)
            .unwrap();
        labels.clone()
    });
    let expected = (0..9).map(|case| Samples::I16(vec![i16::from(case % 3 == 0)]));
    assert!(classes.eq(expected));
    asked.map.clear();
    refused(
        &asked,
        &[
            "classes.csv, line 2: 255 is no class: they are numbered from 0 to 1",
            "`--map 255=N`",
        ],
    );
    // Numbers below 0 are names where nothing else is said of them.
    write("-1");
    asked.classes.clear();
    assert_eq!(convert(&asked).unwrap().dataset.targets(), ["-1", "0"]);
    asked.ignore = Some(-1);
    let found = convert(&asked).unwrap();
    assert_eq!(
        (found.dataset.targets().len(), found.dataset.ignored()),
        (1, Some(-1))
    );
}

#[test]
fn labels_of_other_ends_and_without_images_are_found() {
    let folder = Folder::new();
    for case in 0..2 {
        folder.image(&format!("photos/images/c{case}.nii"), case, 0);
        nifti(
            &folder.at(&format!("photos/masks/c{case}.nii")),
            EXTENTS,
            &labels(case, &[0.0, 1.0]),
        );
    }
    let masks = |name: &str| folder.at("photos/masks").join(name);
    fs::copy(masks("c1.nii"), masks("c9.nii")).unwrap();
    let found = convert(&folder.asked("photos")).unwrap();
    assert_eq!(found.dataset.samples(Split::Train), 2);
    assert!(
        found.notes.contains("1 files of labels belong to no image"),
        "{}",
        found.notes
    );
    // A photograph's mask has another end than the photograph.
    let pictures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/formats/pictures");
    let picture = |end: &str| find(&pictures, end).expect("a picture");
    let folder = Folder::new();
    fs::create_dir_all(folder.at("photos/images")).unwrap();
    fs::create_dir_all(folder.at("photos/masks")).unwrap();
    fs::copy(picture(".jpg"), folder.at("photos/images/a.jpg")).unwrap();
    fs::copy(picture(".png"), folder.at("photos/masks/a.png")).unwrap();
    // It is paired, and refused as it has colors.
    refused(&folder.asked("photos"), &["masks/a.png", "class indices"]);
}

/// The first file below a folder whose name has this end.
fn find(folder: &Path, end: &str) -> Option<PathBuf> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    paths.into_iter().find_map(|path| {
        if path.is_dir() {
            return find(&path, end);
        }
        path.to_string_lossy().ends_with(end).then_some(path)
    })
}

#[test]
fn what_is_not_read_is_named() {
    let folder = Folder::new();
    folder.json(
        r#"{"channel_names": {"0": "CT"}, "labels": {"background": 0, "organ": 1}, "file_ending": ".nrrd"}"#,
    );
    fs::create_dir_all(folder.at("task/imagesTr")).unwrap();
    for name in ["a_0000.nrrd", "b_0000.nrrd"] {
        fs::write(folder.at("task/imagesTr").join(name), "NRRD0004").unwrap();
    }
    refused(
        &folder.asked("task"),
        &["task holds no samples", "2 of .nrrd", "`.nii.gz`"],
    );
    folder.task(1, 1, &[0.0, 1.0]);
    let found = convert(&folder.asked("task"));
    let told = "files of formats that are not read are left out: 2 of .nrrd";
    assert!(found.unwrap().notes.contains(told));
    // There are no numbers to rename.
    let mut asked = folder.asked("task");
    asked.no_targets = true;
    asked.map = vec!["1=0".parse().unwrap()];
    refused(&asked, &["`--map` renames class numbers"]);
}
