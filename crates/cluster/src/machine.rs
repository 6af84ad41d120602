//! A machine as data: nodes, devices, links and file system, each number with its source.

use crate::calibration::Calibration;
use partita_space::{Bytes, BytesPerSecond, FlopsPerSecond, Rank, Seconds};

/// A cluster of equal nodes. Ranks fill nodes in order, one rank per device.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// The name under which the machine is asked for.
    pub name: String,
    /// Nodes that one job may use.
    pub nodes: Fact<usize>,
    /// Devices in a node.
    pub devices_per_node: Fact<usize>,
    /// The device, the same everywhere.
    pub device: Device,
    /// Point-to-point links.
    pub links: Links,
    /// What the collective library reaches where that was fitted apart from the links.
    pub allreduce: Option<Allreduce>,
    /// What messages between neighbors reach where that was fitted apart from the links.
    pub exchange: Option<Exchange>,
    /// The shared file system; absent where nothing is known of it.
    pub io: Option<Io>,
    /// What was measured on the machine; absent where its file was written by hand.
    pub calibration: Option<Calibration>,
}

/// A number and where it comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct Fact<T> {
    /// The number.
    pub value: T,
    /// How it was come by.
    pub basis: Basis,
    /// Paper, vendor page, data file or measurement, with the arithmetic if there was any.
    pub source: String,
}

/// How a number was come by, surest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Basis {
    /// The source states it.
    Stated,
    /// Measured on the machine itself.
    Measured,
    /// Fitted to measurements.
    Fitted,
    /// Computed from stated numbers; the arithmetic stands in the source.
    Derived,
    /// A guess, with its reason in the source.
    Assumed,
}

/// One device: a GPU, or the share of a CPU that one rank uses.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// Product name.
    pub name: String,
    /// What it is.
    pub kind: DeviceKind,
    /// Memory that a rank may fill.
    pub memory: Fact<Bytes>,
    /// Peak rate of f32 arithmetic; a multiply-add counts two.
    pub peak_flops_f32: Fact<FlopsPerSecond>,
    /// Peak rate of the memory.
    pub memory_bandwidth: Fact<BytesPerSecond>,
    /// From the launch of an empty kernel to its start; absent where unknown.
    pub kernel_start: Option<Fact<Seconds>>,
    /// What kernels reach of the peaks.
    pub efficiency: Efficiency,
}

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// A graphics processor.
    Gpu,
    /// A host processor.
    Cpu,
}

/// What kernels reach of a device's peaks.
#[derive(Clone, Debug, PartialEq)]
pub struct Efficiency {
    /// Convolutions with one or two spatial dims, of the arithmetic peak.
    pub conv2d: ConvEfficiency,
    /// Convolutions with three spatial dims, of the arithmetic peak.
    pub conv3d: ConvEfficiency,
    /// Kernels limited by memory (activation, pooling, normalization), of the memory's peak.
    pub memory_bound: Fact<Share>,
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
    /// How the shares fall for small shapes; absent where they are means over all shapes.
    pub saturation: Option<ConvSaturation>,
}

/// Extents at which a convolution reaches half of its share of the peak.
///
/// The share is multiplied by `x / (x + half)` for each. What the extents are of a kernel is said
/// where the formula is (`cost/saturation` of the oracle).
#[derive(Clone, Debug, PartialEq)]
pub struct ConvSaturation {
    /// Channels, forward.
    pub channels_forward: Fact<Half>,
    /// Channels, in both backward passes.
    pub channels_backward: Fact<Half>,
    /// Output positions along the shortest spatial dim, in all passes.
    pub thickness: Fact<Half>,
}

/// The extent at which half is reached; above 0.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Half(pub f64);

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

/// A part of a peak, greater than 0.
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
    /// Rate of one message on an idle link, in one direction.
    pub bandwidth: Fact<BytesPerSecond>,
}

/// The network between nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct InterLink {
    /// Time of an empty message.
    pub latency: Fact<Seconds>,
    /// Rate of one message on an idle network, in one direction.
    pub bandwidth: Fact<BytesPerSecond>,
    /// Rate of all messages of a node together, in one direction; its devices share it.
    pub node_bandwidth: Fact<BytesPerSecond>,
    /// Network adapters in a node.
    pub nics_per_node: Fact<usize>,
}

/// What a message between neighbors takes with all that a library does around it: packing, the
/// synchronization of streams, staging. `T(m) = latency + m / bandwidth`, m in bytes, and no faster
/// than the link.
#[derive(Clone, Debug, PartialEq)]
pub struct Exchange {
    /// Time of an empty message.
    pub latency: Fact<Seconds>,
    /// Rate of a message.
    pub bandwidth: Fact<BytesPerSecond>,
}

/// Fits of the allreduce: a law for ranks of one node and one for ranks of several.
#[derive(Clone, Debug, PartialEq)]
pub struct Allreduce {
    /// Part of its time for which a sum keeps its device from computing; absent where a sum is hidden
    /// by whatever is computed meanwhile.
    pub occupancy: Option<Fact<Share>>,
    /// All ranks in one node.
    pub intra: AllreduceLink,
    /// Ranks in more than one node.
    pub inter: AllreduceLink,
}

