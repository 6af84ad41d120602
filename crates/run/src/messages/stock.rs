//! The packets that a rank needs: known before it starts, so that its memory is.

use super::collective::{Group, SMALL_BYTES};
use super::packet::Packet;
use crate::memory::is_dense;
use partita_program::{
    Body, Collective, CollectiveKind, Dtype, Exchange, Lane, Program, View, Work,
};
use partita_space::{Bytes, Mesh, Rank, Split};
use std::collections::BTreeMap;

/// Kernels that may run between the start of a task and the return of its packets: one until the
/// other rank looks, one until it has answered, and two by which it may be behind.
const KERNELS_UNDER_WAY: usize = 4;

/// A dtype and a number of elements.
pub(super) type Room = (Dtype, usize);

/// How the messages of a mail take memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carriage {
    /// The packet of the sender goes to the receiver and comes back: ranks are threads.
    Handed,
    /// The receiver holds a packet of its own ready for each message: ranks are processes.
    Copied,
}

impl Carriage {
    /// Whether a collective of so many bytes is under way about as long as one of `other` bytes. Processes
    /// are later than threads to learn that one is done, so that a smaller one says less.
    fn is_as_long(self, bytes: u64, other: u64) -> bool {
        match self {
            Carriage::Handed => 2 * bytes >= other,
            Carriage::Copied => 3 * bytes >= 2 * other,
        }
    }
}

/// Bytes of the packets of a rank that plays these programs in turn.
///
/// They are made before the first step. A rank that runs further ahead of its peers than is common makes
/// more, as many as it then needs.
pub fn packet_bytes<'p>(
    programs: impl IntoIterator<Item = &'p Program>,
    rank: Rank,
    carriage: Carriage,
) -> Bytes {
    bytes(&stock(programs, rank, carriage))
}

/// Bytes of so many packets.
pub(super) fn bytes(rooms: &[Room]) -> Bytes {
    let rooms = rooms.iter();
    rooms
        .map(|(dtype, room)| Bytes((dtype.size() * room) as u64))
        .sum()
}

/// The packets that are taken and returned in a step of each program, one after the other.
pub(super) fn stock<'p>(
    programs: impl IntoIterator<Item = &'p Program>,
    rank: Rank,
    carriage: Carriage,
) -> Vec<Room> {
    let mut free = Free::default();
    for program in programs {
        let step = Step {
            body: program.body(rank),
            mesh: &program.mesh,
            rank,
            carriage,
        };
        step.play(&mut free);
    }
    let rooms = free.0.into_iter();
    rooms
        .flat_map(|((_, elements), (dtype, count))| vec![(dtype, elements); count])
        .collect()
}

/// Free packets: by bytes of an element and elements, their dtype and how many there are.
#[derive(Default)]
struct Free(BTreeMap<(usize, usize), (Dtype, usize)>);

impl Free {
    fn put(&mut self, (dtype, elements): Room) {
        let known = self.0.entry((dtype.size(), elements));
        known.or_insert((dtype, 0)).1 += 1;
    }

    /// The smallest that is large enough, or one just so large.
    fn take(&mut self, (dtype, elements): Room) -> Room {
        let sizes = (dtype.size(), elements)..=(dtype.size(), usize::MAX);
        let Some((&key, (_, count))) = self.0.range_mut(sizes).next() else {
            return (dtype, elements);
        };
        *count -= 1;
        if *count == 0 {
            self.0.remove(&key);
        }
        (dtype, key.1)
    }
}

struct Step<'b> {
    body: &'b Body,
    mesh: &'b Mesh,
    rank: Rank,
    carriage: Carriage,
}

