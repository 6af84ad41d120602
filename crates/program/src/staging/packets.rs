//! The packets of tasks in flight, and the pools that hold them.

use super::Staging;
use crate::prefetch;
use crate::{Body, Collective, CollectiveKind, Dtype, Exchange, Lane, Task, View, Views, Work};
use partita_space::{Bytes, Mesh};

/// Largest allreduce in which every member adds the parts of all others, which saves a round trip. Smaller
/// under Miri, so that its small tests cover larger sums.
pub const SMALL_SUM: Bytes = Bytes(if cfg!(miri) { 128 } else { 4096 });

/// Alignment of packets in bytes, as of buffers.
const ALIGNMENT: u64 = 64;

/// Tasks of a lane in flight at the same time where packets move to the receiver: one that its peers are
/// about to finish, and the next one.
const WINDOW: usize = 2;

/// How a transport uses packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferTransfer {
    /// The packet of the sender moves to the receiver and back: ranks are threads.
    Moved,
    /// The receiver has a packet of its own for each message: ranks are processes.
    Copied,
}

/// Dtype and number of elements of a packet.
pub type PacketSize = (Dtype, usize);

/// The packets of a task in flight: sizes, and how many of each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packets {
    /// Packets that it sends, or packs for itself.
    pub out: Vec<(PacketSize, usize)>,
    /// Packets that it receives.
    pub into: Vec<(PacketSize, usize)>,
}

impl Staging {
    /// The pools for the tasks of a body on a mesh: each holds any one task of its lane with every transport,
    /// and the tasks in flight together with the transport that needs less.
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

    /// The least size of its pool with which a task can start, with any transport.
    pub fn needed(task: &Task, body: &Body, mesh: &Mesh) -> Bytes {
        match &task.work {
            Work::Compute { .. } => Bytes(0),
            Work::Exchange(_) | Work::Collective(_) => {
                Packets::of(task, body, mesh).needed(task, body)
            }
            Work::Load(load) => prefetch::load_bytes(body, load),
            Work::Store(store) => prefetch::store_bytes(body, store),
        }
    }
}

impl Packets {
    /// The packets of a task on a mesh. Chunks of different members may differ by an element, so all packets
    /// of chunks have the size of the largest.
    pub fn of(task: &Task, body: &Body, mesh: &Mesh) -> Self {
        match &task.work {
            Work::Compute { .. } | Work::Load(_) | Work::Store(_) => Self::default(),
            Work::Exchange(exchange) => Self::of_exchange(exchange, body),
            Work::Collective(collective) => Self::of_collective(collective, body, mesh),
        }
    }

    /// The packets of an exchange.
    pub fn of_exchange(exchange: &Exchange, body: &Body) -> Self {
        let sends = exchange.sends.iter().map(|send| &send.view);
        let receives = exchange.receives.iter().map(|receive| &receive.view);
        Self {
            out: sends.map(|view| (packet_size(body, view), 1)).collect(),
            into: receives.map(|view| (packet_size(body, view), 1)).collect(),
        }
    }

    /// The packets of a collective implemented by messages.
    pub fn of_collective(collective: &Collective, body: &Body, mesh: &Mesh) -> Self {
        let others = collective.group().size(mesh).saturating_sub(1);
        let kind = &collective.kind;
        // A member's own part passes through a packet where it is not contiguous.
        let is_direct =
            are_dense(body, kind.sources()) && are_dense(body, kind.targets()) && !kind.is_bucket();
        let own = usize::from(!is_direct);
        let each = |views: Views<'_>| {
            let dtype = dtype_of(body, views);
            let sizes = views.extents().into_iter();
            sizes
                .map(|(extent, count)| ((dtype, extent.iter().product()), count))
                .collect()
        };
        match kind {
            CollectiveKind::AllReduce { views } => {
                let (dtype, elements) = packet_size_of_all(body, Views::Each(views));
                let is_small = (elements * dtype.size()) as u64 <= SMALL_SUM.0;
                let chunk = if is_small {
                    elements
                } else {
                    elements.div_ceil(others + 1)
                };
                // The chunks of large sums are sent back.
                let ways = if is_small { 1 } else { 2 };
                Self {
                    out: vec![((dtype, elements), own), ((dtype, chunk), others)],
                    into: vec![((dtype, chunk), ways * others)],
                }
            }
            CollectiveKind::ReduceScatter { sources, target } => {
                let target = packet_size(body, target);
                let all: Vec<(PacketSize, usize)> = each(sources.views());
                Self {
                    out: if is_direct { without(all, target) } else { all },
                    into: vec![(target, others)],
                }
            }
            CollectiveKind::AllGather { source, targets } => {
                let source = packet_size(body, source);
                Self {
                    out: vec![(source, others + own)],
                    into: without(each(targets.views()), source),
                }
            }
            CollectiveKind::AllToAll { sources, targets } => Self {
                out: each(sources.views()),
                into: each(targets.views()),
            },
        }
    }

    /// The packets of a collective of a library, which needs contiguous send and receive buffers, and sums no bf16.
    pub fn of_library(collective: &Collective, body: &Body) -> Self {
        let kind = &collective.kind;
        let piece = |views: Views<'_>| {
            let (dtype, elements) = packet_size_of_all(body, views);
            let dtype = if kind.is_sum() {
                dtype.arithmetic()
            } else {
                dtype
            };
            vec![((dtype, elements), 1)]
        };
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

    /// The size of each packet that is taken from the pool.
    pub fn taken(&self, transfer: BufferTransfer) -> impl Iterator<Item = PacketSize> {
        let sizes = self.out.iter().chain(self.into(transfer));
        sizes.flat_map(|&(size, count)| std::iter::repeat_n(size, count))
    }

    /// Bytes that are taken from the pool.
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

    /// Bytes with the transport that needs most.
    fn needed(&self, task: &Task, body: &Body) -> Bytes {
        let own = self.bytes(BufferTransfer::Copied);
        match &task.work {
            Work::Collective(collective) => {
                let library = Self::of_library(collective, body);
                own.max(library.bytes(BufferTransfer::Copied))
            }
            Work::Compute { .. } | Work::Exchange(_) | Work::Load(_) | Work::Store(_) => own,
        }
    }
}

/// All but one packet of a size.
fn without(mut sizes: Vec<(PacketSize, usize)>, size: PacketSize) -> Vec<(PacketSize, usize)> {
    if let Some(one) = sizes.iter_mut().find(|one| one.0 == size && one.1 > 0) {
        one.1 -= 1;
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

/// The size of a packet with all of these views, which have one type.
fn packet_size_of_all(body: &Body, views: Views<'_>) -> PacketSize {
    let volumes = views.joined().iter().map(View::volume);
    let elements = volumes.fold(0, usize::saturating_add);
    (dtype_of(body, views), elements)
}

fn dtype_of(body: &Body, views: Views<'_>) -> Dtype {
    let first = views.joined().first();
    first.map_or(Dtype::F32, |view| body.buffer(view.buffer).dtype)
}

/// Whether each view is contiguous.
fn are_dense(body: &Body, views: Views<'_>) -> bool {
    match views {
        Views::Each(views) => views.iter().all(|view| body.is_dense(view)),
        Views::Split(split) => {
            let mut extents = views.extents().into_iter();
            extents.all(|(extent, _)| {
                body.is_dense(&View {
                    extent,
                    ..split.whole
                })
            })
        }
    }
}

fn packet_size(body: &Body, view: &View) -> PacketSize {
    (body.buffer(view.buffer).dtype, view.volume())
}
