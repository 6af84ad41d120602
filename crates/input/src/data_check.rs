//! A look at the data before a training: faults that would end it after hours end it before it begins.
//!
//! A quick look takes some samples of each split, of large ones some slabs; a full one takes all. Values and answers
//! are held to the same rules as when they are loaded.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use partita_data::valid::Valid;
use partita_data::{
    ClassSet, Classes, Dataset, Occurrence, Reader, Split, SplitLabels, ValueCount,
    check_unconverted,
};
use partita_formats::slab::{self, Region4};
use partita_formats::{DType, DataError, Samples, VolumeShape};
use partita_space::on_threads;

use crate::prepare::{Preparation, prepare};
use crate::source::Accepted;
use crate::source::piece::{check_target, check_volume, location};

/// Samples of a split in a quick look.
const QUICK_SAMPLES: usize = 16;
/// Bytes of files that a quick look reads of a split, after which it takes no further sample.
const QUICK_BYTES: u64 = 64 << 20;
/// Samples with more elements are looked at in slabs.
const WHOLE_ELEMENTS_MAX: usize = 1 << 22;
/// Slabs of a large sample in a quick look: the first, the middle and the last.
const QUICK_SLABS: usize = 3;

/// How much of a dataset is looked at before a training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CheckScope {
    /// Nothing.
    None,
    /// A few samples of each split, so that it takes about a second.
    #[default]
    Quick,
    /// Every sample that the training reads.
    All,
}

impl CheckScope {
    /// The scopes by name.
    pub const CHOICES: [(&str, Self); 3] = [
        ("quick", Self::Quick),
        ("all", Self::All),
        ("none", Self::None),
    ];
}

/// What is looked at, and by whom.
pub struct DataCheck<'c> {
    /// The dataset, of which training and validation split are looked at.
    pub dataset: &'c Dataset,
    /// The steps that prepare its values.
    pub preparation: &'c Preparation,
    /// What the network accepts.
    pub accepted: Accepted,
    /// How much is looked at.
    pub scope: CheckScope,
    /// Index and number of the processes that share the samples.
    pub share: (usize, usize),
    /// Threads of this process.
    pub threads: usize,
    /// Ends the look early, without an error.
    pub cancel: &'c AtomicBool,
}

/// What was looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataChecked {
    /// Number of samples, or parts of them.
    pub samples: usize,
    /// What a training can be run on, but hardly is meant to.
    pub warnings: Vec<String>,
}

