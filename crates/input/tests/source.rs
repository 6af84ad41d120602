//! What a rank's source delivers is its own part of its own samples, whatever the split.

#![allow(clippy::unwrap_used, reason = "helper functions of tests")]

use crate::made;

use std::fs;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use made::{SHAPE, TARGETS, physical, spec, target, volume};
use partita_data::{Dataset, DatasetWriter, Split};
use partita_formats::{DType, Layout, Samples, VolumeShape};
use partita_input::{HyperslabSource, first_sample};
use partita_program::{
    Body, Buffer, BufferId, Distribution, Dtype, Item, Load, Role, TaskId, Transform, When,
};
use partita_run::{Arena, Inputs, RunError, Source};
use partita_space::{Axis, AxisList, Bytes, Mesh};

const DATA_AND_SPACE: [Option<Axis>; 5] = [
    Some(Axis::Data),
    Some(Axis::Depth),
    Some(Axis::Height),
    Some(Axis::Width),
    None,
];

fn make(path: &Path, dtype: DType) -> Dataset {
    make_of(SHAPE, path, dtype)
}

fn make_of(shape: VolumeShape, path: &Path, dtype: DType) -> Dataset {
    let spec = spec(shape, dtype, Layout::Contiguous);
    let mut writer = DatasetWriter::create(path, &spec).expect("a new path");
    let mut n = 0;
    for split in Split::ALL {
        while writer.next_universe(split).is_some() {
            let volume = volume(n, shape, dtype);
            writer
                .append(split, &volume, &target(n), &physical(n))
                .expect("a sample that fits");
            n += 1;
        }
    }
    writer.finish().expect("all samples written")
}

fn mesh(data: usize, [depth, height, width]: [usize; 3]) -> Mesh {
    Mesh::new([data, depth, height, width, 1, 1, 1])
}

fn distributions(batch: usize, [c, d, h, w]: VolumeShape) -> [Distribution; 2] {
    let sample = Distribution {
        shape: [batch, d, h, w, c],
        axes: DATA_AND_SPACE.map(AxisList::from),
        micro: None,
        submesh: None,
    };
    let target = Distribution {
        shape: [batch, 1, 1, 1, TARGETS],
        axes: [Some(Axis::Data), None, None, None, None].map(AxisList::from),
        micro: None,
        submesh: None,
    };
    [sample, target]
}

/// A body of nothing but the staging buffers of a rank, and its loads.
fn staged(
    mesh: &Mesh,
    rank: usize,
    batch: usize,
    dtypes: [Dtype; 2],
    when: When,
) -> (Body, [Load; 2]) {
    staged_of(SHAPE, mesh, rank, batch, dtypes, when)
}

fn staged_of(
    shape: VolumeShape,
    mesh: &Mesh,
    rank: usize,
    batch: usize,
    dtypes: [Dtype; 2],
    when: When,
) -> (Body, [Load; 2]) {
    let coord = mesh.coord(rank);
    let distributions = distributions(batch, shape);
    let [n, d, h, w, c] = distributions[0].owned(mesh, &coord).shape();
    let target = distributions[1].owned(mesh, &coord).shape();
    let mut body = Body::default();
    let mut loads = Vec::new();
    for (index, dims) in [[n, c, d, h, w], target].into_iter().enumerate() {
        let buffer = Buffer {
            name: format!("staging{index}"),
            role: Role::Staging,
            dtype: dtypes[index],
            dims,
            tensor: None,
            offset: body.arena,
        };
        body.arena = Bytes((body.arena.0 + buffer.bytes().0).next_multiple_of(64));
        loads.push(Load {
            item: [Item::Sample, Item::Target][index],
            when,
            distribution: distributions[index],
            target: buffer.view(BufferId(index as u32)),
        });
        body.buffers.push(buffer);
    }
    (body, [loads[0].clone(), loads[1].clone()])
}

