//! Stages and schedules of a strategy.

use super::{StageChoice, Strategy, StrategyError};
use partita_space::{AXES, Axis, AxisSet, Mesh};

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
        let outside = |axis: &Axis| *axis != Axis::Data && self.extent(*axis) > 1;
        let axes: Vec<Axis> = AXES.into_iter().filter(outside).collect();
        if axes.is_empty() {
            return Ok(());
        }
        let mut inside = self.clone();
        for axis in &axes {
            inside.stages[0].extents[axis.index()] = self.extent(*axis);
        }
        let stages: Vec<String> = inside.stages.iter().map(StageChoice::to_string).collect();
        let words = axes
            .iter()
            .map(|axis| format!("{}={}", axis.name(), self.extent(*axis)));
        Err(StrategyError::OutsideStages {
            strategy: self.to_string(),
            axes: words.collect::<Vec<_>>().join(","),
            stages: stages.join("|"),
        })
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

    /// Checks the schedule against the stages and the micro-batches.
    pub(crate) fn check_schedule(&self) -> Result<(), StrategyError> {
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
        })
    }
}
