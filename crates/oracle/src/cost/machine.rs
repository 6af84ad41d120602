//! Costs from a machine file.

use super::collective::{self, AlphaBeta, CommTime};
use super::io::{self, FileSystem};
use super::kernel::{self, Pass, RateClass};
use super::{
    AlltoallBlocks, CollectiveCost, CostBasis, CostError, Costs, KernelBasis, KernelCost, LinkFit,
    MessageCost, Progress, link, saturation,
};
use crate::kernel_model::{Features, KernelModel, KernelSample};
use partita_cluster::{ConvPass, DeviceKind, LinearFit, LinkKind, Machine, MeasuredKernel};
use partita_program::{Algorithm, Count, Dtype, KernelShape};
use partita_space::{Bytes, FlopsPerSecond, Rank, Seconds};

/// Costs from the facts of a machine file. If it holds a calibration, kernels are estimated from measured
/// ones, and messages and collectives within a node follow the measured fits.
#[derive(Clone, Debug)]
pub struct MachineCosts {
    machine: Machine,
    kernels: Option<KernelModel>,
}

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
    /// Fits the kernel model if the machine has a calibration.
    pub fn new(machine: Machine) -> Self {
        let calibration = machine.calibration.as_ref();
        Self {
            kernels: calibration.and_then(|one| KernelModel::fit(&samples(&one.measured))),
            machine,
        }
    }

    /// A collective within a node by its measured fit, if there is one for as many members.
    fn measured(&self, layout: &GroupLayout, name: &str, bytes: Bytes) -> Option<CollectiveCost> {
        let calibration = self.machine.calibration.as_ref();
        let fits = calibration
            .filter(|_| layout.nodes == 1)?
            .collectives
            .get(name)?;
        let fit = fits.get(&layout.members.to_string())?;
        Some(link_fit(fit).collective(bytes))
    }

    /// The machine.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    fn arithmetic_rate(&self, rate_class: RateClass) -> FlopsPerSecond {
        let device = &self.machine.device;
        match rate_class {
            RateClass::Convolution {
                spatial_dims,
                pass,
                extents,
            } => {
                let rate = device.conv_rate(spatial_dims, conv_pass(pass));
                let saturation = device.efficiency.by_dims(spatial_dims).saturation.as_ref();
                let reached =
                    saturation.map_or(1.0, |half| saturation::saturation(extents, pass, half));
                FlopsPerSecond(rate.0 * reached)
            }
            RateClass::Linear { pass } => device.conv_rate(2, conv_pass(pass)),
            RateClass::Memory => device.peak_flops_f32.value,
        }
    }

    /// Memory-bound kernels have a cost in any dtype. The others need an arithmetic rate, which there is in
    /// f32 alone; of a fused kernel the first part decides.
    fn check_dtype(&self, shape: &KernelShape<'_>, rate_class: RateClass) -> Result<(), CostError> {
        let needs_rate = match rate_class {
            RateClass::Convolution { .. } | RateClass::Linear { .. } => true,
            RateClass::Memory => false,
        };
        let first = &shape.kernel.parts()[0];
        let other = first.accesses().into_iter().find_map(|(view, _)| {
            match shape.buffers[view.buffer.0 as usize].dtype {
                Dtype::F32 => None,
                other @ (Dtype::F64 | Dtype::I16) => Some(other),
            }
        });
        match other {
            Some(dtype) if needs_rate => Err(CostError::Dtype {
                machine: self.machine.name.clone(),
                kernel: shape.kernel.name(),
                dtype,
            }),
            Some(_) | None => Ok(()),
        }
    }

    fn launch(&self) -> Result<Seconds, CostError> {
        let device = &self.machine.device;
        match (&device.kernel_start, device.kind) {
            (Some(start), DeviceKind::Gpu | DeviceKind::Cpu) => Ok(start.value),
            // On a host processor a kernel is a function call.
            (None, DeviceKind::Cpu) => Ok(Seconds(0.0)),
            (None, DeviceKind::Gpu) => Err(CostError::Missing {
                machine: self.machine.name.clone(),
                key: "device.kernel_start",
                purpose: "the launch of a kernel".to_owned(),
            }),
        }
    }

    /// Host overhead of so many bytes of memory traffic: none on a GPU, which does not copy itself.
    fn host(&self, traffic: f64) -> Seconds {
        match self.machine.device.kind {
            DeviceKind::Gpu => Seconds(0.0),
            DeviceKind::Cpu => Seconds(traffic / self.machine.device.memory_rate().0),
        }
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

fn link_fit(fit: &LinearFit) -> LinkFit {
    LinkFit {
        latency: Seconds(fit.latency),
        seconds_per_byte: fit.seconds_per_byte,
        host_seconds_per_byte: fit.host_seconds_per_byte,
    }
}

/// Kernels of a calibration whose shapes have as many coordinates as [`Features`].
fn samples(measured: &[MeasuredKernel]) -> Vec<KernelSample> {
    let sample = |row: &MeasuredKernel| {
        let MeasuredKernel(family, flops, bytes, shape, alone, together) = row;
        Some(KernelSample {
            features: Features {
                family: family.clone(),
                flops: *flops,
                bytes: *bytes,
                shape: shape.as_slice().try_into().ok()?,
            },
            cost: KernelCost {
                alone: *alone,
                together: *together,
                basis: KernelBasis::Measured,
            },
        })
    };
    measured.iter().filter_map(sample).collect()
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

fn conv_pass(pass: Pass) -> ConvPass {
    match pass {
        Pass::Forward => ConvPass::Forward,
        Pass::BackwardData => ConvPass::BackwardData,
        Pass::BackwardWeight => ConvPass::BackwardWeight,
    }
}

fn collective_cost(time: CommTime, host: Seconds) -> CollectiveCost {
    CollectiveCost {
        latency: Seconds(time.latency),
        transfer: Seconds(time.transfer),
        host,
    }
}

impl Costs for MachineCosts {
    fn basis(&self) -> CostBasis {
        match &self.kernels {
            Some(_) => CostBasis::Calibrated,
            None => CostBasis::Modelled,
        }
    }

    fn progress(&self) -> Progress {
        match self.machine.device.kind {
            DeviceKind::Cpu => Progress::Polled,
            DeviceKind::Gpu => Progress::Queued,
        }
    }

    fn check_capacity(&self, ranks: usize) -> Result<(), CostError> {
        let devices = self.machine.devices();
        if ranks <= devices {
            return Ok(());
        }
        Err(CostError::Capacity {
            machine: self.machine.name.clone(),
            ranks,
            devices,
        })
    }

    fn node(&self, rank: Rank) -> usize {
        self.machine.node(rank)
    }

    fn link(&self, a: Rank, b: Rank) -> u32 {
        match self.machine.link(a, b) {
            LinkKind::Same => 0,
            LinkKind::Intra => 1,
            LinkKind::Inter => 2,
        }
    }

    fn kernel(
        &self,
        shape: &KernelShape<'_>,
        _algorithm: &Algorithm,
        count: &Count,
    ) -> Result<KernelCost, CostError> {
        if let Some(model) = &self.kernels {
            return Ok(model.estimate(&Features::of(shape)));
        }
        let rate_class = kernel::rate_class(shape);
        self.check_dtype(shape, rate_class)?;
        Ok(KernelCost::uncontended(kernel::roofline(
            count.flops,
            self.arithmetic_rate(rate_class),
            count.read + count.written,
            self.machine.device.memory_rate(),
            self.launch()?,
        )))
    }

    fn message(
        &self,
        from: Rank,
        to: Rank,
        bytes: Bytes,
        contention: f64,
    ) -> Result<MessageCost, CostError> {
        let kind = self.machine.link(from, to);
        let calibration = self.machine.calibration.as_ref();
        if let (LinkKind::Intra, Some(fit)) = (kind, calibration.and_then(|one| one.message)) {
            return Ok(link_fit(&fit).message(bytes));
        }
        let node = match kind {
            LinkKind::Same | LinkKind::Intra => None,
            LinkKind::Inter => Some(self.machine.links.inter.node_bandwidth.value),
        };
        let link = link::transfer(bytes, self.machine.bandwidth(kind), node, contention);
        let (latency, transfer) = match &self.machine.exchange {
            Some(fit) => (fit.latency.value, link.max(bytes / fit.bandwidth.value)),
            None => (self.machine.latency(kind), link),
        };
        Ok(MessageCost {
            latency,
            transfer,
            host: self.host(2.0 * bytes.0 as f64),
        })
    }

    fn allreduce(
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

    fn allgather(
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

    fn reduce_scatter(
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

    fn alltoall(
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

    fn load(&self, rank: Rank, bytes: Bytes, readers: usize) -> Result<Seconds, CostError> {
        let Some(facts) = &self.machine.io else {
            return Err(CostError::Missing {
                machine: self.machine.name.clone(),
                key: "io",
                purpose: "reading of samples".to_owned(),
            });
        };
        let per_node = self.machine.devices_per_node.value;
        let first = self.machine.node(rank) * per_node;
        let on_node = readers.saturating_sub(first).clamp(1, per_node);
        let file_system = FileSystem {
            latency: facts.latency.value,
            total: facts.bandwidth_total.value,
            per_node: facts.bandwidth_per_node.value,
        };
        Ok(io::read(bytes, readers, on_node, file_system))
    }
}
