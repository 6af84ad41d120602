//! Conversion of users' files to a dataset: finds samples and their answers, splits them, writes them one by one.

mod answers;
mod cases;
mod damaged;
mod find;
mod geometry;
mod names;
mod relabel;
mod resize;
mod source_files;
mod split;
mod task;

pub use geometry::check_unconverted;
pub use geometry::{GeometrySpec, VoxelOrientation};

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use partita_formats::{
    DType, DataError, Layout, ReadError, Samples, VolumeShape, decode_memory, image, slab,
};
use partita_program::Transform;
use partita_space::Bytes;

use crate::channels::{CHANNELS, Channels};
use crate::classes::{ClassSet, Occurrence, SplitLabels};
use crate::convert::answers::Answers;
use crate::convert::find::Found;
use crate::convert::relabel::Relabel;
pub use crate::convert::relabel::{LabelPair, NoLabelPair};
use crate::convert::task::Task;
use crate::dataset::Dataset;
use crate::external::{external_files, external_note};
use crate::features::Features;
use crate::files::Files;
use crate::index::Kind;
use crate::keys::Keys;
use crate::names::SampleNames;
use crate::opened::Inner;
use crate::reader::Reader;
use crate::split::Split;
use crate::target_map::Meaning;
use crate::valid::Valid;
use crate::writer::{DatasetSpec, DatasetWriter};

/// What is to be converted, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvertSpec {
    /// Files, array stores, or folders of them.
    pub sources: Vec<PathBuf>,
    /// Output folder, new or empty.
    pub out: PathBuf,
    /// Names of the arrays in the files, and the order of their dims.
    pub keys: Keys,
    /// Fractions of training, validation and test; they sum to 1. Folders that are named as splits go before.
    pub fractions: [f64; 3],
    /// Seed of the split.
    pub seed: u64,
    /// Element type of the samples (default: the smallest that holds what is stored).
    pub dtype: Option<DType>,
    /// Height and width that images are scaled and cropped to.
    pub size: Option<[usize; 2]>,
    /// A table of answers (CSV), or a file of arrays with a row for each sample.
    pub targets: Option<PathBuf>,
    /// Names of the classes, where the files do not say them.
    pub classes: Vec<String>,
    /// A class index of positions of no class (default: the label `ignore` of a task).
    pub ignore: Option<i64>,
    /// Stored class numbers that are renamed.
    pub map: Vec<LabelPair>,
    /// Convert samples without answers.
    pub no_targets: bool,
    /// On which voxels images are stored, where their files state positions.
    pub geometry: GeometrySpec,
    /// Leave samples out whose files are cut or damaged.
    pub skip_damaged: bool,
}

impl ConvertSpec {
    /// The options on which samples without answers depend, as they are typed, a space before each.
    fn sample_options(&self) -> String {
        let (keys, usual) = (&self.keys, Keys::default());
        let GeometrySpec {
            orientation,
            spacing,
            interpolation,
        } = self.geometry;
        let is_usual = GeometrySpec::default();
        let fill = if keys.fill { " --fill" } else { "" };
        let external = if keys.external {
            " --allow-external"
        } else {
            ""
        };
        let skip = if self.skip_damaged {
            " --skip-damaged"
        } else {
            ""
        };
        let options = [
            (
                "volume-key",
                Some(keys.volume.clone()).filter(|key| *key != usual.volume),
            ),
            ("layout", keys.order.as_ref().map(ToString::to_string)),
            ("dtype", self.dtype.map(|dtype| dtype.name().to_owned())),
            (
                "size",
                self.size.map(|[height, width]| format!("{height}x{width}")),
            ),
            (
                "orientation",
                (orientation != is_usual.orientation).then(|| orientation.name().to_owned()),
            ),
            (
                "spacing",
                spacing.map(|spacing| spacing.map(|it| it.to_string()).join("x")),
            ),
            (
                "interpolation",
                (interpolation != is_usual.interpolation).then(|| interpolation.name().to_owned()),
            ),
        ];
        let given = options
            .into_iter()
            .filter_map(|(option, value)| Some((option, value?)));
        let given = given.map(|(option, value)| format!(" --{option} {value}"));
        given.collect::<String>() + fill + external + skip
    }
}

/// Samples that were found, before anything is written.
pub struct Conversion {
    path: PathBuf,
    spec: DatasetSpec,
    /// The samples of each split, by their number among all.
    splits: [Vec<usize>; 3],
    /// The name of each sample, by its number among all.
    names: Vec<String>,
    found: Found,
    answers: Answers,
    size: Option<[usize; 2]>,
    /// What the files of samples hold: of samples of several files, those of each number.
    inners: Vec<Arc<Inner>>,
    map: Relabel,
    pairs: Vec<LabelPair>,
    notes: Vec<String>,
}

