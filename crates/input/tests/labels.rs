//! Class numbers in place of target vectors: one per sample, or one per position, read by regions.

#![allow(clippy::unwrap_used, reason = "helper functions of tests")]

use crate::made;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use made::{Random, SHAPE, spec, volume};
use partita_data::{Dataset, DatasetSpec, DatasetWriter, Kind, Split};
use partita_formats::{DType, DataError, Layout, Samples};
use partita_input::HyperslabSource;
use partita_program::{
    Body, Buffer, BufferId, Distribution, Dtype, Item, Load, Role, TaskId, Transform, When,
};
use partita_run::{Arena, Inputs, RunError, Source};
use partita_space::{Axis, Bytes, Mesh};

const CLASSES: [&str; 3] = ["background", "organ", "lesion"];

fn labeled(labels: [usize; 3]) -> DatasetSpec {
    DatasetSpec {
        kind: Kind::Segmentation,
        targets: CLASSES.map(str::to_owned).to_vec(),
        labels: Some(labels),
        ..spec(SHAPE, DType::Int16, Layout::Contiguous)
    }
}

/// Class numbers of a sample, whatever their number.
fn classes(sample: usize, labels: [usize; 3]) -> Vec<i16> {
    let mut random = Random(sample as u64 * 77 + 5);
    let elements: usize = labels.iter().product();
    (0..elements).map(|_| random.below(3) as i16).collect()
}

fn make(path: &Path, labels: [usize; 3]) -> Dataset {
    let mut writer = DatasetWriter::create(path, &labeled(labels)).unwrap();
    let mut sample = 0;
    for split in Split::ALL {
        while writer.next_universe(split).is_some() {
            let values = volume(sample, SHAPE, DType::Int16);
            let classes = Samples::I16(classes(sample, labels));
            writer.append_labeled(split, &values, &classes).unwrap();
            sample += 1;
        }
    }
    writer.finish().unwrap()
}

#[test]
fn class_numbers_come_back_by_region() {
    let folder = tempfile::tempdir().unwrap();
    let [_, d, h, w] = SHAPE;
    let dataset = make(&folder.path().join("volumes"), [d, h, w]);
    assert_eq!(dataset.labels(), Some([d, h, w]));
    assert_eq!(dataset.targets(), CLASSES);
    let mut reader = dataset.reader(Split::Train);
    let mut random = Random(3);
    let mut out = Samples::new(DType::Int16);
    for sample in 0..4 {
        let whole = Samples::I16(classes(sample, [d, h, w]));
        let region = [1, d, h, w].map(|extent| {
            let start = random.below(extent);
            start..start + 1 + random.below(extent - start)
        });
        reader
            .read_labels(sample, region.clone(), &mut out)
            .unwrap();
        assert_eq!(out, whole.slice([1, d, h, w], &region));
    }
    let beyond = [0..1, 0..d, 0..h, 0..w + 1];
    let error = reader.read_labels(0, beyond, &mut out).unwrap_err();
    assert!(matches!(error, DataError::RegionOutOfRange { .. }));
    // The same without the index.
    let file = Dataset::open(folder.path().join("volumes/train.h5")).unwrap();
    assert_eq!(file.labels(), Some([d, h, w]));
    assert_eq!(file.samples(Split::Train), 4);
}

#[test]
fn answers_of_the_other_kind_and_numbers_of_no_class_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("volumes");
    let [_, d, h, w] = SHAPE;
    let values = volume(0, SHAPE, DType::Int16);
    let mut writer = DatasetWriter::create(&path, &labeled([d, h, w])).unwrap();
    let mut wrong = classes(0, [d, h, w]);
    wrong[5] = 3;
    for (labels, expected) in [
        (Samples::I16(wrong), "class 3"),
        (Samples::I16(vec![0; 4]), "4 elements of int16"),
        (Samples::F32(vec![0.0; d * h * w]), "float32"),
    ] {
        let error = writer.append_labeled(Split::Train, &values, &labels);
        let text = error.unwrap_err().to_string();
        assert!(text.contains(expected), "{text}");
    }
    let error = writer.append(Split::Train, &values, &[0.0; 3], &[0.0; 3]);
    let error = error.unwrap_err();
    let is_it = matches!(error, DataError::BadValue { what: "answer", .. });
    assert!(is_it, "{error}");
    let odd = DatasetSpec {
        labels: Some([1, 1, 2]),
        ..labeled([1; 3])
    };
    let refused = DatasetWriter::create(folder.path().join("odd"), &odd).err();
    assert!(refused.unwrap().to_string().contains("labels = [1, 1, 2]"));
}

