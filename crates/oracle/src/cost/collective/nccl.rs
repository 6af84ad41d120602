//! The algorithms and protocols of NCCL, of which the fastest is taken, as its tuner does.
//!
//! A collective takes a latency and its bytes over a rate. The latency is that of a start and of the steps
//! within nodes and between them; the rate is the bus bandwidth, reduced by the protocol and the algorithm.
//! - Ring: every step passes on a part; the bytes of all leave each node once, over all adapters that the
//!   group has there.
//! - Tree (allreduce): chains in the nodes, double binary trees between them.
//! - NVLS (allreduce): the switches of a node add and multicast; between nodes those of the network, or trees.
//! - CollNet (allreduce): devices add in the node, the switches of the network between them.
//!
//! Protocols: Simple has the full rate and waits for the memory at every step; LL sends a flag with every four
//! bytes, LL128 with every 120.
//!
//! Source: NCCL, src/graph/tuning.cc of release 2.20 (latencies, factors, limits), and where a sentence says
//! so, what NCCL's developers wrote in issues.

use super::{CommTime, log2_ceil};
use partita_cluster::{IntraKind, Reduction};

/// What a group has for a collective.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fabric {
    /// Members, at least 2.
    pub ranks: usize,
    /// Nodes that hold them.
    pub nodes: usize,
    /// Links within a node.
    pub kind: IntraKind,
    /// Bytes per second that a member sends to others of its node.
    pub intra: f64,
    /// Bytes per second that the members of a node send to other nodes, on the wire.
    pub inter: f64,
    /// Seconds of an empty message between nodes.
    pub latency: f64,
    /// Seconds that the longest path between nodes adds.
    pub path: f64,
    /// Where the network adds.
    pub reduction: Reduction,
}

#[derive(Clone, Copy)]
enum Protocol {
    Ll,
    Ll128,
    Simple,
}

const MICROSECOND: f64 = 1e-6;
const GIGABYTE: f64 = 1e9;

/// Part of the line rate of an InfiniBand adapter that collectives reach: 46 to 48 of 50 GB/s.
///
/// Source: NCCL tests, issue 290.
const ADAPTER_SHARE: f64 = 0.95;

/// Seconds that posting a message between nodes takes on the host.
const POST: f64 = 1.0 * MICROSECOND;

/// Of the rate of the links, what switches reach that add and multicast.
const NVLS_SHARE: f64 = 5.0 / 6.0;

/// Of the rate of a ring, what a tree reaches.
const TREE_SHARE: f64 = 0.92;

/// Of the rate of a node, what CollNet reaches.
const COLLNET_SHARE: f64 = 0.85;

impl Protocol {
    const ALL: [Protocol; 3] = [Protocol::Ll, Protocol::Ll128, Protocol::Simple];

    /// The one of three values that belongs to it.
    fn of(self, [ll, ll128, simple]: [f64; 3]) -> f64 {
        match self {
            Protocol::Ll => ll,
            Protocol::Ll128 => ll128,
            Protocol::Simple => simple,
        }
    }
}

/// Start of a ring.
const RING_START: [f64; 3] = [6.6, 14.0, 8.4];
/// Step of a ring within a node.
const RING_NVLINK: [f64; 3] = [0.6, 1.9, 3.4];
const RING_PCIE: [f64; 3] = [1.0, 2.5, 5.7];
/// Step of a ring between nodes.
const RING_NETWORK: [f64; 3] = [2.7, 4.0, 14.0];
/// Start of a tree.
const TREE_START: [f64; 3] = [6.8, 14.0, 0.0];
/// Step of a tree within a node; that of the Simple protocol has the time of a chunk in it.
const TREE_NVLINK: [f64; 3] = [0.6, 1.25, 28.0];
const TREE_PCIE: [f64; 3] = [1.0, 1.9, 28.0];
/// Step of a tree between nodes.
const TREE_NETWORK: [f64; 3] = [5.0, 8.5, 28.0];
/// NVLS within a node.
const NVLS: f64 = 23.0;
/// NVLS by the switches of the network, and a step of the tree between nodes.
const NVLS_NETWORK: f64 = 18.0;
const NVLS_TREE_NETWORK: f64 = 14.0;
/// CollNet: steps within a node, each further device, and the network.
const COLLNET_NVLINK: f64 = 3.7;
const COLLNET_DEVICE: f64 = 0.4;
const COLLNET_NETWORK: f64 = 31.0;

/// By powers of two from 64 bytes on, the part of its rate that a tree reaches.
const TREE_RAMP: [[f64; 23]; 3] = [
    [
        1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8,
        0.9, 1.0, 1.0, 1.0, 1.0,
    ],
    [
        1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9,
        0.9, 0.9, 0.9, 1.0, 1.0,
    ],
    [
        0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8,
        0.7, 0.7, 0.8, 0.9, 0.9,
    ],
];

