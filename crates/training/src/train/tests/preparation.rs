//! Trainings on prepared and augmented samples.

use super::classes::{LEVELS, train, volumes};
use crate::train::{
    EvaluateResult, ForwardRequest, InferRequest, InferResult, PredictionUnits, TilesAsked,
    VolumeMode, evaluate, infer,
};
use partita_input::{PredictionKind, TileWeights};
use partita_site::{Context, Environment, full_text};
use partita_testkit::synth::{SegmentationSpec, make_segmented};
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

pub(super) fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let model = LEVELS.replace("16x16x16", "8x8x8");
    fs::write(folder.path().join("net.model"), model).unwrap();
    volumes(&folder.path().join("set"), 16);
    folder
}

pub(super) fn run(strategy: &str, ranks: usize, augmentation: &str) -> String {
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
    // Two crops of each of 12 training volumes, and 5 validation volumes of tiles.
    assert_eq!(one["epochs"][0]["samples"], 24);
    assert_eq!(one["epochs"][0]["validation"]["samples"], 5);
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
        "help: try augmentation.crop = [8, 8, 8]",
    ] {
        assert!(crop.contains(part), "`{part}` is not in: {crop}");
    }
    let large = refused("[augmentation]\ncrop = [8, 8, 32]\n");
    assert!(
        large.contains("help: try augmentation.crop = [8, 8, 8]"),
        "{large}"
    );
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
            "help: try `augmentation.rotate`",
        ),
    ] {
        let error = refused(augmentation);
        assert!(error.contains(part), "`{part}` is not in: {error}");
    }
}

/// Its outputs look two voxels far.
pub(super) const NEAR: &str = "model near
input x channels=1 extent=8x8x8
c1 = conv x filters=4 kernel=3 pad=1 bias=true init=he_normal
a1 = relu c1
c2 = conv a1 filters=3 kernel=3 pad=1 bias=true
loss = softmax_cross_entropy c2
";
/// Of each tile, its middle counts.
const MIDDLE: TilesAsked = TilesAsked {
    overlap: Some(0.5),
    weights: Some(TileWeights::Middle),
};
pub(super) const CROPS: &str = "[augmentation]\ncrop = [8, 8, 8]\n";

pub(super) fn forward(
    folder: &TempDir,
    volumes: Option<VolumeMode>,
    ranks: usize,
) -> ForwardRequest {
    ForwardRequest {
        run_file: folder.path().join("run.toml"),
        ranks: Some(ranks),
        strategy: Some(format!("depth={ranks}")),
        volumes,
        tiles: if volumes == Some(VolumeMode::Tiles) {
            MIDDLE
        } else {
            TilesAsked::default()
        },
        ..ForwardRequest::default()
    }
}

/// The evaluation of the validation split.
fn measure(
    folder: &TempDir,
    volumes: Option<VolumeMode>,
    ranks: usize,
) -> Result<EvaluateResult, String> {
    let context = Context::new(Environment::default());
    let found = evaluate(&context, &forward(folder, volumes, ranks));
    let found = found.map_err(|error| full_text(&error))?;
    Ok(found.expect("ranks are threads"))
}

/// Cross-entropy and Dice of each class of scores (N, 3, 16, 16, 16), by the labels of the validation volumes.
fn of_scores(scores: &[f32]) -> (f64, [f64; 3]) {
    const POSITIONS: usize = 16 * 16 * 16;
    let spec = SegmentationSpec { grid: 16, seed: 5 };
    let volumes = scores.chunks_exact(3 * POSITIONS);
    let (count, mut loss, mut counts) = (volumes.len(), 0.0, [[0.0; 3]; 3]);
    for (index, scores) in volumes.enumerate() {
        let labels = make_segmented(&spec, 12 + index as u64).unwrap().labels;
        for (at, &label) in labels.iter().enumerate() {
            let of = |class: usize| f64::from(scores[class * POSITIONS + at]);
            let sum: f64 = (0..3).map(|class| of(class).exp()).sum();
            loss += sum.ln() - of(label as usize);
            let best = (1..3).fold(
                0,
                |best, class| if of(class) > of(best) { class } else { best },
            );
            counts[best][label as usize] += 1.0;
        }
    }
    let dice = [0, 1, 2].map(|class| {
        let sum: f64 = (0..3)
            .map(|other| counts[class][other] + counts[other][class])
            .sum();
        2.0 * counts[class][class] / sum
    });
    (loss / (count * POSITIONS) as f64, dice)
}

