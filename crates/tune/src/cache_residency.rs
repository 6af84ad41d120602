//! Cache residency: which operands of a kernel are still in the caches when a step reaches it.

use partita_oracle::rough_seconds;
use partita_program::{Body, Count, Task};
use partita_space::{Bytes, Seconds};
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Granularity in bytes.
const BLOCK: u64 = 1 << 14;

/// A buffer that is still in the caches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Resident {
    pub buffer: u32,
    /// Approximate time since its last access.
    pub age: Seconds,
}

/// For each task, the buffers that it accesses and that are in a cache of this many bytes, in a step after the
/// first; least recently used first.
///
/// The cache replaces the least recently used (LRU): a block is resident if no more than `cache` bytes of other
/// blocks were accessed since. Buffers that share memory share its residency.
pub(crate) fn resident_operands(body: &Body, cache: Bytes) -> Vec<Vec<Resident>> {
    let touched: Vec<BTreeSet<u32>> = body.tasks.iter().map(buffers_of).collect();
    let blocks = |id: u32| {
        let buffer = &body.buffers[id as usize];
        let end = buffer.offset.0 + buffer.bytes().0;
        (buffer.offset.0 / BLOCK) as usize..end.div_ceil(BLOCK) as usize
    };
    let a_step: usize = touched.iter().flatten().map(|&id| blocks(id).len()).sum();
    let mut stack = LruStack::new(body.arena.0.div_ceil(BLOCK) as usize, 2 * a_step);
    let counts = body.tasks.iter().map(|task| Count::of(task, &body.buffers));
    let seconds: Vec<f64> = counts.map(|count| rough_seconds(&count).0).collect();
    let touch = |stack: &mut LruStack, (buffers, seconds): (&BTreeSet<u32>, &f64)| {
        stack.clock += seconds;
        let all = buffers.iter().flat_map(|&id| blocks(id));
        all.for_each(|block| stack.touch(block));
    };
    // The first step only fills the caches.
    for task in touched.iter().zip(&seconds) {
        touch(&mut stack, task);
    }
    let resident = touched.iter().zip(&seconds).map(|(buffers, seconds)| {
        let mut found: Vec<(u64, Resident)> = Vec::new();
        for &id in buffers {
            let depth: Vec<u64> = blocks(id).map(|block| stack.depth(block)).collect();
            let is_resident = |blocks: &&u64| **blocks * BLOCK <= cache.0;
            if 2 * depth.iter().filter(is_resident).count() > depth.len() {
                let times = blocks(id).map(|block| stack.times[block]);
                let resident = Resident {
                    buffer: id,
                    age: Seconds(stack.clock - times.fold(0.0, f64::max)),
                };
                found.push((depth.iter().sum::<u64>() / depth.len() as u64, resident));
            }
        }
        found.sort_unstable_by_key(|&(depth, resident)| Reverse((depth, resident.buffer)));
        touch(&mut stack, (buffers, seconds));
        found.into_iter().map(|(_, resident)| resident).collect()
    });
    resident.collect()
}

/// The buffers that a task accesses.
pub(crate) fn buffers_of(task: &Task) -> BTreeSet<u32> {
    let accesses = task.accesses().into_iter();
    accesses.map(|(view, _)| view.buffer.0).collect()
}

/// The last access of each block and its stack distance, the number of other blocks accessed since: a Fenwick
/// tree over the accesses that are the last of their block.
///
/// Source: Mattson, Gecsei, Slutz and Traiger, Evaluation techniques for storage hierarchies (1970).
struct LruStack {
    last: Vec<usize>,
    /// Time of the last access of each block.
    times: Vec<f64>,
    /// Time of all tasks so far.
    clock: f64,
    tree: Vec<u32>,
    now: usize,
    blocks: u64,
}

impl LruStack {
    fn new(blocks: usize, most: usize) -> Self {
        Self {
            last: vec![0; blocks],
            times: vec![0.0; blocks],
            clock: 0.0,
            tree: vec![0; most + 1],
            now: 0,
            blocks: 0,
        }
    }

    fn touch(&mut self, block: usize) {
        self.times[block] = self.clock;
        let before = std::mem::replace(&mut self.last[block], self.now + 1);
        if before == 0 {
            self.blocks += 1;
        } else {
            self.add(before, u32::MAX);
        }
        self.now += 1;
        self.add(self.now, 1);
    }

    /// Number of other blocks accessed after this one; huge if it never was.
    fn depth(&self, block: usize) -> u64 {
        match self.last[block] {
            0 => u64::MAX / BLOCK,
            last => self.blocks - self.prefix_sum(last),
        }
    }

