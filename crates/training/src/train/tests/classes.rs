//! Targets that are class numbers.

use crate::train::TrainRequest;
use partita_data::{DatasetSpec, DatasetWriter, Kind, Split};
use partita_formats::{DType, Layout, Samples};
use partita_site::{Silent, full_text};
use partita_testkit::synth::{
    CLASSES, SegmentationSpec, ShapesSpec, class_names, make_picture, make_segmented,
};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

pub(super) const LEVELS: &str = "model levels
input x channels=1 extent=16x16x16
e1 = conv x filters=8 kernel=3 pad=1 bias=false init=he_normal
b1 = batch_norm e1 epsilon=1e-5 momentum=0.5
a1 = relu b1
p1 = max_pool a1 kernel=2 stride=2
e2 = conv p1 filters=16 kernel=3 pad=1 bias=false init=he_normal
b2 = batch_norm e2 epsilon=1e-5 momentum=0.5
a2 = relu b2
u1 = conv_transpose a2 filters=8 kernel=2 stride=2 bias=true
k1 = concat u1 a1
c1 = conv k1 filters=3 kernel=1 bias=true
loss = softmax_cross_entropy c1
";

const PICTURES: &str = "model pictures
input x channels=3 extent=16x16
c1 = conv x filters=16 kernel=5 pad=2 bias=true init=he_normal
a1 = relu c1
p1 = max_pool a1 kernel=2 stride=2
c2 = conv p1 filters=32 kernel=3 pad=1 bias=true init=he_normal
a2 = relu c2
p2 = max_pool a2 kernel=2 stride=2
f = flatten p2
fc = linear f features=4 bias=true
loss = softmax_cross_entropy fc
";

/// A dataset of training and validation samples, values and class numbers.
pub(super) fn write(
    path: &Path,
    shape: [usize; 4],
    labels: [usize; 3],
    names: Vec<String>,
    samples: [u64; 2],
    make: impl Fn(u64) -> (Vec<i16>, Vec<i16>),
) {
    let [training, validation] = samples;
    let spec = DatasetSpec {
        kind: Kind::Segmentation,
        shape,
        dtype: DType::Int16,
        targets: names,
        labels: Some(labels),
        layout: Layout::Contiguous,
        train: (0..training).collect(),
        validation: (training..training + validation).collect(),
        test: Vec::new(),
        spec: toml::Table::new(),
    };
    let mut writer = DatasetWriter::create(path, &spec).unwrap();
    for split in [Split::Train, Split::Validation] {
        while let Some(index) = writer.next_universe(split) {
            let (values, labels) = make(index);
            let (values, labels) = (Samples::I16(values), Samples::I16(labels));
            writer.append_labeled(split, &values, &labels).unwrap();
        }
    }
    writer.finish().unwrap();
}

pub(super) fn volumes(path: &Path, grid: usize) {
    let spec = SegmentationSpec { grid, seed: 5 };
    let names = CLASSES.map(str::to_owned).to_vec();
    let shape = [1, grid, grid, grid];
    write(path, shape, [grid; 3], names, [12, 5], |index| {
        let volume = make_segmented(&spec, index).unwrap();
        (volume.values, volume.labels)
    });
}

/// The same volumes with one class each.
pub(super) fn labeled_volumes(path: &Path, grid: usize) {
    let spec = SegmentationSpec { grid, seed: 5 };
    let names = CLASSES.map(str::to_owned).to_vec();
    let shape = [1, grid, grid, grid];
    write(path, shape, [1; 3], names, [12, 5], |index| {
        let volume = make_segmented(&spec, index).unwrap();
        (volume.values, vec![index as i16 % 3])
    });
}

pub(super) fn train(folder: &TempDir, run: &str) -> Result<Value, String> {
    let at = folder.path().display();
    let text = format!(
        "model = \"{at}/net.model\"\ndata = \"{at}/set\"\noutput = \"{at}/out\"\nseed = 1\n\
         {}{run}",
        if run.contains("transform = ") {
            ""
        } else {
            "transform = { scale = 0.01 }\n"
        }
    );
    train_text(folder, &text)
}

