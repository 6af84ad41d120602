//! Errors of a training.

mod conversions;
pub mod ensemble;

use super::checkpoint::{CHECKPOINTS, LastCheckpoint, ResumeError};
use super::offload::error::OffloadError;
use super::section::RunFileError;
use super::store::error::StoreError;
use crate::weights::WeightsError;
use partita_forecast::PlanningError;
use partita_forecast::model::ModelError;
use partita_formats::DataError;
use partita_graph::GraphError;
use partita_lower::{LowerError, Strategy, StrategyError};
use partita_program::{Phase, ProgramKind};
use partita_run::NotFiniteOrigin;
use partita_session::SessionError;
use partita_site::kernel_set::Precision;
use partita_site::kernel_set::devices::DeviceUseError;
use partita_site::launch::{DIVERGENCE_ADVICE, LaunchError};
use partita_site::{ErrorKind, Fault};
use partita_space::help::extend;
use partita_space::{Bytes, Help, Rank};
use partita_verify::Faults;
use std::io;
use std::path::PathBuf;

/// An error of a training.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The run file has a fault.
    #[error(transparent)]
    RunFile(#[from] RunFileError),
    /// There is no such device, or it is not for this run.
    #[error(transparent)]
    Device(#[from] DeviceUseError),
    /// There is no such model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The loss of the run file does not fit the model.
    #[error("`loss` of the run file: {0}")]
    Loss(Box<GraphError>),
    /// Frozen layers that the model does not have.
    #[error("`freeze` of the run file: {0}")]
    Freeze(Box<GraphError>),
    /// There is no such dataset.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Dataset and model, or batch and dataset do not match.
    #[error(transparent)]
    Mismatch(Box<Mismatch>),
    /// The strategy does not suit the model, the ranks or the mini-batch.
    #[error(transparent)]
    Strategy(#[from] StrategyError),
    /// `auto` finds no strategy.
    #[error("strategy = \"auto\": {0}")]
    Auto(AutoError),
    /// A program cannot be lowered.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// No strategies can be searched, or stages balanced.
    #[error(transparent)]
    Planning(Box<PlanningError>),
    /// A program fails verification, which is a bug of lowering.
    #[error(
        "the program `{program}` fails verification, which is a bug of Partita, not of the run: {faults}"
    )]
    Unsound {
        /// Its title.
        program: String,
        /// Its faults.
        faults: Faults,
    },
    /// The programs do not form a session.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The smaller last mini-batch of an epoch cannot be trained on.
    #[error(
        "the last mini-batch of an epoch has {rest} of {samples} training samples: there, in training under \
         `{strategy}`, the batch norm `{layer}` takes the mean and the variance of each channel over a single \
         value in one of {micro} micro-batch(es); at least 2 values are needed{}",
        Help::none().nearest(nearest)
    )]
    LastBatch {
        /// Samples of that mini-batch.
        rest: usize,
        /// Training samples.
        samples: usize,
        /// The strategy.
        strategy: Box<Strategy>,
        /// The first batch norm over a single value.
        layer: String,
        /// Micro-batches of a step.
        micro: usize,
        /// Valid alternatives.
        nearest: String,
    },
    /// A rank needs more memory than it may have.
    #[error(
        "rank {rank} needs {needed} ({} B) of memory under `{program}`, the limit is {limit} per rank \
         ({origin}); {smaller}split a sample over more ranks, like `depth={depth}`, or {larger}",
        needed.0
    )]
    Memory {
        /// The rank that needs most.
        rank: Rank,
        /// Memory needed: arena and staging.
        needed: Bytes,
        /// Title of its program.
        program: String,
        /// Memory limit.
        limit: Bytes,
        /// Where the limit comes from.
        origin: String,
        /// Advice on a smaller batch, if that helps.
        smaller: String,
        /// Twice the present number of parts in depth.
        depth: usize,
        /// How the limit can be higher.
        larger: &'static str,
    },
    /// Samples cannot stay in memory.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The output folder cannot take the results.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The ranks do not start, or failed.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The weights cannot be loaded.
    #[error(transparent)]
    Weights(Box<WeightsError>),
    /// The loss is infinite or NaN.
    #[error(
        "the loss became {loss} {}; {}; no results were written; {}; `learning_rate` is {rate} at the start, {}",
        when(*kind, *epoch, *step),
        begin(origin.as_deref()),
        divergence_advice(*precision),
        clip_text(*clip)
    )]
    Diverged {
        /// The loss.
        loss: f64,
        /// The program that computed it.
        kind: ProgramKind,
        /// Epoch, from 0.
        epoch: u64,
        /// Step, from 1.
        step: u64,
        /// Learning rate at the start.
        rate: f64,
        /// Largest norm of all gradients together.
        clip: Option<f64>,
        /// Type of activations.
        precision: Precision,
        /// Where values began that are not finite, if it could be found.
        origin: Option<Box<NotFiniteOrigin>>,
    },
    /// The loss or an output of a network with trained weights is infinite or NaN.
    #[error(
        "the loss is {loss}; {}; no results were written; {}",
        begin(origin.as_deref()),
        forward_advice(*precision)
    )]
    NotFinite {
        /// The loss.
        loss: f64,
        /// Type of activations.
        precision: Precision,
        /// Where values began that are not finite, if it could be found.
        origin: Option<Box<NotFiniteOrigin>>,
    },
    /// Loaders or validators cannot be used.
    #[error(transparent)]
    Offload(Box<OffloadError>),
    /// It cannot resume.
    #[error(transparent)]
    Resume(#[from] ResumeError),
    /// It was stopped on request, and may resume.
    #[error("stopped on request after step {steps} (epoch {}); {}", epoch + 1, how_to_resume(checkpoint))]
    Stopped {
        /// Training steps done.
        steps: u64,
        /// Epoch of the next step, from 0.
        epoch: u64,
        /// The checkpoint that was written.
        checkpoint: LastCheckpoint,
    },
    /// It was stopped on request, and its checkpoint could not be written.
    #[error(
        "stopped on request after step {steps}, but the checkpoint of that step could not be written: {reason}; {}",
        checkpoint.as_ref().map_or_else(
            || "there is no earlier one of this run".to_owned(),
            how_to_resume
        )
    )]
    StoppedWithout {
        /// Training steps done.
        steps: u64,
        /// Why not.
        reason: String,
        /// The last whole one.
        checkpoint: Option<LastCheckpoint>,
    },
    /// It failed after a checkpoint.
    #[error("{}", extend(error, format_args!("; {}", how_to_resume(checkpoint))))]
    AfterCheckpoint {
        /// The failure.
        error: Box<TrainError>,
        /// The last whole checkpoint.
        checkpoint: LastCheckpoint,
    },
    /// A metric by which the best checkpoint is chosen or a training ends is none of the run.
    #[error("{key} needs {need}, which {} does not give{}", data.display(), Help::possible(possible))]
    NoMetric {
        /// The metric with its key.
        key: String,
        /// What it needs.
        need: &'static str,
        /// The dataset.
        data: PathBuf,
        /// Valid metrics.
        possible: String,
    },
    /// The result cannot be written as JSON.
    #[error("the output cannot be written: {0}")]
    Json(#[from] serde_json::Error),
    /// The run is complete, but its files could not be written to the output folder.
    #[error(
        "{}; the run is complete, its weights are {}, {records}: move them to the output folder",
        faults.join("; "),
        weights.display()
    )]
    Elsewhere {
        /// Why not.
        faults: Vec<String>,
        /// File of the weights.
        weights: PathBuf,
        /// Where the other files are.
        records: String,
    },
}

