//! What is saved is finite, and what makes it otherwise is named.

use super::command::case;
use crate::train::{PredictionChoice, TrainRequest};
use partita_data::{DatasetSpec, DatasetWriter, Kind, Split};
use partita_formats::{DType, Layout, Samples};
use partita_input::CheckScope;
use partita_site::{ErrorKind, Fault, Silent, full_text};
use std::fs;
use std::path::Path;
use std::sync::Arc;

const VOLUME: usize = 128;
const CONV: &str = "c1 = conv x filters=3 kernel=3 pad=1 bias=false";

/// Layers in front of it that each double the variance.
const DOUBLINGS: usize = 8;

fn deep() -> String {
    let mut lines = String::new();
    let mut input = "x".to_owned();
    for layer in 0..DOUBLINGS {
        let shape = "filters=8 kernel=1 bias=false init=he_normal";
        lines.push_str(&format!("d{layer} = conv {input} {shape}\n"));
        input = format!("d{layer}");
    }
    lines + &CONV.replace(" x ", &format!(" {input} "))
}

/// A dataset in float32 in the place of the one of the case.
fn write_floats(path: &Path, validation: u64, voxel: impl Fn(u64, usize) -> f32) {
    fs::remove_dir_all(path).unwrap();
    let spec = DatasetSpec {
        kind: Kind::Cosmology,
        shape: [2, 4, 4, 4],
        dtype: DType::Float32,
        targets: vec!["sum".to_owned(), "difference".to_owned()],
        labels: None,
        layout: Layout::Contiguous,
        train: (0..8).collect(),
        validation: (8..8 + validation).collect(),
        test: Vec::new(),
        spec: toml::Table::new(),
    };
    let mut writer = DatasetWriter::create(path, &spec).unwrap();
    for split in [Split::Train, Split::Validation] {
        while let Some(universe) = writer.next_universe(split) {
            let voxels = (0..VOLUME).map(|at| voxel(universe, at));
            let unit = [250.0, 500.0];
            let voxels = Samples::F32(voxels.collect());
            writer.append(split, &voxels, &unit, &unit).unwrap();
        }
    }
    writer.finish().unwrap();
}

fn level(universe: u64, at: usize) -> f32 {
    universe as f32 / 8.0 + (at % 5) as f32
}

/// The failure of a run of two ranks, which must leave nothing.
fn failure(
    replaced: &[(&str, &str)],
    validation: u64,
    voxel: impl Fn(u64, usize) -> f32,
) -> String {
    let folder = case(replaced);
    let model = folder.path().join("tiny.model");
    let text = fs::read_to_string(&model).unwrap();
    fs::write(&model, text.replace(CONV, &deep())).unwrap();
    write_floats(&folder.path().join("set"), validation, voxel);
    let request = TrainRequest {
        run_file: folder.path().join("run.toml"),
        prediction: PredictionChoice::Never,
        check_data: Some(CheckScope::None),
        ..TrainRequest::default()
    };
    let error = super::train(&request, Silent, &Arc::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Failure, "{error}");
    assert!(!folder.path().join("out").exists(), "{error}");
    full_text(&error)
}

fn assert_parts(error: &str, parts: &[&str]) {
    for part in parts {
        assert!(error.contains(part), "`{part}` is not in: {error}");
    }
}

const NO_SCALE: (&str, &str) = ("transform = { scale = 0.5 }", "");

#[test]
fn a_fill_value_is_named_before_the_learning_rate() {
    // At (C, D, H, W) = (1, 2, 0, 1) of a sample, which the second of two slabs holds.
    let at = 64 + 2 * 16 + 1;
    let error = failure(&[NO_SCALE], 2, |universe, voxel| {
        match (universe, voxel == at) {
            (5, true) => 9.969_21e36,
            _ => level(universe, voxel),
        }
    });
    assert_parts(
        &error,
        &[
            "train.h5: key `full`, sample 5 of split train, at (C, D, H, W) = (1, 2, 0, 1)",
            "9.96921e36 is extreme, as fill values",
        ],
    );
    assert!(!error.contains("learning_rate"), "{error}");
}

#[test]
fn a_logarithm_of_what_has_none_is_called_so() {
    let log = ("transform = { scale = 0.5 }", "transform = \"log1p\"");
    let error = failure(&[log], 2, |universe, voxel| match (universe, voxel) {
        (9, 0) => -3.0,
        _ => level(universe, voxel),
    });
    assert_parts(
        &error,
        &[
            "validation.h5: key `full`, sample 1 of split validation, at (C, D, H, W) = (0, 0, 0, 0)",
            "log1p of -3 is not a number",
            "possible values: a number above -1",
        ],
    );
}

/// The run that a look at the data refuses, before any rank starts; it leaves nothing.
fn refused(replaced: &[(&str, &str)], voxel: impl Fn(u64, usize) -> f32) -> String {
    let folder = case(replaced);
    write_floats(&folder.path().join("set"), 2, voxel);
    let request = TrainRequest {
        run_file: folder.path().join("run.toml"),
        prediction: PredictionChoice::Never,
        ..TrainRequest::default()
    };
    let error = super::train(&request, Silent, &Arc::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Request, "{error}");
    assert!(!folder.path().join("out").exists(), "{error}");
    full_text(&error)
}

