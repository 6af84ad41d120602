//! A folder of scans of different extents, from `convert` to `infer`.

use crate::command::{answer, json, partita};
use std::fs;
use std::path::Path;
use std::process::Command;

/// X, Y, Z of the scans; one is smaller than the crop along Z.
const SCANS: [[usize; 3]; 5] = [[9, 8, 12], [8, 10, 6], [13, 8, 8], [10, 9, 8], [8, 8, 9]];
const MODEL: &str = "model near
input x channels=1 extent=8x8x8
c1 = conv x filters=4 kernel=3 pad=1 bias=true init=he_normal
a1 = relu c1
c2 = conv a1 filters=2 kernel=3 pad=1 bias=true
loss = softmax_cross_entropy c2
";

/// A NIfTI-1 file of int16.
fn nifti([x, y, z]: [usize; 3], value: impl Fn(usize) -> i16) -> Vec<u8> {
    let mut bytes = vec![0; 352];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, &348_i32.to_le_bytes());
    for (dim, extent) in [3, x, y, z, 1, 1, 1, 1].into_iter().enumerate() {
        put(40 + 2 * dim, &(extent as i16).to_le_bytes());
    }
    put(70, &4_i16.to_le_bytes());
    put(72, &16_i16.to_le_bytes());
    (0..8).for_each(|dim| put(76 + 4 * dim, &1_f32.to_le_bytes()));
    put(108, &352_f32.to_le_bytes());
    put(112, &1_f32.to_le_bytes());
    put(344, b"n+1\0");
    let values = (0..x * y * z).flat_map(|at| value(at).to_le_bytes());
    bytes.extend(values);
    bytes
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (n, scan) in SCANS.into_iter().enumerate() {
        let value = |at: usize| ((at * 7 + at / 50 + n) % 23) as i16;
        for (sub, bytes) in [
            ("imagesTr", nifti(scan, value)),
            ("labelsTr", nifti(scan, |at| i16::from(value(at) > 15))),
        ] {
            let sub = folder.path().join("task").join(sub);
            fs::create_dir_all(&sub).unwrap();
            fs::write(sub.join(format!("scan_{n}.nii")), bytes).unwrap();
        }
    }
    fs::write(folder.path().join("near.model"), MODEL).unwrap();
    folder
}

fn run_file(folder: &Path, more: &str) {
    let text = format!(
        "model = \"near.model\"\ndata = \"set\"\noutput = \"out\"\nbatch = 2\nepochs = 2\n\
         strategy = \"data=1\"\ntransform = \"standardize\"\n{more}\n[schedule]\n\
         learning_rate = 0.01\n"
    );
    fs::write(folder.join("run.toml"), text).unwrap();
}

/// What a command in the folder says, on both streams, and whether it succeeded.
fn say(folder: &Path, arguments: &[&str]) -> (String, bool) {
    let mut command: Command = partita(arguments);
    let said = command.current_dir(folder).output().unwrap();
    let text = [said.stdout, said.stderr].concat();
    (String::from_utf8(text).unwrap(), said.status.success())
}

#[test]
fn scans_of_different_extents_are_converted_trained_on_and_predicted() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let convert = ["data", "convert", "task", "--out", "set"];
    let (text, is_done) = say(folder.path(), &convert);
    assert!(is_done, "{text}");
    let text = answer(&["data", "inspect", &at("set")]);
    assert!(
        text.contains("from 6x8x8 to 12x10x13 with 1 channels"),
        "{text}"
    );
    let summary = json(&["data", "inspect", &at("set"), "--json"]);
    assert_eq!(summary["extent"], serde_json::json!([12, 10, 13]));
    assert_eq!(summary["smallest_extent"], serde_json::json!([6, 8, 8]));
    run_file(folder.path(), "");
    let (text, is_done) = say(folder.path(), &["train", "run.toml"]);
    assert!(
        !is_done && text.contains("`crop = [8, 8, 8]` in `[augmentation]`"),
        "{text}"
    );
    let crops = "[augmentation]\ncrop = { extent = [8, 8, 8], foreground = 0.33 }\n";
    run_file(folder.path(), crops);
    let (text, is_done) = say(folder.path(), &["train", "run.toml", "--no-prediction"]);
    assert!(is_done, "{text}");
    assert!(text.contains("are smaller than the crop 8x8x8"), "{text}");
    let trained = fs::read(folder.path().join("out/weights.safetensors")).unwrap();
    // Loaders cut the same crops.
    run_file(
        folder.path(),
        &format!("{crops}[offload]\nloaders = 1\ncores = \"0\"\n"),
    );
    let (text, is_done) = say(
        folder.path(),
        &["train", "run.toml", "--no-prediction", "--overwrite"],
    );
    assert!(is_done, "{text}");
    let weights = fs::read(folder.path().join("out/weights.safetensors")).unwrap();
    assert!(weights == trained);
    let infer = [
        "infer", "run.toml", "--split", "train", "--out", "seen.nii", "--json",
    ];
    let (text, is_done) = say(folder.path(), &infer);
    assert!(is_done, "{text}");
    let start = text.find('{').unwrap();
    let end = text.rfind('}').unwrap();
    let found: serde_json::Value = serde_json::from_str(&text[start..=end]).unwrap();
    let (files, extents) = (
        found["files"].as_array().unwrap(),
        found["extents"].as_array().unwrap(),
    );
    assert_eq!((files.len(), extents.len()), (3, 3));
    extents_are_told_as_ranges(folder.path(), extents);
    for (file, extent) in files.iter().zip(extents) {
        let bytes = fs::read(folder.path().join(file.as_str().unwrap())).unwrap();
        let dim =
            |at: usize| i64::from(i16::from_le_bytes([bytes[40 + 2 * at], bytes[41 + 2 * at]]));
        assert_eq!(*extent, serde_json::json!([dim(3), dim(2), dim(1)]));
    }
}

/// The text tells extents of the samples of the split, and how many of these are padded.
fn extents_are_told_as_ranges(folder: &Path, extents: &[serde_json::Value]) {
    let infer = ["infer", "run.toml", "--split", "train", "--out", "seen.h5"];
    let (text, _) = say(folder, &infer);
    let mut is_padded = false;
    let dims = [0, 1, 2].map(|dim| {
        let along = || extents.iter().map(|extent| extent[dim].as_u64().unwrap());
        let (least, most) = (along().min().unwrap(), along().max().unwrap());
        is_padded |= least < 8;
        if least < most {
            format!("{least} to {most}")
        } else {
            most.to_string()
        }
    });
    let shape = format!("scores      seen.h5 (3 x 2 x {})", dims.join(" x "));
    assert!(text.contains(&shape), "{shape} is not in: {text}");
    let told = text.contains("1 of 3 volumes (train) are smaller");
    assert_eq!(told, is_padded, "{text}");
}
