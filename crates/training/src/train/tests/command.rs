//! Trainings by their command line.

use crate::train::{AutoError, Mismatch, OutputError, PredictionChoice, TrainError, TrainRequest};
use partita_data::{DatasetSpec, DatasetWriter, Kind, Split};
use partita_forecast::StrategyChoice;
use partita_formats::{DType, Layout, Samples};
use partita_lower::{BatchNormStatistics, StrategyError};
use partita_session::Progress;
use partita_site::{ErrorKind, Event, Fault, Silent};
use partita_space::Bytes;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub(super) const MODEL: &str = "model tiny
input x channels=2 extent=4x4x4
c1 = conv x filters=3 kernel=3 pad=1 bias=false
b1 = batch_norm c1 epsilon=1e-5 momentum=0.1
a1 = leaky_relu b1 slope=0.1
p1 = average_pool a1 kernel=2 stride=2 pad=0 count_padding=true
f = flatten p1
fc = linear f features=2 bias=true
loss = mse fc
";

/// Names of the targets.
pub(super) const TARGETS: [&str; 2] = ["sum", "difference"];

const RUN: &str = "batch = 4
epochs = 6
ranks = 2
strategy = \"depth=2\"
kernels = \"reference\"
transform = { scale = 0.5 }
[schedule]
learning_rate = 0.01
";

/// Lines replaced in the run file, and whether an error is the expected one.
type Refused = (
    &'static [(&'static str, &'static str)],
    fn(&TrainError) -> bool,
);

/// A folder with a model, a dataset and a run file with some of its lines replaced.
pub(super) fn case(replaced: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("tiny.model"), MODEL).unwrap();
    write_dataset(&at("set"));
    let paths = [
        "model = \"{}/tiny.model\"",
        "data = \"{}/set\"",
        "output = \"{}/out\"",
    ];
    let paths = paths.map(|line| line.replace("{}", &folder.path().display().to_string()));
    let mut text = format!("{}\n{RUN}", paths.join("\n"));
    for (line, by) in replaced {
        assert!(text.contains(line), "{line}");
        text = text.replace(line, by);
    }
    fs::write(at("run.toml"), text).unwrap();
    folder
}

/// Voxels and targets of a universe.
pub(super) fn samples(universe: u64) -> (Vec<i16>, [f32; 2]) {
    let levels = [universe * 7 % 5, universe * 3 % 4].map(|level| level as i16);
    let voxels = (0..128).map(|i| levels[i / 64] + (i * 5 % 3) as i16);
    let [a, b] = levels.map(|level| f32::from(level) / 4.0);
    (voxels.collect(), [(a + b) / 2.0, a - b])
}

fn write_dataset(path: &Path) {
    let spec = DatasetSpec {
        kind: Kind::Cosmology,
        shape: [2, 4, 4, 4],
        dtype: DType::Int16,
        targets: TARGETS.map(str::to_owned).to_vec(),
        labels: None,
        layout: Layout::Contiguous,
        train: (0..10).collect(),
        validation: (10..15).collect(),
        test: Vec::new(),
        spec: toml::Table::new(),
    };
    let mut writer = DatasetWriter::create(path, &spec).unwrap();
    for split in [Split::Train, Split::Validation] {
        while let Some(universe) = writer.next_universe(split) {
            let (voxels, unit) = samples(universe);
            writer
                .append(split, &Samples::I16(voxels), &unit, &unit)
                .unwrap();
        }
    }
    writer.finish().unwrap();
}

fn train(folder: &TempDir) -> Result<Value, TrainError> {
    trained(folder, &Arc::default())
}

fn trained(folder: &TempDir, cancel: &Arc<AtomicBool>) -> Result<Value, TrainError> {
    let trained = super::train(&request(folder), Silent, cancel)?;
    let text = serde_json::to_string(&trained.result).unwrap();
    Ok(serde_json::from_str(&text).unwrap())
}

fn request(folder: &TempDir) -> TrainRequest {
    TrainRequest {
        run_file: folder.path().join("run.toml"),
        prediction: PredictionChoice::Asked,
        ..TrainRequest::default()
    }
}

fn refused(replaced: &[(&str, &str)]) -> TrainError {
    let folder = case(replaced);
    let error = train(&folder).unwrap_err();
    assert!(
        !folder.path().join("out").exists(),
        "a refused run leaves nothing"
    );
    error
}

