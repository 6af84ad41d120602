//! Memory beside the arena: packets of messages and collectives, and pieces of samples that are read.
//!
//! A lane has a pool of so many bytes. A task takes all its packets from the pool of its lane when it starts,
//! in the order of the lane, and waits where they are not there; they return once its peers have started their
//! tasks as well. So the pool bounds how far a rank may run ahead, and a pool that holds each single task of
//! its lane is enough for every step to end, as the crate `verify` proves.

use crate::prefetch;
use crate::{Body, Collective, CollectiveKind, Dtype, Exchange, Lane, Task, View, Work};
use partita_space::{Bytes, Mesh};
use serde::{Deserialize, Serialize};

/// Sums up to this size are added by every member from the parts of all: one round trip fewer. Few bytes
/// under Miri, so that its small tests have large sums.
pub const SMALL_SUM: Bytes = Bytes(if cfg!(miri) { 128 } else { 4096 });

/// Packets lie at multiples of so many bytes, as buffers do.
const ALIGNMENT: u64 = 64;

/// Tasks of a lane that may be under way together where packets move to the receiver: one that its peers
/// are about to finish, and the next one.
const WINDOW: usize = 2;

/// How messages of a world take memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferTransfer {
    /// The packet of the sender goes to the receiver and comes back: ranks are threads.
    Moved,
    /// The receiver holds a packet of its own ready for each message: ranks are processes.
    Copied,
}

/// Bytes of the pools of a rank, by lane. The same whoever carries the messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Staging {
    /// Packets of exchanges.
    pub exchange: Bytes,
    /// Packets of collectives.
    pub collective: Bytes,
    /// Pieces of samples between files and the arena.
    pub io: Bytes,
}

/// A dtype and a number of elements.
pub type PacketSize = (Dtype, usize);

/// The packets that a task holds while it is under way: rooms, and how many packets of each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packets {
    /// What it sends, or packs for itself.
    pub out: Vec<(PacketSize, usize)>,
    /// What it receives.
    pub into: Vec<(PacketSize, usize)>,
}

impl Staging {
    /// The pools for the tasks of a body on a mesh: each holds any task of its lane in every world, and as
    /// many as may be under way together in the world that takes least.
    pub fn of(body: &Body, mesh: &Mesh) -> Self {
        let pool = |lane: Lane| {
            let tasks = body.tasks.iter().filter(|task| task.work.lane() == lane);
            let needs: Vec<[u64; 2]> = tasks
                .map(|task| {
                    let packets = Packets::of(task, body, mesh);
                    let moved = packets.bytes(BufferTransfer::Moved);
                    [packets.needed(task, body).0, moved.0]
                })
                .collect();
            let alone = needs.iter().map(|need| need[0]).max();
            let together = needs.windows(WINDOW.min(needs.len()).max(1));
            let together = together.map(|tasks| {
                let moved = tasks.iter().map(|need| need[1]);
                moved.fold(0, u64::saturating_add)
            });
            Bytes(alone.max(together.max()).unwrap_or_default())
        };
        Self {
            exchange: pool(Lane::Exchange),
            collective: pool(Lane::Collective),
            io: prefetch::buffer_bytes(body),
        }
    }

    /// Of the pool of a lane; kernels need none.
    pub fn of_lane(&self, lane: Lane) -> Bytes {
        match lane {
            Lane::Compute => Bytes(0),
            Lane::Exchange => self.exchange,
            Lane::Collective => self.collective,
            Lane::Io => self.io,
        }
    }

    /// Of messages and collectives.
    pub fn packets(&self) -> Bytes {
        self.exchange + self.collective
    }

    /// Of all pools.
    pub fn total(&self) -> Bytes {
        self.packets() + self.io
    }

    /// The pools for two bodies that a rank plays in turn.
    pub fn max(self, other: Self) -> Self {
        Self {
            exchange: self.exchange.max(other.exchange),
            collective: self.collective.max(other.collective),
            io: self.io.max(other.io),
        }
    }

    /// The least that the pool of its lane must hold for a task to start in every world.
    pub fn needed(task: &Task, body: &Body, mesh: &Mesh) -> Bytes {
        match &task.work {
            Work::Compute { .. } => Bytes(0),
            Work::Exchange(_) | Work::Collective(_) => {
                Packets::of(task, body, mesh).needed(task, body)
            }
            Work::Load(load) => prefetch::load_bytes(body, load),
        }
    }
}

impl Packets {
    /// Of a task on a mesh; none of one that sends nothing. What members of a group have of a chunk each may
    /// differ by an element, so all packets of chunks are as large as the largest.
    pub fn of(task: &Task, body: &Body, mesh: &Mesh) -> Self {
        match &task.work {
            Work::Compute { .. } | Work::Load(_) => Self::default(),
            Work::Exchange(exchange) => Self::of_exchange(exchange, body),
            Work::Collective(collective) => Self::of_collective(collective, body, mesh),
        }
    }

