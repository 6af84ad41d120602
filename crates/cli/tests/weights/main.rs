//! What is done with trained weights: `evaluate`, `infer`, `weights`, and `weights` of a run file.

#![allow(clippy::disallowed_methods, reason = "tests read what they wrote")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod advice;
mod averages;
mod channels;
mod class_weights;
mod ensembles;
mod features;
mod frozen;
mod grids;
mod imported;
mod names;
mod order;
mod state_dicts;
mod volumes;

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use tempfile::TempDir;

const MODEL: &str = "model small
input x channels=1 extent=8x8x8
c1 = conv x filters=4 kernel=3 pad=1 bias=false
n1 = batch_norm c1 epsilon=1e-5 momentum=0.1
a1 = relu n1
c2 = conv a1 filters=3 kernel=1 bias=true
loss = softmax_cross_entropy c2
";

/// A folder with a model, a dataset and a trained run, made once.
struct Case {
    folder: TempDir,
    trained: Value,
}

fn case() -> &'static Case {
    static CASE: OnceLock<Case> = OnceLock::new();
    CASE.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("small.model"), MODEL).unwrap();
        let mut case = Case {
            folder,
            trained: Value::Null,
        };
        let made =
            "data segmentation --out set --volumes 14 --grid 8 --validation 0.36 --test 0.22";
        case.answer(made);
        case.run_file(
            "run.toml",
            "out",
            "batch = 2\nepochs = 2\n[schedule]\nlearning_rate = 0.01\n",
        );
        case.trained = case.json("train run.toml --no-prediction --json");
        case
    })
}

impl Case {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run_file(&self, name: &str, output: &str, more: &str) {
        let text = format!(
            "model = \"small.model\"\ndata = \"set\"\noutput = \"{output}\"\nstrategy = \"data=1\"\n\
             transform = {{ scale = 0.01 }}\n{more}"
        );
        fs::write(self.path(name), text).unwrap();
    }

    fn output(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_partita"));
        command.args(arguments).current_dir(self.folder.path());
        command.env("HOME", self.path("home")).output().unwrap()
    }

    fn answer(&self, arguments: &str) -> String {
        self.answer_of(&arguments.split(' ').collect::<Vec<_>>())
    }

    fn answer_of(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {text}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, arguments: &str) -> Value {
        serde_json::from_str(&self.answer(arguments)).unwrap()
    }

    fn refusal(&self, arguments: &str) -> String {
        let output = self.output(&arguments.split(' ').collect::<Vec<_>>());
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments}: {text}");
        text
    }

    /// Values and shape of an NPY file of floats.
    fn array(&self, name: &str) -> (String, Vec<f32>) {
        let (header, data) = npy(&self.path(name));
        let words = data.as_chunks::<4>().0.iter();
        (
            header,
            words.map(|&word| f32::from_le_bytes(word)).collect(),
        )
    }
}

fn npy(path: &Path) -> (String, Vec<u8>) {
    let bytes = fs::read(path).unwrap();
    assert_eq!(&bytes[..8], b"\x93NUMPY\x01\x00");
    let length = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    assert_eq!((10 + length) % 64, 0);
    let header = String::from_utf8(bytes[10..10 + length].to_vec()).unwrap();
    (header, bytes[10 + length..].to_vec())
}

/// Each strategy with its ranks.
const STRATEGIES: [(&str, &str); 5] = [
    ("data=2", "2"),
    ("depth=2,height=2", "4"),
    ("width=3", "3"),
    ("filter=2", "2"),
    ("micro=2,stages=[..a1: 1|c2..: 1]", "2"),
];

#[test]
fn an_evaluation_equals_the_last_validation() {
    let case = case();
    let trained = &case.trained["epochs"][1]["validation"];
    let found = case.json("evaluate run.toml --json");
    assert_eq!(found["metrics"]["loss"], trained["loss"]);
    assert_eq!(
        found["metrics"]["samples"], 5,
        "two batches and a partial one"
    );
    assert_eq!(
        found["metrics"]["classification"],
        trained["classification"]
    );
    for (strategy, ranks) in STRATEGIES {
        let arguments = [
            "evaluate",
            "run.toml",
            "--json",
            "--strategy",
            strategy,
            "--ranks",
            ranks,
        ];
        let split: Value = serde_json::from_str(&case.answer_of(&arguments)).unwrap();
        let (one, many) = (&found["metrics"], &split["metrics"]);
        let [loss, same] = [one, many].map(|metrics| metrics["loss"].as_f64().unwrap());
        assert!(
            (loss - same).abs() < 1e-6 * loss,
            "{strategy}: {loss} {same}"
        );
        assert_eq!(many["classification"], one["classification"], "{strategy}");
    }
}

