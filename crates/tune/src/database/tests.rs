//! One file that many processes share.

use super::*;
use partita_space::Bytes;

fn setting(ranks: usize) -> Setting {
    Setting {
        processor: "Some CPU".to_owned(),
        cores: 2,
        simd: "AVX2".to_owned(),
        backend: "plain 1".to_owned(),
        ranks,
        at_work: ranks,
        threads: 1,
    }
}

fn key(number: usize) -> KernelKey {
    KernelKey {
        signature: format!("k1 fill target=f32:1x1x1x1x{number}/1x1x1x1x{number}"),
        algorithm: "plain".to_owned(),
    }
}

fn times(numbers: &[(usize, f64)]) -> Measurements {
    let mut all = Measurements::default();
    all.add(numbers.iter().map(|&(number, seconds)| KernelTime {
        key: key(number),
        features: Features {
            family: "fill".to_owned(),
            flops: 0.0,
            bytes: number as f64,
            shape: [0.0; Features::NAMES.len()],
        },
        seconds: Seconds(seconds),
    }));
    all
}

#[track_caller]
fn assert_no_warnings(database: &mut Database) {
    let warnings = database.take_warnings();
    assert!(warnings.is_empty(), "{warnings:?}");
}

/// The only warning of a database.
#[track_caller]
fn warning(database: &mut Database) -> TuneError {
    let mut warnings = database.take_warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    warnings.remove(0)
}

/// A database without warnings.
fn opened(path: &Path) -> Database {
    let mut database = Database::open(path);
    assert_no_warnings(&mut database);
    database
}

#[test]
fn times_are_read_again_to_the_last_bit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("measured.json");
    // A reader of JSON that rounds digit by digit makes 2.184467440737095 of it.
    let one = times(&[(1, 2.184_467_440_737_095_4)]);
    let mut database = opened(&path);
    database.keep(&setting(1), &one);
    let again = opened(&path);
    assert_eq!(again.measurements(&setting(1)), one);
}

#[test]
fn stored_times_are_read_again_by_setting() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep/measured.json");
    let mut database = opened(&path);
    let mut one = times(&[(1, 0.5), (2, 1e-6)]);
    let point = TransferTime {
        bytes: Bytes(64),
        seconds: Seconds(2e-6),
        host: Seconds(1e-6),
    };
    one.links = Some(LinkTimes {
        message: vec![point],
        allreduce: [(2, vec![point, point])].into(),
        ..LinkTimes::default()
    });
    one.loads.insert("a file".to_owned(), vec![point]);
    database.check_writable();
    database.keep(&setting(1), &one);
    database.keep(&setting(2), &times(&[(1, 0.75)]));
    assert_no_warnings(&mut database);
    let again = opened(&path);
    assert_eq!(again.settings, database.settings);
    assert_eq!(again.measurements(&setting(1)), one);
    assert_eq!(
        again.measurements(&setting(2)).seconds(&key(1)),
        Some(Seconds(0.75))
    );
    assert!(!again.measurements(&setting(3)).has(&key(1)));
    let files = fs::read_dir(path.parent().unwrap()).unwrap();
    assert_eq!(files.count(), 2, "the file and its lock, nothing temporary");
}

#[test]
fn two_writers_lose_nothing_and_the_newer_wins() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("measured.json");
    let (mut first, mut second) = (opened(&path), opened(&path));
    first.keep(&setting(1), &times(&[(1, 1.0), (2, 2.0)]));
    second.keep(&setting(1), &times(&[(2, 20.0), (3, 30.0)]));
    let all = opened(&path).measurements(&setting(1));
    assert_eq!(all, times(&[(1, 1.0), (2, 20.0), (3, 30.0)]));
    assert_eq!(second.measurements(&setting(1)), all);
    // A process keeps the time with which it has planned.
    first.keep(&setting(1), &times(&[(4, 4.0)]));
    let own = times(&[(1, 1.0), (2, 2.0), (3, 30.0), (4, 4.0)]);
    assert_eq!(first.measurements(&setting(1)), own);
    let all = opened(&path).measurements(&setting(1));
    assert_eq!(all.seconds(&key(2)), Some(Seconds(20.0)));
}

#[test]
fn many_writers_at_once_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("measured.json");
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
    let all = opened(&path).measurements(&setting(1));
    assert_eq!(all.kernels.len(), 6 * 20);
}

#[test]
fn a_process_keeps_its_own_times_if_the_file_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("measured.json");
    let mut database = opened(&path);
    database.keep(&setting(2), &times(&[(1, 1.0)]));
    fs::remove_file(&path).unwrap();
    database.keep(&setting(1), &times(&[(1, 2.0)]));
    for database in [&database, &opened(&path)] {
        assert_eq!(
            database.measurements(&setting(2)),
            times(&[(1, 1.0)]),
            "times that are not in the file"
        );
        assert_eq!(database.measurements(&setting(1)), times(&[(1, 2.0)]));
    }
}

