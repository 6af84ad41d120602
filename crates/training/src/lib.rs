//! Trains, evaluates and infers: from a run file to weights, losses and predictions.
//!
//! Does: reads run files, prepares samples, chooses and lowers the programs of a run, runs them, and writes checkpoints,
//! weights and results.
//! Knows: run files, datasets, weights and their names, checkpoints, loaders and validators; how ranks are launched, and what a
//! machine predicts.
//! Must not know: arguments, the terminal, the environment. It never prints.
//!
//! There is one training, a [`Trainer`]: a model (name, text or graph), samples, and a [`TrainConfig`]. Configuration, flags and
//! launch are merged once (`train/run`). Samples are a dataset: of files, or of a `SampleSource` (`ArraySource` has arrays in
//! memory). Without an output folder the weights come back in [`Trained`], and there are neither checkpoints nor files of
//! metrics. A callback gets the results of each epoch on rank 0, and what it answers counts for all ranks.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests read what they wrote")
)]

mod export;
mod import;
mod train;
mod weights;

pub use import::{ImportModelError, ImportRequest, ImportResult, ImportedLayer, import};
pub use train::{
    AutoError, BestMetric, BestResult, CheckpointConfig, ClassResult, Classification, ComputeTimes,
    ConvertRequest, ConvertResult, EarlyStopping, EndReason, EndRules, EndedEarly, EpochResult,
    EvaluateResult, ForwardRequest, InferRequest, InferResult, LISTENING, LastCheckpoint,
    LiveTuning, MemoryResult, MetricsFormat, Mismatch, OffloadConfig, OffloadError, OutputError,
    Peak, PhysicalError, PredictionChoice, PredictionUnits, Processes, ResultFiles, ResumeError,
    ResumeFrom, RunFile, RunFileError, RunResult, SampleOptions, SampleResult, ServeRequest,
    StartWeights, StoreConfig, StoreError, StoreKind, Target, TargetError, TargetResult,
    TaskResult, TilesAsked, TilesResult, TrainConfig, TrainData, TrainError, TrainRequest, Trained,
    Trainer, TrainingState, Utilization, ValidationResult, VolumeMode, WeightTensor,
    convert_weights, evaluate, evaluate_on, infer, infer_on, serve, train,
};
pub use weights::{KernelAxes, NoKernelAxes, Selection, WeightForm, WeightNames, WeightsError};
