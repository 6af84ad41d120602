//! The mean Dice coefficient of samples, and a training that ends by it.

use super::classes::{train_text, write};
use crate::train::{
    EvaluateResult, ForwardRequest, ResumeFrom, SampleResult, TrainRequest, VolumeMode, evaluate,
};
use partita_site::{Context, Environment, Silent, full_text};
use serde_json::Value;
use std::fs;
use std::sync::Arc;
use tempfile::TempDir;

const MODEL: &str = "model slabs
input x channels=1 extent=8x8x8
c1 = conv x filters=6 kernel=3 pad=1 bias=true init=he_normal
a1 = relu c1
c2 = conv a1 filters=3 kernel=1 bias=true
loss = dice_cross_entropy c2 background=false smooth=1e-6 cross_entropy_weights=1,4,4
";

/// Validation samples.
const VALIDATED: f64 = 5.0;

fn folder() -> TempDir {
    folder_of(8)
}

/// Samples of bright slabs of a depth, of which some lack one of the classes.
fn folder_of(depth: usize) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("net.model"), MODEL).unwrap();
    let names = ["none", "gray", "white"].map(str::to_owned).to_vec();
    let set = folder.path().join("set");
    let positions = depth as u64 * 64;
    let extent = [depth, 8, 8];
    write(&set, [1, depth, 8, 8], extent, names, [10, 5], |index| {
        let label = |at: u64| match (at / 64 + index) % 4 {
            2 if index % 3 != 0 => 1,
            3 if index % 3 != 1 => 2,
            _ => 0,
        };
        let value = |at: u64| 100 * label(at) + ((index * 31 + at * 17) % 40) as i16;
        let all = 0..positions;
        (all.clone().map(value).collect(), all.map(label).collect())
    });
    folder
}

fn run_file(folder: &TempDir, output: &str, epochs: usize, more: &str) -> String {
    let at = folder.path().display();
    let ranks = if more.contains("=2") { 2 } else { 1 };
    format!(
        "model = \"{at}/net.model\"\ndata = \"{at}/set\"\noutput = \"{at}/{output}\"\nseed = 1\n\
         transform = {{ scale = 0.01 }}\nbatch = 2\nepochs = {epochs}\nranks = {ranks}\nstrategy = \"{more}\"\n\
         kernels = \"reference\"\nprecision = \"f64\"\nmetrics = [\"jsonl\"]\ntarget = {{ sample_dice = 1.0 }}\n\
         [optimizer]\nkind = \"adam\"\nclip = 0.5\n\
         [schedule]\nkind = \"cosine_restarts\"\nlearning_rate = 0.02\nperiod = 2\nmultiplier = 2\nfinal_factor = 0.1\n"
    )
}

/// The lines of metrics of a kind.
fn lines(folder: &TempDir, output: &str, kind: &str) -> Vec<Value> {
    let path = folder.path().join(output).join("metrics.jsonl");
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.filter(|line: &Value| line["kind"] == kind).collect()
}

fn numbers(lines: &[Value], pointer: &str) -> Vec<f64> {
    let number = |line: &Value| line.pointer(pointer).and_then(Value::as_f64);
    lines.iter().map(|line| number(line).unwrap()).collect()
}

fn are_near(some: &[f64], others: &[f64]) -> bool {
    let pairs = some.iter().zip(others);
    some.len() == others.len() && pairs.into_iter().all(|(a, b)| (a - b).abs() < 1e-9)
}

/// Of all classes but 0 of a sample; one that is neither there nor predicted counts 1.
fn dice(sample: &SampleResult) -> f64 {
    let classes = &sample.classification.as_ref().unwrap().classes[1..];
    let each = classes.iter().map(|class| class.dice.unwrap_or(1.0));
    each.sum::<f64>() / classes.len() as f64
}

/// The second loss leads to samples of background alone.
#[test]
fn samples_count_alike_without_background_under_every_strategy() {
    for loss in ["", "loss = \"softmax_cross_entropy\"\n"] {
        let folder = folder();
        let text = loss.to_owned() + &run_file(&folder, "out", 4, "data=1");
        let trained = train_text(&folder, &text).unwrap();
        let found = |batch: usize, per_sample: bool, strategy: &str| -> EvaluateResult {
            let request = ForwardRequest {
                run_file: folder.path().join("run.toml"),
                batch: Some(batch),
                per_sample,
                strategy: Some(strategy.to_owned()),
                ranks: Some(if strategy.contains("=2") { 2 } else { 1 }),
                ..ForwardRequest::default()
            };
            let context = Context::new(Environment::default());
            evaluate(&context, &request).unwrap().unwrap()
        };
        let each = found(1, true, "data=1");
        let expected = each.samples.iter().map(dice).sum::<f64>() / VALIDATED;
        let is_absent = each.samples.iter().any(has_absent_class);
        assert!(is_absent || loss.is_empty(), "{:?}", each.samples);
        let all = each.metrics.classification.unwrap();
        assert!((all.mean_dice.unwrap() - expected).abs() > 1e-3, "{all:?}");
        let of_training = &trained["epochs"][3]["validation"]["classification"]["sample_dice"];
        let of_training = of_training.as_f64().unwrap();
        assert!(
            (of_training - expected).abs() < 1e-9,
            "{of_training} {expected}"
        );
        for (batch, strategy) in [
            (5, "data=1"),
            (2, "data=1"),
            (4, "micro=4"),
            (4, "data=2"),
            (3, "depth=2"),
            (2, "height=2"),
            (4, "stages=2,micro=2"),
            (4, "data=2,micro=2"),
        ] {
            let found = found(batch, false, strategy);
            let found = found.metrics.classification.unwrap().sample_dice.unwrap();
            assert!(
                (found - expected).abs() < 1e-9,
                "{strategy}: {found} {expected}"
            );
        }
    }
}

