//! A dataset: a folder with an index, or a single HDF5 file.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::DataError;
use crate::hdf5::{SourceArray, SourceFile};
use crate::index::{INDEX_FILE, Index, Kind};
use crate::reader::Reader;
use crate::samples::{DType, VolumeShape};

/// Key of the volumes, (C, D, H, W) or (N, C, D, H, W).
pub(crate) const VOLUME_KEY: &str = "full";
/// Key of the targets, normalized to [-1, 1].
pub(crate) const TARGET_KEY: &str = "unitPar";
/// Key of the targets in physical units; may be absent.
pub(crate) const PHYSICAL_KEY: &str = "physPar";

/// Key of class numbers in place of targets, (1, D, H, W) or (N, 1, D, H, W), int16, D = H = W = 1
/// where a sample has one class.
pub(crate) const LABEL_KEY: &str = "labels";

/// Longest target vector accepted where no index says its length.
const TARGETS_MAX: usize = 4096;

/// Part of a dataset; no universe is in two of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Split {
    /// Samples whose gradients are taken.
    Train,
    /// Samples by which training is steered.
    Validation,
    /// Samples seen once, at the end.
    Test,
}

impl Split {
    /// All splits, in the order of the index file.
    pub const ALL: [Split; 3] = [Split::Train, Split::Validation, Split::Test];

    /// Name in the index file and of the split's HDF5 file.
    pub fn name(self) -> &'static str {
        match self {
            Split::Train => "train",
            Split::Validation => "validation",
            Split::Test => "test",
        }
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where the samples of a split lie.
#[derive(Clone, Debug)]
pub(crate) enum Files {
    /// Arrays with a leading dim N in one file.
    Stacked { path: PathBuf, samples: usize },
    /// One file per sample.
    Single(Vec<PathBuf>),
}

impl Files {
    pub(crate) fn samples(&self) -> usize {
        match self {
            Files::Stacked { samples, .. } => *samples,
            Files::Single(paths) => paths.len(),
        }
    }

    pub(crate) fn paths(&self) -> &[PathBuf] {
        match self {
            Files::Stacked { path, .. } => std::slice::from_ref(path),
            Files::Single(paths) => paths,
        }
    }

    /// File of a sample, and its place in it where the file is stacked.
    pub(crate) fn locate(&self, sample: usize) -> (&Path, Option<usize>) {
        match self {
            Files::Stacked { path, .. } => (path, Some(sample)),
            Files::Single(paths) => (&paths[sample], None),
        }
    }
}

/// A dataset that was found whole: every file is there and the first of each split was checked.
///
/// Cheap to clone; holds no open file.
#[derive(Clone, Debug)]
pub struct Dataset {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) path: PathBuf,
    pub(crate) kind: Option<Kind>,
    pub(crate) shape: VolumeShape,
    pub(crate) dtype: DType,
    pub(crate) targets: Vec<String>,
    pub(crate) labels: Option<[usize; 3]>,
    pub(crate) splits: [Files; 3],
    pub(crate) universes: [Vec<u64>; 3],
    pub(crate) spec: toml::Table,
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

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// What it is about; `None` for a single HDF5 file, which does not say.
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

    /// Extents D, H, W of the class numbers of a sample: its own, or 1, 1, 1; `None` where targets
    /// are vectors of numbers.
    pub fn labels(&self) -> Option<[usize; 3]> {
        self.inner.labels
    }

    /// Universe of each sample of a split; empty for a single HDF5 file, which does not say.
    pub fn universes(&self, split: Split) -> &[u64] {
        &self.inner.universes[split as usize]
    }

    /// What the maker was asked for, as it wrote it; empty if it did not.
    pub fn spec(&self) -> &toml::Table {
        &self.inner.spec
    }

    /// A reader of one split. Every rank makes its own; readers share nothing that locks.
    pub fn reader(&self, split: Split) -> Reader {
        Reader::new(Arc::clone(&self.inner), split)
    }

    pub(crate) fn files(&self, split: Split) -> &Files {
        &self.inner.splits[split as usize]
    }
}

impl Inner {
    /// Opens the volume array of a file and checks it against the dataset.
    pub(crate) fn volumes(
        &self,
        file: &SourceFile,
        samples: Option<usize>,
    ) -> Result<SourceArray, DataError> {
        let array = file.array(VOLUME_KEY)?;
        if array.dtype()? != self.dtype {
            return Err(array.wrong_dtype(self.dtype.name()));
        }
        check_shape(array, samples, &self.shape, "C, D, H, W")
    }

    /// Opens a parameter array of a file and checks it against the dataset.
    pub(crate) fn parameters(
        &self,
        file: &SourceFile,
        key: &str,
        samples: Option<usize>,
    ) -> Result<SourceArray, DataError> {
        check_shape(file.array(key)?, samples, &[self.targets.len()], "targets")
    }
}

impl Inner {
    /// Opens the class numbers of a file, where the dataset has some, and checks them against it.
    pub(crate) fn label_array(
        &self,
        file: &SourceFile,
        samples: Option<usize>,
    ) -> Result<Option<SourceArray>, DataError> {
        let Some([d, h, w]) = self.labels else {
            return Ok(None);
        };
        let array = file.array(LABEL_KEY)?;
        if array.dtype()? != DType::Int16 {
            return Err(array.wrong_dtype(DType::Int16.name()));
        }
        check_shape(array, samples, &[1, d, h, w], "1, D, H, W").map(Some)
    }

    /// Opens the answers of a file, whichever kind they are, and checks them.
    fn check_answers(&self, file: &SourceFile, samples: Option<usize>) -> Result<(), DataError> {
        if self.label_array(file, samples)?.is_none() {
            self.parameters(file, TARGET_KEY, samples)?;
        }
        Ok(())
    }
}

fn check_shape(
    array: SourceArray,
    samples: Option<usize>,
    each: &[usize],
    dims: &str,
) -> Result<SourceArray, DataError> {
    let expected: Vec<usize> = samples.into_iter().chain(each.iter().copied()).collect();
    let dims = if samples.is_some() {
        format!("N, {dims}")
    } else {
        dims.to_string()
    };
    if array.shape.len() != expected.len() {
        return Err(array.wrong_rank(&format!("rank {} ({dims})", expected.len())));
    }
    if array.shape != expected {
        return Err(array.wrong_shape(format!("{expected:?} ({dims})")));
    }
    Ok(array)
}

fn open_folder(path: &Path) -> Result<Inner, DataError> {
    let index_path = path.join(INDEX_FILE);
    if !index_path.is_file() {
        return Err(DataError::Incomplete {
            path: path.to_path_buf(),
            found: format!("it has no `{INDEX_FILE}`, which a maker writes last"),
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
    inner.check_answers(&file, stacked)
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
    let (targets, labels) = answers_of(&file)?;
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
    inner.check_answers(&file, samples)?;
    Ok(inner)
}

/// Names of the targets of a file that comes without an index, and the extents of its class numbers
/// where it has these instead.
fn answers_of(file: &SourceFile) -> Result<(Vec<String>, Option<[usize; 3]>), DataError> {
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
