//! The critical path, and the breakdown of its seconds.

use super::engine::{Instance, Played};
use super::schedule::Schedule;
use partita_program::{CollectiveKind, Phase, Task, TaskId, Work};
use partita_space::{Rank, Seconds};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Under which heading a second of the critical path is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    /// Kernels from the input to the loss and its metrics.
    ForwardCompute,
    /// Messages and sums between them (halos, statistics of normalizations, the loss).
    ForwardExchange,
    /// Kernels from the loss to the gradients.
    BackwardCompute,
    /// Messages and sums between them.
    BackwardExchange,
    /// Everything that sums gradients over ranks, as far as nothing hides it.
    GradientAllreduceExposed,
    /// Collectives other than sums that all members keep, forward and backward: data change their
    /// distribution.
    Redistribution,
    /// Reading of samples and bringing them into the network.
    Io,
    /// The optimizer, with the sums it needs.
    Update,
}

/// Seconds of the critical path by heading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Breakdown {
    /// See [`Category::ForwardCompute`].
    pub forward_compute: Seconds,
    /// See [`Category::ForwardExchange`].
    pub forward_exchange: Seconds,
    /// See [`Category::BackwardCompute`].
    pub backward_compute: Seconds,
    /// See [`Category::BackwardExchange`].
    pub backward_exchange: Seconds,
    /// See [`Category::GradientAllreduceExposed`].
    pub gradient_allreduce_exposed: Seconds,
    /// See [`Category::Redistribution`].
    pub redistribution: Seconds,
    /// See [`Category::Io`].
    pub io: Seconds,
    /// See [`Category::Update`].
    pub update: Seconds,
}

/// A piece of the critical path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Segment {
    /// The participant's rank.
    pub rank: Rank,
    /// Index of its body.
    pub body: u32,
    /// In which step.
    pub step: usize,
    /// The task that was under way.
    pub task: TaskId,
    /// Its heading.
    pub category: Category,
    /// How long.
    pub seconds: Seconds,
}

impl Category {
    /// All, in the order of reports.
    pub const ALL: [Category; 8] = [
        Category::ForwardCompute,
        Category::ForwardExchange,
        Category::BackwardCompute,
        Category::BackwardExchange,
        Category::GradientAllreduceExposed,
        Category::Redistribution,
        Category::Io,
        Category::Update,
    ];

    /// The heading of a task.
    pub fn of(task: &Task) -> Self {
        let phase = task.origin.phase;
        match &task.work {
            Work::Compute { .. } => match phase {
                Phase::Load => Category::Io,
                Phase::Forward | Phase::Report => Category::ForwardCompute,
                Phase::Backward => Category::BackwardCompute,
                Phase::Reduce => Category::GradientAllreduceExposed,
                Phase::Update => Category::Update,
            },
            Work::Exchange(_) => Self::of_movement(phase),
            Work::Collective(collective) => match collective.kind {
                CollectiveKind::AllReduce { .. } => Self::of_movement(phase),
                CollectiveKind::AllGather { .. }
                | CollectiveKind::ReduceScatter { .. }
                | CollectiveKind::AllToAll { .. } => match phase {
                    Phase::Forward | Phase::Backward => Category::Redistribution,
                    Phase::Load | Phase::Reduce | Phase::Update | Phase::Report => {
                        Self::of_movement(phase)
                    }
                },
            },
            Work::Load(_) => Category::Io,
        }
    }

    fn of_movement(phase: Phase) -> Self {
        match phase {
            Phase::Load => Category::Io,
            Phase::Forward | Phase::Report => Category::ForwardExchange,
            Phase::Backward => Category::BackwardExchange,
            Phase::Reduce => Category::GradientAllreduceExposed,
            Phase::Update => Category::Update,
        }
    }
}

