//! Packets from thread to thread.

use partita_program::BufferTransfer;
use partita_run::{Key, MessageFault, Packet, PointToPoint};
use partita_space::Rank;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
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
    /// The rank waits for packets, too.
    needs_packets: bool,
}

impl Slot {
    /// Whether nothing has come for which the rank would wake.
    fn is_quiet(&self) -> bool {
        let has_packets = self.needs_packets && !self.returned.is_empty();
        self.letters.is_empty() && self.closed.is_empty() && !self.is_nudged && !has_packets
    }
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
    /// How long it looks again and again before it sleeps.
    spin: Duration,
    sorted: HashMap<Key, VecDeque<Packet>>,
    closed: Vec<Rank>,
    fetched: Vec<(Key, Packet)>,
}

impl ThreadMail {
    /// That of one of so many ranks as there are mailboxes.
    pub(crate) fn new(rank: Rank, mailboxes: Arc<[Mailbox]>, spin: Duration) -> Self {
        Self {
            rank,
            mailboxes,
            spin,
            sorted: HashMap::new(),
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

impl PointToPoint for ThreadMail {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn transfer(&self) -> BufferTransfer {
        BufferTransfer::Moved
    }

    /// Nothing has to be ready for what is moved.
    fn expect(&mut self, _key: Key, _packet: Packet) {}

    fn post(&mut self, to: Rank, key: Key, packet: Packet) {
        let mailbox = &self.mailboxes[to];
        mailbox.slot().letters.push((key, packet));
        mailbox.filled.notify_one();
    }

    fn fetch(&mut self, returned: &mut Vec<Packet>) {
        {
            let mut slot = self.mailboxes[self.rank].slot();
            std::mem::swap(&mut slot.letters, &mut self.fetched);
            returned.append(&mut slot.returned);
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
        let mailbox = &self.mailboxes[owner];
        let mut slot = mailbox.slot();
        slot.returned.push(packet);
        if slot.needs_packets {
            mailbox.filled.notify_one();
        }
    }

    /// All that a rank sent has been fetched before it is known to have gone.
    fn closed(&self) -> &[Rank] {
        &self.closed
    }

    fn fault(&self) -> Option<&MessageFault> {
        None
    }

    fn wait(&mut self, limit: Duration, for_packets: bool) {
        let mailbox = &self.mailboxes[self.rank];
        let start = Instant::now();
        let mut slot = mailbox.slot();
        slot.needs_packets = for_packets;
        while slot.is_quiet() {
            let waited = start.elapsed();
            if waited >= limit {
                slot.needs_packets = false;
                return;
            }
            slot = if waited < self.spin {
                drop(slot);
                thread::yield_now();
                mailbox.slot()
            } else {
                let woken = mailbox.filled.wait_timeout(slot, limit - waited);
                woken.unwrap_or_else(PoisonError::into_inner).0
            };
        }
        slot.is_nudged = false;
        slot.needs_packets = false;
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
    use partita_program::{Dtype, Lane, Staging};
    use partita_run::{MessageKind, PacketPool};
    use partita_space::Bytes;

    /// A pool for exchanges.
    fn pool(bytes: u64) -> PacketPool {
        let mut pool = PacketPool::default();
        let staging = Staging {
            exchange: Bytes(bytes),
            ..Staging::default()
        };
        pool.allocate(0, &staging).unwrap();
        pool
    }

    fn packet(pool: &mut PacketPool, values: &[f32]) -> Packet {
        let room = (Dtype::F32, values.len());
        assert!(pool.reserve(Lane::Exchange, [room].into_iter()));
        let mut packet = pool.blank(Dtype::F32, values.len());
        packet.elements_mut().copy_from_slice(values);
        packet
    }

    #[test]
    fn packets_go_round_and_letters_of_a_key_keep_their_order() {
        let mailboxes: Arc<[Mailbox]> = (0..2).map(|_| Mailbox::default()).collect();
        let mut sender = ThreadMail::new(0, Arc::clone(&mailboxes), Duration::ZERO);
        let mut receiver = ThreadMail::new(1, mailboxes, Duration::ZERO);
        let key = |part| Key {
            kind: MessageKind::Exchange,
            sequence: 4,
            from: 0,
            part,
        };
        // As much as three packets take: they serve every step.
        let (mut pool, mut returned) = (pool(192), Vec::new());
        for step in 0..if cfg!(miri) { 3 } else { 100 } {
            sender.fetch(&mut returned);
            assert_eq!(returned.len(), if step == 0 { 0 } else { 3 });
            returned.drain(..).for_each(|packet| pool.put(packet));
            for part in [0, 0, 1] {
                let packet = packet(&mut pool, &[step as f32, part as f32]);
                sender.post(1, key(part), packet);
            }
            receiver.wait(Duration::from_secs(5), false);
            receiver.fetch(&mut returned);
            for part in [1, 0, 0] {
                let packet = receiver.take(&key(part)).unwrap();
                assert_eq!(packet.elements::<f32>(), [step as f32, part as f32]);
                receiver.give_back(0, packet);
            }
            assert!(receiver.take(&key(0)).is_none());
            assert!(returned.is_empty(), "packets belong to their sender");
        }
        sender.fetch(&mut returned);
        returned.drain(..).for_each(|packet| pool.put(packet));
        for value in [1.0, 2.0] {
            sender.post(1, key(0), packet(&mut pool, &[value]));
        }
        drop((sender, pool));
        receiver.fetch(&mut returned);
        assert!(receiver.closed() == [0]);
        for value in [1.0, 2.0] {
            let packet = receiver
                .take(&key(0))
                .expect("letters outlive their sender");
            assert_eq!(packet.elements::<f32>(), [value]);
        }
    }

    #[test]
    fn packets_that_return_end_the_sleep_of_who_waits_for_them() {
        let mailboxes: Arc<[Mailbox]> = (0..2).map(|_| Mailbox::default()).collect();
        let mut owner = ThreadMail::new(0, Arc::clone(&mailboxes), Duration::ZERO);
        let mut other = ThreadMail::new(1, mailboxes, Duration::ZERO);
        let mut pool = pool(64);
        let packet = packet(&mut pool, &[1.0]);
        let start = Instant::now();
        thread::scope(|scope| {
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(20));
                other.give_back(0, packet);
                // It would wake the other by leaving.
                std::mem::forget(other);
            });
            owner.wait(Duration::from_secs(60), true);
        });
        assert!(start.elapsed() < Duration::from_secs(30));
        // Those who do not wait for them sleep on.
        let start = Instant::now();
        owner.wait(Duration::from_millis(2), false);
        assert!(start.elapsed() >= Duration::from_millis(2));
    }

    #[test]
    fn who_waits_sees_a_nudge_while_it_looks_and_while_it_sleeps() {
        for (spin, pause) in [(5000, 20), (0, 20), (5, 50)] {
            let mailboxes: Arc<[Mailbox]> = (0..1).map(|_| Mailbox::default()).collect();
            let mut mail = ThreadMail::new(0, mailboxes, Duration::from_millis(spin));
            let waker = mail.waker();
            let start = Instant::now();
            thread::scope(|scope| {
                scope.spawn(move || {
                    thread::sleep(Duration::from_millis(pause));
                    waker();
                });
                mail.wait(Duration::from_secs(60), false);
            });
            let waited = start.elapsed();
            assert!(waited >= Duration::from_millis(pause), "{waited:?}");
            assert!(waited < Duration::from_secs(30), "{waited:?}");
            // Nothing comes any more: the limit ends it, sooner than it would sleep or not.
            mail.wait(Duration::from_millis(2), false);
        }
    }
}
