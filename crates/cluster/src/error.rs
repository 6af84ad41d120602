//! Errors of machine files.

use partita_space::Help;
use partita_space::help::Expected;
use std::path::PathBuf;
use thiserror::Error;

/// Why a software profile cannot be loaded.
#[derive(Debug, Error)]
pub enum SoftwareError {
    /// No profile has this name.
    #[error(
        "unknown software `{asked}`{}{}",
        if *.is_machine { ", which is a machine" } else { "" },
        of_names(available, "a profile").maybe_nearest(instead(asked, nearest, is_machine.then_some("--machine")))
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
    #[error(
        "software profile {} cannot be read: {source}{}",
        path.display(),
        of_path(nearest.as_ref())
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
        /// The one of that name that comes along, if there is one.
        nearest: Option<String>,
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
        "unknown machine `{asked}`{}{}",
        if *.is_software { ", which is a software profile" } else { "" },
        of_names(available, "a machine file")
            .maybe_nearest(instead(asked, nearest, is_software.then_some("--software")))
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
    #[error("machine file {} cannot be read: {source}{}", path.display(), of_path(nearest.as_ref()))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
        /// The one of that name that comes along, if there is one.
        nearest: Option<String>,
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
        "{file} is a software profile, not a machine file{}",
        Help::none().nearest(format_args!("`--software {file}`, and a machine with `--machine`"))
    )]
    IsSoftware {
        /// The file.
        file: String,
    },
    /// A machine file where a software profile is needed.
    #[error(
        "{file} is a machine file, not a software profile{}",
        Help::none().nearest(format_args!("`--machine {file}`, and a profile with `--software`"))
    )]
    IsMachine {
        /// The file.
        file: String,
    },
    /// An unknown key.
    #[error(
        "{file}, line {line}: unknown key `{key}`{}",
        Help::possible(possible.join(", ")).maybe_code(nearest.as_ref())
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
    #[error("{file}, line {line}: `{key}` is {given}, {expected}")]
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
        expected: Box<Expected>,
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

/// The names that exist, or a file.
fn of_names(available: &[String], file: &str) -> Help {
    Help::possible(format_args!(
        "{}, or a path to {file}",
        available.join(", ")
    ))
}

/// The other option that takes a name, or the most similar name.
fn instead(asked: &str, nearest: &Option<String>, option: Option<&str>) -> Option<String> {
    match option {
        Some(option) => Some(format!("`{option} {asked}`")),
        None => nearest.as_ref().map(|name| format!("`{name}`")),
    }
}

fn of_path(nearest: Option<&String>) -> Help {
    match nearest {
        Some(name) => Help::none().nearest(format_args!("`{name}`, which comes along")),
        None => Help::advice("a name without `/` is looked up among the files that come along"),
    }
}
