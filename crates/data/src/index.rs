//! The index file of a dataset folder, `dataset.toml`.

use std::path::Path;

use partita_files::write_whole;
use partita_formats::{DType, DataError, DimOrder, VolumeShape};
use serde::{Deserialize, Serialize};

use crate::external::leaves_folder;
use crate::files::{FileEntry, Files};
use crate::keys::Keys;
use crate::names;
use crate::split::Split;

/// Name of the index file in a dataset folder.
pub const INDEX_FILE: &str = "dataset.toml";

/// Version of the index format that this crate reads and writes.
pub const FORMAT_VERSION: u32 = 1;

/// Kind of a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Volumes of matter density (channels are redshifts); targets are cosmological parameters.
    Cosmology,
    /// Volumes with a class at each voxel.
    Segmentation,
    /// Images with one class each.
    Shapes,
    /// Strings of digits and what a decoder has read, with a token to be given at each position.
    Digits,
    /// Anything else, such as what was converted from other files.
    Other,
}

/// Contents of the index file. Scalars come first: TOML wants them before tables.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Index {
    pub(crate) format: u32,
    pub(crate) kind: Kind,
    /// Samples of all splits together.
    pub(crate) samples: usize,
    pub(crate) channels: usize,
    /// D, H, W; where the splits have `extents`, the largest along each dim.
    pub(crate) extent: [usize; 3],
    pub(crate) dtype: DType,
    /// Names of the numbers of a target, or of the classes; none where samples have no answers.
    pub(crate) targets: Vec<String>,
    /// D, H, W of the class indices of a sample: its own, or one position; absent where a target is
    /// a vector of numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) labels: Option<[usize; 3]>,
    /// A class index of positions of no class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ignore: Option<i64>,
    /// Key of the volumes, where it is not the usual one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) volume: Option<String>,
    /// Key of targets that are numbers, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) target: Option<String>,
    /// Key of class indices, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) label: Option<String>,
    /// Order of the dims of volumes and class indices, where it is not N, C, D, H, W.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) layout: Option<DimOrder>,
    /// Physical values that -1 and 1 stand for, of each number of a target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ranges: Option<Vec<[f64; 2]>>,
    /// Unit of each number of a target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) units: Option<Vec<String>>,
    /// Names of the numbers of each sample beside its volume; absent where samples have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) features: Option<Vec<String>>,
    #[serde(default)]
    pub(crate) train: SplitIndex,
    #[serde(default)]
    pub(crate) validation: SplitIndex,
    #[serde(default)]
    pub(crate) test: SplitIndex,
    /// Options with which the dataset was made.
    #[serde(default, skip_serializing_if = "toml::Table::is_empty")]
    pub(crate) spec: toml::Table,
}

/// Files of a split: exactly one of `file` and `files`, or neither if it is empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SplitIndex {
    /// One file with all samples stacked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) file: Option<String>,
    /// Several files: of one sample each, or as `samples` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) files: Option<Vec<String>>,
    /// Samples stacked in each of `files`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) samples: Option<Vec<usize>>,
    /// File of the targets or class indices of `file`, where it is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) target_file: Option<String>,
    /// Files of the targets or class indices of `files`, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) target_files: Option<Vec<String>>,
    /// D, H, W of each sample, where not all samples of the dataset have the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) extents: Option<Vec<[usize; 3]>>,
    /// Universe of each sample, in the order of the samples.
    pub(crate) universes: Vec<u64>,
    /// Name of each sample, likewise (default: made of the names of files).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) names: Option<Vec<String>>,
    /// The features of each sample, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) features: Option<Vec<Vec<f32>>>,
}

impl Index {
    pub(crate) fn shape(&self) -> VolumeShape {
        let [depth, height, width] = self.extent;
        [self.channels, depth, height, width]
    }

    pub(crate) fn split(&self, split: Split) -> &SplitIndex {
        match split {
            Split::Train => &self.train,
            Split::Validation => &self.validation,
            Split::Test => &self.test,
        }
    }

