//! Faults of data are found before a training, and a summary counts them.

#![allow(clippy::unwrap_used, reason = "helper functions of tests")]

use crate::made;

use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use made::{Random, SHAPE, npy, spec};
use partita_data::{
    Dataset, DatasetSpec, DatasetWriter, Inspected, Kind, Split, ValueScope, inspect_path, picture,
};
use partita_formats::{DType, DataError, Layout, Samples};
use partita_input::{Accepted, CheckScope, DataCheck, DataChecked, FittedStep, Preparation};
use partita_program::Transform;

const SAMPLES: usize = 40;

/// Floats above 0, and a class per voxel, of which `change` makes others.
fn make(path: &Path, mut change: impl FnMut(usize, &mut [f32], &mut [i16])) -> Dataset {
    let [_, d, h, w] = SHAPE;
    let spec = DatasetSpec {
        kind: Kind::Segmentation,
        targets: ["nothing", "organ", "lesion"].map(str::to_owned).to_vec(),
        labels: Some([d, h, w]),
        train: (0..SAMPLES as u64).collect(),
        validation: vec![90, 91],
        test: Vec::new(),
        ..spec(SHAPE, DType::Float32, Layout::Contiguous)
    };
    let mut writer = DatasetWriter::create(path, &spec).unwrap();
    let mut sample = 0;
    for split in Split::ALL {
        while writer.next_universe(split).is_some() {
            let mut random = Random(sample as u64 + 1);
            let elements = SHAPE.iter().product::<usize>();
            let mut values: Vec<f32> = (0..elements)
                .map(|_| 1.0 + random.below(9) as f32)
                .collect();
            let mut labels: Vec<i16> = (0..d * h * w).map(|_| random.below(3) as i16).collect();
            change(sample, &mut values, &mut labels);
            let (values, labels) = (Samples::F32(values), Samples::I16(labels));
            writer.append_labeled(split, &values, &labels).unwrap();
            sample += 1;
        }
    }
    writer.finish().unwrap()
}

#[derive(Clone, Copy)]
struct Look<'l> {
    scope: CheckScope,
    share: (usize, usize),
    classes: usize,
    ignored: Option<i64>,
    steps: &'l [FittedStep],
}

impl Look<'_> {
    const QUICK: Look<'static> = Look {
        scope: CheckScope::Quick,
        share: (0, 1),
        classes: 3,
        ignored: None,
        steps: &[],
    };
    const ALL: Look<'static> = Look {
        scope: CheckScope::All,
        ..Self::QUICK
    };

    fn at(&self, dataset: &Dataset) -> Result<DataChecked, DataError> {
        DataCheck {
            dataset,
            preparation: &Preparation::new(self.steps.to_vec()),
            accepted: Accepted {
                classes: Some(self.classes),
                ignored: self.ignored,
                ..Transform::Identity.into()
            },
            scope: self.scope,
            share: self.share,
            threads: 3,
            cancel: &AtomicBool::new(false),
        }
        .run()
    }
}

fn says(result: Result<DataChecked, DataError>, parts: &[&str]) {
    let error = result.unwrap_err().to_string();
    for part in parts {
        assert!(error.contains(part), "`{part}` is not in: {error}");
    }
}

#[test]
fn sound_data_pass_and_a_quick_look_takes_some_samples() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = make(&folder.path().join("set"), |_, _, _| {});
    let quick = Look::QUICK.at(&dataset).unwrap();
    assert_eq!((quick.samples, quick.warnings.len()), (16 + 2, 0));
    assert_eq!(Look::ALL.at(&dataset).unwrap().samples, SAMPLES + 2);
    let none = Look {
        scope: CheckScope::None,
        ..Look::ALL
    };
    assert_eq!(none.at(&dataset).unwrap(), DataChecked::default());
    let shares = (0..3).map(|index| Look {
        share: (index, 3),
        ..Look::ALL
    });
    let samples: usize = shares.map(|look| look.at(&dataset).unwrap().samples).sum();
    assert_eq!(samples, SAMPLES + 2);
}

