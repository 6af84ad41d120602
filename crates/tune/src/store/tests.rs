//! Locks, killed writers, file systems without locks.

use super::*;
use crate::Measurements;
use crate::database::fixtures::{assert_no_warnings, key, opened, setting, stored, times, warning};
use crate::tables::Conflict;
use std::env;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// Names the file that a process of a test writes, and the first of its kernels.
const WRITER: &str = "PARTITA_TEST_WRITER";
const WRITES: usize = 15;

#[test]
fn processes_that_write_at_once_lose_nothing() {
    if let Ok(task) = env::var(WRITER) {
        let (first, path) = task.split_once(' ').unwrap();
        let first: usize = first.parse().unwrap();
        for number in first..first + WRITES {
            let mut database = opened(Path::new(path));
            database.keep(&setting(1), &times(&[(number, 1.0)]));
            assert_no_warnings(&mut database);
        }
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("measured.sqlite");
    let this = "store::tests::processes_that_write_at_once_lose_nothing";
    let start = |writer: usize| {
        let mut command = Command::new(env::current_exe().unwrap());
        let task = format!("{} {}", 100 * writer, path.display());
        command.args(["--exact", this]).env(WRITER, task);
        command.spawn().unwrap()
    };
    let writers: Vec<_> = (0..4).map(start).collect();
    for mut writer in writers {
        assert!(writer.wait().unwrap().success());
    }
    assert_eq!(stored(&path, &setting(1)).kernels.len(), 4 * WRITES);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_killed_writer_leaves_a_usable_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("measured.sqlite");
    let one = times(&[(1, 1.0)]);
    opened(&path).keep(&setting(1), &one);
    // As a process that was killed after it had written some pages of a transaction.
    let killed = folder.path().join("killed.sqlite");
    let writer = Connection::open(&path).unwrap();
    writer
        .execute_batch("PRAGMA cache_size = 1; BEGIN IMMEDIATE; UPDATE kernels SET seconds = 7")
        .unwrap();
    for number in 0..2_000 {
        let sql = "INSERT INTO kernels VALUES (1, 1, ?1, 1.0, NULL)";
        writer
            .execute(sql, [format!("algorithm {number}")])
            .unwrap();
    }
    for suffix in ["", "-journal"] {
        fs::copy(with_suffix(&path, suffix), with_suffix(&killed, suffix)).unwrap();
    }
    drop(writer);
    assert!(fs::metadata(&killed).unwrap().len() > fs::metadata(&path).unwrap().len());
    assert_eq!(stored(&killed, &setting(1)), one);
    assert!(!with_suffix(&killed, "-journal").exists());
    assert_eq!(stored(&path, &setting(1)), one);
}

#[test]
fn a_corrupt_file_takes_its_journal_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("measured.sqlite");
    let journal = with_suffix(&path, "-journal");
    fs::write(&path, "no database").unwrap();
    fs::write(&journal, "no journal").unwrap();
    let aside = Store::new(&path).set_aside("wrong".to_owned(), identity(&path));
    let Ok(Some(TuneError::Corrupt { renamed, .. })) = aside else {
        panic!("{aside:?}")
    };
    assert!(!journal.exists());
    let kept = fs::read(with_suffix(&renamed, "-journal")).unwrap();
    assert_eq!(kept, b"no journal");
}

