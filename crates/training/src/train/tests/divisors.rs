//! Losses that are no mean over samples.

use super::classes::{train, write};
use crate::train::{ForwardRequest, evaluate};
use partita_site::{Context, Environment};
use serde_json::Value;
use std::fs;
use tempfile::TempDir;

const MODEL: &str = "model voxels
input x channels=1 extent=4x4x4
c1 = conv x filters=4 kernel=3 pad=1 bias=true init=he_normal
a1 = relu c1
c2 = conv a1 filters=3 kernel=1 bias=true
";

/// Labels of which each sample has another number that is not 3.
fn folder(loss: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        folder.path().join("net.model"),
        format!("{MODEL}loss = {loss} c2 {}\n", options(loss)),
    )
    .unwrap();
    let names = ["a", "b", "c", "none"].map(str::to_owned).to_vec();
    let set = folder.path().join("set");
    write(&set, [1, 4, 4, 4], [4; 3], names, [8, 7], |index| {
        let counted = [16, 8, 2, 1, 0, 64, 5][index as usize % 7];
        let value = |at: u64| ((index * 31 + at * 17) % 200) as i16;
        let label = |at: u64| {
            let class = (at * at + index) % 3;
            if at < counted { class as i16 } else { 3 }
        };
        ((0..64).map(value).collect(), (0..64).map(label).collect())
    });
    let index = set.join("dataset.toml");
    let text = fs::read_to_string(&index).unwrap();
    let fewer = text
        .replace(", \"none\"", "")
        .replace("    \"none\",\n", "");
    assert_ne!(text, fewer);
    fs::write(&index, fewer).unwrap();
    folder
}

fn options(loss: &str) -> &'static str {
    match loss {
        "softmax_cross_entropy" => "weights=0.2,1,3 ignore=3",
        "dice" => "batch=true ignore=3",
        _ => "ignore=3 dice=0.5",
    }
}

fn trained(folder: &TempDir, batch: &str, strategy: &str) -> Vec<[f64; 2]> {
    let ranks = match strategy {
        "micro=1" | "micro=4" => 1,
        _ => 2,
    };
    let run = format!(
        "batch = {batch}\nepochs = 2\nranks = {ranks}\nstrategy = \"{strategy}\"\nkernels = \"reference\"\n\
         precision = \"f64\"\n[schedule]\nlearning_rate = 0.01\n"
    );
    let result = train(folder, &run).unwrap();
    let epochs = result["epochs"].as_array().unwrap().iter();
    let losses = |epoch: &Value| {
        let all = [&epoch["training_loss"], &epoch["validation"]["loss"]];
        all.map(|loss| loss.as_f64().unwrap())
    };
    epochs.map(losses).collect()
}

fn near(got: &[[f64; 2]], expected: &[[f64; 2]]) -> bool {
    let pairs = got.as_flattened().iter().zip(expected.as_flattened());
    got.len() == expected.len()
        && pairs
            .map(|(a, b)| (a / b - 1.0).abs())
            .all(|far| far < 1e-9)
}

/// The update divides by the targets that count in the whole mini-batch.
#[test]
fn micro_batches_pipelines_and_accumulation_train_as_whole_mini_batches() {
    for loss in ["softmax_cross_entropy", "dice_cross_entropy"] {
        let folder = folder(loss);
        let whole = trained(&folder, "4", "micro=1");
        for (batch, strategy) in [
            ("4", "micro=4"),
            ("1\naccumulate = 4", "micro=1"),
            ("4", "stages=2,micro=4"),
            ("4", "stages=2,micro=4,schedule=chimera"),
            ("2\naccumulate = 2", "data=2"),
            ("4", "depth=2,micro=2"),
        ] {
            let found = trained(&folder, batch, strategy);
            assert!(
                near(&found, &whole),
                "{loss} {strategy}: {found:?} {whole:?}"
            );
        }
    }
}

/// The loss of a split is of the whole split, also where a sample counts no target.
#[test]
fn the_loss_of_an_evaluation_does_not_depend_on_its_batch() {
    for loss in ["softmax_cross_entropy", "dice_cross_entropy", "dice"] {
        let folder = folder(loss);
        let validation = trained(&folder, "4", "micro=1")[1][1];
        let found = |batch: usize, per_sample: bool, strategy: &str| {
            let request = ForwardRequest {
                run_file: folder.path().join("run.toml"),
                batch: Some(batch),
                per_sample,
                strategy: Some(strategy.to_owned()),
                ranks: Some(if strategy.starts_with("micro") { 1 } else { 2 }),
                ..ForwardRequest::default()
            };
            let context = Context::new(Environment::default());
            evaluate(&context, &request).unwrap().unwrap()
        };
        let mut first = None;
        for (batch, per_sample, strategy) in [
            (7, false, "micro=1"),
            (4, false, "micro=1"),
            (1, false, "micro=1"),
            (4, true, "micro=1"),
            (4, false, "micro=2"),
            (5, false, "data=2"),
            (4, false, "stages=2,micro=2"),
        ] {
            let found = found(batch, per_sample, strategy);
            let is_near = |to: f64| (found.metrics.loss / to - 1.0).abs() < 1e-5;
            let first = *first.get_or_insert(found.metrics.loss);
            let what = (loss, batch, per_sample, strategy, found.metrics.loss, first);
            assert!(
                is_near(validation) && is_near(first),
                "{what:?} {validation}"
            );
            if per_sample {
                let mean = found.samples.iter().map(|one| one.loss).sum::<f64>() / 7.0;
                assert!(!is_near(mean), "samples count differently: {what:?} {mean}");
            }
        }
    }
}
