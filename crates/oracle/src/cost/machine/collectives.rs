//! Costs of collectives from a machine file: by a measured fit, by the fit of the machine file, or by the
//! algorithms of the library.

use super::super::collective::{AlphaBeta, CommTime, fitted, log2_ceil, mpi, nccl};
use super::super::{AlltoallBlocks, CollectiveCost, CostError};
use super::MachineCosts;
use crate::cost::crossing::Crossing;
use crate::cost::measured::collective_by;
use partita_cluster::{CollectiveLibrary, HostGroup, IntraKind, LinkKind, Reduction};
use partita_space::{Bytes, Rank, Seconds};
use std::sync::{Mutex, PoisonError};

/// How the members of a group are distributed over nodes.
#[derive(Clone, Copy, Debug)]
struct GroupLayout {
    members: usize,
    nodes: usize,
    most_on_node: usize,
    fewest_on_node: usize,
    /// Nodes from the first to the last, including those in between without a member.
    node_span: usize,
    /// What lies between these nodes.
    crossing: Crossing,
}

/// The layout of the group that was asked for last: a program asks for one group many times.
#[derive(Debug, Default)]
pub(super) struct LastLayout(Mutex<Option<(Vec<Rank>, GroupLayout)>>);

impl Clone for LastLayout {
    /// None yet.
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl LastLayout {
    fn of(&self, members: &[Rank], layout: impl FnOnce() -> GroupLayout) -> GroupLayout {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, layout)) = &*last
            && known == members
        {
            return *layout;
        }
        let (_, layout) = last.insert((members.to_vec(), layout()));
        *layout
    }
}

impl MachineCosts {
    pub(super) fn allreduce_cost(
        &self,
        members: &[Rank],
        bytes: Bytes,
        contention: f64,
    ) -> Result<CollectiveCost, CostError> {
        let layout = self.layout(members);
        if layout.members <= 1 {
            return Ok(CollectiveCost::default());
        }
        let n = bytes.0 as f64;
        if let Some(cost) = self.measured(&layout, "allreduce", bytes) {
            return Ok(cost);
        }
        let time = self.sum_time(&ALLREDUCE, &layout, n, contention);
        let host = self.overhead_of_sum(&layout, n, time);
        Ok(collective_cost(time, host))
    }

    pub(super) fn allgather_cost(
        &self,
        members: &[Rank],
        bytes_per_member: &[Bytes],
        contention: f64,
    ) -> Result<CollectiveCost, CostError> {
        let layout = self.layout(members);
        if layout.members <= 1 {
            return Ok(CollectiveCost::default());
        }
        let blocks: Vec<f64> = bytes_per_member
            .iter()
            .map(|bytes| bytes.0 as f64)
            .collect();
        let total: Bytes = bytes_per_member.iter().copied().sum();
        if let Some(cost) = self.measured(&layout, "allgather", total) {
            return Ok(cost);
        }
        let time = match self.library {
            CollectiveLibrary::Nccl => {
                let largest = blocks.iter().copied().fold(0.0, f64::max);
                let fabric = self.fabric(&layout, contention * layout.crossing.once);
                nccl::allgather(&fabric, layout.members as f64 * largest)
            }
            CollectiveLibrary::Mpi => self.mpi_allgather(&layout, &blocks, contention),
        };
        let time = self.software.redistribution(time);
        let host = self.host(2.0 * blocks.iter().sum::<f64>());
        Ok(collective_cost(time, host))
    }

    pub(super) fn reduce_scatter_cost(
        &self,
        members: &[Rank],
        bytes_per_member: &[Bytes],
        contention: f64,
    ) -> Result<CollectiveCost, CostError> {
        let layout = self.layout(members);
        if layout.members <= 1 {
            return Ok(CollectiveCost::default());
        }
        let total: Bytes = bytes_per_member.iter().copied().sum();
        if let Some(cost) = self.measured(&layout, "reduce_scatter", total) {
            return Ok(cost);
        }
        let largest = bytes_per_member.iter().map(|bytes| bytes.0).max();
        let n = layout.members as f64 * largest.unwrap_or(0) as f64;
        let time = self.sum_time(&REDUCE_SCATTER, &layout, n, contention);
        let host = self.overhead_of_sum(&layout, n, time);
        Ok(collective_cost(time, host))
    }

