//! Costs of a machine of which one thing or another is changed.

use super::{Blocks, CollectiveCost, CostBasis, CostError, Costs, KernelCost, MessageCost};
use partita_program::{Algorithm, Count, KernelShape};
use partita_space::{Bytes, Flops, Rank, Seconds};
use std::ops::Deref;

/// How many times as fast each thing is as on the machine at hand; 1 leaves it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speeds {
    /// Kernels as a whole, their start included.
    pub kernels: f64,
    /// Arithmetic, where costs follow from counts.
    pub arithmetic: f64,
    /// Memory, where costs follow from counts.
    pub memory: f64,
    /// Bytes of messages and collectives.
    pub links: f64,
    /// What messages and collectives take without bytes.
    pub latency: f64,
    /// Reading of samples; infinite where ranks hold them in memory already.
    pub reading: f64,
    /// Whether messages and collectives share the adapters of a node.
    pub sharing: bool,
}

impl Default for Speeds {
    /// Nothing is changed.
    fn default() -> Self {
        Self {
            kernels: 1.0,
            arithmetic: 1.0,
            memory: 1.0,
            links: 1.0,
            latency: 1.0,
            reading: 1.0,
            sharing: true,
        }
    }
}

/// Other costs, changed. What a message costs the host stays as it is, and so does the algorithm that
/// is chosen for a collective.
pub struct Scaled<C> {
    costs: C,
    speeds: Speeds,
}

impl<C> Scaled<C> {
    /// These costs, borrowed or owned, with these changes.
    pub fn new(costs: C, speeds: Speeds) -> Self {
        Self { costs, speeds }
    }

    fn sharing(&self, sharing: f64) -> f64 {
        if self.speeds.sharing { sharing } else { 1.0 }
    }

    fn collective(&self, cost: CollectiveCost) -> CollectiveCost {
        CollectiveCost {
            latency: cost.latency * (1.0 / self.speeds.latency),
            transfer: cost.transfer * (1.0 / self.speeds.links),
            host: cost.host,
        }
    }
}

fn fewer(number: u64, times: f64) -> u64 {
    (number as f64 / times).round() as u64
}

impl<C> Costs for Scaled<C>
where
    C: Deref<Target: Costs> + Send + Sync,
{
    fn basis(&self) -> CostBasis {
        self.costs.basis()
    }

    fn delivers_between_kernels(&self) -> bool {
        self.costs.delivers_between_kernels()
    }

    fn admit(&self, ranks: usize) -> Result<(), CostError> {
        self.costs.admit(ranks)
    }

    fn node(&self, rank: Rank) -> usize {
        self.costs.node(rank)
    }

    fn link(&self, a: Rank, b: Rank) -> u32 {
        self.costs.link(a, b)
    }

    fn kernel(
        &self,
        shape: &KernelShape<'_>,
        algorithm: &Algorithm,
        count: &Count,
    ) -> Result<KernelCost, CostError> {
        // Half the flops at a rate take as long as all of them at twice the rate.
        let count = Count {
            flops: Flops(fewer(count.flops.0, self.speeds.arithmetic)),
            read: Bytes(fewer(count.read.0, self.speeds.memory)),
            written: Bytes(fewer(count.written.0, self.speeds.memory)),
            ..*count
        };
        let cost = self.costs.kernel(shape, algorithm, &count)?;
        Ok(KernelCost {
            alone: cost.alone * (1.0 / self.speeds.kernels),
            together: cost.together * (1.0 / self.speeds.kernels),
            known: cost.known,
        })
    }

    fn message(
        &self,
        from: Rank,
        to: Rank,
        bytes: Bytes,
        sharing: f64,
    ) -> Result<MessageCost, CostError> {
        let cost = self.costs.message(from, to, bytes, self.sharing(sharing))?;
        Ok(MessageCost {
            latency: cost.latency * (1.0 / self.speeds.latency),
            transfer: cost.transfer * (1.0 / self.speeds.links),
            host: cost.host,
        })
    }

    fn allreduce(
        &self,
        members: &[Rank],
        bytes: Bytes,
        sharing: f64,
    ) -> Result<CollectiveCost, CostError> {
        let cost = self.costs.allreduce(members, bytes, self.sharing(sharing));
        cost.map(|cost| self.collective(cost))
    }

    fn allgather(
        &self,
        members: &[Rank],
        bytes_per_member: &[Bytes],
        sharing: f64,
    ) -> Result<CollectiveCost, CostError> {
        let sharing = self.sharing(sharing);
        let cost = self.costs.allgather(members, bytes_per_member, sharing);
        cost.map(|cost| self.collective(cost))
    }

    fn reduce_scatter(
        &self,
        members: &[Rank],
        bytes_per_member: &[Bytes],
        sharing: f64,
    ) -> Result<CollectiveCost, CostError> {
        let sharing = self.sharing(sharing);
        let cost = self
            .costs
            .reduce_scatter(members, bytes_per_member, sharing);
        cost.map(|cost| self.collective(cost))
    }

    fn alltoall(
        &self,
        members: &[Rank],
        blocks: Blocks,
        sharing: f64,
    ) -> Result<CollectiveCost, CostError> {
        let cost = self.costs.alltoall(members, blocks, self.sharing(sharing));
        cost.map(|cost| self.collective(cost))
    }

    fn load(&self, rank: Rank, bytes: Bytes, readers: usize) -> Result<Seconds, CostError> {
        if self.speeds.reading.is_infinite() {
            // Nothing need be known of it.
            return Ok(Seconds(0.0));
        }
        let seconds = self.costs.load(rank, bytes, readers)?;
        Ok(seconds * (1.0 / self.speeds.reading))
    }
}
