//! Trainings, evaluations and predictions of volumes of different extents.

use super::classes::train;
use crate::train::{ForwardRequest, InferRequest, InferResult, VolumeMode, evaluate, infer};
use partita_data::{DatasetSpec, DatasetWriter, Inspected, Kind, Split, ValueScope, inspect_path};
use partita_formats::{DType, Layout, Samples};
use partita_input::{PredictionKind, predictions_key};
use partita_site::{Context, Environment, full_text};
use serde_json::Value;
use std::fs;
use tempfile::TempDir;

const TRAIN: [[usize; 3]; 5] = [[9, 8, 13], [6, 10, 8], [12, 9, 8], [8, 8, 8], [6, 10, 8]];
const VALIDATION: [[usize; 3]; 3] = [[10, 8, 8], [6, 11, 9], [10, 8, 8]];
/// Its outputs look two voxels far.
const NEAR: &str = "model near
input x channels=1 extent=8x8x8
c1 = conv x filters=4 kernel=3 pad=1 bias=true init=he_normal
a1 = relu c1
c2 = conv a1 filters=2 kernel=3 pad=1 bias=true
loss = softmax_cross_entropy c2
";
const CROPS: &str = "[augmentation]\nflip = [\"depth\"]\ncrop = [8, 8, 8]\ncrops_per_volume = 2\n";

fn values([d, h, w]: [usize; 3], seed: usize) -> Vec<i16> {
    let positions = (0..d).flat_map(|z| (0..h).map(move |y| (z, y)));
    let rows = positions.flat_map(|(z, y)| (0..w).map(move |x| (z, y, x)));
    rows.map(|(z, y, x)| ((z * 7 + y * 5 + x * 3 + seed * 11) % 19) as i16 * 10)
        .collect()
}

fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("net.model"), NEAR).unwrap();
    let spec = DatasetSpec {
        kind: Kind::Segmentation,
        shape: [1, 12, 11, 13],
        dtype: DType::Int16,
        targets: ["dark", "bright"].map(str::to_owned).to_vec(),
        labels: Some([12, 11, 13]),
        layout: Layout::Contiguous,
        train: (0..5).collect(),
        validation: (5..8).collect(),
        test: Vec::new(),
        spec: toml::Table::new(),
    };
    let extents = [TRAIN.to_vec(), VALIDATION.to_vec(), Vec::new()];
    let path = folder.path().join("set");
    let mut writer = DatasetWriter::create_of_extents(path, &spec, Some(extents)).unwrap();
    let all = [(Split::Train, &TRAIN[..]), (Split::Validation, &VALIDATION)];
    for (split, extents) in all {
        for (seed, &extent) in extents.iter().enumerate() {
            let values = values(extent, seed + 10 * split as usize);
            let labels = values.iter().map(|&value| i16::from(value > 120)).collect();
            let (values, labels) = (Samples::I16(values), Samples::I16(labels));
            writer.append_labeled(split, &values, &labels).unwrap();
        }
    }
    writer.finish().unwrap();
    folder
}

fn run(strategy: &str, ranks: usize, more: &str) -> String {
    format!(
        "batch = 4\nepochs = 2\nranks = {ranks}\nstrategy = \"{strategy}\"\n\
         transform = [\"standardize\"]\n{more}[schedule]\nlearning_rate = 0.01\n"
    )
}

fn losses(result: &Value) -> Vec<f64> {
    let epochs = result["epochs"].as_array().unwrap().iter();
    epochs
        .flat_map(|epoch| [&epoch["training_loss"], &epoch["validation"]["loss"]])
        .map(|loss| loss.as_f64().unwrap())
        .collect()
}

#[test]
fn every_strategy_trains_on_the_same_crops_from_files_and_from_memory() {
    let folder = folder();
    let weights = folder.path().join("out/weights.safetensors");
    let one = train(&folder, &run("data=1", 1, CROPS)).unwrap();
    assert_eq!(one["epochs"][0]["samples"], 10);
    // Volumes that are joined of tiles.
    assert_eq!(one["epochs"][0]["validation"]["samples"], 3);
    for (strategy, ranks) in [("data=2", 2), ("depth=2", 2), ("data=2,width=2", 4)] {
        let several = train(&folder, &run(strategy, ranks, CROPS)).unwrap();
        for (a, b) in losses(&one).into_iter().zip(losses(&several)) {
            assert!((a / b - 1.0).abs() < 1e-4, "{strategy}: {a} and {b}");
        }
        let from_files = fs::read(&weights).unwrap();
        let store = format!(
            "[data]\npath = \"{}\"\nstore = \"memory\"\n{CROPS}",
            folder.path().join("set").display()
        );
        let text = run(strategy, ranks, &store);
        let kept = train_with_data(&folder, &text).unwrap();
        assert_eq!(losses(&kept), losses(&several), "{strategy}");
        assert!(fs::read(&weights).unwrap() == from_files, "{strategy}");
        // Each voxel is read once: 2 bytes of its value, 2 of its class. The loss of joined outputs reads classes itself.
        let voxels = |extents: &[[usize; 3]]| -> usize {
            extents
                .iter()
                .map(|extent| extent.iter().product::<usize>())
                .sum()
        };
        let bytes = 4 * voxels(&TRAIN) + 2 * voxels(&VALIDATION);
        let read = [0, 1].map(|epoch| kept["epochs"][epoch]["read_bytes"].as_u64().unwrap());
        assert_eq!(read, [bytes as u64, 0], "{strategy}");
    }
}

