//! Names of samples from the files that are converted to predictions and metrics.

use super::{Case, case, nifti};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Voxels along each dim.
const EXTENT: usize = 8;
const VOXELS: usize = EXTENT * EXTENT * EXTENT;
/// Not the order of their files.
const CASES: [&str; 4] = ["case7", "case20", "b case", "case03"];

/// A NIfTI-1 file of 16-bit integers, X varying fastest, with a sform.
pub fn volume(path: &Path, affine: &[f32; 12], value: impl Fn(usize) -> i16) {
    let mut bytes = vec![0; 352];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, &348_i32.to_le_bytes());
    let extent = EXTENT as i16;
    let dims = [3, extent, extent, extent, 1, 1, 1, 1];
    for (dim, extent) in dims.into_iter().enumerate() {
        put(40 + 2 * dim, &extent.to_le_bytes());
    }
    put(70, &4_i16.to_le_bytes());
    put(72, &16_i16.to_le_bytes());
    put(108, &352_f32.to_le_bytes());
    put(254, &1_i16.to_le_bytes());
    for (at, value) in affine.iter().enumerate() {
        put(280 + 4 * at, &value.to_le_bytes());
    }
    put(344, b"n+1\0");
    let voxels = (0..VOXELS).flat_map(|at| value(at).to_le_bytes());
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, [bytes, voxels.collect()].concat()).unwrap();
}

pub const AFFINE: [f32; 12] = [1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0];

/// The label of a voxel of a case.
pub fn label(number: usize, at: usize) -> usize {
    (at + number * at / 7) % 3
}

/// A dataset `NAME-set` of four cases in the layout of nnU-Net, all of them for training.
fn convert(case: &Case, name: &str) -> String {
    for (number, one) in CASES.iter().enumerate() {
        let task = case.path(name);
        let image = task.join(format!("imagesTr/{one}_0000.nii"));
        volume(&image, &AFFINE, |at| (60 * number + at % 5) as i16);
        let labels = task.join(format!("labelsTr/{one}.nii"));
        volume(&labels, &AFFINE, |at| label(number, at) as i16);
    }
    let text = case.answer(&format!(
        "data convert {name} --out {name}-set --split 1,0,0"
    ));
    assert!(text.contains("case20"), "{text}");
    format!("run.toml --data {name}-set --split train")
}

fn texts(value: &Value) -> Vec<String> {
    let all = value.as_array().unwrap().iter();
    all.map(|one| one.as_str().unwrap().to_owned()).collect()
}

/// Header and floats of a packed NIfTI file.
fn unpacked(path: &Path) -> (Vec<u8>, Vec<f32>) {
    let output = Command::new("gzip").arg("-dc").arg(path).output().unwrap();
    assert!(output.status.success(), "{}", path.display());
    let bytes = output.stdout;
    let words = bytes[352..].as_chunks::<4>().0.iter();
    let values = words.map(|&word| f32::from_le_bytes(word)).collect();
    (bytes[..352].to_vec(), values)
}

/// Cross-entropy and the Dice coefficient of each class, by scores (3, 8, 8, 8).
fn measured(number: usize, scores: &[f32]) -> (f64, [f64; 3]) {
    let mut counts = [[0.0; 3]; 3];
    let mut loss = 0.0;
    for at in 0..VOXELS {
        let of = |class: usize| f64::from(scores[class * VOXELS + at]);
        let sum: f64 = (0..3).map(|class| of(class).exp()).sum();
        loss += (sum.ln() - of(label(number, at))) / VOXELS as f64;
        let greater = |best, class| if of(class) > of(best) { class } else { best };
        counts[(1..3).fold(0, greater)][label(number, at)] += 1.0;
    }
    let dice = [0, 1, 2].map(|class| {
        let both: f64 = (0..3)
            .map(|other| counts[class][other] + counts[other][class])
            .sum();
        2.0 * counts[class][class] / both
    });
    (loss, dice)
}

