//! Trained weights of a model, from a file into the names and the axis order of the model, and back.

mod error;
mod kernel_axes;
mod matching;
mod order;
mod pytorch;
mod selection;
#[cfg(test)]
mod tests;

pub use error::WeightsError;
pub use kernel_axes::{KernelAxes, NoKernelAxes};
pub use selection::{Selection, load_all};

use matching::{Matched, Matching, Summary};
use partita_formats::DataError;
use partita_graph::{Graph, Parameter, ParameterRole};
use partita_input::DataRecord;
use partita_program::Dtype;
use partita_space::nearest;
use partita_weights::checkpoint::{Checkpoint, CheckpointFolder, Found, MANIFEST};
use partita_weights::state_dict::{self, StateDictFile};
use partita_weights::{Tensor, Values, Weights, save};
pub use pytorch::Layout;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

/// File of the weights in an output folder.
pub const WEIGHTS_FILE: &str = "weights.safetensors";

/// File of the weights of the best epoch in an output folder.
pub const BEST_FILE: &str = "best.safetensors";

/// Metadata that tells a file in Partita's names and axis order from one in PyTorch's.
pub const DIMS: (&str, &str) = ("dims", "Kd, Kh, Kw, C, F");
/// Entry of the metadata with the names and the axis order, `partita` or `pytorch`.
pub const ORDER: &str = "partita.order";

/// Names and axis order of a weight file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightNames {
    /// Those of the model.
    Partita,
    /// Those of PyTorch's state dicts.
    PyTorch,
}

/// What weights are written as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WeightForm {
    /// The parameters of the model.
    Names(WeightNames),
    /// The state dict of a module that PyTorch exported to this file: all of its entries, those that no layer has as they
    /// are there.
    Like(PathBuf),
    /// An ONNX model.
    Onnx,
}

impl WeightNames {
    /// All, with their words in run files and on the command line.
    pub const CHOICES: [(&str, Self); 2] = [("pytorch", Self::PyTorch), ("partita", Self::Partita)];

    /// Its word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Partita => "partita",
            Self::PyTorch => "pytorch",
        }
    }
}

/// Parameters of a model in a weight file or a checkpoint, of which each rank reads what it needs.
#[derive(Debug)]
pub struct LoadedWeights {
    source: WeightSource,
    layout: Layout,
    /// The parameters, and the names of their tensors in the file.
    tensors: BTreeMap<String, (Parameter, String)>,
    summary: Summary,
    /// What each thread read last.
    windows: Mutex<HashMap<ThreadId, Window>>,
    /// What is known of the data of their training.
    record: DataRecord,
    assumes_axes: bool,
}

/// Elements that are read at once where a rank needs few: its next ones are often close. They begin at a multiple of
/// this, as the blocks of a file with checksums do.
const WINDOW: usize = 1 << 18;

/// Consecutive elements of a parameter, in Partita's axis order.
#[derive(Clone, Debug)]
struct Window {
    name: String,
    start: usize,
    values: Values,
}

impl LoadedWeights {
    /// The file or checkpoint.
    pub fn path(&self) -> &Path {
        self.source.path()
    }

    /// What was taken of the file and left.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// The model that they were trained as, if they say so.
    pub fn model(&self) -> Option<&str> {
        self.source.metadata("model")
    }

    /// What they keep of the data that they were trained on.
    pub fn record(&self) -> &DataRecord {
        &self.record
    }

    /// Whether they have a parameter.
    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Whether another program wrote them, with kernels of three dims, and nobody said along which dims of samples these lie.
    pub fn assumes_axes(&self) -> bool {
        self.assumes_axes
    }

