//! `partita lower`.

use crate::command::{answer, assert_keys, json, refusal};
use crate::trainee::Case;
use partita_program::Program;
use serde_json::Value;

const SPLIT: [&str; 8] = [
    "lower",
    "cosmoflow@32",
    "--ranks",
    "4",
    "--batch",
    "4",
    "--strategy",
    "data=2,depth=2",
];

fn with<'a>(more: &[&'a str]) -> Vec<&'a str> {
    SPLIT.iter().copied().chain(more.iter().copied()).collect()
}

#[test]
fn a_program_is_printed_as_text_that_can_be_read_again() {
    let text = answer(&SPLIT);
    let program = Program::parse(&text).unwrap();
    assert_eq!(program.mesh.ranks(), 4);
    assert_eq!(program.batch, 4);
    assert_eq!(program.to_text(), text);
    assert_eq!(json(&with(&["--json"]))["digest"], program.digest());
}

#[test]
fn counts_in_json_are_those_of_the_text() {
    let program = Program::parse(&answer(&SPLIT)).unwrap();
    let record = json(&with(&["--json"]));
    assert_keys(
        &record,
        &["digest", "ranks", "memory_bytes_max", "count", "classes"],
    );
    let count = program.count();
    assert_eq!(record["count"]["flops"], count.flops.0);
    assert_eq!(record["count"]["messages"], count.messages);
    assert_eq!(record["memory_bytes_max"], program.memory_max().0);
    let classes = record["classes"].as_array().unwrap();
    assert_eq!(classes.len(), program.bodies.len());
    let ranks: u64 = classes
        .iter()
        .map(|class| class["ranks"].as_u64().unwrap())
        .sum();
    assert_eq!(ranks, 4);
    let flops = |class: &Value| {
        class["ranks"].as_u64().unwrap() * class["count"]["flops"].as_u64().unwrap()
    };
    assert_eq!(classes.iter().map(flops).sum::<u64>(), count.flops.0);
}

/// Training takes the statistics of the values at hand, evaluation the running ones.
#[test]
fn a_batch_norm_over_one_value_can_be_evaluated() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("one.model");
    let text = "model one\ninput x channels=2 extent=4\nf = flatten x\n\
                l = linear f features=4 bias=true\nn = batch_norm l epsilon=1e-5 momentum=0.1\n\
                loss = mse n\n";
    std::fs::write(&model, text).unwrap();
    let model = model.to_str().unwrap();
    let call = [
        "lower",
        model,
        "--ranks",
        "1",
        "--batch",
        "1",
        "--strategy",
        "data=1",
    ];
    let refused = refusal(&call);
    assert!(
        refused.contains("`n`") && refused.contains("single value"),
        "{refused}"
    );
    let text = answer(&[&call[..], &["--kind", "evaluate"]].concat());
    assert!(text.contains("kind evaluate"), "{text}");
    // Of a mini-batch over two ranks it has two values, though each rank has one.
    let two = ["--ranks", "2", "--batch", "2", "--no-io"];
    for verb in [&["plan"][..], &["predict", "--strategy", "data=2"]] {
        let call = [verb, &[model, "--machine", "lassen"], &two].concat();
        let text = answer(&call);
        assert!(text.contains("data=2"), "{call:?}: {text}");
    }
}

#[test]
fn auto_names_the_batch_norm_over_one_value() {
    let case = Case::new();
    let text = "model tiny\ninput x channels=1 extent=8x8x8\nf = flatten x\n\
                fc = linear f features=2 bias=true\nn = batch_norm fc epsilon=1e-5 momentum=0.1\n\
                loss = mse n\n";
    std::fs::write(case.path("tiny.model"), text).unwrap();
    let run = case.run_file("run.toml", 1, "");
    let auto = std::fs::read_to_string(&run).unwrap();
    let auto = auto
        .replace("\"data=1\"", "\"auto\"")
        .replace("batch = 2", "batch = 1");
    std::fs::write(&run, auto).unwrap();
    let output = case.command("run.toml").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    let named = said.contains("auto") && said.contains("`n`");
    assert!(
        named && said.contains("help: try a mini-batch of 2"),
        "{said}"
    );
}

#[test]
fn evaluation_computes_less_and_updates_nothing() {
    let train = json(&with(&["--json"]));
    let evaluate = json(&with(&["--json", "--kind", "evaluate"]));
    assert_eq!(evaluate["kind"], "evaluate");
    let flops = |record: &Value| record["count"]["flops"].as_u64().unwrap();
    assert!(2 * flops(&evaluate) < flops(&train));
    assert!(!answer(&with(&["--kind", "evaluate"])).contains(" update "));
}

#[test]
fn options_change_the_digest() {
    let mut digests: Vec<String> = [
        &[][..],
        &["--kernels", "unpinned"],
        &["--optimizer", "sgd"],
        &["--samples", "float32"],
        &["--kind", "evaluate"],
    ]
    .into_iter()
    .map(|more| {
        let more = [more, &["--json"]].concat();
        json(&with(&more))["digest"].as_str().unwrap().to_owned()
    })
    .collect();
    let count = digests.len();
    digests.sort();
    digests.dedup();
    assert_eq!(digests.len(), count);
}
