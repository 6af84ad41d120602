//! Outputs that close or are full.

use crate::command::{error_text, partita};
use std::io::{BufRead, BufReader};
use std::process::Stdio;

/// More text than a pipe holds, so that writing meets the closed end.
const LONG: [&str; 8] = [
    "lower",
    "cosmoflow@64+bn",
    "--ranks",
    "8",
    "--batch",
    "8",
    "--strategy",
    "data=1,depth=2,height=2,width=2",
];

#[test]
fn a_reader_that_leaves_is_no_failure() {
    let mut child = partita(&LONG)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert!(line.starts_with("program cosmoflow@64+bn"), "{line}");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(error_text(&output), "");
    assert!(partita(&LONG).output().unwrap().stdout.len() > 100_000);
}

#[test]
#[cfg(target_os = "linux")]
fn an_output_that_is_full_is_a_failure() {
    let full = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let output = partita(&LONG).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        error_text(&output).contains("cannot be written"),
        "{}",
        error_text(&output)
    );
}
