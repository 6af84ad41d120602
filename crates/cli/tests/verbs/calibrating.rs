//! `partita calibrate`.

use crate::command::{assert_keys, error_text, partita};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Output;
use std::sync::OnceLock;
use tempfile::TempDir;

const MODEL: &str = "model small
input x channels=2 extent=8x8x8
c1 = conv x filters=16 kernel=3 pad=1 bias=false
a1 = leaky_relu c1 slope=0.1
c2 = conv a1 filters=16 kernel=3 pad=1 bias=false
a2 = leaky_relu c2 slope=0.1
p2 = max_pool a2 kernel=2 stride=2
f = flatten p2
fc = linear f features=2 bias=true
loss = mse fc
";

fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("small.model"), MODEL).unwrap();
    folder
}

fn call(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = partita(arguments);
    command.current_dir(folder);
    command.env("XDG_CACHE_HOME", folder).output().unwrap()
}

fn calibrate(folder: &Path, more: &[&str]) -> Output {
    let models = ["--models", "small.model:2,small.model:3"];
    calibrate_of(folder, &[&models, more].concat())
}

fn calibrate_of(folder: &Path, more: &[&str]) -> Output {
    let asked = ["calibrate", "--name", "mine", "--ranks", "2"];
    call(folder, &[&asked, more].concat())
}