#[test]
fn names_of_files_are_those_of_predictions_and_metrics_on_any_ranks() {
    let case = case();
    let from = convert(case, "named");
    let whole = case.json(&format!("infer {from} --out named.npy --json"));
    let names = texts(&whole["names"]);
    let mut sorted = names.clone();
    sorted.sort();
    assert_eq!(sorted, ["b case", "case03", "case20", "case7"]);
    let (_, scores) = case.array("named.npy");
    for more in [
        "",
        " --ranks 2 --strategy data=2",
        " --ranks 2 --strategy depth=2",
    ] {
        let answer = case.json(&format!("infer {from} --out predicted/ --json{more}"));
        let files = names.iter().map(|name| format!("predicted/{name}.nii.gz"));
        assert_eq!(texts(&answer["files"]), files.collect::<Vec<_>>(), "{more}");
        for (at, name) in names.iter().enumerate() {
            let (_, values) = unpacked(&case.path("predicted").join(format!("{name}.nii.gz")));
            let expected = &scores[at * 3 * VOXELS..(at + 1) * 3 * VOXELS];
            let close = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-4;
            assert!(values.iter().zip(expected).all(close), "{name}{more}");
        }
        assert_eq!(fs::read_dir(case.path("predicted")).unwrap().count(), 4);
    }
    case.answer(&format!("infer {from} --out named.h5"));
    let file = fs::read(case.path("named.h5")).unwrap();
    let has = |name: &str| {
        file.windows(name.len())
            .any(|bytes| bytes == name.as_bytes())
    };
    assert!(names.iter().all(|name| has(name)));
    let text = case.answer("data inspect named.h5");
    assert!(
        text.contains("names") && text.contains("predictions"),
        "{text}"
    );
    let text = case.answer("data inspect named-set");
    assert!(names.iter().all(|name| text.contains(name)), "{text}");
}

/// A table of an earlier evaluation is replaced, and nothing else.
fn tables_replace_only_tables(case: &Case, from: &str) {
    case.answer(&format!("evaluate {from} --csv measured.csv"));
    let run = fs::read(case.path("run.toml")).unwrap();
    let text = case.refusal(&format!("evaluate {from} --csv run.toml"));
    assert!(text.contains("other files are not replaced"), "{text}");
    assert_eq!(fs::read(case.path("run.toml")).unwrap(), run);
    for own in [
        "name,sample,loss of my study\n",
        "name,sample,loss,my note\n",
    ] {
        fs::write(case.path("own.csv"), own).unwrap();
        case.refusal(&format!("evaluate {from} --csv own.csv"));
    }
}