/// An allreduce of `bytes`.
pub fn allreduce(fabric: &Fabric, bytes: f64) -> CommTime {
    let ring = |protocol| fabric.ring(protocol, bytes, Passes::Two);
    let tree = |protocol| fabric.tree(protocol, bytes);
    let pairs = fabric
        .protocols()
        .map(|protocol| ring(protocol).min(tree(protocol)));
    let others = [
        fabric.nvls(bytes),
        fabric.nvls_tree(bytes),
        fabric.collnet(bytes),
    ];
    fastest(pairs.chain(others.into_iter().flatten()))
}

/// An allgather whose result has `bytes`.
pub fn allgather(fabric: &Fabric, bytes: f64) -> CommTime {
    fastest(
        fabric
            .protocols()
            .map(|one| fabric.ring(one, bytes, Passes::Gather)),
    )
}

/// A reduce-scatter of `bytes` of each member.
pub fn reduce_scatter(fabric: &Fabric, bytes: f64) -> CommTime {
    fastest(
        fabric
            .protocols()
            .map(|one| fabric.ring(one, bytes, Passes::Reduce)),
    )
}

/// An all-to-all with blocks of at most `largest` bytes: each member sends all its blocks at once, those to
/// its own node and those to others at the same time.
pub fn alltoall(fabric: &Fabric, largest: f64) -> CommTime {
    let (ranks, here) = (fabric.ranks as f64, fabric.per_node());
    let within = (here - 1.0) * largest / fabric.intra;
    let step = fabric.intra_step(RING_NVLINK, RING_PCIE, Protocol::Simple);
    let start = RING_START[2] * MICROSECOND;
    if fabric.nodes == 1 {
        return CommTime::new(start + step, within);
    }
    let between = here * (ranks - here) * largest / (fabric.inter * ADAPTER_SHARE);
    CommTime::new(
        start + fabric.inter_step(RING_NETWORK[2]) + (ranks - here) * POST,
        within.max(between),
    )
}

/// How often a ring passes the vector round.
#[derive(Clone, Copy, PartialEq)]
enum Passes {
    Gather,
    Reduce,
    Two,
}

fn fastest(times: impl Iterator<Item = CommTime>) -> CommTime {
    let nothing = CommTime::new(f64::INFINITY, f64::INFINITY);
    times.fold(nothing, CommTime::min)
}

impl Fabric {
    /// Members of a node.
    fn per_node(&self) -> f64 {
        (self.ranks as f64 / self.nodes as f64).max(1.0)
    }

    /// LL128 needs stores of 128 bytes at once, which PCI Express does not keep together.
    fn protocols(&self) -> impl Iterator<Item = Protocol> + use<> {
        let has_ll128 = match self.kind {
            IntraKind::Pcie => false,
            IntraKind::NvLink | IntraKind::NvLinkSharp => true,
        };
        let is_usable = move |protocol: &Protocol| match protocol {
            Protocol::Ll128 => has_ll128,
            Protocol::Ll | Protocol::Simple => true,
        };
        Protocol::ALL.into_iter().filter(is_usable)
    }

    fn intra_step(&self, nvlink: [f64; 3], pcie: [f64; 3], protocol: Protocol) -> f64 {
        let microseconds = match self.kind {
            IntraKind::Pcie => pcie,
            IntraKind::NvLink | IntraKind::NvLinkSharp => nvlink,
        };
        protocol.of(microseconds) * MICROSECOND
    }

    /// At least an empty message, and the path.
    fn inter_step(&self, microseconds: f64) -> f64 {
        (microseconds * MICROSECOND).max(self.latency) + self.path
    }

    /// Bytes per second out of a node that a collective reaches.
    fn network(&self) -> f64 {
        self.inter * ADAPTER_SHARE
    }

    /// The rate of a ring: of its slowest link.
    fn bus(&self) -> f64 {
        if self.nodes == 1 {
            self.intra
        } else if self.per_node() < 2.0 {
            self.network()
        } else {
            self.intra.min(self.network())
        }
    }

    /// The most that LL reaches: flags are written by the devices, and between nodes read by the host.
    fn ll_limit(&self) -> f64 {
        let gigabytes = match self.nodes {
            1 => 87.7,
            2 => 39.0,
            _ => 20.4,
        };
        gigabytes * GIGABYTE
    }

    fn ring(&self, protocol: Protocol, bytes: f64, passes: Passes) -> CommTime {
        let (ranks, nodes) = (self.ranks as f64, self.nodes as f64);
        let is_single = self.nodes == 1;
        let (steps, between) = match passes {
            Passes::Two if is_single => (2.0 * (ranks - 1.0), 0.0),
            Passes::Two => (2.0 * (ranks - 1.0), 2.0 * (nodes - 1.0)),
            Passes::Gather | Passes::Reduce => (ranks - 1.0, nodes - 1.0),
        };
        let bus = self.bus();
        let rate = match protocol {
            Protocol::Ll if is_single && passes != Passes::Two => (bus / 3.0).min(self.ll_limit()),
            Protocol::Ll => (bus / 4.0).min(self.ll_limit()),
            Protocol::Ll128 if self.per_node() < 2.0 => 0.7 * bus,
            Protocol::Ll128 => 0.92 * bus,
            Protocol::Simple => bus,
        };
        let post = match protocol {
            Protocol::Ll | Protocol::Ll128 => POST,
            Protocol::Simple => 3.0 * POST,
        };
        let mut within = self.intra_step(RING_NVLINK, RING_PCIE, protocol);
        if !is_single {
            within = within.max(post);
        }
        let network = self.inter_step(protocol.of(RING_NETWORK));
        let mut latency = (steps - between) * within + between * network;
        latency += protocol.of(RING_START) * MICROSECOND;
        if let (Protocol::Simple, Passes::Two, false) = (protocol, passes, is_single) {
            // The steps of several nodes do not overlap wholly.
            latency *= 1.4;
        }
        CommTime::new(latency, steps / ranks * bytes / rate)
    }

