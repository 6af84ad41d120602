//! Volumes of different extents, and those that are smaller than the crops of them.

#![allow(clippy::unwrap_used, reason = "helper functions of tests")]

use crate::made;

use std::fs;
use std::path::Path;

use crate::delivery::{deliver, distributions, inputs};
use made::{npy, spec, volume, whole};
use partita_data::{
    Conversion, ConvertSpec, Dataset, DatasetSpec, DatasetWriter, Kind, Split, inspect,
};
use partita_formats::{DType, Layout, Samples};
use partita_input::{
    Accepted, Augmentation, Crops, Elastic, EvaluationCrops, FittedStep, Foreground, PieceMaker,
    PieceReader, PieceValues, Preparation, Preprocessing, Sampling, Step, Tiling, TrainingCrops,
    fit,
};
use partita_program::{BufferId, Item, Load, Transform, View, When};
use partita_space::Mesh;

const TRAIN: [[usize; 3]; 4] = [[6, 5, 7], [2, 9, 5], [6, 5, 7], [4, 4, 4]];
const VALIDATION: [[usize; 3]; 1] = [[3, 3, 10]];
const TEST: [[usize; 3]; 2] = [[8, 4, 4], [5, 9, 6]];
const CHANNELS: usize = 2;

fn floats(samples: &Samples) -> Vec<f32> {
    let mut values = Vec::new();
    samples.write_f32(&mut values);
    values
}

fn class(value: f32) -> i16 {
    (value > -600.0) as i16 + (value > 600.0) as i16
}

/// Volumes of the extents above, with a class at each position.
fn make(path: &Path) -> Dataset {
    let spec = DatasetSpec {
        kind: Kind::Segmentation,
        targets: ["low", "middle", "high"].map(str::to_owned).to_vec(),
        labels: Some([8, 9, 10]),
        ..spec([CHANNELS, 8, 9, 10], DType::Int16, Layout::Contiguous)
    };
    let extents = [TRAIN.to_vec(), VALIDATION.to_vec(), TEST.to_vec()];
    let mut writer = DatasetWriter::create_of_extents(path, &spec, Some(extents)).unwrap();
    let all = [&TRAIN[..], &VALIDATION, &TEST];
    for (split, extents) in Split::ALL.into_iter().zip(all) {
        for (sample, &[d, h, w]) in extents.iter().enumerate() {
            let values = stored(split, sample, [d, h, w]);
            let first = floats(&values).into_iter().take(d * h * w);
            let labels = Samples::I16(first.map(class).collect());
            writer.append_labeled(split, &values, &labels).unwrap();
        }
    }
    writer.finish().unwrap()
}

fn stored(split: Split, sample: usize, [d, h, w]: [usize; 3]) -> Samples {
    volume(
        10 * split as usize + sample,
        [CHANNELS, d, h, w],
        DType::Int16,
    )
}

#[test]
fn samples_of_several_extents_are_read_as_they_were_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("set");
    let dataset = make(&path);
    assert_eq!(dataset.shape(), [CHANNELS, 8, 9, 10]);
    assert_eq!(dataset.smallest_extent(), Some([2, 3, 4]));
    let mut sums = [0.0; CHANNELS];
    for (split, extents) in Split::ALL.into_iter().zip([&TRAIN[..], &VALIDATION, &TEST]) {
        let mut reader = dataset.reader(split);
        for (sample, &[d, h, w]) in extents.iter().enumerate() {
            let shape = dataset.shape_of(split, sample);
            assert_eq!(shape, [CHANNELS, d, h, w]);
            let mut values = Samples::new(DType::Int16);
            reader
                .read_volume(sample, whole(shape), &mut values)
                .unwrap();
            assert_eq!(values, stored(split, sample, [d, h, w]), "{split} {sample}");
            if split == Split::Train {
                let values = floats(&values);
                let channels = values.chunks_exact(d * h * w);
                channels.zip(&mut sums).for_each(|(channel, sum)| {
                    *sum += channel.iter().map(|&value| f64::from(value)).sum::<f64>();
                });
            }
            let outside = [0..1, 0..d + 1, 0..h, 0..w];
            assert!(reader.read_volume(sample, outside, &mut values).is_err());
        }
    }
    // Statistics are over all voxels.
    let count: usize = TRAIN
        .iter()
        .map(|extent| extent.iter().product::<usize>())
        .sum();
    let fitted = fit(&[Step::Standardize], &dataset, None, 2).unwrap();
    let FittedStep::Standardize { mean, .. } = &fitted.steps()[0] else {
        panic!("a step as asked");
    };
    for (mean, sum) in mean.iter().zip(sums) {
        assert!((mean - sum / count as f64).abs() < 1e-9, "{mean}");
    }
    let summary = inspect(&path).unwrap();
    assert_eq!(
        (summary.extent, summary.smallest_extent),
        ([8, 9, 10], Some([2, 3, 4]))
    );
    let values = summary.splits[0].values.as_ref().unwrap();
    assert_eq!((values.samples, values.elements), (4, CHANNELS * count));
    let classes = summary.splits[0].classes.as_ref().unwrap();
    assert_eq!(classes.counts.iter().sum::<u64>(), count as u64);
}

