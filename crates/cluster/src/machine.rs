//! A machine as data: nodes, devices, links and file system, each number with its source.

use crate::calibration::Calibration;
use crate::entry::{Table, table};
use crate::error::MachineError;
pub(crate) use crate::fact::{Basis, Fact, ProcessorKind};
use crate::network::{IntraKind, Network, Reduction};
use crate::words::words;
use partita_space::{Bytes, BytesPerSecond, FlopsPerSecond, Rank, Seconds};

/// A cluster of equal nodes. Ranks fill nodes in order, one rank per device.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Name, as in `--machine NAME`.
    pub name: String,
    /// Nodes that one job may use.
    pub nodes: Fact<usize>,
    /// Devices in a node.
    pub devices_per_node: Fact<usize>,
    /// Memory of the host processors of a node, if known; where ranks run on processors, they compute in it.
    pub host_memory: Option<Fact<Bytes>>,
    /// The device, the same everywhere.
    pub device: Device,
    /// Point-to-point links.
    pub links: Links,
    /// The switches between nodes, if known; otherwise the adapters of the nodes alone count.
    pub network: Option<Network>,
    /// Fit of the allreduce of the collective library, which replaces the links.
    pub allreduce: Option<Allreduce>,
    /// Fit of messages between neighbors, which replaces the links.
    pub exchange: Option<Exchange>,
    /// The shared file system, if known.
    pub io: Option<Io>,
    /// Measurements of `partita calibrate`; absent in files written by hand.
    pub calibration: Option<Calibration>,
}

/// One device: a GPU, or the share of a CPU that one rank uses.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// Product name.
    pub name: String,
    /// GPU or CPU.
    pub kind: ProcessorKind,
    /// Memory available to a rank.
    pub memory: Fact<Bytes>,
    /// Peak f32 throughput; a fused multiply-add counts as two flops.
    pub peak_flops_f32: Fact<FlopsPerSecond>,
    /// Peak memory bandwidth.
    pub memory_bandwidth: Fact<BytesPerSecond>,
    /// Bandwidth of a copy from the host memory of its node, if known.
    pub host_bandwidth: Option<Fact<BytesPerSecond>>,
    /// Launch latency of a kernel, if known.
    pub kernel_start: Option<Fact<Seconds>>,
    /// Peaks of arithmetic in other precisions than f32.
    pub rates: Rates,
    /// Processors that compute tiles of a matrix product: multiprocessors of a GPU, cores of a CPU.
    pub processors: Option<Fact<usize>>,
    /// How convolutions and matrix products are divided into tiles; only where `processors` is known.
    pub tiles: Option<Tiles>,
    /// Shares of the peaks that kernels reach.
    pub efficiency: Efficiency,
}

/// Peaks of dense matrix arithmetic in other precisions than f32, where the device has them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rates {
    /// Factors rounded to TF32, sums in f32.
    pub tf32: Option<Fact<FlopsPerSecond>>,
    /// bf16, sums in f32.
    pub bf16: Option<Fact<FlopsPerSecond>>,
    /// f16, sums in f32.
    pub f16: Option<Fact<FlopsPerSecond>>,
}

/// Precision of the arithmetic of convolutions and matrix products.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum LayerPrecision {
    /// IEEE binary32.
    #[default]
    F32,
    /// Tensors in f32; convolutions and matrix products round their factors to 10 bits of mantissa.
    Tf32,
    /// Activations and copies of weights in bfloat16, sums and master weights in f32.
    Bf16,
    /// Activations and copies of weights in IEEE binary16, sums and master weights in f32.
    F16,
}

/// Tiles of the output of a matrix product, each computed by one processor.
///
/// Source: NVIDIA, Matrix Multiplication Background User's Guide, sections on tile and wave quantization.
#[derive(Clone, Debug, PartialEq)]
pub struct Tiles {
    /// Rows of the largest tile; smaller ones are halves of it in either direction.
    pub rows: Fact<usize>,
    /// Columns of the largest tile.
    pub columns: Fact<usize>,
    /// Side of a square tile that reaches half of the rate, as its factors are loaded more often.
    pub half_side: Fact<HalfSaturation>,
    /// Time of a tile beyond its arithmetic: loads of the first factors, writes of the result.
    pub start: Fact<Seconds>,
    /// Bytes to whose multiples channels are padded in reduced precision.
    pub alignment: Fact<Bytes>,
}

