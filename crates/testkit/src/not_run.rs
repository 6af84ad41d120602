//! Tests that need what a machine may lack.

use std::fmt::Display;
use std::io::Write;

/// Says that a test has not run, past the capture of the tests' output.
pub fn not_run(test: &str, reason: impl Display) {
    let line = format!("NOT RUN: {test}: {reason}\n");
    // A test that cannot say so is no failure either.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