fn has_absent_class(sample: &SampleResult) -> bool {
    let classes = &sample.classification.as_ref().unwrap().classes;
    classes.iter().any(|class| class.dice.is_none())
}

#[test]
fn volumes_that_are_joined_of_tiles_count_as_samples() {
    let folder = folder_of(12);
    let text = run_file(&folder, "out", 3, "depth=2") + "[augmentation]\ncrop = [8, 8, 8]\n";
    let trained = train_text(&folder, &text).unwrap();
    let validation = &trained["epochs"][2]["validation"];
    assert_eq!(validation["samples"], 5);
    let request = ForwardRequest {
        run_file: folder.path().join("run.toml"),
        per_sample: true,
        volumes: Some(VolumeMode::Tiles),
        ..ForwardRequest::default()
    };
    let each = evaluate(&Context::new(Environment::default()), &request);
    let each = each.unwrap().unwrap();
    let expected = each.samples.iter().map(dice).sum::<f64>() / VALIDATED;
    let found = validation["classification"]["sample_dice"].as_f64();
    assert!(
        (found.unwrap() - expected).abs() < 1e-9,
        "{found:?} {expected}"
    );
}

/// What a target does not need is not computed.
#[test]
fn other_metrics_leave_samples_alone() {
    let folder = folder();
    let text = run_file(&folder, "out", 1, "data=1").replace("sample_dice", "mean_dice");
    let trained = train_text(&folder, &text).unwrap();
    let classification = &trained["epochs"][0]["validation"]["classification"];
    assert!(classification["mean_dice"].is_number());
    assert!(
        classification.get("sample_dice").is_none(),
        "{classification}"
    );
}

#[test]
fn a_network_of_one_class_has_no_foreground() {
    let folder = folder();
    let model = MODEL.replace("filters=3", "filters=1");
    let (head, _) = model.split_once("loss").unwrap();
    let model = format!("{head}loss = softmax_cross_entropy c2\n");
    fs::write(folder.path().join("net.model"), model).unwrap();
    let set = folder.path().join("set");
    fs::remove_dir_all(&set).unwrap();
    let names = vec!["all".to_owned()];
    write(&set, [1, 8, 8, 8], [8; 3], names, [2, 1], |_| {
        (vec![1; 512], vec![0; 512])
    });
    let text = run_file(&folder, "out", 1, "data=1");
    let error = train_text(&folder, &text).unwrap_err();
    let expected = "target = { sample_dice = 1 } needs a class besides class 0";
    assert!(error.contains(expected), "{error}");
}

/// A schedule with restarts, a clipped norm and a Dice loss: the same rates bit by bit, the same losses up to the order
/// of sums, and the same end.
#[test]
fn a_training_with_restarts_ends_at_one_epoch_under_every_strategy() {
    let folder = folder();
    let mut first: Option<[Vec<f64>; 3]> = None;
    for strategy in [
        "data=1",
        "data=2",
        "depth=2",
        "height=2",
        "filter=2",
        "stages=2,micro=2",
    ] {
        let text = run_file(&folder, "out", 5, strategy)
            .replace("sample_dice = 1.0", "sample_dice = 0.35");
        let trained = train_text(&folder, &text).unwrap();
        assert!(trained["target"]["epoch"].is_u64(), "{strategy}: {trained}");
        let [steps, epochs] = ["step", "epoch"].map(|kind| lines(&folder, "out", kind));
        let found = [
            numbers(&steps, "/learning_rate"),
            numbers(&steps, "/loss"),
            numbers(&epochs, "/validation/sample_dice_sum"),
        ];
        let first = first.get_or_insert_with(|| found.clone());
        assert_eq!(found[0], first[0], "{strategy}");
        assert!(
            are_near(&found[1], &first[1]),
            "{strategy}: {found:?} {first:?}"
        );
        assert!(
            are_near(&found[2], &first[2]),
            "{strategy}: {found:?} {first:?}"
        );
    }
}

/// Within a cosine.
#[test]
fn a_resumed_training_goes_on_with_its_restarts() {
    let folder = folder();
    train_text(&folder, &run_file(&folder, "whole", 7, "data=1")).unwrap();
    train_text(&folder, &run_file(&folder, "parts", 3, "data=1")).unwrap();
    let run_file = {
        let text = run_file(&folder, "parts", 7, "data=1");
        let path = folder.path().join("run.toml");
        fs::write(&path, text).unwrap();
        path
    };
    let request = TrainRequest {
        run_file,
        resume: ResumeFrom::Newest,
        ..TrainRequest::default()
    };
    let resumed = super::train(&request, Silent, &Arc::default());
    resumed.map_err(|error| full_text(&error)).unwrap();
    let found = ["whole", "parts"].map(|output| {
        let [steps, epochs] = ["step", "epoch"].map(|kind| lines(&folder, output, kind));
        let rates = numbers(&steps, "/learning_rate");
        assert_eq!(rates.len(), 7 * 5);
        // The first restart is that of the third epoch.
        assert_eq!((rates[0], rates[10]), (0.02, 0.02));
        assert!(rates[9] < 0.0025, "{rates:?}");
        let dice = numbers(&epochs, "/validation/sample_dice_sum");
        [rates, numbers(&steps, "/loss"), dice]
            .map(|all| all.into_iter().map(f64::to_bits).collect::<Vec<_>>())
    });
    assert_eq!(found[0], found[1]);
}