/// Of samples that f16 cannot hold.
#[test]
fn an_evaluation_that_is_not_finite_says_what_to_change() {
    let case = case();
    let text = "model = \"small.model\"\ndata = \"set\"\noutput = \"large\"\nstrategy = \"data=1\"\nbatch = 2\n\
                epochs = 1\ntransform = { scale = 1e6 }\nprecision = \"f16\"\n[schedule]\nlearning_rate = 0.01\n";
    fs::write(case.path("large.toml"), text).unwrap();
    let output = case.output(&["evaluate", "large.toml", "--weights", "out"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    for part in ["65,504", "`transform`", "bf16", "no results"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("learning_rate"), "{text}");
}

#[test]
fn any_split_and_batch_can_be_evaluated() {
    let case = case();
    let loss = |arguments: &str| {
        let found = case.json(&format!("evaluate run.toml --json {arguments}"));
        let metrics = &found["metrics"];
        (
            metrics["loss"].as_f64().unwrap(),
            metrics["samples"].as_u64().unwrap(),
        )
    };
    let (validation, _) = loss("--split validation");
    let (test, samples) = loss("--split test");
    assert_eq!(samples, 3);
    assert!(
        (test - validation).abs() > 1e-6,
        "other samples have another loss"
    );
    let (again, _) = loss("--split test --batch 3");
    assert!((again - test).abs() < 1e-6 * test);
    assert_eq!(loss("--split train --batch 4").1, 6);
}

#[test]
fn predictions_are_equal_under_every_strategy() {
    let case = case();
    let found = case.json("infer run.toml --out one.npy --json");
    assert_eq!(found["shape"], serde_json::json!([5, 3, 8, 8, 8]));
    let (header, one) = case.array("one.npy");
    assert!(
        header.contains("'<f4'") && header.contains("(5, 3, 8, 8, 8)"),
        "{header}"
    );
    assert_eq!(one.len(), 5 * 3 * 512);
    assert!(one.iter().any(|&value| value != one[0]));
    // The batch norm takes no statistics here.
    let chunked = [("height=2; c1..c2: chunks=3", "2")];
    for (strategy, ranks) in STRATEGIES.into_iter().chain(chunked) {
        let arguments = [
            "infer",
            "run.toml",
            "--out",
            "many.npy",
            "--strategy",
            strategy,
            "--ranks",
            ranks,
        ];
        case.answer_of(&arguments);
        let (_, many) = case.array("many.npy");
        let differs = |(a, b): (&f32, &f32)| (a - b).abs() > 1e-5;
        assert!(!one.iter().zip(&many).any(differs), "{strategy}");
        assert_eq!(many.len(), one.len(), "{strategy}");
    }
    assert!(!case.path("one.npy.scores.partial").exists());
}

#[test]
fn parts_of_a_loss_have_weights_of_their_own() {
    let case = case();
    let loss_of = |loss: &str| {
        let more =
            format!("loss = \"{loss}\"\nbatch = 2\nepochs = 1\n[schedule]\nlearning_rate = 0.01\n");
        case.run_file("parts.toml", "out", &more);
        case.json("evaluate parts.toml --json")["metrics"]["loss"]
            .as_f64()
            .unwrap()
    };
    let plain = ["softmax_cross_entropy", "dice"].map(loss_of);
    let weighted =
        ["softmax_cross_entropy", "dice"].map(|loss| loss_of(&format!("{loss} weights=1,4,9")));
    for (key, parts) in [
        ("weights", [weighted[0], weighted[1]]),
        ("cross_entropy_weights", [weighted[0], plain[1]]),
        ("dice_weights", [plain[0], weighted[1]]),
    ] {
        let found = loss_of(&format!("dice_cross_entropy {key}=1,4,9"));
        let expected = parts[0] + parts[1];
        assert!(
            (found - expected).abs() < 1e-5 * expected,
            "{key}: {found} and {expected}"
        );
    }
}

#[test]
fn classes_and_probabilities_follow_from_scores() {
    let case = case();
    case.answer("infer run.toml --split test --out scores.npy");
    case.answer("infer run.toml --split test --out shares.npy --output probabilities");
    case.answer("infer run.toml --split test --out classes.npy --output classes");
    case.answer("infer run.toml --split test --out classes.h5 --output classes");
    let (scores, shares) = (case.array("scores.npy").1, case.array("shares.npy").1);
    let (header, classes) = npy(&case.path("classes.npy"));
    assert!(
        header.contains("'|u1'") && header.contains("(3, 8, 8, 8)"),
        "{header}"
    );
    assert_eq!(classes.len(), 3 * 512);
    for (position, &class) in classes.iter().enumerate() {
        let (sample, at) = (position / 512, position % 512);
        let of = |values: &[f32]| [0, 1, 2].map(|c| f64::from(values[(sample * 3 + c) * 512 + at]));
        let (score, share) = (of(&scores), of(&shares));
        let best = (1..3).fold(0, |best, c| if score[c] > score[best] { c } else { best });
        assert_eq!(usize::from(class), best);
        let sum: f64 = score.iter().map(|value| value.exp()).sum();
        for class in 0..3 {
            assert!((share[class] - score[class].exp() / sum).abs() < 1e-6);
        }
    }
    let text = case.refusal("infer run.toml --out classes.txt");
    assert!(text.contains(".h5"), "{text}");
}

#[test]
fn forward_programs_keep_no_activations() {
    let folder = tempfile::tempdir().unwrap();
    let memory = |layers: usize, kind: &str| {
        let mut text = String::from("model chain\ninput x channels=4 extent=32x32x32\n");
        let mut last = "x".to_owned();
        for layer in 0..layers {
            let (conv, relu) = (format!("c{layer}"), format!("a{layer}"));
            text += &format!(
                "{conv} = conv {last} filters=4 kernel=3 pad=1 bias=true\n{relu} = relu {conv}\n"
            );
            last = relu;
        }
        text += &format!("loss = mse {last}\n");
        let path = folder.path().join("chain.model");
        fs::write(&path, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_partita"));
        command.args([
            "lower",
            path.to_str().unwrap(),
            "--ranks",
            "2",
            "--batch",
            "2",
        ]);
        command.args([
            "--strategy",
            "depth=2",
            "--optimizer",
            "sgd",
            "--kind",
            kind,
        ]);
        let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let arena = text
            .lines()
            .find_map(|line| line.split_once("arena="))
            .unwrap()
            .1;
        let bytes: String = arena.chars().take_while(char::is_ascii_digit).collect();
        bytes.parse::<f64>().unwrap()
    };
    let activation = (2 * 4 * 32 * 32 * 16 * 4) as f64;
    assert!(memory(12, "train") - memory(4, "train") > 8.0 * activation);
    assert!(memory(12, "infer") - memory(4, "infer") < 0.1 * activation);
    assert!(memory(12, "evaluate") - memory(4, "evaluate") < 0.1 * activation);
}

#[test]
fn training_starts_from_weights() {
    let case = case();
    // A rate so small that no weight moves.
    let still = "overwrite = true\nbatch = 2\nepochs = 1\n";
    let still = format!("{still}[optimizer]\nkind = \"sgd\"\n[schedule]\nlearning_rate = 1e-30\n");
    let names = |output: &str| {
        let out = format!("{output}.export");
        case.answer(&format!(
            "weights export {output} --model small.model --out {out}"
        ));
        partita_weights::state_dict::load(case.path(&out))
            .unwrap()
            .floats
            .tensors
    };
    let trained = names("out");
    case.run_file("same.toml", "same", &format!("weights = \"out\"\n{still}"));
    case.answer("train same.toml --no-prediction");
    let same = names("same");
    let table = "[weights]\nfile = \"out.export\"\nskip = [\"c2*\"]\nrename = {\"n1\" = \"n1\"}\n";
    case.run_file("part.toml", "part", &format!("{still}{table}"));
    case.answer("train part.toml --no-prediction");
    let part = names("part");
    assert_eq!(trained["c1.weight"].shape, [4, 1, 3, 3, 3]);
    for name in ["c1.weight", "n1.weight", "n1.bias", "c2.weight", "c2.bias"] {
        assert_eq!(same[name], trained[name], "{name}");
        let is_taken = !name.starts_with("c2");
        assert_eq!(part[name] == trained[name], is_taken, "{name}");
    }
}

#[test]
fn weights_of_another_model_are_refused_by_name() {
    let case = case();
    case.answer("weights export run.toml --out all.safetensors");
    let other = MODEL.replace("filters=4", "filters=5");
    fs::write(case.path("wide.model"), other).unwrap();
    let text =
        case.refusal("weights import all.safetensors --model wide.model --out x.safetensors");
    for part in [
        "all.safetensors",
        "`c1.weight`",
        "[4, 1, 3, 3, 3]",
        "[5, 1, 3, 3, 3]",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    fs::write(case.path("other.model"), MODEL.replace("c1", "k1")).unwrap();
    let text =
        case.refusal("weights import all.safetensors --model other.model --out x.safetensors");
    assert!(
        text.contains("`k1.weight`") && text.contains("help: try `c1.weight`, of the same shape"),
        "{text}"
    );
    // What is said works.
    assert!(text.contains("`--rename c1=k1` takes it"), "{text}");
    case.answer(
        "weights import all.safetensors --model other.model --out x.safetensors --rename c1=k1",
    );
    let still = "batch = 2\nepochs = 1\n[schedule]\nlearning_rate = 0\n[weights]\nfile = \"all.safetensors\"\n";
    let renamed = format!("{still}rename = {{ \"c1\" = \"k1\" }}\n");
    case.run_file("renamed.toml", "renamed", &renamed);
    let path = case.path("renamed.toml");
    let run = fs::read_to_string(&path)
        .unwrap()
        .replace("small.model", "other.model");
    fs::write(path, run).unwrap();
    case.answer("train renamed.toml --no-prediction");
    let three = MODEL.replace(
        "c2 = conv a1",
        "c4 = conv a1 filters=4 kernel=1 bias=false\nc2 = conv c4",
    );
    fs::write(case.path("three.model"), three).unwrap();
    let text =
        case.refusal("weights import all.safetensors --model three.model --out x.safetensors");
    assert!(
        text.contains("none of its shape [4, 4, 1, 1, 1] is left"),
        "{text}"
    );
    assert!(
        text.contains("`new = [\"c4*\"]` keeps initial values"),
        "{text}"
    );
    let table = "batch = 2\nepochs = 1\n[schedule]\nlearning_rate = 0.1\n[weights]\nfile = \"all.safetensors\"\n";
    case.run_file("typo.toml", "typo", &format!("{table}skip = [\"c3*\"]\n"));
    let text = case.refusal("train typo.toml --no-prediction");
    assert!(text.contains("`skip` names `c3*`"), "{text}");
    fs::write(case.path("bad.safetensors"), b"no tensors").unwrap();
    let text = case.refusal("evaluate run.toml --weights bad.safetensors");
    assert!(text.contains("bad.safetensors"), "{text}");
}

#[test]
fn weights_survive_pytorchs_names_and_order() {
    let case = case();
    case.answer("weights export run.toml --out there.safetensors");
    case.answer("weights import there.safetensors --model small.model --out back.safetensors");
    let [before, after] = ["out/weights.safetensors", "back.safetensors"]
        .map(|name| partita_weights::load(case.path(name)).unwrap().tensors);
    assert_eq!(before, after);
    let there = partita_weights::state_dict::load(case.path("there.safetensors")).unwrap();
    assert!(there.integers.contains("n1.num_batches_tracked"));
    let one = case.json("evaluate run.toml --json");
    let two = case.json("evaluate run.toml --weights there.safetensors --json");
    assert_eq!(one["metrics"]["loss"], two["metrics"]["loss"]);
}

/// A flipped bit in a file that Partita wrote is found by everything that reads it.
#[test]
fn a_flipped_bit_in_weights_is_found() {
    let case = case();
    case.answer("weights export run.toml --out flipped.safetensors");
    for (from, to) in [
        ("out/weights.safetensors", "flip-own.safetensors"),
        ("flipped.safetensors", "flip-torch.safetensors"),
    ] {
        let mut bytes = fs::read(case.path(from)).unwrap();
        let last = bytes.len() - 3;
        bytes[last] ^= 0x10;
        fs::write(case.path(to), bytes).unwrap();
        let more = "batch = 2\nepochs = 1\n[schedule]\nlearning_rate = 0.1\n";
        case.run_file("flip.toml", "flip", &format!("weights = \"{to}\"\n{more}"));
        for arguments in [
            format!("evaluate run.toml --weights {to} --ranks 2 --strategy depth=2"),
            format!("infer run.toml --weights {to} --out flip.npy"),
            format!("weights import {to} --model small.model --out flip.safetensors"),
            "train flip.toml --no-prediction --ranks 2 --strategy filter=2".to_owned(),
        ] {
            let output = case.output(&arguments.split(' ').collect::<Vec<_>>());
            let text = String::from_utf8(output.stderr).unwrap();
            assert!(!output.status.success(), "{arguments}: {text}");
            let damage = format!("the weight file {to} is damaged: bytes 0 to ");
            assert!(text.contains(&damage), "{arguments}: {text}");
            assert!(text.contains("take another copy"), "{arguments}: {text}");
        }
    }
}

/// Under a limit of the size of files, which no look at the free space shows.
#[test]
fn predictions_that_cannot_be_written_leave_no_file() {
    let case = case();
    let line = "ulimit -f 1; exec \"$0\" infer run.toml --out limited.npy";
    let mut command = Command::new("sh");
    command
        .args(["-c", line, env!("CARGO_BIN_EXE_partita")])
        .current_dir(case.folder.path());
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("limited.npy"), "{text}");
    let names = fs::read_dir(case.folder.path()).unwrap();
    let mut names = names.map(|entry| entry.unwrap().file_name());
    assert!(!names.any(|name| name.to_string_lossy().starts_with("limited.npy")));
}

/// The same tensors as `save_file` writes them, without metadata.
fn without_metadata(bytes: &[u8]) -> Vec<u8> {
    let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let mut header: serde_json::Map<String, Value> = serde_json::from_slice(header).unwrap();
    header.remove("__metadata__");
    let header = serde_json::to_vec(&header).unwrap();
    [&(header.len() as u64).to_le_bytes(), &header[..], data].concat()
}

/// A file of another program, without checksums, whose last weight is no number.
fn without_a_number(bytes: &[u8]) -> Vec<u8> {
    let mut file = without_metadata(bytes);
    let last = file.len() - 4;
    file[last..].copy_from_slice(&f32::NAN.to_le_bytes());
    file
}

#[test]
fn weights_that_are_no_numbers_are_refused() {
    let case = case();
    case.answer("weights export run.toml --out good.safetensors");
    let good = fs::read(case.path("good.safetensors")).unwrap();
    fs::write(case.path("nan.safetensors"), without_a_number(&good)).unwrap();
    let more =
        "weights = \"nan.safetensors\"\nbatch = 2\nepochs = 1\n[schedule]\nlearning_rate = 0.1\n";
    case.run_file("nan.toml", "nan", more);
    for arguments in [
        "evaluate run.toml --weights nan.safetensors",
        "weights import nan.safetensors --model small.model --out nan-own.safetensors",
        "train nan.toml --no-prediction --ranks 2 --strategy filter=2",
    ] {
        let output = case.output(&arguments.split(' ').collect::<Vec<_>>());
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{arguments}: {text}");
        let expected = "nan.safetensors: the tensor `";
        assert!(
            text.contains(expected) && text.contains("holds NaN"),
            "{arguments}: {text}"
        );
    }
}

/// Finite weights may give outputs that are not: an inference stops there, as an evaluation does.
#[test]
fn outputs_that_are_no_numbers_are_refused() {
    let case = case();
    case.answer("weights export run.toml --out modest.safetensors");
    let mut bytes = without_a_number(&fs::read(case.path("modest.safetensors")).unwrap());
    let (length, _) = bytes.split_first_chunk::<8>().unwrap();
    let first = 8 + u64::from_le_bytes(*length) as usize;
    let (words, _) = bytes[first..].as_chunks_mut::<4>();
    words.fill(3e38_f32.to_le_bytes());
    fs::write(case.path("huge.safetensors"), bytes).unwrap();
    for (arguments, expected) in [
        (
            "infer run.toml --out huge.npy",
            "the output for sample 0 is ",
        ),
        (
            "infer run.toml --out huge.npy --output classes --ranks 2 --strategy depth=2",
            "the output for sample 0 is ",
        ),
        ("evaluate run.toml", "the loss is "),
    ] {
        let arguments = format!("{arguments} --weights huge.safetensors");
        let output = case.output(&arguments.split(' ').collect::<Vec<_>>());
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{arguments}: {text}");
        assert!(text.contains(expected), "{arguments}: {text}");
        assert!(!case.path("huge.npy").exists(), "{arguments}");
    }
}

#[test]
fn what_was_not_trained_is_told_to_be_trained_first() {
    let case = case();
    case.run_file(
        "untrained.toml",
        "untrained",
        "batch = 2\nepochs = 1\n[schedule]\nlearning_rate = 0.1\n",
    );
    for arguments in [
        "evaluate untrained.toml",
        "infer untrained.toml --out untrained.npy",
    ] {
        let text = case.refusal(arguments);
        let expected = "untrained has no weights; train first, with `partita train untrained.toml`";
        assert!(text.contains(expected), "{text}");
    }
}

/// Header and values of a NIfTI-1 file without extensions.
fn nifti(path: &Path) -> (Vec<u8>, Vec<u8>) {
    let bytes = fs::read(path).unwrap();
    assert_eq!(
        (&bytes[344..348], &bytes[..4]),
        (&b"n+1\0"[..], &348_i32.to_le_bytes()[..])
    );
    (bytes[..352].to_vec(), bytes[352..].to_vec())
}

/// A volume of 8^3 voxels of 16-bit integers, with a sform.
fn volume(path: &Path, level: i16, affine: &[f32; 12]) {
    let mut bytes = vec![0; 352];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, &348_i32.to_le_bytes());
    for (dim, extent) in [3_i16, 8, 8, 8, 1, 1, 1, 1].into_iter().enumerate() {
        put(40 + 2 * dim, &extent.to_le_bytes());
    }
    put(70, &4_i16.to_le_bytes());
    put(72, &16_i16.to_le_bytes());
    put(108, &352_f32.to_le_bytes());
    put(254, &1_i16.to_le_bytes());
    for (at, value) in affine.iter().enumerate() {
        put(280 + 4 * at, &value.to_le_bytes());
    }
    put(344, b"n+1\0");
    let voxels = (0..512_i16).flat_map(|at| (level + at % 5).to_le_bytes());
    fs::write(path, [bytes, voxels.collect()].concat()).unwrap();
}

#[test]
fn the_positions_of_converted_volumes_are_those_of_predictions() {
    let case = case();
    for folder in ["task/imagesTr", "task/labelsTr"] {
        fs::create_dir_all(case.path(folder)).unwrap();
    }
    let affine = |number: usize| {
        let shift = number as f32;
        [
            0.5, 0.0, 0.0, shift, 0.0, -0.5, 0.25, 2.0, 0.0, 0.0, 1.25, -3.0,
        ]
    };
    for number in 0..6 {
        let name = format!("case_{number}.nii");
        volume(
            &case.path("task/imagesTr").join(&name),
            number as i16,
            &affine(number),
        );
        volume(&case.path("task/labelsTr").join(&name), 0, &affine(number));
    }
    case.answer("data convert task --out converted");
    let from = "infer run.toml --data converted --split train --output classes";
    let answer = case.json(&format!("{from} --out classes.nii --json"));
    let index = fs::read_to_string(case.path("converted/dataset.toml")).unwrap();
    let index: toml::Table = index.parse().unwrap();
    let numbers = index["train"]["universes"].as_array().unwrap();
    let files = answer["files"].as_array().unwrap();
    assert_eq!((files.len(), numbers.len()), (4, 4), "{index}");
    for (file, number) in files.iter().zip(numbers) {
        let (header, values) = nifti(&case.path(file.as_str().unwrap()));
        assert_eq!(values.len(), 512, "a byte for each class");
        let words = header[280..328].as_chunks::<4>().0.iter();
        let found: Vec<f32> = words.map(|&word| f32::from_le_bytes(word)).collect();
        assert_eq!(found, affine(number.as_integer().unwrap() as usize));
        assert_eq!(header[254], 1);
    }
    case.answer(&format!("{from} --out packed.nii.gz"));
    let first = index["train"]["names"][0].as_str().unwrap();
    let packed = fs::read(case.path(&format!("packed-{first}.nii.gz"))).unwrap();
    assert!(packed.starts_with(b"\x1f\x8b"));
}

/// A run that was stopped has checkpoints and no weights, or those of an earlier run.
#[test]
fn weights_of_a_stopped_run_are_told_from_its_checkpoints() {
    let case = case();
    let stopped = case.path("stopped");
    let more =
        "batch = 2\nepochs = 2\n[schedule]\nlearning_rate = 0.01\n[checkpoint]\nevery_epochs = 1\n";
    case.run_file("half.toml", "half", more);
    case.answer("train half.toml --no-prediction");
    // After the first epoch of two.
    let checkpoints = fs::read_dir(case.path("half/checkpoints")).unwrap();
    let last = checkpoints
        .map(|entry| entry.unwrap().file_name())
        .min()
        .unwrap();
    let to = stopped.join("checkpoints").join(&last);
    fs::create_dir_all(&to).unwrap();
    let copy = |name: &str, to: &Path| fs::copy(case.path("half").join(name), to).unwrap();
    for entry in fs::read_dir(case.path("half/checkpoints").join(&last)).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
    let text = case.refusal("evaluate run.toml --weights stopped");
    let name = format!("stopped/checkpoints/{}", last.to_string_lossy());
    assert!(
        text.contains("did not come to its end") && text.contains(&name),
        "{text}"
    );
    let evaluate = |weights: &str| {
        let output = case.output(&["evaluate", "run.toml", "--json", "--weights", weights]);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{errors}");
        errors
    };
    assert!(!evaluate(&name).contains("older"));
    copy("weights.safetensors", &stopped.join("weights.safetensors"));
    assert!(!evaluate("stopped").contains("older"));
    let manifest = to.join("manifest.json");
    let bytes = fs::read(&manifest).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    fs::write(&manifest, bytes).unwrap();
    let text = evaluate("stopped");
    let says = format!("is older than the checkpoint {name}");
    assert!(
        text.contains(&says) && text.contains(&format!("`--weights {name}`")),
        "{text}"
    );
}

#[test]
fn what_is_no_file_of_weights_or_predictions_is_not_replaced() {
    let case = case();
    let model = fs::read(case.path("small.model")).unwrap();
    let text = case.refusal("weights export run.toml --out small.model");
    assert!(
        text.contains("small.model exists and is not a weight file that Partita wrote"),
        "{text}"
    );
    assert_eq!(fs::read(case.path("small.model")).unwrap(), model);
    for _ in 0..2 {
        case.answer("weights export run.toml --out twice.safetensors");
    }
    let trained = fs::read(case.path("out/weights.safetensors")).unwrap();
    fs::write(case.path("theirs.safetensors"), without_metadata(&trained)).unwrap();
    for (out, said) in [
        ("theirs.safetensors", "not a weight file that Partita wrote"),
        ("out/../out/weights.safetensors", "is the file that is read"),
    ] {
        let before = fs::read(case.path(out)).unwrap();
        let text = case.refusal(&format!("weights export run.toml --out {out}"));
        assert!(text.contains(said), "{text}");
        assert_eq!(fs::read(case.path(out)).unwrap(), before, "{out}");
    }
    let samples = fs::read(case.path("set/validation.h5")).unwrap();
    let text = case.refusal("infer run.toml --out set/../set/validation.h5");
    assert!(text.contains("is a file of the dataset"), "{text}");
    assert_eq!(fs::read(case.path("set/validation.h5")).unwrap(), samples);
    fs::create_dir(case.path("folder.npy")).unwrap();
    let text = case.refusal("infer run.toml --out folder.npy");
    assert!(text.contains("is a folder"), "{text}");
}
