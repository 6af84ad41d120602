//! Which samples a network sees of a dataset: whole volumes, or sub-volumes of them.

use std::ops::Range;
use std::sync::Arc;

use partita_data::{Dataset, Split};
use partita_formats::{DataError, VolumeShape};
use partita_program::random::Draws;

use super::checks::{check_crop, check_magnitude, rotations_of};
use super::draws::{Operation, SampleKey, below};
use super::elastic::Field;
use super::foreground::Foreground;
use super::orientation::Orientation;
use super::view::{View, padding};
use super::{Augmentation, Crops, EvaluationCrops, Tile, Tiling, TrainingCrops, Variants};

/// The samples of a dataset as a network sees them.
///
/// They are numbered in one sequence: training, validation, test. Crops of a volume follow one another. Further variants of
/// all samples have the numbers behind these, one variant after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Shape of a volume, (C, D, H, W); where extents differ, the largest along each dim.
    volume: VolumeShape,
    labels: Option<[usize; 3]>,
    /// Volumes of each split.
    volumes: [usize; 3],
    /// D, H, W of the volumes of each split, where they differ.
    extents: Option<[Arc<[[usize; 3]]>; 3]>,
    /// Number in its split of the first sample of each volume, and of the sample after the last, where extents differ.
    firsts: [Arc<[usize]>; 3],
    crops: Option<Crops>,
    /// Share of the random crops that have a position of a class in their middle, and these positions.
    foreground: Option<(f64, Arc<Foreground>)>,
    augmentation: Augmentation,
    rotations: Vec<Orientation>,
    /// Least voxels that neighbors on a grid of crops share along each dim.
    overlap: [usize; 3],
    /// Channels that the network sees of each stored one.
    classes: usize,
    variants: Variants,
}

impl Sampling {
    /// Whole volumes as they are stored; where extents differ, padded to the largest along each dim.
    pub fn plain(dataset: &Dataset) -> Self {
        let volumes = Split::ALL.map(|split| dataset.samples(split));
        let extents = |split: Split| {
            let extents = (0..volumes[split as usize]).map(|volume| {
                let [_, extent @ ..] = dataset.shape_of(split, volume);
                extent
            });
            extents.collect()
        };
        let plain = Self {
            volume: dataset.shape(),
            labels: dataset.labels(),
            volumes,
            extents: dataset.smallest_extent().map(|_| Split::ALL.map(extents)),
            firsts: Default::default(),
            crops: None,
            foreground: None,
            augmentation: Augmentation::default(),
            rotations: vec![Orientation::AS_STORED],
            overlap: [0; 3],
            classes: 1,
            variants: Variants::default(),
        };
        plain.counted()
    }

    /// The same with the numbers of the samples of each volume.
    fn counted(self) -> Self {
        let Some(extents) = &self.extents else {
            return self;
        };
        let firsts = |split: Split| {
            let mut next = 0;
            let mut firsts = vec![0];
            for &extent in extents[split as usize].iter() {
                next += self.count(split, self.padded(extent));
                firsts.push(next);
            }
            firsts.into()
        };
        let firsts = Split::ALL.map(firsts);
        Self { firsts, ..self }
    }

    /// The same samples with a channel for each class in place of one of class indices, if there are some.
    #[must_use]
    pub fn with_one_hot(self, classes: Option<usize>) -> Self {
        let classes = classes.unwrap_or(1);
        Self { classes, ..self }
    }

    /// The same samples, of which this share of the random crops of the training split has a foreground position in its
    /// middle, as nearly as the border of the volume allows.
    #[must_use]
    pub fn with_foreground(self, share: f64, foreground: Foreground) -> Self {
        let foreground = Some((share, Arc::new(foreground)));
        Self { foreground, ..self }
    }

    /// Whole volumes without augmentation; see [`plain`](Self::plain).
    #[must_use]
    pub fn whole(&self) -> Self {
        let whole = Self {
            crops: None,
            ..self.for_evaluation()
        };
        whole.counted()
    }

