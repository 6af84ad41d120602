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

/// Extents and affine of a file of predicted classes, and its values.
fn classes(path: &Path) -> ([usize; 3], Vec<f32>, Vec<i32>) {
    let (header, values) = nifti(path);
    let extent = [42, 44, 46].map(|at| i16::from_le_bytes([header[at], header[at + 1]]) as usize);
    let words = header[280..328].as_chunks::<4>().0.iter();
    let affine = words.map(|&word| f32::from_le_bytes(word)).collect();
    let values = values.as_chunks::<4>().0.iter();
    (
        extent,
        affine,
        values.map(|&word| i32::from_le_bytes(word)).collect(),
    )
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
    let stored: Vec<i32> = stored
        .as_chunks::<4>()
        .0
        .iter()
        .map(|&word| i32::from_le_bytes(word))
        .collect();
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
                let of =
                    |channel: usize, at: usize| f32::from_bits(values[channel * 512 + at] as u32);
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
