//! A dataset: a folder with an index, or a single HDF5 file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::DataError;
use crate::files::{Files, Inner};
use crate::hdf5::SourceFile;
use crate::index::{INDEX_FILE, Index, Kind};
use crate::keys::{LABEL_KEY, TARGET_KEY, VOLUME_KEY};
use crate::reader::Reader;
use crate::samples::{DType, VolumeShape};
use crate::split::Split;

/// Longest target vector accepted where no index says its length.
const TARGETS_MAX: usize = 4096;

/// A complete dataset: all files exist, and the first of each split was checked.
///
/// Cheap to clone; holds no open file.
#[derive(Clone, Debug)]
pub struct Dataset {
    inner: Arc<Inner>,
}

impl Dataset {
    /// Opens a dataset folder (with its `dataset.toml`) or a single HDF5 file.
    ///
    /// A single file is all train split: `full` of rank 5 is a stack of samples, of rank 4 one
    /// sample. Errors: `Missing`, `Incomplete`, `BadIndex`, and those of its files.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, DataError> {
        let path = path.as_ref();
        let inner = if path.is_dir() {
            open_folder(path)?
        } else {
            open_file(path)?
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Kind of dataset; `None` for a single HDF5 file.
    pub fn kind(&self) -> Option<Kind> {
        self.inner.kind
    }

    /// Number of samples of a split.
    pub fn samples(&self, split: Split) -> usize {
        self.inner.splits[split as usize].samples()
    }

    /// Shape of every sample, (C, D, H, W).
    pub fn shape(&self) -> VolumeShape {
        self.inner.shape
    }

    /// Element type of every volume.
    pub fn dtype(&self) -> DType {
        self.inner.dtype
    }

    /// Names of the targets; their number is the length of every target vector. Where
    /// [`labels`](Self::labels) are kept instead, the names of the classes, none if unknown.
    pub fn targets(&self) -> &[String] {
        &self.inner.targets
    }

    /// Extents D, H, W of the class indices of a sample: its own, or 1, 1, 1; `None` where targets
    /// are vectors of numbers.
    pub fn labels(&self) -> Option<[usize; 3]> {
        self.inner.labels
    }

    /// Universe of each sample of a split; empty for a single HDF5 file.
    pub fn universes(&self, split: Split) -> &[u64] {
        &self.inner.universes[split as usize]
    }

    /// Options with which the dataset was made; may be empty.
    pub fn spec(&self) -> &toml::Table {
        &self.inner.spec
    }

    /// A reader of one split. Every rank has its own; readers share no locks.
    pub fn reader(&self, split: Split) -> Reader {
        Reader::new(Arc::clone(&self.inner), split)
    }

    pub(crate) fn files(&self, split: Split) -> &Files {
        &self.inner.splits[split as usize]
    }
}

fn open_folder(path: &Path) -> Result<Inner, DataError> {
    let index_path = path.join(INDEX_FILE);
    if !index_path.is_file() {
        return Err(DataError::Incomplete {
            path: path.to_path_buf(),
            found: format!("it has no `{INDEX_FILE}`, which is written last"),
        });
    }
    let index = Index::read(&index_path)?;
    let inner = Inner {
        path: path.to_path_buf(),
        kind: Some(index.kind),
        shape: index.shape(),
        dtype: index.dtype,
        targets: index.targets.clone(),
        labels: index.labels,
        splits: Split::ALL.map(|split| files_of(path, &index, split)),
        universes: Split::ALL.map(|split| index.split(split).universes.clone()),
        spec: index.spec,
    };
    for files in &inner.splits {
        check_files(&inner, files)?;
    }
    Ok(inner)
}

fn files_of(path: &Path, index: &Index, split: Split) -> Files {
    let entry = index.split(split);
    match &entry.file {
        Some(file) => Files::Stacked {
            path: path.join(file),
            samples: entry.universes.len(),
        },
        None => Files::Single(
            entry
                .files
                .iter()
                .flatten()
                .map(|file| path.join(file))
                .collect(),
        ),
    }
}

/// All files must be there; the first is opened, the others when they are read.
fn check_files(inner: &Inner, files: &Files) -> Result<(), DataError> {
    let gone: Vec<&PathBuf> = files
        .paths()
        .iter()
        .filter(|path| !path.is_file())
        .collect();
    if let Some(first) = gone.first() {
        return Err(DataError::Incomplete {
            path: inner.path.clone(),
            found: format!(
                "{} of its files missing, first {}",
                gone.len(),
                first.display()
            ),
        });
    }
    let Some(first) = files.paths().first() else {
        return Ok(());
    };
    let file = SourceFile::open(first)?;
    let stacked = match files {
        Files::Stacked { samples, .. } => Some(*samples),
        Files::Single(_) => None,
    };
    if let Some(samples) = stacked {
        let found = file.array(VOLUME_KEY)?.shape.first().copied().unwrap_or(0);
        if found < samples {
            return Err(DataError::Incomplete {
                path: inner.path.clone(),
                found: format!("{} holds {found} of {samples} samples", first.display()),
            });
        }
    }
    inner.volumes(&file, stacked)?;
    inner.check_targets(&file, stacked)
}

fn open_file(path: &Path) -> Result<Inner, DataError> {
    if !path.exists() {
        return Err(DataError::Missing {
            path: path.to_path_buf(),
            valid: format!(
                "a dataset is a folder with a `{INDEX_FILE}` or a single HDF5 file (.h5)"
            ),
        });
    }
    let file = SourceFile::open(path)?;
    let volumes = file.array(VOLUME_KEY)?;
    let dtype = volumes.dtype()?;
    let (samples, shape) = match *volumes.shape.as_slice() {
        [c, d, h, w] => (None, [c, d, h, w]),
        [n, c, d, h, w] => (Some(n), [c, d, h, w]),
        _ => return Err(volumes.wrong_rank("rank 4 (C, D, H, W) or rank 5 (N, C, D, H, W)")),
    };
    if shape.contains(&0) {
        return Err(volumes.wrong_shape("extents of at least 1".to_string()));
    }
    let (targets, labels) = targets_of(&file)?;
    let train = match samples {
        Some(samples) => Files::Stacked {
            path: path.to_path_buf(),
            samples,
        },
        None => Files::Single(vec![path.to_path_buf()]),
    };
    let inner = Inner {
        path: path.to_path_buf(),
        kind: None,
        shape,
        dtype,
        targets,
        labels,
        splits: [train, Files::Single(Vec::new()), Files::Single(Vec::new())],
        universes: [Vec::new(), Vec::new(), Vec::new()],
        spec: toml::Table::new(),
    };
    inner.check_targets(&file, samples)?;
    Ok(inner)
}

/// Names of the targets of a file that comes without an index, and the extents of its class indices
/// where it has these instead.
fn targets_of(file: &SourceFile) -> Result<(Vec<String>, Option<[usize; 3]>), DataError> {
    if file.has(LABEL_KEY) {
        let array = file.array(LABEL_KEY)?;
        return match *array.shape.as_slice() {
            [.., 1, d, h, w] => Ok((Vec::new(), Some([d, h, w]))),
            _ => Err(array.wrong_rank("rank 4 (1, D, H, W) or rank 5 (N, 1, D, H, W)")),
        };
    }
    let parameters = file.array(TARGET_KEY)?;
    let count = parameters.shape.last().copied().unwrap_or(0);
    if !(1..=TARGETS_MAX).contains(&count) {
        return Err(parameters.wrong_shape(format!("1 to {TARGETS_MAX} targets in the last dim")));
    }
    let names = (0..count).map(|target| format!("target{target}")).collect();
    Ok((names, None))
}
