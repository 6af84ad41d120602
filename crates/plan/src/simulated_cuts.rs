//! Search for the partition of layers into stages whose simulated step is shortest.

use crate::balance::{BalanceError, Balancer};
use crate::plan::Cost;
use partita_lower::{Request, lower};
use partita_oracle::precision;
use partita_program::ProgramKind;
use std::collections::HashMap;
use std::ops::Range;

/// Where fewer programs than these have the most tasks that are simulated, the estimate has to do.
const PROGRAMS_MIN: usize = 6;
/// Moves of boundaries that are simulated from one partition, those with the shortest estimated steps.
const MOVES: usize = 32;

/// Layers of each stage.
type Ranges = Vec<Range<usize>>;

/// How steps are simulated.
#[derive(Clone, Copy)]
pub struct Steps<'a> {
    /// Predicts the time of a program.
    pub cost: &'a Cost<'a>,
    /// No more are simulated once their programs have this many tasks together: 250,000 take a few seconds of a core.
    pub tasks_max: usize,
    /// Whether no more are simulated.
    pub is_over: &'a dyn Fn() -> bool,
}

/// A search for the partition with the shortest simulated step.
pub(crate) struct SimulatedCuts<'b> {
    balancer: &'b Balancer<'b>,
    steps: Steps<'b>,
    /// Steps by the first layers of the stages; infinite where it does not fit in memory.
    known: HashMap<Vec<usize>, f64>,
    /// Of all programs that were simulated.
    tasks: usize,
}

impl<'b> SimulatedCuts<'b> {
    /// Nothing is simulated yet.
    pub fn new(balancer: &'b Balancer<'b>, steps: Steps<'b>) -> Self {
        Self {
            balancer,
            steps,
            known: HashMap::new(),
            tasks: 0,
        }
    }

    /// Moves boundaries, one or both of a stage at a time, as long as the simulated step gets shorter. Begins with the fastest of these
    /// partitions, of which the first fits in memory.
    ///
    /// Errors: a step whose cost is unknown.
    pub fn fastest(
        mut self,
        starts: Vec<Ranges>,
        fits: &dyn Fn(usize, &Range<usize>) -> bool,
    ) -> Result<Ranges, BalanceError> {
        let mut best: Option<(f64, Ranges)> = None;
        if self.balancer.tasks() > self.steps.tasks_max / PROGRAMS_MIN {
            return Ok(starts.into_iter().next().unwrap_or_default());
        }
        for start in starts {
            if best.is_some() && self.is_over() {
                break;
            }
            let seconds = self.seconds(&start)?;
            if best.as_ref().is_none_or(|(least, _)| seconds < *least) {
                best = Some((seconds, start));
            }
        }
        let (mut least, mut ranges) = best.unwrap_or_default();
        while let Some((seconds, faster)) = self.faster(least, &ranges, fits)? {
            (least, ranges) = (seconds, faster);
        }
        Ok(ranges)
    }

    /// A partition with one boundary elsewhere, or a stage moved, whose step is shorter, if there is one among the most promising.
    fn faster(
        &mut self,
        least: f64,
        ranges: &Ranges,
        fits: &dyn Fn(usize, &Range<usize>) -> bool,
    ) -> Result<Option<(f64, Ranges)>, BalanceError> {
        let balancer = self.balancer;
        let one = (1..ranges.len()).flat_map(|stage| balancer.moves(ranges, stage));
        let two = (2..ranges.len()).flat_map(|stage| balancer.shifts(ranges, stage));
        let mut moves: Vec<(f64, Ranges)> = one
            .chain(two)
            .filter(|moved| !self.known.contains_key(&starts(moved)))
            .filter(|moved| (0..).zip(moved).all(|(stage, range)| fits(stage, range)))
            .map(|moved| (balancer.step_seconds(&moved).0, moved))
            .collect();
        moves.sort_by(|a, b| a.0.total_cmp(&b.0));
        moves.dedup_by(|a, b| a.1 == b.1);
        for (_, moved) in moves.into_iter().take(MOVES) {
            if self.is_over() {
                break;
            }
            let seconds = self.seconds(&moved)?;
            if seconds < least {
                return Ok(Some((seconds, moved)));
            }
        }
        Ok(None)
    }

    fn is_over(&self) -> bool {
        self.tasks > self.steps.tasks_max || (self.steps.is_over)()
    }

    /// The simulated step; infinite where it does not fit in memory.
    fn seconds(&mut self, ranges: &Ranges) -> Result<f64, BalanceError> {
        let key = starts(ranges);
        if let Some(&seconds) = self.known.get(&key) {
            return Ok(seconds);
        }
        let training = self.balancer.training;
        let strategy = training.strategy.with_layers(training.graph, ranges);
        let program = lower(&Request {
            strategy: &strategy,
            kind: ProgramKind::Train,
            ..*training
        })?;
        self.tasks += program.tasks();
        let needed = precision::largest(&program, self.balancer.precision);
        let seconds = if needed.is_some_and(|(needed, _)| needed > self.balancer.wanted.memory) {
            f64::INFINITY
        } else {
            let prediction = (self.steps.cost)(&program).map_err(BalanceError::Cost)?;
            prediction.iteration_seconds.0
        };
        self.known.insert(key, seconds);
        Ok(seconds)
    }
}

/// First layers of the stages.
fn starts(ranges: &Ranges) -> Vec<usize> {
    ranges.iter().map(|range| range.start).collect()
}
