//! Volumes that look a little like CT: an organ with lesions, to be segmented voxel by voxel.

use crate::error::SynthError;
use crate::random::{CounterRng, SceneDraws, Stream};
use std::f64::consts::TAU;

/// Names of the classes, by number.
pub const CLASSES: [&str; 3] = ["background", "organ", "lesion"];

/// Values inside each class, in hundredths.
const LEVELS: [f64; 3] = [0.0, 60.0, 120.0];
/// Deviation of the noise, in hundredths.
const NOISE: f64 = 50.0;
/// Height of the slow variation of the level, in hundredths.
const DRIFT: f64 = 20.0;

/// What a dataset of volumes is made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentationSpec {
    /// Voxels a side, 8 to 1024.
    pub grid: usize,
    /// Names the dataset: with the index of a volume it determines every bit.
    pub seed: u64,
}

/// A volume with a class at each voxel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentedVolume {
    /// One channel, layout (D, H, W), in hundredths.
    pub values: Vec<i16>,
    /// Index into [`CLASSES`], layout (D, H, W).
    pub labels: Vec<i16>,
}

impl SegmentationSpec {
    /// Errors: `InvalidSpec` for a grid beyond its limits.
    pub fn validate(&self) -> Result<(), SynthError> {
        if (8..=1024).contains(&self.grid) {
            return Ok(());
        }
        Err(SynthError::InvalidSpec {
            field: "grid",
            expected: "8 to 1024 voxels a side",
            got: self.grid.to_string(),
        })
    }
}

/// Makes volume `index` of a dataset; same specification and index, same volume.
///
/// An ellipsoid with a wavy surface is the organ; one or two smaller ones within it are lesions, two
/// as bright ones outside of it belong to the background, so that brightness alone does not tell. The
/// level drifts slowly, and the noise is nearly as large as the steps between classes. What there is
/// to see does not depend on the grid; the noise of each voxel is its own.
/// Errors: `InvalidSpec`.
pub fn make_segmented(spec: &SegmentationSpec, index: u64) -> Result<SegmentedVolume, SynthError> {
    spec.validate()?;
    let rng = CounterRng::new(spec.seed, index);
    let scene = Scene::new(&mut SceneDraws::new(rng));
    let grid = spec.grid;
    let at = |i: usize| (i as f64 + 0.5) / grid as f64;
    let mut volume = SegmentedVolume {
        values: Vec::with_capacity(grid.pow(3)),
        labels: Vec::with_capacity(grid.pow(3)),
    };
    for d in 0..grid {
        for h in 0..grid {
            for w in 0..grid {
                let (class, level) = scene.voxel([at(d), at(h), at(w)]);
                let voxel = volume.labels.len() as u64;
                let [noise, _] = rng.normal_pair(Stream::Noise, voxel);
                volume.values.push((level + NOISE * noise).round() as i16);
                volume.labels.push(class);
            }
        }
    }
    Ok(volume)
}

/// What a volume shows, in the unit cube.
struct Scene {
    organ: Blob,
    lesions: Vec<Blob>,
    decoys: [Blob; 2],
    drift: Wave,
}

/// An ellipsoid whose surface is wavy.
struct Blob {
    center: [f64; 3],
    radii: [f64; 3],
    waves: [Wave; 3],
}

struct Wave {
    height: f64,
    direction: [f64; 3],
    phase: f64,
}

impl Scene {
    fn new(draws: &mut SceneDraws) -> Self {
        let organ = Blob::new(draws, [0.5; 3], 0.08, 0.24, 0.34);
        let count = if draws.between(0.0, 1.0) < 0.5 { 1 } else { 2 };
        // At three tenths of the radii a lesion's center is well inside the organ.
        let lesions = (0..count)
            .map(|_| {
                let offset = organ.radii.map(|radius| radius * draws.between(-0.3, 0.3));
                let center = [0, 1, 2].map(|dim| organ.center[dim] + offset[dim]);
                Blob::new(draws, center, 0.0, 0.08, 0.14)
            })
            .collect();
        let decoys = [0.14, 0.86].map(|side| {
            let others = [draws.between(0.14, 0.86), draws.between(0.14, 0.86)];
            Blob::new(draws, [side, others[0], others[1]], 0.0, 0.06, 0.12)
        });
        let drift = Wave::new(draws, DRIFT, 1.0);
        Self {
            organ,
            lesions,
            decoys,
            drift,
        }
    }

    /// Class and level without noise of a place.
    fn voxel(&self, place: [f64; 3]) -> (i16, f64) {
        let is_organ = self.organ.contains(place);
        let class = match is_organ {
            true if self.lesions.iter().any(|blob| blob.contains(place)) => 2,
            true => 1,
            false => 0,
        };
        let is_decoy = !is_organ && self.decoys.iter().any(|blob| blob.contains(place));
        let level = if is_decoy { LEVELS[2] } else { LEVELS[class] };
        (class as i16, level + self.drift.at(place))
    }
}

impl Blob {
    /// A blob about `center`, moved by up to `shift`, with radii between two bounds.
    fn new(draws: &mut SceneDraws, center: [f64; 3], shift: f64, low: f64, high: f64) -> Self {
        Self {
            center: center.map(|place| place + draws.between(-shift, shift)),
            radii: [(); 3].map(|()| draws.between(low, high)),
            waves: [(); 3].map(|()| Wave::new(draws, 0.12, 3.0)),
        }
    }

    fn contains(&self, place: [f64; 3]) -> bool {
        let far: f64 = (0..3)
            .map(|dim| ((place[dim] - self.center[dim]) / self.radii[dim]).powi(2))
            .sum();
        // The waves move the surface by less than half of what it lies at.
        far < 0.5
            || far < 2.0 && far < 1.0 + self.waves.iter().map(|wave| wave.at(place)).sum::<f64>()
    }
}

impl Wave {
    /// At most `frequency` periods along each dim.
    fn new(draws: &mut SceneDraws, height: f64, frequency: f64) -> Self {
        Self {
            height,
            direction: [(); 3].map(|()| draws.between(-frequency, frequency)),
            phase: draws.between(0.0, TAU),
        }
    }

    fn at(&self, place: [f64; 3]) -> f64 {
        let along: f64 = (0..3).map(|dim| self.direction[dim] * place[dim]).sum();
        self.height * (TAU * along + self.phase).cos()
    }
}