impl DataCheck<'_> {
    /// Looks at the samples.
    ///
    /// Errors: the first sample, in their order, with a value or an answer that would end the training: NaN, infinite
    /// and extreme values, those outside the domain of a step, classes that dataset or network do not have; NIfTI
    /// labels that do not lie as their image does; a file that cannot be read.
    pub fn run(&self) -> Result<DataChecked, DataError> {
        let mut checked = DataChecked::default();
        if self.scope == CheckScope::None {
            return Ok(checked);
        }
        let mut seen = Seen::new(self.dataset.shape()[0]);
        let mut labels = Vec::new();
        for split in [Split::Train, Split::Validation] {
            let mut of_split = self.look_at(split)?;
            labels.extend(self.labels_of(split, &mut of_split)?);
            seen.join(of_split);
        }
        checked.samples = seen.samples;
        checked.warnings = seen.warnings(self.dataset);
        checked.warnings.extend(self.doubts(&labels));
        Ok(checked)
    }

    /// The class index of positions that do not count.
    fn ignored(&self) -> Option<i64> {
        self.accepted.ignored.or(self.dataset.ignored())
    }

    /// Labels of a split. Where those that were looked at teach nothing, others are read until one does.
    ///
    /// Errors: no label of the training split counts; those of the files.
    fn labels_of(&self, split: Split, seen: &mut Seen) -> Result<Option<SplitLabels>, DataError> {
        let Some([d, h, w]) = self.dataset.labels() else {
            return Ok(None);
        };
        let samples = self.dataset.samples(split);
        let ignored = self.ignored();
        let counted = |classes: &ClassSet| {
            let is_counted = |class: &i16| ignored != Some((*class).into());
            classes.iter().filter(is_counted).count()
        };
        let mut labels = SplitLabels {
            split,
            is_whole: self.scope == CheckScope::All && self.share.1 == 1,
            samples: seen.samples,
            classes: std::mem::take(&mut seen.classes),
        };
        let teaches = |classes: &ClassSet| counted(classes) > usize::from([d, h, w] != [1; 3]);
        if seen.samples > 0 && !labels.is_whole && !teaches(&labels.classes) {
            let mut reader = self.dataset.reader(split);
            let mut values = Samples::new(DType::Int16);
            let all = (0..samples).flat_map(|sample| {
                let regions = regions([1, d, h, w], CheckScope::All);
                regions.into_iter().map(move |region| (sample, region))
            });
            labels.is_whole = true;
            for (sample, region) in all {
                reader.read_labels_as_stored(sample, region, &mut values)?;
                labels.classes.join(&ClassSet::of(&values));
                if teaches(&labels.classes) || self.cancel.load(Ordering::Relaxed) {
                    labels.is_whole = false;
                    break;
                }
            }
            if labels.is_whole {
                labels.samples = samples;
            }
        }
        match ignored.filter(|_| labels.is_whole && split == Split::Train) {
            Some(ignored) if samples > 0 && counted(&labels.classes) == 0 => {
                Err(DataError::AllIgnored {
                    path: self.dataset.path().to_path_buf(),
                    split: split.name(),
                    ignored,
                })
            }
            Some(_) | None => Ok((seen.samples > 0).then_some(labels)),
        }
    }

    /// What is doubtful about labels.
    fn doubts(&self, labels: &[SplitLabels]) -> Vec<String> {
        let occurrence = Occurrence {
            names: self.dataset.targets(),
            ignored: self.ignored(),
            is_per_position: self.dataset.labels().is_some_and(|extent| extent != [1; 3]),
            splits: labels,
            stored: &|class| vec![class],
        };
        let path = self.dataset.path().display();
        let doubts = occurrence.doubts().into_iter();
        doubts.map(|doubt| format!("{path}: {doubt}")).collect()
    }

    fn look_at(&self, split: Split) -> Result<Seen, DataError> {
        let (index, count) = self.share;
        let samples = self.samples(split);
        let mine: Vec<usize> = samples.into_iter().skip(index).step_by(count).collect();
        let threads = self.threads.clamp(1, mine.len().max(1));
        // The place among `mine` of the first error; later samples need no look.
        let failed = Mutex::new(None::<(usize, DataError)>);
        let first_failed = AtomicUsize::new(usize::MAX);
        let work = |thread: usize| {
            let mut worker = Worker::new(self, split);
            for (at, &sample) in mine.iter().enumerate().skip(thread).step_by(threads) {
                let is_enough = self.scope == CheckScope::Quick
                    && worker.reader.tally().file_bytes.0 * threads as u64 > QUICK_BYTES;
                let is_over = at > first_failed.load(Ordering::Relaxed)
                    || self.cancel.load(Ordering::Relaxed);
                if is_enough || is_over {
                    break;
                }
                if let Err(error) = worker.look(sample) {
                    first_failed.fetch_min(at, Ordering::Relaxed);
                    let mut failed = failed.lock().unwrap_or_else(|broken| broken.into_inner());
                    if failed.as_ref().is_none_or(|&(earlier, _)| at < earlier) {
                        *failed = Some((at, error));
                    }
                    break;
                }
            }
            worker.seen
        };
        let mut seen = Seen::new(self.dataset.shape()[0]);
        for found in on_threads(threads, threads, work) {
            seen.join(found);
        }
        let failed = failed
            .into_inner()
            .unwrap_or_else(|broken| broken.into_inner());
        failed.map_or(Ok(seen), |(_, error)| Err(error))
    }

    /// Evenly spaced samples, the first and the last among them, or all.
    fn samples(&self, split: Split) -> Vec<usize> {
        let all = self.dataset.samples(split);
        match self.scope {
            CheckScope::None => Vec::new(),
            CheckScope::Quick if all > QUICK_SAMPLES => {
                let last = QUICK_SAMPLES - 1;
                (0..=last).map(|at| at * (all - 1) / last).collect()
            }
            CheckScope::Quick | CheckScope::All => (0..all).collect(),
        }
    }
}

