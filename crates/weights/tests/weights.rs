//! Weights survive saving and loading bit for bit.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use partita_formats::DataError;
use partita_weights::state_dict::{self, StateDictFile};
use partita_weights::{ElementType, Entry, Tensor, Values, Weights, Writer, load, save};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors, serialize};

const LFS: &str = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 12345\n";

fn weights() -> Weights {
    let mut weights = Weights::default();
    let single = vec![1.5f32, -0.0, f32::MIN_POSITIVE, f32::INFINITY, 1e-45, 3.25];
    let double = vec![std::f64::consts::PI, -1e-300, 0.1];
    weights.tensors.insert(
        "c1.weight \"quoted\" \u{e9}".to_string(),
        Tensor {
            shape: vec![2, 3],
            values: Values::F32(single),
        },
    );
    weights.tensors.insert(
        "z".to_string(),
        Tensor {
            shape: vec![3],
            values: Values::F64(double),
        },
    );
    weights.tensors.insert(
        "step".to_string(),
        Tensor {
            shape: vec![],
            values: Values::F32(vec![7.0]),
        },
    );
    weights.tensors.insert(
        "none".to_string(),
        Tensor {
            shape: vec![0, 4],
            values: Values::F64(vec![]),
        },
    );
    for key in ["epoch", "digest", "seed", "commit", "run"] {
        weights
            .metadata
            .insert(key.to_string(), format!("{key} value"));
    }
    weights
}

#[test]
fn a_round_trip_keeps_every_bit_and_the_metadata() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    save(&path, &weights()).unwrap();
    let loaded = load(&path).unwrap();
    assert_eq!(loaded, weights());
    let Values::F32(values) = &loaded.tensors["c1.weight \"quoted\" \u{e9}"].values else {
        panic!("element type changed");
    };
    assert_eq!(values[1].to_bits(), (-0.0f32).to_bits());
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        1,
        "a partial file stayed"
    );
}

#[test]
fn the_file_is_what_the_safetensors_crate_reads_and_writes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    save(&path, &weights()).unwrap();
    let bytes = fs::read(&path).unwrap();
    assert_eq!(SafeTensors::deserialize(&bytes).unwrap().len(), 4);

    let words: Vec<u8> = [1.0f32, 2.0]
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    let theirs = |metadata: [&str; 2]| {
        let view = TensorView::new(Dtype::F32, vec![2], &words).unwrap();
        let metadata = HashMap::from([metadata.map(str::to_owned).into()]);
        serialize([("x", view)], Some(metadata)).unwrap()
    };
    fs::write(&path, theirs(["a", "b"])).unwrap();
    let mut loaded = load(&path).unwrap();
    assert_eq!(loaded.tensors["x"].values, Values::F32(vec![1.0, 2.0]));
    assert_eq!(loaded.metadata["a"], "b");
    loaded.metadata.clear();
    save(&path, &loaded).unwrap();
    let sums = r#"{"block_bytes":1048576,"tensors":{"x":["SUM"]}}"#;
    // CRC-32C of these eight bytes, bit by bit.
    let sum = words.iter().fold(u32::MAX, |sum, &byte| {
        (0..8).fold(sum ^ u32::from(byte), |sum, _| {
            sum >> 1 ^ if sum & 1 == 1 { 0x82f6_3b78 } else { 0 }
        })
    });
    let sums = sums.replace("SUM", &format!("{:08x}", !sum));
    let theirs = theirs(["partita.crc32c", &sums]);
    assert_eq!(fs::read(&path).unwrap(), theirs, "not the same format");
}

/// A tensor of two and a half blocks, with the position of its first byte.
fn large(path: &Path) -> (Vec<f32>, usize) {
    let values: Vec<f32> = (0..5 << 17).map(|at| at as f32).collect();
    let tensor = Tensor {
        shape: vec![5, 1 << 17],
        values: Values::F32(values.clone()),
    };
    let mut weights = Weights::default();
    weights.tensors.insert("w".to_owned(), tensor);
    save(path, &weights).expect("a new file");
    let bytes = fs::metadata(path).expect("the file").len() as usize;
    (values, bytes - (5 << 19))
}

