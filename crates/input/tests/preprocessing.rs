//! Preparation and augmentation: what the ranks of any mesh get is what one rank gets, bit by bit.

#![allow(clippy::unwrap_used, reason = "helper functions of tests")]

use crate::made;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::delivery::{deliver, inputs, load, staging_dtype};
use made::{Random, physical, spec, target, volume};
use partita_data::{Dataset, DatasetSpec, DatasetWriter, Kind, Split};
use partita_formats::{DType, DataError, Layout, Samples, VolumeShape};
use partita_input::{
    Augmentation, Crops, Elastic, EvaluationCrops, FittedStep, HyperslabSource, Preparation,
    Preprocessing, STATISTICS_FILE, Sampling, Step, TrainingCrops, fit,
};
use partita_program::{
    Body, Buffer, BufferId, Distribution, Dtype, Item, Load, Role, TaskId, Transform, When,
};
use partita_run::{Arena, Inputs, Source};
use partita_space::{Axis, AxisList, Bytes, Mesh};

const CUBE: VolumeShape = [2, 6, 6, 6];
const IMAGE: VolumeShape = [3, 1, 8, 7];
const MESHES: [[usize; 4]; 5] = [
    [1, 1, 1, 1],
    [2, 1, 1, 1],
    [1, 2, 1, 1],
    [1, 1, 2, 2],
    [2, 3, 1, 2],
];

/// Samples whose labels, where they have them, follow from their values.
fn make(path: &Path, shape: VolumeShape, dtype: DType, labeled: bool) -> Dataset {
    let [_, d, h, w] = shape;
    let mut spec = spec(shape, dtype, Layout::Contiguous);
    if labeled {
        spec = DatasetSpec {
            kind: Kind::Segmentation,
            targets: ["low", "middle", "high"].map(str::to_owned).to_vec(),
            labels: Some([d, h, w]),
            ..spec
        };
    }
    let mut writer = DatasetWriter::create(path, &spec).unwrap();
    let mut n = 0;
    for split in Split::ALL {
        while writer.next_universe(split).is_some() {
            let values = volume(n, shape, dtype);
            if labeled {
                let classes = floats(&values)[..d * h * w]
                    .iter()
                    .map(|&v| class(v))
                    .collect();
                let labels = Samples::I16(classes);
                writer.append_labeled(split, &values, &labels).unwrap();
            } else {
                writer
                    .append(split, &values, &target(n), &physical(n))
                    .unwrap();
            }
            n += 1;
        }
    }
    writer.finish().unwrap()
}

fn class(value: f32) -> i16 {
    (value > -60.0) as i16 + (value > 60.0) as i16
}

fn floats(samples: &Samples) -> Vec<f32> {
    let mut values = Vec::new();
    samples.write_f32(&mut values);
    values
}

fn rest() -> Augmentation {
    Augmentation::default()
}

fn everything(magnitude: f64) -> Augmentation {
    Augmentation {
        flip: [true; 3],
        rotate: true,
        scale_intensity: Some([0.5, 1.5]),
        shift_intensity: Some([-3.0, 3.0]),
        noise: Some(0.5),
        elastic: Some(Elastic {
            magnitude,
            spacing: 3,
        }),
    }
}

fn crops(extent: [usize; 3], per_volume: Option<usize>) -> Crops {
    Crops {
        extent,
        per_volume,
        training: TrainingCrops::Random,
        evaluation: EvaluationCrops::Grid,
    }
}

fn chain(channels: usize) -> Preparation {
    Preparation::new(vec![
        FittedStep::Clip {
            low: -150.0,
            high: 200.0,
        },
        FittedStep::Standardize {
            mean: (0..channels).map(|c| c as f64 * 3.0).collect(),
            standard_deviation: (0..channels).map(|c| 2.0 + c as f64).collect(),
        },
    ])
}

/// Crops, augmentation and preparation of volumes, in several combinations.
fn treatments(shape: VolumeShape) -> [(Option<Crops>, Augmentation, Preparation); 5] {
    let [c, d, _, _] = shape;
    let crop = crops([d.min(4), 4, 4], Some(2));
    let flip = Augmentation {
        flip: [true; 3],
        ..rest()
    };
    let orient = Augmentation {
        rotate: true,
        ..flip
    };
    let unturned = Augmentation {
        rotate: false,
        ..everything(2.0)
    };
    [
        (None, flip, Preparation::default()),
        (Some(crop), orient, Preparation::default()),
        (Some(crop), everything(1.5), chain(c)),
        (None, unturned, chain(c)),
        (None, rest(), chain(c)),
    ]
}

