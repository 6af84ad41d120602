//! Exchanges and collectives over point-to-point messages.
//!
//! An implementation of [`PointToPoint`] becomes a [`Transport`] here. Exchanges, collectives, sums in rank
//! order and the tally are shared by all worlds, so runs are bitwise equal on threads and under MPI.

mod collective;
mod members;
mod packet;
mod packet_pool;
mod point_to_point;
mod sum;

pub use packet::Packet;
pub use packet_pool::PacketPool;
pub use point_to_point::{Key, MessageFault, MessageKind, PointToPoint};

use self::collective::{AllReduce, PairwiseExchange, ReduceScatter};
use self::members::CollectiveMembers;
use self::point_to_point::Endpoint;
use crate::{Memory, RunError, Transport};
use partita_program::{
    Collective, CollectiveKind, Exchange, Group, Lane, Packets, Program, Receive, Staging, Task,
    TaskId, View, Work,
};
use partita_space::{Mesh, Offset, Rank};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// The exchanges and collectives of a rank over point-to-point messages.
///
/// Messages of one key (kind, sequence, sender, part) are taken in the order in which they were sent, so a
/// peer may run ahead, limited by its packets, as long as all ranks run the same programs in the same order.
/// Sums are taken in rank order and are bitwise equal on all members. A peer that ends while it is waited for
/// gives [`RunError::Lost`], a failed message [`RunError::Message`].
pub struct MessageTransport<M> {
    mesh: Mesh,
    rank: Rank,
    messages: M,
    pool: PacketPool,
    /// Packets to be put back into the pool.
    returned: Vec<Packet>,
    /// Tasks that could not start for lack of packets, with their sequence numbers.
    unstarted: Vec<(TaskId, u32)>,
    /// Value of [`PacketPool::returns`] when the last of them failed to start.
    returns: u64,
    groups: HashMap<Group, Arc<CollectiveMembers>>,
    pending: Vec<Pending>,
    tally: [u64; 4],
}

/// A task in flight.
struct Pending {
    task: TaskId,
    sequence: u32,
    operation: Operation,
}

enum Operation {
    Exchange(Vec<Expected>),
    Reduce(AllReduce),
    ReduceScatter(ReduceScatter),
    PairwiseExchange(PairwiseExchange),
}

/// A message that an exchange still waits for.
struct Expected {
    key: Key,
    view: View,
    accumulate: bool,
}

impl<M: PointToPoint> MessageTransport<M> {
    /// The transport of a rank of this mesh.
    pub fn new(mesh: Mesh, messages: M) -> Self {
        Self {
            mesh,
            rank: messages.rank(),
            messages,
            pool: PacketPool::default(),
            returned: Vec::new(),
            unstarted: Vec::new(),
            returns: 0,
            groups: HashMap::new(),
            pending: Vec::new(),
            tally: [0; 4],
        }
    }