#[test]
fn a_flipped_bit_is_found_by_whoever_reads_its_block() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    let (values, first) = large(&path);
    let whole = fs::read(&path).unwrap();
    let block = 1 << 18;
    let parts = [0..3, 7..block, block - 1..block, block + 1..block + 2];
    let parts = parts.into_iter().chain([2 * block..values.len(), 5..5]);
    for part in parts.clone().chain([block - 1..block + 1, 0..values.len()]) {
        let read = StateDictFile::open(&path).unwrap().read("w", part.clone());
        assert_eq!(read.unwrap(), Values::F32(values[part].to_vec()));
    }
    for (at, bit) in [(0, 0), (4 * block - 1, 7), (4 * block, 3), (5 * block, 1)] {
        let mut bytes = whole.clone();
        bytes[first + at] ^= 1 << bit;
        fs::write(&path, &bytes).unwrap();
        let file = StateDictFile::open(&path).unwrap();
        let damaged = at / (4 * block);
        for part in parts.clone().filter(|part| !part.is_empty()) {
            let read = file.read("w", part.clone());
            assert_eq!(
                read.is_err(),
                part.start / block == damaged,
                "{at} {part:?}"
            );
        }
        let error = load(&path).unwrap_err();
        let DataError::DamagedTensor { tensor, bytes, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!((tensor.as_str(), bytes.start), ("w", 4 * block * damaged));
        let error = error.to_string();
        assert!(error.contains("w.safetensors is damaged"), "{error}");
    }
}

#[test]
fn damaged_checksums_and_headers_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    save(&path, &weights()).unwrap();
    let whole = fs::read(&path).unwrap();
    let open = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        StateDictFile::open(&path).unwrap_err().to_string()
    };
    let at = whole.windows(11).position(|word| word == b"block_bytes");
    let mut bytes = whole.clone();
    bytes[at.unwrap()] = b'd';
    let error = open(&bytes);
    assert!(
        error.contains("checksums") && error.contains("block_bytes"),
        "{error}"
    );
    for size in [u64::MAX, 1 << 62, whole.len() as u64 - 7] {
        let mut bytes = whole.clone();
        bytes[..8].copy_from_slice(&size.to_le_bytes());
        let error = open(&bytes);
        let rest = format!(
            "a header of {size} bytes, and the file has {} more",
            whole.len() - 8
        );
        assert!(error.contains(&rest), "{error}");
    }
    let error = open(b"PK\x03\x04\x14\0\0\0 and what torch.save puts there");
    assert!(error.contains("safetensors.torch.save_file"), "{error}");
}

#[test]
fn counters_of_a_state_dict_are_integers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    let tensor = weights().tensors["step"].clone();
    let counter = "n.num_batches_tracked".to_owned();
    let tensors = [("n.weight".to_owned(), tensor)];
    state_dict::save(&path, &tensors, &[counter], BTreeMap::new()).unwrap();
    let bytes = fs::read(&path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let counter = file.tensor("n.num_batches_tracked").unwrap();
    assert_eq!((counter.dtype(), counter.data()), (Dtype::I64, &[0; 8][..]));
    assert_eq!(file.tensor("n.weight").unwrap().data(), 7_f32.to_le_bytes());
}

#[test]
fn the_same_weights_give_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (folder.path().join("a"), folder.path().join("b"));
    save(&a, &weights()).unwrap();
    save(&b, &load(&a).unwrap()).unwrap();
    assert_eq!(fs::read(a).unwrap(), fs::read(b).unwrap());
}

