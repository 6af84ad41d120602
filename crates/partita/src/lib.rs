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
//! | [`Trainer::train`], [`train`] | trained weights, losses, times: of a model, samples and a configuration, or of a run file |
//! | [`evaluate`] | loss and metrics of trained weights on a split |
//! | [`infer`] | predictions of trained weights, as a file |
//! | [`import`](import()) | a network that PyTorch exported, as a model file, and its weights |
//! | [`convert_weights`] | weights in PyTorch's names and axis order, or back |
//! | [`compare`](compare()) | comparison of a prediction with the trace of a run, task by task |
//! | [`make_cosmology`] and others | synthetic datasets |
//! | [`doctor`] | hardware and libraries of this machine |
//!
//! A [`Trainer`] trains a model of the zoo, a file, a text or a graph, on a dataset or anything that gives samples, by a
//! configuration. It needs neither a run file nor a folder, and a callback sees each epoch:
//!
//! ```
//! use partita::{Answers, ArraySource, Samples, SourceTargets, Split, SplitArrays};
//! use partita::{Context, Environment, LearningRateSchedule, TrainConfig, TrainModel, Trainer};
//! use std::ops::ControlFlow;
//!
//! let model = TrainModel::of_text(
//!     "model tiny\n\
//!      input x channels=1 extent=8x8\n\
//!      c = conv x filters=4 kernel=3 pad=1 bias=true\n\
//!      a = relu c\n\
//!      f = flatten a\n\
//!      fc = linear f features=2 bias=true\n\
//!      loss = softmax_cross_entropy fc\n",
//! )?;
//! // Images of noise, brighter in the second class.
//! let pixel = |image: usize, index: usize| (image % 2 + index * 7919 % 13) as f32 / 13.0;
//! let pixels = (0..16).flat_map(|image| (0..64).map(move |index| pixel(image, index)));
//! let images = SplitArrays {
//!     volumes: Samples::F32(pixels.collect()),
//!     answers: Answers::Classes((0..16).map(|image| image % 2).collect()),
//! };
//! let classes = SourceTargets::Classes {
//!     names: vec!["dark".into(), "bright".into()],
//!     extent: [1, 1, 1],
//! };
//! let source = ArraySource::new([1, 1, 8, 8], classes, [(Split::Train, images)])?;
//! let config = TrainConfig {
//!     ranks: 2,
//!     strategy: "height=2".into(),
//!     batch: 8,
//!     epochs: 50,
//!     schedule: LearningRateSchedule::Constant { rate: 0.01 },
//!     ..TrainConfig::default()
//! };
//! let trainer = Trainer::new(model, source, config).on_epoch(|epoch| {
//!     if epoch.training_loss < 0.3 {
//!         return ControlFlow::Break(());
//!     }
//!     ControlFlow::Continue(())
//! });
//! let context = Context::new(Environment::default());
//! let trained = trainer.train(&context)?.expect("ranks are threads");
//! assert!(trained.result.epochs.len() < 50);
//! let mut kernels = trained.weights.iter().filter(|one| one.name == "c.weight");
//! assert_eq!(kernels.next().expect("weights have names").shape, [1, 3, 3, 1, 4]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A run file trains through [`train`]:
//!
//! ```
//! use partita::{Context, Environment, MakeRequest, PredictionChoice, ShapesRequest, TrainRequest};
//! use std::fs;
//!
//! let context = Context::new(Environment::default());
//! let folder = tempfile::tempdir()?;
//! let at = |name: &str| folder.path().join(name).display().to_string();
//! let make = MakeRequest::new(at("shapes"), 1);
//! let shapes = ShapesRequest { make, images: 40, size: 16, classes: 2 };
//! partita::make_shapes(&context, &shapes)?;
//! let model = "model tiny\n\
//!     input x channels=3 extent=16x16\n\
//!     c = conv x filters=4 kernel=3 stride=2 pad=1 bias=true\n\
//!     a = relu c\n\
//!     f = flatten a\n\
//!     fc = linear f features=2 bias=true\n\
//!     loss = softmax_cross_entropy fc\n";
//! fs::write(at("tiny.model"), model)?;
//! let run = format!(
//!     "model = {:?}\ndata = {:?}\noutput = {:?}\nranks = 2\nstrategy = \"height=2\"\nbatch = 8\n\
//!      epochs = 2\ntransform = {{ scale = 0.01 }}\n[schedule]\nlearning_rate = 0.01\n",
//!     at("tiny.model"), at("shapes"), at("out")
//! );
//! fs::write(at("run.toml"), run)?;
//! let request = TrainRequest {
//!     run_file: at("run.toml").into(),
//!     prediction: PredictionChoice::Never,
//!     ..TrainRequest::default()
//! };
//! let trained = partita::train(&context, &request)?.expect("ranks are threads");
//! assert_eq!((trained.result.ranks, trained.result.epochs.len()), (2, 2));
//! let weights = trained.result.files.weights.expect("there is an output folder");
//! assert!(fs::exists(&weights)?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod compare;
mod data;
pub mod demo;
mod doctor;
mod inspect;
mod models;

pub use compare::{CompareError, compare};
pub use data::{
    CosmologyRequest, DatasetError, DigitsRequest, FractalsRequest, MakeRequest,
    SegmentationRequest, ShapesRequest, convert_data, inspect_data, make_cosmology, make_digits,
    make_fractals, make_segmentation, make_shapes, picture_of_data, write_features,
};
pub use doctor::{DeviceFinding, Diagnosis, LibraryFinding, MpiFinding, doctor};
pub use inspect::{Inspection, LayerSummary, inspect};
pub use models::{FamilySummary, ModelSummary, families, models};

pub use partita_cluster::LayerPrecision;
pub use partita_data::{
    Answers, ArraySource, SampleSource, SourceError, SourceTargets, Split, SplitArrays,
};
pub use partita_forecast::machine::MachineError;
pub use partita_forecast::model::{ModelError, TrainModel};
pub use partita_forecast::software::SoftwareError;
pub use partita_forecast::trace::{TraceError, TraceFault, TracedTask};
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
pub use partita_formats::Samples;
pub use partita_input::CheckScope;
pub use partita_lower::{BatchNormStatistics, LoweringPass, NoPass, Setting, WorkspaceLimit};
pub use partita_mpi::{finalize as finalize_mpi, is_left_running as is_mpi_left_running};
pub use partita_program::Optimizer;
pub use partita_session::{LearningRateSchedule, LossScaling};
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
    ConvertRequest, ConvertResult, EarlyStopping, EndReason, EndRules, EndedEarly, EpochResult,
    EvaluateResult, ForwardRequest, ImportModelError, ImportRequest, ImportResult, ImportedLayer,
    InferRequest, InferResult, KernelAxes, LISTENING, LastCheckpoint, LiveTuning, MemoryResult,
    MetricsFormat, Mismatch, OffloadConfig, OffloadError, OutputError, Peak, PhysicalError,
    PredictionChoice, PredictionUnits, Processes, ResultFiles, ResumeError, ResumeFrom, RunFile,
    RunFileError, RunResult, SampleOptions, SampleResult, Selection, ServeRequest, StartWeights,
    StoreConfig, StoreError, StoreKind, Target, TargetError, TargetResult, TaskResult, TilesAsked,
    TilesResult, TrainConfig, TrainData, TrainError, TrainRequest, Trained, Trainer, TrainingState,
    Utilization, ValidationResult, VolumeMode, WeightForm, WeightNames, WeightTensor, WeightsError,
    convert_weights, evaluate, evaluate_on, import, infer, infer_on, serve, train,
};
pub use partita_tune::DivisionPolicy;
