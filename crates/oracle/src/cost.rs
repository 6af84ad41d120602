//! Costs in seconds of kernels, messages, collectives and reads. One formula per file; an unknown cost is
//! an error.

pub mod collective;
mod crossing;
pub mod kernel;
mod layers;
pub mod link;
mod machine;
mod measured;
mod measurements;
pub mod precision;
pub mod samples;
pub mod saturation;
mod scaled;
mod software;
mod times;

pub use layers::{LayerFactors, PassFactors};
pub use machine::MachineCosts;
pub use measured::{MeasuredCosts, StoreFit};
pub use measurements::{KernelTimes, rough_seconds};
pub use samples::{LoadCost, SampleRead};
pub use scaled::{ScaledCosts, SpeedFactors};
pub use software::SoftwareCosts;
pub use times::{LinkSizes, LinkTimes, host_seconds_per_byte};

use crate::uncertainty::Uncertainty;
use partita_cluster::LayerPrecision;
use partita_program::{Algorithm, Count, Dtype, KernelShape, Origin};
use partita_space::{Bytes, Help, Rank, Seconds};
use serde::{Deserialize, Serialize};

/// What the costs of a machine are based on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CostBasis {
    /// Formulas over the facts of a machine file.
    Modeled,
    /// Measurements of the program's kernels and links on the machine itself.
    Measured,
    /// Models fitted to measurements of other kernels on the machine itself.
    Calibrated,
}

/// The cost of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MessageCost {
    /// Time of an empty message.
    pub latency: Seconds,
    /// Time of its bytes on the link.
    pub transfer: Seconds,
    /// Host overhead at each end: packing at the sender, unpacking at the receiver. The compute lane
    /// loses it.
    pub host: Seconds,
}

/// The cost of a collective from the start of its last member.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CollectiveCost {
    /// The part that is independent of the bytes.
    pub latency: Seconds,
    /// The part that depends on them.
    pub transfer: Seconds,
    /// The least such part of the algorithms of which the fastest is taken: what keeps links busy in any case.
    pub transfer_min: Seconds,
    /// Host overhead at each member, which the compute lane loses.
    pub host: Seconds,
}

/// Block sizes of an all-to-all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AlltoallBlocks {
    /// The largest block from one member to another.
    pub largest: Bytes,
    /// All blocks of the member that sends most, including the one to itself.
    pub given: Bytes,
}

/// The cost of a kernel. Ranks of a node share its memory bandwidth, and often its cores.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KernelCost {
    /// Time while no other rank of its node computes.
    pub alone: Seconds,
    /// Time while all of them compute.
    pub together: Seconds,
    /// What it is based on.
    pub basis: KernelBasis,
}

/// What the cost of a kernel is based on, most reliable first.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum KernelBasis {
    /// A measurement of this kernel.
    Measured,
    /// An estimate from measured kernels of similar shapes.
    Estimated,
    /// A formula over facts of the machine.
    #[default]
    Modeled,
    /// An estimate from measured kernels none of which has a similar shape.
    #[serde(rename = "outside")]
    Extrapolated,
}

impl KernelCost {
    /// The cost of a kernel that shares nothing with other ranks.
    pub fn uncontended(seconds: Seconds) -> Self {
        Self {
            alone: seconds,
            together: seconds,
            basis: KernelBasis::Modeled,
        }
    }

    /// The cost with all times multiplied.
    pub fn scaled(self, factor: f64) -> Self {
        Self {
            alone: self.alone * factor,
            together: self.together * factor,
            basis: self.basis,
        }
    }

    /// Time beside the kernels of other ranks of its node, of which there are `ranks`: linear between `alone` and
    /// `together`. `others` is the number of ranks that slow it down as much as its own kind does.
    pub fn beside(&self, others: f64, ranks: usize) -> Seconds {
        if ranks <= 1 {
            return self.alone;
        }
        let share = (others / (ranks - 1) as f64).clamp(0.0, 1.0);
        self.alone + (self.together - self.alone) * share
    }
}

impl MessageCost {
    /// Time from the later of the two starts to arrival.
    pub fn seconds(&self) -> Seconds {
        self.latency + self.transfer
    }
}

impl CollectiveCost {
    /// Time from the last start to completion.
    pub fn seconds(&self) -> Seconds {
        self.latency + self.transfer
    }
}

/// How communication makes progress, and with it whether collectives of one group run at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The thread that computes moves messages between its kernels; whatever completes during a kernel is
    /// noticed at its end. All collectives that have started run at once. So it is with ranks as threads and
    /// with MPI.
    Polled,
    /// The library makes progress by itself, and runs the collectives of a group one after the other, in the
    /// order in which they start. So it is with NCCL, where a group has a communicator of its own.
    Queued,
}

/// What the ranks of a node share while they compute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Contention {
    /// The bandwidth of its memory: what moves little beside a kernel slows it down less than its own kind, which
    /// is what was measured.
    #[default]
    Memory,
    /// What computes, a device or fewer cores than they have threads: every kernel slows others down alike.
    Units,
}

impl Contention {
    /// By which share of its slowdown beside its own kind a kernel is slowed down beside another one, from 0 to 1.
    /// Traffic is in bytes per second, of kernels that run alone.
    ///
    /// Source: max-min fair sharing, in which no kernel gets less than beside its own kind.
    pub fn share(self, traffic: f64, of_other: f64) -> f64 {
        match self {
            Self::Memory if of_other < traffic => of_other / traffic,
            Self::Memory | Self::Units => 1.0,
        }
    }
}

