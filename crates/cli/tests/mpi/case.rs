//! A small training started by a launcher.

use crate::launchers::Launcher;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longer than any of the jobs, of which a calibration of four ranks on two cores takes 70 seconds.
const LIMIT: Duration = Duration::from_secs(240);

pub const PARTITA: &str = env!("CARGO_BIN_EXE_partita");

const MODEL: &str = "model tiny
input x channels=4 extent=16x16x16
c1 = conv x filters=8 kernel=3 pad=1 bias=true
n1 = batch_norm c1 epsilon=1e-5 momentum=0.1
a1 = leaky_relu n1 slope=0.1
p1 = max_pool a1 kernel=2 stride=2
c2 = conv p1 filters=8 kernel=3 pad=1 bias=true
a2 = relu c2
p2 = average_pool a2 kernel=2 stride=2 count_padding=false
f = flatten p2
l = linear f features=4 bias=true
loss = mse l
";

/// A folder with a model, universes, and a run file.
pub struct Case {
    folder: TempDir,
}

/// Jobs run one at a time, because their watchdogs are short.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Case {
    pub fn new(epochs: usize, watchdog: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let case = Self { folder };
        fs::write(case.path("tiny.model"), MODEL).unwrap();
        // Paths are as seen from the folder, so that what is written does not depend on its name.
        let run = format!(
            "model = \"tiny.model\"\ndata = \"universes\"\noutput = \"out\"\nstrategy = \"data=1\"\n\
             batch = 8\nepochs = {epochs}\nseed = 1\nwatchdog = \"{watchdog}\"\ntransform = \"log1p\"\n\
             [schedule]\nkind = \"constant\"\nlearning_rate = 1e-3\n"
        );
        fs::write(case.path("run.toml"), run).unwrap();
        let data = Command::new(PARTITA)
            .args([
                "data",
                "cosmology",
                "--universes",
                "20",
                "--grid",
                "16",
                "--out",
            ])
            .arg(case.path("universes"))
            .output()
            .unwrap();
        assert!(data.status.success(), "{data:?}");
        case
    }

    /// Adds a line to the run file.
    pub fn set(&self, line: &str) {
        let text = fs::read_to_string(self.path("run.toml")).unwrap();
        fs::write(self.path("run.toml"), format!("{line}\n{text}")).unwrap();
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Trains as processes.
    pub fn processes(
        &self,
        launcher: &Launcher,
        ranks: usize,
        strategy: &str,
        more: &[&str],
    ) -> Trained {
        let mut command = launcher.command(ranks);
        command.args([PARTITA, "train", "run.toml", "--strategy", strategy]);
        // Measuring messages among many processes on few cores takes longer than to train.
        command.args(["--json", "--no-prediction"]).args(more);
        self.trained(command)
    }

    /// What a command that trains leaves behind.
    pub fn trained(&self, mut command: Command) -> Trained {
        // What a training measures first takes longer than to train; once is enough.
        let measured = concat!(env!("CARGO_TARGET_TMPDIR"), "/mpi-cache");
        command.env("XDG_CACHE_HOME", measured);
        let output = run(command.current_dir(self.folder.path()));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{command:?}: {}: {errors}",
            output.status
        );
        let result: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{command:?} prints one result: {error}"));
        let metrics = self.path("out/metrics.jsonl");
        if metrics.exists() {
            check_metrics(&metrics, &result);
        }
        let trained = Trained {
            digest: result["digest"].as_str().unwrap().to_owned(),
            losses: losses(&result),
            loads: loads(&result),
            weights: fs::read(self.path("out/weights.safetensors")).unwrap(),
            ranks_traced: ranks_traced(&self.path("out/trace.json")),
        };
        fs::remove_dir_all(self.path("out")).unwrap();
        trained
    }
}

/// What ranks that are threads give for two epochs, trained once for all tests.
pub fn threads(ranks: usize, strategy: &'static str) -> Trained {
    static KNOWN: Mutex<BTreeMap<(usize, &str), Trained>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let train = || {
        let mut command = Command::new(PARTITA);
        command.args(["train", "run.toml", "--strategy", strategy, "--json"]);
        command.args(["--ranks", &ranks.to_string(), "--no-prediction"]);
        Case::new(2, "60 s").trained(command)
    };
    known.entry((ranks, strategy)).or_insert_with(train).clone()
}

/// Results of a training.
#[derive(Clone, PartialEq)]
pub struct Trained {
    pub digest: String,
    pub losses: Vec<f64>,
    /// Bytes that each epoch reads from files and receives from other ranks.
    pub loads: Vec<[u64; 2]>,
    pub weights: Vec<u8>,
    pub ranks_traced: usize,
}

/// The metrics file of a run tells of each epoch what its result tells, of all ranks.
fn check_metrics(file: &Path, result: &Value) {
    let text = fs::read_to_string(file).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let told: Vec<Value> = lines
        .filter(|line: &Value| line["kind"] == "epoch")
        .collect();
    let expected = result["epochs"].as_array().unwrap();
    assert_eq!(told.len(), expected.len());
    for (told, expected) in told.iter().zip(expected) {
        for key in ["read", "memory", "spill", "sent", "received"] {
            let key = format!("{key}_bytes");
            assert_eq!(told[&key], expected[&key], "{key}");
        }
        assert_eq!(expected["sent_bytes"], expected["received_bytes"], "in sum");
    }
}

fn losses(result: &Value) -> Vec<f64> {
    let epochs = result["epochs"].as_array().unwrap();
    let pair = |epoch: &Value| [&epoch["training_loss"], &epoch["validation"]["loss"]].map(as_f64);
    epochs.iter().flat_map(pair).collect()
}

fn loads(result: &Value) -> Vec<[u64; 2]> {
    let epochs = result["epochs"].as_array().unwrap();
    let pair = |epoch: &Value| [&epoch["read_bytes"], &epoch["received_bytes"]].map(Value::as_u64);
    let loads = epochs.iter().map(pair);
    loads
        .map(|pair| pair.map(Option::unwrap_or_default))
        .collect()
}

fn as_f64(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

fn ranks_traced(path: &Path) -> usize {
    let trace: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let ranks = events.iter().filter_map(|event| event["pid"].as_u64());
    // A run of a few steps has no traces.
    ranks.max().map_or(0, |last| last as usize + 1)
}

/// Runs a command with a time limit.
pub fn run(command: &mut Command) -> Output {
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let pid = child.id();
    let (done, watched) = std::sync::mpsc::channel::<()>();
    let watch = std::thread::spawn(move || {
        if watched.recv_timeout(LIMIT) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            signal("KILL", pid);
        }
    });
    let output = child.wait_with_output().unwrap();
    drop(done);
    watch.join().unwrap();
    output
}

/// Waits for a process.
pub fn wait(child: &mut Child, limit: Duration) -> Option<std::process::ExitStatus> {
    let start = Instant::now();
    while start.elapsed() < limit {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    None
}

pub fn signal(name: &str, pid: u32) {
    // It may have ended by itself.
    let _ = Command::new("kill")
        .args([&format!("-{name}"), &pid.to_string()])
        .stderr(Stdio::null())
        .status();
}
