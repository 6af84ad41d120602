//! Where the voxels of a prediction lie, and those on which it is written.

use partita_formats::nifti::Affine;

use crate::grid::{Alignment, Grid};
use crate::resample::{Interpolation, resample};

/// Positions of the voxels of a prediction, and the voxels of the image that its sample was converted from.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    affine: Affine,
    original: Option<Original>,
}

/// The voxels of an image, and where they lie on those of the sample.
#[derive(Clone, Debug, PartialEq)]
struct Original {
    stored: Grid,
    image: Grid,
    alignment: Alignment,
}

impl Placement {
    /// Of a sample that is stored as its image is.
    pub(crate) fn as_stored(affine: Affine) -> Self {
        Self {
            affine,
            original: None,
        }
    }

    /// Of a sample whose image had other voxels; `None` where their axes are not parallel.
    pub(crate) fn restored(stored: Grid, image: Grid) -> Option<Self> {
        Some(Self {
            affine: image.affine,
            original: Some(Original {
                stored,
                image,
                alignment: image.on(&stored)?,
            }),
        })
    }

    /// Whether the prediction is written on other voxels than those of the sample.
    pub fn is_restored(&self) -> bool {
        self.original.is_some()
    }

    /// Whether these lie between the voxels of the sample, and not on them in another order.
    pub fn is_interpolated(&self) -> bool {
        let original = self.original.as_ref();
        original.is_some_and(|found| found.image.is_same_voxels(&found.stored).is_none())
    }

    /// Positions of the voxels on which it is written.
    pub fn affine(&self) -> Affine {
        self.affine
    }

    /// D, H, W of the image, where the prediction is written on its voxels.
    pub fn image_extent(&self) -> Option<[usize; 3]> {
        self.original.as_ref().map(|original| original.image.dims())
    }

    /// Values of one channel on the voxels on which they are written, by linear interpolation.
    ///
    /// Shapes: (D, H, W) of the sample; of the image, where [`is_restored`](Self::is_restored).
    pub fn restore(&self, values: Vec<f32>) -> Vec<f32> {
        match &self.original {
            None => values,
            Some(Original {
                stored,
                image,
                alignment,
            }) => resample(values, [stored, image], alignment, Interpolation::Linear),
        }
    }
}