#[test]
fn each_sample_has_its_name_loss_and_dice_on_any_ranks() {
    let case = case();
    let from = convert(case, "measured");
    let whole = case.json(&format!("infer {from} --out measured.npy --json"));
    let names = texts(&whole["names"]);
    let (_, scores) = case.array("measured.npy");
    for more in [
        "",
        " --ranks 2 --strategy data=2",
        " --ranks 2 --strategy depth=2",
    ] {
        let found = case.json(&format!("evaluate {from} --per-sample --json{more}"));
        let samples = found["samples"].as_array().unwrap();
        assert_eq!(samples.len(), 4, "{more}: {found}");
        for (at, (sample, name)) in samples.iter().zip(&names).enumerate() {
            assert_eq!(
                (sample["name"].as_str().unwrap(), &sample["sample"]),
                (&**name, &at.into())
            );
            let number = CASES.iter().position(|one| one == name).unwrap();
            let (loss, dice) = measured(number, &scores[at * 3 * VOXELS..(at + 1) * 3 * VOXELS]);
            let told = sample["loss"].as_f64().unwrap();
            assert!(
                (told / loss - 1.0).abs() < 1e-4,
                "{name}{more}: {told} and {loss}"
            );
            for (class, dice) in dice.iter().enumerate() {
                let told = &sample["classification"]["classes"][class]["dice"];
                let told = told.as_f64().unwrap();
                assert!(
                    (told - dice).abs() < 1e-2,
                    "{name}{more}: {told} and {dice}"
                );
            }
        }
        let plain = case.json(&format!("evaluate {from} --json{more}"));
        let [mean, expected] = [&found, &plain].map(|one| one["metrics"]["loss"].as_f64().unwrap());
        assert!(
            (mean / expected - 1.0).abs() < 1e-5,
            "{mean} and {expected}"
        );
        assert!(plain.get("samples").is_none());
    }
    let text = case.answer(&format!("evaluate {from} --csv measured.csv"));
    assert!(
        text.contains("Dice class2") && text.contains("case03"),
        "{text}"
    );
    tables_replace_only_tables(case, &from);
    let table = fs::read_to_string(case.path("measured.csv")).unwrap();
    let lines: Vec<&str> = table.lines().collect();
    assert!(
        lines[0].starts_with("name,sample,loss,accuracy,Dice "),
        "{table}"
    );
    assert_eq!(
        (lines.len(), lines[1].split(',').count()),
        (5, 7),
        "{table}"
    );
    for (at, name) in names.iter().enumerate() {
        assert!(
            lines[at + 1].starts_with(&format!("{name},{at},")),
            "{table}"
        );
    }
}

#[test]
fn predictions_replace_nothing_but_predictions() {
    let case = case();
    let from = convert(case, "guarded");
    let mine = case.path("scans/case20.nii.gz");
    fs::create_dir(case.path("scans")).unwrap();
    fs::write(&mine, b"a scan").unwrap();
    let text = case.refusal(&format!("infer {from} --out scans"));
    assert!(
        text.contains("scans/case20.nii.gz is there already"),
        "{text}"
    );
    assert_eq!(fs::read(&mine).unwrap(), b"a scan");
    assert_eq!(fs::read_dir(case.path("scans")).unwrap().count(), 1);
    fs::remove_file(&mine).unwrap();
    for _ in 0..2 {
        case.answer(&format!("infer {from} --out scans"));
        assert_eq!(fs::read_dir(case.path("scans")).unwrap().count(), 4);
    }
    // Nor does a path that was typed replace another file, though of the same shape and type.
    let infer = |file: &str| format!("infer {from} --out {file}");
    case.answer(&infer("mine.npy"));
    let (header, values) = super::npy(&case.path("mine.npy"));
    let header = format!("{:<117}\n", header.trim_end());
    let numpy = [b"\x93NUMPY\x01\0\x76\0", header.as_bytes(), &values].concat();
    let hdf5 = fs::read(case.path("set/test.h5")).unwrap();
    for (file, foreign) in [
        ("mine.npy", numpy),
        ("mine.h5", hdf5),
        ("mine.h5", Vec::new()),
    ] {
        let path = case.path(file);
        fs::write(&path, &foreign).unwrap();
        let text = case.refusal(&infer(file));
        let said = format!("{file} is there already, and no prediction of `partita infer`");
        assert!(text.contains(&said), "{text}");
        assert_eq!(fs::read(&path).unwrap(), foreign);
        fs::remove_file(&path).unwrap();
        case.answer(&infer(file));
        case.answer(&infer(file));
    }
    // Beside one another by a stem, and names that no file can have.
    let path = case.path("guarded-set/dataset.toml");
    let text = fs::read_to_string(&path).unwrap();
    let text = text
        .replace("\"case7\"", "\"../up\"")
        .replace("\"case20\"", "\"a/b\"");
    fs::write(&path, text.replace("\"b case\"", "\"a_b\"")).unwrap();
    let answer = case.json(&format!("infer {from} --out scans/p.nii --json"));
    let files = texts(&answer["files"]);
    for (name, file) in texts(&answer["names"]).iter().zip(&files) {
        let stem = match &**name {
            "../up" => "___up",
            "a/b" => "a_b-2",
            same => same,
        };
        assert_eq!(*file, format!("scans/p-{stem}.nii"));
        assert!(case.path(file).is_file());
    }
    assert_eq!(files.len(), 4);
    let text = case.refusal(&format!("infer {from} --out guarded-set/dataset.toml"));
    assert!(text.contains("for a folder with a .nii.gz"), "{text}");
    fs::write(case.path("taken"), b"").unwrap();
    let text = case.refusal(&format!("infer {from} --out taken"));
    assert!(text.contains("taken is a file"), "{text}");
}