/// Trains as a whole run file says.
pub(super) fn train_text(folder: &TempDir, text: &str) -> Result<Value, String> {
    let run_file = folder.path().join("run.toml");
    fs::write(&run_file, text).unwrap();
    let request = TrainRequest {
        run_file,
        overwrite: true,
        ..TrainRequest::default()
    };
    let trained = super::train(&request, Silent, &Arc::default());
    let trained = trained.map_err(|error| full_text(&error))?;
    let text = serde_json::to_string(&trained.result).unwrap();
    Ok(serde_json::from_str(&text).unwrap())
}

fn last_epoch(result: &Value) -> &Value {
    result["epochs"].as_array().unwrap().last().unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value}"))
}

#[test]
fn voxels_are_learned_from_parts_of_volumes() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("net.model"), LEVELS).unwrap();
    volumes(&folder.path().join("set"), 16);
    let run = "batch = 2\nepochs = 10\nranks = 2\nstrategy = \"depth=2\"\n[schedule]\n\
               learning_rate = 0.01\n";
    let result = train(&folder, run).unwrap();
    let (first, last) = (&result["epochs"][0], last_epoch(&result));
    let loss = |epoch: &Value| number(&epoch["training_loss"]);
    assert!(
        loss(last) < 0.6 * loss(first),
        "{} {}",
        loss(last),
        loss(first)
    );
    let found = &last["validation"]["classification"];
    assert!(
        number(&found["accuracy"]) > number(&found["largest_share"]) + 0.02,
        "{found}"
    );
    let classes = found["classes"].as_array().unwrap();
    assert_eq!(classes[1]["class"], "organ");
    // An answer of nothing but background has a Dice coefficient of 0 here.
    assert!(number(&classes[1]["dice"]) > 0.5, "{found}");
    let overlap = number(&classes[1]["overlap"]);
    assert!((overlap - 1.0 / (2.0 / number(&classes[1]["dice"]) - 1.0)).abs() < 1e-12);
}

#[test]
fn classes_are_counted_alike_however_samples_are_split() {
    let folder = tempfile::tempdir().unwrap();
    let model = LEVELS.replace("16x16x16", "8x8x8");
    fs::write(folder.path().join("net.model"), model).unwrap();
    volumes(&folder.path().join("set"), 8);
    let counted = |ranks: usize, strategy: &str| {
        let run = format!(
            "batch = 3\nepochs = 1\nranks = {ranks}\nstrategy = \"{strategy}\"\n\
             kernels = \"reference\"\nprecision = \"f64\"\n\
             [schedule]\nlearning_rate = 0.001\n"
        );
        let result = train(&folder, &run).unwrap();
        last_epoch(&result)["validation"]["classification"].clone()
    };
    let one = counted(1, "data=1");
    let shares = one["classes"].as_array().unwrap().iter();
    let shares: f64 = shares.map(|class| number(&class["share"])).sum();
    assert!((shares - 1.0).abs() < 1e-12);
    for (ranks, strategy) in [(3, "height=3"), (4, "data=2,width=2"), (2, "data=2")] {
        assert_eq!(counted(ranks, strategy), one, "{strategy}");
    }
}

#[test]
fn images_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("net.model"), PICTURES).unwrap();
    let spec = ShapesSpec {
        size: 16,
        classes: 4,
        seed: 5,
    };
    let names = class_names(4);
    let at = folder.path().join("set");
    write(&at, [3, 1, 16, 16], [1; 3], names, [2000, 200], |index| {
        let picture = make_picture(&spec, index).unwrap();
        (picture.values, vec![picture.class])
    });
    let run = "batch = 20\nepochs = 8\nranks = 2\nstrategy = \"data=2\"\n[schedule]\n\
               learning_rate = 0.003\n";
    let result = train(&folder, run).unwrap();
    let found = &last_epoch(&result)["validation"]["classification"];
    assert_eq!(number(&found["largest_share"]), 0.25);
    assert!(number(&found["accuracy"]) > 0.5, "{found}");
}