/// Predictions of the validation split: what the verb says, and the values of the file.
fn predict(
    folder: &TempDir,
    volumes: Option<VolumeMode>,
    ranks: usize,
) -> Result<(InferResult, Vec<f32>), String> {
    predict_as(folder, forward(folder, volumes, ranks))
}

fn predict_as(
    folder: &TempDir,
    forward: ForwardRequest,
) -> Result<(InferResult, Vec<f32>), String> {
    let out = folder.path().join("scores.npy");
    let request = InferRequest {
        forward,
        out: out.clone(),
        kind: PredictionKind::Scores,
        units: PredictionUnits::default(),
    };
    let context = Context::new(Environment::default());
    let found = infer(&context, &request).map_err(|error| full_text(&error))?;
    let bytes = fs::read(out).unwrap();
    let values = &bytes[10 + usize::from(bytes[8]) + 256 * usize::from(bytes[9])..];
    let (words, _) = values.as_chunks::<4>();
    let values = words.iter().map(|&word| f32::from_le_bytes(word));
    Ok((found.expect("ranks are threads"), values.collect()))
}

#[test]
fn volumes_are_predicted_whole_or_joined_after_a_training_on_crops() {
    let folder = folder();
    fs::write(folder.path().join("net.model"), NEAR).unwrap();
    train(&folder, &run("data=1", 1, CROPS)).unwrap();
    let (found, whole) = predict(&folder, None, 1).unwrap();
    assert_eq!((found.volumes, found.samples), ("whole", 5));
    assert_eq!(found.shape, [5, 3, 16, 16, 16]);
    for (mode, ranks) in [
        (VolumeMode::Whole, 2),
        (VolumeMode::Tiles, 1),
        (VolumeMode::Tiles, 2),
    ] {
        let (found, values) = predict(&folder, Some(mode), ranks).unwrap();
        assert_eq!(
            (found.volumes, &found.shape[..]),
            (mode.name(), &[5, 3, 16, 16, 16][..])
        );
        // Tiles of 8 share 4 voxels, so that each is used two voxels away from its borders.
        for (value, whole) in values.iter().zip(&whole) {
            assert!(
                (value - whole).abs() < 1e-4,
                "{mode:?}: {value} and {whole}"
            );
        }
    }
    let (found, values) = predict(&folder, Some(VolumeMode::Crops), 1).unwrap();
    assert_eq!((found.volumes, found.shape[0]), ("crops", 40));
    assert_ne!(values[..512], whole[..512]);
}

#[test]
fn an_evaluation_is_of_the_predictions_of_whole_volumes() {
    let folder = folder();
    train(&folder, &run("data=1", 1, CROPS)).unwrap();
    for (mode, ranks) in [
        (None, 1),
        (Some(VolumeMode::Whole), 2),
        (Some(VolumeMode::Tiles), 1),
        (Some(VolumeMode::Tiles), 3),
    ] {
        let (_, scores) = predict(&folder, mode, ranks).unwrap();
        let (loss, dice) = of_scores(&scores);
        let found = measure(&folder, mode, ranks).unwrap();
        assert_eq!(found.volumes, mode.unwrap_or(VolumeMode::Whole).name());
        let metrics = found.metrics;
        assert_eq!(metrics.samples, 5, "{mode:?}");
        assert!(
            (metrics.loss / loss - 1.0).abs() < 1e-5,
            "{mode:?}, {ranks}: {} and {loss}",
            metrics.loss
        );
        let classes = metrics.classification.unwrap().classes;
        for (class, dice) in classes.iter().zip(dice) {
            let found = class.dice.unwrap();
            assert!((found - dice).abs() < 1e-3, "{mode:?}: {found} and {dice}");
        }
        // No scratch file stays.
        let left = fs::read_dir(folder.path().join("out")).unwrap();
        let mut names = left.map(|entry| entry.unwrap().file_name());
        assert!(!names.any(|name| name.to_string_lossy().contains("partial")));
    }
    // Where whole volumes do not fit, tiles are a way out.
    let path = folder.path().join("run.toml");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("memory = \"700KiB\"\n{text}")).unwrap();
    let refused = measure(&folder, None, 1).unwrap_err();
    assert!(refused.contains("`--volumes tiles`"), "{refused}");
    fs::write(&path, text).unwrap();
    let crops = measure(&folder, Some(VolumeMode::Crops), 1).unwrap();
    assert_eq!((crops.volumes, crops.metrics.samples), ("crops", 40));
}

