//! Pipelines, as a user asks for them.

use crate::command::{answer, error_text, json, partita, refusal};
use serde_json::Value;
use std::fs;
use std::path::Path;

fn lower<'a>(ranks: &'a str, batch: &'a str, strategy: &'a str) -> Vec<&'a str> {
    let head = ["lower", "cosmoflow@32", "--ranks", ranks, "--json"];
    [&head[..], &["--batch", batch, "--strategy", strategy]].concat()
}

/// Asserts that `lower` refuses each case of ranks, mini-batch and strategy, and says what is expected.
///
/// A refusal names ranges of layers only where the strategy does.
fn assert_refused(cases: &[(&str, &str, &str, &str)]) {
    for (ranks, batch, strategy, expected) in cases {
        let text = refusal(&lower(ranks, batch, strategy));
        assert!(text.contains(expected), "{strategy}: {text}");
        assert!(
            !text.contains("..act") || strategy.contains(".."),
            "{strategy}: {text}"
        );
    }
}

#[test]
fn stages_that_do_not_fit_ranks_and_micro_batches_are_refused_with_the_nearest() {
    assert_refused(&[
        ("40", "2", "stages=40", "at most 27 are possible"),
        ("2", "4", "stage=2", "help: try `stages`"),
        ("3", "4", "stages=2,micro=4", "help: try ranks = 2"),
        ("4", "4", "depth=2,stages=2,micro=4", "`stages=[depth=2|1]`"),
        (
            "9999",
            "4",
            "stages=9999,micro=4",
            "strategy `micro=4,stages=9999,",
        ),
        ("2", "4", "stages=2,micro=3", "help: try micro=2"),
        ("4", "8", "data=2,stages=2,micro=8", "help: try micro=4"),
    ]);
}

#[test]
fn schedules_that_do_not_fit_are_refused_with_the_nearest() {
    assert_refused(&[
        (
            "2",
            "4",
            "stages=2,schedule=gpip",
            "help: try schedule=gpipe",
        ),
        (
            "2",
            "4",
            "data=2,schedule=gpipe",
            "`stages=[1|1],schedule=gpipe`",
        ),
        (
            "2",
            "6",
            "stages=2,micro=3,schedule=gems",
            "help: try micro=2",
        ),
        (
            "3",
            "6",
            "stages=3,micro=6,schedule=chimera",
            "an even number of stages",
        ),
        (
            "1",
            "4",
            "stages=1,micro=2,schedule=gems",
            "two or more stages",
        ),
        (
            "3",
            "4",
            "stages=[depth=2|1],micro=4,schedule=gems",
            "ranks 0 to 1",
        ),
        (
            "2",
            "4",
            "micro=2,stages=[..conv4: 1|act4..: 1],schedule=interleaved*2",
            "with `+` between their layers",
        ),
        (
            "2",
            "4",
            "stages=2,micro=4,schedule=gems*3",
            "micro=6 with a mini-batch of 6",
        ),
        (
            "2",
            "4",
            "stages=2,micro=2,schedule=chimera,shard=optimiser",
            "help: try `shard=optimizer`",
        ),
    ]);
}

#[test]
fn ranges_that_do_not_cover_the_layers_are_refused_with_the_nearest() {
    assert_refused(&[
        (
            "3",
            "4",
            "micro=4; stages=[..pool2: depth=2|conv3..: 1]; conv4: F=depth",
            "possible values: no axes",
        ),
        (
            "2",
            "4",
            "micro=4,stages=[..conv4: 1|conv3..: 1]",
            "begins at `act4`, not at `conv3`",
        ),
        (
            "2",
            "4",
            "micro=4,stages=[..conv4: 1|act4..conv3: 1]",
            "stage 2 goes from `act4` to `conv3`, which comes before it",
        ),
        (
            "2",
            "4",
            "micro=4,stages=[..conv4: 1|act4..pool1: 1]",
            "comes before it",
        ),
        (
            "2",
            "4",
            "micro=2,stages=[..conv4: 1|act4..conv5: 1]",
            "ends at `conv5`, before the last layer `loss`",
        ),
        (
            "2",
            "4",
            "stages=[..conv9: 1|conv2..: 1]",
            "help: try `conv1`",
        ),
        (
            "2",
            "4",
            "stages=[..conv2: 1|conv4..: 1]",
            "begins at `act2`, not at `conv4`",
        ),
        ("2", "4", "stages=[..conv2: 1|1]", "stage 2 has no layers"),
        (
            "2",
            "4",
            "stages=[..conv2+conv3: 1|conv4..: 1]",
            "more than 1 range(s)",
        ),
    ]);
}

#[test]
fn memory_too_small_for_a_pipeline_is_refused_with_what_it_needs() {
    let lean = [
        &lower("2", "4", "stages=2,micro=4")[..],
        &["--machine", "lassen"],
    ]
    .concat();
    let text = refusal(&[&lean[..], &["--memory", "446MiB"]].concat());
    assert!(
        text.contains("it may fill") && text.contains("needs at least"),
        "{text}"
    );
}

