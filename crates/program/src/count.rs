use crate::{Buffer, Kernel, Optimizer, Taps, Task, View, Work};
use partita_space::{Bytes, Flops};
use serde::{Deserialize, Serialize};
use std::iter::Sum;
use std::ops::{Add, AddAssign, Mul};

/// What a task, a body or a program does, exactly. The run counts the same from its own loops and
/// message lengths, and the two must agree.
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
    /// Collectives taken part in.
    pub collectives: u64,
    /// What the rank gives to them.
    pub collective_bytes: Bytes,
    /// Bytes read from the dataset, as stored in the staging buffer.
    pub load_bytes: Bytes,
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
            flops: Flops(self.flops.0 * factor),
            read: self.read * factor,
            written: self.written * factor,
            messages: self.messages * factor,
            message_bytes: self.message_bytes * factor,
            collectives: self.collectives * factor,
            collective_bytes: self.collective_bytes * factor,
            load_bytes: self.load_bytes * factor,
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
    /// `flops_per_element`). Bytes: every view that is read or written once;
    /// a view that is updated counts as both; workspace does not count.
    pub fn of(task: &Task, buffers: &[Buffer]) -> Self {
        let mut count = Self::default();
        match &task.work {
            Work::Compute { kernel, .. } => return Self::of_kernel(kernel, buffers),
            Work::Exchange(exchange) => {
                for send in &exchange.sends {
                    count.messages += 1;
                    count.message_bytes += send.view.bytes(buffers);
                }
            }
            Work::Collective(collective) => {
                count.collectives = 1;
                let given = collective.kind.sources().iter();
                count.collective_bytes = given.map(|view| view.bytes(buffers)).sum();
            }
            Work::Load(load) => count.load_bytes = load.target.bytes(buffers),
        }
        count
    }

    /// Counts of one kernel.
    pub fn of_kernel(kernel: &Kernel, buffers: &[Buffer]) -> Self {
        let mut count = Self {
            flops: flops(kernel),
            ..Self::default()
        };
        kernel.each_access(&mut |view, access| {
            let bytes = view.bytes(buffers);
            if access.reads() {
                count.read += bytes;
            }
            if access.writes() {
                count.written += bytes;
            }
        });
        count
    }
}

/// Of outputs that read `inputs` channels in so many groups; weights may be packed and say nothing.
fn convolution(outputs: &View, inputs: usize, groups: usize, taps: &Taps) -> u64 {
    (2 * outputs.volume() * taps.volume() * (inputs / groups.max(1))) as u64
}

fn linear(rows: &View, w: &View) -> u64 {
    (2 * rows.extent[0] * w.extent[3] * w.extent[4]) as u64
}

/// Of so many products of matrices over all heads.
fn attention(q: &View, k: &View, products: usize) -> u64 {
    (2 * products * q.volume() * k.extent[3]) as u64
}

fn flops(kernel: &Kernel) -> Flops {
    Flops(match kernel {
        Kernel::Fused { parts } => parts.iter().map(|part| flops(part).0).sum(),
        Kernel::ConvolutionForward {
            x, y, taps, groups, ..
        } => convolution(y, x.extent[4], *groups, taps),
        Kernel::ConvolutionBackwardData {
            dy,
            dx,
            taps,
            groups,
            ..
        } => convolution(dy, dx.extent[4], *groups, taps),
        Kernel::ConvolutionBackwardWeight {
            x,
            dy,
            taps,
            groups,
            ..
        } => convolution(dy, x.extent[4], *groups, taps),
        Kernel::LinearForward { x, w, .. } => linear(x, w),
        Kernel::LinearBackwardData { dy, w, .. } => linear(dy, w),
        Kernel::LinearBackwardWeight { dy, dw, .. } => linear(dy, dw),
        Kernel::AttentionForward { q, k, .. } => attention(q, k, 2),
        Kernel::AttentionBackward {
            q, k, dq, dk, dv, ..
        } => {
            let wanted = [dq, dk, dv].into_iter().flatten().count();
            attention(q, k, 2 + wanted)
        }
        Kernel::PoolForward { y, taps, .. } => (y.volume() * taps.volume()) as u64,
        Kernel::PoolBackward { dy, taps, .. } => (dy.volume() * taps.volume()) as u64,
        Kernel::SumOfSquares { sources, .. } => {
            sources.iter().map(|view| 2 * view.volume() as u64).sum()
        }
        Kernel::BatchNormRunning { .. }
        | Kernel::BatchNormBackwardParameters { .. }
        | Kernel::Fill { .. }
        | Kernel::Copy { .. }
        | Kernel::Import { .. }
        | Kernel::PackWeights { .. }
        | Kernel::BiasBackward { .. }
        | Kernel::BatchNormStatistics { .. }
        | Kernel::BatchNormForward { .. }
        | Kernel::BatchNormInference { .. }
        | Kernel::BatchNormBackwardStatistics { .. }
        | Kernel::BatchNormBackwardData { .. }
        | Kernel::LeakyReluForward { .. }
        | Kernel::LeakyReluBackward { .. }
        | Kernel::Dropout { .. }
        | Kernel::Add { .. }
        | Kernel::EmbeddingForward { .. }
        | Kernel::EmbeddingBackward { .. }
        | Kernel::Positions { .. }
        | Kernel::LayerNormStatistics { .. }
        | Kernel::LayerNormForward { .. }
        | Kernel::LayerNormBackwardStatistics { .. }
        | Kernel::LayerNormBackwardData { .. }
        | Kernel::LayerNormBackwardParameters { .. }
        | Kernel::GeluForward { .. }
        | Kernel::GeluBackward { .. }
        | Kernel::MeanSquaredError { .. }
        | Kernel::SoftmaxCrossEntropy { .. }
        | Kernel::OutputErrors { .. }
        | Kernel::ClassCounts { .. }
        | Kernel::Update { .. } => {
            let (elements, each) = flops_per_element(kernel);
            elements.volume() as u64 * each
        }
    })
}