/// Shares of the peaks of a device that kernels reach.
#[derive(Clone, Debug, PartialEq)]
pub struct Efficiency {
    /// Convolutions with one or two spatial dims, of the arithmetic peak.
    pub conv2d: ConvEfficiency,
    /// Convolutions with three spatial dims, of the arithmetic peak.
    pub conv3d: ConvEfficiency,
    /// Memory-bound kernels (activation, pooling, normalization), of the peak memory bandwidth.
    pub memory_bound: Fact<Share>,
    /// Factor on the shares of 2D windows of 3 x 3 in f32, where libraries save flops by Winograd's algorithm; absent
    /// if they save none.
    pub winograd: Option<Fact<Share>>,
    /// Convolutions in TF32, of its peak.
    pub tf32: PrecisionEfficiency,
    /// Convolutions in bf16, of its peak.
    pub bf16: PrecisionEfficiency,
    /// Convolutions in f16, of its peak.
    pub f16: PrecisionEfficiency,
}

/// Shares of the peak of one precision. What is absent is as in [`Efficiency::by_precision`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PrecisionEfficiency {
    /// Convolutions with one or two spatial dims, and matrix products.
    pub conv2d: Option<ConvEfficiency>,
    /// Convolutions with three spatial dims.
    pub conv3d: Option<ConvEfficiency>,
}

/// Shares of the arithmetic peak by pass, of the flops of direct convolution.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvEfficiency {
    /// y from x and w.
    pub forward: Fact<Share>,
    /// dx from dy and w.
    pub backward_data: Fact<Share>,
    /// dw from x and dy.
    pub backward_weight: Fact<Share>,
    /// How the shares fall for small shapes; absent if they are means over all shapes.
    pub saturation: Option<ConvSaturation>,
}

/// Extents at which a convolution reaches half of its share of the peak.
///
/// The share is multiplied by `x / (x + half)` for each. `cost/saturation` of the oracle defines the extents.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvSaturation {
    /// Channels, forward.
    pub channels_forward: Fact<HalfSaturation>,
    /// Channels, in both backward passes.
    pub channels_backward: Fact<HalfSaturation>,
    /// Output positions along the shortest spatial dim, in all passes.
    pub thickness: Fact<HalfSaturation>,
}

/// An extent at which half of the peak is reached, above 0.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct HalfSaturation(pub f64);

/// The three passes of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConvPass {
    /// y from x and w.
    Forward,
    /// dx from dy and w.
    BackwardData,
    /// dw from x and dy.
    BackwardWeight,
}

/// A share of a peak, greater than 0.
///
/// Above 1 only for a convolution whose algorithm saves flops (Winograd), since shares count the
/// flops of direct convolution; 4 is what F(4x4, 3x3) saves and the most that is accepted.
/// Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, section 4.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Share(pub f64);

/// Links between devices, by whether they are in one node.
#[derive(Clone, Debug, PartialEq)]
pub struct Links {
    /// Between two devices of one node.
    pub intra: IntraLink,
    /// Between devices of two nodes.
    pub inter: InterLink,
}

/// The link between two devices of a node; pairs do not share it.
#[derive(Clone, Debug, PartialEq)]
pub struct IntraLink {
    /// Time of an empty message.
    pub latency: Fact<Seconds>,
    /// Bandwidth of one message on an idle link, in one direction.
    pub bandwidth: Fact<BytesPerSecond>,
    /// What each device sends to the others in a collective of all of them, in one direction; that of a
    /// message if absent.
    pub bus_bandwidth: Option<Fact<BytesPerSecond>>,
    /// The technology.
    pub kind: Option<IntraKind>,
}

