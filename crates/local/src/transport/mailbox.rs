use super::packet::Packet;
use partita_program::{Dtype, View};
use partita_run::Memory;
use partita_space::Rank;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a message belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    Exchange,
    /// A part of a sum, on its way to the rank that adds.
    Addend,
    /// A finished part of a sum.
    Sum,
    /// A part of an allgather or an all-to-all.
    Part,
}

/// What matches a message with the task that waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) stage: Stage,
    pub(super) sequence: u32,
    pub(super) from: Rank,
    pub(super) part: u32,
}

/// Where peers put what is for one rank.
#[derive(Default)]
pub(super) struct Mailbox {
    slot: Mutex<Slot>,
    filled: Condvar,
}

#[derive(Default)]
struct Slot {
    letters: Vec<(Key, Packet)>,
    /// Packets of this rank that their receivers have emptied.
    returned: Vec<Packet>,
    closed: Vec<Rank>,
    /// Something other than mail has come for the rank.
    is_nudged: bool,
}

impl Mailbox {
    fn slot(&self) -> MutexGuard<'_, Slot> {
        // A slot is never left half changed, so a panic elsewhere does not spoil it.
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The mail of one rank: its own mailbox, emptied and sorted, and the way to those of its peers.
pub(super) struct Mail {
    rank: Rank,
    mailboxes: Arc<[Mailbox]>,
    sorted: HashMap<Key, VecDeque<Packet>>,
    free: Vec<Packet>,
    closed: Vec<Rank>,
    fetched: Vec<(Key, Packet)>,
}

impl Mail {
    pub(super) fn new(rank: Rank, mailboxes: Arc<[Mailbox]>) -> Self {
        Self {
            rank,
            mailboxes,
            sorted: HashMap::new(),
            free: Vec::new(),
            closed: Vec::new(),
            fetched: Vec::new(),
        }
    }

    pub(super) fn rank(&self) -> Rank {
        self.rank
    }

    /// Takes over all that has come.
    pub(super) fn fetch(&mut self) {
        {
            let mut slot = self.mailboxes[self.rank].slot();
            std::mem::swap(&mut slot.letters, &mut self.fetched);
            self.free.append(&mut slot.returned);
            self.closed.append(&mut slot.closed);
        }
        for (key, packet) in self.fetched.drain(..) {
            self.sorted.entry(key).or_default().push_back(packet);
        }
    }

    /// Whether a message of this key has been fetched.
    pub(super) fn has(&self, key: &Key) -> bool {
        self.sorted.get(key).is_some_and(|queue| !queue.is_empty())
    }

    /// The oldest message of this key, if one has been fetched.
    pub(super) fn take(&mut self, key: &Key) -> Option<Packet> {
        self.sorted.get_mut(key)?.pop_front()
    }

    /// Whether any rank went away.
    pub(super) fn any_closed(&self) -> bool {
        !self.closed.is_empty()
    }

    /// Whether a rank went away. All that it sent has been fetched before this is known.
    pub(super) fn is_closed(&self, rank: Rank) -> bool {
        self.closed.contains(&rank)
    }

    pub(super) fn post(&self, to: Rank, key: Key, packet: Packet) {
        let mailbox = &self.mailboxes[to];
        mailbox.slot().letters.push((key, packet));
        mailbox.filled.notify_one();
    }

    /// Returns an emptied packet to the rank that allocated it.
    pub(super) fn give_back(&mut self, owner: Rank, packet: Packet) {
        if owner == self.rank {
            self.free.push(packet);
        } else {
            self.mailboxes[owner].slot().returned.push(packet);
        }
    }

    /// The smallest free packet with room for so many elements, or a new one.
    pub(super) fn blank(&mut self, dtype: Dtype, elements: usize) -> Packet {
        let fits = |packet: &Packet| packet.dtype() == dtype && packet.room() >= elements;
        let candidates = self.free.iter().enumerate();
        let best = candidates
            .filter(|(_, packet)| fits(packet))
            .min_by_key(|(_, packet)| packet.room())
            .map(|(at, _)| at);
        match best {
            Some(at) => self.free.swap_remove(at),
            None => Packet::with_room(dtype, elements),
        }
    }

    /// The contents of a view, packed.
    pub(super) fn pack(&mut self, memory: &Memory<'_>, view: &View) -> Packet {
        let dtype = memory.body().buffer(view.buffer).dtype;
        let mut packet = self.blank(dtype, view.volume());
        packet.pack(memory, view);
        packet
    }

    /// Ends the sleep of this rank, or its next one, whoever calls it.
    pub(super) fn waker(&self) -> impl Fn() + Send + 'static {
        let (rank, mailboxes) = (self.rank, Arc::clone(&self.mailboxes));
        move || {
            mailboxes[rank].slot().is_nudged = true;
            mailboxes[rank].filled.notify_one();
        }
    }

    /// Sleeps until something has come that is not fetched or somebody wakes, at most `limit`.
    pub(super) fn wait(&self, limit: Duration) {
        let mailbox = &self.mailboxes[self.rank];
        let end = Instant::now() + limit;
        let mut slot = mailbox.slot();
        while slot.letters.is_empty() && slot.closed.is_empty() && !slot.is_nudged {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let woken = mailbox.filled.wait_timeout(slot, left);
            slot = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        slot.is_nudged = false;
    }
}

impl Drop for Mail {
    fn drop(&mut self) {
        for (rank, mailbox) in self.mailboxes.iter().enumerate() {
            if rank != self.rank {
                mailbox.slot().closed.push(self.rank);
                mailbox.filled.notify_one();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::packet::Number;
    use super::*;

    #[test]
    fn packets_go_round_and_letters_of_a_key_keep_their_order() {
        let mailboxes: Arc<[Mailbox]> = (0..2).map(|_| Mailbox::default()).collect();
        let mut sender = Mail::new(0, Arc::clone(&mailboxes));
        let mut receiver = Mail::new(1, mailboxes);
        let key = |part| Key {
            stage: Stage::Exchange,
            sequence: 4,
            from: 0,
            part,
        };
        for step in 0..100 {
            sender.fetch();
            for part in [0, 0, 1] {
                let mut packet = sender.blank(Dtype::F32, 10 * (part as usize + 1));
                let elements = f32::of(&mut packet);
                elements.clear();
                elements.extend([step as f32, part as f32]);
                sender.post(1, key(part), packet);
            }
            assert!(sender.free.is_empty(), "three packets serve every step");
            receiver.wait(Duration::from_secs(5));
            receiver.fetch();
            for part in [1, 0, 0] {
                let packet = receiver.take(&key(part)).unwrap();
                assert!(packet.room() >= 10);
                receiver.give_back(0, packet);
            }
            assert!(receiver.take(&key(0)).is_none());
            assert!(receiver.free.is_empty(), "packets belong to their sender");
        }
        for value in [1.0, 2.0] {
            sender.post(1, key(0), Packet::F64(vec![value]));
        }
        drop(sender);
        receiver.fetch();
        assert!(receiver.is_closed(0) && receiver.any_closed());
        for value in [1.0, 2.0] {
            match receiver.take(&key(0)) {
                Some(Packet::F64(values)) => assert_eq!(values, [value]),
                _ => panic!("letters outlive their sender"),
            }
        }
    }
}
