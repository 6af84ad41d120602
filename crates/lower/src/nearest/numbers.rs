//! Other numbers: parts of axes, micro-batches, samples.

use super::{Choice, Search, TRIES};
use crate::strategy::PASSES_MAX;
use crate::{BatchNormStatistics, Schedule, Strategy, StrategyError};
use partita_space::limits::{MICRO_BATCHES_MAX, SAMPLES_MAX};
use partita_space::{AXES, Axis};
use std::ops::RangeInclusive;

impl Search<'_> {
    /// Fewer parts of an axis that makes as many, on the ranks that are asked for where that is possible.
    pub fn fewer_parts(&self, parts: usize, most: usize) -> Option<Choice> {
        let extent = |axis: Axis| {
            let stages = self.strategy.stages.iter();
            let inner = stages.map(|stage| stage.extents[axis.index()]).max();
            self.strategy.extent(axis) * inner.unwrap_or(1)
        };
        let is_meant = |axis: &Axis| extent(*axis) > 1 && parts.is_multiple_of(extent(*axis));
        let mut axes: Vec<Axis> = AXES.into_iter().filter(is_meant).collect();
        axes.sort_by_key(|&axis| extent(axis) != parts);
        axes.into_iter()
            .find_map(|axis| self.fewer_parts_of(axis, most.min(extent(axis))))
    }

    /// At most this many parts of an axis.
    pub fn fewer_parts_of(&self, axis: Axis, most: usize) -> Option<Choice> {
        let mut parts = most;
        for _ in 0..TRIES {
            let fewer = self.with_parts(axis, parts);
            let filled = (axis != Axis::Data && fewer.stages.is_empty())
                .then(|| self.with_ranks(&fewer))
                .flatten();
            let choice = self.first_of(filled.into_iter().chain([fewer.clone()]));
            if choice.is_some() {
                return choice;
            }
            parts = match self.accepted(&fewer, self.checks.batch) {
                Err(StrategyError::TooFine { extent, .. }) if extent < parts => extent,
                Ok(_) | Err(_) => parts.checked_sub(1).filter(|&parts| parts > 0)?,
            };
        }
        None
    }

    /// With at most this many parts along an axis, in stages too.
    fn with_parts(&self, axis: Axis, parts: usize) -> Strategy {
        let mut strategy = self.strategy.clone();
        let outer = &mut strategy.extents[axis.index()];
        *outer = parts.min(*outer);
        let inner = (parts / *outer).max(1);
        for stage in &mut strategy.stages {
            let extent = &mut stage.extents[axis.index()];
            *extent = inner.min(*extent);
        }
        strategy
    }

    /// The nearest number of micro-batches; else with another mini-batch, or another schedule.
    pub fn micro_batches(&self) -> Option<Choice> {
        let (strategy, batch) = (self.strategy, self.checks.batch);
        let data = strategy.data_parts();
        let most = (PASSES_MAX / strategy.stage_count().max(1)).min(MICRO_BATCHES_MAX);
        let mut near: Vec<usize> = (1..=most).collect();
        near.sort_by_key(|micro| micro.abs_diff(strategy.micro));
        let own: Vec<usize> = near
            .iter()
            .copied()
            .filter(|micro| batch.is_multiple_of(*micro))
            .collect();
        let own = |strategy: &Strategy| -> Vec<Strategy> {
            let with = |micro: &usize| Strategy {
                micro: *micro,
                ..strategy.clone()
            };
            own.iter().map(with).collect()
        };
        let larger = |micro: &usize| {
            let least = batch.max(micro * data).next_multiple_of(*micro);
            let is_possible = strategy.can_schedule(*micro) && least <= SAMPLES_MAX;
            let with = Strategy {
                micro: *micro,
                ..strategy.clone()
            };
            is_possible.then_some((with, least))
        };
        let plain = Strategy {
            schedule: Schedule::default(),
            ..strategy.clone()
        };
        self.first_of(own(strategy))
            .or_else(|| self.first(near.iter().filter_map(larger)))
            .or_else(|| self.first_of(own(&plain)))
    }

    /// Fewer micro-batches of the same mini-batch.
    pub fn fewer_micro_batches(&self) -> Option<Choice> {
        let fewer = (1..self.strategy.micro).rev();
        let divides = |micro: &usize| self.checks.batch.is_multiple_of(*micro);
        self.first_of(fewer.filter(divides).map(|micro| Strategy {
            micro,
            ..self.strategy.clone()
        }))
    }

    /// The nearest mini-batch in a range.
    pub fn batches(&self, range: RangeInclusive<usize>) -> Option<Choice> {
        let strategy = self.strategy;
        let micro = strategy.micro;
        let least = micro.saturating_mul(strategy.data_parts());
        let (low, high) = ((*range.start()).max(least), (*range.end()).min(SAMPLES_MAX));
        let up = (low.next_multiple_of(micro)..=high)
            .step_by(micro)
            .take(TRIES / 2);
        let twice = (2 * least..=high).take(1).filter(|batch| *batch >= low);
        let mut all: Vec<usize> = up.chain(twice).collect();
        if high < self.checks.batch {
            let last = high / micro * micro;
            all = (least..=last).rev().step_by(micro).take(TRIES).collect();
        }
        all.sort_by_key(|batch| batch.abs_diff(self.checks.batch));
        self.first(all.into_iter().map(|batch| (strategy.clone(), batch)))
    }

    /// Statistics of batch norms over all samples, where they are local.
    pub fn synchronized(&self) -> Option<Choice> {
        let synchronized = Strategy {
            batch_norm: BatchNormStatistics::Synchronized,
            ..self.strategy.clone()
        };
        self.first_of([synchronized])
    }

    /// The axis `data` of all stages before them.
    pub fn with_data_outside(&self) -> Strategy {
        let mut strategy = self.strategy.clone();
        strategy.extents[Axis::Data.index()] = strategy.data_parts();
        for stage in &mut strategy.stages {
            stage.extents[Axis::Data.index()] = 1;
        }
        strategy
    }
}
