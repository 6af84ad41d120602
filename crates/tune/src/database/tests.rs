//! One file that many processes share.

use super::fixtures::{
    assert_no_warnings, assert_same, key, opened, setting, stored, times, warning,
};
use super::*;
use crate::tables::FORMAT;
use partita_oracle::TransferTime;
use rusqlite::Connection;
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;

/// A folder, and the file in it.
fn case() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("measured.sqlite");
    (folder, path)
}

/// The names of the files in a folder.
fn names(folder: &Path) -> Vec<String> {
    let files = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = files
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Changes a file as no process of ours does.
fn change(path: &Path, statements: &str) {
    let file = Connection::open(path).unwrap();
    file.execute_batch("PRAGMA ignore_check_constraints = ON; PRAGMA foreign_keys = OFF")
        .unwrap();
    file.execute_batch(statements).unwrap();
}

#[test]
fn stored_times_are_read_again_by_setting() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep/measured.sqlite");
    let mut database = opened(&path);
    let mut one = times(&[(1, 2.184_467_440_737_095_4), (2, 1e-6), (3, 0.0)]);
    let (again, bytes) = (one.kernels.keys().next().unwrap().clone(), Bytes(1 << 40));
    let two = [
        ("plain".to_owned(), bytes),
        ("unknown".to_owned(), Bytes(0)),
    ];
    one.kernels
        .get_mut(&again)
        .unwrap()
        .insert("unknown".to_owned(), Seconds(3.0));
    one.workspaces.insert(again, two.into());
    let point = TransferTime {
        bytes: Bytes(64),
        seconds: Seconds(2e-6),
        host: Seconds(1e-6),
    };
    let other = TransferTime {
        bytes: Bytes(16),
        ..point
    };
    one.links = Some(LinkTimes {
        message: vec![point],
        allreduce: [(2, vec![point, other]), (3, vec![other])].into(),
        allgather: [(2, vec![point])].into(),
        reduce_scatter: [(4, vec![other])].into(),
        alltoall: [(5, vec![point])].into(),
    });
    one.loads.insert("a file".to_owned(), vec![point, other]);
    database.check_writable();
    database.keep(&setting(1), &one);
    let two = times(&[(1, 0.75)]);
    database.keep(&setting(2), &two);
    assert_no_warnings(&mut database);
    let mut again = opened(&path);
    for database in [&mut again, &mut database] {
        assert_eq!(database.measurements(&setting(1)), one);
        assert_eq!(database.measurements(&setting(2)), two);
        assert_eq!(database.measurements(&setting(3)), Measurements::default());
        assert_eq!(database.settings(), [setting(1), setting(2)]);
    }
    assert_eq!(names(path.parent().unwrap()), ["measured.sqlite"]);
    // A workspace that is known stays.
    let mut newer = times(&[(1, 9.0)]);
    newer.merge(&times(&[(4, 4.0)]));
    again.keep(&setting(1), &newer);
    one.merge(&newer);
    assert_eq!(stored(&path, &setting(1)), one);
    // Lists are replaced as a whole.
    let mut newer = Measurements::default();
    newer.loads.insert("a file".to_owned(), vec![other]);
    newer.links = Some(LinkTimes {
        allreduce: [(2, vec![other])].into(),
        ..LinkTimes::default()
    });
    again.keep(&setting(1), &newer);
    one.merge(&newer);
    assert_eq!(stored(&path, &setting(1)), one);
    assert_eq!(stored(&path, &setting(1)).loads["a file"], [other]);
}

#[test]
fn many_thousands_of_times_are_kept_and_equal_shapes_once() {
    let (_folder, path) = case();
    let mut all = Measurements::default();
    for number in 0..5_000 {
        let mut one = times(&[(number, 1e-6 * number as f64)]);
        let algorithms = one.kernels.values_mut().next().unwrap();
        for parts in 1..4 {
            let name = format!("micro-batches {parts}");
            algorithms.insert(name, Seconds((number * parts) as f64 / 3.0));
        }
        all.merge(&one);
    }
    let mut database = opened(&path);
    for ranks in [1, 2] {
        database.keep(&setting(ranks), &all);
    }
    database.keep(&setting(1), &times(&[(1, 5.0), (6_000, 6.0)]));
    assert_no_warnings(&mut database);
    assert_same(&stored(&path, &setting(2)), &all);
    all.merge(&times(&[(1, 5.0), (6_000, 6.0)]));
    assert_same(&stored(&path, &setting(1)), &all);
    let file = Connection::open(&path).unwrap();
    let count = |table: &str| -> usize {
        let sql = format!("SELECT count(*) FROM {table}");
        file.query_row(&sql, [], |row| row.get(0)).unwrap()
    };
    assert_eq!(count("kernels"), 40_001);
    assert_eq!((count("shapes"), count("settings")), (5_001, 2));
}

