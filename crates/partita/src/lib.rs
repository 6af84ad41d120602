//! Plans, predicts and runs hybrid-parallel training of large convolutional networks.
//!
//! Does: each verb of the command line is a function that returns data and typed errors. Most are those of `forecast` and
//! `training`; here are models, inspection, comparison, datasets, the demo and the doctor.
//! Knows: every room below it.
//! Must not know: arguments, the terminal, the environment. It never prints and never ends the process:
//! what happens on the way is an [`Event`], and the caller gives the [`Environment`].
//!
//! Every verb takes a [`Context`] and a request:
//!
//! | function | result |
//! |---|---|
//! | [`models`], [`inspect`] | the zoo; layers and counts of a model |
//! | [`lower`] | the program of a training under a strategy |
//! | [`predict`] | time and memory of a step on a machine |
//! | [`plan`] | strategies on a machine, ranked |
//! | [`calibrate`] | a machine file of this machine |
//! | [`tune`] | implementations and micro-batches of convolutions on this machine |
//! | [`train`] | trained weights, losses, times |
//! | [`evaluate`] | loss and metrics of trained weights on a split |
//! | [`infer`] | predictions of trained weights, as a file |
//! | [`convert_weights`] | weights in PyTorch's names and axis order, or back |
//! | [`compare`](compare()) | comparison of a prediction with the trace of a run, task by task |
//! | [`make_cosmology`] and others | synthetic datasets |
//! | [`doctor`] | hardware and libraries of this machine |

mod compare;
mod data;
pub mod demo;
mod doctor;
mod inspect;
mod models;

use partita_forecast::{model, trace};
use partita_site::{
    context, cores, environment, error, foreign, free_folder, host, kernel_set, progress,
};
use partita_training::train;

pub use compare::{CompareError, compare};
pub use data::{
    CosmologyRequest, DatasetError, DigitsRequest, MakeRequest, SegmentationRequest, ShapesRequest,
    convert_data, inspect_data, make_cosmology, make_digits, make_segmentation, make_shapes,
    picture_of_data,
};
pub use doctor::{DeviceFinding, Diagnosis, LibraryFinding, MpiFinding, doctor};
pub use inspect::{Inspection, LayerSummary, inspect};
pub use models::{FamilySummary, ModelSummary, families, models};
pub use partita_cluster::LayerPrecision;
pub use partita_forecast::calibrate::{
    CalibrateError, CalibrateRequest, Calibrated, CalibrationSummary, calibrate,
};
pub use partita_forecast::compute_scale::ComputeScale;
pub use partita_forecast::explain::{
    BandwidthCrossover, Change, Explanation, Point as ScalingPoint, Rival, Scaling,
};
pub use partita_forecast::input::{Dataset, DatasetBasis, InputRequest, InputSource, IoChoice};
pub use partita_forecast::layer_times::{LayerScale, LayerTimesError};
pub use partita_forecast::local_machine::{LocalError, PASSES};
pub use partita_forecast::lower::{
    ClassSummary, LowerRequest, LowerSummary, WorkCount, lower, lower_after,
};
pub use partita_forecast::machine::MachineError;
pub use partita_forecast::model::ModelError;
pub use partita_forecast::pareto::pareto;
pub use partita_forecast::plan::figures;
pub use partita_forecast::plan::ties;
pub use partita_forecast::plan::{Candidate, PlanRequest, Planned, plan};
pub use partita_forecast::planning::{EpochError, PlanningError};
pub use partita_forecast::predict::{
    ClosedForm, EpochPrediction, OffloadRequest, PredictRequest, Predicted, predict,
};
pub use partita_forecast::software::SoftwareError;
pub use partita_forecast::trace::TraceError;
pub use partita_forecast::training::{
    ADAM, ADAMW, COUNTS, EMA_MAX, FLOATS, LAMB, LARS, Lowered, NESTEROV, SCALED_COUNTS, SGD,
    StrategyChoice, Training,
};
pub use partita_forecast::tune::{TuneRequest, Tuned, TunedKernel, TunedPoint, TunedStep, tune};
pub use partita_lower::WorkspaceLimit;
pub use partita_lower::{BatchNormStatistics, LoweringPass, NoPass, Setting};
pub use partita_site::context::Context;
pub use partita_site::cores::{
    CoreHolder, NoSuchCores, confine, list as list_cores, occupy, parse_cores,
};
pub use partita_site::environment::{Environment, EnvironmentError};
pub use partita_site::error::{ErrorKind, Fault, full_text};
pub use partita_site::foreign::{HINT_VARIABLES, LoaderPaths};
pub use partita_site::host::{Cache, Host};
pub use partita_site::kernel_set::devices::DeviceUseError;
pub use partita_site::kernel_set::{KernelSet, Precision};
pub use partita_site::launch::{LaunchError, NotSaved};
pub use partita_site::launcher::Launcher;
pub use partita_site::losses::{CurvePoint, LossHistory};
pub use partita_site::progress::{Event, Progress, Silent};
pub use partita_site::size::{parse_bytes, parse_seconds};
pub use partita_site::thread_limit::TooManyThreads;
pub use partita_site::times::NoScratch;
pub use partita_training::train::{
    AutoError, BestMetric, BestResult, CheckpointConfig, ClassResult, Classification, ComputeTimes,
    ConvertRequest, ConvertResult, EndReason, EndedEarly, EpochResult, EvaluateResult,
    ForwardRequest, InferRequest, InferResult, LISTENING, LastCheckpoint, MemoryResult,
    MetricsFormat, Mismatch, OffloadConfig, OffloadError, OutputError, Peak, PhysicalError,
    PredictionUnits, Processes, ResultFiles, ResumeError, ResumeFrom, RunFile, RunFileError,
    RunResult, SampleResult, ServeRequest, StartWeights, StoreConfig, StoreError, StoreKind,
    TargetError, TargetResult, TaskResult, TilesAsked, TilesResult, TrainError, TrainRequest,
    Trained, TrainingState, Utilization, ValidationResult, VolumeMode, convert_weights, evaluate,
    infer, serve, train,
};
pub use partita_training::weights::{KernelAxes, Selection, WeightNames, WeightsError};
pub use partita_tune::DivisionPolicy;
