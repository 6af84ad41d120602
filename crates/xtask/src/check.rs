//! All checks of `make test`, from the quickest to the longest; the first that fails ends them.

use crate::suite::PROFILE;
use crate::times::{Times, succeed};
use crate::{report, suite, tidy, walls};
use std::env;
use std::path::Path;
use std::process::Command;

/// True if all passed.
pub(crate) fn run(root: &Path) -> Result<bool, String> {
    let mut times = Times::default();
    let workspace = |verb: &str, more: &[&str]| {
        let mut command = cargo(root, verb);
        command.args(PROFILE).args(["--locked", "--workspace"]);
        command.args(more);
        command
    };
    times.measure("fmt", || {
        succeed(cargo(root, "fmt").args(["--all", "--check"]))
    })?;
    if !report("tidy", tidy::check(root))? {
        return Ok(false);
    }
    let mut clippy = workspace("clippy", &["--all-targets", "--", "-D", "warnings"]);
    times.measure("clippy", || succeed(&mut clippy))?;
    let mut doc = workspace("doc", &["--no-deps"]);
    doc.env("RUSTDOCFLAGS", "-D warnings");
    times.measure("doc", || succeed(&mut doc))?;
    // The binary, in which a wall is looked for, comes with the tests.
    let mut build = workspace("test", &["--no-run"]);
    times.measure("build", || succeed(&mut build))?;
    if !report("walls", walls::check(root))? {
        return Ok(false);
    }
    suite::run(root, false, &mut times)
}

fn cargo(root: &Path, verb: &str) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.arg(verb).current_dir(root);
    command
}