#[test]
fn a_run_writes_result_weights_and_trace_whole() {
    let folder = case(&[]);
    let result = train(&folder).unwrap();
    let out = folder.path().join("out");
    let mut names: Vec<String> = fs::read_dir(&out)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    let expected = [
        "checkpoints",
        "prediction.json",
        "result.json",
        "trace.json",
        "weights.safetensors",
    ];
    assert_eq!(names, expected);
    let stored: Value =
        serde_json::from_str(&fs::read_to_string(out.join("result.json")).unwrap()).unwrap();
    assert_eq!(stored, result);
    assert_eq!(result["strategy"], "depth=2");
    assert_eq!(result["steps"], 18);
    let epochs = result["epochs"].as_array().unwrap();
    let loss = |epoch: &Value| epoch["training_loss"].as_f64().unwrap();
    assert!(loss(&epochs[5]) < loss(&epochs[0]), "{epochs:?}");
    let validation = &epochs[5]["validation"];
    assert_eq!(validation["samples"], 5);
    assert_eq!(validation["errors"][1]["target"], "difference");
    let rms = |i: usize| validation["errors"][i]["rms"].as_f64().unwrap();
    let mean_square = (rms(0).powi(2) + rms(1).powi(2)) / 2.0;
    assert!((mean_square / validation["loss"].as_f64().unwrap() - 1.0).abs() < 1e-5);
    let weights = partita_weights::load(out.join("weights.safetensors")).unwrap();
    assert_eq!(weights.tensors["c1.weight"].shape, [3, 3, 3, 2, 3]);
    assert!(weights.tensors.contains_key("b1.running_mean"));
    let recorded = partita_forecast::trace::read(&out.join("trace.json")).unwrap();
    assert_eq!(result["digest"], recorded.digest.as_str());
    let comparison = &result["comparison"];
    assert_eq!(comparison["digest"], recorded.digest.as_str());
    assert_eq!(comparison["steps"], 10);
    // 12 steps of full size, 2 of them warm-up, on 2 ranks.
    assert_eq!(recorded.traces.len(), 20);
    assert_eq!(weights.metadata["digest"], recorded.digest);
}

#[test]
fn one_rank_and_two_agree() {
    // The model has no bias before its batch norm: its gradient would be noise about zero, which Adam
    // turns into full steps.
    let (two, one) = (
        case(&[]),
        case(&[("ranks = 2", "ranks = 1"), ("depth=2", "auto")]),
    );
    let results = [&one, &two].map(|folder| train(folder).unwrap());
    let loss = |result: &Value| result["epochs"][5]["validation"]["loss"].as_f64().unwrap();
    let (a, b) = (loss(&results[0]), loss(&results[1]));
    assert!((a / b - 1.0).abs() < 1e-3, "{a} and {b}");
    assert_eq!(results[0]["strategy"], "data=1");
}

#[test]
fn local_statistics_train_as_micro_batches_do() {
    let (two, one) = (
        case(&[("depth=2", "data=2,batch_norm=local")]),
        case(&[("ranks = 2", "ranks = 1"), ("depth=2", "data=1,micro=2")]),
    );
    let results = [&one, &two].map(|folder| train(folder).unwrap());
    for epoch in 0..6 {
        let [a, b] = [0, 1].map(|of| {
            let loss = &results[of]["epochs"][epoch]["training_loss"];
            loss.as_f64().unwrap()
        });
        assert!((a / b - 1.0).abs() < 1e-3, "epoch {epoch}: {a} and {b}");
    }
}

#[test]
fn auto_takes_local_statistics_on_request() {
    let local = case(&[("depth=2", "auto,batch_norm=local")]);
    let result = train(&local).unwrap();
    let strategy = result["strategy"].as_str().unwrap();
    assert_eq!(
        strategy.contains("data=2"),
        strategy.contains("batch_norm=local"),
        "{strategy}"
    );
    let read = |text: &str| text.parse::<StrategyChoice>();
    for (text, choice) in [
        (
            "auto",
            StrategyChoice::Auto(BatchNormStatistics::Synchronized),
        ),
        (
            "auto, batch_norm=local",
            StrategyChoice::Auto(BatchNormStatistics::Local),
        ),
    ] {
        assert_eq!(read(text), Ok(choice.clone()));
        assert_eq!(read(&choice.to_string()), Ok(choice));
    }
    for (text, near) in [
        ("auto,batch_norm=locl", "auto,batch_norm=local"),
        ("auto,micro=2", "auto"),
        ("auto,", "auto"),
    ] {
        let error = read(text).unwrap_err();
        assert!(
            matches!(&error, StrategyError::Value { nearest, .. } if nearest == near),
            "{error}"
        );
    }
}

