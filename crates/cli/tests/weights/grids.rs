//! Predictions of images that were converted to another orientation or spacing lie where the images do.

use super::{Case, case, nifti, npy};
use std::fs;
use std::path::Path;

/// A volume of 16-bit integers with a sform; values and positions are those of a voxel (x, y, z).
fn volume(path: &Path, extent: [usize; 3], affine: &[f32; 12], of: impl Fn([usize; 3]) -> i16) {
    let mut bytes = vec![0; 352];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, &348_i32.to_le_bytes());
    let [x, y, z] = extent;
    for (dim, extent) in [3, x, y, z, 1, 1, 1, 1].into_iter().enumerate() {
        put(40 + 2 * dim, &(extent as i16).to_le_bytes());
    }
    put(70, &4_i16.to_le_bytes());
    put(72, &16_i16.to_le_bytes());
    put(108, &352_f32.to_le_bytes());
    put(254, &1_i16.to_le_bytes());
    for (at, value) in affine.iter().enumerate() {
        put(280 + 4 * at, &value.to_le_bytes());
    }
    put(344, b"n+1\0");
    let voxels = (0..x * y * z).map(|at| of([at % x, at / x % y, at / x / y]));
    bytes.extend(voxels.flat_map(i16::to_le_bytes));
    fs::write(path, bytes).unwrap();
}

/// Images in which x runs to posterior, y to superior and z to the right, and labels in RAS. `spacing` is along x, y
/// and z of the images.
fn task(case: &Case, name: &str, [x, y, z]: [usize; 3], [dx, dy, dz]: [f32; 3]) -> [f32; 12] {
    for folder in ["imagesTr", "labelsTr"] {
        fs::create_dir_all(case.path(name).join(folder)).unwrap();
    }
    #[rustfmt::skip]
    let image = [
        0.0, 0.0, dz, -7.0,
        -dx, 0.0, 0.0, 5.0,
        0.0, dy, 0.0, 3.0,
    ];
    #[rustfmt::skip]
    let labels = [
        dz, 0.0, 0.0, -7.0,
        0.0, dx, 0.0, 5.0 - dx * (x - 1) as f32,
        0.0, 0.0, dy, 3.0,
    ];
    for number in 0..5 {
        let file = |folder: &str| case.path(name).join(format!("{folder}/case_{number}.nii"));
        volume(&file("imagesTr"), [x, y, z], &image, |[x, y, z]| {
            (x * 37 + y * 17 + z * 5 + number) as i16 % 90
        });
        volume(&file("labelsTr"), [z, x, y], &labels, |[r, _, s]| {
            (r > s).into()
        });
    }
    image
}

/// Extents and affine of a file of predictions, and its values: classes, or the bits of floats.
fn classes(path: &Path) -> ([usize; 3], Vec<f32>, Vec<u32>) {
    let (header, values) = nifti(path);
    let extent = [42, 44, 46].map(|at| i16::from_le_bytes([header[at], header[at + 1]]) as usize);
    let words = header[280..328].as_chunks::<4>().0.iter();
    let affine = words.map(|&word| f32::from_le_bytes(word)).collect();
    let values = if header[70] == 2 {
        values.into_iter().map(u32::from).collect()
    } else {
        let words = values.as_chunks::<4>().0.iter();
        words.map(|&word| u32::from_le_bytes(word)).collect()
    };
    (extent, affine, values)
}

#[test]
fn predictions_of_reoriented_images_have_their_voxels() {
    let case = case();
    let affine = task(case, "turned", [8, 8, 8], [0.75, 1.0, 1.5]);
    let converted = case.output(&["data", "convert", "turned", "--out", "straight"]);
    let told = String::from_utf8(converted.stderr).unwrap();
    let text = String::from_utf8(converted.stdout).unwrap();
    assert!(converted.status.success(), "{told}");
    assert!(
        told.contains("images (5 in PSR) are stored in RAS"),
        "{told}"
    );
    assert!(
        told.contains("5 files of labels lie in another orientation"),
        "{told}"
    );
    assert!(text.contains("orientation = \"canonical\""), "{text}");
    let from = "infer run.toml --data straight --split train --output classes";
    let arguments = format!("{from} --out turned.npy");
    let output = case.output(&arguments.split(' ').collect::<Vec<_>>());
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(
        told.contains("`--out NAME.nii.gz` writes each on the voxels of its image"),
        "{told}"
    );
    let (_, stored) = npy(&case.path("turned.npy"));
    let answer = case.json(&format!("{from} --out turned.nii --json"));
    let files = answer["files"].as_array().unwrap();
    assert_eq!(files.len(), 3);
    let stored: Vec<u32> = stored.into_iter().map(u32::from).collect();
    for (file, stored) in files.iter().zip(stored.chunks(512)) {
        let (extent, found, values) = classes(&case.path(file.as_str().unwrap()));
        assert_eq!((extent, found), ([8; 3], affine.to_vec()));
        assert!(values.iter().any(|&class| class != values[0]));
        for (at, class) in values.into_iter().enumerate() {
            let [x, y, z] = [at % 8, at / 8 % 8, at / 64];
            let [d, h, w] = [y, 7 - x, z];
            assert_eq!(class, stored[(d * 8 + h) * 8 + w], "{file} ({x}, {y}, {z})");
        }
    }
}

