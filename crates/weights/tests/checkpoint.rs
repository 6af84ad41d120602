//! Checkpoints: every range of a tensor that is read is what was written, and damage is refused.

use partita_program::Dtype;
use partita_space::random::split_mix;
use partita_weights::checkpoint::{
    Checkpoint, CheckpointError, CheckpointFolder, MANIFEST, PartLayout, ShardSpec, TensorKind,
};
use serde_json::json;
use std::fs;
use std::path::PathBuf;

const SHAPES: [[usize; 5]; 4] = [
    [1, 2, 3, 40, 700],
    [1, 1, 1, 1, 9],
    [3, 3, 3, 16, 32],
    [1, 1, 1, 6, 5],
];

/// The value of an element, exact in f32.
fn value(tensor: usize, element: usize) -> f64 {
    (split_mix((tensor * 1_000_003 + element) as u64) % (1 << 20)) as f64 / 64.0 - 4000.0
}

/// Regions that split two dims of a shape into parts.
fn regions(shape: [usize; 5], dims: [(usize, usize); 2]) -> Vec<[[usize; 2]; 5]> {
    let mut all = vec![shape.map(|extent| [0, extent])];
    for (dim, parts) in dims {
        let split = |region: [[usize; 2]; 5]| {
            (0..parts).map(move |part| {
                let mut region = region;
                region[dim] = [part, part + 1].map(|end| end * shape[dim] / parts);
                region
            })
        };
        all = all.into_iter().flat_map(split).collect();
    }
    all
}

/// Data of all shards of a layout.
fn snapshot(layout: &PartLayout) -> Vec<u8> {
    let mut data = vec![0; layout.bytes()];
    for (shard, at) in layout.shards() {
        let tensor: usize = shard.tensor[1..].parse().expect("a number");
        let mut bytes = Vec::new();
        let [n, d, h, w, c] = shard.region.map(|[start, end]| start..end);
        let [_, s1, s2, s3, s4] = shard.shape;
        for n in n {
            for d in d.clone() {
                for h in h.clone() {
                    for w in w.clone() {
                        for c in c.clone() {
                            let element = (((n * s1 + d) * s2 + h) * s3 + w) * s4 + c;
                            match shard.dtype {
                                Dtype::F32 => {
                                    bytes.extend((value(tensor, element) as f32).to_le_bytes())
                                }
                                Dtype::F64 => bytes.extend(value(tensor, element).to_le_bytes()),
                                Dtype::Bf16 | Dtype::F16 | Dtype::I16 => {
                                    panic!("no integers are trained")
                                }
                            }
                        }
                    }
                }
            }
        }
        data[at].copy_from_slice(&bytes);
    }
    data
}

/// Writes a checkpoint of six ranks, of which the last has nothing.
fn write(folder: &CheckpointFolder, name: &str, serial: u64) -> PathBuf {
    let mut shards = vec![Vec::new(); 6];
    for (tensor, &shape) in SHAPES.iter().enumerate() {
        let dims = match tensor {
            0 => [(4, 4), (1, 1)],
            1 => [(4, 1), (3, 1)],
            2 => [(3, 2), (4, 2)],
            _ => [(3, 5), (0, 1)],
        };
        for (rank, region) in regions(shape, dims).into_iter().enumerate() {
            shards[rank].push(ShardSpec {
                tensor: format!("t{tensor}"),
                kind: TensorKind::Parameter,
                dtype: if tensor == 2 { Dtype::F64 } else { Dtype::F32 },
                shape,
                region,
            });
        }
    }
    let mut ranks = Vec::new();
    for (rank, shards) in shards.into_iter().enumerate() {
        let layout = PartLayout::new(rank, shards);
        if layout.bytes() > 0 {
            let partial = folder.begin(name, serial).expect("a folder");
            layout.write(&partial, &snapshot(&layout)).expect("a part");
            ranks.push(rank);
        }
    }
    assert_eq!(ranks, [0, 1, 2, 3, 4]);
    let training = json!({"step": 7, "loss": 0.1});
    let whole = folder.complete(name, serial, training, &ranks);
    whole.expect("all parts are there")
}

