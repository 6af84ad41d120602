//! The folder of a run's checkpoints.

use super::error::CheckpointError;
use super::manifest::{FileEntry, MANIFEST, Manifest, TensorEntry};
use super::part::{WrittenPart, part_name};
use super::reader::{Checkpoint, read_manifest};
use partita_files::{sync_folder, write_whole};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const PARTIAL: &str = ".partial";

/// A folder that holds checkpoints, each in a folder of its own.
#[derive(Clone, Debug)]
pub struct CheckpointFolder {
    path: PathBuf,
}

/// A whole checkpoint of a folder.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its folder.
    pub path: PathBuf,
    /// Its serial number.
    pub serial: u64,
    /// The caller's part of its manifest.
    pub training: Value,
}

impl CheckpointFolder {
    /// The folder at a path, which may not exist yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All whole checkpoints, the oldest first.
    ///
    /// Errors: a manifest that is damaged or of a newer version; `Unreadable`.
    pub fn list(&self) -> Result<Vec<Found>, CheckpointError> {
        let mut all = Vec::new();
        for path in self.folders()? {
            if is_whole(&path) {
                all.push(read(path)?);
            }
        }
        all.sort_by_key(|found| found.serial);
        Ok(all)
    }

    /// As [`list`](Self::list), without checkpoints whose manifests cannot be read.
    pub fn readable(&self) -> Vec<Found> {
        let folders = self.folders().unwrap_or_default().into_iter();
        let whole = folders.filter(|path| is_whole(path));
        let mut all: Vec<Found> = whole.filter_map(|path| read(path).ok()).collect();
        all.sort_by_key(|found| found.serial);
        all
    }

    /// The checkpoint to use in place of a damaged one: the next older one, else the next newer one, of those whose files
    /// all have their checksums.
    pub fn instead_of(checkpoint: &Path) -> Option<PathBuf> {
        let folder = Self::new(checkpoint.parent()?);
        let name = |path: &Path| path.file_name().map(std::ffi::OsStr::to_owned);
        let damaged = name(checkpoint);
        // Their names have the order of their steps.
        let mut others: Vec<PathBuf> = folder.readable().into_iter().map(|it| it.path).collect();
        others.sort_by_key(|path| name(path));
        let (mut older, newer): (Vec<PathBuf>, Vec<PathBuf>) =
            others.into_iter().partition(|path| name(path) < damaged);
        older.reverse();
        let newer = newer.into_iter().filter(|path| name(path) != damaged);
        let is_sound = |path: &PathBuf| Checkpoint::open(path).is_ok_and(|it| it.verify().is_ok());
        older.into_iter().chain(newer).find(is_sound)
    }

    /// Whether there is a whole checkpoint, damaged or not.
    pub fn has_any(&self) -> bool {
        let folders = self.folders().unwrap_or_default();
        folders.iter().any(|path| is_whole(path))
    }

    /// Removes what killed processes left. Only for whoever has the folder alone.
    pub fn remove_leftovers(&self) {
        let folders = self.folders().unwrap_or_default();
        for path in folders.iter().filter(|path| is_partial(path)) {
            // What cannot be removed takes room and nothing else.
            let _ = fs::remove_dir_all(path);
        }
    }

    /// Makes the folder, in a folder that exists.
    ///
    /// Errors: `Unwritable`.
    pub fn make(&self) -> Result<(), CheckpointError> {
        make(&self.path)
    }

    /// The folder into which ranks write their parts of a checkpoint; made by the first of them.
    ///
    /// Errors: `Unwritable`, also where the folder of the checkpoints is gone.
    pub fn begin(&self, name: &str, serial: u64) -> Result<PathBuf, CheckpointError> {
        let path = self.partial(name, serial);
        make(&path)?;
        Ok(path)
    }

