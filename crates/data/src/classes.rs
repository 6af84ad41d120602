//! Validation of class indices.

mod plausible;

use std::path::Path;

pub(crate) use plausible::made_up;
pub use plausible::{ClassSet, Occurrence, SplitLabels};

use partita_formats::slab::{self, Region4};
use partita_formats::{DataError, NoClass, Samples};

use crate::split::Split;

/// Classes that names are made up for, or that are counted one by one without names, at most.
pub(crate) const CLASSES_MAX: usize = 4096;

/// The classes, from 0 on, of a dataset or of a model.
#[derive(Clone, Copy, Debug)]
pub struct Classes {
    /// At least 1.
    count: usize,
    /// An index that stands for no class, and is valid.
    ignored: Option<i64>,
    /// An index that the dataset leaves out, and the loss of the model does not.
    left_out: Option<i64>,
    owner: &'static str,
    remedy: &'static str,
}

/// A sample in a file.
#[derive(Clone, Copy, Debug)]
pub struct SampleLocation<'a> {
    /// The file.
    pub path: &'a Path,
    /// The array.
    pub key: &'a str,
    /// The split.
    pub split: Split,
    /// Index in the split.
    pub sample: usize,
    /// Its name, where the index gives it.
    pub name: Option<&'a str>,
}

impl Classes {
    /// The classes that the index of a dataset names.
    pub(crate) fn of_dataset(count: usize, ignored: Option<i64>) -> Self {
        Self {
            count,
            ignored,
            left_out: None,
            owner: "dataset",
            remedy: "name the class in the index, or let the loss `ignore` it",
        }
    }

    /// The classes of a model's scores, with the index that its loss ignores and the one that the dataset leaves out.
    pub fn of_model(count: usize, ignored: Option<i64>, left_out: Option<i64>) -> Self {
        Self {
            count,
            ignored,
            left_out,
            owner: "model",
            remedy: "choose a model of more classes, or let the loss `ignore` it",
        }
    }

    /// Errors: a class index of a region is invalid.
    pub fn check(
        self,
        location: SampleLocation<'_>,
        region: &Region4,
        labels: &Samples,
    ) -> Result<(), DataError> {
        let is_invalid = |class: f32| !self.has(class);
        let found = match labels {
            Samples::I16(values) => {
                let found = values.iter().position(|&value| is_invalid(value.into()));
                found.map(|at| (at, f32::from(values[at])))
            }
            Samples::F32(values) => {
                let found = values.iter().position(|&value| is_invalid(value));
                found.map(|at| (at, values[at]))
            }
        };
        let Some((at, class)) = found else {
            return Ok(());
        };
        let [c, d, h, w] = slab::position(region, at);
        let position = format!("at (C, D, H, W) = ({c}, {d}, {h}, {w})");
        Err(self.refuse(location, position, class))
    }

    /// Errors: an element of a target vector is not a class index.
    pub fn check_row(self, location: SampleLocation<'_>, row: &[f32]) -> Result<(), DataError> {
        match row.iter().position(|&value| !self.has(value)) {
            Some(at) => Err(self.refuse(location, format!("target {at}"), row[at])),
            None => Ok(()),
        }
    }

    /// False for NaN.
    pub(crate) fn has(self, class: f32) -> bool {
        let is_ignored = self.ignored.is_some_and(|index| class == index as f32);
        is_ignored || class >= 0.0 && class < self.count as f32 && class.fract() == 0.0
    }

    fn refuse(self, location: SampleLocation<'_>, position: String, class: f32) -> DataError {
        let last = self.count - 1;
        DataError::NoClass(Box::new(NoClass {
            path: location.path.to_path_buf(),
            key: location.key.to_owned(),
            split: location.split.name(),
            sample: location.sample,
            name: location.name.map(Box::from),
            position,
            class: class.to_string(),
            last,
            // Negative numbers and NaN cast to 0.
            nearest: (class.round() as usize).min(last),
            owner: self.owner,
            remedy: if self.left_out.is_some_and(|index| class == index as f32) {
                format!(
                    "write `ignore={class}` in the line of the loss, as the index of the dataset leaves this class out"
                )
            } else if class.fract() == 0.0 {
                format!(
                    "{}, or convert the data with `--map {class}=N` or `--ignore {class}`",
                    self.remedy
                )
            } else {
                self.remedy.to_owned()
            },
        }))
    }
}