/// A mismatch of dataset and model, or of batch and dataset.
#[derive(Debug, thiserror::Error)]
pub enum Mismatch {
    /// Outputs that cannot be averaged.
    #[error(transparent)]
    Ensemble(#[from] ensemble::EnsembleError),
    /// The shapes of samples differ.
    #[error(
        "model `{model}` reads samples of {input}; {} holds samples of {samples}{}",
        data.display(), Help::possible("a model or a dataset with the shape of the other").nearest(nearest)
    )]
    Samples {
        /// Name of the model.
        model: String,
        /// Shape that it reads.
        input: String,
        /// The dataset.
        data: PathBuf,
        /// Shape of its samples.
        samples: String,
        /// Valid alternatives.
        nearest: String,
    },
    /// The numbers beside samples differ.
    #[error(
        "model `{model}` reads {expected} features of each sample; {} has {}{}",
        data.display(),
        features.len(),
        Help::advice("`partita data features DATASET --table TABLE.csv` gives a dataset features").maybe_nearest(
            (!features.is_empty()).then(|| format!("a model that reads these: {}", features.join(", ")))
        )
    )]
    Features {
        /// Name of the model.
        model: String,
        /// How many it reads.
        expected: usize,
        /// The dataset.
        data: PathBuf,
        /// Names of those that it has.
        features: Vec<String>,
    },
    /// A model that cannot read volumes in the way that is asked for.
    #[error(
        "model `{model}` does not allow `--volumes {asked}`: {}",
        extend(reason, Help::none().code(format_args!("--volumes {nearest}")))
    )]
    Volumes {
        /// Name of the model.
        model: String,
        /// What is asked for.
        asked: &'static str,
        /// Why it is not possible.
        reason: String,
        /// What is possible.
        nearest: &'static str,
    },
    /// The model outputs a value per position, the dataset has vectors.
    #[error(
        "model `{model}` outputs {output}, a value per position; {} has vectors of {targets} target(s){}",
        data.display(), Help::none().nearest(format_args!("a model that ends in a vector of {targets}"))
    )]
    Vectors {
        /// Name of the model.
        model: String,
        /// Shape of its output.
        output: String,
        /// The dataset.
        data: PathBuf,
        /// Targets of a sample.
        targets: usize,
    },
    /// The numbers of targets differ.
    #[error(
        "the loss of model `{model}` needs {expected} target(s) per sample; {} holds {} ({}){}",
        data.display(), targets.len(), targets.join(", "),
        Help::none().nearest(format_args!("a model that ends in a vector of {}", targets.len()))
    )]
    Targets {
        /// Name of the model.
        model: String,
        /// Targets that its loss needs.
        expected: usize,
        /// The dataset.
        data: PathBuf,
        /// Names of the targets of a sample.
        targets: Vec<String>,
    },
    /// The model is a regression, the dataset has classes.
    #[error(
        "model `{model}` outputs numbers; {} holds {labels}{}",
        data.display(), Help::none().nearest("a model that ends in `softmax_cross_entropy`")
    )]
    Numbers {
        /// Name of the model.
        model: String,
        /// The dataset.
        data: PathBuf,
        /// Shape of its labels.
        labels: String,
    },
    /// The shapes of class labels differ.
    #[error(
        "model `{model}` gives {output}; {} holds {labels}{}",
        data.display(), Help::none().nearest(format_args!("a model that gives {labels}"))
    )]
    Labels {
        /// Name of the model.
        model: String,
        /// Shape of its class scores.
        output: String,
        /// The dataset.
        data: PathBuf,
        /// Shape of its labels.
        labels: String,
    },
    /// The dataset has more classes than the model.
    #[error(
        "model `{model}` distinguishes {known} classes; {} has {classes}{}",
        data.display(), Help::possible(format_args!("a model that ends in {classes} channels or more"))
            .nearest(classes)
    )]
    Classes {
        /// Name of the model.
        model: String,
        /// Number of its classes.
        known: usize,
        /// The dataset.
        data: PathBuf,
        /// Its classes.
        classes: usize,
    },
    /// The dataset has no training samples.
    #[error("{} has no training samples{}", data.display(), Help::none().nearest("a dataset with at least one"))]
    Empty {
        /// The dataset.
        data: PathBuf,
    },
    /// The model gives no classes.
    #[error("model `{model}` is a regression, so it gives no {asked}{}", Help::none().code("--output scores"))]
    NoClasses {
        /// Name of the model.
        model: String,
        /// What is asked for.
        asked: &'static str,
    },
    /// The outputs of the model are no volumes.
    #[error(
        "{}: model `{model}` gives one position for each sample, which is no volume for NIfTI{}",
        file.display(), Help::possible(".h5, .hdf5 and .npy")
            .nearest(file.with_extension("").with_extension("h5").display())
    )]
    NoVolume {
        /// Name of the model.
        model: String,
        /// The requested file.
        file: PathBuf,
    },
    /// The file of predictions would replace something else.
    #[error("--out {} {found}{}", file.display(), Help::advice("choose another file"))]
    PredictionsTaken {
        /// The requested file.
        file: PathBuf,
        /// What it is.
        found: &'static str,
    },
    /// A split has no samples.
    #[error("{} has no samples in the split `{split}`{}", data.display(), Help::none().nearest(nearest))]
    EmptySplit {
        /// The dataset.
        data: PathBuf,
        /// Name of the split.
        split: &'static str,
        /// A split with samples.
        nearest: String,
    },
    /// The batch is larger than the dataset.
    #[error(
        "batch = {batch} is requested, but {} has {samples} training samples{}",
        data.display(), Help::possible(format_args!("batch = 1 to {samples}"))
            .nearest(format_args!("batch = {samples}"))
    )]
    Batch {
        /// Samples of a step.
        batch: usize,
        /// The dataset.
        data: PathBuf,
        /// Its training samples.
        samples: usize,
    },
    /// A schedule that follows the validation loss, without validation samples.
    #[error(
        "`schedule.kind` is \"plateau\", which follows the validation loss, but {} has no validation samples{}",
        data.display(), Help::possible("a dataset with some, or another kind").nearest("\"cosine\"")
    )]
    Plateau {
        /// The dataset.
        data: PathBuf,
    },
    /// The samples of an update are more than the dataset has.
    #[error(
        "accumulate = {accumulate} is requested with batch = {batch}, but {} has {samples} training samples{}",
        data.display(), Help::possible(format_args!("accumulate = 1 to {nearest}"))
            .nearest(format_args!("accumulate = {nearest}"))
    )]
    Accumulated {
        /// Samples of a part.
        batch: usize,
        /// Parts of an update.
        accumulate: usize,
        /// The dataset.
        data: PathBuf,
        /// Its training samples.
        samples: usize,
        /// Nearest valid number of parts.
        nearest: usize,
    },
}

