//! Which samples a network sees of a dataset: whole volumes, or sub-volumes of them.

use std::ops::Range;

use partita_program::random::Draws;

use super::elastic::Field;
use super::orientation::Orientation;
use super::view::{Operation, SampleKey, View};
use super::{Augmentation, Crops, EvaluationCrops, TrainingCrops};
use crate::dataset::Dataset;
use crate::error::DataError;
use crate::samples::VolumeShape;
use crate::split::Split;

/// The samples of a dataset as a network sees them.
///
/// They are numbered in one sequence: training, validation, test. Crops of a volume follow one another.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Shape of a volume, (C, D, H, W).
    volume: VolumeShape,
    labels: Option<[usize; 3]>,
    /// Volumes of each split.
    volumes: [usize; 3],
    crops: Option<Crops>,
    augmentation: Augmentation,
    rotations: Vec<Orientation>,
    /// Least voxels that neighbors on a grid of crops share along each dim.
    overlap: [usize; 3],
    /// Channels that the network sees of each stored one.
    classes: usize,
}

/// The part of a volume that one of its crops, of several that cover it, is the source of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Number of the volume in its split.
    pub volume: usize,
    /// Where the crop begins in the volume, D, H, W.
    pub origin: [usize; 3],
    /// The part in the crop. Those of all crops of a volume cover it, and none shares a voxel with another; they
    /// meet in the middle of what the crops share.
    pub part: [Range<usize>; 3],
}

impl Sampling {
    /// Whole volumes as they are stored.
    pub fn plain(dataset: &Dataset) -> Self {
        Self {
            volume: dataset.shape(),
            labels: dataset.labels(),
            volumes: Split::ALL.map(|split| dataset.samples(split)),
            crops: None,
            augmentation: Augmentation::default(),
            rotations: vec![Orientation::AS_STORED],
            overlap: [0; 3],
            classes: 1,
        }
    }

    /// The same samples with a channel for each class in place of one of class indices, if there are some.
    #[must_use]
    pub fn with_one_hot(self, classes: Option<usize>) -> Self {
        let classes = classes.unwrap_or(1);
        Self { classes, ..self }
    }

    /// Whole volumes without augmentation.
    #[must_use]
    pub fn whole(&self) -> Self {
        Self {
            crops: None,
            ..self.for_evaluation()
        }
    }

    /// Crops of volumes, and augmentation of the training split.
    ///
    /// Errors: a crop larger than a volume, rotations without a plane of equal extents, displacements larger than a
    /// sample.
    pub fn new(
        dataset: &Dataset,
        crops: Option<Crops>,
        augmentation: Option<Augmentation>,
    ) -> Result<Self, DataError> {
        let plain = Self::plain(dataset);
        let augmentation = augmentation.unwrap_or_default();
        let [_, volume @ ..] = plain.volume;
        if let Some(crops) = crops {
            check_crop(dataset, crops.extent, volume)?;
        }
        let extent = crops.map_or(volume, |crops| crops.extent);
        let rotations = if augmentation.rotate {
            rotations_of(dataset, extent)?
        } else {
            vec![Orientation::AS_STORED]
        };
        if let Some(elastic) = augmentation.elastic {
            check_magnitude(dataset, elastic.magnitude, extent)?;
        }
        Ok(Self {
            crops,
            augmentation,
            rotations,
            ..plain
        })
    }

    /// The same samples without augmentation: training volumes are cropped as those for evaluation are.
    #[must_use]
    pub fn for_evaluation(&self) -> Self {
        let evaluated = |crops: Crops| Crops {
            per_volume: None,
            training: TrainingCrops::Grid,
            ..crops
        };
        Self {
            crops: self.crops.map(evaluated),
            augmentation: Augmentation::default(),
            rotations: vec![Orientation::AS_STORED],
            ..self.clone()
        }
    }

    /// Crops of a regular grid that covers each volume, of all splits; neighbors share a quarter of their extents or
    /// more. Without crops nothing changes.
    #[must_use]
    pub fn tiled(&self) -> Self {
        let on_grid = |crops: Crops| Crops {
            per_volume: None,
            training: TrainingCrops::Grid,
            evaluation: EvaluationCrops::Grid,
            ..crops
        };
        Self {
            crops: self.crops.map(on_grid),
            overlap: self.extent().map(|extent| extent / 4),
            ..self.for_evaluation()
        }
    }

