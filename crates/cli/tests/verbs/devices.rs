//! Trainings on devices of OpenCL.

use crate::command::{json, partita};
use crate::trainee::Case;
use partita_testkit::not_run;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Output;

/// Whether a device of this name is there; if not, that is written past the capture of outputs.
fn has_device(name: &str, test: &str) -> bool {
    let report = json(&["doctor", "--json"]);
    let devices = report["devices"].as_array().unwrap();
    let found = devices
        .iter()
        .any(|device| device["device"] == name && device["lacks"].is_null());
    if !found {
        not_run(
            test,
            format!("OpenCL finds no device for `--device {name}`"),
        );
    }
    found
}

/// Each case has its own measured times; kernels that PoCL compiled are shared by all.
fn run(case: &Case, arguments: &[&str]) -> Output {
    let mut command = partita(arguments);
    command
        .current_dir(case.folder())
        .env("HOME", case.path("home"))
        .env(
            "POCL_CACHE_DIR",
            concat!(env!("CARGO_TARGET_TMPDIR"), "/pocl"),
        );
    command.output().unwrap()
}

fn done(case: &Case, arguments: &[&str]) -> Value {
    let output = run(case, arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Losses of training and validation of all epochs.
fn losses(folder: &Path) -> Vec<f64> {
    let text = fs::read_to_string(folder.join("result.json")).unwrap();
    let result: Value = serde_json::from_str(&text).unwrap();
    let epochs = result["epochs"].as_array().unwrap();
    let both = |epoch: &Value| {
        let (training, validation) = (&epoch["training_loss"], &epoch["validation"]["loss"]);
        [training, validation].map(|loss| loss.as_f64().unwrap())
    };
    epochs.iter().flat_map(both).collect()
}

fn assert_near(got: &[f64], expected: &[f64]) {
    assert_eq!(got.len(), expected.len());
    for (got, expected) in got.iter().zip(expected) {
        let far = (got - expected).abs() / expected.abs().max(1e-3);
        assert!(far < 1e-4, "{got} for {expected}");
    }
}

#[test]
fn a_training_on_a_device_has_the_losses_of_one_on_the_processor() {
    if !has_device(
        "software",
        "a_training_on_a_device_has_the_losses_of_one_on_the_processor",
    ) {
        return;
    }
    let case = Case::new();
    let train = |ranks: &str, strategy: &str, device: &str| {
        case.run_file("run.toml", 2, "overwrite = true");
        let output = run(
            &case,
            &[
                "train",
                "run.toml",
                "--ranks",
                ranks,
                "--strategy",
                strategy,
                "--device",
                device,
                "--no-prediction",
            ],
        );
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        losses(&case.path("out"))
    };
    let expected = train("1", "data=1", "cpu");
    assert_eq!(expected.len(), 4);
    assert_near(&train("1", "data=1", "software"), &expected);
    let evaluated = |device: &str| {
        let answer = done(
            &case,
            &["evaluate", "run.toml", "--device", device, "--json"],
        );
        answer["metrics"]["loss"].as_f64().unwrap()
    };
    assert_near(&[evaluated("software")], &[evaluated("cpu")]);
    assert_near(&train("2", "depth=2", "software"), &expected);
    assert_kernels_follow_each_other(&case.path("out"));
    assert_near(&train("2", "filter=2", "software"), &expected);
}

/// Kernels of a rank are given to its device ahead, and have the times at which it ran them: one after the other.
fn assert_kernels_follow_each_other(folder: &Path) {
    let text = fs::read_to_string(folder.join("trace.json")).unwrap();
    let trace: Value = serde_json::from_str(&text).unwrap();
    let mut spans: BTreeMap<u64, Vec<[f64; 2]>> = BTreeMap::new();
    for event in trace["traceEvents"].as_array().unwrap() {
        if event["args"]["lane"] == "compute" {
            let [start, took] = ["ts", "dur"].map(|key| event[key].as_f64().unwrap());
            let of_rank = spans.entry(event["pid"].as_u64().unwrap()).or_default();
            of_rank.push([start, start + took]);
        }
    }
    assert_eq!(spans.len(), 2, "ranks");
    for mut of_rank in spans.into_values() {
        assert!(of_rank.len() > 10, "{of_rank:?}");
        of_rank.sort_by(|a, b| a[0].total_cmp(&b[0]));
        // In microseconds; the clocks of the device and of the host are compared at each wait anew.
        let overlap = |pair: &[[f64; 2]]| pair[0][1] - pair[1][0];
        let most = of_rank.windows(2).map(overlap).fold(0.0, f64::max);
        assert!(most < 1e3, "kernels overlap by {most} us: {of_rank:?}");
        assert!(of_rank.iter().all(|[start, end]| start <= end));
    }
}

#[test]
fn a_device_that_is_not_there_is_named_with_those_that_are() {
    let case = Case::new();
    case.run_file("run.toml", 1, "device = \"gpu\"");
    let report = json(&["doctor", "--json"]);
    let devices = report["devices"].as_array().unwrap();
    if devices.iter().any(|device| device["device"] == "gpu") {
        return;
    }
    let output = run(&case, &["train", "run.toml", "--no-prediction"]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    for device in devices {
        assert!(said.contains(device["name"].as_str().unwrap()), "{said}");
    }
    assert!(said.contains("OpenCL"), "{said}");
    assert!(
        said.contains("the device `software`") || said.contains("pocl"),
        "{said}"
    );
}

#[test]
fn what_a_device_has_not_is_refused() {
    if !has_device("software", "what_a_device_has_not_is_refused") {
        return;
    }
    let case = Case::new();
    for more in ["", "precision = \"f64\""] {
        let more = format!("kernels = \"reference\"\n{more}");
        case.run_file("run.toml", 1, &more);
        let output = run(&case, &["train", "run.toml", "--device", "software"]);
        assert_eq!(output.status.code(), Some(2), "{more}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("remove it"), "{said}");
    }
}

#[test]
fn a_machine_file_of_a_device_predicts_with_its_kernels() {
    if !has_device(
        "software",
        "a_machine_file_of_a_device_predicts_with_its_kernels",
    ) {
        return;
    }
    let case = Case::new();
    let calibrate = [
        "calibrate",
        "--device",
        "software",
        "--name",
        "mine",
        "--models",
        "tiny.model:2",
        "--passes",
        "1",
        "--json",
    ];
    let answer = done(&case, &calibrate);
    assert!(answer["kernels"].as_u64().unwrap() > 5, "{answer}");
    let file = fs::read_to_string(case.path("mine.toml")).unwrap();
    assert!(file.contains("kernels = \"software "), "{file}");
    assert!(file.contains("kind = \"gpu\""), "{file}");
    let of = [
        "tiny.model",
        "--machine",
        "mine.toml",
        "--ranks",
        "1",
        "--batch",
        "2",
        "--no-io",
        "--json",
    ];
    let predicted = done(
        &case,
        &[&["predict", "--strategy", "data=1"], &of[..]].concat(),
    );
    let planned = done(&case, &[&["plan"], &of[..]].concat());
    for answer in [&predicted, &planned[0]] {
        assert!(
            answer["iteration_seconds"].as_f64().unwrap() > 0.0,
            "{answer}"
        );
    }
    // Both have the kernels of the device.
    assert_eq!(predicted["digest"], planned[0]["digest"]);
    let on_cpu = [
        &["predict", "--strategy", "data=1", "--kernels", "cpu"],
        &of[..],
    ]
    .concat();
    assert_ne!(done(&case, &on_cpu)["digest"], predicted["digest"]);
}

#[test]
fn before_implementations_are_chosen_the_program_of_a_device_is_that_of_the_processor() {
    let text = |arguments: &[&str], kernels: &str| {
        let more = ["--after", "fuse", "--kernels", kernels];
        let output = partita(&[&["lower"], arguments, &more].concat())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        output.stdout
    };
    for (model, split) in [
        ("cosmoflow@32", "depth=2"),
        ("unet3d@32", "depth=2"),
        ("resnet50@64", "height=2"),
        ("resnet50@64", "filter=2"),
    ] {
        for (ranks, strategy) in [("1", "data=1"), ("2", split)] {
            let of = [
                model,
                "--ranks",
                ranks,
                "--batch",
                "2",
                "--strategy",
                strategy,
            ];
            let expected = text(&of, "cpu");
            assert!(text(&of, "gpu") == expected, "{of:?}");
            assert!(text(&of, "reference") != expected, "{of:?} is fused");
        }
    }
}

#[test]
fn convolutions_of_a_device_are_tuned() {
    let case = Case::new();
    let tune = |device: &str| {
        let words = [
            "tune",
            "tiny.model",
            "--ranks",
            "1",
            "--batch",
            "2",
            "--json",
        ];
        run(
            &case,
            &[&words[..], &["--device", device, "--limits", "1KiB"]].concat(),
        )
    };
    let report = json(&["doctor", "--json"]);
    let devices = report["devices"].as_array().unwrap();
    if !devices.iter().any(|device| device["device"] == "gpu") {
        let refused = tune("gpu");
        assert_eq!(refused.status.code(), Some(2));
        let said = String::from_utf8_lossy(&refused.stderr);
        // Without a loader or drivers of OpenCL there is no device, and what is missing is named.
        let missing = ["OpenCL cannot be loaded", "OpenCL finds no driver"];
        let is_missing = devices.is_empty() && missing.iter().any(|text| said.contains(text));
        assert!(said.contains("there is no GPU") || is_missing, "{said}");
    }
    if !has_device("software", "convolutions_of_a_device_are_tuned") {
        return;
    }
    let tuned = tune("software");
    let said = String::from_utf8_lossy(&tuned.stderr);
    assert!(tuned.status.success(), "{said}");
    let tuned: Value = serde_json::from_slice(&tuned.stdout).unwrap();
    assert_eq!(tuned["simd"], "OpenCL");
    let limits = tuned["steps"].as_array().unwrap();
    let limits: Vec<&str> = limits
        .iter()
        .map(|step| step["workspace"].as_str().unwrap())
        .collect();
    assert_eq!(limits, ["off", "live", "1KiB"]);
    for kernel in tuned["kernels"].as_array().unwrap() {
        let points = kernel["frontier"].as_array().unwrap();
        assert!(!points.is_empty(), "{kernel}");
        for point in points {
            let name = point["configuration"].as_str().unwrap();
            assert!(
                name.starts_with("gpu") || name.starts_with("serial"),
                "{name}"
            );
            assert!(point["seconds"].as_f64().unwrap() > 0.0, "{point}");
        }
    }
}
