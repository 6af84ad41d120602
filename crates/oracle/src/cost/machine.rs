//! Costs from the facts of a machine file.

use super::collective::{self, Hop, Parts};
use super::io::{self, FileSystem};
use super::kernel::{self, Character, Pass};
use super::{
    Blocks, CollectiveCost, CostBasis, CostError, Costs, KernelCost, Known, LinkFit, MessageCost,
    link, saturation,
};
use crate::efficiency::{Efficiency, Features, Sample};
use partita_cluster::{ConvPass, DeviceKind, Law, LinkKind, Machine, MeasuredKernel};
use partita_program::{Algorithm, Count, Dtype, KernelShape};
use partita_space::{Bytes, FlopsPerSecond, Rank, Seconds};

/// Costs from the facts of a machine file; where it holds a calibration, kernels are estimated from
/// those measured, and messages and sums within a node go by the measured laws.
#[derive(Clone, Debug)]
pub struct MachineCosts {
    machine: Machine,
    kernels: Option<Efficiency>,
}

/// How the members of a group lie on nodes.
struct Spread {
    members: usize,
    nodes: usize,
    most_on_node: usize,
    fewest_on_node: usize,
    /// Nodes from the first to the last, those between without a member counted too.
    stretch: usize,
}

impl MachineCosts {
    /// Costs on this machine.
    pub fn new(machine: Machine) -> Self {
        let calibration = machine.calibration.as_ref();
        Self {
            kernels: calibration.and_then(|one| Efficiency::fit(&samples(&one.measured))),
            machine,
        }
    }

    /// The law of a collective within a node, where it was measured with as many members.
    fn measured(&self, spread: &Spread, name: &str, bytes: Bytes) -> Option<CollectiveCost> {
        let calibration = self.machine.calibration.as_ref();
        let laws = calibration
            .filter(|_| spread.nodes == 1)?
            .collectives
            .get(name)?;
        let law = laws.get(&spread.members.to_string())?;
        Some(fit(law).collective(bytes))
    }

