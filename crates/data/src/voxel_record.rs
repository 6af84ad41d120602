//! Spacing and orientation of the samples of a dataset, which a network does not see.

use partita_formats::nifti::Affine;
use serde::{Deserialize, Serialize};

use crate::dataset::Dataset;
use crate::grid::{AFFINES, Grid, short};
use crate::split::Split;

/// Spacings whose ratio is larger differ.
const SPACING_RATIO: f64 = 1.1;
/// Spacings whose ratio is smaller are reported as one.
const SAME_RATIO: f64 = 1.01;

/// On which voxels samples are stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VoxelRecord {
    /// Where W, H and D run to, such as `RAS`; none where samples differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub orientation: Option<String>,
    /// The least and the largest spacing along D, H and W; 1 along a dim of one voxel. Units: millimeters.
    pub spacing: [[f64; 2]; 3],
}

impl Dataset {
    /// Spacing and orientation of the samples of a split, where the index has the positions of their voxels.
    pub fn voxel_record(&self, split: Split) -> Option<VoxelRecord> {
        let affines = self.spec().get(AFFINES)?.get(split.name())?.as_array()?;
        let grid = |affine| Grid::new([1; 3], Affine::of_toml(affine)?);
        let mut grids = affines.iter().filter_map(grid);
        let first = grids.next()?;
        let [_, extent @ ..] = self.shape();
        let dims = |grid: &Grid| {
            let [w, h, d] = grid.spacing();
            let spacing = [d, h, w];
            [0, 1, 2].map(|dim| if extent[dim] > 1 { spacing[dim] } else { 1.0 })
        };
        let mut found = VoxelRecord {
            orientation: Some(first.orientation()),
            spacing: dims(&first).map(|spacing| [spacing; 2]),
        };
        for grid in grids {
            for ([least, most], spacing) in found.spacing.iter_mut().zip(dims(&grid)) {
                (*least, *most) = (least.min(spacing), most.max(spacing));
            }
            let own = grid.orientation();
            found.orientation = found.orientation.filter(|orientation| *orientation == own);
        }
        Some(found)
    }
}

impl VoxelRecord {
    /// How samples of a dataset differ from those of a training, with what to do: a line each for spacing and
    /// orientation.
    pub fn differences(&self, trained: &Self) -> Vec<String> {
        let spacing = (0..3).any(|dim| {
            let ([least, most], [low, high]) = (self.spacing[dim], trained.spacing[dim]);
            most > high * SPACING_RATIO || least * SPACING_RATIO < low
        });
        let spacing = spacing.then(|| {
            let nearest = [0, 1, 2].map(|dim| {
                let ([least, most], [low, high]) = (self.spacing[dim], trained.spacing[dim]);
                short(f64::midpoint(least, most).clamp(low, high))
            });
            format!(
                "spacing (D, H, W) is {} mm, and that of the training data {} mm; `partita data convert --spacing {}` \
                 resamples to it",
                self.spacing_text(),
                trained.spacing_text(),
                nearest.join("x")
            )
        });
        let is_turned = trained.orientation.is_some() && self.orientation != trained.orientation;
        let orientation = trained.orientation.as_deref().filter(|_| is_turned);
        let orientation = orientation.map(|trained| {
            let own = self.orientation.as_deref().unwrap_or("several orientations");
            let remedy = match trained {
                "RAS" => "`partita data convert --orientation canonical` stores all in RAS",
                _ => "convert with `--orientation` and `--layout` as the training data",
            };
            format!("orientation (of W, H, D) is {own}, and that of the training data {trained}; {remedy}")
        });
        spacing.into_iter().chain(orientation).collect()
    }

    fn spacing_text(&self) -> String {
        let text = |[least, most]: [f64; 2]| {
            if most <= least * SAME_RATIO {
                short(least)
            } else {
                format!("{} to {}", short(least), short(most))
            }
        };
        self.spacing.map(text).join(" x ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(orientation: Option<&str>, spacing: [[f64; 2]; 3]) -> VoxelRecord {
        VoxelRecord {
            orientation: orientation.map(str::to_owned),
            spacing,
        }
    }

    #[test]
    fn samples_outside_of_the_spacings_of_a_training_differ() {
        let trained = record(Some("RAS"), [[2.0, 4.0], [1.0, 1.0], [0.5, 0.9]]);
        for spacing in [
            [[2.0, 4.0], [1.0, 1.0], [0.5, 0.9]],
            [[1.9, 4.3], [0.92, 1.09], [0.7, 0.7]],
        ] {
            assert!(
                record(Some("RAS"), spacing)
                    .differences(&trained)
                    .is_empty()
            );
        }
        let told = record(None, [[5.0, 5.0], [1.0, 1.0], [0.6, 0.8]]).differences(&trained);
        let [spacing, orientation] = told.as_slice() else {
            panic!("two lines, not {told:?}");
        };
        assert!(spacing.contains("is 5 x 1 x 0.6 to 0.8 mm"), "{spacing}");
        assert!(spacing.contains("2 to 4 x 1 x 0.5 to 0.9 mm"), "{spacing}");
        assert!(
            spacing.contains("`partita data convert --spacing 4x1x0.7`"),
            "{spacing}"
        );
        assert!(
            orientation.contains("is several orientations"),
            "{orientation}"
        );
        // Where those of the training differ, none is another one.
        let mixed = record(None, trained.spacing);
        assert!(trained.differences(&mixed).is_empty());
        let left = record(Some("LPS"), trained.spacing);
        assert!(trained.differences(&left)[0].ends_with("as the training data"));
    }
}
