//! Trainings with samples in memory give the bits of trainings that read files in every epoch.

use super::command::case;
use crate::train::store::has_space;
use crate::train::{
    PredictionChoice, ResumeFrom, StoreConfig, StoreError, StoreKind, TrainError, TrainRequest,
};
use partita_site::Silent;
use partita_space::Bytes;
use serde_json::Value;
use std::fs;
use std::sync::Arc;
use tempfile::TempDir;

/// Epochs 1 to 3, then the whole result.
struct Run {
    weights: Vec<u8>,
    losses: Vec<(f64, Option<f64>)>,
    read: Vec<u64>,
    memory: Vec<u64>,
    spilled: Vec<u64>,
    received: Vec<u64>,
    result: Value,
}

fn run(folder: &TempDir, request: &TrainRequest) -> Result<Run, TrainError> {
    let request = TrainRequest {
        prediction: PredictionChoice::Never,
        ..request.clone()
    };
    predicted(folder, &request)
}

/// A run whose prediction is as the request says.
fn predicted(folder: &TempDir, request: &TrainRequest) -> Result<Run, TrainError> {
    let request = TrainRequest {
        run_file: folder.path().join("run.toml"),
        overwrite: request.resume == ResumeFrom::Start,
        ..request.clone()
    };
    let trained = super::train(&request, Silent, &Arc::default())?;
    let result = serde_json::to_value(&trained.result).unwrap();
    let epochs = result["epochs"].as_array().unwrap();
    let numbers = |key: &str| -> Vec<u64> {
        let of_epochs = epochs.iter().filter_map(|epoch| epoch[key].as_u64());
        of_epochs.collect()
    };
    let loss = |epoch: &Value| {
        let training = epoch["training_loss"].as_f64().unwrap();
        (training, epoch["validation"]["loss"].as_f64())
    };
    Ok(Run {
        weights: fs::read(folder.path().join("out/weights.safetensors")).unwrap(),
        losses: epochs.iter().map(loss).collect(),
        read: numbers("read_bytes"),
        memory: numbers("memory_bytes"),
        spilled: numbers("spill_bytes"),
        received: numbers("received_bytes"),
        result,
    })
}

fn of(ranks: usize, strategy: &str) -> TrainRequest {
    TrainRequest {
        ranks: Some(ranks),
        strategy: Some(strategy.to_owned()),
        ..TrainRequest::default()
    }
}

fn kept(request: TrainRequest) -> TrainRequest {
    TrainRequest {
        store: Some(StoreKind::Memory),
        ..request
    }
}

const STRATEGIES: [(usize, &str); 6] = [
    (2, "data=2"),
    (2, "depth=2"),
    (4, "data=2,depth=2"),
    (2, "filter=2"),
    (2, "stages=2,micro=2"),
    (2, "stages=2,micro=2,schedule=gems"),
];

/// Of each sample of 10 + 5 its 128 values of 2 bytes and its 2 targets of 4 bytes.
const DATASET: u64 = 15 * (256 + 8);
const TRAINING: u64 = 10 * (256 + 8);

/// A case for a strategy, and the bytes of its dataset.
fn case_of(strategy: &str) -> (TempDir, u64) {
    let folder = case(&[("epochs = 6", "epochs = 3")]);
    // Micro-batches need equal batches, so that stages train on the training split alone.
    if !strategy.contains("stages") {
        return (folder, DATASET);
    }
    let file = folder.path().join("run.toml");
    let text = fs::read_to_string(&file).unwrap();
    let text = text.replace("/set\"", "/set/train.h5\"");
    fs::write(&file, text.replace("batch = 4", "batch = 2")).unwrap();
    (folder, TRAINING)
}

