//! What the seconds of a step are spent on.

use partita_program::{CollectiveKind, Phase, Task, Work};
use partita_space::Seconds;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a second of the critical path is spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    /// Kernels from the input to the loss and the metrics.
    ForwardCompute,
    /// Messages and allreduces of the forward pass (halos, statistics of normalizations, the loss).
    ForwardExchange,
    /// Kernels from the loss to the gradients.
    BackwardCompute,
    /// Messages and allreduces of the backward pass.
    BackwardExchange,
    /// Reduction of gradients over ranks that no computation hides.
    GradientAllreduceExposed,
    /// Collectives other than allreduces, forward and backward: a tensor changes its distribution.
    Redistribution,
    /// Reading of samples and moving them into the network.
    Io,
    /// The optimizer and its reductions.
    Update,
}

/// Seconds of the critical path by category.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Breakdown {
    /// [`Category::ForwardCompute`].
    pub forward_compute: Seconds,
    /// [`Category::ForwardExchange`].
    pub forward_exchange: Seconds,
    /// [`Category::BackwardCompute`].
    pub backward_compute: Seconds,
    /// [`Category::BackwardExchange`].
    pub backward_exchange: Seconds,
    /// [`Category::GradientAllreduceExposed`].
    pub gradient_allreduce_exposed: Seconds,
    /// [`Category::Redistribution`].
    pub redistribution: Seconds,
    /// [`Category::Io`].
    pub io: Seconds,
    /// [`Category::Update`].
    pub update: Seconds,
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

    /// The category of a task.
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
            Work::Exchange(_) => Self::of_communication(phase),
            Work::Collective(collective) => match collective.kind {
                CollectiveKind::AllReduce { .. } => Self::of_communication(phase),
                CollectiveKind::AllGather { .. }
                | CollectiveKind::ReduceScatter { .. }
                | CollectiveKind::AllToAll { .. } => match phase {
                    Phase::Forward | Phase::Backward => Category::Redistribution,
                    Phase::Load | Phase::Reduce | Phase::Update | Phase::Report => {
                        Self::of_communication(phase)
                    }
                },
            },
            Work::Load(_) | Work::Store(_) => Category::Io,
        }
    }

    fn of_communication(phase: Phase) -> Self {
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
            Category::GradientAllreduceExposed => "exposed gradient allreduce",
            Category::Redistribution => "redistribution",
            Category::Io => "input",
            Category::Update => "weight update",
        })
    }
}

impl Breakdown {
    /// The seconds of one category.
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

    pub(super) fn of_mut(&mut self, category: Category) -> &mut Seconds {
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

    /// The sum of all categories.
    pub fn total(&self) -> Seconds {
        Category::ALL
            .into_iter()
            .map(|category| self.of(category))
            .sum()
    }

    /// Every category times a factor.
    pub fn scaled(&self, factor: f64) -> Self {
        let mut scaled = Self::default();
        for category in Category::ALL {
            *scaled.of_mut(category) = self.of(category) * factor;
        }
        scaled
    }
}
