//! A dataset: a folder with an index, or a single HDF5 file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use partita_formats::nifti::{self, Affine};
use partita_formats::{DType, DataError, SourceArray, SourceFile, VolumeShape};

use crate::channels::Channels;
use crate::disk::check_samples;
use crate::external::external_files;
use crate::features::Features;
use crate::files::{FileEntry, Files};
use crate::grid::{AFFINES, CANONICAL, Grid, ORIENTATION, ORIGINALS};
use crate::index::{INDEX_FILE, Index, Kind};
use crate::keys::Keys;
use crate::names::SampleNames;
use crate::opened::Inner;
use crate::placement::Placement;
use crate::reader::Reader;
use crate::sample_source::{SampleSource, SourceHandle, SourceTargets};
use crate::split::Split;
use crate::target_map::Meaning;

/// Longest target vector accepted where no index says its length.
const TARGETS_MAX: usize = 4096;

/// A complete dataset: all files exist, and the first of each split was checked.
///
/// Cheap to clone; holds no open file.
#[derive(Clone, Debug)]
pub struct Dataset {
    inner: Arc<Inner>,
}

impl Dataset {
    /// Opens a dataset folder (with its `dataset.toml`) or a single file of arrays.
    ///
    /// A single file is all train split: `full` of rank 5 is a stack of samples, of rank 4 one
    /// sample. Errors: `Missing`, `Incomplete`, `BadIndex`, and those of its files.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, DataError> {
        Self::open_with(path, &Keys::default())
    }

    /// The same, a single file having arrays of other names, or dims in another order. A folder takes from `keys`
    /// alone whether values may lie in other files.
    pub fn open_with(path: impl AsRef<Path>, keys: &Keys) -> Result<Self, DataError> {
        Self::open_as(path.as_ref(), keys, true)
    }

    /// As [`open`](Self::open), for samples alone: a single file needs neither targets nor labels, nor does an index
    /// that names no targets.
    pub fn open_samples(path: impl AsRef<Path>) -> Result<Self, DataError> {
        Self::open_samples_with(path, &Keys::default())
    }

    /// As [`open_with`](Self::open_with), for samples alone.
    pub fn open_samples_with(path: impl AsRef<Path>, keys: &Keys) -> Result<Self, DataError> {
        Self::open_as(path.as_ref(), keys, false)
    }

    fn open_as(path: &Path, keys: &Keys, has_targets: bool) -> Result<Self, DataError> {
        let inner = if path.is_dir() && !partita_formats::is_store(path) {
            open_folder(path, keys.external, has_targets)?
        } else {
            open_file(path, keys, has_targets)?
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.inner
    }

    /// The same dataset with its features read so.
    pub(crate) fn with_features(mut self, features: Features) -> Self {
        Arc::make_mut(&mut self.inner).features = features;
        self
    }

    pub(crate) fn of_inner(inner: Inner) -> Self {
        let inner = Arc::new(inner);
        Self { inner }
    }

    /// A dataset of the samples of a source.
    ///
    /// Errors: `BadValue` where a sample or its target is empty.
    pub fn of_source(source: Arc<dyn SampleSource>) -> Result<Self, DataError> {
        let (shape, told) = (source.shape(), source.targets());
        let (targets, labels) = match told {
            SourceTargets::Numbers(names) => (names, None),
            SourceTargets::Classes { names, extent } => (names, Some(extent)),
        };
        let [_, whole @ ..] = shape;
        let is_answered = match labels {
            None => !targets.is_empty(),
            Some(extent) => [whole, [1; 3]].contains(&extent),
        };
        if shape.contains(&0) || !is_answered {
            return Err(DataError::BadValue {
                what: "source of samples",
                got: format!(
                    "`{}` with samples of (C, D, H, W) = {shape:?}, targets {targets:?} and classes at {labels:?}",
                    source.name()
                ),
                expected: "extents of at least 1, and numbers, or classes at each position or of each sample".to_owned(),
            });
        }
        let splits = Split::ALL.map(|split| {
            Files::new(vec![FileEntry {
                volumes: source.name().into(),
                targets: None,
                stacked: Some(source.samples(split)),
                extent: None,
            }])
        });
        let features = source.features();
        let name = Path::new(source.name());
        Ok(Self::of_inner(Inner {
            path: name.to_path_buf(),
            kind: None,
            shape,
            dtype: source.dtype(),
            targets,
            labels,
            ignored: None,
            ignored_by_index: None,
            has_targets: true,
            keys: Keys::default(),
            names: SampleNames::new([None, None, None], Split::ALL.map(|_| vec![name])),
            splits,
            universes: [Vec::new(), Vec::new(), Vec::new()],
            spec: toml::Table::new(),
            meaning: Default::default(),
            channels: Default::default(),
            features: Features::new(features, Default::default()),
            source: Some(SourceHandle(source)),
        }))
    }

    /// Whether its samples are those of a source, not of files.
    pub fn has_source(&self) -> bool {
        self.inner.source.is_some()
    }

    /// The path, or the name of its source.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Kind of dataset; `None` for a single HDF5 file.
    pub fn kind(&self) -> Option<Kind> {
        self.inner.kind
    }

    /// Number of samples of a split.
    pub fn samples(&self, split: Split) -> usize {
        self.inner.splits[split as usize].samples()
    }

    /// Shape of every sample, (C, D, H, W); where extents differ, the largest along each dim.
    pub fn shape(&self) -> VolumeShape {
        self.inner.shape
    }

    /// Shape of a sample of a split, (C, D, H, W).
    pub fn shape_of(&self, split: Split, sample: usize) -> VolumeShape {
        self.inner.shape_of(self.files(split).locate(sample).0)
    }

    /// Extents D, H, W of the class indices of a sample of a split; see [`labels`](Self::labels).
    pub fn labels_of(&self, split: Split, sample: usize) -> Option<[usize; 3]> {
        self.inner.labels_of(self.files(split).locate(sample).0)
    }

    /// The smallest extents along each dim, where not all samples have the same.
    pub fn smallest_extent(&self) -> Option<[usize; 3]> {
        let [_, largest @ ..] = self.shape();
        let entries = Split::ALL
            .into_iter()
            .flat_map(|split| self.files(split).entries());
        let smallest = entries
            .filter_map(|entry| entry.extent)
            .fold(largest, |least, extent| {
                std::array::from_fn(|dim| extent[dim].min(least[dim]))
            });
        (smallest != largest).then_some(smallest)
    }

    /// Elements of all volumes of a split.
    pub fn elements(&self, split: Split) -> usize {
        let volume = |entry: &FileEntry| -> usize { self.inner.shape_of(entry).iter().product() };
        let entries = self.files(split).entries().iter();
        entries
            .map(|entry| entry.stacked.unwrap_or(1) * volume(entry))
            .sum()
    }

    /// Element type of every volume.
    pub fn dtype(&self) -> DType {
        self.inner.dtype
    }

    /// Names of the targets; their number is the length of every target vector. Where
    /// [`labels`](Self::labels) are kept instead, the names of the classes, none if unknown.
    pub fn targets(&self) -> &[String] {
        &self.inner.targets
    }

    /// Extents D, H, W of the class indices of a sample: those of [`shape`](Self::shape), or 1, 1, 1;
    /// `None` where targets are vectors of numbers.
    pub fn labels(&self) -> Option<[usize; 3]> {
        self.inner.labels
    }

    /// The class index of positions of no class, which readers deliver as it is.
    pub fn ignored(&self) -> Option<i64> {
        self.inner.ignored
    }

    /// The same as the index file says it, whatever [`ignoring`](Self::ignoring) says.
    pub fn ignored_by_index(&self) -> Option<i64> {
        self.inner.ignored_by_index
    }

    /// The same dataset with a class index of positions of no class; none leaves that of the index file.
    #[must_use]
    pub fn ignoring(mut self, class: Option<i64>) -> Self {
        if class.is_some() {
            Arc::make_mut(&mut self.inner).ignored = class;
        }
        self
    }

    pub(crate) fn meaning(&self) -> &Meaning {
        &self.inner.meaning
    }

    /// The order in which stored channels are read, where it is not their own.
    pub fn channel_order(&self) -> Option<&[usize]> {
        self.inner.channels.order.as_deref()
    }

    pub(crate) fn stored_channels(&self) -> &Channels {
        &self.inner.channels
    }

    /// The same dataset with its channels read so.
    pub(crate) fn with_channels(mut self, channels: Channels) -> Self {
        Arc::make_mut(&mut self.inner).channels = channels;
        self
    }

    /// The same dataset with targets of these names, read so.
    pub(crate) fn reading(mut self, names: Vec<String>, meaning: Meaning) -> Self {
        let inner = Arc::make_mut(&mut self.inner);
        inner.targets = names;
        inner.meaning = meaning;
        self
    }

    /// Universe of each sample of a split; empty for a single HDF5 file.
    pub fn universes(&self, split: Split) -> &[u64] {
        &self.inner.universes[split as usize]
    }

    /// The name of a sample, unique in the dataset: that of the index, else the stem of its file, with its place behind
    /// a slash where the file holds several samples.
    pub fn name(&self, split: Split, sample: usize) -> String {
        let place = self.files(split).position(sample);
        self.inner.names.name((split, sample), place)
    }

    /// Names of all samples of a split that the index gives; empty where it gives none.
    pub fn given_names(&self, split: Split) -> &[String] {
        self.inner.names.all_given(split)
    }

    /// Names of all samples of a split.
    pub fn names(&self, split: Split) -> Vec<String> {
        let samples = 0..self.samples(split);
        samples.map(|sample| self.name(split, sample)).collect()
    }

    /// Options with which the dataset was made; may be empty.
    pub fn spec(&self) -> &toml::Table {
        &self.inner.spec
    }

    /// Where the voxels of a sample lie, if that is known from the NIfTI file that was converted, and on which
    /// predictions of it are written.
    ///
    /// Errors: `BadIndex` where the sample and its image do not have parallel axes.
    pub fn placement(&self, split: Split, sample: usize) -> Result<Option<Placement>, DataError> {
        let Some(affine) = self.affine(split, sample) else {
            return Ok(None);
        };
        let Some(original) = self.stated(ORIGINALS, (split, sample)) else {
            return Ok(Some(Placement::as_stored(affine)));
        };
        let [_, d, h, w] = self.shape_of(split, sample);
        let grids = Grid::new([w, h, d], affine).zip(Grid::of_toml(original));
        let placement = grids.and_then(|(stored, image)| Placement::restored(stored, image));
        match placement {
            Some(placement) => Ok(Some(placement)),
            None => Err(DataError::BadIndex {
                path: self.path().join(INDEX_FILE),
                found: format!("[spec.{ORIGINALS}] {split}, sample {sample}: {original}"),
                expected: format!("voxels along the axes of those of [spec.{AFFINES}]"),
            }),
        }
    }

    /// Of a crop of a sample as it is stored, whose first voxel is at these D, H, W; `None` where positions are unknown.
    pub fn placement_at(
        &self,
        split: Split,
        sample: usize,
        [d, h, w]: [f64; 3],
    ) -> Option<Placement> {
        let Affine(mut rows) = self.affine(split, sample)?;
        let stored = Grid {
            extent: [1; 3],
            affine: Affine(rows),
        };
        for (row, origin) in rows.iter_mut().zip(stored.position([w, h, d])) {
            row[3] = origin;
        }
        Some(Placement::as_stored(Affine(rows)))
    }

    /// Where the voxels of a sample lie as they are stored, if that is known.
    pub(crate) fn affine(&self, split: Split, sample: usize) -> Option<Affine> {
        Affine::of_toml(self.stated(AFFINES, (split, sample))?)
    }

    /// What a key of the index says of a sample in its part on what was converted.
    fn stated(&self, key: &str, (split, sample): (Split, usize)) -> Option<&toml::Value> {
        let of_split = self.spec().get(key)?.get(split.name())?;
        of_split.as_array()?.get(sample)
    }

    /// The letters of the dims of samples along x, y and z of the NIfTI files that they come from, usually `WHD`; `None`
    /// for other files, and for axes that are not those of D, H and W.
    ///
    /// Images that were reoriented have x, y and z of NiBabel's `as_closest_canonical`, others those of their file.
    pub fn nifti_axes(&self) -> Option<String> {
        let has_samples = |split: &Split| self.samples(*split) > 0;
        let split = Split::ALL.into_iter().find(has_samples)?;
        let Some(affine) = self.affine(split, 0) else {
            let file = &self.files(split).locate(0).0.volumes;
            nifti::voxels(file)?;
            let order = self.inner.keys.order.clone().unwrap_or_default();
            let letters = order.to_string();
            let spatial: String = letters.chars().rev().take(3).collect();
            let is_spatial = |letter: &char| spatial.contains(*letter);
            return ['D', 'H', 'W'].iter().all(is_spatial).then_some(spatial);
        };
        let [_, d, h, w] = self.shape_of(split, 0);
        let stored = Grid::new([w, h, d], affine)?;
        let is_canonical = self.spec().get(ORIENTATION)?.as_str() == Some(CANONICAL);
        let axes = match self.stated(ORIGINALS, (split, 0)).and_then(Grid::of_toml) {
            _ if is_canonical => stored.directions().map(|(axis, _)| axis),
            Some(image) => image.nearest_axes(&stored),
            None => [0, 1, 2],
        };
        Some(axes.iter().map(|&axis| ['W', 'H', 'D'][axis]).collect())
    }

    /// A reader of one split. Every rank has its own; readers share no locks.
    pub fn reader(&self, split: Split) -> Reader {
        Reader::new(Arc::clone(&self.inner), split)
    }

    /// Whether a path is that of one of its files, the index included, perhaps by another name.
    pub fn has_file(&self, path: &Path) -> bool {
        let is_of_files = !self.has_source();
        let Some(path) = path.canonicalize().ok().filter(|_| is_of_files) else {
            return false;
        };
        let files = Split::ALL
            .into_iter()
            .flat_map(|split| self.files(split).paths());
        let index = self.path().join(INDEX_FILE);
        let mut all = files.chain([&*index]);
        all.any(|file| file.canonicalize().is_ok_and(|file| file == path))
    }

    /// Files outside of the folders of its own files, or without a format, in which values of theirs lie, in order; none
    /// where that is not allowed. Opens every file.
    ///
    /// Errors: those of the files.
    pub fn external_files(&self) -> Result<Vec<PathBuf>, DataError> {
        let paths = Split::ALL
            .into_iter()
            .flat_map(|split| self.files(split).paths());
        external_files(paths.filter(|_| !self.has_source()), &self.inner.keys)
    }

    /// Every file of a split once, without the index.
    pub fn paths(&self, split: Split) -> Vec<&Path> {
        self.files(split).paths()
    }

    pub(crate) fn files(&self, split: Split) -> &Files {
        &self.inner.splits[split as usize]
    }
}