#[test]
fn every_mesh_gets_what_one_rank_gets() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random(11);
    let sets = [
        (CUBE, DType::Int16, false),
        (CUBE, DType::Float32, true),
        (IMAGE, DType::Int16, true),
    ];
    for (index, (shape, dtype, labeled)) in sets.into_iter().enumerate() {
        let dataset = make(
            &folder.path().join(index.to_string()),
            shape,
            dtype,
            labeled,
        );
        for (crops, augmentation, preparation) in treatments(shape) {
            let preprocessing = Preprocessing {
                sampling: Sampling::new(&dataset, crops, Some(augmentation)).unwrap(),
                preparation,
            };
            let samples = Split::ALL.map(|split| preprocessing.sampling.samples(split));
            let total: usize = samples.iter().sum();
            let batch: Vec<usize> = (0..4).map(|_| random.below(total)).collect();
            let inputs = inputs(random.below(99) as u64, random.below(9) as u64, &batch);
            let one = deliver(&dataset, &preprocessing, MESHES[0], &inputs, When::Now);
            assert!(one.iter().flatten().all(|value| value.is_finite()));
            for mesh in &MESHES[1..] {
                let several = deliver(&dataset, &preprocessing, *mesh, &inputs, When::Now);
                assert!(
                    several == one,
                    "{mesh:?} {shape:?} {augmentation:?} {crops:?}"
                );
            }
            // Read ahead of the epoch before.
            let ahead = Inputs {
                epoch: 77,
                next_epoch: inputs.epoch,
                next_samples: inputs.samples.clone(),
                samples: Vec::new(),
                ..inputs.clone()
            };
            let ahead = deliver(&dataset, &preprocessing, MESHES[3], &ahead, When::Next);
            assert!(ahead == one, "{shape:?} {augmentation:?}");
        }
    }
}

#[test]
fn labels_follow_their_voxels() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = make(&folder.path().join("set"), CUBE, DType::Float32, true);
    let crop = crops([4, 4, 4], Some(3));
    for (augmentation, is_exact) in [
        (
            Augmentation {
                flip: [true; 3],
                rotate: true,
                ..rest()
            },
            true,
        ),
        (
            Augmentation {
                elastic: everything(0.4).elastic,
                ..rest()
            },
            false,
        ),
    ] {
        let preprocessing = Preprocessing {
            sampling: Sampling::new(&dataset, Some(crop), Some(augmentation)).unwrap(),
            preparation: Preparation::default(),
        };
        let inputs = inputs(3, 1, &[0, 4, 8, 11]);
        let [values, labels] = deliver(&dataset, &preprocessing, MESHES[0], &inputs, When::Now);
        // Labels were made of the first of two channels.
        let pairs = values.chunks(CUBE[0]).zip(&labels);
        let equal = pairs
            .filter(|(values, label)| f32::from(class(values[0])) == **label)
            .count();
        // Interpolation moves values across the bounds of classes where neighbors differ much.
        let least = if is_exact {
            labels.len()
        } else {
            labels.len() / 2
        };
        assert!(equal >= least, "{equal} of {}", labels.len());
    }
}

#[test]
fn augmentation_is_keyed_by_seed_epoch_and_sample_and_spares_other_splits() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = make(&folder.path().join("set"), CUBE, DType::Int16, false);
    let augmented = |crops| Preprocessing {
        sampling: Sampling::new(&dataset, crops, Some(everything(1.0))).unwrap(),
        preparation: Preparation::default(),
    };
    let whole = augmented(None);
    let of = |seed, epoch, sample: usize| {
        deliver(
            &dataset,
            &whole,
            MESHES[0],
            &inputs(seed, epoch, &[sample]),
            When::Now,
        )[0]
        .clone()
    };
    let once = of(1, 2, 3);
    assert_eq!(once, of(1, 2, 3));
    for other in [of(2, 2, 3), of(1, 3, 3), of(1, 2, 2)] {
        assert_ne!(once, other);
    }
    // Samples 4 to 6 are those of validation and test.
    let plain = Preprocessing::plain(&dataset);
    for sample in 4..7 {
        let stored = deliver(
            &dataset,
            &plain,
            MESHES[0],
            &inputs(0, 0, &[sample]),
            When::Now,
        );
        assert_eq!(of(1, 2, sample), stored[0]);
    }
    let evaluated = Preprocessing {
        sampling: whole.sampling.for_evaluation(),
        ..whole.clone()
    };
    let stored = deliver(&dataset, &plain, MESHES[0], &inputs(0, 0, &[3]), When::Now);
    let found = deliver(
        &dataset,
        &evaluated,
        MESHES[0],
        &inputs(1, 2, &[3]),
        When::Now,
    );
    assert_eq!(found, stored);
    let random = augmented(Some(crops([4, 4, 4], Some(5))));
    let samples = Split::ALL.map(|split| random.sampling.samples(split));
    assert_eq!(samples, [20, 8, 16]);
    let firsts = Split::ALL.map(|split| random.sampling.first_sample(split));
    assert_eq!(firsts, [0, 20, 28]);
    assert_eq!(random.sampling.for_evaluation().samples(Split::Train), 32);
}