/// The network between nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct InterLink {
    /// Time of an empty message.
    pub latency: Fact<Seconds>,
    /// Bandwidth of one message on an idle network, in one direction.
    pub bandwidth: Fact<BytesPerSecond>,
    /// Injection bandwidth of a node in one direction, which its devices share.
    pub node_bandwidth: Fact<BytesPerSecond>,
    /// Network adapters in a node.
    pub nics_per_node: Fact<usize>,
    /// Where the network adds; in the devices if absent.
    pub reduction: Option<Reduction>,
}

/// A message between neighbors including packing, stream synchronization and staging:
/// `T(m) = latency + m / bandwidth`, with m bytes, and no faster than the link.
#[derive(Clone, Debug, PartialEq)]
pub struct Exchange {
    /// Time of an empty message.
    pub latency: Fact<Seconds>,
    /// Bandwidth of a message.
    pub bandwidth: Fact<BytesPerSecond>,
}

/// Fits of the allreduce, for ranks of one node and for ranks of several nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct Allreduce {
    /// Share of its time in which it occupies the device; absent if it overlaps with computation.
    pub occupancy: Option<Fact<Share>>,
    /// All ranks in one node.
    pub intra: AllreduceLink,
    /// Ranks in more than one node.
    pub inter: AllreduceLink,
}

/// A fit of the allreduce of m bytes over p ranks that span n nodes.
///
/// A ring, `T = 2 (p - 1) (latency + m / (p bandwidth))`; or with `growth` the latency of a tree and a
/// bandwidth that falls with the number of nodes, `T = 2 lg p latency + 2 (p - 1) / p m / bandwidth n^growth`.
/// Nodes are counted from the first to the last of the group, since interleaved groups share their links.
/// Source: ParaDL technical report (October 2020), section on communication primitives; the power
/// as in Oyama et al. (2020), who fit the logarithm of the time to those of bytes and devices.
#[derive(Clone, Debug, PartialEq)]
pub struct AllreduceLink {
    /// Latency of a step.
    pub latency: Fact<Seconds>,
    /// Bandwidth of a step.
    pub bandwidth: Fact<BytesPerSecond>,
    /// Exponent of the number of nodes in the transfer time.
    pub growth: Option<Fact<Share>>,
}

/// The shared file system.
#[derive(Clone, Debug, PartialEq)]
pub struct Io {
    /// Bandwidth of all nodes together.
    pub bandwidth_total: Fact<BytesPerSecond>,
    /// Bandwidth of one node.
    pub bandwidth_per_node: Fact<BytesPerSecond>,
    /// Time of an empty read.
    pub latency: Fact<Seconds>,
}

/// The kind of link between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LinkKind {
    /// A rank to itself.
    Same,
    /// The links within a node.
    Intra,
    /// The network.
    Inter,
}

impl Machine {
    /// Number of devices, which is the most ranks.
    pub fn devices(&self) -> usize {
        self.nodes.value * self.devices_per_node.value
    }

    /// The precisions in which it can be predicted: those of the device, and f32 alone with a calibration, as
    /// its kernels were measured in f32.
    pub fn precisions(&self) -> Vec<LayerPrecision> {
        match &self.calibration {
            Some(_) => vec![LayerPrecision::F32],
            None => self.device.precisions(),
        }
    }

    /// The node of a rank. The caller checks that the rank has a device.
    pub fn node(&self, rank: Rank) -> usize {
        rank / self.devices_per_node.value
    }

    /// The kind of link between two ranks.
    pub fn link(&self, a: Rank, b: Rank) -> LinkKind {
        if a == b {
            LinkKind::Same
        } else if self.node(a) == self.node(b) {
            LinkKind::Intra
        } else {
            LinkKind::Inter
        }
    }

    /// Latency of a message; 0 from a rank to itself.
    pub fn latency(&self, kind: LinkKind) -> Seconds {
        match kind {
            LinkKind::Same => Seconds(0.0),
            LinkKind::Intra => self.links.intra.latency.value,
            LinkKind::Inter => self.links.inter.latency.value,
        }
    }