    /// Which part of its volume each sample of a split stands for; samples are on a grid, as [`tiled`](Self::tiled)
    /// makes them.
    pub fn tiles(&self, split: Split) -> Vec<Tile> {
        let grid = self.grid();
        let tile = |sample: usize| {
            let per_volume = self.per_volume(split);
            let index = self.on_grid(sample % per_volume);
            Tile {
                volume: sample / per_volume,
                origin: std::array::from_fn(|dim| self.grid_origin(dim, index[dim])),
                part: std::array::from_fn(|dim| self.part(dim, index[dim], grid[dim])),
            }
        };
        (0..self.samples(split)).map(tile).collect()
    }

    /// Shape of a volume, (C, D, H, W).
    pub fn volume(&self) -> VolumeShape {
        self.volume
    }

    /// Number of volumes of a split.
    pub fn volumes(&self, split: Split) -> usize {
        self.volumes[split as usize]
    }

    /// Shape of a sample, (C, D, H, W).
    pub fn shape(&self) -> VolumeShape {
        let [c, ..] = self.volume;
        let [d, h, w] = self.extent();
        [c * self.classes, d, h, w]
    }

    /// Extents D, H, W of the class indices of a sample, where the dataset has them.
    pub fn labels(&self) -> Option<[usize; 3]> {
        let labels = self.labels?;
        let [_, volume @ ..] = self.volume;
        Some(if labels == volume {
            self.extent()
        } else {
            labels
        })
    }

    /// Whether the region of a volume that a part of a sample is made of is another one than that part, so that it may
    /// change from epoch to epoch.
    pub fn reads_other_regions(&self) -> bool {
        let augmentation = &self.augmentation;
        self.crops.is_some()
            || augmentation.rotate
            || augmentation.flip.contains(&true)
            || augmentation.elastic.is_some()
    }

    /// The split of a sample and the number of its volume there.
    pub(crate) fn volume_of(&self, sample: usize) -> (Split, usize) {
        let (split, inside) = self.locate(sample);
        (split, inside / self.per_volume(split))
    }

    /// Whether each voxel has a class index, which moves with it.
    pub(crate) fn labels_voxels(&self) -> bool {
        let [_, volume @ ..] = self.volume;
        self.labels == Some(volume)
    }

    /// Number of samples of a split.
    pub fn samples(&self, split: Split) -> usize {
        self.volumes[split as usize] * self.per_volume(split)
    }

    /// Number of the first sample of a split among all samples.
    pub fn first_sample(&self, split: Split) -> usize {
        let before = Split::ALL.into_iter().take_while(|&other| other != split);
        before.map(|other| self.samples(other)).sum()
    }

    /// Crops, if samples are not whole volumes.
    pub fn crops(&self) -> Option<Crops> {
        self.crops
    }

    /// Augmentation of training samples.
    pub fn augmentation(&self) -> &Augmentation {
        &self.augmentation
    }

    /// A sample as the network sees it. Beyond all splits it is a sample that the last split lacks.
    pub(crate) fn view(&self, key: SampleKey, sample: usize) -> View {
        let (split, inside) = self.locate(sample);
        let per_volume = self.per_volume(split);
        let (volume, crop) = (inside / per_volume, inside % per_volume);
        let mut view = View::of(split, volume, self.volume, self.extent());
        let draws =
            |operation: Operation| Draws::new(key.seed, key.epoch, sample as u64, operation as u32);
        view.classes = self.classes;
        view.origin = self.origin(split, crop, &draws(Operation::Crop));
        if split == Split::Train {
            self.augment(&mut view, draws);
        }
        view
    }

