//! Breakdown of the memory of a rank by category.

use crate::{Body, Buffer, BufferId, Role};
use partita_space::{Bytes, Coord, Mesh};

/// Category of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryCategory {
    /// Parameters and running statistics, also gathered and packed ones.
    Weights,
    /// Optimizer state, and averages of parameters.
    Optimizer,
    /// Gradients of parameters.
    Gradients,
    /// Samples and targets as stored in the dataset.
    Samples,
    /// Activations: the owned regions.
    Activations,
    /// Gradients of activations: the owned regions.
    ActivationGradients,
    /// Halos and padding around both.
    Halos,
    /// Workspace of kernels, and sums over ranks.
    Scratch,
    /// Fragmentation: unused memory between buffers at the peak.
    Gaps,
}

impl MemoryCategory {
    /// All, in the order of reports.
    pub const ALL: [MemoryCategory; 9] = [
        Self::Weights,
        Self::Optimizer,
        Self::Gradients,
        Self::Samples,
        Self::Activations,
        Self::ActivationGradients,
        Self::Halos,
        Self::Scratch,
        Self::Gaps,
    ];

    /// Category of a buffer, without its halo.
    pub fn of(role: Role) -> Self {
        match role {
            Role::Parameter
            | Role::State
            | Role::Constant
            | Role::PackedWeights
            | Role::Gathered => Self::Weights,
            Role::Optimizer | Role::Average => Self::Optimizer,
            Role::Gradient => Self::Gradients,
            Role::Staging => Self::Samples,
            Role::Activation => Self::Activations,
            Role::ActivationGradient => Self::ActivationGradients,
            Role::Statistics | Role::Workspace => Self::Scratch,
        }
    }

    /// Its words in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Weights => "weights",
            Self::Optimizer => "optimizer",
            Self::Gradients => "gradients of weights",
            Self::Samples => "samples as read",
            Self::Activations => "activations",
            Self::ActivationGradients => "their gradients",
            Self::Halos => "halos and padding",
            Self::Scratch => "workspace and sums",
            Self::Gaps => "gaps",
        }
    }
}

/// Bytes of each of [`MemoryCategory::ALL`]; they sum to the arena.
pub type MemoryBreakdown = [Bytes; 9];

/// Memory of the rank at `coord` at its peak.
pub fn memory_breakdown(body: &Body, mesh: &Mesh, coord: &Coord) -> MemoryBreakdown {
    let mut items = MemoryBreakdown::default();
    for id in live_at_peak(body) {
        let buffer = body.buffer(id);
        let halo = halo_bytes(buffer, mesh, coord);
        items[MemoryCategory::of(buffer.role) as usize] += Bytes(buffer.bytes().0 - halo.0);
        items[MemoryCategory::Halos as usize] += halo;
    }
    let sum: Bytes = items.iter().copied().sum();
    items[MemoryCategory::Gaps as usize] = Bytes(body.arena.0.saturating_sub(sum.0));
    items
}

/// The buffers that are live at the peak of memory.
///
/// A buffer lives from the first to the last task that accesses it, a persistent one always.
pub fn live_at_peak(body: &Body) -> Vec<BufferId> {
    let last = body.tasks.len().saturating_sub(1);
    let always = |role: Role| role.is_persistent().then_some((0, last));
    let lives = body.buffers.iter().map(|buffer| always(buffer.role));
    let mut lives: Vec<Option<(usize, usize)>> = lives.collect();
    let mut touch = |id: BufferId, at: usize| {
        let life = &mut lives[id.0 as usize];
        let (birth, death) = life.unwrap_or((at, at));
        *life = Some((birth.min(at), death.max(at)));
    };
    for (at, task) in body.tasks.iter().enumerate() {
        for (view, _) in task.accesses() {
            touch(view.buffer, at);
        }
    }
    for output in &body.outputs {
        touch(output.view.buffer, last);
    }
    // Bytes that become live or dead at each task.
    let mut changes = vec![0i64; last + 2];
    for (buffer, life) in body.buffers.iter().zip(&lives) {
        if let Some((birth, death)) = *life {
            changes[birth] += buffer.bytes().0 as i64;
            changes[death + 1] -= buffer.bytes().0 as i64;
        }
    }
    let (mut held, mut most, mut peak) = (0, i64::MIN, 0);
    for (at, change) in changes[..=last].iter().enumerate() {
        held += change;
        if held > most {
            (most, peak) = (held, at);
        }
    }
    let is_live = |&(_, life): &(usize, &Option<(usize, usize)>)| {
        life.is_some_and(|(birth, death)| birth <= peak && peak <= death)
    };
    let live = lives.iter().enumerate().filter(is_live);
    live.map(|(id, _)| BufferId(id as u32)).collect()
}

/// Bytes of the halo and padding of a buffer.
fn halo_bytes(buffer: &Buffer, mesh: &Mesh, coord: &Coord) -> Bytes {
    let Some(tensor) = &buffer.tensor else {
        return Bytes(0);
    };
    let is_tensor = match MemoryCategory::of(buffer.role) {
        MemoryCategory::Activations | MemoryCategory::ActivationGradients => true,
        MemoryCategory::Weights
        | MemoryCategory::Optimizer
        | MemoryCategory::Gradients
        | MemoryCategory::Samples
        | MemoryCategory::Halos
        | MemoryCategory::Scratch
        | MemoryCategory::Gaps => false,
    };
    let owned = tensor.distribution.owned(mesh, coord).volume();
    let all = buffer.dims.iter().product::<usize>();
    if is_tensor {
        Bytes((all.saturating_sub(owned) * buffer.dtype.size()) as u64)
    } else {
        Bytes(0)
    }
}