#[test]
fn invalid_runs_are_refused_before_they_start() {
    let is_of_strategy = |error: &TrainError| matches!(error, TrainError::Strategy(_));
    let cases: [Refused; 8] = [
        (&[("/out\"", "/set\"")], |error| {
            matches!(error, TrainError::Output(OutputError::IsDataset { nearest, .. })
                if nearest == Path::new("out"))
        }),
        (&[("batch = 4", "batch = 40")], |error| {
            matches!(error, TrainError::Mismatch(one)
                if matches!(**one, Mismatch::Batch { batch: 40, samples: 10, .. }))
        }),
        (&[("ranks = 2", "ranks = 3")], is_of_strategy),
        (
            &[("depth=2", "depth=8"), ("ranks = 2", "ranks = 8")],
            is_of_strategy,
        ),
        (
            &[("depth=2", "data=8"), ("ranks = 2", "ranks = 8")],
            is_of_strategy,
        ),
        (
            &[("depth=2", "auto"), ("ranks = 2", "ranks = 7")],
            |error| {
                matches!(
                    error,
                    TrainError::Auto(AutoError::Ranks {
                        ranks: 7,
                        nearest: Some(6),
                        ..
                    })
                )
            },
        ),
        (&[("batch = 4", "batch = 4\nmemory = \"8 KiB\"")], |error| {
            matches!(
                error,
                TrainError::Memory {
                    limit: Bytes(8192),
                    ..
                }
            )
        }),
        (
            &[
                ("/tiny.model\"", "\"\n#"),
                ("model = \"", "model = \"cosmoflow@32\"#"),
            ],
            |error| matches!(error, TrainError::Mismatch(one) if matches!(**one, Mismatch::Samples { .. })),
        ),
    ];
    for (replaced, is_expected) in cases {
        let error = refused(replaced);
        assert!(is_expected(&error), "{error:?}");
        assert_eq!(error.kind(), ErrorKind::Request);
        let text = error.to_string();
        let mut rest = text.lines().skip(1);
        assert!(rest.all(|line| line.starts_with("help: ")), "{text}");
    }
}

#[test]
fn a_stopped_run_leaves_nothing() {
    let folder = case(&[]);
    let error = trained(&folder, &Arc::new(true.into())).unwrap_err();
    assert!(!folder.path().join("out").exists());
    assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
}

#[test]
fn a_diverging_run_names_the_epoch_and_leaves_nothing() {
    let error = refused(&[("learning_rate = 0.01", "learning_rate = 1e30")]);
    assert_eq!(error.kind(), ErrorKind::Failure, "{error}");
    let is_expected = matches!(
        error,
        TrainError::Diverged {
            epoch: 0,
            clip: None,
            ..
        }
    );
    assert!(is_expected, "{error:?}");
}

#[test]
fn damaged_data_names_rank_and_file() {
    let folder = case(&[]);
    let file = folder.path().join("set/validation.h5");
    let length = fs::metadata(&file).unwrap().len();
    let damaged = fs::OpenOptions::new().write(true).open(&file).unwrap();
    damaged.set_len(length - 200).unwrap();
    let error = train(&folder).unwrap_err().to_string();
    assert!(error.contains("validation.h5"), "{error}");
}

#[test]
fn without_checkpoints_a_request_to_stop_ends_all_ranks_within_a_second_and_leaves_nothing() {
    let folder = case(&[
        ("epochs = 6", "epochs = 1000000"),
        ("rate = 0.01", "rate = 0.01\n[checkpoint]\nkeep = 0"),
    ]);
    let cancel: Arc<AtomicBool> = Arc::default();
    let asked: Arc<Mutex<Option<Instant>>> = Arc::default();
    let (stop, noted) = (Arc::clone(&cancel), Arc::clone(&asked));
    let watch = move |event: Event<'_>| {
        if let Event::Training { progress, .. } = event
            && let Progress::Epoch(report) = progress
            && report.epoch == 1
        {
            *noted.lock().unwrap() = Some(Instant::now());
            stop.store(true, Ordering::Relaxed);
        }
    };
    let error = super::train(&request(&folder), watch, &cancel).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
    let late = asked.lock().unwrap().expect("it came to its second epoch");
    assert!(
        late.elapsed() < Duration::from_secs(1),
        "{:?}",
        late.elapsed()
    );
    assert!(!folder.path().join("out").exists());
}

/// Training losses of all epochs.
fn losses(replaced: &[(&str, &str)]) -> Vec<f64> {
    let result = train(&case(replaced)).unwrap();
    let epochs = result["epochs"].as_array().unwrap();
    let loss = |epoch: &Value| epoch["training_loss"].as_f64().unwrap();
    epochs.iter().map(loss).collect()
}