#[test]
fn a_value_that_is_not_finite_is_named_with_file_key_sample_and_position() {
    let folder = tempfile::tempdir().unwrap();
    let [_, d, h, w] = SHAPE;
    // Two samples between those of a quick look, and the last one.
    let bad = |samples: &'static [usize]| {
        move |sample: usize, values: &mut [f32], _: &mut [i16]| {
            if samples.contains(&sample) {
                values[d * h * w + h * w + 2 * w + 3] = f32::INFINITY;
            }
        }
    };
    let dataset = make(&folder.path().join("one"), bad(&[29, 12]));
    Look::QUICK.at(&dataset).unwrap();
    let place = "key `full`, sample 12 of split train, at (C, D, H, W) = (1, 1, 2, 3): inf is not";
    says(Look::ALL.at(&dataset), &["train.h5", place]);
    let second_half = Look {
        share: (1, 2),
        ..Look::ALL
    };
    says(second_half.at(&dataset), &["sample 29 of split train"]);
    let last = make(&folder.path().join("last"), bad(&[SAMPLES - 1]));
    says(Look::QUICK.at(&last), &["sample 39 of split train"]);
    let validation = make(&folder.path().join("validation"), bad(&[SAMPLES + 1]));
    says(
        Look::QUICK.at(&validation),
        &["validation.h5", "sample 1 of split validation"],
    );
}

#[test]
fn what_steps_and_classes_do_not_allow_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = make(&folder.path().join("set"), |sample, values, labels| {
        if sample == 0 {
            values[1] = -1.0;
        }
        labels[7] = 2;
    });
    Look::QUICK.at(&dataset).unwrap();
    let log = Look {
        steps: &[FittedStep::Log],
        ..Look::QUICK
    };
    says(
        log.at(&dataset),
        &["sample 0 of split train", "log of -1 is not a number"],
    );
    let two = Look {
        classes: 2,
        ..Look::QUICK
    };
    says(
        two.at(&dataset),
        &[
            "key `labels`, sample 0",
            "2 is not a class index",
            "the classes of the model",
        ],
    );
}

#[test]
fn labels_that_teach_nothing_are_told_or_refused_once_all_were_read() {
    let folder = tempfile::tempdir().unwrap();
    let all = |name: &str, class: i16, other: (usize, i16)| {
        make(&folder.path().join(name), |sample, _, labels| {
            labels.fill(class);
            if sample == other.0 {
                labels[17] = other.1;
            }
        })
    };
    let ignoring = Look {
        ignored: Some(2),
        ..Look::QUICK
    };
    for look in [
        ignoring,
        Look {
            share: (1, 2),
            ..ignoring
        },
        Look {
            scope: CheckScope::All,
            ..ignoring
        },
    ] {
        says(
            look.at(&all("ignored", 2, (usize::MAX, 0))),
            &["no label of split train counts: all are 2", "`--map 2=N`"],
        );
        fs::remove_dir_all(folder.path().join("ignored")).unwrap();
        // One label of a sample between those of a quick look counts.
        look.at(&all("ignored", 2, (5, 0))).unwrap();
        fs::remove_dir_all(folder.path().join("ignored")).unwrap();
    }
    let one = Look::QUICK.at(&all("one", 1, (usize::MAX, 0))).unwrap();
    let told =
        ["train", "validation"].map(|split| format!("all labels of split {split} are class 1,"));
    assert_eq!(one.warnings.len(), 2, "{:?}", one.warnings);
    for (warning, told) in one.warnings.iter().zip(told) {
        assert!(warning.contains(&told), "{warning}");
    }
    let two = Look::QUICK.at(&all("two", 1, (5, 0))).unwrap();
    assert_eq!(two.warnings.len(), 1, "{:?}", two.warnings);
    assert!(two.warnings[0].contains("split validation"));
}

#[test]
fn a_constant_channel_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let channel = SHAPE[1..].iter().product::<usize>();
    let dataset = make(&folder.path().join("set"), |_, values, _| {
        values[channel..2 * channel].fill(7.0);
    });
    let warnings = Look::QUICK.at(&dataset).unwrap().warnings;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(
        warnings[0].contains("channel 1 is 7 everywhere"),
        "{warnings:?}"
    );
}

