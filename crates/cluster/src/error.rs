//! Errors of machine files.

use std::path::PathBuf;
use thiserror::Error;

/// Why a machine could not be had.
#[derive(Debug, Error)]
pub enum MachineError {
    /// No machine has this name.
    #[error(
        "unknown machine `{asked}`{}; known are {}; a path to a machine file works too",
        did_you_mean(.nearest),
        .available.join(", ")
    )]
    Unknown {
        /// What was asked for.
        asked: String,
        /// The names that exist, sorted.
        available: Vec<String>,
        /// The one that was probably meant.
        nearest: Option<String>,
    },
    /// The file cannot be read.
    #[error("machine file {} cannot be read: {source}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The text is not TOML, or a part of it has the wrong form.
    #[error("{file}, line {line} (`{text}`): {message}")]
    Malformed {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// What stands in the line.
        text: String,
        /// What is wrong with it.
        message: String,
    },
    /// A key that means nothing here.
    #[error(
        "{file}, line {line}: unknown key `{key}`{}; possible here: {}",
        did_you_mean(.nearest),
        .possible.join(", ")
    )]
    UnknownKey {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The key as given.
        key: String,
        /// The keys that are possible there.
        possible: Vec<String>,
        /// The one that was probably meant.
        nearest: Option<String>,
    },
    /// A value that makes no sense for its key.
    #[error("{file}, line {line}: `{key}` is {given}, expected {expected}")]
    BadValue {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The key with its path, `links.inter.latency`.
        key: String,
        /// The value as given.
        given: String,
        /// What is possible, and the nearest valid choice where there is one.
        expected: String,
    },
}

fn did_you_mean(nearest: &Option<String>) -> String {
    match nearest {
        Some(name) => format!(" (did you mean `{name}`?)"),
        None => String::new(),
    }
}
