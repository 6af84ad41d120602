//! Averages over several weights and mirrored samples, and classes of many tiles.

use super::{Case, STRATEGIES, case, npy};
use partita_data::{Dataset, Split};
use partita_formats::hdf5::TargetFile;
use partita_formats::{DType, Layout, Samples};
use std::fs;
use std::ops::Range;
use std::process::Command;
use std::sync::OnceLock;
use tempfile::TempDir;

/// Weights of three trainings: an output folder, a file, and a file in PyTorch's names.
const WEIGHTS: [&str; 3] = ["out", "second/weights.safetensors", "third.safetensors"];
/// All combinations of D, H, W.
const FLIPS: [[bool; 3]; 8] = [
    [false, false, false],
    [true, false, false],
    [false, true, false],
    [true, true, false],
    [false, false, true],
    [true, false, true],
    [false, true, true],
    [true, true, true],
];

/// Two more trainings of the small model, made once.
fn trained() -> &'static Case {
    static TRAINED: OnceLock<()> = OnceLock::new();
    let case = case();
    TRAINED.get_or_init(|| {
        for (name, seed) in [("second", 7), ("third", 8)] {
            let more = format!(
                "batch = 2\nepochs = 1\nseed = {seed}\n[schedule]\nlearning_rate = 0.02\n"
            );
            case.run_file(&format!("{name}.toml"), name, &more);
            case.answer(&format!("train {name}.toml --no-prediction"));
        }
        case.answer("weights export third.toml --out third.safetensors");
        let tiled = "batch = 4\nepochs = 1\n[augmentation]\ncrop = [8, 8, 8]\n[schedule]\nlearning_rate = 0.02\n";
        case.run_file("tiled.toml", "out", tiled);
    });
    case
}

/// Writes samples of these D, H, W, reversed along some of them.
fn samples(case: &Case, name: &str, extent: [usize; 3], flip: [bool; 3]) {
    let [depth, height, width] = extent;
    let count = 3;
    let value = |at: usize| {
        let at = [
            at / (depth * height * width),
            at / (height * width) % depth,
            at / width % height,
            at % width,
        ];
        let [d, h, w] = [0, 1, 2].map(|dim| turned(at[dim + 1], extent[dim], flip[dim]));
        ((at[0] * 31 + d * 17 + h * h * 7 + w * d * 3 + w * 11) % 97) as f32
    };
    let values: Vec<f32> = (0..count * depth * height * width).map(value).collect();
    let shape = [count, 1, depth, height, width];
    let file = TargetFile::create(&case.path(name)).unwrap();
    let array = file
        .volumes("full", &shape, DType::Float32, &Layout::Contiguous)
        .unwrap();
    array
        .write_box(&[0; 5], &shape, &Samples::F32(values))
        .unwrap();
    file.close().unwrap();
}

/// A position along a dim that may be reversed.
fn turned(at: usize, extent: usize, is_reversed: bool) -> usize {
    if is_reversed { extent - 1 - at } else { at }
}

/// Values of (N, C, D, H, W) with D, H, W reversed.
fn flipped(values: &[f32], extent: [usize; 3], flip: [bool; 3]) -> Vec<f32> {
    let [depth, height, width] = extent;
    let at = |at: usize| {
        let place = [
            at / (height * width) % depth,
            at / width % height,
            at % width,
        ];
        let [d, h, w] = [0, 1, 2].map(|dim| turned(place[dim], extent[dim], flip[dim]));
        values[((at / (depth * height * width) * depth + d) * height + h) * width + w]
    };
    (0..values.len()).map(at).collect()
}

fn assert_close(found: &[f32], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let difference = (f64::from(*found) - expected).abs();
        assert!(
            difference <= 1e-5 * expected.abs().max(1.0),
            "{what}, {at}: {found} {expected}"
        );
    }
}

/// The mean of what the plain verb predicts of mirrored files with each of the weights.
fn expected(case: &Case, run: &str, extent: [usize; 3], mirror: [bool; 3]) -> Vec<f64> {
    let is_asked = |flip: &&[bool; 3]| (0..3).all(|dim| mirror[dim] || !flip[dim]);
    let mut sums: Vec<f64> = Vec::new();
    let mut count = 0.0;
    for &flip in FLIPS.iter().filter(is_asked) {
        samples(case, "mirrored.h5", extent, flip);
        for weights in WEIGHTS {
            case.answer(&format!(
                "infer {run} --data mirrored.h5 --weights {weights} --out part.npy"
            ));
            let part = flipped(&case.array("part.npy").1, extent, flip);
            sums.resize(part.len(), 0.0);
            for (sum, part) in sums.iter_mut().zip(part) {
                *sum += f64::from(part);
            }
            count += 1.0;
        }
    }
    sums.iter().map(|sum| sum / count).collect()
}

