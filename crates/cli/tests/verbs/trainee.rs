//! A small training in a process of its own, to which things happen.

use crate::command::{listening, partita};
use partita_data::{DatasetSpec, DatasetWriter, Kind, Split};
use partita_formats::{DType, Layout, Samples};
use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use tempfile::TempDir;

const MODEL: &str = "model tiny
input x channels=1 extent=8x8x8
c1 = conv x filters=32 kernel=5 pad=2 bias=true
a1 = relu c1
f = flatten a1
fc = linear f features=2 bias=true
loss = mse fc
";

/// A folder with a model, a dataset and run files.
pub struct Case {
    folder: TempDir,
}

impl Case {
    pub fn new() -> Self {
        let case = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        fs::write(case.path("tiny.model"), MODEL).unwrap();
        write_dataset(&case.path("set"), 8);
        case
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a run file and gives its path; paths are as seen from the folder.
    pub fn run_file(&self, name: &str, epochs: usize, more: &str) -> PathBuf {
        let text = format!(
            "model = \"tiny.model\"\ndata = \"set\"\noutput = \"out\"\nbatch = 2\nepochs = {epochs}\n\
             strategy = \"data=1\"\n{more}\n[schedule]\nlearning_rate = 1e-4\n"
        );
        fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    /// `partita train` on a run file, in the folder.
    pub fn command(&self, name: &str) -> Command {
        let mut command = partita(&["train", name, "--no-prediction"]);
        command
            .current_dir(self.folder())
            .env("HOME", self.path("home"));
        command
    }

    /// Files in the output folder.
    pub fn files(&self) -> Vec<String> {
        names(&self.path("out"))
    }
}

pub fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// A dataset with some training samples and two for validation.
pub fn write_dataset(path: &Path, training: u64) {
    let spec = DatasetSpec {
        kind: Kind::Cosmology,
        shape: [1, 8, 8, 8],
        dtype: DType::Float32,
        targets: vec!["sum".to_owned(), "difference".to_owned()],
        labels: None,
        layout: Layout::Contiguous,
        train: (0..training).collect(),
        validation: (training..training + 2).collect(),
        test: Vec::new(),
        spec: toml::Table::new(),
    };
    let mut writer = DatasetWriter::create(path, &spec).unwrap();
    for split in [Split::Train, Split::Validation] {
        while let Some(universe) = writer.next_universe(split) {
            let level = universe as f32 / 10.0;
            let voxels = (0..512).map(|i| level + (i % 7) as f32 / 20.0);
            let unit = [level, 1.0 - level];
            let voxels = Samples::F32(voxels.collect());
            writer.append(split, &voxels, &unit, &unit).unwrap();
        }
    }
    writer.finish().unwrap();
}

/// A process that trains.
pub struct Trainee {
    child: Child,
    lines: Lines<BufReader<ChildStderr>>,
    said: Vec<String>,
}

impl Trainee {
    /// Starts a command and waits until it has come to its second epoch.
    pub fn start(command: &mut Command) -> Self {
        Self::started(command, "epoch 2/")
    }

    /// The same, until it has written a line that starts so.
    pub fn started(command: &mut Command, line: &str) -> Self {
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mut child = child.unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let said = Vec::new();
        let mut trainee = Self { child, lines, said };
        trainee.read_until(line);
        trainee
    }

    /// The same for a shell script, `$0` of which is the binary.
    pub fn of_shell(case: &Case, script: &str) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", script, env!("CARGO_BIN_EXE_partita")]);
        command
            .current_dir(case.folder())
            .env("HOME", case.path("home"));
        listening(&mut command);
        Self::start(&mut command)
    }

    fn read_until(&mut self, start: &str) {
        for line in self.lines.by_ref() {
            self.said.push(line.unwrap());
            if self.said.last().is_some_and(|line| line.starts_with(start)) {
                return;
            }
        }
        panic!("it ended before it came to `{start}`: {:#?}", self.said);
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, name: &str) {
        let id = self.id().to_string();
        let sent = Command::new("kill")
            .args([&format!("-{name}"), &id])
            .status();
        assert!(sent.unwrap().success());
    }

    /// Stops the process, so that it cannot end before what is done to it.
    pub fn while_stopped(&self, work: impl FnOnce()) {
        self.signal("STOP");
        work();
        self.signal("CONT");
    }

    /// How it ended, and all that it said.
    pub fn end(mut self) -> (ExitStatus, String) {
        let rest = self.lines.by_ref().map(Result::unwrap);
        self.said.extend(rest);
        (self.child.wait().unwrap(), self.said.join("\n"))
    }
}