    /// The machine.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    fn arithmetic_rate(&self, character: Character) -> FlopsPerSecond {
        let device = &self.machine.device;
        match character {
            Character::Convolution {
                spatial_dims,
                pass,
                extents,
            } => {
                let rate = device.conv_rate(spatial_dims, conv_pass(pass));
                let law = device.efficiency.by_dims(spatial_dims).saturation.as_ref();
                let reached = law.map_or(1.0, |law| saturation::saturation(extents, pass, law));
                FlopsPerSecond(rate.0 * reached)
            }
            Character::Linear { pass } => device.conv_rate(2, conv_pass(pass)),
            Character::Memory => device.peak_flops_f32.value,
        }
    }

    /// Kernels limited by memory are costed by their bytes in any dtype; the others need a rate, and
    /// so does a fused kernel by its first part: sums in f64 that end it are a matter of memory.
    fn check_dtype(&self, shape: &KernelShape<'_>, character: Character) -> Result<(), CostError> {
        let needs_rate = match character {
            Character::Convolution { .. } | Character::Linear { .. } => true,
            Character::Memory => false,
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

    /// Time for which traffic of that many bytes keeps a host processor from computing.
    fn host(&self, traffic: f64) -> Seconds {
        match self.machine.device.kind {
            DeviceKind::Gpu => Seconds(0.0),
            DeviceKind::Cpu => Seconds(traffic / self.machine.device.memory_rate().0),
        }
    }

    /// Time that a member loses to a sum of that many bytes: each is summed once (two reads, a write)
    /// and copied once (a read, a write).
    fn host_of_sum(&self, spread: &Spread, bytes: f64) -> Seconds {
        let share = (spread.members - 1) as f64 / spread.members as f64;
        self.host(5.0 * share * bytes)
    }

    fn spread(&self, members: &[Rank]) -> Spread {
        let mut nodes: Vec<usize> = members
            .iter()
            .map(|&rank| self.machine.node(rank))
            .collect();
        nodes.sort_unstable();
        let sizes = || nodes.chunk_by(|a, b| a == b).map(<[usize]>::len);
        Spread {
            members: members.len(),
            nodes: sizes().count(),
            most_on_node: sizes().max().unwrap_or(0),
            fewest_on_node: sizes().min().unwrap_or(0),
            stretch: nodes
                .last()
                .zip(nodes.first())
                .map_or(0, |(last, first)| last - first + 1),
        }
    }

    /// Seconds per byte summed: two reads and a write.
    fn gamma(&self) -> f64 {
        3.0 / self.machine.device.memory_rate().0
    }

    fn intra(&self) -> Hop {
        Hop {
            alpha: self.machine.latency(LinkKind::Intra).0,
            beta: 1.0 / self.machine.bandwidth(LinkKind::Intra).0,
            gamma: self.gamma(),
        }
    }

    fn inter(&self, flows: f64) -> Hop {
        let node = self.machine.links.inter.node_bandwidth.value.0;
        Hop {
            alpha: self.machine.latency(LinkKind::Inter).0,
            beta: (1.0 / self.machine.bandwidth(LinkKind::Inter).0).max(flows / node),
            gamma: self.gamma(),
        }
    }

    /// The worst hop of a flat algorithm in which `flows` messages leave a node at once.
    fn flat(&self, spread: &Spread, flows: f64) -> Hop {
        if spread.nodes == 1 {
            return self.intra();
        }
        let (intra, inter) = (self.intra(), self.inter(flows));
        if spread.most_on_node == 1 {
            return inter;
        }
        Hop {
            alpha: intra.alpha.max(inter.alpha),
            beta: intra.beta.max(inter.beta),
            gamma: inter.gamma,
        }
    }

    /// By the law of the allreduce, where the machine file gives one.
    fn fitted(&self, formulas: &SumFormulas, spread: &Spread, n: f64, flows: f64) -> Option<Parts> {
        let law = self.machine.allreduce.as_ref()?;
        let single = spread.nodes == 1;
        let fitted = if single { &law.intra } else { &law.inter };
        let own = 1.0 / fitted.bandwidth.value.0;
        let node = flows / self.machine.links.inter.node_bandwidth.value.0;
        let beta = if single { own } else { own.max(node) };
        let alpha = fitted.latency.value.0;
        let p = spread.members;
        Some(match &fitted.growth {
            None => {
                // A ring fitted to gradients says nothing of few bytes, for which none is taken.
                let tree = self.flat(spread, flows * spread.most_on_node as f64);
                let short = collective::allreduce_doubling(p, n, tree);
                (formulas.law)(p, n, alpha, beta).min(short)
            }
            Some(growth) => {
                let grown = beta * (spread.stretch as f64).powf(growth.value.0);
                (formulas.growing)(p, n, alpha, grown)
            }
        })
    }

    /// What a member loses to a sum: on a host processor its arithmetic and copies, on a device the
    /// part of the time for which the library's own kernels keep it.
    fn held_by_sum(&self, spread: &Spread, bytes: f64, parts: Parts) -> Seconds {
        let occupancy = self
            .machine
            .allreduce
            .as_ref()
            .and_then(|law| law.occupancy.as_ref());
        let held = occupancy.map_or(0.0, |share| share.value.0 * parts.total());
        self.host_of_sum(spread, bytes) + Seconds(held)
    }

    fn sum_parts(
        &self,
        formulas: &SumFormulas,
        spread: &Spread,
        bytes: f64,
        sharing: f64,
    ) -> Parts {
        if let Some(parts) = self.fitted(formulas, spread, bytes, sharing) {
            return parts;
        }
        let tree_flows = sharing * spread.most_on_node as f64;
        let ring = self.flat(spread, sharing);
        let tree = self.flat(spread, tree_flows);
        let flat = (formulas.flat)(spread.members, bytes, ring, tree);
        if spread.nodes == 1 || spread.fewest_on_node == 1 {
            return flat;
        }
        flat.min((formulas.hierarchical)(
            spread.nodes,
            spread.fewest_on_node,
            bytes,
            self.intra(),
            self.inter(tree_flows),
        ))
    }
}

fn fit(law: &Law) -> LinkFit {
    LinkFit {
        latency: Seconds(law.latency),
        seconds_per_byte: law.seconds_per_byte,
        host_seconds_per_byte: law.host_seconds_per_byte,
    }
}

/// Rows of a calibration whose shapes have as many coordinates as [`Features`] has.
fn samples(measured: &[MeasuredKernel]) -> Vec<Sample> {
    let sample = |row: &MeasuredKernel| {
        let MeasuredKernel(family, flops, bytes, shape, alone, together) = row;
        Some(Sample {
            features: Features {
                family: family.clone(),
                flops: *flops,
                bytes: *bytes,
                shape: shape.as_slice().try_into().ok()?,
            },
            cost: KernelCost {
                alone: *alone,
                together: *together,
                known: Known::Measured,
            },
        })
    };
    measured.iter().filter_map(sample).collect()
}

/// What a sum over ranks takes: by a fitted law, by one flat algorithm, and within nodes before between
/// them.
struct SumFormulas {
    law: fn(usize, f64, f64, f64) -> Parts,
    growing: fn(usize, f64, f64, f64) -> Parts,
    flat: fn(usize, f64, Hop, Hop) -> Parts,
    hierarchical: fn(usize, usize, f64, Hop, Hop) -> Parts,
}

const ALLREDUCE: SumFormulas = SumFormulas {
    law: collective::allreduce_law,
    growing: collective::allreduce_tree_law,
    flat: collective::allreduce_flat,
    hierarchical: collective::allreduce_hierarchical,
};

const REDUCE_SCATTER: SumFormulas = SumFormulas {
    law: collective::reduce_scatter_law,
    growing: collective::reduce_scatter_tree_law,
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

fn collective_cost(parts: Parts, host: Seconds) -> CollectiveCost {
    CollectiveCost {
        latency: Seconds(parts.latency),
        transfer: Seconds(parts.transfer),
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

    fn delivers_between_kernels(&self) -> bool {
        match self.machine.device.kind {
            DeviceKind::Cpu => true,
            DeviceKind::Gpu => false,
        }
    }

    fn admit(&self, ranks: usize) -> Result<(), CostError> {
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
        if let Some(laws) = &self.kernels {
            return Ok(laws.estimate(&Features::of(shape)));
        }
        let character = kernel::character(shape);
        self.check_dtype(shape, character)?;
        Ok(KernelCost::undisturbed(kernel::roofline(
            count.flops,
            self.arithmetic_rate(character),
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
        sharing: f64,
    ) -> Result<MessageCost, CostError> {
        let kind = self.machine.link(from, to);
        let calibration = self.machine.calibration.as_ref();
        if let (LinkKind::Intra, Some(law)) = (kind, calibration.and_then(|one| one.message)) {
            return Ok(fit(&law).message(bytes));
        }
        let node = match kind {
            LinkKind::Same | LinkKind::Intra => None,
            LinkKind::Inter => Some(self.machine.links.inter.node_bandwidth.value),
        };
        let link = link::transfer(bytes, self.machine.bandwidth(kind), node, sharing);
        let (latency, transfer) = match &self.machine.exchange {
            Some(law) => (law.latency.value, link.max(bytes / law.bandwidth.value)),
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
        sharing: f64,
    ) -> Result<CollectiveCost, CostError> {
        let spread = self.spread(members);
        if spread.members <= 1 {
            return Ok(CollectiveCost::default());
        }
        let n = bytes.0 as f64;
        if let Some(cost) = self.measured(&spread, "allreduce", bytes) {
            return Ok(cost);
        }
        let parts = self.sum_parts(&ALLREDUCE, &spread, n, sharing);
        let held = self.held_by_sum(&spread, n, parts);
        Ok(collective_cost(parts, held))
    }

    fn allgather(
        &self,
        members: &[Rank],
        bytes_per_member: &[Bytes],
        sharing: f64,
    ) -> Result<CollectiveCost, CostError> {
        let spread = self.spread(members);
        if spread.members <= 1 {
            return Ok(CollectiveCost::default());
        }
        let blocks: Vec<f64> = bytes_per_member
            .iter()
            .map(|bytes| bytes.0 as f64)
            .collect();
        let total = bytes_per_member.iter().copied().sum();
        if let Some(cost) = self.measured(&spread, "allgather", total) {
            return Ok(cost);
        }
        let ring = self.flat(&spread, sharing);
        let tree = self.flat(&spread, sharing * spread.most_on_node as f64);
        let parts = collective::allgather_ring(&blocks, ring)
            .min(collective::allgather_doubling(&blocks, tree));
        let host = self.host(2.0 * blocks.iter().sum::<f64>());
        Ok(collective_cost(parts, host))
    }

    fn reduce_scatter(
        &self,
        members: &[Rank],
        bytes_per_member: &[Bytes],
        sharing: f64,
    ) -> Result<CollectiveCost, CostError> {
        let spread = self.spread(members);
        if spread.members <= 1 {
            return Ok(CollectiveCost::default());
        }
        let total: Bytes = bytes_per_member.iter().copied().sum();
        if let Some(cost) = self.measured(&spread, "reduce_scatter", total) {
            return Ok(cost);
        }
        let largest = bytes_per_member.iter().map(|bytes| bytes.0).max();
        let n = spread.members as f64 * largest.unwrap_or(0) as f64;
        let parts = self.sum_parts(&REDUCE_SCATTER, &spread, n, sharing);
        let held = self.held_by_sum(&spread, n, parts);
        Ok(collective_cost(parts, held))
    }

    fn alltoall(
        &self,
        members: &[Rank],
        blocks: Blocks,
        sharing: f64,
    ) -> Result<CollectiveCost, CostError> {
        let spread = self.spread(members);
        if spread.members <= 1 {
            return Ok(CollectiveCost::default());
        }
        if let Some(cost) = self.measured(&spread, "alltoall", blocks.given) {
            return Ok(cost);
        }
        let largest = blocks.largest.0 as f64;
        // Most partners of the members of a node are on others, and all send at once.
        let hop = self.flat(&spread, sharing * spread.most_on_node as f64);
        let parts = collective::alltoall_pairwise(spread.members, largest, hop)
            .min(collective::alltoall_bruck(spread.members, largest, hop));
        // As much is packed as is unpacked.
        let host = self.host(4.0 * blocks.given.0 as f64);
        Ok(collective_cost(parts, host))
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
