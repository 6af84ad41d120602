//! The result of a run. Keys are stable: programs read them from `result.json`.

use super::tiling::TilesResult;
use super::utilization::{ComputeTimes, Utilization};
use partita_forecast::{InputSource, PinnedConvolutions};
use partita_input::{EpochLoads, Preparation};
use partita_oracle::Comparison;
use partita_run::Footprint;
use partita_session::LossScale;
use partita_site::CurvePoint;
use partita_space::{Bytes, Seconds};
use serde::Serialize;
use std::fmt;

/// The result of a run.
#[derive(Clone, Debug, Serialize)]
pub struct RunResult {
    /// The requested model.
    pub model: String,
    /// The dataset.
    pub data: String,
    /// The strategy.
    pub strategy: String,
    /// The machine file from which times were predicted and a strategy chosen; absent where this machine was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// Number of ranks.
    pub ranks: usize,
    /// Threads per rank.
    pub threads: usize,
    /// Kernel set.
    pub kernels: &'static str,
    /// Type of activations and parameters.
    pub precision: &'static str,
    /// Where the factor of gradients stands, where they are scaled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScale>,
    /// Global batch size.
    pub batch: usize,
    /// Seed of order, initial values and dropout.
    pub seed: u64,
    /// Digest of the training program of full batch size.
    pub digest: String,
    /// By what the convolutions of a step of rank 0 run.
    pub convolutions: PinnedConvolutions,
    /// In how many trials kernels were tried before the first step.
    pub trials: usize,
    /// Training steps.
    pub steps: u64,
    /// Time of all steps, evaluations included.
    pub seconds: Seconds,
    /// Throughput of training.
    pub samples_per_second: f64,
    /// Flops of that throughput, and their share of the peak.
    pub utilization: Utilization,
    /// Time in kernels by rank; null if no step was measured.
    pub compute: Option<ComputeTimes>,

    /// Median over the measured steps.
    pub step_seconds_median: Seconds,
    /// Measured steps: those of full batch size after the warm-up.
    pub steps_measured: u64,
    /// Steps between the stored values and the network, with their statistics.
    pub preparation: Preparation,
    /// Results of the epochs.
    pub epochs: Vec<EpochResult>,
    /// The best epoch by the metric `best` of `[checkpoint]`, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best: Option<BestResult>,
    /// Why the training ended before its last epoch, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_early: Option<EndedEarly>,
    /// The target of the training, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<TargetResult>,
    /// Loss and learning rate of the steps of this run, up to 512 points.
    pub curve: Vec<CurvePoint>,
    /// Predicted and used memory.
    pub memory: MemoryResult,
    /// Where the prediction takes samples from, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted_input: Option<InputSource>,
    /// Comparison of predicted and measured times, if predicted.
    pub comparison: Option<Comparison>,
    /// Tasks of the first rank of each class.
    pub tasks: Vec<TaskResult>,
    /// Files of the run.
    pub files: ResultFiles,
    /// How volumes of the validation were joined of tiles, if they were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation_tiles: Option<TilesResult>,
    /// Warnings about the numbers.
    pub warnings: Vec<String>,
    /// The checkpoint from which it resumed, if so; epochs, steps and seconds cover the whole training.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resumed_from: Option<String>,
}

/// An epoch.
#[derive(Clone, Debug, Serialize)]
pub struct EpochResult {
    /// Number, from 1.
    pub epoch: u64,
    /// Mean over the training samples, each before the update to which it contributed.
    pub training_loss: f64,
    /// Training samples.
    pub samples: usize,
    /// Time of the training steps.
    pub seconds: Seconds,
    /// Samples loaded for the epoch, of all ranks; the time is that of the rank that waited longest. Absent where it was run
    /// before a resume.
    #[serde(flatten)]
    pub loads: Option<EpochLoads>,
    /// The validation after the epoch, if there are samples for it.
    pub validation: Option<ValidationResult>,
}

/// The best epoch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BestResult {
    /// Number, from 1.
    pub epoch: u64,
    /// Name of the metric.
    pub metric: String,
    /// Its value.
    pub value: f64,
    /// File of its weights; null where it could not be written.
    pub path: Option<String>,
}

/// Why a training ended before its last epoch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EndedEarly {
    /// The last epoch that was run, from 1.
    pub epoch: u64,
    /// Why.
    pub reason: EndReason,
    /// Name of the metric.
    pub metric: &'static str,
    /// Its value in that epoch.
    pub value: Option<f64>,
    /// The epoch of the last improvement; null for a target.
    pub best_epoch: Option<u64>,
    /// The value of the last improvement; null for a target.
    pub best_value: Option<f64>,
}

