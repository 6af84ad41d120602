//! Trainings with activations in bf16 and f16.

use super::command::case;
use crate::train::{PredictionChoice, ResumeFrom, TrainRequest};
use partita_site::{Context, Environment, Silent};
use serde_json::Value;
use std::fs;
use std::sync::Arc;
use tempfile::TempDir;

/// The result of a run on two ranks, with a kernel set and lines about the precision.
fn trained(kernels: &str, precision: &str, strategy: &str) -> (TempDir, Value) {
    let settings = format!("kernels = \"{kernels}\"\n{precision}");
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
        prediction: PredictionChoice::Never,
        ..TrainRequest::default()
    };
    let trained = crate::train::train(&context, &request).unwrap();
    let result = serde_json::to_value(&trained.unwrap().result).unwrap();
    (folder, result)
}

/// Why the training of a folder failed.
fn error_of(folder: &TempDir) -> String {
    let request = TrainRequest {
        run_file: folder.path().join("run.toml"),
        prediction: PredictionChoice::Never,
        ..TrainRequest::default()
    };
    let error = super::train(&request, Silent, &Arc::default()).unwrap_err();
    error.to_string()
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
fn trainings_in_two_bytes_learn_what_those_in_f32_learn() {
    let (_, exact) = trained("cpu", "precision = \"f32\"", "data=2");
    let precisions = [("bf16", "", 0.03), ("f16", "loss_scale = 128", 0.01)];
    for kernels in ["cpu", "reference"] {
        for strategy in ["data=2", "depth=2", "filter=2"] {
            for (name, scale, most) in precisions {
                let precision = format!("precision = \"{name}\"\n{scale}");
                let (folder, result) = trained(kernels, &precision, strategy);
                assert_eq!(result["precision"], name);
                assert_ne!(losses(&result), losses(&exact), "nothing was rounded");
                for (own, exact) in losses(&result).iter().zip(losses(&exact)) {
                    let far = (own - exact).abs() / exact;
                    assert!(
                        far < most,
                        "{name} {kernels} {strategy}: {own}, not {exact}"
                    );
                }
                let skipped = (name == "f16").then_some(0);
                assert_eq!(result["loss_scale"]["skipped"].as_u64(), skipped);
                let weights = fs::read(folder.path().join("out/weights.safetensors")).unwrap();
                let header = String::from_utf8_lossy(&weights);
                assert!(header.contains("\"dtype\":\"F32\"") && !header.contains("F16"));
            }
        }
    }
}

#[test]
fn a_resumed_training_goes_on_with_its_loss_scale() {
    let checkpoint = "[checkpoint]\nevery_steps = 1\nkeep = 60\n[schedule]";
    let settings = "kernels = \"cpu\"\nprecision = \"f16\"";
    let folder = case(&[
        ("kernels = \"reference\"", settings),
        // Gradients that overflow at first.
        ("batch = 4", "batch = 1"),
        ("epochs = 6", "epochs = 3"),
        ("[schedule]", checkpoint),
    ]);
    let request = TrainRequest {
        run_file: folder.path().join("run.toml"),
        prediction: PredictionChoice::Never,
        ..TrainRequest::default()
    };
    let context = Context::new(Environment {
        measured_times: Some(folder.path().join("measured.sqlite")),
        ..Environment::default()
    });
    let run = |request: &TrainRequest| {
        let trained = crate::train::train(&context, request).unwrap();
        let result = serde_json::to_value(&trained.unwrap().result).unwrap();
        let weights = fs::read(folder.path().join("out/weights.safetensors")).unwrap();
        (losses(&result), result["loss_scale"].clone(), weights)
    };
    let whole = run(&request);
    let skipped = whole.1["skipped"].as_u64().unwrap();
    let scale = whole.1["scale"].as_f64().unwrap();
    assert!(skipped > 0, "{}", whole.1);
    assert_eq!(scale, 65_536.0 / 2.0_f64.powi(skipped as i32));
    let from = folder.path().join("first");
    fs::rename(folder.path().join("out"), &from).unwrap();
    for step in [1, 7] {
        let path = from.join(format!("checkpoints/step-{step:09}"));
        let resumed = run(&TrainRequest {
            resume: ResumeFrom::Path(path),
            ..request.clone()
        });
        assert!(
            resumed == whole,
            "step {step}: {}, not {}",
            resumed.1,
            whole.1
        );
        fs::remove_dir_all(folder.path().join("out")).unwrap();
    }
}

#[test]
fn a_loss_scale_is_for_f16_alone() {
    let error = |settings: &str| {
        let settings = format!("kernels = \"reference\"\n{settings}");
        error_of(&case(&[("kernels = \"reference\"", &settings)]))
    };
    let other = error("loss_scale = 1024");
    assert!(other.contains("`precision = \"f16\"`"), "{other}");
    let small = error("precision = \"f16\"\nloss_scale = 0");
    assert!(small.contains("a number from 1e-7 to"), "{small}");
}

#[test]
fn updates_that_are_always_skipped_end_a_training() {
    let settings = "kernels = \"cpu\"\nprecision = \"f16\"\nloss_scale = 1e9";
    let folder = case(&[
        ("kernels = \"reference\"", settings),
        ("batch = 4", "batch = 1"),
    ]);
    let error = error_of(&folder);
    for part in [
        "the last 50 updates up to step 50",
        "1e9",
        "omit `loss_scale`",
    ] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn what_is_too_large_for_f16_is_called_so() {
    let settings = "kernels = \"cpu\"\nprecision = \"f16\"";
    let folder = case(&[
        ("kernels = \"reference\"", settings),
        ("transform = { scale = 0.5 }", "transform = { scale = 1e6 }"),
    ]);
    let error = error_of(&folder);
    for part in ["output of layer `x`", "infinite above 65,504", "\"bf16\""] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn a_run_that_ended_before_its_first_checkpoint_begins_anew() {
    let settings =
        "kernels = \"cpu\"\nprecision = \"f16\"\nloss_scale = 1e9\nmetrics = [\"jsonl\", \"csv\"]";
    let folder = case(&[
        ("kernels = \"reference\"", settings),
        ("batch = 4", "batch = 1"),
    ]);
    let file = folder.path().join("run.toml");
    let request = TrainRequest {
        run_file: file.clone(),
        prediction: PredictionChoice::Never,
        resume: ResumeFrom::Auto,
        ..TrainRequest::default()
    };
    let run = |request: &TrainRequest| super::train(request, Silent, &Arc::default());
    assert!(run(&request).is_err());
    assert!(folder.path().join("out/metrics.jsonl").exists());
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("loss_scale = 1e9\n", "")).unwrap();
    let start = TrainRequest {
        resume: ResumeFrom::Start,
        ..request.clone()
    };
    let refused = run(&start).unwrap_err().to_string();
    assert!(refused.contains("already holds a run"), "{refused}");
    let result = run(&request).unwrap().result;
    assert_eq!(result.steps, 60);
    let lines = fs::read_to_string(folder.path().join("out/metrics.jsonl")).unwrap();
    assert_eq!(
        lines
            .lines()
            .filter(|line| line.contains("\"step\""))
            .count(),
        60
    );
    // Results without checkpoints are not replaced.
    let checkpoints = folder.path().join("out/checkpoints");
    if checkpoints.exists() {
        fs::remove_dir_all(checkpoints).unwrap();
    }
    let refused = run(&request).unwrap_err().to_string();
    assert!(refused.contains("already holds a run"), "{refused}");
}
