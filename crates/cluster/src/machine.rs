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
    /// The shared file system; absent where nothing is known of it.
    pub io: Option<Io>,
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
}

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

/// Fits of the allreduce as a ring of p steps up and p steps down.
///
/// `T(p, m) = 2 (p - 1) (latency + m / (p bandwidth))`, m in bytes.
/// Source: ParaDL technical report (October 2020), section on communication primitives.
#[derive(Clone, Debug, PartialEq)]
pub struct Allreduce {
    /// All ranks in one node.
    pub intra: AllreduceLink,
    /// Ranks in more than one node.
    pub inter: AllreduceLink,
}

/// One ring step.
#[derive(Clone, Debug, PartialEq)]
pub struct AllreduceLink {
    /// Time of a step without its bytes.
    pub latency: Fact<Seconds>,
    /// Rate of a step.
    pub bandwidth: Fact<BytesPerSecond>,
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
    /// Rate of a convolution in flops of direct convolution per second.
    pub fn conv_rate(&self, spatial_dims: usize, pass: ConvPass) -> FlopsPerSecond {
        FlopsPerSecond(self.peak_flops_f32.value.0 * self.efficiency.conv(spatial_dims, pass).0)
    }

    /// Rate of a kernel limited by memory, of bytes read and written together.
    pub fn memory_rate(&self) -> BytesPerSecond {
        BytesPerSecond(self.memory_bandwidth.value.0 * self.efficiency.memory_bound.value.0)
    }
}

impl Efficiency {
    /// The share for a convolution with `spatial_dims` spatial dims (3, or fewer).
    pub fn conv(&self, spatial_dims: usize, pass: ConvPass) -> Share {
        let by_pass = if spatial_dims >= 3 {
            &self.conv3d
        } else {
            &self.conv2d
        };
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
