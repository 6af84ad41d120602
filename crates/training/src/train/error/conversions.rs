//! Errors of other modules as errors of a training.

use super::{Mismatch, TrainError};
use crate::train::offload::error::OffloadError;
use crate::weights::WeightsError;
use partita_forecast::{LocalError, PlanningError};

impl From<LocalError> for TrainError {
    fn from(error: LocalError) -> Self {
        PlanningError::Local(error).into()
    }
}

impl From<PlanningError> for TrainError {
    fn from(error: PlanningError) -> Self {
        Self::Planning(Box::new(error))
    }
}

impl From<WeightsError> for TrainError {
    fn from(error: WeightsError) -> Self {
        Self::Weights(Box::new(error))
    }
}

impl From<OffloadError> for TrainError {
    fn from(error: OffloadError) -> Self {
        Self::Offload(Box::new(error))
    }
}

impl From<Mismatch> for TrainError {
    fn from(error: Mismatch) -> Self {
        Self::Mismatch(Box::new(error))
    }
}
