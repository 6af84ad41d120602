//! Costs of a hypothetical machine: those of another one, with some parts faster or slower.

use super::{
    AlltoallBlocks, CollectiveCost, Contention, CostBasis, CostError, Costs, KernelCost,
    LayerFactors, LoadCost, MessageCost, Progress, SampleRead,
};
use crate::uncertainty::Uncertainty;
use partita_cluster::LayerPrecision;
use partita_program::{Algorithm, Count, Family, KernelShape, Origin};
use partita_space::{Bytes, Flops, Rank, Seconds};
use std::ops::Deref;

/// Speedup of each part of a machine; 1 leaves it unchanged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpeedFactors {
    /// Kernels, including their launch.
    pub kernels: f64,
    /// Kernels but for weight updates, including their launch.
    pub layers: f64,
    /// Arithmetic, if costs follow from counts.
    pub arithmetic: f64,
    /// Memory traffic, if costs follow from counts.
    pub memory: f64,
    /// Bandwidth of messages and collectives.
    pub links: f64,
    /// Latency of messages and collectives.
    pub latency: f64,
    /// Reads of samples; infinite if the samples are in memory.
    pub reading: f64,
    /// Whether messages and collectives contend for the network adapters of a node.
    pub contention: bool,
}

impl Default for SpeedFactors {
    /// The machine unchanged.
    fn default() -> Self {
        Self {
            kernels: 1.0,
            layers: 1.0,
            arithmetic: 1.0,
            memory: 1.0,
            links: 1.0,
            latency: 1.0,
            reading: 1.0,
            contention: true,
        }
    }
}

/// Costs scaled by speedups. Host overhead is not scaled, and collectives keep their algorithm.
pub struct ScaledCosts<C> {
    costs: C,
    speeds: SpeedFactors,
    layers: LayerFactors,
}

impl<C> ScaledCosts<C> {
    /// `costs` may be borrowed or owned.
    pub fn new(costs: C, speeds: SpeedFactors) -> Self {
        Self {
            costs,
            speeds,
            layers: LayerFactors::default(),
        }
    }

    /// The same with layers that take other times.
    pub fn with_layers(self, layers: LayerFactors) -> Self {
        Self { layers, ..self }
    }

    fn contention(&self, contention: f64) -> f64 {
        if self.speeds.contention {
            contention
        } else {
            1.0
        }
    }

    fn collective(&self, cost: CollectiveCost) -> CollectiveCost {
        CollectiveCost {
            latency: cost.latency * (1.0 / self.speeds.latency),
            transfer: cost.transfer * (1.0 / self.speeds.links),
            transfer_min: cost.transfer_min * (1.0 / self.speeds.links),
            host: cost.host,
        }
    }
}

fn divided(count: u64, speed: f64) -> u64 {
    (count as f64 / speed).round() as u64
}

impl<C> Costs for ScaledCosts<C>
where
    C: Deref<Target: Costs> + Send + Sync,
{
    fn basis(&self) -> CostBasis {
        self.costs.basis()
    }

    fn uncertainty(&self, ranks: usize) -> Uncertainty {
        let uncertainty = self.costs.uncertainty(ranks);
        if self.speeds.layers == 1.0 {
            uncertainty
        } else {
            // The speed is that of a measured sample.
            uncertainty.with_measured_sample()
        }
    }

    fn progress(&self) -> Progress {
        self.costs.progress()
    }

    fn contention(&self) -> Contention {
        self.costs.contention()
    }

    fn precision(&self) -> LayerPrecision {
        self.costs.precision()
    }

    fn check_capacity(&self, ranks: usize) -> Result<(), CostError> {
        self.costs.check_capacity(ranks)
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
            flops: Flops(divided(count.flops.0, self.speeds.arithmetic)),
            read: Bytes(divided(count.read.0, self.speeds.memory)),
            written: Bytes(divided(count.written.0, self.speeds.memory)),
            ..*count
        };
        let cost = self.costs.kernel(shape, algorithm, &count)?;
        let mut speed = self.speeds.kernels;
        if shape.kernel.family() != Family::Update {
            speed *= self.speeds.layers;
        }
        Ok(KernelCost {
            alone: cost.alone * (1.0 / speed),
            together: cost.together * (1.0 / speed),
            basis: cost.basis,
        })
    }

    fn layer_factor(&self, origin: &Origin) -> f64 {
        self.layers.of(origin) * self.costs.layer_factor(origin)
    }

    fn message(
        &self,
        from: Rank,
        to: Rank,
        bytes: Bytes,
        contention: f64,
    ) -> Result<MessageCost, CostError> {
        let cost = self
            .costs
            .message(from, to, bytes, self.contention(contention))?;
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
        contention: f64,
    ) -> Result<CollectiveCost, CostError> {
        let cost = self
            .costs
            .allreduce(members, bytes, self.contention(contention));
        cost.map(|cost| self.collective(cost))
    }

    fn allgather(
        &self,
        members: &[Rank],
        bytes_per_member: &[Bytes],
        contention: f64,
    ) -> Result<CollectiveCost, CostError> {
        let contention = self.contention(contention);
        let cost = self.costs.allgather(members, bytes_per_member, contention);
        cost.map(|cost| self.collective(cost))
    }

    fn reduce_scatter(
        &self,
        members: &[Rank],
        bytes_per_member: &[Bytes],
        contention: f64,
    ) -> Result<CollectiveCost, CostError> {
        let contention = self.contention(contention);
        let cost = self
            .costs
            .reduce_scatter(members, bytes_per_member, contention);
        cost.map(|cost| self.collective(cost))
    }

    fn alltoall(
        &self,
        members: &[Rank],
        blocks: AlltoallBlocks,
        contention: f64,
    ) -> Result<CollectiveCost, CostError> {
        let cost = self
            .costs
            .alltoall(members, blocks, self.contention(contention));
        cost.map(|cost| self.collective(cost))
    }

    fn load(&self, rank: Rank, read: SampleRead) -> Result<LoadCost, CostError> {
        if self.speeds.reading.is_infinite() {
            // The costs may lack reads.
            return Ok(LoadCost::default());
        }
        Ok(self.costs.load(rank, read)?.faster(self.speeds.reading))
    }

    fn write(&self, rank: Rank, bytes: Bytes, writers: usize) -> Result<Seconds, CostError> {
        if self.speeds.reading.is_infinite() {
            return Ok(Seconds(0.0));
        }
        let seconds = self.costs.write(rank, bytes, writers)?;
        Ok(seconds * (1.0 / self.speeds.reading))
    }
}