#[test]
fn an_index_with_extents_that_cannot_be_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("set");
    make(&path);
    let index = path.join("dataset.toml");
    let text = fs::read_to_string(&index).unwrap();
    let table: toml::Table = text.parse().unwrap();
    assert_eq!(table["extent"].as_array().unwrap().len(), 3);
    for (change, says) in [
        (
            |table: &mut toml::Table| {
                table["extent"] = toml::Value::try_from([8, 9, 9]).unwrap();
                table["labels"] = table["extent"].clone();
            },
            "extent = [8, 9, 10], the largest along each dim",
        ),
        (
            |table: &mut toml::Table| {
                let train = table["train"].as_table_mut().unwrap();
                train["extents"].as_array_mut().unwrap().pop();
            },
            "[train] with 3 entries of `extents` for 4 samples",
        ),
        (
            |table: &mut toml::Table| {
                table["test"].as_table_mut().unwrap().remove("extents");
            },
            "`extents` in each split with samples",
        ),
        (
            |table: &mut toml::Table| {
                let test = table["test"].as_table_mut().unwrap();
                let one = toml::Value::try_from(["test-00000.h5"]).unwrap();
                test.insert("files".to_owned(), one);
                test.insert("samples".to_owned(), toml::Value::try_from([2]).unwrap());
            },
            "[test] with different `extents` in one file",
        ),
    ] as [(fn(&mut toml::Table), &str); 4]
    {
        let mut changed = table.clone();
        change(&mut changed);
        fs::write(&index, toml::to_string(&changed).unwrap()).unwrap();
        let refused = Dataset::open(&path).unwrap_err().to_string();
        assert!(refused.contains(says), "`{says}` is not in: {refused}");
    }
    // A file of other extents than the index says.
    let other = text.replacen("[6, 5, 7]", "[5, 6, 7]", 1);
    let other = other.replacen("6,\n", "5,\n", 1);
    fs::write(&index, other).unwrap();
    assert!(Dataset::open(&path).is_err());
}

#[test]
fn files_of_several_extents_are_converted() {
    let folder = tempfile::tempdir().unwrap();
    for sub in ["images", "labels"] {
        fs::create_dir_all(folder.path().join("task").join(sub)).unwrap();
    }
    let bytes = |values: Samples| -> Vec<u8> {
        let values = floats(&values).into_iter();
        values
            .flat_map(|value| (value as i16).to_le_bytes())
            .collect()
    };
    for (n, [d, h, w]) in TRAIN.into_iter().enumerate() {
        let values = volume(n, [1, d, h, w], DType::Int16);
        let classes = floats(&values).into_iter().map(class).collect();
        for (sub, values) in [("images", values), ("labels", Samples::I16(classes))] {
            let path = folder.path().join(format!("task/{sub}/{n}.npy"));
            fs::write(path, npy(&[d, h, w], "<i2", &bytes(values))).unwrap();
        }
    }
    let asked = ConvertSpec {
        fractions: [0.5, 0.25, 0.25],
        ..made::conversion(vec![folder.path().join("task")], folder.path().join("set"))
    };
    let conversion = Conversion::find(&asked).unwrap();
    let count: usize = TRAIN
        .iter()
        .map(|extent| extent.iter().product::<usize>())
        .sum();
    assert!(conversion.bytes().0 >= 4 * count as u64);
    assert!(conversion.bytes().0 < 5 * count as u64);
    let (dataset, _) = conversion.write(|_| true).unwrap().unwrap();
    assert_eq!(dataset.shape(), [1, 6, 9, 7]);
    assert_eq!(
        (dataset.labels(), dataset.targets().len()),
        (Some([6, 9, 7]), 3)
    );
    let mut seen = Vec::new();
    for split in Split::ALL {
        let mut reader = dataset.reader(split);
        for sample in 0..dataset.samples(split) {
            let n = dataset.universes(split)[sample] as usize;
            let [d, h, w] = TRAIN[n];
            assert_eq!(dataset.shape_of(split, sample), [1, d, h, w]);
            let (mut values, mut labels) = (Samples::new(DType::Int16), Samples::new(DType::Int16));
            reader
                .read_volume(sample, [0..1, 0..d, 0..h, 0..w], &mut values)
                .unwrap();
            reader
                .read_labels(sample, [0..1, 0..d, 0..h, 0..w], &mut labels)
                .unwrap();
            assert_eq!(values, volume(n, [1, d, h, w], DType::Int16));
            let classes = floats(&values).into_iter().map(class).collect();
            assert_eq!(labels, Samples::I16(classes));
            seen.push(n);
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 2, 3]);
}