/// A gate for each channel by the mean over all positions, as a crop or a volume has them.
const GATED: &str = "model gated
input x channels=1 extent=8x8x8
c1 = conv x filters=4 kernel=3 pad=1 bias=true init=he_normal
a1 = relu c1
mean = global_average_pool a1
score = conv mean filters=4 kernel=1 bias=true
gate = sigmoid score
open = multiply a1 gate
c2 = conv open filters=3 kernel=1 bias=true
loss = softmax_cross_entropy c2
";

#[test]
fn global_poolings_span_whole_volumes_after_a_training_on_crops() {
    let folder = folder();
    fs::write(folder.path().join("net.model"), GATED).unwrap();
    train(&folder, &run("data=1", 1, CROPS)).unwrap();
    // Means over crops are what it was trained with, so tiles are the default.
    let (found, tiles) = predict(&folder, None, 1).unwrap();
    let joined = found.tiles.unwrap();
    assert_eq!((found.volumes, joined.extent), ("tiles", [8, 8, 8]));
    assert_eq!((joined.overlap, joined.weights), (0.5, "gaussian"));
    let because = "`mean` pools over all positions of a sample";
    assert_eq!(joined.because.as_deref(), Some(because));
    let (found, whole) = predict(&folder, Some(VolumeMode::Whole), 1).unwrap();
    assert_eq!((found.volumes, found.tiles), ("whole", None));
    assert_ne!(tiles, whole);
    for (mode, one) in [(None, &tiles), (Some(VolumeMode::Whole), &whole)] {
        let (_, of_two) = predict(&folder, mode, 2).unwrap();
        for (value, of_two) in one.iter().zip(of_two) {
            assert!((value - of_two).abs() < 1e-5, "{value} and {of_two}");
        }
    }
    let (loss, _) = of_scores(&tiles);
    let measured = measure(&folder, None, 2).unwrap();
    assert_eq!(measured.volumes, "tiles");
    assert!((measured.metrics.loss / loss - 1.0).abs() < 1e-5, "{loss}");
    // The same weights in a model that is written for whole volumes.
    let other = self::folder();
    let model = GATED.replace("8x8x8", "16x16x16");
    fs::write(other.path().join("net.model"), model).unwrap();
    let weights = folder.path().join("out/weights.safetensors");
    let weights = format!("weights = \"{}\"\n", weights.display());
    let still = run("data=1", 1, &weights).replace("0.01", "0.0");
    train(&other, &still).unwrap();
    let (found, same) = predict(&other, None, 1).unwrap();
    assert_eq!((found.volumes, same), ("whole", whole));
}

/// The last validation has the numbers that an evaluation of the weights by tiles has, bit by bit.
#[test]
fn validation_by_tiles_equals_an_evaluation() {
    let folder = folder();
    let same = |result: &Value, volumes, strategy: &str, ranks| {
        let request = ForwardRequest {
            strategy: Some(strategy.to_owned()),
            tiles: TilesAsked::default(),
            ..forward(&folder, volumes, ranks)
        };
        let found = evaluate(&Context::new(Environment::default()), &request).unwrap();
        let found = found.expect("ranks are threads");
        assert_eq!(found.volumes, "tiles");
        let metrics = serde_json::to_value(&found.metrics).unwrap();
        let epochs = result["epochs"].as_array().unwrap();
        let last = &epochs[epochs.len() - 1]["validation"];
        for key in ["loss", "samples", "classification", "errors"] {
            assert_eq!(last[key], metrics[key], "{strategy}: {key}");
        }
        assert_eq!(last["samples"], 5);
        let tiles = &result["validation_tiles"];
        assert_eq!(
            (&tiles["overlap"], &tiles["weights"]),
            (&0.5.into(), &"gaussian".into())
        );
    };
    // Batch norms use running statistics, so whole volumes are the default of `evaluate`.
    for (strategy, ranks) in [("data=1", 1), ("height=2,width=2", 4)] {
        let result = train(&folder, &run(strategy, ranks, CROPS)).unwrap();
        same(&result, Some(VolumeMode::Tiles), strategy, ranks);
    }
    fs::write(folder.path().join("net.model"), GATED).unwrap();
    for (strategy, ranks) in [
        ("data=2", 2),
        ("micro=2,stages=[..a1: 1|mean..: 1]", 2),
        ("filter=3", 3),
    ] {
        let result = train(&folder, &run(strategy, ranks, CROPS)).unwrap();
        same(&result, None, strategy, ranks);
    }
    let left = fs::read_dir(folder.path().join("out")).unwrap();
    let mut names = left.map(|entry| entry.unwrap().file_name());
    assert!(!names.any(|name| name.to_string_lossy().contains("validate")));
    // The choices of before.
    for (crops, samples) in [("grid", 40), ("center", 5)] {
        let crops = format!("{CROPS}validation_crops = \"{crops}\"\n");
        let result = train(&folder, &run("data=1", 1, &crops)).unwrap();
        let last = &result["epochs"][2]["validation"];
        assert_eq!(last["samples"], samples);
        assert!(result["validation_tiles"].is_null());
    }
}

