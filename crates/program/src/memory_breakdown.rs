//! What the memory of a rank is for.

use crate::{Body, Buffer, BufferId, Role};
use partita_space::{Bytes, Coord, Mesh};

/// What memory of a rank is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryCategory {
    /// Parameters and running statistics, and forms of them that kernels want.
    Weights,
    /// Moments of the optimizer.
    Optimizer,
    /// Of the weights.
    Gradients,
    /// Samples and targets as they were read.
    Samples,
    /// Values of tensors: a rank's own part.
    Activations,
    /// Their gradients, a rank's own part.
    ActivationGradients,
    /// What is held around the own part of either: halos that messages bring, and padding.
    Halos,
    /// Scratch of kernels, and sums over ranks.
    Scratch,
    /// What lies between buffers when most is held.
    Gaps,
}

impl MemoryCategory {
    /// All, in the order of the bars.
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

    /// Under which a buffer is listed, but for what is held around the own part of a tensor.
    pub fn of(role: Role) -> Self {
        match role {
            Role::Parameter | Role::State | Role::PackedWeights | Role::Gathered => Self::Weights,
            Role::Optimizer => Self::Optimizer,
            Role::Gradient => Self::Gradients,
            Role::Staging => Self::Samples,
            Role::Activation => Self::Activations,
            Role::ActivationGradient => Self::ActivationGradients,
            Role::Statistics | Role::Workspace => Self::Scratch,
        }
    }

    /// The words for it.
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

/// Bytes under each of [`MemoryCategory::ALL`]; they sum to the arena.
pub type MemoryBreakdown = [Bytes; 9];

/// What the rank at `coord` holds when it holds most.
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

/// The buffers that are live when most is held.
///
/// Buffers live from the first task that touches them to the last, and those of a run always.
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
    // Bytes that come and go with each task.
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

/// Bytes of a tensor's buffer around what the rank owns.
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
