use partita_program::Dtype;
use partita_run::{Carriage, Key, Mail, MailFault, Packet};
use partita_space::Rank;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Where peers put what is for one rank.
#[derive(Default)]
pub(crate) struct Mailbox {
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

/// The mail of a rank that is a thread: its own mailbox, emptied and sorted, and the way to those of its
/// peers. Packets move, and go back to their sender when they are empty.
pub struct ThreadMail {
    rank: Rank,
    mailboxes: Arc<[Mailbox]>,
    sorted: HashMap<Key, VecDeque<Packet>>,
    free: Vec<Packet>,
    closed: Vec<Rank>,
    fetched: Vec<(Key, Packet)>,
}

impl ThreadMail {
    /// That of one of so many ranks as there are mailboxes.
    pub(crate) fn new(rank: Rank, mailboxes: Arc<[Mailbox]>) -> Self {
        Self {
            rank,
            mailboxes,
            sorted: HashMap::new(),
            free: Vec::new(),
            closed: Vec::new(),
            fetched: Vec::new(),
        }
    }

    /// Ends the sleep of this rank, or its next one, from any thread: for sources that read behind the
    /// rank's back.
    pub fn waker(&self) -> impl Fn() + Send + 'static {
        let (rank, mailboxes) = (self.rank, Arc::clone(&self.mailboxes));
        move || {
            mailboxes[rank].slot().is_nudged = true;
            mailboxes[rank].filled.notify_one();
        }
    }
}

impl Mail for ThreadMail {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn carriage(&self) -> Carriage {
        Carriage::Handed
    }

    /// The smallest free packet with room for so many elements, or a new one.
    fn blank(&mut self, dtype: Dtype, elements: usize) -> Packet {
        Packet::take_from(&mut self.free, dtype, elements)
    }

    /// Nothing has to be ready for what is moved.
    fn expect(&mut self, _key: Key, _dtype: Dtype, _elements: usize) {}

    fn post(&mut self, to: Rank, key: Key, packet: Packet) {
        let mailbox = &self.mailboxes[to];
        mailbox.slot().letters.push((key, packet));
        mailbox.filled.notify_one();
    }

    fn fetch(&mut self) {
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

    fn has(&self, key: &Key) -> bool {
        self.sorted.get(key).is_some_and(|queue| !queue.is_empty())
    }

    fn take(&mut self, key: &Key) -> Option<Packet> {
        self.sorted.get_mut(key)?.pop_front()
    }

    fn give_back(&mut self, owner: Rank, packet: Packet) {
        if owner == self.rank {
            self.free.push(packet);
        } else {
            self.mailboxes[owner].slot().returned.push(packet);
        }
    }

    /// All that a rank sent has been fetched before it is known to have gone.
    fn closed(&self) -> &[Rank] {
        &self.closed
    }

    fn fault(&self) -> Option<&MailFault> {
        None
    }

    fn wait(&mut self, limit: Duration) {
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

impl Drop for ThreadMail {
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
    use super::*;
    use partita_run::Stage;

    #[test]
    fn packets_go_round_and_letters_of_a_key_keep_their_order() {
        let mailboxes: Arc<[Mailbox]> = (0..2).map(|_| Mailbox::default()).collect();
        let mut sender = ThreadMail::new(0, Arc::clone(&mailboxes));
        let mut receiver = ThreadMail::new(1, mailboxes);
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
                packet.resize(0);
                match &mut packet {
                    Packet::F32(elements) => elements.extend([step as f32, part as f32]),
                    Packet::F64(_) | Packet::I16(_) => panic!("a blank of another type"),
                }
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
        assert!(receiver.closed() == [0]);
        for value in [1.0, 2.0] {
            match receiver.take(&key(0)) {
                Some(Packet::F64(values)) => assert_eq!(values, [value]),
                _ => panic!("letters outlive their sender"),
            }
        }
    }
}
