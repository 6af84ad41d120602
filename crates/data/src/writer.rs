//! Writing a dataset folder, all or nothing.

use std::fs;
use std::path::{Path, PathBuf};

use partita_files::{FolderLock, is_temporary, parent, sync_folder, write_whole};
use partita_space::Bytes;

use crate::classes::Classes;
use crate::dataset::Dataset;
use crate::error::DataError;
use crate::formats::hdf5::{TargetArray, TargetFile};
use crate::index::{FORMAT_VERSION, INDEX_FILE, Index, Kind, SplitIndex};
use crate::keys::{LABEL_KEY, PHYSICAL_KEY, TARGET_KEY, VOLUME_KEY};
use crate::layout::Layout;
use crate::samples::{DType, Samples, VolumeShape};
use crate::split::Split;

/// Held (by an advisory lock) while a maker works in a `.partial` folder.
const LOCK_FILE: &str = "maker.lock";

/// What a dataset will hold, fixed before the first sample is written.
#[derive(Clone, Debug, PartialEq)]
pub struct DatasetSpec {
    /// What it is about.
    pub kind: Kind,
    /// Shape of every sample, (C, D, H, W).
    pub shape: VolumeShape,
    /// Element type of the volumes.
    pub dtype: DType,
    /// Names of the targets, or of the classes.
    pub targets: Vec<String>,
    /// Extents of the class indices of a sample, its own or 1, 1, 1; `None` for vectors of numbers.
    pub labels: Option<[usize; 3]>,
    /// How the volumes lie in their file.
    pub layout: Layout,
    /// Universe of each training sample; several samples may be cut from one universe.
    pub train: Vec<u64>,
    /// Universe of each validation sample.
    pub validation: Vec<u64>,
    /// Universe of each test sample.
    pub test: Vec<u64>,
    /// What the maker was asked for; stands in the index file under `[spec]`.
    pub spec: toml::Table,
}

impl DatasetSpec {
    /// What a sample takes, compression left aside: its volume, what it is answered with, its number in the
    /// index file.
    pub fn sample_bytes(&self) -> Bytes {
        /// Digits of a number and what separates it from the next.
        const NUMBER: usize = 12;
        let volume = self.shape.iter().product::<usize>() * self.dtype.size_bytes();
        let target = match self.labels {
            Some(extent) => extent.iter().product::<usize>() * DType::Int16.size_bytes(),
            None => 2 * self.targets.len() * DType::Float32.size_bytes(),
        };
        Bytes((volume + target + NUMBER) as u64)
    }
}

/// Writes a dataset folder: `train.h5`, `validation.h5`, `test.h5` (none for an empty split),
/// each with `full` (N, C, D, H, W) and either `unitPar` and `physPar` (N, targets) or `labels`
/// (N, 1, D, H, W), and `dataset.toml`.
///
/// Everything goes to a sibling folder `NAME.partial`, which one rename turns into `NAME` at
/// [`finish`](Self::finish). Dropped before, the writer removes it; a maker that stops on Ctrl-C
/// only has to return. What a killed process leaves is replaced by the next writer.
/// The same spec and samples give the same bytes.
pub struct DatasetWriter {
    path: PathBuf,
    partial: PathBuf,
    lock: Option<FolderLock>,
    index: Index,
    splits: [Option<SplitWriter>; 3],
    finished: bool,
}

struct SplitWriter {
    file: TargetFile,
    volumes: TargetArray,
    target_arrays: SampleTargetArrays,
    written: usize,
}

enum SampleTargetArrays {
    Vectors {
        targets: TargetArray,
        physical: TargetArray,
    },
    Labels(TargetArray),
    None,
}

/// What a sample is answered with.
#[derive(Clone, Copy)]
enum SampleTarget<'a> {
    Vectors {
        unit: &'a [f32],
        physical: &'a [f32],
    },
    Labels(&'a Samples),
    None,
}

impl DatasetWriter {
    /// Names a class index of positions of no class in the index file.
    #[must_use]
    pub fn ignoring(mut self, class: Option<i64>) -> Self {
        self.index.ignore = class;
        self
    }

    /// Starts a dataset at `path`, which must not exist or be an empty folder.
    ///
    /// Errors: `BadValue` for a spec that contradicts itself, `Occupied`, `Unwritable`.
    pub fn create(path: impl AsRef<Path>, spec: &DatasetSpec) -> Result<Self, DataError> {
        let path = path.as_ref();
        check_layout(spec)?;
        let index = index_of(spec);
        if let Some((got, expected)) = index.fault() {
            return Err(DataError::BadValue {
                what: "dataset spec",
                got,
                expected,
            });
        }
        check_free(path)?;
        let partial = partial_path(path)?;
        let lock = claim(&partial)?;
        let mut writer = Self {
            path: path.to_path_buf(),
            partial,
            lock: Some(lock),
            index,
            splits: [None, None, None],
            finished: false,
        };
        for split in Split::ALL {
            if let Some(file) = &writer.index.split(split).file {
                let path = writer.partial.join(file);
                let samples = writer.index.split(split).universes.len();
                writer.splits[split as usize] = Some(SplitWriter::create(&path, samples, spec)?);
            }
        }
        Ok(writer)
    }

