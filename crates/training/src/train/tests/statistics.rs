//! Trainings, evaluations and predictions after the dataset of the training has changed.

use super::classes::write;
use crate::train::{
    ConvertRequest, ForwardRequest, InferRequest, PredictionChoice, PredictionUnits, ResumeFrom,
    TrainRequest, convert_weights, evaluate, infer, train,
};
use crate::weights::{Selection, WeightForm, WeightNames};
use partita_input::PredictionKind;
use partita_site::{Context, Environment, Event, full_text};
use partita_weights::{load, save};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

const MODEL: &str = "model small
input x channels=1 extent=4x4x4
c1 = conv x filters=2 kernel=3 pad=1 bias=true init=he_normal
a1 = relu c1
f = flatten a1
fc = linear f features=2 bias=true
loss = softmax_cross_entropy fc
";

/// Training samples with these levels, and two validation samples.
fn dataset(path: &Path, levels: &[i16]) {
    let _ = fs::remove_dir_all(path);
    let names = ["low", "high"].map(str::to_owned).to_vec();
    let counts = [levels.len() as u64, 2];
    write(path, [1, 4, 4, 4], [1; 3], names, counts, |index| {
        let level = levels.get(index as usize).copied().unwrap_or(10);
        let values = (0..64).map(|at| level + (at * 7 + index as i16) % 5);
        (values.collect(), vec![i16::from(level > 10)])
    });
}

struct Case {
    folder: TempDir,
    /// Notes and warnings of the last verb.
    said: Arc<Mutex<Vec<String>>>,
}

impl Case {
    /// A run file with these lines, and the datasets `set` and `other`.
    fn new(run: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let case = Self {
            folder,
            said: Arc::default(),
        };
        fs::write(case.at("net.model"), MODEL).unwrap();
        dataset(&case.at("set"), &[4, 8, 12, 16]);
        dataset(&case.at("other"), &[100, 200]);
        case.run_file("out", run);
        case
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run_file(&self, output: &str, more: &str) {
        let at = self.folder.path().display();
        let text = format!(
            "model = \"{at}/net.model\"\ndata = \"{at}/set\"\noutput = \"{at}/{output}\"\nseed = 1\nbatch = 2\n{more}\n\
             [schedule]\nlearning_rate = 0.01\n"
        );
        fs::write(self.at("run.toml"), text).unwrap();
    }

    fn with_context<T>(&self, work: impl FnOnce(&Context) -> T) -> T {
        self.said.lock().unwrap().clear();
        let said = Arc::clone(&self.said);
        let progress = move |event: Event<'_>| match event {
            Event::Note(text) | Event::Warning(text) => {
                said.lock().unwrap().push(text.to_owned());
            }
            _ => {}
        };
        work(&Context::watched(
            Environment::default(),
            Arc::new(progress),
            Arc::default(),
        ))
    }

    fn said(&self) -> String {
        self.said.lock().unwrap().join("\n")
    }

    fn train(&self, resume: ResumeFrom) -> Result<Value, String> {
        let request = TrainRequest {
            run_file: self.at("run.toml"),
            prediction: PredictionChoice::Never,
            resume,
            ..TrainRequest::default()
        };
        let trained = self.with_context(|context| train(context, &request));
        let trained = trained.map_err(|error| full_text(&error))?;
        Ok(serde_json::to_value(&trained.unwrap().result).unwrap())
    }

    fn forward(&self, weights: Option<&Path>) -> ForwardRequest {
        ForwardRequest {
            run_file: self.at("run.toml"),
            data: Some(self.at("other")),
            weights: weights.map(Path::to_owned).into_iter().collect(),
            ..ForwardRequest::default()
        }
    }

    /// Loss on the other dataset, and the bytes of predictions of it.
    fn results(&self, weights: Option<&Path>) -> (f64, Vec<u8>) {
        let request = InferRequest {
            forward: self.forward(weights),
            out: self.at("scores.npy"),
            kind: PredictionKind::Scores,
            units: PredictionUnits::default(),
        };
        self.with_context(|context| infer(context, &request))
            .unwrap();
        let found = self.with_context(|context| evaluate(context, &request.forward));
        let loss = found.unwrap().unwrap().metrics.loss;
        (loss, fs::read(self.at("scores.npy")).unwrap())
    }
}

fn mean(result: &Value) -> f64 {
    result["preparation"][0]["mean"][0].as_f64().unwrap()
}