/// Crops on a grid cover every voxel, and those of the middle lie there.
#[test]
fn validation_crops_cover_volumes_or_lie_in_the_middle() {
    let folder = tempfile::tempdir().unwrap();
    let shape = [1, 5, 6, 7];
    let dataset = make(&folder.path().join("set"), shape, DType::Int16, false);
    let stored: Vec<f32> = floats(&volume(4, shape, DType::Int16));
    let mut all = stored.clone();
    let grid = crops([5, 4, 3], None);
    let sampling = Sampling::new(&dataset, Some(grid), None).unwrap();
    let first = sampling.first_sample(Split::Validation);
    assert_eq!((first, sampling.samples(Split::Validation)), (4 * 6, 6));
    let plain = Preprocessing {
        sampling,
        preparation: Preparation::default(),
    };
    let ids: Vec<usize> = (first..first + 6).collect();
    let [mut seen, _] = deliver(&dataset, &plain, MESHES[0], &inputs(0, 0, &ids), When::Now);
    for values in [&mut seen, &mut all] {
        values.sort_by(f32::total_cmp);
        values.dedup();
    }
    assert_eq!(seen, all);
    let center = Crops {
        evaluation: EvaluationCrops::Center,
        ..crops([1, 2, 1], Some(1))
    };
    let center = Preprocessing {
        sampling: Sampling::new(&dataset, Some(center), None).unwrap(),
        preparation: Preparation::default(),
    };
    let [seen, _] = deliver(&dataset, &center, MESHES[0], &inputs(0, 0, &[4]), When::Now);
    let at = |d: usize, h: usize, w: usize| stored[(d * 6 + h) * 7 + w];
    assert_eq!(seen, [at(2, 2, 3), at(2, 3, 3)]);
}

/// The bytes that a rank of four slabs reads for three samples.
fn bytes_read(
    dataset: &Dataset,
    preprocessing: &Preprocessing,
    (mesh, rank): (Mesh, usize),
    distribution: Distribution,
) -> usize {
    let buffer = Buffer {
        name: "staging".to_owned(),
        role: Role::Staging,
        dtype: staging_dtype(dataset, preprocessing),
        dims: [3, 2, 4, 8, 8],
        tensor: None,
        offset: Bytes(0),
    };
    let load = Load {
        item: Item::Sample,
        when: When::Now,
        distribution,
        target: buffer.view(BufferId(0)),
    };
    let body = Body {
        arena: buffer.bytes(),
        buffers: vec![buffer],
        ..Body::default()
    };
    let given = preprocessing.clone();
    let identity = Transform::Identity;
    let mut source =
        HyperslabSource::preprocessed(dataset, given, mesh, rank, identity, None).unwrap();
    let mut arena = Arena::new(body.arena);
    let memory = arena.memory(&body);
    source
        .start(TaskId(0), &load, &inputs(1, 1, &[0, 1, 2]))
        .unwrap();
    let (mut done, end) = (Vec::new(), Instant::now() + Duration::from_secs(20));
    while done.is_empty() {
        source.poll(&memory, &mut done).unwrap();
        assert!(Instant::now() < end, "nothing came");
    }
    source.read_bytes().0 as usize
}

/// A rank reads the region that its part comes from, and no more than the margin of displacements besides.
#[test]
fn a_rank_reads_its_region_only() {
    let folder = tempfile::tempdir().unwrap();
    let shape = [2, 16, 8, 8];
    let dataset = make(&folder.path().join("set"), shape, DType::Int16, false);
    let elastic = Augmentation {
        elastic: everything(1.5).elastic,
        ..rest()
    };
    let flip = Augmentation {
        flip: [true; 3],
        ..rest()
    };
    let slab = 2 * 4 * 8 * 8 * 2;
    for (augmentation, most) in [(flip, slab), (elastic, slab * 2)] {
        let preprocessing = Preprocessing {
            sampling: Sampling::new(&dataset, None, Some(augmentation)).unwrap(),
            preparation: Preparation::default(),
        };
        let mesh = Mesh::new([1, 4, 1, 1, 1, 1, 1]);
        let axes = [Some(Axis::Data), Some(Axis::Depth), None, None, None];
        let distribution = Distribution {
            shape: [3, 16, 8, 8, 2],
            axes: axes.map(AxisList::from),
            micro: None,
            submesh: None,
        };
        for rank in 0..4 {
            let read = bytes_read(&dataset, &preprocessing, (mesh, rank), distribution);
            let outer = [0, 3].contains(&rank);
            // Two planes of margin, of which the border of the volume has one side only.
            let planes = if outer { 6 } else { 8 };
            let expected = if most == slab {
                3 * slab
            } else {
                3 * slab / 4 * planes
            };
            assert_eq!(read, expected, "rank {rank}, {augmentation:?}");
        }
    }
}

