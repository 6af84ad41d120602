//! Messages and collectives between ranks, whatever carries the messages.
//!
//! Whoever can carry packets from rank to rank ([`Mail`]) becomes a [`Transport`] here: exchanges,
//! collectives made of messages, sums in rank order, and the tally are the same everywhere, so the bits
//! of a run do not depend on the world it runs in.

mod collective;
mod mail;
mod packet;
mod stock;
mod sum;

pub use mail::{Key, Mail, MailFault, Stage};
pub use packet::Packet;
pub use stock::{Carriage, packet_bytes};

use self::collective::{Group, Reduction, Scatter, Shuffle};
use self::mail::packed;
use crate::{Memory, RunError, Transport};
use partita_program::{
    Collective, CollectiveKind, Exchange, Program, Receive, Task, TaskId, View, Work,
};
use partita_space::{Mesh, Offset, Rank};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// The messages and collectives of a rank over its mail.
///
/// Messages of one key (stage, sequence, sender, part) are taken in the order in which they were sent,
/// so a peer may be steps ahead, as long as all ranks run the same programs in one order. Sums are taken
/// in rank order and are the same bits on all members. Peers that went away while something is awaited
/// from them give [`RunError::Lost`], faults of the mail [`RunError::Message`].
pub struct MessageTransport<M> {
    mesh: Mesh,
    rank: Rank,
    mail: M,
    groups: HashMap<partita_program::Group, Arc<Group>>,
    pending: Vec<Pending>,
    tally: [u64; 4],
}

/// A task under way.
struct Pending {
    task: TaskId,
    sequence: u32,
    doing: Doing,
}

enum Doing {
    Exchange(Vec<Expected>),
    Reduce(Reduction),
    Scatter(Scatter),
    Shuffle(Shuffle),
}

/// A message that an exchange still waits for.
struct Expected {
    key: Key,
    view: View,
    accumulate: bool,
}

impl<M: Mail> MessageTransport<M> {
    /// Over the mail of a rank of this mesh.
    pub fn new(mesh: Mesh, mail: M) -> Self {
        Self {
            mesh,
            rank: mail.rank(),
            mail,
            groups: HashMap::new(),
            pending: Vec::new(),
            tally: [0; 4],
        }
    }

    /// Makes the packets that these programs need, as [`packet_bytes`] counts them.
    ///
    /// Errors: the system has no memory for them.
    pub fn reserve<'p>(
        &mut self,
        programs: impl IntoIterator<Item = &'p Program>,
    ) -> Result<(), RunError> {
        let rooms = stock::stock(programs, self.rank, self.mail.carriage());
        for &room in &rooms {
            let packet = stock::make(room).ok_or_else(|| RunError::Memory {
                rank: self.rank,
                what: "packets".to_owned(),
                bytes: stock::bytes(&rooms),
            })?;
            self.mail.give_back(self.rank, packet);
        }
        Ok(())
    }

    /// What carries the messages.
    pub fn mail(&self) -> &M {
        &self.mail
    }

    fn peer(&self, offset: Offset) -> Rank {
        let peer = self.mesh.neighbor(self.rank, offset);
        peer.unwrap_or_else(|| panic!("rank {} has no peer at {offset:?}", self.rank))
    }

    fn group(&mut self, of: partita_program::Group) -> Arc<Group> {
        let (mesh, rank) = (&self.mesh, self.rank);
        let group = self.groups.entry(of).or_insert_with(|| {
            let members = of.members(mesh, rank);
            Arc::new(Group::new(members, rank))
        });
        Arc::clone(group)
    }

    fn expect(&self, sequence: u32, receive: &Receive) -> Expected {
        Expected {
            key: Key {
                stage: Stage::Exchange,
                sequence,
                from: self.peer(receive.from),
                part: receive.part,
            },
            view: receive.view,
            accumulate: receive.accumulate,
        }
    }

    fn refuse_faults(&self, memory: &Memory<'_>) -> Result<(), RunError> {
        if let Some(fault) = self.mail.fault() {
            return Err(self.failed(fault, memory));
        }
        let closed = self.mail.closed();
        if closed.is_empty() {
            return Ok(());
        }
        for pending in &self.pending {
            let mut missing = pending.missing(&self.mail).into_iter();
            if let Some(peer) = missing.find(|rank| closed.contains(rank)) {
                let task = &memory.body().tasks[pending.task.0 as usize];
                return Err(RunError::Lost {
                    rank: self.rank,
                    peer,
                    work: task.work.name().to_owned(),
                    layer: task.origin.layer.clone(),
                    task: pending.task.0,
                    sequence: pending.sequence,
                });
            }
        }
        Ok(())
    }

    fn failed(&self, fault: &MailFault, memory: &Memory<'_>) -> RunError {
        let (stage, sequence) = (fault.key.stage, fault.key.sequence);
        let is_owner = |task: &Task| match &task.work {
            Work::Exchange(exchange) => stage == Stage::Exchange && exchange.sequence == sequence,
            Work::Collective(collective) => {
                stage != Stage::Exchange && collective.sequence == sequence
            }
            Work::Compute { .. } | Work::Load(_) => false,
        };
        // A send may fail after its task has ended, so it is looked for among all.
        let tasks = &memory.body().tasks;
        let number = tasks.iter().position(is_owner);
        let owner = number.map(|number| &tasks[number]);
        RunError::Message {
            rank: self.rank,
            peer: fault.peer,
            work: owner
                .map_or(stage.name(), |task| task.work.name())
                .to_owned(),
            layer: owner.map_or_else(String::new, |task| task.origin.layer.clone()),
            task: number.unwrap_or_default() as u32,
            sequence,
            reason: fault.reason.clone(),
        }
    }
}

