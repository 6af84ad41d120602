//! Costs of collectives from a machine file.

use super::super::collective::{self, AlphaBeta, CommTime};
use super::super::{AlltoallBlocks, CollectiveCost, CostError};
use super::{MachineCosts, link_fit};
use partita_cluster::{HostGroup, LinkKind};
use partita_space::{Bytes, Rank, Seconds};

/// How the members of a group are distributed over nodes.
struct GroupLayout {
    members: usize,
    nodes: usize,
    most_on_node: usize,
    fewest_on_node: usize,
    /// Nodes from the first to the last, including those in between without a member.
    node_span: usize,
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
        let total = bytes_per_member.iter().copied().sum();
        if let Some(cost) = self.measured(&layout, "allgather", total) {
            return Ok(cost);
        }
        let ring = self.flat(&layout, contention);
        let tree = self.flat(&layout, contention * layout.most_on_node as f64);
        let time = collective::allgather_ring(&blocks, ring)
            .min(collective::allgather_doubling(&blocks, tree));
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
        // Most partners are on other nodes, and all members of a node send at once.
        let link = self.flat(&layout, contention * layout.most_on_node as f64);
        let time = collective::alltoall_pairwise(layout.members, largest, link)
            .min(collective::alltoall_bruck(layout.members, largest, link));
        // As many bytes are packed as unpacked.
        let host = self.host(4.0 * blocks.given.0 as f64);
        Ok(collective_cost(time, host))
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
        Some(link_fit(fit).collective(bytes))
    }

    /// Host overhead of a reduction of so many bytes: each byte is added once (two reads, a write) and
    /// copied once (a read, a write).
    fn host_of_sum(&self, layout: &GroupLayout, bytes: f64) -> Seconds {
        let share = (layout.members - 1) as f64 / layout.members as f64;
        self.host(5.0 * share * bytes)
    }

    fn layout(&self, members: &[Rank]) -> GroupLayout {
        let mut nodes: Vec<usize> = members
            .iter()
            .map(|&rank| self.machine.node(rank))
            .collect();
        nodes.sort_unstable();
        let sizes = || nodes.chunk_by(|a, b| a == b).map(<[usize]>::len);
        GroupLayout {
            members: members.len(),
            nodes: sizes().count(),
            most_on_node: sizes().max().unwrap_or(0),
            fewest_on_node: sizes().min().unwrap_or(0),
            node_span: nodes
                .last()
                .zip(nodes.first())
                .map_or(0, |(last, first)| last - first + 1),
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

    fn inter(&self, flows: f64) -> AlphaBeta {
        let node = self.machine.links.inter.node_bandwidth.value.0;
        AlphaBeta {
            alpha: self.machine.latency(LinkKind::Inter).0,
            beta: (1.0 / self.machine.bandwidth(LinkKind::Inter).0).max(flows / node),
            gamma: self.gamma(),
        }
    }

    /// The slowest link of a flat algorithm in which `flows` messages leave a node at once.
    fn flat(&self, layout: &GroupLayout, flows: f64) -> AlphaBeta {
        if layout.nodes == 1 {
            return self.intra();
        }
        let (intra, inter) = (self.intra(), self.inter(flows));
        if layout.most_on_node == 1 {
            return inter;
        }
        AlphaBeta {
            alpha: intra.alpha.max(inter.alpha),
            beta: intra.beta.max(inter.beta),
            gamma: inter.gamma,
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
        let allreduce = self.machine.allreduce.as_ref()?;
        let single = layout.nodes == 1;
        let fitted = if single {
            &allreduce.intra
        } else {
            &allreduce.inter
        };
        let own = 1.0 / fitted.bandwidth.value.0;
        let node = flows / self.machine.links.inter.node_bandwidth.value.0;
        let beta = if single { own } else { own.max(node) };
        let alpha = fitted.latency.value.0;
        let p = layout.members;
        Some(match &fitted.growth {
            None => {
                // The ring was fitted to gradients; libraries do not use it for few bytes.
                let tree = self.flat(layout, flows * layout.most_on_node as f64);
                let short = collective::allreduce_doubling(p, n, tree);
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
        let occupancy = self
            .machine
            .allreduce
            .as_ref()
            .and_then(|allreduce| allreduce.occupancy.as_ref());
        let occupied = occupancy.map_or(0.0, |share| share.value.0 * time.total());
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
        let tree_flows = contention * layout.most_on_node as f64;
        let ring = self.flat(layout, contention);
        let tree = self.flat(layout, tree_flows);
        let flat = (formulas.flat)(layout.members, bytes, ring, tree);
        if layout.nodes == 1 || layout.fewest_on_node == 1 {
            return flat;
        }
        flat.min((formulas.hierarchical)(
            layout.nodes,
            layout.fewest_on_node,
            bytes,
            self.intra(),
            self.inter(tree_flows),
        ))
    }
}

/// Formulas of a reduction: with fitted parameters, flat, and hierarchical: within nodes before between
/// them.
struct SumFormulas {
    fitted_ring: fn(usize, f64, f64, f64) -> CommTime,
    fitted_tree: fn(usize, f64, f64, f64) -> CommTime,
    flat: fn(usize, f64, AlphaBeta, AlphaBeta) -> CommTime,
    hierarchical: fn(usize, usize, f64, AlphaBeta, AlphaBeta) -> CommTime,
}

const ALLREDUCE: SumFormulas = SumFormulas {
    fitted_ring: collective::fitted_allreduce_ring,
    fitted_tree: collective::fitted_allreduce_tree,
    flat: collective::allreduce_flat,
    hierarchical: collective::allreduce_hierarchical,
};

const REDUCE_SCATTER: SumFormulas = SumFormulas {
    fitted_ring: collective::fitted_reduce_scatter_ring,
    fitted_tree: collective::fitted_reduce_scatter_tree,
    flat: collective::reduce_scatter_flat,
    hierarchical: collective::reduce_scatter_hierarchical,
};

fn collective_cost(time: CommTime, host: Seconds) -> CollectiveCost {
    CollectiveCost {
        latency: Seconds(time.latency),
        transfer: Seconds(time.transfer),
        host,
    }
}