/// Its outputs are those of whole volumes in every tile, so that no average changes them.
#[test]
fn outputs_of_tiles_are_averaged_where_they_lie() {
    let folder = folder();
    let model = "model points\ninput x channels=1 extent=8x8x8\n\
                 c1 = conv x filters=3 kernel=1 bias=true\nloss = softmax_cross_entropy c1\n";
    fs::write(folder.path().join("net.model"), model).unwrap();
    train(&folder, &run("data=1", 1, CROPS)).unwrap();
    let (_, whole) = predict(&folder, None, 1).unwrap();
    for (overlap, weights, strategy) in [
        (None, None, "data=2"),
        (Some(0.3), Some(TileWeights::Constant), "depth=2"),
        (Some(0.0), Some(TileWeights::Gaussian), "filter=2"),
    ] {
        let tiles = ForwardRequest {
            tiles: TilesAsked { overlap, weights },
            strategy: Some(strategy.to_owned()),
            ..forward(&folder, Some(VolumeMode::Tiles), 2)
        };
        let (found, values) = predict_as(&folder, tiles).unwrap();
        assert_eq!(found.tiles.unwrap().overlap, overlap.unwrap_or(0.5));
        for (value, whole) in values.iter().zip(&whole) {
            assert!(
                (value - whole).abs() < 1e-5,
                "{strategy}: {value} and {whole}"
            );
        }
    }
    let settings = TilesAsked {
        overlap: Some(0.25),
        weights: None,
    };
    // Settings of tiles ask for tiles, and for nothing else.
    let tiles = ForwardRequest {
        tiles: settings,
        ..forward(&folder, None, 1)
    };
    assert_eq!(
        predict_as(&folder, tiles.clone()).unwrap().0.volumes,
        "tiles"
    );
    let other = ForwardRequest {
        volumes: Some(VolumeMode::Whole),
        ..tiles
    };
    let refused = predict_as(&folder, other).unwrap_err();
    assert!(
        refused.contains("`--overlap`") && refused.contains("help: try `--volumes tiles`"),
        "{refused}"
    );
}

#[test]
fn a_model_of_fixed_extents_predicts_tiles_or_crops() {
    let folder = folder();
    let fixed = "model fixed
input x channels=1 extent=8x8x8
c1 = conv x filters=2 kernel=8 pad=0 bias=true
f = flatten c1
fc = linear f features=3 bias=true
loss = softmax_cross_entropy fc
";
    fs::write(folder.path().join("net.model"), fixed).unwrap();
    let set = folder.path().join("set");
    fs::remove_dir_all(&set).unwrap();
    super::classes::labeled_volumes(&set, 16);
    train(&folder, &run("data=1", 1, CROPS)).unwrap();
    let (found, _) = predict(&folder, None, 1).unwrap();
    assert_eq!((found.volumes, &found.shape[..]), ("crops", &[40, 3][..]));
    let evaluated = measure(&folder, None, 1).unwrap();
    assert_eq!(
        (evaluated.volumes, evaluated.metrics.samples),
        ("crops", 40)
    );
    let whole = predict(&folder, Some(VolumeMode::Whole), 1).unwrap_err();
    assert_eq!(
        measure(&folder, Some(VolumeMode::Whole), 1).unwrap_err(),
        whole
    );
    for part in [
        "`--volumes whole`",
        "cannot read 16x16x16",
        "parameter `fc",
        "`--volumes crops`",
    ] {
        assert!(whole.contains(part), "`{part}` is not in: {whole}");
    }
    let tiles = predict(&folder, Some(VolumeMode::Tiles), 1).unwrap_err();
    assert!(
        tiles.contains("nothing to join") && tiles.contains("`--volumes crops`"),
        "{tiles}"
    );
}