/// A law of the allreduce, of p ranks that stretch over n nodes, m in bytes.
///
/// A ring of p steps up and p steps down, `T = 2 (p - 1) (latency + m / (p bandwidth))`; or with
/// `growth` a tree's latency and a rate that falls as the group stretches,
/// `T = 2 lg p latency + 2 (p - 1) / p m / bandwidth n^growth`. Nodes are counted from the first to the
/// last of the group: groups that interleave do the same at the same time.
/// Source: ParaDL technical report (October 2020), section on communication primitives; the power
/// as in Oyama et al. (2020), who fit the logarithm of the time to those of bytes and devices.
#[derive(Clone, Debug, PartialEq)]
pub struct AllreduceLink {
    /// Time of a step without its bytes.
    pub latency: Fact<Seconds>,
    /// Rate of a step.
    pub bandwidth: Fact<BytesPerSecond>,
    /// The power of the number of nodes it stretches over with which the time of the bytes grows.
    pub growth: Option<Fact<Share>>,
}

/// The shared file system.
#[derive(Clone, Debug, PartialEq)]
pub struct Io {
    /// Rate of all nodes together.
    pub bandwidth_total: Fact<BytesPerSecond>,
    /// Rate of one node.
    pub bandwidth_per_node: Fact<BytesPerSecond>,
    /// Time of an empty read.
    pub latency: Fact<Seconds>,
}

/// What lies between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LinkKind {
    /// Nothing: it is one rank.
    Same,
    /// The links within a node.
    Intra,
    /// The network.
    Inter,
}

impl Machine {
    /// The number of devices, which is the most ranks it can hold.
    pub fn devices(&self) -> usize {
        self.nodes.value * self.devices_per_node.value
    }

    /// The node on which a rank lies. Ranks beyond the last device are the caller's error to find.
    pub fn node(&self, rank: Rank) -> usize {
        rank / self.devices_per_node.value
    }

    /// What lies between two ranks.
    pub fn link(&self, a: Rank, b: Rank) -> LinkKind {
        if a == b {
            LinkKind::Same
        } else if self.node(a) == self.node(b) {
            LinkKind::Intra
        } else {
            LinkKind::Inter
        }
    }

    /// Latency of a message over a kind of link; between a rank and itself there is none.
    pub fn latency(&self, kind: LinkKind) -> Seconds {
        match kind {
            LinkKind::Same => Seconds(0.0),
            LinkKind::Intra => self.links.intra.latency.value,
            LinkKind::Inter => self.links.inter.latency.value,
        }
    }

    /// Rate of one message over an idle link; a rank reaches itself at the rate of its memory.
    pub fn bandwidth(&self, kind: LinkKind) -> BytesPerSecond {
        match kind {
            LinkKind::Same => self.device.memory_rate(),
            LinkKind::Intra => self.links.intra.bandwidth.value,
            LinkKind::Inter => self.links.inter.bandwidth.value,
        }
    }
}

impl Device {
    /// Rate of a convolution in flops of direct convolution per second, if its shape is large enough.
    pub fn conv_rate(&self, spatial_dims: usize, pass: ConvPass) -> FlopsPerSecond {
        FlopsPerSecond(self.peak_flops_f32.value.0 * self.efficiency.conv(spatial_dims, pass).0)
    }

    /// Rate of a kernel limited by memory, of bytes read and written together.
    pub fn memory_rate(&self) -> BytesPerSecond {
        BytesPerSecond(self.memory_bandwidth.value.0 * self.efficiency.memory_bound.value.0)
    }
}

impl Efficiency {
    /// What is known of convolutions with `spatial_dims` spatial dims (3, or fewer).
    pub fn by_dims(&self, spatial_dims: usize) -> &ConvEfficiency {
        if spatial_dims >= 3 {
            &self.conv3d
        } else {
            &self.conv2d
        }
    }

    /// The share for a convolution with `spatial_dims` spatial dims (3, or fewer), however small.
    pub fn conv(&self, spatial_dims: usize, pass: ConvPass) -> Share {
        let by_pass = self.by_dims(spatial_dims);
        match pass {
            ConvPass::Forward => by_pass.forward.value,
            ConvPass::BackwardData => by_pass.backward_data.value,
            ConvPass::BackwardWeight => by_pass.backward_weight.value,
        }
    }
}

impl Basis {
    /// All, surest first.
    pub const ALL: [Basis; 5] = [
        Basis::Stated,
        Basis::Measured,
        Basis::Fitted,
        Basis::Derived,
        Basis::Assumed,
    ];

    /// The word used in machine files.
    pub fn name(self) -> &'static str {
        match self {
            Basis::Stated => "stated",
            Basis::Measured => "measured",
            Basis::Fitted => "fitted",
            Basis::Derived => "derived",
            Basis::Assumed => "assumed",
        }
    }
}

impl DeviceKind {
    /// All kinds.
    pub const ALL: [DeviceKind; 2] = [DeviceKind::Gpu, DeviceKind::Cpu];

    /// The word used in machine files.
    pub fn name(self) -> &'static str {
        match self {
            DeviceKind::Gpu => "gpu",
            DeviceKind::Cpu => "cpu",
        }
    }
}
