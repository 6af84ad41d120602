//! Allocated ranges of memory over time.

/// Ranges of memory with the times at which they are allocated, in a segment tree over time.
///
/// A node of the tree stands for an interval of times, and keeps as merged ranges what is allocated during all
/// of it, and what is allocated during a part of it. So a search steps over many adjacent buffers at once.
pub(crate) struct Timeline {
    leaves: usize,
    through: Vec<Taken>,
    within: Vec<Taken>,
}

impl Timeline {
    /// For times below `count`.
    pub fn new(count: usize) -> Self {
        let leaves = count.max(1).next_power_of_two();
        let nodes = || std::iter::repeat_with(Taken::default).take(2 * leaves);
        Self {
            leaves,
            through: nodes().collect(),
            within: nodes().collect(),
        }
    }

    /// Allocates memory from `start` to `end` from the first to the last time.
    pub fn take(&mut self, (first, last): (usize, usize), start: u64, end: u64) {
        for &node in self.cover(first, last).all() {
            self.through[node].add(start, end);
        }
        for &node in self.above(first, last).all() {
            self.within[node].add(start, end);
        }
    }

    /// The lowest offset, at least `floor`, at which `size` bytes are free from the first to the last time.
    pub fn lowest(&self, (first, last): (usize, usize), floor: u64, size: u64) -> u64 {
        let (cover, above) = (self.cover(first, last), self.above(first, last));
        let inside = cover.all().iter().map(|&node| &self.within[node]);
        let own = cover.all().iter().map(|&node| &self.through[node]);
        let around = above.all().iter().map(|&node| &self.through[node]);
        let mut all = Vec::with_capacity(2 * cover.count + above.count);
        let sets = inside.chain(own).chain(around);
        all.extend(sets.filter(|taken| !taken.0.is_empty()));
        let mut offset = floor;
        // Number of consecutive sets in which the offset is free.
        let mut free = 0;
        for taken in all.iter().cycle() {
            while let Some(end) = taken.end(offset, size) {
                offset = end;
                free = 0;
            }
            free += 1;
            if free >= all.len() {
                break;
            }
        }
        offset
    }

    /// The nodes whose intervals partition these times.
    fn cover(&self, first: usize, last: usize) -> Nodes {
        let (mut low, mut high) = (first + self.leaves, last + self.leaves + 1);
        let mut nodes = Nodes::default();
        while low < high {
            if low % 2 == 1 {
                nodes.push(low);
                low += 1;
            }
            if high % 2 == 1 {
                high -= 1;
                nodes.push(high);
            }
            (low, high) = (low / 2, high / 2);
        }
        nodes
    }

    /// The ancestors of the first and the last time.
    fn above(&self, first: usize, last: usize) -> Nodes {
        let (mut low, mut high) = ((first + self.leaves) / 2, (last + self.leaves) / 2);
        let mut nodes = Nodes::default();
        while high > 0 {
            nodes.push(high);
            if low != high {
                nodes.push(low);
            }
            (low, high) = (low / 2, high / 2);
        }
        nodes
    }
}

/// Upper bound on the nodes of a cover, or above one: two of each level. Tasks have numbers of 32 bits.
const NODES_MAX: usize = 2 * (u32::BITS as usize + 2);

/// A few nodes of the tree, without an allocation, since a buffer asks for them four times.
struct Nodes {
    nodes: [usize; NODES_MAX],
    count: usize,
}

impl Default for Nodes {
    fn default() -> Self {
        Self {
            nodes: [0; NODES_MAX],
            count: 0,
        }
    }
}

impl Nodes {
    fn push(&mut self, node: usize) {
        self.nodes[self.count] = node;
        self.count += 1;
    }

    fn all(&self) -> &[usize] {
        &self.nodes[..self.count]
    }
}

/// Disjoint, not adjacent ranges with their ends, ascending. They are few, as adjacent buffers are merged.
#[derive(Default)]
struct Taken(Vec<(u64, u64)>);

impl Taken {
    fn add(&mut self, start: u64, end: u64) {
        if start == end {
            return;
        }
        let first = self.0.partition_point(|&(_, to)| to < start);
        let last = self.0.partition_point(|&(from, _)| from <= end);
        if first == last {
            return self.0.insert(first, (start, end));
        }
        let merged = (start.min(self.0[first].0), end.max(self.0[last - 1].1));
        self.0[first] = merged;
        self.0.drain(first + 1..last);
    }

    /// The end of the last range that overlaps `size` bytes from an offset on.
    fn end(&self, offset: u64, size: u64) -> Option<u64> {
        let last = self.0.partition_point(|&(from, _)| from < offset + size);
        let (_, end) = self.0[..last].last()?;
        (*end > offset).then_some(*end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_space::random::SplitMix;

    #[test]
    fn the_lowest_gap_is_that_among_all_ranges_of_the_time() {
        let mut stream = SplitMix(3);
        let mut draw = |most: u64| stream.bits() % most;
        for case in 0..200 {
            let count = 1 + draw(70) as usize;
            let mut timeline = Timeline::new(count);
            let mut taken: Vec<(usize, usize, u64, u64)> = Vec::new();
            for _ in 0..60 {
                let first = draw(count as u64) as usize;
                let last = (first + draw(1 + case) as usize).min(count - 1);
                let size = draw(9);
                let start = timeline.lowest((first, last), 10, size);
                let mut fits = taken.clone();
                fits.retain(|of| of.0 <= last && first <= of.1);
                assert!(fits.iter().all(|of| start + size <= of.2 || of.3 <= start));
                for lower in 10..start {
                    let clash = |of: &(usize, usize, u64, u64)| of.2 < lower + size && lower < of.3;
                    assert!(fits.iter().any(clash), "{lower} is free, not {start}");
                }
                timeline.take((first, last), start, start + size);
                taken.push((first, last, start, start + size));
            }
        }
    }

    /// Adjacent buffers are merged to one range.
    #[test]
    fn what_lies_side_by_side_is_one_range() {
        let mut timeline = Timeline::new(1000);
        for at in 0..500u64 {
            let times = (at as usize, 999 - at as usize);
            assert_eq!(timeline.lowest(times, 0, 64), 64 * at);
            timeline.take(times, 64 * at, 64 * at + 64);
        }
        assert!(
            timeline
                .through
                .iter()
                .chain(&timeline.within)
                .all(|taken| taken.0.len() <= 1)
        );
    }
}
