//! Trainings pin what was measured to be the fastest, and still learn the same.

use super::command::case;
use crate::train::{PredictionChoice, TrainRequest};
use partita_forecast::{FLOATS, LowerRequest, StrategyChoice, Training, TuneRequest, lower, tune};
use partita_program::{ProgramKind, Work};
use partita_site::kernel_set::{KernelSet, Precision};
use partita_site::{Context, Environment, Ranks, setting};
use partita_space::Seconds;
use partita_testkit::{DivisionPolicy, LibrarySearch, Measurements, not_run, onednn_search};
use std::collections::BTreeSet;
use std::fs;
use std::sync::OnceLock;
use tempfile::TempDir;

const MODEL: &str = "model tiny
input x channels=2 extent=4x4x4
c1 = conv x filters=8 kernel=3 pad=1 bias=true
a1 = leaky_relu c1 slope=0.1
c2 = conv a1 filters=8 kernel=3 pad=1 bias=true
a2 = relu c2
c3 = conv a2 filters=8 kernel=5 pad=2 bias=true
f = flatten c3
fc = linear f features=2 bias=true
loss = mse fc
";

/// Looked for once, as what is missing is said each time.
fn onednn() -> Option<LibrarySearch> {
    static FOUND: OnceLock<Option<LibrarySearch>> = OnceLock::new();
    let find = || onednn_search("trainings with convolutions of oneDNN");
    FOUND.get_or_init(find).clone()
}

/// A context with measured times of its own; each has its catalog.
fn context(folder: &TempDir) -> Context {
    Context::new(Environment {
        measured_times: Some(folder.path().join("measured.sqlite")),
        onednn: onednn().unwrap_or_default(),
        ..Environment::default()
    })
}

/// The kernels of tuned trainings.
fn kernels(device: KernelSet) -> KernelSet {
    KernelSet::CPU.on(device, Precision::F32).unwrap()
}

/// Training and validation losses of the epochs.
fn losses(folder: &TempDir, device: KernelSet, strategy: &str) -> Vec<f64> {
    let context = context(folder);
    let request = TrainRequest {
        device: Some(device),
        run_file: folder.path().join("run.toml"),
        strategy: Some(strategy.to_owned()),
        ranks: Some(2),
        overwrite: true,
        prediction: PredictionChoice::Never,
        ..TrainRequest::default()
    };
    let trained = crate::train::train(&context, &request).unwrap();
    let result = serde_json::to_value(&trained.unwrap().result).unwrap();
    let epochs = result["epochs"].as_array().unwrap();
    let loss = |epoch: &serde_json::Value| {
        let validation = epoch["validation"]["loss"].as_f64().unwrap();
        [epoch["training_loss"].as_f64().unwrap(), validation]
    };
    epochs.iter().flat_map(loss).collect()
}

/// Algorithms of a program of this strategy.
fn algorithms(folder: &TempDir, device: KernelSet, strategy: &str) -> BTreeSet<String> {
    let request = LowerRequest {
        kernels: Some(kernels(device)),
        ..LowerRequest::new(training(folder), strategy.parse().unwrap())
    };
    let lowered = lower(&context(folder), &request).unwrap();
    let tasks = lowered.program.bodies.iter().flat_map(|body| &body.tasks);
    let pinned = tasks.filter_map(|task| match &task.work {
        Work::Compute { algorithm, .. } => Some(algorithm.0.clone()),
        Work::Exchange(_) | Work::Collective(_) | Work::Load(_) | Work::Store(_) => None,
    });
    pinned.collect()
}

fn training(folder: &TempDir) -> Training {
    let model = folder.path().join("tiny.model");
    Training {
        samples: FLOATS,
        ..Training::new(model.to_str().unwrap(), 2, 4)
    }
}

/// Measures all configurations.
fn measure(folder: &TempDir, device: KernelSet) {
    for kind in [ProgramKind::Train, ProgramKind::Evaluate] {
        let request = TuneRequest {
            training: training(folder),
            strategy: StrategyChoice::Given("data=2".parse().unwrap()),
            kind,
            threads: 1,
            device,
            policy: DivisionPolicy::All,
            limits: Vec::new(),
            totals: Vec::new(),
        };
        tune(&context(folder), &request).unwrap();
    }
}

/// Each configuration in turn is made the fastest by false times.
fn all_learn_the_same(device: KernelSet, usual_name: &str, all: &[&str]) {
    let folder = case(&[
        ("kernels = \"reference\"", "kernels = \"cpu\""),
        ("learning_rate = 0.01", "learning_rate = 0.001"),
    ]);
    fs::write(folder.path().join("tiny.model"), MODEL).unwrap();
    let usual = losses(&folder, device, "data=2");
    measure(&folder, device);
    let ranks = Ranks::threads(2, 1);
    let setting = setting(context(&folder).level(), kernels(device), &ranks);
    let measured = context(&folder).measurements(&setting);
    let mut seen = BTreeSet::new();
    for favored in all.iter().copied() {
        let mut lies = Measurements::default();
        lies.shapes.clone_from(&measured.shapes);
        for (signature, times) in &measured.kernels {
            if signature.contains("convolution_") {
                let mut times = times.clone();
                let others = times.values_mut();
                others.for_each(|time| *time = Seconds(1.0));
                times.insert(favored.to_owned(), Seconds(1e-6));
                lies.kernels.insert(signature.clone(), times);
            }
        }
        context(&folder).keep_measurements(&setting, &lies);
        for limit in ["live", "1MiB"] {
            let strategy = format!("data=2,workspace={limit}");
            let pinned = algorithms(&folder, device, &strategy);
            assert!(
                pinned.contains(favored) || limit == "live",
                "{favored}: {pinned:?}"
            );
            seen.extend(pinned);
            let tuned = losses(&folder, device, &strategy);
            assert_eq!(tuned.len(), usual.len());
            // Adam magnifies rounding from epoch to epoch.
            for (a, b) in tuned.iter().zip(&usual) {
                let far = (a - b).abs() / b.abs();
                assert!(far < 1e-2, "{favored} {limit}: {tuned:?}, not {usual:?}");
            }
            // A network as small as this has little room, and the usual kernels may give the same bits.
            if !favored.starts_with(usual_name) && limit != "live" {
                assert_ne!(tuned, usual, "{favored}");
            }
        }
        // A true time of what was favored is no longer the fastest.
        let mut times = lies;
        for own in times.kernels.values_mut() {
            own.insert(favored.to_owned(), Seconds(2.0));
        }
        context(&folder).keep_measurements(&setting, &times);
    }
    assert!(seen.len() >= all.len().min(6), "{seen:?}");
    assert_eq!(losses(&folder, device, "data=2,workspace=off"), usual);
}

#[test]
fn tuned_trainings_learn_what_others_learn() {
    let mut all = vec![
        "winograd2",
        "winograd4",
        "winograd24",
        "fourier",
        "cpu:n1*2",
        "winograd2:d1*4",
        "cpu:d2*2",
    ];
    if onednn().is_some() {
        all.extend(["onednn", "onednn:d2*2"]);
    }
    all_learn_the_same(KernelSet::CPU, "cpu", &all);
}

#[test]
fn tuned_trainings_on_a_device_learn_what_others_learn() {
    let device = KernelSet::of_backend("software");
    if let Err(error) = KernelSet::CPU.on(device, Precision::F32) {
        not_run("tuned_trainings_on_a_device_learn_what_others_learn", error);
        return;
    }
    all_learn_the_same(device, "gpu", &["serial", "gpu:n1*2", "serial:d1*4"]);
}
