//! Point-to-point messages between threads.

use partita_program::BufferTransfer;
use partita_run::{Key, MessageFault, Packet, PointToPoint};
use partita_space::Rank;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The mailbox of a rank, filled by its peers.
#[derive(Default)]
pub(crate) struct Mailbox {
    inbox: Mutex<Inbox>,
    arrival: Condvar,
}

#[derive(Default)]
struct Inbox {
    messages: Vec<(Key, Packet)>,
    /// Packets of this rank that their receivers have returned.
    returned: Vec<Packet>,
    closed: Vec<Rank>,
    /// A waker was called.
    is_woken: bool,
    /// The rank also waits for returned packets.
    needs_packets: bool,
}

impl Inbox {
    /// Whether it has nothing that ends a wait of the rank.
    fn is_empty(&self) -> bool {
        let has_packets = self.needs_packets && !self.returned.is_empty();
        self.messages.is_empty() && self.closed.is_empty() && !self.is_woken && !has_packets
    }
}

impl Mailbox {
    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        // An inbox is never left half changed, so a panic elsewhere does not invalidate it.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The messages of a rank that is a thread. Packets are moved, and returned to their sender once unpacked.
pub struct ThreadPointToPoint {
    rank: Rank,
    mailboxes: Arc<[Mailbox]>,
    /// How long it polls before it sleeps.
    spin: Duration,
    arrived: HashMap<Key, VecDeque<Packet>>,
    closed: Vec<Rank>,
    fetched: Vec<(Key, Packet)>,
}

impl ThreadPointToPoint {
    /// One mailbox per rank.
    pub(crate) fn new(rank: Rank, mailboxes: Arc<[Mailbox]>, spin: Duration) -> Self {
        Self {
            rank,
            mailboxes,
            spin,
            arrived: HashMap::new(),
            closed: Vec::new(),
            fetched: Vec::new(),
        }
    }

    /// Wakes this rank from `wait`, or its next one, from any thread: for sources that read on a thread of
    /// their own.
    pub fn waker(&self) -> impl Fn() + Send + 'static {
        let (rank, mailboxes) = (self.rank, Arc::clone(&self.mailboxes));
        move || {
            mailboxes[rank].inbox().is_woken = true;
            mailboxes[rank].arrival.notify_one();
        }
    }
}

impl PointToPoint for ThreadPointToPoint {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn transfer(&self) -> BufferTransfer {
        BufferTransfer::Moved
    }

    /// Moved packets need no receive buffer.
    fn expect(&mut self, _key: Key, _packet: Packet) {}

    fn post(&mut self, to: Rank, key: Key, packet: Packet) {
        let mailbox = &self.mailboxes[to];
        mailbox.inbox().messages.push((key, packet));
        mailbox.arrival.notify_one();
    }

    fn fetch(&mut self, returned: &mut Vec<Packet>) {
        {
            let mut inbox = self.mailboxes[self.rank].inbox();
            std::mem::swap(&mut inbox.messages, &mut self.fetched);
            returned.append(&mut inbox.returned);
            self.closed.append(&mut inbox.closed);
        }
        for (key, packet) in self.fetched.drain(..) {
            self.arrived.entry(key).or_default().push_back(packet);
        }
    }

    fn has(&self, key: &Key) -> bool {
        self.arrived.get(key).is_some_and(|queue| !queue.is_empty())
    }

    fn take(&mut self, key: &Key) -> Option<Packet> {
        self.arrived.get_mut(key)?.pop_front()
    }

    fn give_back(&mut self, owner: Rank, packet: Packet) {
        let mailbox = &self.mailboxes[owner];
        let mut inbox = mailbox.inbox();
        inbox.returned.push(packet);
        if inbox.needs_packets {
            mailbox.arrival.notify_one();
        }
    }

    /// A rank is listed only after all its messages have been fetched.
    fn closed(&self) -> &[Rank] {
        &self.closed
    }

    fn fault(&self) -> Option<&MessageFault> {
        None
    }

    fn wait(&mut self, limit: Duration, for_packets: bool) {
        let mailbox = &self.mailboxes[self.rank];
        let start = Instant::now();
        let mut inbox = mailbox.inbox();
        inbox.needs_packets = for_packets;
        while inbox.is_empty() {
            let waited = start.elapsed();
            if waited >= limit {
                inbox.needs_packets = false;
                return;
            }
            inbox = if waited < self.spin {
                drop(inbox);
                thread::yield_now();
                mailbox.inbox()
            } else {
                let woken = mailbox.arrival.wait_timeout(inbox, limit - waited);
                woken.unwrap_or_else(PoisonError::into_inner).0
            };
        }
        inbox.is_woken = false;
        inbox.needs_packets = false;
    }
}

impl Drop for ThreadPointToPoint {
    fn drop(&mut self) {
        for (rank, mailbox) in self.mailboxes.iter().enumerate() {
            if rank != self.rank {
                mailbox.inbox().closed.push(self.rank);
                mailbox.arrival.notify_one();
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
    fn packets_are_reused_and_messages_of_a_key_keep_their_order() {
        let mailboxes: Arc<[Mailbox]> = (0..2).map(|_| Mailbox::default()).collect();
        let mut sender = ThreadPointToPoint::new(0, Arc::clone(&mailboxes), Duration::ZERO);
        let mut receiver = ThreadPointToPoint::new(1, mailboxes, Duration::ZERO);
        let key = |part| Key {
            kind: MessageKind::Exchange,
            sequence: 4,
            from: 0,
            part,
        };
        // Enough for three packets, which are reused in every step.
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
                .expect("messages outlive their sender");
            assert_eq!(packet.elements::<f32>(), [value]);
        }
    }

    #[test]
    fn a_returned_packet_wakes_a_rank_that_waits_for_it() {
        let mailboxes: Arc<[Mailbox]> = (0..2).map(|_| Mailbox::default()).collect();
        let mut owner = ThreadPointToPoint::new(0, Arc::clone(&mailboxes), Duration::ZERO);
        let mut other = ThreadPointToPoint::new(1, mailboxes, Duration::ZERO);
        let mut pool = pool(64);
        let packet = packet(&mut pool, &[1.0]);
        let start = Instant::now();
        thread::scope(|scope| {
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(20));
                other.give_back(0, packet);
                // Dropping it would wake the owner.
                std::mem::forget(other);
            });
            owner.wait(Duration::from_secs(60), true);
        });
        assert!(start.elapsed() < Duration::from_secs(30));
        // A rank that does not wait for packets sleeps on.
        let start = Instant::now();
        owner.wait(Duration::from_millis(2), false);
        assert!(start.elapsed() >= Duration::from_millis(2));
    }

    #[test]
    fn a_waker_ends_both_spinning_and_sleeping() {
        for (spin, pause) in [(5000, 20), (0, 20), (5, 50)] {
            let mailboxes: Arc<[Mailbox]> = (0..1).map(|_| Mailbox::default()).collect();
            let mut messages = ThreadPointToPoint::new(0, mailboxes, Duration::from_millis(spin));
            let waker = messages.waker();
            let start = Instant::now();
            thread::scope(|scope| {
                scope.spawn(move || {
                    thread::sleep(Duration::from_millis(pause));
                    waker();
                });
                messages.wait(Duration::from_secs(60), false);
            });
            let waited = start.elapsed();
            assert!(waited >= Duration::from_millis(pause), "{waited:?}");
            assert!(waited < Duration::from_secs(30), "{waited:?}");
            // Nothing else arrives: the limit ends the wait.
            messages.wait(Duration::from_millis(2), false);
        }
    }
}
