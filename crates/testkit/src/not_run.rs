//! Tests that need what a machine may lack.

use std::env;
use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;

/// File to which the suite has them written, which counts them.
const FILE: &str = "PARTITA_NOT_RUN";

/// Says that a test has not run: in the file that `PARTITA_NOT_RUN` names, or past the capture of the tests' output.
pub fn not_run(test: &str, reason: impl Display) {
    let file = env::var_os(FILE)
        .and_then(|path| OpenOptions::new().append(true).create(true).open(path).ok());
    let mut line = format!("NOT RUN: {test}: {reason}").replace('\n', " ");
    line.push('\n');
    // A test that cannot say so is no failure either.
    let _ = match file {
        Some(mut file) => file.write_all(line.as_bytes()),
        None => std::io::stderr().write_all(line.as_bytes()),
    };
}