    /// Adds `by`; `u32::MAX` subtracts 1.
    fn add(&mut self, mut at: usize, by: u32) {
        while at < self.tree.len() {
            self.tree[at] = self.tree[at].wrapping_add(by);
            at += at & at.wrapping_neg();
        }
    }

    fn prefix_sum(&self, mut at: usize) -> u64 {
        let mut sum = 0;
        while at > 0 {
            sum += u64::from(self.tree[at]);
            at &= at - 1;
        }
        sum
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use partita_program::{
        Algorithm, Buffer, BufferId, Dtype, Kernel, Origin, Phase, Role, Task, Work,
    };
    use partita_space::random::SplitMix;

    /// Copies from one buffer of 64 KiB to another; the last buffer lies where the first does.
    pub(crate) fn copies(pairs: &[[u32; 2]]) -> Body {
        let buffer = |index: u64| Buffer {
            name: format!("b{index}"),
            role: Role::Activation,
            dtype: Dtype::F32,
            dims: [1, 1, 1, 1, 1 << 14],
            tensor: None,
            offset: Bytes((index % 5) << 16),
        };
        let buffers: Vec<Buffer> = (0..6).map(buffer).collect();
        let view = |index: u32| buffers[index as usize].view(BufferId(index));
        let task = |&[source, target]: &[u32; 2]| Task {
            origin: Origin {
                layer: "copy".to_owned(),
                phase: Phase::Forward,
                turn: 0,
            },
            after: Vec::new(),
            work: Work::Compute {
                kernel: Kernel::Copy {
                    source: view(source),
                    target: view(target),
                    accumulate: false,
                },
                algorithm: Algorithm("any".to_owned()),
                workspace: None,
            },
        };
        let tasks = pairs.iter().map(task).collect();
        Body {
            buffers,
            tasks,
            arena: Bytes(5 << 16),
            ..Body::default()
        }
    }

    #[test]
    fn resident_is_what_was_accessed_within_the_size_of_the_cache() {
        let body = copies(&[[0, 1], [1, 2], [2, 3], [0, 4], [5, 1]]);
        let of = |buffers: u64| -> Vec<Vec<u32>> {
            let resident = resident_operands(&body, Bytes(buffers << 16)).into_iter();
            resident
                .map(|all| all.iter().map(|resident| resident.buffer).collect())
                .collect()
        };
        let none = vec![];
        assert_eq!(of(0), vec![none.clone(); 5]);
        // The last access; buffer 5 shares the memory of buffer 0.
        assert_eq!(
            of(1),
            [vec![0], vec![1], vec![2], none.clone(), none.clone()]
        );
        // The fifth finds 5 behind 4 only.
        assert_eq!(of(2), [vec![1, 0], vec![1], vec![2], none, vec![5]]);
        // The fourth finds 0 behind 1, 2 and 3.
        assert_eq!(of(4), [vec![1, 0], vec![1], vec![2], vec![0], vec![5]]);
        // All of the arena.
        let all = [vec![1, 0], vec![2, 1], vec![3, 2], vec![4, 0], vec![1, 5]];
        assert_eq!(of(5), all);
    }

    #[test]
    fn depths_are_positions_in_a_list_in_order_of_access() {
        let mut stack = LruStack::new(40, 2000);
        let mut list: Vec<usize> = Vec::new();
        let mut stream = SplitMix(1);
        for _ in 0..2000 {
            let block = stream.between(0, 39);
            let expected = list.iter().position(|&other| other == block);
            let depth = stack.depth(block);
            match expected {
                Some(at) => assert_eq!(depth, at as u64),
                None => assert!(depth > 2000),
            }
            list.retain(|&other| other != block);
            list.insert(0, block);
            stack.touch(block);
        }
    }

    #[test]
    fn the_age_of_a_resident_buffer_is_the_time_of_the_tasks_since() {
        let body = copies(&[[0, 1], [1, 2], [2, 3], [0, 4]]);
        let a_copy = rough_seconds(&Count::of(&body.tasks[0], &body.buffers)).0;
        let resident = resident_operands(&body, Bytes(5 << 16));
        let copies_ago = |resident: &Resident| (resident.buffer, (resident.age.0 / a_copy).round());
        let fourth: Vec<(u32, f64)> = resident[3].iter().map(copies_ago).collect();
        assert_eq!(fourth, [(4, 3.0), (0, 2.0)]);
        let second: Vec<(u32, f64)> = resident[1].iter().map(copies_ago).collect();
        assert_eq!(second, [(2, 2.0), (1, 0.0)]);
    }
}
