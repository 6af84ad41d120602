//! Images and labels of NIfTI files lie in one orientation and at one spacing, and predictions where their images do.

#![allow(clippy::unwrap_used, reason = "helper functions of tests")]

use crate::made;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use made::whole;
use partita_data::{
    Conversion, ConvertSpec, Dataset, GeometrySpec, Interpolation, Split, VoxelOrientation,
};
use partita_formats::{DType, DataError, Samples};
use partita_input::{
    Accepted, CheckScope, DataCheck, PredictionKind, PredictionScratch, PredictionShape,
    Preparation,
};
use partita_program::Transform;

type Rows = [[f64; 4]; 3];

/// Voxels along x, y and z of a file, and their positions.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Voxels {
    extent: [usize; 3],
    rows: Rows,
}

impl Voxels {
    fn position(&self, at: [usize; 3]) -> [f64; 3] {
        self.rows
            .map(|row| row[3] + (0..3).map(|axis| row[axis] * at[axis] as f64).sum::<f64>())
    }

    fn all(&self) -> impl Iterator<Item = [usize; 3]> + use<> {
        let [x, y, z] = self.extent;
        (0..x * y * z).map(move |at| [at % x, at / x % y, at / x / y])
    }

    fn values(&self, of: impl Fn([f64; 3]) -> f64) -> Vec<f32> {
        self.all().map(|at| of(self.position(at)) as f32).collect()
    }

    /// Axis `a` is `order[a]` of before, from the other end where it is reversed.
    fn turned(&self, order: [usize; 3], reversed: [bool; 3]) -> Self {
        let extent = order.map(|axis| self.extent[axis]);
        let mut rows = self
            .rows
            .map(|row| [row[order[0]], row[order[1]], row[order[2]], row[3]]);
        for axis in (0..3).filter(|&axis| reversed[axis]) {
            for row in &mut rows {
                row[3] += row[axis] * (extent[axis] - 1) as f64;
                row[axis] = -row[axis];
            }
        }
        Self { extent, rows }
    }
}

/// Voxels of 1x2x3 mm in RAS, turned a little from the directions of the scanner.
fn straight() -> Voxels {
    let (s, c) = 0.1_f64.sin_cos();
    Voxels {
        extent: [4, 5, 6],
        rows: [
            [c, -2.0 * s, 0.0, -8.0],
            [s, 2.0 * c, 0.0, 3.0],
            [0.0, 0.0, 3.0, 20.0],
        ],
    }
}

fn write(path: &Path, voxels: &Voxels, channels: usize, values: &[f32], is_labels: bool) {
    let mut bytes = vec![0; 352];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, &348_i32.to_le_bytes());
    let [x, y, z] = voxels.extent;
    let dims = if channels > 1 { 4 } else { 3 };
    for (dim, extent) in [dims, x, y, z, channels, 1, 1, 1].into_iter().enumerate() {
        put(40 + 2 * dim, &(extent as i16).to_le_bytes());
    }
    let (code, bits) = if is_labels { (4_i16, 16_i16) } else { (16, 32) };
    put(70, &code.to_le_bytes());
    put(72, &bits.to_le_bytes());
    put(108, &352_f32.to_le_bytes());
    put(254, &1_i16.to_le_bytes());
    for (at, value) in voxels.rows.iter().flatten().enumerate() {
        put(280 + 4 * at, &(*value as f32).to_le_bytes());
    }
    put(344, b"n+1\0");
    for value in values {
        if is_labels {
            bytes.extend((*value as i16).to_le_bytes());
        } else {
            bytes.extend(value.to_le_bytes());
        }
    }
    fs::write(path, bytes).unwrap();
}

fn read(path: &Path) -> (Voxels, usize, Vec<f32>) {
    let bytes = fs::read(path).unwrap();
    let dim = |at: usize| {
        let at = 40 + 2 * at;
        i16::from_le_bytes([bytes[at], bytes[at + 1]]) as usize
    };
    let word = |at: usize| -> [u8; 4] { bytes[at..at + 4].try_into().unwrap() };
    let row = |row: usize| {
        [0, 1, 2, 3].map(|at| f64::from(f32::from_le_bytes(word(280 + 16 * row + 4 * at))))
    };
    let voxels = Voxels {
        extent: [dim(1), dim(2), dim(3)],
        rows: [row(0), row(1), row(2)],
    };
    // Classes have a byte.
    let is_class = bytes[70] == 2;
    let values = (352..bytes.len())
        .step_by(if is_class { 1 } else { 4 })
        .map(|at| {
            if is_class {
                f32::from(bytes[at])
            } else {
                f32::from_le_bytes(word(at))
            }
        });
    (voxels, dim(4), values.collect())
}

