//! The memory of a rank for packets: made before its first step, never more.

use super::packet::Packet;
use crate::RunError;
use crate::lines::Lines;
use partita_program::{Dtype, Lane, PacketSize, Staging, packet_bytes};
use partita_space::{Bytes, Rank};
use std::ops::Range;
use std::sync::Arc;

/// Pools of packets for exchanges and for collectives.
///
/// A task takes all that it needs when it starts, or nothing. Packets return one by one; a pool whose packets
/// are all back is as it was at first.
#[derive(Default)]
pub struct PacketPool {
    exchange: LanePool,
    collective: LanePool,
    /// Taken for the task that starts.
    reserved: Vec<Packet>,
    returns: u64,
}

#[derive(Default)]
struct LanePool {
    lines: Option<Arc<Lines>>,
    bytes: usize,
    /// Ascending and apart, none of them next to another.
    free: Vec<Range<usize>>,
    /// Where packets start that ranks may hold to which they were sent.
    sent: Vec<(usize, Rank)>,
}

impl PacketPool {
    /// Allocates what is missing of these pools, every page of it touched. All packets must be back.
    ///
    /// Errors: the system has no memory for it.
    pub fn allocate(&mut self, rank: Rank, staging: &Staging) -> Result<(), RunError> {
        for lane in [Lane::Exchange, Lane::Collective] {
            let bytes = staging.of_lane(lane);
            self.lane(lane).allocate(bytes).ok_or_else(|| {
                let what = format!("packets of the {} lane", lane.name());
                RunError::Memory { rank, what, bytes }
            })?;
        }
        Ok(())
    }

    /// Takes packets of these rooms for a task of a lane; takes none, and says false, where they are not
    /// all there. Panics where they would not be there if all packets were back.
    pub fn reserve(&mut self, lane: Lane, sizes: impl Iterator<Item = PacketSize>) -> bool {
        assert!(self.reserved.is_empty(), "tasks start one by one");
        let sizes: Vec<usize> = sizes
            .map(|size| packet_bytes(size).0 as usize)
            .filter(|&bytes| bytes > 0)
            .collect();
        let pool = self.lane(lane);
        let needed: usize = sizes.iter().sum();
        assert!(
            needed <= pool.bytes,
            "a task takes packets of {needed} bytes from the {} pool of {}",
            lane.name(),
            pool.bytes
        );
        let mut taken = Vec::with_capacity(sizes.len());
        for &bytes in &sizes {
            match pool.take(bytes) {
                Some(range) => taken.push(range),
                None => {
                    taken.into_iter().for_each(|range| pool.put(range));
                    return false;
                }
            }
        }
        let lines = pool.lines.clone();
        let packets = taken.into_iter().zip(lines.iter().cycle());
        let packets = packets.map(|(range, lines)| {
            // SAFETY: the range has left the list of free ones and returns with the packet.
            unsafe { Packet::new(Arc::clone(lines), range) }
        });
        self.reserved.extend(packets);
        true
    }

    /// One of the packets that were taken for a task, for so many elements, with whatever contents.
    pub fn blank(&mut self, dtype: Dtype, elements: usize) -> Packet {
        let fits = |(_, packet): &(usize, &Packet)| packet.has_room(dtype, elements);
        let candidates = self.reserved.iter().enumerate().filter(fits);
        let best = candidates.min_by_key(|(_, packet)| packet.range().len());
        let at = best.map(|(at, _)| at);
        let mut packet = match at {
            Some(at) if elements > 0 => self.reserved.swap_remove(at),
            Some(_) | None => {
                assert_eq!(elements, 0, "a task takes the packets that its work says");
                Packet::empty()
            }
        };
        packet.hold(dtype, elements);
        packet
    }

    /// Returns what the task that starts has not used.
    pub fn return_rest(&mut self) {
        while let Some(packet) = self.reserved.pop() {
            self.put(packet);
        }
    }

    /// Whether a packet is of these pools.
    pub fn owns(&self, packet: &Packet) -> bool {
        let pools = [&self.exchange, &self.collective];
        packet.range().is_empty() || pools.iter().any(|pool| pool.owns(packet))
    }

    /// Takes a packet back. Panics where it is of another rank.
    pub fn put(&mut self, packet: Packet) {
        if packet.range().is_empty() {
            return;
        }
        let pools = [&mut self.exchange, &mut self.collective];
        let pool = pools.into_iter().find(|pool| pool.owns(&packet));
        let pool = pool.expect("a packet returns to its own rank");
        self.returns += 1;
        pool.put(packet.into_range());
    }

    /// Packets that have come back until now.
    pub fn returns(&self) -> u64 {
        self.returns
    }

    /// Notes that a packet of these pools goes to another rank.
    pub fn send(&mut self, packet: &Packet, to: Rank) {
        for pool in [&mut self.exchange, &mut self.collective] {
            if pool.owns(packet) {
                pool.sent.push((packet.range().start, to));
            }
        }
    }

