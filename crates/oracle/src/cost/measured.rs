//! Costs from measurements.

use super::{
    AlltoallBlocks, CollectiveCost, Contention, CostBasis, CostError, Costs, KernelCost, LoadCost,
    MessageCost, Progress, SampleRead,
};
use crate::kernel_model::{Features, KernelModel};
use crate::uncertainty::{self, Uncertainty};
use partita_cluster::{LayerPrecision, LinkFit};
use partita_program::{Algorithm, Count, KernelShape, Origin};
use partita_space::{Bytes, Rank, Seconds};
use std::collections::BTreeMap;

/// Costs measured on the machine that will run the program. Ranks share one node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MeasuredCosts {
    /// Kernels by signature ([`KernelShape::signature`]) and algorithm.
    pub kernels: BTreeMap<(String, String), KernelCost>,
    /// Estimates kernels that were not measured; none, if all have to be.
    pub model: Option<KernelModel>,
    /// What ranks share while they compute.
    pub contention: Contention,
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
    /// Samples in the memory of the ranks, if they come from there in place of files.
    pub store: Option<StoreFit>,
}

/// Samples that ranks take from memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoreFit {
    /// Copies, with as many ranks at work as in the run.
    pub copy: LinkFit,
    /// Whether samples of other ranks come in messages; otherwise ranks look into each other's memory.
    pub has_messages: bool,
}

/// Seconds of a message of this size beyond that of the least.
fn transfer(fit: &LinkFit, bytes: Bytes) -> Seconds {
    Seconds((fit.seconds(bytes) - fit.start()).0.max(0.0))
}

/// A collective of this many bytes by a fit.
pub(super) fn collective_by(fit: &LinkFit, bytes: Bytes) -> CollectiveCost {
    let transfer = transfer(fit, bytes);
    CollectiveCost {
        latency: fit.start(),
        transfer,
        transfer_min: transfer,
        host: fit.host(bytes),
    }
}

/// A message of this many bytes by a fit.
pub(super) fn message_by(fit: &LinkFit, bytes: Bytes) -> MessageCost {
    MessageCost {
        latency: fit.start(),
        transfer: transfer(fit, bytes),
        host: fit.host(bytes),
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
        Some(fit) => Ok(collective_by(fit, bytes)),
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

    fn contention(&self) -> Contention {
        self.contention
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
        let estimated = || {
            let model = self.model.as_ref();
            model.map(|model| model.estimate(&Features::of(shape)))
        };
        match self.kernels.get(&key).copied().or_else(estimated) {
            Some(cost) => Ok(cost),
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
        let fit = self.message.as_ref();
        let fit = fit.ok_or(CostError::Fit { what: "messages" })?;
        Ok(message_by(fit, bytes))
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

    /// From memory, groups - 1 of groups parts come from another rank, as on a machine file: a request, and the part.
    fn load(&self, rank: Rank, read: SampleRead) -> Result<LoadCost, CostError> {
        let Some(store) = &self.store else {
            let seconds = self.write(rank, read.bytes, read.readers)?;
            return Ok(LoadCost::alone(seconds));
        };
        let copy = store.copy.seconds(read.bytes);
        let groups = read.readers.div_ceil(read.parts.max(1)).max(1) as f64;
        let remote = match (store.has_messages, &self.message) {
            (false, _) => Seconds(0.0),
            (true, Some(fit)) => {
                let one = fit.start() + fit.seconds(read.bytes);
                one * ((groups - 1.0) / groups)
            }
            (true, None) if groups > 1.0 => return Err(CostError::Fit { what: "messages" }),
            (true, None) => Seconds(0.0),
        };
        Ok(LoadCost::alone(copy + remote))
    }

    /// Writing is taken to be as fast as reading.
    fn write(&self, _rank: Rank, bytes: Bytes, _writers: usize) -> Result<Seconds, CostError> {
        let fit = self.load.as_ref();
        Ok(fit.ok_or(CostError::Fit { what: "reads" })?.seconds(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_in_memory_are_copied_and_those_of_other_processes_sent() {
        let fit = |latency: f64, seconds_per_byte: f64| {
            LinkFit::line(Seconds(latency), seconds_per_byte, 0.0)
        };
        // 8 ranks that read 4 samples in halves.
        let read = SampleRead {
            bytes: Bytes(1000),
            bytes_f32: Bytes(2000),
            readers: 8,
            parts: 2,
        };
        let mut costs = MeasuredCosts {
            load: Some(fit(1.0, 1e-3)),
            message: Some(fit(0.25, 1e-4)),
            ..MeasuredCosts::default()
        };
        let seconds = |costs: &MeasuredCosts, read| costs.load(0, read).map(|cost| cost.seconds.0);
        assert_eq!(seconds(&costs, read), Ok(2.0));
        let copy = fit(0.5, 1e-5);
        let store = |has_messages| {
            Some(StoreFit {
                copy: copy.clone(),
                has_messages,
            })
        };
        costs.store = store(false);
        assert_eq!(seconds(&costs, read), Ok(0.51));
        // Three of four parts are another rank's: a request, and the part.
        costs.store = store(true);
        let found = seconds(&costs, read).unwrap_or_default();
        assert!(
            (found - (0.51 + 0.75 * (0.5 + 0.1))).abs() < 1e-12,
            "{found}"
        );
        costs.message = None;
        assert!(seconds(&costs, read).is_err());
        let alone = SampleRead { readers: 2, ..read };
        assert_eq!(seconds(&costs, alone), Ok(0.51));
    }
}
