//! An SQLite file that several processes read and write.

use crate::TuneError;
use crate::tables::{self, Contents, FORMAT};
use partita_files::{
    FolderLock, NewFile, check_regular, create_private_all, create_private_file, parent,
    sync_folder,
};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, MAIN_DB, OpenFlags, Transaction, TransactionBehavior, ffi};
use std::fmt::Display;
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// Longest wait for another process that writes the file, which takes milliseconds.
pub(crate) const LOCK_WAIT: Duration = Duration::from_secs(3);
/// Wait until locks are tried.
const TRIAL_WAIT: Duration = Duration::from_millis(100);
/// Between two looks at a file that another process renames.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);
/// Looks at files that other processes rename or replace meanwhile.
const ATTEMPTS_MAX: usize = 400;
/// Most bytes of a database that is read without locks.
const DATABASE_BYTES_MAX: u64 = 1 << 32;

/// Suffixes of the files that SQLite writes beside a database.
const BESIDE: [&str; 3] = ["-journal", "-wal", "-shm"];

/// An SQLite file that processes, possibly on several hosts, read and write.
///
/// Each operation opens the file anew, as another process may have replaced it. The journal is a file that is
/// deleted when a transaction ends: a write-ahead log needs memory that hosts do not share.
#[derive(Debug)]
pub(crate) struct Store {
    path: PathBuf,
    folder: PathBuf,
    /// Prefix of the names of all related files.
    stem: String,
    /// The file system has no locks: the file is read and replaced as a whole.
    pub(crate) lacks_locks: bool,
    /// Files in the folder can be locked, which is tried when a lock is first waited for.
    has_locks: bool,
    /// Another process held the lock for too long.
    is_busy: bool,
    /// Most pages of the file, as on a full disk.
    #[cfg(test)]
    pub(crate) pages_max: Option<u32>,
    /// Problems that prevent nothing.
    pub(crate) warnings: Vec<TuneError>,
}

/// Whether an operation may change the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

/// Why an operation on the file failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The file is no database of times.
    Corrupt(String),
    /// It has a newer format.
    Newer(u32),
    /// Another process does not release its lock.
    Busy,
    /// Another process has removed or replaced it meanwhile.
    Moved,
    /// The file system has no locks.
    NoLocks(String),
    /// Anything else.
    System(String),
}

/// What may be tried after a failure.
enum Next {
    /// The operation once more.
    Again,
    /// Nothing now.
    Later,
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        let reason = error.to_string();
        let code = match &error {
            rusqlite::Error::SqliteFailure(code, _) => code,
            // A number that has no place in a column.
            rusqlite::Error::ToSqlConversionFailure(_) => return Self::System(reason),
            // A value of another type than its column has.
            _ => return Self::Corrupt(reason),
        };
        match (code.code, code.extended_code) {
            // `FSTAT`: the file whose permissions the journal takes is gone.
            (_, ffi::SQLITE_READONLY_DBMOVED | ffi::SQLITE_IOERR_FSTAT) => Self::Moved,
            (ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked, _) => Self::Busy,
            (ErrorCode::FileLockingProtocolFailed | ErrorCode::NoLargeFileSupport, _)
            | (
                _,
                ffi::SQLITE_IOERR_LOCK
                | ffi::SQLITE_IOERR_RDLOCK
                | ffi::SQLITE_IOERR_UNLOCK
                | ffi::SQLITE_IOERR_CHECKRESERVEDLOCK,
            ) => Self::NoLocks(reason),
            (ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::Unknown, _) => {
                Self::Corrupt(reason)
            }
            _ => Self::System(reason),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::System(error.to_string())
    }
}