impl Conversion {
    /// Finds samples and answers, and decides on the splits. Reads headers, and class indices in files.
    ///
    /// Errors: no samples, no answers, another shape, and those of the files.
    pub fn find(asked: &ConvertSpec) -> Result<Self, DataError> {
        Self::find_whole(asked).map_err(damaged::skippable)
    }

    fn find_whole(asked: &ConvertSpec) -> Result<Self, DataError> {
        let mut found = find::find(asked)?;
        let of_task = found.task.as_ref().and_then(Task::ignored);
        let map = Relabel::new(&asked.map, asked.ignore, of_task)?;
        let mut notes = geometry::find(&asked.geometry, asked.targets.as_deref(), &mut found)?;
        let mut answers = answers::find(asked, &mut found, &map)?;
        notes.splice(0..0, std::mem::take(&mut found.notes));
        let files = found.samples.iter().flat_map(|sample| {
            let entry = &sample.entry;
            let more = sample.more.iter().chain(&entry.targets);
            more.chain([&entry.volumes]).map(PathBuf::as_path)
        });
        let files: BTreeSet<_> = files.collect();
        let external = external_files(files.into_iter(), &found.keys)?;
        notes.extend(external_note(&external));
        let names = names::names(&found.samples);
        let mut inner = Inner::of_source(asked, &found, (&answers, &map), names.clone());
        if inner.has_targets && inner.labels.is_some() && answers.names.is_empty() {
            answers.names = answers::count_classes((&found, &inner, &map))?;
            inner.targets.clone_from(&answers.names);
        }
        let splits = split::split(asked, &found)?;
        let subjects = |split: Split| {
            let samples = splits[split as usize].iter();
            samples
                .map(|&sample| found.samples[sample].subject as u64)
                .collect()
        };
        let mut made = made_of(asked, &found);
        found.note_geometry(&asked.geometry, &splits, &mut made);
        let spec = DatasetSpec {
            kind: Kind::Other,
            shape: found.shape,
            dtype: found.dtype,
            targets: answers.names.clone(),
            labels: answers.labels,
            layout: Layout::Contiguous,
            train: subjects(Split::Train),
            validation: subjects(Split::Validation),
            test: subjects(Split::Test),
            spec: made,
        };
        let files = 0..found.files_per_sample();
        let inners = files.map(|file| inner.of_file(&found, file));
        Ok(Self {
            path: asked.out.clone(),
            spec,
            splits,
            inners: inners.map(Arc::new).collect(),
            notes,
            names,
            found,
            answers,
            size: asked.size,
            map,
            pairs: asked.map.clone(),
        })
    }

    /// What is reported before anything is written: what is left out, and how regions are understood.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// What the dataset will hold.
    pub fn spec(&self) -> &DatasetSpec {
        &self.spec
    }

    /// Number of samples of all splits.
    pub fn samples(&self) -> usize {
        self.splits.iter().map(Vec::len).sum()
    }

    /// D, H, W of the samples of each split, where they differ.
    fn extents(&self) -> Option<[Vec<[usize; 3]>; 3]> {
        let of_sample = |&sample: &usize| self.found.samples[sample].entry.extent;
        let of_split = |samples: &Vec<usize>| samples.iter().map(of_sample).collect();
        let all: [Option<Vec<_>>; 3] = self.splits.each_ref().map(of_split);
        let [Some(train), Some(validation), Some(test)] = all else {
            return None;
        };
        let differ = [&train, &validation, &test]
            .into_iter()
            .any(|one| !one.is_empty());
        differ.then_some([train, validation, test])
    }

    /// What the samples will take, compression left aside.
    pub fn bytes(&self) -> Bytes {
        let mut spec = self.spec.clone();
        let each = self.splits.iter().flatten().map(|&sample| {
            let entry = &self.found.samples[sample].entry;
            let [_, d, h, w] = self.inners[0].shape_of(entry);
            spec.shape = [self.found.shape[0], d, h, w];
            spec.labels = self.inners[0].labels_of(entry);
            spec.sample_bytes()
        });
        each.sum()
    }

