use crate::{Body, Lane};

/// For each task those that have completed whenever it starts, whatever the timing; and at the end, one
/// more, all tasks: what is read after the step.
///
/// A lane starts its tasks in their order, so what has completed at the start of one has completed
/// at the start of the next; in a serial lane the one has completed as well. So of a serial lane always
/// a number of first tasks has completed; of the others it may be any.
pub(super) struct Order {
    seats: Vec<Seat>,
    /// Per task, how many of each serial lane have completed.
    first: Vec<[u32; LANES]>,
    /// Per task, which others have, `words` each.
    others: Vec<u64>,
    words: usize,
}

const LANES: usize = Lane::ALL.len();

/// Where a task stands.
#[derive(Clone, Copy)]
enum Seat {
    /// In a serial lane, at this place.
    Serial(usize, u32),
    /// Among the tasks of all other lanes, at this place.
    Other(usize),
}

/// The reader after the step stands behind all tasks, and never completes.
const END: Seat = Seat::Serial(Lane::Compute as usize, u32::MAX - 1);

impl Order {
    pub fn new(body: &Body) -> Self {
        let (mut counts, mut others) = ([0; LANES], 0);
        let seat = |task: &crate::Task| {
            let lane = task.work.lane();
            if lane.is_serial() {
                counts[lane as usize] += 1;
                return Seat::Serial(lane as usize, counts[lane as usize] - 1);
            }
            others += 1;
            Seat::Other(others - 1)
        };
        let mut seats: Vec<Seat> = body.tasks.iter().map(seat).collect();
        seats.push(END);
        let words = others.div_ceil(64);
        let mut order = Self {
            first: vec![[0; LANES]; seats.len()],
            others: vec![0; seats.len() * words],
            seats,
            words,
        };
        let mut last: [Option<usize>; LANES] = [None; LANES];
        for (id, task) in body.tasks.iter().enumerate() {
            for before in &task.after {
                order.follow(id, before.0 as usize);
                order.insert(id, before.0 as usize);
            }
            let lane = task.work.lane();
            if let Some(previous) = last[lane as usize].replace(id) {
                order.follow(id, previous);
                if lane.is_serial() {
                    order.insert(id, previous);
                }
            }
        }
        (0..body.tasks.len()).for_each(|task| order.insert(body.tasks.len(), task));
        order
    }

    /// Takes over what has completed when a task before starts.
    fn follow(&mut self, id: usize, before: usize) {
        let (earlier, later) = self.first.split_at_mut(id);
        raise(&mut later[0], &earlier[before]);
        let (earlier, later) = self.others.split_at_mut(id * self.words);
        let row = &earlier[before * self.words..(before + 1) * self.words];
        later
            .iter_mut()
            .zip(row)
            .for_each(|(mine, theirs)| *mine |= theirs);
    }

    fn insert(&mut self, id: usize, done: usize) {
        match self.seats[done] {
            Seat::Serial(lane, at) => {
                let first = &mut self.first[id][lane];
                *first = (*first).max(at + 1);
            }
            Seat::Other(at) => self.others[id * self.words + at / 64] |= 1 << (at % 64),
        }
    }

    /// Whether a task has completed whenever another starts.
    pub fn is_before(&self, done: usize, id: usize) -> bool {
        match self.seats[done] {
            Seat::Serial(lane, at) => at < self.first[id][lane],
            Seat::Other(at) => self.others[id * self.words + at / 64] >> (at % 64) & 1 == 1,
        }
    }

    /// Whether tasks of one lane complete in their order, and which lane it is.
    pub fn serial_lane(&self, id: usize) -> Option<usize> {
        match self.seats[id] {
            Seat::Serial(lane, _) => Some(lane),
            Seat::Other(_) => None,
        }
    }

    /// No task.
    pub fn none(&self) -> Done {
        Done {
            first: [0; LANES],
            others: vec![0; self.words],
        }
    }

    /// All tasks.
    pub fn all(&self) -> Done {
        Done {
            first: [u32::MAX; LANES],
            others: vec![u64::MAX; self.words],
        }
    }

    /// Adds a task, and with one of a serial lane those before it there.
    pub fn add(&self, done: &mut Done, id: usize) {
        match self.seats[id] {
            Seat::Serial(lane, at) => done.first[lane] = done.first[lane].max(at + 1),
            Seat::Other(at) => done.others[at / 64] |= 1 << (at % 64),
        }
    }

    /// Keeps what has completed when a task starts.
    pub fn keep_before(&self, done: &mut Done, id: usize) {
        for (mine, theirs) in done.first.iter_mut().zip(&self.first[id]) {
            *mine = (*mine).min(*theirs);
        }
        let row = &self.others[id * self.words..(id + 1) * self.words];
        done.others
            .iter_mut()
            .zip(row)
            .for_each(|(mine, theirs)| *mine &= theirs);
    }
}

fn raise(mine: &mut [u32; LANES], theirs: &[u32; LANES]) {
    for (mine, theirs) in mine.iter_mut().zip(theirs) {
        *mine = (*mine).max(*theirs);
    }
}

/// A set of tasks; with one of a serial lane it holds all before it there.
pub(super) struct Done {
    first: [u32; LANES],
    others: Vec<u64>,
}

impl Done {
    pub fn lies_in(&self, other: &Self) -> bool {
        let mut first = self.first.iter().zip(&other.first);
        let mut others = self.others.iter().zip(&other.others);
        first.all(|(mine, theirs)| mine <= theirs)
            && others.all(|(mine, theirs)| mine & !theirs == 0)
    }
}