#[test]
fn data_that_would_end_the_run_are_refused_before_it() {
    let error = refused(&[], |universe, voxel| match (universe, voxel) {
        (9, 67) => f32::NAN,
        _ => level(universe, voxel),
    });
    let place = "key `full`, sample 1 of split validation, at (C, D, H, W) = (1, 0, 0, 3)";
    assert_parts(&error, &["validation.h5", place, "NaN is not finite"]);
    let chain = (
        "transform = { scale = 0.5 }",
        "transform = [{ scale = 0.5 }, \"log\"]",
    );
    let error = refused(&[chain], |universe, voxel| {
        if (universe, voxel) == (6, 5) {
            -4.0
        } else {
            level(universe, voxel) + 1.0
        }
    });
    let place = "key `full`, sample 6 of split train, at (C, D, H, W) = (0, 0, 1, 1)";
    assert_parts(&error, &["train.h5", place, "log of -2 is not a number"]);
}

#[test]
fn a_constant_channel_is_a_warning() {
    let folder = case(&[("epochs = 6", "epochs = 1")]);
    write_floats(&folder.path().join("set"), 2, |universe, voxel| {
        if voxel < 64 {
            level(universe, voxel)
        } else {
            2.5
        }
    });
    let request = TrainRequest {
        run_file: folder.path().join("run.toml"),
        prediction: PredictionChoice::Never,
        ..TrainRequest::default()
    };
    let trained = super::train(&request, Silent, &Arc::default());
    let trained = trained.unwrap();
    let warnings = trained.result.warnings.join("; ");
    let says = "channel 1 is 2.5 everywhere in the 10 samples that were looked at";
    assert!(warnings.contains(says), "{warnings}");
}

#[test]
fn running_statistics_that_overflow_end_the_run() {
    // All values are within what is accepted; the layers in front of the batch norm make them larger, and
    // it hides that from the loss.
    let replaced = [NO_SCALE, ("epochs = 6", "epochs = 1")];
    let error = failure(&replaced, 0, |universe, voxel| {
        let word = (universe * 128 + voxel as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        1.8e19 * if word >> 63 == 0 { 1.0 } else { -1.0 }
    });
    assert_parts(
        &error,
        &[
            "`b1.running_variance` of layer `b1` holds inf after step 2 (epoch 1)",
            "of its 3 values are not finite",
            "activations in front of that layer are too large",
            "`learning_rate`",
        ],
    );
}

#[test]
fn a_last_step_that_is_too_large_is_not_saved() {
    let replaced = [
        ("batch = 4", "batch = 8"),
        ("epochs = 6", "epochs = 1"),
        (
            "[schedule]\nlearning_rate = 0.01",
            "[optimizer]\nkind = \"sgd\"\n[schedule]\nlearning_rate = 3e38",
        ),
        ("transform = { scale = 0.5 }", "transform = { scale = 1e3 }"),
    ];
    let error = failure(&replaced, 0, level);
    assert_parts(
        &error,
        &[
            "after step 1 (epoch 1)",
            "a step of the optimizer was too large",
            "`clip`",
        ],
    );
}

/// What a run says of where it began, for a strategy.
fn beginning(strategy: &str, replaced: &[(&str, &str)]) -> String {
    let quoted = format!("strategy = \"{strategy}\"");
    let mut all = vec![("strategy = \"depth=2\"", quoted.as_str())];
    all.extend(replaced);
    let error = failure(&all, 2, level);
    let (_, rest) = error.split_once("it began in ").expect(&error);
    let (text, _) = rest.split_once(": ").expect(&error);
    text.to_owned()
}

#[test]
fn the_layer_in_which_values_overflow_is_named_under_every_strategy() {
    for strategy in ["depth=2", "data=2", "filter=2", "data=2; micro=2"] {
        let rate = ("learning_rate = 0.01", "learning_rate = 1e30");
        let found = beginning(strategy, &[rate]);
        assert_eq!(found, "the output of layer `d1` in step 2", "{strategy}");
        let update = (
            "[schedule]\nlearning_rate = 0.01",
            "[optimizer]\nkind = \"sgd\"\n[schedule]\nlearning_rate = 3e38",
        );
        let found = beginning(strategy, &[update]);
        assert_eq!(found, "the update of `fc.bias` in step 1", "{strategy}");
    }
}

#[test]
fn the_layer_is_found_from_the_last_checkpoint_on() {
    // The first update has the rate 0, the later ones make values overflow.
    let rate = "learning_rate = 1e38\nwarmup_steps = 4";
    let folder = case(&[("learning_rate = 0.01", rate)]);
    let run = folder.path().join("run.toml");
    let text = fs::read_to_string(&run).unwrap() + "[checkpoint]\nevery_steps = 1\n";
    fs::write(&run, text).unwrap();
    let request = TrainRequest {
        run_file: run,
        prediction: PredictionChoice::Never,
        ..TrainRequest::default()
    };
    let error = super::train(&request, Silent, &Arc::default()).unwrap_err();
    let error = full_text(&error);
    assert_parts(&error, &["it began in the ", "its last checkpoint is "]);
}
