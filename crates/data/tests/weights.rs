//! Weights survive saving and loading bit for bit.

use std::collections::HashMap;
use std::fs;

use partita_data::DataError;
use partita_data::weights::{Tensor, Values, Weights, load, save};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors, serialize};

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
    let view = TensorView::new(Dtype::F32, vec![2], &words).unwrap();
    let metadata = HashMap::from([("a".to_string(), "b".to_string())]);
    let theirs = serialize([("x", view)], Some(metadata)).unwrap();
    fs::write(&path, &theirs).unwrap();
    let loaded = load(&path).unwrap();
    assert_eq!(loaded.tensors["x"].values, Values::F32(vec![1.0, 2.0]));
    assert_eq!(loaded.metadata["a"], "b");
    save(&path, &loaded).unwrap();
    assert_eq!(fs::read(&path).unwrap(), theirs, "not the same format");
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