/// Plays the loads and gives what was staged, and the bytes counted.
fn play(
    source: &mut HyperslabSource,
    body: &Body,
    loads: &[Load; 2],
    inputs: &Inputs,
) -> Result<(Vec<f64>, Vec<f64>, u64), RunError> {
    let mut arena = Arena::new(body.arena);
    let memory = arena.memory(body);
    let mut done = Vec::new();
    for (index, load) in loads.iter().enumerate() {
        source.start(TaskId(index as u32), load, inputs)?;
    }
    let end = Instant::now() + Duration::from_secs(20);
    while done.len() < 2 {
        source.poll(&memory, &mut done)?;
        std::thread::sleep(Duration::from_micros(200));
        assert!(Instant::now() < end, "nothing came");
    }
    let values = |load: &Load| match body.buffer(load.target.buffer).dtype {
        Dtype::I16 => {
            let mut values = Vec::new();
            memory.pack::<i16>(&load.target, &mut values);
            values.into_iter().map(f64::from).collect()
        }
        Dtype::F32 => {
            let mut values = Vec::new();
            memory.pack::<f32>(&load.target, &mut values);
            values.into_iter().map(f64::from).collect()
        }
        Dtype::F64 => {
            let mut values = Vec::new();
            memory.pack::<f64>(&load.target, &mut values);
            values
        }
        Dtype::Bf16 | Dtype::F16 => panic!("samples and targets are staged in other types"),
    };
    Ok((values(&loads[0]), values(&loads[1]), source.take_tally()))
}

fn wide(samples: &Samples) -> Vec<f64> {
    match samples {
        Samples::I16(values) => values.iter().copied().map(f64::from).collect(),
        Samples::F32(values) => values.iter().copied().map(f64::from).collect(),
    }
}

fn inputs(samples: &[usize], next: &[usize]) -> Inputs {
    Inputs {
        loss_scale: None,
        skipped: 0,
        samples: samples.to_vec(),
        next_samples: next.to_vec(),
        ..Inputs::default()
    }
}

#[test]
fn every_rank_gets_its_slab_of_its_samples_from_all_splits() {
    let folder = tempfile::tempdir().unwrap();
    let types = [(DType::Int16, Dtype::I16), (DType::Float32, Dtype::F32)];
    for (index, (stored, staging)) in types.into_iter().enumerate() {
        let dataset = make(&folder.path().join(index.to_string()), stored);
        let meshes = [
            mesh(1, [1, 1, 1]),
            mesh(2, [1, 1, 1]),
            mesh(3, [2, 1, 1]),
            mesh(1, [4, 1, 2]),
            mesh(4, [1, 3, 1]),
        ];
        for mesh in meshes {
            for (when, target_dtype) in [(When::Now, Dtype::F32), (When::Next, Dtype::F64)] {
                // Samples 4 and 5 lie in the validation and test splits.
                let ids = [5, 0, 3, 4, 1];
                let inputs = match when {
                    When::Now => inputs(&ids, &[]),
                    When::Next => inputs(&[], &ids),
                };
                for rank in 0..mesh.ranks() {
                    let dtypes = [staging, target_dtype];
                    let (body, loads) = staged(&mesh, rank, ids.len(), dtypes, when);
                    let mut source =
                        HyperslabSource::new(&dataset, mesh, rank, Transform::Identity, None)
                            .unwrap();
                    let (samples, targets, bytes) =
                        play(&mut source, &body, &loads, &inputs).unwrap();
                    let owned = loads[0].distribution.owned(&mesh, &mesh.coord(rank));
                    let [n, d, h, w, c] =
                        owned.0.map(|side| side.start as usize..side.end as usize);
                    let mine = &ids[n];
                    let region = [c, d, h, w];
                    let slabs = mine
                        .iter()
                        .flat_map(|&id| wide(&volume(id, SHAPE, stored).slice(SHAPE, &region)));
                    assert_eq!(
                        samples,
                        slabs.collect::<Vec<_>>(),
                        "rank {rank} of {mesh:?}"
                    );
                    let expected = mine.iter().flat_map(|&id| target(id)).map(f64::from);
                    assert_eq!(targets, expected.collect::<Vec<_>>());
                    let counted: u64 = loads
                        .iter()
                        .map(|load| load.target.bytes(&body.buffers).0)
                        .sum();
                    assert_eq!(bytes, counted);
                }
            }
        }
        assert_eq!(
            Split::ALL.map(|split| first_sample(&dataset, split)),
            [0, 4, 5]
        );
    }
}

