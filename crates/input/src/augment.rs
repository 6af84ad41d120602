//! Augmentation: random changes of training samples, and sub-volumes as samples of their own.
//!
//! What happens to a sample is a function of (seed, epoch, sample), and to an element of its global index besides.
//! So ranks that share a sample agree without a message, and each reads the region that its own part comes from.

mod checks;
mod draws;
mod elastic;
mod foreground;
mod orientation;
mod sampling;
mod tiling;
mod variants;
mod view;

use serde::{Deserialize, Serialize};

pub(crate) use draws::SampleKey;
pub use foreground::Foreground;
pub use sampling::Sampling;
pub use tiling::{Tile, TileWeights, Tiling};
pub use variants::Variants;
pub(crate) use view::View;

/// Sub-volumes as samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crops {
    /// Extents D, H, W.
    pub extent: [usize; 3],
    /// Crops of each training volume in an epoch; as many as cover it if none.
    pub per_volume: Option<usize>,
    /// Where training crops lie.
    pub training: TrainingCrops,
    /// Where crops for validation and test lie.
    pub evaluation: EvaluationCrops,
}

/// Positions of crops of training volumes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TrainingCrops {
    /// Anywhere, anew in each epoch.
    #[default]
    Random,
    /// A regular grid that covers the volume.
    Grid,
}

/// Positions of crops of volumes for validation and test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EvaluationCrops {
    /// A regular grid that covers the volume, with the usual [`Tiling`]: outputs are joined to those of volumes.
    #[default]
    Tiles,
    /// A regular grid that covers the volume; crops overlap where its extent is no multiple of theirs.
    Grid,
    /// One crop, in the middle.
    Center,
}

/// Random changes of training samples, after [`Preparation`](crate::Preparation).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Augmentation {
    /// Whether D, H, W are reversed, each with a probability of one half.
    pub flip: [bool; 3],
    /// Whether samples are turned by right angles in planes with equal extents.
    pub rotate: bool,
    /// Interval of a factor on all values of a sample.
    pub scale_intensity: Option<[f64; 2]>,
    /// Interval of a number that is added to all values of a sample.
    pub shift_intensity: Option<[f64; 2]>,
    /// Standard deviation of Gaussian noise that is added to each value.
    pub noise: Option<f64>,
    /// Smooth random displacements.
    pub elastic: Option<Elastic>,
}

/// Elastic deformation: random displacements of the points of a grid, and a cubic B-spline between them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Elastic {
    /// Largest displacement along each dim. Units: voxels.
    pub magnitude: f64,
    /// Distance of the grid's points. Units: voxels.
    pub spacing: usize,
}

impl Augmentation {
    /// Whether it computes values that are not stored, so that they have to be floats.
    pub fn changes_values(&self) -> bool {
        self.scale_intensity.is_some()
            || self.shift_intensity.is_some()
            || self.noise.is_some()
            || self.elastic.is_some()
    }
}
