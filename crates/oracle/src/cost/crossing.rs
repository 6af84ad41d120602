//! What the network between nodes adds: latency of the path, and links that more nodes share than they can
//! feed at full rate.
//!
//! Ranks fill nodes in order, and blocks of consecutive nodes share a switch, a group of a dragonfly or a row of a
//! torus. A group passes the links out of a block if its nodes span more than the block. Where its nodes do not
//! follow each other, as many like it lie between them and run the same collective; so each passes with its
//! share. Where a block begins is not looked at, so that equal ranks have equal costs.

use partita_cluster::{Machine, NetworkLevel};
use partita_space::{BytesPerSecond, Seconds};

/// The levels of a network, and the bandwidth of a node's adapters.
#[derive(Clone, Debug)]
pub struct Crossings {
    levels: Vec<NetworkLevel>,
    node: BytesPerSecond,
}

/// What a group or a message meets between its nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Crossing {
    /// What the longest path adds.
    pub latency: Seconds,
    /// By which factor the adapters of a node are slowed if each group passes every block once, as a ring does.
    pub once: f64,
    /// The same if every node sends to all blocks.
    pub all: f64,
}

impl Crossings {
    /// Those of a machine.
    pub fn new(machine: &Machine) -> Self {
        let node = machine.links.inter.node_bandwidth.value;
        let network = machine.network.as_ref();
        Self {
            levels: network.map_or_else(Vec::new, |network| network.levels(node)),
            node,
        }
    }

    /// Of a group on `members` nodes out of `span` consecutive ones.
    pub fn group(&self, machine: &Machine, span: usize, members: usize) -> Crossing {
        let network = machine.network.as_ref();
        let mut crossing = Crossing {
            latency: network.map_or(Seconds(0.0), |network| network.latency(span)),
            once: 1.0,
            all: 1.0,
        };
        let stride = span.saturating_sub(1) as f64 / members.saturating_sub(1).max(1) as f64;
        for level in self.passed(span) {
            let nodes = level.nodes as f64;
            let fed = level.bandwidth.0 / self.node.0;
            let blocks = span.div_ceil(level.nodes).min(level.blocks) as f64;
            crossing.once = crossing.once.max(stride.min(nodes) / fed);
            crossing.all = crossing.all.max((blocks - 1.0) / blocks * nodes / fed);
        }
        crossing
    }

    /// Of messages that all nodes send to one as many nodes apart.
    pub fn message(&self, machine: &Machine, apart: usize) -> Crossing {
        self.group(machine, apart + 1, 2)
    }

    /// Equal where what lies between is equal: the nodes apart, if there is a network.
    pub fn number(&self, apart: usize) -> u32 {
        if self.levels.is_empty() {
            0
        } else {
            apart as u32
        }
    }

    fn passed(&self, span: usize) -> impl Iterator<Item = &NetworkLevel> {
        self.levels.iter().filter(move |level| span > level.nodes)
    }
}
