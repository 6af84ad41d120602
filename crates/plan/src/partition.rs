//! Partitions of layers into the stages of a pipeline, estimated and, where asked for, simulated.

use crate::balance::{BalanceError, Balanced, Balancer, Tables, Wanted};
use crate::layers::StageCosts;
use crate::simulated_cuts::{SimulatedCuts, Steps};
use partita_lower::Request;
use partita_space::{Bytes, Seconds};
use std::ops::Range;

/// Assigns layers to stages, minimizing the time of a step, among the partitions that fit `memory`. A strategy without
/// stages, or with specified layers, is unchanged.
///
/// Costs of layers are those of a program of the whole model on the ranks of a stage, lowered once for each mesh, and
/// the time of a step is estimated from them; with `steps` those of the most promising partitions are simulated, unless they have very many tasks.
/// The memory of a partition is that of its program; where it is too much, other partitions are tried by an
/// estimate that each attempt corrects. So that stages which take turns distribute the memory, none has much more than
/// the largest of stages with equal work.
/// Errors: a strategy that does not fit, an unknown cost, no partition that fits in `memory`.
pub fn balance(
    training: &Request<'_>,
    memory: Bytes,
    costs: &dyn StageCosts,
    steps: Option<Steps<'_>>,
) -> Result<Balanced, BalanceError> {
    let wanted = Wanted {
        memory,
        most: Seconds(f64::INFINITY),
        is_checked_later: false,
    };
    balance_with(training, wanted, costs, steps, &mut Tables::default())
}

/// As [`balance`], with cached tables.
pub(crate) fn balance_with(
    training: &Request<'_>,
    wanted: Wanted,
    costs: &dyn StageCosts,
    steps: Option<Steps<'_>>,
    tables: &mut Tables<'_>,
) -> Result<Balanced, BalanceError> {
    tables.check(training)?;
    let strategy = training.strategy;
    if strategy.stages.is_empty() || strategy.has_layers() {
        return Ok(Balanced {
            strategy: strategy.clone(),
            seconds: Seconds(0.0),
            busiest: 0,
            busy: Seconds(0.0),
        });
    }
    let balancer = Balancer::new(training, wanted, costs, tables)?;
    let ranges = balancer.cut()?;
    let ranges = match steps {
        None => ranges,
        Some(steps) => balancer.simulated(ranges, steps)?,
    };
    Ok(balancer.balanced_by(&ranges))
}

impl Balancer<'_> {
    /// The partition with the shortest simulated step near this one, or near others with equal times and equal work.
    fn simulated(
        &self,
        ranges: Vec<Range<usize>>,
        steps: Steps<'_>,
    ) -> Result<Vec<Range<usize>>, BalanceError> {
        let most = self.memory_of_equal_work().max(self.largest(&ranges));
        let fits = |stage: usize, range: &Range<usize>| self.memory_estimate(stage, range) <= most;
        let computation = |stage: usize, range: &Range<usize>| self.computation(stage, range);
        let memory = |stage: usize, range: &Range<usize>| self.memory_estimate(stage, range);
        let starts = [
            Some(ranges),
            self.equal_work(),
            self.balanced(&computation, &computation),
            self.balanced(&memory, &memory),
        ];
        let starts = starts.into_iter().flatten();
        SimulatedCuts::new(self, steps).fastest(starts.collect(), &fits)
    }
}
