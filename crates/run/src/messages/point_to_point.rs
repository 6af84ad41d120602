//! The point-to-point layer of a world.

use super::packet::Packet;
use super::packet_pool::PacketPool;
use crate::Memory;
use partita_program::{BufferTransfer, Dtype, View};
use partita_space::Rank;
use std::time::Duration;

/// The purpose of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MessageKind {
    /// A message of an exchange.
    Exchange,
    /// A partial sum, sent to the rank that reduces it.
    PartialSum,
    /// A reduced chunk of an allreduce.
    Sum,
    /// A part of an allgather or an all-to-all.
    Part,
}

impl MessageKind {
    /// All of them.
    pub const ALL: [MessageKind; 4] = [
        MessageKind::Exchange,
        MessageKind::PartialSum,
        MessageKind::Sum,
        MessageKind::Part,
    ];

    /// The word used in errors.
    pub fn name(self) -> &'static str {
        match self {
            MessageKind::Exchange => "exchange",
            MessageKind::PartialSum => "partial sum",
            MessageKind::Sum => "sum",
            MessageKind::Part => "part",
        }
    }
}

/// Identifies a message, as the tag does in MPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Its purpose.
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
    /// The cause.
    pub reason: String,
}

/// Non-blocking messages between one rank and others; only `wait` blocks.
///
/// Messages of one key are taken in the order in which they were posted.
pub trait PointToPoint {
    /// This rank.
    fn rank(&self) -> Rank;

    /// Whether packets are moved to the receiver or copied.
    fn transfer(&self) -> BufferTransfer;

    /// Posts a receive into a packet of the message's length. Not called where packets are moved.
    fn expect(&mut self, key: Key, packet: Packet);

    /// Sends a packet.
    fn post(&mut self, to: Rank, key: Key, packet: Packet);

    /// Fetches all messages that have arrived; packets of this rank that are free again go to `returned`.
    fn fetch(&mut self, returned: &mut Vec<Packet>);

    /// Whether a message of this key has been fetched.
    fn has(&self, key: &Key) -> bool;

    /// The oldest message of this key, if one has been fetched.
    fn take(&mut self, key: &Key) -> Option<Packet>;

    /// Returns a packet that was moved here from `owner`.
    fn give_back(&mut self, owner: Rank, packet: Packet);

    /// Ranks that are known to have ended.
    fn closed(&self) -> &[Rank];

    /// The first message that failed.
    fn fault(&self) -> Option<&MessageFault>;

    /// Sleeps until a message may have arrived, or with `for_packets` a packet has returned, at most `limit`.
    fn wait(&mut self, limit: Duration, for_packets: bool);
}

/// The messages of a rank and their packet pool.
pub(super) struct Endpoint<'e> {
    pub(super) messages: &'e mut dyn PointToPoint,
    pub(super) pool: &'e mut PacketPool,
}

impl Endpoint<'_> {
    pub(super) fn rank(&self) -> Rank {
        self.messages.rank()
    }

    /// A packet of the task that starts; the contents are unspecified.
    pub(super) fn blank(&mut self, dtype: Dtype, elements: usize) -> Packet {
        self.pool.blank(dtype, elements)
    }

    /// The contents of views of one type, packed one after the other.
    pub(super) fn packed_all(&mut self, memory: &Memory<'_>, views: &[View]) -> Packet {
        let dtype = memory.body().buffer(views[0].buffer).dtype;
        let mut packet = self.blank(dtype, views.iter().map(View::volume).sum());
        let mut start = 0;
        for view in views {
            let elements = start..start + view.volume();
            start = elements.end;
            packet.pack_part(memory, view, elements);
        }
        packet
    }

    /// The contents of a view, packed.
    pub(super) fn packed(&mut self, memory: &Memory<'_>, view: &View) -> Packet {
        let dtype = memory.body().buffer(view.buffer).dtype;
        let mut packet = self.blank(dtype, view.volume());
        packet.pack(memory, view);
        packet
    }

    /// Posts a receive of that many elements.
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

    /// Returns a packet to the pool that it is of.
    pub(super) fn give_back(&mut self, from: Rank, packet: Packet) {
        if self.pool.owns(&packet) {
            self.pool.put(packet);
        } else {
            self.messages.give_back(from, packet);
        }
    }
}