    /// Makes a checkpoint whole, once all `ranks` have written their parts: writes the manifest and puts the folder in
    /// its place. A checkpoint of the same name is replaced.
    ///
    /// Errors: `Unwritable`, `Unreadable`; `MissingFile` for a part that is not there.
    pub fn complete(
        &self,
        name: &str,
        serial: u64,
        training: Value,
        ranks: &[usize],
    ) -> Result<PathBuf, CheckpointError> {
        let partial = self.partial(name, serial);
        let (tensors, files) = merge(&partial, ranks)?;
        let manifest = Manifest::new(serial, training, tensors, files);
        let file = partial.join(MANIFEST);
        write_whole(&file, manifest.to_text().as_bytes())
            .map_err(|error| CheckpointError::unwritable(&file, &error))?;
        let path = self.path.join(name);
        let placed = self.place(&partial, &path, ranks);
        placed.map_err(|error| CheckpointError::unwritable(&path, &error))?;
        Ok(path)
    }

    fn place(&self, partial: &Path, path: &Path, ranks: &[usize]) -> io::Result<()> {
        for &rank in ranks {
            fs::remove_file(partial.join(part_name(rank)))?;
        }
        sync_folder(partial)?;
        if path.exists() {
            self.remove(path)?;
        }
        fs::rename(partial, path)?;
        sync_folder(&self.path)
    }

    /// Removes what was written of a checkpoint that will not become whole.
    pub fn abandon(&self, name: &str, serial: u64) {
        // What cannot be removed now goes at the next start.
        let _ = fs::remove_dir_all(self.partial(name, serial));
    }

    /// Removes a checkpoint. A kill leaves it whole, or as a leftover.
    pub fn remove(&self, checkpoint: &Path) -> io::Result<()> {
        let mut name = checkpoint.file_name().unwrap_or_default().to_os_string();
        name.push(format!(".removed{PARTIAL}"));
        let gone = checkpoint.with_file_name(name);
        if gone.exists() {
            fs::remove_dir_all(&gone)?;
        }
        fs::rename(checkpoint, &gone)?;
        sync_folder(&self.path)?;
        fs::remove_dir_all(gone)
    }

    fn partial(&self, name: &str, serial: u64) -> PathBuf {
        self.path.join(format!("{name}.{serial}{PARTIAL}"))
    }

    /// The folders in it; none where it does not exist.
    fn folders(&self) -> Result<Vec<PathBuf>, CheckpointError> {
        let failed = |error: io::Error| CheckpointError::unreadable(&self.path, &error);
        let entries = match fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut all = Vec::new();
        for entry in entries {
            let path = entry.map_err(failed)?.path();
            if path.is_dir() {
                all.push(path);
            }
        }
        all.sort();
        Ok(all)
    }
}

fn make(path: &Path) -> Result<(), CheckpointError> {
    match fs::create_dir(path) {
        Err(error) if !path.is_dir() => Err(CheckpointError::unwritable(path, &error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn read(path: PathBuf) -> Result<Found, CheckpointError> {
    let manifest = read_manifest(&path)?;
    Ok(Found {
        path,
        serial: manifest.serial,
        training: manifest.training,
    })
}

fn is_whole(path: &Path) -> bool {
    !is_partial(path) && path.join(MANIFEST).exists()
}

fn is_partial(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == &PARTIAL[1..])
}

/// Tensors and files of all parts.
fn merge(
    partial: &Path,
    ranks: &[usize],
) -> Result<(Vec<TensorEntry>, Vec<FileEntry>), CheckpointError> {
    let mut tensors: BTreeMap<String, TensorEntry> = BTreeMap::new();
    let mut files = Vec::new();
    for (file, &rank) in ranks.iter().enumerate() {
        let part = WrittenPart::read(partial, rank)?;
        let part = part.ok_or_else(|| CheckpointError::MissingFile {
            path: partial.join(part_name(rank)),
            rank,
        })?;
        files.push(part.file);
        for mut tensor in part.shards {
            tensor.shards.iter_mut().for_each(|shard| shard.file = file);
            match tensors.get_mut(&tensor.name) {
                Some(known) => known.shards.append(&mut tensor.shards),
                None => {
                    tensors.insert(tensor.name.clone(), tensor);
                }
            }
        }
    }
    let mut tensors: Vec<TensorEntry> = tensors.into_values().collect();
    tensors.sort_by_key(|tensor| tensor.kind);
    Ok((tensors, files))
}