    /// Of an exchange.
    pub fn of_exchange(exchange: &Exchange, body: &Body) -> Self {
        let sends = exchange.sends.iter().map(|send| &send.view);
        let receives = exchange.receives.iter().map(|receive| &receive.view);
        Self {
            out: sends.map(|view| (packet_size(body, view), 1)).collect(),
            into: receives.map(|view| (packet_size(body, view), 1)).collect(),
        }
    }

    /// Of a collective that is made of messages.
    pub fn of_collective(collective: &Collective, body: &Body, mesh: &Mesh) -> Self {
        let others = collective.group().size(mesh).saturating_sub(1);
        let kind = &collective.kind;
        let mut views = kind.sources().iter().chain(kind.targets());
        // What a member keeps for itself goes by a packet where elements lie apart.
        let is_direct = views.all(|view| body.is_dense(view));
        let own = usize::from(!is_direct);
        let each = |views: &[View]| {
            views
                .iter()
                .map(|view| (packet_size(body, view), 1))
                .collect()
        };
        match kind {
            CollectiveKind::AllReduce { view } => {
                let (dtype, elements) = packet_size(body, view);
                let is_small = (elements * dtype.size()) as u64 <= SMALL_SUM.0;
                let chunk = match is_small {
                    true => elements,
                    false => elements.div_ceil(others + 1),
                };
                // Large sums come back.
                let ways = if is_small { 1 } else { 2 };
                Self {
                    out: vec![((dtype, elements), own), ((dtype, chunk), others)],
                    into: vec![((dtype, chunk), ways * others)],
                }
            }
            CollectiveKind::ReduceScatter { sources, target } => {
                let target = packet_size(body, target);
                let all: Vec<(PacketSize, usize)> = each(sources);
                Self {
                    out: match is_direct {
                        true => without(all, target),
                        false => all,
                    },
                    into: vec![(target, others)],
                }
            }
            CollectiveKind::AllGather { source, targets } => {
                let source = packet_size(body, source);
                Self {
                    out: vec![(source, others + own)],
                    into: without(each(targets), source),
                }
            }
            CollectiveKind::AllToAll { sources, targets } => Self {
                out: each(sources),
                into: each(targets),
            },
        }
    }

    /// Of a collective of a library, which wants what a member gives in one piece, and what it takes.
    pub fn of_library(collective: &Collective, body: &Body) -> Self {
        let piece = |views: &[View]| {
            let dtype = views
                .first()
                .map_or(Dtype::F32, |view| packet_size(body, view).0);
            let volumes = views.iter().map(View::volume);
            vec![((dtype, volumes.fold(0, usize::saturating_add)), 1)]
        };
        let kind = &collective.kind;
        Self {
            out: match kind {
                // It works in place.
                CollectiveKind::AllReduce { .. } => Vec::new(),
                CollectiveKind::AllGather { .. }
                | CollectiveKind::ReduceScatter { .. }
                | CollectiveKind::AllToAll { .. } => piece(kind.sources()),
            },
            into: piece(kind.targets()),
        }
    }

    /// The room of each packet that is taken from the pool in a world.
    pub fn taken(&self, transfer: BufferTransfer) -> impl Iterator<Item = PacketSize> {
        let sizes = self.out.iter().chain(self.into(transfer));
        sizes.flat_map(|&(size, count)| std::iter::repeat_n(size, count))
    }

    /// Bytes of what is taken.
    pub fn bytes(&self, transfer: BufferTransfer) -> Bytes {
        let sizes = self.out.iter().chain(self.into(transfer));
        let sizes = sizes.map(|&(size, count)| packet_bytes(size).0.saturating_mul(count as u64));
        Bytes(sizes.fold(0, u64::saturating_add))
    }

    fn into(&self, transfer: BufferTransfer) -> &[(PacketSize, usize)] {
        match transfer {
            BufferTransfer::Moved => &[],
            BufferTransfer::Copied => &self.into,
        }
    }

    /// Bytes in the world that takes most.
    fn needed(&self, task: &Task, body: &Body) -> Bytes {
        let own = self.bytes(BufferTransfer::Copied);
        match &task.work {
            Work::Collective(collective) => {
                let library = Self::of_library(collective, body);
                own.max(library.bytes(BufferTransfer::Copied))
            }
            Work::Compute { .. } | Work::Exchange(_) | Work::Load(_) => own,
        }
    }
}

/// All but one packet of a room.
fn without(mut sizes: Vec<(PacketSize, usize)>, size: PacketSize) -> Vec<(PacketSize, usize)> {
    if let Some(at) = sizes.iter().position(|one| one.0 == size) {
        sizes.swap_remove(at);
    }
    sizes
}

/// Bytes that a packet takes in its pool.
pub fn packet_bytes((dtype, elements): PacketSize) -> Bytes {
    let bytes = (elements as u64).saturating_mul(dtype.size() as u64);
    Bytes(
        bytes
            .checked_next_multiple_of(ALIGNMENT)
            .unwrap_or(u64::MAX),
    )
}

fn packet_size(body: &Body, view: &View) -> PacketSize {
    (body.buffer(view.buffer).dtype, view.volume())
}
