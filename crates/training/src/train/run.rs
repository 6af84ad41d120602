//! The effective settings of a run: run file, overrides and launch merged.

use super::checkpoint::{BestMetric, CheckpointConfig, ResumeFrom};
use super::early_stopping::EndRules;
use super::error::TrainError;
use super::metrics::MetricsFormat;
use super::offload::config::OffloadConfig;
use super::preparation::SampleOptions;
use super::run_file::{LiveTuning, RunFile, StartWeights, TrainConfig};
use super::store::config::{StoreConfig, StoreKind};
use partita_data::{Dataset, Keys, Split, external_note};
use partita_forecast::model::TrainModel;
use partita_forecast::{StrategyChoice, machine};
use partita_formats::{DataError, decode_memory};
use partita_graph::Loss;
use partita_input::{CheckScope, Sampling};
use partita_mpi::Collectives;
use partita_program::Optimizer;
use partita_session::{LearningRateSchedule, LossScaling};
use partita_site::cores::confine;
use partita_site::kernel_set::{KernelSet, Precision};
use partita_site::launch::{Launch, LaunchError};
use partita_site::{Context, Environment, Event, RankConfig};
use partita_space::{Bytes, Seconds};
use std::path::{Path, PathBuf};

/// Whether a training predicts the times of its steps before they are run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PredictionChoice {
    /// Where that takes no measurements beyond those of a choice: by a machine file, or after a choice of the strategy.
    #[default]
    Usual,
    /// In any case. Kernels and links are measured first.
    Asked,
    /// Never.
    Never,
}

/// A training run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainRequest {
    /// The run file.
    pub run_file: PathBuf,
    /// Overrides its `ranks`.
    pub ranks: Option<usize>,
    /// Overrides its `threads`.
    pub threads: Option<usize>,
    /// Overrides its `cores`.
    pub cores: Option<Vec<usize>>,
    /// Overrides its `strategy`.
    pub strategy: Option<String>,
    /// Overrides its `device`.
    pub device: Option<KernelSet>,
    /// Overrides its `machine`.
    pub machine: Option<String>,
    /// Overrides its `tune`.
    pub tune: Option<LiveTuning>,
    /// Overrides `store` of its `[data]`.
    pub store: Option<StoreKind>,
    /// Read all samples into the store before the first step.
    pub preload: bool,
    /// Overrides `spill` of its `[data]`.
    pub spill: Option<PathBuf>,
    /// Overrides `store_memory` of its `[data]`.
    pub store_memory: Option<Bytes>,
    /// Use the collectives of the MPI library.
    pub library_collectives: bool,
    /// Replace a run in `output`.
    pub overwrite: bool,
    /// Whether times are predicted.
    pub prediction: PredictionChoice,
    /// Time for measurements of kernels before the run; default: a tenth of the training, between 5 seconds and 2 minutes.
    pub budget: Option<Seconds>,
    /// Overrides its `check_data`.
    pub check_data: Option<CheckScope>,
    /// The checkpoint from which it resumes.
    pub resume: ResumeFrom,
}

impl TrainRequest {
    /// What a configuration says of a store goes with it where the request has none.
    fn store(&self, configured: StoreConfig) -> StoreConfig {
        let configured = match self.store {
            Some(StoreKind::None | StoreKind::Synthetic) => StoreConfig::default(),
            Some(StoreKind::Memory) | None => configured,
        };
        StoreConfig {
            kind: self.store.unwrap_or(configured.kind),
            preload: self.preload || configured.preload,
            spill: self.spill.clone().or(configured.spill),
            memory: self.store_memory.or(configured.memory),
        }
    }
}

