//! The packets that a rank needs: known before it starts, so that its memory is.

use super::collective::{Group, SMALL_BYTES};
use super::packet::Packet;
use crate::memory::is_dense;
use partita_program::{
    Body, Collective, CollectiveKind, Dtype, Exchange, Lane, Program, View, Work,
};
use partita_space::{Bytes, Mesh, Rank, Split};

/// Kernels that may run between the start of a task and the return of its packets: one until the
/// other rank looks, one until it has answered, and one by which it may be behind.
const KERNELS_UNDER_WAY: usize = 3;

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

/// Bytes of the packets of a rank that plays these programs in turn.
///
/// They are made before the first step. A rank that runs further ahead of its peers than is common makes
/// more, as many as it then needs.
pub fn packet_bytes<'p>(
    programs: impl IntoIterator<Item = &'p Program>,
    rank: Rank,
    carriage: Carriage,
) -> Bytes {
    let rooms = stock(programs, rank, carriage).into_iter();
    Bytes(
        rooms
            .map(|(dtype, room)| (dtype.size() * room) as u64)
            .sum(),
    )
}

/// The packets that are taken and returned in a step of each program, one after the other.
pub(super) fn stock<'p>(
    programs: impl IntoIterator<Item = &'p Program>,
    rank: Rank,
    carriage: Carriage,
) -> Vec<Room> {
    let mut free: Vec<Room> = Vec::new();
    for program in programs {
        let step = Step {
            body: program.body(rank),
            mesh: &program.mesh,
            rank,
            carriage,
        };
        step.play(&mut free);
    }
    free
}

struct Step<'b> {
    body: &'b Body,
    mesh: &'b Mesh,
    rank: Rank,
    carriage: Carriage,
}

impl Step<'_> {
    /// In the order of the tasks, as [`Packet::take_from`] takes them.
    fn play(&self, free: &mut Vec<Room>) {
        let last = self.last_uses();
        // With the task at which they are back.
        let mut taken: Vec<(usize, Room)> = Vec::new();
        for (task, work) in self.body.tasks.iter().map(|task| &task.work).enumerate() {
            let returned = taken.extract_if(.., |(back, _)| *back <= task);
            free.extend(returned.map(|(_, room)| room));
            for room in self.rooms(work) {
                taken.push((last[task], take(free, room)));
            }
        }
        free.extend(taken.into_iter().map(|(_, room)| room));
    }

    /// Of each task the one before which its packets are back.
    fn last_uses(&self) -> Vec<usize> {
        let tasks = &self.body.tasks;
        let mut last = vec![tasks.len(); tasks.len()];
        let mut kernels: Vec<usize> = Vec::new();
        for (at, task) in tasks.iter().enumerate().rev() {
            if let Some(nth) = kernels.len().checked_sub(KERNELS_UNDER_WAY + 1) {
                last[at] = last[at].min(kernels[nth]);
            }
            for before in &task.after {
                let before = &mut last[before.0 as usize];
                *before = (*before).min(at);
            }
            if task.work.lane() == Lane::Compute {
                kernels.push(at);
            }
        }
        last
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
            }
            CollectiveKind::AllToAll { sources, targets } => {
                if is_copied {
                    rooms.extend(others().map(|place| self.room(&targets[place])));
                }
                rooms.extend(others().map(|place| self.room(&sources[place])));
            }
        }
        rooms
    }

    fn room(&self, view: &View) -> Room {
        (self.body.buffer(view.buffer).dtype, view.volume())
    }
}

/// The smallest of the free ones that is large enough, or one just so large.
fn take(free: &mut Vec<Room>, (dtype, elements): Room) -> Room {
    let candidates = free.iter().enumerate();
    let best = candidates
        .filter(|(_, room)| room.0 == dtype && room.1 >= elements)
        .min_by_key(|(_, room)| room.1)
        .map(|(at, _)| at);
    best.map_or((dtype, elements), |at| free.swap_remove(at))
}

/// A packet of this room, every page of it touched.
pub(super) fn make((dtype, elements): Room) -> Packet {
    let mut packet = Packet::with_room(dtype, elements);
    packet.resize(elements);
    packet
}
