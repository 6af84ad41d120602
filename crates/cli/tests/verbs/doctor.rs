//! `partita doctor`.

use crate::command::{answer, assert_keys, json, partita};
use serde_json::Value;
use std::fs;

fn library(report: &Value, name: &str) -> Value {
    let libraries = report["libraries"].as_array().unwrap();
    let found = libraries.iter().find(|library| library["name"] == name);
    found.unwrap().clone()
}

#[test]
fn it_says_what_the_machine_offers() {
    let report = json(&["doctor", "--json"]);
    assert_keys(
        &report,
        &[
            "cores_usable",
            "simd",
            "caches",
            "memory_bytes",
            "memory_bytes_limit",
            "libraries",
        ],
    );
    assert!(report["cores_usable"].as_u64().unwrap() >= 1);
    for name in ["MPI", "oneDNN", "CUDA", "cuDNN", "NCCL"] {
        let library = library(&report, name);
        assert_eq!(
            library["loadable"] == true,
            library["remedy"].is_null(),
            "{library}"
        );
    }
    let text = answer(&["doctor"]);
    for part in ["cores", "vectors", "memory", "cuDNN"] {
        assert!(text.contains(part), "no `{part}` in\n{text}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn libraries_are_found_where_the_loader_looks() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("lib64")).unwrap();
    let file = folder.path().join("lib64/libnccl.so.2");
    fs::write(&file, "").unwrap();
    let report = |variable: &str, value: &std::path::Path| -> Value {
        let output = partita(&["doctor", "--json"])
            .env(variable, value)
            .output()
            .unwrap();
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let seen = library(&report("LD_LIBRARY_PATH", file.parent().unwrap()), "NCCL");
    assert_eq!(seen["path"], file.to_str().unwrap());
    assert_eq!(seen["loadable"], true);
    let hinted = library(&report("NCCL_HOME", folder.path()), "NCCL");
    if hinted["loadable"] == false {
        assert_eq!(hinted["path"], file.to_str().unwrap());
        let remedy = hinted["remedy"].as_str().unwrap();
        assert!(remedy.starts_with("export LD_LIBRARY_PATH="), "{remedy}");
    }
}