#[test]
fn predictions_of_resampled_images_have_their_voxels() {
    let case = case();
    let (extent, spacing) = ([4, 16, 8], [2.0, 0.5, 1.0]);
    let affine = task(case, "anisotropic", extent, spacing);
    let text = case.answer("data convert anisotropic --out even --spacing 1x1x1");
    assert!(
        text.contains("8x8x8") && text.contains("spacing = [1.0, 1.0, 1.0]"),
        "{text}"
    );
    let from = "infer run.toml --data even --split train";
    for (kind, values_each) in [("classes", 1), ("probabilities", 3)] {
        let answer = case.json(&format!("{from} --output {kind} --out even.nii --json"));
        for file in answer["files"].as_array().unwrap() {
            let (found, rows, values) = classes(&case.path(file.as_str().unwrap()));
            assert_eq!((found, rows), (extent, affine.to_vec()));
            assert_eq!(values.len(), 512 * values_each);
            if kind == "probabilities" {
                let of = |channel: usize, at: usize| f32::from_bits(values[channel * 512 + at]);
                let sums = (0..512).map(|at| of(0, at) + of(1, at) + of(2, at));
                assert!(
                    sums.into_iter().all(|sum| (sum - 1.0).abs() < 1e-5),
                    "{file}"
                );
            }
        }
    }
    for (option, says) in [
        (
            "--spacing 1x1",
            "three distances in millimeters along D, H and W",
        ),
        ("--spacing 1x0x1", "each above 0"),
        ("--orientation ras", "canonical, image"),
    ] {
        let refused = case.refusal(&format!("data convert anisotropic --out other {option}"));
        assert!(refused.contains(says), "{refused}");
    }
}

/// What a command says on both streams.
fn said(case: &Case, arguments: &str) -> String {
    let output = case.output(&arguments.split(' ').collect::<Vec<_>>());
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8(text).unwrap();
    assert!(output.status.success(), "{arguments}: {text}");
    text
}

/// Trains the small model on a dataset for an epoch, by the run file `NAME.toml`.
fn train(case: &Case, name: &str, data: &str, more: &str) {
    let text = format!(
        "model = \"small.model\"\ndata = \"{data}\"\noutput = \"{name}-out\"\nstrategy = \"data=1\"\nbatch = 1\n\
         epochs = 1\n{more}\n[schedule]\nlearning_rate = 0.01\n"
    );
    fs::write(case.path(&format!("{name}.toml")), text).unwrap();
    case.answer(&format!("train {name}.toml --no-prediction"));
}