    /// Values of a range of elements of a parameter, in memory order; `None` for a parameter that the file lacks.
    ///
    /// Of a file in Partita's axis order a thread reads and holds the blocks of 2^18 elements that have these, of one in
    /// PyTorch's one tensor at a time. Errors: a file that cannot be read or is damaged.
    pub fn part(
        &self,
        name: &str,
        elements: Range<usize>,
    ) -> Result<Option<Vec<f64>>, WeightsError> {
        let Some((parameter, stored)) = self.tensors.get(name) else {
            return Ok(None);
        };
        let thread = thread::current().id();
        let held = self.windows().remove(&thread);
        let is_in = |window: &Window| {
            let end = window.start + window.values.len();
            window.name == name && window.start <= elements.start && elements.end <= end
        };
        let window = match held.filter(is_in) {
            Some(window) => window,
            None => self.read_window(parameter, stored, &elements)?,
        };
        let at = elements.start - window.start..elements.end - window.start;
        let found = match &window.values {
            Values::F32(values) => values[at].iter().map(|&v| f64::from(v)).collect(),
            Values::F64(values) => values[at].to_vec(),
        };
        if elements.end < parameter.volume() {
            self.windows().insert(thread, window);
        }
        Ok(Some(found))
    }

    fn read_window(
        &self,
        parameter: &Parameter,
        stored: &str,
        elements: &Range<usize>,
    ) -> Result<Window, WeightsError> {
        let volume = parameter.volume();
        let range = match &self.layout {
            Layout::Partita => {
                let start = elements.start / WINDOW * WINDOW;
                start..elements.end.next_multiple_of(WINDOW).min(volume)
            }
            Layout::PyTorch(_) => 0..volume,
        };
        let start = range.start;
        let values = match &self.layout {
            Layout::Partita => self.source.read(stored, range)?,
            Layout::PyTorch(_) => self.read_whole(parameter, stored)?,
        };
        Ok(Window {
            name: parameter.name.clone(),
            start,
            values,
        })
    }

    /// All values of a parameter, in Partita's axis order; `None` for one that the file lacks.
    ///
    /// Errors: a file that cannot be read.
    pub fn whole(&self, name: &str) -> Result<Option<Values>, WeightsError> {
        let Some((parameter, stored)) = self.tensors.get(name) else {
            return Ok(None);
        };
        self.read_whole(parameter, stored).map(Some)
    }

    fn read_whole(&self, parameter: &Parameter, stored: &str) -> Result<Values, WeightsError> {
        Ok(match self.source.read(stored, 0..parameter.volume())? {
            Values::F32(values) => Values::F32(self.layout.to_partita(parameter, &values)),
            Values::F64(values) => Values::F64(self.layout.to_partita(parameter, &values)),
        })
    }

    fn windows(&self) -> MutexGuard<'_, HashMap<ThreadId, Window>> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where weights are read from.
#[derive(Clone, Debug)]
enum WeightSource {
    File(Arc<StateDictFile>),
    Checkpoint(Arc<Checkpoint>),
}

impl WeightSource {
    /// Names of its parameters and states; of a checkpoint with averages these stand for the parameters.
    fn names(&self) -> Vec<&str> {
        match self {
            Self::File(file) => file.names().collect(),
            Self::Checkpoint(checkpoint) => checkpoint.evaluated().map(|(name, _)| name).collect(),
        }
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        match self {
            Self::File(file) => file.shape(name).map(<[usize]>::to_vec),
            Self::Checkpoint(checkpoint) => {
                let entry = checkpoint.tensor(name).ok();
                entry.map(|entry| entry.shape.to_vec())
            }
        }
    }

    fn metadata(&self, key: &str) -> Option<&str> {
        match self {
            Self::File(file) => file.metadata().get(key).map(String::as_str),
            Self::Checkpoint(_) => (key == DIMS.0).then_some(DIMS.1),
        }
    }

    /// What is known of the data of the training. Errors: an entry that cannot be read.
    fn record(&self) -> Result<DataRecord, WeightsError> {
        Ok(match self {
            Self::File(file) => DataRecord::of_metadata(file.path(), file.metadata())?,
            Self::Checkpoint(checkpoint) => {
                let training = &checkpoint.manifest().training;
                let found = training.get(DATA_RECORD).cloned();
                let record = found.map(serde_json::from_value).transpose();
                record
                    .map_err(|error| DataError::BadWeights {
                        path: checkpoint.path().to_owned(),
                        reason: format!("`{DATA_RECORD}` of its manifest: {error}"),
                    })?
                    .unwrap_or_default()
            }
        })
    }

