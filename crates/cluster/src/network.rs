//! The network between nodes beyond their adapters, and the library that runs collectives over it.

mod entry;

use crate::fact::{Fact, ProcessorKind};
use crate::words::words;
use partita_space::{BytesPerSecond, Seconds};

/// How switches join the nodes. Nodes are numbered so that neighbors share a switch.
#[derive(Clone, Debug, PartialEq)]
pub enum Network {
    /// Levels of switches from the leaves up.
    FatTree(Vec<SwitchLevel>),
    /// Groups of nodes that are fully joined, and links between each two groups.
    Dragonfly(Dragonfly),
    /// Each node has links to its neighbors along several dims.
    Torus(Torus),
}

/// A level of a fat tree.
#[derive(Clone, Debug, PartialEq)]
pub struct SwitchLevel {
    /// Nodes under one switch of this level.
    pub nodes: Fact<usize>,
    /// Bandwidth of the adapters of those nodes over that of the links further up.
    pub oversubscription: Fact<Ratio>,
    /// What a message to other nodes takes longer.
    pub latency: Fact<Seconds>,
}

/// A dragonfly.
#[derive(Clone, Debug, PartialEq)]
pub struct Dragonfly {
    /// Nodes of a group.
    pub nodes_per_group: Fact<usize>,
    /// All links from a group to the others, one direction.
    pub group_bandwidth: Fact<BytesPerSecond>,
    /// What a message to another group takes longer.
    pub latency: Fact<Seconds>,
}

/// A torus; nodes are numbered along its first dim first.
#[derive(Clone, Debug, PartialEq)]
pub struct Torus {
    /// Nodes along each dim.
    pub extents: Fact<Vec<usize>>,
    /// A link between neighbors, one direction.
    pub link_bandwidth: Fact<BytesPerSecond>,
    /// What a message takes longer for each node that it passes.
    pub hop_latency: Fact<Seconds>,
}

/// A ratio, at least 1.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Ratio(pub f64);

/// What lies between blocks of consecutive nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NetworkLevel {
    /// Nodes of a block.
    pub nodes: usize,
    /// Links out of a block, one direction.
    pub bandwidth: BytesPerSecond,
    /// Blocks that these links join.
    pub blocks: usize,
}

/// Links between the devices of a node, as far as collectives depend on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IntraKind {
    /// PCI Express.
    Pcie,
    /// NVLink or Infinity Fabric.
    NvLink,
    /// NVLink through switches that multicast and add (NVLink SHARP, from the third NVSwitch on).
    NvLinkSharp,
}

/// Where the network adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// In the devices alone.
    Devices,
    /// In the switches (InfiniBand SHARP).
    Switches,
}

/// The library that runs collectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CollectiveLibrary {
    /// NCCL, or RCCL, which is derived from it.
    Nccl,
    /// MPI.
    Mpi,
}

impl CollectiveLibrary {
    /// What is used where nothing is said: NCCL between GPUs, MPI between processors.
    pub fn usual(kind: ProcessorKind) -> Self {
        match kind {
            ProcessorKind::Gpu => CollectiveLibrary::Nccl,
            ProcessorKind::Cpu => CollectiveLibrary::Mpi,
        }
    }
}

words!(CollectiveLibrary, "All libraries." {
    Nccl = "nccl",
    Mpi = "mpi",
});

words!(IntraKind, "All kinds." {
    Pcie = "pcie",
    NvLink = "nvlink",
    NvLinkSharp = "nvlink-sharp",
});

words!(Reduction, "All places." {
    Devices = "devices",
    Switches = "switches",
});

impl Network {
    /// What a message takes longer between two nodes of as many consecutive ones, at most.
    pub fn latency(&self, nodes: usize) -> Seconds {
        match self {
            Network::FatTree(levels) => {
                let passed = levels.iter().filter(|level| nodes > level.nodes.value);
                passed.map(|level| level.latency.value).sum()
            }
            Network::Dragonfly(one) if nodes > one.nodes_per_group.value => one.latency.value,
            Network::Dragonfly(_) => Seconds(0.0),
            Network::Torus(torus) => torus.hop_latency.value * torus.hops(nodes) as f64,
        }
    }

    /// Its levels; `node` is the bandwidth of the adapters of a node.
    pub fn levels(&self, node: BytesPerSecond) -> Vec<NetworkLevel> {
        match self {
            Network::FatTree(levels) => {
                let level = |level: &SwitchLevel| NetworkLevel {
                    nodes: level.nodes.value,
                    bandwidth: BytesPerSecond(
                        level.nodes.value as f64 * node.0 / level.oversubscription.value.0,
                    ),
                    blocks: usize::MAX,
                };
                levels.iter().map(level).collect()
            }
            Network::Dragonfly(one) => vec![NetworkLevel {
                nodes: one.nodes_per_group.value,
                bandwidth: one.group_bandwidth.value,
                blocks: usize::MAX,
            }],
            Network::Torus(torus) => torus.levels(),
        }
    }
}

impl Torus {
    /// Links on the way between two nodes of as many consecutive ones, beyond the first.
    fn hops(&self, nodes: usize) -> usize {
        let (mut below, mut hops) = (1, 0);
        for &extent in &self.extents.value {
            let along = nodes.div_ceil(below).saturating_sub(1);
            hops += along.min(extent / 2);
            below *= extent;
        }
        hops.saturating_sub(1)
    }

    /// Rows of nodes along each dim, whose nodes have two links each to other rows; and halves of the next
    /// dim, which only their two faces join.
    fn levels(&self) -> Vec<NetworkLevel> {
        let mut levels = Vec::new();
        let mut below = 1;
        for &extent in self.extents.value.iter().filter(|&&extent| extent > 1) {
            let faces = BytesPerSecond(2.0 * below as f64 * self.link_bandwidth.value.0);
            for (nodes, blocks) in [(below, extent), (below * extent / 2, 2)] {
                levels.push(NetworkLevel {
                    nodes,
                    bandwidth: faces,
                    blocks,
                });
            }
            below *= extent;
        }
        levels
    }
}
