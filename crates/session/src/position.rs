//! Where a training stands between two steps.

use crate::loss_scale::LossScale;
use crate::validation::Validation;
use partita_space::Seconds;
use serde::{Deserialize, Serialize};

/// Where a training stands between two steps. A run that starts here with the persistent buffers of that moment goes
/// on as if it had not ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Position {
    /// Epoch of the next step, from 0.
    pub epoch: u64,
    /// Steps of that epoch that are done: training steps, then those of its evaluation.
    pub done: u64,
    /// Training steps done in all.
    pub updates: u64,
    /// Time of all steps.
    pub seconds: Seconds,
    /// Epochs that are done.
    pub epochs: Vec<EpochReport>,
    /// Sums over the steps of the current epoch that are done: losses are not yet divided by their samples.
    pub current: EpochReport,
    /// The loss scale, where gradients are scaled or were so before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScale>,
}

/// Results of an epoch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EpochReport {
    /// Epoch, from 0.
    pub epoch: u64,
    /// Mean loss over its samples, each before the update to which it contributed.
    pub training_loss: f64,
    /// Training samples.
    pub samples: usize,
    /// Time of its training steps, fetches included.
    pub training_seconds: Seconds,
    /// Evaluation with the parameters at its end, or with the averages of them that are kept.
    pub validation: Option<Validation>,
}