/// What is fitted to a channel after clip [-0.9, 1e4] and log1p is what plain loops over the training split find.
fn assert_statistics_of_plain_loops(fitted: &Preparation, channel: usize) {
    let values: Vec<f64> = (0..4)
        .flat_map(|n| floats(&volume(n, CUBE, DType::Float32))[channel * 216..][..216].to_vec())
        .map(|value| f64::from(value.clamp(-0.9, 1e4).ln_1p()))
        .collect();
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let deviation = (squares / values.len() as f64).sqrt();
    let FittedStep::Standardize {
        mean: found,
        standard_deviation,
    } = &fitted.steps()[2]
    else {
        panic!("{fitted:?}");
    };
    assert!((found[channel] - mean).abs() < 1e-12 * mean.abs());
    assert!((standard_deviation[channel] - deviation).abs() < 1e-12 * deviation);
    let mut standard: Vec<f64> = values
        .iter()
        .map(|value| (value - mean) / deviation)
        .collect();
    standard.sort_by(f64::total_cmp);
    let FittedStep::Percentiles { low, high, .. } = &fitted.steps()[3] else {
        panic!("{fitted:?}");
    };
    for (found, percent) in [(low[channel], 5.0), (high[channel], 95.0)] {
        let position = percent / 100.0 * (standard.len() - 1) as f64;
        let (below, weight) = (position.floor() as usize, position.fract());
        let plain = standard[below] + weight * (standard[below + 1] - standard[below]);
        assert!((found - plain).abs() < 1e-5, "{found} and {plain}");
    }
}

#[test]
fn statistics_are_those_of_plain_loops_and_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("set");
    let dataset = make(&path, CUBE, DType::Float32, false);
    let clip = Step::Clip {
        low: -0.9,
        high: 1e4,
    };
    let percentiles = Step::Percentiles {
        low: 5.0,
        high: 95.0,
    };
    let steps = [clip, Step::LogOnePlus, Step::Standardize, percentiles];
    let fitted = fit(&steps, &dataset, None, 3).unwrap();
    assert_eq!(fitted.asked(), steps);
    assert!(fitted.suits(2) && !fitted.suits(3));
    for channel in 0..2 {
        assert_statistics_of_plain_loops(&fitted, channel);
    }
    // Whatever the number of threads; kept, and computed anew when data have changed.
    let file = path.join(STATISTICS_FILE);
    let text = fs::read_to_string(&file).unwrap();
    fs::remove_file(&file).unwrap();
    assert_eq!(fit(&steps, &dataset, None, 1).unwrap(), fitted);
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
    let mean = text.find("mean = [").unwrap() + "mean = [".len();
    let changed = format!(
        "{}9.5, {}",
        &text[..mean],
        &text[text[mean..].find(", ").unwrap() + mean + 2..]
    );
    fs::write(&file, changed).unwrap();
    assert_ne!(
        fit(&steps, &dataset, None, 1).unwrap(),
        fitted,
        "it is taken from the file"
    );
    let data = path.join("train.h5");
    let bytes = fs::read(&data).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    fs::write(&data, bytes).unwrap();
    assert_eq!(fit(&steps, &dataset, None, 2).unwrap(), fitted);
    fs::write(&file, "not TOML [").unwrap();
    assert_eq!(fit(&steps, &dataset, None, 2).unwrap(), fitted);
}

