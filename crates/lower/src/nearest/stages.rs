//! Other stages and schedules.

use super::{Choice, Search};
use crate::placement::ranges;
use crate::{Schedule, Strategy};

impl Search<'_> {
    /// The usual schedule; then with layers that are chosen for it.
    pub fn other_schedule(&self) -> Option<Choice> {
        let plain = Strategy {
            schedule: Schedule::default(),
            ..self.strategy.clone()
        };
        self.first_of([plain.clone(), chosen(&plain)])
    }

    /// Fewer stages, at most this many: on the same ranks first, by a schedule with fewer on each.
    pub fn fewer_stages(&self, most: usize) -> Vec<Strategy> {
        let own = self.strategy;
        let mut all = Vec::new();
        let each = most / own.stages.len().max(1);
        let mut schedules = Vec::new();
        if let Schedule::Interleaved { chunks } = own.schedule {
            let fewer = (2..=each.min(chunks)).rev();
            schedules.extend(fewer.map(|chunks| Schedule::Interleaved { chunks }).take(1));
            schedules.push(Schedule::default());
        }
        for schedule in schedules {
            all.push(chosen(&Strategy {
                schedule,
                ..own.clone()
            }));
        }
        let mut fewer = chosen(own);
        fewer.stages.truncate(most / own.schedule.chunks());
        all.push(fewer.clone());
        fewer.schedule = Schedule::default();
        all.push(fewer);
        all
    }

    /// Each stage from the end of the one before; then with layers that are chosen.
    pub fn other_stages(&self) -> Vec<Strategy> {
        let mut joined = self.strategy.clone();
        let (devices, stages) = (joined.stages.len(), joined.stage_count());
        for (device, stage) in joined.stages.iter_mut().enumerate() {
            for (chunk, (from, to)) in stage.layers.iter_mut().enumerate() {
                from.clear();
                if chunk * devices + device + 1 == stages {
                    to.clear();
                }
            }
        }
        let graph = self.checks.graph;
        let ranges = ranges(graph, &joined, stages);
        let joined = ranges.map(|ranges| joined.with_layers(graph, &ranges));
        let chosen = chosen(self.strategy);
        joined.into_iter().chain([chosen]).collect()
    }
}

/// Without layers of stages.
fn chosen(strategy: &Strategy) -> Strategy {
    let mut strategy = strategy.clone();
    for stage in &mut strategy.stages {
        stage.layers.clear();
    }
    strategy
}
