//! The cores that ranks are pinned to: each has a lock, so that no two processes of a node take the same.
//!
//! The lock of a core is that of a file, in a folder that all users of the node share. The system frees it when the
//! process ends, however it ends.

use partita_space::Help;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Cores have numbers below this.
const CORES_MAX: usize = libc::CPU_SETSIZE as usize;
/// File that a process locks while it chooses, so that two do not take half of what each needs.
const CHOICE: &str = "choice";
/// Nobody chooses for longer than this.
const CHOICE_LIMIT: Duration = Duration::from_secs(1);
/// Most characters of a command line in a message.
const COMMAND_MAX: usize = 60;

/// None of the requested cores can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "core(s) {} are requested by number, from 0, but this process may not use them{}",
    list(wanted),
    Help::possible(list(possible)).nearest(list(&nearest(wanted, possible)))
)]
pub struct NoSuchCores {
    /// The requested ones.
    pub wanted: Vec<usize>,
    /// Those that the process may use.
    pub possible: Vec<usize>,
}

/// As many of the possible cores, those nearest to the highest wanted one. All of them for a single one that is no less than
/// their number, as it may be meant as a number of cores.
fn nearest(wanted: &[usize], possible: &[usize]) -> Vec<usize> {
    if let [one] = wanted
        && *one >= possible.len()
    {
        return possible.to_vec();
    }
    let highest = wanted.iter().copied().max().unwrap_or(0);
    let mut found = possible.to_vec();
    found.sort_by_key(|core| core.abs_diff(highest));
    found.truncate(wanted.len());
    found
}

/// Cores that a process holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CoreHolder {
    /// Its number; null if it is hidden, as that of another container is.
    pub process: Option<u32>,
    /// Its command line, shortened.
    pub command: Option<String>,
    /// The cores.
    pub cores: Vec<usize>,
}

/// The locks of the cores that this process holds.
#[derive(Debug, Default)]
pub struct CoreLocks {
    /// The folder of the locks; `None` takes cores without them.
    folder: Option<PathBuf>,
    /// Whether ranks are left to the scheduler of the system.
    is_off: AtomicBool,
    /// Whether other processes hold cores that were asked for.
    is_crowded: AtomicBool,
    is_told: AtomicBool,
    held: Mutex<BTreeMap<usize, File>>,
    /// A lock of the folder, which keeps systemd-tmpfiles from cleaning it (`tmpfiles.d(5)`).
    of_folder: OnceLock<Option<File>>,
}

impl CoreLocks {
    /// Locks in a folder.
    pub fn new(folder: Option<PathBuf>) -> Self {
        Self {
            folder,
            ..Self::default()
        }
    }

    /// Whether ranks are to have cores of their own from now on; else they are left to the scheduler of the system.
    pub fn switch(&self, is_on: bool) {
        self.is_off.store(!is_on, Ordering::Relaxed);
    }

    /// Whether ranks share their cores with other processes.
    pub(crate) fn is_crowded(&self) -> bool {
        self.is_crowded.load(Ordering::Relaxed)
    }

    /// Counts this process among those that share cores.
    pub(crate) fn set_crowded(&self) {
        self.is_crowded.store(true, Ordering::Relaxed);
    }

    /// Holds this many of these cores, the first that are free; empty if there are too few. The text, if any, tells once
    /// what other processes hold.
    pub fn hold(&self, wanted: usize, among: &[usize]) -> (Vec<usize>, Option<String>) {
        if wanted == 0 || wanted > among.len() || self.is_off.load(Ordering::Relaxed) {
            return (Vec::new(), None);
        }
        let first = among[..wanted].to_vec();
        let Some(folder) = &self.folder else {
            return (first, None);
        };
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let missing =
            wanted.saturating_sub(among.iter().filter(|core| held.contains_key(core)).count());
        let mut others = Vec::new();
        if missing > 0 {
            let taken = match take(folder, missing, among, &held) {
                Ok((taken, busy)) => {
                    others = busy;
                    taken
                }
                Err(error) => return (first, self.once(|| unlocked(folder, &error))),
            };
            if taken.len() < missing {
                self.set_crowded();
                let free = wanted - missing + taken.len();
                drop(taken);
                return (
                    Vec::new(),
                    self.once(|| crowded(folder, wanted, free, &others)),
                );
            }
            held.extend(taken);
            self.of_folder.get_or_init(|| {
                #[allow(clippy::disallowed_methods, reason = "a folder, to be locked")]
                let folder = File::open(folder).ok()?;
                folder.try_lock_shared().is_ok().then_some(folder)
            });
        }
        self.is_crowded.store(false, Ordering::Relaxed);
        let own = among.iter().copied().filter(|core| held.contains_key(core));
        let own: Vec<usize> = own.take(wanted).collect();
        let told = (!others.is_empty()).then(|| self.once(|| moved(folder, &own, &others)));
        (own, told.flatten())
    }