#[test]
fn tensors_in_parts_give_the_same_file() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, parts) = (folder.path().join("a"), folder.path().join("b"));
    let weights = weights();
    save(&whole, &weights).unwrap();
    let entries = weights.tensors.iter().map(|(name, tensor)| Entry {
        name: name.clone(),
        element: match tensor.values {
            Values::F32(_) => ElementType::F32,
            Values::F64(_) => ElementType::F64,
        },
        shape: tensor.shape.clone(),
    });
    let mut writer = Writer::create(&parts, entries.collect(), &weights.metadata).unwrap();
    while let Some(entry) = writer.next() {
        let values = &weights.tensors[&entry.name].values;
        for start in (0..values.len().max(1)).step_by(2) {
            let end = values.len().min(start + 2);
            let part = match values {
                Values::F32(values) => Values::F32(values[start..end].to_vec()),
                Values::F64(values) => Values::F64(values[start..end].to_vec()),
            };
            if start > 0 {
                let whole = writer.push(values).unwrap_err();
                assert!(matches!(whole, DataError::BadValue { .. }), "{whole}");
            }
            writer.push_part(&part).unwrap();
        }
    }
    writer.finish().unwrap();
    assert_eq!(fs::read(whole).unwrap(), fs::read(parts).unwrap());
}

#[test]
fn saving_replaces_the_old_file_or_leaves_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    save(&path, &Weights::default()).unwrap();
    save(&path, &weights()).unwrap();
    let mut bad = weights();
    bad.tensors.insert(
        "bad".to_string(),
        Tensor {
            shape: vec![3],
            values: Values::F32(vec![0.0]),
        },
    );
    let error = save(&path, &bad).unwrap_err();
    assert!(matches!(error, DataError::BadValue { .. }), "{error}");
    assert_eq!(load(&path).unwrap(), weights());
    let error = save(folder.path().join("no/such/folder"), &weights()).unwrap_err();
    assert!(matches!(error, DataError::Unwritable { .. }), "{error}");
}

#[test]
fn damaged_and_foreign_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    assert!(matches!(
        load(&path).unwrap_err(),
        DataError::Missing { .. }
    ));
    save(&path, &weights()).unwrap();
    let bytes = fs::read(&path).unwrap();
    for length in 0..bytes.len() {
        fs::write(&path, &bytes[..length]).unwrap();
        let error = load(&path).unwrap_err();
        assert!(matches!(error, DataError::BadWeights { .. }), "{error}");
    }
    let view = TensorView::new(Dtype::I8, vec![2], &[1, 2]).unwrap();
    fs::write(&path, serialize([("x", view)], None).unwrap()).unwrap();
    let error = load(&path).unwrap_err().to_string();
    assert!(error.contains("tensor `x` holds I8"), "{error}");
}

fn is_no_damage(error: &str, parts: &[&str]) {
    for part in parts {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert!(
        !error.contains("damaged") && !error.contains("restore"),
        "{error}"
    );
}

#[test]
fn weights_of_other_kinds_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let index = r#"{"metadata": {}, "weight_map": {"a": "model-00001-of-00002.safetensors", "b":
        "model-00002-of-00002.safetensors"}}"#;
    for (name, bytes, parts) in [
        ("w.safetensors", LFS.as_bytes(), &["git lfs pull"][..]),
        (
            "model.safetensors.index.json",
            index.as_bytes(),
            &["2 files", "model-00001-of-00002.safetensors", "save_file"],
        ),
        (
            "p.safetensors",
            b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j",
            &["torch.save", "save_file"],
        ),
        (
            "z.safetensors",
            b"PK\x03\x04\0\0\0\0\0\0",
            &["torch.save", "save_file"],
        ),
        ("h.safetensors", b"\x89HDF\r\n\x1a\n", &["HDF5"]),
    ] {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        let opened = state_dict::StateDictFile::open(&path).unwrap_err();
        is_no_damage(&opened.to_string(), parts);
        is_no_damage(&load(&path).unwrap_err().to_string(), parts);
    }
}
