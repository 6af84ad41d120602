//! The weights of the best epoch, trainings that end before their last epoch, and epochs without a partial batch.

use crate::command::partita;
use crate::trainee::{Case, names};
use partita_weights::{Tensor, load};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::process::Output;

const MODEL: &str = "model tiny
input x channels=1 extent=8x8x8
c1 = conv x filters=2 kernel=3 pad=1 bias=false
n1 = batch_norm c1 epsilon=1e-5 momentum=0.1
a1 = relu n1
p1 = max_pool a1 kernel=2 stride=2
f = flatten p1
d = dropout f rate=0.25
fc = linear d features=2 bias=true
loss = mse fc
";

const BEST: &str = "every_epochs = 1\nkeep = 1\nbest = \"validation_loss\"";

fn case() -> Case {
    let case = Case::new();
    fs::write(case.path("tiny.model"), MODEL).unwrap();
    case
}

/// Writes the run file of an output folder. The rate is so high that the validation loss goes up and down.
fn run_file(case: &Case, output: &str, epochs: usize, top: &str, tables: &str) -> String {
    let name = format!("{output}.toml");
    let text = format!(
        "model = \"tiny.model\"\ndata = \"set\"\noutput = \"{output}\"\nbatch = 3\nepochs = {epochs}\n\
         strategy = \"data=1\"\nseed = 5\nkernels = \"reference\"\nprecision = \"f64\"\n{top}\n\
         [schedule]\nlearning_rate = 5e-2\n{tables}\n"
    );
    fs::write(case.path(&name), text).unwrap();
    name
}

