//! `partita data convert` of task folders of nnU-Net, from the folder to predictions.

use crate::command::{error_text, json, partita, refusal};
use std::fs;
use std::path::Path;

/// Extents X, Y, Z.
const EXTENTS: [i16; 3] = [8, 8, 4];

/// A NIfTI-1 file of float32.
fn nifti(path: &Path, value: impl Fn(usize) -> f32) {
    let mut bytes = vec![0; 352];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, &348_i32.to_le_bytes());
    let [x, y, z] = EXTENTS;
    for (dim, extent) in [3, x, y, z, 1, 1, 1, 1].into_iter().enumerate() {
        put(40 + 2 * dim, &extent.to_le_bytes());
    }
    put(70, &16_i16.to_le_bytes());
    put(72, &32_i16.to_le_bytes());
    put(108, &352_f32.to_le_bytes());
    put(344, b"n+1\0");
    bytes.extend((0..256).flat_map(|at| value(at).to_le_bytes()));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// Standard output and standard error of a call that must succeed.
fn said(arguments: &[&str]) -> (String, String) {
    let output = partita(arguments).output().unwrap();
    let errors = error_text(&output);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    (String::from_utf8(output.stdout).unwrap(), errors)
}

/// Cases of two channels with masks of 0 and 255, and two cases of a test without masks.
fn make_task(task: &Path) {
    for case in 0..4 {
        for channel in 0..2 {
            let image = task.join(format!("imagesTr/c{case}_000{channel}.nii"));
            nifti(&image, |at| ((at * 7 + case * 3 + channel) % 11) as f32);
        }
        let mask = task.join(format!("labelsTr/c{case}.nii"));
        nifti(&mask, |at| [0.0, 255.0][usize::from(at % 11 > 5)]);
    }
    for case in 0..2 {
        for channel in 0..2 {
            let image = task.join(format!("imagesTs/t{case}_000{channel}.nii"));
            nifti(&image, |at| ((at * 7 + case * 3 + channel) % 11) as f32);
        }
    }
}

/// Converts a source below a folder; standard output and standard error.
fn convert(folder: &Path, source: &str, out: &str, more: &[&str]) -> (String, String) {
    let [source, out] = [source, out].map(|name| folder.join(name).display().to_string());
    let head = [
        "data",
        "convert",
        &source,
        "--out",
        &out,
        "--split",
        "0.5,0.5,0",
    ];
    said(&[&head[..], more].concat())
}

#[test]
fn masks_of_a_task_are_told_with_what_to_type() {
    let folder = tempfile::tempdir().unwrap();
    make_task(&folder.path().join("task"));
    let (text, errors) = convert(folder.path(), "task", "masks", &[]);
    let warning = "warning: labels are 0, 255, so a model needs 256 channels";
    assert!(
        text.contains(warning) && text.contains("`--map 255=1`"),
        "{text}"
    );
    assert!(
        errors.contains("imagesTs: 2 cases without labels are left out"),
        "{errors}"
    );
    let masks = folder.path().join("masks").display().to_string();
    let inspected = json(&["data", "inspect", &masks, "--json"]);
    assert!(
        inspected["warnings"][0]
            .as_str()
            .unwrap()
            .starts_with("labels are 0, 255")
    );
}

#[test]
fn a_task_is_trained_on_and_its_test_is_predicted() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    make_task(&folder.path().join("task"));
    let (text, _) = convert(folder.path(), "task", "set", &["--map", "255=1"]);
    assert!(
        text.contains("4x8x8 with 2 channels") && !text.contains("warning"),
        "{text}"
    );
    let (text, errors) = convert(folder.path(), "task/imagesTs", "test", &[]);
    assert!(
        text.contains("samples alone") && errors.contains("`partita infer`"),
        "{text}{errors}"
    );
    let model = "model net\ninput x channels=2 extent=4x8x8\nc = conv x filters=2 kernel=3 pad=1 bias=true\n\
                 loss = softmax_cross_entropy c ignore=-1\n";
    fs::write(at("net.model"), model).unwrap();
    let run = format!(
        "model = {:?}\ndata = {:?}\noutput = {:?}\nranks = 2\nstrategy = \"depth=2\"\nbatch = 2\nepochs = 1\n\
         [schedule]\nlearning_rate = 0.01\n",
        at("net.model"),
        at("set"),
        at("out")
    );
    fs::write(at("run.toml"), &run).unwrap();
    said(&["train", &at("run.toml"), "--no-prediction"]);
    let (classes, test) = (at("classes.nii"), at("test"));
    let infer = [
        "infer",
        &at("run.toml"),
        "--data",
        &test,
        "--out",
        &classes,
        "--output",
        "classes",
        "--json",
    ];
    let found: serde_json::Value = serde_json::from_str(&said(&infer).0).unwrap();
    assert_eq!(
        (&found["samples"], &found["split"]),
        (&2.into(), &"test".into())
    );
    let text = refusal(&["evaluate", &at("run.toml"), "--data", &test]);
    assert!(text.contains("has no answers"), "{text}");
    // Nothing but positions that do not count.
    convert(
        folder.path(),
        "task",
        "none",
        &["--map", "0=ignore,255=ignore"],
    );
    fs::write(at("run.toml"), run.replace(&at("set"), &at("none"))).unwrap();
    let text = refusal(&["train", &at("run.toml"), "--no-prediction", "--overwrite"]);
    assert!(
        text.contains("no label of split train counts: all are -1"),
        "{text}"
    );
}

#[test]
fn a_map_is_read_as_pairs() {
    let convert =
        |map: &str| refusal(&["data", "convert", "nowhere", "--out", "set", "--map", map]);
    let text = convert("255");
    assert!(text.contains("FROM=TO") && text.contains("255=1"), "{text}");
    let text = convert("-1=ignore,3=2");
    assert!(text.contains("nowhere does not exist"), "{text}");
}
