//! Summaries of datasets.

use std::path::{Path, PathBuf};

use partita_space::Bytes;
use serde::Serialize;

use crate::array::{SourceFile, Stored};
use crate::dataset::Dataset;
use crate::error::DataError;
use crate::index::Kind;
use crate::samples::{DType, Samples};
use crate::split::Split;

/// Most elements that the value summary of a split reads.
const ELEMENTS_MAX: usize = 1 << 24;

/// Summary of a dataset.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DatasetSummary {
    /// The path.
    pub path: PathBuf,
    /// Kind of dataset; absent for a single HDF5 file.
    pub kind: Option<Kind>,
    /// Channels of every sample.
    pub channels: usize,
    /// Extents D, H, W of every sample.
    pub extent: [usize; 3],
    /// Element type of the volumes.
    pub dtype: DType,
    /// Names of the targets.
    pub targets: Vec<String>,
    /// Extents D, H, W of the class indices of a sample, whose classes the targets name; absent
    /// where targets are vectors of numbers.
    pub labels: Option<[usize; 3]>,
    /// Size of one volume, uncompressed.
    pub sample_bytes: Bytes,
    /// The three splits, in the order train, validation, test.
    pub splits: Vec<SplitSummary>,
    /// Options with which it was made.
    pub spec: toml::Table,
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
    /// Number of files.
    pub files: usize,
    /// Size of these files on disk.
    pub file_bytes: Bytes,
    /// The arrays of the first file.
    pub arrays: Vec<ArraySummary>,
    /// Values of the first samples; absent for an empty split.
    pub values: Option<ValueSummary>,
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
    pub storage: StorageSummary,
}

/// Storage layout of an array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "layout")]
pub enum StorageSummary {
    /// Contiguous.
    Contiguous,
    /// Chunked.
    Chunked {
        /// Extents of a chunk.
        chunk: Vec<usize>,
        /// Filters applied to each chunk, in order of writing.
        filters: Vec<String>,
    },
    /// In the header (compact).
    Compact,
    /// In other files (external or virtual).
    Virtual,
    /// Compressed from end to end.
    Stream {
        /// The compression.
        filter: &'static str,
    },
}

/// Statistics over part of the values of a split.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ValueSummary {
    /// Samples read, from the first on.
    pub samples: usize,
    /// Elements read.
    pub elements: usize,
    /// Smallest value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
    /// Arithmetic mean.
    pub mean: f64,
}

/// Summarizes the dataset at `path`; reads headers and at most 2^24 values per split.
///
/// Errors: as [`Dataset::open`] and [`crate::Reader::read_volume`].
pub fn inspect(path: impl AsRef<Path>) -> Result<DatasetSummary, DataError> {
    let dataset = Dataset::open(path)?;
    let [channels, depth, height, width] = dataset.shape();
    let elements = channels * depth * height * width;
    let splits = Split::ALL.iter().map(|&split| summarize(&dataset, split));
    Ok(DatasetSummary {
        path: dataset.path().to_path_buf(),
        kind: dataset.kind(),
        channels,
        extent: [depth, height, width],
        dtype: dataset.dtype(),
        targets: dataset.targets().to_vec(),
        labels: dataset.labels(),
        sample_bytes: Bytes((elements * dataset.dtype().size_bytes()) as u64),
        splits: splits.collect::<Result<_, _>>()?,
        spec: dataset.spec().clone(),
    })
}

fn summarize(dataset: &Dataset, split: Split) -> Result<SplitSummary, DataError> {
    let paths = dataset.files(split).paths();
    let mut file_bytes = 0;
    for path in &paths {
        let unopenable = |error: std::io::Error| DataError::Unopenable {
            path: path.to_path_buf(),
            reason: error.to_string(),
        };
        file_bytes += path.metadata().map_err(unopenable)?.len();
    }
    let mut universes = dataset.universes(split).to_vec();
    universes.sort_unstable();
    universes.dedup();
    Ok(SplitSummary {
        split,
        samples: dataset.samples(split),
        universes: universes.len(),
        files: paths.len(),
        file_bytes: Bytes(file_bytes),
        arrays: paths
            .first()
            .map(|path| arrays(path))
            .transpose()?
            .unwrap_or_default(),
        values: values(dataset, split)?,
    })
}

fn arrays(path: &Path) -> Result<Vec<ArraySummary>, DataError> {
    let file = SourceFile::open(path)?;
    let summary = |key: String| {
        let array = file.array(&key)?;
        Ok(ArraySummary {
            dtype: array.element.name().to_string(),
            shape: array.shape,
            storage: match array.stored {
                Stored::Contiguous => StorageSummary::Contiguous,
                Stored::Chunked { chunk, filters } => StorageSummary::Chunked { chunk, filters },
                Stored::Compact => StorageSummary::Compact,
                Stored::Virtual => StorageSummary::Virtual,
                Stored::Stream { filter } => StorageSummary::Stream { filter },
            },
            key,
        })
    };
    file.keys().into_iter().map(summary).collect()
}

/// Whole samples as long as they fit; of a first one too large, its first depth slices.
fn values(dataset: &Dataset, split: Split) -> Result<Option<ValueSummary>, DataError> {
    let [channels, depth, height, width] = dataset.shape();
    let slice = channels * height * width;
    let taken_depth = depth.min((ELEMENTS_MAX / slice).max(1));
    let samples = dataset
        .samples(split)
        .min((ELEMENTS_MAX / (slice * taken_depth)).max(1));
    if samples == 0 {
        return Ok(None);
    }
    let mut reader = dataset.reader(split);
    let mut buffer = Samples::new(dataset.dtype());
    let mut count = Count {
        min: f64::INFINITY,
        max: f64::NEG_INFINITY,
        sum: 0.0,
    };
    for sample in 0..samples {
        let region = [0..channels, 0..taken_depth, 0..height, 0..width];
        reader.read_volume(sample, region, &mut buffer)?;
        match &buffer {
            Samples::I16(values) => values
                .iter()
                .for_each(|&value| count.take(f64::from(value))),
            Samples::F32(values) => values
                .iter()
                .for_each(|&value| count.take(f64::from(value))),
        }
    }
    let elements = samples * slice * taken_depth;
    let mean = count.sum / elements as f64;
    Ok(Some(ValueSummary {
        samples,
        elements,
        min: count.min,
        max: count.max,
        mean,
    }))
}

struct Count {
    min: f64,
    max: f64,
    sum: f64,
}

impl Count {
    fn take(&mut self, value: f64) {
        self.min = self.min.min(value);
        self.max = self.max.max(value);
        self.sum += value;
    }
}