/// Names of an old index, or of one of another tool, are made of files and numbers.
#[test]
fn an_index_without_names_is_predicted_and_evaluated_by_number() {
    let case = case();
    let found = case.json("evaluate run.toml --split test --per-sample --json");
    let samples = found["samples"].as_array().unwrap().iter();
    let names: Vec<&str> = samples.map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["test/0", "test/1", "test/2"]);
    let answer = case.json("infer run.toml --split test --out by-number --json");
    let files = ["0", "1", "2"].map(|number| format!("by-number/test_{number}.nii.gz"));
    assert_eq!(texts(&answer["files"]), files);
}

/// Where the marked voxel of an image lies, and that of a prediction.
#[test]
fn positions_of_voxels_are_kept_under_any_order_of_dims() {
    let case = case();
    let affine = [
        0.5, 0.0, 0.25, 7.0, 0.0, -2.0, 0.0, 2.0, 0.125, 0.0, 1.25, -3.0,
    ];
    let position = |affine: &[f32; 12], at: usize| -> [f32; 3] {
        let voxel = [at % EXTENT, at / EXTENT % EXTENT, at / EXTENT / EXTENT];
        std::array::from_fn(|row| {
            let row = &affine[4 * row..4 * row + 4];
            row[3] + (0..3).map(|dim| row[dim] * voxel[dim] as f32).sum::<f32>()
        })
    };
    let marked = 3 + EXTENT * (5 + EXTENT * 6);
    let stripe = |at: usize| if at == marked { 400 } else { 0 };
    volume(&case.path("marked/imagesTr/one.nii"), &affine, stripe);
    volume(&case.path("marked/labelsTr/one.nii"), &affine, |at| {
        (at % 3) as i16
    });
    fs::write(
        case.path("dot.model"),
        super::MODEL.replace("kernel=3 pad=1", "kernel=1 pad=0"),
    )
    .unwrap();
    let text = fs::read_to_string(case.path("run.toml")).unwrap();
    let text = text
        .replace("small.model", "dot.model")
        .replace("\"out\"", "\"dot\"");
    fs::write(case.path("dot.toml"), text).unwrap();
    case.answer("train dot.toml --no-prediction");
    for layout in ["WHD", "DHW", "HWD", "DWH"] {
        case.answer(&format!(
            "data convert marked --out marked-{layout} --split 1,0,0 --layout {layout}"
        ));
        let out = format!("marked-{layout}.nii");
        case.answer(&format!(
            "infer dot.toml --data marked-{layout} --split train --out {out}"
        ));
        let (header, values) = nifti(&case.path(&out));
        let word = |at: usize| f32::from_le_bytes(header[at..at + 4].try_into().unwrap());
        let found: [f32; 12] = std::array::from_fn(|at| word(280 + 4 * at));
        let (words, _) = values.as_chunks::<4>();
        let values: Vec<f32> = words[..VOXELS]
            .iter()
            .map(|&word| f32::from_le_bytes(word))
            .collect();
        let other = values[0];
        let differs: Vec<usize> = (0..VOXELS).filter(|&at| values[at] != other).collect();
        assert_eq!(differs.len(), 1, "{layout}");
        assert_eq!(
            position(&found, differs[0]),
            position(&affine, marked),
            "{layout}"
        );
    }
}