fn field([x, y, z]: [f64; 3]) -> f64 {
    2.0 * x - 3.0 * y + 0.5 * z + 100.0
}

/// One of three classes for each millimeter along a direction.
fn class([x, y, z]: [f64; 3]) -> f64 {
    (x - 0.71 * y + 0.43 * z + 1000.1).round().rem_euclid(3.0)
}

struct Task {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl Task {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_path_buf();
        for sub in ["imagesTr", "labelsTr"] {
            fs::create_dir_all(path.join("task").join(sub)).unwrap();
        }
        Self {
            _folder: folder,
            path,
        }
    }

    fn file(&self, sub: &str, number: usize) -> PathBuf {
        self.path.join(format!("task/{sub}/scan_{number}.nii"))
    }

    fn add(&self, number: usize, image: &Voxels, labels: &Voxels) {
        let values = image.values(field);
        write(&self.file("imagesTr", number), image, 1, &values, false);
        let values = labels.values(class);
        write(&self.file("labelsTr", number), labels, 1, &values, true);
    }

    fn spec(&self, name: &str, geometry: GeometrySpec) -> ConvertSpec {
        ConvertSpec {
            geometry,
            ..made::conversion(vec![self.path.join("task")], self.path.join(name))
        }
    }
}

fn convert(asked: &ConvertSpec) -> Result<(Dataset, Vec<String>), DataError> {
    let conversion = Conversion::find(asked)?;
    let notes = conversion.notes().to_vec();
    Ok((
        conversion.write(|_| true)?.expect("nobody stopped it").0,
        notes,
    ))
}

/// A sample of the training split, its class indices, and its number among the files.
fn sample(dataset: &Dataset, at: usize) -> (Vec<f32>, Vec<f32>, usize) {
    let (mut volume, mut labels) = (Samples::new(dataset.dtype()), Samples::new(DType::Int16));
    let mut reader = dataset.reader(Split::Train);
    let [c, d, h, w] = dataset.shape();
    reader
        .read_volume(at, whole([c, d, h, w]), &mut volume)
        .unwrap();
    reader
        .read_labels(at, whole([1, d, h, w]), &mut labels)
        .unwrap();
    let floats = |samples: &Samples| {
        let mut out = Vec::new();
        samples.write_f32(&mut out);
        out
    };
    let number = dataset.universes(Split::Train)[at] as usize;
    (floats(&volume), floats(&labels), number)
}

/// Voxels of the stored sample, by the index; x, y and z are W, H and D.
fn stored(dataset: &Dataset, at: usize) -> Voxels {
    let affine = dataset.spec()["affines"]["train"][at].as_array().unwrap();
    let numbers: Vec<f64> = affine
        .iter()
        .map(|value| value.as_float().unwrap())
        .collect();
    let [_, d, h, w] = dataset.shape();
    let row = |row: usize| [0, 1, 2, 3].map(|at| numbers[4 * row + at]);
    Voxels {
        extent: [w, h, d],
        rows: [row(0), row(1), row(2)],
    }
}

fn assert_near(found: &[f32], expected: &[f32], most: f32) {
    assert_eq!(found.len(), expected.len());
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!(
            (found - expected).abs() <= most,
            "{at}: {found}, not {expected}"
        );
    }
}

/// Each class is that of the nearest voxel of the file, found by a plain search.
fn assert_nearest(image: &Voxels, voxels: &Voxels, labels: &[f32]) {
    let positions: Vec<[f64; 3]> = image.all().map(|at| image.position(at)).collect();
    for (at, label) in voxels.all().zip(labels) {
        let here = voxels.position(at);
        let far = |p: &[f64; 3]| (0..3).map(|d| (p[d] - here[d]).powi(2)).sum::<f64>();
        let least = positions.iter().map(far).fold(f64::INFINITY, f64::min);
        let nearest = positions.iter().filter(|p| far(p) < least + 1e-4);
        let classes: Vec<f64> = nearest.map(|p| class(*p)).collect();
        assert!(classes.contains(&f64::from(*label)), "{at:?}");
    }
}

