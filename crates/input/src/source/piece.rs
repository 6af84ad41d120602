//! Pieces of loads: what is read of consecutive samples, and the reader that prepares and augments them.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use partita_data::valid::Valid;
use partita_data::{Classes, Dataset, Reader, SampleLocation, Split};
use partita_formats::slab::{self, Region4};
use partita_formats::{DType, DataError, Samples, read_values, write_values};
use partita_program::prefetch::samples_per_piece;
use partita_program::{Item, Load, Transform};
use partita_space::{Bytes, Mesh, Rank, Region};
use serde::{Deserialize, Serialize};

use super::Accepted;
use crate::augment::{SampleKey, View as SampleView};
use crate::loader::{Loader, Loading};
use crate::plain_files::Wanted;
use crate::prepare::{Preparation, prepare};
use crate::preprocessing::Preprocessing;
use crate::store::{LoadTally, range};

/// What a rank needs of a sample.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Part {
    Volume(Region4),
    Targets(Range<usize>),
    Labels(Region4),
    Features(Range<usize>),
}

impl Part {
    /// Elements of one sample.
    fn elements(&self) -> usize {
        match self {
            Part::Volume(region) | Part::Labels(region) => slab::elements(region),
            Part::Targets(range) | Part::Features(range) => range.len(),
        }
    }

    /// Samples of a piece.
    pub(super) fn samples_per_piece(&self, dtype: DType) -> usize {
        let element = match self {
            Part::Volume(_) => dtype.size_bytes(),
            Part::Targets(_) | Part::Labels(_) | Part::Features(_) => size_of::<f32>(),
        };
        samples_per_piece(self.elements() * element)
    }
}

/// The same part of consecutive samples of a load. What is read of it is a function of this and of dataset,
/// preprocessing and model alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PieceRequest {
    /// Sample numbers.
    pub(super) samples: Vec<usize>,
    pub(super) key: SampleKey,
    pub(super) part: Part,
}

impl PieceRequest {
    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.samples.len().saturating_mul(self.part.elements())
    }

    /// The epoch, from 0.
    pub fn epoch(&self) -> u64 {
        self.key.epoch
    }
}

/// A dataset whose samples have another shape than the network reads.
#[derive(Debug, thiserror::Error)]
pub(super) enum OtherShape {
    #[error("samples are (C, D, H, W) = {got:?}, not {expected:?}")]
    Sample {
        got: [usize; 4],
        expected: [usize; 4],
    },
    #[error("samples have {got} features, the network reads {expected}")]
    Features { got: usize, expected: usize },
    #[error("targets are (D, H, W, C) = {got:?}, those of the network {expected:?}")]
    Target {
        got: [usize; 4],
        expected: [usize; 4],
    },
}

/// The values of a piece, samples one after the other.
#[derive(Clone, Debug, PartialEq)]
pub enum PieceValues {
    /// Parts of volumes.
    Volume(Samples),
    /// Targets, or class indices.
    Targets(Vec<f32>),
    /// The rank has no sample in this load.
    Nothing,
}

impl PieceValues {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::Volume(samples) => samples.len(),
            Self::Targets(values) => values.len(),
            Self::Nothing => 0,
        }
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Size of an element. Units: bytes.
    pub fn element_bytes(&self) -> usize {
        match self {
            Self::Volume(samples) => samples.dtype().size_bytes(),
            Self::Targets(_) | Self::Nothing => size_of::<f32>(),
        }
    }

    /// Writes all elements in little-endian order.
    pub fn write_to(&self, out: &mut dyn io::Write) -> io::Result<()> {
        match self {
            Self::Volume(samples) => samples.write_to(out),
            Self::Targets(values) => write_values(values, f32::to_le_bytes, out),
            Self::Nothing => Ok(()),
        }
    }

    /// Replaces its elements by this many that are read in little-endian order.
    pub fn read_from(&mut self, elements: usize, input: &mut dyn io::Read) -> io::Result<()> {
        match self {
            Self::Volume(samples) => samples.read_from(elements, input),
            Self::Targets(values) => read_values(values, elements, f32::from_le_bytes, input),
            Self::Nothing => Ok(()),
        }
    }
}

