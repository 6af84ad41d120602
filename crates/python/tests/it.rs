//! The package in a Python of this machine, without a wheel; and, in the long tests, the wheel with all examples.

#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![cfg(target_os = "linux")]

use partita_testkit::not_run;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Set where the long tests run.
const LONG: &str = "PARTITA_TEST_LONG";

/// A quick session: a plan, a training of arrays with a callback, an evaluation, predictions, errors.
const SESSION: &str = include_str!("session.py");

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap().to_owned()
}

/// A folder with the package as it was built with this test.
fn package() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let package = folder.path().join("partita");
    fs::create_dir(&package).unwrap();
    for file in fs::read_dir(root().join("python/partita")).unwrap() {
        let file = file.unwrap().path();
        if file.is_file() {
            fs::copy(&file, package.join(file.file_name().unwrap())).unwrap();
        }
    }
    // The library lies beside the test.
    let built = env::current_exe().unwrap().with_file_name("lib_partita.so");
    fs::copy(built, package.join("_partita.abi3.so")).unwrap();
    folder
}

fn shown(output: &Output) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// Python as it is found, or that of a variable, which may have more packages.
fn python() -> Command {
    Command::new(env::var_os("PARTITA_TEST_PYTHON").unwrap_or_else(|| "python3".into()))
}

/// Whether a Python of 3.9 or newer has these modules; says so where it does not.
fn has_modules(test: &str, modules: &str) -> bool {
    let asked = format!("import sys, {modules}; assert sys.version_info >= (3, 9)");
    let tried = python().args(["-c", &asked]).stderr(Stdio::null()).status();
    let has = tried.is_ok_and(|status| status.success());
    if !has {
        not_run(test, format!("python3 of 3.9 or newer lacks {modules}"));
    }
    has
}

#[test]
fn the_package_plans_and_refuses() {
    if !has_modules("the_package_plans_and_refuses", "json") {
        return;
    }
    let folder = package();
    let output = python()
        .args(["-c", SESSION])
        .env("PYTHONPATH", folder.path())
        .env("XDG_CACHE_HOME", folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", shown(&output));
    let has_numpy = has_modules("the part of it with arrays", "numpy");
    let trained = shown(&output).contains("trained arrays");
    assert_eq!(trained, has_numpy, "{}", shown(&output));
}

#[test]
fn samples_are_read_by_region() {
    if !has_modules("samples_are_read_by_region", "numpy") {
        return;
    }
    let folder = package();
    let output = python()
        .args(["-c", include_str!("samples.py")])
        .env("PYTHONPATH", folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", shown(&output));
}

#[test]
fn the_wheel_runs_the_examples() {
    if env::var_os(LONG).is_none() {
        return;
    }
    if !has_modules("the_wheel_runs_the_examples", "venv, ensurepip") {
        return;
    }
    let output = Command::new(root().join("crates/python/test-wheel.sh"))
        .output()
        .unwrap();
    match output.status.code() {
        // What it needs cannot be installed.
        Some(75) => not_run("the_wheel_runs_the_examples", shown(&output)),
        code => assert_eq!(code, Some(0), "{}", shown(&output)),
    }
}