    /// Errors: a file that cannot be read or is damaged; `NotFinite`.
    fn read(&self, name: &str, elements: Range<usize>) -> Result<Values, WeightsError> {
        let values = self.stored(name, elements)?;
        let not_finite = match &values {
            Values::F32(values) => values
                .iter()
                .copied()
                .map(f64::from)
                .find(|it| !it.is_finite()),
            Values::F64(values) => values.iter().copied().find(|it| !it.is_finite()),
        };
        match not_finite {
            None => Ok(values),
            Some(value) => Err(WeightsError::NotFinite {
                file: self.path().to_owned(),
                tensor: name.to_owned(),
                value: value.to_string(),
            }),
        }
    }

    fn path(&self) -> &Path {
        match self {
            Self::File(file) => file.path(),
            Self::Checkpoint(checkpoint) => checkpoint.path(),
        }
    }

    fn stored(&self, name: &str, elements: Range<usize>) -> Result<Values, WeightsError> {
        match self {
            Self::File(file) => Ok(file.read(name, elements)?),
            Self::Checkpoint(checkpoint) => {
                let entry = checkpoint.evaluated_tensor(name)?;
                let is_wide = entry.dtype == Dtype::F64;
                let values = checkpoint.reader().read(&entry.name, elements)?;
                Ok(if is_wide {
                    Values::F64(values)
                } else {
                    Values::F32(values.into_iter().map(|value| value as f32).collect())
                })
            }
        }
    }
}

/// A file of weights, its header read.
pub struct WeightFile {
    path: PathBuf,
    source: WeightSource,
}

/// Key of the [`DataRecord`] in the part of a checkpoint's manifest that is the training's.
const DATA_RECORD: &str = "data_record";

/// Name of the folder of checkpoints in an output folder.
pub const CHECKPOINTS: &str = "checkpoints";

/// The last whole checkpoint in an output folder.
fn last_checkpoint(output: &Path) -> Option<Found> {
    let folder = CheckpointFolder::new(output.join(CHECKPOINTS));
    folder.readable().pop()
}

impl WeightFile {
    /// Opens a weight file, that of an output folder, or a checkpoint.
    ///
    /// Errors: an unreadable or damaged file.
    pub fn read(path: &Path) -> Result<Self, WeightsError> {
        if path.join(MANIFEST).is_file() {
            let checkpoint = Checkpoint::open(path)?;
            checkpoint.verify()?;
            return Ok(Self {
                path: path.to_owned(),
                source: WeightSource::Checkpoint(Arc::new(checkpoint)),
            });
        }
        let path = if path.is_dir() {
            let file = path.join(WEIGHTS_FILE);
            if let (false, Some(found)) = (file.exists(), last_checkpoint(path)) {
                let checkpoint = found.path;
                let folder = path.to_owned();
                return Err(WeightsError::NotAtEnd { folder, checkpoint });
            }
            file
        } else {
            path.to_owned()
        };
        let file = StateDictFile::open(&path)?;
        let source = WeightSource::File(Arc::new(file));
        Ok(Self { path, source })
    }

    /// Opens the weights of the best epoch in an output folder.
    ///
    /// Errors: there are none; an unreadable or damaged file.
    pub fn best(output: &Path) -> Result<Self, WeightsError> {
        let file = output.join(BEST_FILE);
        if file.exists() {
            return Self::read(&file);
        }
        Err(WeightsError::NoBest {
            file,
            last: output.join(WEIGHTS_FILE).exists(),
        })
    }

