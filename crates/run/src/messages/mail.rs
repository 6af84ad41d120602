//! What carries packets: the point-to-point layer of a world.

use super::packet::Packet;
use super::stock::Carriage;
use crate::Memory;
use partita_program::{Dtype, View};
use partita_space::Rank;
use std::time::Duration;

/// What a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// A message of an exchange.
    Exchange,
    /// A part of a sum, on its way to the rank that adds.
    Addend,
    /// A finished part of a sum.
    Sum,
    /// A part of an allgather or an all-to-all.
    Part,
}

impl Stage {
    /// All of them.
    pub const ALL: [Stage; 4] = [Stage::Exchange, Stage::Addend, Stage::Sum, Stage::Part];

    /// The word used in errors.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Exchange => "exchange",
            Stage::Addend => "part of a sum",
            Stage::Sum => "sum",
            Stage::Part => "part",
        }
    }
}

/// What matches a message with the task that waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// What it is for.
    pub stage: Stage,
    /// Number of the exchange or collective.
    pub sequence: u32,
    /// The sender.
    pub from: Rank,
    /// Number among the messages of an exchange between two ranks; 0 in collectives.
    pub part: u32,
}

/// A message that could not be sent or received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MailFault {
    /// The message.
    pub key: Key,
    /// The other rank.
    pub peer: Rank,
    /// Why.
    pub reason: String,
}

/// The messages of one rank. Nothing here blocks but `wait`.
///
/// Messages of one key are taken in the order in which they were posted.
pub trait Mail {
    /// Whose mail this is.
    fn rank(&self) -> Rank;

    /// How its messages take memory.
    fn carriage(&self) -> Carriage;

    /// A packet with room for so many elements, without contents of any meaning.
    fn blank(&mut self, dtype: Dtype, elements: usize) -> Packet;

    /// Announces that a message of so many elements will be taken.
    fn expect(&mut self, key: Key, dtype: Dtype, elements: usize);

    /// Sends a packet.
    fn post(&mut self, to: Rank, key: Key, packet: Packet);

    /// Takes over all that has come.
    fn fetch(&mut self);

    /// Whether a message of this key has been fetched.
    fn has(&self, key: &Key) -> bool;

    /// The oldest message of this key, if one has been fetched.
    fn take(&mut self, key: &Key) -> Option<Packet>;

    /// Returns a packet that came from `owner` and has been emptied.
    fn give_back(&mut self, owner: Rank, packet: Packet);

    /// Ranks that are known to have gone away.
    fn closed(&self) -> &[Rank];

    /// The first message that failed.
    fn fault(&self) -> Option<&MailFault>;

    /// Sleeps until something may have come, at most `limit`.
    fn wait(&mut self, limit: Duration);
}

/// The contents of a view, packed.
pub(super) fn packed(mail: &mut dyn Mail, memory: &Memory<'_>, view: &View) -> Packet {
    let dtype = memory.body().buffer(view.buffer).dtype;
    let mut packet = mail.blank(dtype, view.volume());
    packet.pack(memory, view);
    packet
}
