//! The measured times of this process, and the file that caches them.
//!
//! A process has one instance, so earlier measurements are found even if the file cannot be written.

use crate::progress::{Event, Progress};
use partita_tune::{Conditions, Database, Measurements, TuneError, scratch};
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// Measured times, read from their file on first use.
pub struct Times {
    path: Option<PathBuf>,
    temporary: PathBuf,
    database: Mutex<Option<Database>>,
}

/// No folder can be written for the file to measure reads.
#[derive(Debug, thiserror::Error)]
#[error(
    "no file can be written to measure reads ({}); name a folder with {bytes} bytes of room in TMPDIR",
    reasons.join("; ")
)]
pub struct NoScratch {
    /// For each folder that was tried.
    pub reasons: Vec<String>,
    /// Size of the file.
    pub bytes: usize,
}

impl Times {
    /// Times of a file, or of this process only. Nothing is read yet.
    pub fn new(path: Option<PathBuf>, temporary: PathBuf) -> Self {
        Self {
            path,
            temporary,
            database: Mutex::new(None),
        }
    }

    /// The measurements under a setting.
    pub fn measurements(&self, setting: &Conditions, progress: &dyn Progress) -> Measurements {
        self.with(progress, |database| database.measurements(setting))
    }

    /// Whether there are measurements under a setting of this kind in the file.
    pub fn has_setting(
        &self,
        is_it: impl Fn(&Conditions) -> bool,
        progress: &dyn Progress,
    ) -> bool {
        self.with(progress, |database| database.settings().iter().any(is_it))
    }

    /// Adds measurements under a setting, and writes the file.
    pub fn keep(&self, setting: &Conditions, new: &Measurements, progress: &dyn Progress) {
        self.with(progress, |database| database.keep(setting, new));
    }

    /// Warns if the file cannot be written; call it before a measurement, not after.
    pub fn before_measuring(&self, progress: &dyn Progress) {
        self.with(progress, Database::check_writable);
    }

    /// An anonymous temporary file with these contents: beside the file of times if possible, else in the folder
    /// of temporary files.
    ///
    /// Errors: neither folder can be written.
    pub fn scratch_file(
        &self,
        contents: &[u8],
        progress: &dyn Progress,
    ) -> Result<File, NoScratch> {
        let beside = self.with(progress, |database| database.folder().map(PathBuf::from));
        let mut reasons = Vec::new();
        for folder in beside.into_iter().chain([self.temporary.clone()]) {
            let filled = |mut file: File| file.write_all(contents).map(|()| file);
            match scratch(&folder).and_then(filled) {
                Ok(file) => return Ok(file),
                Err(error) => reasons.push(format!("{}: {error}", folder.display())),
            }
        }
        let bytes = contents.len();
        Err(NoScratch { reasons, bytes })
    }

    fn with<R>(&self, progress: &dyn Progress, work: impl FnOnce(&mut Database) -> R) -> R {
        let mut database = self.database.lock().unwrap_or_else(PoisonError::into_inner);
        let database = database.get_or_insert_with(|| match &self.path {
            Some(path) => Database::open(path),
            None => {
                progress.report(Event::Warning(
                    "measured times cannot be kept: neither XDG_CACHE_HOME nor HOME is an absolute path; \
                     they are known to this run alone, so set one of them",
                ));
                Database::in_memory()
            }
        });
        let answer = work(database);
        for warning in database.take_warnings() {
            progress.report(Event::Warning(&format!("{warning}{}", help(&warning))));
        }
        answer
    }
}

/// Advice.
fn help(warning: &TuneError) -> &'static str {
    match warning {
        TuneError::NotKept { .. } | TuneError::Unreadable { .. } => {
            "; XDG_CACHE_HOME names another folder for them"
        }
        TuneError::Corrupt { .. }
        | TuneError::Newer { .. }
        | TuneError::Unlocked { .. }
        | TuneError::Busy { .. }
        | TuneError::Unpinned { .. }
        | TuneError::Kernel { .. }
        | TuneError::Transport { .. }
        | TuneError::Memory { .. }
        | TuneError::Read { .. }
        | TuneError::Stopped { .. } => "",
    }
}
