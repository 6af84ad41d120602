//! Files that appear whole or not at all, and folders to which one process writes at a time.
//!
//! Does: writes files beside their place and renames them, removes what killed processes left of them,
//! locks folders, reads texts, counts their lines, and tells how much may be written.
//! Knows: file systems, and processes of this host.
//! Must not know: what the files hold, or any other crate of the workspace.

use std::fs::{self, DirBuilder, DirEntry, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write};
use std::os::unix::fs::{
    DirBuilderExt as _, FileExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Temporary names that are tried, and how often a lock is asked for whose file just went away.
const ATTEMPTS_MAX: u32 = 1000;
const SUFFIX: &str = ".partial";
/// Permissions of folders and files that only their owner may read.
const PRIVATE_FOLDER: u32 = 0o700;
const PRIVATE_FILE: u32 = 0o600;
/// Permissions of a file before the mask of the process applies.
const SHARED_FILE: u32 = 0o666;
/// Texts are read into memory. Those of the largest models have a few MiB.
const TEXT_BYTES_MAX: u64 = 64 << 20;
/// Most bytes that are read of a record that programs write. An index of ten million samples has some hundred MiB.
pub const RECORD_BYTES_MAX: u64 = 1 << 30;
/// Nobody takes so long to write a file.
const LEFTOVER_AGE: Duration = Duration::from_secs(24 * 3600);

/// A file that is written beside its place, under a name that no other process has, and renamed once
/// it is on the device.
///
/// Dropped before it is placed, it removes what it has written. It follows no link: the temporary file
/// is always new, and a link at its place is replaced. In a folder that only its owner may enter, only its
/// owner may read it, also where it is moved later.
pub struct NewFile {
    path: PathBuf,
    partial: PathBuf,
    file: File,
    is_placed: bool,
}

impl NewFile {
    /// Starts a file that will stand at `path`. What killed processes left of such a file goes.
    ///
    /// Errors: the folder cannot be written, or a device, a pipe or a socket stands there, which stays.
    pub fn create(path: &Path) -> io::Result<Self> {
        if let Ok(there) = fs::symlink_metadata(path)
            && !(there.is_file() || there.is_dir() || there.is_symlink())
        {
            return Err(irregular());
        }
        if let Some(name) = path.file_name() {
            let name = name.to_string_lossy();
            remove(parent(path), |entry| is_abandoned(entry, &name));
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        options.mode(if is_private(parent(path)) {
            PRIVATE_FILE
        } else {
            SHARED_FILE
        });
        for attempt in 0..ATTEMPTS_MAX {
            let partial = partial_path(path, attempt)?;
            match options.open(&partial) {
                Ok(file) => {
                    return Ok(Self {
                        path: path.to_path_buf(),
                        partial,
                        file,
                        is_placed: false,
                    });
                }
                // Of another file of this process, or of a process with the same number elsewhere.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        let taken = format!("{ATTEMPTS_MAX} temporary names beside it are taken");
        Err(io::Error::new(io::ErrorKind::AlreadyExists, taken))
    }

    /// Where it will stand.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where it stands until then.
    pub fn partial(&self) -> &Path {
        &self.partial
    }

    /// Replaces bytes that were written before, and leaves the position of the next ones as it is.
    pub fn rewrite(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, at)
    }

    /// Waits until the device has what was written.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    /// Puts the file in its place, for good: the device has the file before its name, and the name
    /// when this returns.
    pub fn place(self) -> io::Result<()> {
        let folder = parent(&self.path).to_owned();
        self.rename()?;
        sync_folder(&folder)
    }

    /// Puts the file in its place once the device has it; the name may take longer.
    pub fn rename(mut self) -> io::Result<()> {
        self.sync()?;
        fs::rename(&self.partial, &self.path)?;
        self.is_placed = true;
        Ok(())
    }
}

/// Creates a folder that only its owner may enter, for weights outside of the folder that was asked for.
///
/// Errors: those of the system, among them `AlreadyExists`.
pub fn create_private(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(PRIVATE_FOLDER).create(path)
}

/// Creates a folder for caches, and those above it, which only their owner may enter. One that exists stays as it is.
pub fn create_private_all(path: &Path) -> io::Result<()> {
    let mut folders = DirBuilder::new();
    folders.recursive(true).mode(PRIVATE_FOLDER).create(path)
}

/// Creates an empty file that only its owner may read, unless there is one.
pub fn create_private_file(path: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(PRIVATE_FILE);
    options.open(path).map(|_| ())
}

/// Whether only the owner may enter a folder.
fn is_private(folder: &Path) -> bool {
    let found = fs::metadata(folder);
    found.is_ok_and(|found| found.permissions().mode() & 0o077 == 0)
}

/// Opens a regular file to read: the one door to files that come from elsewhere.
///
/// Errors: no file, or no regular one. A pipe would wait for a writer, and a device may have no end.
pub fn open(path: impl AsRef<Path>) -> io::Result<File> {
    let path = path.as_ref();
    check_regular(path)?;
    let mut options = OpenOptions::new();
    options.read(true);
    // A pipe that takes the place of the file in between is not waited for.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    let file = options.open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(irregular())
    }
}

/// The bytes of a regular file.
///
/// Errors: as [`open`](fn@open); a file of more than `most` bytes, which is not read.
pub fn read(path: impl AsRef<Path>, most: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let length = file.metadata()?.len();
    if length > most {
        return Err(too_long(Some(length), most));
    }
    read_up_to(file, length, most)
}

/// The text of a regular file.
///
/// Errors: as [`open`](fn@open); it is no UTF-8, or has more than 64 MiB.
pub fn read_text(path: impl AsRef<Path>) -> io::Result<String> {
    text_of(read(path, TEXT_BYTES_MAX)?)
}

/// The text of a record that programs write: an index, a manifest, a trace.
///
/// Errors: as [`open`](fn@open); it is no UTF-8, or has more than 1 GiB.
pub fn read_record(path: impl AsRef<Path>) -> io::Result<String> {
    text_of(read(path, RECORD_BYTES_MAX)?)
}

/// The text of a regular file, or of what was piped to this process: `/dev/stdin`, or a process substitution of the
/// shell.
///
/// Errors: as [`read_text`].
pub fn read_piped_text(path: impl AsRef<Path>) -> io::Result<String> {
    let path = path.as_ref();
    let is_descriptor = path == Path::new("/dev/stdin")
        || ["/dev/fd", "/proc/self/fd"]
            .iter()
            .any(|folder| path.parent() == Some(Path::new(folder)));
    if !is_descriptor || path.is_dir() {
        return read_text(path);
    }
    #[allow(
        clippy::disallowed_methods,
        reason = "a pipe that this process was given"
    )]
    let file = File::open(path)?;
    text_of(read_up_to(file, 0, TEXT_BYTES_MAX)?)
}

