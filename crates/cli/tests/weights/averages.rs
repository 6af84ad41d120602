//! Exponential moving averages of weights, which are evaluated, saved and exported in place of the weights.

use super::{Case, STRATEGIES, case};
use partita_weights::checkpoint::Checkpoint;
use partita_weights::state_dict::{self, StateDictFile};
use partita_weights::{Values, load};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

/// Three steps an epoch.
const RUN: &str = "batch = 2\nepochs = 2\nweights = \"out\"\n\
     [schedule]\nlearning_rate = 0.02\n[checkpoint]\nevery_steps = 1\nkeep = 99\n";
const DECAY: f64 = 0.75;

fn averaged(run: &str) -> String {
    format!("ema = {DECAY}\n{run}")
}

/// Trains with such a run file, and gives its results.
fn train(case: &Case, name: &str, more: &str, flags: &str) -> Value {
    case.run_file(&format!("{name}.toml"), name, more);
    let arguments = format!("train {name}.toml --no-prediction --overwrite --json{flags}");
    case.json(&arguments)
}

fn doubles(values: Values) -> Vec<f64> {
    match values {
        Values::F32(values) => values.into_iter().map(f64::from).collect(),
        Values::F64(values) => values,
    }
}

/// The tensors of a weight file.
fn tensors(case: &Case, file: &str) -> BTreeMap<String, Vec<f64>> {
    let tensors = load(case.path(file)).unwrap().tensors.into_iter();
    let values = tensors.map(|(name, tensor)| (name, doubles(tensor.values)));
    values.collect()
}

/// The checkpoints of a run, in order.
fn checkpoints(case: &Case, output: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(case.path(output).join("checkpoints")).unwrap();
    let mut all: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    all.sort();
    all
}

fn losses(result: &Value) -> Vec<f64> {
    let epochs = result["epochs"].as_array().unwrap().iter();
    let losses = epochs.map(|epoch| epoch["validation"]["loss"].as_f64().unwrap());
    losses.collect()
}

fn loss(found: &Value) -> f64 {
    found["metrics"]["loss"].as_f64().unwrap()
}

fn assert_near(
    found: &BTreeMap<String, Vec<f64>>,
    expected: &BTreeMap<String, Vec<f64>>,
    text: &str,
) {
    assert!(found.keys().eq(expected.keys()), "{text}");
    for (name, values) in found {
        let pairs = values.iter().zip(&expected[name]);
        let far = pairs.map(|(a, b)| (a - b).abs() / b.abs().max(1.0));
        let far = far.fold(0.0, f64::max);
        assert!(far < 1e-5, "{text}: {name} differs by {far}");
    }
}

/// They are what follows from the weights after each step of the same training without averages. Running statistics are
/// those of the last step.
#[test]
fn saved_weights_are_averages_over_the_steps() {
    let case = case();
    let plain = train(case, "ema-plain", RUN, "");
    let found = train(case, "ema-saved", &averaged(RUN), "");
    let mut expected = tensors(case, "out/weights.safetensors");
    let all = checkpoints(case, "ema-plain");
    assert_eq!(all.len(), 6);
    for path in all {
        let checkpoint = Checkpoint::open(path).unwrap();
        let mut reader = checkpoint.reader();
        for (name, average) in &mut expected {
            let values = reader.read(name, 0..average.len()).unwrap();
            for (average, value) in average.iter_mut().zip(values) {
                *average = if name.contains(".running_") {
                    value
                } else {
                    DECAY * *average + (1.0 - DECAY) * value
                };
            }
        }
    }
    let saved = tensors(case, "ema-saved/weights.safetensors");
    assert_near(&saved, &expected, "averages");
    let last = tensors(case, "ema-plain/weights.safetensors");
    assert_eq!(saved["n1.running_mean"], last["n1.running_mean"]);
    let mut pairs = saved["c1.weight"].iter().zip(&last["c1.weight"]);
    assert!(pairs.any(|(a, b)| (a - b).abs() > 1e-4));
    let training = |result: &Value| result["epochs"][1]["training_loss"].clone();
    assert_eq!(
        training(&plain),
        training(&found),
        "the training is the same"
    );
    let file = StateDictFile::open(case.path("ema-saved/weights.safetensors")).unwrap();
    assert_eq!(file.metadata()["ema"], "0.75");
}

/// Of the validation of a training, of `evaluate`, of the best weights and of those of checkpoints.
#[test]
fn evaluations_are_of_the_averages() {
    let case = case();
    let best = RUN.replace(
        "every_steps = 1",
        "every_epochs = 1\nbest = \"validation_loss\"",
    );
    let plain = losses(&train(case, "ema-without", &best, ""));
    let with = losses(&train(case, "ema-with", &averaged(&best), ""));
    let differ = with.iter().zip(&plain).all(|(a, b)| (a - b).abs() > 1e-6);
    assert!(differ, "{with:?} {plain:?}");
    let evaluate = |more: &str| loss(&case.json(&format!("evaluate ema-with.toml --json{more}")));
    assert_eq!(evaluate(""), with[1]);
    let least = with.iter().copied().fold(f64::INFINITY, f64::min);
    assert_eq!(evaluate(" --best"), least);
    for (path, loss) in checkpoints(case, "ema-with").into_iter().zip(&with) {
        assert_eq!(evaluate(&format!(" --weights {}", path.display())), *loss);
    }
    case.answer("weights export ema-with --model small.model --out ema-there.safetensors");
    assert_eq!(evaluate(" --weights ema-there.safetensors"), with[1]);
    let exported = state_dict::load(case.path("ema-there.safetensors")).unwrap();
    assert!(
        !exported
            .floats
            .tensors
            .keys()
            .any(|name| name.contains("average"))
    );
}

