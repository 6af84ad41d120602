//! Writing a dataset folder, all or nothing.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use partita_files::{FolderLock, is_temporary, parent, sync_folder};
use partita_formats::hdf5::{TargetArray, TargetFile};
use partita_formats::{DType, DataError, Layout, Samples, VolumeShape};
use partita_space::Bytes;

use crate::classes::Classes;
use crate::dataset::Dataset;
use crate::index::{FORMAT_VERSION, INDEX_FILE, Index, Kind, SplitIndex};
use crate::keys::{LABEL_KEY, PHYSICAL_KEY, TARGET_KEY, VOLUME_KEY};
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
    /// Names of the targets, or of the classes; none where samples have no answers.
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
/// (N, 1, D, H, W), and `dataset.toml`. Where extents differ, each sample has a file, such as
/// `train-00000.h5`, with arrays without N.
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
    layout: Layout,
    /// Files of all samples of a split; none where each sample has its own.
    splits: [Option<SamplesFile>; 3],
    /// Samples written of each split.
    written: [usize; 3],
    finished: bool,
}

/// A file of the samples of a split, or of one of them.
struct SamplesFile {
    file: TargetFile,
    volumes: TargetArray,
    target_arrays: SampleTargetArrays,
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

    /// Names the samples of each split in the index file, in the order in which they are appended.
    ///
    /// Errors: `BadValue` for another number of names than of samples, an empty name, or one that occurs twice.
    pub fn naming(
        mut self,
        [train, validation, test]: [Vec<String>; 3],
    ) -> Result<Self, DataError> {
        for (split, names) in [
            (&mut self.index.train, train),
            (&mut self.index.validation, validation),
            (&mut self.index.test, test),
        ] {
            split.names = (!names.is_empty() || !split.universes.is_empty()).then_some(names);
        }
        self.index.fault().map_or(Ok(()), refused)?;
        Ok(self)
    }

    /// Starts a dataset at `path`, which must not exist or be an empty folder.
    ///
    /// Errors: `BadValue` for a spec that contradicts itself, `Occupied`, `Unwritable`.
    pub fn create(path: impl AsRef<Path>, spec: &DatasetSpec) -> Result<Self, DataError> {
        Self::create_of_extents(path, spec, None)
    }

    /// The same for samples whose D, H, W differ, if they are given for each sample of the splits. Those of `spec`
    /// are the largest along each dim then.
    pub fn create_of_extents(
        path: impl AsRef<Path>,
        spec: &DatasetSpec,
        extents: Option<[Vec<[usize; 3]>; 3]>,
    ) -> Result<Self, DataError> {
        let path = path.as_ref();
        check_layout(spec, extents.as_ref())?;
        let index = index_of(spec, extents);
        index.fault().map_or(Ok(()), refused)?;
        check_free(path)?;
        let partial = partial_path(path)?;
        let lock = claim(&partial)?;
        let mut writer = Self {
            path: path.to_path_buf(),
            partial,
            lock: Some(lock),
            index,
            layout: spec.layout.clone(),
            splits: [None, None, None],
            written: [0; 3],
            finished: false,
        };
        for split in Split::ALL {
            if let Some(file) = &writer.index.split(split).file {
                let path = writer.partial.join(file);
                let samples = writer.index.split(split).universes.len();
                let sizes = writer.sizes(split);
                let file =
                    SamplesFile::create(&path, Some(samples), sizes, &writer.index, &spec.layout)?;
                writer.splits[split as usize] = Some(file);
            }
        }
        Ok(writer)
    }