#[test]
fn two_writers_lose_nothing_and_the_newer_wins() {
    let (_folder, path) = case();
    let (mut first, mut second) = (opened(&path), opened(&path));
    first.keep(&setting(1), &times(&[(1, 1.0), (2, 2.0)]));
    second.keep(&setting(1), &times(&[(2, 20.0), (3, 30.0)]));
    let all = stored(&path, &setting(1));
    assert_eq!(all, times(&[(1, 1.0), (2, 20.0), (3, 30.0)]));
    assert_eq!(second.measurements(&setting(1)), all);
    // A process keeps the time with which it has planned.
    first.keep(&setting(1), &times(&[(4, 4.0)]));
    let own = times(&[(1, 1.0), (2, 2.0), (3, 30.0), (4, 4.0)]);
    assert_eq!(first.measurements(&setting(1)), own);
    let all = stored(&path, &setting(1));
    assert_eq!(all.seconds(&key(2)), Some(Seconds(20.0)));
}

#[test]
fn times_of_others_come_with_the_next_write() {
    let (_folder, path) = case();
    let mut database = opened(&path);
    assert_eq!(database.measurements(&setting(1)), Measurements::default());
    // A process that plans between two questions would miss what it has not measured.
    opened(&path).keep(&setting(1), &times(&[(1, 1.0)]));
    assert_eq!(database.measurements(&setting(1)), Measurements::default());
    database.keep(&setting(2), &times(&[(2, 2.0)]));
    assert_eq!(database.measurements(&setting(1)), times(&[(1, 1.0)]));
}

#[test]
fn many_writers_at_once_lose_nothing() {
    let (_folder, path) = case();
    let write = |writer: usize| {
        for number in 0..20 {
            // Each time as another process would.
            let mut database = opened(&path);
            database.keep(&setting(1), &times(&[(100 * writer + number, 1.0)]));
            assert_no_warnings(&mut database);
        }
    };
    std::thread::scope(|scope| {
        for writer in 0..6 {
            scope.spawn(move || write(writer));
        }
    });
    assert_eq!(stored(&path, &setting(1)).kernels.len(), 6 * 20);
}

#[test]
fn a_process_keeps_its_own_times_if_the_file_is_removed() {
    let (_folder, path) = case();
    let mut database = opened(&path);
    database.keep(&setting(2), &times(&[(1, 1.0)]));
    fs::remove_file(&path).unwrap();
    database.keep(&setting(1), &times(&[(1, 2.0)]));
    for database in [&mut database, &mut opened(&path)] {
        assert_eq!(
            database.measurements(&setting(2)),
            times(&[(1, 1.0)]),
            "times that are not in the file"
        );
        assert_eq!(database.measurements(&setting(1)), times(&[(1, 2.0)]));
    }
}

/// Contents of files that are no databases of times.
fn wrong_files(folder: &Path, good: &[u8]) -> Vec<Vec<u8>> {
    let path = folder.join("changed");
    let changed = |statements: &str| {
        fs::write(&path, good).unwrap();
        change(&path, statements);
        fs::read(&path).unwrap()
    };
    let mut torn = good.to_vec();
    let middle = torn.len() / 2;
    torn[middle..].fill(0xa5);
    let mut wrong = vec![
        good[..good.len() / 2].to_vec(),
        good[..100].to_vec(),
        torn,
        b"{\"format\": 5}".to_vec(),
        b"\xff\xfe".to_vec(),
    ];
    let load = "INSERT INTO loads VALUES (1, 'a file', 0, 64, ";
    wrong.extend(
        [
            "UPDATE kernels SET seconds = -1",
            "UPDATE kernels SET seconds = 1e300",
            "UPDATE settings SET threads = -1",
            &format!("{load}0.0, 0.0)"),
            &format!("{load}1.0, -1.0)"),
            "UPDATE shapes SET family = CAST(x'fffe' AS TEXT)",
            "DROP TABLE links",
            "ALTER TABLE links RENAME TO lanes",
            "CREATE TRIGGER one AFTER INSERT ON kernels BEGIN DELETE FROM kernels; END",
            "PRAGMA application_id = 1",
            "PRAGMA user_version = -1",
        ]
        .map(changed),
    );
    fs::remove_file(&path).unwrap();
    Connection::open(&path)
        .unwrap()
        .execute_batch("CREATE TABLE t (x)")
        .unwrap();
    wrong.push(fs::read(&path).unwrap());
    fs::remove_file(path).unwrap();
    wrong
}

