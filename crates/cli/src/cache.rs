//! The times that this process has measured or read, and the file that keeps them from run to run.
//!
//! There is one of them in a process: where the file cannot be written, all that asks for a time still
//! finds what was measured before.

use crate::error::CliError;
use partita_tune::{Database, Measurements, Setting, TuneError, scratch};
use std::env;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// What was measured under a setting.
pub fn measurements(setting: &Setting) -> Measurements {
    with(|database| database.measurements(setting))
}

/// Takes in what was measured under a setting, and writes the file.
pub fn keep(setting: &Setting, new: &Measurements) {
    with(|database| database.keep(setting, new));
}

/// To be called before something is measured: a file that cannot be written is told of at once, not after
/// the measurement.
pub fn before_measuring() {
    with(Database::check_writable);
}

/// A file with these contents that has no name and is gone when it is closed, beside the cache where that
/// can be written.
///
/// Errors: neither that folder nor the one for temporary files can be written.
pub fn scratch_file(contents: &[u8]) -> Result<File, CliError> {
    let beside = with(|database| database.folder().map(PathBuf::from));
    let temporary = env::temp_dir();
    let mut reasons = Vec::new();
    for folder in beside.into_iter().chain([temporary]) {
        let filled = |mut file: File| file.write_all(contents).map(|()| file);
        match scratch(&folder).and_then(filled) {
            Ok(file) => return Ok(file),
            Err(error) => reasons.push(format!("{}: {error}", folder.display())),
        }
    }
    Err(CliError::User(format!(
        "no file can be written to measure reads ({}); name a folder with {} bytes of room in TMPDIR",
        reasons.join("; "),
        contents.len()
    )))
}

/// Opens the file at the first call.
fn with<R>(work: impl FnOnce(&mut Database) -> R) -> R {
    static ONE: Mutex<Option<Database>> = Mutex::new(None);
    let mut one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let database = one.get_or_insert_with(open);
    let answer = work(database);
    for warning in database.take_warnings() {
        tell(&format!("{warning}{}", help(&warning)));
    }
    answer
}

fn open() -> Database {
    if let Some(path) = path() {
        return Database::open(&path);
    }
    tell(
        "measured times cannot be kept: neither XDG_CACHE_HOME nor HOME is an absolute path; they are \
         known to this run alone, so set one of them",
    );
    Database::in_memory()
}

/// Where times are kept: `$XDG_CACHE_HOME/partita`, else `~/.cache/partita`.
///
/// Tests keep theirs apart from those of the user.
fn path() -> Option<PathBuf> {
    if cfg!(test) {
        return Some(env::temp_dir().join("partita-tests/measured.json"));
    }
    let absolute = |name: &str| {
        let path = env::var_os(name).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    };
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    Some(cache?.join("partita").join("measured.json"))
}

/// What can be done.
fn help(warning: &TuneError) -> &'static str {
    match warning {
        TuneError::NotKept { .. } | TuneError::Unreadable { .. } => {
            "; XDG_CACHE_HOME names another folder for them"
        }
        TuneError::Corrupt { .. }
        | TuneError::Newer { .. }
        | TuneError::OldKeys { .. }
        | TuneError::Unlocked { .. }
        | TuneError::Unpinned { .. }
        | TuneError::Kernel { .. }
        | TuneError::Transport { .. }
        | TuneError::Memory { .. }
        | TuneError::Read { .. }
        | TuneError::Stopped { .. } => "",
    }
}

/// A warning; where it cannot be shown it is not needed for the answer.
fn tell(text: &str) {
    let _ = writeln!(io::stderr(), "partita: {text}");
}
