//! A file that several processes read and replace atomically.

use crate::TuneError;
use partita_files::{NewFile, parent, sync_folder};
use std::fmt::Display;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Between two attempts to lock.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// A file that processes, possibly on several hosts, read and replace atomically.
///
/// The lock is on a second file, since every write replaces the first.
#[derive(Debug)]
pub(crate) struct Store {
    path: PathBuf,
    folder: PathBuf,
    /// Prefix of the names of all related files.
    stem: String,
}

/// Opening a pipe or a device may block forever.
///
/// Errors: no file, or no regular one.
pub(crate) fn check_regular(path: &Path) -> io::Result<()> {
    if fs::metadata(path)?.is_file() {
        Ok(())
    } else {
        Err(io::Error::other("it is not a regular file"))
    }
}

impl Store {
    pub(crate) fn new(path: &Path) -> Self {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        Self {
            path: path.to_owned(),
            folder: parent(path).to_owned(),
            stem: stem.into_owned(),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn unreadable(&self, error: &dyn Display) -> TuneError {
        TuneError::Unreadable {
            path: self.path.clone(),
            reason: error.to_string(),
        }
    }

    pub(crate) fn not_kept(&self, error: &dyn Display) -> TuneError {
        TuneError::NotKept {
            path: self.path.clone(),
            reason: error.to_string(),
        }
    }

    /// Waits for the lock, which is released when the returned file is closed or the process ends.
    ///
    /// Errors: a file system without locks, or another process that holds it for longer than `limit`, as a
    /// stopped one does.
    pub(crate) fn lock(&self, limit: Duration) -> Result<File, TuneError> {
        let path = self.folder.join(format!("{}.lock", self.stem));
        let failed = |error: &dyn Display| TuneError::Unlocked {
            path: path.clone(),
            reason: error.to_string(),
        };
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        let made = fs::create_dir_all(&self.folder).map(|()| path.exists());
        let opened = made
            .and_then(|exists| if exists { check_regular(&path) } else { Ok(()) })
            .and_then(|()| options.open(&path));
        let file = opened.map_err(|error| failed(&error))?;
        let start = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::Error(error)) => return Err(failed(&error)),
                Err(TryLockError::WouldBlock) if start.elapsed() < limit => {
                    thread::sleep(RETRY_INTERVAL)
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(failed(
                        &"another process holds the lock and does not release it",
                    ));
                }
            }
        }
    }

    /// Renames the file to a new name.
    ///
    /// Errors: the folder cannot be written; the file is then unchanged.
    pub(crate) fn set_aside(&self, reason: String) -> Result<TuneError, TuneError> {
        let mut number = 1;
        let renamed = loop {
            let name = self.path.with_extension(format!("corrupt-{number}.json"));
            // The empty file reserves the name until the rename, which would replace any other.
            match File::create_new(&name) {
                Ok(_) => break name,
                Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
                Err(error) => {
                    return Err(self.unreadable(&format!("{reason}; nor renamed: {error}")));
                }
            }
        };
        if let Err(error) = fs::rename(&self.path, &renamed) {
            // The empty file is not needed.
            let _ = fs::remove_file(&renamed);
            return Err(self.unreadable(&format!("{reason}; nor renamed: {error}")));
        }
        Ok(TuneError::Corrupt {
            path: self.path.clone(),
            reason,
            renamed,
        })
    }

    /// Switches to another file, whose name contains the format.
    ///
    /// Errors: this is that file already.
    pub(crate) fn switch_file(&mut self, found: u32, format: u32) -> Result<TuneError, TuneError> {
        let name = format!("{}.{format}.json", self.stem);
        let replacement = self.folder.join(name);
        if replacement == self.path {
            let reason = format!("it has format {found} of a newer version");
            return Err(self.unreadable(&reason));
        }
        Ok(TuneError::Newer {
            path: std::mem::replace(&mut self.path, replacement.clone()),
            found,
            format,
            replacement,
        })
    }

    /// Replaces the file atomically, also across a power failure.
    pub(crate) fn replace(&self, text: &[u8]) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        let mut file = NewFile::create(&self.path)?;
        file.write_all(text)?;
        file.rename()?;
        // Some file systems cannot sync a folder; the file is replaced anyway.
        let _ = sync_folder(&self.folder);
        Ok(())
    }
}

/// A temporary file without a name, deleted when it is closed, even by a kill.
///
/// Errors: the folder cannot be created or written.
pub fn scratch(folder: &Path) -> io::Result<File> {
    fs::create_dir_all(folder)?;
    partita_files::scratch(&folder.join("measured.json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renamed_file_replaces_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("measured.json");
        for text in ["first", "second"] {
            fs::write(&path, text).unwrap();
            let said = Store::new(&path).set_aside("wrong".to_owned()).unwrap();
            assert!(matches!(said, TuneError::Corrupt { .. }), "{said}");
        }
        let text = |number| {
            let name = format!("measured.corrupt-{number}.json");
            fs::read_to_string(folder.path().join(name)).unwrap()
        };
        assert_eq!(
            (text(1), text(2)),
            ("first".to_owned(), "second".to_owned())
        );
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