#[test]
fn weights_and_mirrored_samples_are_averaged() {
    let case = trained();
    let list = WEIGHTS.join(",");
    for (run, extent, mirror, dims) in [
        ("run.toml", [8, 8, 8], [false, true, true], "h,w"),
        (
            "tiled.toml --volumes tiles",
            [12, 8, 12],
            [true, false, true],
            "depth,width",
        ),
    ] {
        let expected = expected(case, run, extent, mirror);
        samples(case, "samples.h5", extent, [false; 3]);
        let from = format!("infer {run} --data samples.h5 --weights {list} --mirror {dims}");
        let answer = case.json(&format!("{from} --out means.npy --json"));
        assert_eq!(answer["weights"].as_str().unwrap().split(',').count(), 3);
        assert_eq!(answer["mirrored"].as_array().unwrap().len(), 2);
        let (_, means) = case.array("means.npy");
        assert_close(&means, &expected, run);
        let (_, plain) = {
            case.answer(&format!("infer {run} --data samples.h5 --out plain.npy"));
            case.array("plain.npy")
        };
        assert!(
            plain.iter().zip(&means).any(|(a, b)| (a - b).abs() > 1e-2),
            "{run}"
        );
        for (strategy, ranks) in STRATEGIES {
            let more = [
                "--strategy",
                strategy,
                "--ranks",
                ranks,
                "--out",
                "many.npy",
            ];
            let arguments: Vec<&str> = from.split(' ').chain(more).collect();
            case.answer_of(&arguments);
            assert_close(
                &case.array("many.npy").1,
                &expected,
                &format!("{run} {strategy}"),
            );
        }
        // Classes are those of the means.
        case.answer(&format!("{from} --output classes --out classes.npy"));
        let (_, classes) = npy(&case.path("classes.npy"));
        let positions = extent.iter().product::<usize>();
        for (at, &class) in classes.iter().enumerate() {
            let of =
                |channel: usize| means[(at / positions * 3 + channel) * positions + at % positions];
            let best = (1..3).fold(0, |best, channel| {
                if of(channel) > of(best) {
                    channel
                } else {
                    best
                }
            });
            assert_eq!(usize::from(class), best, "{run} {at}");
        }
        let left: Vec<String> = fs::read_dir(case.folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .filter(|name| name.contains("partial"))
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// Networks of images have one output for each, and statistics of `standardize` are those of each training.
#[test]
fn means_of_classifiers_take_the_statistics_of_each_of_the_weights() {
    let case = case();
    let model = "model images\ninput x channels=1 extent=6x8\nc1 = conv x filters=4 kernel=3 pad=1 bias=true init=he_normal\n\
                 a1 = relu c1\np1 = global_average_pool a1\nf1 = flatten p1\nl1 = linear f1 features=3 bias=true\n\
                 loss = softmax_cross_entropy l1\n";
    fs::write(case.path("images.model"), model).unwrap();
    let folder = case.path("images");
    fs::create_dir_all(&folder).unwrap();
    let images = |name: &str, seed: usize, flip: bool| {
        let value = |at: usize| {
            let (sample, row, column) = (at / 48, at / 8 % 6, at % 8);
            let column = if flip { 7 - column } else { column };
            ((sample * 13 + row * 5 + column * column * seed) % 29) as f32 * seed as f32
        };
        let file = TargetFile::create(&folder.join(name)).unwrap();
        let volumes = file
            .volumes(
                "full",
                &[6, 1, 1, 6, 8],
                DType::Float32,
                &Layout::Contiguous,
            )
            .unwrap();
        let values = Samples::F32((0..6 * 48).map(value).collect());
        volumes
            .write_box(&[0; 5], &[6, 1, 1, 6, 8], &values)
            .unwrap();
        let targets = file.floats("unitPar", &[6, 1]).unwrap();
        let classes = [0.0, 1.0, 2.0, 0.0, 1.0, 2.0];
        targets.write_floats(&[0, 0], &[6, 1], &classes).unwrap();
        file.close().unwrap();
    };
    for (number, name) in ["a", "b"].into_iter().enumerate() {
        images(&format!("{name}.h5"), number + 1, false);
        let text = format!(
            "model = \"images.model\"\ndata = \"images/{name}.h5\"\noutput = \"images-{name}\"\nstrategy = \"data=1\"\n\
             transform = \"standardize\"\nbatch = 2\nepochs = 1\nseed = {number}\n[schedule]\nlearning_rate = 0.05\n"
        );
        fs::write(case.path(&format!("images-{name}.toml")), text).unwrap();
        case.answer(&format!("train images-{name}.toml --no-prediction"));
    }
    images("plain.h5", 3, false);
    images("flipped.h5", 3, true);
    let run = "infer images-a.toml --split train";
    let mut means = vec![0.0; 18];
    for (data, weights) in [
        ("plain", "a"),
        ("flipped", "a"),
        ("plain", "b"),
        ("flipped", "b"),
    ] {
        case.answer(&format!(
            "{run} --data images/{data}.h5 --weights images-{weights} --out part.npy"
        ));
        for (mean, part) in means.iter_mut().zip(case.array("part.npy").1) {
            *mean += f64::from(part) / 4.0;
        }
    }
    let from = format!(
        "{run} --data images/plain.h5 --weights images-a,images-b --mirror width --out found.npy"
    );
    case.answer(&from);
    assert_close(&case.array("found.npy").1, &means, "one rank");
    for (strategy, ranks) in [("data=2", "2"), ("height=2", "2"), ("filter=2", "2")] {
        case.answer(&format!("{from} --strategy {strategy} --ranks {ranks}"));
        assert_close(&case.array("found.npy").1, &means, strategy);
    }
    let told = case.refusal(&format!("{run} --mirror depth --out found.npy"));
    assert!(told.contains("help: try `--mirror height,width`"), "{told}");
}

#[test]
fn evaluations_are_of_the_means() {
    let case = trained();
    let list = WEIGHTS.join(",");
    for run in ["run.toml", "tiled.toml --volumes tiles"] {
        let measured =
            |more: &str| case.json(&format!("evaluate {run} {more} --json"))["metrics"].clone();
        let loss = |metrics: &serde_json::Value| metrics["loss"].as_f64().unwrap();
        // The mean of the same is the same.
        let (one, same) = (measured("--weights out"), measured("--weights out,out"));
        assert!(
            (loss(&one) - loss(&same)).abs() < 1e-6 * loss(&one),
            "{run}"
        );
        assert_eq!(one["classification"], same["classification"], "{run}");
        let means = measured(&format!("--weights {list} --mirror d,h"));
        // As the classes that `infer` writes say.
        let from = format!("infer {run} --weights {list} --mirror d,h --output classes");
        case.answer(&format!("{from} --out evaluated.npy"));
        let found = accuracy(case, &npy(&case.path("evaluated.npy")).1);
        let told = means["classification"]["accuracy"].as_f64().unwrap();
        assert!((found - told).abs() < 1e-9, "{run}: {found} {told}");
        assert!((loss(&one) - loss(&means)).abs() > 1e-4, "{run}");
        for (strategy, ranks) in STRATEGIES {
            let more = format!("--weights {list} --mirror d,h --ranks {ranks} --strategy");
            let arguments = format!("evaluate {run} {more}");
            let mut arguments: Vec<&str> = arguments.split(' ').collect();
            arguments.extend([strategy, "--json"]);
            let found: serde_json::Value =
                serde_json::from_str(&case.answer_of(&arguments)).unwrap();
            let found = &found["metrics"];
            assert!(
                (loss(found) - loss(&means)).abs() < 1e-6 * loss(&means),
                "{run} {strategy}"
            );
            assert_eq!(found["samples"], means["samples"], "{run} {strategy}");
        }
    }
}

/// Crops that are samples of their own are averaged, and evaluated, one by one.
#[test]
fn evaluations_of_crops_are_of_the_means() {
    let case = trained();
    case.answer("data segmentation --out large --volumes 6 --grid 12 --validation 0.34 --test 0");
    let more = "batch = 3\nepochs = 1\n[augmentation]\ncrop = [8, 8, 8]\nvalidation_crops = \"grid\"\n\
                [schedule]\nlearning_rate = 0.02\n";
    case.run_file("crops.toml", "out", more);
    let run = "crops.toml --data large --volumes crops";
    let measured = |more: &str| {
        let words = format!("evaluate {run} --json {more}");
        case.json(&words)["metrics"].clone()
    };
    let loss = |metrics: &serde_json::Value| metrics["loss"].as_f64().unwrap();
    let (one, same) = (measured("--weights out"), measured("--weights out,out"));
    // 2 volumes of 8 crops.
    assert_eq!(
        (&one["samples"], &same["samples"]),
        (&16.into(), &16.into())
    );
    assert!((loss(&one) / loss(&same) - 1.0).abs() < 1e-6);
    assert_eq!(one["classification"], same["classification"]);
    let averaged = format!("--weights {} --mirror d,w", WEIGHTS.join(","));
    let means = measured(&averaged);
    assert!((loss(&one) - loss(&means)).abs() > 1e-4);
    // As the classes that `infer` writes say.
    let from = format!("infer {run} {averaged} --output classes --out crops.npy");
    case.answer(&from);
    let told = means["classification"]["accuracy"].as_f64().unwrap();
    let found = accuracy_of_crops(case, &npy(&case.path("crops.npy")).1);
    assert!((found - told).abs() < 1e-9, "{found} {told}");
    for (strategy, ranks) in [("data=2", "2"), ("depth=2", "2"), ("filter=2", "2")] {
        let found = measured(&format!("{averaged} --strategy {strategy} --ranks {ranks}"));
        let is_near = (loss(&found) / loss(&means) - 1.0).abs() < 1e-6;
        assert!(is_near, "{strategy}");
        assert_eq!(found["samples"], means["samples"], "{strategy}");
    }
}

/// The share of the voxels of the crops of 8^3 that cover volumes of 12^3 whose predicted class is that of the dataset.
fn accuracy_of_crops(case: &Case, classes: &[u8]) -> f64 {
    accuracy_of(case, "large", classes, |crop| {
        let [d, h, w] = [crop / 4 % 2, crop / 2 % 2, crop % 2].map(|at| 4 * at..4 * at + 8);
        (crop / 8, [0..1, d, h, w])
    })
}

/// The share of the voxels of the validation split whose predicted class is that of the dataset.
fn accuracy(case: &Case, classes: &[u8]) -> f64 {
    accuracy_of(case, "set", classes, |sample| {
        (sample, [0..1, 0..8, 0..8, 0..8])
    })
}

/// The same, of the 8^3 voxels of each part of a dataset: of a sample, a region.
fn accuracy_of(
    case: &Case,
    dataset: &str,
    classes: &[u8],
    place: impl Fn(usize) -> (usize, [Range<usize>; 4]),
) -> f64 {
    let dataset = Dataset::open(case.path(dataset)).unwrap();
    let mut reader = dataset.reader(Split::Validation);
    let (mut labels, mut hits) = (Samples::new(DType::Int16), 0);
    for (part, classes) in classes.chunks_exact(512).enumerate() {
        let (sample, region) = place(part);
        reader.read_labels(sample, region, &mut labels).unwrap();
        let Samples::I16(labels) = &labels else {
            panic!("labels are integers");
        };
        let pairs = labels.iter().zip(classes);
        hits += pairs
            .filter(|&(&label, &class)| label == i16::from(class))
            .count();
    }
    hits as f64 / classes.len() as f64
}

#[test]
fn weights_and_dims_that_do_not_fit_are_refused_by_name() {
    let case = trained();
    let other = "model other\ninput x channels=1 extent=8x8x8\nc1 = conv x filters=5 kernel=3 pad=1 bias=false\n\
                 n1 = batch_norm c1 epsilon=1e-5 momentum=0.1\na1 = relu n1\nc2 = conv a1 filters=3 kernel=1 bias=true\n\
                 loss = softmax_cross_entropy c2\n";
    fs::write(case.path("other.model"), other).unwrap();
    let text = fs::read_to_string(case.path("second.toml")).unwrap();
    let text = text
        .replace("small.model", "other.model")
        .replace("\"second\"", "\"misfit\"");
    fs::write(case.path("misfit.toml"), text).unwrap();
    case.answer("train misfit.toml --no-prediction");
    for (more, expected) in [
        ("--weights out,none.safetensors", "none.safetensors"),
        ("--weights out,misfit", "misfit/weights.safetensors"),
        ("--weights out,", "help: try out"),
        ("--weights out,,second", "help: try out,second"),
        ("--mirror x", "help: try width"),
        ("--mirror h,h", "help: try height"),
        ("--mirror channels", "help: try height,width"),
        ("--best --weights out,second", "cannot be used with"),
    ] {
        let told = case.refusal(&format!("infer run.toml --out refused.npy {more}"));
        assert!(told.contains(expected), "{more}: {told}");
        assert!(!case.path("refused.npy").exists());
    }
    // One position has nothing to mirror.
    let point = "model point\ninput x channels=1 extent=1x1x1\nl1 = linear x features=3 bias=true\nloss = mse l1\n";
    fs::write(case.path("point.model"), point).unwrap();
    let text = fs::read_to_string(case.path("second.toml")).unwrap();
    fs::write(
        case.path("point.toml"),
        text.replace("small.model", "point.model"),
    )
    .unwrap();
    samples(case, "point.h5", [1; 3], [false; 3]);
    let told = case.refusal("infer point.toml --data point.h5 --out refused.npy --mirror w");
    assert!(
        told.contains("no spatial dim") && told.contains("help: leave out `--mirror`"),
        "{told}"
    );
}

/// Classes and D, H, W of a volume whose scores take 75 MiB.
const CLASSES: usize = 100;
const LONG: [usize; 3] = [192, 32, 32];

/// A folder with a model of many classes, its weights, a run file and one long volume.
fn long_volume() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let model = format!(
        "model many\ninput x channels=1 extent=32x32x32\nc1 = conv x filters={CLASSES} kernel=1 bias=true init=he_normal\n\
         loss = softmax_cross_entropy c1\n"
    );
    fs::write(path("many.model"), model).unwrap();
    let text = "model = \"many.model\"\ndata = \"volume.h5\"\noutput = \"out\"\nstrategy = \"data=1\"\nbatch = 1\nepochs = 1\n\
                [augmentation]\ncrop = [32, 32, 32]\n[schedule]\nlearning_rate = 0.01\n";
    fs::write(path("run.toml"), text).unwrap();
    let [depth, height, width] = LONG;
    let file = TargetFile::create(&path("volume.h5")).unwrap();
    let shape = [1, 1, depth, height, width];
    let array = file
        .volumes("full", &shape, DType::Float32, &Layout::Contiguous)
        .unwrap();
    let values = (0..depth * height * width).map(|at| (at % 1013) as f32 / 500.0 - 1.0);
    array
        .write_box(&[0; 5], &shape, &Samples::F32(values.collect()))
        .unwrap();
    file.close().unwrap();
    weights(&path("many.safetensors"), CLASSES);
    folder
}

/// The class of the greatest score of each position, the first of equals, of scores as bytes.
fn best(scores: &[u8], positions: usize) -> Vec<usize> {
    let (words, mut best) = (scores.as_chunks::<4>().0, vec![(f32::MIN, 0); positions]);
    for (class, scores) in words.chunks_exact(positions).enumerate() {
        for (best, &score) in best.iter_mut().zip(scores) {
            let score = f32::from_le_bytes(score);
            if score > best.0 {
                *best = (score, class);
            }
        }
    }
    best.into_iter().map(|(_, class)| class).collect()
}

/// No file may be as large as the scores of all voxels.
#[test]
fn scores_of_a_volume_are_never_all_on_the_disk() {
    let folder = long_volume();
    let path = |name: &str| folder.path().join(name);
    let positions = LONG.iter().product::<usize>();
    // In blocks of 512 bytes.
    let limit = (positions * CLASSES * size_of::<f32>() * 9 / 10 / 512).to_string();
    let run = |more: &str, limit: &str| {
        let program = env!("CARGO_BIN_EXE_partita");
        let text = format!(
            "ulimit -f {limit}; exec {program} infer run.toml --weights many.safetensors --volumes tiles {more}"
        );
        let mut command = Command::new("sh");
        command.args(["-c", &text]).current_dir(folder.path());
        command.output().unwrap()
    };
    let limited = run("--output classes --out classes.npy", &limit);
    assert!(limited.status.success(), "{limited:?}");
    let refused = run("--out scores.npy", &limit);
    assert!(
        !refused.status.success(),
        "all scores take more than the limit"
    );
    let all = run("--out scores.npy", "unlimited");
    assert!(all.status.success(), "{all:?}");
    let (header, classes) = npy(&path("classes.npy"));
    assert!(
        header.contains("'|u1'") && header.contains("(1, 192, 32, 32)"),
        "{header}"
    );
    let expected = best(&npy(&path("scores.npy")).1, positions);
    let found: Vec<usize> = classes.iter().copied().map(usize::from).collect();
    assert!(found == expected && found.iter().any(|class| *class != found[0]));
    // Two ranks share rows and have the same classes.
    let two = "--output classes --out two.npy --ranks 2 --strategy depth=2";
    let two = run(two, &limit);
    assert!(two.status.success(), "{two:?}");
    assert!(npy(&path("two.npy")).1 == classes);
}

/// A file of weights of a convolution of one channel to these classes.
fn weights(path: &std::path::Path, classes: usize) {
    let value = |at: usize| ((at * 7919 % 1009) as f32) / 500.0 - 1.0;
    let kernel: Vec<u8> = (0..classes)
        .flat_map(|at| value(at).to_le_bytes())
        .collect();
    let bias: Vec<u8> = (0..classes)
        .flat_map(|at| value(at + 500).to_le_bytes())
        .collect();
    let header = format!(
        "{{\"c1.weight\":{{\"dtype\":\"F32\",\"shape\":[{classes},1,1,1,1],\"data_offsets\":[0,{}]}},\
         \"c1.bias\":{{\"dtype\":\"F32\",\"shape\":[{classes}],\"data_offsets\":[{},{}]}}}}",
        kernel.len(),
        kernel.len(),
        2 * kernel.len()
    );
    let length = (header.len() as u64).to_le_bytes();
    fs::write(
        path,
        [&length[..], header.as_bytes(), &kernel, &bias].concat(),
    )
    .unwrap();
}

/// Classes as every format has them: in the narrowest type with room for all.
#[test]
fn classes_have_the_bytes_that_they_need() {
    let case = case();
    for (classes, npy_type, bytes, code) in [(256, "'|u1'", 1, 2), (257, "'<u2'", 2, 512)] {
        let model = format!(
            "model wide\ninput x channels=1 extent=8x8x8\nc1 = conv x filters={classes} kernel=1 bias=true init=he_normal\n\
             loss = softmax_cross_entropy c1\n"
        );
        fs::write(case.path("wide.model"), model).unwrap();
        let text = "model = \"wide.model\"\ndata = \"set\"\noutput = \"wide\"\nstrategy = \"data=1\"\nbatch = 1\n\
                    epochs = 1\n[schedule]\nlearning_rate = 0.01\n";
        fs::write(case.path("wide.toml"), text).unwrap();
        weights(&case.path("wide.safetensors"), classes);
        let from = "infer wide.toml --weights wide.safetensors --split test";
        case.answer(&format!("{from} --out wide.npy"));
        let (_, scores) = case.array("wide.npy");
        let best = |at: usize| {
            let of = |class: usize| scores[(at / 512 * classes + class) * 512 + at % 512];
            (1..classes).fold(
                0,
                |best, class| if of(class) > of(best) { class } else { best },
            )
        };
        let expected: Vec<usize> = (0..3 * 512).map(best).collect();
        assert!(expected.iter().any(|&class| class != expected[0]));
        let decode = |values: &[u8]| -> Vec<usize> {
            let wide = |word: &[u8]| {
                word.iter()
                    .rev()
                    .fold(0, |all, &byte| all << 8 | usize::from(byte))
            };
            values.chunks_exact(bytes).map(wide).collect()
        };
        case.answer(&format!("{from} --output classes --out wide-classes.npy"));
        let (header, values) = npy(&case.path("wide-classes.npy"));
        assert!(header.contains(npy_type), "{header}");
        assert_eq!(decode(&values), expected);
        let answer = case.json(&format!(
            "{from} --output classes --out wide-classes.nii --json"
        ));
        let files = answer["files"].as_array().unwrap();
        for (file, expected) in files.iter().zip(expected.chunks(512)) {
            let (header, values) = super::nifti(&case.path(file.as_str().unwrap()));
            assert_eq!(i16::from_le_bytes([header[70], header[71]]), code);
            assert_eq!(
                i16::from_le_bytes([header[72], header[73]]),
                8 * bytes as i16
            );
            assert_eq!(decode(&values), expected);
        }
        case.answer(&format!("{from} --output classes --out wide-classes.h5"));
        let told = case.answer("data inspect wide-classes.h5");
        let name = if bytes == 1 { "uint8" } else { "uint16" };
        assert!(told.contains(name), "{told}");
    }
}