    /// Opens the weights in the output folder of a run file.
    ///
    /// Errors: `NotTrained`; as [`Self::read`].
    pub fn of_training(output: &Path, run_file: &Path) -> Result<Self, WeightsError> {
        let is_trained = output.join(WEIGHTS_FILE).exists()
            || output.join(MANIFEST).exists()
            || last_checkpoint(output).is_some();
        if is_trained || output.is_file() {
            return Self::read(output);
        }
        Err(WeightsError::NotTrained {
            folder: output.to_owned(),
            run_file: run_file.to_owned(),
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A checkpoint beside a file of weights that was written after it, by a training that did not come to its end.
    pub fn newer_checkpoint(&self) -> Option<PathBuf> {
        let found = match &self.source {
            WeightSource::File(_) => last_checkpoint(self.path.parent()?)?,
            WeightSource::Checkpoint(_) => return None,
        };
        let number = |path: &str| found.training.pointer(path)?.as_u64();
        let is_last = number("/position/epoch")? >= number("/epochs")?;
        let modified = |path: &Path| path.metadata().and_then(|about| about.modified()).ok();
        let is_newer = modified(&found.path.join(MANIFEST))? > modified(&self.path)?;
        (is_newer && !is_last).then_some(found.path)
    }

    /// The model that it was trained with, if it says so.
    pub fn model(&self) -> Option<&str> {
        self.source.metadata("model")
    }

    /// The weights of a model, all but those that the selection leaves out. Their values are read when they are needed.
    ///
    /// Errors: missing or unexpected tensors, or one of another shape; a pattern of the selection that fits nothing; a
    /// parameter of two tensors; nothing is taken.
    pub fn load(
        &self,
        graph: &Graph,
        selection: &Selection,
    ) -> Result<LoadedWeights, WeightsError> {
        let layout = self.layout(graph, selection)?;
        let names = ((&*self.path, &self.source), (graph, &layout));
        let Matched { taken, summary } = Matching::new(names.0, names.1, selection).run()?;
        let is_foreign = matches!(layout, Layout::PyTorch(_)) && !self.is_own();
        Ok(LoadedWeights {
            source: self.source.clone(),
            assumes_axes: is_foreign && graph.spatial_rank == 3 && selection.axes.is_none(),
            layout,
            tensors: taken,
            summary,
            windows: Mutex::default(),
            record: self.source.record()?,
        })
    }

    /// Whether Partita wrote it.
    fn is_own(&self) -> bool {
        match &self.source {
            WeightSource::File(file) => file.has_checksums(),
            WeightSource::Checkpoint(_) => true,
        }
    }
}

/// Writes weights of a model in one of the names and axis orders.
///
/// Errors: a file that cannot be written.
pub fn write(
    out: &Path,
    (name, graph): (&str, &Graph),
    weights: &LoadedWeights,
    names: WeightNames,
) -> Result<usize, WeightsError> {
    let layout = match names {
        WeightNames::Partita => Layout::Partita,
        WeightNames::PyTorch => Layout::pytorch(graph),
    };
    let mut tensors = Vec::new();
    let mut counters = Vec::new();
    for parameter in graph.stored_parameters() {
        let name = layout.name(parameter);
        let Some(values) = weights.whole(&parameter.name)? else {
            continue;
        };
        let values = match values {
            Values::F32(values) => Values::F32(layout.to_file(parameter, &values)),
            Values::F64(values) => Values::F64(layout.to_file(parameter, &values)),
        };
        if parameter.role == ParameterRole::RunningMean {
            counters.extend(layout.counter(&name));
        }
        let shape = layout.shape(parameter);
        let tensor = Tensor { shape, values };
        let names = layout.names(parameter).into_iter();
        tensors.extend(names.map(|name| (name, tensor.clone())));
    }
    let count = tensors.len() + counters.len();
    let mut metadata = weights.record.metadata();
    metadata.insert(ORDER.to_owned(), names.name().to_owned());
    match names {
        WeightNames::PyTorch => state_dict::save(out, &tensors, &counters, metadata)?,
        WeightNames::Partita => {
            let own = [("model", name), DIMS];
            metadata.extend(own.map(|(key, value)| (key.to_owned(), value.to_owned())));
            let weights = Weights {
                tensors: tensors.into_iter().collect(),
                metadata,
            };
            save(out, &weights)?;
        }
    }
    Ok(count)
}

/// The shortest entry of `rename` by which a tensor gets another name: without a prefix, or of the layer, if the last
/// part is the same.
fn renamed<'n>(old: &'n str, new: &'n str) -> (&'n str, &'n str) {
    let prefix = old
        .strip_suffix(new)
        .and_then(|prefix| prefix.strip_suffix('.'));
    if let Some(prefix) = prefix {
        return (prefix, "");
    }
    match (old.rsplit_once('.'), new.rsplit_once('.')) {
        (Some((old, role)), Some((new, other))) if role == other => (old, new),
        (_, _) => (old, new),
    }
}

fn closest<'n>(name: &str, names: impl Iterator<Item = &'n str>) -> Option<String> {
    nearest(name, names).map(|found| format!("`{found}`"))
}
