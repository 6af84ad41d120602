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
pub use partita_forecast::machine::MachineError;
pub use partita_forecast::model::ModelError;
pub use partita_forecast::software::SoftwareError;
pub use partita_forecast::trace::TraceError;
pub use partita_forecast::{
    ADAM, ADAMW, BandwidthCrossover, COUNTS, CalibrateError, CalibrateRequest, Calibrated,
    CalibrationSummary, Candidate, Change, ClassSummary, ClosedForm, ComputeScale, Dataset,
    DatasetBasis, EMA_MAX, EpochError, EpochPrediction, Explanation, FLOATS, InputRequest,
    InputSource, IoChoice, LAMB, LARS, LayerScale, LayerTimesError, LocalError, LowerRequest,
    LowerSummary, Lowered, NESTEROV, OffloadRequest, PASSES, PlanRequest, Planned, PlanningError,
    PredictRequest, Predicted, Rival, SCALED_COUNTS, SGD, Scaling, ScalingPoint, StrategyChoice,
    Training, TuneRequest, Tuned, TunedKernel, TunedPoint, TunedStep, WorkCount, calibrate,
    figures, lower, lower_after, pareto, plan, predict, ties, tune,
};
pub use partita_lower::{BatchNormStatistics, LoweringPass, NoPass, Setting, WorkspaceLimit};
pub use partita_site::cores::{
    CoreHolder, NoSuchCores, confine, list as list_cores, occupy, parse_cores,
};
pub use partita_site::foreign::{HINT_VARIABLES, LoaderPaths};
pub use partita_site::kernel_set::devices::DeviceUseError;
pub use partita_site::kernel_set::{KernelSet, Precision};
pub use partita_site::launch::{LaunchError, NotSaved};
pub use partita_site::size::{parse_bytes, parse_seconds};
pub use partita_site::{
    Cache, Context, CurvePoint, Environment, EnvironmentError, ErrorKind, Event, Fault, Host,
    Launcher, LossHistory, NoScratch, Progress, Silent, TooManyThreads, full_text,
};
pub use partita_training::{
    AutoError, BestMetric, BestResult, CheckpointConfig, ClassResult, Classification, ComputeTimes,
    ConvertRequest, ConvertResult, EndReason, EndedEarly, EpochResult, EvaluateResult,
    ForwardRequest, InferRequest, InferResult, KernelAxes, LISTENING, LastCheckpoint, MemoryResult,
    MetricsFormat, Mismatch, OffloadConfig, OffloadError, OutputError, Peak, PhysicalError,
    PredictionUnits, Processes, ResultFiles, ResumeError, ResumeFrom, RunFile, RunFileError,
    RunResult, SampleResult, Selection, ServeRequest, StartWeights, StoreConfig, StoreError,
    StoreKind, TargetError, TargetResult, TaskResult, TilesAsked, TilesResult, TrainError,
    TrainRequest, Trained, TrainingState, Utilization, ValidationResult, VolumeMode, WeightNames,
    WeightsError, convert_weights, evaluate, infer, serve, train,
};
pub use partita_tune::DivisionPolicy;
