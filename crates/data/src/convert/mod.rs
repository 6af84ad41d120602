//! Conversion of users' files to a dataset: finds samples and their answers, splits them, writes them one by one.

mod answers;
mod find;
mod resize;
mod split;

use std::path::PathBuf;
use std::sync::Arc;

use partita_program::Transform;

use crate::convert::answers::Answers;
use crate::convert::find::Found;
use crate::dataset::Dataset;
use crate::error::DataError;
use crate::files::{Files, Inner};
use crate::formats::{image, nifti};
use crate::index::Kind;
use crate::keys::Keys;
use crate::layout::Layout;
use crate::reader::Reader;
use crate::samples::{DType, Samples, VolumeShape};
use crate::slab;
use crate::split::Split;
use crate::valid::Valid;
use crate::writer::{DatasetSpec, DatasetWriter};

/// Key of [`affines`] in the part of the index that says what was converted.
pub(crate) const AFFINES: &str = "affines";

/// What is to be converted, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvertSpec {
    /// Files, array stores, or folders of them.
    pub sources: Vec<PathBuf>,
    /// Output folder, new or empty.
    pub out: PathBuf,
    /// Names of the arrays in the files, and the order of their dims.
    pub keys: Keys,
    /// Fractions of training, validation and test; they sum to 1. Folders that are named as splits go before.
    pub fractions: [f64; 3],
    /// Seed of the split.
    pub seed: u64,
    /// Element type of the samples (default: the smallest that holds what is stored).
    pub dtype: Option<DType>,
    /// Height and width that images are scaled and cropped to.
    pub size: Option<[usize; 2]>,
    /// A table of answers (CSV), or a file of arrays with a row for each sample.
    pub targets: Option<PathBuf>,
    /// Names of the classes, where the files do not say them.
    pub classes: Vec<String>,
    /// A class index of positions of no class.
    pub ignore: Option<i64>,
}

/// Samples that were found, before anything is written.
pub struct Conversion {
    path: PathBuf,
    spec: DatasetSpec,
    /// The samples of each split, by their number among all.
    splits: [Vec<usize>; 3],
    found: Found,
    answers: Answers,
    size: Option<[usize; 2]>,
    inner: Arc<Inner>,
}

impl Conversion {
    /// Finds samples and answers, and decides on the splits. Reads headers, and class indices in files.
    ///
    /// Errors: no samples, no answers, another shape, and those of the files.
    pub fn find(asked: &ConvertSpec) -> Result<Self, DataError> {
        let mut found = find::find(asked)?;
        let answers = answers::find(asked, &mut found)?;
        let mut inner = Inner {
            path: asked.sources[0].clone(),
            kind: Some(Kind::Other),
            shape: found.shape,
            dtype: found.dtype,
            targets: answers.names.clone(),
            labels: answers.labels,
            ignored: asked.ignore,
            has_targets: answers.are_in_files,
            keys: found.keys.clone(),
            splits: [
                Files::new(found.entries()),
                Files::default(),
                Files::default(),
            ],
            universes: [Vec::new(), Vec::new(), Vec::new()],
            spec: toml::Table::new(),
        };
        let mut answers = answers;
        if inner.has_targets && inner.labels.is_some() && answers.names.is_empty() {
            answers.names = answers::count_classes(&inner)?;
            inner.targets.clone_from(&answers.names);
        }
        let splits = split::split(asked, &found)?;
        let subjects = |split: Split| {
            let samples = splits[split as usize].iter();
            samples
                .map(|&sample| found.samples[sample].subject as u64)
                .collect()
        };
        let mut made = made_of(asked);
        if let Some(affines) = affines(asked, &found, &splits) {
            made.insert(AFFINES.to_owned(), affines.into());
        }
        let spec = DatasetSpec {
            kind: Kind::Other,
            shape: found.shape,
            dtype: found.dtype,
            targets: answers.names.clone(),
            labels: answers.labels,
            layout: Layout::Contiguous,
            train: subjects(Split::Train),
            validation: subjects(Split::Validation),
            test: subjects(Split::Test),
            spec: made,
        };
        Ok(Self {
            path: asked.out.clone(),
            spec,
            splits,
            found,
            answers,
            size: asked.size,
            inner: Arc::new(inner),
        })
    }

    /// What the dataset will hold.
    pub fn spec(&self) -> &DatasetSpec {
        &self.spec
    }

    /// Number of samples of all splits.
    pub fn samples(&self) -> usize {
        self.splits.iter().map(Vec::len).sum()
    }

    /// Writes the dataset, one sample in memory at a time. Stops, and leaves nothing, when `go_on` answers the
    /// number of samples written with false; the answer is `None` then.
    ///
    /// Errors: those of the files, of another shape, of values that cannot be trained on, and of the output.
    pub fn write(
        &self,
        mut go_on: impl FnMut(usize) -> bool,
    ) -> Result<Option<Dataset>, DataError> {
        let writer = DatasetWriter::create(&self.path, &self.spec)?;
        let mut writer = writer.ignoring(self.inner.ignored);
        let mut reader = Reader::new(Arc::clone(&self.inner), Split::Train);
        let mut volume = Samples::new(self.found.dtype);
        let mut written = 0;
        for split in Split::ALL {
            for &sample in &self.splits[split as usize] {
                if !go_on(written) {
                    return Ok(None);
                }
                self.read_volume(&mut reader, sample, &mut volume)?;
                self.append(&mut writer, split, &mut reader, sample, &volume)?;
                written += 1;
            }
        }
        go_on(written);
        writer.finish().map(Some)
    }