#[test]
fn nothing_to_read_ahead_delivers_zeros_that_count() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = make(&folder.path().join("set"), DType::Int16);
    let mesh = mesh(1, [2, 1, 1]);
    let (body, loads) = staged(&mesh, 1, 2, [Dtype::I16, Dtype::F32], When::Next);
    let mut source = HyperslabSource::new(&dataset, mesh, 1, Transform::Identity, None).unwrap();
    let (samples, targets, bytes) =
        play(&mut source, &body, &loads, &inputs(&[0, 1], &[])).unwrap();
    assert!(samples.iter().chain(&targets).all(|&value| value == 0.0));
    assert_eq!(bytes, 2 * (2 * 3 * 5 * 7 * 2 + 4 * 4));
}

#[test]
fn what_cannot_be_read_names_rank_file_and_key() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("set");
    let dataset = make(&path, DType::Int16);
    let mesh = mesh(1, [2, 1, 1]);
    let (body, loads) = staged(&mesh, 1, 1, [Dtype::I16, Dtype::F32], When::Now);
    let refused = |ids: &[usize]| {
        let mut source =
            HyperslabSource::new(&dataset, mesh, 1, Transform::Identity, None).unwrap();
        play(&mut source, &body, &loads, &inputs(ids, &[]))
            .unwrap_err()
            .to_string()
    };
    let beyond = refused(&[7]);
    assert!(
        beyond.contains("rank 1") && beyond.contains("valid samples are 0 to 1"),
        "{beyond}"
    );
    let file = path.join("train.h5");
    let length = fs::metadata(&file).unwrap().len();
    fs::OpenOptions::new()
        .write(true)
        .open(&file)
        .unwrap()
        .set_len(length / 2)
        .unwrap();
    let cut = refused(&[3]);
    assert!(cut.contains("rank 1") && cut.contains("train.h5"), "{cut}");
    let (body, loads) = staged(&mesh, 1, 1, [Dtype::F32, Dtype::F32], When::Now);
    let mut source = HyperslabSource::new(&dataset, mesh, 1, Transform::Identity, None).unwrap();
    let wrong = play(&mut source, &body, &loads, &inputs(&[4], &[]))
        .unwrap_err()
        .to_string();
    assert!(wrong.contains("int16") && wrong.contains("F32"), "{wrong}");
}

/// The reason why rank 1 of two halves in depth cannot read a sample with these voxels and targets.
fn refusal(values: Samples, targets: &[f32], transform: Transform) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let dtype = values.dtype();
    let spec = spec(SHAPE, dtype, Layout::Contiguous);
    let mut writer = DatasetWriter::create(folder.path().join("set"), &spec).unwrap();
    for split in Split::ALL {
        while writer.next_universe(split).is_some() {
            let physical = physical(0);
            writer.append(split, &values, targets, &physical).unwrap();
        }
    }
    let dataset = writer.finish().unwrap();
    let mesh = mesh(1, [2, 1, 1]);
    let staged_as = match dtype {
        DType::Int16 => Dtype::I16,
        DType::Float32 => Dtype::F32,
    };
    let (body, loads) = staged(&mesh, 1, 2, [staged_as, Dtype::F32], When::Now);
    let mut source = HyperslabSource::new(&dataset, mesh, 1, transform, None).unwrap();
    // The first sample of validation and the second of the test.
    let played = play(&mut source, &body, &loads, &inputs(&[4, 6], &[]));
    played.err().map(|error| error.to_string())
}

