//! Strings of digits, from the making of the dataset to a network trained on parts of them.

use crate::command::{answer, error_text, json, partita, refusal};
use partita_data::{Dataset, Split};
use partita_formats::{DType, Samples};
use partita_synth::{DigitString, DigitStrings, DigitsSpec, DigitsTask};
use partita_testkit::Share;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const MODEL: &str = "model strings
input x channels=2 extent=16
c1 = conv x filters=24 kernel=3 pad=1 bias=true init=he_normal
a1 = relu c1
c2 = conv a1 filters=16 kernel=3 pad=1 bias=true
loss = softmax_cross_entropy c2
";

fn arguments<'a>(out: &'a Path, task: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let head = ["data", "digits", "--out", out.to_str().unwrap()];
    [&head[..], &["--seed", "7", "--task", task], more].concat()
}

fn make(out: &Path, task: &str, more: &[&str]) -> (Dataset, String) {
    let text = answer(&arguments(out, task, more));
    (Dataset::open(out).unwrap(), text)
}

/// All samples of a split, as they lie in its file.
fn read(dataset: &Dataset, split: Split) -> Vec<DigitString> {
    let [_, d, h, w] = dataset.shape();
    let mut reader = dataset.reader(split);
    let mut part = |sample, channels, is_label| {
        let (mut samples, region) = (Samples::new(DType::Int16), [0..channels, 0..d, 0..h, 0..w]);
        let read = if is_label {
            reader.read_labels(sample, region, &mut samples)
        } else {
            reader.read_volume(sample, region, &mut samples)
        };
        read.unwrap();
        match samples {
            Samples::I16(values) => values,
            Samples::F32(_) => panic!("tokens are int16"),
        }
    };
    let samples = 0..dataset.samples(split);
    samples
        .map(|sample| DigitString {
            values: part(sample, 2, false),
            labels: part(sample, 1, true),
        })
        .collect()
}

#[test]
fn a_dataset_holds_the_strings_of_its_seed_and_none_in_two_splits() {
    let folder = tempfile::tempdir().unwrap();
    for (name, task, more) in [
        ("reverse", DigitsTask::Reverse, &["--vary"][..]),
        ("sort", DigitsTask::Sort, &["--vary"]),
        ("add", DigitsTask::Add, &["--length", "11"]),
    ] {
        let size = ["--samples", "300", "--digits", "3", "--validation", "0.2"];
        let (dataset, text) = make(&folder.path().join(name), name, &[&size, more].concat());
        let spec = DigitsSpec {
            task,
            digits: 3,
            vary: name != "add",
            length: (name == "add").then_some(11),
            samples: 300,
            seed: 7,
        };
        let length = if name == "add" { 11 } else { 8 };
        assert!(
            text.contains(&format!("1x1x{length} with 2 channels")),
            "{text}"
        );
        assert_eq!(dataset.labels(), Some([1, 1, length]));
        let strings = DigitStrings::new(&spec).unwrap();
        let expected: Vec<DigitString> = (0..300).map(|index| strings.make(index)).collect();
        let splits = Split::ALL.map(|split| read(&dataset, split));
        assert_eq!(splits.each_ref().map(Vec::len), [210, 60, 30]);
        let found = splits.concat();
        assert_eq!(found, expected, "{name}");
        let sources = found.iter().map(|string| &string.values[..length]);
        assert_eq!(sources.collect::<BTreeSet<_>>().len(), 300, "{name}");
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes_on_any_number_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = |name: &str, more: &[&str]| {
        let out = folder.path().join(name);
        let size = ["--samples", "200", "--digits", "8"];
        make(&out, "add", &[&size[..], more].concat());
        let read = |file: &str| fs::read(out.join(file)).unwrap();
        ["train.h5", "validation.h5", "test.h5", "dataset.toml"].map(read)
    };
    let one = bytes("1", &["--threads", "1"]);
    assert!(one == bytes("3", &["--threads", "3"]));
    assert!(one == bytes("40", &["--threads", "40"]));
    assert!(one == bytes("all", &[]));
}

#[test]
fn strings_can_be_inspected() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("set");
    let (_, text) = make(&out, "sort", &["--samples", "50", "--digits", "8"]);
    for part in [
        "kind     digits",
        "padding, start, end, 0, 1",
        "one per position",
        "task = \"sort\"",
        "[40, 1, 1, 1, 16]",
    ] {
        assert!(text.contains(part), "no `{part}` in\n{text}");
    }
    let path = out.to_str().unwrap();
    assert_eq!(answer(&["data", "inspect", path]), text);
    let summary = json(&["data", "inspect", path, "--json"]);
    assert_eq!(summary["kind"], "digits");
    assert_eq!(summary["targets"].as_array().unwrap().len(), 16);
    assert_eq!(summary["labels"], serde_json::json!([1, 1, 16]));
    assert_eq!(summary["spec"]["vary"], false);
}

