//! Memory of a rank by what it is for.

use partita_program::{MemoryCategory, Program, memory_breakdown};
use partita_space::{Bytes, Rank};
use serde::{Deserialize, Serialize};
use std::iter::Sum;

/// Memory of a rank while it plays, by what it is for: what lies in its arena when that holds most, and
/// the buffers beside the arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Footprint {
    /// Parameters and running statistics, and forms of them that kernels want.
    pub weights: Bytes,
    /// Moments.
    pub optimizer: Bytes,
    /// Of the weights.
    pub gradients: Bytes,
    /// Samples and targets as they were read.
    pub samples: Bytes,
    /// A rank's own part of tensors.
    pub activations: Bytes,
    /// Of the tensors.
    pub activation_gradients: Bytes,
    /// What is held around the own part of tensors: halos that messages bring, and padding.
    pub halos: Bytes,
    /// Scratch of kernels, and sums over ranks.
    pub workspace: Bytes,
    /// What lies between buffers when most is held.
    pub gaps: Bytes,
    /// Packets of messages and collectives; those of an MPI library itself are not among them.
    pub communication_buffers: Bytes,
    /// Pieces of samples on their way from files.
    pub io_buffers: Bytes,
    /// Times of steps and tasks, which a run keeps for its report.
    pub records: Bytes,
}

impl Footprint {
    /// Of a rank that plays this program alone, and keeps no records.
    pub fn of(program: &Program, rank: Rank) -> Self {
        let body = program.body(rank);
        Self {
            communication_buffers: body.staging.packets(),
            io_buffers: body.staging.io,
            ..Self::of_arena(program, rank)
        }
    }

    /// Of the rank that needs most.
    pub fn largest(program: &Program) -> Self {
        let largest = program.largest();
        largest.map_or_else(Self::default, |(_, rank)| Self::of(program, rank))
    }

    /// What lies in the arena, without the buffers beside it.
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

    /// All items with the words for them.
    pub fn items(&self) -> [(&'static str, Bytes); 12] {
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
            ("records", self.records),
        ]
    }

    /// Of the arena.
    pub fn arena(&self) -> Bytes {
        let all = self.items();
        all[..MemoryCategory::ALL.len()]
            .iter()
            .map(|item| item.1)
            .sum()
    }

    /// Of all buffers beside the arena.
    pub fn beside_arena(&self) -> Bytes {
        self.communication_buffers + self.io_buffers + self.records
    }

    /// Of all.
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
        })
    }
}
