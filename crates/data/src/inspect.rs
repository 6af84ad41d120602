//! Summaries of datasets, and of files of arrays that are no dataset.

mod bare;

pub(crate) use bare::boxes;

use std::path::{Path, PathBuf};

use partita_formats::{DType, DataError, Samples, SourceArray, SourceFile, StorageLayout};
use partita_space::Bytes;
use serde::Serialize;

use crate::classes::{CLASSES_MAX, ClassSet, Occurrence, SplitLabels};
use crate::dataset::Dataset;
use crate::disk::bytes_on_disk;
use crate::index::Kind;
use crate::moments::{ValueCount, ValueStatistics};
use crate::split::Split;

/// Most elements that the value summary of a split reads.
const ELEMENTS_MAX: usize = 1 << 24;
/// Most elements that are read at once.
const BLOCK_ELEMENTS: usize = 1 << 22;

/// How many values are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ValueScope {
    /// At most 2^24 of each split, or of each array of a bare file, from the first on.
    #[default]
    First,
    /// All.
    All,
}

impl ValueScope {
    fn elements_max(self) -> usize {
        match self {
            ValueScope::First => ELEMENTS_MAX,
            ValueScope::All => usize::MAX,
        }
    }
}

/// What is at a path.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Inspected {
    /// A dataset.
    Dataset(Box<DatasetSummary>),
    /// A file of arrays without samples and answers.
    File(FileSummary),
}

/// Summary of a file of arrays that is no dataset.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FileSummary {
    /// The path.
    pub path: PathBuf,
    /// Why it is no dataset.
    pub no_dataset: String,
    /// Its size.
    pub file_bytes: Bytes,
    /// Its arrays.
    pub arrays: Vec<FileArray>,
}

/// An array of a bare file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FileArray {
    /// Name, shape and storage.
    #[serde(flatten)]
    pub array: ArraySummary,
    /// Statistics of its values; absent where they are not numbers, or none.
    pub values: Option<ValueStatistics>,
    /// The same by channel, where the array has 4 dims (C, D, H, W) or 5 (N, C, D, H, W), and several channels.
    pub channels: Vec<ValueStatistics>,
}

/// Summary of a dataset.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DatasetSummary {
    /// The path.
    pub path: PathBuf,
    /// Kind of dataset; absent for a single HDF5 file.
    pub kind: Option<Kind>,
    /// Channels of every sample.
    pub channels: usize,
    /// Extents D, H, W of every sample; where they differ, the largest along each dim.
    pub extent: [usize; 3],
    /// The smallest along each dim, where they differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smallest_extent: Option<[usize; 3]>,
    /// Element type of the volumes.
    pub dtype: DType,
    /// Names of the targets.
    pub targets: Vec<String>,
    /// Names of the features; none where samples have none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<String>,
    /// Extents D, H, W of the class indices of a sample, whose classes the targets name; absent
    /// where targets are vectors of numbers.
    pub labels: Option<[usize; 3]>,
    /// Size of one volume, uncompressed; where extents differ, of the largest.
    pub sample_bytes: Bytes,
    /// The three splits, in the order train, validation, test.
    pub splits: Vec<SplitSummary>,
    /// Options with which it was made.
    pub spec: toml::Table,
    /// What is doubtful about the labels, with the remedy.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Summary of a split.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SplitSummary {
    /// The split.
    pub split: Split,
    /// Number of samples.
    pub samples: usize,
    /// Number of different universes; 0 if unknown.
    pub universes: usize,
    /// Names of the samples, where the index gives them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// Number of files.
    pub files: usize,
    /// Size of these files on disk.
    pub file_bytes: Bytes,
    /// The arrays of the first file.
    pub arrays: Vec<ArraySummary>,
    /// Values of the first samples; absent for an empty split.
    pub values: Option<ValueSummary>,
    /// Class indices of the same samples; absent where answers are numbers, or the split is empty.
    pub classes: Option<ClassSummary>,
}

/// An array of an HDF5 file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ArraySummary {
    /// Its name.
    pub key: String,
    /// Its extents.
    pub shape: Vec<usize>,
    /// Its element type.
    pub dtype: String,
    /// Storage layout.
    pub storage: StorageLayout,
}

/// Statistics over part of the values of a split.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ValueSummary {
    /// Samples read, from the first on.
    pub samples: usize,
    /// Elements read.
    pub elements: usize,
    /// Smallest finite value.
    pub min: f64,
    /// Largest finite value.
    pub max: f64,
    /// Arithmetic mean of the finite values.
    pub mean: f64,
    /// Statistics of each channel.
    pub channels: Vec<ValueStatistics>,
}

/// How often each class occurs in part of the samples of a split.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ClassSummary {
    /// Samples read, from the first on.
    pub samples: usize,
    /// Class indices of each class, from class 0 on.
    pub counts: Vec<u64>,
    /// Indices of positions of no class, as the dataset's index file names them.
    pub ignored: u64,
    /// Other indices that are none of the dataset's classes.
    pub invalid: u64,
    /// Whether these are all of the split.
    #[serde(skip)]
    pub is_whole: bool,
}

