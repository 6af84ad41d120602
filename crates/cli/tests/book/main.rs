//! The pages of the repository: their commands run and print what the pages show, their links lead
//! somewhere, and their tables name every key that the binary knows.
//!
//! Fenced blocks of README.md and docs/src:
//!
//! - ` ```console `: lines that begin with `$ ` run in order, in one temporary folder for each page; what
//!   stands below a command is its output. A line `...` stands for any lines left out, ` ...` at the end of
//!   a line for the rest of it.
//! - ` ```console times `: numbers, units and column widths may differ, as in everything that is measured.
//! - ` ```console norun `: not run, as it needs Slurm, MPI or hours.
//! - ` ```toml file=run.toml `, with any language: a file of this content, for the commands after it.
//!
//! `UPDATE=1 cargo test --profile suite --test book` rewrites outputs that differ.

#![allow(clippy::disallowed_methods, reason = "tests read what they wrote")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod commands;
mod keys;
mod links;
mod output;
mod page;

use std::path::{Path, PathBuf};

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// The pages of the book, and README.md before them, relative to the root.
fn pages() -> Vec<String> {
    let folder = root().join("docs/src");
    let entries = folder
        .read_dir()
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    let names = entries.map(|name| name.into_string().unwrap());
    let mut pages: Vec<String> = names
        .filter(|name| name.ends_with(".md"))
        .map(|name| format!("docs/src/{name}"))
        .collect();
    pages.sort();
    pages.insert(0, "README.md".to_owned());
    pages
}