    /// Allocates packet pools for a rank that runs these programs one at a time.
    ///
    /// Errors: out of memory.
    pub fn reserve<'p>(
        &mut self,
        programs: impl IntoIterator<Item = &'p Program>,
    ) -> Result<(), RunError> {
        let all = programs.into_iter();
        let all = all.map(|program| program.body(self.rank).staging);
        let staging = all.reduce(Staging::max).unwrap_or_default();
        self.allocate(&staging)
    }

    /// The point-to-point layer.
    pub fn messages(&self) -> &M {
        &self.messages
    }

    /// Reserves the packets of a task; false if peers still hold those of earlier tasks.
    fn reserve_packets(
        &mut self,
        (task, sequence): (TaskId, u32),
        (lane, packets): (Lane, &Packets),
    ) -> bool {
        let rooms = packets.taken(self.messages.transfer());
        let has_all = self.pool.reserve(lane, rooms);
        self.unstarted.retain(|&(other, _)| other != task);
        if !has_all {
            self.unstarted.push((task, sequence));
            self.returns = self.pool.returns();
        }
        has_all
    }

    fn endpoint(&mut self) -> Endpoint<'_> {
        Endpoint {
            messages: &mut self.messages,
            pool: &mut self.pool,
        }
    }

    fn peer(&self, offset: Offset) -> Rank {
        let peer = self.mesh.neighbor(self.rank, offset);
        peer.unwrap_or_else(|| panic!("rank {} has no peer at {offset:?}", self.rank))
    }

    fn group(&mut self, of: Group) -> Arc<CollectiveMembers> {
        let (mesh, rank) = (&self.mesh, self.rank);
        let group = self.groups.entry(of).or_insert_with(|| {
            let members = of.members(mesh, rank);
            Arc::new(CollectiveMembers::new(members, rank))
        });
        Arc::clone(group)
    }

    fn expect(&self, sequence: u32, receive: &Receive) -> Expected {
        Expected {
            key: Key {
                kind: MessageKind::Exchange,
                sequence,
                from: self.peer(receive.from),
                part: receive.part,
            },
            view: receive.view,
            accumulate: receive.accumulate,
        }
    }

    fn check_faults(&self, memory: &Memory<'_>) -> Result<(), RunError> {
        if let Some(fault) = self.messages.fault() {
            return Err(self.failed(fault, memory));
        }
        let closed = self.messages.closed();
        if closed.is_empty() {
            return Ok(());
        }
        let pending = self.pending.iter().map(|one| (one.task, one.sequence));
        for (id, sequence) in pending.chain(self.unstarted.iter().copied()) {
            let mut missing = self.missing(id).into_iter();
            if let Some(peer) = missing.find(|rank| closed.contains(rank)) {
                let task = &memory.body().tasks[id.0 as usize];
                return Err(RunError::Lost {
                    rank: self.rank,
                    peer,
                    work: task.work.name().to_owned(),
                    layer: task.origin.layer.clone(),
                    task: id.0,
                    sequence,
                });
            }
        }
        Ok(())
    }

    fn failed(&self, fault: &MessageFault, memory: &Memory<'_>) -> RunError {
        let (kind, sequence) = (fault.key.kind, fault.key.sequence);
        let is_owner = |task: &Task| match &task.work {
            Work::Exchange(exchange) => {
                kind == MessageKind::Exchange && exchange.sequence == sequence
            }
            Work::Collective(collective) => {
                kind != MessageKind::Exchange && collective.sequence == sequence
            }
            Work::Compute { .. } | Work::Load(_) | Work::Store(_) => false,
        };
        // A send may fail after its task has ended, so all tasks are searched.
        let tasks = &memory.body().tasks;
        let number = tasks.iter().position(is_owner);
        let owner = number.map(|number| &tasks[number]);
        RunError::Message {
            rank: self.rank,
            peer: fault.peer,
            work: owner
                .map_or(kind.name(), |task| task.work.name())
                .to_owned(),
            layer: owner.map_or_else(String::new, |task| task.origin.layer.clone()),
            task: number.unwrap_or_default() as u32,
            sequence,
            reason: fault.reason.clone(),
        }
    }
}

impl Pending {
    fn missing(&self, messages: &dyn PointToPoint) -> Vec<Rank> {
        let mut ranks: Vec<Rank> = match &self.operation {
            Operation::Exchange(expected) => expected
                .iter()
                .filter(|expected| !messages.has(&expected.key))
                .map(|expected| expected.key.from)
                .collect(),
            Operation::Reduce(reduction) => reduction.missing(messages),
            Operation::ReduceScatter(scatter) => scatter.missing(messages),
            Operation::PairwiseExchange(shuffle) => shuffle.missing(messages),
        };
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// Unpacks the messages that have arrived; whether all have.
    fn deliver(&mut self, endpoint: &mut Endpoint<'_>, memory: &Memory<'_>) -> bool {
        match &mut self.operation {
            Operation::Exchange(expected) => deliver_exchange(expected, endpoint, memory),
            Operation::Reduce(reduction) => reduction.deliver(endpoint, memory),
            Operation::ReduceScatter(scatter) => scatter.deliver(endpoint, memory),
            Operation::PairwiseExchange(shuffle) => shuffle.deliver(endpoint, memory),
        }
    }
}

/// Accumulates in the order of the task, not of arrival, so that the bits do not depend on timing.
fn deliver_exchange(
    expected: &mut Vec<Expected>,
    endpoint: &mut Endpoint<'_>,
    memory: &Memory<'_>,
) -> bool {
    let mut sum_is_open = false;
    expected.retain(|expected| {
        let waits_its_turn = expected.accumulate && sum_is_open;
        let packet = if waits_its_turn {
            None
        } else {
            endpoint.take(&expected.key)
        };
        let Some(packet) = packet else {
            sum_is_open |= expected.accumulate;
            return true;
        };
        packet.unpack(memory, &expected.view, expected.accumulate);
        endpoint.give_back(expected.key.from, packet);
        false
    });
    expected.is_empty()
}

impl<M: PointToPoint> Transport for MessageTransport<M> {
    fn allocate(&mut self, staging: &Staging) -> Result<(), RunError> {
        self.pool.allocate(self.rank, staging)
    }

