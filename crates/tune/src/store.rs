//! A file that several processes read and replace whole.

use crate::TuneError;
use partita_files::{NewFile, parent, sync_folder};
use std::fmt::Display;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Between two tries to lock.
const NAP: Duration = Duration::from_millis(5);

/// A file that processes, of several hosts where its folder is on a network, read and replace whole.
///
/// Whoever writes holds a lock on a file of its own beside it, as the file itself is another one after
/// each write.
#[derive(Debug)]
pub(crate) struct Store {
    path: PathBuf,
    folder: PathBuf,
    /// What the names of all files belonging to this one begin with.
    stem: String,
}

/// Opening a pipe or a device may wait for ever.
///
/// Errors: none is there, or it is no regular file.
pub(crate) fn check_regular(path: &Path) -> io::Result<()> {
    match fs::metadata(path)?.is_file() {
        true => Ok(()),
        false => Err(io::Error::other("it is no regular file")),
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

    /// Waits for the lock, which goes with the file returned or with the process.
    ///
    /// Errors: a file system without locks, or another process that has held it for longer than `limit`,
    /// as one that is stopped does.
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
                Err(TryLockError::WouldBlock) if start.elapsed() < limit => thread::sleep(NAP),
                Err(TryLockError::WouldBlock) => {
                    return Err(failed(
                        &"another process holds the lock and does not release it",
                    ));
                }
            }
        }
    }

    /// Gives the file another name, which no file has yet.
    ///
    /// Errors: the folder cannot be written; the file is then as it was.
    pub(crate) fn set_aside(&self, reason: String) -> Result<TuneError, TuneError> {
        let mut number = 1;
        let renamed = loop {
            let name = self.path.with_extension(format!("corrupt-{number}.json"));
            // The empty file keeps the name until the rename, which would replace any other.
            match File::create_new(&name) {
                Ok(_) => break name,
                Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
                Err(error) => {
                    return Err(self.unreadable(&format!("{reason}; nor renamed: {error}")));
                }
            }
        };
        if let Err(error) = fs::rename(&self.path, &renamed) {
            // The empty file is of no use.
            let _ = fs::remove_file(&renamed);
            return Err(self.unreadable(&format!("{reason}; nor renamed: {error}")));
        }
        Ok(TuneError::Corrupt {
            path: self.path.clone(),
            reason,
            renamed,
        })
    }

    /// Goes on with another file, whose name has the format.
    ///
    /// Errors: this is that other file already.
    pub(crate) fn pass_over(&mut self, found: u32, format: u32) -> Result<TuneError, TuneError> {
        let name = format!("{}.{format}.json", self.stem);
        let instead = self.folder.join(name);
        if instead == self.path {
            let reason = format!("it has format {found} of a newer version");
            return Err(self.unreadable(&reason));
        }
        Ok(TuneError::Newer {
            path: std::mem::replace(&mut self.path, instead.clone()),
            found,
            format,
            instead,
        })
    }

    /// Puts a new file in the place of the old one, in one step: readers see one or the other, and so does
    /// whoever comes after a failure of power.
    pub(crate) fn replace(&self, text: &[u8]) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        let mut file = NewFile::create(&self.path)?;
        file.write_all(text)?;
        file.rename()?;
        // Some file systems cannot sync a folder; the file is in its place all the same.
        let _ = sync_folder(&self.folder);
        Ok(())
    }
}

/// A new file without a name in a folder: it is gone when it is closed, even by a kill.
///
/// Errors: the folder cannot be made or written.
pub fn scratch(folder: &Path) -> io::Result<File> {
    fs::create_dir_all(folder)?;
    partita_files::scratch(&folder.join("measured.json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_aside_replaces_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("measured.json");
        for text in ["first", "second"] {
            fs::write(&path, text).unwrap();
            let said = Store::new(&path).set_aside("wrong".to_owned()).unwrap();
            assert!(said.to_string().contains("measured.corrupt-"), "{said}");
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
