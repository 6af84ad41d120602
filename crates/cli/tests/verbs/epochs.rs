//! Epochs with loaders and validators: the longest part counts, not the sum.

use crate::command::{answer, json, refusal};
use serde_json::Value;

fn asked<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let step = ["predict", "cosmoflow@64", "--machine", "lassen", "--ranks"];
    let rest = ["4", "--batch", "8", "--strategy", "data=4"];
    [&step[..], &rest, more].concat()
}

const SAMPLES: [&str; 4] = ["--dataset-samples", "1024", "--validation-samples", "128"];

fn epoch(more: &[&str]) -> Value {
    let words = [more, &SAMPLES, &["--json"]].concat();
    json(&asked(&words))["epoch"].clone()
}

fn seconds(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

#[test]
fn an_epoch_takes_the_longest_of_its_parts() {
    let loaders = |time: &str, count: &str| {
        epoch(&[
            "--loaders",
            count,
            "--seconds-per-load",
            time,
            "--validators",
            "2",
        ])
    };
    let quick = loaders("10us", "4");
    assert_eq!(
        (&quick["steps"], &quick["training_samples"]),
        (&112.into(), &896.into())
    );
    let training = seconds(&quick["training_seconds"]);
    assert_eq!(seconds(&quick["seconds"]), training);
    // 896 samples of a second, divided among four loaders.
    let slow = loaders("1s", "4");
    assert_eq!(seconds(&slow["seconds"]), 224.0);
    assert_eq!(seconds(&slow["training_seconds"]), training);
    assert_eq!(seconds(&loaders("1s", "2")["seconds"]), 448.0);
    // Loaders alone count, however sure the steps are; their rate is that of the training.
    assert_eq!(slow["samples_per_second"], 4.0);
    let ends = |epoch: &Value| {
        let interval = &epoch["interval"];
        assert_eq!(interval["confidence"], 0.9);
        [&interval["low_seconds"], &interval["high_seconds"]].map(seconds)
    };
    assert_eq!(ends(&slow), [224.0; 2]);
    let [low, high] = ends(&quick);
    assert!(low < training && training < high && high < 224.0);
    let rate = seconds(&quick["samples_per_second"]);
    assert!((rate * training / 896.0 - 1.0).abs() < 1e-9);
    // With what a sample may take, both take equally long.
    let most = seconds(&slow["loading"]["seconds_per_sample_max"]);
    let even = loaders(&format!("{}ns", most * 1e9), "4");
    let busy = seconds(&even["loading"]["seconds"]);
    assert!(
        (busy / training - 1.0).abs() < 1e-6,
        "{busy} is not {training}"
    );
}

#[test]
fn validation_is_hidden_behind_the_next_epoch_or_not() {
    let own = epoch(&[]);
    let training = seconds(&own["training_seconds"]);
    let validation = seconds(&own["own_validation_seconds"]);
    assert!(validation > 0.0 && own["validation"].is_null());
    assert!((seconds(&own["seconds"]) - training - validation).abs() < 1e-12);
    let hidden = epoch(&["--validators", "1"]);
    assert_eq!(seconds(&hidden["seconds"]), training);
    // As fast as the ranks, but for the snapshot on its way.
    let busy = seconds(&hidden["validation"]["seconds"]);
    assert!(
        busy > validation && busy < 2.0 * validation,
        "{busy} and {validation}"
    );
    let slow = ["--seconds-per-validation", "100ms"];
    let waited = |count| {
        let found = epoch(&[&["--validators", count], &slow[..]].concat());
        seconds(&found["seconds"])
    };
    // 128 samples, then half of them, and the same snapshot.
    assert!((waited("1") - waited("2") - 6.4).abs() < 1e-6);
    assert!(waited("1") > 12.8 && waited("1") < 12.9);
}

#[test]
fn the_text_says_what_is_waited_for() {
    let more = [
        "--loaders",
        "1",
        "--seconds-per-load",
        "1s",
        "--validators",
        "1",
    ];
    let text = answer(&asked(&[&more[..], &SAMPLES].concat()));
    for part in [
        "epoch        896.00 s, whatever the ranks take",
        "input        sent by loaders",
        "samples/s    1.00, as ranks wait for loaders; ",
        "by 1 loader, 1.00 s a sample; waited for",
        "by 1 validator,",
        "; hidden, up to",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}

#[test]
fn what_an_epoch_needs_is_named() {
    for (more, expected) in [
        (&["--loaders", "2"][..], "`--seconds-per-load` gives it"),
        (&["--validators", "1"], "`--validation-samples N` says"),
        (&["--seconds-per-load", "1s"], "--loaders"),
        (
            &[
                "--loaders",
                "1",
                "--seconds-per-load",
                "1s",
                "--io",
                "files",
            ],
            "--io",
        ),
        (
            &["--validation-samples", "1020", "--dataset-samples", "1024"],
            "help: try `--validation-samples 1016`",
        ),
        (
            &[
                "--loaders",
                "1",
                "--seconds-per-load",
                "1s",
                "--dataset-samples",
                "3",
            ],
            "help: try `--dataset-samples 8` or more, or `--batch 3` or less under a strategy that fits it",
        ),
        (
            &["--validation-samples", "3", "--dataset-samples", "3"],
            "3 sample(s), 3 of them validated, has too few for a step of 8\nhelp: try `--dataset-samples 11` or more\n",
        ),
        (
            &[
                "--validators",
                "3",
                "--validation-samples",
                "16",
                "--dataset-samples",
                "99",
            ],
            "help: try 2",
        ),
        (
            &["--validation-samples", "8", "--kind", "evaluate"],
            "`--kind train`",
        ),
    ] {
        let text = refusal(&asked(more));
        assert!(text.contains(expected), "{expected:?} is not in {text}");
    }
}

/// As many as the small parts of published volumes, which is the default.
#[test]
fn a_dataset_may_have_as_many_samples_as_the_published_one() {
    let asked = "predict cosmoflow@32 --machine lassen --ranks 4 --batch 4 --strategy data=4 --json \
                 --dataset-samples 41029632";
    let asked: Vec<&str> = asked.split_whitespace().collect();
    let given = json(&asked);
    let published = json(&asked[..asked.len() - 2]);
    assert_eq!(given["dataset"]["samples"], 41_029_632);
    assert_eq!(published["dataset"]["samples"], 41_029_632);
}