    pub(crate) fn split_mut(&mut self, split: Split) -> &mut SplitIndex {
        match split {
            Split::Train => &mut self.train,
            Split::Validation => &mut self.validation,
            Split::Test => &mut self.test,
        }
    }

    /// Replaces the index file.
    ///
    /// Errors: `Unwritable`, `BadValue` for what TOML cannot hold.
    pub(crate) fn write(&self, path: &Path) -> Result<(), DataError> {
        let text = toml::to_string(self).map_err(|error| DataError::BadValue {
            what: "spec of the dataset",
            got: error.to_string(),
            expected: "a table that TOML can hold".to_string(),
        })?;
        write_whole(path, text.as_bytes()).map_err(|error| DataError::Unwritable {
            path: path.to_path_buf(),
            reason: error.to_string(),
        })
    }

    /// Names of the arrays.
    pub(crate) fn keys(&self) -> Keys {
        let usual = Keys::default();
        Keys {
            volume: self.volume.clone().unwrap_or(usual.volume),
            target: self.target.clone().unwrap_or(usual.target),
            label: self.label.clone().unwrap_or(usual.label),
            order: self.layout.clone(),
            fill: usual.fill,
            external: usual.external,
        }
    }

    pub(crate) fn read(path: &Path) -> Result<Self, DataError> {
        let text = partita_files::read_record(path).map_err(|error| DataError::Unopenable {
            path: path.to_path_buf(),
            reason: error.to_string(),
        })?;
        let index: Index = toml::from_str(&text).map_err(|error| DataError::BadIndex {
            path: path.to_path_buf(),
            found: error.to_string().trim_end().to_string(),
            expected: "an index as written by `partita data convert`".to_string(),
        })?;
        match index.fault() {
            None => Ok(index),
            Some((found, expected)) => Err(DataError::BadIndex {
                path: path.to_path_buf(),
                found,
                expected,
            }),
        }
    }

    /// A file that is not below the folder of the index, and what is valid.
    pub(crate) fn outside(&self) -> Option<(String, String)> {
        let splits = Split::ALL.map(|split| (split, self.split(split)));
        let (split, path) = splits.into_iter().find_map(|(split, index)| {
            let one = index.file.iter().chain(&index.target_file);
            let many = [&index.files, &index.target_files].into_iter().flatten();
            let mut all = one.chain(many.flatten());
            Some((split, all.find(|path| leaves_folder(path))?))
        })?;
        Some((
            format!("[{split}] names {path}, which is not below its folder"),
            "paths below the folder of the index, or `allow_external = true` in the run file, if it is trusted"
                .to_owned(),
        ))
    }

    /// The first inconsistency: what was found, what is valid.
    pub(crate) fn fault(&self) -> Option<(String, String)> {
        if self.format != FORMAT_VERSION {
            return Some((
                format!("format = {}", self.format),
                format!("format = {FORMAT_VERSION}"),
            ));
        }
        if self.shape().contains(&0) {
            return Some((
                format!("channels = {}, extent = {:?}", self.channels, self.extent),
                "extents of at least 1".to_string(),
            ));
        }
        if self.targets.is_empty() && self.labels.is_some() {
            return Some((
                "targets = [] beside `labels`".to_string(),
                "the name of every class".to_string(),
            ));
        }
        if let Some(labels) = self.labels
            && ![self.extent, [1; 3]].contains(&labels)
        {
            return Some((
                format!("labels = {labels:?}"),
                format!("labels = {:?} or [1, 1, 1]", self.extent),
            ));
        }
        if let Some(fault) = self.meaning_fault() {
            return Some(fault);
        }
        let total: usize = Split::ALL
            .iter()
            .map(|&split| self.split(split).universes.len())
            .sum();
        if total != self.samples {
            return Some((
                format!("samples = {}, but the splits list {total}", self.samples),
                format!("samples = {total}"),
            ));
        }
        Split::ALL
            .iter()
            .find_map(|&split| self.split(split).fault(split))
            .or_else(|| self.extents_fault())
            .or_else(|| self.features_fault())
            .or_else(|| self.leak())
            .or_else(|| names::fault(self.names()))
    }