/// Summarizes the dataset at `path`; reads headers and at most 2^24 values per split.
///
/// Errors: as [`Dataset::open`] and [`crate::Reader::read_volume`].
pub fn inspect(path: impl AsRef<Path>) -> Result<DatasetSummary, DataError> {
    summarize_dataset(&open(path.as_ref())?, ValueScope::First)
}

/// Summarizes what is at `path`: a dataset, or else the arrays of a file.
///
/// Errors: neither of them; as [`inspect`].
pub fn inspect_path(path: impl AsRef<Path>, scope: ValueScope) -> Result<Inspected, DataError> {
    let path = path.as_ref();
    let refused = match open(path) {
        Ok(dataset) => {
            let summary = summarize_dataset(&dataset, scope)?;
            return Ok(Inspected::Dataset(Box::new(summary)));
        }
        Err(refused) => refused,
    };
    if !path.is_file() && !partita_formats::is_store(path) {
        return Err(refused);
    }
    match SourceFile::open(path) {
        Ok(file) => bare::summarize(path, &file, &refused, scope).map(Inspected::File),
        Err(_) => Err(refused),
    }
}

/// A dataset; an index may say that it has samples alone.
pub(crate) fn open(path: &Path) -> Result<Dataset, DataError> {
    match Dataset::open(path) {
        Err(DataError::SamplesAlone { .. }) => Dataset::open_samples(path),
        opened => opened,
    }
}

fn summarize_dataset(dataset: &Dataset, scope: ValueScope) -> Result<DatasetSummary, DataError> {
    let [channels, depth, height, width] = dataset.shape();
    let shapes = Split::ALL.into_iter().flat_map(|split| {
        (0..dataset.samples(split)).map(move |sample| dataset.shape_of(split, sample))
    });
    let largest = shapes.map(|shape| shape.into_iter().product()).max();
    let elements: usize = largest.unwrap_or(channels * depth * height * width);
    let splits = Split::ALL
        .iter()
        .map(|&split| summarize(dataset, split, scope));
    let splits: Vec<SplitSummary> = splits.collect::<Result<_, _>>()?;
    Ok(DatasetSummary {
        path: dataset.path().to_path_buf(),
        kind: dataset.kind(),
        channels,
        extent: [depth, height, width],
        smallest_extent: dataset.smallest_extent(),
        dtype: dataset.dtype(),
        targets: dataset.targets().to_vec(),
        features: dataset.features().to_vec(),
        labels: dataset.labels(),
        sample_bytes: Bytes((elements * dataset.dtype().size_bytes()) as u64),
        warnings: doubts(dataset, &splits),
        splits,
        spec: dataset.spec().clone(),
    })
}

/// What is doubtful about the labels that were counted.
fn doubts(dataset: &Dataset, splits: &[SplitSummary]) -> Vec<String> {
    let of_split = |summary: &SplitSummary| {
        let counted = summary.classes.as_ref()?;
        let mut classes = ClassSet::default();
        let occurring = (0i16..)
            .zip(&counted.counts)
            .filter(|(_, count)| **count > 0);
        occurring.for_each(|(class, _)| classes.add(class));
        if let Some(ignored) = dataset.ignored().filter(|_| counted.ignored > 0) {
            classes.add(i16::try_from(ignored).unwrap_or(i16::MIN));
        }
        Some(SplitLabels {
            split: summary.split,
            classes,
            samples: counted.samples,
            is_whole: counted.is_whole,
        })
    };
    let splits: Vec<SplitLabels> = splits.iter().filter_map(of_split).collect();
    let occurrence = Occurrence {
        names: dataset.targets(),
        ignored: dataset.ignored(),
        is_per_position: dataset.labels().is_some_and(|extent| extent != [1; 3]),
        splits: &splits,
        stored: &|class| vec![class],
    };
    occurrence.doubts()
}

fn summarize(
    dataset: &Dataset,
    split: Split,
    scope: ValueScope,
) -> Result<SplitSummary, DataError> {
    let paths = dataset.files(split).paths();
    let mut file_bytes = 0;
    for path in &paths {
        let unopenable = |error: std::io::Error| DataError::Unopenable {
            path: path.to_path_buf(),
            reason: error.to_string(),
        };
        file_bytes += bytes_on_disk(path).map_err(unopenable)?;
    }
    let mut universes = dataset.universes(split).to_vec();
    universes.sort_unstable();
    universes.dedup();
    Ok(SplitSummary {
        split,
        samples: dataset.samples(split),
        universes: universes.len(),
        names: dataset.given_names(split).to_vec(),
        files: paths.len(),
        file_bytes: Bytes(file_bytes),
        arrays: paths
            .first()
            .map(|path| arrays(path))
            .transpose()?
            .unwrap_or_default(),
        values: values(dataset, split, scope)?,
        classes: classes(dataset, split, scope)?,
    })
}