#[test]
fn validators_evaluate_the_averages() {
    let case = case();
    let run = averaged(&RUN.replace("every_steps = 1", "every_epochs = 1"));
    let here = train(case, "ema-here", &run, "");
    let there = format!("{run}[offload]\nvalidators = 1\n");
    let there = train(case, "ema-elsewhere", &there, "");
    assert_eq!(losses(&here), losses(&there));
    let many = " --ranks 2 --strategy data=2,shard=optimizer";
    let one = train(case, "ema-here", &run, many);
    let sharded = format!("{run}[offload]\nvalidators = 1\n");
    let sharded = train(case, "ema-elsewhere", &sharded, many);
    for (one, other) in losses(&one).iter().zip(losses(&sharded)) {
        assert!((one - other).abs() < 1e-6 * one, "{one} {other}");
    }
}

/// Under every strategy, the training state split or whole.
#[test]
fn strategies_give_the_same_averages() {
    let case = case();
    let one = train(case, "ema-one", &averaged(RUN), "");
    let expected = tensors(case, "ema-one/weights.safetensors");
    let sharded = [
        ("data=2,shard=optimizer", "2"),
        ("data=2,shard=gradients", "2"),
        ("data=2,shard=parameters", "2"),
    ];
    for (strategy, ranks) in STRATEGIES.into_iter().chain(sharded) {
        case.run_file("ema-many.toml", "ema-many", &averaged(RUN));
        let arguments = [
            "train",
            "ema-many.toml",
            "--no-prediction",
            "--overwrite",
            "--json",
            "--ranks",
            ranks,
            "--strategy",
            strategy,
        ];
        let many: Value = serde_json::from_str(&case.answer_of(&arguments)).unwrap();
        // Batch norm takes the statistics of one micro-batch at a time.
        if strategy.contains("micro") {
            continue;
        }
        let found = tensors(case, "ema-many/weights.safetensors");
        assert_near(&found, &expected, strategy);
        for (one, many) in losses(&one).iter().zip(losses(&many)) {
            assert!((one - many).abs() < 1e-4 * one, "{strategy}: {one} {many}");
        }
    }
}

#[test]
fn averages_go_on_after_a_resumption() {
    let case = case();
    let run = averaged(&RUN.replace("every_steps = 1", "every_steps = 2"));
    for (strategy, ranks) in [("data=1", 1), ("data=2,shard=optimizer", 2)] {
        let flags = format!(" --ranks {ranks} --strategy {strategy}");
        train(case, "ema-whole", &run, &flags);
        let first = run.replace("epochs = 2", "epochs = 1");
        train(case, "ema-parts", &first, &flags);
        case.run_file("ema-parts.toml", "ema-parts", &run);
        case.answer(&format!(
            "train ema-parts.toml --no-prediction --resume{flags}"
        ));
        let [whole, parts] = ["ema-whole", "ema-parts"]
            .map(|output| tensors(case, &format!("{output}/weights.safetensors")));
        assert!(whole == parts, "{strategy}");
    }
    let longer = run.replace("epochs = 2", "epochs = 3");
    let without = longer.replace("ema = 0.75\n", "");
    case.run_file("ema-parts.toml", "ema-parts", &without);
    let text = case.refusal("train ema-parts.toml --no-prediction --resume");
    assert!(text.contains("with ema = 0.75"), "{text}");
    case.run_file(
        "ema-parts.toml",
        "ema-parts",
        &longer.replace("0.75", "0.5"),
    );
    let output = case.output(&["train", "ema-parts.toml", "--no-prediction", "--resume"]);
    let text = String::from_utf8(output.stderr).unwrap();
    let says = "`ema` was 0.75 in the checkpoint and is 0.5 from here on";
    assert!(output.status.success() && text.contains(says), "{text}");
    train(case, "ema-none", RUN, "");
    let more = averaged(&RUN.replace("epochs = 2", "epochs = 3"));
    case.run_file("ema-none.toml", "ema-none", &more);
    let text = case.refusal("train ema-none.toml --no-prediction --resume");
    assert!(text.contains("ema = 0.75"), "{text}");
}

#[test]
fn decays_that_are_not_between_0_and_1_are_refused() {
    let case = case();
    for (asked, says) in [
        ("1", "help: try 0.9999999"),
        ("0", "without `ema` the weights themselves are saved"),
        ("-0.5", "without `ema`"),
        ("\"0.99\"", "help: try 0.99"),
        ("true", "a number above 0 and below 1, like 0.999"),
    ] {
        case.run_file(
            "ema-wrong.toml",
            "ema-wrong",
            &format!("ema = {asked}\n{RUN}"),
        );
        let text = case.refusal("train ema-wrong.toml --no-prediction");
        assert!(text.contains(&format!("`ema` is {asked}")), "{text}");
        assert!(text.contains(says), "{text}");
    }
    let text = case.refusal("predict alexnet@224 --ranks 1 --batch 2 --strategy data=1 --ema 1");
    assert!(text.contains("help: try 0.9999999"), "{text}");
}

/// What a rank keeps of each weight is known before the run.
#[test]
fn plans_and_predictions_know_the_memory_of_averages() {
    let case = case();
    let optimizer = |more: &str| {
        let line = "predict small.model --machine lassen --ranks 2 --batch 2 --optimizer sgd --no-io --json";
        let found = case.json(&format!("{line} --strategy {more}"));
        found["memory"]["optimizer"].as_u64()
    };
    let before = optimizer("data=2").unwrap();
    let after = optimizer("data=2 --ema 0.999").unwrap();
    // SGD has one velocity of each weight, and averages are as large.
    assert_eq!(after, 2 * before);
    let split = optimizer("data=2,shard=optimizer --ema 0.999").unwrap();
    assert!(split < after && split > after / 2, "{split} {after}");
}
