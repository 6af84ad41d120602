//! Finding the files of samples, and what a sample is.

use std::path::{Component, Path, PathBuf};

use partita_formats::{
    DType, DataError, DimOrder, ReadError, SourceArray, SourceFile, VolumeShape,
};

use crate::convert::ConvertSpec;
use crate::convert::cases::{Case, Cases};
use crate::convert::damaged::Damaged;
use crate::convert::geometry::Geometry;
use crate::convert::source_files::{ENDS, Unread, files_of};
use crate::convert::task::Task;
use crate::disk::check_samples;
use crate::files::FileEntry;
use crate::keys::Keys;
use crate::split::Split;

/// All samples, and what they have in common.
pub(super) struct Found {
    pub(super) samples: Vec<Sample>,
    pub(super) shape: VolumeShape,
    pub(super) dtype: DType,
    pub(super) keys: Keys,
    pub(super) are_images: bool,
    /// Whether samples are converted without answers.
    pub(super) are_alone: bool,
    /// What the folder of the images says of them.
    pub(super) task: Option<Task>,
    /// Files of samples that are left out because they are damaged.
    pub(super) damaged: Vec<String>,
    /// Lines for the user.
    pub(super) notes: Vec<String>,
}

/// A sample of a file.
pub(super) struct Sample {
    pub(super) entry: FileEntry,
    /// Files of further channels, in order.
    pub(super) more: Vec<PathBuf>,
    /// Its number in a file of several.
    pub(super) place: Option<usize>,
    /// The split that a folder is named after.
    pub(super) split: Option<Split>,
    /// Number of the subject; samples of one are in one split.
    pub(super) subject: usize,
    /// The path below the source.
    pub(super) below: PathBuf,
    /// Where its voxels lie, if that is known.
    pub(super) geometry: Option<Geometry>,
}

impl Found {
    /// The files, each once, in order; of samples of several files those of one number.
    pub(super) fn entries(&self, file: usize) -> Vec<FileEntry> {
        let firsts = self
            .samples
            .iter()
            .filter(|sample| sample.place.is_none_or(|place| place == 0));
        firsts.map(|sample| sample.entry(file)).collect()
    }

    /// Files of each sample.
    pub(super) fn files_per_sample(&self) -> usize {
        1 + self.samples[0].more.len()
    }
}

impl Sample {
    /// One of its files; answers are with the first.
    pub(super) fn entry(&self, file: usize) -> FileEntry {
        match file.checked_sub(1).and_then(|at| self.more.get(at)) {
            Some(more) => FileEntry {
                volumes: more.clone(),
                targets: None,
                stacked: None,
                extent: self.entry.extent,
            },
            None => self.entry.clone(),
        }
    }
}

pub(super) fn find(asked: &ConvertSpec) -> Result<Found, DataError> {
    let (files, unread) = files_of(asked)?;
    let mut cases = Cases::of(files, asked)?;
    let damaged = Damaged::take_out(&mut cases.all, asked)?;
    let Some(first) = cases.all.first() else {
        return Err(no_samples(asked, &unread));
    };
    let mut sample = SampleKind::of(&first.image.path, asked)?;
    sample.join(first, cases.task.as_ref(), asked)?;
    cases.notes.extend(left_out(&unread));
    cases.notes.extend(damaged.notes());
    let mut samples = Vec::new();
    let mut subjects = std::collections::BTreeMap::new();
    let channels = sample.shape[0] / (1 + first.more.len());
    for case in &cases.all {
        let file = &case.image;
        let (count, extent) = sample.measure(&file.path, channels)?;
        for more in &case.more {
            sample.measure(more, channels)?;
        }
        for place in 0..count.unwrap_or(1) {
            // What is stacked in one file is distinguished by its position.
            let name = subject(&file.below);
            let name = if count.unwrap_or(1) > 1 {
                format!("{name}/{place}")
            } else {
                name
            };
            let next = subjects.len();
            samples.push(Sample {
                entry: FileEntry {
                    volumes: file.path.clone(),
                    targets: case.labels.clone(),
                    stacked: count,
                    extent: Some(extent),
                },
                more: case.more.clone(),
                place: count.map(|_| place),
                split: case.split.or(split_of(&file.below)),
                subject: *subjects.entry(name).or_insert(next),
                below: file.below.clone(),
                geometry: None,
            });
        }
    }
    let largest = largest_extent(&mut samples);
    let shape = match asked.size {
        Some([height, width]) if sample.are_images => [sample.shape[0], 1, height, width],
        Some([height, width]) => {
            let [_, d, h, w] = sample.shape;
            return Err(DataError::NoImages {
                path: first.image.path.clone(),
                height,
                width,
                extents: format!("{d}x{h}x{w}"),
            });
        }
        None => [sample.shape[0], largest[0], largest[1], largest[2]],
    };
    Ok(Found {
        samples,
        shape,
        dtype: asked.dtype.unwrap_or(sample.dtype),
        keys: sample.keys,
        are_images: sample.are_images,
        are_alone: cases.are_alone,
        task: cases.task,
        damaged: damaged.names(),
        notes: cases.notes,
    })
}