/// Derives the pieces of a rank's loads.
#[derive(Clone, Debug)]
pub struct PieceMaker {
    /// (C, D, H, W) of a sample.
    shape: [usize; 4],
    /// (D, H, W, C) of the target of a sample.
    target_shape: [usize; 4],
    has_labels: bool,
    features: usize,
    dtype: DType,
    mesh: Mesh,
    rank: Rank,
}

impl PieceMaker {
    /// That of a rank of a mesh.
    pub fn new(dataset: &Dataset, preprocessing: &Preprocessing, mesh: Mesh, rank: Rank) -> Self {
        Self {
            shape: preprocessing.sampling.shape(),
            target_shape: match preprocessing.sampling.labels() {
                Some([d, h, w]) => [d, h, w, 1],
                None => [1, 1, 1, dataset.targets().len()],
            },
            has_labels: dataset.labels().is_some(),
            features: dataset.features().len(),
            dtype: preprocessing.dtype(dataset.dtype()),
            mesh,
            rank,
        }
    }

    /// The pieces of a load of the samples of a step, in the order in which they are read. None where its shape is not
    /// that of the dataset.
    pub fn pieces(
        &self,
        load: &Load,
        (seed, epoch): (u64, u64),
        listed: &[usize],
    ) -> Vec<PieceRequest> {
        let Ok((part, mine)) = self.part(load) else {
            return Vec::new();
        };
        let key = SampleKey { seed, epoch };
        let samples = listed.get(mine).unwrap_or_default();
        let pieces = samples.chunks(part.samples_per_piece(self.dtype));
        let piece = |samples: &[usize]| PieceRequest {
            samples: samples.to_vec(),
            key,
            part: part.clone(),
        };
        pieces.map(piece).collect()
    }

    /// The part of a load in the terms of the dataset, and the range of its samples. Errors: another shape.
    pub(super) fn part(&self, load: &Load) -> Result<(Part, Range<usize>), OtherShape> {
        let owned: Region = load
            .distribution
            .owned(&self.mesh, &self.mesh.coord(self.rank));
        let [_, d, h, w, c] = load.distribution.shape;
        let [n, depth, height, width, channels] = owned.0.map(range);
        let local = [
            n.len(),
            depth.len(),
            height.len(),
            width.len(),
            channels.len(),
        ];
        let [count, ld, lh, lw, lc] = local;
        match load.item {
            Item::Sample => {
                if self.shape != [c, d, h, w] {
                    let (got, expected) = (self.shape, [c, d, h, w]);
                    return Err(OtherShape::Sample { got, expected });
                }
                assert_eq!(
                    load.target.extent,
                    [count, lc, ld, lh, lw],
                    "staging of a sample"
                );
                Ok((Part::Volume([channels, depth, height, width]), n))
            }
            Item::Features => {
                if c != self.features {
                    return Err(OtherShape::Features {
                        got: self.features,
                        expected: c,
                    });
                }
                assert_eq!(
                    load.target.extent,
                    [count, lc, ld, lh, lw],
                    "staging of features"
                );
                Ok((Part::Features(channels), n))
            }
            Item::Target => {
                if [d, h, w, c] != self.target_shape {
                    let (got, expected) = (self.target_shape, [d, h, w, c]);
                    return Err(OtherShape::Target { got, expected });
                }
                assert_eq!(load.target.extent, local, "staging of a target");
                let part = if self.has_labels {
                    Part::Labels([channels, depth, height, width])
                } else {
                    Part::Targets(channels)
                };
                Ok((part, n))
            }
        }
    }
}

/// Reads, prepares and augments pieces.
pub struct PieceReader {
    loader: Loader,
    preprocessing: Preprocessing,
    /// Type of the values that are delivered.
    dtype: DType,
    dataset: Dataset,
    /// Number of targets of a sample without labels.
    targets: usize,
    /// Values that are still to be prepared or moved.
    stored: Samples,
    /// Prepared values that are still to be moved.
    prepared: Vec<f32>,
    /// These with a channel for each class.
    expanded: Vec<f32>,
    /// The last sample of a piece of several.
    one: Samples,
    /// Stored class indices of a sample.
    labels: Samples,
    /// The target vector of a sample.
    row: Samples,
    valid: Valid,
    /// Classes of the model, if targets are class indices.
    classes: Option<Classes>,
    /// Class index of positions that pad a volume.
    padding: f32,
}

