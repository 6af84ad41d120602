//! Samples that are no files of a dataset: whatever can give one region of one sample.

use std::ops::Range;
use std::sync::Arc;

use crate::split::Split;
use partita_formats::slab::Region4;
use partita_formats::{DType, DataError, Samples, VolumeShape, slice_of};

/// Why a source cannot give a sample.
pub type SourceError = Box<dyn std::error::Error + Send + Sync>;

/// Samples with their targets, which ranks read by several threads at once, each the regions that it needs.
///
/// A [`Dataset::of_source`](crate::Dataset::of_source) is prepared, augmented, cut into crops and kept in memory as one of files is.
pub trait SampleSource: Send + Sync {
    /// Its name in messages and results.
    fn name(&self) -> &str;

    /// Number of samples of a split.
    fn samples(&self, split: Split) -> usize;

    /// Shape of every sample, (C, D, H, W). Images have D = 1.
    fn shape(&self) -> VolumeShape;

    /// Element type of every sample.
    fn dtype(&self) -> DType;

    /// What samples are answered with.
    fn targets(&self) -> SourceTargets;

    /// Names of the numbers of each sample beside its volume; none where it has none.
    fn features(&self) -> Vec<String> {
        Vec::new()
    }

    /// These numbers of a sample.
    ///
    /// Errors: as [`read_volume`](Self::read_volume).
    fn read_features(&self, _of: (Split, usize)) -> Result<Vec<f32>, SourceError> {
        Err("it has no features".into())
    }

    /// Replaces `out` by a region of a sample, half-open over (C, D, H, W), in that order and of [`dtype`](Self::dtype).
    ///
    /// Errors: why it cannot be read, which ends the training.
    fn read_volume(
        &self,
        of: (Split, usize),
        region: &[Range<usize>; 4],
        out: &mut Samples,
    ) -> Result<(), SourceError>;

    /// The numbers of a sample, where targets are numbers, normalized as the network is to learn them.
    ///
    /// Errors: as [`read_volume`](Self::read_volume).
    fn read_numbers(&self, _of: (Split, usize)) -> Result<Vec<f32>, SourceError> {
        Err("it has no numbers".into())
    }

    /// Replaces `out` by a region of the class indices of a sample, where targets are classes, half-open over
    /// (1, D, H, W), as int16.
    ///
    /// Errors: as [`read_volume`](Self::read_volume).
    fn read_classes(
        &self,
        _of: (Split, usize),
        _region: &[Range<usize>; 4],
        _out: &mut Samples,
    ) -> Result<(), SourceError> {
        Err("it has no classes".into())
    }
}

/// What the samples of a source are answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceTargets {
    /// Numbers of these names.
    Numbers(Vec<String>),
    /// A class index for each position, or for each sample where `extent` is 1, 1, 1.
    Classes {
        /// Names of the classes; none if they are not known.
        names: Vec<String>,
        /// D, H, W of the class indices of a sample.
        extent: [usize; 3],
    },
}

/// The source of a dataset.
#[derive(Clone)]
pub(crate) struct SourceHandle(pub(crate) Arc<dyn SampleSource>);

impl std::fmt::Debug for SourceHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.name())
    }
}

/// Samples of a split in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct SplitArrays {
    /// The samples one after the other, (N, C, D, H, W).
    pub volumes: Samples,
    /// Their targets one after the other.
    pub answers: Answers,
}

/// Targets of samples in memory.
#[derive(Clone, Debug, PartialEq)]
pub enum Answers {
    /// Numbers, (N, targets).
    Numbers(Vec<f32>),
    /// Class indices, (N, D, H, W), or (N) where each sample has one.
    Classes(Vec<i16>),
}

/// Arrays in memory as a source.
#[derive(Clone, Debug)]
pub struct ArraySource {
    name: String,
    shape: VolumeShape,
    targets: SourceTargets,
    counts: [usize; 3],
    splits: [Option<SplitArrays>; 3],
    dtype: DType,
}

