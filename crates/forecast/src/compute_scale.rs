//! Calibration of modeled computation by a measured time of a sample, as in the ParaDL oracle.
//!
//! Source: technical report of October 2020 on the ParaDL oracle, its use of one measured time of forward and
//! backward computation per sample.

use crate::planning::PlanningError;
use crate::training::{Training, given, request as lowering};
use crate::{StrategyChoice, explain::simulated};
use partita_graph::Graph;
use partita_lower::{Strategy, lower};
use partita_oracle::{Costs, Prediction, ScaledCosts, SpeedFactors};
use partita_program::{Menu, ProgramKind};
use partita_space::Seconds;
use serde::Serialize;
use std::sync::Arc;

/// How modeled computation is scaled.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ComputeScale {
    /// Forward and backward computation of a sample on one device, as given.
    pub seconds_per_sample: Seconds,
    /// As modeled from the machine file, without scaling.
    pub modeled_seconds_per_sample: Seconds,
    /// Samples of a kernel under the strategy, at which they are compared.
    pub samples: usize,
    /// Times of all kernels but weight updates are multiplied by this.
    pub factor: f64,
}

impl ComputeScale {
    /// Compares a given time with that of a device alone, for as many samples as the strategy gives a kernel.
    ///
    /// Errors: an invalid strategy, a missing cost.
    pub(crate) fn of(
        seconds_per_sample: Seconds,
        subject: (&Graph, &Training, &StrategyChoice),
        menu: &dyn Menu,
        costs: &dyn Costs,
    ) -> Result<Self, PlanningError> {
        let (prediction, samples) = alone(subject, menu, costs)?;
        let breakdown = prediction.breakdown;
        let modeled = breakdown.forward_compute + breakdown.backward_compute;
        let modeled = modeled * (1.0 / samples as f64);
        Ok(Self {
            seconds_per_sample,
            modeled_seconds_per_sample: modeled,
            samples,
            factor: seconds_per_sample.0 / modeled.0,
        })
    }

    /// The costs with scaled kernels.
    pub(crate) fn scaled(&self, costs: Arc<dyn Costs>) -> Arc<dyn Costs> {
        let speeds = SpeedFactors {
            layers: 1.0 / self.factor,
            ..SpeedFactors::default()
        };
        Arc::new(ScaledCosts::new(costs, speeds))
    }
}

/// A step of a device alone with as many samples as the strategy gives a kernel, with its tasks.
///
/// Errors: an invalid strategy, a missing cost.
pub(crate) fn alone(
    (graph, training, strategy): (&Graph, &Training, &StrategyChoice),
    menu: &dyn Menu,
    costs: &dyn Costs,
) -> Result<(Prediction, usize), PlanningError> {
    let kind = ProgramKind::Train;
    let strategy = given(graph, strategy, training, kind)?;
    let parts = strategy.data_parts() * strategy.micro;
    let alone = Training {
        ranks: 1,
        batch: training.batch.div_ceil(parts),
        ..training.clone()
    };
    let single = Strategy::single();
    single.check_norms(graph, alone.batch)?;
    let program = lower(&lowering(graph, &single, &alone, kind, menu))?;
    let prediction = Prediction::of(&program, &simulated(&program, costs)?, true);
    Ok((prediction, alone.batch))
}