/// Why a cost is unknown.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CostError {
    /// A kernel was not measured.
    #[error("algorithm `{algorithm}` of {signature} was not measured; measure it first")]
    Kernel {
        /// The kernel and its shapes.
        signature: String,
        /// The algorithm that the task pins.
        algorithm: String,
    },
    /// The machine file gives no rate for a dtype.
    #[error("machine `{machine}` has no rate for {kernel} in {dtype:?}; only f32 is described")]
    Dtype {
        /// The machine.
        machine: String,
        /// Kind of kernel.
        kernel: &'static str,
        /// Its dtype.
        dtype: Dtype,
    },
    /// The device does not compute in a precision.
    #[error(
        "machine `{machine}` has no rate in {asked}{reason}{}",
        Help::possible(possible).maybe_nearest(key.as_ref().map(|key| format!("`{key}` in its file")))
    )]
    Precision {
        /// The machine.
        machine: String,
        /// The word of the precision.
        asked: &'static str,
        /// The precisions that it has.
        possible: String,
        /// Why there are no more, if it cannot be changed.
        reason: String,
        /// The key of the rate in the machine file, if one may be added.
        key: Option<String>,
    },
    /// The machine file lacks a number.
    #[error("machine `{machine}` does not say `{key}`, which is needed for {purpose}")]
    Missing {
        /// The machine.
        machine: String,
        /// Key in its file.
        key: &'static str,
        /// What cannot be costed.
        purpose: String,
    },
    /// No fit of a collective for this many members.
    #[error("no fit of {kind} over {members} ranks; fits exist for {fitted:?} ranks")]
    Collective {
        /// The collective.
        kind: &'static str,
        /// Members of the group.
        members: usize,
        /// Group sizes for which there is a fit.
        fitted: Vec<usize>,
    },
    /// No fit of messages or reads.
    #[error("no fit of {what} was given")]
    Fit {
        /// `messages` or `reads`.
        what: &'static str,
    },
    /// More ranks than devices.
    #[error("machine `{machine}` has {devices} devices, too few for {ranks} ranks")]
    Capacity {
        /// The machine.
        machine: String,
        /// Ranks of the program.
        ranks: usize,
        /// Devices of the machine.
        devices: usize,
    },
}

/// Costs of everything that a rank does.
pub trait Costs: Send + Sync {
    /// What the costs are based on.
    fn basis(&self) -> CostBasis;

    /// How sure they are, for a program of this many ranks.
    fn uncertainty(&self, ranks: usize) -> Uncertainty;

    /// How communication makes progress.
    fn progress(&self) -> Progress;

    /// What the ranks of a node share while they compute.
    fn contention(&self) -> Contention;

    /// The precision of layers, by which [`precision`] scales what is moved and held.
    fn precision(&self) -> LayerPrecision;

    /// Errors: more ranks than devices.
    fn check_capacity(&self, ranks: usize) -> Result<(), CostError>;

    /// The node of a rank. Ranks of a node share its network adapters.
    fn node(&self, rank: Rank) -> usize;

    /// The kind of link between two ranks. Equal messages over links of one kind have equal costs, and so have equal
    /// collectives of groups with equal layouts on nodes and equal links between their first and last member.
    fn link(&self, a: Rank, b: Rank) -> u32;

    /// A kernel. `count` is that of the task.
    fn kernel(
        &self,
        shape: &KernelShape<'_>,
        algorithm: &Algorithm,
        count: &Count,
    ) -> Result<KernelCost, CostError>;

    /// By what the cost of a kernel of this task is multiplied; 1 unless times of layers were given.
    fn layer_factor(&self, origin: &Origin) -> f64;

    /// A message. `contention >= 1` is the factor by which other messages lengthen its time on the
    /// network adapters of a node ([`link::fair_sharing`]).
    fn message(
        &self,
        from: Rank,
        to: Rank,
        bytes: Bytes,
        contention: f64,
    ) -> Result<MessageCost, CostError>;

    /// An allreduce of `bytes`. `contention >= 1` is the number of groups that run this collective at the
    /// same time over the network adapters of a node.
    fn allreduce(
        &self,
        members: &[Rank],
        bytes: Bytes,
        contention: f64,
    ) -> Result<CollectiveCost, CostError>;

    /// An allgather. `contention` as for the allreduce.
    fn allgather(
        &self,
        members: &[Rank],
        bytes_per_member: &[Bytes],
        contention: f64,
    ) -> Result<CollectiveCost, CostError>;

    /// A reduce-scatter. `bytes_per_member` is each member's share of the result; `contention` as for the
    /// allreduce.
    fn reduce_scatter(
        &self,
        members: &[Rank],
        bytes_per_member: &[Bytes],
        contention: f64,
    ) -> Result<CollectiveCost, CostError>;

    /// An all-to-all. `contention` as for the allreduce.
    fn alltoall(
        &self,
        members: &[Rank],
        blocks: AlltoallBlocks,
        contention: f64,
    ) -> Result<CollectiveCost, CostError>;

    /// A load of samples or targets while other ranks load as much.
    fn load(&self, rank: Rank, read: SampleRead) -> Result<LoadCost, CostError>;

    /// A write of `bytes` to the file system while `writers` ranks write as much each.
    fn write(&self, rank: Rank, bytes: Bytes, writers: usize) -> Result<Seconds, CostError>;
}