fn arrays(path: &Path) -> Result<Vec<ArraySummary>, DataError> {
    let file = SourceFile::open(path)?;
    let keys = file.keys().iter();
    keys.map(|key| Ok(array_summary(&file.array(key)?)))
        .collect()
}

fn array_summary(array: &SourceArray) -> ArraySummary {
    ArraySummary {
        key: array.key.clone(),
        dtype: array.element.name().to_string(),
        shape: array.shape.clone(),
        storage: array.stored.clone(),
    }
}

/// Slices along D that are read of the first samples of a split: whole samples as long as they fit; of a first one too
/// large, its first.
fn slices_read(dataset: &Dataset, split: Split, scope: ValueScope) -> Vec<usize> {
    let mut rest = scope.elements_max();
    let mut taken = Vec::new();
    for sample in 0..dataset.samples(split) {
        let [channels, depth, height, width] = dataset.shape_of(split, sample);
        let slice = channels * height * width;
        let fitting = depth.min(rest / slice);
        if fitting < depth && sample > 0 {
            break;
        }
        taken.push(fitting.max(1));
        rest = rest.saturating_sub(slice * depth);
    }
    taken
}

fn values(
    dataset: &Dataset,
    split: Split,
    scope: ValueScope,
) -> Result<Option<ValueSummary>, DataError> {
    let slices = slices_read(dataset, split, scope);
    if slices.is_empty() {
        return Ok(None);
    }
    let mut reader = dataset.reader(split);
    let mut buffer = Samples::new(dataset.dtype());
    let mut counts = vec![ValueCount::default(); dataset.shape()[0]];
    for (sample, &depth) in slices.iter().enumerate() {
        let [channels, _, height, width] = dataset.shape_of(split, sample);
        let thickness = (BLOCK_ELEMENTS / (channels * height * width)).max(1);
        for start in (0..depth).step_by(thickness) {
            let slab = start..depth.min(start + thickness);
            let each = slab.len() * height * width;
            reader.read_volume(
                sample,
                [0..channels, slab, 0..height, 0..width],
                &mut buffer,
            )?;
            for (channel, count) in counts.iter_mut().enumerate() {
                let first = channel * each;
                match &buffer {
                    Samples::I16(values) => count.add(each, |at| values[first + at].into()),
                    Samples::F32(values) => count.add(each, |at| values[first + at].into()),
                }
            }
        }
    }
    let mut all = ValueCount::default();
    counts.iter().for_each(|count| all.join(count));
    let all = all.statistics();
    Ok(Some(ValueSummary {
        samples: slices.len(),
        elements: all.elements,
        min: all.min,
        max: all.max,
        mean: all.mean,
        channels: counts.iter().map(ValueCount::statistics).collect(),
    }))
}

/// Classes of the samples whose values are read.
fn classes(
    dataset: &Dataset,
    split: Split,
    scope: ValueScope,
) -> Result<Option<ClassSummary>, DataError> {
    let slices = slices_read(dataset, split, scope);
    if slices.is_empty() || dataset.labels().is_none() {
        return Ok(None);
    }
    let known = dataset.targets().len();
    let is_deep = |slices: &[usize]| {
        let mut all = slices.iter().enumerate();
        all.all(|(sample, &taken)| taken == dataset.shape_of(split, sample)[1])
    };
    let mut summary = ClassSummary {
        samples: slices.len(),
        counts: vec![0; known],
        ignored: 0,
        invalid: 0,
        is_whole: slices.len() == dataset.samples(split) && is_deep(&slices),
    };
    let ignored = dataset.ignored();
    let mut reader = dataset.reader(split);
    let mut labels = Samples::new(DType::Int16);
    for (sample, &taken) in slices.iter().enumerate() {
        let [d, h, w] = dataset.labels_of(split, sample).unwrap_or([1; 3]);
        let thickness = (BLOCK_ELEMENTS / (h * w)).max(1);
        let d = d.min(taken);
        for start in (0..d).step_by(thickness) {
            let region = [0..1, start..d.min(start + thickness), 0..h, 0..w];
            reader.read_labels_as_stored(sample, region, &mut labels)?;
            let Samples::I16(values) = &labels else {
                continue;
            };
            values
                .iter()
                .for_each(|&class| summary.add(class, known, ignored));
        }
    }
    Ok(Some(summary))
}

impl ClassSummary {
    /// Counts a class index; `known` is the number of classes, 0 if it is unknown.
    fn add(&mut self, class: i16, known: usize, ignored: Option<i64>) {
        let most = if known == 0 { CLASSES_MAX } else { known };
        match usize::try_from(class) {
            _ if ignored == Some(class.into()) => self.ignored += 1,
            Ok(class) if class < most => {
                if class >= self.counts.len() {
                    self.counts.resize(class + 1, 0);
                }
                self.counts[class] += 1;
            }
            Ok(_) | Err(_) => self.invalid += 1,
        }
    }
}