/// Errors: there are more bytes than `most`.
fn read_up_to(file: File, expected: u64, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(usize::try_from(expected).unwrap_or(usize::MAX))?;
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(too_long(None, most));
    }
    Ok(bytes)
}

fn too_long(length: Option<u64>, most: u64) -> io::Error {
    let length = length.map_or_else(|| format!("more than {most}"), |length| length.to_string());
    io::Error::other(format!(
        "it has {length} bytes, and at most {most} are read"
    ))
}

fn text_of(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        io::Error::other(format!("it is not a text: byte {at} is not UTF-8"))
    })
}

/// The line, from 1, of an offset in bytes into a text.
pub fn line_at(text: &str, offset: usize) -> usize {
    let before = text.bytes().take(offset);
    before.filter(|&byte| byte == b'\n').count() + 1
}

/// Opening a pipe or a device may block forever.
///
/// Errors: no file, or no regular one.
pub fn check_regular(path: &Path) -> io::Result<()> {
    if fs::metadata(path)?.is_file() {
        Ok(())
    } else {
        Err(irregular())
    }
}

/// Whether a file may be replaced by one that begins like this: there is none, it is empty, or it begins so too.
pub fn is_replaceable(path: &Path, beginning: &[u8]) -> bool {
    if !fs::metadata(path).is_ok_and(|there| there.is_file()) {
        return !path.exists();
    }
    let mut read = Vec::new();
    let most = beginning.len() as u64;
    let all = open(path).and_then(|file| file.take(most).read_to_end(&mut read));
    // What cannot be read may be replaced where its folder allows it.
    all.is_err() || read.is_empty() || read == beginning
}

fn irregular() -> io::Error {
    io::Error::other("it is a folder, a device or a pipe, not a regular file")
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.is_placed {
            // Nobody is left to tell.
            let _ = fs::remove_file(&self.partial);
        }
    }
}

