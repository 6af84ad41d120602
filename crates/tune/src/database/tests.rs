//! One file, many processes, and what becomes of what they find there.

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
    all.add(numbers.iter().map(|&(number, seconds)| Measured {
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

/// All that has been told of it.
fn told(database: &mut Database) -> String {
    let warnings = database.take_warnings();
    let texts: Vec<String> = warnings.iter().map(TuneError::to_string).collect();
    texts.join("; ")
}

/// A database that has nothing to tell.
fn opened(path: &Path) -> Database {
    let mut database = Database::open(path);
    assert_eq!(told(&mut database), "");
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
fn what_is_kept_is_read_again_by_setting() {
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
    assert_eq!(told(&mut database), "");
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
    // The first one's plans rest on the time that it knows.
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
            assert_eq!(told(&mut database), "");
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
fn what_a_process_measured_it_knows_whatever_others_do_to_the_file() {
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
fn a_corrupt_file_is_renamed_and_named_and_measuring_starts_anew() {
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
        let renamed = format!("measured.corrupt-{number}.json");
        let said = told(&mut database);
        assert!(
            said.contains("measured.json holds") && said.contains(&renamed),
            "{said}"
        );
        assert_eq!(&fs::read(folder.path().join(renamed)).unwrap(), wrong);
        database.keep(&setting(1), &one);
        assert_eq!(fs::read(&path).unwrap(), good);
    }
    // Another process may have spoilt the file meanwhile.
    let mut database = opened(&path);
    fs::write(&path, "{").unwrap();
    database.keep(&setting(1), &one);
    assert!(told(&mut database).contains("measured.corrupt-10.json"));
    assert_eq!(fs::read(&path).unwrap(), good);
}

#[test]
fn a_file_of_a_newer_format_is_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("measured.json");
    let newer = format!("{{\"format\": {}, \"else\": 1}}", FORMAT + 1);
    fs::write(&path, &newer).unwrap();
    for turn in 0..2 {
        let mut database = Database::open(&path);
        let said = told(&mut database);
        let own = format!("measured.{FORMAT}.json");
        assert!(
            said.contains("newer version") && said.contains(&own),
            "{said}"
        );
        assert_eq!(database.measurements(&setting(1)).has(&key(1)), turn == 1);
        database.keep(&setting(1), &times(&[(1, 1.0)]));
        assert_eq!(told(&mut database), "");
        assert_eq!(fs::read_to_string(&path).unwrap(), newer);
    }
    fs::write(
        folder.path().join(format!("measured.{FORMAT}.json")),
        &newer,
    )
    .unwrap();
    let mut database = Database::open(&path);
    assert!(told(&mut database).contains("cannot be read"));
    database.keep(&setting(1), &times(&[(1, 1.0)]));
    assert!(database.measurements(&setting(1)).has(&key(1)));
}

#[test]
fn times_that_cannot_be_written_are_known_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "no folder").unwrap();
    let mut database = opened(&file.join("partita/measured.json"));
    for _ in 0..2 {
        database.check_writable();
    }
    let said = told(&mut database);
    assert_eq!(said.matches("cannot be kept in").count(), 1, "{said}");
    database.keep(&setting(1), &times(&[(1, 1.0)]));
    assert!(database.measurements(&setting(1)).has(&key(1)));
    assert_eq!(told(&mut database), "");
    // A folder in the place of the file.
    let path = folder.path().join("measured.json");
    fs::create_dir(&path).unwrap();
    let mut database = Database::open(&path);
    assert!(told(&mut database).contains("cannot be read"));
    database.keep(&setting(1), &times(&[(1, 1.0)]));
    assert!(database.measurements(&setting(1)).has(&key(1)));
}

#[test]
#[cfg(unix)]
fn a_pipe_or_a_device_in_the_place_of_a_file_is_not_opened() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("measured.json");
    let pipe = |name: &str| {
        let made = std::process::Command::new("mkfifo")
            .arg(folder.path().join(name))
            .status();
        assert!(made.unwrap().success());
    };
    pipe("measured.json");
    let said = told(&mut Database::open(&path));
    assert!(said.contains("it is no regular file"), "{said}");
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
    let said = told(&mut Database::open(&path));
    assert!(said.contains("it is no regular file"), "{said}");
    fs::remove_file(&path).unwrap();
    fs::remove_file(folder.path().join("measured.lock")).unwrap();
    pipe("measured.lock");
    let mut database = opened(&path);
    database.keep(&setting(1), &times(&[(1, 1.0)]));
    let said = told(&mut database);
    assert!(said.contains("measured.lock cannot be locked"), "{said}");
    assert!(opened(&path).measurements(&setting(1)).has(&key(1)));
}

#[test]
fn a_lock_that_cannot_be_had_is_told_once_and_does_without() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("measured.json");
    let stuck = fs::File::create(folder.path().join("measured.lock")).unwrap();
    stuck.lock().unwrap();
    let mut database = opened(&path);
    let start = std::time::Instant::now();
    database.keep(&setting(1), &times(&[(1, 1.0)]));
    let said = told(&mut database);
    assert!(said.contains("measured.lock cannot be locked"), "{said}");
    let waited = start.elapsed();
    assert!(waited >= LOCK_WAIT, "{waited:?}");
    database.keep(&setting(1), &times(&[(2, 2.0)]));
    assert_eq!(told(&mut database), "");
    assert!(start.elapsed() < waited + LOCK_WAIT);
    let both = times(&[(1, 1.0), (2, 2.0)]);
    assert_eq!(opened(&path).measurements(&setting(1)), both);
}

#[test]
fn times_of_an_older_format_do_not_count() {
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
fn times_under_keys_without_a_version_are_those_of_today() {
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
    assert_eq!(told(&mut database), "");
    let all = times(&[(1, 1.0), (2, 2.0), (3, 3.0)]);
    assert_eq!(opened(&path).measurements(&setting(1)), all);
    let text = fs::read_to_string(&path).unwrap();
    assert!(!text.contains(" | F32"), "{text}");
}

#[test]
fn where_a_kernel_has_keys_of_two_versions_the_later_one_counts() {
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
fn keys_that_nobody_knows_are_told_of_once_and_stay() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("measured.json");
    opened(&path).keep(&setting(1), &times(&[(1, 1.0), (2, 2.0), (3, 3.0)]));
    let of_others = [(1, "fill of some kind"), (2, "k2 fill in another way")];
    fs::write(&path, with_keys(&path, &of_others)).unwrap();
    let mut database = opened(&path);
    assert!(!database.measurements(&setting(1)).has(&key(1)));
    assert!(database.measurements(&setting(1)).has(&key(3)));
    database.keep(&setting(1), &times(&[(1, 4.0)]));
    let said = told(&mut database);
    assert!(
        said.contains("1 kernel(s)") && said.contains("measured.json have keys of version 0"),
        "{said}"
    );
    for number in [4, 5] {
        let mut database = opened(&path);
        database.keep(&setting(1), &times(&[(number, 5.0)]));
        assert_eq!(told(&mut database), "", "told twice");
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