    /// The splits with names: these, and the number of samples.
    fn names(&self) -> impl Iterator<Item = (Split, &[String], usize)> {
        Split::ALL.into_iter().filter_map(|split| {
            let one = self.split(split);
            Some((split, one.names.as_deref()?, one.universes.len()))
        })
    }

    /// Ranges or units that are not one of each number.
    fn meaning_fault(&self) -> Option<(String, String)> {
        let (numbers, is_regression) = (self.targets.len(), self.labels.is_none());
        let ranges = self.ranges.as_ref();
        let sound = |[low, high]: &[f64; 2]| low != high && low.is_finite() && high.is_finite();
        if ranges
            .is_some_and(|all| !is_regression || all.len() != numbers || !all.iter().all(sound))
        {
            let expected =
                "`ranges` with two different numbers, like [0, 10], for each number in `targets`";
            return Some((format!("ranges = {ranges:?}"), expected.to_owned()));
        }
        let units = self.units.as_ref();
        if units.is_some_and(|all| !is_regression || all.len() != numbers) {
            let expected = "`units` with a text for each number in `targets`";
            return Some((format!("units = {units:?}"), expected.to_owned()));
        }
        None
    }

    /// Extents of samples that are not those of the dataset.
    fn extents_fault(&self) -> Option<(String, String)> {
        let mut splits = Split::ALL.iter().map(|&split| self.split(split));
        let has_extents = |split: &SplitIndex| split.extents.is_some();
        if !splits.clone().any(has_extents) {
            return None;
        }
        let without = splits.find(|split| !has_extents(split) && !split.universes.is_empty());
        let listed = Split::ALL
            .iter()
            .flat_map(|&split| &self.split(split).extents);
        let largest = listed.flatten().fold([0; 3], |most, extent| {
            std::array::from_fn(|dim| extent[dim].max(most[dim]))
        });
        if without.is_some() || largest != self.extent {
            return Some((
                format!("extent = {:?}, and `extents` of splits", self.extent),
                format!(
                    "`extents` in each split with samples, and extent = {largest:?}, the largest along each dim"
                ),
            ));
        }
        None
    }

    /// Features that are not a finite number of each name for each sample.
    fn features_fault(&self) -> Option<(String, String)> {
        let names = self.features.as_deref().unwrap_or_default();
        let is_empty = self.features.as_ref().is_some_and(Vec::is_empty);
        let is_repeated =
            |(at, name): (usize, &String)| name.is_empty() || names[..at].contains(name);
        if names.iter().enumerate().any(is_repeated) {
            return Some((
                format!("features = {names:?}"),
                "a name of its own for each feature".to_owned(),
            ));
        }
        let is_row =
            |row: &Vec<f32>| row.len() == names.len() && row.iter().all(|value| value.is_finite());
        let is_faulty = |split: &Split| {
            let one = self.split(*split);
            let rows = one.features.as_deref().unwrap_or_default();
            let samples = if names.is_empty() {
                0
            } else {
                one.universes.len()
            };
            is_empty || rows.len() != samples || !rows.iter().all(is_row)
        };
        let split = Split::ALL.into_iter().find(is_faulty)?;
        Some((
            format!("`features` of [{split}]"),
            format!(
                "a row of {} finite numbers for each sample, one of each name in `features`",
                names.len()
            ),
        ))
    }

    /// A universe in two splits: validation data would leak into training.
    fn leak(&self) -> Option<(String, String)> {
        let mut home = std::collections::BTreeMap::new();
        for split in Split::ALL {
            for &universe in &self.split(split).universes {
                match home.insert(universe, split) {
                    Some(other) if other != split => {
                        return Some((
                            format!("universe {universe} in {other} and in {split}"),
                            "every universe in one split only".to_string(),
                        ));
                    }
                    Some(_) | None => {}
                }
            }
        }
        None
    }
}