fn open_folder(path: &Path, external: bool, has_targets: bool) -> Result<Inner, DataError> {
    let index_path = path.join(INDEX_FILE);
    if !index_path.is_file() {
        return Err(DataError::Incomplete {
            path: path.to_path_buf(),
            found: format!("it has no `{INDEX_FILE}`, which is written last"),
        });
    }
    let index = Index::read(&index_path)?;
    if let Some((found, expected)) = index.outside().filter(|_| !external) {
        return Err(DataError::BadIndex {
            path: index_path,
            found,
            expected,
        });
    }
    if has_targets && index.targets.is_empty() {
        return Err(DataError::SamplesAlone {
            path: path.to_path_buf(),
        });
    }
    let splits = Split::ALL.map(|split| index.split(split).files(path));
    let names = Split::ALL.map(|split| index.split(split).names.clone());
    let rows = Split::ALL.map(|split| index.split(split).features.clone().unwrap_or_default());
    let inner = Inner {
        path: path.to_path_buf(),
        kind: Some(index.kind),
        shape: index.shape(),
        dtype: index.dtype,
        targets: index.targets.clone(),
        labels: index.labels,
        ignored: index.ignore,
        ignored_by_index: index.ignore,
        has_targets: !index.targets.is_empty(),
        keys: Keys {
            external,
            ..index.keys()
        },
        names: SampleNames::new(names, below(path, &splits)),
        splits,
        universes: Split::ALL.map(|split| index.split(split).universes.clone()),
        meaning: Meaning::new(index.ranges, index.units),
        channels: Channels::stored(&index.spec, index.channels),
        features: Features::new(index.features.unwrap_or_default(), rows),
        spec: index.spec,
        source: None,
    };
    for files in &inner.splits {
        check_files(&inner, files)?;
    }
    Ok(inner)
}

