//! The output folder of a run: checked before the start, locked while the run trains, and written so that
//! files of two runs are never mixed.

use super::checkpoint;
use super::error::OutputError;
use super::metrics::METRICS_FILES;
use super::run::Run;
use crate::weights::BEST_FILE;
use partita_files::{
    FolderLock, NewFile, file_bytes_max, free_bytes, parent, remove_temporaries, sync_folder,
};
use partita_graph::Graph;
use partita_session::{PersistentTensor, Session};
use partita_site::{Environment, free_folder};
use partita_space::Bytes;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The trace.
pub const TRACE: &str = "trace.json";
/// The weights: parameters and running statistics.
pub const WEIGHTS: &str = "weights.safetensors";
/// The result.
pub const RESULT: &str = "result.json";
/// The prediction.
pub const PREDICTION: &str = "prediction.json";
/// The lock file, locked while a run trains and writes.
const LOCK: &str = "train.lock";

const FILES: [&str; 5] = [RESULT, WEIGHTS, TRACE, PREDICTION, BEST_FILE];
/// Files that only a new training can replace.
const FILES_OF_A_RUN: [&str; 3] = [RESULT, WEIGHTS, TRACE];
/// Files that describe the weights.
const FILES_ABOUT_WEIGHTS: [&str; 3] = [RESULT, TRACE, PREDICTION];

/// Most bytes of an event in a trace.
const EVENT_BYTES: u64 = 256;
/// Most bytes of a task in a result.
const TASK_BYTES: u64 = 256;
/// Bytes of everything that does not depend on the program.
const REST_BYTES: u64 = 1 << 18;

/// Size of the files of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunSize {
    weights: Bytes,
    /// Trace, result and prediction.
    records: Bytes,
    /// All checkpoints that are on the disk at once.
    checkpoints: Bytes,
    /// The weights of the best epoch, and those that replace them.
    best: Bytes,
}

impl RunSize {
    /// The part that is known without a program.
    pub fn of_model(graph: &Graph, run: &Run) -> Self {
        let elements: usize = graph.stored_parameters().map(|one| one.volume()).sum();
        Self {
            weights: Bytes((elements * run.precision.dtype().arithmetic().size()) as u64),
            records: Bytes(REST_BYTES),
            checkpoints: Bytes(0),
            best: Bytes(0),
        }
    }

    /// Of a run with the traces of `traces` steps and a prediction of `prediction` bytes.
    pub fn of_session(
        session: &Session<'_>,
        traces: usize,
        prediction: usize,
        checkpoints: u64,
    ) -> Self {
        let program = session.main_program();
        let bytes = |tensor: PersistentTensor| {
            (tensor.dims.iter().product::<usize>() * tensor.dtype.size()) as u64
        };
        let ranks = 0..program.mesh.ranks();
        let tasks = |rank| program.body(rank).tasks.len() as u64;
        let events: u64 = ranks.map(tasks).sum::<u64>() * traces as u64;
        let bodies: u64 = program
            .bodies
            .iter()
            .map(|body| body.tasks.len() as u64)
            .sum();
        // The trace contains the program text with escaped line breaks.
        let texts = (2 * program.to_text().len() + prediction) as u64;
        Self {
            weights: Bytes(session.persistent_tensors().into_iter().map(bytes).sum()),
            records: Bytes(events * EVENT_BYTES + bodies * TASK_BYTES + texts + REST_BYTES),
            checkpoints: Bytes(
                (0..program.mesh.ranks())
                    .map(|rank| checkpoint::snapshot_bytes(session, rank).0)
                    .sum::<u64>()
                    .saturating_mul(checkpoints),
            ),
            best: Bytes(0),
        }
    }

    /// The same with a file of the weights of the best epoch.
    pub fn with_best(self) -> Self {
        Self {
            best: Bytes(2 * self.weights.0),
            ..self
        }
    }

    fn all(self) -> Bytes {
        Bytes(self.weights.0 + self.records.0 + self.checkpoints.0 + self.best.0)
    }
}

