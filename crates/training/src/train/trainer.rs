//! A training of a model on samples by a configuration, wherever the three come from.

use super::checkpoint::{CheckpointConfig, ResumeFrom};
use super::early_stopping::EndRules;
use super::error::TrainError;
use super::metrics::MetricsFormat;
use super::offload::config::OffloadConfig;
use super::preparation::SampleOptions;
use super::record::EpochResult;
use super::run::{Run, TrainRequest, join_with};
use super::run_file::{RunFile, StartWeights};
use super::store::config::StoreConfig;
use super::{Trained, train_with};
use partita_data::{ArraySource, Dataset, SampleSource};
use partita_forecast::ADAM;
use partita_forecast::model::{self, ModelError};
use partita_formats::DataError;
use partita_graph::{Graph, Loss, text};
use partita_input::CheckScope;
use partita_program::Optimizer;
use partita_session::{LearningRateSchedule, LossScaling};
use partita_site::Context;
use partita_site::kernel_set::{KernelSet, Precision};
use partita_site::launch::Launch;
use partita_space::{Bytes, Seconds};
use std::fmt;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Longest time without progress, unless the configuration says another.
pub const WATCHDOG: Seconds = Seconds(60.0);

/// How a model is trained. A [`RunFile`] is read to one; paths are relative to the current folder.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainConfig {
    /// Loss in the words of a model file (default: that of the model).
    pub loss: Option<Loss>,
    /// Whether and where samples stay after they were read (default: nowhere).
    pub store: StoreConfig,
    /// Whether a run in the output folder may be replaced (default: false).
    pub overwrite: bool,
    /// Number of ranks (default: 1).
    pub ranks: usize,
    /// Threads per rank (default: 1).
    pub threads: usize,
    /// Cores that the run may use (default: all that the process may use).
    pub cores: Option<Vec<usize>>,
    /// Whether the threads of ranks are pinned to cores (default: true).
    pub pin: bool,
    /// `auto` (default) or a strategy.
    pub strategy: String,
    /// Whether `auto` may choose micro-batches where batch norm, or Dice over a batch, then takes its sums over one of
    /// them (default: false).
    pub micro_statistics: bool,
    /// Name or path of a machine file (default: this machine, measured).
    pub machine: Option<String>,
    /// Kernel set (default: the fast one).
    pub kernels: KernelSet,
    /// Where kernels compute (default: the processor).
    pub device: KernelSet,
    /// Type of activations and parameters (default: f32).
    pub precision: Precision,
    /// How gradients in f16 are scaled (default: by a factor that follows them).
    pub loss_scaling: Option<LossScaling>,
    /// Global batch size.
    pub batch: usize,
    /// Steps of `batch` samples whose gradients are accumulated for one update (default: 1).
    pub accumulate: usize,
    /// Number of epochs.
    pub epochs: usize,
    /// Seed of sample order, initial values and dropout (default: 1).
    pub seed: u64,
    /// Preparation and augmentation of samples (default: none).
    pub samples: SampleOptions,
    /// How much of the data is looked at before the run (default: some samples).
    pub check_data: CheckScope,
    /// Files of metrics that the run writes (default: none).
    pub metrics: Vec<MetricsFormat>,
    /// Watchdog limit: longest time without progress (default: 60 s).
    pub watchdog: Seconds,
    /// Memory limit of a rank (default: the memory available divided by the ranks).
    pub memory: Option<Bytes>,
    /// Optimizer (default: Adam with its usual constants).
    pub optimizer: Optimizer,
    /// Whether biases, scales, shifts and slopes have the weight decay and the trust ratio of the optimizer
    /// (default: true, but false for LARS and LAMB).
    pub decay_norms: bool,
    /// Gradient clipping: largest global norm.
    pub clip: Option<f64>,
    /// Decay of the exponential moving averages of the weights, which then are evaluated and saved (default: no averages).
    pub ema: Option<f64>,
    /// Learning-rate schedule.
    pub schedule: LearningRateSchedule,
    /// When checkpoints are written, and which are kept.
    pub checkpoint: CheckpointConfig,
    /// Weights to start from (default: initial values drawn by the seed).
    pub weights: Option<StartWeights>,
    /// What is done in processes of its own (default: nothing).
    pub offload: OffloadConfig,
    /// Layers and parameters that are not trained, as patterns of
    /// [`Graph::with_frozen`](partita_graph::Graph::with_frozen) (default: none).
    pub freeze: Vec<String>,
    /// Whether batch norms without trained parameters keep their running statistics (default: true).
    pub freeze_statistics: bool,
    /// Whether the training samples of an epoch that do not fill an update are left out (default: false).
    pub drop_last: bool,
    /// When the training ends before its last epoch (default: not).
    pub ends: EndRules,
}