impl ArraySource {
    /// The arrays of each split that has samples; the training split has some.
    ///
    /// Errors: `BadValue` where lengths or types do not fit.
    pub fn new(
        shape: VolumeShape,
        targets: SourceTargets,
        splits: impl IntoIterator<Item = (Split, SplitArrays)>,
    ) -> Result<Self, DataError> {
        let mut new = Self {
            name: "arrays".to_owned(),
            shape,
            targets,
            counts: [0; 3],
            splits: [None, None, None],
            dtype: DType::Float32,
        };
        let mut dtype = None;
        for (split, arrays) in splits {
            let found = arrays.volumes.dtype();
            if *dtype.get_or_insert(found) != found {
                return Err(new.misfit(split, "another element type"));
            }
            new.counts[split as usize] = new.count(split, &arrays)?;
            new.splits[split as usize] = Some(arrays);
        }
        new.dtype = dtype.unwrap_or(DType::Float32);
        Ok(new)
    }

    /// The same with a name for messages and results.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        let name = name.to_owned();
        Self { name, ..self }
    }

    fn volume(&self) -> usize {
        self.shape.iter().product()
    }

    /// Elements of the answer of a sample.
    fn answer(&self) -> usize {
        match &self.targets {
            SourceTargets::Numbers(names) => names.len(),
            SourceTargets::Classes { extent, .. } => extent.iter().product(),
        }
    }

    fn misfit(&self, split: Split, found: &str) -> DataError {
        DataError::BadValue {
            what: "arrays of samples",
            got: format!("{found} in the split `{split}`"),
            expected: format!(
                "samples of (C, D, H, W) = {:?} of one element type, and {} elements of targets for each",
                self.shape,
                self.answer()
            ),
        }
    }

    fn count(&self, split: Split, arrays: &SplitArrays) -> Result<usize, DataError> {
        let (elements, each) = (arrays.volumes.len(), self.volume());
        let (answers, fits) = match (&arrays.answers, &self.targets) {
            (Answers::Numbers(values), SourceTargets::Numbers(_)) => (values.len(), true),
            (Answers::Classes(values), SourceTargets::Classes { .. }) => (values.len(), true),
            (Answers::Numbers(values), SourceTargets::Classes { .. }) => (values.len(), false),
            (Answers::Classes(values), SourceTargets::Numbers(_)) => (values.len(), false),
        };
        let samples = elements.checked_div(each).unwrap_or(0);
        if !fits || samples * each != elements || samples * self.answer() != answers {
            let found = format!("{elements} elements of samples and {answers} of targets");
            return Err(self.misfit(split, &found));
        }
        Ok(samples)
    }

    fn arrays(&self, split: Split) -> Result<&SplitArrays, SourceError> {
        let arrays = self.splits[split as usize].as_ref();
        arrays.ok_or_else(|| format!("there are no samples of the split `{split}`").into())
    }
}

impl SampleSource for ArraySource {
    fn name(&self) -> &str {
        &self.name
    }

    fn samples(&self, split: Split) -> usize {
        self.counts[split as usize]
    }

    fn shape(&self) -> VolumeShape {
        self.shape
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn targets(&self) -> SourceTargets {
        self.targets.clone()
    }

    fn read_volume(
        &self,
        (split, sample): (Split, usize),
        region: &Region4,
        out: &mut Samples,
    ) -> Result<(), SourceError> {
        let own = sample * self.volume()..(sample + 1) * self.volume();
        *out = match &self.arrays(split)?.volumes {
            Samples::I16(values) => Samples::I16(slice_of(&values[own], self.shape, region)),
            Samples::F32(values) => Samples::F32(slice_of(&values[own], self.shape, region)),
        };
        Ok(())
    }

    fn read_numbers(&self, (split, sample): (Split, usize)) -> Result<Vec<f32>, SourceError> {
        let own = sample * self.answer()..(sample + 1) * self.answer();
        match &self.arrays(split)?.answers {
            Answers::Numbers(values) => Ok(values[own].to_vec()),
            Answers::Classes(_) => Err("its targets are classes".into()),
        }
    }

    fn read_classes(
        &self,
        (split, sample): (Split, usize),
        region: &Region4,
        out: &mut Samples,
    ) -> Result<(), SourceError> {
        let own = sample * self.answer()..(sample + 1) * self.answer();
        match (&self.arrays(split)?.answers, &self.targets) {
            (Answers::Classes(values), SourceTargets::Classes { extent, .. }) => {
                let [d, h, w] = *extent;
                *out = Samples::I16(slice_of(&values[own], [1, d, h, w], region));
                Ok(())
            }
            _ => Err("its targets are numbers".into()),
        }
    }
}