/// Checks that the files of a run can be written, without leaving files.
///
/// Errors: an obstacle at the path of the folder or of a file, a run that would be overwritten, another run that
/// uses the folder, no write permission, too little space.
pub fn check(run: &Run, size: RunSize, environment: &Environment) -> Result<(), OutputError> {
    let path = run.output_folder();
    let refusal = |found: &str| refusal(path, found, environment);
    if !path.is_dir() && fs::symlink_metadata(path).is_ok() {
        let found = if path.exists() {
            "is a file"
        } else {
            "is a link to nothing"
        };
        return Err(refusal(&format!("{found}, and results need a folder")));
    }
    let folder = free_folder::existing(path);
    if !folder.is_dir() {
        let found = format!("cannot be made, as {} is a file", folder.display());
        return Err(refusal(&found));
    }
    if folder == path {
        check_contents(run, environment)?;
        if let Some(process) = FolderLock::holder(path, LOCK) {
            return Err(in_use(path, Some(process), environment));
        }
    }
    // Permissions, quotas and read-only file systems are found only by trying.
    NewFile::create(&folder.join(RESULT))
        .map_err(|error| refusal(&format!("cannot be written to: {error}")))?;
    check_free_space(path, folder, size)
}

/// Checks that no path of a file is blocked, and that no run is overwritten without permission.
fn check_contents(run: &Run, environment: &Environment) -> Result<(), OutputError> {
    let path = run.output_folder();
    let at = |name: &str| fs::symlink_metadata(path.join(name)).ok();
    if let Some(name) = FILES
        .iter()
        .chain(&METRICS_FILES)
        .find(|name| at(name).is_some_and(|it| it.is_dir()))
    {
        let found = format!("holds a folder `{name}`, where the run writes a file");
        return Err(refusal(path, &found, environment));
    }
    let mut found = files_of_a_run(path);
    // A run that ended before its first checkpoint leaves metrics.
    let counts = |name: &&str| !run.begins_anew && at(name).is_some();
    found.extend(METRICS_FILES.into_iter().chain([BEST_FILE]).filter(counts));
    let checkpoints = checkpoint::folder(run);
    if checkpoints.has_any() {
        found.push(checkpoint::CHECKPOINTS);
    }
    if found.is_empty() || run.overwrite || run.is_resumed {
        return Ok(());
    }
    Err(OutputError::HoldsRun {
        output: path.to_owned(),
        files: found,
        nearest: free_folder::beside(path, environment),
    })
}

fn files_of_a_run(path: &Path) -> Vec<&'static str> {
    let is_there = |name: &&str| fs::symlink_metadata(path.join(name)).is_ok();
    FILES_OF_A_RUN.into_iter().filter(is_there).collect()
}

fn check_free_space(path: &Path, folder: &Path, size: RunSize) -> Result<(), OutputError> {
    let checkpoints = match size.checkpoints {
        Bytes(0) => String::new(),
        bytes => format!(", {bytes} of checkpoints"),
    };
    let files = format!(
        "the files of the run take about {} ({} of weights{checkpoints})",
        size.all(),
        size.weights
    );
    let largest = size.weights.max(size.records);
    if let Some(limit) = file_bytes_max().filter(|&limit| limit < largest.0) {
        return Err(OutputError::FileLimit {
            files,
            limit: Bytes(limit),
            largest,
        });
    }
    // If the free space is unknown, the end of the run will tell.
    let free = free_bytes(folder).ok().flatten();
    match free.filter(|&free| free < size.all().0) {
        None => Ok(()),
        Some(free) => Err(OutputError::NoRoom {
            output: path.to_owned(),
            free: Bytes(free),
            files,
        }),
    }
}

fn refusal(path: &Path, found: &str, environment: &Environment) -> OutputError {
    OutputError::Unsuited {
        output: path.to_owned(),
        found: found.to_owned(),
        nearest: free_folder::beside(path, environment),
    }
}

fn in_use(path: &Path, process: Option<String>, environment: &Environment) -> OutputError {
    OutputError::InUse {
        output: path.to_owned(),
        process,
        nearest: free_folder::beside(path, environment),
    }
}

/// The output folder, locked by this run. A failed run leaves it unchanged.
pub struct Output {
    path: PathBuf,
    /// Folders that this run created, the outermost first.
    made: Vec<PathBuf>,
    /// Whether files of a run in the folder may be replaced.
    overwrite: bool,
    /// Whether the weights of the best epoch are of this run.
    has_best: bool,
    /// `None` on a file system without locks.
    lock: Option<FolderLock>,
    /// The prediction, written before the run, and moved to its path after the weights.
    prediction: Option<NewFile>,
}

