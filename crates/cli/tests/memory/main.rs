//! Memory of training, predicted against measured, with every rank a thread or a process.

#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![cfg(target_os = "linux")]

#[path = "../mpi/launchers.rs"]
#[allow(dead_code, reason = "some of it is for other tests")]
mod launchers;

use partita_testkit::Share;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

const PARTITA: &str = env!("CARGO_BIN_EXE_partita");

/// What is predicted may be off by so much of what is measured,
const SHARE: f64 = 0.02;
/// or by a fixed number of bytes, where that is more: stacks, allocators and code that is first used.
const FLOOR: f64 = (4 << 20) as f64;

/// Models that take some gigabytes together, and cores for all of them, are there once.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn succeed(command: &mut Command) -> Vec<u8> {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    output.stdout
}

/// `memory` of the result of a short training in a folder with datasets.
fn trained(folder: &Path, mut command: Command, case: &Case) -> Value {
    let (data, transform) = if case.model.starts_with("cosmoflow") {
        ("universes", "log1p")
    } else {
        ("shapes", "identity")
    };
    let run = format!(
        "model = \"{}\"\ndata = \"{data}\"\noutput = \"out\"\nstrategy = \"{}\"\nbatch = {}\n\
         epochs = 1\nseed = 1\ntransform = \"{transform}\"\n\
         [schedule]\nkind = \"constant\"\nlearning_rate = 1e-4\n",
        case.model, case.strategy, case.batch
    );
    fs::write(folder.join("run.toml"), run).unwrap();
    command.args(["--no-prediction", "--json", "--overwrite"]);
    let result = succeed(command.current_dir(folder));
    let result: Value = serde_json::from_slice(&result).unwrap();
    result["memory"].clone()
}

struct Case {
    model: &'static str,
    batch: usize,
    ranks: usize,
    strategy: &'static str,
}

const fn case(model: &'static str, batch: usize, ranks: usize, strategy: &'static str) -> Case {
    Case {
        model,
        batch,
        ranks,
        strategy,
    }
}

fn bytes(memory: &Value, key: &str) -> f64 {
    memory[key]
        .as_f64()
        .unwrap_or_else(|| panic!("no `{key}` in {memory}"))
}

/// Asserts that the arenas are exactly as predicted, and all memory nearly so.
fn check(case: &Case, memory: &Value) {
    let what = format!("{}, {}: {memory}", case.model, case.strategy);
    assert_eq!(
        memory["allocated_arena_bytes"], memory["predicted_arena_bytes"],
        "{what}"
    );
    let items = memory["predicted"].as_object().unwrap();
    let items: f64 = items.values().map(|item| item.as_f64().unwrap()).sum();
    let sum = items + bytes(memory, "predicted_snapshot_bytes");
    let (predicted, measured) = (
        bytes(memory, "predicted_bytes"),
        bytes(memory, "measured_peak_bytes"),
    );
    assert_eq!(sum, predicted, "{what}");
    let off = (predicted - measured).abs();
    println!(
        "{} {}: {:.1} MiB predicted, {:.1} measured, {:.2} %",
        case.model,
        case.strategy,
        predicted / f64::from(1 << 20),
        measured / f64::from(1 << 20),
        100.0 * (predicted - measured) / measured
    );
    assert!(off <= FLOOR.max(SHARE * measured), "{what}");
}

fn universes(folder: &Path, count: &str, grid: &str) {
    let sizes = ["--universes", count, "--grid", grid, "--out"];
    let mut command = Command::new(PARTITA);
    command.args(["data", "cosmology"]).args(sizes);
    succeed(command.arg(folder.join("universes")));
}

fn shapes(folder: &Path) {
    let sizes = ["--images", "40", "--size", "64", "--classes", "1000"];
    let mut command = Command::new(PARTITA);
    command.args(["data", "shapes"]).args(sizes).arg("--out");
    succeed(command.arg(folder.join("shapes")));
}

/// What trials of kernels leave behind counts neither for nor against the training.
#[test]
fn trials_change_nothing_of_what_is_measured() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    universes(folder.path(), "12", "64");
    // Its buffers of messages have some megabytes.
    let case = case("cosmoflow@64+bn", 4, 2, "data=2");
    let mut command = threads(case.ranks);
    command
        .args(["--tuning", "always"])
        .env("XDG_CACHE_HOME", folder.path());
    check(&case, &trained(folder.path(), command, &case));
}

/// Of 24 ranks.
const STAGES: &str = "data=2,micro=2,schedule=1f1b,\
                      stages=[depth=2|depth=2|depth=2|depth=2|depth=2|depth=2]";

fn threads(ranks: usize) -> Command {
    let mut command = Command::new(PARTITA);
    command.args(["train", "run.toml", "--ranks", &ranks.to_string()]);
    command
}

#[test]
fn threads_take_what_is_predicted() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    universes(folder.path(), "12", "64");
    shapes(folder.path());
    for case in Share::of(3).of_items([
        case("cosmoflow@64+bn", 4, 1, "data=1"),
        case("cosmoflow@64+bn", 4, 2, "data=2"),
        case("cosmoflow@64+bn", 4, 2, "depth=2"),
        case("cosmoflow@64+bn", 4, 2, "filter=2"),
        case(
            "cosmoflow@64+bn",
            4,
            2,
            "micro=2,stages=[1|1],schedule=1f1b",
        ),
        case("resnet50@64", 8, 1, "data=1"),
        case("resnet18@64", 8, 2, "data=2"),
        case("resnet18@64", 8, 2, "data=2,bucket=4MiB"),
        case("resnet18@64", 8, 2, "data=2,shard=parameters"),
    ]) {
        let memory = trained(folder.path(), threads(case.ranks), &case);
        check(&case, &memory);
    }
}

#[test]
fn arenas_of_many_ranks_are_as_predicted() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    universes(folder.path(), "16", "32");
    for case in [
        case("cosmoflow@32+bn", 6, 24, "data=3,depth=2,height=2,width=2"),
        case("cosmoflow@32", 8, 24, STAGES),
    ] {
        let memory = trained(folder.path(), threads(case.ranks), &case);
        assert_eq!(
            memory["allocated_arena_bytes"], memory["predicted_arena_bytes"],
            "{}",
            case.strategy
        );
    }
}

#[test]
fn processes_take_what_is_predicted() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    shapes(folder.path());
    for launcher in launchers::of_day("processes_take_what_is_predicted") {
        let case = case("resnet50@64", 8, 2, "data=2");
        let mut command = launcher.command(case.ranks);
        command.args([PARTITA, "train", "run.toml"]);
        let memory = trained(folder.path(), command, &case);
        check(&case, &memory);
    }
}