#[test]
fn what_cannot_be_prepared_or_augmented_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = make(
        &folder.path().join("set"),
        [2, 4, 5, 6],
        DType::Int16,
        false,
    );
    let log = fit(&[Step::Log, Step::Standardize], &dataset, None, 2).unwrap_err();
    let text = log.to_string();
    for part in [
        "train.h5",
        "sample 0 of split train",
        "log of",
        "(C, D, H, W) = (0, 0, 0, 0)",
    ] {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
    let flat = Step::Clip {
        low: 1e4,
        high: 1e4 + 1.0,
    };
    let constant = fit(&[flat, Step::Standardize], &dataset, None, 1).unwrap_err();
    assert!(
        matches!(constant, DataError::Constant { channel: 0, .. }),
        "{constant}"
    );
    let none = Sampling::new(&dataset, Some(crops([4, 0, 6], None)), None).unwrap_err();
    assert!(none.to_string().contains("such as [4, 1, 6]"), "{none}");
    let rotate = Augmentation {
        rotate: true,
        ..rest()
    };
    let uneven = Sampling::new(&dataset, None, Some(rotate)).unwrap_err();
    assert!(
        uneven.to_string().contains("no plane has equal extents"),
        "{uneven}"
    );
    assert!(Sampling::new(&dataset, Some(crops([2, 4, 4], None)), Some(rotate)).is_ok());
}

/// Channels over three ranks, which cut a stored one in two, are those of `whole`.
fn channels_cut_in_two(
    dataset: &Dataset,
    preprocessing: &Preprocessing,
    inputs: &Inputs,
    whole: &[f32],
) {
    let mesh = Mesh::new([1, 1, 1, 1, 1, 3, 1]);
    let [c, d, h, w] = preprocessing.sampling.shape();
    let axes = [None, None, None, None, Some(Axis::Channel)].map(AxisList::from);
    let distribution = Distribution {
        shape: [4, d, h, w, c],
        axes,
        micro: None,
        submesh: None,
    };
    for rank in 0..3 {
        let owned = distribution.owned(&mesh, &mesh.coord(rank));
        let channels = owned.0[4].start as usize;
        let count = owned.shape()[4];
        let dims = [4, count, d, h, w];
        let make = |target| Load {
            item: Item::Sample,
            when: When::Now,
            distribution,
            target,
        };
        let place = (dims, Dtype::F32);
        let part = load(dataset, preprocessing, (mesh, rank), inputs, make, place);
        for (at, value) in part.into_iter().enumerate() {
            let (position, rest) = (at % (d * h * w), at / (d * h * w));
            let (channel, sample) = (rest % count + channels, rest / count);
            let expected = whole[(sample * d * h * w + position) * c + channel];
            assert_eq!(value.to_bits(), expected.to_bits(), "rank {rank}, {at}");
        }
    }
}

#[test]
fn one_hot_channels_are_the_same_on_every_mesh() {
    const CLASSES: usize = 5;
    let folder = tempfile::tempdir().unwrap();
    let dataset = make(&folder.path().join("set"), CUBE, DType::Int16, true);
    let last = CLASSES as f32 - 1.0;
    let clip = FittedStep::Clip {
        low: 0.0,
        high: last.into(),
    };
    let one_hot = FittedStep::OneHot { classes: CLASSES };
    let preprocessing = |crops, augmentation| Preprocessing {
        sampling: Sampling::new(&dataset, crops, augmentation)
            .unwrap()
            .with_one_hot(Some(CLASSES)),
        preparation: Preparation::new(vec![clip.clone(), one_hot.clone()]),
    };
    let plain = preprocessing(None, None);
    let [c, d, h, w] = plain.sampling.shape();
    assert_eq!([c, d, h, w], [10, 6, 6, 6]);
    let [values, _] = deliver(&dataset, &plain, MESHES[0], &inputs(1, 0, &[2]), When::Now);
    let stored = floats(&volume(2, CUBE, DType::Int16));
    for (at, &value) in values.iter().enumerate() {
        // The network sees (D, H, W, C).
        let (channel, position) = (at % c, at / c);
        let class = stored[channel / CLASSES * d * h * w + position].clamp(0.0, last);
        assert_eq!(
            value,
            f32::from(class == (channel % CLASSES) as f32),
            "{at}"
        );
    }
    let all = preprocessing(Some(crops([4; 3], Some(2))), Some(everything(1.5)));
    for preprocessing in [plain, all] {
        let inputs = inputs(3, 1, &[0, 3, 1, 2]);
        let one = deliver(&dataset, &preprocessing, MESHES[0], &inputs, When::Now);
        for mesh in &MESHES[1..] {
            let several = deliver(&dataset, &preprocessing, *mesh, &inputs, When::Now);
            assert!(several == one, "{mesh:?}");
        }
        channels_cut_in_two(&dataset, &preprocessing, &inputs, &one[0]);
    }
    let refused = fit(
        &[
            Step::Scale { factor: 0.5 },
            Step::OneHot { classes: 3 },
            Step::Standardize,
        ],
        &dataset,
        None,
        1,
    );
    let error = refused.unwrap_err().to_string();
    assert!(
        error.contains("is not a class index for one_hot = 3"),
        "{error}"
    );
}