    fn start_exchange(
        &mut self,
        task: TaskId,
        exchange: &Exchange,
        memory: &Memory<'_>,
    ) -> Result<bool, RunError> {
        let packets = Packets::of_exchange(exchange, memory.body());
        if !self.reserve_packets((task, exchange.sequence), (Lane::Exchange, &packets)) {
            return Ok(false);
        }
        let receives = exchange.receives.iter();
        let expected: Vec<Expected> = receives
            .map(|receive| self.expect(exchange.sequence, receive))
            .collect();
        for expected in &expected {
            let dtype = memory.body().buffer(expected.view.buffer).dtype;
            let elements = expected.view.volume();
            self.endpoint().expect(expected.key, dtype, elements);
        }
        for send in &exchange.sends {
            let packet = self.endpoint().packed(memory, &send.view);
            self.tally[0] += 1;
            self.tally[1] += packet.bytes();
            let key = Key {
                kind: MessageKind::Exchange,
                sequence: exchange.sequence,
                from: self.rank,
                part: send.part,
            };
            let to = self.peer(send.to);
            self.endpoint().post(to, key, packet);
        }
        self.pool.return_rest();
        self.pending.push(Pending {
            task,
            sequence: exchange.sequence,
            operation: Operation::Exchange(expected),
        });
        Ok(true)
    }

    fn start_collective(
        &mut self,
        task: TaskId,
        collective: &Collective,
        memory: &Memory<'_>,
    ) -> Result<bool, RunError> {
        let sequence = collective.sequence;
        let packets = Packets::of_collective(collective, memory.body(), &self.mesh);
        if !self.reserve_packets((task, sequence), (Lane::Collective, &packets)) {
            return Ok(false);
        }
        let group = self.group(collective.group());
        let endpoint = &mut self.endpoint();
        let operation = match &collective.kind {
            CollectiveKind::AllReduce { views } => {
                Operation::Reduce(AllReduce::start(group, sequence, views, memory, endpoint))
            }
            CollectiveKind::ReduceScatter { sources, target } => {
                let sources = sources.views().to_vec();
                Operation::ReduceScatter(ReduceScatter::start(
                    group, sequence, &sources, *target, memory, endpoint,
                ))
            }
            CollectiveKind::AllGather { source, targets } => {
                let targets = targets.views().to_vec();
                let sources = vec![*source; targets.len()];
                Operation::PairwiseExchange(PairwiseExchange::start(
                    &group, sequence, &sources, &targets, memory, endpoint,
                ))
            }
            CollectiveKind::AllToAll { sources, targets } => {
                let [sources, targets] = [sources, targets].map(|views| views.views().to_vec());
                Operation::PairwiseExchange(PairwiseExchange::start(
                    &group, sequence, &sources, &targets, memory, endpoint,
                ))
            }
        };
        self.pool.return_rest();
        let buffers = &memory.body().buffers;
        self.tally[2] += 1;
        self.tally[3] += collective.kind.sources().bytes(buffers).0;
        self.pending.push(Pending {
            task,
            sequence,
            operation,
        });
        Ok(true)
    }

    fn advance(&mut self) {
        self.messages.fetch(&mut self.returned);
        while let Some(packet) = self.returned.pop() {
            self.pool.put(packet);
        }
    }

    fn poll(&mut self, memory: &Memory<'_>, done: &mut Vec<TaskId>) -> Result<(), RunError> {
        self.advance();
        let mut endpoint = Endpoint {
            messages: &mut self.messages,
            pool: &mut self.pool,
        };
        self.pending.retain_mut(|pending| {
            let finished = pending.deliver(&mut endpoint, memory);
            if finished {
                done.push(pending.task);
            }
            !finished
        });
        self.check_faults(memory)
    }

    fn wait(&mut self, limit: Duration) {
        let for_packets = !self.unstarted.is_empty();
        if !for_packets || self.returns == self.pool.returns() {
            self.messages.wait(limit, for_packets);
        }
    }

    fn missing(&self, task: TaskId) -> Vec<Rank> {
        let mut pending = self.pending.iter();
        match pending.find(|pending| pending.task == task) {
            Some(pending) => pending.missing(&self.messages),
            None if self.unstarted.iter().any(|&(other, _)| other == task) => self.pool.holders(),
            None => Vec::new(),
        }
    }

    fn take_tally(&mut self) -> [u64; 4] {
        std::mem::take(&mut self.tally)
    }
}
