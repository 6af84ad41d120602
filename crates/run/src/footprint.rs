//! Memory of a rank by purpose.

use partita_program::{MemoryCategory, Program, memory_breakdown};
use partita_space::{Bytes, Rank};
use serde::{Deserialize, Serialize};
use std::iter::Sum;

/// Memory of a rank while it runs, by purpose: the contents of its arena at the peak, and the buffers outside
/// of the arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Footprint {
    /// Parameters and running statistics, packed forms included.
    pub weights: Bytes,
    /// Moments of the optimizer, and averages of the weights.
    pub optimizer: Bytes,
    /// Gradients of the weights.
    pub gradients: Bytes,
    /// Samples and targets as they were read.
    pub samples: Bytes,
    /// The rank's own part of tensors.
    pub activations: Bytes,
    /// Gradients of the rank's own part of tensors.
    pub activation_gradients: Bytes,
    /// Halos and padding around the own part of tensors.
    pub halos: Bytes,
    /// Workspaces of kernels, and sums over ranks.
    pub workspace: Bytes,
    /// Fragmentation: gaps between buffers at the peak.
    pub gaps: Bytes,
    /// Packets of messages and collectives, without the buffers of an MPI library.
    pub communication_buffers: Bytes,
    /// Read-ahead buffers of samples.
    pub io_buffers: Bytes,
    /// Times of steps and tasks, kept for the report.
    pub records: Bytes,
    /// Contexts of the device's runtime and libraries.
    #[serde(skip_serializing_if = "is_none")]
    pub context: Bytes,
    /// Limit of the workspace that a library of kernels allocates by itself.
    #[serde(skip_serializing_if = "is_none")]
    pub library_workspace: Bytes,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_none(bytes: &Bytes) -> bool {
    *bytes == Bytes(0)
}

impl Footprint {
    /// The footprint of a rank that runs only this program, and keeps no records.
    pub fn of(program: &Program, rank: Rank) -> Self {
        let body = program.body(rank);
        Self {
            communication_buffers: body.staging.packets(),
            io_buffers: body.staging.io,
            ..Self::of_arena(program, rank)
        }
    }

    /// The footprint of the rank with the largest.
    pub fn largest(program: &Program) -> Self {
        let largest = program.largest();
        largest.map_or_else(Self::default, |(_, rank)| Self::of(program, rank))
    }

    /// The contents of the arena only.
    fn of_arena(program: &Program, rank: Rank) -> Self {
        let coord = program.mesh.coord(rank);
        let items = memory_breakdown(program.body(rank), &program.mesh, &coord);
        let of = |category: MemoryCategory| items[category as usize];
        Self {
            weights: of(MemoryCategory::Weights),
            optimizer: of(MemoryCategory::Optimizer),
            gradients: of(MemoryCategory::Gradients),
            samples: of(MemoryCategory::Samples),
            activations: of(MemoryCategory::Activations),
            activation_gradients: of(MemoryCategory::ActivationGradients),
            halos: of(MemoryCategory::Halos),
            workspace: of(MemoryCategory::Scratch),
            gaps: of(MemoryCategory::Gaps),
            ..Self::default()
        }
    }

    /// All items with their names.
    pub fn items(&self) -> [(&'static str, Bytes); 14] {
        [
            (MemoryCategory::Weights.name(), self.weights),
            (MemoryCategory::Optimizer.name(), self.optimizer),
            (MemoryCategory::Gradients.name(), self.gradients),
            (MemoryCategory::Samples.name(), self.samples),
            (MemoryCategory::Activations.name(), self.activations),
            (
                MemoryCategory::ActivationGradients.name(),
                self.activation_gradients,
            ),
            (MemoryCategory::Halos.name(), self.halos),
            (MemoryCategory::Scratch.name(), self.workspace),
            (MemoryCategory::Gaps.name(), self.gaps),
            ("communication buffers", self.communication_buffers),
            ("input buffers", self.io_buffers),
            ("context", self.context),
            ("library workspace", self.library_workspace),
            ("records", self.records),
        ]
    }

    /// Sum of the items in the arena.
    pub fn arena(&self) -> Bytes {
        let all = self.items();
        all[..MemoryCategory::ALL.len()]
            .iter()
            .map(|item| item.1)
            .sum()
    }

    /// Sum of the items outside of the arena.
    pub fn beside_arena(&self) -> Bytes {
        let own = self.communication_buffers + self.io_buffers + self.records;
        own + self.context + self.library_workspace
    }

    /// Sum of all items.
    pub fn total(&self) -> Bytes {
        self.items().iter().map(|item| item.1).sum()
    }
}

impl Sum for Footprint {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |a, b| Self {
            weights: a.weights + b.weights,
            optimizer: a.optimizer + b.optimizer,
            gradients: a.gradients + b.gradients,
            samples: a.samples + b.samples,
            activations: a.activations + b.activations,
            activation_gradients: a.activation_gradients + b.activation_gradients,
            halos: a.halos + b.halos,
            workspace: a.workspace + b.workspace,
            gaps: a.gaps + b.gaps,
            communication_buffers: a.communication_buffers + b.communication_buffers,
            io_buffers: a.io_buffers + b.io_buffers,
            records: a.records + b.records,
            context: a.context + b.context,
            library_workspace: a.library_workspace + b.library_workspace,
        })
    }
}