#[test]
fn accumulated_batches_train_as_micro_batches_of_one_update() {
    let accumulated = losses(&[("batch = 4", "batch = 2\naccumulate = 2")]);
    let micro = losses(&[("depth=2", "depth=2,micro=2")]);
    assert_eq!(accumulated, micro);
    let single = losses(&[("batch = 4", "batch = 2")]);
    assert_ne!(accumulated, single, "there are half as many updates");
    // Micro-batches of the strategy are those of each batch.
    let both = losses(&[
        ("batch = 4", "batch = 4\naccumulate = 2"),
        ("depth=2", "depth=2,micro=2"),
    ]);
    assert_eq!(
        both,
        losses(&[("batch = 4", "batch = 8"), ("depth=2", "depth=2,micro=4")])
    );
}

/// The strategy and the mini-batch are those of the run file, not those of an update.
#[test]
fn refusals_of_accumulated_batches_name_what_was_written() {
    let told = |batch: &str, strategy: &str, ranks: &str| {
        let error = refused(&[
            ("batch = 4", batch),
            ("depth=2", strategy),
            ("ranks = 2", ranks),
        ]);
        assert!(matches!(error, TrainError::Strategy(_)), "{error}");
        error.to_string()
    };
    let text = told("batch = 2\naccumulate = 2", "data=3", "ranks = 3");
    assert!(
        text.contains("strategy `data=3` splits the mini-batch of 2 into 3 parts")
            && text.ends_with("help: try data=2 with ranks = 2"),
        "{text}"
    );
    losses(&[
        ("batch = 4", "batch = 2\naccumulate = 2"),
        ("depth=2", "data=2"),
    ]);
    let text = told("batch = 3\naccumulate = 2", "depth=2,micro=2", "ranks = 2");
    assert!(text.ends_with("help: try micro=1"), "{text}");
    losses(&[
        ("batch = 4", "batch = 3\naccumulate = 2"),
        ("depth=2", "depth=2,micro=1"),
    ]);
    // Two parts of one micro-batch each are two for the schedule.
    losses(&[
        ("batch = 4", "batch = 2\naccumulate = 2"),
        ("depth=2", "stages=[1|1],schedule=gems"),
    ]);
}

#[test]
fn more_accumulated_samples_than_there_are_are_refused() {
    let error = refused(&[("batch = 4", "batch = 4\naccumulate = 5")]);
    let text = error.to_string();
    assert!(
        text.contains("accumulate = 5") && text.contains("help: try accumulate = 2"),
        "{text}"
    );
    assert_eq!(error.kind(), ErrorKind::Request, "{error}");
}

#[test]
fn a_learning_rate_of_zero_trains_nothing() {
    let folder = case(&[("learning_rate = 0.01", "learning_rate = 0")]);
    let result = train(&folder).unwrap();
    let epochs = result["epochs"].as_array().unwrap();
    // Samples of an epoch are the same in any order, but for batch norm and rounding.
    for epoch in epochs {
        let ratio =
            epoch["training_loss"].as_f64().unwrap() / epochs[0]["training_loss"].as_f64().unwrap();
        assert!((ratio - 1.0).abs() < 0.3, "{epochs:?}");
    }
}

#[test]
fn a_plateau_of_the_validation_loss_lowers_the_rate() {
    let kind = "learning_rate = 0.3\nkind = \"plateau\"\npatience = 0\nfactor = 0.5";
    let folder = case(&[("learning_rate = 0.01", kind)]);
    let rates: Arc<Mutex<Vec<f64>>> = Arc::default();
    let noted = Arc::clone(&rates);
    let listener = move |event: Event<'_>| {
        if let Event::Training {
            progress: Progress::Step { learning_rate, .. },
            ..
        } = event
        {
            noted.lock().unwrap().push(*learning_rate);
        }
    };
    let trained = super::train(&request(&folder), listener, &Arc::default()).unwrap();
    let rates = rates.lock().unwrap();
    let (mut best, mut rate) = (f64::INFINITY, 0.3);
    for (epoch, rates) in trained.result.epochs.iter().zip(rates.chunks(3)) {
        assert_eq!(rates, [rate; 3], "epoch {}", epoch.epoch);
        let loss = epoch.validation.as_ref().unwrap().loss;
        if loss < best * (1.0 - 1e-4) {
            best = loss;
        } else {
            rate *= 0.5;
        }
    }
    assert!(rate < 0.3, "some epoch does not improve");
}
