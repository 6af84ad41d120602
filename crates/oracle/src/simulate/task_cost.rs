//! The cost of tasks, as participants of a simulation see it.

use super::Participant;
use super::network::Load;
use crate::cost::KernelCost;
use partita_program::Body;
use partita_space::Seconds;

/// A participant and the cost of each task of its body.
pub(super) struct RankProgram<'p> {
    pub participant: Participant,
    pub body: &'p Body,
    /// Node of its rank.
    pub node: usize,
    /// Per task.
    pub costs: Vec<TaskCost>,
}

/// The cost of a task.
pub(super) enum TaskCost {
    /// A kernel, or a read or write of files, which needs no other rank. A kernel has `traffic` with the memory, in
    /// bytes per second while no other rank computes.
    Local { cost: KernelCost, traffic: f64 },
    /// Samples from the memory of other ranks, which do nothing for it, and what they use of the network.
    Fetch { seconds: f64, loads: Vec<Load> },
    /// Messages with peers; `host` seconds of overhead, and what the messages to this participant use of the
    /// network.
    Exchange {
        peers: Vec<Peer>,
        host: f64,
        loads: Vec<Load>,
    },
    /// A collective, which starts when all participants of its rendezvous have started it.
    Collective {
        rendezvous: usize,
        latency: f64,
        seconds: f64,
        host: f64,
    },
}

impl TaskCost {
    /// A read or write of files.
    pub fn file(seconds: Seconds) -> Self {
        Self::Local {
            cost: KernelCost::uncontended(seconds),
            traffic: 0.0,
        }
    }
}

/// A collective of one group.
pub(super) struct Rendezvous {
    /// Number of participants.
    pub participants: usize,
    /// Number of its group.
    pub group: usize,
    /// Number of the collective.
    pub sequence: u32,
    /// From the start of the last participant to the end.
    pub seconds: f64,
    /// What it uses of the network.
    pub loads: Vec<Load>,
}

/// The other end of the messages of an exchange.
pub(super) struct Peer {
    pub participant: usize,
    pub task: usize,
    /// Whether it sends anything. A task that only sends does not wait for its peer: messages are buffered.
    pub is_awaited: bool,
    /// From the later of the two starts until the last message in either direction has arrived; if the
    /// peer is not awaited, from the own start until the last message has been sent.
    pub delay: f64,
    /// The latency in it.
    pub latency: f64,
}