/// The path of each file of each split below a folder, or its whole path.
fn below<'f>(folder: &Path, splits: &'f [Files; 3]) -> [Vec<&'f Path>; 3] {
    splits.each_ref().map(|files| {
        let paths = files.entries().iter().map(|entry| &*entry.volumes);
        let below = paths.map(|path| path.strip_prefix(folder).unwrap_or(path));
        below.collect()
    })
}

/// All files must be there; the first is opened, the others when they are read.
fn check_files(inner: &Inner, files: &Files) -> Result<(), DataError> {
    let paths = files.paths();
    let gone: Vec<&&Path> = paths
        .iter()
        .filter(|path| !path.is_file() && !partita_formats::is_store(path))
        .collect();
    if let Some(first) = gone.first() {
        return Err(DataError::Incomplete {
            path: inner.path.clone(),
            found: format!(
                "{} of its files missing, first {}",
                gone.len(),
                first.display()
            ),
        });
    }
    let Some(first) = files.entries().first() else {
        return Ok(());
    };
    let open = |path: &Path| Ok(SourceFile::open(path)?.reading(inner.keys.access()));
    let file = open(&first.volumes)?;
    if let Some(samples) = first.stacked {
        let order = inner.keys.order.clone().unwrap_or_default().stacked(true);
        let array = file.array(&inner.keys.volume)?;
        let found = array.shape.get(order.samples_dim()).copied().unwrap_or(0);
        if found < samples && array.shape.len() > 1 {
            return Err(DataError::Incomplete {
                path: inner.path.clone(),
                found: format!(
                    "{} holds {found} of {samples} samples",
                    first.volumes.display()
                ),
            });
        }
    }
    inner.volumes(&file, first)?;
    match &first.targets {
        _ if !inner.has_targets => Ok(()),
        Some(path) => inner.check_targets(&open(path)?, first),
        None => inner.check_targets(&file, first),
    }
}

