//! What a strategy says of stages and of the order in which they work.

use super::{Strategy, StrategyError};
use partita_space::{Axis, AxisSet, Mesh};

impl Strategy {
    /// Axes that split something, of all layers or in a stage.
    pub(crate) fn named_axes(&self) -> AxisSet {
        let stages = self.stages.iter().map(|stage| &stage.extents);
        let all = stages.chain([&self.extents]);
        let split = all.map(|extents| Mesh::new(*extents).split_axes());
        split.fold(AxisSet::NONE, AxisSet::union)
    }

    /// Ranks of the stages of one part of the mini-batch.
    pub(crate) fn ranks_of_stages(&self) -> usize {
        let ranks = |extents: &[usize; 7]| extents.iter().product::<usize>();
        self.stages.iter().map(|stage| ranks(&stage.extents)).sum()
    }

    /// The most parts into which samples are split.
    pub(crate) fn data_parts(&self) -> usize {
        let data = Axis::Data.index();
        let inner = self.stages.iter().map(|stage| stage.extents[data]).max();
        self.extents[data] * inner.unwrap_or(1)
    }

    /// Whether the schedule can take so many micro-batches.
    pub(crate) fn can_schedule(&self, micro: usize) -> bool {
        let multiple = self.schedule.micro_multiple(self.stages.len().max(1));
        self.stages.is_empty() || multiple.is_some_and(|multiple| micro.is_multiple_of(multiple))
    }

    /// Beside stages all ranks are split along `data` alone.
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

    /// Whether the stages of two replicas can stand on the same ranks: the first ranks and meshes of the
    /// stages, those of the second replica being mirrored.
    pub(crate) fn check_stages(&self) -> Result<(), StrategyError> {
        if self.stages.is_empty() {
            return Ok(());
        }
        self.check_outside_stages()?;
        if self.schedule.replicas() < 2 {
            return Ok(());
        }
        if self.shard != super::Shard::Off {
            return Err(StrategyError::SharedOut {
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
        let (schedule, places) = (self.schedule, self.stages.len());
        let Some(multiple) = schedule.micro_multiple(places) else {
            return Err(StrategyError::Places {
                strategy: self.to_string(),
                schedule: schedule.to_string(),
                places,
            });
        };
        if schedule.replicas() > 1 && places < 2 {
            return Err(StrategyError::Places {
                strategy: self.to_string(),
                schedule: schedule.to_string(),
                places,
            });
        }
        if self.micro.is_multiple_of(multiple) {
            return Ok(());
        }
        let most = batch / self.data_parts();
        let fits = |micro: &usize| batch.is_multiple_of(*micro) && micro.is_multiple_of(multiple);
        let distance = |micro: &usize| micro.abs_diff(self.micro);
        let nearest = (1..=most).filter(fits).min_by_key(distance);
        Err(StrategyError::Scheduled {
            strategy: self.to_string(),
            schedule: schedule.to_string(),
            multiple,
            micro: self.micro,
            nearest: match nearest {
                Some(micro) => format!("micro={micro}"),
                None => {
                    let micro = self.micro.next_multiple_of(multiple);
                    let least = batch.max(micro * self.data_parts());
                    let batch = least.next_multiple_of(micro);
                    format!("micro={micro} with a mini-batch of {batch}")
                }
            },
        })
    }
}
