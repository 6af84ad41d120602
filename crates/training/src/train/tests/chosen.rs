//! Trainings whose convolutions run by what is expected to be fast, where nothing was measured.

use super::command::case;
use crate::train::{PredictionChoice, TrainRequest, train};
use partita_forecast::{FLOATS, LowerRequest, Training, lower};
use partita_program::Work;
use partita_site::kernel_set::KernelSet;
use partita_site::{Context, Environment, Event};
use partita_testkit::Level;
use std::collections::BTreeSet;
use std::fs;
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

const MODEL: &str = "model larger
input x channels=2 extent=4x4x4
u = upsample x factor=4
c1 = conv u filters=16 kernel=3 pad=1 bias=true
a1 = leaky_relu c1 slope=0.1
c2 = conv a1 filters=16 kernel=3 pad=1 bias=true
a2 = relu c2
p = average_pool a2 kernel=4 stride=4 pad=0 count_padding=true
f = flatten p
fc = linear f features=2 bias=true
loss = mse fc
";

fn larger() -> TempDir {
    let folder = case(&[
        ("kernels = \"reference\"", "kernels = \"cpu\""),
        ("learning_rate = 0.01", "learning_rate = 0.001"),
        ("epochs = 6", "epochs = 2"),
    ]);
    fs::write(folder.path().join("tiny.model"), MODEL).unwrap();
    folder
}

/// Levels of this machine at which implementations have expected times.
fn levels() -> impl Iterator<Item = Level> {
    let all = [Level::Avx2, Level::Avx512].into_iter();
    all.filter(|level| level.available())
}

/// Nothing was ever measured in it; notes are kept.
fn context(level: Level, notes: &Arc<Mutex<Vec<String>>>) -> Context {
    let notes = Arc::clone(notes);
    let progress = move |event: Event<'_>| {
        if let Event::Note(text) = event {
            notes.lock().unwrap().push(text.to_owned());
        }
    };
    let environment = Environment {
        measured_times: None,
        level,
        ..Environment::default()
    };
    Context::watched(environment, Arc::new(progress), Arc::default())
}

/// Losses of the epochs, and the notes.
fn trained(
    folder: &TempDir,
    level: Level,
    (ranks, strategy): (usize, &str),
) -> (Vec<f64>, Vec<String>) {
    let notes = Arc::default();
    let request = TrainRequest {
        run_file: folder.path().join("run.toml"),
        strategy: Some(strategy.to_owned()),
        ranks: Some(ranks),
        overwrite: true,
        prediction: PredictionChoice::Never,
        ..TrainRequest::default()
    };
    let trained = train(&context(level, &notes), &request).unwrap();
    let result = serde_json::to_value(&trained.unwrap().result).unwrap();
    let epochs = result["epochs"].as_array().unwrap();
    let loss = |epoch: &serde_json::Value| {
        let validation = epoch["validation"]["loss"].as_f64().unwrap();
        [epoch["training_loss"].as_f64().unwrap(), validation]
    };
    let losses = epochs.iter().flat_map(loss).collect();
    let notes = notes.lock().unwrap().clone();
    (losses, notes)
}

/// Implementations of the convolutions, and the digest of the program.
fn pinned(folder: &TempDir, level: Level, by: (usize, &str)) -> (BTreeSet<String>, String) {
    pinned_in(folder, level, by, "")
}

/// The same of a layer of this name, or of one that begins so.
fn pinned_in(
    folder: &TempDir,
    level: Level,
    (ranks, strategy): (usize, &str),
    layer: &str,
) -> (BTreeSet<String>, String) {
    let model = folder.path().join("tiny.model");
    let training = Training {
        samples: FLOATS,
        ..Training::new(model.to_str().unwrap(), ranks, 4)
    };
    let request = LowerRequest {
        kernels: Some(KernelSet::CPU),
        ..LowerRequest::new(training, strategy.parse().unwrap())
    };
    let lowered = lower(&context(level, &Arc::default()), &request).unwrap();
    let mut found = BTreeSet::new();
    for body in &lowered.program.bodies {
        for task in body
            .tasks
            .iter()
            .filter(|task| task.origin.layer.starts_with(layer))
        {
            let shape = body.kernel_shape(task);
            let is_convolution = shape.is_some_and(|shape| shape.cut_extents().is_some());
            if let (true, Work::Compute { algorithm, .. }) = (is_convolution, &task.work) {
                found.insert(algorithm.0.clone());
            }
        }
    }
    (found, lowered.program.digest())
}

