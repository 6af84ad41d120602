//! The test binaries of the workspace, built at once and run a few at a time, the longest first.

use super::PROFILE;
use serde_json::Value;
use std::env;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Instant;

/// Those that take longest, longest first, so that no core is idle while the last of them ends. All others take less
/// than 10 seconds.
const LONGEST: [&str; 18] = [
    "cli verbs",
    "cli mpi",
    "testkit it",
    "training src, lib",
    "cpu it",
    "testkit geometry",
    "cli book",
    "fuzz fuzz",
    "plan it",
    "cli memory",
    "gpu it",
    "cli weights",
    "tune it",
    "lower growth",
    "examples in documentation",
    "data it",
    "input it",
    "cpu allocation",
];
/// Jobs at a time on two cores. Tests wait for processes, locks and watchdogs for half of their time.
const LANES: usize = 4;

/// A command that runs tests.
pub(super) struct Job {
    /// Crate and binary.
    pub(super) name: String,
    pub(super) command: Command,
}

/// What a job left.
pub(super) struct Done {
    pub(super) name: String,
    /// What it printed, but for the error output, which is passed on as it comes.
    pub(super) output: String,
    pub(super) succeeded: bool,
    pub(super) seconds: f64,
}

/// Builds all tests of the workspace; a job for each binary, and one for the examples in documentation.
pub(super) fn all(root: &Path) -> Result<Vec<Job>, String> {
    let mut jobs: Vec<Job> = binaries(root)?.into_iter().map(Job::of).collect();
    let mut command = cargo(root);
    command.arg("--doc").arg("--no-fail-fast");
    let name = "examples in documentation".to_owned();
    jobs.push(Job { name, command });
    let place = |job: &Job| LONGEST.iter().position(|name| *name == job.name);
    jobs.sort_by_key(|job| place(job).unwrap_or(LONGEST.len()));
    Ok(jobs)
}

/// Runs the jobs in their order, [`LANES`] at a time, and hands over each as it ends.
pub(super) fn run(jobs: Vec<Job>, mut take: impl FnMut(Done)) {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = (cores / 2).max(1).to_string();
    let waiting = Mutex::new(jobs.into_iter());
    let (sender, done) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..LANES {
            let (sender, waiting, threads) = (sender.clone(), &waiting, &threads);
            scope.spawn(move || {
                while let Some(mut job) = next(waiting) {
                    if env::var_os("RUST_TEST_THREADS").is_none() {
                        job.command.env("RUST_TEST_THREADS", threads);
                    }
                    let sent = sender.send(job.run());
                    sent.expect("results are taken until the last lane ends");
                }
            });
        }
        drop(sender);
        done.iter().for_each(&mut take);
    });
}

/// The lock lasts no longer than the call.
fn next(waiting: &Mutex<std::vec::IntoIter<Job>>) -> Option<Job> {
    let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
    waiting.next()
}

impl Job {
    /// A test binary runs in the folder of its crate, as cargo does it.
    fn of(binary: Binary) -> Self {
        let mut command = Command::new(&binary.executable);
        command.current_dir(&binary.folder);
        command.env("CARGO_MANIFEST_DIR", &binary.folder);
        Self {
            name: binary.name,
            command,
        }
    }

    fn run(mut self) -> Done {
        let start = Instant::now();
        let command = self.command.stdin(Stdio::null()).stdout(Stdio::piped());
        let output = command.spawn().and_then(|child| child.wait_with_output());
        let (output, succeeded) = match output {
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                (text, output.status.success())
            }
            Err(error) => (format!("cannot be run: {error}"), false),
        };
        Done {
            name: self.name,
            output,
            succeeded,
            seconds: start.elapsed().as_secs_f64(),
        }
    }
}

/// A binary that cargo built.
#[derive(Debug, PartialEq, Eq)]
struct Binary {
    name: String,
    /// The folder of its crate.
    folder: PathBuf,
    executable: PathBuf,
}

fn cargo(root: &Path) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.arg("test").args(PROFILE).current_dir(root);
    command.args(["--workspace", "--locked"]);
    command
}

fn binaries(root: &Path) -> Result<Vec<Binary>, String> {
    let mut command = cargo(root);
    command.args(["--no-run", "--message-format", "json-render-diagnostics"]);
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cargo cannot be started: {error}"))?;
    let output = child.stdout.take().ok_or("the output of cargo is lost")?;
    let mut binaries = Vec::new();
    for line in BufReader::new(output).lines() {
        let line = line.map_err(|error| format!("the output of cargo broke off: {error}"))?;
        binaries.extend(binary(&line)?);
    }
    let status = child
        .wait()
        .map_err(|error| format!("cargo cannot be awaited: {error}"))?;
    if !status.success() {
        return Err("the tests cannot be built".to_owned());
    }
    Ok(binaries)
}

/// The test binary of a message of cargo, if it is about one.
fn binary(message: &str) -> Result<Option<Binary>, String> {
    let message: Value = serde_json::from_str(message)
        .map_err(|error| format!("cargo's message is not JSON: {error}"))?;
    let is_test = message["profile"]["test"].as_bool().unwrap_or(false);
    let words = [
        &message["executable"],
        &message["manifest_path"],
        &message["target"]["name"],
        &message["target"]["kind"][0],
    ];
    let [Some(executable), Some(manifest), Some(target), Some(kind)] = words.map(Value::as_str)
    else {
        return Ok(None);
    };
    let folder = Path::new(manifest).parent().unwrap_or(Path::new("/"));
    let room = folder.file_name().unwrap_or_default().to_string_lossy();
    let target = match kind {
        "test" => target.to_owned(),
        _ => format!("src, {kind}"),
    };
    Ok(is_test.then(|| Binary {
        name: format!("{room} {target}"),
        folder: folder.to_owned(),
        executable: executable.into(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_cargo_name_test_binaries() {
        let message = |test: bool, kind: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/r/crates/cli/Cargo.toml",
                "target":{{"kind":["{kind}"],"name":"verbs"}},"profile":{{"test":{test}}},
                "executable":"/t/verbs-1"}}"#
            )
        };
        let expected = |name: &str| Binary {
            name: name.to_owned(),
            folder: "/r/crates/cli".into(),
            executable: "/t/verbs-1".into(),
        };
        let read = |test, kind| binary(&message(test, kind)).unwrap();
        assert_eq!(read(true, "test"), Some(expected("cli verbs")));
        assert_eq!(read(true, "lib"), Some(expected("cli src, lib")));
        assert_eq!(read(false, "bin"), None);
        let finished = r#"{"reason":"build-finished","success":true}"#;
        assert_eq!(binary(finished), Ok(None));
        assert!(binary("Compiling x").is_err());
    }

    #[test]
    fn every_job_runs_once_and_its_end_is_told() {
        let job = |at: usize| {
            let mut command = Command::new("sh");
            command.args(["-c", &format!("echo {at}; exit {}", at % 2)]);
            let name = at.to_string();
            Job { name, command }
        };
        let missing = Job {
            name: "missing".to_owned(),
            command: Command::new("/nowhere/nothing"),
        };
        let mut ended = Vec::new();
        run((0..9).map(job).chain([missing]).collect(), |done| {
            ended.push((done.name, done.output, done.succeeded));
        });
        ended.sort();
        assert_eq!(ended.len(), 10);
        for (at, (name, output, succeeded)) in ended[..9].iter().enumerate() {
            assert_eq!((name, output), (&at.to_string(), &format!("{at}\n")));
            assert_eq!(*succeeded, at % 2 == 0);
        }
        assert!(!ended[9].2 && ended[9].1.starts_with("cannot be run"));
    }
}