fn crops(extent: [usize; 3], per_volume: Option<usize>) -> Crops {
    Crops {
        extent,
        per_volume,
        training: TrainingCrops::Random,
        evaluation: EvaluationCrops::Grid,
    }
}

fn everything() -> Augmentation {
    Augmentation {
        flip: [true; 3],
        rotate: true,
        scale_intensity: Some([0.5, 1.5]),
        shift_intensity: Some([-3.0, 3.0]),
        noise: Some(0.5),
        elastic: Some(Elastic {
            magnitude: 1.5,
            spacing: 3,
        }),
    }
}

/// All samples, and their numbers.
fn all(dataset: &Dataset, crops: Crops, augmentation: Augmentation) -> (Sampling, Vec<usize>) {
    let sampling = Sampling::new(dataset, Some(crops), Some(augmentation)).unwrap();
    let count: usize = Split::ALL.map(|split| sampling.samples(split)).iter().sum();
    (sampling, (0..count).collect())
}

#[test]
fn every_mesh_gets_the_crops_of_one_rank_whatever_the_extents() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = make(&folder.path().join("set"));
    let chain = Preparation::new(vec![FittedStep::Standardize {
        mean: vec![3.0; CHANNELS],
        standard_deviation: vec![2.0; CHANNELS],
    }]);
    let flip = Augmentation {
        flip: [true; 3],
        ..Augmentation::default()
    };
    for (augmentation, preparation) in [
        (Augmentation::default(), Preparation::default()),
        (flip, Preparation::default()),
        (everything(), chain),
    ] {
        let (sampling, samples) = all(&dataset, crops([4, 4, 4], None), augmentation);
        // Of each volume as many as cover it.
        let covering = |[d, h, w]: [usize; 3]| d.div_ceil(4) * h.div_ceil(4) * w.div_ceil(4);
        let count = |extents: &[[usize; 3]]| extents.iter().map(|&one| covering(one)).sum();
        let counts: [usize; 3] = [count(&TRAIN), count(&VALIDATION), count(&TEST)];
        assert_eq!(Split::ALL.map(|split| sampling.samples(split)), counts);
        let preprocessing = Preprocessing {
            sampling,
            preparation,
        };
        let inputs = inputs(5, 2, &samples);
        let whole = deliver(&dataset, &preprocessing, [1, 1, 1, 1], &inputs, When::Now);
        for mesh in [[2, 1, 1, 1], [1, 2, 1, 1], [1, 1, 2, 2], [2, 3, 1, 2]] {
            let parts = deliver(&dataset, &preprocessing, mesh, &inputs, When::Now);
            assert!(parts == whole, "{mesh:?}, {augmentation:?}");
        }
    }
}