impl SplitIndex {
    /// The files of the split, below the folder of the index.
    pub(crate) fn files(&self, folder: &Path) -> Files {
        let extent = |first: usize| Some(*self.extents.as_ref()?.get(first)?);
        let mut first = 0;
        let one = self.file.iter().map(|file| FileEntry {
            volumes: folder.join(file),
            targets: self.target_file.as_ref().map(|file| folder.join(file)),
            stacked: Some(self.universes.len()),
            extent: extent(0),
        });
        let many = self.files.iter().flatten().enumerate().map(|(at, file)| {
            let stacked = self.samples.as_ref().map(|samples| samples[at]);
            let before = first;
            first += stacked.unwrap_or(1);
            FileEntry {
                volumes: folder.join(file),
                targets: self
                    .target_files
                    .as_ref()
                    .map(|files| folder.join(&files[at])),
                stacked,
                extent: extent(before),
            }
        });
        Files::new(one.chain(many).collect())
    }

    fn fault(&self, split: Split) -> Option<(String, String)> {
        let samples = self.universes.len();
        match (&self.file, &self.files) {
            (Some(_), None) => self.file_fault(split).or_else(|| self.extents_fault(split)),
            (None, Some(files)) => {
                let fault = self.files_fault(split, files.len());
                fault.or_else(|| self.extents_fault(split))
            }
            (None, None) if samples == 0 => None,
            (None, None) => Some((
                format!("[{split}] with {samples} samples and no file"),
                "`file` (all samples) or `files` (one each)".to_string(),
            )),
            (Some(_), Some(_)) => Some((
                format!("[{split}] with both `file` and `files`"),
                "`file` (all samples) or `files` (one each)".to_string(),
            )),
        }
    }

    /// `extents` of a split whose files are sound.
    fn extents_fault(&self, split: Split) -> Option<(String, String)> {
        let extents = self.extents.as_ref()?;
        let samples = self.universes.len();
        if extents.len() != samples || extents.iter().any(|extent| extent.contains(&0)) {
            return Some((
                format!(
                    "[{split}] with {} entries of `extents` for {samples} samples",
                    extents.len()
                ),
                "[D, H, W] from 1 on for each sample".to_string(),
            ));
        }
        let stacks = match (&self.file, &self.samples) {
            (Some(_), _) => std::slice::from_ref(&samples),
            (None, Some(counts)) => counts,
            (None, None) => &[],
        };
        let mut rest = extents.as_slice();
        for &count in stacks {
            let (stack, after) = rest.split_at(count);
            if stack.iter().any(|extent| *extent != stack[0]) {
                return Some((
                    format!("[{split}] with different `extents` in one file"),
                    "samples of other extents in other files, one each".to_string(),
                ));
            }
            rest = after;
        }
        None
    }

    fn file_fault(&self, split: Split) -> Option<(String, String)> {
        if self.samples.is_none() && self.target_files.is_none() {
            return None;
        }
        Some((
            format!("[{split}] with `file`, and `samples` or `target_files`"),
            "these two with `files`, and `target_file` with `file`".to_string(),
        ))
    }

    fn files_fault(&self, split: Split, files: usize) -> Option<(String, String)> {
        let samples = self.universes.len();
        if self.target_file.is_some() {
            return Some((
                format!("[{split}] with `files` and `target_file`"),
                "`target_files`, one for each file".to_string(),
            ));
        }
        for (key, count) in [
            ("samples", self.samples.as_ref().map(Vec::len)),
            ("target_files", self.target_files.as_ref().map(Vec::len)),
        ] {
            if let Some(count) = count.filter(|&count| count != files) {
                return Some((
                    format!("[{split}] with {count} entries of `{key}` for {files} files"),
                    "one entry per file".to_string(),
                ));
            }
        }
        let held = match &self.samples {
            Some(counts) => counts
                .iter()
                .try_fold(0usize, |sum, &count| sum.checked_add(count)),
            None => Some(files),
        };
        if held == Some(samples) {
            return None;
        }
        Some((
            format!("[{split}] with {files} files for {samples} samples"),
            "one file per sample, or `samples` with the number in each file".to_string(),
        ))
    }
}
