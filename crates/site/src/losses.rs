//! The losses of a training, as its figure shows them.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A point of a loss curve: the mean over consecutive training steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// The last of its steps, from 1.
    pub step: u64,
    /// Epochs done after it, a fraction within an epoch.
    pub epochs: f64,
    /// Mean loss of its steps.
    pub loss: f64,
    /// Learning rate of the last of its steps.
    pub learning_rate: f64,
}

/// Losses of a training, from its first step on.
#[derive(Clone, Debug, PartialEq)]
pub struct LossHistory {
    /// The model.
    pub model: String,
    /// The output folder.
    pub folder: PathBuf,
    /// Losses of steps, with the learning rate.
    pub curve: Vec<CurvePoint>,
    /// Epochs that are done, from 1, with the mean loss of training, and that of validation.
    pub epochs: Vec<(u64, f64, Option<f64>)>,
}
