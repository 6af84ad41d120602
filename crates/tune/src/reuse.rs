//! What the caches still hold of a kernel's operands when a step comes to it.

use partita_oracle::rough_seconds;
use partita_program::{Body, Count, Task};
use partita_space::{Bytes, Seconds};
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Memory is looked at in pieces of so many bytes.
const PIECE: u64 = 1 << 14;

/// A buffer that caches still hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Held {
    pub buffer: u32,
    /// About how long ago it was touched.
    pub age: Seconds,
}

/// For each task the buffers that it touches and that a cache of so many bytes still holds in a step after
/// the first, those touched longest ago first.
///
/// The cache forgets what was not touched for longest: a piece of memory is held if no more than `cache`
/// bytes of other pieces were touched since. Buffers that share memory share what is held of it.
pub(crate) fn at_hand(body: &Body, cache: Bytes) -> Vec<Vec<Held>> {
    let touched: Vec<BTreeSet<u32>> = body.tasks.iter().map(buffers_of).collect();
    let pieces = |id: u32| {
        let buffer = &body.buffers[id as usize];
        let end = buffer.offset.0 + buffer.bytes().0;
        (buffer.offset.0 / PIECE) as usize..end.div_ceil(PIECE) as usize
    };
    let a_step: usize = touched.iter().flatten().map(|&id| pieces(id).len()).sum();
    let mut touches = Touches::new(body.arena.0.div_ceil(PIECE) as usize, 2 * a_step);
    let counts = body.tasks.iter().map(|task| Count::of(task, &body.buffers));
    let seconds: Vec<f64> = counts.map(|count| rough_seconds(&count).0).collect();
    let touch = |touches: &mut Touches, (buffers, seconds): (&BTreeSet<u32>, &f64)| {
        touches.clock += seconds;
        let all = buffers.iter().flat_map(|&id| pieces(id));
        all.for_each(|piece| touches.touch(piece));
    };
    // The first step only leaves what the next one finds.
    for task in touched.iter().zip(&seconds) {
        touch(&mut touches, task);
    }
    let held = touched.iter().zip(&seconds).map(|(buffers, seconds)| {
        let mut near: Vec<(u64, Held)> = Vec::new();
        for &id in buffers {
            let since: Vec<u64> = pieces(id).map(|piece| touches.since(piece)).collect();
            let is_held = |pieces: &&u64| **pieces * PIECE <= cache.0;
            if 2 * since.iter().filter(is_held).count() > since.len() {
                let stamps = pieces(id).map(|piece| touches.stamps[piece]);
                let held = Held {
                    buffer: id,
                    age: Seconds(touches.clock - stamps.fold(0.0, f64::max)),
                };
                near.push((since.iter().sum::<u64>() / since.len() as u64, held));
            }
        }
        near.sort_unstable_by_key(|&(since, held)| Reverse((since, held.buffer)));
        touch(&mut touches, (buffers, seconds));
        near.into_iter().map(|(_, held)| held).collect()
    });
    held.collect()
}

/// The buffers that a task touches.
pub(crate) fn buffers_of(task: &Task) -> BTreeSet<u32> {
    let accesses = task.accesses().into_iter();
    accesses.map(|(view, _)| view.buffer.0).collect()
}

/// When each piece was touched last, and how many others were since: a Fenwick tree over the touches that
/// are the last of their piece.
struct Touches {
    last: Vec<usize>,
    /// When that was by the clock.
    stamps: Vec<f64>,
    /// Seconds of all tasks so far.
    clock: f64,
    tree: Vec<u32>,
    now: usize,
    pieces: u64,
}

impl Touches {
    fn new(pieces: usize, most: usize) -> Self {
        Self {
            last: vec![0; pieces],
            stamps: vec![0.0; pieces],
            clock: 0.0,
            tree: vec![0; most + 1],
            now: 0,
            pieces: 0,
        }
    }

    fn touch(&mut self, piece: usize) {
        self.stamps[piece] = self.clock;
        let before = std::mem::replace(&mut self.last[piece], self.now + 1);
        if before == 0 {
            self.pieces += 1;
        } else {
            self.add(before, u32::MAX);
        }
        self.now += 1;
        self.add(self.now, 1);
    }

    /// Pieces touched after this one; of one that was never touched, without end.
    fn since(&self, piece: usize) -> u64 {
        match self.last[piece] {
            0 => u64::MAX / PIECE,
            last => self.pieces - self.up_to(last),
        }
    }

    /// `by` more, or with the largest number one less.
    fn add(&mut self, mut at: usize, by: u32) {
        while at < self.tree.len() {
            self.tree[at] = self.tree[at].wrapping_add(by);
            at += at & at.wrapping_neg();
        }
    }

    fn up_to(&self, mut at: usize) -> u64 {
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
    fn held_is_what_was_touched_within_the_size_of_the_cache() {
        let body = copies(&[[0, 1], [1, 2], [2, 3], [0, 4], [5, 1]]);
        let of = |buffers: u64| -> Vec<Vec<u32>> {
            let held = at_hand(&body, Bytes(buffers << 16)).into_iter();
            held.map(|all| all.iter().map(|held| held.buffer).collect())
                .collect()
        };
        let none = vec![];
        assert_eq!(of(0), vec![none.clone(); 5]);
        // What was touched last; buffer 5 is the memory of buffer 0.
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
    fn pieces_touched_since_are_those_of_a_list_in_order_of_touch() {
        let mut touches = Touches::new(40, 2000);
        let mut list: Vec<usize> = Vec::new();
        let mut stream = SplitMix(1);
        for _ in 0..2000 {
            let piece = stream.between(0, 39);
            let expected = list.iter().position(|&other| other == piece);
            let since = touches.since(piece);
            match expected {
                Some(at) => assert_eq!(since, at as u64),
                None => assert!(since > 2000),
            }
            list.retain(|&other| other != piece);
            list.insert(0, piece);
            touches.touch(piece);
        }
    }

    #[test]
    fn the_age_of_what_is_held_is_the_time_of_the_tasks_since() {
        let body = copies(&[[0, 1], [1, 2], [2, 3], [0, 4]]);
        let a_copy = rough_seconds(&Count::of(&body.tasks[0], &body.buffers)).0;
        let held = at_hand(&body, Bytes(5 << 16));
        let copies_ago = |held: &Held| (held.buffer, (held.age.0 / a_copy).round());
        let fourth: Vec<(u32, f64)> = held[3].iter().map(copies_ago).collect();
        assert_eq!(fourth, [(4, 3.0), (0, 2.0)]);
        let second: Vec<(u32, f64)> = held[1].iter().map(copies_ago).collect();
        assert_eq!(second, [(2, 2.0), (1, 0.0)]);
    }
}
