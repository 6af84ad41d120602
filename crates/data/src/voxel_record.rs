//! Spacing and orientation of the samples of a dataset, which a network does not see.

use serde::{Deserialize, Serialize};

use crate::dataset::Dataset;
use crate::formats::nifti::Affine;
use crate::grid::{AFFINES, Grid, short};
use crate::split::Split;

/// Spacings whose ratio is larger differ.
const SPACING_RATIO: f64 = 1.1;
/// Spacings whose ratio is smaller are told as one.
const SAME_RATIO: f64 = 1.01;

/// On which voxels samples are stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VoxelRecord {
    /// Where W, H and D run to, such as `RAS`; none where samples differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub orientation: Option<String>,
    /// The least and the largest spacing along D, H and W. Units: millimeters.
    pub spacing: [[f64; 2]; 3],
}

impl Dataset {
    /// Spacing and orientation of the samples of a split, where the index has the positions of their voxels.
    pub fn voxel_record(&self, split: Split) -> Option<VoxelRecord> {
        let affines = self.spec().get(AFFINES)?.get(split.name())?.as_array()?;
        let grid = |affine| Grid::new([1; 3], Affine::of_toml(affine)?);
        let mut grids = affines.iter().filter_map(grid);
        let first = grids.next()?;
        let dims = |grid: &Grid| {
            let [w, h, d] = grid.spacing();
            [d, h, w]
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
