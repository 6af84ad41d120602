//! Costs from measurements.

use super::{
    AlltoallBlocks, CollectiveCost, CostBasis, CostError, Costs, KernelCost, LoadCost, MessageCost,
    Progress, SampleRead,
};
use crate::kernel_model::{Features, KernelModel};
use crate::uncertainty::{self, Uncertainty};
use partita_cluster::LayerPrecision;
use partita_program::{Algorithm, Count, KernelShape, Origin};
use partita_space::{Bytes, Rank, Seconds};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A linear fit of seconds over bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkFit {
    /// Time without bytes.
    pub latency: Seconds,
    /// Seconds per byte.
    pub seconds_per_byte: f64,
    /// Host overhead per byte at each rank.
    pub host_seconds_per_byte: f64,
}

/// Costs measured on the machine that will run the program. Ranks share one node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MeasuredCosts {
    /// Kernels by signature ([`KernelShape::signature`]) and algorithm.
    pub kernels: BTreeMap<(String, String), KernelCost>,
    /// Estimates kernels that were not measured; without it, these are errors.
    pub estimator: Option<KernelModel>,
    /// Messages.
    pub message: Option<LinkFit>,
    /// Allreduces by number of members; bytes of one member's view.
    pub allreduce: BTreeMap<usize, LinkFit>,
    /// Allgathers by number of members; bytes of all members' views together.
    pub allgather: BTreeMap<usize, LinkFit>,
    /// Reduce-scatters by number of members; bytes of all shares together.
    pub reduce_scatter: BTreeMap<usize, LinkFit>,
    /// All-to-alls by number of members; bytes of all blocks of one member.
    pub alltoall: BTreeMap<usize, LinkFit>,
    /// Reads, with as many readers as in the run.
    pub load: Option<LinkFit>,
}

impl LinkFit {
    fn transfer(&self, bytes: Bytes) -> Seconds {
        Seconds(bytes.0 as f64 * self.seconds_per_byte)
    }

    fn host(&self, bytes: Bytes) -> Seconds {
        Seconds(bytes.0 as f64 * self.host_seconds_per_byte)
    }

    pub(super) fn collective(&self, bytes: Bytes) -> CollectiveCost {
        CollectiveCost {
            latency: self.latency,
            transfer: self.transfer(bytes),
            host: self.host(bytes),
        }
    }

    pub(super) fn message(&self, bytes: Bytes) -> MessageCost {
        MessageCost {
            latency: self.latency,
            transfer: self.transfer(bytes),
            host: self.host(bytes),
        }
    }
}

fn collective(
    kind: &'static str,
    fits: &BTreeMap<usize, LinkFit>,
    members: usize,
    bytes: Bytes,
) -> Result<CollectiveCost, CostError> {
    if members <= 1 {
        return Ok(CollectiveCost::default());
    }
    match fits.get(&members) {
        Some(fit) => Ok(fit.collective(bytes)),
        None => Err(CostError::Collective {
            kind,
            members,
            fitted: fits.keys().copied().collect(),
        }),
    }
}

impl Costs for MeasuredCosts {
    fn basis(&self) -> CostBasis {
        CostBasis::Measured
    }

    fn uncertainty(&self, _ranks: usize) -> Uncertainty {
        uncertainty::of_measurements()
    }

    fn progress(&self) -> Progress {
        Progress::Polled
    }

    fn precision(&self) -> LayerPrecision {
        // Ranks compute in f32.
        LayerPrecision::F32
    }

    fn check_capacity(&self, _ranks: usize) -> Result<(), CostError> {
        Ok(())
    }

    fn node(&self, _rank: Rank) -> usize {
        0
    }

    fn link(&self, a: Rank, b: Rank) -> u32 {
        u32::from(a != b)
    }

    fn kernel(
        &self,
        shape: &KernelShape<'_>,
        algorithm: &Algorithm,
        _count: &Count,
    ) -> Result<KernelCost, CostError> {
        let key = (shape.signature(), algorithm.0.clone());
        if let Some(&cost) = self.kernels.get(&key) {
            return Ok(cost);
        }
        match &self.estimator {
            Some(model) => Ok(model.estimate(&Features::of(shape))),
            None => Err(CostError::Kernel {
                signature: key.0,
                algorithm: key.1,
            }),
        }
    }

    fn layer_factor(&self, _origin: &Origin) -> f64 {
        1.0
    }

    fn message(
        &self,
        _from: Rank,
        _to: Rank,
        bytes: Bytes,
        _contention: f64,
    ) -> Result<MessageCost, CostError> {
        let fit = self.message.ok_or(CostError::Fit { what: "messages" })?;
        Ok(fit.message(bytes))
    }

    fn allreduce(
        &self,
        members: &[Rank],
        bytes: Bytes,
        _contention: f64,
    ) -> Result<CollectiveCost, CostError> {
        collective("allreduce", &self.allreduce, members.len(), bytes)
    }

    fn allgather(
        &self,
        members: &[Rank],
        bytes_per_member: &[Bytes],
        _contention: f64,
    ) -> Result<CollectiveCost, CostError> {
        let bytes = bytes_per_member.iter().copied().sum();
        collective("allgather", &self.allgather, members.len(), bytes)
    }

    fn reduce_scatter(
        &self,
        members: &[Rank],
        bytes_per_member: &[Bytes],
        _contention: f64,
    ) -> Result<CollectiveCost, CostError> {
        let bytes = bytes_per_member.iter().copied().sum();
        let fits = &self.reduce_scatter;
        collective("reduce_scatter", fits, members.len(), bytes)
    }

    fn alltoall(
        &self,
        members: &[Rank],
        blocks: AlltoallBlocks,
        _contention: f64,
    ) -> Result<CollectiveCost, CostError> {
        collective("alltoall", &self.alltoall, members.len(), blocks.given)
    }

    fn load(&self, rank: Rank, read: SampleRead) -> Result<LoadCost, CostError> {
        let seconds = self.write(rank, read.bytes, read.readers)?;
        Ok(LoadCost::alone(seconds))
    }

    /// Writing is taken to be as fast as reading.
    fn write(&self, _rank: Rank, bytes: Bytes, _writers: usize) -> Result<Seconds, CostError> {
        let fit = self.load.ok_or(CostError::Fit { what: "reads" })?;
        Ok(fit.latency + fit.transfer(bytes))
    }
}
