//! Trainings with activations in bf16.

use super::command::case;
use crate::context::Context;
use crate::environment::Environment;
use crate::launch::Launch;
use crate::train::{TrainRequest, train_with};
use serde_json::Value;
use std::fs;
use tempfile::TempDir;

/// The result of a run on two ranks, with a kernel set and a precision.
fn trained(kernels: &str, precision: &str, strategy: &str) -> (TempDir, Value) {
    let settings = format!("kernels = \"{kernels}\"\nprecision = \"{precision}\"");
    let folder = case(&[
        ("kernels = \"reference\"", &settings),
        ("learning_rate = 0.01", "learning_rate = 0.001"),
    ]);
    let environment = Environment {
        measured_times: Some(folder.path().join("measured.sqlite")),
        ..Environment::default()
    };
    let context = Context::new(environment);
    let request = TrainRequest {
        run_file: folder.path().join("run.toml"),
        strategy: Some(strategy.to_owned()),
        ranks: Some(2),
        no_prediction: true,
        ..TrainRequest::default()
    };
    let trained = train_with(&Launch::Threads(&context), &request).unwrap();
    let result = serde_json::to_value(&trained.unwrap().result).unwrap();
    (folder, result)
}

fn losses(result: &Value) -> Vec<f64> {
    let epochs = result["epochs"].as_array().unwrap();
    let loss = |epoch: &Value| {
        let validation = epoch["validation"]["loss"].as_f64().unwrap();
        [epoch["training_loss"].as_f64().unwrap(), validation]
    };
    epochs.iter().flat_map(loss).collect()
}

#[test]
fn trainings_in_bf16_learn_what_those_in_f32_learn() {
    let (_, exact) = trained("cpu", "f32", "data=2");
    for kernels in ["cpu", "reference"] {
        for strategy in ["data=2", "depth=2", "filter=2"] {
            let (folder, result) = trained(kernels, "bf16", strategy);
            assert_eq!(result["precision"], "bf16");
            assert_ne!(losses(&result), losses(&exact), "nothing was rounded");
            for (own, exact) in losses(&result).iter().zip(losses(&exact)) {
                let far = (own - exact).abs() / exact;
                assert!(far < 0.03, "{kernels} {strategy}: {own}, not {exact}");
            }
            let weights = fs::read(folder.path().join("out/weights.safetensors")).unwrap();
            let header = String::from_utf8_lossy(&weights);
            assert!(header.contains("\"dtype\":\"F32\"") && !header.contains("BF16"));
        }
    }
}