    fn once(&self, text: impl FnOnce() -> String) -> Option<String> {
        (!self.is_told.swap(true, Ordering::Relaxed)).then(text)
    }
}

/// Locks this many of these cores but those that are held already, as far as there are as many. Also those of other
/// processes that it met.
fn take(
    folder: &Path,
    missing: usize,
    among: &[usize],
    held: &BTreeMap<usize, File>,
) -> io::Result<(BTreeMap<usize, File>, Vec<usize>)> {
    let _choice = choice(folder)?;
    let (mut taken, mut busy) = (BTreeMap::new(), Vec::new());
    for &core in among.iter().filter(|core| !held.contains_key(core)) {
        if taken.len() == missing {
            break;
        }
        let file = open(folder, &core.to_string())?;
        match file.try_lock() {
            Ok(()) => {
                taken.insert(core, file);
            }
            Err(TryLockError::WouldBlock) => busy.push(core),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Ok((taken, busy))
}

/// Who holds cores by the locks of a folder.
pub fn holders(folder: &Path) -> Vec<CoreHolder> {
    let numbers = fs::read_dir(folder).into_iter().flatten().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut cores: Vec<usize> = numbers.collect();
    cores.sort_unstable();
    // Without the lock of the choice a look could keep a process from a core.
    let Ok(_choice) = choice(folder) else {
        return Vec::new();
    };
    cores.retain(|core| {
        let file = open(folder, &core.to_string());
        file.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    });
    holders_of(folder, &cores)
}

/// The processes that hold these cores.
fn holders_of(folder: &Path, cores: &[usize]) -> Vec<CoreHolder> {
    let locks = partita_files::read_text("/proc/locks").unwrap_or_default();
    let mut found: BTreeMap<Option<u32>, Vec<usize>> = BTreeMap::new();
    for &core in cores {
        let inode = fs::metadata(folder.join(core.to_string())).map_or(0, |it| it.ino());
        let process = locks.lines().find_map(|line| lock_holder(line, inode));
        found.entry(process).or_default().push(core);
    }
    let holder = |(process, cores): (Option<u32>, Vec<usize>)| CoreHolder {
        process,
        command: process.and_then(command),
        cores,
    };
    found.into_iter().map(holder).collect()
}

/// The process of a line like `1: FLOCK ADVISORY WRITE 123 fe:00:456 0 EOF`, if it is of that file.
///
/// Source: `proc_locks(5)`.
fn lock_holder(line: &str, inode: u64) -> Option<u32> {
    let mut words = line.split_whitespace().skip(1);
    let is_lock = words.next() == Some("FLOCK");
    let process = words.nth(2)?.parse().ok();
    let of_file = words.next()?.rsplit(':').next()?.parse() == Ok(inode);
    process.filter(|_| is_lock && of_file)
}

fn command(process: u32) -> Option<String> {
    let words = partita_files::read_text(format!("/proc/{process}/cmdline")).ok()?;
    let words = words.trim_end_matches('\0').replace('\0', " ");
    let short: String = words.chars().take(COMMAND_MAX).collect();
    Some(if short.len() < words.len() {
        format!("{short}...")
    } else {
        short
    })
}

/// Keeps others from choosing until it is dropped. One that chooses for too long is not waited for.
fn choice(folder: &Path) -> io::Result<File> {
    let start = Instant::now();
    let file = open(folder, CHOICE)?;
    while let Err(TryLockError::WouldBlock) = file.try_lock() {
        if start.elapsed() > CHOICE_LIMIT {
            break;
        }
        thread::sleep(Duration::from_millis(2));
    }
    Ok(file)
}

/// A file of the folder, made for all users if it is not there.
fn open(folder: &Path, name: &str) -> io::Result<File> {
    let path = folder.join(name);
    let there = || {
        // Whoever made the file: nothing is followed, and nothing is waited for.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(&path)
    };
    match there() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        opened => return opened,
    }
    match fs::create_dir(folder) {
        // The umask of a user keeps no other one out.
        Ok(()) => fs::set_permissions(folder, Permissions::from_mode(0o1777))?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    match File::create_new(&path) {
        Ok(file) => {
            file.set_permissions(Permissions::from_mode(0o644))?;
            Ok(file)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => there(),
        Err(error) => Err(error),
    }
}

fn unlocked(folder: &Path, error: &io::Error) -> String {
    format!(
        "cores cannot be locked in {}: {error}; other trainings may take the same; \
         PARTITA_CORE_LOCKS names another folder",
        folder.display()
    )
}

fn crowded(folder: &Path, wanted: usize, free: usize, others: &[usize]) -> String {
    let fewer = match free {
        0 => String::new(),
        free => format!(", or take ranks and threads for {free} core(s)"),
    };
    let bound = if is_bound() {
        "; this process may use a part of the machine's cores alone, and others may be free"
    } else {
        ""
    };
    format!(
        "ranks are not pinned and share cores: {wanted} are needed, {free} are free, {}; wait for them{fewer}{bound}",
        told(folder, others)
    )
}

fn moved(folder: &Path, own: &[usize], others: &[usize]) -> String {
    format!(
        "ranks are pinned to core(s) {}: {}",
        list(own),
        told(folder, others)
    )
}

/// Who holds these cores, as part of a sentence.
fn told(folder: &Path, cores: &[usize]) -> String {
    let all = holders_of(folder, cores);
    let all: Vec<String> = all.iter().map(ToString::to_string).collect();
    all.join(", ")
}

impl std::fmt::Display for CoreHolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.process {
            Some(process) => write!(f, "process {process}")?,
            None => write!(f, "another process")?,
        }
        if let Some(command) = &self.command {
            write!(f, " (`{command}`)")?;
        }
        write!(f, " holds core(s) {}", list(&self.cores))
    }
}

/// Cores as people write them, like `0-3,8`.
pub fn list(cores: &[usize]) -> String {
    let mut sorted = cores.to_vec();
    sorted.sort_unstable();
    let mut text = String::new();
    for run in sorted.chunk_by(|a, b| a + 1 == *b) {
        let comma = if text.is_empty() { "" } else { "," };
        // Writing to a text cannot fail.
        let _ = match run {
            [first, .., last] => write!(text, "{comma}{first}-{last}"),
            _ => write!(text, "{comma}{}", run[0]),
        };
    }
    text
}

/// Reads a list of cores, like `0,4-7`. None if it is none.
pub fn parse_cores(text: &str) -> Option<Vec<usize>> {
    let number = |text: &str| {
        let number = text.trim().parse::<usize>().ok();
        number.filter(|&core| core < CORES_MAX)
    };
    let part = |text: &str| match text.split_once('-') {
        None => number(text).map(|core| core..=core),
        Some((first, last)) => Some(number(first)?..=number(last)?).filter(|part| !part.is_empty()),
    };
    let parts: Option<Vec<_>> = text.split(',').map(part).collect();
    Some(parts?.into_iter().flatten().collect())
}

/// Cores that this thread may use, one thread of each physical core first.
pub fn allowed() -> Vec<usize> {
    let ids = core_affinity::get_core_ids().unwrap_or_default();
    let mut cores: Vec<usize> = ids.into_iter().map(|core| core.id).collect();
    cores.sort_by_key(|&core| (siblings(core).iter().filter(|&&it| it < core).count(), core));
    cores
}

/// The threads of the physical core of a core.
fn siblings(core: usize) -> Vec<usize> {
    let path = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
    partita_files::read_text(path).map_or(Vec::new(), |text| parse_cores(&text).unwrap_or_default())
}

/// Whether this process may use a part of the cores of the machine only.
fn is_bound() -> bool {
    let online = partita_files::read_text("/sys/devices/system/cpu/online").unwrap_or_default();
    parse_cores(&online).is_some_and(|online| allowed().len() < online.len())
}

/// Keeps this thread, and threads and processes that it starts, to those of these cores that it may use.
///
/// Errors: it may use none of them.
pub fn confine(wanted: &[usize]) -> Result<(), NoSuchCores> {
    let possible = allowed();
    let both = possible
        .iter()
        .copied()
        .filter(|core| wanted.contains(core));
    move_to(&both.collect::<Vec<usize>>()).map_err(|()| NoSuchCores {
        wanted: wanted.to_vec(),
        possible,
    })
}

/// Moves this thread, and threads and processes that it starts, to these cores, also where it may use others now.
///
/// Errors: the process may use none of them.
pub fn occupy(wanted: &[usize]) -> Result<(), NoSuchCores> {
    move_to(wanted).map_err(|()| NoSuchCores {
        wanted: wanted.to_vec(),
        possible: allowed(),
    })
}

/// Source: `sched_setaffinity(2)`: threads inherit the set of the thread that starts them.
fn move_to(cores: &[usize]) -> Result<(), ()> {
    // SAFETY: all bits of the set may be 0.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &core in cores.iter().filter(|&&core| core < CORES_MAX) {
        // SAFETY: the number is below the capacity of the set.
        unsafe { libc::CPU_SET(core, &mut set) };
    }
    // SAFETY: the set is initialized and has that size; 0 is the calling thread.
    match unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) } {
        0 => Ok(()),
        _ => Err(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_numbers_and_ranges() {
        assert_eq!(parse_cores("0,4-6"), Some(vec![0, 4, 5, 6]));
        for text in ["", "x", "3-1", "1,", "-2", "4096"] {
            assert_eq!(parse_cores(text), None, "{text}");
        }
        assert_eq!(list(&[8, 0, 2, 1]), "0-2,8");
    }

    #[test]
    fn nobody_takes_cores_that_another_holds() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks");
        let locks = || CoreLocks::new(Some(path.clone()));
        let all = [3, 5, 4];
        let (first, second, third) = (locks(), locks(), locks());
        assert_eq!(first.hold(1, &all), (vec![3], None));
        let (own, text) = second.hold(1, &all);
        let holder = format!("process {} (`", std::process::id());
        let text = text.unwrap();
        assert_eq!(own, [5]);
        assert!(
            text.contains(&holder) && text.ends_with("holds core(s) 3"),
            "{text}"
        );
        let (own, text) = third.hold(2, &all);
        assert_eq!((own, third.is_crowded()), (vec![], true));
        let text = text.unwrap();
        for part in [
            "2 are needed, 1 are free",
            "wait for them, or take ranks and threads for 1 core(s)",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let (_, text) = locks().hold(3, &[3, 5]);
        assert_eq!(text, None, "more than there are");
        let (_, text) = locks().hold(1, &[3]);
        let text = text.unwrap();
        assert!(
            text.contains("wait for them") && !text.contains("or take"),
            "{text}"
        );
        assert!(!text.contains("--bind-to"), "{text}");
        assert_eq!(third.hold(2, &all).1, None, "told once");
        // What was not enough is free again; what is held grows; a process that ends frees all.
        assert_eq!(first.hold(2, &all).0, [3, 4]);
        let found = holders(&path);
        assert_eq!((found.len(), &found[0].cores), (1, &vec![3, 4, 5]));
        drop((first, second));
        assert_eq!(third.hold(2, &all).0, [3, 5]);
        assert!(!third.is_crowded());
    }

    #[test]
    fn cores_that_are_not_there_have_a_nearest_choice() {
        for (wanted, possible, expected) in [
            (&[5][..], &[0, 1][..], "0-1"),
            (&[2], &[0, 1], "0-1"),
            (&[0], &[1, 2, 3], "1"),
            (&[6, 7], &[0, 1, 2, 3], "2-3"),
        ] {
            let error = NoSuchCores {
                wanted: wanted.to_vec(),
                possible: possible.to_vec(),
            };
            let text = error.to_string();
            assert!(
                text.contains(&format!("help: try {expected}; possible values: ")),
                "{text}"
            );
        }
    }

    #[test]
    fn ranks_may_be_left_to_the_system() {
        let folder = tempfile::tempdir().unwrap();
        let locks = CoreLocks::new(Some(folder.path().to_owned()));
        locks.switch(false);
        assert_eq!(locks.hold(1, &[0]), (vec![], None));
        assert_eq!(holders(folder.path()), []);
        // The next training has cores of its own again.
        locks.switch(true);
        assert_eq!(locks.hold(1, &[0]), (vec![0], None));
        assert_eq!(CoreLocks::new(None).hold(2, &[7, 8]), (vec![7, 8], None));
        let (own, text) = CoreLocks::new(Some("/proc/none".into())).hold(1, &[7]);
        assert_eq!(own, [7]);
        assert!(text.unwrap().contains("PARTITA_CORE_LOCKS"));
    }
}