fn tried(case: &Case, run: &str, more: &[&str]) -> Output {
    case.command(run).args(more).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Trains to the end and gives what was printed.
fn finish(case: &Case, run: &str, more: &[&str]) -> String {
    let output = tried(case, run, more);
    assert!(output.status.success(), "{more:?}: {}", said(&output));
    String::from_utf8_lossy(&output.stdout).into_owned() + &said(&output)
}

fn refusal(case: &Case, run: &str, more: &[&str]) -> String {
    let output = tried(case, run, more);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    text
}

fn result(case: &Case, output: &str) -> Value {
    let text = fs::read_to_string(case.path(output).join("result.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn validation_losses(result: &Value) -> Vec<f64> {
    let epochs = result["epochs"].as_array().unwrap().iter();
    let losses = epochs.map(|epoch| epoch["validation"]["loss"].as_f64().unwrap());
    losses.collect()
}

/// Number, from 1, and loss of the best epoch.
fn best(losses: &[f64]) -> (u64, f64) {
    let pairs = (1..).zip(losses.iter().copied());
    pairs.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap()
}

fn tensors(case: &Case, file: &str) -> BTreeMap<String, Tensor> {
    load(case.path(file)).unwrap().tensors
}

fn evaluate(case: &Case, run: &str, more: &[&str]) -> Output {
    let mut command = partita(&["evaluate", run, "--json"]);
    command.args(more).current_dir(case.folder());
    command.output().unwrap()
}

#[test]
fn the_weights_of_the_best_epoch_have_a_name() {
    const EPOCHS: usize = 6;
    let case = case();
    let run = run_file(&case, "out", EPOCHS, "", &format!("[checkpoint]\n{BEST}"));
    finish(&case, &run, &[]);
    let found = result(&case, "out");
    let (epoch, loss) = best(&validation_losses(&found));
    assert!((2..EPOCHS as u64).contains(&epoch), "{found}");
    let told = &found["best"];
    assert_eq!(
        (&told["epoch"], &told["value"]),
        (&epoch.into(), &loss.into())
    );
    assert_eq!(told["metric"], "validation_loss");
    assert_eq!(told["path"], "out/best.safetensors");
    // As if the training had ended there.
    let run = run_file(&case, "short", epoch as usize, "", "");
    finish(&case, &run, &[]);
    let expected = tensors(&case, "short/weights.safetensors");
    assert_eq!(tensors(&case, "out/best.safetensors"), expected);
    assert_ne!(tensors(&case, "out/weights.safetensors"), expected);
    let about = load(case.path("out/best.safetensors")).unwrap().metadata;
    assert_eq!(
        (about["epoch"].as_str(), about["metric"].as_str()),
        (&*epoch.to_string(), "validation_loss")
    );
    let output = evaluate(&case, "out.toml", &["--best"]);
    let evaluated: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(evaluated["metrics"]["loss"].as_f64().unwrap(), loss);
    assert_eq!(evaluated["weights"], "out/best.safetensors");
    // A run that resumes before and after it ends with the same bytes.
    let whole = fs::read(case.path("out/best.safetensors")).unwrap();
    for at in [epoch as usize - 1, epoch as usize + 1] {
        let output = format!("resumed{at}");
        let settings = format!("[checkpoint]\n{BEST}");
        let run = run_file(&case, &output, at, "", &settings);
        finish(&case, &run, &[]);
        let file = format!("{output}/best.safetensors");
        // What a kill between checkpoint and file leaves.
        fs::remove_file(case.path(&file)).unwrap();
        let run = run_file(&case, &output, EPOCHS, "", &settings);
        finish(&case, &run, &["--resume"]);
        assert_eq!(tensors(&case, &file), expected, "resumed after {at}");
        assert_eq!(result(&case, &output)["best"]["epoch"], epoch);
        let same = fs::read(case.path(&file)).unwrap() == whole;
        assert!(same, "resumed after {at}");
    }
}

#[test]
fn the_best_weights_are_those_of_this_training() {
    let case = case();
    let settings = format!("[checkpoint]\n{BEST}");
    let run = run_file(&case, "out", 6, "", &settings);
    finish(&case, &run, &[]);
    // From another output, whose best epoch comes with it.
    let (epoch, _) = best(&validation_losses(&result(&case, "out")));
    let from = names(&case.path("out/checkpoints")).pop().unwrap();
    let from = format!("out/checkpoints/{from}");
    let run = run_file(&case, "other", 6, "", &settings);
    finish(&case, &run, &["--resume", &from]);
    assert_eq!(result(&case, "other")["best"]["epoch"], epoch);
    let both = ["out", "other"].map(|it| tensors(&case, &format!("{it}/best.safetensors")));
    assert_eq!(both[0], both[1]);
    // Without them the best of the epochs to come.
    let best = format!("out/checkpoints/step-{:09}", 3 * epoch);
    fs::remove_dir_all(case.path(&best)).unwrap();
    fs::remove_file(case.path("out/best.safetensors")).unwrap();
    let run = run_file(&case, "out", 7, "", &settings);
    let told = finish(&case, &run, &["--resume"]);
    let gone = format!("the weights of the best epoch so far, {epoch}, cannot be had");
    assert!(told.contains(&gone), "{told}");
    assert_eq!(result(&case, "out")["best"]["epoch"], 7);
    // By another metric.
    let by_loss = settings.replace("validation_loss", "training_loss");
    let run = run_file(&case, "out", 8, "", &by_loss);
    let told = finish(&case, &run, &["--resume"]);
    assert!(
        told.contains("`best` was \"validation_loss\" in the checkpoint and is \"training_loss\""),
        "{told}"
    );
    assert_eq!(result(&case, "out")["best"]["epoch"], 8);
    // A run without `best` leaves no weights of another one.
    let run = run_file(&case, "out", 1, "", "");
    let told = refusal(&case, &run, &[]);
    assert!(told.contains("best.safetensors"), "{told}");
    finish(&case, &run, &["--overwrite"]);
    assert!(!case.path("out/best.safetensors").exists());
    assert!(result(&case, "out")["best"].is_null());
    let output = evaluate(&case, "out.toml", &["--best"]);
    assert!(
        said(&output).contains("there is no out/best.safetensors"),
        "{}",
        said(&output)
    );
    let run = run_file(
        &case,
        "none",
        1,
        "",
        "[checkpoint]\nkeep = 0\nbest = \"training_loss\"",
    );
    let told = refusal(&case, &run, &[]);
    assert!(told.contains("expected 1 or more with `best`"), "{told}");
}

/// The epoch after which a training with these losses ends.
fn expected_end(losses: &[f64], patience: usize) -> Option<usize> {
    let (mut best, mut waited) = (f64::INFINITY, 0);
    losses.iter().position(|&loss| {
        waited = if loss < best { 0 } else { waited + 1 };
        best = best.min(loss);
        waited == patience
    })
}

#[test]
fn a_training_without_improvement_ends_early_on_all_ranks_and_after_a_resume() {
    const EPOCHS: usize = 16;
    let case = case();
    let run = run_file(&case, "whole", EPOCHS, "", "");
    finish(&case, &run, &[]);
    let losses = validation_losses(&result(&case, "whole"));
    let patience = 2;
    let end = expected_end(&losses, patience).unwrap() + 1;
    assert!((4..EPOCHS - 1).contains(&end), "{losses:?}");
    let settings = "[early_stopping]\npatience = 2\n[checkpoint]\nevery_steps = 1\nkeep = 100\n";
    let ranks = [["1", "data=1"], ["2", "data=2"], ["2", "depth=2"]];
    for (index, [ranks, strategy]) in ranks.into_iter().enumerate() {
        let output = format!("out{index}");
        let run = run_file(&case, &output, EPOCHS, "", settings);
        let told = finish(&case, &run, &["--ranks", ranks, "--strategy", strategy]);
        let found = result(&case, &output);
        assert_eq!(
            found["epochs"].as_array().unwrap().len(),
            end,
            "{strategy}: {told}"
        );
        assert_eq!(found["steps"], 3 * end, "{strategy}");
        let early = &found["ended_early"];
        let (best, _) = best(&losses[..end]);
        assert_eq!(
            (&early["epoch"], &early["best_epoch"]),
            (&end.into(), &best.into())
        );
        assert_eq!(early["reason"], "no_improvement");
        assert!(
            told.contains(&format!("after epoch {end}: validation_loss is ")),
            "{told}"
        );
        assert!(case.path(&format!("{output}/weights.safetensors")).exists());
    }
    // From the middle of the epochs that count, with the other number of ranks too.
    let from = format!("out0/checkpoints/step-{:09}", 3 * end - 2);
    for (ranks, strategy) in [("1", "data=1"), ("2", "data=2")] {
        let output = format!("from{ranks}");
        let run = run_file(&case, &output, EPOCHS, "", settings);
        let more = ["--ranks", ranks, "--strategy", strategy, "--resume", &from];
        finish(&case, &run, &more);
        assert_eq!(
            result(&case, &output)["epochs"].as_array().unwrap().len(),
            end
        );
    }
    // Where it ended nothing is left, and with more patience there is.
    let told = finish(&case, "out0.toml", &["--resume"]);
    assert!(
        told.contains("so nothing is left to train; change"),
        "{told}"
    );
    assert_eq!(result(&case, "out0")["steps"], 3 * end);
    let run = run_file(&case, "out0", EPOCHS, "", "[early_stopping]\npatience = 16");
    finish(&case, &run, &["--resume"]);
    assert_eq!(validation_losses(&result(&case, "out0")), losses);
    let run = run_file(
        &case,
        "bad",
        1,
        "",
        "[early_stopping]\nmetric = \"mean_dice\"\npatience = 1",
    );
    let told = refusal(&case, &run, &[]);
    assert!(
        told.contains("[early_stopping] metric = \"mean_dice\" needs classes"),
        "{told}"
    );
}

#[test]
fn a_training_ends_with_its_target_and_tells_the_time_to_it() {
    let case = case();
    let run = run_file(&case, "whole", 6, "", "");
    finish(&case, &run, &[]);
    let losses = validation_losses(&result(&case, "whole"));
    let (epoch, loss) = best(&losses);
    let metrics = "metrics = [\"mlperf\"]\n";
    let statuses = |output: &str| {
        let log = fs::read_to_string(case.path(output).join("mlperf.log")).unwrap();
        let lines = log.lines().filter(|line| line.contains("run_stop"));
        lines
            .map(|line| line.contains("success"))
            .collect::<Vec<_>>()
    };
    // Ranks add in another order.
    let aim = loss * (1.0 + 1e-9);
    let target = format!("{metrics}target = {{ validation_loss = {aim:?} }}");
    // Without checkpoints, and on two ranks.
    for (output, more) in [
        ("one", &[][..]),
        ("two", &["--ranks", "2", "--strategy", "filter=2"]),
    ] {
        let run = run_file(&case, output, 6, &target, "[checkpoint]\nkeep = 0");
        let told = finish(&case, &run, more);
        let found = result(&case, output);
        let reached = &found["target"];
        assert_eq!(found["epochs"].as_array().unwrap().len() as u64, epoch);
        assert_eq!(
            (&reached["epoch"], &reached["value"]),
            (&epoch.into(), &aim.into())
        );
        let seconds = reached["seconds"].as_f64().unwrap();
        assert!(0.0 < seconds && seconds <= found["seconds"].as_f64().unwrap());
        assert!(
            told.contains("reached in ") && told.contains(&format!("with epoch {epoch}")),
            "{told}"
        );
        assert_eq!(found["ended_early"]["reason"], "target");
        assert_eq!(statuses(output), [true]);
    }
    let run = run_file(
        &case,
        "missed",
        2,
        &format!("{metrics}target = {{ validation_loss = 0 }}"),
        "",
    );
    let told = finish(&case, &run, &[]);
    assert!(told.contains("validation_loss 0, not reached"), "{told}");
    let found = result(&case, "missed");
    assert!(found["target"]["epoch"].is_null() && found["ended_early"].is_null());
    assert_eq!(statuses("missed"), [false]);
}

#[test]
fn targets_that_no_training_reaches_are_refused() {
    let case = case();
    for (target, part) in [
        (
            "target = { dice = 0.9 }",
            "target = { mean_dice = 0.9 } needs classes",
        ),
        ("target = 0.9", "expected a table"),
        ("target = { dise = 0.9 }", "help: try `target.dice`"),
        ("target = { dice = 95 }", "at most 1\nhelp: try 0.95"),
        (
            "target = { accuracy = 0 }",
            "a number above 0 and at most 1, like 0.95",
        ),
        (
            "target = {}",
            "a table of one metric, like { mean_dice = 0.95 }",
        ),
    ] {
        let run = run_file(&case, "bad", 1, target, "");
        let told = refusal(&case, &run, &[]);
        assert!(told.contains(part), "{part} is not in {told}");
    }
}

#[test]
fn an_epoch_without_its_partial_batch_is_the_same_on_any_ranks() {
    let case = case();
    let settings = "[checkpoint]\nkeep = 1\n";
    let mut expected: Option<(Value, Vec<f64>)> = None;
    for (ranks, strategy) in [("1", "data=1"), ("3", "data=3"), ("2", "depth=2")] {
        let output = format!("out{ranks}");
        let run = run_file(&case, &output, 3, "drop_last = true", settings);
        finish(&case, &run, &["--ranks", ranks, "--strategy", strategy]);
        let found = result(&case, &output);
        assert_eq!(found["steps"], 6, "{strategy}");
        let epochs = found["epochs"].as_array().unwrap();
        assert!(
            epochs.iter().all(|epoch| epoch["samples"] == 6),
            "{strategy}"
        );
        let losses = validation_losses(&found);
        let (_, one) = expected.get_or_insert((found.clone(), losses.clone()));
        for (one, other) in one.iter().zip(&losses) {
            assert!(
                (one - other).abs() < 1e-9 * one,
                "{strategy}: {other} for {one}"
            );
        }
    }
    // Each epoch leaves other samples out, and the steps with whole batches are those of an epoch with the rest.
    let run = run_file(&case, "all", 1, "metrics = [\"jsonl\"]", settings);
    finish(&case, &run, &[]);
    let run = run_file(
        &case,
        "dropped",
        1,
        "metrics = [\"jsonl\"]\ndrop_last = true",
        settings,
    );
    finish(&case, &run, &[]);
    let steps = |output: &str| {
        let lines = fs::read_to_string(case.path(output).join("metrics.jsonl")).unwrap();
        let lines = lines
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        let steps = lines.filter(|line| line["kind"] == "step");
        steps.map(|line| line["loss"].clone()).collect::<Vec<_>>()
    };
    let (all, dropped) = (steps("all"), steps("dropped"));
    assert_eq!((all.len(), &all[..2]), (3, &dropped[..]));
    let run = run_file(&case, "dropped", 2, "", settings);
    let told = refusal(&case, &run, &["--resume"]);
    assert!(
        told.contains("drop_last = true, and the run file has drop_last = false"),
        "{told}"
    );
    let text = fs::read_to_string(case.path(&run)).unwrap();
    fs::write(
        case.path("large.toml"),
        text.replace("batch = 3", "batch = 9\ndrop_last = true"),
    )
    .unwrap();
    let told = refusal(&case, "large.toml", &["--overwrite"]);
    assert!(told.contains("batch = 8"), "{told}");
}

#[test]
fn tables_and_events_name_the_classes() {
    let case = Case::new();
    let make = [
        "data",
        "shapes",
        "--out",
        "shapes",
        "--images",
        "24",
        "--size",
        "16",
        "--classes",
        "3",
    ];
    let made = partita(&make).current_dir(case.folder()).output().unwrap();
    assert!(made.status.success(), "{}", said(&made));
    let model = "model tiny\ninput x channels=3 extent=16x16\nf = flatten x\nfc = linear f features=3 bias=true\n\
                 loss = softmax_cross_entropy fc\n";
    fs::write(case.path("tiny.model"), model).unwrap();
    let top = "metrics = [\"csv\", \"jsonl\", \"tensorboard\"]";
    let run = run_file(&case, "out", 2, top, "");
    let text = fs::read_to_string(case.path(&run))
        .unwrap()
        .replace("\"set\"", "\"shapes\"");
    fs::write(case.path(&run), text).unwrap();
    finish(&case, &run, &[]);
    let found = result(&case, "out");
    let table = fs::read_to_string(case.path("out/epochs.csv")).unwrap();
    let mut rows = table.lines().map(|row| row.split(',').collect::<Vec<_>>());
    let header = rows.next().unwrap();
    let events = fs::read(case.path("out/events.out.tfevents.partita")).unwrap();
    let events = String::from_utf8_lossy(&events).into_owned();
    let lines = fs::read_to_string(case.path("out/metrics.jsonl")).unwrap();
    let mut epochs = found["epochs"].as_array().unwrap().iter();
    for row in rows {
        let told = &epochs.next().unwrap()["validation"]["classification"];
        let cell = |key: &str| row[header.iter().position(|one| *one == key).unwrap()];
        let is =
            |key: &str, value: &Value| assert_eq!(cell(key).parse().ok(), value.as_f64(), "{key}");
        is("mean_dice", &told["mean_dice"]);
        is("mean_overlap", &told["mean_overlap"]);
        let classes = told["classes"].as_array().unwrap();
        assert_eq!(classes.len(), 3);
        for class in classes {
            let name = class["class"].as_str().unwrap();
            is(&format!("dice/{name}"), &class["dice"]);
            assert!(lines.contains(&format!("\"{name}\"")), "{name}");
            let is_in = class["dice"].is_null() || events.contains(&format!("epoch/dice/{name}"));
            assert!(is_in, "{name}");
        }
    }
    assert!(epochs.next().is_none());
}

#[test]
fn loaders_and_validators_change_no_end() {
    let case = case();
    let offload = "[offload]\nloaders = 1\nvalidators = 1";
    // The second metric is known before the validation.
    for metric in ["validation_loss", "training_loss"] {
        let settings = format!(
            "[early_stopping]\nmetric = \"{metric}\"\npatience = 1\n[checkpoint]\n{}",
            BEST.replace("validation_loss", metric)
        );
        let [plain, with] = [("plain", ""), ("with", offload)].map(|(name, table)| {
            let output = format!("{name}_{metric}");
            let tables = format!("{settings}\n{table}");
            let run = run_file(&case, &output, 16, "drop_last = true", &tables);
            finish(&case, &run, &[]);
            output
        });
        let [told, expected] = [&with, &plain].map(|output| result(&case, output));
        assert_eq!(expected["ended_early"]["reason"], "no_improvement");
        for key in ["ended_early", "steps"] {
            assert_eq!(told[key], expected[key], "{key}");
        }
        assert_eq!(validation_losses(&told), validation_losses(&expected));
        for file in ["best", "weights"] {
            let [with, plain] = [&with, &plain]
                .map(|output| tensors(&case, &format!("{output}/{file}.safetensors")));
            assert!(with == plain, "{file}");
        }
    }
}
