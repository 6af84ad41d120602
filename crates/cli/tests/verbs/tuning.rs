//! Tuned kernels: what is shown, and that predictions and trainings use it.

use crate::command::partita;
use crate::trainee::Case;
use serde_json::Value;
use std::fs;

/// `partita tune` on the model of a case, with times of its own.
fn tune(case: &Case, more: &[&str]) -> Value {
    let mut command = partita(&["tune", "tiny.model", "--batch", "2", "--json"]);
    command
        .current_dir(case.folder())
        .env("HOME", case.path("home"));
    let output = command.args(more).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn numbers<'v>(list: &'v Value, name: &'v str) -> impl Iterator<Item = f64> + 'v {
    list.as_array()
        .unwrap()
        .iter()
        .map(move |one| one[name].as_f64().unwrap())
}

#[test]
fn every_convolution_has_a_frontier_and_a_choice_on_it() {
    let case = Case::new();
    let report = case.path("tuned.html");
    let (limits, report) = ("4KiB,16MiB", report.to_str().unwrap());
    let more = [
        "--ranks", "1", "--limits", limits, "--totals", "32KiB", "--report", report,
    ];
    let tuned = tune(&case, &more);
    // The gradient of the samples is not computed.
    let kernels = tuned["kernels"].as_array().unwrap();
    assert_eq!(kernels.len(), 2, "{tuned:#}");
    for kernel in kernels {
        let frontier = &kernel["frontier"];
        let seconds: Vec<f64> = numbers(frontier, "seconds").collect();
        let bytes: Vec<f64> = numbers(frontier, "workspace_bytes").collect();
        assert!(
            !seconds.is_empty() && seconds.is_sorted_by(|a, b| a > b),
            "{kernel:#}"
        );
        assert!(bytes.is_sorted_by(|a, b| a < b), "{kernel:#}");
        let time = |name: &str| kernel[name]["seconds"].as_f64().unwrap();
        let (usual, undivided) = (time("usual"), time("undivided"));
        assert!(undivided <= usual && time("choice") <= usual, "{kernel:#}");
        assert!(seconds[seconds.len() - 1] <= undivided, "{kernel:#}");
    }
    let steps = &tuned["steps"];
    let names: Vec<&str> = steps
        .as_array()
        .unwrap()
        .iter()
        .map(|step| step["workspace"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["off", "live", "4KiB", "16MiB", "32KiB in all"]);
    let memory: Vec<f64> = numbers(steps, "memory_bytes").collect();
    assert_eq!(memory[0], memory[1], "live workspaces need no memory");
    let convolutions: Vec<f64> = numbers(steps, "convolution_seconds").collect();
    assert!(
        convolutions[1..4]
            .iter()
            .all(|&seconds| seconds <= convolutions[0]),
        "{steps:#}"
    );
    let page = fs::read_to_string(report).unwrap();
    assert!(page.contains("32KiB in all"), "{page}");
    // A second time nothing is left to measure.
    assert_eq!(tune(&case, &more), tuned);
}

/// A prediction pins what the training will, from the same times.
#[test]
fn predictions_and_trainings_pin_the_same() {
    let case = Case::new();
    tune(&case, &["--ranks", "2"]);
    let run = case.run_file("run.toml", 1, "ranks = 2");
    let mut train = case.command(run.to_str().unwrap());
    train.args(["--strategy", "data=2", "--json"]);
    let output = train.output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let trained: Value = serde_json::from_slice(&output.stdout).unwrap();
    let digest = |verb: &str, more: &[&str]| -> String {
        let mut command = partita(&[verb, "tiny.model", "--batch", "2", "--ranks", "2"]);
        command
            .current_dir(case.folder())
            .env("HOME", case.path("home"));
        command
            .args(["--strategy", "data=2", "--samples", "float32", "--json"])
            .args(more);
        let output = command.output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        found["digest"].as_str().unwrap().to_owned()
    };
    let lowered = digest("lower", &["--kernels", "cpu"]);
    assert_eq!(digest("predict", &["--no-io"]), lowered);
    assert_eq!(trained["digest"], lowered.as_str(), "{trained:#}");
}

#[test]
fn a_model_without_convolutions_is_refused() {
    let case = Case::new();
    let text = "model flat\ninput x channels=1 extent=8\nf = flatten x\nfc = linear f features=2 bias=true\nloss = mse fc\n";
    fs::write(case.path("tiny.model"), text).unwrap();
    let mut command = partita(&["tune", "tiny.model", "--batch", "2", "--ranks", "1"]);
    command
        .current_dir(case.folder())
        .env("HOME", case.path("home"));
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("`tiny.model` has no convolution"), "{said}");
}

/// A library that is named and cannot be used is told; everything else is measured.
#[test]
fn a_onednn_that_cannot_be_loaded_is_named() {
    let case = Case::new();
    let tune = |library: &str| {
        let mut command = partita(&["tune", "tiny.model", "--batch", "2", "--ranks", "1"]);
        command
            .current_dir(case.folder())
            .env("HOME", case.path("home"))
            .env("PARTITA_ONEDNN", library)
            .args(["--policy", "undivided"]);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        said
    };
    let said = tune("/nowhere/libdnnl.so.3");
    let is_told = said.contains("oneDNN cannot be loaded: /nowhere/libdnnl.so.3");
    assert!(is_told, "{said}");
    assert!(!tune("off").contains("oneDNN"));
}