#[test]
fn models_that_answer_otherwise_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    volumes(&folder.path().join("set"), 16);
    let rest = "batch = 2\nepochs = 1\nranks = 1\nstrategy = \"data=1\"\n[schedule]\n\
                learning_rate = 0.001\n";
    for (from, to, expected) in [
        (
            "loss = softmax_cross_entropy c1",
            "loss = mse c1",
            "outputs numbers",
        ),
        (
            "filters=3 kernel=1",
            "filters=2 kernel=1",
            "has 3\nhelp: try 3; possible values: ",
        ),
        (
            "loss = softmax_cross_entropy c1",
            "p = average_pool c1 kernel=16 stride=16 count_padding=true\n\
             loss = softmax_cross_entropy p",
            "a class at each of 16x16x16 positions",
        ),
    ] {
        assert!(LEVELS.contains(from));
        fs::write(folder.path().join("net.model"), LEVELS.replace(from, to)).unwrap();
        let error = train(&folder, rest).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn class_numbers_out_of_range_are_named_with_file_sample_and_position() {
    let folder = tempfile::tempdir().unwrap();
    let set = folder.path().join("set");
    fs::write(
        folder.path().join("net.model"),
        LEVELS.replace("16x16x16", "8x8x8"),
    )
    .unwrap();
    let names = ["a", "b", "c", "d"].map(str::to_owned).to_vec();
    // At (D, H, W) = (5, 2, 1) of one sample, which the second of two slabs holds.
    write(&set, [1, 8, 8, 8], [8; 3], names, [6, 2], |index| {
        let mut labels = vec![0; 512];
        labels[5 * 64 + 2 * 8 + 1] = if index == 4 { 3 } else { 2 };
        (vec![1; 512], labels)
    });
    let run = "batch = 2\nepochs = 1\nranks = 2\nstrategy = \"depth=2\"\n[schedule]\n\
               learning_rate = 0.001\n";
    let place = [
        "key `labels`, sample 4 of split train, at (C, D, H, W) = (0, 5, 2, 1): 3 is not a class index",
        "0 to 2",
        "help: try 2",
    ];
    let refused = |file: &str, owner: &str| {
        let error = train(&folder, run).unwrap_err();
        for part in place.into_iter().chain([file, owner]) {
            assert!(error.contains(part), "{part:?} is not in {error:?}");
        }
        assert!(!folder.path().join("out").exists(), "{error}");
    };
    // An index that names fewer classes than the file has.
    let index = set.join("dataset.toml");
    let text = fs::read_to_string(&index).unwrap();
    let fewer = text.replace(", \"d\"", "").replace("    \"d\",\n", "");
    assert_ne!(text, fewer);
    fs::write(&index, fewer).unwrap();
    refused("train.h5: key", "the classes of the dataset");
    // A file alone names none; the model has three.
    let file = fs::read(set.join("train.h5")).unwrap();
    fs::remove_dir_all(&set).unwrap();
    fs::write(&set, file).unwrap();
    refused("set: key", "the classes of the model");
}

/// Positions of no class, in a dataset whose index names the classes.
#[test]
fn classes_that_the_loss_ignores_are_no_classes_of_the_dataset() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["a", "b", "c", "d"].map(str::to_owned).to_vec();
    let set = folder.path().join("set");
    write(&set, [1, 8, 8, 8], [8; 3], names, [6, 2], |index| {
        let labels = (0..512).map(|at| at % 4).collect();
        (vec![index as i16; 512], labels)
    });
    let index = set.join("dataset.toml");
    let text = fs::read_to_string(&index).unwrap();
    let fewer = text.replace(", \"d\"", "").replace("    \"d\",\n", "");
    assert_ne!(text, fewer);
    fs::write(&index, fewer).unwrap();
    let run = "batch = 2\nepochs = 1\nranks = 2\nstrategy = \"depth=2\"\n[schedule]\n\
               learning_rate = 0.001\n";
    let model = LEVELS.replace("16x16x16", "8x8x8");
    let at = folder.path().join("net.model");
    fs::write(&at, &model).unwrap();
    let error = train(&folder, run).unwrap_err();
    assert!(error.contains("3 is not a class index"), "{error}");
    assert!(error.contains("let the loss `ignore` it"), "{error}");
    // The data are converted with `--ignore` already, so that the loss is what is left to say it.
    let text = fs::read_to_string(&index).unwrap();
    let ignoring = text.replace("format = 1\n", "format = 1\nignore = 3\n");
    fs::write(&index, ignoring).unwrap();
    let error = train(&folder, run).unwrap_err();
    assert!(
        error.contains("write `ignore=3` in the line of the loss") && !error.contains("--ignore"),
        "{error}"
    );
    fs::write(&at, model.trim_end().to_owned() + " ignore=3\n").unwrap();
    let result = train(&folder, run).unwrap();
    let found = &last_epoch(&result)["validation"]["classification"];
    let shares = found["classes"].as_array().unwrap().iter();
    let shares: Vec<f64> = shares.map(|class| number(&class["share"])).collect();
    assert_eq!(shares, [1.0 / 3.0; 3]);
}