    /// Writes the next sample of a split, in the order of the spec's universes.
    ///
    /// Shapes: `volume` is (C, D, H, W); `unit` (normalized) and `physical` have one value per
    /// target. Errors: `BadValue` where one does not fit or the split is full, `Unwritable`.
    pub fn append(
        &mut self,
        split: Split,
        volume: &Samples,
        unit: &[f32],
        physical: &[f32],
    ) -> Result<(), DataError> {
        self.append_sample(split, volume, SampleTarget::Vectors { unit, physical })
    }

    /// Writes the next sample of a split of a dataset with class indices.
    ///
    /// Shapes: `volume` is (C, D, H, W); `labels` has the extents of the spec. Errors: `BadValue`
    /// where one does not fit, a number names no class or the split is full, `Unwritable`.
    pub fn append_labeled(
        &mut self,
        split: Split,
        volume: &Samples,
        labels: &Samples,
    ) -> Result<(), DataError> {
        self.append_sample(split, volume, SampleTarget::Labels(labels))
    }

    /// Writes the next sample of a split of a dataset without answers: one without names of targets.
    ///
    /// Errors: as [`append`](Self::append).
    pub fn append_alone(&mut self, split: Split, volume: &Samples) -> Result<(), DataError> {
        self.append_sample(split, volume, SampleTarget::None)
    }

    fn append_sample(
        &mut self,
        split: Split,
        volume: &Samples,
        target: SampleTarget<'_>,
    ) -> Result<(), DataError> {
        let samples = self.index.split(split).universes.len();
        check_volume(&self.index, volume)?;
        check_target(&self.index, target)?;
        match &mut self.splits[split as usize] {
            Some(writer) if writer.written < samples => writer.append(&self.index, volume, target),
            Some(_) | None => Err(DataError::BadValue {
                what: "number of samples of a split",
                got: format!("one more than {samples} for {split}"),
                expected: format!("the {samples} of the spec"),
            }),
        }
    }

    /// Universe that the next sample of a split is expected from; `None` when the split is full.
    pub fn next_universe(&self, split: Split) -> Option<u64> {
        let written = self.splits[split as usize]
            .as_ref()
            .map_or(0, |writer| writer.written);
        self.index.split(split).universes.get(written).copied()
    }

    /// Completes the dataset under its name and opens it.
    ///
    /// Errors: `Incomplete` if samples are still due (the partial folder is removed then),
    /// `Occupied` if something appeared at the path meanwhile, `Unwritable`.
    pub fn finish(mut self) -> Result<Dataset, DataError> {
        self.check_complete()?;
        for writer in &mut self.splits {
            if let Some(writer) = writer.take() {
                writer.file.close()?;
            }
        }
        self.write_index()?;
        let failed = |error| unwritable(&self.partial, &error);
        if let Some(lock) = self.lock.take() {
            lock.release().map_err(failed)?;
        }
        sync_folder(&self.partial).map_err(failed)?;
        check_free(&self.path)?;
        if self.path.is_dir() {
            fs::remove_dir(&self.path).map_err(|error| unwritable(&self.path, &error))?;
        }
        fs::rename(&self.partial, &self.path).map_err(|error| unwritable(&self.path, &error))?;
        self.finished = true;
        sync_folder(parent(&self.path)).map_err(|error| unwritable(&self.path, &error))?;
        Dataset::open_samples(&self.path)
    }

    fn check_complete(&self) -> Result<(), DataError> {
        for split in Split::ALL {
            let due = self.index.split(split).universes.len();
            let written = self.splits[split as usize]
                .as_ref()
                .map_or(0, |writer| writer.written);
            if written < due {
                return Err(DataError::Incomplete {
                    path: self.path.clone(),
                    found: format!("{written} of {due} samples of {split} were written"),
                });
            }
        }
        Ok(())
    }

    fn write_index(&self) -> Result<(), DataError> {
        let path = self.partial.join(INDEX_FILE);
        let text = toml::to_string(&self.index).map_err(|error| DataError::BadValue {
            what: "spec of the dataset",
            got: error.to_string(),
            expected: "a table that TOML can hold".to_string(),
        })?;
        write_whole(&path, text.as_bytes()).map_err(|error| unwritable(&path, &error))
    }
}

