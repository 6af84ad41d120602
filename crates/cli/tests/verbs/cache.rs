//! The file of measured times: shared by processes, spoilt, out of reach.

use crate::command::{error_text, partita};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

const MODEL: &str = "model tiny
input x channels=2 extent=4x4x4
c1 = conv x filters=3 kernel=3 pad=1 bias=false
a1 = leaky_relu c1 slope=0.1
f = flatten a1
fc = linear f features=2 bias=true
loss = mse fc
";

/// A folder for a cache, with a model beside it.
struct Case {
    folder: TempDir,
}

impl Case {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("tiny.model"), MODEL).unwrap();
        Self { folder }
    }

    /// The file of measured times.
    fn file(&self) -> PathBuf {
        self.cache().join("measured.sqlite")
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("partita")
    }

    /// A prediction that measures the kernels of a batch that are not in the cache, with one rank.
    fn predict(&self, batch: &str) -> Command {
        self.predict_split("data=1", &["--ranks", "1", "--batch", batch])
    }

    /// The same of two ranks, which measure links, too, and so take a second or more.
    fn predict_two(&self) -> Command {
        self.predict_split("depth=2", &["--ranks", "2", "--batch", "2"])
    }

    fn predict_split(&self, strategy: &str, more: &[&str]) -> Command {
        let model = self.folder.path().join("tiny.model");
        let mut command = partita(&["predict", model.to_str().unwrap(), "--strategy", strategy]);
        command.args(more).args(["--machine", "here"]);
        command.args(["--no-io", "--json"]);
        command.env("XDG_CACHE_HOME", self.folder.path());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Puts a file in the place of the measured times.
    fn spoil(&self, contents: &[u8]) {
        fs::create_dir_all(self.cache()).unwrap();
        fs::write(self.file(), contents).unwrap();
    }

    /// Puts a file of format 1000000 in the place of the measured times, which must be there; gives its contents.
    fn of_a_newer_format(&self) -> Vec<u8> {
        let mut contents = fs::read(self.file()).unwrap();
        // The user version in the header of an SQLite file.
        contents[60..64].copy_from_slice(&1_000_000_u32.to_be_bytes());
        self.spoil(&contents);
        contents
    }

    fn names(&self) -> Vec<String> {
        let files = fs::read_dir(self.cache()).unwrap();
        let name = |file: std::io::Result<fs::DirEntry>| file.unwrap().file_name();
        let mut names: Vec<String> = files
            .map(|file| name(file).into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

/// What a call says on its error output; it must succeed, with a prediction from measured times.
fn said(output: &Output) -> String {
    let text = error_text(output);
    assert!(output.status.success(), "{text}");
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["basis"], "measured");
    text
}

const BATCHES: [&str; 3] = ["1", "2", "3"];

#[test]
fn cold_runs_at_once_all_succeed_and_lose_nothing() {
    let case = Case::new();
    let start = |turn: usize| case.predict(BATCHES[turn % BATCHES.len()]).spawn();
    let runs: Vec<Child> = (0..6).map(|turn| start(turn).unwrap()).collect();
    for run in runs {
        assert_eq!(said(&run.wait_with_output().unwrap()), "");
    }
    let written = fs::read(case.file()).unwrap();
    for batch in BATCHES {
        assert_eq!(said(&case.predict(batch).output().unwrap()), "");
    }
    let again = fs::read(case.file()).unwrap();
    assert!(written == again, "what one of them measured was lost");
    assert_eq!(case.names(), ["measured.sqlite"]);
}

#[test]
fn a_run_uses_what_it_measured_though_the_file_vanishes() {
    let case = Case::new();
    let is_done = AtomicBool::new(false);
    let output = thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                let _ = fs::remove_file(case.file());
                thread::sleep(Duration::from_micros(100));
            }
        });
        let output = case.predict_two().output();
        is_done.store(true, Ordering::Relaxed);
        output.unwrap()
    });
    assert_eq!(said(&output), "");
}

#[test]
fn a_spoilt_file_is_renamed_and_measured_anew() {
    let case = Case::new();
    said(&case.predict("2").output().unwrap());
    let good = fs::read(case.file()).unwrap();
    let truncated = &good[..good.len() / 2];
    let texts: [&[u8]; 2] = [b"{\"format\": 5}", b"\xff\xfe"];
    for (number, spoilt) in [truncated].into_iter().chain(texts).enumerate() {
        case.spoil(spoilt);
        let told = said(&case.predict("2").output().unwrap());
        let renamed = format!("measured.corrupt-{}.sqlite", number + 1);
        let names = told.contains("measured.sqlite is not a file") && told.contains(&renamed);
        assert!(names && told.lines().count() == 1, "{told}");
        assert_eq!(fs::read(case.cache().join(renamed)).unwrap(), spoilt);
        assert_eq!(said(&case.predict("2").output().unwrap()), "");
    }
    assert_eq!(case.names().len(), 4);
}