/// The view whose elements are counted, and the flops for each.
fn flops_per_element(kernel: &Kernel) -> (&View, u64) {
    match kernel {
        Kernel::Fill { target, .. } => (target, 0),
        Kernel::Copy {
            target, accumulate, ..
        } => (target, u64::from(*accumulate)),
        Kernel::Import { target, .. } => (target, 1),
        Kernel::PackWeights { packed, .. } => (packed, 0),
        Kernel::BiasBackward { dy, .. } => (dy, 1),
        Kernel::BatchNormStatistics { x, .. } => (x, 3),
        Kernel::BatchNormForward { x, .. } | Kernel::BatchNormInference { x, .. } => (x, 2),
        Kernel::BatchNormRunning { mean, .. } => (mean, 8),
        Kernel::BatchNormBackwardStatistics { x, .. } => (x, 5),
        Kernel::BatchNormBackwardData { x, .. } => (x, 6),
        Kernel::BatchNormBackwardParameters { dgamma, .. } => (dgamma, 2),
        Kernel::LeakyReluForward { x, .. } => (x, 1),
        Kernel::LeakyReluBackward { dy, .. } => (dy, 1),
        Kernel::Dropout { x, .. } => (x, 1),
        Kernel::Add { y, .. } => (y, 1),
        Kernel::EmbeddingForward { y, .. } => (y, 0),
        Kernel::EmbeddingBackward { dy, .. } => (dy, 1),
        Kernel::Positions { y, .. } => (y, 1),
        Kernel::LayerNormStatistics { x, .. } => (x, 3),
        Kernel::LayerNormForward { x, .. } => (x, 4),
        Kernel::LayerNormBackwardStatistics { x, .. } => (x, 6),
        Kernel::LayerNormBackwardData { x, .. } => (x, 7),
        Kernel::LayerNormBackwardParameters { x, .. } => (x, 5),
        // With an error function, and its derivative.
        Kernel::GeluForward { x, .. } => (x, 20),
        Kernel::GeluBackward { x, .. } => (x, 30),
        Kernel::MeanSquaredError { x, .. } => (x, 4),
        Kernel::SoftmaxCrossEntropy { x, .. } => (x, 5),
        Kernel::OutputErrors { x, .. } => (x, 4),
        Kernel::ClassCounts { x, .. } => (x, 1),
        Kernel::Update {
            rule, parameter, ..
        } => match rule {
            Optimizer::Sgd { .. } => (parameter, 6),
            Optimizer::Adam { .. } => (parameter, 14),
        },
        Kernel::ConvolutionForward { .. }
        | Kernel::ConvolutionBackwardData { .. }
        | Kernel::ConvolutionBackwardWeight { .. }
        | Kernel::PoolForward { .. }
        | Kernel::PoolBackward { .. }
        | Kernel::LinearForward { .. }
        | Kernel::LinearBackwardData { .. }
        | Kernel::LinearBackwardWeight { .. }
        | Kernel::AttentionForward { .. }
        | Kernel::AttentionBackward { .. }
        | Kernel::SumOfSquares { .. }
        | Kernel::Fused { .. } => panic!("{} is not counted by element", kernel.name()),
    }
}