/// Writes a file as a whole, replacing what was there.
pub fn write_whole(path: &Path, contents: &[u8]) -> io::Result<()> {
    let mut file = NewFile::create(path)?;
    file.write_all(contents)?;
    file.place()
}

/// A new file without a name: it is gone when it is closed, even by a kill. Until it has none, its name is
/// one that a [`NewFile`] of this path has.
pub fn scratch(path: &Path) -> io::Result<File> {
    NewFile::create(path)?.file.try_clone()
}

/// Whether `name` is the temporary name of a [`NewFile`] that would stand at `of` in the same folder.
pub fn is_temporary(name: &str, of: &str) -> bool {
    maker(name, of).is_some()
}

/// Who made a temporary file `OF.HOST.PROCESS-ATTEMPT.partial`: the host and the process.
fn maker<'n>(name: &'n str, of: &str) -> Option<(Option<&'n str>, u32)> {
    let rest = name
        .strip_prefix(of)?
        .strip_prefix('.')?
        .strip_suffix(SUFFIX)?;
    // Earlier versions named no host.
    let (host, rest) = rest
        .rsplit_once('.')
        .map_or((None, rest), |(host, rest)| (Some(host), rest));
    let (process, attempt) = rest.split_once('-')?;
    attempt.parse::<u32>().ok()?;
    Some((host, process.parse().ok()?))
}

/// Removes the temporary files in a folder of what would stand there under a name. Only for whoever has the
/// folder alone: [`NewFile::create`] removes those that no process writes any more.
pub fn remove_temporaries(folder: &Path, of: &str) {
    remove(folder, |entry| {
        is_temporary(&entry.file_name().to_string_lossy(), of)
    });
}

/// What cannot be listed or removed takes room and nothing else.
fn remove(folder: &Path, is_left: impl Fn(&DirEntry) -> bool) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries.filter(is_left) {
        let _ = fs::remove_file(entry.path());
    }
}

/// Whether the process of a temporary file has ended, as far as that can be known, or it is of the day before.
fn is_abandoned(entry: &DirEntry, of: &str) -> bool {
    let name = entry.file_name();
    maker(&name.to_string_lossy(), of).is_some_and(|(host, process)| {
        // Of the name itself, even if it is a link.
        let age = entry
            .metadata()
            .and_then(|of| of.modified())
            .ok()
            .and_then(|time| time.elapsed().ok());
        has_ended(host, process) || age.is_some_and(|age| age > LEFTOVER_AGE)
    })
}

/// False where that cannot be known.
fn has_ended(on: Option<&str>, process: u32) -> bool {
    let processes = Path::new("/proc");
    let is_here = on.is_none_or(|name| name == host());
    let is_known = processes.join(std::process::id().to_string()).exists();
    is_here && is_known && !processes.join(process.to_string()).exists()
}

/// The name of this host; empty if the system does not say.
pub fn host_name() -> String {
    let name = read_text("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// The name of this host in names of files, which hosts with a common folder do not share.
fn host() -> String {
    let name = host_name().replace('/', "-");
    if name.is_empty() {
        "host".to_owned()
    } else {
        name
    }
}

fn partial_path(path: &Path, attempt: u32) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or_else(|| {
        let reason = format!("{} does not end in the name of a file", path.display());
        io::Error::new(io::ErrorKind::InvalidInput, reason)
    })?;
    let mut partial = name.to_os_string();
    let (host, process) = (host(), std::process::id());
    partial.push(format!(".{host}.{process}-{attempt}{SUFFIX}"));
    Ok(path.with_file_name(partial))
}

/// The folder of a path.
pub fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    }
}

/// Waits until the device has the names in a folder: a rename or removal lasts only then.
pub fn sync_folder(path: &Path) -> io::Result<()> {
    if cfg!(unix) {
        #[allow(clippy::disallowed_methods, reason = "a folder")]
        File::open(path)?.sync_all()?;
    }
    Ok(())
}

/// The right to write to a folder, held through an advisory lock on a file in it. The file is removed
/// when the lock is dropped.
pub struct FolderLock {
    path: PathBuf,
    file: File,
}