impl Default for TrainConfig {
    /// An epoch of steps of one sample on one rank, with Adam and a constant learning rate of 1e-3; everything else as
    /// where a run file omits it.
    fn default() -> Self {
        Self {
            loss: None,
            store: StoreConfig::default(),
            overwrite: false,
            ranks: 1,
            threads: 1,
            cores: None,
            pin: true,
            strategy: "auto".to_owned(),
            micro_statistics: false,
            machine: None,
            kernels: KernelSet::CPU,
            device: KernelSet::CPU,
            precision: Precision::F32,
            loss_scaling: None,
            batch: 1,
            accumulate: 1,
            epochs: 1,
            seed: 1,
            samples: SampleOptions::as_stored(),
            check_data: CheckScope::default(),
            metrics: Vec::new(),
            watchdog: WATCHDOG,
            memory: None,
            optimizer: ADAM,
            decay_norms: true,
            clip: None,
            ema: None,
            schedule: LearningRateSchedule::Constant { rate: 1e-3 },
            checkpoint: CheckpointConfig::default(),
            weights: None,
            offload: OffloadConfig::default(),
            freeze: Vec::new(),
            freeze_statistics: true,
            drop_last: false,
            ends: EndRules::default(),
        }
    }
}

/// The model of a training.
#[derive(Clone, Debug)]
pub enum TrainModel {
    /// A name of the zoo or the path of a model file.
    Named(String),
    /// A graph.
    Graph(Box<Graph>),
}

impl TrainModel {
    /// The model of a text in the form of model files.
    ///
    /// Errors: the first fault of the text.
    pub fn of_text(model: &str) -> Result<Self, ModelError> {
        let graph = text::parse(model).map_err(|source| ModelError::Text {
            path: "the text of the model".to_owned(),
            source: Box::new(source),
        })?;
        Ok(graph.into())
    }

    /// Its name in messages and results.
    pub fn name(&self) -> &str {
        match self {
            Self::Named(name) => name,
            Self::Graph(graph) => &graph.name,
        }
    }

    /// Its graph.
    ///
    /// Errors: a model that cannot be read.
    pub fn graph(&self) -> Result<Graph, ModelError> {
        match self {
            Self::Named(name) => model::resolve(name),
            Self::Graph(graph) => Ok(Graph::clone(graph)),
        }
    }
}

impl From<Graph> for TrainModel {
    fn from(graph: Graph) -> Self {
        Self::Graph(Box::new(graph))
    }
}

impl From<&str> for TrainModel {
    fn from(name: &str) -> Self {
        Self::Named(name.to_owned())
    }
}

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

    /// The dataset.
    ///
    /// Errors: files that are no dataset, a source without samples.
    pub fn open(&self) -> Result<Dataset, DataError> {
        match self {
            Self::Path(path) => Dataset::open(path),
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
                no_prediction: true,
                ..TrainRequest::default()
            },
            on_epoch: None,
        }
    }

    /// The training of a run file.
    pub(super) fn of_run_file(file: RunFile, request: &TrainRequest) -> Self {
        Self {
            model: TrainModel::Named(file.model),
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
        self.request.no_prediction = false;
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