impl Pending {
    fn missing(&self, mail: &dyn Mail) -> Vec<Rank> {
        let mut ranks: Vec<Rank> = match &self.doing {
            Doing::Exchange(expected) => expected
                .iter()
                .filter(|expected| !mail.has(&expected.key))
                .map(|expected| expected.key.from)
                .collect(),
            Doing::Reduce(reduction) => reduction.missing(mail),
            Doing::Scatter(scatter) => scatter.missing(mail),
            Doing::Shuffle(shuffle) => shuffle.missing(mail),
        };
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// Unpacks what has come, and tells whether that was all.
    fn deliver(&mut self, mail: &mut dyn Mail, memory: &Memory<'_>) -> bool {
        match &mut self.doing {
            Doing::Exchange(expected) => deliver_exchange(expected, mail, memory),
            Doing::Reduce(reduction) => reduction.deliver(mail, memory),
            Doing::Scatter(scatter) => scatter.deliver(mail, memory),
            Doing::Shuffle(shuffle) => shuffle.deliver(mail, memory),
        }
    }
}

/// Sums are unpacked in the order of the task, whatever came first, so that their bits do not depend
/// on timing.
fn deliver_exchange(
    expected: &mut Vec<Expected>,
    mail: &mut dyn Mail,
    memory: &Memory<'_>,
) -> bool {
    let mut sum_is_open = false;
    expected.retain(|expected| {
        let waits_its_turn = expected.accumulate && sum_is_open;
        let packet = if waits_its_turn {
            None
        } else {
            mail.take(&expected.key)
        };
        let Some(packet) = packet else {
            sum_is_open |= expected.accumulate;
            return true;
        };
        packet.unpack(memory, &expected.view, expected.accumulate);
        mail.give_back(expected.key.from, packet);
        false
    });
    expected.is_empty()
}

impl<M: Mail> Transport for MessageTransport<M> {
    fn start_exchange(
        &mut self,
        task: TaskId,
        exchange: &Exchange,
        memory: &Memory<'_>,
    ) -> Result<(), RunError> {
        let receives = exchange.receives.iter();
        let expected: Vec<Expected> = receives
            .map(|receive| self.expect(exchange.sequence, receive))
            .collect();
        for expected in &expected {
            let dtype = memory.body().buffer(expected.view.buffer).dtype;
            let elements = expected.view.volume();
            self.mail.expect(expected.key, dtype, elements);
        }
        for send in &exchange.sends {
            let packet = packed(&mut self.mail, memory, &send.view);
            self.tally[0] += 1;
            self.tally[1] += packet.bytes();
            let key = Key {
                stage: Stage::Exchange,
                sequence: exchange.sequence,
                from: self.rank,
                part: send.part,
            };
            let to = self.peer(send.to);
            self.mail.post(to, key, packet);
        }
        self.pending.push(Pending {
            task,
            sequence: exchange.sequence,
            doing: Doing::Exchange(expected),
        });
        Ok(())
    }

    fn start_collective(
        &mut self,
        task: TaskId,
        collective: &Collective,
        memory: &Memory<'_>,
    ) -> Result<(), RunError> {
        let (group, sequence) = (self.group(collective.group()), collective.sequence);
        let mail = &mut self.mail;
        let doing = match &collective.kind {
            CollectiveKind::AllReduce { view } => {
                Doing::Reduce(Reduction::start(group, sequence, *view, memory, mail))
            }
            CollectiveKind::ReduceScatter { sources, target } => Doing::Scatter(Scatter::start(
                group, sequence, sources, *target, memory, mail,
            )),
            CollectiveKind::AllGather { source, targets } => {
                let sources = vec![*source; targets.len()];
                Doing::Shuffle(Shuffle::start(
                    &group, sequence, &sources, targets, memory, mail,
                ))
            }
            CollectiveKind::AllToAll { sources, targets } => Doing::Shuffle(Shuffle::start(
                &group, sequence, sources, targets, memory, mail,
            )),
        };
        let buffers = &memory.body().buffers;
        let given = collective.kind.sources().iter();
        self.tally[2] += 1;
        self.tally[3] += given.map(|view| view.bytes(buffers).0).sum::<u64>();
        self.pending.push(Pending {
            task,
            sequence,
            doing,
        });
        Ok(())
    }

    fn advance(&mut self) {
        self.mail.fetch();
    }

    fn poll(&mut self, memory: &Memory<'_>, done: &mut Vec<TaskId>) -> Result<(), RunError> {
        self.advance();
        let mail = &mut self.mail;
        self.pending.retain_mut(|pending| {
            let finished = pending.deliver(mail, memory);
            if finished {
                done.push(pending.task);
            }
            !finished
        });
        self.refuse_faults(memory)
    }

    fn wait(&mut self, limit: Duration) {
        self.mail.wait(limit);
    }

    fn missing(&self, task: TaskId) -> Vec<Rank> {
        let pending = self.pending.iter().find(|pending| pending.task == task);
        pending.map_or_else(Vec::new, |pending| pending.missing(&self.mail))
    }

    fn take_tally(&mut self) -> [u64; 4] {
        std::mem::take(&mut self.tally)
    }
}