    /// Shape of the next sample of a split, and extents of its class indices.
    fn sizes(&self, split: Split) -> Sizes {
        let extents = self.index.split(split).extents.as_ref();
        let [c, largest @ ..] = self.index.shape();
        let own = extents.and_then(|extents| extents.get(self.written[split as usize]));
        let extent = own.copied().unwrap_or(largest);
        let of_labels = |labels| if labels == largest { extent } else { labels };
        let [d, h, w] = extent;
        Sizes {
            shape: [c, d, h, w],
            labels: self.index.labels.map(of_labels),
        }
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
    pub(crate) fn append_alone(&mut self, split: Split, volume: &Samples) -> Result<(), DataError> {
        self.append_sample(split, volume, SampleTarget::None)
    }

    /// As [`append_labeled`](Self::append_labeled), of a sample that is made part by part, of at most this many planes each.
    ///
    /// Panics where samples have files of their own, or classes extents of their own.
    pub fn append_labeled_planes(
        &mut self,
        split: Split,
        at_once: usize,
        mut part: impl FnMut(Range<usize>) -> (Samples, Samples),
    ) -> Result<(), DataError> {
        let written = self.next_place(split)?;
        let [c, depth, height, width] = self.sizes(split).shape;
        let Some(file) = &self.splits[split as usize] else {
            panic!("samples of {split} are stacked in a file");
        };
        for first in (0..depth).step_by(at_once) {
            let planes = first..depth.min(first + at_once);
            let (volume, labels) = part(planes.clone());
            let shape = [c, planes.len(), height, width];
            let extent = Some([planes.len(), height, width]);
            check_volume(&self.index, shape, &volume)?;
            check_target(&self.index, extent, SampleTarget::Labels(&labels))?;
            file.write_planes(written, first, shape, (&volume, &labels))?;
        }
        self.written[split as usize] += 1;
        Ok(())
    }

    /// Number in its split of the next sample.
    fn next_place(&self, split: Split) -> Result<usize, DataError> {
        let samples = self.index.split(split).universes.len();
        let written = self.written[split as usize];
        if written < samples {
            return Ok(written);
        }
        Err(DataError::BadValue {
            what: "number of samples of a split",
            got: format!("one more than {samples} for {split}"),
            expected: format!("the {samples} of the spec"),
        })
    }

    fn append_sample(
        &mut self,
        split: Split,
        volume: &Samples,
        target: SampleTarget<'_>,
    ) -> Result<(), DataError> {
        let written = self.next_place(split)?;
        let sizes = self.sizes(split);
        check_volume(&self.index, sizes.shape, volume)?;
        check_target(&self.index, sizes.labels, target)?;
        match &self.splits[split as usize] {
            Some(file) => file.write(Some(written), sizes, volume, target)?,
            None => {
                let path = self.partial.join(sample_file_name(split, written));
                let file = SamplesFile::create(&path, None, sizes, &self.index, &self.layout)?;
                file.write(None, sizes, volume, target)?;
                file.file.close()?;
            }
        }
        self.written[split as usize] += 1;
        Ok(())
    }

    /// Universe that the next sample of a split is expected from; `None` when the split is full.
    pub fn next_universe(&self, split: Split) -> Option<u64> {
        let written = self.written[split as usize];
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
            let written = self.written[split as usize];
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
        self.index.write(&path)
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

/// What a sample takes.
#[derive(Clone, Copy)]
struct Sizes {
    shape: VolumeShape,
    /// D, H, W of its class indices.
    labels: Option<[usize; 3]>,
}

/// A dim N, if there is one, before others.
fn dims(samples: Option<usize>, others: &[usize]) -> Vec<usize> {
    samples.into_iter().chain(others.iter().copied()).collect()
}

impl SamplesFile {
    /// `samples` are stacked along a dim N, if there is one.
    fn create(
        path: &Path,
        samples: Option<usize>,
        sizes: Sizes,
        index: &Index,
        layout: &Layout,
    ) -> Result<Self, DataError> {
        let file = TargetFile::create(path)?;
        let parameters = dims(samples, &[index.targets.len()]);
        let target_arrays = match sizes.labels {
            Some([d, h, w]) => {
                let (shape, layout) = (dims(samples, &[1, d, h, w]), Layout::Contiguous);
                let labels = file.volumes(LABEL_KEY, &shape, DType::Int16, &layout)?;
                SampleTargetArrays::Labels(labels)
            }
            None if index.targets.is_empty() => SampleTargetArrays::None,
            None => SampleTargetArrays::Vectors {
                targets: file.floats(TARGET_KEY, &parameters)?,
                physical: file.floats(PHYSICAL_KEY, &parameters)?,
            },
        };
        let shape = dims(samples, &sizes.shape);
        Ok(Self {
            target_arrays,
            volumes: file.volumes(VOLUME_KEY, &shape, index.dtype, layout)?,
            file,
        })
    }

    /// Writes planes of a sample of a stack, from `first` on, with the classes of their voxels.
    fn write_planes(
        &self,
        place: usize,
        first: usize,
        [c, d, h, w]: VolumeShape,
        (volume, labels): (&Samples, &Samples),
    ) -> Result<(), DataError> {
        let SampleTargetArrays::Labels(array) = &self.target_arrays else {
            panic!("a dataset with classes has an array of them");
        };
        let start = [place, 0, first, 0, 0];
        self.volumes.write_box(&start, &[1, c, d, h, w], volume)?;
        array.write_box(&start, &[1, 1, d, h, w], labels)
    }

    /// Writes a sample, at its place in a stack.
    fn write(
        &self,
        place: Option<usize>,
        sizes: Sizes,
        volume: &Samples,
        target: SampleTarget<'_>,
    ) -> Result<(), DataError> {
        let (row, start) = (dims(place, &[0]), dims(place, &[0; 4]));
        let one = place.map(|_| 1);
        let counts = dims(one, &sizes.shape);
        self.volumes.write_box(&start, &counts, volume)?;
        match (&self.target_arrays, target) {
            (
                SampleTargetArrays::Vectors { targets, physical },
                SampleTarget::Vectors { unit, physical: p },
            ) => {
                targets.write_floats(&row, &dims(one, &[unit.len()]), unit)?;
                physical.write_floats(&row, &dims(one, &[p.len()]), p)
            }
            (SampleTargetArrays::Labels(array), SampleTarget::Labels(labels)) => {
                let [d, h, w] = sizes.labels.unwrap_or([1; 3]);
                array.write_box(&start, &dims(one, &[1, d, h, w]), labels)
            }
            (SampleTargetArrays::None, SampleTarget::None) => Ok(()),
            (SampleTargetArrays::Vectors { .. }, SampleTarget::Labels(_) | SampleTarget::None)
            | (SampleTargetArrays::Labels(_), SampleTarget::Vectors { .. } | SampleTarget::None)
            | (SampleTargetArrays::None, SampleTarget::Vectors { .. } | SampleTarget::Labels(_)) => {
                panic!("an answer of the other kind passed its check")
            }
        }
    }
}

fn check_volume(index: &Index, shape: VolumeShape, volume: &Samples) -> Result<(), DataError> {
    let elements: usize = shape.iter().product();
    if volume.dtype() != index.dtype || volume.len() != elements {
        return Err(DataError::BadValue {
            what: "volume",
            got: format!("{} elements of {}", volume.len(), volume.dtype().name()),
            expected: format!("{elements} of {} (C, D, H, W)", index.dtype.name()),
        });
    }
    Ok(())
}

fn check_target(
    index: &Index,
    extent: Option<[usize; 3]>,
    target: SampleTarget<'_>,
) -> Result<(), DataError> {
    let refuse = |what, got, expected| {
        Err(DataError::BadValue {
            what,
            got,
            expected,
        })
    };
    match (target, extent) {
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

fn check_layout(
    spec: &DatasetSpec,
    extents: Option<&[Vec<[usize; 3]>; 3]>,
) -> Result<(), DataError> {
    let [c, d, h, w] = spec.shape;
    let all = extents.into_iter().flatten().flatten();
    let [d, h, w] = all.fold([d, h, w], |least, extent| {
        std::array::from_fn(|dim| extent[dim].min(least[dim]))
    });
    let shape = [c, d, h, w];
    match &spec.layout {
        Layout::Contiguous => Ok(()),
        Layout::Chunked { chunk, deflate, .. } => {
            let fits = chunk
                .iter()
                .zip(shape)
                .all(|(&size, extent)| (1..=extent).contains(&size));
            let level = deflate.is_none_or(|level| level <= 9);
            if fits && level {
                return Ok(());
            }
            Err(DataError::BadValue {
                what: "layout of the volumes",
                got: format!("chunk {chunk:?}, deflate {deflate:?}"),
                expected: format!("chunk extents from 1 to {shape:?}, deflate from 0 to 9"),
            })
        }
    }
}

fn refused((got, expected): (String, String)) -> Result<(), DataError> {
    Err(DataError::BadValue {
        what: "dataset spec",
        got,
        expected,
    })
}

fn index_of(spec: &DatasetSpec, extents: Option<[Vec<[usize; 3]>; 3]>) -> Index {
    let [channels, depth, height, width] = spec.shape;
    let split = |split: Split, universes: &[u64]| {
        let own = extents.as_ref().filter(|_| !universes.is_empty());
        let names = |_| {
            (0..universes.len())
                .map(|at| sample_file_name(split, at))
                .collect()
        };
        SplitIndex {
            file: (!universes.is_empty() && own.is_none()).then(|| file_name(split)),
            files: own.map(names),
            extents: own.map(|all| all[split as usize].clone()),
            universes: universes.to_vec(),
            ..SplitIndex::default()
        }
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
        features: None,
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
    let of_split = |split: &Split| {
        let number = name
            .strip_prefix(split.name())
            .and_then(|rest| rest.strip_suffix(".h5"));
        let digits = number.and_then(|number| number.strip_prefix('-'));
        number == Some("")
            || digits.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
    };
    is_index || Split::ALL.iter().any(of_split)
}

fn file_name(split: Split) -> String {
    format!("{split}.h5")
}

fn sample_file_name(split: Split, sample: usize) -> String {
    format!("{split}-{sample:05}.h5")
}

fn unwritable(path: &Path, error: &std::io::Error) -> DataError {
    DataError::Unwritable {
        path: path.to_path_buf(),
        reason: error.to_string(),
    }
}
