//! Costs from a machine file and a software profile.

use super::crossing::Crossings;
use super::kernel::{self, Pass, RateClass};
use super::measured::message_by;
use super::samples::{self, FileSystem, LoadCost, SampleRead};
use super::saturation::{Product, Tiling};
use super::{
    AlltoallBlocks, CollectiveCost, Contention, CostBasis, CostError, Costs, KernelBasis,
    KernelCost, MessageCost, Progress, SoftwareCosts, link, precision, saturation,
};
use crate::kernel_model::{Features, KernelModel, KernelSample};
use crate::uncertainty::{self, Facts, Uncertainty};
use partita_cluster::{
    Calibration, CollectiveLibrary, ConvEfficiency, ConvPass, LayerPrecision, LinkKind, Machine,
    MeasuredKernel, ProcessorKind, Software,
};
use partita_program::{Algorithm, Count, Dtype, KernelShape, Origin};
use partita_space::{Bytes, BytesPerSecond, FlopsPerSecond, Rank, Seconds};

mod collectives;

/// Costs from the facts of a machine file and of the software that runs on it. If the file holds a calibration, kernels are estimated from measured
/// ones, and messages and collectives within a node follow the measured fits.
#[derive(Clone, Debug)]
pub struct MachineCosts {
    machine: Machine,
    precision: LayerPrecision,
    software: SoftwareCosts,
    kernels: Option<KernelModel>,
    library: CollectiveLibrary,
    crossings: Crossings,
    last_layout: collectives::LastLayout,
}

impl MachineCosts {
    /// Of the machine as the software uses it. Fits the kernel model if the machine has a calibration.
    pub fn new(machine: Machine, software: Software) -> Self {
        let machine = software.on(machine);
        let calibration = machine.calibration.as_ref();
        Self {
            kernels: calibration.and_then(|one| KernelModel::fit(&samples(&one.measured))),
            library: match machine.device.kind {
                ProcessorKind::Cpu => CollectiveLibrary::usual(ProcessorKind::Cpu),
                ProcessorKind::Gpu => software.collectives.value,
            },
            crossings: Crossings::new(&machine),
            last_layout: collectives::LastLayout::default(),
            software: SoftwareCosts::new(&machine, software),
            machine,
            precision: LayerPrecision::F32,
        }
    }

    /// The same with layers in another precision.
    ///
    /// Errors: the machine does not have it.
    pub fn with_precision(self, precision: LayerPrecision) -> Result<Self, CostError> {
        precision::check(&self.machine, self.software.software(), precision)?;
        Ok(Self { precision, ..self })
    }

    /// With another library for collectives than is usual for the devices.
    #[must_use]
    pub fn with_library(self, library: CollectiveLibrary) -> Self {
        Self { library, ..self }
    }

    /// Of all ranks, those on the node of one.
    fn on_node(&self, rank: Rank, ranks: usize) -> usize {
        let per_node = self.machine.devices_per_node.value;
        let first = self.machine.node(rank) * per_node;
        ranks.saturating_sub(first).clamp(1, per_node)
    }

    fn file_system(&self, purpose: &str) -> Result<FileSystem, CostError> {
        let Some(facts) = &self.machine.io else {
            return Err(CostError::Missing {
                machine: self.machine.name.clone(),
                key: "io",
                purpose: purpose.to_owned(),
            });
        };
        Ok(FileSystem {
            latency: facts.latency.value,
            total: facts.bandwidth_total.value,
            per_node: facts.bandwidth_per_node.value,
        })
    }

    /// From the node of a rank to that of another.
    fn apart(&self, a: Rank, b: Rank) -> usize {
        self.machine.node(a).abs_diff(self.machine.node(b))
    }

