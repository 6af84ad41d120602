//! `partita models` and `partita inspect`.

use crate::command::{answer, assert_keys, error_text, json, partita, refusal};
use crate::trainee::Case;
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::process::{Command, Output, Stdio};

/// Size, forward Gflop, training Gflop, GiB per sample.
/// Source: Oyama et al., "The Case for Strong Scaling in Deep Learning", table 1.
const PUBLISHED: [(usize, &str, &str, &str); 3] = [
    (128, "18.52", "55.55", "0.82"),
    (256, "147.93", "443.78", "6.59"),
    (512, "1183.42", "3550.27", "52.71"),
];

const MODEL_KEYS: [&str; 5] = [
    "parameters",
    "forward_flops",
    "training_flops",
    "executed_flops",
    "memory_bytes_per_sample",
];

#[test]
fn cosmoflow_prints_the_published_figures() {
    for (size, forward, training, memory) in PUBLISHED {
        let text = answer(&["inspect", &format!("cosmoflow@{size}")]);
        let line = |key: &str| {
            let mut lines = text.lines().rev();
            let found = lines.find(|line| line.starts_with(key)).unwrap();
            found.trim_start_matches(key).trim().to_owned()
        };
        assert_eq!(line("forward"), format!("{forward} Gflop"));
        assert!(
            line("training").starts_with(&format!("{training} Gflop")),
            "{text}"
        );
        assert_eq!(line("memory"), format!("{memory} GiB"));
    }
}

#[test]
fn inspect_in_json_has_its_keys_and_sums_up() {
    let record = json(&["inspect", "cosmoflow@512+bn", "--json"]);
    assert_keys(&record, &MODEL_KEYS);
    let sum = |key: &str| -> u64 {
        let layers = record["layers"].as_array().unwrap();
        layers
            .iter()
            .map(|layer| layer[key].as_u64().unwrap())
            .sum()
    };
    assert_eq!(record["parameters"], 9_437_344);
    assert_eq!(sum("parameters"), 9_437_344);
    assert_eq!(
        sum("memory_bytes"),
        record["memory_bytes_per_sample"].as_u64().unwrap()
    );
    assert_eq!(
        sum("executed_flops"),
        record["executed_flops"].as_u64().unwrap()
    );
    let forward = record["forward_flops"].as_u64().unwrap();
    assert_eq!(record["training_flops"], 3 * forward);
    assert_eq!(
        sum("forward_flops"),
        forward + record["linear_flops"].as_u64().unwrap()
    );
}

#[test]
fn the_zoo_is_listed_and_every_name_can_be_inspected() {
    let list = json(&["models", "--json"]);
    let table = answer(&["models"]);
    let rows = list.as_array().unwrap();
    assert!(rows.len() >= 90);
    // Each family at all its sizes, but only a few of them as processes.
    for row in rows.iter().step_by(7) {
        assert_keys(row, &MODEL_KEYS);
        let name = row["model"].as_str().unwrap();
        let (family, rest) = name.split_once('@').unwrap();
        let (size, suffix) = rest.split_once('+').unwrap_or((rest, ""));
        let starts = |line: &&str| line.starts_with(&format!("{family}@"));
        let line = table.lines().find(starts).unwrap();
        assert!(line.split([' ', ',']).any(|word| word == size), "{name}");
        assert!(suffix.is_empty() || line.contains(&format!("+{suffix}")));
        let record = json(&["inspect", name, "--json"]);
        for key in MODEL_KEYS {
            assert_eq!(record[key], row[key], "{name} {key}");
        }
    }
}

#[test]
fn a_model_file_is_the_model_it_was_printed_from() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("net.model");
    fs::write(&path, answer(&["inspect", "cosmoflow@64+bn", "--text"])).unwrap();
    let path = path.to_str().unwrap();
    let ours = json(&["inspect", path, "--json"]);
    let zoo = json(&["inspect", "cosmoflow@64+bn", "--json"]);
    assert_eq!(ours, zoo);
    assert_eq!(
        answer(&["inspect", path, "--text"]),
        answer(&["inspect", "cosmoflow@64+bn", "--text"])
    );
}

#[test]
fn models_that_do_not_exist_are_refused_with_the_nearest() {
    for (asked, nearest) in [
        ("cosmoflw@128", "`cosmoflow@128`"),
        ("cosmoflow", "`cosmoflow@32`"),
        ("cosmoflow@100", "`cosmoflow@128`"),
        ("cosmoflow@1000000", "`cosmoflow@512`"),
        ("cosmoflow@128+gn", "`cosmoflow@128+bn`"),
        ("", "`vgg16@224`"),
    ] {
        let text = refusal(&["inspect", asked]);
        assert!(text.contains(nearest), "{asked}: {text}");
        assert!(text.contains("possible values: "), "{asked}: {text}");
    }
}

#[test]
fn faulty_model_files_are_refused_with_their_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("net.model");
    let text = answer(&["inspect", "cosmoflow@32", "--text"]);
    for (from, to, expected) in [
        ("filters=", "filter=", "`filters`"),
        ("= conv ", "= convolution ", "`conv`"),
        ("channels=4", "channels=four", "channels"),
        ("model ", "modle ", "line 1"),
    ] {
        fs::write(&path, text.replacen(from, to, 1)).unwrap();
        let text = refusal(&["inspect", path.to_str().unwrap()]);
        assert!(
            text.contains(expected) && text.contains("line "),
            "{to}: {text}"
        );
    }
}

