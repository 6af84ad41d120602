//! Reading regions of samples.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use partita_space::Bytes;

use crate::classes::{Classes, SampleLocation};
use crate::error::DataError;
use crate::files::Inner;
use crate::hdf5::{SourceArray, SourceFile, Stored};
use crate::keys::{LABEL_KEY, PHYSICAL_KEY, TARGET_KEY};
use crate::samples::{Samples, VolumeShape};
use crate::sieve::{self, Asked};
use crate::slab::{self, Region4};
use crate::split::Split;

/// What a reader has asked of its files so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadTally {
    /// Regions of volumes read.
    pub volumes: u64,
    /// Bytes of these regions, uncompressed.
    pub volume_bytes: Bytes,
    /// Pieces of file they came in: contiguous runs, or chunks where storage is chunked.
    pub file_pieces: u64,
    /// Bytes of these pieces, uncompressed: more than `volume_bytes` by whole chunks, and by the
    /// gaps between rows shorter than a page where a region is cut along the width.
    pub file_bytes: Bytes,
    /// Target vectors, or regions of class indices, read.
    pub targets: u64,
    /// Bytes of these.
    pub target_bytes: Bytes,
}

/// Reads the samples of one split through file handles of its own.
///
/// `Send`, so that each rank takes its own to its thread. Keeps one file open at a time.
pub struct Reader {
    dataset: Arc<Inner>,
    split: Split,
    open: Option<OpenFile>,
    buffer: Samples,
    tally: ReadTally,
}

struct OpenFile {
    path: PathBuf,
    volumes: SourceArray,
    /// Vectors of numbers, unless there are labels.
    targets: Option<SourceArray>,
    labels: Option<SourceArray>,
    physical: Option<SourceArray>,
}

impl Reader {
    pub(crate) fn new(dataset: Arc<Inner>, split: Split) -> Self {
        Self {
            dataset,
            split,
            open: None,
            buffer: Samples::I16(Vec::new()),
            tally: ReadTally::default(),
        }
    }

    /// Number of samples of the split.
    pub fn samples(&self) -> usize {
        self.dataset.splits[self.split as usize].samples()
    }

    /// The split that it reads.
    pub fn split(&self) -> Split {
        self.split
    }

    /// The file of a sample of the split.
    pub fn file(&self, sample: usize) -> &Path {
        self.dataset.splits[self.split as usize].locate(sample).0
    }

    /// Reads one region of a sample: that hyperslab, never the whole sample.
    ///
    /// Shapes: `region` is half-open over (C, D, H, W); `out` is replaced by the elements of the
    /// region in that order, with the dataset's element type. An empty region reads nothing.
    /// Contiguous storage: only the region's bytes are read, or its whole rows where it is cut
    /// along the width and a row is no longer than a page. Chunked storage: only the chunks that
    /// the region touches are decoded.
    /// Errors: `SampleOutOfRange`, `RegionOutOfRange`, and those of the file; `out` is
    /// unspecified then.
    pub fn read_volume(
        &mut self,
        sample: usize,
        region: Region4,
        out: &mut Samples,
    ) -> Result<(), DataError> {
        self.check_region(&region, self.dataset.shape)?;
        let mut buffer = std::mem::replace(&mut self.buffer, Samples::I16(Vec::new()));
        let result = self
            .locate(sample)
            .and_then(|(file, place)| read_region(&file.volumes, place, &region, &mut buffer, out));
        self.buffer = buffer;
        let asked = result?;
        let element_bytes = self.dataset.dtype.size_bytes() as u64;
        self.tally.volumes += 1;
        self.tally.volume_bytes += Bytes(slab::elements(&region) as u64 * element_bytes);
        self.tally.file_pieces += asked.pieces;
        self.tally.file_bytes += Bytes(asked.elements * element_bytes);
        Ok(())
    }

    /// Reads the targets of a sample, normalized to [-1, 1] (key `unitPar`).
    ///
    /// Errors: `SampleOutOfRange` and those of the file. Panics where the dataset has labels instead.
    pub fn read_target(&mut self, sample: usize) -> Result<Vec<f32>, DataError> {
        let (file, place) = self.locate(sample)?;
        let targets = file.targets.as_ref();
        let values = read_row(targets.expect("a dataset without labels"), place)?;
        self.tally.targets += 1;
        self.tally.target_bytes += Bytes(4 * values.len() as u64);
        Ok(values)
    }

