//! Plans, predicts and runs hybrid-parallel training of large convolutional networks.
//!
//! Does: each verb of the command line is a function that returns data and typed errors.
//! Knows: every room below it; how a run is launched, as threads or as a rank of an MPI job.
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

mod cores;
mod environment;
mod error;
mod losses;
mod progress;

mod foreign;
mod free_folder;
mod host;
mod launcher;
mod near_file;
mod pareto;
mod size;
mod times;

mod context;
mod kernel_set;
mod machine;
mod model;
mod software;
mod trace;
mod weights;

mod input;
mod local_machine;
mod planning;
mod training;

mod compute_scale;
mod explain;
mod launch;
mod layer_times;
mod search;
mod target;
mod thread_limit;

mod calibrate;
mod compare;
mod data;
pub mod demo;
mod doctor;
mod inspect;
mod lower;
mod models;
mod plan;
mod predict;
mod train;
mod tune;

pub use calibrate::{CalibrateError, CalibrateRequest, Calibrated, CalibrationSummary, calibrate};
pub use compare::{CompareError, compare};
pub use compute_scale::ComputeScale;
pub use context::Context;
pub use cores::{CoreHolder, NoSuchCores, confine, list as list_cores, occupy, parse_cores};
pub use data::{
    CosmologyRequest, DatasetError, DigitsRequest, MakeRequest, SegmentationRequest, ShapesRequest,
    convert_data, inspect_data, make_cosmology, make_digits, make_segmentation, make_shapes,
    picture_of_data,
};
pub use doctor::{DeviceFinding, Diagnosis, LibraryFinding, MpiFinding, doctor};
pub use environment::{Environment, EnvironmentError};
pub use error::{ErrorKind, Fault, full_text};
pub use explain::{BandwidthCrossover, Change, Explanation, Point as ScalingPoint, Rival, Scaling};
pub use foreign::{HINT_VARIABLES, LoaderPaths};
pub use host::{Cache, Host};
pub use input::{Dataset, DatasetBasis, InputRequest, InputSource, IoChoice};
pub use inspect::{Inspection, LayerSummary, inspect};
pub use kernel_set::devices::DeviceUseError;
pub use kernel_set::{KernelSet, Precision};
pub use launch::{LaunchError, NotSaved};
pub use launcher::Launcher;
pub use layer_times::{LayerScale, LayerTimesError};
pub use local_machine::{LocalError, PASSES};
pub use losses::{CurvePoint, LossHistory};
pub use lower::{ClassSummary, LowerRequest, LowerSummary, WorkCount, lower, lower_after};
pub use machine::MachineError;
pub use model::ModelError;
pub use models::{FamilySummary, ModelSummary, families, models};
pub use pareto::pareto;
pub use partita_cluster::LayerPrecision;
pub use partita_lower::WorkspaceLimit;
pub use partita_lower::{BatchNormStatistics, LoweringPass, NoPass, Setting};
pub use partita_tune::DivisionPolicy;
pub use plan::figures;
pub use plan::ties;
pub use plan::{Candidate, PlanRequest, Planned, plan};
pub use planning::{EpochError, PlanningError};
pub use predict::{
    ClosedForm, EpochPrediction, OffloadRequest, PredictRequest, Predicted, predict,
};
pub use progress::{Event, Progress, Silent};
pub use size::{parse_bytes, parse_seconds};
pub use software::SoftwareError;
pub use thread_limit::TooManyThreads;
pub use times::NoScratch;
pub use trace::TraceError;
pub use train::{
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
pub use training::{
    ADAM, ADAMW, COUNTS, EMA_MAX, FLOATS, LAMB, LARS, Lowered, NESTEROV, SCALED_COUNTS, SGD,
    StrategyChoice, Training,
};
pub use tune::{TuneRequest, Tuned, TunedKernel, TunedPoint, TunedStep, tune};
pub use weights::{KernelAxes, Selection, WeightNames, WeightsError};
