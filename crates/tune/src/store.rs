use crate::TuneError;
use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Between two tries to lock.
const NAP: Duration = Duration::from_millis(5);

/// Nobody takes so long to write a file.
const LEFTOVER_AGE: Duration = Duration::from_secs(24 * 3600);

/// Endings of temporary files. Times of reads were once measured with files that had names.
const TEMPORARIES: [&str; 2] = ["new", "reads"];

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

impl Store {
    pub(crate) fn new(path: &Path) -> Self {
        let folder = path.parent().filter(|folder| *folder != Path::new(""));
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        Self {
            path: path.to_owned(),
            folder: folder.unwrap_or(Path::new(".")).to_owned(),
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
        let opened = fs::create_dir_all(&self.folder).and_then(|()| options.open(&path));
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
        let (temporary, mut file) = unique(&self.folder, &self.stem)?;
        let written = file
            .write_all(text)
            .and_then(|()| file.sync_all())
            .and_then(|()| fs::rename(&temporary, &self.path));
        if let Err(error) = written {
            // The unfinished file is of no use; that it cannot be removed would change nothing.
            let _ = fs::remove_file(&temporary);
            return Err(error);
        }
        // Some file systems cannot sync a folder; the file is in its place all the same.
        let _ = File::open(&self.folder).and_then(|folder| folder.sync_all());
        Ok(())
    }

    /// Removes temporary files of processes that were killed. To be called with the lock, so that nobody
    /// else writes.
    pub(crate) fn remove_leftovers(&self) {
        // What cannot be listed or removed stays; it takes room and nothing else.
        let Ok(files) = fs::read_dir(&self.folder) else {
            return;
        };
        for file in files.flatten() {
            let name = file.file_name();
            let Some(owner) = owner(&name, &self.stem) else {
                continue;
            };
            // Of the name itself, even if it is a link.
            let age = file.metadata().and_then(|of| of.modified());
            let age = age.ok().and_then(|time| time.elapsed().ok());
            if owner.has_ended() || age.is_some_and(|age| age > LEFTOVER_AGE) {
                let _ = fs::remove_file(file.path());
            }
        }
    }
}

/// A new file without a name in a folder: it is gone when it is closed, even by a kill.
///
/// Errors: the folder cannot be made or written.
pub fn scratch(folder: &Path) -> io::Result<File> {
    fs::create_dir_all(folder)?;
    let (path, file) = unique(folder, "measured")?;
    fs::remove_file(path)?;
    Ok(file)
}

/// A new file, with a name that tells who made it.
fn unique(folder: &Path, stem: &str) -> io::Result<(PathBuf, File)> {
    let (host, process) = (host(), std::process::id());
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    let mut number = 0;
    loop {
        let path = folder.join(format!("{stem}.{host}.{process}.{number}.new"));
        match options.open(&path) {
            Ok(file) => return Ok((path, file)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(error),
        }
    }
}

/// Who made a temporary file.
#[derive(Debug, PartialEq, Eq)]
struct Owner {
    host: Option<String>,
    process: u32,
}

impl Owner {
    /// False where that cannot be known.
    fn has_ended(&self) -> bool {
        let processes = Path::new("/proc");
        let is_here = self.host.as_ref().is_none_or(|name| *name == host());
        let is_known = processes.join(std::process::id().to_string()).exists();
        is_here && is_known && !processes.join(self.process.to_string()).exists()
    }
}

/// By the name `measured.HOST.PROCESS.NUMBER.new`, or `measured.PROCESS.new` of earlier versions.
fn owner(name: &OsStr, stem: &str) -> Option<Owner> {
    let rest = name.to_str()?.strip_prefix(stem)?.strip_prefix('.')?;
    let (rest, ending) = rest.rsplit_once('.')?;
    if !TEMPORARIES.contains(&ending) {
        return None;
    }
    let Some((rest, _number)) = rest.rsplit_once('.') else {
        let process = rest.parse().ok()?;
        let host = None;
        return Some(Owner { host, process });
    };
    let (host, process) = rest.rsplit_once('.')?;
    Some(Owner {
        host: Some(host.to_owned()),
        process: process.parse().ok()?,
    })
}

/// The name of this host, which hosts with a common folder do not share.
fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim().replace('/', "-");
    if name.is_empty() {
        "host".to_owned()
    } else {
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let files = fs::read_dir(folder).unwrap();
        let name = |file: io::Result<fs::DirEntry>| file.unwrap().file_name();
        let mut names: Vec<String> = files
            .map(|file| name(file).into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn temporaries_of_dead_processes_are_removed_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        // Numbers of processes end before.
        let (dead, alive, host) = (u32::MAX, std::process::id(), host());
        let elsewhere = format!("measured.another.host.{dead}.0.new");
        let old = format!("measured.another.host.{dead}.1.new");
        let gone = [
            format!("measured.{dead}.new"),
            format!("measured.{dead}.reads"),
            format!("measured.{host}.{dead}.0.new"),
            old.clone(),
        ];
        let mut left = vec![
            elsewhere,
            format!("measured.{alive}.new"),
            format!("measured.{host}.{alive}.7.new"),
            "measured.json".to_owned(),
            "measured.corrupt-1.json".to_owned(),
            "measured.new".to_owned(),
            "measured.mine.new".to_owned(),
            "other.1.new".to_owned(),
        ];
        for name in gone.iter().chain(&left) {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let file = File::options().write(true).open(folder.path().join(&old));
        let long_ago = std::time::SystemTime::now() - 2 * LEFTOVER_AGE;
        file.unwrap().set_modified(long_ago).unwrap();
        Store::new(&folder.path().join("measured.json")).remove_leftovers();
        left.sort();
        assert_eq!(names(folder.path()), left);
    }

    #[test]
    fn a_temporary_follows_no_link_and_takes_no_name_twice() {
        let folder = tempfile::tempdir().unwrap();
        let (name, process) = (host(), std::process::id());
        let trap = format!("measured.{name}.{process}.0.new");
        std::os::unix::fs::symlink("precious", folder.path().join(&trap)).unwrap();
        let path = folder.path().join("measured.json");
        Store::new(&path).replace(b"{}").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"{}");
        assert_eq!(names(folder.path()), ["measured.json".to_owned(), trap]);
    }

    #[test]
    fn a_scratch_file_has_no_name() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("a/b");
        let mut file = scratch(&deep).unwrap();
        file.write_all(b"content").unwrap();
        assert!(names(&deep).is_empty());
    }

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
        assert_eq!(names(folder.path()).len(), 2);
    }
}