/// Labels that a network can be trained on, but is not meant to.
#[test]
fn labels_that_teach_nothing_are_refused_or_told() {
    let folder = tempfile::tempdir().unwrap();
    let set = folder.path().join("set");
    let names = ["a", "b"].map(str::to_owned).to_vec();
    let run = "batch = 2\nepochs = 1\nranks = 2\nstrategy = \"depth=2\"\n[schedule]\n\
               learning_rate = 0.001\n";
    let model = LEVELS.replace("16x16x16", "8x8x8");
    let made = |labels: &dyn Fn(u64) -> i16, left_out: Option<i64>| {
        let _ = fs::remove_dir_all(&set);
        write(
            &set,
            [1, 8, 8, 8],
            [8; 3],
            names.clone(),
            [40, 2],
            |index| (vec![index as i16; 512], vec![labels(index); 512]),
        );
        let index = set.join("dataset.toml");
        if let Some(class) = left_out {
            let text = fs::read_to_string(&index).unwrap();
            fs::write(&index, format!("ignore = {class}\n{text}")).unwrap();
        }
    };
    let at = folder.path().join("net.model");
    // All labels are the ignored one, but for a sample between those of a quick look.
    fs::write(&at, model.trim_end().to_owned() + " ignore=0\n").unwrap();
    made(&|_| 0, None);
    let error = train(&folder, run).unwrap_err();
    for part in ["no label of split train counts: all are 0", "`--map 0=N`"] {
        assert!(error.contains(part), "{part:?} is not in {error:?}");
    }
    made(&|index| i16::from(index == 4), None);
    train(&folder, run).unwrap();
    // A class that the index leaves out, and the loss does not.
    made(&|index| (index % 2) as i16, Some(2));
    fs::write(&at, &model).unwrap();
    let error = train(&folder, run).unwrap_err();
    for part in [
        "positions of class 2 do not count",
        "write `ignore=2` in the line of the loss",
    ] {
        assert!(error.contains(part), "{part:?} is not in {error:?}");
    }
    fs::write(&at, model.trim_end().to_owned() + " ignore=2\n").unwrap();
    train(&folder, run).unwrap();
}

/// One number per sample as its class.
#[test]
fn numbers_that_are_no_classes_are_named_with_file_and_sample() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("net.model"), PICTURES).unwrap();
    let spec = DatasetSpec {
        kind: Kind::Cosmology,
        shape: [3, 1, 16, 16],
        dtype: DType::Float32,
        targets: vec!["class".to_owned()],
        labels: None,
        layout: Layout::Contiguous,
        train: (0..6).collect(),
        validation: Vec::new(),
        test: Vec::new(),
        spec: toml::Table::new(),
    };
    let mut writer = DatasetWriter::create(folder.path().join("set"), &spec).unwrap();
    while let Some(index) = writer.next_universe(Split::Train) {
        let class = [if index == 3 { 0.5 } else { 1.0 }];
        let values = Samples::F32(vec![1.0; 3 * 256]);
        writer
            .append(Split::Train, &values, &class, &class)
            .unwrap();
    }
    writer.finish().unwrap();
    let run = "batch = 2\nepochs = 1\nranks = 2\nstrategy = \"data=2\"\n[schedule]\n\
               learning_rate = 0.001\n";
    let error = train(&folder, run).unwrap_err();
    for part in [
        "train.h5: key `unitPar`, sample 3 of split train, target 0: 0.5 is not a class index",
        "0 to 3, the classes of the model",
    ] {
        assert!(error.contains(part), "{part:?} is not in {error:?}");
    }
}
