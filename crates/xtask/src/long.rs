//! Additional steps of the long test suite.

use crate::step::{LONG, Step};
use std::env;
use std::path::Path;
use std::process::{Command, Stdio};

/// Compiler flags for edge coverage, which the fuzzer uses as feedback.
const COUNT_EDGES: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=3 \
                           -Cllvm-args=-sanitizer-coverage-inline-8bit-counters";
/// Crates with threads and memory of their own.
const THREADED: [&str; 8] = [
    "-p",
    "partita-run",
    "-p",
    "partita-session",
    "-p",
    "partita-reference",
    "-p",
    "partita-threads",
];

/// Steps beside the tests of the workspace.
pub(crate) struct ExtraSteps {
    pub(crate) steps: Vec<Step>,
    /// Steps that cannot run, and how to install what they need.
    pub(crate) left_out: Vec<String>,
}

/// Ten minutes of each fuzz target with overflow checks and debug assertions; Miri and the thread
/// sanitizer on crates with threads; two builds, which must be equal.
pub(crate) fn steps(root: &Path) -> Result<ExtraSteps, String> {
    let host = host()?;
    let mut steps = vec![fuzz_tests(root, &host)];
    let mut left_out = Vec::new();
    if succeeds(nightly(root).args(["miri", "--version"])) {
        steps.push(miri(root));
    } else {
        left_out.push("Miri; `rustup toolchain install nightly --component miri`".to_owned());
    }
    if has_standard_sources(root) {
        steps.push(thread_sanitizer(root, &host));
    } else {
        let install = "`rustup toolchain install nightly --component rust-src`";
        left_out.push(format!("the thread sanitizer; {install}"));
    }
    steps.push(equal_builds(root));
    Ok(ExtraSteps { steps, left_out })
}

/// Fuzzes with all checks, and prints the table of a record. `arguments` are passed to the fuzzer.
pub(crate) fn fuzz(root: &Path, arguments: &[&str]) -> Result<bool, String> {
    let mut command = checked(root, "run", &host()?);
    command.args(["--bin", "fuzz", "--", "run"]).args(arguments);
    let status = command.status();
    Ok(status
        .map_err(|error| format!("cargo cannot be started: {error}"))?
        .success())
}

fn fuzz_tests(root: &Path, host: &str) -> Step {
    let mut command = checked(root, "test", host);
    command.arg("--no-fail-fast").env(LONG, "1");
    Step {
        name: "fuzzing with overflow checks",
        command,
    }
}

/// Cargo for the fuzzer, with checks and edge coverage, in a separate target folder.
fn checked(root: &Path, verb: &str, host: &str) -> Command {
    let mut command = cargo(root);
    // With `--target` the flags do not apply to build scripts.
    command
        .args([verb, "--profile", "checked", "--locked", "--target", host])
        .args(["-p", "partita-fuzz"])
        .env("RUSTFLAGS", COUNT_EDGES)
        .env("CARGO_TARGET_DIR", root.join("target/fuzz"));
    command
}

fn miri(root: &Path) -> Step {
    let mut command = nightly(root);
    command
        .args(["miri", "test", "--locked", "--no-fail-fast"])
        .args(THREADED)
        .args(["--lib", "--tests"])
        // No random rounding errors by Miri. Under isolation Miri has a virtual clock, so that watchdogs do not
        // fire because it is slow.
        .env("MIRIFLAGS", "-Zmiri-deterministic-floats")
        .env("CARGO_TARGET_DIR", root.join("target/miri"));
    Step {
        name: "Miri on run, session, reference and threads",
        command,
    }
}

fn thread_sanitizer(root: &Path, host: &str) -> Step {
    let mut command = nightly(root);
    // The standard library must be instrumented too, or its locks are reported as races.
    command
        .args(["test", "--release", "--locked", "--no-fail-fast"])
        .args(["-Zbuild-std", "--target", host])
        .args(THREADED)
        .arg("--lib")
        // Tests with threads only; those of single kernels take long.
        .args([
            "--test",
            "gradients",
            "--test",
            "ranks",
            "--test",
            "reduce_scatter",
        ])
        .env("RUSTFLAGS", "-Zsanitizer=thread")
        // Tests allocate too much memory and expect an error, so the allocator must return null.
        .env("TSAN_OPTIONS", "allocator_may_return_null=1")
        .env("CARGO_TARGET_DIR", root.join("target/thread-sanitizer"));
    Step {
        name: "the thread sanitizer on run, session, reference and threads",
        command,
    }
}

fn equal_builds(root: &Path) -> Step {
    Step {
        name: "equal builds from two folders",
        command: Command::new(root.join(".ci/equal-builds")),
    }
}

fn cargo(root: &Path) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    command
}

/// The cargo of the nightly toolchain, without the variables that the stable one sets.
fn nightly(root: &Path) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo"]).current_dir(root);
    for name in ["CARGO", "RUSTUP_TOOLCHAIN", "LD_LIBRARY_PATH"] {
        command.env_remove(name);
    }
    command
}

fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

fn has_standard_sources(root: &Path) -> bool {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "rustc", "--print", "sysroot"]);
    let output = command.current_dir(root).stderr(Stdio::null()).output();
    output.is_ok_and(|output| {
        let sysroot = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let library = Path::new(&sysroot).join("lib/rustlib/src/rust/library");
        !sysroot.is_empty() && library.is_dir()
    })
}

/// The triple of this machine.
fn host() -> Result<String, String> {
    let output = Command::new("rustc")
        .arg("-vV")
        .output()
        .map_err(|error| format!("rustc cannot be started: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix("host: "));
    line.map(str::to_owned)
        .ok_or_else(|| "rustc does not say which machine this is".to_owned())
}
