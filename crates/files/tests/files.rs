//! Files appear whole, under names that nobody else has, and a folder has one writer.

#![allow(clippy::disallowed_methods, reason = "tests read what they wrote")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use partita_files::{
    FolderLock, NewFile, create_private, create_private_all, create_private_file, free_bytes,
    is_temporary, open, read, read_piped_text, read_record, read_text, remove_temporaries, scratch,
    write_whole,
};

fn names(folder: &std::path::Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn two_files_for_one_place_have_names_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("result.json");
    let mut first = NewFile::create(&path).unwrap();
    let mut second = NewFile::create(&path).unwrap();
    first.write_all(b"first").unwrap();
    second.write_all(b"second").unwrap();
    let temporary = names(folder.path());
    assert_eq!(temporary.len(), 2);
    let is_ours = |name: &String| is_temporary(name, "result.json");
    assert!(temporary.iter().all(is_ours), "{temporary:?}");
    second.place().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"second");
    first.place().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"first");
    drop(NewFile::create(&path).unwrap());
    assert_eq!(names(folder.path()), ["result.json"]);
}

#[test]
fn names_of_others_are_not_taken_for_temporary() {
    for name in [
        "result.json",
        "result.json.partial",
        "result.json.1.partial",
        "result.json.1-.partial",
        "result.json.a-0.partial",
        "my-result.json.1-0.partial",
    ] {
        assert!(!is_temporary(name, "result.json"), "{name}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn temporaries_of_dead_processes_are_removed_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("measured.json");
    // Numbers of processes end before.
    let (dead, alive) = (u32::MAX, std::process::id());
    let mine = NewFile::create(&path).unwrap();
    let temporary = names(folder.path()).remove(0);
    let of_dead = temporary.replace(&format!(".{alive}-"), &format!(".{dead}-"));
    let old = format!("measured.json.another.host.{dead}-1.partial");
    let left = [
        format!("measured.json.another.host.{dead}-0.partial"),
        format!("measured.json.{alive}-7.partial"),
        "measured.json".to_owned(),
        "measured.json.mine.partial".to_owned(),
        format!("other.json.{dead}-0.partial"),
    ];
    let gone = [
        of_dead,
        old.clone(),
        format!("measured.json.{dead}-0.partial"),
    ];
    for name in left.iter().chain(&gone) {
        fs::write(folder.path().join(name), "").unwrap();
    }
    let file = fs::File::options()
        .write(true)
        .open(folder.path().join(old));
    let long_ago = SystemTime::now() - Duration::from_secs(48 * 3600);
    file.unwrap().set_modified(long_ago).unwrap();
    drop(NewFile::create(&path).unwrap());
    let mut left: Vec<String> = left.into_iter().chain([temporary]).collect();
    left.sort();
    assert_eq!(names(folder.path()), left);
    drop(mine);
    remove_temporaries(folder.path(), "measured.json");
    assert_eq!(
        names(folder.path()).len(),
        3,
        "what is no temporary of this file"
    );
}

#[test]
fn a_scratch_file_has_no_name() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = scratch(&folder.path().join("measured.json")).unwrap();
    file.write_all(b"content").unwrap();
    assert!(names(folder.path()).is_empty());
}

#[cfg(unix)]
#[test]
fn links_are_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let new = NewFile::create(&at("weights")).unwrap();
    let temporary = names(folder.path()).remove(0);
    drop(new);
    fs::write(at("precious"), "precious").unwrap();
    for name in ["weights", "weights.partial", &temporary, "lock"] {
        std::os::unix::fs::symlink(at("precious"), at(name)).unwrap();
    }
    write_whole(&at("weights"), b"new").unwrap();
    assert_eq!(fs::read(at("weights")).unwrap(), b"new");
    assert!(FolderLock::take(folder.path(), "lock").is_err());
    assert_eq!(fs::read(at("precious")).unwrap(), b"precious");
}

#[test]
fn a_folder_has_one_writer_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let take = || FolderLock::take(folder.path(), "lock").unwrap();
    assert_eq!(FolderLock::holder(folder.path(), "lock"), None);
    let lock = take().unwrap();
    assert!(take().is_none());
    let holder = FolderLock::holder(folder.path(), "lock").unwrap();
    assert_eq!(holder, std::process::id().to_string());
    lock.release().unwrap();
    assert!(names(folder.path()).is_empty());
    // What a killed process leaves locks nothing.
    fs::write(folder.path().join("lock"), "1\n").unwrap();
    assert_eq!(FolderLock::holder(folder.path(), "lock"), None);
    drop(take().unwrap());
    assert!(names(folder.path()).is_empty());
}