fn open_file(path: &Path, keys: &Keys, has_targets: bool) -> Result<Inner, DataError> {
    if !path.exists() {
        return Err(DataError::Missing {
            path: path.to_path_buf(),
            valid: format!(
                "a dataset is a folder with a `{INDEX_FILE}` or a single HDF5 file (.h5)"
            ),
        });
    }
    let file = SourceFile::open(path)?.reading(keys.access());
    let volumes = file.array(&keys.volume)?;
    let dtype = volumes.delivered()?;
    let (samples, shape) = shape_of(&volumes, keys)?;
    if has_targets && file.is_nameless() {
        return Err(DataError::BadValue {
            what: "dataset of one file",
            got: format!("{}, which holds one array", path.display()),
            expected: "a file with an array of targets or labels, too; `partita data convert` makes a dataset of \
                       files that are apart"
                .to_owned(),
        });
    }
    let (targets, labels) = if has_targets {
        targets_of(&file, keys, samples, shape)?
    } else {
        (Vec::new(), None)
    };
    let entry = FileEntry {
        volumes: path.to_path_buf(),
        targets: None,
        stacked: samples,
        extent: None,
    };
    let train = Files::new(vec![entry.clone()]);
    let splits = [train, Files::default(), Files::default()];
    let folder = path.parent().unwrap_or(path);
    let inner = Inner {
        path: path.to_path_buf(),
        kind: None,
        shape,
        dtype,
        targets,
        labels,
        ignored: None,
        ignored_by_index: None,
        has_targets: true,
        keys: keys.clone(),
        names: SampleNames::new([None, None, None], below(folder, &splits)),
        splits,
        universes: [Vec::new(), Vec::new(), Vec::new()],
        spec: toml::Table::new(),
        meaning: Meaning::default(),
        channels: Channels::default(),
        features: Features::default(),
        source: None,
    };
    if has_targets {
        inner.check_targets(&file, &entry)?;
    }
    Ok(inner)
}