#[test]
fn predictions_do_not_follow_the_dataset_after_the_training() {
    let case = Case::new("transform = \"standardize\"\nepochs = 1");
    case.train(ResumeFrom::Start).unwrap();
    let before = case.results(None);
    assert!(!case.said().contains("statistics"), "{}", case.said());
    let exported = case.at("exported.safetensors");
    let request = ConvertRequest {
        source: case.at("out"),
        model: Some(case.at("net.model").display().to_string()),
        out: exported.clone(),
        form: WeightForm::Names(WeightNames::PyTorch),
        selection: Selection::default(),
    };
    convert_weights(&request).unwrap();
    let checkpoint = case.at("out/checkpoints");
    let checkpoint = fs::read_dir(checkpoint).unwrap().next();
    let checkpoint = checkpoint.unwrap().unwrap().path();
    // A sample more in the training split.
    dataset(&case.at("set"), &[4, 8, 12, 16, 1000]);
    for weights in [None, Some(&*exported), Some(&*checkpoint)] {
        assert!(case.results(weights) == before, "{weights:?}");
        let said = case.said();
        for part in [
            "statistics of the weights: mean 12,",
            "now: mean 2",
            "those of the weights are used",
        ] {
            assert!(said.contains(part), "`{part}` is not in: {said}");
        }
    }
    // Weights without statistics, as those of earlier versions.
    let mut bare = load(case.at("out/weights.safetensors")).unwrap();
    bare.metadata.remove("partita.preparation").unwrap();
    let file = case.at("bare.safetensors");
    save(&file, &bare).unwrap();
    assert!(case.results(Some(&file)) != before);
    let said = case.said();
    let of_dataset = "keeps no statistics, so those of the training split of";
    assert!(said.contains(of_dataset), "{said}");
    // The dataset of the training is gone.
    fs::remove_dir_all(case.at("set")).unwrap();
    assert!(case.results(None) == before);
    assert!(!case.said().contains("statistics"), "{}", case.said());
    // Another transform than that of the training is reported.
    dataset(&case.at("set"), &[4, 8, 12, 16]);
    case.run_file("out", "transform = { scale = 0.1 }\nepochs = 1");
    assert!(case.results(None) != before);
    let said = case.said();
    let other = "was trained with `transform` = [standardize], not [scale = 0.1]";
    assert!(said.contains(other), "{said}");
    case.run_file("out", "epochs = 1");
    assert!(case.results(None) != before);
    let said = case.said();
    assert!(said.contains("[standardize], not \"identity\""), "{said}");
    // Damaged metadata.
    bare.metadata
        .insert("partita.preparation".to_owned(), "[1]".to_owned());
    save(&file, &bare).unwrap();
    let error = case.with_context(|context| evaluate(context, &case.forward(Some(&file))));
    let error = full_text(&error.unwrap_err());
    assert!(error.contains("`partita.preparation`"), "{error}");
}

#[test]
fn a_resumed_training_keeps_its_statistics() {
    let run = "transform = [\"log1p\", { percentiles = [0, 100] }, \"standardize\"]\nepochs = ";
    let mean = |result: &Value| result["preparation"][2]["mean"][0].clone();
    let low = |result: &Value| result["preparation"][1]["low"][0].clone();
    let case = Case::new(&format!("{run}1"));
    let first = case.train(ResumeFrom::Start).unwrap();
    // As many samples, one of them another.
    dataset(&case.at("set"), &[4, 8, 12, 1000]);
    case.run_file("out", &format!("{run}2"));
    let resumed = case.train(ResumeFrom::Newest).unwrap();
    assert_eq!((mean(&resumed), low(&resumed)), (mean(&first), low(&first)));
    let warnings = resumed["warnings"].to_string();
    for part in [
        "statistics of the checkpoint: percentile 0 1.6094",
        "those of the checkpoint are used",
    ] {
        assert!(warnings.contains(part), "`{part}` is not in: {warnings}");
    }
    assert!(case.said().contains("statistics of the checkpoint"));
    case.run_file("anew", &format!("{run}1"));
    let anew = case.train(ResumeFrom::Start).unwrap();
    assert_ne!(mean(&anew), mean(&first));
}

#[test]
fn a_training_that_starts_from_weights_says_whose_statistics_it_takes() {
    let run = "transform = \"standardize\"\nepochs = 1\n";
    let case = Case::new(run);
    let first = case.train(ResumeFrom::Start).unwrap();
    dataset(&case.at("set"), &[4, 8, 12, 16, 1000]);
    let file = case.at("out").display().to_string();
    case.run_file("tuned", &format!("{run}weights = \"{file}\""));
    let own = case.train(ResumeFrom::Start).unwrap();
    assert!(mean(&own) > 200.0, "{own}");
    let said = case.said();
    for part in [
        "statistics of the weights: mean 12,",
        "those of the dataset are used",
        "`statistics = \"weights\"`",
    ] {
        assert!(said.contains(part), "`{part}` is not in: {said}");
    }
    let keeping =
        |file: &str| format!("{run}[weights]\nfile = \"{file}\"\nstatistics = \"weights\"");
    case.run_file("kept", &keeping(&file));
    let kept = case.train(ResumeFrom::Start).unwrap();
    assert_eq!(mean(&kept), mean(&first));
    let mut bare = load(case.at("out/weights.safetensors")).unwrap();
    bare.metadata.remove("partita.preparation").unwrap();
    let file = case.at("bare.safetensors");
    save(&file, &bare).unwrap();
    case.run_file("none", &keeping(&file.display().to_string()));
    let error = case.train(ResumeFrom::Start).unwrap_err();
    for part in ["keeps no statistics", "help: try `statistics = \"data\"`"] {
        assert!(error.contains(part), "`{part}` is not in: {error}");
    }
}
