//! Evaluations and predictions on datasets with other classes, targets and ranges than those of the training.

use super::classes::write;
use crate::train::{
    EvaluateResult, ForwardRequest, InferRequest, PredictionChoice, PredictionUnits, ResumeFrom,
    TrainRequest, evaluate, infer, train,
};
use partita_data::{DatasetSpec, DatasetWriter, Kind, Split};
use partita_formats::{DType, Layout, Samples};
use partita_input::PredictionKind;
use partita_site::{Context, Environment, Event, full_text};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

const CLASSES: &str = "model classes
input x channels=1 extent=2x2x2
f = flatten x
fc = linear f features=3 bias=true init=constant:0
loss = softmax_cross_entropy fc
";
/// Twice the mean of eight values, less one.
const NUMBERS: &str = "model numbers
input x channels=1 extent=2x2x2
f = flatten x
fc = linear f features=1 bias=true
loss = mse fc
";

struct Case {
    folder: TempDir,
    said: Arc<Mutex<String>>,
}

impl Case {
    fn new(model: &str, more: &str) -> Self {
        let case = Self {
            folder: tempfile::tempdir().unwrap(),
            said: Arc::default(),
        };
        fs::write(case.at("net.model"), model).unwrap();
        case.run_file(more);
        case
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run_file(&self, more: &str) {
        let at = self.folder.path().display();
        let text = format!(
            "model = \"{at}/net.model\"\ndata = \"{at}/set\"\noutput = \"{at}/out\"\nseed = 1\nbatch = 6\n{more}"
        );
        fs::write(self.at("run.toml"), text).unwrap();
    }

    fn with_context<T>(&self, work: impl FnOnce(&Context) -> T) -> T {
        self.said.lock().unwrap().clear();
        let said = Arc::clone(&self.said);
        let progress = move |event: Event<'_>| {
            if let Event::Note(text) | Event::Warning(text) = event {
                *said.lock().unwrap() += text;
            }
        };
        let environment = Environment::default();
        work(&Context::watched(
            environment,
            Arc::new(progress),
            Arc::default(),
        ))
    }

    fn train(&self, resume: ResumeFrom) -> Result<(), String> {
        let request = TrainRequest {
            run_file: self.at("run.toml"),
            prediction: PredictionChoice::Never,
            resume,
            ..TrainRequest::default()
        };
        let trained = self.with_context(|context| train(context, &request));
        trained.map(|_| ()).map_err(|error| full_text(&error))
    }

    fn forward(&self, data: &str, ranks: usize) -> ForwardRequest {
        ForwardRequest {
            run_file: self.at("run.toml"),
            data: Some(self.at(data)),
            ranks: Some(ranks),
            strategy: Some(format!("data={ranks}")),
            batch: Some(2),
            split: Some(Split::Train),
            ..ForwardRequest::default()
        }
    }

    fn evaluate(&self, data: &str, ranks: usize) -> Result<EvaluateResult, String> {
        let request = self.forward(data, ranks);
        let found = self.with_context(|context| evaluate(context, &request));
        Ok(found.map_err(|error| full_text(&error))?.unwrap())
    }

    fn said(&self, part: &str) {
        let said = self.said.lock().unwrap();
        assert!(said.contains(part), "`{part}` is not in: {said}");
    }
}

/// Samples of the classes 0, 1 and 2 of the training, whose values tell them apart, with labels by `names`.
fn labeled(path: &Path, names: &[&str], labels: [Option<i16>; 3]) {
    let _ = fs::remove_dir_all(path);
    let known: Vec<(i16, i16)> = (0..3)
        .zip(labels)
        .filter_map(|(class, label)| Some((class, label?)))
        .collect();
    let all = names.iter().map(|&name| name.to_owned()).collect();
    write(path, [1, 2, 2, 2], [1; 3], all, [6, 0], |index| {
        let (class, label) = known[index as usize % known.len()];
        let values = (0..8).map(|at| i16::from(at % 3 == class));
        (values.collect(), vec![label])
    });
}

#[test]
fn classes_in_another_order_or_fewer_are_matched_by_name() {
    let case = Case::new(
        CLASSES,
        "epochs = 60\n[optimizer]\nkind = \"adam\"\n[schedule]\nlearning_rate = 0.1\n",
    );
    labeled(
        &case.at("set"),
        &["cat", "dog", "owl"],
        [Some(0), Some(1), Some(2)],
    );
    case.train(ResumeFrom::Start).unwrap();
    let accuracy = |data: &str, ranks| {
        let found = case.evaluate(data, ranks)?.metrics;
        Ok::<_, String>(found.classification.unwrap().accuracy)
    };
    assert_eq!(accuracy("set", 1), Ok(1.0));
    labeled(
        &case.at("other"),
        &["dog", "owl", "Cat"],
        [Some(2), Some(0), Some(1)],
    );
    for ranks in [1, 2] {
        assert_eq!(accuracy("other", ranks), Ok(1.0));
        case.said("by name: dog 0 -> 1, owl 1 -> 2, Cat 2 -> 0");
    }
    labeled(&case.at("fewer"), &["owl", "dog"], [None, Some(1), Some(0)]);
    assert_eq!(accuracy("fewer", 1), Ok(1.0));
    let found = case.evaluate("fewer", 1).unwrap().metrics;
    let classes = found.classification.unwrap().classes;
    let shares: Vec<(&str, f64)> = classes.iter().map(|it| (&*it.class, it.share)).collect();
    assert_eq!(shares, [("cat", 0.0), ("dog", 0.5), ("owl", 0.5)]);
    // Names that are no others' are refused, made-up ones stand for nothing.
    labeled(
        &case.at("none"),
        &["dog", "cow", "cat"],
        [Some(2), Some(0), Some(1)],
    );
    let error = accuracy("none", 1).unwrap_err();
    for part in ["dog, cow, cat", "cat, dog, owl", "`targets`"] {
        assert!(error.contains(part), "`{part}` is not in: {error}");
    }
    labeled(
        &case.at("plain"),
        &["class0", "class1", "class2"],
        [Some(0), Some(1), Some(2)],
    );
    assert_eq!(accuracy("plain", 1), Ok(1.0));
}