impl Drop for DatasetWriter {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        // Open HDF5 files write their tail when they close, so they go before the folder.
        self.splits = [None, None, None];
        self.lock = None;
        // A failure has nobody to go to; the next writer removes what is left.
        let _ = fs::remove_dir_all(&self.partial);
    }
}

impl SplitWriter {
    fn create(path: &Path, samples: usize, spec: &DatasetSpec) -> Result<Self, DataError> {
        let file = TargetFile::create(path)?;
        let [c, d, h, w] = spec.shape;
        let parameters = [samples, spec.targets.len()];
        let target_arrays = match spec.labels {
            Some([d, h, w]) => {
                let shape = [samples, 1, d, h, w];
                let layout = Layout::Contiguous;
                SampleTargetArrays::Labels(file.volumes(
                    LABEL_KEY,
                    &shape,
                    DType::Int16,
                    &layout,
                )?)
            }
            None if spec.targets.is_empty() => SampleTargetArrays::None,
            None => SampleTargetArrays::Vectors {
                targets: file.floats(TARGET_KEY, &parameters)?,
                physical: file.floats(PHYSICAL_KEY, &parameters)?,
            },
        };
        Ok(Self {
            target_arrays,
            volumes: file.volumes(VOLUME_KEY, &[samples, c, d, h, w], spec.dtype, &spec.layout)?,
            file,
            written: 0,
        })
    }

    fn append(
        &mut self,
        index: &Index,
        volume: &Samples,
        target: SampleTarget<'_>,
    ) -> Result<(), DataError> {
        let (row, start) = ([self.written, 0], [self.written, 0, 0, 0, 0]);
        let [c, d, h, w] = index.shape();
        self.volumes.write_box(&start, &[1, c, d, h, w], volume)?;
        match (&self.target_arrays, target) {
            (
                SampleTargetArrays::Vectors { targets, physical },
                SampleTarget::Vectors { unit, physical: p },
            ) => {
                targets.write_floats(&row, &[1, unit.len()], unit)?;
                physical.write_floats(&row, &[1, p.len()], p)?;
            }
            (SampleTargetArrays::Labels(array), SampleTarget::Labels(labels)) => {
                let [d, h, w] = index.labels.unwrap_or([1; 3]);
                array.write_box(&start, &[1, 1, d, h, w], labels)?;
            }
            (SampleTargetArrays::None, SampleTarget::None) => {}
            (SampleTargetArrays::Vectors { .. }, SampleTarget::Labels(_) | SampleTarget::None)
            | (SampleTargetArrays::Labels(_), SampleTarget::Vectors { .. } | SampleTarget::None)
            | (SampleTargetArrays::None, SampleTarget::Vectors { .. } | SampleTarget::Labels(_)) => {
                panic!("an answer of the other kind passed its check")
            }
        }
        self.written += 1;
        Ok(())
    }
}

fn check_volume(index: &Index, volume: &Samples) -> Result<(), DataError> {
    let elements: usize = index.shape().iter().product();
    if volume.dtype() != index.dtype || volume.len() != elements {
        return Err(DataError::BadValue {
            what: "volume",
            got: format!("{} elements of {}", volume.len(), volume.dtype().name()),
            expected: format!("{elements} of {} (C, D, H, W)", index.dtype.name()),
        });
    }
    Ok(())
}

fn check_target(index: &Index, target: SampleTarget<'_>) -> Result<(), DataError> {
    let refuse = |what, got, expected| {
        Err(DataError::BadValue {
            what,
            got,
            expected,
        })
    };
    match (target, index.labels) {
        (SampleTarget::None, None) if index.targets.is_empty() => Ok(()),
        (SampleTarget::None, _) => refuse(
            "answer",
            "none".to_owned(),
            "one for each sample".to_owned(),
        ),
        (SampleTarget::Vectors { unit, physical }, None) => {
            for (what, values) in [("unitPar", unit), ("physPar", physical)] {
                if values.len() != index.targets.len() {
                    let names = index.targets.join(", ");
                    let expected = format!("{} ({names})", index.targets.len());
                    return refuse(what, format!("{} values", values.len()), expected);
                }
            }
            Ok(())
        }
        (SampleTarget::Labels(labels), Some(extent)) => {
            let elements: usize = extent.iter().product();
            let classes = index.targets.len();
            let got = match labels {
                Samples::I16(values) if values.len() == elements => {
                    let valid = Classes::of_dataset(classes, index.ignore);
                    match values.iter().find(|&&value| !valid.has(value.into())) {
                        Some(class) => format!("class {class}"),
                        None => return Ok(()),
                    }
                }
                other => format!("{} elements of {}", other.len(), other.dtype().name()),
            };
            let expected = format!(
                "{elements} of int16 (1, D, H, W), from 0 to {}",
                classes - 1
            );
            refuse("labels", got, expected)
        }
        (SampleTarget::Vectors { .. }, Some(_)) => {
            refuse("answer", "a vector".to_owned(), "class indices".to_owned())
        }
        (SampleTarget::Labels(_), None) => {
            refuse("answer", "class indices".to_owned(), "a vector".to_owned())
        }
    }
}

