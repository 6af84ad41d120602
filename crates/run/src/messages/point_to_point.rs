//! What carries packets: the point-to-point layer of a world.

use super::packet::Packet;
use super::packet_pool::PacketPool;
use crate::Memory;
use partita_program::{BufferTransfer, Dtype, View};
use partita_space::Rank;
use std::time::Duration;

/// What a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MessageKind {
    /// A message of an exchange.
    Exchange,
    /// A part of a sum, on its way to the rank that adds.
    Addend,
    /// A finished part of a sum.
    Sum,
    /// A part of an allgather or an all-to-all.
    Part,
}

impl MessageKind {
    /// All of them.
    pub const ALL: [MessageKind; 4] = [
        MessageKind::Exchange,
        MessageKind::Addend,
        MessageKind::Sum,
        MessageKind::Part,
    ];

    /// The word used in errors.
    pub fn name(self) -> &'static str {
        match self {
            MessageKind::Exchange => "exchange",
            MessageKind::Addend => "part of a sum",
            MessageKind::Sum => "sum",
            MessageKind::Part => "part",
        }
    }
}

/// What matches a message with the task that waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// What it is for.
    pub kind: MessageKind,
    /// Number of the exchange or collective.
    pub sequence: u32,
    /// The sender.
    pub from: Rank,
    /// Number among the messages of an exchange between two ranks; 0 in collectives.
    pub part: u32,
}

/// A message that could not be sent or received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageFault {
    /// The message.
    pub key: Key,
    /// The other rank.
    pub peer: Rank,
    /// Why.
    pub reason: String,
}

/// Messages between one rank and others. Nothing here blocks but `wait`.
///
/// Messages of one key are taken in the order in which they were posted.
pub trait PointToPoint {
    /// Whose messages these are.
    fn rank(&self) -> Rank;

    /// How they take memory.
    fn transfer(&self) -> BufferTransfer;

    /// Announces that a message will be taken, as long as this packet and received into it. Not called where
    /// packets are moved.
    fn expect(&mut self, key: Key, packet: Packet);

    /// Sends a packet.
    fn post(&mut self, to: Rank, key: Key, packet: Packet);

    /// Takes over all that has come; packets of this rank that are empty again go to `returned`.
    fn fetch(&mut self, returned: &mut Vec<Packet>);

    /// Whether a message of this key has been fetched.
    fn has(&self, key: &Key) -> bool;

    /// The oldest message of this key, if one has been fetched.
    fn take(&mut self, key: &Key) -> Option<Packet>;

    /// Returns a packet that was moved here from `owner` and has been emptied.
    fn give_back(&mut self, owner: Rank, packet: Packet);

    /// Ranks that are known to have gone away.
    fn closed(&self) -> &[Rank];

    /// The first message that failed.
    fn fault(&self) -> Option<&MessageFault>;

    /// Sleeps until something may have come, at most `limit`; packets that return count where the rank waits
    /// for them.
    fn wait(&mut self, limit: Duration, for_packets: bool);
}

/// The messages of a rank with the packets for them.
pub(super) struct Endpoint<'e> {
    pub(super) messages: &'e mut dyn PointToPoint,
    pub(super) pool: &'e mut PacketPool,
}

impl Endpoint<'_> {
    pub(super) fn rank(&self) -> Rank {
        self.messages.rank()
    }

    /// A packet of the task that starts, with whatever contents.
    pub(super) fn blank(&mut self, dtype: Dtype, elements: usize) -> Packet {
        self.pool.blank(dtype, elements)
    }

    /// The contents of a view, packed.
    pub(super) fn packed(&mut self, memory: &Memory<'_>, view: &View) -> Packet {
        let dtype = memory.body().buffer(view.buffer).dtype;
        let mut packet = self.blank(dtype, view.volume());
        packet.pack(memory, view);
        packet
    }

    /// Announces that a message of so many elements will be taken.
    pub(super) fn expect(&mut self, key: Key, dtype: Dtype, elements: usize) {
        if self.messages.transfer() == BufferTransfer::Copied {
            let packet = self.blank(dtype, elements);
            self.messages.expect(key, packet);
        }
    }

    pub(super) fn post(&mut self, to: Rank, key: Key, packet: Packet) {
        self.pool.send(&packet, to);
        self.messages.post(to, key, packet);
    }

    pub(super) fn take(&mut self, key: &Key) -> Option<Packet> {
        self.messages.take(key)
    }

    /// Returns a packet that has been emptied to the pool that it is of, whoever sent it.
    pub(super) fn give_back(&mut self, from: Rank, packet: Packet) {
        match self.pool.owns(&packet) {
            true => self.pool.put(packet),
            false => self.messages.give_back(from, packet),
        }
    }
}