#[test]
fn a_volume_below_the_crop_is_padded_with_zeros_and_the_ignored_class() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = make(&folder.path().join("set"));
    let (sampling, _) = all(&dataset, crops([4, 4, 8], Some(1)), Augmentation::default());
    // The second has 2, the others fewer than 8 along W.
    assert_eq!(sampling.padded_volumes(Split::Train), 4);
    assert_eq!(sampling.padded_volumes(Split::Validation), 1);
    let one_more = FittedStep::Standardize {
        mean: vec![-9.0; CHANNELS],
        standard_deviation: vec![1.0; CHANNELS],
    };
    for steps in [Vec::new(), vec![one_more]] {
        let added = if steps.is_empty() { 0.0 } else { 9.0 };
        let preprocessing = Preprocessing {
            sampling: sampling.clone(),
            preparation: Preparation::new(steps),
        };
        let mesh = Mesh::new([1; 7]);
        let maker = PieceMaker::new(&dataset, &preprocessing, mesh, 0);
        let accepted = Accepted {
            transform: Transform::Identity,
            classes: Some(3),
            ignored: Some(7),
        };
        let mut reader = PieceReader::new(&dataset, preprocessing.clone(), accepted);
        let mut read = |item: Item| -> Vec<f32> {
            let [values, target] = distributions(&dataset, &sampling, 1);
            let (distribution, extent) = match item {
                Item::Sample => (values, [1, CHANNELS, 4, 4, 8]),
                Item::Target | Item::Features => (target, [1, 4, 4, 8, 1]),
            };
            let load = Load {
                item,
                when: When::Now,
                distribution,
                target: View {
                    buffer: BufferId(0),
                    start: [0; 5],
                    extent,
                },
            };
            let pieces = maker.pieces(&load, (1, 0), &[3]);
            let buffer = reader.empty(&pieces[0]);
            match reader.read(&pieces[0], buffer).unwrap() {
                PieceValues::Volume(samples) => floats(&samples),
                PieceValues::Targets(values) => values,
                PieceValues::Nothing => Vec::new(),
            }
        };
        let (values, labels) = (read(Item::Sample), read(Item::Target));
        // The last volume is 4x4x4 and has two columns of padding on each side.
        let stored = floats(&stored(Split::Train, 3, TRAIN[3]));
        for (at, &value) in values.iter().enumerate() {
            let (row, column) = (at / 8, at % 8);
            if (2..6).contains(&column) {
                let one = stored[row * 4 + column - 2];
                assert_eq!(value, one + added, "{at}");
                if at < labels.len() {
                    assert_eq!(labels[at], f32::from(class(one)), "{at}");
                }
            } else {
                assert_eq!(value, 0.0, "{at}");
                if at < labels.len() {
                    assert_eq!(labels[at], 7.0, "{at}");
                }
            }
        }
    }
}

#[test]
fn tiles_cover_each_volume_and_nothing_of_its_padding() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = make(&folder.path().join("set"));
    let (sampling, _) = all(&dataset, crops([4, 4, 4], None), Augmentation::default());
    let sampling = sampling.tiled(Tiling::default());
    for (split, extents) in Split::ALL.into_iter().zip([&TRAIN[..], &VALIDATION, &TEST]) {
        let mut covered: Vec<Vec<u32>> = extents
            .iter()
            .map(|extent| vec![0; extent.iter().product()])
            .collect();
        let tiles = sampling.tiles(split);
        assert_eq!(tiles.len(), sampling.samples(split));
        for tile in tiles {
            let [_, height, width] = extents[tile.volume];
            let [ds, hs, ws] = tile.part.clone();
            for (part, inside) in tile.part.iter().zip(&tile.inside) {
                assert!(inside.start <= part.start && part.end <= inside.end && inside.end <= 4);
            }
            for d in ds {
                for h in hs.clone() {
                    for w in ws.clone() {
                        let at = [d, h, w];
                        let [d, h, w] = std::array::from_fn(|dim| {
                            at[dim] + tile.origin[dim] - tile.padding[dim]
                        });
                        assert!(h < height && w < width);
                        covered[tile.volume][(d * height + h) * width + w] += 1;
                    }
                }
            }
        }
        assert!(covered.iter().flatten().all(|&count| count == 1), "{split}");
    }
}

#[test]
fn extents_that_differ_need_crops() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = make(&folder.path().join("set"));
    let refused = Sampling::new(&dataset, None, None).unwrap_err().to_string();
    assert!(refused.contains("`crop = [2, 3, 4]`"), "{refused}");
    let (sampling, samples) = all(&dataset, crops([4, 4, 4], Some(3)), Augmentation::default());
    assert_eq!(sampling.samples(Split::Train), 12);
    assert_eq!(samples.len(), 12 + 3 + 2 + 12);
}

