//! Volumes of fractals of several categories, to be segmented voxel by voxel, after the benchmark ScaFFold.
//!
//! A category is an iterated function system of two affine maps, an instance of it one with a changed parameter, and a
//! volume shows three instances.
//!
//! Source: Yamada et al., "Point Cloud Pre-Training With Natural 3D Structures", CVPR 2022; LBANN/ScaFFold,
//! `ScaFFold/datagen`.

use crate::error::SynthError;
use crate::random::{CounterRng, Stream, permuted};
use std::ops::Range;

/// Categories of fractals; class 0 is the background.
const CATEGORIES: usize = 5;
/// Parameters of an affine map: a matrix in rows, then a shift.
const PARAMETERS: usize = 12;
/// What a parameter of an instance is multiplied by.
const FACTORS: [f64; 12] = [0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6];
/// Instances of a category: itself, and each parameter with each factor.
const INSTANCES: u64 = 1 + (PARAMETERS * FACTORS.len()) as u64;
/// Fractals of a volume.
const FRACTALS: usize = 3;
/// Volumes that show no instance twice.
pub const FRACTAL_VOLUMES: usize = CATEGORIES * INSTANCES as usize / FRACTALS;
/// Channels of a volume.
pub const FRACTAL_CHANNELS: usize = 3;
/// The smallest and the largest scale.
const SCALES: [usize; 2] = [3, 11];

/// Points of a cloud per voxel of its volume.
const POINTS_PER_VOXEL: f64 = 1.0 / 256.0;
/// Points by which a category is judged.
const POINTS_JUDGED: u64 = 4096;
/// Least variance of a cloud along each dim, after it is brought to [-1, 1].
const VARIANCE_MIN: f64 = 0.15;
/// Coordinates beyond this are those of a cloud without bounds: of any one, and of one that is judged.
const COORDINATE_MAX: f64 = 1e10;
const JUDGED_MAX: f64 = 1e3;
/// What the change of a parameter is multiplied by, one after the other, until the cloud has bounds.
const ATTENUATIONS: [f64; 5] = [1.0, 0.5, 0.25, 0.1, 0.0];
/// Added to the largest extent of a cloud, so that its last point lies within the volume.
const EXTENT_EPSILON: f64 = 1e-6;
/// Values of a channel where it is full.
const FULL: f64 = 1000.0;

/// Names of the classes, by number.
pub fn fractal_classes() -> Vec<String> {
    let fractal = |category: usize| format!("fractal{category}");
    let background = std::iter::once("background".to_owned());
    background.chain((0..CATEGORIES).map(fractal)).collect()
}

/// The fractals of a seed, of which volumes are made.
#[derive(Debug, Clone)]
pub struct Fractals {
    scale: usize,
    seed: u64,
    categories: Vec<Category>,
}

/// An iterated function system.
#[derive(Debug, Clone)]
struct Category {
    maps: [[f64; PARAMETERS]; 2],
    /// Probability of the first map.
    first: f64,
    color: [i16; FRACTAL_CHANNELS],
}

/// The voxels of a volume that show a fractal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FractalVolume {
    grid: usize,
    /// Classes and colors of its fractals, in the order in which they are drawn.
    fractals: Vec<(i16, [i16; FRACTAL_CHANNELS])>,
    /// Position (D, H, W) times 4, and the number of the fractal; by position.
    voxels: Vec<u64>,
}

impl Fractals {
    /// The categories of a seed, for volumes of 2^scale voxels a side.
    ///
    /// Errors: `InvalidSpec` for a scale that is too small or too large.
    pub fn new(scale: usize, seed: u64) -> Result<Self, SynthError> {
        let [least, most] = SCALES;
        if !(least..=most).contains(&scale) {
            return Err(SynthError::InvalidSpec {
                field: "scale",
                expected: "3 to 11, for 8 to 2048 voxels a side",
                got: scale.to_string(),
            });
        }
        let rng = CounterRng::new(seed, 0);
        let found = (0..).filter_map(|attempt| Category::drawn(&rng, attempt));
        Ok(Self {
            scale,
            seed,
            categories: found.take(CATEGORIES).collect(),
        })
    }

    /// Voxels a side.
    pub fn grid(&self) -> usize {
        1 << self.scale
    }

    /// Volume `index`: the same seed and index, the same volume.
    pub fn volume(&self, index: u64) -> FractalVolume {
        let all = CATEGORIES as u64 * INSTANCES;
        let (mut fractals, mut voxels) = (Vec::new(), Vec::new());
        for number in 0..FRACTALS as u64 {
            // All instances are drawn before one is drawn again.
            let place = index * FRACTALS as u64 + number;
            let drawn = permuted(self.seed, place / all, all, place % all);
            let category = (drawn / INSTANCES) as usize;
            self.draw(category, drawn % INSTANCES, number, &mut voxels);
            fractals.push((category as i16 + 1, self.categories[category].color));
        }
        voxels.sort_unstable();
        voxels.dedup();
        // Of several fractals at a voxel the last is seen.
        voxels.reverse();
        voxels.dedup_by_key(|voxel| *voxel / 4);
        voxels.reverse();
        FractalVolume {
            grid: self.grid(),
            fractals,
            voxels,
        }
    }

