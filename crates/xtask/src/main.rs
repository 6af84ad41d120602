//! Checks of this repository beyond those of the compiler.
//!
//! Does: `tidy` (rules on the text), `walls` (which crate may depend on which), `test` (the whole
//! suite with a summary), `check` (these three, lints and documentation, with what each took), `fuzz` (every reader of users' files, and the table of a record).
//! Knows: the layout of the repository, `cargo metadata`, the table of rooms in ARCHITECTURE.md.
//! Must not know: any crate of the workspace. No file is exempted by its name from any rule.

#![allow(
    clippy::disallowed_methods,
    reason = "a tool of developers reads their own files"
)]

mod check;
mod cycles;
mod deny;
mod dependencies;
mod kinds;
mod long;
mod matches;
mod source;
mod step;
mod suite;
mod test_files;
mod tidy;
mod times;
mod walls;

use std::env;
use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;
use times::Times;

const USAGE: &str = "usage: cargo run --release -p xtask -- tidy | walls | check | test [--long] | \
                     fuzz [TARGET...] [--seconds N] [--seed N] [--jobs N] [--keep FOLDER]";

/// One broken rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Fault {
    /// The file, relative to the repository's root.
    path: String,
    /// The line, from 1; 0 for the file as a whole.
    line: usize,
    /// The violation, and the fix.
    message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.message),
            line => write!(f, "{}:{line}: {}", self.path, self.message),
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let root = root();
    let outcome = match words[..] {
        ["tidy"] => report("tidy", tidy::check(&root)),
        ["walls"] => report("walls", walls::check(&root)),
        ["check"] => check::run(&root),
        ["test"] => suite::run(&root, false, &mut Times::default()),
        ["test", "--long"] => suite::run(&root, true, &mut Times::default()),
        ["fuzz", ref arguments @ ..] => long::fuzz(&root, arguments),
        _ => Err(USAGE.to_owned()),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

/// The root of the repository: that of the running cargo, else that of the build.
fn root() -> PathBuf {
    let built_in = || env!("CARGO_MANIFEST_DIR").into();
    let crate_dir = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(built_in));
    let root = crate_dir.ancestors().nth(2);
    root.unwrap_or(&crate_dir).to_owned()
}

fn report(name: &str, faults: Result<Vec<Fault>, String>) -> Result<bool, String> {
    let mut faults = faults?;
    faults.sort();
    for fault in &faults {
        println!("{fault}");
    }
    match faults.len() {
        0 => println!("{name}: nothing to mend"),
        count => println!("{name}: {count} to mend"),
    }
    Ok(faults.is_empty())
}
