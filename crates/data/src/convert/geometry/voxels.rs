//! Where the voxels of a sample lie.

use crate::grid::Grid;
use crate::resample::Interpolation;

/// Where the voxels of a sample lie. Axes x, y and z are W, H and D, but in `file`.
#[derive(Clone, Copy)]
pub(in crate::convert) struct Geometry {
    /// The image as it is read.
    pub(super) read: Grid,
    /// The labels as they are read.
    pub(super) labels: Grid,
    /// The sample as it is stored.
    pub(super) stored: Grid,
    /// The image in the axes of its file.
    pub(super) file: Grid,
    pub(super) interpolation: Interpolation,
}

impl Geometry {
    /// Extents D, H, W of the labels as they are read, by those of the labels of the dataset.
    pub(in crate::convert) fn label_extent(&self, of_dataset: [usize; 3]) -> [usize; 3] {
        if of_dataset == [1; 3] {
            return of_dataset;
        }
        self.labels.dims()
    }
}