impl Step<'_> {
    /// In the order of the tasks, as [`Packet::take_from`] takes them.
    fn play(&self, free: &mut Free) {
        let back = self.back();
        let tasks = &self.body.tasks;
        // By the task before which they are back.
        let mut taken: Vec<Vec<Room>> = vec![Vec::new(); tasks.len() + 1];
        for (at, task) in tasks.iter().enumerate() {
            std::mem::take(&mut taken[at])
                .into_iter()
                .for_each(|room| free.put(room));
            for room in self.rooms(&task.work) {
                taken[back[at]].push(free.take(room));
            }
        }
        let last = taken.into_iter().flatten();
        last.for_each(|room| free.put(room));
    }

    /// Of each task the one before which its packets are back: some kernels later, of a collective also
    /// not before a second one of its size has started, as kernels may be short; but one kernel after the
    /// first task that waits for it, as the other rank may be later to take what it was sent.
    fn back(&self) -> Vec<usize> {
        let tasks = &self.body.tasks;
        // Kernels and collectives after a task, the last of all first.
        let mut kernels: Vec<usize> = Vec::new();
        let mut collectives: Vec<(usize, u64)> = Vec::new();
        let mut back = vec![tasks.len(); tasks.len()];
        for (at, task) in tasks.iter().enumerate().rev() {
            let later = |nth: usize| {
                let nth = kernels.len().checked_sub(nth);
                nth.map_or(tasks.len(), |nth| kernels[nth])
            };
            let mut own = later(KERNELS_UNDER_WAY + 1);
            if let Work::Collective(collective) = &task.work {
                let sources = collective.kind.sources().iter();
                let bytes = sources.map(|view| view.bytes(&self.body.buffers).0).sum();
                let alike = collectives.iter().rev();
                let alike = alike.filter(|it| self.carriage.is_as_long(it.1, bytes));
                own = own.max(alike.map(|it| it.0).nth(1).unwrap_or(tasks.len()));
                collectives.push((at, bytes));
            }
            back[at] = back[at].min(own);
            for before in &task.after {
                let before = &mut back[before.0 as usize];
                *before = (*before).min(later(1));
            }
            if task.work.lane() == Lane::Compute {
                kernels.push(at);
            }
        }
        back
    }

    fn rooms(&self, work: &Work) -> Vec<Room> {
        match work {
            Work::Compute { .. } | Work::Load(_) => Vec::new(),
            Work::Exchange(exchange) => self.of_exchange(exchange),
            Work::Collective(collective) => self.of_collective(collective),
        }
    }

    fn of_exchange(&self, exchange: &Exchange) -> Vec<Room> {
        let mut rooms: Vec<Room> = Vec::new();
        if self.carriage == Carriage::Copied {
            let receives = exchange.receives.iter();
            rooms.extend(receives.map(|receive| self.room(&receive.view)));
        }
        rooms.extend(exchange.sends.iter().map(|send| self.room(&send.view)));
        rooms
    }

    fn of_collective(&self, collective: &Collective) -> Vec<Room> {
        let members = collective.group().members(self.mesh, self.rank);
        let group = Group::new(members, self.rank);
        let others = || group.others().map(|(place, _)| place);
        let mut rooms: Vec<Room> = Vec::new();
        let is_copied = self.carriage == Carriage::Copied;
        match &collective.kind {
            CollectiveKind::AllReduce { view } => {
                let (dtype, extent) = self.room(view);
                let is_small = (extent * dtype.size()) as u64 <= SMALL_BYTES;
                let split = Split {
                    extent,
                    parts: group.members.len(),
                };
                let chunk = |place| match is_small {
                    true => (dtype, extent),
                    false => (dtype, split.part(place).len()),
                };
                if !is_dense(self.body, view) {
                    rooms.push((dtype, extent));
                }
                if is_copied {
                    rooms.extend(others().map(|_| chunk(group.me)));
                }
                if is_copied && !is_small {
                    rooms.extend(others().map(chunk));
                }
                rooms.extend(others().map(chunk));
            }
            CollectiveKind::ReduceScatter { sources, target } => {
                let own = &sources[group.me];
                if !is_dense(self.body, own) || !is_dense(self.body, target) {
                    rooms.push(self.room(own));
                }
                if is_copied {
                    rooms.extend(others().map(|_| self.room(target)));
                }
                rooms.extend(others().map(|place| self.room(&sources[place])));
            }
            CollectiveKind::AllGather { source, targets } => {
                if is_copied {
                    rooms.extend(others().map(|place| self.room(&targets[place])));
                }
                rooms.extend(others().map(|_| self.room(source)));
                rooms.extend(self.of_copy(source, &targets[group.me]));
            }
            CollectiveKind::AllToAll { sources, targets } => {
                if is_copied {
                    rooms.extend(others().map(|place| self.room(&targets[place])));
                }
                rooms.extend(others().map(|place| self.room(&sources[place])));
                rooms.extend(self.of_copy(&sources[group.me], &targets[group.me]));
            }
        }
        rooms
    }

    /// What a member keeps for itself goes by a packet unless both ends are dense.
    fn of_copy(&self, source: &View, target: &View) -> Option<Room> {
        let is_direct =
            source == target || is_dense(self.body, source) && is_dense(self.body, target);
        (!is_direct).then(|| self.room(source))
    }

    fn room(&self, view: &View) -> Room {
        (self.body.buffer(view.buffer).dtype, view.volume())
    }
}

/// A packet of this room, every page of it touched; none where the system has no memory for it.
pub(super) fn make((dtype, elements): Room) -> Option<Packet> {
    let mut packet = Packet::if_possible(dtype, elements)?;
    packet.resize(elements);
    Some(packet)
}