/// `auto` finds no strategy.
#[derive(Debug, thiserror::Error)]
pub enum AutoError {
    /// A batch norm over a single value.
    #[error("{0}")]
    Norm(StrategyError),
    /// The model cannot be split over this number of ranks.
    #[error(
        "{model} with batch = {batch} cannot be split over {ranks} ranks{}",
        Help::none().maybe_nearest(nearest.map(|fewer| format!("ranks = {fewer}")))
    )]
    Ranks {
        /// Name of the model.
        model: String,
        /// Samples of a step.
        batch: usize,
        /// Requested ranks.
        ranks: usize,
        /// The next smaller valid number, if there is one.
        nearest: Option<usize>,
    },
    /// No strategy fits in memory.
    #[error("no strategy fits {ranks} ranks with {memory} each; nearest is `{nearest}`: {reason}")]
    Memory {
        /// Requested ranks.
        ranks: usize,
        /// Memory limit of each.
        memory: Bytes,
        /// The refused strategy with the smallest excess.
        nearest: Box<Strategy>,
        /// Its excess.
        reason: String,
    },
}

/// The output folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// It is the dataset.
    #[error(
        "output = \"{}\" is the dataset itself, which results must not mix with{}",
        output.display(),
        Help::possible("any other folder").nearest(format_args!("output = \"{}\"", nearest.display()))
    )]
    IsDataset {
        /// The requested folder.
        output: PathBuf,
        /// A folder that can be made.
        nearest: PathBuf,
    },
    /// Nothing can be written there.
    #[error(
        "output = \"{}\" {found}{}",
        output.display(), Help::possible("any folder that can be written to")
            .nearest(format_args!("output = \"{}\"", nearest.display()))
    )]
    Unsuited {
        /// The requested folder.
        output: PathBuf,
        /// The obstacle.
        found: String,
        /// A folder that can be made.
        nearest: PathBuf,
    },
    /// It holds a run that may not be replaced.
    #[error(
        "output = \"{}\" already holds a run ({}){}",
        output.display(), files.join(", "), Help::none().nearest(format_args!(
            "output = \"{}\", or replace that run with `--overwrite`, or with `overwrite = true` in the run file{}",
            nearest.display(), or_resume(files)
        ))
    )]
    HoldsRun {
        /// The requested folder.
        output: PathBuf,
        /// Files of that run.
        files: Vec<&'static str>,
        /// A folder that can be made.
        nearest: PathBuf,
    },
    /// Another run uses it.
    #[error(
        "output = \"{}\" is in use: another run{} trains and will write there{}",
        output.display(), process_text(process.as_deref()),
        Help::advice("wait for its end, or name a folder of its own")
            .nearest(format_args!("output = \"{}\"", nearest.display()))
    )]
    InUse {
        /// The requested folder.
        output: PathBuf,
        /// Process id of that run, if known.
        process: Option<String>,
        /// A folder that can be made.
        nearest: PathBuf,
    },
    /// The file size limit of the process is too low.
    #[error(
        "{files}, and a file of this process may have {limit} (`ulimit -f`){}",
        Help::possible(format_args!("a limit of {largest} or more")).code("ulimit -f unlimited")
    )]
    FileLimit {
        /// Size of the files.
        files: String,
        /// Largest file of this process.
        limit: Bytes,
        /// Largest file of the run.
        largest: Bytes,
    },
    /// The disk is too full.
    #[error(
        "output = \"{}\" is on a file system with {free} left, and {files}; free some, or name a folder on \
         another one",
        output.display()
    )]
    NoRoom {
        /// The requested folder.
        output: PathBuf,
        /// Free space.
        free: Bytes,
        /// Size of the files.
        files: String,
    },
    /// A folder cannot be made.
    #[error("{} cannot be made: {source}", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The prediction cannot be written.
    #[error("{} cannot be written: {source}", file.display())]
    Prediction {
        /// Its file.
        file: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A file of metrics cannot be written.
    #[error("{} cannot be written: {source}", file.display())]
    Metrics {
        /// The file.
        file: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

impl Fault for OutputError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::IsDataset { .. }
            | Self::Unsuited { .. }
            | Self::HoldsRun { .. }
            | Self::InUse { .. }
            | Self::FileLimit { .. }
            | Self::NoRoom { .. }
            | Self::Folder { .. } => ErrorKind::Request,
            Self::Prediction { .. } | Self::Metrics { .. } => ErrorKind::Failure,
        }
    }
}

