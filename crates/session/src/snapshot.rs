//! Snapshots of parameters, and their validation elsewhere while the training goes on.

use crate::persistent::{OwnedShard, evaluated};
use crate::validation::Evaluated;
use partita_program::{Body, Buffer, BufferId};
use partita_run::{Arena, PackedTensor, RunError};
use partita_space::Bytes;
use std::sync::Arc;

/// The parameters, or the averages of them, and running statistics of a rank at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    tensors: Vec<(BufferId, PackedTensor)>,
}

/// Bytes of the snapshot of a rank.
pub fn snapshot_bytes(body: &Body) -> Bytes {
    evaluated(body).fold(Bytes(0), |sum, (_, buffer)| sum + buffer.bytes())
}

impl Snapshot {
    /// Replaces it by what the arena holds.
    pub(crate) fn take(&mut self, body: &Body, arena: &mut Arena) {
        let memory = arena.memory(body);
        if self.tensors.is_empty() {
            let empty = |(id, buffer): (BufferId, &Buffer)| {
                let elements = buffer.dims.iter().product();
                (id, PackedTensor::with_capacity(buffer.dtype, elements))
            };
            self.tensors.extend(evaluated(body).map(empty));
        }
        for (id, values) in &mut self.tensors {
            values.resize(0);
            values.pack(&memory, &body.buffer(*id).view(*id));
        }
    }

    /// Puts it into the arena, and the arena's values into it.
    pub(crate) fn swap(&mut self, body: &Body, arena: &mut Arena) {
        let mut before = Self::default();
        before.take(body, arena);
        let memory = arena.memory(body);
        for (id, values) in &self.tensors {
            let view = body.buffer(*id).view(*id);
            match values {
                PackedTensor::F32(values) => memory.unpack(&view, values, false),
                PackedTensor::F64(values) => memory.unpack(&view, values, false),
                PackedTensor::Bf16(values) => memory.unpack(&view, values, false),
                PackedTensor::F16(values) => memory.unpack(&view, values, false),
                PackedTensor::I16(values) => memory.unpack(&view, values, false),
            }
        }
        *self = before;
    }

    /// The values of a shard of the rank, in memory order; `None` for one that a snapshot does not hold, as evaluations do
    /// not read it.
    pub fn shard(&self, shard: &OwnedShard) -> Option<&PackedTensor> {
        let found = self.tensors.iter().find(|(id, _)| *id == shard.id);
        found.map(|(_, values)| values)
    }
}

/// Validates snapshots elsewhere, one at a time. All answers but that of [`poll`](Self::poll) are the same on all ranks.
pub trait Validators {
    /// Whether the training needs the results of an epoch before the next one.
    fn is_awaited(&self) -> bool;

    /// Takes the snapshot of the end of an epoch. False if the ranks are to evaluate it themselves.
    ///
    /// Errors: another rank failed, or the run was cancelled.
    fn begin(&mut self, epoch: u64, snapshot: &Arc<Snapshot>) -> Result<bool, RunError>;

    /// The results of the last snapshot, on rank 0 and once they are there.
    fn poll(&mut self) -> Option<Evaluated>;

    /// Waits for the results of the last snapshot. None if they will not come: the ranks then evaluate it themselves.
    ///
    /// Errors: another rank failed, or the run was cancelled.
    fn finish(&mut self, epoch: u64) -> Result<Option<Evaluated>, RunError>;
}