#[test]
fn a_folder_that_was_replaced_is_no_longer_locked() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    fs::create_dir(&out).unwrap();
    let old = FolderLock::take(&out, "lock").unwrap().unwrap();
    fs::remove_dir_all(&out).unwrap();
    assert!(!old.is_in_place());
    fs::create_dir(&out).unwrap();
    let new = FolderLock::take(&out, "lock").unwrap().unwrap();
    assert!(!old.is_in_place() && new.is_in_place());
    drop(old);
    assert!(new.is_in_place(), "the lock of another is not removed");
}

#[cfg(unix)]
#[test]
fn room_is_told_of_what_exists() {
    assert!(free_bytes(&std::env::temp_dir()).unwrap().unwrap() > 0);
    assert!(free_bytes(std::path::Path::new("/no/such/folder")).is_err());
}

#[test]
fn what_is_no_regular_file_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("socket");
    let socket = std::os::unix::net::UnixListener::bind(&place).unwrap();
    assert!(NewFile::create(&place).is_err());
    assert!(!partita_files::is_replaceable(&place, b"a"));
    drop(socket);
    let file = folder.path().join("file");
    assert!(partita_files::is_replaceable(&file, b"a"));
    fs::write(&file, "ab").unwrap();
    assert!(partita_files::is_replaceable(&file, b"a"));
    assert!(!partita_files::is_replaceable(&file, b"b"));
}

#[test]
fn texts_come_from_regular_files_up_to_a_size() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "ab").unwrap();
    assert_eq!(read_text(&file).unwrap(), "ab");
    assert_eq!(read(&file, 2).unwrap(), b"ab");
    let told = read(&file, 1).unwrap_err().to_string();
    assert!(told.contains("it has 2 bytes, and at most 1"), "{told}");
    fs::write(&file, b"ab\xff").unwrap();
    let told = read_text(&file).unwrap_err().to_string();
    assert!(told.contains("byte 2 is not UTF-8"), "{told}");
    // A file with nothing but a length is not read to find out.
    let long = fs::File::create(&file).unwrap();
    long.set_len(1 << 40).unwrap();
    for told in [read_text(&file), read_record(&file), read_piped_text(&file)] {
        let told = told.unwrap_err().to_string();
        assert!(told.contains("1099511627776 bytes"), "{told}");
    }
}

#[test]
fn pipes_and_devices_are_neither_opened_nor_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let [pipe, link] = ["pipe", "link"].map(|name| folder.path().join(name));
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
    for path in [&pipe, &link, Path::new("/dev/zero"), folder.path()] {
        let told = [
            open(path).map(|_| ()),
            read(path, 8).map(|_| ()),
            read_text(path).map(|_| ()),
            read_record(path).map(|_| ()),
            read_piped_text(path).map(|_| ()),
        ];
        for told in told {
            let told = told.unwrap_err().to_string();
            assert!(told.contains("not a regular file"), "{told}");
        }
        assert_eq!(FolderLock::holder(path, ""), None);
    }
    // A file of the system that says it has no bytes.
    let text = read_text("/proc/self/status").unwrap();
    assert!(text.contains("VmRSS"));
}

#[test]
fn files_in_private_folders_are_private() {
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let folder = tempfile::tempdir().unwrap();
    let shared = folder.path().join("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o755)).unwrap();
    let own = shared.join("own");
    create_private(&own).unwrap();
    let caches = shared.join("cache/partita");
    create_private_all(&caches).unwrap();
    create_private_all(&caches).unwrap();
    for private in [&own, &caches, &shared.join("cache")] {
        assert_eq!(mode(private), 0o700, "{}", private.display());
        let file = private.join("weights");
        write_whole(&file, b"1").unwrap();
        assert_eq!(mode(&file), 0o600);
    }
    write_whole(&shared.join("weights"), b"1").unwrap();
    assert_eq!(mode(&shared.join("weights")) & 0o600, 0o600);
    let database = shared.join("measured.sqlite");
    create_private_file(&database).unwrap();
    assert_eq!(mode(&database), 0o600);
    fs::write(&database, "kept").unwrap();
    create_private_file(&database).unwrap();
    assert_eq!(fs::read(&database).unwrap(), b"kept");
    assert!(create_private(&own).is_err());
}
