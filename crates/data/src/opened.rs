//! An opened dataset.

use std::path::PathBuf;

use partita_formats::slab::Region4;
use partita_formats::{Axes, DType, DataError, DimOrder, SourceArray, SourceFile, VolumeShape};

use crate::channels::Channels;
use crate::features::Features;
use crate::files::{FileEntry, Files};
use crate::index::Kind;
use crate::keys::Keys;
use crate::names::SampleNames;
use crate::sample_source::SourceHandle;
use crate::target_map::Meaning;

#[derive(Clone, Debug)]
pub(crate) struct Inner {
    pub(crate) path: PathBuf,
    pub(crate) kind: Option<Kind>,
    /// Shape of a sample; where extents differ, the largest along each dim.
    pub(crate) shape: VolumeShape,
    pub(crate) dtype: DType,
    pub(crate) targets: Vec<String>,
    /// Extents of class indices, where each position has one those of `shape`.
    pub(crate) labels: Option<[usize; 3]>,
    /// A class index of positions of no class.
    pub(crate) ignored: Option<i64>,
    /// The same as the index file says it, whatever a model ignores.
    pub(crate) ignored_by_index: Option<i64>,
    /// Whether the files hold targets or labels.
    pub(crate) has_targets: bool,
    pub(crate) keys: Keys,
    pub(crate) splits: [Files; 3],
    pub(crate) universes: [Vec<u64>; 3],
    pub(crate) names: SampleNames,
    pub(crate) spec: toml::Table,
    pub(crate) meaning: Meaning,
    pub(crate) channels: Channels,
    pub(crate) features: Features,
    /// Gives the samples, where they are none of files.
    pub(crate) source: Option<SourceHandle>,
}

/// An array that holds samples, or what they are answered with.
pub(crate) struct SampleArray {
    pub(crate) array: SourceArray,
    axes: Axes,
    each: VolumeShape,
}

impl SampleArray {
    /// Where a region of a sample lies in the array.
    pub(crate) fn ranges(&self, place: Option<usize>, region: &Region4) -> Vec<(usize, usize)> {
        self.axes.region(place, region)
    }

    /// Numbers of a sample.
    pub(crate) fn row_length(&self) -> usize {
        self.each[3]
    }

    pub(crate) fn axes(&self) -> &Axes {
        &self.axes
    }

    /// Checks an array against the samples that it is to hold.
    pub(crate) fn check(
        array: SourceArray,
        order: &DimOrder,
        samples: Option<usize>,
        each: VolumeShape,
    ) -> Result<Self, DataError> {
        Self::check_named(array, order, samples, each, "W")
    }

    /// The same, with another name of the last dim.
    fn check_named(
        array: SourceArray,
        order: &DimOrder,
        samples: Option<usize>,
        each: VolumeShape,
        width: &str,
    ) -> Result<Self, DataError> {
        let order = order.stacked(samples.is_some());
        if let Some(axes) = order.fit(&array.shape, samples.unwrap_or(1), each) {
            return Ok(Self { array, axes, each });
        }
        let expected = order.shape(samples.unwrap_or(1), each);
        let dims = order.dims().replace('W', width);
        if array.shape.len() != expected.len() {
            return Err(array.wrong_rank(&format!("rank {} ({dims})", expected.len())));
        }
        Err(array.wrong_shape(format!("{expected:?} ({dims})")))
    }
}

impl Inner {
    /// A dataset of one file of this one, with the extents of its samples and labels.
    pub(crate) fn of_one(
        &self,
        entry: FileEntry,
        shape: VolumeShape,
        labels: Option<[usize; 3]>,
    ) -> Self {
        // Its extents are those of the file.
        let entry = FileEntry {
            extent: None,
            ..entry
        };
        Self {
            path: self.path.clone(),
            kind: self.kind,
            shape,
            dtype: self.dtype,
            targets: self.targets.clone(),
            labels,
            ignored: self.ignored,
            ignored_by_index: None,
            has_targets: self.has_targets,
            keys: self.keys.clone(),
            splits: [Files::new(vec![entry]), Files::default(), Files::default()],
            universes: [Vec::new(), Vec::new(), Vec::new()],
            names: SampleNames::default(),
            spec: toml::Table::new(),
            meaning: Meaning::default(),
            channels: Channels::default(),
            features: Features::default(),
            source: None,
        }
    }

    /// Shape of the samples of a file.
    pub(crate) fn shape_of(&self, entry: &FileEntry) -> VolumeShape {
        let [c, whole @ ..] = self.shape;
        let [d, h, w] = entry.extent.unwrap_or(whole);
        [c, d, h, w]
    }

    /// D, H, W of the class indices of the samples of a file.
    pub(crate) fn labels_of(&self, entry: &FileEntry) -> Option<[usize; 3]> {
        let labels = self.labels?;
        let [_, whole @ ..] = self.shape;
        Some(if labels == whole {
            entry.extent.unwrap_or(whole)
        } else {
            labels
        })
    }

    /// Opens the volume array of the file of an entry and checks it against the dataset.
    pub(crate) fn volumes(
        &self,
        file: &SourceFile,
        entry: &FileEntry,
    ) -> Result<SampleArray, DataError> {
        let array = file.array(&self.keys.volume)?;
        array.check_element()?;
        if !array.element.can_be(self.dtype) {
            return Err(array.wrong_dtype(&format!(
                "{}; `--dtype float32` of `partita data convert`, or `dtype = \"float32\"` in the index, takes both",
                self.dtype.name()
            )));
        }
        let order = self.keys.order.clone().unwrap_or_default();
        SampleArray::check(array, &order, entry.stacked, self.shape_of(entry))
    }

    /// Opens a parameter array of a file and checks it against the dataset.
    pub(crate) fn parameters(
        &self,
        file: &SourceFile,
        key: &str,
        samples: Option<usize>,
    ) -> Result<SampleArray, DataError> {
        let array = file.array(key)?;
        array.check_element()?;
        let each = [1, 1, 1, self.meaning.stored(self.targets.len())];
        SampleArray::check_named(array, &DimOrder::of_rows(), samples, each, "targets")
    }

    /// Opens the labels of a file, if the dataset has them, and checks them against it.
    pub(crate) fn label_array(
        &self,
        file: &SourceFile,
        entry: &FileEntry,
    ) -> Result<Option<SampleArray>, DataError> {
        let Some([d, h, w]) = self.labels_of(entry) else {
            return Ok(None);
        };
        let array = file.array(&self.keys.label)?;
        // Whether floats are whole numbers is seen when they are read.
        array.check_element()?;
        let order = self.keys.order.clone().unwrap_or_default();
        SampleArray::check(array, &order, entry.stacked, [1, d, h, w]).map(Some)
    }

    /// Opens the targets or labels of a file and checks them.
    pub(crate) fn check_targets(
        &self,
        file: &SourceFile,
        entry: &FileEntry,
    ) -> Result<(), DataError> {
        if self.label_array(file, entry)?.is_none() {
            self.parameters(file, &self.keys.target, entry.stacked)?;
        }
        Ok(())
    }
}
