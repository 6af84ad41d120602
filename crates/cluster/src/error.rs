//! Errors of machine files.

use std::path::PathBuf;
use thiserror::Error;

/// Why a software profile cannot be loaded.
#[derive(Debug, Error)]
pub enum SoftwareError {
    /// No profile has this name.
    #[error(
        "unknown software `{asked}`{}; profiles are {}; a path to a profile works too",
        if *.is_machine { " (it is a machine: `--machine`)".to_owned() } else { did_you_mean(.nearest) },
        .available.join(", ")
    )]
    Unknown {
        /// The given name.
        asked: String,
        /// The names that exist, sorted.
        available: Vec<String>,
        /// The most similar name.
        nearest: Option<String>,
        /// Whether a machine has this name.
        is_machine: bool,
    },
    /// The file cannot be read.
    #[error("software profile {} cannot be read: {source}{nearest}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
        /// The one of that name that comes along, if there is one.
        nearest: String,
    },
    /// Its text has a fault.
    #[error(transparent)]
    Text(#[from] MachineError),
}

/// Why a machine cannot be loaded.
#[derive(Debug, Error)]
pub enum MachineError {
    /// No machine has this name.
    #[error(
        "unknown machine `{asked}`{}; machines are {}; a path to a machine file works too",
        if *.is_software { " (it is a software profile: `--software`)".to_owned() } else { did_you_mean(.nearest) },
        .available.join(", ")
    )]
    Unknown {
        /// The given name.
        asked: String,
        /// The names that exist, sorted.
        available: Vec<String>,
        /// The most similar name.
        nearest: Option<String>,
        /// Whether a software profile has this name.
        is_software: bool,
    },
    /// The file cannot be read.
    #[error("machine file {} cannot be read: {source}{nearest}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
        /// The one of that name that comes along, if there is one.
        nearest: String,
    },
    /// The text is not TOML, or a part of it has the wrong form.
    #[error("{file}, line {line} (`{text}`): {message}")]
    Malformed {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// Text of the line.
        text: String,
        /// What is wrong with it.
        message: String,
    },
    /// A key that must be there.
    #[error("{file}{}: `{key}` is missing{}", at_line(.table), in_table(.table))]
    MissingKey {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// Line, from 1, and text of its table; none before the first table.
        table: Option<(usize, String)>,
    },
    /// A software profile where a machine is needed.
    #[error(
        "{file} is a software profile, not a machine file; possible are `--software {file}` and a machine with \
         `--machine`"
    )]
    IsSoftware {
        /// The file.
        file: String,
    },
    /// A machine file where a software profile is needed.
    #[error(
        "{file} is a machine file, not a software profile; possible are `--machine {file}` and a profile with \
         `--software`"
    )]
    IsMachine {
        /// The file.
        file: String,
    },
    /// An unknown key.
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
        /// The most similar name.
        nearest: Option<String>,
    },
    /// An invalid value.
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
        /// Valid values, and the nearest one if there is one.
        expected: String,
    },
}

fn at_line(table: &Option<(usize, String)>) -> String {
    let line = table.as_ref().map(|(line, _)| format!(", line {line}"));
    line.unwrap_or_default()
}

fn in_table(table: &Option<(usize, String)>) -> String {
    let text = table.as_ref().map(|(_, text)| format!(" in `{text}`"));
    text.unwrap_or_else(|| " before the first table".to_owned())
}

fn did_you_mean(nearest: &Option<String>) -> String {
    match nearest {
        Some(name) => format!(" (did you mean `{name}`?)"),
        None => String::new(),
    }
}