fn check_layout(spec: &DatasetSpec) -> Result<(), DataError> {
    match &spec.layout {
        Layout::Contiguous => Ok(()),
        Layout::Chunked { chunk, deflate, .. } => {
            let fits = chunk
                .iter()
                .zip(spec.shape)
                .all(|(&size, extent)| (1..=extent).contains(&size));
            let level = deflate.is_none_or(|level| level <= 9);
            if fits && level {
                return Ok(());
            }
            Err(DataError::BadValue {
                what: "layout of the volumes",
                got: format!("chunk {chunk:?}, deflate {deflate:?}"),
                expected: format!(
                    "chunk extents from 1 to {:?}, deflate from 0 to 9",
                    spec.shape
                ),
            })
        }
    }
}

fn index_of(spec: &DatasetSpec) -> Index {
    let [channels, depth, height, width] = spec.shape;
    let split = |split: Split, universes: &[u64]| SplitIndex {
        file: (!universes.is_empty()).then(|| file_name(split)),
        universes: universes.to_vec(),
        ..SplitIndex::default()
    };
    Index {
        format: FORMAT_VERSION,
        kind: spec.kind,
        samples: spec.train.len() + spec.validation.len() + spec.test.len(),
        channels,
        extent: [depth, height, width],
        dtype: spec.dtype,
        targets: spec.targets.clone(),
        labels: spec.labels,
        ignore: None,
        volume: None,
        target: None,
        label: None,
        layout: None,
        ranges: None,
        units: None,
        train: split(Split::Train, &spec.train),
        validation: split(Split::Validation, &spec.validation),
        test: split(Split::Test, &spec.test),
        spec: spec.spec.clone(),
    }
}

/// A path is free if nothing is there, or a folder with nothing in it.
fn check_free(path: &Path) -> Result<(), DataError> {
    let found = match fs::read_dir(path).map(|mut entries| entries.next().is_none()) {
        Ok(true) => return Ok(()),
        Ok(false) if path.join(INDEX_FILE).exists() => "a dataset is there already".to_string(),
        Ok(false) => "a folder with other files is there".to_string(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(_) if path.is_file() => "a file is there".to_string(),
        Err(error) => return Err(unwritable(path, &error)),
    };
    Err(DataError::Occupied {
        path: path.to_path_buf(),
        found,
    })
}

fn partial_path(path: &Path) -> Result<PathBuf, DataError> {
    let name = path.file_name().ok_or_else(|| DataError::BadValue {
        what: "path of the dataset",
        got: path.display().to_string(),
        expected: "a path that ends in the name of the new folder".to_string(),
    })?;
    let mut partial = name.to_os_string();
    partial.push(".partial");
    Ok(path.with_file_name(partial))
}

/// Makes the partial folder this writer's own, replacing what a dead one left.
fn claim(partial: &Path) -> Result<FolderLock, DataError> {
    let failed = |error: std::io::Error| unwritable(partial, &error);
    fs::create_dir_all(partial).map_err(failed)?;
    let Some(lock) = FolderLock::take(partial, LOCK_FILE).map_err(failed)? else {
        return Err(DataError::Occupied {
            path: partial.to_path_buf(),
            found: "another process is writing it".to_string(),
        });
    };
    let lock_path = partial.join(LOCK_FILE);
    for entry in fs::read_dir(partial).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path == lock_path {
            continue;
        }
        // Nothing is deleted that a maker cannot have written.
        if !path
            .file_name()
            .is_some_and(|name| made_here(&name.to_string_lossy()))
        {
            return Err(DataError::Occupied {
                path: partial.to_path_buf(),
                found: format!("{} is in the folder of unfinished datasets", path.display()),
            });
        }
        fs::remove_file(&path).map_err(|error| unwritable(&path, &error))?;
    }
    Ok(lock)
}

fn made_here(name: &str) -> bool {
    let is_index = name == INDEX_FILE || is_temporary(name, INDEX_FILE);
    is_index || Split::ALL.iter().any(|&split| name == file_name(split))
}

fn file_name(split: Split) -> String {
    format!("{split}.h5")
}

fn unwritable(path: &Path, error: &std::io::Error) -> DataError {
    DataError::Unwritable {
        path: path.to_path_buf(),
        reason: error.to_string(),
    }
}