#[test]
fn crops_on_foreground_are_the_same_under_every_strategy() {
    let folder = folder();
    let table = CROPS.replace("[8, 8, 8]", "{ extent = [8, 8, 8], foreground = 0.5 }");
    let one = train(&folder, &run("data=1", 1, &table)).unwrap();
    let beside = format!("{CROPS}foreground = 0.5\n");
    assert_eq!(
        losses(&train(&folder, &run("data=1", 1, &beside)).unwrap()),
        losses(&one)
    );
    let of_model = table.replace("extent = [8, 8, 8], ", "");
    let of_model = train(&folder, &run("data=1", 1, &of_model)).unwrap();
    assert_eq!(losses(&of_model), losses(&one));
    let without = train(&folder, &run("data=1", 1, CROPS)).unwrap();
    assert_ne!(losses(&without)[0], losses(&one)[0]);
    let two = train(&folder, &run("depth=2", 2, &table)).unwrap();
    for (a, b) in losses(&one).into_iter().zip(losses(&two)) {
        assert!((a / b - 1.0).abs() < 1e-4, "{a} and {b}");
    }
    for (text, part) in [
        (
            table.clone() + "foreground = 0.5\n",
            "in the table `crop` or beside it",
        ),
        (
            table.replace("extent", "extents"),
            "`augmentation.crop.extent`",
        ),
        (table.replace("0.5", "33"), "from 0 to 1"),
        (
            beside.replace("crop = [8, 8, 8]\ncrops_per_volume = 2\n", ""),
            "only with `crop`",
        ),
        (
            beside.replace("crops_per_volume = 2", "crop_positions = \"grid\""),
            "`augmentation.crop_positions`",
        ),
    ] {
        let error = train(&folder, &run("data=1", 1, &text)).unwrap_err();
        assert!(error.contains(part), "`{part}` is not in: {error}");
    }
}

/// A training whose run file has a table of data.
fn train_with_data(folder: &TempDir, run: &str) -> Result<Value, String> {
    let (head, tables) = run.split_once("[data]").unwrap();
    let at = folder.path().display();
    let text = format!(
        "model = \"{at}/net.model\"\noutput = \"{at}/out\"\nseed = 1\n{head}[data]{tables}"
    );
    super::classes::train_text(folder, &text)
}

#[test]
fn without_crops_the_line_to_type_is_named() {
    let folder = folder();
    let error = train(&folder, &run("data=1", 1, "")).unwrap_err();
    for part in [
        "from [6, 8, 8] to [12, 11, 13]",
        "`crop = [8, 8, 8]` in `[augmentation]`",
    ] {
        assert!(error.contains(part), "`{part}` is not in: {error}");
    }
}

fn forward(folder: &TempDir, volumes: Option<VolumeMode>, ranks: usize) -> ForwardRequest {
    ForwardRequest {
        run_file: folder.path().join("run.toml"),
        ranks: Some(ranks),
        strategy: Some(format!("depth={ranks}")),
        volumes,
        ..ForwardRequest::default()
    }
}

fn predict(
    folder: &TempDir,
    volumes: Option<VolumeMode>,
    ranks: usize,
    (out, kind): (&str, PredictionKind),
) -> Result<InferResult, String> {
    let request = InferRequest {
        forward: forward(folder, volumes, ranks),
        out: folder.path().join(out),
        kind,
        units: crate::train::PredictionUnits::Physical,
    };
    let context = Context::new(Environment::default());
    let found = infer(&context, &request).map_err(|error| full_text(&error))?;
    Ok(found.expect("ranks are threads"))
}

/// Extents D, H, W and channels of a NIfTI file, and its values: (C, D, H, W) floats.
fn nifti(path: &str) -> ([usize; 4], Vec<f32>) {
    let bytes = fs::read(path).unwrap();
    let dim = |at: usize| usize::from(bytes[40 + 2 * at]) + 256 * usize::from(bytes[41 + 2 * at]);
    let (words, _) = bytes[352..].as_chunks::<4>();
    let values = words.iter().map(|&word| f32::from_le_bytes(word));
    ([dim(4), dim(3), dim(2), dim(1)], values.collect())
}