#[test]
fn data_on_other_voxels_than_those_of_the_training_are_told() {
    let case = case();
    task(case, "fine", [4, 16, 8], [2.0, 0.5, 1.0]);
    let unlabeled = case.path("fine/imagesTs");
    fs::create_dir(&unlabeled).unwrap();
    let image = case.path("fine/imagesTr/case_0.nii");
    fs::copy(&image, unlabeled.join("case_9.nii")).unwrap();
    let told = said(
        case,
        "data convert fine --out fine-set --spacing 1x1x1 --interpolation cubic",
    );
    let hint = "fine/imagesTs --out NEW --spacing 1x1x1 --interpolation cubic` makes a dataset";
    assert!(told.contains(hint), "{told}");
    train(case, "fine", "fine-set", "");
    let same = said(case, "evaluate fine.toml --split train");
    assert!(!same.contains("a network sees voxels alone"), "{same}");
    case.answer("data convert fine/imagesTs --out as-hinted --spacing 1x1x1 --interpolation cubic");
    let same = said(case, "infer fine.toml --data as-hinted --out as-hinted.nii");
    assert!(!same.contains("a network sees voxels alone"), "{same}");
    // Cubes of other spacings, as they lie and in RAS.
    task(case, "coarse", [8, 8, 8], [1.05, 1.0, 2.5]);
    case.answer("data convert coarse --out coarse-set --orientation image");
    let spacing = "in coarse-set spacing (D, H, W) is 2.5 x 1 x 1.05 mm, and that of the training data 1 x 1 x 1 mm; \
                   `partita data convert --spacing 1x1x1` resamples to it";
    let orientation = "orientation (of W, H, D) is PSR, and that of the training data RAS; `partita data convert \
                       --orientation canonical` stores all in RAS";
    case.answer("weights export fine.toml --out fine.safetensors");
    for command in [
        "evaluate fine.toml --data coarse-set",
        "infer fine.toml --data coarse-set --out coarse.h5",
        "infer fine.toml --weights fine.safetensors --data coarse-set --out coarse.h5",
    ] {
        let told = said(case, command);
        assert!(
            told.contains(spacing) && told.contains(orientation),
            "{told}"
        );
    }
    // Within a tenth nothing is said.
    task(case, "near", [8, 8, 8], [1.09, 1.0, 0.92]);
    case.answer("data convert near --out near-set");
    let near = said(case, "evaluate fine.toml --data near-set");
    assert!(!near.contains("a network sees voxels alone"), "{near}");
}

/// A crop in the middle is no volume, and lies where it was cut.
#[test]
fn crops_are_named_and_placed_as_crops() {
    let case = case();
    let affine = task(case, "wide", [12, 10, 13], [0.75, 1.0, 1.5]);
    case.answer("data convert wide --out wide-set --orientation image --split 0.2,0.6,0.2");
    train(
        case,
        "wide",
        "wide-set",
        "[augmentation]\ncrop = [8, 8, 8]\nvalidation_crops = \"center\"",
    );
    let from = "wide.toml --volumes crops --json";
    let answer = case.json(&format!("infer {from} --out middle.nii --output classes"));
    let names = answer["names"].as_array().unwrap();
    assert_eq!(names.len(), 3);
    let measured = case.json(&format!("evaluate {from} --per-sample"));
    for (at, (name, file)) in (names.iter().zip(answer["files"].as_array().unwrap())).enumerate() {
        let name = name.as_str().unwrap();
        assert!(
            name.starts_with("case_") && name.ends_with("-crop0"),
            "{name}"
        );
        assert_eq!(measured["samples"][at]["name"], name);
        let (extent, found, _) = classes(&case.path(file.as_str().unwrap()));
        assert_eq!(extent, [8; 3]);
        let mut moved = affine;
        for row in moved.chunks_mut(4) {
            row[3] += 2.0 * row[0] + row[1] + 2.0 * row[2];
        }
        assert_eq!(found, moved);
    }
    // Crops of the training split cover its volume.
    let answer = case.json(&format!("infer {from} --split train --out covering.nii"));
    let names = answer["names"].as_array().unwrap();
    assert_eq!(names.len(), 8);
    assert!(names[7].as_str().unwrap().ends_with("-crop7"), "{answer}");
    let (_, found, _) = classes(&case.path(answer["files"][7].as_str().unwrap()));
    let last = |row: &[f32]| row[3] + 4.0 * row[0] + 2.0 * row[1] + 5.0 * row[2];
    let expected: Vec<f32> = affine.chunks(4).map(last).collect();
    assert_eq!([found[3], found[7], found[11]], *expected);
    // A volume that is not larger than a crop keeps its name.
    task(case, "small", [8, 8, 8], [1.0; 3]);
    case.answer("data convert small --out small-set");
    let answer = case.json(&format!(
        "infer {from} --data small-set --split validation --out one.nii.gz"
    ));
    assert!(
        !answer["names"][0].as_str().unwrap().contains("crop"),
        "{answer}"
    );
    // The one file that was typed replaces no other.
    fs::write(case.path("one.nii.gz"), b"a scan").unwrap();
    let refused = case.refusal(&format!(
        "infer {from} --data small-set --split validation --out one.nii.gz"
    ));
    assert!(refused.contains("one.nii.gz is there already"), "{refused}");
}