#[test]
fn every_strategy_gives_the_same_bits_and_reads_each_file_once() {
    for (ranks, strategy) in STRATEGIES {
        let (folder, dataset) = case_of(strategy);
        let plain = run(&folder, &of(ranks, strategy));
        let plain = plain.unwrap_or_else(|error| panic!("{strategy}: {error}"));
        let stored = run(&folder, &kept(of(ranks, strategy))).unwrap();
        assert!(stored.weights == plain.weights, "{strategy}");
        assert_eq!(stored.losses, plain.losses, "{strategy}");
        assert_eq!(stored.read, [dataset, 0, 0], "{strategy}");
        assert_eq!(plain.read.len(), 3, "{strategy}");
        assert!(
            plain.read.iter().all(|&bytes| bytes >= dataset),
            "{strategy}"
        );
        assert_eq!(plain.received, [0, 0, 0], "{strategy}");
        let moves = strategy.contains("data=2") || strategy.contains("gems");
        assert!(!moves || stored.received[1] > 0, "{strategy}");
        assert!(
            stored.memory[1..].iter().all(|&bytes| bytes >= dataset),
            "{strategy}"
        );
        assert_eq!(stored.spilled, [0, 0, 0], "{strategy}");
        let of_store = &stored.result["memory"]["predicted_store_bytes"];
        assert!(of_store.as_u64().unwrap() >= dataset, "{strategy}");
        assert_eq!(plain.result["memory"]["predicted_store_bytes"], 0);
        spilled(&folder, dataset, (ranks, strategy), &stored);
    }
}

/// With memory for three quarters of what ranks keep, the rest comes from files on the disk.
fn spilled(folder: &TempDir, dataset: u64, (ranks, strategy): (usize, &str), stored: &Run) {
    let disk = tempfile::tempdir().unwrap();
    let kept_bytes = |run: &Run| {
        let bytes = run.result["memory"]["predicted_store_bytes"].as_u64();
        bytes.unwrap()
    };
    let all = kept_bytes(stored);
    let request = TrainRequest {
        spill: Some(disk.path().to_owned()),
        store_memory: Some(Bytes(all * 3 / 4 / ranks as u64)),
        ..kept(of(ranks, strategy))
    };
    let found = run(folder, &request).unwrap_or_else(|error| panic!("{strategy}: {error}"));
    assert!(found.weights == stored.weights, "{strategy}");
    assert_eq!(found.losses, stored.losses, "{strategy}");
    assert_eq!(found.read, [dataset, 0, 0], "{strategy}");
    assert_eq!(found.received, stored.received, "{strategy}");
    for epoch in 1..3 {
        let sum = found.memory[epoch] + found.spilled[epoch];
        assert_eq!(sum, stored.memory[epoch], "{strategy}, epoch {epoch}");
        assert!(found.spilled[epoch] > 0, "{strategy}, epoch {epoch}");
    }
    let on_disk = found.result["memory"]["spill_bytes"].as_u64().unwrap();
    assert!(
        on_disk > 0 && on_disk + kept_bytes(&found) == all,
        "{strategy}"
    );
    assert_eq!(fs::read_dir(disk.path()).unwrap().count(), 0, "{strategy}");
}

#[test]
fn the_last_mini_batch_of_a_pipeline_may_be_smaller() {
    // Batches of 4, 4 and 2 samples to train on; batches of 4 and 1 to validate.
    let cases = [
        (2, "stages=2,micro=2", "/set/train.h5\"", TRAINING),
        (
            2,
            "stages=2,micro=2,schedule=gems",
            "/set/train.h5\"",
            TRAINING,
        ),
        (4, "data=2,stages=2", "/set/train.h5\"", TRAINING),
        (2, "stages=2", "/set\"", DATASET),
        (2, "stages=2,micro=2", "/set\"", DATASET),
    ];
    for (ranks, strategy, set, dataset) in cases {
        let folder = case(&[("epochs = 6", "epochs = 3")]);
        let file = folder.path().join("run.toml");
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replace("/set\"", set)).unwrap();
        let plain = run(&folder, &of(ranks, strategy));
        let plain = plain.unwrap_or_else(|error| panic!("{strategy}, {set}: {error}"));
        let stored = run(&folder, &kept(of(ranks, strategy))).unwrap();
        assert!(stored.weights == plain.weights, "{strategy}, {set}");
        assert_eq!(stored.losses, plain.losses, "{strategy}, {set}");
        assert_eq!(stored.read, [dataset, 0, 0], "{strategy}, {set}");
        spilled(&folder, dataset, (ranks, strategy), &stored);
    }
}

