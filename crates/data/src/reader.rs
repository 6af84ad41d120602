//! Reading regions of samples.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use partita_formats::sieve::{self, Asked};
use partita_formats::slab::{self, Region4};
use partita_formats::{DType, DataError, Elements, Samples, SourceFile, VolumeShape};
use partita_space::Bytes;

use crate::classes::{Classes, SampleLocation};
use crate::files::FileEntry;
use crate::keys::{Keys, PHYSICAL_KEY};
use crate::names;
use crate::opened::{Inner, SampleArray};
use crate::sample_source::{SourceError, SourceHandle};
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
    buffer: Option<Elements>,
    tally: ReadTally,
}

struct OpenFile {
    path: PathBuf,
    target_path: PathBuf,
    volumes: SampleArray,
    /// Vectors of numbers, unless there are labels.
    targets: Option<SampleArray>,
    labels: Option<SampleArray>,
    physical: Option<SampleArray>,
}

impl Reader {
    pub(crate) fn new(dataset: Arc<Inner>, split: Split) -> Self {
        Self {
            dataset,
            split,
            open: None,
            buffer: None,
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

    /// The name of a sample of the split, where the index gives it.
    pub fn given_name(&self, sample: usize) -> Option<&str> {
        self.dataset.names.given(self.split, sample)
    }

    /// An error in reading a sample, with its name.
    fn named(&self, sample: usize) -> impl Fn(DataError) -> DataError {
        move |error| names::named(error, self.given_name(sample))
    }

    /// The file of a sample of the split.
    pub fn file(&self, sample: usize) -> &Path {
        let (entry, _) = self.dataset.splits[self.split as usize].locate(sample);
        &entry.volumes
    }

    /// The file of the targets or class indices of a sample of the split.
    pub fn target_file(&self, sample: usize) -> &Path {
        let (entry, _) = self.dataset.splits[self.split as usize].locate(sample);
        entry.target_path()
    }

    /// Names of the arrays in the files.
    pub fn keys(&self) -> &Keys {
        &self.dataset.keys
    }

    /// Reads one region of a sample: that hyperslab, never the whole sample.
    ///
    /// Shapes: `region` is half-open over (C, D, H, W); `out` is replaced by the elements of the
    /// region in that order, whatever the order in the file, converted to the dataset's element type. An empty
    /// region reads nothing.
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
        let shape = self.dataset.shape_of(self.entry(sample)?);
        self.check_region(&region, shape)?;
        if self.dataset.source.is_some() {
            return self.read_volume_of_source(sample, &region, out);
        }
        let mut buffer = self.buffer.take();
        let dataset = Arc::clone(&self.dataset);
        let stored = dataset.channels.stored_region(&region);
        let result = self.locate(sample).and_then(|(file, place)| {
            let volumes = &file.volumes;
            let asked = read_region(volumes, place, &stored, dataset.dtype, &mut buffer, out)?;
            dataset.channels.arrange(&region, out);
            Ok((asked, file.volumes.array.stored_size as u64))
        });
        self.buffer = buffer;
        let (asked, element_bytes) = result.map_err(self.named(sample))?;
        self.tally.volumes += 1;
        self.tally.volume_bytes += Bytes(slab::elements(&region) as u64 * element_bytes);
        self.tally.file_pieces += asked.pieces;
        self.tally.file_bytes += Bytes(asked.elements * element_bytes);
        Ok(())
    }

    fn read_volume_of_source(
        &mut self,
        sample: usize,
        region: &Region4,
        out: &mut Samples,
    ) -> Result<(), DataError> {
        let dataset = Arc::clone(&self.dataset);
        let channels = &dataset.channels;
        let stored = channels.stored_region(region);
        if let Some(SourceHandle(source)) = &self.dataset.source {
            let read = source.read_volume((self.split, sample), &stored, out);
            read.map_err(|error| self.unread(sample, &error))?;
        }
        let fits = (slab::elements(&stored), self.dataset.dtype) == (out.len(), out.dtype());
        self.check_source(sample, fits)?;
        channels.arrange(region, out);
        self.tally.volumes += 1;
        self.tally.volume_bytes +=
            Bytes((slab::elements(region) * self.dataset.dtype.size_bytes()) as u64);
        Ok(())
    }

    /// Errors: the source gave something else than it was asked for.
    fn check_source(&self, sample: usize, fits: bool) -> Result<(), DataError> {
        if fits {
            return Ok(());
        }
        let reason =
            "it gave values of another number or type than its shape, targets and type tell";
        Err(self.unread(sample, &reason.into()))
    }

    fn unread(&self, sample: usize, error: &SourceError) -> DataError {
        DataError::Source {
            path: self.dataset.path.clone(),
            split: self.split.name(),
            sample,
            reason: error.to_string(),
        }
    }

    /// Reads the targets of a sample, normalized to [-1, 1] (key `unitPar`).
    ///
    /// Errors: `SampleOutOfRange` and those of the file. Panics where the dataset has labels instead.
    pub fn read_target(&mut self, sample: usize) -> Result<Vec<f32>, DataError> {
        self.entry(sample)?;
        if let Some(SourceHandle(source)) = &self.dataset.source {
            let values = source.read_numbers((self.split, sample));
            let values = values.map_err(|error| self.unread(sample, &error))?;
            let expected = self.dataset.meaning.stored(self.dataset.targets.len());
            self.check_source(sample, values.len() == expected)?;
            self.tally.targets += 1;
            return Ok(self.dataset.meaning.numbers(values));
        }
        let (file, place) = self.locate(sample)?;
        let targets = file.targets.as_ref();
        let values = read_row(targets.expect("a dataset without labels"), place);
        let values = values.map_err(self.named(sample))?;
        self.tally.targets += 1;
        self.tally.target_bytes += Bytes(4 * values.len() as u64);
        Ok(self.dataset.meaning.numbers(values))
    }

    /// Reads one region of the class indices of a sample (key `labels`), as [`Self::read_volume`]
    /// does of its values.
    ///
    /// Shapes: `region` is half-open over (1, D, H, W), the extents being those of
    /// [`labels_of`](crate::Dataset::labels_of). Errors: as there, and `NoClass` where the classes are known.
    /// Panics where the dataset has none.
    pub fn read_labels(
        &mut self,
        sample: usize,
        region: Region4,
        out: &mut Samples,
    ) -> Result<(), DataError> {
        self.read_labels_as_stored(sample, region.clone(), out)?;
        // None are known of a dataset without names.
        let classes = self.dataset.meaning.stored(self.dataset.targets.len());
        if classes == 0 {
            return Ok(());
        }
        let location = SampleLocation {
            path: self.target_file(sample),
            key: &self.dataset.keys.label,
            split: self.split,
            sample,
            name: self.given_name(sample),
        };
        Classes::of_dataset(classes, self.dataset.ignored).check(location, &region, out)?;
        self.dataset.meaning.classes(out);
        Ok(())
    }

    /// The same without a look at the classes.
    ///
    /// Errors: those of the files.
    pub fn read_labels_as_stored(
        &mut self,
        sample: usize,
        region: Region4,
        out: &mut Samples,
    ) -> Result<(), DataError> {
        let labels = self.dataset.labels_of(self.entry(sample)?);
        let [d, h, w] = labels.expect("a dataset with labels");
        self.check_region(&region, [1, d, h, w])?;
        if let Some(SourceHandle(source)) = &self.dataset.source {
            let read = source.read_classes((self.split, sample), &region, out);
            read.map_err(|error| self.unread(sample, &error))?;
            let fits = (slab::elements(&region), DType::Int16) == (out.len(), out.dtype());
            self.check_source(sample, fits)?;
            self.tally.targets += 1;
            return Ok(());
        }
        let (file, place) = self.locate(sample)?;
        let labels = file.labels.as_ref().expect("a dataset with labels");
        let read = read_region(labels, place, &region, DType::Int16, &mut None, out);
        read.map_err(no_whole_number).map_err(self.named(sample))?;
        self.tally.targets += 1;
        self.tally.target_bytes += Bytes(2 * slab::elements(&region) as u64);
        Ok(())
    }

    /// Reads the targets of a sample in physical units (key `physPar`), where the file has them.
    ///
    /// Errors: `SampleOutOfRange` and those of the file.
    pub fn read_physical(&mut self, sample: usize) -> Result<Option<Vec<f32>>, DataError> {
        self.entry(sample)?;
        if self.dataset.source.is_some() {
            return Ok(None);
        }
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

    /// The file of a sample that the split has.
    fn entry(&self, sample: usize) -> Result<&FileEntry, DataError> {
        let files = &self.dataset.splits[self.split as usize];
        if sample >= files.samples() {
            return Err(DataError::SampleOutOfRange {
                path: self.dataset.path.clone(),
                split: self.split.name(),
                sample,
                samples: files.samples(),
            });
        }
        Ok(files.locate(sample).0)
    }

    /// The open file of a sample and the sample's place in it.
    fn locate(&mut self, sample: usize) -> Result<(&OpenFile, Option<usize>), DataError> {
        self.entry(sample)?;
        let (entry, place) = self.dataset.splits[self.split as usize].locate(sample);
        let open = match self.open.take() {
            Some(open) if open.is_of(entry) => open,
            Some(_) | None => OpenFile::open(&self.dataset, entry)?,
        };
        Ok((self.open.insert(open), place))
    }
}

impl OpenFile {
    fn is_of(&self, entry: &FileEntry) -> bool {
        self.path == entry.volumes && self.target_path == entry.target_path()
    }

    fn open(dataset: &Inner, entry: &FileEntry) -> Result<Self, DataError> {
        let samples = entry.stacked;
        let open = |path: &Path| Ok(SourceFile::open(path)?.reading(dataset.keys.access()));
        let volumes = open(&entry.volumes)?;
        if !dataset.has_targets {
            return Ok(Self {
                volumes: dataset.volumes(&volumes, entry)?,
                targets: None,
                labels: None,
                physical: None,
                path: entry.volumes.clone(),
                target_path: entry.target_path().to_path_buf(),
            });
        }
        let other = entry.targets.as_deref().map(open).transpose()?;
        let answers = other.as_ref().unwrap_or(&volumes);
        // Samples alone are read from files without answers.
        let has_answers = !dataset.targets.is_empty() || dataset.labels.is_some();
        let physical = (has_answers && answers.has(PHYSICAL_KEY))
            .then(|| dataset.parameters(answers, PHYSICAL_KEY, samples))
            .transpose()?;
        let labels = dataset.label_array(answers, entry)?;
        let targets = match labels {
            None if has_answers => {
                Some(dataset.parameters(answers, &dataset.keys.target, samples)?)
            }
            Some(_) | None => None,
        };
        Ok(Self {
            volumes: dataset.volumes(&volumes, entry)?,
            targets,
            labels,
            physical,
            path: entry.volumes.clone(),
            target_path: entry.target_path().to_path_buf(),
        })
    }
}

/// Reads a region, brings it to (C, D, H, W) order and converts it.
pub(crate) fn read_region(
    from: &SampleArray,
    place: Option<usize>,
    region: &Region4,
    dtype: DType,
    buffer: &mut Option<Elements>,
    out: &mut Samples,
) -> Result<Asked, DataError> {
    let array = &from.array;
    let mut elements = array.buffer(out)?;
    let mut rows = match buffer.take() {
        Some(rows) if std::mem::discriminant(&rows) == std::mem::discriminant(&elements) => rows,
        Some(_) | None => Elements::new(&array.element),
    };
    let ranges = from.ranges(place, region);
    let copied = [
        (!from.axes().is_channels_first()).then(|| array.element.size()),
        (!elements.is(dtype)).then(|| dtype.size_bytes()),
    ];
    let copied = copied.into_iter().flatten().sum();
    let _copies = array.claim_copies(slab::elements(region), copied)?;
    let asked = sieve::read(
        array,
        from.axes().width(),
        &ranges,
        &mut rows,
        &mut elements,
    )?;
    *buffer = Some(rows);
    if !from.axes().is_channels_first() {
        elements = from.axes().to_channels_first(elements, region);
    }
    if elements.is(dtype) {
        elements.take_samples(out);
        return Ok(asked);
    }
    elements.convert(dtype, out).map_err(|misfit| {
        let [c, d, h, w] = slab::position(region, misfit.at);
        DataError::OutOfRange {
            path: array.path().to_path_buf(),
            key: array.key.clone(),
            found: format!(
                "{}at (C, D, H, W) = ({c}, {d}, {h}, {w}) is {}",
                place.map_or_else(String::new, |place| format!("sample {place} of the file ")),
                misfit.value
            ),
            expected: dtype.name(),
        }
    })?;
    Ok(asked)
}

/// A label that has no int16 is no class.
fn no_whole_number(error: DataError) -> DataError {
    match error {
        DataError::OutOfRange {
            path, key, found, ..
        } => DataError::Unfit {
            path,
            key,
            found: format!(
                "{found}, and classes are whole numbers in the range of int16; `partita data convert` with \
                 `--label-key` takes another array, with `--target-key` numbers"
            ),
        },
        other => other,
    }
}

/// The numbers of one sample.
fn read_row(from: &SampleArray, place: Option<usize>) -> Result<Vec<f32>, DataError> {
    let length = from.row_length();
    from.array
        .read_floats(&from.ranges(place, &[0..1, 0..1, 0..1, 0..length]))
}