    /// Volumes without augmentation, of which those of these extents are whole. A volume is a sample.
    #[must_use]
    pub fn whole_of(&self, extent: [usize; 3]) -> Self {
        let middle = Crops {
            extent,
            per_volume: Some(1),
            training: TrainingCrops::Random,
            evaluation: EvaluationCrops::Center,
        };
        let whole = Self {
            crops: Some(middle),
            overlap: [0; 3],
            variants: Variants::default(),
            ..self.for_evaluation()
        };
        whole.counted()
    }

    /// Crops of volumes, and augmentation of the training split.
    ///
    /// Volumes that are smaller than a crop are padded to it on both sides.
    ///
    /// Errors: different extents without crops, crops that are thicker than one slice where volumes are one, rotations
    /// without a plane of equal extents, displacements larger than a sample.
    pub fn new(
        dataset: &Dataset,
        crops: Option<Crops>,
        augmentation: Option<Augmentation>,
    ) -> Result<Self, DataError> {
        let plain = Self::plain(dataset);
        let augmentation = augmentation.unwrap_or_default();
        let [_, volume @ ..] = plain.volume;
        match (crops, dataset.smallest_extent()) {
            (Some(crops), _) => check_crop(dataset, crops.extent, volume)?,
            (None, Some(smallest)) => {
                return Err(DataError::NoCrop {
                    path: dataset.path().to_path_buf(),
                    smallest,
                    largest: volume,
                    crop: smallest,
                });
            }
            (None, None) => {}
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
        let sampling = Self {
            crops,
            augmentation,
            rotations,
            ..plain
        };
        Ok(sampling.counted())
    }

    /// The same samples with other crops for validation and test.
    #[must_use]
    pub fn evaluating(&self, evaluation: EvaluationCrops) -> Self {
        let crops = self.crops.map(|crops| Crops {
            evaluation,
            ..crops
        });
        let evaluating = Self {
            crops,
            ..self.clone()
        };
        evaluating.counted()
    }

    /// The same samples where crops for validation are not joined: those of tiles are those of a grid then.
    #[must_use]
    pub fn for_validators(&self) -> Self {
        match self.crops.map(|crops| crops.evaluation) {
            Some(EvaluationCrops::Tiles) => self.evaluating(EvaluationCrops::Grid),
            Some(EvaluationCrops::Grid | EvaluationCrops::Center) | None => self.clone(),
        }
    }

    /// The same samples without augmentation: training volumes are cropped as those for evaluation are, and each crop is a
    /// sample of its own.
    #[must_use]
    pub fn for_evaluation(&self) -> Self {
        let evaluated = |crops: Crops| Crops {
            per_volume: None,
            training: TrainingCrops::Grid,
            ..crops
        };
        let of_grid = self.for_validators();
        let evaluated = Self {
            crops: of_grid.crops.map(evaluated),
            foreground: None,
            augmentation: Augmentation::default(),
            rotations: vec![Orientation::AS_STORED],
            ..of_grid
        };
        evaluated.counted()
    }

    /// Crops of a regular grid that covers each volume, of all splits; neighbors share what the tiling says, or more.
    /// Without crops nothing changes.
    #[must_use]
    pub fn tiled(&self, tiling: Tiling) -> Self {
        let on_grid = |crops: Crops| Crops {
            per_volume: None,
            training: TrainingCrops::Grid,
            evaluation: EvaluationCrops::Grid,
            ..crops
        };
        let tiled = Self {
            crops: self.crops.map(on_grid),
            overlap: self.extent().map(|extent| tiling.shared(extent)),
            ..self.for_evaluation()
        };
        tiled.counted()
    }

    /// The same samples, of which a network sees these variants.
    #[must_use]
    pub fn with_variants(self, variants: Variants) -> Self {
        Self { variants, ..self }
    }

    /// The variants of each sample.
    pub fn variants(&self) -> &Variants {
        &self.variants
    }

    /// Number of samples of all splits, without further variants.
    pub fn all_samples(&self) -> usize {
        Split::ALL
            .into_iter()
            .map(|split| self.samples(split))
            .sum()
    }

    /// The variant of a sample, and its number among all samples.
    fn variant_of(&self, sample: usize) -> (usize, usize) {
        if self.variants.count() == 1 {
            return (0, sample);
        }
        let all = self.all_samples();
        (sample / all, sample % all)
    }

    /// Which part of its volume each sample of a split stands for; samples are on a grid, as [`tiled`](Self::tiled)
    /// makes them.
    pub fn tiles(&self, split: Split) -> Vec<Tile> {
        let tile = |sample: usize| {
            let (volume, crop) = self.crop_of(split, sample);
            let stored = self.extent_of(split, volume);
            let padded = self.padded(stored);
            let grid = self.grid(split, padded);
            let index = on_grid(grid, crop);
            let (padding, extent) = (padding(stored, padded), self.extent());
            let inside: [Range<usize>; 3] = std::array::from_fn(|dim| {
                padding[dim]..padding[dim] + stored[dim].min(extent[dim])
            });
            // Along a dim that is padded there is one crop.
            let part = |dim: usize| {
                if padded[dim] > stored[dim] {
                    inside[dim].clone()
                } else {
                    self.part(dim, index[dim], (padded[dim], grid[dim]))
                }
            };
            Tile {
                volume,
                origin: self.grid_origin((padded, grid), index),
                padding,
                part: std::array::from_fn(part),
                inside,
            }
        };
        (0..self.samples(split)).map(tile).collect()
    }

    /// Shape of a volume, (C, D, H, W); where extents differ, the largest along each dim.
    pub fn volume(&self) -> VolumeShape {
        self.volume
    }

    /// D, H, W of the volumes of a split, where they differ.
    pub fn extents(&self, split: Split) -> Option<Arc<[[usize; 3]]>> {
        Some(Arc::clone(&self.extents.as_ref()?[split as usize]))
    }

    /// Number of volumes of a split that are smaller than a sample, and padded to it: with zeros behind the preparation,
    /// and where each position has a class with the one that the loss ignores, or else with class 0.
    pub fn padded_volumes(&self, split: Split) -> usize {
        let count = self.volumes[split as usize];
        match &self.extents {
            None => count * usize::from(self.is_padded(split, 0)),
            Some(_) => (0..count)
                .filter(|&volume| self.is_padded(split, volume))
                .count(),
        }
    }

    /// Whether any volume is padded.
    pub(crate) fn pads(&self) -> bool {
        Split::ALL.into_iter().any(|split| {
            let count = self.volumes[split as usize];
            let looked_at = if self.extents.is_some() {
                count
            } else {
                count.min(1)
            };
            (0..looked_at).any(|volume| self.is_padded(split, volume))
        })
    }

    fn is_padded(&self, split: Split, volume: usize) -> bool {
        let stored = self.extent_of(split, volume);
        self.padded(stored) != stored
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
        self.crops.is_some() || self.turns() || self.augmentation.elastic.is_some()
    }

    /// Whether samples are rotated or mirrored.
    pub(crate) fn turns(&self) -> bool {
        let augmentation = &self.augmentation;
        augmentation.rotate || augmentation.flip.contains(&true) || self.variants.mirrors()
    }

    /// The split of a sample and the number of its volume there.
    pub(crate) fn volume_of(&self, sample: usize) -> (Split, usize) {
        let (split, inside) = self.locate(self.variant_of(sample).1);
        (split, self.crop_of(split, inside).0)
    }

    /// The volume of a sample of a split, and the number of the sample among those of the volume.
    fn crop_of(&self, split: Split, sample: usize) -> (usize, usize) {
        let per_volume = || self.count(split, self.padded(self.extent_of(split, 0)));
        match self.firsts[split as usize].split_last() {
            None | Some((_, [])) => (sample / per_volume(), sample % per_volume()),
            // Beyond all samples each is one of a volume that is not there.
            Some((last, volumes)) if sample >= *last => (volumes.len() + sample - last, 0),
            Some((_, volumes)) => {
                let volume = volumes.partition_point(|&first| first <= sample) - 1;
                (volume, sample - volumes[volume])
            }
        }
    }

    /// Whether each voxel has a class index, which moves with it.
    pub(crate) fn labels_voxels(&self) -> bool {
        let [_, volume @ ..] = self.volume;
        self.labels == Some(volume)
    }

    /// Number of samples of a split.
    pub fn samples(&self, split: Split) -> usize {
        match self.firsts[split as usize].last() {
            Some(&last) => last,
            None => {
                let volume = self.padded(self.extent_of(split, 0));
                self.volumes[split as usize] * self.count(split, volume)
            }
        }
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
        let (variant, sample) = self.variant_of(sample);
        let (split, inside) = self.locate(sample);
        let (volume, crop) = self.crop_of(split, inside);
        let [channels, ..] = self.volume;
        let [d, h, w] = self.extent_of(split, volume);
        let mut view = View::of(split, volume, [channels, d, h, w], self.extent());
        let draws =
            |operation: Operation| Draws::new(key.seed, key.epoch, sample as u64, operation as u32);
        view.classes = self.classes;
        let padded = self.padded([d, h, w]);
        view.origin = self.origin(split, (padded, crop), &draws(Operation::Crop));
        if let Some(origin) = self.on_foreground(split, volume, &draws(Operation::Foreground)) {
            view.origin = origin;
        }
        if split == Split::Train {
            self.augment(&mut view, draws);
        }
        view.orientation = view.orientation.flipped(self.variants.flip(variant));
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

    /// Where a random crop begins that has foreground in its middle, if this is one of them.
    fn on_foreground(&self, split: Split, volume: usize, draws: &Draws) -> Option<[usize; 3]> {
        let (share, foreground) = self.foreground.as_ref().filter(|_| split == Split::Train)?;
        let position = foreground
            .draw(volume, draws)
            .filter(|_| draws.unit(0) < *share)? as usize;
        let stored = self.extent_of(split, volume);
        let (padded, extent) = (self.padded(stored), self.extent());
        let before = padding(stored, padded);
        let [_, h, w] = stored;
        let at = [position / w / h, position / w % h, position % w];
        Some(std::array::from_fn(|dim| {
            let first = (at[dim] + before[dim]).saturating_sub(extent[dim] / 2);
            first.min(padded[dim] - extent[dim])
        }))
    }

    /// D, H, W of a volume of a split as it is stored.
    fn extent_of(&self, split: Split, volume: usize) -> [usize; 3] {
        let [_, largest @ ..] = self.volume;
        let extents = self.extents.as_ref().map(|all| &all[split as usize]);
        let own = extents.and_then(|extents| extents.get(volume));
        own.copied().unwrap_or(largest)
    }

    /// D, H, W of a volume of these after it is padded to those of a sample.
    fn padded(&self, stored: [usize; 3]) -> [usize; 3] {
        let extent = self.extent();
        std::array::from_fn(|dim| stored[dim].max(extent[dim]))
    }

    /// Samples of a volume of these extents, padded.
    fn count(&self, split: Split, volume: [usize; 3]) -> usize {
        let Some(crops) = self.crops else {
            return 1;
        };
        let covering = self.grid(split, volume).into_iter().product();
        match (split, crops.training, crops.evaluation) {
            (Split::Train, TrainingCrops::Random, _) => crops.per_volume.unwrap_or(covering),
            (Split::Train, TrainingCrops::Grid, _)
            | (
                Split::Validation | Split::Test,
                _,
                EvaluationCrops::Tiles | EvaluationCrops::Grid,
            ) => covering,
            (Split::Validation | Split::Test, _, EvaluationCrops::Center) => 1,
        }
    }

    /// Crops along each dim that cover a volume of a split of these extents, padded.
    fn grid(&self, split: Split, volume: [usize; 3]) -> [usize; 3] {
        let extent = self.extent();
        let evaluation = self.crops.map(|crops| crops.evaluation);
        let overlap = match (split, evaluation) {
            (Split::Validation | Split::Test, Some(EvaluationCrops::Tiles)) => {
                extent.map(|extent| Tiling::default().shared(extent))
            }
            (Split::Train | Split::Validation | Split::Test, _) => self.overlap,
        };
        std::array::from_fn(|dim| {
            let shared = overlap[dim];
            (volume[dim] - shared).div_ceil(extent[dim] - shared).max(1)
        })
    }

    /// Where the crop of a place on such a grid of a volume of these extents, padded, begins.
    fn grid_origin(
        &self,
        (volume, grid): ([usize; 3], [usize; 3]),
        index: [usize; 3],
    ) -> [usize; 3] {
        std::array::from_fn(|dim| self.along(dim, index[dim], (volume[dim], grid[dim])))
    }

    /// Where crops of a place on the grid begin along a dim, of which an extent and the number of crops are given.
    fn along(&self, dim: usize, place: usize, (extent, count): (usize, usize)) -> usize {
        let room = extent - self.extent()[dim];
        match count {
            1 => 0,
            count => place * room / (count - 1),
        }
    }

    /// What a crop of this place on the grid is the source of, along a dim as in [`along`](Self::along).
    fn part(&self, dim: usize, place: usize, along: (usize, usize)) -> Range<usize> {
        let (extent, count) = along;
        let crop = self.extent()[dim];
        let origin = self.along(dim, place, along);
        // Between a crop and the one after it.
        let border = |place: usize| {
            let shared = self.along(dim, place + 1, along)..self.along(dim, place, along) + crop;
            (shared.start + shared.end).div_ceil(2)
        };
        let start = if place == 0 { 0 } else { border(place - 1) };
        let end = if place + 1 == count {
            extent
        } else {
            border(place)
        };
        start - origin..end - origin
    }

    /// Where a crop of a volume of these extents, padded, begins.
    fn origin(
        &self,
        split: Split,
        (volume, crop): ([usize; 3], usize),
        draws: &Draws,
    ) -> [usize; 3] {
        let extent = self.extent();
        let room: [usize; 3] = std::array::from_fn(|dim| volume[dim] - extent[dim]);
        let Some(crops) = self.crops else {
            return [0; 3];
        };
        let of_grid = || {
            let grid = self.grid(split, volume);
            self.grid_origin((volume, grid), on_grid(grid, crop))
        };
        match (split, crops.training, crops.evaluation) {
            (Split::Train, TrainingCrops::Random, _) => {
                std::array::from_fn(|dim| below(draws.unit(dim as u64), room[dim] + 1))
            }
            (Split::Train, TrainingCrops::Grid, _)
            | (
                Split::Validation | Split::Test,
                _,
                EvaluationCrops::Tiles | EvaluationCrops::Grid,
            ) => of_grid(),
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

/// Position of a crop on a grid of this size, D, H, W.
fn on_grid([_, heights, widths]: [usize; 3], crop: usize) -> [usize; 3] {
    [
        crop / widths / heights,
        crop / widths % heights,
        crop % widths,
    ]
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
                extents: None,
                firsts: Default::default(),
                crops: Some(Crops {
                    extent,
                    per_volume: None,
                    training: TrainingCrops::Random,
                    evaluation: EvaluationCrops::Center,
                }),
                foreground: None,
                augmentation: Augmentation::default(),
                rotations: vec![Orientation::AS_STORED],
                overlap: [0; 3],
                classes: 1,
                variants: Variants::default(),
            };
            assert_eq!(sampling.samples(Split::Validation), 2);
            let sampling = sampling.tiled(Tiling {
                overlap: 0.25,
                ..Tiling::default()
            });
            let [_, depth, height, width] = volume;
            let mut count = vec![0; 2 * depth * height * width];
            let tiles = sampling.tiles(Split::Validation);
            assert_eq!(tiles.len(), sampling.samples(Split::Validation));
            for Tile {
                volume,
                origin,
                part: [d, h, w],
                ..
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