impl PieceReader {
    /// A reader of a dataset. Files are opened at the first piece.
    pub fn new(
        dataset: &Dataset,
        preprocessing: Preprocessing,
        accepted: impl Into<Accepted>,
    ) -> Self {
        let accepted = accepted.into();
        let dtype = preprocessing.dtype(dataset.dtype());
        Self {
            loader: Loader::new(dataset, 0, Loading::default()),
            stored: Samples::new(dataset.dtype()),
            prepared: Vec::new(),
            expanded: Vec::new(),
            preprocessing,
            dtype,
            dataset: dataset.clone(),
            targets: dataset.targets().len(),
            one: Samples::new(dtype),
            labels: Samples::new(DType::Int16),
            row: Samples::new(DType::Float32),
            valid: Valid::under(accepted.transform),
            classes: accepted.classes.filter(|&count| count > 0).map(|count| {
                Classes::of_model(count, accepted.ignored, dataset.ignored_by_index())
            }),
            padding: accepted.ignored.unwrap_or(0) as f32,
        }
    }

    /// As the reader of a rank, from samples in memory if there are some. What it loads is counted.
    #[must_use]
    pub fn with_loading(self, dataset: &Dataset, rank: Rank, loading: Loading) -> Self {
        let loader = Loader::new(dataset, rank, loading);
        Self { loader, ..self }
    }

    /// Counts what it loads.
    pub(super) fn tally(&self) -> &Arc<LoadTally> {
        self.loader.tally()
    }

    /// Type of the volumes that are delivered.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Bytes of volumes that were read from files, as they are stored.
    pub fn read_bytes(&self) -> Bytes {
        self.loader.volume_bytes()
    }

    /// An empty buffer of the kind that a piece wants.
    pub fn empty(&self, piece: &PieceRequest) -> PieceValues {
        match piece.part {
            Part::Volume(_) => PieceValues::Volume(Samples::new(self.dtype)),
            Part::Targets(_) | Part::Labels(_) | Part::Features(_) => {
                PieceValues::Targets(Vec::new())
            }
        }
    }

    /// Whether a piece lies within the dataset, which a request of another process need not.
    pub fn holds(&self, piece: &PieceRequest) -> bool {
        let sampling = &self.preprocessing.sampling;
        let count: usize = Split::ALL
            .into_iter()
            .map(|one| sampling.samples(one))
            .sum();
        let [c, d, h, w] = sampling.shape();
        let within = |region: &Region4, shape: [usize; 4]| {
            let mut dims = region.iter().zip(shape);
            dims.all(|(range, extent)| range.start <= range.end && range.end <= extent)
        };
        let labels = sampling.labels();
        let is_within = match &piece.part {
            Part::Volume(region) => within(region, [c, d, h, w]),
            Part::Labels(region) => labels.is_some_and(|[d, h, w]| within(region, [1, d, h, w])),
            Part::Targets(range) => {
                labels.is_none() && range.start <= range.end && range.end <= self.targets
            }
            Part::Features(range) => {
                range.start <= range.end && range.end <= self.dataset.features().len()
            }
        };
        let is_small = piece.samples.len() <= piece.part.samples_per_piece(self.dtype);
        is_within && is_small && piece.samples.iter().all(|&sample| sample < count)
    }

    /// Tells the loader what a load will want from other processes.
    pub(super) fn announce(&mut self, samples: &[usize], key: SampleKey, part: &Part) {
        if !self.loader.wants_announcements() || matches!(part, Part::Features(_)) {
            return;
        }
        let parts = samples.iter().map(|&sample| {
            let view = self.preprocessing.sampling.view(key, sample);
            match part {
                Part::Volume(region) => wanted(Item::Sample, &view, view.source(region)),
                Part::Targets(_) | Part::Features(_) => self.row_of(&view),
                Part::Labels(region) => {
                    wanted(Item::Target, &view, self.labels_region(&view, region))
                }
            }
        });
        let parts: Vec<Wanted> = parts.collect();
        self.loader.announce(key.epoch, parts);
    }