impl Fault for TrainError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::RunFile(_)
            | Self::Device(_)
            | Self::Model(_)
            | Self::Loss(_)
            | Self::Freeze(_)
            | Self::Data(_)
            | Self::Mismatch(_)
            | Self::Strategy(_)
            | Self::Auto(_)
            | Self::Lower(_)
            | Self::LastBatch { .. }
            | Self::NoMetric { .. }
            | Self::Memory { .. }
            | Self::Weights(_) => ErrorKind::Request,
            Self::Offload(error) => error.kind(),
            Self::Resume(error) => error.kind(),
            Self::Stopped { .. } => ErrorKind::Interrupted,
            Self::AfterCheckpoint { error, .. } => error.kind(),
            Self::Planning(error) => error.kind(),
            Self::Store(error) => error.kind(),
            Self::Output(error) => error.kind(),
            Self::Launch(error) => error.kind(),
            Self::Unsound { .. }
            | Self::Session(_)
            | Self::Diverged { .. }
            | Self::NotFinite { .. }
            | Self::StoppedWithout { .. }
            | Self::Json(_)
            | Self::Elsewhere { .. } => ErrorKind::Failure,
        }
    }

    fn follows_failure(&self) -> bool {
        matches!(self, Self::Launch(error) if error.follows_failure())
            || matches!(self, Self::AfterCheckpoint { error, .. } if error.follows_failure())
    }

    fn is_reported(&self) -> bool {
        match self {
            Self::Launch(error) => error.is_reported(),
            Self::AfterCheckpoint { error, .. } => error.is_reported(),
            Self::Offload(_)
            | Self::Resume(_)
            | Self::Stopped { .. }
            | Self::StoppedWithout { .. }
            | Self::NoMetric { .. }
            | Self::RunFile(_)
            | Self::Device(_)
            | Self::Model(_)
            | Self::Loss(_)
            | Self::Freeze(_)
            | Self::Data(_)
            | Self::Mismatch(_)
            | Self::Strategy(_)
            | Self::Auto(_)
            | Self::Lower(_)
            | Self::Planning(_)
            | Self::Unsound { .. }
            | Self::Session(_)
            | Self::LastBatch { .. }
            | Self::Memory { .. }
            | Self::Store(_)
            | Self::Weights(_)
            | Self::Output(_)
            | Self::Diverged { .. }
            | Self::NotFinite { .. }
            | Self::Json(_)
            | Self::Elsewhere { .. } => false,
        }
    }
}