#[test]
fn a_summary_counts_what_is_not_finite_by_channel_and_classes_by_split() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("set");
    let channel = SHAPE[1..].iter().product::<usize>();
    let mut counts = [[0u64; 3]; 2];
    make(&path, |sample, values, labels| {
        if sample == 2 {
            values[channel + 1] = f32::NAN;
            values[channel + 2] = f32::NEG_INFINITY;
        }
        labels[0] = 0;
        let of_split = &mut counts[usize::from(sample >= SAMPLES)];
        labels
            .iter()
            .for_each(|&class| of_split[class as usize] += 1);
    });
    let Inspected::Dataset(summary) = inspect_path(&path, ValueScope::First).unwrap() else {
        panic!("a dataset");
    };
    for (split, counts) in summary.splits.iter().zip(counts) {
        let classes = split.classes.as_ref().unwrap();
        assert_eq!(
            (classes.counts.as_slice(), classes.invalid),
            (&counts[..], 0)
        );
    }
    assert_eq!(summary.splits[2].classes, None);
    let values = summary.splits[0].values.as_ref().unwrap();
    let faults: Vec<_> = values
        .channels
        .iter()
        .map(|one| (one.nan, one.infinite))
        .collect();
    assert_eq!(faults[..2], [(0, 0), (1, 1)]);
    assert_eq!((values.min, values.max), (1.0, 9.0));
    assert!(values.channels[0].standard_deviation > 2.0);
    // An index of fewer classes.
    let index = path.join("dataset.toml");
    let text = fs::read_to_string(&index).unwrap();
    let fewer = text
        .replace(", \"lesion\"", "")
        .replace("    \"lesion\",\n", "");
    fs::write(&index, fewer).unwrap();
    let Inspected::Dataset(summary) = inspect_path(&path, ValueScope::All).unwrap() else {
        panic!("a dataset");
    };
    let classes = summary.splits[0].classes.as_ref().unwrap();
    assert_eq!(
        (classes.counts.as_slice(), classes.invalid),
        (&counts[0][..2], counts[0][2])
    );
}

#[test]
fn any_file_of_arrays_can_be_inspected() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.npy");
    let values: Vec<f32> = (0..2 * 3 * 5 * 7)
        .map(|at| match at {
            150 => f32::NAN,
            at if at < 105 => 1.0,
            at => at as f32,
        })
        .collect();
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|value: &f32| value.to_le_bytes())
        .collect();
    fs::write(&path, npy(&[2, 3, 5, 7], "<f4", &bytes)).unwrap();
    let Inspected::File(summary) = inspect_path(&path, ValueScope::First).unwrap() else {
        panic!("no dataset");
    };
    let array = &summary.arrays[0];
    assert_eq!(array.array.shape, [2, 3, 5, 7]);
    let all = array.values.unwrap();
    assert_eq!(
        (all.elements, all.nan, all.min, all.max),
        (210, 1, 1.0, 209.0)
    );
    let [first, second] = array.channels.as_slice() else {
        panic!("two channels: {array:?}");
    };
    assert_eq!(
        (first.nan, first.max, first.standard_deviation),
        (0, 1.0, 0.0)
    );
    assert_eq!((second.nan, second.min), (1, 105.0));
    let formats = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/formats");
    for entry in fs::read_dir(formats).unwrap() {
        let path = entry.unwrap().path();
        // Folders of files, tables, and arrays that are no numbers are none of these.
        if let Ok(Inspected::File(summary)) = inspect_path(&path, ValueScope::First) {
            assert!(!summary.arrays.is_empty(), "{path:?}");
            assert!(picture(&path).is_ok(), "{path:?}");
        }
    }
    fs::write(&path, "no array").unwrap();
    assert!(inspect_path(&path, ValueScope::First).is_err());
}

#[test]
fn a_picture_shows_samples_below_one_another() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("set");
    make(&path, |_, _, _| {});
    let png = picture(&path).unwrap();
    let file = folder.path().join("picture.png");
    fs::write(&file, &png).unwrap();
    let Inspected::File(summary) = inspect_path(&file, ValueScope::First).unwrap() else {
        panic!("an image");
    };
    let [height, width, colors] = summary.arrays[0].array.shape[..] else {
        panic!("H, W, C");
    };
    // Four rows; a tile for each channel, and one of classes.
    let [channels, _, h, w] = SHAPE;
    let factor = 192 / h.max(w);
    assert_eq!(colors, 3);
    assert_eq!(height, 4 * (h * factor + 4) + 4);
    assert_eq!(width, (channels + 1) * (w * factor + 4) + 4);
}