    /// What the software adds.
    pub fn software(&self) -> &SoftwareCosts {
        &self.software
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
                product,
            } => {
                let shares = device.efficiency.by_precision(self.precision, spatial_dims);
                match &shares.saturation {
                    Some(half) => {
                        let reached = saturation::saturation(extents, pass, half);
                        FlopsPerSecond(self.rate(shares, pass).0 * reached)
                    }
                    None => {
                        let rate = self.rate(shares, pass).0 * self.saved(spatial_dims, &product);
                        self.tiled(FlopsPerSecond(rate), &product)
                    }
                }
            }
            RateClass::Linear { pass, product } => {
                let shares = device.efficiency.by_precision(self.precision, 2);
                self.tiled(self.rate(shares, pass), &product)
            }
            RateClass::Memory => device.peak_flops_f32.value,
        }
    }

    /// Rate of a large product. [`Self::with_precision`] has checked that there is one.
    fn rate(&self, shares: &ConvEfficiency, pass: Pass) -> FlopsPerSecond {
        let device = &self.machine.device;
        let peak = device.peak(self.precision);
        let peak = peak.unwrap_or(device.peak_flops_f32.value);
        FlopsPerSecond(peak.0 * shares.by_pass(conv_pass(pass)).0)
    }

    /// By how many times the arithmetic of direct convolution exceeds what a library needs.
    fn saved(&self, spatial_dims: usize, product: &Product) -> f64 {
        let is_3x3 = spatial_dims == 2 && product.taps == 9;
        let applies = is_3x3 && self.precision == LayerPrecision::F32;
        let factor = self.machine.device.efficiency.winograd.as_ref();
        factor.filter(|_| applies).map_or(1.0, |it| it.value.0)
    }

    fn tiled(&self, rate: FlopsPerSecond, product: &Product) -> FlopsPerSecond {
        let tiling = Tiling::of(&self.machine.device, self.precision, rate);
        let reached = tiling.map_or(1.0, |tiling| tiling.reached(product));
        FlopsPerSecond(rate.0 * reached)
    }

    /// Memory-bound kernels have a cost in any dtype. The others need an arithmetic rate, which there is in
    /// f32 and in the precision of the costs alone; of a fused kernel the first part decides.
    fn check_dtype(&self, shape: &KernelShape<'_>, rate_class: RateClass) -> Result<(), CostError> {
        let needs_rate = match rate_class {
            RateClass::Convolution { .. } | RateClass::Linear { .. } => true,
            RateClass::Memory => false,
        };
        let first = &shape.kernel.parts()[0];
        let other = first.accesses().into_iter().find_map(|(view, _)| {
            match shape.buffers[view.buffer.0 as usize].dtype {
                Dtype::F32 => None,
                Dtype::Bf16 | Dtype::F16 if self.precision.is_half() => None,
                other @ (Dtype::F64 | Dtype::Bf16 | Dtype::F16 | Dtype::I16) => Some(other),
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

    fn launch(&self, shape: &KernelShape<'_>) -> Result<Seconds, CostError> {
        let device = &self.machine.device;
        if let (Some(start), ProcessorKind::Gpu) = (self.software.start(shape), device.kind) {
            return Ok(start);
        }
        match (&device.kernel_start, device.kind) {
            (Some(start), ProcessorKind::Gpu | ProcessorKind::Cpu) => Ok(start.value),
            // On a host processor a kernel is a function call.
            (None, ProcessorKind::Cpu) => Ok(Seconds(0.0)),
            (None, ProcessorKind::Gpu) => Err(CostError::Missing {
                machine: self.machine.name.clone(),
                key: "device.kernel_start",
                purpose: "the launch of a kernel".to_owned(),
            }),
        }
    }

    /// Host overhead of this many bytes of memory traffic: none on a GPU, which does not copy itself.
    fn host(&self, traffic: f64) -> Seconds {
        match self.machine.device.kind {
            ProcessorKind::Gpu => Seconds(0.0),
            ProcessorKind::Cpu => Seconds(traffic / self.machine.device.memory_rate().0),
        }
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

fn conv_pass(pass: Pass) -> ConvPass {
    match pass {
        Pass::Forward => ConvPass::Forward,
        Pass::BackwardData => ConvPass::BackwardData,
        Pass::BackwardWeight => ConvPass::BackwardWeight,
    }
}

impl Costs for MachineCosts {
    fn basis(&self) -> CostBasis {
        match &self.kernels {
            Some(_) => CostBasis::Calibrated,
            None => CostBasis::Modeled,
        }
    }

    fn uncertainty(&self, ranks: usize) -> Uncertainty {
        let nodes = ranks.div_ceil(self.machine.devices_per_node.value);
        let facts = Facts {
            machine: &self.machine,
            software: &self.software,
            precision: self.precision,
        };
        uncertainty::of_machine(facts, nodes)
    }

    fn progress(&self) -> Progress {
        match self.library {
            CollectiveLibrary::Mpi => Progress::Polled,
            CollectiveLibrary::Nccl => Progress::Queued,
        }
    }

    fn contention(&self) -> Contention {
        let crowded = |one: &Calibration| one.ranks * one.threads > one.cores;
        match (self.machine.device.kind, &self.machine.calibration) {
            // Ranks may have shared a device when it was measured.
            (ProcessorKind::Gpu, _) => Contention::Units,
            (ProcessorKind::Cpu, Some(one)) if crowded(one) => Contention::Units,
            (ProcessorKind::Cpu, Some(_) | None) => Contention::Memory,
        }
    }

    fn precision(&self) -> LayerPrecision {
        self.precision
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
            LinkKind::Inter => 2 + self.crossings.number(self.apart(a, b)),
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
        let traffic = (count.read + count.written).0 as f64;
        let traffic = traffic * precision::traffic(shape, self.precision);
        let (mut arithmetic, mut memory) = (
            self.arithmetic_rate(rate_class),
            self.machine.device.memory_rate(),
        );
        let slowdown = self.software.slowdown(shape);
        match rate_class {
            RateClass::Convolution { .. } | RateClass::Linear { .. } => arithmetic.0 /= slowdown,
            RateClass::Memory => {
                arithmetic.0 /= slowdown;
                memory.0 /= slowdown;
            }
        }
        Ok(KernelCost::uncontended(kernel::roofline(
            count.flops,
            arithmetic,
            Bytes(traffic.round() as u64),
            memory,
            self.launch(shape)?,
        )))
    }

    fn layer_factor(&self, _origin: &Origin) -> f64 {
        1.0
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
        let within = calibration.and_then(|one| one.message.as_ref());
        if let (LinkKind::Intra, Some(fit)) = (kind, within) {
            return Ok(message_by(fit, bytes));
        }
        let (node, path) = match kind {
            LinkKind::Same | LinkKind::Intra => (None, None),
            LinkKind::Inter => {
                let crossing = self.crossings.message(&self.machine, self.apart(from, to));
                let node = self.machine.links.inter.node_bandwidth.value;
                let node = BytesPerSecond(node.0 / crossing.once);
                (Some(node), Some(crossing.latency))
            }
        };
        let link = link::transfer(bytes, self.machine.bandwidth(kind), node, contention);
        let (latency, transfer) = match self.software.exchange(kind) {
            Some(fit) => (fit.latency.value, link.max(bytes / fit.bandwidth.value)),
            None => (self.machine.latency(kind), link),
        };
        let network = calibration.and_then(|one| one.network.as_ref());
        let host = match (kind, network) {
            (LinkKind::Inter, Some(network)) => network.message.host(bytes),
            (LinkKind::Same | LinkKind::Intra | LinkKind::Inter, _) => {
                self.host(2.0 * bytes.0 as f64)
            }
        };
        let latency = latency + path.unwrap_or_default();
        Ok(MessageCost {
            latency,
            transfer,
            host,
        })
    }

    fn allreduce(
        &self,
        members: &[Rank],
        bytes: Bytes,
        contention: f64,
    ) -> Result<CollectiveCost, CostError> {
        self.allreduce_cost(members, bytes, contention)
    }

    fn allgather(
        &self,
        members: &[Rank],
        bytes_per_member: &[Bytes],
        contention: f64,
    ) -> Result<CollectiveCost, CostError> {
        self.allgather_cost(members, bytes_per_member, contention)
    }

    fn reduce_scatter(
        &self,
        members: &[Rank],
        bytes_per_member: &[Bytes],
        contention: f64,
    ) -> Result<CollectiveCost, CostError> {
        self.reduce_scatter_cost(members, bytes_per_member, contention)
    }

    fn alltoall(
        &self,
        members: &[Rank],
        blocks: AlltoallBlocks,
        contention: f64,
    ) -> Result<CollectiveCost, CostError> {
        self.alltoall_cost(members, blocks, contention)
    }

    fn load(&self, rank: Rank, read: SampleRead) -> Result<LoadCost, CostError> {
        let software = self.software.software();
        let load = samples::Load {
            machine: &self.machine,
            read,
            on_node: self.on_node(rank, read.readers),
            is_spatial: software.reads_parts(),
        };
        if software.data_store.value {
            return Ok(load.from_store());
        }
        Ok(load.from_files(self.file_system("reading of samples")?))
    }

    /// Writing is taken to be as fast as reading.
    fn write(&self, rank: Rank, bytes: Bytes, writers: usize) -> Result<Seconds, CostError> {
        let file_system = self.file_system("writing of predictions")?;
        let on_node = self.on_node(rank, writers);
        Ok(samples::files(bytes, writers, on_node, file_system))
    }
}