#[test]
fn a_corrupt_file_is_renamed_and_replaced() {
    let (folder, path) = case();
    let one = times(&[(1, 1.0)]);
    opened(&path).keep(&setting(1), &one);
    let good = fs::read(&path).unwrap();
    for (number, wrong) in (1..).zip(&wrong_files(folder.path(), &good)) {
        fs::write(&path, wrong).unwrap();
        let mut database = Database::open(&path);
        // Not all texts are looked at before they are read.
        database.measurements(&setting(1));
        let corrupt = warning(&mut database);
        let TuneError::Corrupt { renamed, .. } = corrupt else {
            panic!("{number}: {corrupt}")
        };
        let name = format!("measured.corrupt-{number}.sqlite");
        assert_eq!(renamed, folder.path().join(name));
        assert_eq!(&fs::read(renamed).unwrap(), wrong);
        database.keep(&setting(1), &one);
        assert_eq!(stored(&path, &setting(1)), one);
        assert_no_warnings(&mut database);
    }
    // Another process may corrupt the file meanwhile.
    let mut database = opened(&path);
    fs::write(&path, "no database").unwrap();
    database.keep(&setting(1), &one);
    let corrupt = warning(&mut database);
    assert!(matches!(corrupt, TuneError::Corrupt { .. }), "{corrupt}");
    assert_eq!(stored(&path, &setting(1)), one);
    assert!(!path.with_extension("sqlite.lock").exists());
}

#[test]
fn processes_that_find_a_corrupt_file_together_rename_it_once() {
    let (folder, path) = case();
    fs::write(&path, "no database").unwrap();
    std::thread::scope(|scope| {
        for number in 0..6 {
            let path = &path;
            scope.spawn(move || {
                let mut database = Database::open(path);
                database.keep(&setting(1), &times(&[(number, 1.0)]));
                let warnings = database.take_warnings();
                let is_corrupt = |warning| matches!(warning, &TuneError::Corrupt { .. });
                assert!(warnings.iter().all(is_corrupt), "{warnings:?}");
            });
        }
    });
    assert_eq!(stored(&path, &setting(1)).kernels.len(), 6);
    let names = names(folder.path());
    assert_eq!(names, ["measured.corrupt-1.sqlite", "measured.sqlite"]);
}

#[test]
fn a_file_of_a_newer_format_is_left_unchanged() {
    let (folder, path) = case();
    opened(&path).keep(&setting(2), &times(&[(1, 1.0)]));
    let number = FORMAT + 1;
    change(
        &path,
        &format!("DROP TABLE links; PRAGMA user_version = {number}"),
    );
    let newer = fs::read(&path).unwrap();
    let name = format!("measured.{FORMAT}.sqlite");
    for turn in 0..2 {
        let mut database = Database::open(&path);
        let newer_format = warning(&mut database);
        let TuneError::Newer { replacement, .. } = newer_format else {
            panic!("{newer_format}")
        };
        assert_eq!(replacement, folder.path().join(&name));
        assert_eq!(database.measurements(&setting(1)).has(&key(1)), turn == 1);
        database.keep(&setting(1), &times(&[(1, 1.0)]));
        assert_no_warnings(&mut database);
        assert_eq!(fs::read(&path).unwrap(), newer);
    }
    fs::write(folder.path().join(&name), &newer).unwrap();
    let mut database = Database::open(&path);
    let warnings = database.take_warnings();
    assert!(
        matches!(
            warnings[..],
            [TuneError::Newer { .. }, TuneError::Unreadable { .. }]
        ),
        "{warnings:?}"
    );
    database.keep(&setting(1), &times(&[(1, 1.0)]));
    assert!(database.measurements(&setting(1)).has(&key(1)));
}

#[test]
fn times_of_an_older_format_are_discarded() {
    let (_folder, path) = case();
    opened(&path).keep(&setting(2), &times(&[(1, 2.0)]));
    let old = "CREATE TABLE \"odd \"\"name\" (x); DROP TABLE loads;
        CREATE VIEW v AS SELECT * FROM kernels";
    change(
        &path,
        &format!("{old}; DROP VIEW v; PRAGMA user_version = {}", FORMAT - 1),
    );
    let mut database = opened(&path);
    assert_eq!(database.measurements(&setting(2)), Measurements::default());
    assert!(database.settings().is_empty());
    database.keep(&setting(2), &times(&[(2, 1.0)]));
    assert_no_warnings(&mut database);
    assert_eq!(stored(&path, &setting(2)), times(&[(2, 1.0)]));
}

