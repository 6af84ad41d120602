//! A program: bodies by class of ranks.

use crate::{
    Buffer, BufferId, Collective, Count, Dtype, Group, KernelShape, Load, Role, Staging, Task,
    View, Work,
};
use partita_space::{AxisSet, Bytes, Mesh, Rank};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What a program is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProgramKind {
    /// A step of training.
    Train,
    /// Loss and errors without training.
    Evaluate,
    /// Stores the outputs of the network before the loss; reads no targets.
    Infer,
    /// Reads the samples and targets of the first step of another program.
    Fetch,
    /// Reads the samples of the first step of a program that infers.
    FetchSamples,
}

impl ProgramKind {
    /// Whether targets are read besides samples.
    pub fn reads_targets(self) -> bool {
        match self {
            Self::Train | Self::Evaluate | Self::Fetch => true,
            Self::Infer | Self::FetchSamples => false,
        }
    }

    /// The kind of the program that reads the samples of the first step.
    pub fn fetch(self) -> Self {
        if self.reads_targets() {
            Self::Fetch
        } else {
            Self::FetchSamples
        }
    }
}

/// Name of the sum of the squares of all gradients, which a program in f16 has among its outputs.
pub const GRADIENT_SQUARES: &str = "gradient_squares";
/// Name of the cross-entropy beside a Dice loss, which an evaluation has among its outputs where either divides by sums
/// over several samples.
pub const ENTROPY: &str = "entropy";
/// Name of the sums of a Dice loss over several samples, which an evaluation has among its outputs.
pub const DICE_SUMS: &str = "dice_sums";

/// A result of a step, the same on all ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// `loss`, `errors`.
    pub name: String,
    /// Its view, in f64.
    pub view: View,
}

/// What one class of ranks does in a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Body {
    /// Memory; persistent buffers first.
    pub buffers: Vec<Buffer>,
    /// Tasks in a topological order; those of a lane start in this order.
    pub tasks: Vec<Task>,
    /// Results of the step.
    pub outputs: Vec<Output>,
    /// Size of the arena.
    pub arena: Bytes,
    /// Pools for messages and for prefetched samples, outside of the arena.
    pub staging: Staging,
}

impl Body {
    /// The kernel of a task of this body, with its buffers; none of a task of another lane.
    pub fn kernel_shape<'b>(&'b self, task: &'b Task) -> Option<KernelShape<'b>> {
        match &task.work {
            Work::Compute { kernel, .. } => Some(KernelShape {
                kernel,
                buffers: &self.buffers,
            }),
            Work::Exchange(_) | Work::Collective(_) | Work::Load(_) | Work::Store(_) => None,
        }
    }
}

/// What every rank does in a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// Model, batch and strategy, for people.
    pub title: String,
    /// What it is for.
    pub kind: ProgramKind,
    /// Type of the activations and parameters.
    pub dtype: Dtype,
    /// Samples per step over all ranks.
    pub batch: usize,
    /// The ranks.
    pub mesh: Mesh,
    /// Axes along which batch norms in training have statistics of their own, instead of common ones.
    pub local_statistics: AxisSet,
    /// One body per class of ranks.
    pub bodies: Vec<Body>,
    /// Class of each rank.
    pub class_of: Vec<u32>,
}

impl Body {
    /// The buffer of this id.
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.0 as usize]
    }

    /// All memory of a rank: its arena and its pools.
    pub fn memory(&self) -> Bytes {
        self.arena + self.staging.total()
    }

    /// The loads of samples, in the order of the tasks.
    pub fn loads(&self) -> impl Iterator<Item = &Load> {
        self.tasks.iter().filter_map(|task| match &task.work {
            Work::Load(load) => Some(load),
            Work::Compute { .. } | Work::Exchange(_) | Work::Collective(_) | Work::Store(_) => None,
        })
    }

    /// Whether a view is contiguous.
    pub fn is_dense(&self, view: &View) -> bool {
        let pitch = self.buffer(view.buffer).pitches();
        let last: usize = (0..5)
            .map(|dim| (view.extent[dim].max(1) - 1) * pitch[dim])
            .sum();
        view.is_empty() || last + 1 == view.volume()
    }

    /// Bytes of all buffers of a role, without sharing of memory.
    pub fn bytes_of(&self, role: Role) -> Bytes {
        self.buffers
            .iter()
            .filter(|buffer| buffer.role == role)
            .map(Buffer::bytes)
            .sum()
    }

    /// Exact counts of a step.
    pub fn count(&self) -> Count {
        self.tasks
            .iter()
            .map(|task| Count::of(task, &self.buffers))
            .sum()
    }
}

impl Program {
    /// The body of a rank.
    pub fn body(&self, rank: Rank) -> &Body {
        &self.bodies[self.class_of[rank] as usize]
    }

    /// The first rank of each class.
    pub fn representatives(&self) -> Vec<Rank> {
        let mut first = vec![usize::MAX; self.bodies.len()];
        for (rank, &class) in self.class_of.iter().enumerate().rev() {
            first[class as usize] = rank;
        }
        first
    }

    /// The group sizes of all collectives.
    pub fn group_sizes(&self) -> BTreeSet<usize> {
        let mut sizes = BTreeSet::new();
        for (body, rank) in self.bodies.iter().zip(self.representatives()) {
            let groups: BTreeSet<Group> = body
                .tasks
                .iter()
                .filter_map(|task| match &task.work {
                    Work::Collective(collective) => Some(collective.group()),
                    Work::Compute { .. } | Work::Exchange(_) | Work::Load(_) | Work::Store(_) => {
                        None
                    }
                })
                .collect();
            sizes.extend(
                groups
                    .iter()
                    .map(|group| group.members(&self.mesh, rank).len()),
            );
        }
        sizes
    }

    /// The body with the most memory, and the first rank of its class.
    pub fn largest(&self) -> Option<(&Body, Rank)> {
        let bodies = self.bodies.iter().zip(self.representatives());
        bodies.max_by_key(|(body, _)| body.memory())
    }

    /// Number of tasks of all classes.
    pub fn tasks(&self) -> usize {
        self.bodies.iter().map(|body| body.tasks.len()).sum()
    }

    /// Number of views that the messages and collectives of all classes send and receive.
    pub fn views_moved(&self) -> usize {
        let tasks = self.bodies.iter().flat_map(|body| &body.tasks);
        let views = tasks.map(|task| match &task.work {
            Work::Exchange(exchange) => exchange.sends.len() + exchange.receives.len(),
            Work::Collective(Collective { kind, .. }) => {
                kind.sources().len() + kind.targets().len()
            }
            Work::Compute { .. } | Work::Load(_) | Work::Store(_) => 0,
        });
        views.sum()
    }

    /// Number of ranks in each class.
    pub fn class_sizes(&self) -> Vec<usize> {
        let mut sizes = vec![0; self.bodies.len()];
        for &class in &self.class_of {
            sizes[class as usize] += 1;
        }
        sizes
    }

    /// Exact counts of a step over all ranks.
    pub fn count(&self) -> Count {
        let sizes = self.class_sizes();
        self.bodies
            .iter()
            .zip(sizes)
            .map(|(body, ranks)| body.count() * ranks as u64)
            .sum()
    }

    /// Memory of the rank that needs most.
    pub fn memory_max(&self) -> Bytes {
        self.bodies
            .iter()
            .map(Body::memory)
            .max()
            .unwrap_or_default()
    }
}