    fn read_volume(
        &self,
        reader: &mut Reader,
        sample: usize,
        out: &mut Samples,
    ) -> Result<(), DataError> {
        let shape = self.found.shape;
        if self.found.are_images {
            *out = self.read_image(&self.found.samples[sample].entry.volumes)?;
        } else {
            reader.read_volume(sample, shape.map(|extent| 0..extent), out)?;
        }
        let valid = Valid::under(Transform::Identity);
        let Some((at, value)) = valid.first_outside(out) else {
            return Ok(());
        };
        let [c, d, h, w] = slab::position(&shape.map(|extent| 0..extent), at);
        let found = &self.found.samples[sample];
        let place = found
            .place
            .map_or_else(String::new, |place| format!("sample {place} of the file, "));
        Err(DataError::Unfit {
            path: found.entry.volumes.clone(),
            key: self.inner.keys.volume.clone(),
            found: format!(
                "{place}at (C, D, H, W) = ({c}, {d}, {h}, {w}): {}",
                valid.fault(value)
            ),
        })
    }

    fn read_image(&self, path: &std::path::Path) -> Result<Samples, DataError> {
        let unreadable = |reason: String| DataError::Unreadable {
            path: path.to_path_buf(),
            key: None,
            sample: None,
            reason,
        };
        let image = image::read(path).map_err(unreadable)?;
        let [channels, _, height, width]: VolumeShape = self.found.shape;
        let got = image.shape;
        if self.size.is_none() && got[..2] != [height, width] {
            return Err(DataError::MixedShapes {
                path: path.to_path_buf(),
                got: format!("{}x{}", got[0], got[1]),
                expected: format!("{height}x{width}"),
                remedy: "`--size HxW` scales and crops all images to one size",
            });
        }
        resize::fit(&image, channels, [height, width], self.found.dtype).map_err(unreadable)
    }

    fn append(
        &self,
        writer: &mut DatasetWriter,
        split: Split,
        reader: &mut Reader,
        sample: usize,
        volume: &Samples,
    ) -> Result<(), DataError> {
        if let Some(class) = self.answers.class(sample) {
            return writer.append_labeled(split, volume, &Samples::I16(vec![class]));
        }
        if let Some(numbers) = self.answers.numbers(sample) {
            return writer.append(split, volume, &self.answers.normalized(numbers), numbers);
        }
        if let Some([d, h, w]) = self.answers.labels {
            let mut labels = Samples::new(DType::Int16);
            reader.read_labels(sample, [0..1, 0..d, 0..h, 0..w], &mut labels)?;
            return writer.append_labeled(split, volume, &labels);
        }
        let numbers = reader.read_target(sample)?;
        if let Some(at) = numbers.iter().position(|number| !number.is_finite()) {
            let place = self.found.samples[sample].place;
            let place =
                place.map_or_else(String::new, |place| format!("sample {place} of the file, "));
            return Err(DataError::Unfit {
                path: reader.target_file(sample).to_path_buf(),
                key: self.inner.keys.target.clone(),
                found: format!("{place}target {at}: {} is not finite", numbers[at]),
            });
        }
        let physical = reader.read_physical(sample)?;
        writer.append(
            split,
            volume,
            &numbers,
            physical.as_ref().unwrap_or(&numbers),
        )
    }
}

/// Positions of the voxels of the samples of each split, where each is a whole NIfTI file that has them.
fn affines(asked: &ConvertSpec, found: &Found, splits: &[Vec<usize>; 3]) -> Option<toml::Table> {
    // With another order of dims they are those of other axes.
    if asked.keys.order.is_some() || found.samples.iter().any(|sample| sample.place.is_some()) {
        return None;
    }
    let of_sample = |&sample: &usize| -> Option<toml::Value> {
        let path = &found.samples[sample].entry.volumes;
        Some(nifti::affine(path)?.to_toml())
    };
    let mut table = toml::Table::new();
    for split in [Split::Train, Split::Validation, Split::Test] {
        let samples = splits[split as usize].iter();
        let affines: Option<Vec<toml::Value>> = samples.map(of_sample).collect();
        table.insert(split.name().to_owned(), affines?.into());
    }
    Some(table)
}

/// The part of the index that says what was converted.
fn made_of(asked: &ConvertSpec) -> toml::Table {
    let mut made = toml::Table::new();
    let sources = asked
        .sources
        .iter()
        .map(|path| path.display().to_string().into());
    made.insert("maker".to_owned(), "partita data convert".into());
    made.insert("sources".to_owned(), toml::Value::Array(sources.collect()));
    made.insert("seed".to_owned(), asked.seed.to_string().into());
    made
}