fn how_to_resume(checkpoint: &LastCheckpoint) -> String {
    format!(
        "its last checkpoint is {} (step {}, epoch {}); resume with `partita train RUN_FILE --resume`, or from \
         another one with `--resume PATH`",
        checkpoint.path.display(),
        checkpoint.steps,
        checkpoint.epoch + 1
    )
}

fn or_resume(files: &[&str]) -> &'static str {
    if files.contains(&CHECKPOINTS) {
        "; or continue it with `--resume`"
    } else {
        ""
    }
}

fn when(kind: ProgramKind, epoch: u64, step: u64) -> String {
    match kind {
        ProgramKind::Train => format!("in training step {step} (epoch {})", epoch + 1),
        ProgramKind::Evaluate
        | ProgramKind::Infer
        | ProgramKind::Fetch
        | ProgramKind::FetchSamples => {
            format!("in the validation after epoch {}", epoch + 1)
        }
    }
}

/// Where values began that are not finite.
fn begin(origin: Option<&NotFiniteOrigin>) -> String {
    let Some(origin) = origin else {
        return "the layer in which this began is not known: it is looked for only if less than ten minutes of \
                training, since the last checkpoint or the start, have to be repeated"
            .to_owned();
    };
    let NotFiniteOrigin {
        rank,
        step,
        layer,
        phase,
        kernel,
        buffer,
        value,
        is_first,
    } = origin;
    let pass = match phase {
        Phase::Backward => "the gradient of layer",
        Phase::Update | Phase::Reduce => "the update of",
        Phase::Load | Phase::Forward | Phase::Report => "the output of layer",
    };
    let whence = if *is_first {
        "it began in"
    } else {
        "it was first met in"
    };
    format!(
        "{whence} {pass} `{layer}` in step {step}: `{buffer}` holds {value} after {kernel} on rank {rank}"
    )
}