    /// The target vector of a sample.
    fn row_of(&self, view: &SampleView) -> Wanted {
        wanted(Item::Target, view, [0..1, 0..1, 0..1, 0..self.targets])
    }

    /// The stored class indices that a part is made of.
    fn labels_region(&self, view: &SampleView, part: &Region4) -> Region4 {
        if self.preprocessing.sampling.labels_voxels() {
            view.source(part)
        } else {
            part.clone()
        }
    }

    /// Reads a piece into a buffer of its kind; see [`empty`](Self::empty).
    ///
    /// Errors: those of the files; values that a network cannot be trained on.
    pub fn read(
        &mut self,
        piece: &PieceRequest,
        buffer: PieceValues,
    ) -> Result<PieceValues, DataError> {
        let views = piece
            .samples
            .iter()
            .map(|&sample| self.preprocessing.sampling.view(piece.key, sample));
        let views: Vec<SampleView> = views.collect();
        let epoch = piece.key.epoch;
        match (&piece.part, buffer) {
            (Part::Volume(region), PieceValues::Volume(mut values)) => {
                self.read_volumes(epoch, &views, region, &mut values)?;
                Ok(PieceValues::Volume(values))
            }
            (Part::Targets(range), PieceValues::Targets(mut values)) => {
                values.clear();
                values.reserve_exact(views.len() * range.len());
                for view in &views {
                    let sample = view.volume;
                    let row = self.row_of(view);
                    self.loader.load(epoch, &row, &mut self.row)?;
                    let reader = self.loader.reader(view.split);
                    let Samples::F32(row) = &self.row else {
                        panic!("a target vector is of floats");
                    };
                    check_target(reader, sample, row)?;
                    if let Some(classes) = self.classes {
                        let key = reader.keys().target.clone();
                        let location = location(reader, sample, &key);
                        classes.check_row(location, row)?;
                    }
                    values.extend_from_slice(&row[range.clone()]);
                }
                Ok(PieceValues::Targets(values))
            }
            (Part::Features(range), PieceValues::Targets(mut values)) => {
                values.clear();
                for view in &views {
                    let row = self.dataset.read_features(view.split, view.volume)?;
                    values.extend_from_slice(&row[range.clone()]);
                }
                Ok(PieceValues::Targets(values))
            }
            (Part::Labels(region), PieceValues::Targets(mut values)) => {
                values.clear();
                values.reserve_exact(views.len() * slab::elements(region));
                for view in &views {
                    self.read_labels(epoch, view, region, &mut values)?;
                }
                Ok(PieceValues::Targets(values))
            }
            (
                Part::Volume(_) | Part::Targets(_) | Part::Labels(_) | Part::Features(_),
                PieceValues::Volume(_) | PieceValues::Targets(_) | PieceValues::Nothing,
            ) => {
                panic!("a buffer is of the kind that its piece wants")
            }
        }
    }

    fn read_labels(
        &mut self,
        epoch: u64,
        view: &SampleView,
        part: &Region4,
        values: &mut Vec<f32>,
    ) -> Result<(), DataError> {
        let moves = self.preprocessing.sampling.labels_voxels();
        let stored = wanted(Item::Target, view, self.labels_region(view, part));
        self.loader.load(epoch, &stored, &mut self.labels)?;
        let (reader, region) = (self.loader.reader(view.split), stored.region);
        if let Some(classes) = self.classes {
            let key = reader.keys().label.clone();
            let location = location(reader, view.volume, &key);
            classes.check(location, &region, &self.labels)?;
        }
        if moves && !view.is_as_stored() {
            view.arrange_labels(part, (&self.labels, self.padding), values);
        } else {
            self.labels.append_f32(values);
        }
        Ok(())
    }

