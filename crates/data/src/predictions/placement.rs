//! Where the voxels of a prediction lie, and those on which it is written.

use std::io::Write;

use super::{PredictionKind, PredictionScratch, unwritable};
use crate::error::DataError;
use crate::formats::nifti::Affine;
use crate::grid::{Alignment, Grid};
use crate::resample::{Interpolation, resample};
use std::path::Path;

/// Positions of the voxels of a prediction, and the voxels of the image that its sample was converted from.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    affine: Affine,
    original: Option<Original>,
}

/// The voxels of an image, and where they lie on those of the sample.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Original {
    stored: Grid,
    pub(super) image: Grid,
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

    pub(super) fn affine(&self) -> Affine {
        self.affine
    }

    pub(super) fn original(&self) -> Option<&Original> {
        self.original.as_ref()
    }
}

impl PredictionScratch {
    /// Writes the values of a sample on the voxels of its image, in the order of NIfTI: scores and probabilities by
    /// linear interpolation, classes as those with the greatest interpolated score.
    pub(super) fn write_restored(
        &self,
        (sample, original): (usize, &Original),
        kind: PredictionKind,
        to: &mut dyn Write,
        path: &Path,
    ) -> Result<(), DataError> {
        let mut write = |bytes: Vec<u8>| {
            let written = to.write_all(&bytes);
            written.map_err(|error| unwritable(path, &error))
        };
        let channel = |channel: usize| {
            let mut values = Vec::new();
            let [depth, height, width] = self.extent_of(sample);
            for plane in 0..depth {
                let mut rows = Vec::new();
                self.read_rows([sample, channel, plane], [0..height, 0..width], &mut rows)?;
                values.append(&mut rows);
            }
            let Original {
                stored,
                image,
                alignment,
            } = original;
            let linear = Interpolation::Linear;
            Ok(resample(values, [stored, image], alignment, linear))
        };
        if kind != PredictionKind::Classes {
            for at in 0..self.shape.channels {
                let values = channel(at)?;
                write(
                    values
                        .iter()
                        .flat_map(|value| value.to_le_bytes())
                        .collect(),
                )?;
            }
            return Ok(());
        }
        let mut best = channel(0)?;
        let mut classes = vec![0_i32; best.len()];
        for at in 1..self.shape.channels {
            let scores = channel(at)?;
            for ((best, class), score) in best.iter_mut().zip(&mut classes).zip(scores) {
                if score > *best {
                    (*best, *class) = (score, at as i32);
                }
            }
        }
        write(
            classes
                .iter()
                .flat_map(|class| class.to_le_bytes())
                .collect(),
        )
    }
}