impl FolderLock {
    /// Takes the lock; `None` where another process has it.
    ///
    /// Errors: those of the system, among them `Unsupported` on a file system without locks.
    pub fn take(folder: &Path, name: &str) -> io::Result<Option<Self>> {
        let path = folder.join(name);
        for _ in 0..ATTEMPTS_MAX {
            let file = open_lock(&path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(error),
            }
            let path = path.clone();
            let mut lock = Self { path, file };
            // Its last holder may have removed the file after it was opened here.
            if lock.is_in_place() {
                lock.sign()?;
                return Ok(Some(lock));
            }
        }
        Ok(None)
    }

    /// Number of the process that has the lock of a folder; `None` where none has, or it is unknown.
    pub fn holder(folder: &Path, name: &str) -> Option<String> {
        let mut file = open(folder.join(name)).ok()?;
        match file.try_lock_shared() {
            Err(TryLockError::WouldBlock) => {}
            Ok(()) | Err(TryLockError::Error(_)) => return None,
        }
        let mut text = String::new();
        file.read_to_string(&mut text).ok()?;
        Some(text.trim().to_owned())
    }

    /// Whether the folder is still the one that was locked: not removed, renamed or replaced.
    #[cfg(unix)]
    pub fn is_in_place(&self) -> bool {
        use std::os::unix::fs::MetadataExt;
        let identity = |found: fs::Metadata| (found.dev(), found.ino());
        let [held, named] = [self.file.metadata(), fs::symlink_metadata(&self.path)];
        match (held, named) {
            (Ok(held), Ok(named)) => identity(held) == identity(named),
            (Err(_), _) | (_, Err(_)) => false,
        }
    }

    /// Whether the folder is still the one that was locked.
    #[cfg(not(unix))]
    pub fn is_in_place(&self) -> bool {
        self.path.exists()
    }

    /// Gives the lock back and removes its file.
    pub fn release(self) -> io::Result<()> {
        if self.is_in_place() {
            fs::remove_file(&self.path)
        } else {
            Ok(())
        }
    }

    fn sign(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        writeln!(self.file, "{}", std::process::id())
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        if self.is_in_place() {
            // A file that stays is taken over by the next holder.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn open_lock(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NOFOLLOW);
    options.open(path)
}

/// Bytes that this user may still write to the file system of an existing path; `None` where it does
/// not tell.
///
/// Source: POSIX.1-2017, `statvfs`.
#[cfg(unix)]
pub fn free_bytes(path: &Path) -> io::Result<Option<u64>> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    let mut found = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: `path` ends in a zero, and `found` has room for what is written.
    if unsafe { libc::statvfs(path.as_ptr(), found.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has succeeded, so it has written all of it.
    let found = unsafe { found.assume_init() };
    #[allow(clippy::unnecessary_cast, reason = "some systems have narrower fields")]
    let (all, free) = (found.f_blocks as u64, found.f_bavail as u64);
    #[allow(clippy::unnecessary_cast, reason = "some systems have narrower fields")]
    let unit = found.f_frsize as u64;
    Ok((all > 0).then(|| free.saturating_mul(unit)))
}

/// Bytes that may still be written; unknown here.
#[cfg(not(unix))]
pub fn free_bytes(_: &Path) -> io::Result<Option<u64>> {
    Ok(None)
}

/// Takes room on the device for the first `bytes` of a file, so that writing them finds no full disk. A file system that
/// cannot do that takes none.
///
/// Source: Linux manual, `fallocate(2)`.
#[cfg(target_os = "linux")]
pub fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let Ok(length) = libc::off_t::try_from(bytes) else {
        return Err(io::Error::from(io::ErrorKind::FileTooLarge));
    };
    if length == 0 {
        return Ok(());
    }
    loop {
        // SAFETY: the descriptor is open as long as `file` lives, and the call writes to no memory of this process.
        if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, length) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EOPNOTSUPP | libc::ENOSYS) => return Ok(()),
            Some(_) | None => return Err(error),
        }
    }
}

/// Takes no room; the end of a disk is found by writing.
#[cfg(not(target_os = "linux"))]
pub fn reserve(_: &File, _: u64) -> io::Result<()> {
    Ok(())
}

/// Bytes that a file of this process may have (`ulimit -f`); `None` where there is no limit.
///
/// Source: POSIX.1-2017, `getrlimit`.
#[cfg(unix)]
pub fn file_bytes_max() -> Option<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: `limit` has room for what is written.
    let told = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } == 0;
    (told && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// Bytes that a file of this process may have; unknown here.
#[cfg(not(unix))]
pub fn file_bytes_max() -> Option<u64> {
    None
}
