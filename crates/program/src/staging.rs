//! Staging memory outside of the arena: packets of messages and collectives, and prefetched samples.
//!
//! Each lane has a pool of fixed size. A task takes all its packets from the pool when it starts, in the order
//! of the lane, and waits while they are not free; they return once its peers have started their tasks. So the
//! pool bounds how far a rank can run ahead. A pool that holds any one task of its lane suffices for every
//! step to end, as the crate `verify` proves.
//!
//! `Body::memory` is all memory of a rank that grows with the model: the arena, with the workspace of kernels, and
//! three pools: packets of the exchange lane, packets of the collective lane, and pieces of samples of the io lane.
//! A run allocates the largest of each over its programs before its first step, and nothing in proportion to the
//! model afterwards.
//!
//! Threads move a packet to the receiver, which returns it. Processes copy it to a packet that the receiver holds
//! ready. Lowering gives a pool what its largest task takes of processes, which hold packets at both ends, or what
//! two tasks in a row take of threads, if that is more: packets of one are out while the next one is packed. The
//! pools are equal in both worlds. The simulation leaves them out: they can only delay a message whose sender is
//! ahead of its receiver, and the receiver has others to take first.

mod packets;

pub use packets::{BufferTransfer, PacketSize, Packets, SMALL_SUM, packet_bytes};

use crate::Lane;
use partita_space::Bytes;
use serde::{Deserialize, Serialize};

/// Bytes of the pools of a rank, by lane. The same for every transport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Staging {
    /// Packets of exchanges.
    pub exchange: Bytes,
    /// Packets of collectives.
    pub collective: Bytes,
    /// Prefetched samples.
    pub io: Bytes,
}

impl Staging {
    /// Size of the pool of a lane; kernels need none.
    pub fn of_lane(&self, lane: Lane) -> Bytes {
        match lane {
            Lane::Compute => Bytes(0),
            Lane::Exchange => self.exchange,
            Lane::Collective => self.collective,
            Lane::Io => self.io,
        }
    }

    /// Size of the pools of messages and collectives.
    pub fn packets(&self) -> Bytes {
        self.exchange + self.collective
    }

    /// Size of all pools.
    pub fn total(&self) -> Bytes {
        self.packets() + self.io
    }

    /// The pools for two bodies that a rank runs in turn.
    pub fn max(self, other: Self) -> Self {
        Self {
            exchange: self.exchange.max(other.exchange),
            collective: self.collective.max(other.collective),
            io: self.io.max(other.io),
        }
    }
}