    /// Writes the dataset, one sample in memory at a time. Stops, and leaves nothing, when `go_on` answers the
    /// number of samples written with false; the answer is `None` then. Gives what is doubtful about the labels,
    /// too.
    ///
    /// Errors: those of the files, of another shape, of values that cannot be trained on, and of the output.
    pub fn write(
        &self,
        mut go_on: impl FnMut(usize) -> bool,
    ) -> Result<Option<(Dataset, Vec<String>)>, DataError> {
        let writer = DatasetWriter::create_of_extents(&self.path, &self.spec, self.extents())?;
        let names = self.splits.each_ref().map(|samples| {
            let names = samples.iter().map(|&sample| self.names[sample].clone());
            names.collect()
        });
        let mut writer = writer.ignoring(self.inners[0].ignored).naming(names)?;
        let readers = self.inners.iter();
        let mut readers: Vec<Reader> = readers
            .map(|inner| Reader::new(Arc::clone(inner), Split::Train))
            .collect();
        let mut volume = Samples::new(self.found.dtype);
        let mut stored = self.answers.numbered.clone().unwrap_or_default();
        let mut splits = Vec::new();
        let mut written = 0;
        for split in Split::ALL {
            let mut classes = ClassSet::default();
            for &sample in &self.splits[split as usize] {
                if !go_on(written) {
                    return Ok(None);
                }
                self.read_sample(&mut readers, sample, &mut volume)
                    .map_err(damaged::skippable)?;
                let seen = (&mut stored, &mut classes);
                self.append(&mut writer, split, &mut readers[0], sample, &volume, seen)?;
                written += 1;
            }
            let samples = self.splits[split as usize].len();
            splits.push(SplitLabels {
                split,
                classes,
                samples,
                is_whole: true,
            });
        }
        go_on(written);
        let dataset = writer.finish()?;
        let of_label = |class: i16| {
            let all = stored.iter().filter(|&one| self.map.of(one) == class);
            let all: Vec<i16> = all.collect();
            if all.is_empty() { vec![class] } else { all }
        };
        let occurrence = Occurrence {
            stored: &of_label,
            names: dataset.targets(),
            ignored: dataset.ignored(),
            is_per_position: self.answers.labels.is_some_and(|extent| extent != [1; 3]),
            splits: &splits,
        };
        let mut doubts = occurrence.doubts();
        doubts.extend(Relabel::unused(&self.pairs, &stored));
        Ok(Some((dataset, doubts)))
    }

    /// Reads all channels of a sample.
    fn read_sample(
        &self,
        readers: &mut [Reader],
        sample: usize,
        out: &mut Samples,
    ) -> Result<(), DataError> {
        self.read_volume(&mut readers[0], 0, sample, out)?;
        let mut more = Samples::new(self.found.dtype);
        for (file, reader) in readers.iter_mut().enumerate().skip(1) {
            self.read_volume(reader, file, sample, &mut more)?;
            out.append(&more);
        }
        Ok(())
    }

    /// Reads the channels of a sample that one of its files holds.
    fn read_volume(
        &self,
        reader: &mut Reader,
        file: usize,
        sample: usize,
        out: &mut Samples,
    ) -> Result<(), DataError> {
        let inner = &self.inners[file];
        let path = reader.file(sample).to_path_buf();
        let shape = if self.found.are_images {
            *out = self.read_image(&path, inner.shape)?;
            inner.shape
        } else {
            let (found, inner) = (&self.found, &**inner);
            found.read_volume((inner, file), reader, sample, out)?
        };
        let valid = Valid::under(Transform::Identity);
        let Some((at, value)) = valid.first_outside(out) else {
            self.found.store_volume(sample, out);
            return Ok(());
        };
        let [c, d, h, w] = slab::position(&shape.map(|extent| 0..extent), at);
        let found = &self.found.samples[sample];
        let place = found
            .place
            .map_or_else(String::new, |place| format!("sample {place} of the file, "));
        Err(DataError::Unfit {
            path,
            key: self.inners[file].keys.volume.clone(),
            found: format!(
                "{place}at (C, D, H, W) = ({c}, {d}, {h}, {w}): {}",
                valid.fault(value)
            ),
        })
    }

    fn read_image(
        &self,
        path: &std::path::Path,
        [channels, _, height, width]: VolumeShape,
    ) -> Result<Samples, DataError> {
        let image = image::read(path).map_err(|error| error.of(path, None, None))?;
        let got = image.shape;
        if self.size.is_none() && got[..2] != [height, width] {
            return Err(DataError::MixedShapes {
                path: path.to_path_buf(),
                got: format!("{}x{}", got[0], got[1]),
                expected: format!("{height}x{width}"),
                remedy: "`--size HxW` scales and crops all images to one size",
            });
        }
        let taken = resize::taken([channels, height, width], got, self.found.dtype);
        let _claim = decode_memory::claim(taken).map_err(|error| error.of(path, None, None))?;
        resize::fit(&image, channels, [height, width], self.found.dtype)
            .map_err(|error| ReadError::Unsupported(error.to_string()).of(path, None, None))
    }