/// The largest extents along each dim. Entries keep theirs only where they differ.
pub(super) fn largest_extent(samples: &mut [Sample]) -> [usize; 3] {
    let extents = samples.iter().filter_map(|sample| sample.entry.extent);
    let largest = extents.clone().fold([1; 3], |most, extent| {
        std::array::from_fn(|dim| extent[dim].max(most[dim]))
    });
    if extents.clone().all(|extent| extent == largest) {
        samples
            .iter_mut()
            .for_each(|sample| sample.entry.extent = None);
    }
    largest
}

fn no_samples(asked: &ConvertSpec, unread: &Unread) -> DataError {
    let found = match counted(unread) {
        found if found.is_empty() => "no file of a known format is there".to_owned(),
        found => format!(
            "files of formats that are not read are there ({found}); SimpleITK and nibabel write volumes as `.nii.gz`, \
             Pillow images as `.png`"
        ),
    };
    DataError::NoSamples {
        path: asked.sources[0].clone(),
        found,
        valid: ENDS.join(", "),
    }
}

/// What is said of files that are not read.
fn left_out(unread: &Unread) -> Option<String> {
    let found = counted(unread);
    (!found.is_empty()).then(|| format!("files of formats that are not read are left out: {found}"))
}

fn counted(unread: &Unread) -> String {
    let each = unread
        .iter()
        .map(|(end, count)| format!("{count} of {end}"));
    each.collect::<Vec<_>>().join(", ")
}

/// Who or what a file shows. Crops of one universe of CosmoFlow end in `_NNN.tfrecord`.
fn subject(below: &Path) -> String {
    let name = below.to_string_lossy().into_owned();
    match name.split_once(".tfrecord") {
        Some((stem, _)) => stem
            .rsplit_once('_')
            .map_or(stem, |(universe, _)| universe)
            .to_owned(),
        None => name,
    }
}

/// The split that one of the folders is named after.
fn split_of(below: &Path) -> Option<Split> {
    let folders = below.parent()?.components();
    folders
        .filter_map(|part| match part {
            Component::Normal(name) => name.to_str(),
            _ => None,
        })
        .find_map(|name| match name.to_lowercase().as_str() {
            "train" | "training" => Some(Split::Train),
            "val" | "valid" | "validation" | "dev" => Some(Split::Validation),
            "test" | "testing" => Some(Split::Test),
            _ => None,
        })
}

/// What the first file says of all.
struct SampleKind {
    keys: Keys,
    shape: VolumeShape,
    dtype: DType,
    are_images: bool,
    is_stacked: bool,
}