#[test]
fn a_corrupt_file_is_renamed_and_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("measured.json");
    let mut whole = opened(&path);
    let mut one = times(&[(1, 1.0)]);
    one.loads.insert("a file".to_owned(), Vec::new());
    whole.keep(&setting(1), &one);
    let empty_list = fs::read(&path).unwrap();
    let mut timeless = one.clone();
    let point = TransferTime {
        bytes: Bytes(64),
        seconds: Seconds(0.0),
        host: Seconds(0.0),
    };
    timeless.loads.insert("a file".to_owned(), vec![point]);
    fs::remove_file(&path).unwrap();
    opened(&path).keep(&setting(1), &timeless);
    let timeless = fs::read(&path).unwrap();
    one.loads.clear();
    fs::remove_file(&path).unwrap();
    opened(&path).keep(&setting(1), &one);
    let good = fs::read(&path).unwrap();
    let negative = String::from_utf8(good.clone()).unwrap();
    let negative = negative.replace("1.0", "-1.0").into_bytes();
    assert_ne!(negative, good);
    let endless = String::from_utf8(good.clone()).unwrap();
    let endless = endless.replace("1.0", "1e300").into_bytes();
    let wrong = [
        good[..good.len() / 2].to_vec(),
        format!("{{\"format\": {FORMAT}}}").into_bytes(),
        negative,
        endless,
        timeless,
        empty_list,
        b"[]".to_vec(),
        b"\xff\xfe".to_vec(),
        Vec::new(),
    ];
    for (number, wrong) in (1..).zip(&wrong) {
        fs::write(&path, wrong).unwrap();
        let mut database = Database::open(&path);
        let corrupt = warning(&mut database);
        let TuneError::Corrupt { renamed, .. } = corrupt else {
            panic!("{corrupt}")
        };
        let name = format!("measured.corrupt-{number}.json");
        assert_eq!(renamed, folder.path().join(name));
        assert_eq!(&fs::read(renamed).unwrap(), wrong);
        database.keep(&setting(1), &one);
        assert_eq!(fs::read(&path).unwrap(), good);
    }
    // Another process may corrupt the file meanwhile.
    let mut database = opened(&path);
    fs::write(&path, "{").unwrap();
    database.keep(&setting(1), &one);
    let corrupt = warning(&mut database);
    assert!(matches!(corrupt, TuneError::Corrupt { .. }), "{corrupt}");
    assert_eq!(fs::read(&path).unwrap(), good);
}

#[test]
fn a_file_of_a_newer_format_is_left_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("measured.json");
    let newer = format!("{{\"format\": {}, \"else\": 1}}", FORMAT + 1);
    fs::write(&path, &newer).unwrap();
    for turn in 0..2 {
        let mut database = Database::open(&path);
        let newer_format = warning(&mut database);
        let TuneError::Newer { replacement, .. } = newer_format else {
            panic!("{newer_format}")
        };
        let name = format!("measured.{FORMAT}.json");
        assert_eq!(replacement, folder.path().join(name));
        assert_eq!(database.measurements(&setting(1)).has(&key(1)), turn == 1);
        database.keep(&setting(1), &times(&[(1, 1.0)]));
        assert_no_warnings(&mut database);
        assert_eq!(fs::read_to_string(&path).unwrap(), newer);
    }
    fs::write(
        folder.path().join(format!("measured.{FORMAT}.json")),
        &newer,
    )
    .unwrap();
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
fn times_that_cannot_be_written_stay_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "no folder").unwrap();
    let mut database = opened(&file.join("partita/measured.json"));
    for _ in 0..2 {
        database.check_writable();
    }
    let not_kept = warning(&mut database);
    assert!(matches!(not_kept, TuneError::NotKept { .. }), "{not_kept}");
    database.keep(&setting(1), &times(&[(1, 1.0)]));
    assert!(database.measurements(&setting(1)).has(&key(1)));
    assert_no_warnings(&mut database);
    // A folder instead of the file.
    let path = folder.path().join("measured.json");
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
#[cfg(unix)]
fn pipes_and_devices_are_not_opened() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("measured.json");
    let pipe = |name: &str| {
        let made = std::process::Command::new("mkfifo")
            .arg(folder.path().join(name))
            .status();
        assert!(made.unwrap().success());
    };
    pipe("measured.json");
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
    fs::remove_file(&path).unwrap();
    fs::remove_file(folder.path().join("measured.lock")).unwrap();
    pipe("measured.lock");
    let mut database = opened(&path);
    database.keep(&setting(1), &times(&[(1, 1.0)]));
    let unlocked = warning(&mut database);
    assert!(matches!(unlocked, TuneError::Unlocked { .. }), "{unlocked}");
    assert!(opened(&path).measurements(&setting(1)).has(&key(1)));
}

