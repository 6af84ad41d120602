//! What each thing a rank does costs in seconds. One formula per file; what is unknown is an error.

pub mod collective;
pub mod io;
pub mod kernel;
pub mod link;
mod machine;
mod measured;
mod measurements;
pub mod saturation;
mod scaled;
mod times;

pub use machine::MachineCosts;
pub use measured::{LinkFit, MeasuredCosts};
pub use measurements::{KernelTimes, rough_seconds};
pub use scaled::{Scaled, Speeds};
pub use times::{LinkTimes, Point, host_seconds_per_byte};

use partita_program::{Algorithm, Count, Dtype, KernelShape};
use partita_space::{Bytes, Rank, Seconds};
use serde::{Deserialize, Serialize};

/// Where the seconds come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CostBasis {
    /// Formulas over the facts of a machine file; nothing of this program was measured.
    Modelled,
    /// Times and fits measured on the machine itself.
    Measured,
    /// Fits to what was measured on the machine itself, of other kernels.
    Calibrated,
}

/// What a message costs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MessageCost {
    /// Time of an empty message.
    pub latency: Seconds,
    /// Time of its bytes on the link.
    pub transfer: Seconds,
    /// What packing (at the sender) or unpacking (at the receiver) takes from the compute lane,
    /// at each of the two ends.
    pub host: Seconds,
}

/// What a collective costs once its last member has started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CollectiveCost {
    /// The part that does not depend on the bytes.
    pub latency: Seconds,
    /// The part that does.
    pub transfer: Seconds,
    /// What it takes from the compute lane of each member.
    pub host: Seconds,
}

/// What the members of an all-to-all send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Blocks {
    /// The largest block from one member to another.
    pub largest: Bytes,
    /// All blocks of the member that gives most, with the one that it keeps.
    pub given: Bytes,
}

/// What a kernel costs: ranks of a node share its memory, and often its cores.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KernelCost {
    /// While no other rank of its node computes.
    pub alone: Seconds,
    /// While all of them do.
    pub together: Seconds,
    /// How it is known.
    pub known: Known,
}

/// How the time of a kernel is known, surest first.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Known {
    /// This very kernel was measured.
    Measured,
    /// From measured kernels of about its shape.
    Estimated,
    /// By a formula over facts of a machine.
    #[default]
    Modelled,
    /// From measured kernels far from its shape.
    Outside,
}

impl KernelCost {
    /// Of a kernel that nobody disturbs.
    pub fn undisturbed(seconds: Seconds) -> Self {
        Self {
            alone: seconds,
            together: seconds,
            known: Known::Modelled,
        }
    }

    /// While `computing` of the `ranks` of a node do, itself included: as much longer as there are
    /// others.
    pub fn among(&self, computing: usize, ranks: usize) -> Seconds {
        if ranks <= 1 {
            return self.alone;
        }
        let others = computing.saturating_sub(1) as f64 / (ranks - 1) as f64;
        self.alone + (self.together - self.alone) * others
    }
}

impl MessageCost {
    /// From the later of the two starts to arrival.
    pub fn seconds(&self) -> Seconds {
        self.latency + self.transfer
    }
}

impl CollectiveCost {
    /// From the last start to completion.
    pub fn seconds(&self) -> Seconds {
        self.latency + self.transfer
    }
}

/// A cost that is not known.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CostError {
    /// The menu holds no time of a kernel.
    #[error("no time is known of algorithm `{algorithm}` for {signature}; measure it first")]
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
    /// No law of a collective for this many members.
    #[error("no fit of {kind} over {members} ranks; fits exist for {known:?} ranks")]
    Collective {
        /// The collective.
        kind: &'static str,
        /// Members of the group.
        members: usize,
        /// Group sizes for which there is a fit.
        known: Vec<usize>,
    },
    /// No law of something else that takes time.
    #[error("no fit of {what} was given")]
    Fit {
        /// Messages or reads.
        what: &'static str,
    },
    /// More ranks than devices.
    #[error("machine `{machine}` has {devices} devices, {ranks} ranks were asked for")]
    Capacity {
        /// The machine.
        machine: String,
        /// Ranks of the program.
        ranks: usize,
        /// Devices of the machine.
        devices: usize,
    },
}

/// Seconds of everything a rank can do.
pub trait Costs: Send + Sync {
    /// Whether the seconds are measured or modelled.
    fn basis(&self) -> CostBasis;

    /// Whether a rank notices a message or a sum that comes while a kernel runs at the kernel's end
    /// only, because the processor that computes also delivers.
    fn delivers_between_kernels(&self) -> bool;

    /// Whether this many ranks can be costed at all.
    fn admit(&self, ranks: usize) -> Result<(), CostError>;

    /// The node of a rank; ranks of a node share its network adapters.
    fn node(&self, rank: Rank) -> usize;

    /// A number for what lies between two ranks; equal numbers mean equal costs of equal messages.
    fn link(&self, a: Rank, b: Rank) -> u32;

    /// A kernel. `count` is that of the task.
    fn kernel(
        &self,
        shape: &KernelShape<'_>,
        algorithm: &Algorithm,
        count: &Count,
    ) -> Result<KernelCost, CostError>;

    /// A message. `sharing >= 1` is how many times longer its bytes keep a node's network adapters
    /// busy than if it were alone ([`link::fair_sharing`]).
    fn message(
        &self,
        from: Rank,
        to: Rank,
        bytes: Bytes,
        sharing: f64,
    ) -> Result<MessageCost, CostError>;

    /// The sum of `bytes` over members, known to all. `sharing >= 1` groups of this collective meet
    /// at the network adapters of a node.
    fn allreduce(
        &self,
        members: &[Rank],
        bytes: Bytes,
        sharing: f64,
    ) -> Result<CollectiveCost, CostError>;

    /// Every member's bytes, known to all. `sharing` as for the allreduce.
    fn allgather(
        &self,
        members: &[Rank],
        bytes_per_member: &[Bytes],
        sharing: f64,
    ) -> Result<CollectiveCost, CostError>;

    /// The sum of what members give for each, known to that one. `bytes_per_member` is each one's
    /// share of the sum; `sharing` as for the allreduce.
    fn reduce_scatter(
        &self,
        members: &[Rank],
        bytes_per_member: &[Bytes],
        sharing: f64,
    ) -> Result<CollectiveCost, CostError>;

    /// A block from every member to every member. `sharing` as for the allreduce.
    fn alltoall(
        &self,
        members: &[Rank],
        blocks: Blocks,
        sharing: f64,
    ) -> Result<CollectiveCost, CostError>;

    /// Reading of `bytes` from the dataset while `readers` ranks read as much.
    fn load(&self, rank: Rank, bytes: Bytes, readers: usize) -> Result<Seconds, CostError>;
}