impl Store {
    pub(crate) fn new(path: &Path) -> Self {
        // SQLite reads names that begin with `file:` or a colon in its own way.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        Self {
            folder: parent(&path).to_owned(),
            stem: stem.into_owned(),
            lacks_locks: false,
            has_locks: false,
            is_busy: false,
            #[cfg(test)]
            pages_max: None,
            warnings: Vec::new(),
            path,
        }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Reads in one transaction; none if there are no times, or the lock is held by another process.
    ///
    /// Errors: why the database has to continue in memory.
    pub(crate) fn read<R>(
        &mut self,
        work: impl Fn(&Transaction<'_>) -> Result<R, Failure>,
    ) -> Result<Option<R>, TuneError> {
        self.run(Access::Read, &work)
    }

    /// Writes in one transaction; none if the lock is held by another process.
    ///
    /// Errors: why the database has to continue in memory.
    pub(crate) fn write<R>(
        &mut self,
        work: impl Fn(&Transaction<'_>) -> Result<R, Failure>,
    ) -> Result<Option<R>, TuneError> {
        self.run(Access::Write, &work)
    }

    /// Errors: the folder or the file cannot be written.
    pub(crate) fn check_writable(&self) -> Result<(), TuneError> {
        scratch(&self.folder).map_err(|error| self.not_kept(&error))?;
        if self.lacks_locks || check_regular(&self.path).is_err() {
            return Ok(());
        }
        let is_readonly = self
            .connect(Access::Read)
            .map(|file| file.is_readonly(MAIN_DB));
        match is_readonly {
            Ok(Ok(true)) => Err(self.not_kept(&"it is read-only")),
            // Other errors are found and reported by the operations.
            Ok(Ok(false) | Err(_)) | Err(_) => Ok(()),
        }
    }

    /// Repeats an operation until it succeeds or nothing is left to try.
    fn run<R>(
        &mut self,
        access: Access,
        work: &impl Fn(&Transaction<'_>) -> Result<R, Failure>,
    ) -> Result<Option<R>, TuneError> {
        for _ in 0..ATTEMPTS_MAX {
            let identity = identity(&self.path);
            let done = if self.lacks_locks {
                self.attempt_on_copy(access, work)
            } else {
                self.attempt(access, work)
            };
            let failure = match done {
                Ok(done) => {
                    self.is_busy = false;
                    return Ok(done);
                }
                Err(failure) => failure,
            };
            // Another process has renamed or replaced it between two calls.
            if matches!(failure, Failure::System(_)) && self::identity(&self.path) != identity {
                continue;
            }
            match self.after(access, failure, identity)? {
                Next::Again => {}
                Next::Later => return Ok(None),
            }
        }
        Err(self.unreadable(&"other processes replace it again and again"))
    }

    fn after(
        &mut self,
        access: Access,
        failure: Failure,
        identity: Option<(u64, u64)>,
    ) -> Result<Next, TuneError> {
        match failure {
            Failure::Corrupt(reason) => {
                let warning = self.set_aside(reason, identity)?;
                self.warnings.extend(warning);
            }
            Failure::Moved => {}
            Failure::Newer(found) => {
                let warning = self.switch_file(found)?;
                self.warnings.push(warning);
            }
            Failure::NoLocks(reason) if !self.lacks_locks => self.continue_without_locks(reason),
            Failure::Busy => {
                if !std::mem::replace(&mut self.has_locks, true) {
                    // SQLite takes some errors of file systems without locks for a lock of another process.
                    if let Err(TryLockError::Error(error)) = self.try_lock() {
                        self.continue_without_locks(error.to_string());
                    }
                    return Ok(Next::Again);
                }
                if !std::mem::replace(&mut self.is_busy, true) {
                    let path = self.path.clone();
                    self.warnings.push(TuneError::Busy { path });
                }
                return Ok(Next::Later);
            }
            Failure::NoLocks(reason) | Failure::System(reason) => {
                return Err(match access {
                    Access::Read => self.unreadable(&reason),
                    Access::Write => self.not_kept(&reason),
                });
            }
        }
        Ok(Next::Again)
    }

    fn continue_without_locks(&mut self, reason: String) {
        self.lacks_locks = true;
        let path = self.path.clone();
        self.warnings.push(TuneError::Unlocked { path, reason });
    }

    /// Tries whether files in the folder can be locked, if it can be written.
    fn try_lock(&self) -> Result<(), TryLockError> {
        match scratch(&self.folder) {
            Ok(file) => file.try_lock(),
            Err(_) => Ok(()),
        }
    }

    /// One operation on the file, under the locks of SQLite.
    fn attempt<R>(
        &mut self,
        access: Access,
        work: &impl Fn(&Transaction<'_>) -> Result<R, Failure>,
    ) -> Result<Option<R>, Failure> {
        if is_missing(&self.path) {
            match access {
                Access::Read => return Ok(None),
                Access::Write => {
                    create_private_all(&self.folder)?;
                    // SQLite gives its journals the permissions of the file.
                    create_private_file(&self.path)?;
                }
            }
        } else {
            check_regular(&self.path)?;
        }
        let mut file = self.connect(access)?;
        Self::transact(&mut file, access, work)
    }

    /// One operation on a copy in memory, which replaces the file.
    fn attempt_on_copy<R>(
        &mut self,
        access: Access,
        work: &impl Fn(&Transaction<'_>) -> Result<R, Failure>,
    ) -> Result<Option<R>, Failure> {
        let mut copy = Connection::open_in_memory()?;
        if !is_missing(&self.path) {
            check_regular(&self.path)?;
            if self.beside("-journal").exists() {
                return Err(Failure::System("another process writes it".to_owned()));
            }
            let bytes = partita_files::read(&self.path, DATABASE_BYTES_MAX)?;
            if !bytes.is_empty() {
                copy.deserialize_read_exact(MAIN_DB, &bytes[..], bytes.len(), false)?;
            }
        }
        configure(&copy)?;
        let done = Self::transact(&mut copy, access, work)?;
        if access == Access::Write {
            self.replace(&copy.serialize(MAIN_DB)?)?;
        }
        Ok(done)
    }

    fn connect(&self, access: Access) -> Result<Connection, Failure> {
        let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        if access == Access::Write {
            flags |= OpenFlags::SQLITE_OPEN_CREATE;
        }
        let file = Connection::open_with_flags(&self.path, flags)?;
        let wait = match (self.is_busy, self.has_locks) {
            (true, true | false) => Duration::ZERO,
            (false, true) => LOCK_WAIT,
            (false, false) => TRIAL_WAIT,
        };
        file.busy_timeout(wait)?;
        configure(&file)?;
        if access == Access::Write {
            file.pragma_update(None, "journal_mode", "DELETE")?;
        }
        #[cfg(test)]
        if let Some(pages) = self.pages_max {
            file.pragma_update(None, "max_page_count", pages)?;
        }
        Ok(file)
    }

    fn transact<R>(
        file: &mut Connection,
        access: Access,
        work: &impl Fn(&Transaction<'_>) -> Result<R, Failure>,
    ) -> Result<Option<R>, Failure> {
        let behavior = match access {
            Access::Read => TransactionBehavior::Deferred,
            Access::Write => TransactionBehavior::Immediate,
        };
        let tx = file.transaction_with_behavior(behavior)?;
        match (tables::contents(&tx)?, access) {
            (Contents::Nothing | Contents::Older, Access::Read) => return Ok(None),
            (Contents::Nothing | Contents::Older, Access::Write) => tables::create(&tx)?,
            (Contents::Current, Access::Read | Access::Write) => {}
            (Contents::Newer(found), Access::Read | Access::Write) => {
                return Err(Failure::Newer(found));
            }
            (Contents::Foreign(reason), Access::Read | Access::Write) => {
                return Err(Failure::Corrupt(reason));
            }
        }
        let done = work(&tx)?;
        tx.commit()?;
        Ok(Some(done))
    }

    /// Renames the file, and what SQLite left beside it, to a new name; none if another process has replaced the
    /// file meanwhile.
    ///
    /// Errors: the folder cannot be written; the file is then unchanged.
    fn set_aside(
        &self,
        reason: String,
        examined: Option<(u64, u64)>,
    ) -> Result<Option<TuneError>, TuneError> {
        // Without locks only the comparison keeps processes from renaming each other's new files.
        let lock = FolderLock::take(&self.folder, &format!("{}.sqlite.lock", self.stem));
        if matches!(lock, Ok(None)) {
            thread::sleep(RETRY_INTERVAL);
            return Ok(None);
        }
        if identity(&self.path) != examined {
            return Ok(None);
        }
        let failed = |error: io::Error| self.unreadable(&format!("{reason}; nor renamed: {error}"));
        let mut number = 1;
        let renamed = loop {
            let name = format!("{}.corrupt-{number}.sqlite", self.stem);
            let name = self.folder.join(name);
            // The empty file reserves the name until the rename, which would replace any other.
            match File::create_new(&name) {
                Ok(_) => break name,
                Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
                Err(error) => return Err(failed(error)),
            }
        };
        // SQLite would apply the journal to a new file under the old name.
        let beside = BESIDE.iter().try_for_each(|suffix| {
            match fs::rename(self.beside(suffix), with_suffix(&renamed, suffix)) {
                Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
                Ok(()) | Err(_) => Ok(()),
            }
        });
        if let Err(error) = beside.and_then(|()| fs::rename(&self.path, &renamed)) {
            // The empty file is not needed.
            let _ = fs::remove_file(&renamed);
            return Err(failed(error));
        }
        Ok(Some(TuneError::Corrupt {
            path: self.path.clone(),
            reason,
            renamed,
        }))
    }

    /// Switches to another file, whose name contains the format.
    ///
    /// Errors: this is that file already.
    fn switch_file(&mut self, found: u32) -> Result<TuneError, TuneError> {
        let replacement = self.folder.join(format!("{}.{FORMAT}.sqlite", self.stem));
        if replacement == self.path {
            let reason = format!("it has format {found} of a newer version");
            return Err(self.unreadable(&reason));
        }
        Ok(TuneError::Newer {
            path: std::mem::replace(&mut self.path, replacement.clone()),
            found,
            format: FORMAT,
            replacement,
        })
    }

    /// Replaces the file atomically, also across a power failure.
    fn replace(&self, contents: &[u8]) -> io::Result<()> {
        create_private_all(&self.folder)?;
        let mut file = NewFile::create(&self.path)?;
        file.write_all(contents)?;
        file.rename()?;
        // Some file systems cannot sync a folder; the file is replaced anyway.
        let _ = sync_folder(&self.folder);
        Ok(())
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        with_suffix(&self.path, suffix)
    }

    fn unreadable(&self, error: &dyn Display) -> TuneError {
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
}

/// Nothing in the file is run, and damage is found early.
fn configure(file: &Connection) -> rusqlite::Result<()> {
    for (option, value) in [
        (DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true),
        (DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false),
        // Rows are only added, each after those it refers to.
        (DbConfig::SQLITE_DBCONFIG_ENABLE_FKEY, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false),
    ] {
        file.set_db_config(option, value)?;
    }
    file.pragma_update(None, "temp_store", "MEMORY")?;
    file.pragma_update(None, "cell_size_check", true)
}

/// `check_writable` finds out whether a missing file can be written.
fn is_missing(path: &Path) -> bool {
    let missing = [ErrorKind::NotFound, ErrorKind::NotADirectory];
    fs::metadata(path).is_err_and(|error| missing.contains(&error.kind()))
}

/// Device and number of a file, which a file that replaces it does not have.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let of_file = fs::metadata(path).ok()?;
    Some((of_file.dev(), of_file.ino()))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// A temporary file without a name, deleted when it is closed, even by a kill.
///
/// Errors: the folder cannot be created or written.
pub fn scratch(folder: &Path) -> io::Result<File> {
    create_private_all(folder)?;
    partita_files::scratch(&folder.join("measured.sqlite"))
}

#[cfg(test)]
mod tests;