#[test]
fn times_that_cannot_be_written_stay_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "no folder").unwrap();
    let mut database = opened(&file.join("partita/measured.sqlite"));
    for _ in 0..2 {
        database.check_writable();
    }
    let not_kept = warning(&mut database);
    assert!(matches!(not_kept, TuneError::NotKept { .. }), "{not_kept}");
    database.keep(&setting(1), &times(&[(1, 1.0)]));
    assert!(database.measurements(&setting(1)).has(&key(1)));
    assert_no_warnings(&mut database);
    // A folder instead of the file.
    let path = folder.path().join("measured.sqlite");
    fs::create_dir(&path).unwrap();
    let mut database = Database::open(&path);
    let unreadable = warning(&mut database);
    assert!(
        matches!(unreadable, TuneError::Unreadable { .. }),
        "{unreadable}"
    );
    database.keep(&setting(1), &times(&[(1, 1.0)]));
    assert!(database.measurements(&setting(1)).has(&key(1)));
}

#[test]
fn a_full_disk_leaves_the_file_as_it_was() {
    let (_folder, path) = case();
    let one = times(&[(1, 1.0)]);
    opened(&path).keep(&setting(1), &one);
    let mut database = opened(&path);
    database.store.as_mut().unwrap().pages_max = Some(10);
    let numbers: Vec<(usize, f64)> = (0..2_000).map(|number| (number, 2.0)).collect();
    database.keep(&setting(1), &times(&numbers));
    let not_kept = warning(&mut database);
    assert!(not_kept.to_string().contains("full"), "{not_kept}");
    assert!(matches!(not_kept, TuneError::NotKept { .. }), "{not_kept}");
    assert_same(&database.measurements(&setting(1)), &times(&numbers));
    assert_eq!(stored(&path, &setting(1)), one);
}

#[test]
fn times_that_no_kernel_takes_are_not_written() {
    let (_folder, path) = case();
    let one = times(&[(1, 1.0)]);
    let mut database = opened(&path);
    database.keep(&setting(1), &one);
    let mut wrong: Vec<Measurements> = [-1.0, 1e300, f64::NAN, f64::INFINITY]
        .map(|seconds| times(&[(2, seconds)]))
        .into();
    let mut empty = Measurements::default();
    empty.loads.insert("a file".to_owned(), Vec::new());
    wrong.push(empty);
    for wrong in wrong {
        database.keep(&setting(1), &wrong);
        let not_kept = warning(&mut database);
        assert!(matches!(not_kept, TuneError::NotKept { .. }), "{not_kept}");
    }
    database.keep(&setting(2), &one);
    assert_no_warnings(&mut database);
    for ranks in [1, 2] {
        assert_eq!(stored(&path, &setting(ranks)), one);
    }
}

#[test]
#[cfg(unix)]
fn pipes_and_devices_are_not_opened() {
    let (_folder, path) = case();
    let made = std::process::Command::new("mkfifo").arg(&path).status();
    assert!(made.unwrap().success());
    let unreadable = warning(&mut Database::open(&path));
    assert!(
        matches!(unreadable, TuneError::Unreadable { .. }),
        "{unreadable}"
    );
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
    let unreadable = warning(&mut Database::open(&path));
    assert!(
        matches!(unreadable, TuneError::Unreadable { .. }),
        "{unreadable}"
    );
}

#[test]
fn times_are_parted_by_their_algorithms() {
    let mut all = times(&[(1, 1.0), (2, 2.0)]);
    let other = KernelKey {
        algorithm: "other".to_owned(),
        ..key(1)
    };
    let features = all.shapes[&key(1).signature].clone();
    all.add([KernelTime {
        key: other.clone(),
        features,
        seconds: Seconds(3.0),
        workspace: Some(Bytes(4)),
    }]);
    let (chosen, rest) = all.clone().partition(&|algorithm| algorithm == "other");
    assert_eq!(chosen.seconds(&other), Some(Seconds(3.0)));
    assert_eq!(chosen.workspace(&other.signature, "other"), Some(Bytes(4)));
    assert!(!chosen.has(&key(1)) && !rest.has(&other));
    assert!(rest.has(&key(1)) && rest.has(&key(2)));
    // Kernels without features are not kept.
    assert!(chosen.check().is_ok() && rest.check().is_ok());
    let mut joined = rest;
    joined.merge(&chosen);
    assert_eq!(joined, all);
}