/// Slabs of a sample that are read one after the other: along the outermost dim that can be cut.
fn regions([c, d, h, w]: VolumeShape, scope: CheckScope) -> Vec<Region4> {
    let (extent, plane) = if d > 1 {
        (d, c * h * w)
    } else {
        (h, c * d * w)
    };
    let whole = [0..c, 0..d, 0..h, 0..w];
    if extent * plane <= WHOLE_ELEMENTS_MAX {
        return vec![whole];
    }
    let thickness = (WHOLE_ELEMENTS_MAX / plane).clamp(1, extent);
    let starts: Vec<usize> = match scope {
        CheckScope::All => (0..extent).step_by(thickness).collect(),
        CheckScope::Quick | CheckScope::None => {
            let thickness = (thickness / QUICK_SLABS).max(1);
            let last = extent - thickness;
            let mut starts = vec![0, last / 2, last];
            starts.dedup();
            let slab = |start| slab_at(whole.clone(), d > 1, start..start + thickness);
            return starts.into_iter().map(slab).collect();
        }
    };
    let slab = |start| slab_at(whole.clone(), d > 1, start..extent.min(start + thickness));
    starts.into_iter().map(slab).collect()
}

fn slab_at(mut region: Region4, along_depth: bool, range: std::ops::Range<usize>) -> Region4 {
    let dim = if along_depth { 1 } else { 2 };
    region[dim] = range;
    region
}

/// What samples have in common so far.
struct Seen {
    samples: usize,
    /// Stored values of each channel.
    channels: Vec<ValueCount>,
    /// Class indices, as they are stored.
    classes: ClassSet,
}

impl Seen {
    fn new(channels: usize) -> Self {
        Self {
            samples: 0,
            channels: vec![ValueCount::default(); channels],
            classes: ClassSet::default(),
        }
    }

    fn join(&mut self, other: Self) {
        self.samples += other.samples;
        for (channel, more) in self.channels.iter_mut().zip(&other.channels) {
            channel.join(more);
        }
        self.classes.join(&other.classes);
    }

    fn warnings(&self, dataset: &Dataset) -> Vec<String> {
        let (path, samples) = (dataset.path().display(), self.samples);
        let mut warnings = Vec::new();
        for (channel, count) in self.channels.iter().enumerate() {
            if let Some(value) = count.constant() {
                warnings.push(format!(
                    "{path}: channel {channel} is {value} everywhere in the {samples} samples that were looked at; \
                     a network learns nothing from it"
                ));
            }
        }
        warnings
    }
}

/// A thread that looks at samples.
struct Worker<'c> {
    check: &'c DataCheck<'c>,
    reader: Reader,
    valid: Valid,
    classes: Option<Classes>,
    stored: Samples,
    prepared: Vec<f32>,
    labels: Samples,
    seen: Seen,
}

impl<'c> Worker<'c> {
    fn new(check: &'c DataCheck<'c>, split: Split) -> Self {
        let accepted = check.accepted;
        let classes = accepted.classes.filter(|&count| count > 0);
        Self {
            check,
            reader: check.dataset.reader(split),
            valid: Valid::under(accepted.transform),
            classes: classes.map(|count| {
                let left_out = check.dataset.ignored_by_index();
                Classes::of_model(count, accepted.ignored, left_out)
            }),
            stored: Samples::new(check.dataset.dtype()),
            prepared: Vec::new(),
            labels: Samples::new(DType::Int16),
            seen: Seen::new(check.dataset.shape()[0]),
        }
    }

