//! Packet pools of a rank, allocated before its first step.

use super::packet::Packet;
use crate::RunError;
use crate::aligned_memory::AlignedMemory;
use partita_program::{Dtype, Lane, PacketSize, Staging, packet_bytes};
use partita_space::{Bytes, Rank};
use std::ops::Range;
use std::sync::Arc;

/// The packet pools for exchanges and for collectives.
///
/// A task reserves all packets that it needs when it starts, or none. Packets return one by one, and free
/// ranges are merged.
#[derive(Default)]
pub struct PacketPool {
    exchange: LanePool,
    collective: LanePool,
    /// Reserved for the task that starts.
    reserved: Vec<Packet>,
    returns: u64,
}

#[derive(Default)]
struct LanePool {
    memory: Option<Arc<AlignedMemory>>,
    bytes: usize,
    /// Ascending, disjoint and not adjacent.
    free: Vec<Range<usize>>,
    /// Start of each packet that has been sent, and its receiver.
    sent: Vec<(usize, Rank)>,
}

impl PacketPool {
    /// Grows the pools to these sizes and touches every page. All packets must have been returned.
    ///
    /// Errors: out of memory.
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

    /// Reserves packets of these sizes for a task of a lane; reserves none and returns false if not all are
    /// free. Panics if they exceed the whole pool.
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
        let memory = pool.memory.clone();
        let packets = taken.into_iter().zip(memory.iter().cycle());
        let packets = packets.map(|(range, memory)| {
            // SAFETY: the range is not in the list of free ones until the packet returns.
            unsafe { Packet::new(Arc::clone(memory), range) }
        });
        self.reserved.extend(packets);
        true
    }

    /// One of the reserved packets, for that many elements; the contents are unspecified.
    pub fn blank(&mut self, dtype: Dtype, elements: usize) -> Packet {
        let fits = |(_, packet): &(usize, &Packet)| packet.has_room(dtype, elements);
        let candidates = self.reserved.iter().enumerate().filter(fits);
        let best = candidates.min_by_key(|(_, packet)| packet.range().len());
        let at = best.map(|(at, _)| at);
        let mut packet = match at {
            Some(at) if elements > 0 => self.reserved.swap_remove(at),
            Some(_) | None => {
                assert_eq!(
                    elements, 0,
                    "a task takes only packets that it has reserved"
                );
                Packet::empty()
            }
        };
        packet.set_layout(dtype, elements);
        packet
    }

    /// Returns the reserved packets that were not used.
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

    /// Returns a packet to its pool. Panics if it is of another rank.
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

    /// Number of packets returned so far.
    pub fn returns(&self) -> u64 {
        self.returns
    }

    /// Records the receiver of a packet of these pools.
    pub fn send(&mut self, packet: &Packet, to: Rank) {
        for pool in [&mut self.exchange, &mut self.collective] {
            if pool.owns(packet) {
                pool.sent.push((packet.range().start, to));
            }
        }
    }

    /// Ranks that hold packets of these pools.
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
        assert_eq!(
            all, self.bytes,
            "a pool grows only when all packets are back"
        );
        // Frees the old memory first.
        *self = Self::default();
        let mut memory = AlignedMemory::try_allocate(bytes)?;
        memory.touch();
        self.bytes = bytes.0.next_multiple_of(64) as usize;
        self.free.push(0..self.bytes);
        self.memory = Some(Arc::new(memory));
        Some(())
    }

    fn owns(&self, packet: &Packet) -> bool {
        let memory = self.memory.as_ref();
        memory.is_some_and(|memory| packet.is_of(memory)) && !packet.range().is_empty()
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
        if joins_last && joins_next {
            self.free[at - 1].end = self.free.remove(at).end;
        } else if joins_last {
            self.free[at - 1].end = range.end;
        } else if joins_next {
            self.free[at].start = range.start;
        } else {
            self.free.insert(at, range);
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
    fn a_task_reserves_all_its_packets_or_none() {
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
    fn packets_hold_what_is_written() {
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
        // A packet keeps the memory alive.
        drop(pool);
        assert_eq!(wide.elements::<f64>(), [0.5; 5]);
    }

    #[test]
    fn empty_packets_take_no_memory() {
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
