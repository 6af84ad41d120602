//! Which stored numbers are class numbers.

use std::path::Path;

use crate::error::{DataError, NoClass};
use crate::samples::Samples;
use crate::slab::{self, Region4};
use crate::split::Split;

/// The class numbers from 0 on that a dataset names or a model tells apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Classes {
    /// At least 1.
    count: usize,
    owner: &'static str,
    remedy: &'static str,
}

/// Where numbers were read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Site<'a> {
    pub path: &'a Path,
    pub key: &'static str,
    pub split: Split,
    /// Within the split.
    pub sample: usize,
}

impl Classes {
    /// The classes that the index of a dataset names.
    pub(crate) fn of_dataset(count: usize) -> Self {
        Self {
            count,
            owner: "dataset",
            remedy: "name the class in the index",
        }
    }

    /// The classes for which a model gives scores.
    pub(crate) fn of_model(count: usize) -> Self {
        Self {
            count,
            owner: "model",
            remedy: "choose a model of more classes",
        }
    }

    /// Refuses a region of class numbers, which is not empty where one is wrong.
    pub(crate) fn check(
        self,
        site: Site<'_>,
        region: &Region4,
        labels: &Samples,
    ) -> Result<(), DataError> {
        let stray = |class: f32| !self.has(class);
        let found = match labels {
            Samples::I16(values) => {
                let found = values.iter().position(|&value| stray(value.into()));
                found.map(|at| (at, f32::from(values[at])))
            }
            Samples::F32(values) => {
                let found = values.iter().position(|&value| stray(value));
                found.map(|at| (at, values[at]))
            }
        };
        let Some((at, class)) = found else {
            return Ok(());
        };
        let [c, d, h, w] = slab::position(region, at);
        let position = format!("at (C, D, H, W) = ({c}, {d}, {h}, {w})");
        Err(self.refuse(site, position, class))
    }

    /// Refuses a target vector with an element that is no class number.
    pub(crate) fn check_row(self, site: Site<'_>, row: &[f32]) -> Result<(), DataError> {
        match row.iter().position(|&value| !self.has(value)) {
            Some(at) => Err(self.refuse(site, format!("target {at}"), row[at])),
            None => Ok(()),
        }
    }

    /// Not a number is not.
    fn has(self, class: f32) -> bool {
        class >= 0.0 && class < self.count as f32 && class.fract() == 0.0
    }

    fn refuse(self, site: Site<'_>, position: String, class: f32) -> DataError {
        let last = self.count - 1;
        DataError::NoClass(Box::new(NoClass {
            path: site.path.to_path_buf(),
            key: site.key,
            split: site.split.name(),
            sample: site.sample,
            position,
            class: class.to_string(),
            last,
            // A cast of what is negative or not a number gives 0.
            nearest: (class.round() as usize).min(last),
            owner: self.owner,
            remedy: self.remedy,
        }))
    }
}