impl fmt::Display for EndedEarly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { epoch, metric, .. } = self;
        write!(f, "after epoch {epoch}: ")?;
        match (
            self.reason,
            self.value,
            self.best_epoch.zip(self.best_value),
        ) {
            (EndReason::Target, Some(value), _) => {
                write!(f, "{metric} is {value}, which reaches the target")
            }
            (EndReason::NoImprovement, Some(value), Some((best_epoch, best))) => write!(
                f,
                "{metric} is {value} and has not improved since epoch {best_epoch}, where it was {best}"
            ),
            (EndReason::Callback, _, _) => f.write_str("the callback of the training ended it"),
            (EndReason::Target | EndReason::NoImprovement, _, _) => {
                write!(f, "{metric} has not improved")
            }
        }
    }
}

/// Which rule ended a training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// `[early_stopping]`.
    NoImprovement,
    /// `target`.
    Target,
    /// The callback of a [`Trainer`](crate::Trainer).
    Callback,
}

/// The target of a training.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TargetResult {
    /// Name of the metric.
    pub metric: &'static str,
    /// The value to reach.
    pub value: f64,
    /// The epoch that reached it, from 1; null if none did.
    pub epoch: Option<u64>,
    /// Time of all steps until then, validations included; null if it was not reached.
    pub seconds: Option<Seconds>,
}

/// A validation.
#[derive(Clone, Debug, Serialize)]
pub struct ValidationResult {
    /// Mean over the validation samples.
    pub loss: f64,
    /// Validation samples.
    pub samples: usize,
    /// Time of the validation.
    pub seconds: Seconds,
    /// Errors of each target.
    pub errors: Vec<TargetError>,
    /// Accuracy; absent for a regression.
    pub classification: Option<Classification>,
}

/// Errors of a target.
#[derive(Clone, Debug, Serialize)]
pub struct TargetError {
    /// Name of the target.
    pub target: String,
    /// Mean absolute error.
    pub mean_absolute: f64,
    /// Root of the mean squared error.
    pub rms: f64,
    /// Both in physical values, where the range of the target is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub physical: Option<PhysicalError>,
}

/// Errors of a target in physical values.
#[derive(Clone, Debug, Serialize)]
pub struct PhysicalError {
    /// Mean absolute error.
    pub mean_absolute: f64,
    /// Root of the mean squared error.
    pub rms: f64,
    /// Their unit, if the dataset states it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
}

/// Accuracy of a classification.
#[derive(Clone, Debug, Serialize)]
pub struct Classification {
    /// Accuracy: fraction of the positions predicted correctly.
    pub accuracy: f64,
    /// Fraction of the most frequent class.
    pub largest_share: f64,
    /// Mean Dice coefficient of the classes.
    pub mean_dice: Option<f64>,
    /// Mean intersection over union of the classes.
    pub mean_overlap: Option<f64>,
    /// Mean over samples of the mean Dice coefficient of their foreground, where the run file asks for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample_dice: Option<f64>,
    /// Each class.
    pub classes: Vec<ClassResult>,
}

/// A class.
#[derive(Clone, Debug, Serialize)]
pub struct ClassResult {
    /// Its name.
    pub class: String,
    /// Fraction of the positions with this label.
    pub share: f64,
    /// Dice coefficient.
    pub dice: Option<f64>,
    /// Intersection over union.
    pub overlap: Option<f64>,
}

/// Predicted and used memory.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryResult {
    /// The largest predicted arena.
    pub predicted_arena_bytes_max: Option<Bytes>,
    /// All predicted arenas.
    pub predicted_arena_bytes: Bytes,
    /// All allocated arenas.
    pub allocated_arena_bytes: Bytes,
    /// Predicted memory of all ranks.
    pub predicted_bytes: Bytes,
    /// Predicted memory by item.
    pub predicted: Footprint,
    /// Snapshots of all ranks for checkpoints and validators, part of the predicted memory.
    pub predicted_snapshot_bytes: Bytes,
    /// Samples that all ranks keep in memory, part of the predicted memory.
    pub predicted_store_bytes: Bytes,
    /// Samples that all ranks keep in files in the folder `spill`, which are no memory.
    pub spill_bytes: Bytes,
    /// Peak resident set until the last step.
    pub measured_peak_bytes: Option<Bytes>,
    /// The same until the weights were written.
    pub measured_peak_saving_bytes: Option<Bytes>,
    /// How the peaks are measured.
    pub method: &'static str,
}

/// Measured seconds of a task.
#[derive(Clone, Debug, Serialize)]
pub struct TaskResult {
    /// Class of ranks.
    pub class: usize,
    /// Number of the task.
    pub task: usize,
    /// Its layer.
    pub layer: String,
    /// Its work.
    pub kind: &'static str,
    /// Its phase.
    pub phase: &'static str,

    /// Median over the measured steps.
    pub seconds_median: Seconds,
}

/// Files of a run; null where one could not be written.
#[derive(Clone, Debug, Serialize)]
pub struct ResultFiles {
    /// Trace of the last steps.
    pub trace: Option<String>,
    /// Parameters and states.
    /// None where they are in memory.
    pub weights: Option<String>,
    /// The result.
    pub result: Option<String>,
    /// The prediction, if there is one.
    pub prediction: Option<String>,
    /// The last checkpoint, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
}
