//! A training of a model on samples by a configuration, wherever the three come from.

use super::checkpoint::{CheckpointConfig, ResumeFrom};
use super::error::TrainError;
use super::record::EpochResult;
use super::run::{PredictionChoice, Run, TrainRequest, join_with};
use super::run_file::{RunFile, TrainConfig};
use super::{Trained, train_with};
use partita_data::{ArraySource, Dataset, Keys, SampleSource};
use partita_forecast::model::TrainModel;
use partita_formats::DataError;
use partita_site::Context;
use partita_site::launch::Launch;
use std::fmt;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The samples of a training.
#[derive(Clone)]
pub enum TrainData {
    /// A dataset folder or a single file of arrays.
    Path(PathBuf),
    /// A dataset that is open.
    Dataset(Dataset),
    /// Anything that gives samples.
    Source(Arc<dyn SampleSource>),
}

impl TrainData {
    /// Its path, or its name in messages and results.
    pub fn path(&self) -> PathBuf {
        match self {
            Self::Path(path) => path.clone(),
            Self::Dataset(dataset) => dataset.path().to_owned(),
            Self::Source(source) => source.name().into(),
        }
    }

    /// The dataset, with the arrays of a single file under these names.
    ///
    /// Errors: files that are no dataset, a source without samples.
    pub fn open(&self, keys: &Keys) -> Result<Dataset, DataError> {
        match self {
            Self::Path(path) => Dataset::open_with(path, keys),
            Self::Dataset(dataset) => Ok(dataset.clone()),
            Self::Source(source) => Dataset::of_source(Arc::clone(source)),
        }
    }
}

impl From<&Path> for TrainData {
    fn from(path: &Path) -> Self {
        Self::Path(path.to_owned())
    }
}

impl From<Dataset> for TrainData {
    fn from(dataset: Dataset) -> Self {
        Self::Dataset(dataset)
    }
}

impl From<Arc<dyn SampleSource>> for TrainData {
    fn from(source: Arc<dyn SampleSource>) -> Self {
        Self::Source(source)
    }
}

impl From<ArraySource> for TrainData {
    fn from(source: ArraySource) -> Self {
        Self::Source(Arc::new(source))
    }
}

/// Called with the results of each epoch.
pub struct EpochCallback(Mutex<Box<Callback>>);

type Callback = dyn FnMut(&EpochResult) -> ControlFlow<()> + Send;

impl EpochCallback {
    /// Calls it; whether the training ends.
    pub fn is_break(&self, epoch: &EpochResult) -> bool {
        let mut call = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        call(epoch).is_break()
    }
}

/// A training of a model on samples by a configuration. It needs no file: without an output folder the weights are in
/// [`Trained::weights`].
///
/// Every strategy can be configured, and trains what one rank does. Under MPI every process makes the same trainer.
///
/// The [front page](crate) has an example.
pub struct Trainer {
    pub(super) model: TrainModel,
    pub(super) data: TrainData,
    output: Option<PathBuf>,
    config: TrainConfig,
    pub(super) request: TrainRequest,
    pub(super) on_epoch: Option<EpochCallback>,
}

impl fmt::Debug for Trainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = (self.model.name(), self.data.path(), &self.output);
        write!(f, "{names:?} {:?}", self.config)
    }
}

impl Trainer {
    /// A training that starts anew, without output folder and prediction.
    pub fn new(
        model: impl Into<TrainModel>,
        data: impl Into<TrainData>,
        config: TrainConfig,
    ) -> Self {
        Self {
            model: model.into(),
            data: data.into(),
            output: None,
            config,
            request: TrainRequest {
                prediction: PredictionChoice::Never,
                ..TrainRequest::default()
            },
            on_epoch: None,
        }
    }

    /// The training of a run file.
    pub(super) fn of_run_file(file: RunFile, request: &TrainRequest) -> Self {
        Self {
            model: file.model.into(),
            data: TrainData::Path(file.data),
            output: Some(file.output),
            config: file.config,
            request: request.clone(),
            on_epoch: None,
        }
    }

    /// The same with an output folder, where weights, result, trace, checkpoints and metrics are written.
    #[must_use]
    pub fn output(self, folder: impl Into<PathBuf>) -> Self {
        let output = Some(folder.into());
        Self { output, ..self }
    }

    /// The same from a checkpoint.
    #[must_use]
    pub fn resuming(mut self, from: ResumeFrom) -> Self {
        self.request.resume = from;
        self
    }

    /// The same with a prediction of times, which are measured first.
    #[must_use]
    pub fn predicting(mut self) -> Self {
        self.request.prediction = PredictionChoice::Asked;
        self
    }

    /// The same with a callback, called on rank 0 with the results of each epoch while all ranks wait: the training ends
    /// with the first `Break`, as if that epoch were its last.
    #[must_use]
    pub fn on_epoch(
        self,
        callback: impl FnMut(&EpochResult) -> ControlFlow<()> + Send + 'static,
    ) -> Self {
        let on_epoch = Some(EpochCallback(Mutex::new(Box::new(callback))));
        Self { on_epoch, ..self }
    }

    /// Trains. Under a launcher this process is one rank of many, and all but that of rank 0 get no result; else all ranks
    /// are threads of this process.
    ///
    /// Errors: as [`train`](super::train).
    pub fn train(&self, context: &Context) -> Result<Option<Trained>, TrainError> {
        let launch = join_with(context, Some(&self.config), None)?;
        train_with(&launch, self).map_err(|error| launch.shut_down(error))
    }

    /// The effective settings.
    pub(super) fn run(&self, launch: &Launch<'_>) -> Result<Run, TrainError> {
        let names = (&self.model, self.data.path());
        let settings = (self.output.clone(), self.config.clone());
        Run::of_config(names, settings.0, settings.1, (&self.request, launch))
    }

    /// The run file, if it is the training of one.
    pub(super) fn run_file(&self) -> Option<&Path> {
        let file = &*self.request.run_file;
        (!file.as_os_str().is_empty()).then_some(file)
    }

    /// What an output folder is needed for, if there is none.
    pub(super) fn left_out(&self) -> Option<String> {
        let asked = &self.config;
        let checkpoints = asked.checkpoint != CheckpointConfig::default();
        let is_left = !asked.metrics.is_empty() || checkpoints && asked.checkpoint.is_on();
        (self.output.is_none() && is_left).then(|| {
            "without an output folder there are neither checkpoints nor files of metrics".to_owned()
        })
    }
}