    /// Bytes per second of a tree: within a node every member sends all bytes up and down; between more than two
    /// nodes most send them twice, as a node is inside one of two trees.
    fn tree_rate(&self) -> f64 {
        let within = if self.per_node() < 2.0 {
            f64::INFINITY
        } else {
            self.intra / 2.0
        };
        let between = match self.nodes {
            1 => f64::INFINITY,
            2 => self.network(),
            _ => self.network() / 2.0,
        };
        TREE_SHARE * within.min(between)
    }

    fn tree(&self, protocol: Protocol, bytes: f64) -> CommTime {
        let within = self.intra_step(TREE_NVLINK, TREE_PCIE, protocol);
        let between = self.inter_step(protocol.of(TREE_NETWORK));
        let steps = (self.per_node() - 1.0) * within + log2_ceil(self.nodes) * between;
        let rate = match protocol {
            Protocol::Ll => (self.tree_rate() / 3.8).min(self.ll_limit() / 2.0),
            Protocol::Ll128 if self.nodes == 1 => 7.0 / 9.0 * self.tree_rate(),
            Protocol::Ll128 => 120.0 / 128.0 * self.tree_rate(),
            Protocol::Simple => self.tree_rate(),
        };
        CommTime::new(
            protocol.of(TREE_START) * MICROSECOND + 2.0 * steps,
            ramped(protocol, bytes) / rate,
        )
    }

    /// Bytes per second through switches that add: each member sends its vector and receives that of all, and
    /// of what it adds for others both again.
    fn nvls_rate(&self) -> f64 {
        let here = self.per_node();
        NVLS_SHARE * self.intra * here / (here + 1.0)
    }

    fn has_nvls(&self) -> bool {
        let is_able = match self.kind {
            IntraKind::Pcie | IntraKind::NvLink => false,
            IntraKind::NvLinkSharp => true,
        };
        is_able && self.per_node() >= 2.0
    }

    fn has_switches(&self) -> bool {
        match self.reduction {
            Reduction::Devices => false,
            Reduction::Switches => self.nodes > 1,
        }
    }

    fn nvls(&self, bytes: f64) -> Option<CommTime> {
        let within = NVLS * MICROSECOND;
        if !self.has_nvls() {
            return None;
        }
        if self.nodes == 1 {
            return Some(CommTime::new(within, bytes / self.nvls_rate()));
        }
        self.has_switches().then(|| {
            CommTime::new(
                within + self.inter_step(NVLS_NETWORK),
                bytes / self.nvls_rate().min(self.network()),
            )
        })
    }

    fn nvls_tree(&self, bytes: f64) -> Option<CommTime> {
        if !self.has_nvls() || self.nodes == 1 {
            return None;
        }
        let between = match self.nodes {
            2 => self.network(),
            _ => self.network() / 2.0,
        };
        let steps = 2.0 * log2_ceil(self.nodes);
        Some(CommTime::new(
            NVLS * MICROSECOND + steps * self.inter_step(NVLS_TREE_NETWORK),
            bytes / self.nvls_rate().min(between),
        ))
    }

    fn collnet(&self, bytes: f64) -> Option<CommTime> {
        if !self.has_switches() {
            return None;
        }
        let others = self.per_node() - 1.0;
        let within = others.min(1.0) * COLLNET_NVLINK + others * COLLNET_DEVICE;
        let shared = if others > 0.0 {
            self.intra * self.per_node() / (2.0 * others)
        } else {
            f64::INFINITY
        };
        Some(CommTime::new(
            2.0 * within * MICROSECOND + self.inter_step(COLLNET_NETWORK),
            bytes / (COLLNET_SHARE * shared.min(self.network())),
        ))
    }
}

/// The bytes over the part of the rate that a tree reaches with them, between the powers of two on a line, and
/// never less for more bytes.
fn ramped(protocol: Protocol, bytes: f64) -> f64 {
    let ramp = match protocol {
        Protocol::Ll => &TREE_RAMP[0],
        Protocol::Ll128 => &TREE_RAMP[1],
        Protocol::Simple => &TREE_RAMP[2],
    };
    let mut to = [0.0; 2];
    let parts = ramp.iter().copied().chain([1.0]);
    for (power, part) in parts.enumerate() {
        let size = 64.0 * f64::from(1u32 << power);
        let from = to;
        to = [size, (size / part).max(from[1])];
        if bytes <= size {
            let along = (bytes - from[0]) / (to[0] - from[0]);
            return from[1] + along * (to[1] - from[1]);
        }
    }
    bytes
}