    /// Reads one region of the class indices of a sample (key `labels`), as [`Self::read_volume`]
    /// does of its values.
    ///
    /// Shapes: `region` is half-open over (1, D, H, W), the extents being the dataset's
    /// [`labels`](crate::Dataset::labels). Errors: as there, and `NoClass` where the classes are known.
    /// Panics where the dataset has none.
    pub fn read_labels(
        &mut self,
        sample: usize,
        region: Region4,
        out: &mut Samples,
    ) -> Result<(), DataError> {
        let extent = self.dataset.labels.expect("a dataset with labels");
        let [d, h, w] = extent;
        self.check_region(&region, [1, d, h, w])?;
        let mut buffer = Samples::I16(Vec::new());
        let (classes, split) = (self.dataset.targets.len(), self.split);
        let (file, place) = self.locate(sample)?;
        let labels = file.labels.as_ref().expect("a dataset with labels");
        read_region(labels, place, &region, &mut buffer, out)?;
        // None are known of a dataset without names.
        if classes > 0 {
            let location = SampleLocation {
                path: &file.path,
                key: LABEL_KEY,
                split,
                sample,
            };
            Classes::of_dataset(classes).check(location, &region, out)?;
        }
        self.tally.targets += 1;
        self.tally.target_bytes += Bytes(2 * slab::elements(&region) as u64);
        Ok(())
    }

    /// Reads the targets of a sample in physical units (key `physPar`), where the file has them.
    ///
    /// Errors: `SampleOutOfRange` and those of the file.
    pub fn read_physical(&mut self, sample: usize) -> Result<Option<Vec<f32>>, DataError> {
        let (file, place) = self.locate(sample)?;
        file.physical
            .as_ref()
            .map(|array| read_row(array, place))
            .transpose()
    }

    /// What was read so far.
    pub fn tally(&self) -> ReadTally {
        self.tally
    }

    fn check_region(&self, region: &Region4, shape: VolumeShape) -> Result<(), DataError> {
        let inside = region
            .iter()
            .zip(shape)
            .all(|(r, extent)| r.start <= r.end && r.end <= extent);
        if inside {
            return Ok(());
        }
        Err(DataError::RegionOutOfRange {
            path: self.dataset.path.clone(),
            region: format!("{region:?}"),
            shape,
        })
    }

    /// The open file of a sample and the sample's place in it.
    fn locate(&mut self, sample: usize) -> Result<(&OpenFile, Option<usize>), DataError> {
        let files = &self.dataset.splits[self.split as usize];
        if sample >= files.samples() {
            return Err(DataError::SampleOutOfRange {
                path: self.dataset.path.clone(),
                split: self.split.name(),
                sample,
                samples: files.samples(),
            });
        }
        let (path, place) = files.locate(sample);
        let stacked = place.map(|_| files.samples());
        let open = match self.open.take() {
            Some(open) if open.path == path => open,
            Some(_) | None => OpenFile::open(&self.dataset, path.to_path_buf(), stacked)?,
        };
        Ok((self.open.insert(open), place))
    }
}

impl OpenFile {
    fn open(dataset: &Inner, path: PathBuf, samples: Option<usize>) -> Result<Self, DataError> {
        let file = SourceFile::open(&path)?;
        let physical = file
            .has(PHYSICAL_KEY)
            .then(|| dataset.parameters(&file, PHYSICAL_KEY, samples))
            .transpose()?;
        let labels = dataset.label_array(&file, samples)?;
        let targets = match labels {
            Some(_) => None,
            None => Some(dataset.parameters(&file, TARGET_KEY, samples)?),
        };
        Ok(Self {
            volumes: dataset.volumes(&file, samples)?,
            targets,
            labels,
            physical,
            path,
        })
    }
}

fn read_region(
    array: &SourceArray,
    place: Option<usize>,
    region: &Region4,
    buffer: &mut Samples,
    out: &mut Samples,
) -> Result<Asked, DataError> {
    let box_nc: Vec<(usize, usize)> = place
        .map(|place| (place, 1))
        .into_iter()
        .chain(region.iter().map(|range| (range.start, range.len())))
        .collect();
    let width = array.shape[array.shape.len() - 1];
    let elements = slab::elements(region) as u64;
    match &array.stored {
        Stored::Contiguous if sieve::pays(region, width, array.dtype()?) => {
            sieve::read(array, place, region, buffer, out)
        }
        Stored::Contiguous | Stored::Compact => {
            array.read_box(&box_nc, out)?;
            Ok(Asked {
                pieces: slab::runs(&array.shape, &box_nc),
                elements,
            })
        }
        Stored::Chunked { chunk, .. } => {
            array.read_box(&box_nc, out)?;
            let pieces = slab::chunks(chunk, &box_nc);
            Ok(Asked {
                pieces,
                elements: pieces * chunk.iter().product::<usize>() as u64,
            })
        }
        Stored::Virtual => {
            array.read_box(&box_nc, out)?;
            Ok(Asked {
                pieces: 1,
                elements,
            })
        }
    }
}

/// One row of an (N, targets) array, or the whole of a (targets) array.
fn read_row(array: &SourceArray, place: Option<usize>) -> Result<Vec<f32>, DataError> {
    let length = array.shape.last().copied().unwrap_or(0);
    match place {
        Some(place) => array.read_floats(&[place, 0], &[1, length]),
        None => array.read_floats(&[0], &[length]),
    }
}