/// Samples and their shape, by the order of dims or else by the rank.
pub(crate) fn shape_of(
    volumes: &SourceArray,
    keys: &Keys,
) -> Result<(Option<usize>, VolumeShape), DataError> {
    let found = match &keys.order {
        Some(order) => {
            let expected = format!("rank {} ({})", order.dims().len().div_ceil(3), order.dims());
            let read = order.read_shape(&volumes.shape);
            read.ok_or_else(|| volumes.wrong_rank(&expected))?
        }
        None => match *volumes.shape.as_slice() {
            [c, d, h, w] => (None, [c, d, h, w]),
            [n, c, d, h, w] => (Some(n), [c, d, h, w]),
            _ => {
                return Err(volumes.wrong_rank("rank 4 (C, D, H, W) or rank 5 (N, C, D, H, W)"));
            }
        },
    };
    if found.1.contains(&0) {
        return Err(volumes.wrong_shape("extents of at least 1".to_string()));
    }
    check_samples(volumes, found.0.unwrap_or(1))?;
    Ok(found)
}

/// Names of the targets of a file that comes without an index, and the extents of its class indices
/// where it has these instead.
fn targets_of(
    file: &SourceFile,
    keys: &Keys,
    samples: Option<usize>,
    [_, d, h, w]: VolumeShape,
) -> Result<(Vec<String>, Option<[usize; 3]>), DataError> {
    if file.has(&keys.label) {
        let array = file.array(&keys.label)?;
        let order = keys
            .order
            .clone()
            .unwrap_or_default()
            .stacked(samples.is_some());
        for [d, h, w] in [[d, h, w], [1; 3]] {
            if order
                .fit(&array.shape, samples.unwrap_or(1), [1, d, h, w])
                .is_some()
            {
                return Ok((Vec::new(), Some([d, h, w])));
            }
        }
        return match *array.shape.as_slice() {
            [.., 1, d, h, w] => Ok((Vec::new(), Some([d, h, w]))),
            _ => Err(array.wrong_rank("rank 4 (1, D, H, W) or rank 5 (N, 1, D, H, W)")),
        };
    }
    let parameters = file.array(&keys.target)?;
    let count = match (samples, parameters.shape.as_slice()) {
        (Some(samples), &[rows]) if rows == samples => 1,
        (_, shape) => shape.last().copied().unwrap_or(0),
    };
    if !(1..=TARGETS_MAX).contains(&count) {
        return Err(parameters.wrong_shape(format!("1 to {TARGETS_MAX} targets in the last dim")));
    }
    let names = (0..count).map(|target| format!("target{target}")).collect();
    Ok((names, None))
}