#[test]
fn files_that_are_no_models_are_refused_with_what_is_near() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("empty")).unwrap();
    fs::write(folder.path().join("atx.model"), "").unwrap();
    fs::write(folder.path().join("notes.txt"), "").unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let missing = |name: &str| {
        let text = refusal(&["inspect", &at(name)]);
        let head = format!("there is no model file {}", at(name));
        assert!(
            text.contains(&head) && text.contains("partita models"),
            "{text}"
        );
        text
    };
    for name in ["atx.txt", "atx", "atxx.model"] {
        let text = missing(name);
        assert!(
            text.contains(&format!("help: try `{}`", at("atx.model"))),
            "{text}"
        );
    }
    assert!(!missing("gone.model").contains("help: try "));
    assert!(missing("cosmoflow@32").contains("help: try `cosmoflow@32`"));
    assert!(missing("resnet18.txt").contains("help: try `resnet18@32`"));
    let text = missing("models/atx.model");
    assert!(
        text.contains(&format!("nor a folder {}", at("models"))),
        "{text}"
    );
    let text = refusal(&["inspect", &at("")]);
    assert!(
        text.contains("is a folder") && text.contains("atx.model`"),
        "{text}"
    );
    let text = refusal(&["inspect", &at("empty")]);
    assert!(
        text.contains("is a folder") && !text.contains("help: try "),
        "{text}"
    );
    let here = |asked: &str| {
        let mut command = partita(&["inspect", asked]);
        let output = command.current_dir(folder.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        error_text(&output)
    };
    let text = here("atx");
    assert!(text.contains("no model `atx` in the zoo"), "{text}");
    assert!(text.contains("help: try the file `atx.model`"), "{text}");
    let text = here("atx.txt");
    assert!(text.contains("no model file atx.txt\n"), "{text}");
    assert!(text.contains("help: try `atx.model`"), "{text}");
    assert!(!here("cosmoflow").contains("file"));
}

#[test]
fn layers_have_their_shapes() {
    let record = json(&["inspect", "cosmoflow@512", "--json"]);
    let input = &record["layers"][0];
    assert_eq!(input["extent"], Value::from(vec![512, 512, 512]));
    assert_eq!(input["channels"], 4);
    assert!(answer(&["inspect", "cosmoflow@512"]).contains("512x512x512"));
}

#[test]
fn files_of_other_kinds_are_told_where_to_read_on() {
    for (name, kind, page) in [
        ("net.py", "net.py is Python", "docs/src/model.md"),
        (
            "nets/unet.tflite",
            "unet.tflite is a network of another format",
            "docs/src/model.md",
        ),
        (
            "best.pth",
            "best.pth is a file of weights",
            "docs/src/weights.md",
        ),
    ] {
        let text = refusal(&["inspect", name]);
        assert!(text.contains(kind) && text.contains(page), "{text}");
    }
}

/// A pipe gives its text once, and a model is needed more often.
#[test]
fn models_are_read_from_a_pipe() {
    let model = "model piped\ninput x channels=1 extent=8x8x8\nc = conv x filters=4 kernel=3 pad=1 bias=true\n\
                 a = relu c\nf = flatten a\nfc = linear f features=2 bias=true\nloss = softmax_cross_entropy fc\n";
    let more = ["--ranks", "2", "--batch", "4", "--machine", "abci"];
    let predict = [
        "predict",
        "/dev/stdin",
        "--strategy",
        "data=2",
        "--seconds-per-sample",
        "3ms",
    ];
    for call in [
        &predict[..4],
        &predict,
        &["plan", "/dev/stdin"],
        &["plan", "/dev/stdin", "--dataset-samples", "64"],
        &["lower", "/dev/stdin", "--strategy", "data=2"],
        &["inspect", "/dev/stdin"],
    ] {
        let arguments = match call[0] {
            "inspect" => call.to_vec(),
            _ => [call, &more].concat(),
        };
        let output = piped(partita(&arguments), model);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {text}");
        assert!(!output.stdout.is_empty(), "{arguments:?}");
    }
}

/// Epochs and evaluations are predicted for the same machine.
#[test]
fn machine_files_are_read_from_a_pipe() {
    let machine = include_str!("../../../../machines/lassen.toml");
    let model = ["cosmoflow@32", "--ranks", "2", "--batch", "2"];
    let epoch = ["--dataset-samples", "64", "--validation-samples", "8"];
    let with = |verb: &'static str, more: &[&'static str]| {
        let machine = ["--machine", "/dev/stdin"];
        [&[verb], &model[..], &machine, &epoch, more].concat()
    };
    let data = ["--strategy", "data=2"];
    for arguments in [
        with("plan", &[]),
        with("predict", &data),
        with("predict", &[&data[..], &["--validators", "1"]].concat()),
    ] {
        let output = piped(partita(&arguments), machine);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {text}");
        assert!(!output.stdout.is_empty(), "{arguments:?}");
    }
}

/// What a command says that is given this text.
fn piped(mut command: Command, text: &str) -> Output {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    pipe.write_all(text.as_bytes()).unwrap();
    drop(pipe);
    child.wait_with_output().unwrap()
}

#[test]
fn a_training_reads_its_model_from_a_pipe() {
    let case = Case::new();
    let file = case.run_file("run.toml", 1, "");
    let text = fs::read_to_string(&file).unwrap();
    let crops = "\n[augmentation]\ncrop = { foreground = 0.5 }\n";
    let model = fs::read_to_string(case.path("tiny.model")).unwrap();
    fs::write(&file, text.replace("\"tiny.model\"", "\"/dev/stdin\"")).unwrap();
    let output = piped(case.command("run.toml"), &model);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    // Whether crops have the extents of the model is known once it is read, so this is refused for the data.
    let text = fs::read_to_string(&file).unwrap();
    fs::write(
        &file,
        text.replace("epochs = 1", "epochs = 1\noverwrite = true") + crops,
    )
    .unwrap();
    let output = piped(case.command("run.toml"), &model);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("foreground") && !said.contains("/dev/stdin"),
        "{said}"
    );
}