    /// Bandwidth of one message on an idle link; from a rank to itself, that of its memory.
    pub fn bandwidth(&self, kind: LinkKind) -> BytesPerSecond {
        match kind {
            LinkKind::Same => self.device.memory_rate(),
            LinkKind::Intra => self.links.intra.bandwidth.value,
            LinkKind::Inter => self.links.inter.bandwidth.value,
        }
    }
}

impl Device {
    /// Rate of a large convolution in f32, in flops of direct convolution per second.
    pub fn conv_rate(&self, spatial_dims: usize, pass: ConvPass) -> FlopsPerSecond {
        FlopsPerSecond(self.peak_flops_f32.value.0 * self.efficiency.conv(spatial_dims, pass).0)
    }

    /// Peak of convolutions and matrix products in a precision, if the device has it.
    pub fn peak(&self, precision: LayerPrecision) -> Option<FlopsPerSecond> {
        let rate = |fact: &Option<Fact<FlopsPerSecond>>| fact.as_ref().map(|fact| fact.value);
        match precision {
            LayerPrecision::F32 => Some(self.peak_flops_f32.value),
            LayerPrecision::Tf32 => rate(&self.rates.tf32),
            LayerPrecision::Bf16 => rate(&self.rates.bf16),
            LayerPrecision::F16 => rate(&self.rates.f16),
        }
    }

    /// The precisions that the device has.
    pub fn precisions(&self) -> Vec<LayerPrecision> {
        let all = LayerPrecision::ALL.into_iter();
        all.filter(|&one| self.peak(one).is_some()).collect()
    }

    /// Rate of a memory-bound kernel, in bytes read and written per second.
    pub fn memory_rate(&self) -> BytesPerSecond {
        BytesPerSecond(self.memory_bandwidth.value.0 * self.efficiency.memory_bound.value.0)
    }
}

impl Efficiency {
    /// Shares of f32 alone, for other precisions none.
    pub fn in_f32(
        conv2d: ConvEfficiency,
        conv3d: ConvEfficiency,
        memory_bound: Fact<Share>,
    ) -> Self {
        Self {
            conv2d,
            conv3d,
            memory_bound,
            winograd: None,
            tf32: PrecisionEfficiency::default(),
            bf16: PrecisionEfficiency::default(),
            f16: PrecisionEfficiency::default(),
        }
    }

    /// Shares of convolutions with `spatial_dims` spatial dims (3 or fewer).
    pub fn by_dims(&self, spatial_dims: usize) -> &ConvEfficiency {
        if spatial_dims >= 3 {
            &self.conv3d
        } else {
            &self.conv2d
        }
    }

    /// Shares of convolutions in a precision. bf16 and f16 without a table take that of the other, as the
    /// same units compute both; what is still absent takes the shares of f32.
    pub fn by_precision(&self, precision: LayerPrecision, spatial_dims: usize) -> &ConvEfficiency {
        let reduced = match precision {
            LayerPrecision::F32 => None,
            LayerPrecision::Tf32 => self.tf32.by_dims(spatial_dims),
            LayerPrecision::Bf16 => {
                let own = self.bf16.by_dims(spatial_dims);
                own.or(self.f16.by_dims(spatial_dims))
            }
            LayerPrecision::F16 => {
                let own = self.f16.by_dims(spatial_dims);
                own.or(self.bf16.by_dims(spatial_dims))
            }
        };
        reduced.unwrap_or_else(|| self.by_dims(spatial_dims))
    }

    /// Share of a large convolution with `spatial_dims` spatial dims (3 or fewer).
    pub fn conv(&self, spatial_dims: usize, pass: ConvPass) -> Share {
        self.by_dims(spatial_dims).by_pass(pass)
    }
}

impl PrecisionEfficiency {
    /// Shares of convolutions with `spatial_dims` spatial dims, if given.
    fn by_dims(&self, spatial_dims: usize) -> Option<&ConvEfficiency> {
        if spatial_dims >= 3 {
            self.conv3d.as_ref()
        } else {
            self.conv2d.as_ref()
        }
    }
}

