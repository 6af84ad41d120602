//! Kernels that are tried before a training: what is learned is kept, and a checkpoint keeps to it.

use super::command::case;
use crate::train::{
    LiveTuning, PredictionChoice, ResumeFrom, RunFile, TrainRequest, Trainer, train_with,
};
use partita_site::kernel_set::KernelSet;
use partita_site::launch::Launch;
use partita_site::{Context, Environment, Event, Progress, Ranks, Silent, setting};
use partita_space::Seconds;
use partita_testkit::{Conditions, Measurements};
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

const MODEL: &str = "model tiny
input x channels=2 extent=4x4x4
up = conv_transpose x filters=8 kernel=4 stride=4 bias=true
c1 = conv up filters=16 kernel=3 pad=1 bias=true
a1 = leaky_relu c1 slope=0.1
c2 = conv a1 filters=16 kernel=3 pad=1 bias=true
a2 = relu c2
f = flatten a2
fc = linear f features=2 bias=true
loss = mse fc
";

/// Keeps what is told.
#[derive(Default)]
struct Notes(Mutex<Vec<String>>);

impl Progress for Notes {
    fn report(&self, event: Event<'_>) {
        if let Event::Note(text) = event {
            self.0.lock().unwrap().push(text.to_owned());
        }
    }
}

/// A training with the CPU's kernels.
fn folder() -> TempDir {
    let folder = case(&[
        ("kernels = \"reference\"", "kernels = \"cpu\""),
        ("strategy = \"depth=2\"", "strategy = \"data=2\""),
        ("epochs = 6", "epochs = 3"),
        (
            "[schedule]",
            "[checkpoint]\nevery_steps = 2\nkeep = 10\n[schedule]",
        ),
        ("learning_rate = 0.01", "learning_rate = 0.001"),
    ]);
    fs::write(folder.path().join("tiny.model"), MODEL).unwrap();
    folder
}

fn times(folder: &TempDir) -> PathBuf {
    folder.path().join("measured.sqlite")
}

fn context(folder: &TempDir, progress: Arc<dyn Progress>) -> Context {
    let environment = Environment {
        measured_times: Some(times(folder)),
        // Other tests hold cores at the same time.
        core_locks: None,
        ..Environment::default()
    };
    Context::watched(environment, progress, Arc::default())
}

/// The weights in the end, and whether kernels were tried.
fn weights(folder: &TempDir, tune: LiveTuning, resume: ResumeFrom) -> (Vec<u8>, bool) {
    let notes = Arc::new(Notes::default());
    let context = context(folder, Arc::clone(&notes) as _);
    let request = TrainRequest {
        run_file: folder.path().join("run.toml"),
        tune: Some(tune),
        overwrite: resume == ResumeFrom::Start,
        prediction: PredictionChoice::Never,
        resume,
        ..TrainRequest::default()
    };
    let trainer = Trainer::of_run_file(RunFile::read(&request.run_file).unwrap(), &request);
    train_with(&Launch::threads(&context), &trainer).unwrap();
    let notes = notes.0.lock().unwrap();
    let tried = notes.iter().any(|note| note.contains("kernels were tried"));
    let file = folder.path().join("out/weights.safetensors");
    (fs::read(file).unwrap(), tried)
}

#[test]
fn a_training_tries_its_kernels_once_and_keeps_what_it_learned() {
    let folder = folder();
    let start = ResumeFrom::Start;
    // It is far too short for trials to pay.
    assert!(!weights(&folder, LiveTuning::Live, start.clone()).1);
    let (first, tried) = weights(&folder, LiveTuning::Always, start.clone());
    assert!(tried);
    let result = |key: &str| {
        let text = fs::read(folder.path().join("out/result.json")).unwrap();
        let all: serde_json::Value = serde_json::from_slice(&text).unwrap();
        all[key].clone()
    };
    assert_ne!(result("trials"), 0);
    let kernels = result("convolutions");
    for tune in [LiveTuning::Always, LiveTuning::Live, LiveTuning::Off] {
        let (again, tried) = weights(&folder, tune, start.clone());
        assert!(!tried, "{tune:?}");
        assert!(again == first, "{tune:?}");
        assert_eq!(
            (result("trials"), result("convolutions")),
            (0.into(), kernels.clone())
        );
    }
}

#[test]
fn a_resumed_training_has_the_kernels_that_it_had() {
    let folder = folder();
    let (whole, tried) = weights(&folder, LiveTuning::Always, ResumeFrom::Start);
    assert!(tried);
    let whole_run = folder.path().join("whole");
    fs::rename(folder.path().join("out"), &whole_run).unwrap();
    let resume = ResumeFrom::Path(whole_run.join("checkpoints/step-000000004"));
    // Neither times that are lost nor other ones change it.
    let lies = plain_is_fastest(&folder);
    fs::remove_file(times(&folder)).unwrap();
    for _ in 0..2 {
        let (resumed, tried) = weights(&folder, LiveTuning::Always, resume.clone());
        assert!(!tried);
        assert!(resumed == whole);
        fs::remove_dir_all(folder.path().join("out")).unwrap();
        let context = context(&folder, Arc::new(Silent));
        context.keep_measurements(&measured_alone(&context), &lies);
    }
    let (plain, tried) = weights(&folder, LiveTuning::Always, ResumeFrom::Start);
    assert!(!tried && plain != whole);
}

/// False times of the convolutions that were tried, by which plain kernels are the fastest.
fn plain_is_fastest(folder: &TempDir) -> Measurements {
    let context = context(folder, Arc::new(Silent));
    let own = measured_alone(&context);
    let in_place = Conditions {
        backend: format!("{}, in place", own.backend),
        ..own
    };
    let mut tried = context.measurements(&in_place);
    assert!(!tried.kernels.is_empty());
    for times in tried.kernels.values_mut() {
        times.values_mut().for_each(|time| *time = Seconds(1.0));
        times.insert("cpu".to_owned(), Seconds(1e-6));
    }
    tried
}

fn measured_alone(context: &Context) -> Conditions {
    setting(context.level(), KernelSet::CPU, &Ranks::threads(2, 1))
}