impl fmt::Display for Category {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Category::ForwardCompute => "forward computation",
            Category::ForwardExchange => "forward exchange",
            Category::BackwardCompute => "backward computation",
            Category::BackwardExchange => "backward exchange",
            Category::GradientAllreduceExposed => "the sum of gradients over ranks",
            Category::Redistribution => "redistribution",
            Category::Io => "input",
            Category::Update => "the update",
        })
    }
}

impl Breakdown {
    /// The seconds under one heading.
    pub fn of(&self, category: Category) -> Seconds {
        match category {
            Category::ForwardCompute => self.forward_compute,
            Category::ForwardExchange => self.forward_exchange,
            Category::BackwardCompute => self.backward_compute,
            Category::BackwardExchange => self.backward_exchange,
            Category::GradientAllreduceExposed => self.gradient_allreduce_exposed,
            Category::Redistribution => self.redistribution,
            Category::Io => self.io,
            Category::Update => self.update,
        }
    }

    fn of_mut(&mut self, category: Category) -> &mut Seconds {
        match category {
            Category::ForwardCompute => &mut self.forward_compute,
            Category::ForwardExchange => &mut self.forward_exchange,
            Category::BackwardCompute => &mut self.backward_compute,
            Category::BackwardExchange => &mut self.backward_exchange,
            Category::GradientAllreduceExposed => &mut self.gradient_allreduce_exposed,
            Category::Redistribution => &mut self.redistribution,
            Category::Io => &mut self.io,
            Category::Update => &mut self.update,
        }
    }

    /// All headings together.
    pub fn total(&self) -> Seconds {
        Category::ALL
            .into_iter()
            .map(|category| self.of(category))
            .sum()
    }

    /// Every heading times a factor.
    pub fn scaled(&self, factor: f64) -> Self {
        let mut scaled = Self::default();
        for category in Category::ALL {
            *scaled.of_mut(category) = self.of(category) * factor;
        }
        scaled
    }
}

/// The critical path with what is known of it.
pub(super) struct Walk {
    pub segments: Vec<Segment>,
    pub latency: Seconds,
}

pub(super) fn breakdown(segments: &[Segment]) -> Breakdown {
    let mut breakdown = Breakdown::default();
    for segment in segments {
        *breakdown.of_mut(segment.category) += segment.seconds;
    }
    breakdown
}

/// From the last completion back to the beginning: each task's time since the start that decided
/// its completion, then whatever let that start happen.
pub(super) fn walk(schedule: &Schedule<'_>, played: &Played) -> Walk {
    let mut walk = Walk {
        segments: Vec::new(),
        latency: Seconds(0.0),
    };
    let last = (0..played.records.len())
        .max_by(|&a, &b| played.records[a].end.total_cmp(&played.records[b].end));
    let mut cursor = last;
    while let Some(found) = cursor {
        // What was seen at the end of a kernel was held up by that kernel.
        let instance = played.records[found]
            .held_by
            .map_or(found, |kernel| kernel as Instance);
        let record = &played.records[instance];
        let decider = &played.records[record.decider as usize];
        push(
            schedule,
            played,
            instance,
            record.end - decider.start,
            &mut walk.segments,
        );
        walk.latency += Seconds(record.latency);
        cursor = decider.trigger.map(|trigger| trigger as Instance);
    }
    walk
}

fn push(
    schedule: &Schedule<'_>,
    played: &Played,
    instance: Instance,
    seconds: f64,
    segments: &mut Vec<Segment>,
) {
    let (participant, step, task) = played.locate(schedule, instance);
    let player = &schedule.participants[participant];
    let segment = |category, seconds| Segment {
        rank: player.who.rank,
        body: player.who.body,
        step,
        task: TaskId(task as u32),
        category,
        seconds: Seconds(seconds),
    };
    let mut rest = seconds;
    for &(category, stall) in played.stalls.get(&instance).into_iter().flatten() {
        segments.push(segment(category, stall));
        rest -= stall;
    }
    segments.push(segment(Category::of(&player.body.tasks[task]), rest));
}