#[test]
fn labels_that_the_dataset_has_no_class_for_are_refused_with_their_sample() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("volumes");
    let [_, d, h, w] = SHAPE;
    make(&path, [d, h, w]);
    let index = path.join("dataset.toml");
    let text = fs::read_to_string(&index).unwrap();
    let fewer = text.replace("\"organ\",\n", "").replace("\"organ\", ", "");
    assert_ne!(text, fewer);
    fs::write(&index, fewer).unwrap();
    let mut reader = Dataset::open(&path).unwrap().reader(Split::Train);
    let mut out = Samples::new(DType::Int16);
    let error = reader.read_labels(1, [0..1, 0..d, 0..h, 0..w], &mut out);
    let Err(DataError::NoClass(refused)) = error else {
        panic!("{error:?}");
    };
    assert!(refused.path.ends_with("train.h5"), "{refused}");
    let found = (refused.sample, &*refused.class, refused.last, refused.owner);
    assert_eq!(found, (1, "2", 1, "dataset"));
}

/// Loads the targets of a batch on one rank and gives what was staged.
fn staged(
    dataset: &Dataset,
    mesh: Mesh,
    rank: usize,
    distribution: Distribution,
) -> Result<Vec<f64>, RunError> {
    let buffer = Buffer {
        name: "target".to_owned(),
        role: Role::Staging,
        dtype: Dtype::F32,
        dims: distribution.owned(&mesh, &mesh.coord(rank)).shape(),
        tensor: None,
        offset: Bytes(0),
    };
    let load = Load {
        item: Item::Target,
        when: When::Now,
        distribution,
        target: buffer.view(BufferId(0)),
    };
    let body = Body {
        arena: buffer.bytes(),
        buffers: vec![buffer],
        ..Body::default()
    };
    let inputs = Inputs {
        loss_scale: None,
        skipped: 0,
        samples: vec![2, 5],
        ..Inputs::default()
    };
    let mut source = HyperslabSource::new(dataset, mesh, rank, Transform::Identity, None).unwrap();
    let mut arena = Arena::new(body.arena);
    let memory = arena.memory(&body);
    source.start(TaskId(0), &load, &inputs)?;
    let (mut done, end) = (Vec::new(), Instant::now() + Duration::from_secs(20));
    while done.is_empty() {
        source.poll(&memory, &mut done)?;
        std::thread::sleep(Duration::from_micros(200));
        assert!(Instant::now() < end, "nothing came");
    }
    let mut values = Vec::new();
    memory.pack::<f32>(&load.target, &mut values);
    Ok(values.into_iter().map(f64::from).collect())
}

/// Samples 2 (training) and 5 (the first of the test) over two groups of 2 x 3 ranks.
#[test]
fn each_rank_stages_the_classes_of_its_part() {
    let folder = tempfile::tempdir().unwrap();
    let [_, d, h, w] = SHAPE;
    let mesh = Mesh::new([2, 2, 1, 3, 1, 1, 1]);
    let split = [
        Some(Axis::Data),
        Some(Axis::Depth),
        None,
        Some(Axis::Width),
        None,
    ]
    .map(Into::into);
    let per_voxel = make(&folder.path().join("volumes"), [d, h, w]);
    let per_sample = make(&folder.path().join("images"), [1; 3]);
    for rank in 0..mesh.ranks() {
        let distribution = |extent: [usize; 3], axes| {
            let [d, h, w] = extent;
            let shape = [2, d, h, w, 1];
            let micro = None;
            Distribution {
                shape,
                axes,
                micro,
                submesh: None,
            }
        };
        for (dataset, extent, distribution) in [
            (&per_voxel, [d, h, w], distribution([d, h, w], split)),
            (
                &per_sample,
                [1; 3],
                distribution(
                    [1; 3],
                    [Some(Axis::Data), None, None, None, None].map(Into::into),
                ),
            ),
        ] {
            let values = staged(dataset, mesh, rank, distribution).unwrap();
            let [n, ds, hs, ws, _] = distribution
                .owned(&mesh, &mesh.coord(rank))
                .0
                .map(|interval| interval.start as usize..interval.end as usize);
            let sample = [2, 5][n.start];
            let [d, h, w] = extent;
            let whole = Samples::I16(classes(sample, extent));
            let expected = whole.slice([1, d, h, w], &[0..1, ds, hs, ws]);
            let mut narrow = Vec::new();
            expected.write_f32(&mut narrow);
            let expected: Vec<f64> = narrow.into_iter().map(f64::from).collect();
            assert_eq!(values, expected, "rank {rank}");
        }
    }
    let wrong = Distribution {
        shape: [2, 1, 1, 1, 3],
        axes: [Some(Axis::Data), None, None, None, None].map(Into::into),
        micro: None,
        submesh: None,
    };
    let error = staged(&per_voxel, mesh, 0, wrong).unwrap_err().to_string();
    assert!(
        error.contains("those of the network [1, 1, 1, 3]"),
        "{error}"
    );
}