#[test]
fn layers_that_are_chosen_can_be_said() {
    for (ranks, strategy) in [
        ("2", "stages=2,micro=4"),
        ("3", "micro=4,stages=[depth=2|1],schedule=gpipe"),
        ("2", "stages=2,micro=4,schedule=interleaved*2"),
    ] {
        let ask = |verb, strategy, more: &[&str]| {
            let head = [
                verb,
                "cosmoflow@32",
                "--machine",
                "lassen",
                "--json",
                "--batch",
                "8",
            ];
            let tail = [
                "--ranks",
                ranks,
                "--kernels",
                "unpinned",
                "--strategy",
                strategy,
            ];
            json(&[&head[..], &tail, more].concat())
        };
        let chosen = ask("predict", strategy, &["--no-io"]);
        let text = chosen["strategy"].as_str().unwrap();
        assert!(text.contains(": ") && text.contains(".."), "{text}");
        for again in [
            ask("predict", text, &["--no-io"]),
            ask("lower", strategy, &[]),
            ask("lower", text, &[]),
        ] {
            assert_eq!(again["digest"], chosen["digest"], "{text}");
            assert_eq!(again["strategy"], chosen["strategy"]);
        }
    }
    // Without a machine, arithmetic decides, and is written out, too.
    let even = json(&lower("2", "4", "stages=2"));
    assert!(even["strategy"].as_str().unwrap().contains(".."), "{even}");
}

fn names_and_shapes(path: &Path) -> Vec<(String, Value)> {
    let bytes = fs::read(path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let tensors = header.as_object().unwrap().iter();
    let tensors = tensors.filter(|(name, _)| *name != "__metadata__");
    tensors
        .map(|(name, tensor)| (name.clone(), tensor["shape"].clone()))
        .collect()
}

/// Small, because kernels of large weights are measured from memory, which takes minutes.
const TINY: &str = "model tiny
input x channels=4 extent=16x16x16
c1 = conv x filters=8 kernel=3 pad=1 bias=true
a1 = leaky_relu c1 slope=0.1
p1 = max_pool a1 kernel=2 stride=2
c2 = conv p1 filters=16 kernel=3 pad=1 bias=true
a2 = leaky_relu c2 slope=0.1
p2 = max_pool a2 kernel=2 stride=2
f = flatten p2
l1 = linear f features=32 bias=true
a3 = leaky_relu l1 slope=0.1
l2 = linear a3 features=4 bias=true
loss = mse l2
";

#[test]
fn a_pipeline_trains_like_one_rank_and_is_told_in_full() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    fs::write(folder.path().join("tiny.model"), TINY).unwrap();
    let grid = [
        "--grid",
        "16",
        "--universes",
        "6",
        "--validation",
        "0.34",
        "--test",
        "0",
    ];
    answer(
        &[
            &["data", "cosmology", "--out", data.to_str().unwrap()],
            &grid[..],
        ]
        .concat(),
    );
    let train = |ranks: usize, strategy: &str| {
        let file = folder.path().join("run.toml");
        let text = format!(
            "model = \"tiny.model\"\ndata = \"data\"\noutput = \"out\"\nranks = {ranks}\n\
             strategy = \"{strategy}\"\nthreads = 1\nbatch = 4\nepochs = 4\nseed = 3\n\
             kernels = \"cpu\"\ntransform = \"log1p\"\n\n[optimizer]\nkind = \"adam\"\n\n\
             [schedule]\nkind = \"constant\"\nlearning_rate = 1e-3\n"
        );
        fs::write(&file, text).unwrap();
        let mut command = partita(&["train", file.to_str().unwrap(), "--json", "--overwrite"]);
        command
            .env("XDG_CACHE_HOME", folder.path())
            .current_dir(folder.path());
        let output = command.output().unwrap();
        assert!(
            output.status.success(),
            "{strategy}: {}",
            error_text(&output)
        );
        let result: Value = serde_json::from_slice(&output.stdout).unwrap();
        let weights = names_and_shapes(&folder.path().join("out/weights.safetensors"));
        (result, weights)
    };
    let (alone, weights) = train(1, "data=1");
    for strategy in ["stages=2,micro=4", "stages=2,micro=4,schedule=gems*2"] {
        let (result, same) = train(2, strategy);
        assert_eq!(same, weights, "{strategy}");
        let loss = |result: &Value| {
            let epochs = result["epochs"].as_array().unwrap();
            epochs[epochs.len() - 1]["training_loss"].as_f64().unwrap()
        };
        let (one, two) = (loss(&alone), loss(&result));
        assert!(
            (one - two).abs() <= 1e-4 * one.abs(),
            "{strategy}: {one} {two}"
        );
        let text = result["strategy"].as_str().unwrap();
        assert!(text.contains(".."), "{text}");
        let out = folder.path().join("out");
        let files = ["prediction.json", "trace.json"].map(|name| out.join(name));
        let paths = files.each_ref().map(|path| path.to_str().unwrap());
        let compared = json(&["compare", paths[0], paths[1], "--json"]);
        assert_eq!(compared["digest"], result["digest"], "{compared}");
    }
}
