//! Stages and schedules of a strategy.

use super::sizes::PASSES_MAX;
use super::{Strategy, StrategyError};
use partita_space::limits::{MICRO_BATCHES_MAX, SAMPLES_MAX};
use partita_space::{Axis, AxisSet, Mesh};

impl Strategy {
    /// Axes of extent above 1, of the strategy or of a stage.
    pub(crate) fn named_axes(&self) -> AxisSet {
        let stages = self.stages.iter().map(|stage| &stage.extents);
        let all = stages.chain([&self.extents]);
        let split = all.map(|extents| Mesh::new(*extents).split_axes());
        split.fold(AxisSet::NONE, AxisSet::union)
    }

    /// Number of ranks of all stages, for one part of the mini-batch.
    pub(crate) fn ranks_of_stages(&self) -> usize {
        let ranks = |extents: &[usize; 7]| extents.iter().product::<usize>();
        self.stages.iter().map(|stage| ranks(&stage.extents)).sum()
    }

    /// The largest number of parts into which samples are split.
    pub fn data_parts(&self) -> usize {
        let data = Axis::Data.index();
        let inner = self.stages.iter().map(|stage| stage.extents[data]).max();
        self.extents[data] * inner.unwrap_or(1)
    }

    /// Whether the schedule allows this number of micro-batches.
    pub(crate) fn can_schedule(&self, micro: usize) -> bool {
        let multiple = self.schedule.micro_multiple(self.stages.len().max(1));
        self.stages.is_empty() || multiple.is_some_and(|multiple| micro.is_multiple_of(multiple))
    }

    /// Checks that besides stages only `data` is an axis of all ranks.
    pub(crate) fn check_outside_stages(&self) -> Result<(), StrategyError> {
        let others = |axis: &Axis| *axis != Axis::Data && self.extent(*axis) > 1;
        match partita_space::AXES.into_iter().find(others) {
            Some(axis) => Err(StrategyError::OutsideStages {
                strategy: self.to_string(),
                axis: axis.name(),
                extent: self.extent(axis),
            }),
            None => Ok(()),
        }
    }

    /// Checks that the stages of two replicas can run on the same ranks, the second in reverse order.
    pub(crate) fn check_stages(&self) -> Result<(), StrategyError> {
        if self.stages.is_empty() {
            return Ok(());
        }
        self.check_outside_stages()?;
        if self.schedule.replicas() < 2 {
            return Ok(());
        }
        if self.shard != super::Shard::Off {
            return Err(StrategyError::ShardedReplicas {
                strategy: self.to_string(),
                schedule: self.schedule.to_string(),
            });
        }
        let all = self.ranks_of_stages();
        let mut first = 0;
        for (number, stage) in self.stages.iter().enumerate() {
            let ranks = Mesh::new(stage.extents).ranks();
            let mirrored = all - first - ranks;
            let meets = first < mirrored + ranks && mirrored < first + ranks;
            if meets && first != mirrored {
                return Err(StrategyError::ReplicasMeet {
                    strategy: self.to_string(),
                    stage: number + 1,
                    ranks: (first, first + ranks - 1),
                    mirrored: (mirrored, mirrored + ranks - 1),
                });
            }
            first += ranks;
        }
        Ok(())
    }

    /// Checks the schedule against the stages and the micro-batches of a mini-batch.
    pub(crate) fn check_schedule(&self, batch: usize) -> Result<(), StrategyError> {
        if self.stages.is_empty() {
            return Ok(());
        }
        let (schedule, devices) = (self.schedule, self.stages.len());
        let Some(multiple) = schedule.micro_multiple(devices) else {
            return Err(StrategyError::StageCount {
                strategy: self.to_string(),
                schedule: schedule.to_string(),
                devices,
            });
        };
        if schedule.replicas() > 1 && devices < 2 {
            return Err(StrategyError::StageCount {
                strategy: self.to_string(),
                schedule: schedule.to_string(),
                devices,
            });
        }
        if self.micro.is_multiple_of(multiple) {
            return Ok(());
        }
        Err(StrategyError::Scheduled {
            strategy: self.to_string(),
            schedule: schedule.to_string(),
            multiple,
            micro: self.micro,
            nearest: self.nearest_micro(batch),
        })
    }

    /// The nearest valid number of micro-batches; else with another mini-batch, or another schedule.
    pub(super) fn nearest_micro(&self, batch: usize) -> String {
        let data = self.data_parts();
        let most = (PASSES_MAX / self.stage_count().max(1)).min(MICRO_BATCHES_MAX);
        let fits = |micro: &usize| batch.is_multiple_of(*micro) && self.can_schedule(*micro);
        let distance = |micro: &usize| micro.abs_diff(self.micro);
        let own = (1..=most.min(batch / data))
            .filter(fits)
            .min_by_key(distance);
        if let Some(micro) = own {
            return format!("micro={micro}");
        }
        let larger = |micro: &usize| {
            let least = batch.max(micro * data).next_multiple_of(*micro);
            (self.can_schedule(*micro) && least <= SAMPLES_MAX).then_some((*micro, least))
        };
        let other = (1..=most).filter_map(|micro| larger(&micro));
        if let Some((micro, batch)) = other.min_by_key(|(micro, _)| distance(micro)) {
            return format!("micro={micro} with a mini-batch of {batch}");
        }
        let all = self.micro.min(batch / data);
        let micro = (1..=all).rev().find(|&micro| batch.is_multiple_of(micro));
        format!("schedule=1f1b,micro={}", micro.unwrap_or(1))
    }
}