    fn augment(&self, view: &mut View, draws: impl Fn(Operation) -> Draws) {
        let augmentation = &self.augmentation;
        let rotation = below(draws(Operation::Rotate).unit(0), self.rotations.len());
        let flip = draws(Operation::Flip);
        view.orientation = self.rotations[rotation].flipped(std::array::from_fn(|dim| {
            augmentation.flip[dim] && flip.unit(dim as u64) < 0.5
        }));
        let intensity = draws(Operation::Intensity);
        let within =
            |[low, high]: [f64; 2], element| (low + (high - low) * intensity.unit(element)) as f32;
        view.scale = augmentation
            .scale_intensity
            .map(|interval| within(interval, 0));
        view.shift = augmentation
            .shift_intensity
            .map(|interval| within(interval, 1));
        let noise = |deviation| (draws(Operation::Noise), deviation as f32);
        view.noise = augmentation.noise.map(noise);
        if let Some(elastic) = augmentation.elastic {
            let field = Field::new(elastic, self.extent(), draws(Operation::Elastic));
            view.deform(field, elastic.magnitude);
        }
    }

    /// D, H, W.
    fn extent(&self) -> [usize; 3] {
        let [_, volume @ ..] = self.volume;
        self.crops.map_or(volume, |crops| crops.extent)
    }

    fn per_volume(&self, split: Split) -> usize {
        let Some(crops) = self.crops else {
            return 1;
        };
        let covering = self.grid().into_iter().product();
        match (split, crops.training, crops.evaluation) {
            (Split::Train, TrainingCrops::Random, _) => crops.per_volume.unwrap_or(covering),
            (Split::Train, TrainingCrops::Grid, _)
            | (Split::Validation | Split::Test, _, EvaluationCrops::Grid) => covering,
            (Split::Validation | Split::Test, _, EvaluationCrops::Center) => 1,
        }
    }

    /// Crops along each dim that cover a volume.
    fn grid(&self) -> [usize; 3] {
        let [_, volume @ ..] = self.volume;
        let extent = self.extent();
        std::array::from_fn(|dim| {
            let shared = self.overlap[dim];
            (volume[dim] - shared).div_ceil(extent[dim] - shared).max(1)
        })
    }

    /// Place of a crop on the grid, D, H, W.
    fn on_grid(&self, crop: usize) -> [usize; 3] {
        let [_, heights, widths] = self.grid();
        [
            crop / widths / heights,
            crop / widths % heights,
            crop % widths,
        ]
    }

    /// Where crops of a place on the grid begin along a dim.
    fn grid_origin(&self, dim: usize, place: usize) -> usize {
        let room = self.volume[dim + 1] - self.extent()[dim];
        match self.grid()[dim] {
            1 => 0,
            count => place * room / (count - 1),
        }
    }

    /// What a crop of this place on the grid is the source of, along a dim.
    fn part(&self, dim: usize, place: usize, count: usize) -> Range<usize> {
        let extent = self.extent()[dim];
        let origin = self.grid_origin(dim, place);
        // Between a crop and the one after it.
        let border = |place: usize| {
            let shared = self.grid_origin(dim, place + 1)..self.grid_origin(dim, place) + extent;
            (shared.start + shared.end).div_ceil(2)
        };
        let start = if place == 0 { 0 } else { border(place - 1) };
        let end = if place + 1 == count {
            self.volume[dim + 1]
        } else {
            border(place)
        };
        start - origin..end - origin
    }

    /// Where a crop begins.
    fn origin(&self, split: Split, crop: usize, draws: &Draws) -> [usize; 3] {
        let [_, volume @ ..] = self.volume;
        let extent = self.extent();
        let room: [usize; 3] = std::array::from_fn(|dim| volume[dim] - extent[dim]);
        let Some(crops) = self.crops else {
            return [0; 3];
        };
        let on_grid = || {
            let index = self.on_grid(crop);
            std::array::from_fn(|dim| self.grid_origin(dim, index[dim]))
        };
        match (split, crops.training, crops.evaluation) {
            (Split::Train, TrainingCrops::Random, _) => {
                std::array::from_fn(|dim| below(draws.unit(dim as u64), room[dim] + 1))
            }
            (Split::Train, TrainingCrops::Grid, _)
            | (Split::Validation | Split::Test, _, EvaluationCrops::Grid) => on_grid(),
            (Split::Validation | Split::Test, _, EvaluationCrops::Center) => {
                room.map(|room| room / 2)
            }
        }
    }

    /// The split of a sample and its number there.
    fn locate(&self, mut sample: usize) -> (Split, usize) {
        for split in [Split::Train, Split::Validation] {
            let samples = self.samples(split);
            if sample < samples {
                return (split, sample);
            }
            sample -= samples;
        }
        (Split::Test, sample)
    }
}