#[test]
fn volumes_are_predicted_and_evaluated_with_their_own_extents() {
    let folder = folder();
    train(&folder, &run("data=1", 1, CROPS)).unwrap();
    let scores = PredictionKind::Scores;
    let found = predict(&folder, None, 1, ("scores.nii", scores)).unwrap();
    assert_eq!(
        (found.volumes, found.samples, found.files.len()),
        ("tiles", 3, 3)
    );
    assert_eq!(found.extents.as_deref(), Some(&VALIDATION[..]));
    let (mut loss, mut counts) = (0.0, [[0.0f64; 2]; 2]);
    let one: Vec<_> = found.files.iter().map(|file| nifti(file)).collect();
    for (at, ((shape, scores), extent)) in one.iter().zip(VALIDATION).enumerate() {
        let [d, h, w] = extent;
        assert_eq!(*shape, [2, d, h, w]);
        let positions = d * h * w;
        assert_eq!(scores.len(), 2 * positions);
        let values = values(extent, at + 10);
        for (position, value) in values.into_iter().enumerate() {
            let of = |class: usize| f64::from(scores[class * positions + position]);
            let label = usize::from(value > 120);
            loss += ((of(0).exp() + of(1).exp()).ln() - of(label)) / positions as f64 / 3.0;
            counts[usize::from(of(1) > of(0))][label] += 1.0;
        }
    }
    // Ranks split tiles, and give the same.
    let found = predict(&folder, Some(VolumeMode::Tiles), 2, ("two.nii", scores)).unwrap();
    for (file, (shape, scores)) in found.files.iter().zip(&one) {
        let (other, values) = nifti(file);
        assert_eq!(other, *shape);
        for (a, b) in values.iter().zip(scores) {
            assert!((a - b).abs() < 1e-5, "{a} and {b}");
        }
    }
    // The loss of an evaluation is the mean over volumes of these.
    let context = Context::new(Environment::default());
    for ranks in [1, 2] {
        let found = evaluate(&context, &forward(&folder, None, ranks))
            .unwrap()
            .unwrap();
        assert_eq!((found.volumes, found.metrics.samples), ("tiles", 3));
        assert!(
            (found.metrics.loss / loss - 1.0).abs() < 1e-5,
            "{}",
            found.metrics.loss
        );
        let classes = found.metrics.classification.unwrap().classes;
        for class in [0, 1] {
            let [hits, others] = [counts[class][class], counts[class][1 - class]];
            let dice = 2.0 * hits / (2.0 * hits + others + counts[1 - class][class]);
            assert!((classes[class].dice.unwrap() - dice).abs() < 1e-6);
        }
    }
}

/// The last validation has the numbers of an evaluation of the weights by tiles, bit by bit; without tiles, crops count.
#[test]
fn validation_joins_the_tiles_of_volumes_of_several_extents() {
    let folder = folder();
    let context = Context::new(Environment::default());
    for (strategy, ranks) in [("data=1", 1), ("data=3", 3), ("depth=2,width=2", 4)] {
        let result = train(&folder, &run(strategy, ranks, CROPS)).unwrap();
        let request = ForwardRequest {
            strategy: Some(strategy.to_owned()),
            ..forward(&folder, None, ranks)
        };
        let found = evaluate(&context, &request).unwrap().unwrap();
        let metrics = serde_json::to_value(&found.metrics).unwrap();
        let last = &result["epochs"][1]["validation"];
        for key in ["loss", "samples", "classification"] {
            assert_eq!(last[key], metrics[key], "{strategy}: {key}");
        }
        assert_eq!(last["samples"], 3);
        assert_eq!(result["validation_tiles"]["weights"], "gaussian");
    }
    let text = format!("{CROPS}validation_crops = \"grid\"\n");
    let result = train(&folder, &run("data=1", 1, &text)).unwrap();
    // A grid of 2, of 1 x 2 x 2 and of 2.
    assert_eq!(result["epochs"][0]["validation"]["samples"], 8);
    assert!(result["validation_tiles"].is_null());
}

#[test]
fn predictions_of_several_extents_are_arrays_of_their_own() {
    let folder = folder();
    train(&folder, &run("data=1", 1, CROPS)).unwrap();
    let classes = PredictionKind::Classes;
    let found = predict(&folder, None, 1, ("classes.h5", classes)).unwrap();
    assert_eq!(found.shape, [3, 12, 11, 13]);
    let Inspected::File(file) = inspect_path(&found.file, ValueScope::First).unwrap() else {
        panic!("no dataset");
    };
    for (sample, extent) in VALIDATION.into_iter().enumerate() {
        let key = predictions_key(sample, 3);
        let found = file.arrays.iter().find(|found| found.array.key == key);
        assert_eq!(found.unwrap().array.shape, extent);
    }
    let refused = predict(&folder, None, 1, ("classes.npy", classes)).unwrap_err();
    for part in ["classes.npy would hold one array", ".nii.gz", "classes.h5`"] {
        assert!(refused.contains(part), "`{part}` is not in: {refused}");
    }
    let whole = Some(VolumeMode::Whole);
    let refused = predict(&folder, whole, 1, ("classes.h5", classes)).unwrap_err();
    for part in [
        "`--volumes whole`",
        "from [6, 8, 8] to [12, 11, 13]",
        "`--volumes tiles`",
    ] {
        assert!(refused.contains(part), "`{part}` is not in: {refused}");
    }
    let crops = predict(&folder, Some(VolumeMode::Crops), 1, ("crops.h5", classes)).unwrap();
    assert_eq!(crops.shape, [8, 8, 8, 8]);
}