impl ConvEfficiency {
    /// Share of a pass.
    pub fn by_pass(&self, pass: ConvPass) -> Share {
        match pass {
            ConvPass::Forward => self.forward.value,
            ConvPass::BackwardData => self.backward_data.value,
            ConvPass::BackwardWeight => self.backward_weight.value,
        }
    }
}

impl LayerPrecision {
    /// Whether activations and their gradients take two bytes an element.
    pub fn is_half(self) -> bool {
        match self {
            LayerPrecision::F32 | LayerPrecision::Tf32 => false,
            LayerPrecision::Bf16 | LayerPrecision::F16 => true,
        }
    }
}

words!(LayerPrecision, "All, widest first." {
    F32 = "f32",
    Tf32 = "tf32",
    Bf16 = "bf16",
    F16 = "f16",
});

table!(Machine {
    name,
    nodes,
    devices_per_node,
    host_memory,
    device,
    links,
    network,
    allreduce,
    exchange,
    io,
    calibration,
} then check);

table!(Device {
    name,
    kind,
    memory,
    peak_flops_f32,
    memory_bandwidth,
    host_bandwidth,
    kernel_start,
    processors,
    rates,
    tiles,
    efficiency,
} then check);

table!(Rates or default { tf32, bf16, f16 });
table!(Tiles {
    rows,
    columns,
    half_side,
    start,
    alignment
});

table!(Efficiency {
    memory_bound if at_most_all("no kernel moves bytes faster than the peak"),
    winograd,
    conv2d,
    conv3d,
    tf32,
    bf16,
    f16,
});

table!(PrecisionEfficiency or default { conv2d, conv3d });
table!(ConvEfficiency {
    forward,
    backward_data,
    backward_weight,
    saturation
});
table!(ConvSaturation {
    channels_forward,
    channels_backward,
    thickness
});
table!(Links { intra, inter });
table!(IntraLink {
    latency,
    bandwidth,
    bus_bandwidth,
    kind
});
table!(InterLink { latency, bandwidth, node_bandwidth, nics_per_node, reduction } then check);
table!(Exchange { latency, bandwidth });

table!(Allreduce {
    occupancy if at_most_all("a sum takes no more than all of a device"),
    intra,
    inter,
});

table!(AllreduceLink {
    latency,
    bandwidth,
    growth if at_most_all("twice the nodes at most double the time of a byte"),
});

table!(Io { bandwidth_total, bandwidth_per_node, latency } then check);

impl Machine {
    /// A torus has a place for each node.
    fn check(&self, table: &Table<'_>) -> Result<(), MachineError> {
        let (Some(Network::Torus(torus)), nodes) = (&self.network, self.nodes.value) else {
            return Ok(());
        };
        let extents = &torus.extents.value;
        let all: u128 = extents.iter().map(|&one| one as u128).product();
        if all >= nodes as u128 {
            return Ok(());
        }
        let expected = format!("extents whose product is at least the {nodes} `nodes`");
        Err(table.bad(&["network", "extents"], &format!("{extents:?}"), expected))
    }
}

impl Device {
    fn check(&self, table: &Table<'_>) -> Result<(), MachineError> {
        if self.tiles.is_none() || self.processors.is_some() {
            return Ok(());
        }
        let expected = "the number of processors that compute tiles, as `device.tiles` is given";
        let at = table.offset(&["tiles", "rows"]);
        Err(table.bad_at(("processors", at), "missing", expected))
    }
}

impl InterLink {
    fn check(&self, table: &Table<'_>) -> Result<(), MachineError> {
        let node = ("node_bandwidth", self.node_bandwidth.value);
        table.at_most(("bandwidth", self.bandwidth.value), node)
    }
}

impl Io {
    fn check(&self, table: &Table<'_>) -> Result<(), MachineError> {
        let total = ("bandwidth_total", self.bandwidth_total.value);
        table.at_most(("bandwidth_per_node", self.bandwidth_per_node.value), total)
    }
}