/// Samples whose physical target is the sum of their values, in a range.
fn scaled(path: &Path, name: &str, [low, high]: [f32; 2], sums: &[i16]) {
    let _ = fs::remove_dir_all(path);
    let spec = DatasetSpec {
        kind: Kind::Other,
        shape: [1, 2, 2, 2],
        dtype: DType::Int16,
        targets: vec![name.to_owned()],
        labels: None,
        layout: Layout::Contiguous,
        train: (0..sums.len() as u64).collect(),
        validation: Vec::new(),
        test: Vec::new(),
        spec: toml::Table::new(),
    };
    let mut writer = DatasetWriter::create(path, &spec).unwrap();
    for &sum in sums {
        let values = (0..8).map(|at| if at == 0 { sum } else { 0 });
        let physical = f32::from(sum);
        let unit = 2.0 * (physical - low) / (high - low) - 1.0;
        let values = Samples::I16(values.collect());
        writer
            .append(Split::Train, &values, &[unit], &[physical])
            .unwrap();
    }
    writer.finish().unwrap();
}

fn scores(case: &Case, data: &str, units: PredictionUnits) -> Vec<f32> {
    let request = InferRequest {
        forward: case.forward(data, 1),
        out: case.at("scores.npy"),
        kind: PredictionKind::Scores,
        units,
    };
    let found = case.with_context(|context| infer(context, &request));
    let physical = found.unwrap().unwrap().physical;
    let is_physical = units == PredictionUnits::Physical;
    assert_eq!(
        physical,
        if is_physical {
            vec!["age (yr)"]
        } else {
            vec![]
        }
    );
    let bytes = fs::read(case.at("scores.npy")).unwrap();
    let (words, _) = bytes[bytes.len() - 4 * 6..].as_chunks::<4>();
    words.iter().map(|&word| f32::from_le_bytes(word)).collect()
}

#[test]
fn targets_of_another_range_are_scaled_and_errors_are_physical() {
    let schedule = "[optimizer]\nkind = \"adam\"\n[schedule]\nlearning_rate = 0.05\n";
    let case = Case::new(NUMBERS, &format!("epochs = 400\n{schedule}"));
    scaled(&case.at("set"), "age", [0.0, 10.0], &[0, 2, 4, 6, 8, 10]);
    let index = case.at("set/dataset.toml");
    let text = fs::read_to_string(&index).unwrap();
    let text = text.replace("format = 1", "format = 1\nunits = [\"yr\"]");
    fs::write(&index, text).unwrap();
    case.train(ResumeFrom::Start).unwrap();
    scaled(&case.at("other"), "age", [0.0, 5.0], &[0, 1, 2, 3, 4, 5]);
    for (data, ranks) in [("set", 1), ("other", 1), ("other", 2)] {
        let found = case.evaluate(data, ranks).unwrap().metrics;
        let error = &found.errors[0];
        let physical = error.physical.as_ref().unwrap();
        assert_eq!(physical.unit.as_deref(), Some("yr"));
        assert!(error.mean_absolute < 0.01, "{data}: {error:?}");
        let ratio = physical.mean_absolute / error.mean_absolute;
        assert!((ratio - 5.0).abs() < 1e-5, "{data}: {error:?}");
    }
    case.said("age [0.0, 5.0] -> [0.0, 10.0]");
    let physical = scores(&case, "other", PredictionUnits::Physical);
    let network = scores(&case, "other", PredictionUnits::Network);
    for (at, (physical, network)) in physical.iter().zip(network).enumerate() {
        assert!((physical - at as f32).abs() < 0.1, "{at}: {physical}");
        assert!(
            (physical - 5.0 * (network + 1.0)).abs() < 1e-5,
            "{physical} {network}"
        );
    }
    // Another number is refused by name.
    scaled(&case.at("mass"), "mass", [0.0, 5.0], &[0, 1, 2]);
    let error = case.evaluate("mass", 1).unwrap_err();
    assert!(error.contains("its targets are mass"), "{error}");
    assert!(error.contains("the weights are age"), "{error}");
    // A training does not go on with targets of another range.
    scaled(&case.at("set"), "age", [0.0, 20.0], &[0, 2, 4, 6, 8, 10]);
    case.run_file(&format!("epochs = 401\n{schedule}"));
    let error = case.train(ResumeFrom::Newest).unwrap_err();
    for part in ["the ranges [0.0, 10.0]", "the ranges [0.0, 20.0]"] {
        assert!(error.contains(part), "`{part}` is not in: {error}");
    }
}
