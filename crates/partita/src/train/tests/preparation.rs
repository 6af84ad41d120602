//! Trainings on prepared and augmented samples.

use super::classes::{LEVELS, train, volumes};
use serde_json::Value;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

const EVERYTHING: &str = "[augmentation]
flip = [\"depth\", \"height\", \"width\"]
rotate = true
crop = [8, 8, 8]
crops_per_volume = 2
scale_intensity = [0.9, 1.1]
shift_intensity = [-0.1, 0.1]
noise = 0.05
elastic = { magnitude = 1.5, spacing = 4 }
";

fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let model = LEVELS.replace("16x16x16", "8x8x8");
    fs::write(folder.path().join("net.model"), model).unwrap();
    volumes(&folder.path().join("set"), 16);
    folder
}

fn run(strategy: &str, ranks: usize, augmentation: &str) -> String {
    format!(
        "batch = 4\nepochs = 3\nranks = {ranks}\nstrategy = \"{strategy}\"\n\
         transform = [{{ clip = [-100, 5000] }}, \"standardize\"]\n{augmentation}[schedule]\n\
         learning_rate = 0.01\n"
    )
}

fn losses(result: &Value) -> Vec<f64> {
    let epochs = result["epochs"].as_array().unwrap().iter();
    epochs
        .flat_map(|epoch| [&epoch["training_loss"], &epoch["validation"]["loss"]])
        .map(|loss| loss.as_f64().unwrap())
        .collect()
}

#[test]
fn every_strategy_trains_on_the_same_augmented_samples() {
    let folder = folder();
    let one = train(&folder, &run("data=1", 1, EVERYTHING)).unwrap();
    // Two crops of each of 12 training volumes; 8 cover each of 5 validation volumes.
    assert_eq!(one["epochs"][0]["samples"], 24);
    assert_eq!(one["epochs"][0]["validation"]["samples"], 40);
    assert_eq!(one["steps"], 18);
    let steps = one["preparation"].as_array().unwrap();
    assert_eq!(steps[0]["step"], "clip");
    assert_eq!(steps[1]["step"], "standardize");
    assert!(steps[1]["mean"][0].as_f64().unwrap().is_finite());
    assert!(folder.path().join("set/statistics.toml").is_file());
    for (strategy, ranks) in [("data=2", 2), ("depth=2", 2), ("height=2,width=2", 4)] {
        let several = train(&folder, &run(strategy, ranks, EVERYTHING)).unwrap();
        for (a, b) in losses(&one).into_iter().zip(losses(&several)) {
            assert!((a / b - 1.0).abs() < 1e-3, "{strategy}: {a} and {b}");
        }
    }
    let without = train(
        &folder,
        &run("data=1", 1, "[augmentation]\ncrop = [8, 8, 8]\n"),
    )
    .unwrap();
    assert_ne!(losses(&one)[0], losses(&without)[0]);
}

#[test]
fn a_crop_that_the_model_does_not_read_is_named() {
    let folder = folder();
    let refused = |augmentation: &str| {
        let error = train(&folder, &run("data=1", 1, augmentation)).unwrap_err();
        assert!(!Path::new(&folder.path().join("out")).exists());
        error
    };
    let crop = refused("[augmentation]\ncrop = [8, 8, 4]\n");
    for part in [
        "8x8x4",
        "augmentation.crop",
        "nearest is augmentation.crop = [8, 8, 8]",
    ] {
        assert!(crop.contains(part), "`{part}` is not in: {crop}");
    }
    let large = refused("[augmentation]\ncrop = [8, 8, 32]\n");
    assert!(large.contains("nearest is [8, 8, 16]"), "{large}");
    for (augmentation, part) in [
        (
            "[augmentation]\nflip = [\"depht\"]\n",
            "`augmentation.flip`",
        ),
        ("[augmentation]\nnoise = -1\n", "`augmentation.noise`"),
        ("[augmentation]\ncrops_per_volume = 2\n", "only with `crop`"),
        (
            "[augmentation]\nelastic = { magnitude = 2 }\n",
            "`augmentation.elastic.spacing`",
        ),
        (
            "[augmentation]\nscale_intensity = [2, 1]\n",
            "the smaller first",
        ),
        (
            "[augmentation]\nrotat = true\n",
            "nearest is `augmentation.rotate`",
        ),
    ] {
        let error = refused(augmentation);
        assert!(error.contains(part), "`{part}` is not in: {error}");
    }
}