#[test]
fn a_file_of_a_newer_version_is_neither_read_nor_written() {
    let case = Case::new();
    said(&case.predict("2").output().unwrap());
    let newer = case.of_a_newer_format();
    let written = [(); 2].map(|()| {
        let told = said(&case.predict("2").output().unwrap());
        assert!(told.contains("has format 1000000 of a newer"), "{told}");
        assert_eq!(fs::read(case.file()).unwrap(), newer);
        let names = case.names();
        let own = names
            .iter()
            .find(|name| told.contains(*name) && *name != "measured.sqlite");
        fs::read(case.cache().join(own.unwrap())).unwrap()
    });
    assert!(written[0] == written[1], "the second run measures again");
}

#[test]
fn a_cache_out_of_reach_is_told_of_before_anything_is_measured() {
    let case = Case::new();
    // File permissions would not keep root out.
    let file = case.folder.path().join("file");
    File::create(&file).unwrap();
    let mut command = case.predict_two();
    let mut run = command.env("XDG_CACHE_HOME", &file).spawn().unwrap();
    let mut errors = BufReader::new(run.stderr.take().unwrap());
    let mut first = String::new();
    errors.read_line(&mut first).unwrap();
    assert!(run.try_wait().unwrap().is_none(), "told of after the end");
    assert!(
        first.contains("cannot be written to") && first.contains("XDG_CACHE_HOME"),
        "{first}"
    );
    // A slow machine also says what it measures.
    let mut rest = String::new();
    errors.read_to_string(&mut rest).unwrap();
    assert!(!rest.contains("cannot be written to"), "told twice: {rest}");
    said(&run.wait_with_output().unwrap());
    // Without any place it is the same.
    let mut command = case.predict("2");
    command.env_remove("XDG_CACHE_HOME").env_remove("HOME");
    let told = said(&command.output().unwrap());
    assert!(told.contains("neither XDG_CACHE_HOME nor HOME"), "{told}");
}

#[test]
fn reads_are_measured_where_the_cache_is_out_of_reach() {
    let case = Case::new();
    let file = case.folder.path().join("file");
    File::create(&file).unwrap();
    let model = case.folder.path().join("tiny.model");
    let mut command = partita(&["predict", model.to_str().unwrap(), "--machine", "here"]);
    command.args([
        "--ranks",
        "1",
        "--batch",
        "1",
        "--strategy",
        "data=1",
        "--json",
    ]);
    command
        .env("XDG_CACHE_HOME", &file)
        .env("TMPDIR", case.folder.path());
    assert_eq!(said(&command.output().unwrap()).lines().count(), 1);
    let output = command.env("TMPDIR", &file).output().unwrap();
    assert!(
        error_text(&output).contains("TMPDIR"),
        "{}",
        error_text(&output)
    );
    let left = fs::read_dir(case.folder.path()).unwrap().count();
    assert_eq!(left, 2, "the model and the file in the way");
}

#[test]
fn what_killed_processes_leave_is_cleaned_up_and_does_no_harm() {
    let case = Case::new();
    fs::create_dir_all(case.cache()).unwrap();
    // Numbers of processes end before.
    let name = "measured.sqlite.4294967295-0.partial";
    fs::write(case.cache().join(name), "half of").unwrap();
    for turn in 0..12 {
        let mut run = case.predict(BATCHES[turn % BATCHES.len()]).spawn().unwrap();
        thread::sleep(Duration::from_millis(8 * turn as u64));
        // SIGKILL; it may have ended by itself.
        let _ = run.kill();
        run.wait().unwrap();
    }
    // One that writes, whatever those have measured.
    assert_eq!(said(&case.predict("4").output().unwrap()), "");
    assert_eq!(case.names(), ["measured.sqlite"]);
}

/// Trains with a cache, and gives what is told about it.
fn trained(folder: &Path, cache: &Path) -> String {
    let mut command = partita(&["train", "run.toml", "--json", "--prediction"]);
    command.current_dir(folder).env("XDG_CACHE_HOME", cache);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", error_text(&output));
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(result["digest"].is_string(), "{result}");
    fs::remove_dir_all(folder.join("out")).unwrap();
    let text = error_text(&output);
    let about: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("measured"))
        .collect();
    about.join("\n")
}

#[test]
fn training_goes_on_whatever_the_cache_is() {
    let case = Case::new();
    let folder = case.folder.path();
    let model = MODEL.replace("channels=2 extent=4x4x4", "channels=4 extent=16x16x16");
    let model = model.replace("features=2", "features=4");
    fs::write(folder.join("tiny.model"), model).unwrap();
    let run = "model = \"tiny.model\"\ndata = \"universes\"\noutput = \"out\"\nbatch = 4\nepochs = 1\n\
               transform = \"log1p\"\n\
               [schedule]\nkind = \"constant\"\nlearning_rate = 1e-3\n";
    fs::write(folder.join("run.toml"), run).unwrap();
    let mut data = partita(&["data", "cosmology", "--universes", "10", "--grid", "16"]);
    let made = data
        .args(["--out", "universes"])
        .current_dir(folder)
        .output();
    assert!(made.unwrap().status.success());
    let file = folder.join("file");
    File::create(&file).unwrap();
    let told = trained(folder, &file);
    assert!(
        told.contains("cannot be written to") && told.lines().count() == 1,
        "{told}"
    );
    case.spoil(b"SQLite format 3");
    assert!(trained(folder, folder).contains("measured.corrupt-1.sqlite"));
    case.of_a_newer_format();
    assert!(trained(folder, folder).contains("of a newer version"));
}