/// Crops lie within volumes.
fn check_crop(dataset: &Dataset, crop: [usize; 3], volume: [usize; 3]) -> Result<(), DataError> {
    let fits = |(crop, extent): (usize, usize)| (1..=extent).contains(&crop);
    if crop.into_iter().zip(volume).all(fits) {
        return Ok(());
    }
    let nearest: [usize; 3] = std::array::from_fn(|dim| crop[dim].clamp(1, volume[dim]));
    let reason = format!("volumes are D, H, W = {volume:?}");
    let expected = format!("at most their extents, nearest is {nearest:?}");
    Err(refusal(
        dataset,
        "crop",
        format!("{crop:?}"),
        reason,
        expected,
    ))
}

/// The rotations of samples that keep their shape, of which there are several.
fn rotations_of(dataset: &Dataset, extent: [usize; 3]) -> Result<Vec<Orientation>, DataError> {
    let rotations = Orientation::rotations(extent);
    if rotations.len() > 1 {
        return Ok(rotations);
    }
    let reason = format!(
        "samples are D, H, W = {extent:?}, and no plane has equal extents above 1, so a quarter turn changes their \
         shape"
    );
    let expected = "false, or `crop` with equal extents in a plane".to_owned();
    let got = "true".to_owned();
    Err(refusal(
        dataset,
        "augmentation.rotate",
        got,
        reason,
        expected,
    ))
}

/// Displacements are smaller than samples.
fn check_magnitude(dataset: &Dataset, magnitude: f64, extent: [usize; 3]) -> Result<(), DataError> {
    let largest = extent.into_iter().max().unwrap_or(1) as f64;
    if magnitude >= largest {
        let reason = format!("samples are D, H, W = {extent:?}");
        let (got, expected) = (magnitude.to_string(), format!("below {largest}"));
        let key = "augmentation.elastic.magnitude";
        return Err(refusal(dataset, key, got, reason, expected));
    }
    Ok(())
}

fn refusal(
    dataset: &Dataset,
    key: &'static str,
    got: String,
    reason: String,
    expected: String,
) -> DataError {
    DataError::Augmentation {
        path: dataset.path().to_path_buf(),
        key,
        got,
        reason,
        expected,
    }
}

/// A uniform whole number below a bound, of a uniform number below 1.
fn below(unit: f64, bound: usize) -> usize {
    ((unit * bound as f64) as usize).min(bound - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_tiles_cover_each_volume_once() {
        for (volume, extent) in [
            ([1, 16, 20, 8], [8, 8, 8]),
            ([2, 9, 33, 5], [4, 7, 5]),
            ([1, 1, 40, 41], [1, 13, 40]),
            ([1, 5, 1, 9], [1, 1, 2]),
        ] {
            let sampling = Sampling {
                volume,
                labels: None,
                volumes: [0, 2, 0],
                crops: Some(Crops {
                    extent,
                    per_volume: None,
                    training: TrainingCrops::Random,
                    evaluation: EvaluationCrops::Center,
                }),
                augmentation: Augmentation::default(),
                rotations: vec![Orientation::AS_STORED],
                overlap: [0; 3],
                classes: 1,
            };
            assert_eq!(sampling.samples(Split::Validation), 2);
            let sampling = sampling.tiled();
            let [_, depth, height, width] = volume;
            let mut count = vec![0; 2 * depth * height * width];
            let tiles = sampling.tiles(Split::Validation);
            assert_eq!(tiles.len(), sampling.samples(Split::Validation));
            for Tile {
                volume,
                origin,
                part: [d, h, w],
            } in tiles
            {
                assert!(d.end <= extent[0] && h.end <= extent[1] && w.end <= extent[2]);
                for d in d {
                    for h in h.clone() {
                        for w in w.clone() {
                            let at = [volume, origin[0] + d, origin[1] + h, origin[2] + w];
                            count[((at[0] * depth + at[1]) * height + at[2]) * width + at[3]] += 1;
                        }
                    }
                }
            }
            assert!(
                count.iter().all(|&count| count == 1),
                "{volume:?} {extent:?}"
            );
        }
    }
}