/// The effective settings of a run. Paths are relative to the current folder.
#[derive(Clone, Debug)]
pub struct Run {
    /// Model of the zoo or path of a model file.
    pub model: TrainModel,
    /// Loss, in place of that of the model.
    pub loss: Option<Loss>,
    /// A dataset folder or a single HDF5 file.
    pub data: PathBuf,
    /// Whether and where samples stay after they were read.
    pub store: StoreConfig,
    /// Output folder; none where results are wanted in memory alone.
    pub output: Option<PathBuf>,
    /// Whether a run in the output folder may be replaced.
    pub overwrite: bool,
    /// Number of ranks: of the launcher, the request, or the run file.
    pub ranks: usize,
    /// Threads per rank.
    pub threads: usize,
    /// Strategy.
    pub strategy: StrategyChoice,
    /// Whether `auto` may choose micro-batches that change the training.
    pub micro_statistics: bool,
    /// Name or path of the machine file from which times are predicted (default: measured on this machine).
    pub machine: Option<String>,
    /// Whether kernels are tried before the first step.
    pub tune: LiveTuning,
    /// Kernel set.
    pub kernels: KernelSet,
    /// Type of activations and parameters.
    pub precision: Precision,
    /// How gradients in f16 are scaled.
    pub loss_scaling: Option<LossScaling>,
    /// Samples of an update: the batch of the run file times `accumulate`.
    pub batch: usize,
    /// Parts of `batch` whose gradients are accumulated one after the other; the strategy has as many times
    /// its micro-batches.
    pub accumulate: usize,
    /// Number of epochs.
    pub epochs: usize,
    /// Whether the training samples of an epoch that do not fill an update are left out.
    pub drop_last: bool,
    /// Whether files of the dataset may take values from other files outside of their folders.
    pub allow_external: bool,
    /// When the training ends before its last epoch.
    pub ends: EndRules,
    /// Seed of sample order, initial values and dropout.
    pub seed: u64,
    /// Preparation and augmentation of samples.
    pub samples: SampleOptions,
    /// How much of the data is looked at before the run.
    pub check_data: CheckScope,
    /// Watchdog limit: longest time without progress.
    pub watchdog: Seconds,
    /// Collectives of ranks that are processes.
    pub collectives: Collectives,
    /// Memory limit of a rank (default: the memory available divided by the ranks).
    pub memory: Option<Bytes>,
    /// Optimizer with its constants.
    pub optimizer: Optimizer,
    /// Whether biases, scales, shifts and slopes have the weight decay and the trust ratio of the optimizer.
    pub decay_norms: bool,
    /// Gradient clipping: largest global norm.
    pub clip: Option<f64>,
    /// Decay of the averages of the parameters that are saved, where they are kept.
    pub ema: Option<f64>,
    /// Learning-rate schedule.
    pub schedule: LearningRateSchedule,
    /// Weights to start from.
    pub weights: Option<StartWeights>,
    /// Layers and parameters that are not trained.
    pub freeze: Vec<String>,
    /// Whether batch norms without trained parameters keep their running statistics.
    pub freeze_statistics: bool,
    /// Files of metrics.
    pub metrics: Vec<MetricsFormat>,
    /// Whether times are predicted before the run.
    pub prediction: PredictionChoice,
    /// Time for measurements of kernels before it, if given.
    pub budget: Option<Seconds>,
    /// When checkpoints are written, and which are kept.
    pub checkpoint: CheckpointConfig,
    /// What is done in processes of its own.
    pub offload: OffloadConfig,
    /// Whether it resumes from a checkpoint.
    pub is_resumed: bool,
    /// Whether it would have resumed, had the run before it left a checkpoint.
    pub begins_anew: bool,
}

/// Joins the job of a launcher, on the cores of a request or else of its run file, which also says whether ranks are
/// pinned.
///
/// Errors: none of the cores can be used; no MPI library for the launcher. A run file that cannot be read is reported when the
/// run is merged, once for all ranks.
pub fn join<'c>(
    context: &'c Context,
    run_file: &Path,
    cores: Option<&[usize]>,
) -> Result<Launch<'c>, TrainError> {
    let file = RunFile::read(run_file).ok();
    join_with(context, file.as_ref().map(|file| &file.config), cores)
}

/// As [`join`], with a configuration.
pub fn join_with<'c>(
    context: &'c Context,
    config: Option<&TrainConfig>,
    cores: Option<&[usize]>,
) -> Result<Launch<'c>, TrainError> {
    let configured = config.and_then(|config| config.cores.as_deref());
    let confined = cores.or(configured).map_or(Ok(()), confine);
    let pins = config.is_none_or(|config| config.pin);
    context.core_locks().switch(pins);
    let launch = Launch::join(context)?;
    match confined {
        Ok(()) => Ok(launch),
        Err(error) => Err(launch.shut_down(LaunchError::from(error).into())),
    }
}

impl Run {
    /// As [`Self::of_config`], with the configuration of a run file.
    pub fn merge(
        file: RunFile,
        request: &TrainRequest,
        launch: &Launch<'_>,
    ) -> Result<Self, TrainError> {
        let names = (&file.model.into(), file.data);
        Self::of_config(names, Some(file.output), file.config, (request, launch))
    }