const STRATEGIES: [(usize, &str); 7] = [
    (1, "data=1"),
    (1, "data=1,workspace=64MiB"),
    (2, "data=2"),
    (2, "depth=2,workspace=64MiB"),
    (2, "height=2,workspace=64MiB"),
    (4, "data=2,width=2,workspace=64MiB"),
    (2, "filter=2,workspace_total=64MiB"),
];

#[test]
fn every_strategy_equals_one_rank_of_plain_kernels() {
    let folder = larger();
    for level in levels() {
        let (plain, notes) = trained(&folder, level, (1, "data=1,workspace=off"));
        let is_told = notes.iter().any(|note| note.contains("convolutions"));
        assert!(!is_told, "plain kernels: {notes:?}");
        for (ranks, strategy) in STRATEGIES {
            let (losses, _) = trained(&folder, level, (ranks, strategy));
            assert_eq!(losses.len(), plain.len());
            for (a, b) in losses.iter().zip(&plain) {
                // Adam magnifies rounding from step to step.
                let far = (a - b).abs() / b.abs();
                assert!(
                    far < 1e-3,
                    "{strategy} at {level:?}: {losses:?}, not {plain:?}"
                );
            }
        }
    }
}

#[test]
fn the_choice_is_told_and_repeats_its_bits() {
    let folder = larger();
    for level in levels() {
        let (losses, notes) = trained(&folder, level, (2, "data=2"));
        let told: Vec<&String> = notes
            .iter()
            .filter(|note| note.contains("winograd"))
            .collect();
        assert_eq!(told.len(), 1, "{notes:?}");
        assert!(told[0].starts_with("of 5 convolutions "), "{told:?}");
        let (again, _) = trained(&folder, level, (2, "data=2"));
        assert_eq!(losses, again);
        let (plain, _) = trained(&folder, level, (2, "data=2,workspace=off"));
        assert_ne!(losses, plain);
    }
}

#[test]
fn programs_pin_the_same_where_nothing_was_measured() {
    let folder = larger();
    for level in levels() {
        for (ranks, strategy) in STRATEGIES {
            let (by, digest) = pinned(&folder, level, (ranks, strategy));
            assert_eq!(pinned(&folder, level, (ranks, strategy)), (by, digest));
            let (split, _) = strategy.split_once(",workspace").unwrap_or((strategy, ""));
            let off = format!("{split},workspace=off");
            let (by, _) = pinned(&folder, level, (ranks, &off));
            assert_eq!(by, BTreeSet::from(["cpu".to_owned()]), "{strategy}");
        }
        let (by, _) = pinned(&folder, level, (1, "data=1"));
        assert!(by.iter().any(|name| name.starts_with("winograd")), "{by:?}");
        // No workspace is left.
        let (by, _) = pinned(&folder, level, (1, "data=1,workspace=64B"));
        assert_eq!(by, BTreeSet::from(["cpu".to_owned()]));
    }
    let (by, _) = pinned(&folder, Level::Portable, (1, "data=1"));
    assert_eq!(
        by,
        BTreeSet::from(["cpu".to_owned()]),
        "it has no constants"
    );
}

/// Ranks that compute the same compute it in the same way, whatever room each of them has.
#[test]
fn what_other_ranks_compute_too_keeps_the_usual_kernels() {
    let folder = larger();
    for level in levels() {
        let split = "depth=2,workspace=64MiB";
        let copied = "depth=2,workspace=64MiB; c2: D=-";
        let (own, _) = pinned(&folder, level, (2, split));
        assert!(
            own.iter().any(|name| name.starts_with("winograd")),
            "{own:?}"
        );
        let (copies, _) = pinned_in(&folder, level, (2, copied), "c2");
        assert_eq!(copies, BTreeSet::from(["cpu".to_owned()]), "{copied}");
    }
}