/// Each file in an orientation of its own, so that extents of files differ, too.
fn turned() -> [[Voxels; 2]; 4] {
    let straight = straight();
    let lps = straight.turned([0, 1, 2], [true, true, false]);
    let others = [
        straight.turned([2, 0, 1], [true, false, true]),
        straight.turned([1, 2, 0], [false, true, false]),
    ];
    [
        [straight, lps],
        [lps, straight],
        [others[0], others[1]],
        [others[1], straight],
    ]
}

#[test]
fn images_and_labels_of_any_orientation_are_stored_in_one() {
    let task = Task::new();
    for (number, [image, labels]) in turned().iter().enumerate() {
        task.add(number, image, labels);
    }
    let (dataset, notes) = convert(&task.spec("set", GeometrySpec::default())).unwrap();
    assert_eq!(dataset.shape(), [1, 6, 5, 4]);
    for at in 0..4 {
        let (volume, labels, number) = sample(&dataset, at);
        let voxels = stored(&dataset, at);
        for (row, straight) in voxels
            .rows
            .iter()
            .flatten()
            .zip(straight().rows.iter().flatten())
        {
            assert!((row - straight).abs() < 1e-5, "{number}: {voxels:?}");
        }
        assert_near(&volume, &voxels.values(field), 1e-4);
        assert_near(&labels, &voxels.values(class), 0.0);
    }
    assert_eq!(dataset.spec()["orientation"].as_str(), Some("canonical"));
    let text = notes.join("\n");
    assert!(
        text.contains("1 in ASR") || text.contains("1 in RAS"),
        "{text}"
    );
    assert!(
        text.contains("`infer` writes NIfTI in that of each image"),
        "{text}"
    );
    assert!(
        text.contains("4 files of labels lie in another orientation"),
        "{text}"
    );
    // Each file in its own orientation: extents of samples differ.
    let image = GeometrySpec {
        orientation: VoxelOrientation::Image,
        ..GeometrySpec::default()
    };
    let (dataset, notes) = convert(&task.spec("other", image)).unwrap();
    let shapes = [0, 2, 3].map(|sample| dataset.shape_of(Split::Train, sample));
    assert_eq!(shapes, [[1, 6, 5, 4], [1, 5, 4, 6], [1, 4, 6, 5]]);
    assert!(notes.join("\n").contains("orientation: images differ"));
}

#[test]
fn labels_follow_images_that_keep_their_orientations() {
    let task = Task::new();
    let images = [[false; 3], [true, true, false]].map(|flips| straight().turned([0, 1, 2], flips));
    task.add(0, &images[0], &straight().turned([2, 1, 0], [true; 3]));
    task.add(1, &images[1], &images[1]);
    let geometry = GeometrySpec {
        orientation: VoxelOrientation::Image,
        ..GeometrySpec::default()
    };
    let (dataset, notes) = convert(&task.spec("set", geometry)).unwrap();
    for at in 0..2 {
        let (volume, labels, number) = sample(&dataset, at);
        assert_near(&volume, &images[number].values(field), 0.0);
        assert_near(&labels, &stored(&dataset, at).values(class), 0.0);
    }
    assert!(dataset.spec().get("originals").is_none());
    let text = notes.join("\n");
    assert!(
        text.contains("images differ (1 in LPS, 1 in RAS)"),
        "{text}"
    );
    assert!(text.contains("`--orientation canonical`"), "{text}");
    assert!(
        text.contains("1 files of labels") && text.contains("labelsTr/scan_0.nii"),
        "{text}"
    );
}