    pub(super) fn alltoall_cost(
        &self,
        members: &[Rank],
        blocks: AlltoallBlocks,
        contention: f64,
    ) -> Result<CollectiveCost, CostError> {
        let layout = self.layout(members);
        if layout.members <= 1 {
            return Ok(CollectiveCost::default());
        }
        if let Some(cost) = self.measured(&layout, "alltoall", blocks.given) {
            return Ok(cost);
        }
        let largest = blocks.largest.0 as f64;
        let flows = contention * layout.crossing.all;
        let time =
            match self.library {
                CollectiveLibrary::Nccl => nccl::alltoall(&self.fabric(&layout, flows), largest),
                CollectiveLibrary::Mpi => {
                    // Most partners are on other nodes, and all members of a node send at once.
                    let flows = flows * layout.most_on_node as f64;
                    let pairwise = self.flat(&layout, flows);
                    let bruck = self.tree(&layout, flows);
                    mpi::alltoall_pairwise(layout.members, largest, pairwise)
                        .min(mpi::alltoall_bruck(layout.members, largest, bruck))
                }
            };
        // As many bytes are packed as unpacked.
        let host = self.host(4.0 * blocks.given.0 as f64);
        Ok(collective_cost(time, host))
    }

    fn mpi_allgather(&self, layout: &GroupLayout, blocks: &[f64], contention: f64) -> CommTime {
        let all = contention * layout.crossing.all * layout.most_on_node as f64;
        let ring = self.flat(layout, contention * layout.crossing.once);
        let tree = self.tree(layout, all);
        let flat = mpi::allgather_ring(blocks, ring).min(mpi::allgather_doubling(blocks, tree));
        if layout.nodes == 1 || layout.fewest_on_node == 1 {
            return flat;
        }
        let largest = blocks.iter().copied().fold(0.0, f64::max);
        let once = contention * layout.crossing.once * layout.most_on_node as f64;
        flat.min(mpi::allgather_hierarchical(
            layout.nodes,
            layout.most_on_node,
            largest,
            self.intra(),
            self.inter(layout, once),
        ))
    }

    /// What NCCL has for a group, where `flows` groups share the adapters of a node.
    fn fabric(&self, layout: &GroupLayout, flows: f64) -> nccl::Fabric {
        let links = &self.machine.links;
        let (pair, node) = (
            links.intra.bandwidth.value.0,
            links.inter.node_bandwidth.value.0,
        );
        let bus = links.intra.bus_bandwidth.as_ref();
        let others = layout.most_on_node.saturating_sub(1).max(1) as f64;
        let here = layout.fewest_on_node as f64 / self.machine.devices_per_node.value as f64;
        let adapters = (links.inter.nics_per_node.value as f64 * here).max(1.0);
        nccl::Fabric {
            ranks: layout.members,
            nodes: layout.nodes,
            kind: links.intra.kind.unwrap_or(IntraKind::NvLink),
            intra: bus.map_or(pair, |bus| bus.value.0.min(others * pair)),
            inter: (adapters * links.inter.bandwidth.value.0).min(node / flows),
            latency: links.inter.latency.value.0,
            path: layout.crossing.latency.0,
            reduction: links.inter.reduction.unwrap_or(Reduction::Devices),
        }
    }

    /// A collective by its measured fit, if there is one for as many members on as many hosts.
    fn measured(&self, layout: &GroupLayout, name: &str, bytes: Bytes) -> Option<CollectiveCost> {
        let calibration = self.machine.calibration.as_ref()?;
        let fit = match (layout.nodes, &calibration.network) {
            (1, _) => calibration
                .collectives
                .get(name)?
                .get(&layout.members.to_string())?,
            (_, None) => return None,
            (hosts, Some(network)) => {
                let ranks_per_host = layout.most_on_node;
                let group = HostGroup {
                    hosts,
                    ranks_per_host,
                };
                let is_even = layout.fewest_on_node == ranks_per_host;
                let fits = network.collectives.get(name).filter(|_| is_even)?;
                fits.get(&group)?
            }
        };
        Some(collective_by(fit, bytes))
    }

