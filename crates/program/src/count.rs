//! Exact counts of what a program does.

use crate::{Buffer, Kernel, Task, View, Work};
use partita_space::{Bytes, Flops};
use serde::{Deserialize, Serialize};
use std::iter::Sum;
use std::ops::{Add, AddAssign, Mul};

/// What a task, a body or a program does, exactly. The run counts the same from its own loops and
/// message lengths, and the two must agree; only the bytes of fused kernels are not counted there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// Arithmetic by the rules of [`Count::of`].
    pub flops: Flops,
    /// Bytes that kernels read, each view once.
    pub read: Bytes,
    /// Bytes that kernels write, each view once.
    pub written: Bytes,
    /// Point-to-point messages sent.
    pub messages: u64,
    /// Their payload.
    pub message_bytes: Bytes,
    /// Number of collectives.
    pub collectives: u64,
    /// Bytes that the rank contributes to them.
    pub collective_bytes: Bytes,
    /// Bytes read from the dataset, as stored in the staging buffer.
    pub load_bytes: Bytes,
    /// Bytes of predictions stored.
    #[serde(default)]
    pub store_bytes: Bytes,
}

impl Add for Count {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            flops: self.flops + other.flops,
            read: self.read + other.read,
            written: self.written + other.written,
            messages: self.messages + other.messages,
            message_bytes: self.message_bytes + other.message_bytes,
            collectives: self.collectives + other.collectives,
            collective_bytes: self.collective_bytes + other.collective_bytes,
            load_bytes: self.load_bytes + other.load_bytes,
            store_bytes: self.store_bytes + other.store_bytes,
        }
    }
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sum for Count {
    fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
        items.fold(Self::default(), Add::add)
    }
}

impl Mul<u64> for Count {
    type Output = Self;
    fn mul(self, factor: u64) -> Self {
        Self {
            flops: self.flops * factor,
            read: self.read * factor,
            written: self.written * factor,
            messages: self.messages * factor,
            message_bytes: self.message_bytes * factor,
            collectives: self.collectives * factor,
            collective_bytes: self.collective_bytes * factor,
            load_bytes: self.load_bytes * factor,
            store_bytes: self.store_bytes * factor,
        }
    }
}

impl Count {
    /// Counts of one task.
    ///
    /// Flops: a convolution or linear layer in any direction 2 per multiply-add of the unclipped
    /// window (padding included); attention 2 per multiply-add of its products of matrices, masked
    /// pairs included, two of them forward, and backward two and one for each wanted gradient; a
    /// pooling one per tap and output; memory-bound kernels a fixed number per element (see
    /// [`Kernel::descriptor`]). Bytes: every view that is read or written once;
    /// a view that is updated counts as both; workspace does not count.
    pub fn of(task: &Task, buffers: &[Buffer]) -> Self {
        WideCount::of(task, buffers).narrow()
    }

    /// Counts of one kernel.
    pub fn of_kernel(kernel: &Kernel, buffers: &[Buffer]) -> Self {
        WideCount::of_kernel(kernel, buffers).narrow()
    }
}

/// A [`Count`] in 128 bits, by which a program is checked before it is counted; fields in the same order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WideCount([u128; 9]);

impl WideCount {
    const NAMES: [&'static str; 9] = [
        "flops",
        "bytes read",
        "bytes written",
        "messages",
        "bytes of messages",
        "collectives",
        "bytes of collectives",
        "bytes loaded",
        "bytes stored",
    ];

    pub(crate) fn of(task: &Task, buffers: &[Buffer]) -> Self {
        let mut count = [0; 9];
        let bytes = |view: &View| u128::from(view.bytes(buffers).0);
        match &task.work {
            Work::Compute { kernel, .. } => return Self::of_kernel(kernel, buffers),
            Work::Exchange(exchange) => {
                count[3] = exchange.sends.len() as u128;
                count[4] = exchange.sends.iter().map(|send| bytes(&send.view)).sum();
            }
            Work::Collective(collective) => {
                count[5] = 1;
                count[6] = u128::from(collective.kind.sources().bytes(buffers).0);
            }
            Work::Load(load) => count[7] = bytes(&load.target),
            Work::Store(store) => count[8] = bytes(&store.source),
        }
        Self(count)
    }

    fn of_kernel(kernel: &Kernel, buffers: &[Buffer]) -> Self {
        let mut count = [0; 9];
        count[0] = kernel.descriptor().flops;
        for (view, access) in kernel.accesses() {
            let bytes = u128::from(view.bytes(buffers).0);
            if access.reads() {
                count[1] += bytes;
            }
            if access.writes() {
                count[2] += bytes;
            }
        }
        Self(count)
    }

    /// Adds `times` times another count.
    pub(crate) fn add(&mut self, other: &Self, times: usize) {
        for (sum, one) in self.0.iter_mut().zip(other.0) {
            *sum = sum.saturating_add(one.saturating_mul(times as u128));
        }
    }

    /// Name and value of the first field that does not fit in 64 bits.
    pub(crate) fn too_many(&self) -> Option<(&'static str, u128)> {
        let mut named = Self::NAMES.into_iter().zip(self.0);
        named.find(|&(_, number)| number > u128::from(u64::MAX))
    }

    fn narrow(self) -> Count {
        let [
            flops,
            read,
            written,
            messages,
            message_bytes,
            collectives,
            collective_bytes,
            load_bytes,
            store_bytes,
        ] = self.0.map(|number| {
            u64::try_from(number).expect("the sizes of a program are bounded before it is counted")
        });
        Count {
            flops: Flops(flops),
            read: Bytes(read),
            written: Bytes(written),
            messages,
            message_bytes: Bytes(message_bytes),
            collectives,
            collective_bytes: Bytes(collective_bytes),
            load_bytes: Bytes(load_bytes),
            store_bytes: Bytes(store_bytes),
        }
    }
}