#[test]
fn strings_that_cannot_be_made_are_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("set");
    for (task, options, expected) in [
        (
            "sort",
            &["--samples", "1001", "--digits", "3"][..],
            "there are 1000\nhelp: try 1000; possible values: 1 to 1000",
        ),
        (
            "reverse",
            &["--samples", "1111", "--digits", "3", "--vary"],
            "help: try 1110",
        ),
        (
            "add",
            &["--samples", "101", "--digits", "1"],
            "help: try 100",
        ),
        (
            "add",
            &["--samples", "10", "--digits", "8", "--length", "16"],
            "help: try 17; possible values: 17 or more",
        ),
        (
            "reverse",
            &["--samples", "10", "--digits", "8", "--length", "8"],
            "help: try 9",
        ),
        (
            "sort",
            &["--samples", "10", "--digits", "513"],
            "from 1 to 512\nhelp: try 512",
        ),
        ("sort", &["--samples", "10", "--digits", "0"], "help: try 1"),
        (
            "sort",
            &["--samples", "10", "--digits", "3", "--validation", "1"],
            "leaves none to train on",
        ),
        ("rverse", &["--samples", "10", "--digits", "3"], "'reverse'"),
    ] {
        let text = refusal(&arguments(&out, task, options));
        assert!(text.contains(expected), "{text}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// The result of a training whose files and measurements lie in the folder.
fn train(folder: &Path, ranks: usize, strategy: &str, kernels: &str) -> Value {
    let at = folder.display();
    let text = format!(
        "model = \"{at}/net.model\"\ndata = \"{at}/set\"\noutput = \"{at}/out\"\nbatch = 16\n\
         epochs = 4\nranks = {ranks}\nstrategy = \"{strategy}\"\n{kernels}\n\
         transform = {{ scale = 0.1 }}\n[schedule]\nlearning_rate = 0.01\n"
    );
    let run = folder.join("run.toml");
    fs::write(&run, text).unwrap();
    let mut command = partita(&["train", run.to_str().unwrap(), "--json", "--overwrite"]);
    let output = command.env("XDG_CACHE_HOME", folder).output().unwrap();
    assert!(output.status.success(), "{}", error_text(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn parts_of_strings_teach_what_whole_ones_do() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::write(at.join("net.model"), MODEL).unwrap();
    let size = ["--samples", "1000", "--digits", "8", "--test", "0"];
    make(&at.join("set"), "sort", &size);
    let exact = "kernels = \"reference\"\nprecision = \"f64\"";
    let losses = |result: &Value| -> Vec<f64> {
        let epochs = result["epochs"].as_array().unwrap().iter();
        epochs
            .flat_map(|epoch| [&epoch["training_loss"], &epoch["validation"]["loss"]])
            .map(|loss| loss.as_f64().unwrap())
            .collect()
    };
    let counted = |result: &Value| result["epochs"][3]["validation"]["classification"].clone();
    let one = train(at, 1, "data=1", exact);
    let (first, last) = (losses(&one)[0], losses(&one)[6]);
    assert!(last < 0.5 * first, "{first} {last}");
    let found = counted(&one);
    let share = |key: &str| found[key].as_f64().unwrap();
    assert!(
        share("accuracy") > share("largest_share") + 0.2,
        "{found:#}"
    );
    let splits = [(2, "width=2"), (2, "data=2"), (4, "data=2,width=2")];
    for (ranks, strategy) in Share::of(3).of_items(splits) {
        let split = train(at, ranks, strategy, exact);
        for (a, b) in losses(&split).into_iter().zip(losses(&one)) {
            assert!((a / b - 1.0).abs() < 1e-9, "{strategy}: {a} and {b}");
        }
        assert_eq!(counted(&split), found, "{strategy}");
    }
    let fast = train(at, 2, "width=2", "");
    assert!((losses(&fast)[0] / first - 1.0).abs() < 1e-3);
}
