//! Every target, for 4 seconds or as long as `PARTITA_FUZZ_SECONDS` says, ten minutes in the long suite.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use partita_fuzz::{Settings, TARGETS, corpus_folder, supervise};
use std::env;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

const SECONDS: f64 = 4.0;
const SECONDS_LONG: f64 = 600.0;

fn seconds() -> f64 {
    if let Ok(text) = env::var("PARTITA_FUZZ_SECONDS") {
        return text
            .parse()
            .expect("PARTITA_FUZZ_SECONDS is a number of seconds");
    }
    if env::var_os("PARTITA_TEST_LONG").is_some() {
        SECONDS_LONG
    } else {
        SECONDS
    }
}

/// Of the day, so that each day looks elsewhere, or as `PARTITA_FUZZ_SEED` says.
fn seed() -> u64 {
    if let Ok(text) = env::var("PARTITA_FUZZ_SEED") {
        return text.parse().expect("PARTITA_FUZZ_SEED is a whole number");
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    now.as_secs() / 86_400
}

fn fuzz(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).unwrap();
    let settings = Settings {
        program: env!("CARGO_BIN_EXE_fuzz").into(),
        corpus: corpus_folder(),
        scratch: Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzz"),
        seed: seed(),
        seconds: seconds(),
        keep: None,
    };
    let report = supervise(target, &settings).unwrap();
    println!("{report}");
    assert!(report.faults.is_empty(), "{report}");
    assert!(report.inputs > 0, "no input ran: {report}");
}

macro_rules! targets {
    ($($test:ident $name:literal,)*) => {
        $(
            #[test]
            fn $test() {
                fuzz($name);
            }
        )*

        #[test]
        fn every_target_has_its_test() {
            assert_eq!(TARGETS.map(|target| target.name), [$($name),*]);
        }
    };
}

targets! {
    models "model",
    names_of_the_zoo "zoo",
    exported_programs "exported",
    onnx_models "onnx",
    strategies "strategy",
    run_files "run-file",
    machine_files "machine",
    indices_of_datasets "dataset",
    hdf5_files "hdf5",
    weights "safetensors",
    npy_files "npy",
    npz_files "npz",
    zarr_stores "zarr",
    nifti_files "nifti",
    images "image",
    tfrecords "tfrecord",
    kept_statistics "statistics",
    manifests_of_checkpoints "checkpoint",
    caches "cache",
    traces_and_predictions "trace",
    programs "program",
    messages_of_loaders_and_validators "offload",
}