    /// Merges the configuration of a training of a model and data, the overrides of a request, and the ranks of the launch.
    /// Without an output folder there are neither checkpoints nor files of metrics.
    ///
    /// Errors: ranks or collectives that the launch does not have; an invalid strategy; nothing to fill.
    pub fn of_config(
        (model, data): (&TrainModel, PathBuf),
        output: Option<PathBuf>,
        mut file: TrainConfig,
        (request, launch): (&TrainRequest, &Launch<'_>),
    ) -> Result<Self, TrainError> {
        if output.is_none() {
            file.checkpoint = CheckpointConfig::NONE;
            file.metrics.clear();
        }
        let ranks = launch.ranks(request.ranks, file.ranks)?;
        let collectives = if request.library_collectives {
            launch.library_collectives()?
        } else {
            Collectives::Ordered
        };
        decode_memory::configure(file.decode_memory);
        let store = request.store(file.store);
        store.check(&file.offload)?;
        let strategy = request.strategy.as_ref().unwrap_or(&file.strategy);
        Ok(Self {
            strategy: strategy
                .parse::<StrategyChoice>()?
                .accumulating(file.accumulate),
            micro_statistics: file.micro_statistics,
            machine: request.machine.clone().or(file.machine),
            tune: request.tune.unwrap_or(file.tune),
            ranks,
            collectives,
            threads: request.threads.unwrap_or(file.threads),
            overwrite: file.overwrite || request.overwrite,
            prediction: request.prediction,
            budget: request.budget,
            checkpoint: file.checkpoint,
            offload: file.offload,
            is_resumed: false,
            begins_anew: false,
            samples: file.samples.of_model(model)?,
            model: model.clone(),
            loss: file.loss,
            metrics: file.metrics,
            data,
            store,
            output,
            kernels: file
                .kernels
                .on(request.device.unwrap_or(file.device), file.precision)?,
            precision: file.precision,
            loss_scaling: match file.precision {
                Precision::F16 => file.loss_scaling.or(Some(LossScaling::Dynamic)),
                Precision::F32 | Precision::F64 | Precision::Bf16 => file.loss_scaling,
            },
            batch: file.batch.saturating_mul(file.accumulate),
            accumulate: file.accumulate,
            epochs: file.epochs,
            drop_last: file.drop_last,
            allow_external: file.allow_external,
            ends: file.ends,
            seed: file.seed,
            check_data: request.check_data.unwrap_or(file.check_data),
            watchdog: file.watchdog,
            memory: file.memory,
            optimizer: file.optimizer,
            decay_norms: file.decay_norms,
            clip: file.clip,
            ema: file.ema,
            schedule: file.schedule,
            weights: file.weights,
            freeze: file.freeze,
            freeze_statistics: file.freeze_statistics,
        })
    }

    /// Whether times are predicted before the run.
    pub fn is_predicted(&self) -> bool {
        let is_described = || {
            self.machine
                .as_deref()
                .is_some_and(|name| !machine::is_local(name))
        };
        match self.prediction {
            PredictionChoice::Usual => self.has_open_strategy() || is_described(),
            PredictionChoice::Asked => true,
            PredictionChoice::Never => false,
        }
    }

    /// Whether the strategy, or the layers of its stages, are chosen by costs.
    pub fn has_open_strategy(&self) -> bool {
        match &self.strategy {
            StrategyChoice::Auto(_) => true,
            StrategyChoice::Given(strategy) => {
                !strategy.stages.is_empty() && !strategy.has_layers()
            }
        }
    }

    /// How its datasets are read.
    pub fn keys(&self) -> Keys {
        Keys::allowing(self.allow_external)
    }

    /// Tells other files that a dataset takes values from.
    ///
    /// Errors: those of its files.
    pub fn note_external(&self, context: &Context, dataset: &Dataset) -> Result<(), DataError> {
        let files = dataset.external_files()?;
        if let Some(note) = external_note(&files) {
            context.report(Event::Note(&note));
        }
        Ok(())
    }

    /// Where files are that a run removes at its end.
    pub fn scratch<'r>(&'r self, environment: &'r Environment) -> &'r Path {
        self.output.as_ref().unwrap_or(&environment.temporary)
    }

    /// The output folder of a run that has one.
    pub fn output_folder(&self) -> &Path {
        let output = self.output.as_deref();
        output.expect("only a run with an output folder writes files")
    }

    /// Samples of an epoch: those that its updates take, and those that are validated.
    pub fn samples(&self, sampling: &Sampling) -> [usize; 2] {
        let [training, validation] =
            [Split::Train, Split::Validation].map(|split| sampling.samples(split));
        let left_out = if self.drop_last {
            training % self.batch
        } else {
            0
        };
        [training - left_out, validation]
    }

    /// The metrics that it needs, as they stand in a run file.
    pub fn metrics_needed(&self) -> Vec<(String, BestMetric)> {
        let mut all = self.ends.metrics();
        all.extend(self.checkpoint.best.map(|metric| {
            let key = format!("[checkpoint] best = \"{}\"", metric.name());
            (key, metric)
        }));
        all
    }

    /// Whether its evaluations tell the Dice coefficients of single samples, as one of its metrics is their mean.
    pub fn needs_sample_dice(&self) -> bool {
        let mut needed = self.metrics_needed().into_iter();
        needed.any(|(_, metric)| metric == BestMetric::SampleDice)
    }

    /// Its ranks, threads and kernels.
    pub fn rank_config(&self) -> RankConfig {
        RankConfig {
            ranks: self.ranks,
            threads: self.threads,
            kernels: self.kernels,
        }
    }
}