impl Output {
    /// Creates the folder if needed, and locks it.
    ///
    /// Errors: those of [`check`], which runs again; a prediction that cannot be written.
    pub fn open(
        run: &Run,
        size: RunSize,
        prediction: Option<&str>,
        environment: &Environment,
    ) -> Result<Self, OutputError> {
        let path = run.output_folder();
        check(run, size, environment)?;
        let mut output = Self {
            path: path.to_owned(),
            made: Vec::new(),
            overwrite: run.overwrite || run.is_resumed,
            has_best: run.checkpoint.best.is_some() || run.is_resumed,
            lock: None,
            prediction: None,
        };
        output.make_folders()?;
        output.take_lock(environment)?;
        // Another run may have finished meanwhile.
        check_contents(run, environment)?;
        if output.lock.is_some() {
            output.remove_temporaries();
            checkpoint::folder(run).remove_leftovers();
        }
        if let Some(text) = prediction {
            let write = || {
                let mut file = NewFile::create(&path.join(PREDICTION))?;
                file.write_all(text.as_bytes())?;
                file.sync()?;
                Ok(file)
            };
            let written: io::Result<NewFile> = write();
            output.prediction = Some(written.map_err(|source| OutputError::Prediction {
                file: path.join(PREDICTION),
                source,
            })?);
        }
        Ok(output)
    }

    fn make_folders(&mut self) -> Result<(), OutputError> {
        let missing = self.path.ancestors().take_while(|folder| !folder.exists());
        let missing = missing.filter(|folder| !folder.as_os_str().is_empty());
        let missing: Vec<PathBuf> = missing.map(Path::to_owned).collect();
        for folder in missing.into_iter().rev() {
            match fs::create_dir(&folder) {
                Ok(()) => self.made.push(folder),
                // Created by another run at the same time, or under another name, as `new/..` is the current one.
                Err(_) if folder.is_dir() => {}
                Err(source) => return Err(OutputError::Folder { folder, source }),
            }
        }
        Ok(())
    }

    fn take_lock(&mut self, environment: &Environment) -> Result<(), OutputError> {
        match FolderLock::take(&self.path, LOCK) {
            Ok(Some(lock)) => {
                self.lock = Some(lock);
                Ok(())
            }
            Ok(None) => {
                // The lock decides who owns the folder.
                self.made.clear();
                let process = FolderLock::holder(&self.path, LOCK);
                Err(in_use(&self.path, process, environment))
            }
            Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(()),
            Err(error) => {
                let found = format!("cannot be locked: {error}");
                Err(refusal(&self.path, &found, environment))
            }
        }
    }

    /// Removes files of runs that were killed while they wrote; the lock excludes others.
    fn remove_temporaries(&self) {
        for file in FILES {
            remove_temporaries(&self.path, file);
        }
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the folder was removed, renamed or replaced since it was locked.
    pub fn is_gone(&self) -> bool {
        match &self.lock {
            Some(lock) => !lock.is_in_place(),
            None => !self.path.is_dir(),
        }
    }

    /// Moves the weights to their path. Files that describe earlier weights are removed first, so that files of two
    /// runs are never mixed.
    ///
    /// Errors: files of another run that appeared meanwhile and may not be replaced; those of the system.
    pub fn place_weights(&mut self, weights: NewFile) -> io::Result<()> {
        let found = files_of_a_run(&self.path);
        if !found.is_empty() && !self.overwrite {
            let found = found.join(", ");
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                format!("files of another run came there while this one trained: {found}"),
            ));
        }
        let of_another_run = (!self.has_best).then_some(BEST_FILE);
        for name in FILES_ABOUT_WEIGHTS.into_iter().chain(of_another_run) {
            match fs::remove_file(self.path.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        sync_folder(&self.path)?;
        weights.place()?;
        self.made.clear();
        Ok(())
    }

    /// Moves the prediction to its path.
    pub fn place_prediction(&mut self) -> io::Result<()> {
        self.prediction.take().map_or(Ok(()), NewFile::place)
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        let is_gone = self.lock.is_some() && self.is_gone();
        self.prediction = None;
        self.lock = None;
        if !is_gone {
            // A folder that is not empty is kept, and so are its parents. The error of the run is reported instead.
            let mut made = self.made.iter().rev();
            let _ = made.all(|folder| fs::remove_dir(folder).is_ok());
        }
    }
}

/// New folders to try if the output folder cannot be written: beside it, in the home folder, among temporary
/// files, and finally in memory.
pub fn rescue_folders(output: &Path, environment: &Environment) -> Vec<PathBuf> {
    let output = std::path::absolute(output).unwrap_or_else(|_| output.to_owned());
    let name = output.file_name().unwrap_or_default().to_string_lossy();
    let name = format!("{name}-rescued-{}", std::process::id());
    let mut folders = vec![parent(&output).to_owned()];
    folders.extend(environment.home.clone());
    folders.push(environment.temporary.clone());
    folders.push(PathBuf::from("/dev/shm"));
    folders.retain(|folder| folder.is_dir());
    folders.dedup();
    folders.into_iter().map(|it| it.join(&name)).collect()
}
