//! Planning for this machine.

use crate::command::{assert_keys, error_text, partita};
use crate::trainee::Case;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Output;
use tempfile::TempDir;

const MODEL: &str = "model tiny
input x channels=2 extent=4x4x4
c1 = conv x filters=3 kernel=3 pad=1 bias=false
a1 = leaky_relu c1 slope=0.1
f = flatten a1
fc = linear f features=2 bias=true
loss = mse fc
";

fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("tiny.model"), MODEL).unwrap();
    folder
}

#[test]
fn ranks_that_share_cores_are_told() {
    let folder = folder();
    let cores = std::thread::available_parallelism().unwrap().get();
    let model = folder.path().join("tiny.model");
    let (ranks, batch) = ((2 * cores).to_string(), (4 * cores).to_string());
    let ask = |verb: &str, more: &[&str]| {
        let mut command = partita(&[verb, model.to_str().unwrap(), "--machine", "here", "--json"]);
        command.args(["--ranks", &ranks, "--batch", &batch]);
        command.args(more).env("XDG_CACHE_HOME", folder.path());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", error_text(&output));
        output
    };
    let predicted = ask("predict", &["--strategy", &format!("data={ranks}")]);
    let answer: Value = serde_json::from_slice(&predicted.stdout).unwrap();
    let says = |text: &Value| text.as_str().unwrap().contains("and take turns");
    assert!(
        answer["limits"].as_array().unwrap().iter().any(says),
        "{answer}"
    );
    assert!(error_text(&ask("plan", &[])).contains("and take turns"));
}

/// A kernel of nearly 400 MiB has too little room, whatever libraries the process has loaded.
#[cfg(target_os = "linux")]
#[test]
fn measurements_without_memory_end_with_what_was_asked_for() {
    let folder = folder();
    let layers = [
        ("channels=2 extent=4x4x4", "channels=16 extent=128x128x128"),
        ("flatten", "global_average_pool"),
    ];
    let large = layers
        .iter()
        .fold(MODEL.to_owned(), |text, (small, large)| {
            text.replace(small, large)
        });
    fs::write(folder.path().join("large.model"), large).unwrap();
    let script = "ulimit -v 300000; exec \"$0\" predict large.model --ranks 2 --batch 2 --machine here --strategy depth=2";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_partita")]);
    command.current_dir(folder.path());
    let output = command
        .env("XDG_CACHE_HOME", folder.path())
        .output()
        .unwrap();
    let text = error_text(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    for part in ["cannot allocate", "MiB to measure kernels", "`ulimit -v`"] {
        assert!(text.contains(part), "{text}");
    }
}

/// A call whose measurements lie in the folder.
fn call(folder: &Path, verb: &str, more: &[&str]) -> Output {
    let model = folder.join("tiny.model");
    let asked = ["--ranks", "2", "--batch", "2", "--machine", "here"];
    let mut command = partita(&[verb, model.to_str().unwrap()]);
    command.args(asked).args(more);
    command.env("XDG_CACHE_HOME", folder).output().unwrap()
}

fn value(output: &Output) -> Value {
    assert!(output.status.success(), "{}", error_text(output));
    assert_eq!(
        error_text(output),
        "",
        "nobody looks on, so nothing is told"
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn this_machine_is_measured_once() {
    let folder = folder();
    let ask = ["--strategy", "depth=2", "--json"];
    let first = value(&call(folder.path(), "predict", &ask));
    assert_keys(&first, &["iteration_seconds", "breakdown", "limits"]);
    assert_eq!(first["basis"], "measured");
    assert_eq!(first["machine"], "here");
    let path = folder.path().join("partita/measured.sqlite");
    let written = fs::read(&path).unwrap();
    let second = value(&call(folder.path(), "predict", &ask));
    // The memory that is available changes; times are those kept.
    for key in ["digest", "iteration_seconds", "breakdown", "by_kind"] {
        assert_eq!(first[key], second[key], "{key}");
    }
    assert_eq!(fs::read(&path).unwrap(), written);
    // What a plan needs beyond that comes on top.
    let list = value(&call(folder.path(), "plan", &["--json"]));
    let list = list.as_array().unwrap();
    let staged = |one: &&Value| {
        let strategy = one["strategy"].as_str().unwrap();
        strategy.contains("stages") && !strategy.contains("bucket")
    };
    assert_eq!(list.iter().filter(staged).count(), 5);
    // What a search for each layer finds comes on top; it depends on the times.
    let strategies: Vec<&str> = list
        .iter()
        .map(|one| one["strategy"].as_str().unwrap())
        .collect();
    for axis in ["data", "depth", "height", "width", "filter", "channel"] {
        let hybrid = format!("{axis}=2");
        assert!(strategies.contains(&hybrid.as_str()), "{strategies:#?}");
    }
    let costed = list.iter().filter(|one| one.get("reason").is_none());
    let seconds: Vec<f64> = costed
        .map(|one| one["iteration_seconds"].as_f64().unwrap())
        .collect();
    assert!(
        !seconds.is_empty() && seconds.is_sorted() && seconds[0] > 0.0,
        "{seconds:?}"
    );
    assert!(fs::read(&path).unwrap().len() > written.len());
}

/// A given strategy measures nothing, and `auto` only within its budget: the other kernels are estimated.
#[test]
fn trainings_measure_no_more_than_they_may() {
    let case = Case::new();
    let given = fs::read_to_string(case.run_file("run.toml", 1, "ranks = 2")).unwrap();
    let given = given.replace("data=1", "data=2");
    let cache = case.path("cache");
    let train = |strategy: &str, more: &[&str]| -> Option<Value> {
        let text = given.replace("data=2", strategy);
        fs::write(case.path("run.toml"), text).unwrap();
        let mut command = partita(&["train", "run.toml", "--overwrite"]);
        command.args(more).current_dir(case.folder());
        let output = command.env("XDG_CACHE_HOME", &cache).output().unwrap();
        assert!(output.status.success(), "{}", error_text(&output));
        let predicted = fs::read_to_string(case.path("out/prediction.json")).ok()?;
        Some(serde_json::from_str(&predicted).unwrap())
    };
    assert_eq!(train("data=2", &[]), None);
    assert!(!cache.join("partita/measured.sqlite").exists());
    let share = |prediction: &Value, basis: &str| prediction["known"][basis].as_f64();
    let hasty = train("auto", &["--budget", "1ms"]).expect("a choice predicts");
    let estimated = ["estimated", "outside"].map(|basis| share(&hasty, basis).unwrap_or(0.0));
    assert!(estimated.iter().sum::<f64>() > 0.0, "{hasty}");
    // Few repeats do not stand for a measurement that is asked for.
    let asked = train("data=2", &["--prediction"]).expect("it is asked for");
    assert!(share(&asked, "measured") > Some(0.999), "{asked}");
}