    /// Adds the voxels of an instance, which is the fractal of this number in its volume.
    fn draw(&self, category: usize, instance: u64, number: u64, voxels: &mut Vec<u64>) {
        let rng = CounterRng::new(self.seed, 1 + category as u64 * INSTANCES + instance);
        let points = ((self.grid().pow(3) as f64 * POINTS_PER_VOXEL) as u64).max(1);
        let category = &self.categories[category];
        let walks = ATTENUATIONS.map(|attenuation| category.instance(instance, attenuation));
        let bounded = walks.iter().find_map(|one| {
            let bounds = one.bounds(&rng, points, COORDINATE_MAX)?;
            Some((one, bounds))
        });
        // Without bounds nothing is drawn; the category itself has them.
        let Some((one, [least, most])) = bounded else {
            return;
        };
        let extents = [0, 1, 2].map(|dim| most[dim] - least[dim]);
        let size = extents.into_iter().fold(0.0, f64::max) + EXTENT_EPSILON;
        let grid = self.grid() as f64;
        one.walk(&rng, points, |point| {
            let at = [0, 1, 2].map(|dim| {
                let offset = (grid - extents[dim] / size * grid) / 2.0;
                let place = (point[dim] - least[dim]) / size * grid + offset;
                place.floor().clamp(0.0, grid - 1.0) as u64
            });
            let side = self.grid() as u64;
            voxels.push(((at[0] * side + at[1]) * side + at[2]) * 4 + number);
            true
        });
    }
}

impl Category {
    /// The category of an attempt, if its cloud has bounds and is not flat.
    fn drawn(rng: &CounterRng, attempt: u64) -> Option<Self> {
        let number = |item: u64| rng.uniform(Stream::Parameters, attempt * 64 + item);
        let map = |first: u64| -> [f64; PARAMETERS] {
            std::array::from_fn(|parameter| 2.0 * number(first + parameter as u64) - 1.0)
        };
        let maps = [map(0), map(16)];
        let [one, other] = maps.each_ref().map(determinant);
        let color = [32, 33, 34].map(|item| (FULL * number(item)).round() as i16);
        let category = Self {
            maps,
            first: one / (one + other),
            color,
        };
        // Its choices of maps are those of no instance.
        let rng = CounterRng::new(rng.words(Stream::Order, attempt)[0].into(), u64::MAX);
        let [least, most] = category.bounds(&rng, POINTS_JUDGED, JUDGED_MAX)?;
        let (mut sums, mut squares) = ([0.0; 3], [0.0; 3]);
        category.walk(&rng, POINTS_JUDGED, |point| {
            for dim in 0..3 {
                let scaled = 2.0 * (point[dim] - least[dim]) / (most[dim] - least[dim]) - 1.0;
                sums[dim] += scaled;
                squares[dim] += scaled * scaled;
            }
            true
        });
        let count = POINTS_JUDGED as f64;
        let variance = |dim: usize| squares[dim] / count - (sums[dim] / count).powi(2);
        (0..3)
            .all(|dim| variance(dim) > VARIANCE_MIN)
            .then_some(category)
    }

    /// An instance, with so much of the change of its parameter.
    fn instance(&self, instance: u64, attenuation: f64) -> Self {
        let mut changed = self.clone();
        if let Some(change) = (instance as usize).checked_sub(1) {
            let factor = 1.0 + (FACTORS[change % FACTORS.len()] - 1.0) * attenuation;
            for map in &mut changed.maps {
                map[change / FACTORS.len()] *= factor;
            }
        }
        changed
    }

    /// Calls `visit` with the points of the cloud, until it says no.
    fn walk(&self, rng: &CounterRng, points: u64, mut visit: impl FnMut([f64; 3]) -> bool) -> bool {
        let mut point = [0.0; 3];
        let mut words = [0; 4];
        for number in 0..points {
            if !visit(point) {
                return false;
            }
            if number % 4 == 0 {
                words = rng.words(Stream::Scene, number / 4);
            }
            let drawn = f64::from(words[(number % 4) as usize]) / f64::from(u32::MAX);
            let map = &self.maps[usize::from(drawn >= self.first)];
            point = [0, 1, 2].map(|row| {
                let products = (0..3).map(|column| map[3 * row + column] * point[column]);
                products.sum::<f64>() + map[9 + row]
            });
        }
        true
    }

    /// The least and the largest coordinates of the cloud; none without bounds.
    fn bounds(&self, rng: &CounterRng, points: u64, limit: f64) -> Option<[[f64; 3]; 2]> {
        let mut bounds = [[f64::MAX; 3], [f64::MIN; 3]];
        let has_bounds = self.walk(rng, points, |point| {
            for dim in 0..3 {
                bounds[0][dim] = bounds[0][dim].min(point[dim]);
                bounds[1][dim] = bounds[1][dim].max(point[dim]);
            }
            point.iter().all(|value| value.abs() <= limit)
        });
        has_bounds.then_some(bounds)
    }
}

impl FractalVolume {
    /// Planes of the volume: its values, (C, D, H, W) in thousandths, and the class of each voxel, (D, H, W).
    pub fn planes(&self, planes: Range<usize>) -> (Vec<i16>, Vec<i16>) {
        let plane = self.grid * self.grid;
        let count = planes.len() * plane;
        let (mut values, mut labels) = (vec![0; FRACTAL_CHANNELS * count], vec![0; count]);
        let first = planes.start * plane;
        let start = self
            .voxels
            .partition_point(|voxel| ((voxel / 4) as usize) < first);
        for voxel in &self.voxels[start..] {
            let at = (voxel / 4) as usize - first;
            if at >= count {
                break;
            }
            let (class, color) = self.fractals[(voxel % 4) as usize];
            labels[at] = class;
            for (channel, value) in color.into_iter().enumerate() {
                values[channel * count + at] = value;
            }
        }
        (values, labels)
    }
}

/// Of the matrix of a map, without its sign.
fn determinant(map: &[f64; PARAMETERS]) -> f64 {
    let [a, b, c, d, e, f, g, h, i, ..] = map;
    (a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g)).abs()
}