#[test]
fn without_a_disk_a_limit_of_the_store_is_refused() {
    let folder = case(&[("epochs = 6", "epochs = 1")]);
    let request = TrainRequest {
        store_memory: Some(Bytes(2_000)),
        ..kept(of(2, "data=2"))
    };
    let error = run(&folder, &request).err().unwrap();
    let limit = |error: &TrainError| matches!(error, TrainError::Store(StoreError::Limit { .. }));
    assert!(limit(&error), "{error}");
    let text = error.to_string();
    for part in [
        "`store_memory` is 1.95 KiB",
        "spill = ",
        "ranks, or",
        "B\"` or more",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    // What is named is enough.
    let (_, nearest) = text.split_once("store_memory = \"").unwrap();
    let (nearest, _) = nearest.split_once("B\"").unwrap();
    let request = TrainRequest {
        store_memory: Some(Bytes(nearest.parse().unwrap())),
        ..request
    };
    run(&folder, &request).unwrap();
    assert!(run(&folder, &kept(of(2, "data=2"))).is_ok());
    let least = TrainRequest {
        store_memory: Some(Bytes(1)),
        ..request
    };
    let text = run(&folder, &least).err().unwrap().to_string();
    assert!(
        text.contains(&format!("store_memory = \"{nearest}B\"")),
        "{text}"
    );
}

#[test]
fn a_disk_that_cannot_take_the_rest_is_told_before_the_training() {
    let folder = case(&[("epochs = 6", "epochs = 1")]);
    let with = |spill: &str, memory: u64| TrainRequest {
        spill: Some(folder.path().join(spill)),
        store_memory: Some(Bytes(memory)),
        ..kept(of(2, "data=2"))
    };
    let refused = |spill: &str, memory: u64| run(&folder, &with(spill, memory)).err().unwrap();
    let text = refused("none", 4_000).to_string();
    assert!(text.contains("none: No such file"), "{text}");
    let text = refused("run.toml", 4_000).to_string();
    assert!(text.contains("run.toml: it is a file"), "{text}");
    let text = refused("", 500).to_string();
    for part in ["to find them", "`store_memory`", "more ranks"] {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    // What is named is enough.
    let (_, least) = text.split_once("store_memory = \"").unwrap();
    let (least, _) = least.split_once("B\"").unwrap();
    let least: u64 = least.parse().unwrap();
    assert!(least > 500, "{text}");
    let text = refused("", least - 1).to_string();
    assert!(text.contains("to find them"), "{text}");
    run(
        &folder,
        &TrainRequest {
            overwrite: true,
            ..with("", least)
        },
    )
    .unwrap();
    fs::remove_dir_all(folder.path().join("out")).unwrap();
    assert!(!folder.path().join("out").exists());
    let config = StoreConfig {
        spill: Some(folder.path().to_owned()),
        ..StoreConfig::default()
    };
    has_space(&config, &[Bytes(1000), Bytes(1000)]).unwrap();
    let half = Bytes(1 << 60);
    let error = has_space(&config, &[half, half]).unwrap_err();
    let StoreError::Space { ranks, needed, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!((*ranks, *needed), (2, half + half));
    let (text, path) = (error.to_string(), folder.path().display().to_string());
    assert!(text.contains(&path) && text.contains("are free"), "{text}");
}

#[test]
fn a_disk_without_a_store_is_refused() {
    let folder = case(&[]);
    let spill = TrainRequest {
        spill: Some(folder.path().to_owned()),
        ..of(1, "data=1")
    };
    let memory = TrainRequest {
        store_memory: Some(Bytes(1 << 20)),
        ..of(1, "data=1")
    };
    for (request, named) in [(spill, "spill"), (memory, "store_memory")] {
        let error = run(&folder, &request).err().unwrap();
        let unused =
            matches!(&error, TrainError::Store(StoreError::Unused { key, .. }) if *key == named);
        assert!(unused, "{error}");
    }
}

#[test]
fn a_prediction_takes_samples_from_where_the_run_does() {
    let folder = case(&[("epochs = 6", "epochs = 1")]);
    for machine in [Some("lassen"), None] {
        let request = TrainRequest {
            machine: machine.map(str::to_owned),
            prediction: PredictionChoice::Asked,
            ..of(2, "data=2")
        };
        let step = |request: &TrainRequest, input: &str| {
            let found = predicted(&folder, request).unwrap();
            assert_eq!(found.result["predicted_input"], input, "{machine:?}");
            let text = fs::read_to_string(folder.path().join("out/prediction.json")).unwrap();
            let prediction: Value = serde_json::from_str(&text).unwrap();
            prediction["iteration_seconds"].as_f64().unwrap()
        };
        let files = step(&request, "file_system");
        let store = step(&kept(request), "data_store");
        // A file system far away takes longer than the step of a tiny network.
        assert!(
            machine.is_none() || 2.0 * store < files,
            "{store} and {files}"
        );
    }
    // Without a file system in the machine file, reading takes no time, but samples of other ranks do.
    let request = TrainRequest {
        machine: Some("dgx-h100".to_owned()),
        ..kept(of(2, "data=2"))
    };
    let found = predicted(&folder, &request).unwrap();
    assert_eq!(found.result["predicted_input"], "data_store");
    let found = run(&folder, &kept(of(2, "data=2"))).unwrap();
    assert!(found.result["predicted_input"].is_null());
}

/// Made-up samples are the same for all strategies, and no file is read.
#[test]
fn benchmarks_read_nothing() {
    let folder = case(&[("epochs = 6", "epochs = 2")]);
    let synthetic = |ranks: usize, strategy: &str| {
        let request = TrainRequest {
            store: Some(StoreKind::Synthetic),
            ..of(ranks, strategy)
        };
        run(&folder, &request).unwrap()
    };
    let one = synthetic(1, "data=1");
    assert_eq!((&one.read[..], &one.memory[..]), (&[0, 0][..], &[0, 0][..]));
    for strategy in ["data=2", "depth=2"] {
        let other = synthetic(2, strategy);
        assert_eq!(other.read, [0, 0], "{strategy}");
        for (a, b) in one.losses.iter().zip(&other.losses) {
            assert!(
                (a.0 - b.0).abs() <= 1e-4 * a.0.abs(),
                "{strategy}: {a:?} and {b:?}"
            );
        }
    }
    let loaders = "strategy = \"depth=2\"\noffload = { loaders = 1 }";
    let folder = case(&[("strategy = \"depth=2\"", loaders)]);
    let request = TrainRequest {
        store: Some(StoreKind::Synthetic),
        ..of(2, "data=2")
    };
    let text = run(&folder, &request).err().unwrap().to_string();
    assert!(text.contains("`store` is \"synthetic\""), "{text}");
}

#[test]
fn preloaded_samples_are_the_same() {
    let epochs = ("epochs = 6", "epochs = 2");
    let folder = case(&[epochs]);
    let plain = run(&folder, &of(2, "data=2")).unwrap();
    let request = TrainRequest {
        preload: true,
        ..kept(of(2, "data=2"))
    };
    let stored = run(&folder, &request).unwrap();
    assert!(stored.weights == plain.weights);
    assert_eq!(stored.read, [DATASET, 0]);
    // The same in the run file.
    let set = folder.path().join("set").display().to_string();
    let table = format!("data = {{ path = {set:?}, store = \"memory\", preload = true }}");
    let (file, line) = (folder.path().join("run.toml"), format!("data = \"{set}\""));
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains(&line), "{text}");
    fs::write(&file, text.replace(&line, &table)).unwrap();
    let of_file = run(&folder, &of(2, "data=2")).unwrap();
    assert!(of_file.weights == plain.weights);
    assert_eq!(of_file.read, [DATASET, 0]);
}

#[test]
fn a_resumed_run_fills_its_store_anew() {
    let checkpoint = "[checkpoint]\nevery_steps = 1\nkeep = 20\n[schedule]";
    let folder = case(&[("epochs = 6", "epochs = 3"), ("[schedule]", checkpoint)]);
    let request = kept(of(2, "data=2"));
    let whole = run(&folder, &request).unwrap();
    let from = folder.path().join("first");
    fs::rename(folder.path().join("out"), &from).unwrap();
    // In the middle of the second of three epochs, and before the validation of the first.
    for step in [4, 3] {
        let path = from.join(format!("checkpoints/step-{step:09}"));
        let resumed = TrainRequest {
            resume: ResumeFrom::Path(path),
            ..request.clone()
        };
        let resumed = run(&folder, &resumed).unwrap();
        assert!(resumed.weights == whole.weights, "step {step}");
        assert_eq!(resumed.losses, whole.losses, "step {step}");
        let read = resumed.read;
        assert_eq!(read.iter().sum::<u64>(), DATASET, "step {step}: {read:?}");
        // What was used before step 4 is read by the last epoch.
        assert_eq!(read.last() > Some(&0), step == 4, "{read:?}");
        fs::remove_dir_all(folder.path().join("out")).unwrap();
    }
}

#[test]
fn samples_that_do_not_fit_are_refused_with_figures() {
    // The program needs less than that, and the samples of 15 more.
    let folder = case(&[("epochs = 6", "epochs = 1\nmemory = \"26kB\"")]);
    let error = run(&folder, &kept(of(1, "data=1"))).err().unwrap();
    let TrainError::Store(StoreError::Memory {
        rank,
        samples,
        limit,
        ..
    }) = &error
    else {
        panic!("{error}");
    };
    assert_eq!((*rank, *limit), (0, Bytes(26_000)));
    assert!(samples.0 >= DATASET, "{samples}");
    let text = error.to_string();
    assert!(text.contains("ranks of this limit"), "{text}");
    assert!(text.contains("store = \"none\""), "{text}");
    assert!(text.contains("spill = "), "{text}");
    // Somewhat more is enough with a folder for the rest.
    let disk = tempfile::tempdir().unwrap();
    let set = folder.path().join("set").display().to_string();
    let file = folder.path().join("run.toml");
    let text = fs::read_to_string(&file).unwrap();
    let table = format!(
        "data = {{ path = {set:?}, store = \"memory\", spill = {:?} }}",
        disk.path()
    );
    let text = text.replace(&format!("data = \"{set}\""), &table);
    fs::write(&file, text.replace("26kB", "33kB")).unwrap();
    let found = run(&folder, &of(1, "data=1")).unwrap();
    assert!(found.result["memory"]["spill_bytes"].as_u64() > Some(0));
    fs::remove_dir_all(folder.path().join("out")).unwrap();
    assert!(!folder.path().join("out").exists());
}

#[test]
fn a_store_beside_loaders_is_refused() {
    let loaders = "strategy = \"depth=2\"\noffload = { loaders = 1 }";
    let folder = case(&[("strategy = \"depth=2\"", loaders)]);
    let error = run(&folder, &kept(of(2, "data=2"))).err().unwrap();
    assert!(
        matches!(error, TrainError::Store(StoreError::Loaders { .. })),
        "{error}"
    );
}

#[test]
fn a_preload_without_a_store_is_refused() {
    let folder = case(&[]);
    let request = TrainRequest {
        preload: true,
        ..of(1, "data=1")
    };
    let error = run(&folder, &request).err().unwrap();
    assert!(
        matches!(error, TrainError::Store(StoreError::Preload { .. })),
        "{error}"
    );
    let set = folder.path().join("set").display().to_string();
    let (file, line) = (folder.path().join("run.toml"), format!("data = \"{set}\""));
    let text = fs::read_to_string(&file).unwrap();
    let refused = |table: &str| {
        fs::write(&file, text.replace(&line, table)).unwrap();
        run(&folder, &of(1, "data=1")).err().unwrap().to_string()
    };
    let text = refused("data = { path = \"set\", store = \"disk\" }");
    assert!(
        text.contains("`data.store` is \"disk\"") && text.contains("\"memory\""),
        "{text}"
    );
    let text = refused("data = { store = \"memory\" }");
    assert!(text.contains("`data.path` is missing"), "{text}");
}