    fn look(&mut self, sample: usize) -> Result<(), DataError> {
        self.seen.samples += 1;
        let is_per_position = self
            .check
            .dataset
            .labels()
            .is_some_and(|labels| labels != [1; 3]);
        if is_per_position {
            check_unconverted(self.reader.file(sample), self.reader.target_file(sample))?;
        }
        let split = self.reader.split();
        let shape = self.check.dataset.shape_of(split, sample);
        let regions = regions(shape, self.check.scope);
        for region in &regions {
            self.look_at_values(sample, region)?;
        }
        let Some(labels) = self.check.dataset.labels_of(split, sample) else {
            return self.look_at_target(sample);
        };
        let [_, volume @ ..] = shape;
        if labels == volume {
            let of_labels = |region: &Region4| {
                let [_, d, h, w] = region.clone();
                [0..1, d, h, w]
            };
            let mut regions = regions.iter().map(of_labels);
            return regions.try_for_each(|region| self.look_at_labels(sample, region));
        }
        let [d, h, w] = labels;
        self.look_at_labels(sample, [0..1, 0..d, 0..h, 0..w])
    }

    fn look_at_values(&mut self, sample: usize, region: &Region4) -> Result<(), DataError> {
        self.reader
            .read_volume(sample, region.clone(), &mut self.stored)?;
        let count = slab::elements(region) / region[0].len();
        for (channel, seen) in self.seen.channels.iter_mut().enumerate() {
            let first = channel * count;
            match &self.stored {
                Samples::I16(values) => seen.add(count, |at| values[first + at].into()),
                Samples::F32(values) => seen.add(count, |at| values[first + at].into()),
            }
        }
        let preparation = self.check.preparation;
        if preparation.is_empty() {
            return check_volume(self.valid, &self.reader, sample, region, &self.stored);
        }
        self.stored.write_f32(&mut self.prepared);
        prepare(
            preparation,
            &self.reader,
            sample,
            region,
            &mut self.prepared,
        )
    }

    fn look_at_labels(&mut self, sample: usize, region: Region4) -> Result<(), DataError> {
        self.reader
            .read_labels(sample, region.clone(), &mut self.labels)?;
        self.seen.classes.join(&ClassSet::of(&self.labels));
        let Some(classes) = self.classes else {
            return Ok(());
        };
        let key = &self.reader.keys().label;
        classes.check(location(&self.reader, sample, key), &region, &self.labels)
    }

    fn look_at_target(&mut self, sample: usize) -> Result<(), DataError> {
        let row = self.reader.read_target(sample)?;
        check_target(&self.reader, sample, &row)?;
        let Some(classes) = self.classes else {
            return Ok(());
        };
        let key = &self.reader.keys().target;
        classes.check_row(location(&self.reader, sample, key), &row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quick_look_at_a_large_sample_takes_its_ends_and_its_middle() {
        let shape = [1, 512, 512, 512];
        let quick = regions(shape, CheckScope::Quick);
        let depths: Vec<_> = quick.iter().map(|region| region[1].clone()).collect();
        assert_eq!(depths, [0..5, 253..258, 507..512]);
        let all = regions(shape, CheckScope::All);
        assert_eq!(all.iter().map(|region| region[1].len()).sum::<usize>(), 512);
        assert!(
            all.iter()
                .all(|region| slab::elements(region) <= WHOLE_ELEMENTS_MAX)
        );
        let image = regions([3, 1, 8192, 4096], CheckScope::All);
        assert!(image.len() > 1 && image.iter().all(|region| region[3] == (0..4096)));
        assert_eq!(regions([4, 8, 8, 8], CheckScope::Quick).len(), 1);
    }
}