fn clip_text(clip: Option<f64>) -> String {
    match clip {
        Some(clip) => format!("`clip` is {clip}"),
        None => "`clip` is not set".to_owned(),
    }
}

/// What to do. In a narrow type the values need not be extreme.
fn divergence_advice(precision: Precision) -> &'static str {
    match precision {
        Precision::F32 | Precision::F64 | Precision::Bf16 => DIVERGENCE_ADVICE,
        Precision::F16 => {
            "activations in f16 are infinite above 65,504, so scale larger samples down with `transform`, or take \
             `precision = \"bf16\"`, which has the range of f32; where it ends there too, lower `learning_rate` under \
             [schedule] or set `clip` under [optimizer]"
        }
    }
}

/// What to do where nothing is trained.
fn forward_advice(precision: Precision) -> &'static str {
    match precision {
        Precision::F32 | Precision::F64 | Precision::Bf16 => {
            "the weights are not those of this network, or samples after `transform` are far from those of the training"
        }
        Precision::F16 => {
            "activations in f16 are infinite above 65,504, so scale larger samples down with `transform`, or take \
             `precision = \"bf16\"`, which has the range of f32"
        }
    }
}

fn process_text(process: Option<&str>) -> String {
    let process = process.filter(|process| !process.is_empty());
    process.map_or_else(String::new, |process| format!(" (process {process})"))
}