    /// Ranks to which packets went that have not come back.
    pub fn holders(&self) -> Vec<Rank> {
        let sent = self.exchange.sent.iter().chain(&self.collective.sent);
        let mut ranks: Vec<Rank> = sent.map(|&(_, rank)| rank).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    fn lane(&mut self, lane: Lane) -> &mut LanePool {
        match lane {
            Lane::Collective => &mut self.collective,
            Lane::Exchange => &mut self.exchange,
            Lane::Compute | Lane::Io => panic!("{} has no packets", lane.name()),
        }
    }
}

impl LanePool {
    fn allocate(&mut self, bytes: Bytes) -> Option<()> {
        if bytes.0 as usize <= self.bytes {
            return Some(());
        }
        let all: usize = self.free.iter().map(ExactSizeIterator::len).sum();
        assert_eq!(all, self.bytes, "pools grow while all packets are back");
        // The old one goes first.
        *self = Self::default();
        let mut lines = Lines::if_possible(bytes)?;
        lines.touch();
        self.bytes = bytes.0.next_multiple_of(64) as usize;
        self.free.push(0..self.bytes);
        self.lines = Some(Arc::new(lines));
        Some(())
    }

    fn owns(&self, packet: &Packet) -> bool {
        let lines = self.lines.as_ref();
        lines.is_some_and(|lines| packet.is_of(lines)) && !packet.range().is_empty()
    }

    /// The first range that is large enough.
    fn take(&mut self, bytes: usize) -> Option<Range<usize>> {
        let at = self.free.iter().position(|range| range.len() >= bytes)?;
        let range = self.free[at].clone();
        let taken = range.start..range.start + bytes;
        self.free[at].start = taken.end;
        if taken.end == range.end {
            self.free.remove(at);
        }
        Some(taken)
    }

    fn put(&mut self, range: Range<usize>) {
        self.sent.retain(|&(start, _)| start != range.start);
        let at = self.free.partition_point(|other| other.start < range.start);
        let joins_next = self
            .free
            .get(at)
            .is_some_and(|next| next.start == range.end);
        let joins_last = at > 0 && self.free[at - 1].end == range.start;
        match (joins_last, joins_next) {
            (true, true) => self.free[at - 1].end = self.free.remove(at).end,
            (true, false) => self.free[at - 1].end = range.end,
            (false, true) => self.free[at].start = range.start,
            (false, false) => self.free.insert(at, range),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(exchange: u64) -> PacketPool {
        let mut pool = PacketPool::default();
        let staging = Staging {
            exchange: Bytes(exchange),
            ..Staging::default()
        };
        pool.allocate(0, &staging).unwrap();
        pool
    }

    const LANE: Lane = Lane::Exchange;

    #[test]
    fn a_task_takes_all_or_nothing_and_waits_for_what_is_out() {
        let mut pool = pool(256);
        assert!(pool.reserve(LANE, [(Dtype::F32, 16), (Dtype::F64, 9)].into_iter()));
        let (first, second) = (pool.blank(Dtype::F64, 9), pool.blank(Dtype::F32, 16));
        assert_eq!((first.len(), first.bytes(), second.bytes()), (9, 72, 64));
        // 64 bytes are left.
        assert!(!pool.reserve(LANE, [(Dtype::F32, 16), (Dtype::F32, 1)].into_iter()));
        pool.send(&first, 3);
        pool.send(&second, 2);
        assert_eq!(pool.holders(), [2, 3]);
        pool.put(second);
        assert_eq!(pool.holders(), [3]);
        assert!(pool.reserve(LANE, [(Dtype::F32, 16), (Dtype::F32, 1)].into_iter()));
        pool.return_rest();
        pool.put(first);
        assert_eq!(pool.holders(), Vec::<Rank>::new());
        // All of it in one piece again.
        assert!(pool.reserve(LANE, [(Dtype::I16, 128)].into_iter()));
        pool.return_rest();
    }

    #[test]
    fn packets_hold_what_is_written_wherever_they_lie() {
        let mut pool = pool(1024);
        let sizes = [(Dtype::F32, 3), (Dtype::I16, 40), (Dtype::F64, 5)];
        assert!(pool.reserve(LANE, sizes.into_iter()));
        let mut floats = pool.blank(Dtype::F32, 3);
        let mut wide = pool.blank(Dtype::F64, 5);
        let mut short = pool.blank(Dtype::I16, 40);
        floats.elements_mut().copy_from_slice(&[1.0f32, 2.0, 3.0]);
        wide.elements_mut().fill(0.5f64);
        short.elements_mut().fill(7i16);
        assert_eq!(floats.elements::<f32>(), [1.0, 2.0, 3.0]);
        assert_eq!(wide.elements::<f64>(), [0.5; 5]);
        assert_eq!(short.elements::<i16>(), [7; 40]);
        // One that stays out keeps the memory alive.
        drop(pool);
        assert_eq!(wide.elements::<f64>(), [0.5; 5]);
    }

    #[test]
    fn packets_of_nothing_take_nothing() {
        let mut pool = pool(0);
        assert!(pool.reserve(LANE, [(Dtype::F32, 0)].into_iter()));
        let none = pool.blank(Dtype::F32, 0);
        assert!(none.elements::<f32>().is_empty() && pool.owns(&none));
        pool.put(none);
    }

    #[test]
    #[should_panic(expected = "takes packets of 128 bytes from the exchange pool of 64")]
    fn a_task_that_never_fits_is_refused() {
        pool(64).reserve(LANE, [(Dtype::F32, 32)].into_iter());
    }

    #[test]
    #[should_panic(expected = "a packet returns to its own rank")]
    fn packets_of_others_are_refused() {
        let (mut one, mut other) = (pool(64), pool(64));
        assert!(one.reserve(LANE, [(Dtype::F32, 1)].into_iter()));
        other.put(one.blank(Dtype::F32, 1));
    }
}