#[test]
fn a_renamed_file_replaces_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("measured.sqlite");
    for text in ["first", "second"] {
        fs::write(&path, text).unwrap();
        let store = Store::new(&path);
        // A file that another process has put there meanwhile stays.
        let other = store.set_aside("wrong".to_owned(), Some((0, 0))).unwrap();
        assert!(other.is_none() && path.exists(), "{other:?}");
        let said = store
            .set_aside("wrong".to_owned(), identity(&path))
            .unwrap();
        assert!(matches!(said, Some(TuneError::Corrupt { .. })), "{said:?}");
    }
    let text = |number| {
        let name = format!("measured.corrupt-{number}.sqlite");
        fs::read_to_string(folder.path().join(name)).unwrap()
    };
    assert_eq!(
        (text(1), text(2)),
        ("first".to_owned(), "second".to_owned())
    );
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn times_wait_in_memory_while_another_process_holds_the_lock() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("measured.sqlite");
    opened(&path).keep(&setting(1), &times(&[(1, 1.0)]));
    let mut database = opened(&path);
    let stuck = Connection::open(&path).unwrap();
    stuck.execute_batch("BEGIN EXCLUSIVE").unwrap();
    database.keep(&setting(1), &times(&[(2, 2.0)]));
    let busy = warning(&mut database);
    assert!(matches!(busy, TuneError::Busy { .. }), "{busy}");
    // There is one warning.
    database.keep(&setting(1), &times(&[(3, 3.0)]));
    assert_no_warnings(&mut database);
    let own = times(&[(2, 2.0), (3, 3.0)]);
    assert_eq!(database.measurements(&setting(1)), own);
    stuck.execute_batch("COMMIT").unwrap();
    database.keep(&setting(2), &times(&[(4, 4.0)]));
    assert_no_warnings(&mut database);
    let all = times(&[(1, 1.0), (2, 2.0), (3, 3.0)]);
    assert_eq!(stored(&path, &setting(1)), all);
    assert_eq!(stored(&path, &setting(2)), times(&[(4, 4.0)]));
    assert_eq!(database.measurements(&setting(1)), all);
}

/// Writes times as on a file system without locks.
fn write_without_locks(path: &Path, ranks: usize, new: &Measurements) -> Result<(), TuneError> {
    let mut store = Store::new(path);
    store.lacks_locks = true;
    let write =
        |tx: &Transaction<'_>| Ok(tables::write(tx, &setting(ranks), new, Conflict::Replace)?);
    store.write(write).map(drop)
}

#[test]
fn without_locks_the_file_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep/measured.sqlite");
    let reader = Store::new(&path);
    write_without_locks(&path, 1, &times(&[(1, 1.0)])).unwrap();
    let first = identity(&path);
    let open = File::open(&path).unwrap();
    write_without_locks(&path, 2, &times(&[(2, 2.0)])).unwrap();
    assert_ne!(identity(&path), first, "not replaced");
    drop(open);
    assert_eq!(stored(&path, &setting(1)), times(&[(1, 1.0)]));
    assert_eq!(stored(&path, &setting(2)), times(&[(2, 2.0)]));
    let mut reader = Store {
        lacks_locks: true,
        ..reader
    };
    let read = reader.read(|tx| Ok(tables::read(tx, &setting(2))?));
    assert!(read.unwrap().unwrap().has(&key(2)));
    assert_eq!(fs::read_dir(&reader.folder).unwrap().count(), 1);
    // A transaction of a process that has locks.
    fs::write(reader.beside("-journal"), "begun").unwrap();
    let error = write_without_locks(&path, 1, &times(&[(3, 3.0)])).unwrap_err();
    assert!(matches!(error, TuneError::NotKept { .. }), "{error}");
}

#[test]
fn a_file_system_without_locks_gives_one_warning() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::new(&folder.path().join("measured.sqlite"));
    let code = ffi::Error::new(ffi::SQLITE_IOERR_LOCK);
    let failure = || Failure::from(rusqlite::Error::SqliteFailure(code, None));
    assert!(matches!(failure(), Failure::NoLocks(_)));
    let next = store.after(Access::Write, failure(), None).unwrap();
    assert!(matches!(next, Next::Again) && store.lacks_locks);
    assert!(matches!(store.warnings[..], [TuneError::Unlocked { .. }]));
    let again = store.after(Access::Write, failure(), None);
    assert!(matches!(again, Err(TuneError::NotKept { .. })));
}

#[test]
fn a_file_that_vanishes_again_and_again_gives_no_warning() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("measured.sqlite");
    let is_done = AtomicBool::new(false);
    let mut database = opened(&path);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                // It may not be there.
                let _ = fs::remove_file(&path);
                thread::sleep(Duration::from_micros(100));
            }
        });
        for number in 0..200 {
            database.keep(&setting(1), &times(&[(number, 1.0)]));
        }
        is_done.store(true, Ordering::Relaxed);
    });
    assert_no_warnings(&mut database);
    database.keep(&setting(1), &times(&[(200, 1.0)]));
    assert_no_warnings(&mut database);
    assert_eq!(stored(&path, &setting(1)).kernels.len(), 201);
}