#[test]
fn every_range_of_a_tensor_is_what_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(&CheckpointFolder::new(folder.path()), "step-7", 1);
    let checkpoint = Checkpoint::open(&path).unwrap();
    checkpoint.verify().unwrap();
    assert_eq!(checkpoint.manifest().training["loss"], 0.1);
    let mut reader = checkpoint.reader();
    for (tensor, shape) in SHAPES.iter().enumerate() {
        let name = format!("t{tensor}");
        let entry = checkpoint.tensor(&name).unwrap();
        assert_eq!(entry.shape, *shape);
        let all = entry.elements();
        let mut ranges = vec![0..all, 0..0, all - 1..all];
        for draw in 0..40 {
            let start = split_mix(draw) as usize % all;
            let end = start + split_mix(draw + 99) as usize % (all - start);
            ranges.push(start..end);
        }
        for range in ranges {
            let expected: Vec<f64> = range.clone().map(|at| value(tensor, at)).collect();
            let found = reader.read(&name, range.clone()).unwrap();
            assert!(found == expected, "{name} {range:?}");
        }
    }
    let error = reader.read("t9", 0..1).unwrap_err();
    assert!(error.to_string().contains("no tensor `t9`"), "{error}");
}

#[test]
fn files_of_ranks_are_safetensors_of_their_shards() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(&CheckpointFolder::new(folder.path()), "step-7", 1);
    let weights = partita_weights::load(path.join("rank-00001.safetensors")).unwrap();
    assert_eq!(weights.tensors["t2"].shape, [3, 3, 3, 8, 16]);
}

#[test]
fn any_flipped_bit_missing_file_and_other_size_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(&CheckpointFolder::new(folder.path()), "step-7", 1);
    let check = || Checkpoint::open(&path).and_then(|it| it.verify());
    for entry in fs::read_dir(&path).unwrap() {
        let file = entry.unwrap().path();
        let bytes = fs::read(&file).unwrap();
        for draw in 0..24 {
            let mut bad = bytes.clone();
            let at = split_mix(draw + bytes.len() as u64) as usize % bad.len();
            bad[at] ^= 1 << (draw % 8);
            fs::write(&file, &bad).unwrap();
            let error = check().expect_err(&format!("byte {at} of {}", file.display()));
            let name = file.display().to_string();
            assert!(error.to_string().contains(&name), "{error}");
        }
        fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
        assert!(check().is_err());
        fs::remove_file(&file).unwrap();
        let error = check().unwrap_err().to_string();
        let expected = if file.ends_with(MANIFEST) {
            "it has no manifest"
        } else {
            "written by rank"
        };
        assert!(error.contains(expected), "{error}");
        fs::write(&file, &bytes).unwrap();
        check().unwrap();
    }
}

#[test]
fn a_newer_format_is_refused_by_its_version() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(&CheckpointFolder::new(folder.path()), "step-7", 1);
    let file = path.join(MANIFEST);
    let text = fs::read_to_string(&file).unwrap();
    let newer = text.replace("\"format_version\": 1", "\"format_version\": 2");
    fs::write(&file, newer).unwrap();
    let error = Checkpoint::open(&path).unwrap_err();
    assert!(
        matches!(
            error,
            CheckpointError::Newer {
                version: 2,
                known: 1,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn whole_checkpoints_are_listed_by_serial_and_leftovers_go() {
    let folder = tempfile::tempdir().unwrap();
    let all = CheckpointFolder::new(folder.path().join("checkpoints"));
    assert!(all.list().unwrap().is_empty() && !all.has_any());
    // In a folder that is gone, nothing is made.
    assert!(all.begin("step-9", 1).is_err() && !all.path().exists());
    all.make().unwrap();
    write(&all, "step-9", 1);
    write(&all, "step-5", 2);
    fs::create_dir(all.path().join("step-6.3.partial")).unwrap();
    let names = || {
        let found = all.list().unwrap();
        let name = |path: PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
        found
            .into_iter()
            .map(|it| name(it.path))
            .collect::<Vec<_>>()
    };
    assert_eq!(names(), ["step-9", "step-5"]);
    // One of the same name is replaced.
    write(&all, "step-9", 3);
    assert_eq!(names(), ["step-5", "step-9"]);
    all.remove(&all.path().join("step-5")).unwrap();
    all.remove_leftovers();
    assert_eq!(fs::read_dir(all.path()).unwrap().count(), 1);
    assert!(all.has_any());
}