#[test]
fn labels_on_other_voxels_are_refused_with_both_files_and_what_differs() {
    let image = straight();
    let changed = |change: &dyn Fn(&mut Voxels)| {
        let mut labels = image.turned([0, 1, 2], [true, true, false]);
        change(&mut labels);
        labels
    };
    let (s, c) = 0.12_f64.sin_cos();
    for (labels, says) in [
        (
            changed(&|labels| labels.rows[2][2] = 1.5),
            "spacing (x, y, z) 1x2x1.5 mm, not 1x2x3 mm",
        ),
        (
            changed(&|labels| labels.rows[0][3] += 0.5),
            "first voxel at (-7.5, 3, 20) mm, not (-8, 3, 20) mm",
        ),
        (
            changed(&|labels| labels.extent[2] = 3),
            "extents (x, y, z) 4x5x3, not 4x5x6",
        ),
        (
            changed(&|labels| {
                labels.rows[0][..2].copy_from_slice(&[-c, 2.0 * s]);
                labels.rows[1][..2].copy_from_slice(&[-s, -2.0 * c]);
            }),
            "axes turned by 1.1459 degrees",
        ),
    ] {
        let task = Task::new();
        task.add(0, &image, &image);
        task.add(1, &image, &labels);
        let asked = task.spec("set", GeometrySpec::default());
        let error = convert(&asked).unwrap_err().to_string();
        for part in [
            "labelsTr/scan_1.nii does not lie",
            "imagesTr/scan_1.nii",
            says,
            "sform",
        ] {
            assert!(error.contains(part), "{part}: {error}");
        }
        assert!(!asked.out.exists());
    }
    // A thousandth of a voxel is rounding.
    let task = Task::new();
    task.add(0, &image, &changed(&|labels| labels.rows[0][3] += 0.0005));
    convert(&task.spec("set", GeometrySpec::default())).unwrap();
}

#[test]
fn images_are_resampled_to_one_spacing_and_labels_take_the_nearest_voxel() {
    let task = Task::new();
    let fine = Voxels {
        extent: [8, 10, 9],
        rows: [
            [-0.5, 0.0, 0.0, 2.0],
            [0.0, 1.0, 0.0, 3.0],
            [0.0, 0.0, 2.0, -6.0],
        ],
    };
    let coarse = straight();
    task.add(0, &coarse, &coarse);
    task.add(1, &fine, &fine.turned([1, 0, 2], [false, true, true]));
    let mixed = Conversion::find(&task.spec("set", GeometrySpec::default())).unwrap();
    assert!(
        mixed
            .notes()
            .join("\n")
            .contains("spacing: that of images differs")
    );
    assert!(mixed.bytes().0 > 0);
    for interpolation in [Interpolation::Linear, Interpolation::Cubic] {
        let geometry = GeometrySpec {
            spacing: Some([2.0, 1.25, 0.8]),
            interpolation,
            ..GeometrySpec::default()
        };
        let asked = task.spec(interpolation.name(), geometry);
        let (dataset, notes) = convert(&asked).unwrap();
        assert_eq!(dataset.shape(), [1, 9, 8, 5]);
        assert!(!notes.join("\n").contains("spacing"), "{notes:?}");
        for at in 0..2 {
            let (volume, labels, number) = sample(&dataset, at);
            let voxels = stored(&dataset, at);
            let image = [coarse, fine][number];
            let exact = voxels.values(field);
            // As far from the border as the rule reaches.
            let margin = 1 + usize::from(interpolation == Interpolation::Cubic);
            let inner = voxels.all().map(|at| {
                (0..3).all(|axis| at[axis] >= margin && at[axis] + margin < voxels.extent[axis])
            });
            let mut checked = 0;
            for (at, _) in inner.enumerate().filter(|&(_, is_inner)| is_inner) {
                assert!(
                    (volume[at] - exact[at]).abs() < 1e-3,
                    "{number} {at}: {} {}",
                    volume[at],
                    exact[at]
                );
                checked += 1;
            }
            assert!(checked > 10, "{checked}");
            assert_nearest(&image, &voxels, &labels);
        }
        assert_eq!(
            dataset.spec()["interpolation"].as_str(),
            Some(interpolation.name())
        );
        let spacing = dataset.spec()["spacing"].as_array().unwrap();
        assert_eq!(spacing[0].as_float(), Some(2.0));
    }
}

#[test]
fn files_without_positions_cannot_be_resampled() {
    let task = Task::new();
    let numbers = made::npy(&[4, 4], "<f4", &[0; 64]);
    fs::write(task.path.join("x.npy"), &numbers).unwrap();
    let mut asked = task.spec(
        "none",
        GeometrySpec {
            spacing: Some([1.0; 3]),
            ..GeometrySpec::default()
        },
    );
    asked.sources = vec![task.path.join("x.npy")];
    let error = convert(&asked).unwrap_err().to_string();
    assert!(
        error.contains("x.npy") && error.contains("leave `--spacing` out"),
        "{error}"
    );
}