#[test]
fn without_a_lock_there_is_one_warning_and_times_are_stored() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("measured.json");
    let stuck = fs::File::create(folder.path().join("measured.lock")).unwrap();
    stuck.lock().unwrap();
    let mut database = opened(&path);
    let start = std::time::Instant::now();
    database.keep(&setting(1), &times(&[(1, 1.0)]));
    let unlocked = warning(&mut database);
    assert!(matches!(unlocked, TuneError::Unlocked { .. }), "{unlocked}");
    let waited = start.elapsed();
    assert!(waited >= LOCK_WAIT, "{waited:?}");
    database.keep(&setting(1), &times(&[(2, 2.0)]));
    assert_no_warnings(&mut database);
    assert!(start.elapsed() < waited + LOCK_WAIT);
    let both = times(&[(1, 1.0), (2, 2.0)]);
    assert_eq!(opened(&path).measurements(&setting(1)), both);
}

#[test]
fn times_of_an_older_format_are_discarded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("measured.json");
    opened(&path).keep(&setting(2), &times(&[(1, 2.0)]));
    let text = fs::read_to_string(&path).unwrap();
    let form = |number: u32| format!("\"format\": {number}");
    let older = text.replace(&form(FORMAT), &form(FORMAT - 1));
    assert_ne!(older, text);
    fs::write(&path, older).unwrap();
    let mut database = opened(&path);
    assert!(!database.measurements(&setting(2)).has(&key(1)));
    database.keep(&setting(2), &times(&[(2, 1.0)]));
    let all = opened(&path).measurements(&setting(2));
    assert_eq!(all, times(&[(2, 1.0)]));
}

/// The text of a file with some keys of kernels replaced.
fn with_keys(path: &Path, keys: &[(usize, &str)]) -> String {
    let text = fs::read_to_string(path).unwrap();
    keys.iter().fold(text, |text, &(number, new)| {
        let old = key(number).signature;
        assert_eq!(text.matches(&old).count(), 2, "a time and a shape");
        text.replace(&old, new)
    })
}

#[test]
fn keys_without_a_version_are_converted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("measured.json");
    let all = times(&[(1, 1.0), (2, 2.0)]);
    opened(&path).keep(&setting(1), &all);
    let old = [
        (1, "fill  | F32 1x1x1x1x1 of 1x1x1x1x1"),
        (2, "fill  | F32 1x1x1x1x2 of 1x1x1x1x2"),
    ];
    let written = with_keys(&path, &old);
    fs::write(&path, &written).unwrap();
    let mut database = opened(&path);
    assert_eq!(database.measurements(&setting(1)), all);
    assert_eq!(fs::read_to_string(&path).unwrap(), written);
    database.keep(&setting(1), &times(&[(3, 3.0)]));
    assert_no_warnings(&mut database);
    let all = times(&[(1, 1.0), (2, 2.0), (3, 3.0)]);
    assert_eq!(opened(&path).measurements(&setting(1)), all);
    let text = fs::read_to_string(&path).unwrap();
    assert!(!text.contains(" | F32"), "{text}");
}

#[test]
fn times_under_a_newer_key_override_those_under_an_older_one() {
    let mut all = times(&[(1, 1.0)]);
    let features = all.shapes.values().next().unwrap().clone();
    let old = "fill  | F32 1x1x1x1x1 of 1x1x1x1x1".to_owned();
    let both = [("plain", 9.0), ("another", 5.0)];
    let both = both.map(|(name, time)| (name.to_owned(), Seconds(time)));
    all.kernels.insert(old.clone(), both.into());
    all.shapes.insert(old, features);
    assert_eq!(all.convert_keys(), 0);
    let mut expected = times(&[(1, 1.0)]);
    let known = expected.kernels.values_mut().next().unwrap();
    known.insert("another".to_owned(), Seconds(5.0));
    assert_eq!(all, expected);
}

#[test]
fn unknown_keys_give_one_warning_and_stay() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("measured.json");
    opened(&path).keep(&setting(1), &times(&[(1, 1.0), (2, 2.0), (3, 3.0)]));
    let of_others = [(1, "fill of some kind"), (2, "k2 fill in another way")];
    fs::write(&path, with_keys(&path, &of_others)).unwrap();
    let mut database = opened(&path);
    assert!(!database.measurements(&setting(1)).has(&key(1)));
    assert!(database.measurements(&setting(1)).has(&key(3)));
    database.keep(&setting(1), &times(&[(1, 4.0)]));
    let old_keys = warning(&mut database);
    assert!(
        matches!(old_keys, TuneError::OldKeys { kernels: 1, .. }),
        "{old_keys}"
    );
    for number in [4, 5] {
        let mut database = opened(&path);
        database.keep(&setting(1), &times(&[(number, 5.0)]));
        assert_no_warnings(&mut database);
        let all = database.measurements(&setting(1));
        assert_eq!(all.seconds(&key(1)), Some(Seconds(4.0)));
        for (signature, seconds) in [
            ("k0 fill of some kind", 1.0),
            ("k2 fill in another way", 2.0),
        ] {
            assert_eq!(all.kernels[signature]["plain"], Seconds(seconds));
            assert!(all.shapes.contains_key(signature));
        }
    }
}