    fn append(
        &self,
        writer: &mut DatasetWriter,
        split: Split,
        reader: &mut Reader,
        sample: usize,
        volume: &Samples,
        (stored, classes): (&mut ClassSet, &mut ClassSet),
    ) -> Result<(), DataError> {
        if self.found.are_alone {
            return writer.append_alone(split, volume);
        }
        if let Some(class) = self.answers.class(sample) {
            classes.add(class);
            return writer.append_labeled(split, volume, &Samples::I16(vec![class]));
        }
        if let Some(numbers) = self.answers.numbers(sample) {
            return writer.append(split, volume, &self.answers.normalized(numbers), numbers);
        }
        if let Some(extent) = self.answers.labels {
            let mut labels = Samples::new(DType::Int16);
            let source = (&self.found, &*self.inners[0], &self.map);
            stored.join(&answers::read_labels(source, reader, sample, &mut labels)?);
            classes.join(&ClassSet::of(&labels));
            if extent != [1; 3] {
                self.found.store_labels(sample, &mut labels);
            }
            return writer.append_labeled(split, volume, &labels);
        }
        let mut own = self.found.own_reader((&self.inners[0], 0), sample);
        let (reader, at) = match &mut own {
            Some((own, place)) => (own, *place),
            None => (reader, sample),
        };
        let numbers = reader.read_target(at)?;
        if let Some(target) = numbers.iter().position(|number| !number.is_finite()) {
            let place = self.found.samples[sample].place;
            let place =
                place.map_or_else(String::new, |place| format!("sample {place} of the file, "));
            return Err(DataError::Unfit {
                path: reader.target_file(at).to_path_buf(),
                key: self.inners[0].keys.target.clone(),
                found: format!("{place}target {target}: {} is not finite", numbers[target]),
            });
        }
        let physical = reader.read_physical(at)?;
        writer.append(
            split,
            volume,
            &numbers,
            physical.as_ref().unwrap_or(&numbers),
        )
    }
}

impl Inner {
    /// What the first file of each sample holds.
    fn of_source(
        asked: &ConvertSpec,
        found: &Found,
        (answers, map): (&Answers, &Relabel),
        names: Vec<String>,
    ) -> Self {
        let [channels, d, h, w] = found.shape;
        Self {
            path: asked.sources[0].clone(),
            kind: Some(Kind::Other),
            shape: [channels / found.files_per_sample(), d, h, w],
            dtype: found.dtype,
            targets: answers.names.clone(),
            labels: answers.labels,
            ignored: map.ignored().filter(|_| answers.labels.is_some()),
            ignored_by_index: None,
            has_targets: answers.are_in_files,
            keys: found.keys.clone(),
            splits: [
                Files::new(found.entries(0)),
                Files::default(),
                Files::default(),
            ],
            universes: [Vec::new(), Vec::new(), Vec::new()],
            names: SampleNames::new([Some(names), None, None], Default::default()),
            spec: toml::Table::new(),
            meaning: Meaning::default(),
            channels: Channels::default(),
            features: Features::default(),
            source: None,
        }
    }

    /// What one of the files of each sample holds; answers are those of the first.
    fn of_file(&self, found: &Found, file: usize) -> Self {
        if file == 0 {
            return self.clone();
        }
        Self {
            targets: Vec::new(),
            labels: None,
            has_targets: false,
            splits: [
                Files::new(found.entries(file)),
                Files::default(),
                Files::default(),
            ],
            ..self.clone()
        }
    }
}

/// The part of the index that says what was converted.
fn made_of(asked: &ConvertSpec, found: &Found) -> toml::Table {
    let mut made = toml::Table::new();
    let sources = asked
        .sources
        .iter()
        .map(|path| path.display().to_string().into());
    made.insert("maker".to_owned(), "partita data convert".into());
    made.insert("sources".to_owned(), toml::Value::Array(sources.collect()));
    made.insert("seed".to_owned(), asked.seed.to_string().into());
    if !found.damaged.is_empty() {
        let names = found.damaged.iter().map(|name| name.clone().into());
        made.insert("damaged".to_owned(), toml::Value::Array(names.collect()));
    }
    let channels = found.task.iter().flat_map(|task| &task.channels);
    let channels: Vec<toml::Value> = channels.map(|name| name.clone().into()).collect();
    if !channels.is_empty() {
        made.insert(CHANNELS.to_owned(), channels.into());
    }
    made
}