fn value(output: &Output) -> Value {
    assert!(output.status.success(), "{}", error_text(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The machine file of a calibration in one pass, which is made once for all tests.
fn calibrated() -> &'static str {
    static ONCE: OnceLock<String> = OnceLock::new();
    ONCE.get_or_init(|| {
        let folder = folder();
        let answer = calibrate(folder.path(), &["--passes", "1", "--output", "old.toml"]);
        assert!(answer.status.success(), "{}", error_text(&answer));
        fs::read_to_string(folder.path().join("old.toml")).unwrap()
    })
}

/// The number of kernels in the answer of a calibration.
fn kernel_count(answer: &Value) -> u64 {
    answer["kernels"].as_u64().unwrap()
}

#[test]
fn a_calibration_writes_a_machine_file_and_replaces_one_only_when_asked() {
    let folder = folder();
    let answer = value(&calibrate(folder.path(), &["--passes", "1", "--json"]));
    assert_keys(
        &answer,
        &["machine", "file", "kernels", "validation", "families"],
    );
    assert!(kernel_count(&answer) > 10);
    assert!(answer["validation"]["kernels"].as_u64().unwrap() > 10);
    assert_eq!(answer["world"], "threads");
    let file = folder.path().join("mine.toml");
    let text = fs::read_to_string(&file).unwrap();
    assert!(
        text.starts_with("# Measured by `partita calibrate`"),
        "{text}"
    );
    assert!(text.contains("host_memory = { value ="), "{text}");
    // Nothing is written over unasked.
    let again = calibrate(folder.path(), &[]);
    assert!(
        error_text(&again).contains("--replace"),
        "{}",
        error_text(&again)
    );
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
    let few = "--models small.model:2 --passes 2 --replace --json";
    let few: Vec<&str> = few.split(' ').collect();
    let fewer = value(&calibrate_of(folder.path(), &few));
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains(", threads, in 2 passes."), "{text}");
    // A file holds what was measured for it, not what the cache knows besides.
    assert!(
        kernel_count(&fewer) < kernel_count(&answer),
        "{fewer} after {answer}"
    );
}

#[test]
fn a_calibrated_machine_predicts_and_says_where_it_was_not_measured() {
    let folder = folder();
    fs::write(folder.path().join("mine.toml"), calibrated()).unwrap();
    let predict = |batch: &str, more: &[&str]| {
        let words = [
            "predict",
            "small.model",
            "--machine",
            "mine.toml",
            "--ranks",
            "2",
        ];
        let tail = ["--batch", batch, "--strategy", "data=2", "--json"];
        call(folder.path(), &[&words[..], &tail, more].concat())
    };
    let known = value(&predict("4", &[]));
    assert_eq!(known["basis"], "calibrated");
    assert!(known["iteration_seconds"].as_f64().unwrap() > 1e-6);
    assert!(
        known["known"]["estimated"].as_f64().unwrap() > 0.99,
        "{known}"
    );
    // Far from all that was measured a prediction says so.
    let far = value(&predict("4096", &["--memory", "1TiB"]));
    assert!(far["known"]["outside"].as_f64().unwrap() > 0.0, "{far}");
    let limits = far["limits"].to_string();
    assert!(limits.contains("extrapolated"), "{limits}");
    // The ranks of a node are those that were measured together.
    let many = call(
        folder.path(),
        &[
            "predict",
            "small.model",
            "--machine",
            "mine.toml",
            "--ranks",
            "4",
            "--batch",
            "4",
            "--strategy",
            "data=4",
        ],
    );
    assert!(
        error_text(&many).contains("2 devices"),
        "{}",
        error_text(&many)
    );
}

#[test]
fn a_calibration_knows_micro_batches_and_every_way_to_store_samples() {
    let folder = folder();
    let more = ["--models", "small.model:4", "--passes", "1", "--json"];
    let answer = value(&calibrate_of(folder.path(), &more));
    for family in ["import", "import I16", "import I16 log"] {
        assert!(answer["families"][family].is_object(), "{family}: {answer}");
    }
    for samples in ["int16", "int16-scaled", "float32"] {
        let line = "predict small.model --machine mine.toml --ranks 2 --batch 8 --strategy data=2,micro=2 --json";
        let mut words: Vec<&str> = line.split(' ').collect();
        words.extend(["--samples", samples]);
        let prediction = value(&call(folder.path(), &words));
        let known = &prediction["known"];
        assert_eq!(known["estimated"], 1.0, "{samples}: {known}");
    }
}

#[test]
fn a_calibration_that_cannot_be_says_what_can() {
    let folder = folder();
    for (more, word) in [
        (["--models", "small.model:none"], "not a batch size"),
        (["--models", "smal.model"], "smal.model"),
        (["--models", "small.model:2,"], "empty entry"),
        (
            ["--models", "small.model:2, small.model:9999999"],
            "`small.model` with 9999999 samples needs at least",
        ),
        (["--output", "."], "not a regular file"),
        (["--output", "nowhere/mine.toml"], "nowhere"),
        (["--name", ""], "--name mine"),
        (["--passes", "0"], "--passes"),
    ] {
        let output = call(
            folder.path(),
            &["calibrate", "--ranks", "1", more[0], more[1]],
        );
        assert!(!output.status.success());
        assert!(
            error_text(&output).contains(word),
            "{}",
            error_text(&output)
        );
    }
    for (machine, word) in [
        (".", "it is a folder"),
        ("/dev/zero", "not a regular file"),
        ("here.toml", "here.toml"),
    ] {
        let line = "predict small.model --ranks 1 --batch 2 --strategy data=1 --machine";
        let words: Vec<&str> = line.split(' ').chain([machine]).collect();
        let said = error_text(&call(folder.path(), &words));
        assert!(said.contains(word), "{machine}: {said}");
    }
    let spoiled = folder.path().join("old.toml");
    let text = calibrated();
    fs::write(&spoiled, text).unwrap();
    // A name stands for a machine that comes along; a file is called by its own.
    let line = "predict small.model --machine old --ranks 1 --batch 2 --strategy data=1";
    let words: Vec<&str> = line.split(' ').collect();
    let said = error_text(&call(folder.path(), &words));
    assert!(said.contains("`old.toml`"), "{said}");
    // Of other versions, whose shapes have other coordinates, or do not say which.
    let line = "predict small.model --machine old.toml --ranks 1 --batch 2 --strategy data=1";
    let unnamed: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with("coordinates"))
        .collect();
    for other in [
        text.replace(", [", ", [0.0, "),
        text.replace("parts fused", "parts that end it"),
        unnamed.join("\n"),
    ] {
        assert_ne!(other, text);
        fs::write(&spoiled, other).unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let said = error_text(&call(folder.path(), &words));
        assert!(said.contains("another version"), "{said}");
    }
}