    /// Host overhead of a reduction of this many bytes: each byte is added once (two reads, a write) and
    /// copied once (a read, a write).
    fn host_of_sum(&self, layout: &GroupLayout, bytes: f64) -> Seconds {
        let share = (layout.members - 1) as f64 / layout.members as f64;
        self.host(5.0 * share * bytes)
    }

    fn layout(&self, members: &[Rank]) -> GroupLayout {
        self.last_layout.of(members, || self.new_layout(members))
    }

    fn new_layout(&self, members: &[Rank]) -> GroupLayout {
        if !members.is_sorted() {
            let mut ascending = members.to_vec();
            ascending.sort_unstable();
            return self.new_layout(&ascending);
        }
        // Ranks fill nodes in order.
        let node = |&rank: &Rank| self.machine.node(rank);
        let (mut nodes, mut most, mut fewest) = (0, 0, usize::MAX);
        for here in members.chunk_by(|a, b| node(a) == node(b)) {
            nodes += 1;
            most = most.max(here.len());
            fewest = fewest.min(here.len());
        }
        let ends = members.last().zip(members.first());
        let node_span = ends.map_or(0, |(last, first)| node(last) - node(first) + 1);
        GroupLayout {
            members: members.len(),
            nodes,
            most_on_node: most,
            fewest_on_node: fewest.min(most),
            node_span,
            crossing: self.crossings.group(&self.machine, node_span, nodes),
        }
    }

    /// Seconds per reduced byte: two reads and a write.
    fn gamma(&self) -> f64 {
        3.0 / self.machine.device.memory_rate().0
    }

    fn intra(&self) -> AlphaBeta {
        AlphaBeta {
            alpha: self.machine.latency(LinkKind::Intra).0,
            beta: 1.0 / self.machine.bandwidth(LinkKind::Intra).0,
            gamma: self.gamma(),
        }
    }

    fn inter(&self, layout: &GroupLayout, flows: f64) -> AlphaBeta {
        let node = self.machine.links.inter.node_bandwidth.value.0;
        AlphaBeta {
            alpha: self.machine.latency(LinkKind::Inter).0 + layout.crossing.latency.0,
            beta: (1.0 / self.machine.bandwidth(LinkKind::Inter).0).max(flows / node),
            gamma: self.gamma(),
        }
    }

    /// The slowest link of a flat algorithm in which `flows` messages leave a node at once.
    fn flat(&self, layout: &GroupLayout, flows: f64) -> AlphaBeta {
        if layout.nodes == 1 {
            return self.intra();
        }
        let (intra, inter) = (self.intra(), self.inter(layout, flows));
        if layout.most_on_node == 1 {
            return inter;
        }
        AlphaBeta {
            alpha: intra.alpha.max(inter.alpha),
            beta: intra.beta.max(inter.beta),
            gamma: inter.gamma,
        }
    }

    /// The same where the distance doubles with every step: most of the first steps stay within a node.
    fn tree(&self, layout: &GroupLayout, flows: f64) -> AlphaBeta {
        let flat = self.flat(layout, flows);
        if layout.nodes == 1 || layout.most_on_node == 1 {
            return flat;
        }
        let within = log2_ceil(layout.most_on_node);
        let between = log2_ceil(layout.nodes);
        let (intra, inter) = (self.intra(), self.inter(layout, flows));
        AlphaBeta {
            alpha: (within * intra.alpha + between * inter.alpha) / (within + between),
            ..flat
        }
    }

