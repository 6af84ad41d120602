//! An opened dataset.

use std::path::{Path, PathBuf};

use crate::error::DataError;
use crate::hdf5::{SourceArray, SourceFile};
use crate::index::Kind;
use crate::keys::{LABEL_KEY, TARGET_KEY, VOLUME_KEY};
use crate::samples::{DType, VolumeShape};

/// Files of the samples of a split.
#[derive(Clone, Debug)]
pub(crate) enum Files {
    /// Arrays with a leading dim N in one file.
    Stacked { path: PathBuf, samples: usize },
    /// One file per sample.
    Single(Vec<PathBuf>),
}

impl Files {
    pub(crate) fn samples(&self) -> usize {
        match self {
            Files::Stacked { samples, .. } => *samples,
            Files::Single(paths) => paths.len(),
        }
    }

    pub(crate) fn paths(&self) -> &[PathBuf] {
        match self {
            Files::Stacked { path, .. } => std::slice::from_ref(path),
            Files::Single(paths) => paths,
        }
    }

    /// File of a sample, and its index in it if samples are stacked.
    pub(crate) fn locate(&self, sample: usize) -> (&Path, Option<usize>) {
        match self {
            Files::Stacked { path, .. } => (path, Some(sample)),
            Files::Single(paths) => (&paths[sample], None),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) path: PathBuf,
    pub(crate) kind: Option<Kind>,
    pub(crate) shape: VolumeShape,
    pub(crate) dtype: DType,
    pub(crate) targets: Vec<String>,
    pub(crate) labels: Option<[usize; 3]>,
    pub(crate) splits: [Files; 3],
    pub(crate) universes: [Vec<u64>; 3],
    pub(crate) spec: toml::Table,
}

impl Inner {
    /// Opens the volume array of a file and checks it against the dataset.
    pub(crate) fn volumes(
        &self,
        file: &SourceFile,
        samples: Option<usize>,
    ) -> Result<SourceArray, DataError> {
        let array = file.array(VOLUME_KEY)?;
        if array.dtype()? != self.dtype {
            return Err(array.wrong_dtype(self.dtype.name()));
        }
        check_shape(array, samples, &self.shape, "C, D, H, W")
    }

    /// Opens a parameter array of a file and checks it against the dataset.
    pub(crate) fn parameters(
        &self,
        file: &SourceFile,
        key: &str,
        samples: Option<usize>,
    ) -> Result<SourceArray, DataError> {
        check_shape(file.array(key)?, samples, &[self.targets.len()], "targets")
    }

    /// Opens the labels of a file, if the dataset has them, and checks them against it.
    pub(crate) fn label_array(
        &self,
        file: &SourceFile,
        samples: Option<usize>,
    ) -> Result<Option<SourceArray>, DataError> {
        let Some([d, h, w]) = self.labels else {
            return Ok(None);
        };
        let array = file.array(LABEL_KEY)?;
        if array.dtype()? != DType::Int16 {
            return Err(array.wrong_dtype(DType::Int16.name()));
        }
        check_shape(array, samples, &[1, d, h, w], "1, D, H, W").map(Some)
    }

    /// Opens the targets or labels of a file and checks them.
    pub(crate) fn check_targets(
        &self,
        file: &SourceFile,
        samples: Option<usize>,
    ) -> Result<(), DataError> {
        if self.label_array(file, samples)?.is_none() {
            self.parameters(file, TARGET_KEY, samples)?;
        }
        Ok(())
    }
}

fn check_shape(
    array: SourceArray,
    samples: Option<usize>,
    each: &[usize],
    dims: &str,
) -> Result<SourceArray, DataError> {
    let expected: Vec<usize> = samples.into_iter().chain(each.iter().copied()).collect();
    let dims = if samples.is_some() {
        format!("N, {dims}")
    } else {
        dims.to_string()
    };
    if array.shape.len() != expected.len() {
        return Err(array.wrong_rank(&format!("rank {} ({dims})", expected.len())));
    }
    if array.shape != expected {
        return Err(array.wrong_shape(format!("{expected:?} ({dims})")));
    }
    Ok(array)
}