impl SampleKind {
    fn of(path: &Path, asked: &ConvertSpec) -> Result<Self, DataError> {
        let name = path.to_string_lossy().to_lowercase();
        let are_images = [".png", ".jpg", ".jpeg"]
            .iter()
            .any(|end| name.ends_with(end));
        let is_record = name.contains(".tfrecord");
        let mut keys = asked.keys.clone();
        let usual = Keys::default();
        if is_record && keys.volume == usual.volume {
            keys.volume = "x".to_owned();
        }
        if is_record && keys.target == usual.target {
            keys.target = "y".to_owned();
        }
        let file = SourceFile::open(path)?.reading(keys.access());
        let array = file.array(&keys.volume)?;
        let rank = array.shape.len();
        if is_record && rank != 5 && keys.order.is_none() {
            let reason = format!(
                "its records hold lists of {} numbers, and do not state their shape; name their dims (`--layout NW`), \
                 or write the samples as NPY or HDF5",
                array.shape.last().unwrap_or(&0)
            );
            return Err(ReadError::Unsupported(reason).of(path, Some(&keys.volume), None));
        }
        let usual = match rank {
            3 if are_images => "HWC",
            5 if is_record => "NDHWC",
            1 => "W",
            2 => "HW",
            3 => "DHW",
            4 => "CDHW",
            _ => "NCDHW",
        };
        let usual: DimOrder = usual.parse().unwrap_or_default();
        let order = keys.order.get_or_insert(usual).clone();
        let (samples, mut shape) = read_shape(&array, &order)?;
        if are_images {
            // Transparency is left out.
            shape[0] = if shape[0] > 2 { 3 } else { 1 };
        }
        Ok(Self {
            dtype: array.delivered()?,
            keys,
            shape,
            are_images,
            is_stacked: samples.is_some(),
        })
    }

    /// Adds the channels of the other files of the first case.
    ///
    /// Errors: a case of several files of several samples; fewer channels than the task has.
    fn join(
        &mut self,
        first: &Case,
        task: Option<&Task>,
        asked: &ConvertSpec,
    ) -> Result<(), DataError> {
        let each = self.shape[0];
        if self.is_stacked && !first.more.is_empty() {
            return Err(DataError::BadTask {
                path: first.image.path.clone(),
                found: "a channel of a case holds several samples".to_owned(),
                valid: "one volume or image is needed in each file".to_owned(),
            });
        }
        for path in &first.more {
            let other = Self::of(path, asked)?;
            if other.shape != self.shape {
                let text = |shape: VolumeShape| shape.map(|extent| extent.to_string()).join("x");
                return Err(DataError::MixedShapes {
                    path: path.clone(),
                    got: text(other.shape),
                    expected: text(self.shape),
                    remedy: "all channels of a case need one shape (C, D, H, W)",
                });
            }
        }
        self.shape[0] = each * (1 + first.more.len());
        let names = task.map_or(&[][..], |task| &task.channels);
        match task.filter(|_| !names.is_empty() && names.len() != self.shape[0]) {
            None => Ok(()),
            Some(task) => Err(task.bad(
                format!(
                    "it names {} channels ({}), and {} has {}",
                    names.len(),
                    names.join(", "),
                    first.image.path.display(),
                    self.shape[0]
                ),
                "as many are needed: files `CASE_0000`, `CASE_0001` and so on beside one another, a file with all of \
                 them, or fewer names"
                    .to_owned(),
            )),
        }
    }

    /// Samples of a file of this many channels, where it is a stack of them, and their D, H, W; the element type becomes
    /// one that holds its values, too. Images all count as the first.
    fn measure(
        &mut self,
        path: &Path,
        channels: usize,
    ) -> Result<(Option<usize>, [usize; 3]), DataError> {
        let [_, first @ ..] = self.shape;
        let whole = [channels, first[0], first[1], first[2]];
        if self.are_images {
            return Ok((None, first));
        }
        let file = SourceFile::open(path)?.reading(self.keys.access());
        let array = file.array(&self.keys.volume)?;
        if array.delivered()? == DType::Float32 {
            self.dtype = DType::Float32;
        }
        let order = self.keys.order.clone().unwrap_or_default();
        if !self.is_stacked && order.fit(&array.shape, 1, whole).is_some() {
            return Ok((None, first));
        }
        let (samples, [found, extent @ ..]) = read_shape(&array, &order)?;
        if found != channels {
            return Err(array.wrong_shape(format!("{channels} channels, as the first file has")));
        }
        Ok((samples, extent))
    }
}

fn read_shape(
    array: &SourceArray,
    order: &DimOrder,
) -> Result<(Option<usize>, VolumeShape), DataError> {
    let read = order.read_shape(&array.shape);
    let (samples, shape) = read
        .ok_or_else(|| array.wrong_rank(&format!("({}), or another `--layout`", order.dims())))?;
    if shape.contains(&0) || samples == Some(0) {
        let valid = "at least one sample, and extents of at least 1";
        return Err(array.wrong_shape(valid.to_owned()));
    }
    check_samples(array, samples.unwrap_or(1))?;
    Ok((samples, shape))
}