#[test]
fn spacings_that_differ_are_told_with_the_remedy() {
    let task = Task::new();
    for number in 0..3 {
        let mut image = straight();
        image.rows[2][2] = [3.0, 1.5, 5.0][number];
        task.add(number, &image, &image);
    }
    let (_, notes) = convert(&task.spec("set", GeometrySpec::default())).unwrap();
    let text = notes.join("\n");
    for part in [
        "(D 1.5 to 5, H 2 to 2, W 1 to 1 mm)",
        "`--spacing 3x2x1` (D, H, W in mm",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

/// An index over the files themselves converts nothing.
#[test]
fn labels_that_lie_otherwise_are_found_before_a_training_without_a_conversion() {
    let task = Task::new();
    let turned = straight().turned([0, 1, 2], [true, true, false]);
    for (number, labels) in [straight(), turned].iter().enumerate() {
        task.add(number, &straight(), labels);
    }
    let check = |files: &str, labels: &str| {
        let text = format!(
            "format = 1\nkind = \"other\"\nsamples = 2\nchannels = 1\nextent = [6, 5, 4]\ndtype = \"float32\"\n\
             targets = [\"a\", \"b\", \"c\"]\nlabels = [6, 5, 4]\n[train]\nfiles = [{files}]\n\
             target_files = [{labels}]\nuniverses = [0, 1]\n"
        );
        fs::write(task.path.join("task/dataset.toml"), text).unwrap();
        let dataset = Dataset::open(task.path.join("task")).unwrap();
        let check = DataCheck {
            dataset: &dataset,
            preparation: &Preparation::default(),
            accepted: Accepted {
                classes: Some(3),
                ..Accepted::from(Transform::Identity)
            },
            scope: CheckScope::Quick,
            share: (0, 1),
            threads: 2,
            cancel: &AtomicBool::new(false),
        };
        check.run()
    };
    let files = "\"imagesTr/scan_0.nii\", \"imagesTr/scan_1.nii\"";
    let error = check(files, &files.replace("images", "labels"));
    let error = error.unwrap_err().to_string();
    for part in [
        "labelsTr/scan_1.nii does not lie on the voxels of its image",
        "orientation LPS, not RAS",
        "`partita data convert` reorients labels",
    ] {
        assert!(error.contains(part), "{error}");
    }
    let alike = "\"labelsTr/scan_0.nii\", \"labelsTr/scan_0.nii\"";
    assert_eq!(check(files, alike).unwrap().samples, 2);
}

/// With x as D and z as W, and with channels.
#[test]
fn other_orders_of_dims_name_the_same_axes() {
    let task = Task::new();
    let image = straight().turned([2, 0, 1], [true, false, true]);
    task.add(0, &image, &straight());
    let two: Vec<f32> = [image.values(field), image.values(|at| -field(at))].concat();
    write(&task.file("imagesTr", 0), &image, 2, &two, false);
    let mut asked = task.spec("set", GeometrySpec::default());
    asked.keys.order = Some("CWHD".parse().unwrap());
    let (dataset, _) = convert(&asked).unwrap();
    assert_eq!(dataset.shape(), [2, 4, 5, 6]);
    let voxels = stored(&dataset, 0);
    let (volume, labels, _) = sample(&dataset, 0);
    let exact = [voxels.values(field), voxels.values(|at| -field(at))].concat();
    assert_near(&volume, &exact, 1e-4);
    assert_near(&labels, &voxels.values(class), 0.0);
    // W runs to superior, D to the right.
    assert!(
        voxels.rows[2][0] > 2.9 && voxels.rows[0][2] > 0.9,
        "{voxels:?}"
    );
    // Where an axis of space counts samples, labels in another orientation cannot be brought to their image.
    let task = Task::new();
    task.add(0, &image, &straight());
    let mut asked = task.spec("set", GeometrySpec::default());
    asked.keys.order = Some("NHW".parse().unwrap());
    let error = convert(&asked).unwrap_err().to_string();
    assert!(
        error.contains("orientation RAS, not IRP") && error.contains("`--layout NHW`"),
        "{error}"
    );
    task.add(0, &straight(), &straight());
    let (dataset, notes) = convert(&asked).unwrap();
    assert_eq!(
        (dataset.shape(), dataset.samples(Split::Train)),
        ([1, 1, 5, 4], 6)
    );
    assert!(
        notes
            .join("\n")
            .contains("`--layout NHW` takes an axis of space"),
        "{notes:?}"
    );
}

#[test]
fn channels_lie_on_the_voxels_of_the_first_of_their_case() {
    let task = Task::new();
    task.add(0, &straight(), &straight());
    let rename = |sub: &str, to: &str| {
        fs::rename(task.file(sub, 0), task.path.join("task").join(sub).join(to)).unwrap();
    };
    rename("imagesTr", "a_0000.nii");
    rename("labelsTr", "a.nii");
    let mut moved = straight();
    moved.rows[2][3] += 1.0;
    let other = task.path.join("task/imagesTr/a_0001.nii");
    write(&other, &moved, 1, &moved.values(field), false);
    let error = convert(&task.spec("set", GeometrySpec::default()))
        .unwrap_err()
        .to_string();
    let part = "a_0001.nii does not lie on the voxels of the first channel of its case";
    assert!(error.contains(part) && !error.contains("label"), "{error}");
}

/// Linear in space, each the greatest somewhere.
fn scores(channel: usize, at: [f64; 3]) -> f64 {
    match channel {
        0 => 84.0,
        1 => field(at),
        _ => 160.0 - field(at),
    }
}

/// A file of predictions has the voxels of its image, and at each of them the scores there or their greatest.
fn assert_restored(path: &Path, image: &Voxels, kind: PredictionKind) {
    let (voxels, channels, values) = read(path);
    let rounded = image
        .rows
        .map(|row| row.map(|value| f64::from(value as f32)));
    assert_eq!((voxels.extent, voxels.rows), (image.extent, rounded));
    let exact = [0, 1, 2].map(|channel| image.values(|at| scores(channel, at)));
    if kind == PredictionKind::Scores {
        assert_eq!(channels, 3);
        return assert_near(&values, &exact.concat(), 1e-3);
    }
    let best = |at: usize| (0..3).max_by(|&a, &b| exact[a][at].total_cmp(&exact[b][at]));
    let best = (0..values.len()).map(|at| best(at).unwrap() as f32);
    assert_near(&values, &best.collect::<Vec<_>>(), 0.0);
    assert!((0..3).all(|class| values.contains(&(class as f32))));
}

/// Predictions that are linear in space are right at each voxel of each image between the outermost ones of its sample.
#[test]
fn predictions_are_written_on_the_voxels_of_their_images() {
    let task = Task::new();
    let images = turned().map(|[image, _]| image);
    for (number, image) in images.iter().enumerate() {
        task.add(number, image, image);
    }
    let finer = Some([1.5, 1.0, 0.5]);
    for (name, spacing, order) in [
        ("same", None, "DHW"),
        ("fine", finer, "DHW"),
        ("other", None, "WDH"),
    ] {
        let mut asked = task.spec(
            name,
            GeometrySpec {
                spacing,
                ..GeometrySpec::default()
            },
        );
        asked.keys.order = Some(order.parse().unwrap());
        let (dataset, _) = convert(&asked).unwrap();
        let [_, depth, height, width] = dataset.shape();
        let shape = PredictionShape {
            samples: 4,
            channels: 3,
            extent: [depth, height, width],
            spatial_rank: 3,
        };
        let out = task.path.join(format!("{name}.nii"));
        let scratch = PredictionScratch::create(&out, shape).unwrap();
        for sample in 0..4 {
            let voxels = stored(&dataset, sample);
            let all = [0, 1, 2].map(|channel| voxels.values(|at| scores(channel, at)));
            for plane in 0..depth {
                let size = height * width;
                let rows = all
                    .each_ref()
                    .map(|one| one[plane * size..(plane + 1) * size].to_vec());
                let ranges = [0..3, 0..height, 0..width];
                scratch
                    .write_rows([sample, plane], ranges, &rows.concat())
                    .unwrap();
            }
        }
        let placement = |sample: usize| dataset.placement(Split::Train, sample).unwrap();
        for kind in [PredictionKind::Scores, PredictionKind::Classes] {
            scratch.publish_volumes(&out, kind, &placement).unwrap();
            for sample in 0..4 {
                let image = images[dataset.universes(Split::Train)[sample] as usize];
                let path = task.path.join(format!("{name}-{sample}.nii"));
                assert_restored(&path, &image, kind);
            }
        }
    }
}