#[test]
fn a_value_that_spoils_a_network_is_named_with_its_place() {
    let at = |[c, d, h, w]: [usize; 4]| ((c * SHAPE[1] + d) * SHAPE[2] + h) * SHAPE[3] + w;
    let floats = |index: [usize; 4], value: f32| {
        let mut values = vec![1.0; SHAPE.iter().product()];
        values[at(index)] = value;
        Samples::F32(values)
    };
    let good = target(0);
    let (identity, log) = (Transform::Identity, Transform::LogOnePlus);
    let fill = refusal(floats([1, 4, 2, 3], 9.969_21e36), &good, identity).expect("a refusal");
    for part in [
        "rank 1",
        "validation.h5",
        "key `full`, sample 0 of split validation, at (C, D, H, W) = (1, 4, 2, 3)",
        "9.96921e36",
        "possible values: a number between -1.8446744e19 and 1.8446744e19",
    ] {
        assert!(fill.contains(part), "`{part}` is not in: {fill}");
    }
    let below = refusal(floats([0, 5, 4, 6], -2.5), &good, log).expect("a refusal");
    assert!(below.contains("(0, 5, 4, 6)"), "{below}");
    assert!(below.contains("log1p of -2.5 is not a number"), "{below}");
    // The other rank reads that half, and refuses it.
    assert_eq!(
        refusal(floats([0, 2, 4, 6], f32::NAN), &good, identity),
        None
    );
    let mut counts = vec![3i16; SHAPE.iter().product()];
    counts[at([1, 3, 0, 0])] = -1;
    let count = refusal(Samples::I16(counts), &good, log).expect("a refusal");
    assert!(count.contains("log1p of -1 is -inf"), "{count}");
    assert!(count.contains("(1, 3, 0, 0)"), "{count}");
    let targets = [0.5, f32::INFINITY, 0.0, 0.0];
    let target = refusal(floats([0; 4], 1.0), &targets, identity).expect("a refusal");
    assert!(target.contains("key `unitPar`"), "{target}");
    assert!(target.contains("target 1: inf is not finite"), "{target}");
}

#[test]
fn the_rank_is_woken_once_per_piece_and_reading_does_not_run_away() {
    // A piece is one sample of 256 KiB, two of 96 KiB, or all that are small.
    for (shape, pieces) in [([2, 16, 64, 64], 5), ([2, 6, 64, 64], 3), (SHAPE, 1)] {
        let folder = tempfile::tempdir().unwrap();
        let dataset = make_of(shape, &folder.path().join("set"), DType::Int16);
        let mesh = mesh(1, [1, 1, 1]);
        let dtypes = [Dtype::I16, Dtype::F32];
        let (body, loads) = staged_of(shape, &mesh, 0, 5, dtypes, When::Now);
        let (wake, woken) = mpsc::channel();
        let waker = Box::new(move || wake.send(()).unwrap_or(()));
        let mut source =
            HyperslabSource::new(&dataset, mesh, 0, Transform::Identity, Some(waker)).unwrap();
        let mut arena = Arena::new(body.arena);
        let memory = arena.memory(&body);
        let ids = [0, 5, 2, 3, 6];
        source
            .start(TaskId(0), &loads[0], &inputs(&ids, &[]))
            .unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let mut calls = woken.try_iter().count();
        assert_eq!(calls, pieces.min(2), "the third piece is held back");
        let mut done = Vec::new();
        let end = Instant::now() + Duration::from_secs(20);
        while done.is_empty() {
            source.poll(&memory, &mut done).unwrap();
            assert!(Instant::now() < end, "nothing came");
        }
        assert_eq!(done, [TaskId(0)]);
        drop(source);
        calls += woken.iter().count();
        assert_eq!(calls, pieces, "{shape:?}");
        let mut staged = Vec::new();
        memory.pack::<i16>(&loads[0].target, &mut staged);
        let expected = ids.map(|id| wide(&volume(id, shape, DType::Int16)));
        let staged: Vec<f64> = staged.into_iter().map(f64::from).collect();
        assert!(staged == expected.concat(), "{shape:?}");
    }
}
