//! Layers that training leaves as they are.

use super::{Case, STRATEGIES, case};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;

const RUN: &str = "batch = 2\nepochs = 2\nweights = \"out\"\nfreeze = [\"c1\", \"n1.gamma\", \"n1.beta\"]\n\
     [schedule]\nlearning_rate = 0.01\n[optimizer]\nkind = \"adamw\"\nweight_decay = 0.1\n";
const NORM: [&str; 4] = [
    "n1.beta",
    "n1.gamma",
    "n1.running_mean",
    "n1.running_variance",
];

/// The tensors of the weights in a folder.
fn tensors(case: &Case, folder: &str) -> BTreeMap<String, Vec<u8>> {
    let bytes = fs::read(case.path(folder).join("weights.safetensors")).unwrap();
    let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: serde_json::Map<String, Value> = serde_json::from_slice(header).unwrap();
    let tensors = header
        .into_iter()
        .filter(|(name, _)| name != "__metadata__");
    let values = tensors.map(|(name, about)| {
        let [start, end] = [0, 1].map(|at| about["data_offsets"][at].as_u64().unwrap() as usize);
        (name, data[start..end].to_vec())
    });
    values.collect()
}

/// Frozen layers end as they began, under every strategy, and after a resumption, and so do running
/// statistics of frozen norms.
#[test]
fn frozen_layers_keep_their_weights() {
    let case = case();
    case.run_file("frozen.toml", "frozen", RUN);
    case.answer("train frozen.toml --no-prediction");
    let (start, end) = (tensors(case, "out"), tensors(case, "frozen"));
    let kept: Vec<&str> = start
        .keys()
        .map(String::as_str)
        .filter(|&name| start[name] == end[name])
        .collect();
    assert_eq!(kept, [&["c1.weight"][..], &NORM].concat());
    for (strategy, ranks) in STRATEGIES {
        let arguments =
            format!("train frozen.toml --no-prediction --overwrite --ranks {ranks} --strategy");
        let mut arguments: Vec<&str> = arguments.split(' ').collect();
        arguments.push(strategy);
        case.answer_of(&arguments);
        let end = tensors(case, "frozen");
        let changed = |name: &&str| start[*name] != end[*name];
        assert!(!kept.iter().any(changed), "{strategy}");
    }
    case.run_file(
        "frozen.toml",
        "frozen",
        &RUN.replace("epochs = 2", "epochs = 3"),
    );
    case.answer("train frozen.toml --no-prediction --resume");
    assert_eq!(tensors(case, "frozen")["c1.weight"], start["c1.weight"]);
    let other = RUN
        .replace("epochs = 2", "epochs = 4")
        .replace("\"c1\", ", "");
    case.run_file("frozen.toml", "frozen", &other);
    let text = case.refusal("train frozen.toml --no-prediction --resume");
    assert!(
        text.contains("freeze") && text.contains("c1.weight"),
        "{text}"
    );
}

#[test]
fn frozen_layers_that_are_not_there_are_refused() {
    let case = case();
    for (freeze, says) in [
        ("\"c3\"", "help: try c"),
        ("\"c*\", \"d*\"", "`d*` fits no layer"),
        ("\"*\"", "help: try to train c2"),
        ("3", "a list of layers or parameters"),
    ] {
        let more = format!(
            "batch = 2\nepochs = 1\nfreeze = [{freeze}]\n[schedule]\nlearning_rate = 0.01\n"
        );
        case.run_file("wrong.toml", "wrong", &more);
        let text = case.refusal("train wrong.toml --no-prediction");
        assert!(text.contains("freeze") && text.contains(says), "{text}");
    }
}

#[test]
fn running_statistics_of_frozen_norms_are_updated_where_asked() {
    let case = case();
    let updated = RUN.replace("freeze =", "freeze_statistics = false\nfreeze =");
    case.run_file("kept.toml", "tracked", RUN);
    case.answer("train kept.toml --no-prediction");
    let longer = updated.replace("epochs = 2", "epochs = 4");
    case.run_file("tracked.toml", "tracked", &longer);
    let text = case.refusal("train tracked.toml --no-prediction --resume");
    assert!(text.contains("with freeze_statistics = true"), "{text}");
    let output = case.output(&["train", "tracked.toml", "--no-prediction", "--overwrite"]);
    let text = String::from_utf8(output.stderr).unwrap();
    let says = "frozen batch norms (1) update their running statistics";
    assert!(output.status.success() && text.contains(says), "{text}");
    let (start, end) = (tensors(case, "out"), tensors(case, "tracked"));
    let moved = NORM.map(|name| start[name] != end[name]);
    assert_eq!(moved, [false, false, true, true]);
}