    fn read_volumes(
        &mut self,
        epoch: u64,
        views: &[SampleView],
        region: &Region4,
        values: &mut Samples,
    ) -> Result<(), DataError> {
        if views.len() > 1 {
            values.reserve_exact(views.len() * slab::elements(region));
        }
        let mut one = std::mem::replace(&mut self.one, Samples::new(self.dtype));
        for (index, view) in views.iter().enumerate() {
            let into = if index == 0 { &mut *values } else { &mut one };
            self.read_volume(epoch, view, region, into)?;
            if index > 0 {
                values.append(&one);
            }
        }
        self.one = one;
        Ok(())
    }

    /// A part of a sample, as the network sees it.
    fn read_volume(
        &mut self,
        epoch: u64,
        view: &SampleView,
        part: &Region4,
        into: &mut Samples,
    ) -> Result<(), DataError> {
        let stored = wanted(Item::Sample, view, view.source(part));
        let computes = self.preprocessing.computes();
        if !computes && view.is_as_stored() {
            self.loader.load(epoch, &stored, into)?;
            let (reader, region) = (self.loader.reader(view.split), stored.region);
            return check_volume(self.valid, reader, view.volume, &region, into);
        }
        self.loader.load(epoch, &stored, &mut self.stored)?;
        let (reader, region) = (self.loader.reader(view.split), stored.region);
        if !computes {
            check_volume(self.valid, reader, view.volume, &region, &self.stored)?;
            into.clear();
            into.reserve_exact(slab::elements(part));
            view.arrange(part, &self.stored, into);
            return Ok(());
        }
        self.stored.write_f32(&mut self.prepared);
        let preparation = &self.preprocessing.preparation;
        prepare(
            preparation,
            reader,
            view.volume,
            &region,
            &mut self.prepared,
        )?;
        let Samples::F32(values) = into else {
            panic!("prepared values are floats");
        };
        let prepared = match preparation.one_hot() {
            None => &self.prepared,
            Some(classes) => {
                let (channels, first) = (part[0].clone(), region[0].start);
                Preparation::expand(classes, channels, first, &self.prepared, &mut self.expanded);
                &self.expanded
            }
        };
        values.clear();
        values.reserve_exact(slab::elements(part));
        view.arrange_floats(part, prepared, values);
        view.adjust(part, values);
        Ok(())
    }
}

fn wanted(item: Item, view: &SampleView, region: Region4) -> Wanted {
    Wanted {
        item,
        split: view.split,
        volume: view.volume,
        region,
    }
}

pub(crate) fn location<'a>(reader: &'a Reader, sample: usize, key: &'a str) -> SampleLocation<'a> {
    SampleLocation {
        path: reader.target_file(sample),
        key,
        split: reader.split(),
        sample,
        name: reader.given_name(sample),
    }
}

/// Errors: a value that a network cannot be trained on.
pub(crate) fn check_volume(
    valid: Valid,
    reader: &Reader,
    sample: usize,
    region: &Region4,
    values: &Samples,
) -> Result<(), DataError> {
    let Some((at, value)) = valid.first_outside(values) else {
        return Ok(());
    };
    let [c, d, h, w] = slab::position(region, at);
    let position = format!("at (C, D, H, W) = ({c}, {d}, {h}, {w})");
    Err(untrainable(
        valid,
        reader,
        sample,
        (reader.file(sample), &reader.keys().volume, position),
        value,
    ))
}

/// Errors: targets that are not finite.
pub(crate) fn check_target(reader: &Reader, sample: usize, row: &[f32]) -> Result<(), DataError> {
    let valid = Valid::under(Transform::Identity);
    let Some((at, value)) = valid.first_outside_floats(row) else {
        return Ok(());
    };
    let position = format!("target {at}");
    Err(untrainable(
        valid,
        reader,
        sample,
        (reader.target_file(sample), &reader.keys().target, position),
        value,
    ))
}

fn untrainable(
    valid: Valid,
    reader: &Reader,
    sample: usize,
    (path, key, position): (&Path, &str, String),
    value: f32,
) -> DataError {
    DataError::Untrainable {
        path: path.to_path_buf(),
        key: key.to_owned(),
        split: reader.split().name(),
        sample,
        name: reader.given_name(sample).map(Box::from),
        found: format!("{position}: {}", valid.fault(value)).into(),
        expected: valid.expected().into(),
    }
}