    /// A reduction by the fit of the allreduce, if the machine file has one.
    fn fitted(
        &self,
        formulas: &SumFormulas,
        layout: &GroupLayout,
        n: f64,
        flows: f64,
    ) -> Option<CommTime> {
        let allreduce = self.software.allreduce()?;
        let single = layout.nodes == 1;
        let fitted = if single {
            &allreduce.intra
        } else {
            &allreduce.inter
        };
        let own = 1.0 / fitted.bandwidth.value.0;
        let node = flows * layout.crossing.once / self.machine.links.inter.node_bandwidth.value.0;
        let beta = if single { own } else { own.max(node) };
        let alpha = fitted.latency.value.0 + layout.crossing.latency.0;
        let p = layout.members;
        Some(match &fitted.growth {
            None => {
                // The ring was fitted to gradients; libraries do not use it for few bytes.
                let tree = self.flat(layout, flows * layout.most_on_node as f64);
                let short = mpi::allreduce_doubling(p, n, tree);
                (formulas.fitted_ring)(p, n, alpha, beta).min(short)
            }
            Some(growth) => {
                let grown = beta * (layout.node_span as f64).powf(growth.value.0);
                (formulas.fitted_tree)(p, n, alpha, grown)
            }
        })
    }

    /// Overhead of a reduction at a member: on a CPU arithmetic and copies, on a GPU the share of the time
    /// in which the kernels of the library occupy the device.
    fn overhead_of_sum(&self, layout: &GroupLayout, bytes: f64, time: CommTime) -> Seconds {
        let occupied = self.software.occupancy() * time.total();
        self.host_of_sum(layout, bytes) + Seconds(occupied)
    }

    fn sum_time(
        &self,
        formulas: &SumFormulas,
        layout: &GroupLayout,
        bytes: f64,
        contention: f64,
    ) -> CommTime {
        if let Some(time) = self.fitted(formulas, layout, bytes, contention) {
            return time;
        }
        match self.library {
            CollectiveLibrary::Nccl => {
                let fabric = self.fabric(layout, contention * layout.crossing.once);
                (formulas.nccl)(&fabric, bytes)
            }
            CollectiveLibrary::Mpi => self.mpi_sum(formulas, layout, bytes, contention),
        }
    }

    fn mpi_sum(
        &self,
        formulas: &SumFormulas,
        layout: &GroupLayout,
        bytes: f64,
        contention: f64,
    ) -> CommTime {
        let here = layout.most_on_node as f64;
        let ring = self.flat(layout, contention * layout.crossing.once);
        let tree = self.tree(layout, contention * layout.crossing.all * here);
        let flat = (formulas.flat)(layout.members, bytes, ring, tree);
        if layout.nodes == 1 || layout.fewest_on_node == 1 {
            return flat;
        }
        flat.min((formulas.hierarchical)(
            layout.nodes,
            layout.fewest_on_node,
            bytes,
            self.intra(),
            self.inter(layout, contention * layout.crossing.once * here),
        ))
    }
}

/// Formulas of a reduction: with fitted parameters, those of NCCL, and of MPI flat and hierarchical, within
/// nodes before between them.
struct SumFormulas {
    fitted_ring: fn(usize, f64, f64, f64) -> CommTime,
    fitted_tree: fn(usize, f64, f64, f64) -> CommTime,
    nccl: fn(&nccl::Fabric, f64) -> CommTime,
    flat: fn(usize, f64, AlphaBeta, AlphaBeta) -> CommTime,
    hierarchical: fn(usize, usize, f64, AlphaBeta, AlphaBeta) -> CommTime,
}

const ALLREDUCE: SumFormulas = SumFormulas {
    fitted_ring: fitted::allreduce_ring,
    fitted_tree: fitted::allreduce_tree,
    nccl: nccl::allreduce,
    flat: mpi::allreduce_flat,
    hierarchical: mpi::allreduce_hierarchical,
};

const REDUCE_SCATTER: SumFormulas = SumFormulas {
    fitted_ring: fitted::reduce_scatter_ring,
    fitted_tree: fitted::reduce_scatter_tree,
    nccl: nccl::reduce_scatter,
    flat: mpi::reduce_scatter_flat,
    hierarchical: mpi::reduce_scatter_hierarchical,
};

fn collective_cost(time: CommTime, host: Seconds) -> CollectiveCost {
    CollectiveCost {
        latency: Seconds(time.latency),
        transfer: Seconds(time.transfer),
        transfer_min: Seconds(time.transfer_min),
        host,
    }
}