/// Three volumes of 16x16x16: with 3 positions of class 1 and 40 of class 2, with one of class 2 in a corner beside
/// positions of no class, and without any.
fn rare(path: &Path) -> Dataset {
    let spec = DatasetSpec {
        kind: Kind::Segmentation,
        targets: ["none", "small", "large"].map(str::to_owned).to_vec(),
        labels: Some([16; 3]),
        train: vec![0, 1, 2],
        validation: vec![3],
        test: Vec::new(),
        ..spec([1, 16, 16, 16], DType::Int16, Layout::Contiguous)
    };
    let mut writer = DatasetWriter::create(path, &spec)
        .unwrap()
        .ignoring(Some(9));
    for (split, n) in [
        (Split::Train, 0),
        (Split::Train, 1),
        (Split::Train, 2),
        (Split::Validation, 3),
    ] {
        let mut labels = vec![0; 4096];
        match n {
            0 => {
                // Away from borders, so that crops have them in their middle.
                labels[(8 * 16 + 7) * 16 + 6..][..3].fill(1);
                for row in 0..5 {
                    labels[((5 + row) * 16 + 10) * 16 + 4..][..8].fill(2);
                }
            }
            1 => {
                labels[0] = 2;
                labels[100..300].fill(9);
            }
            _ => {}
        }
        let values = Samples::I16(labels.iter().map(|&class| 100 * class).collect());
        writer
            .append_labeled(split, &values, &Samples::I16(labels))
            .unwrap();
    }
    writer.finish().unwrap()
}

#[test]
fn a_share_of_crops_has_foreground_in_its_middle() {
    const EACH: usize = 900;
    let folder = tempfile::tempdir().unwrap();
    let dataset = rare(&folder.path().join("set"));
    let found = Foreground::find(&dataset, 2).unwrap();
    assert_eq!(found, Foreground::find(&dataset, 1).unwrap());
    assert_eq!(found.without(), 1);
    let (plain, _) = all(
        &dataset,
        crops([4, 4, 4], Some(EACH)),
        Augmentation::default(),
    );
    let sampling = plain.clone().with_foreground(1.0 / 3.0, found.clone());
    let labels = |sampling: &Sampling, mesh, epoch| -> Vec<f32> {
        let preprocessing = Preprocessing {
            sampling: sampling.clone(),
            preparation: Preparation::default(),
        };
        let samples: Vec<usize> = (0..sampling.samples(Split::Train)).collect();
        let inputs = inputs(7, epoch, &samples);
        let [_, labels] = deliver(&dataset, &preprocessing, mesh, &inputs, When::Now);
        labels
    };
    let one = labels(&sampling, [1; 4], 0);
    assert!(one == labels(&sampling, [2, 2, 1, 1], 0));
    assert!(one != labels(&sampling, [1; 4], 1));
    let volumes: Vec<&[f32]> = one.chunks_exact(64 * EACH).collect();
    let middle = |class: f32| {
        let crops = volumes[0].chunks_exact(64);
        crops
            .filter(|crop| crop[(2 * 4 + 2) * 4 + 2] == class)
            .count() as f64
            / EACH as f64
    };
    // Classes are drawn before positions. Bounds of five standard errors, and what is there by chance.
    for class in [1.0, 2.0] {
        let share = middle(class);
        assert!((share - 1.0 / 6.0).abs() < 0.062 + 0.02, "{class}: {share}");
    }
    // The corner cannot be in a middle, and is in the crop.
    let corner = volumes[1]
        .chunks_exact(64)
        .filter(|crop| crop[0] == 2.0)
        .count();
    assert!(
        (corner as f64 / EACH as f64 - 1.0 / 3.0).abs() < 0.08,
        "{corner}"
    );
    assert!(volumes[2].iter().all(|&class| class == 0.0));
    // All crops of a share of 1.
    let always = labels(&plain.with_foreground(1.0, found), [1; 4], 0);
    let mut first = always[..64 * EACH].chunks_exact(64);
    assert!(first.all(|crop| crop[(2 * 4 + 2) * 4 + 2] != 0.0));
}

#[test]
fn foreground_is_of_training_crops_and_of_classes_at_positions() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = rare(&folder.path().join("set"));
    let found = Foreground::find(&dataset, 3).unwrap();
    let (plain, _) = all(&dataset, crops([4, 4, 4], None), Augmentation::default());
    let sampling = plain.clone().with_foreground(0.5, found);
    assert_ne!(sampling, plain);
    assert_eq!(
        sampling.tiled(Tiling::default()),
        plain.tiled(Tiling::default())
    );
    assert_eq!(sampling.for_evaluation(), plain.for_evaluation());
    let spec = DatasetSpec {
        train: Vec::new(),
        validation: Vec::new(),
        test: Vec::new(),
        ..spec([1, 4, 4, 4], DType::Int16, Layout::Contiguous)
    };
    let writer = DatasetWriter::create(folder.path().join("numbers"), &spec).unwrap();
    let refused = Foreground::find(&writer.finish().unwrap(), 1)
        .unwrap_err()
        .to_string();
    assert!(refused.contains("no class at each position"), "{refused}");
}
