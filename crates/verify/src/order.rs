//! The happens-before order of the tasks of a body.

use partita_program::{Body, Lane, TaskSet};

/// For each task, the tasks that have completed when it starts, under any timing. The last entry is for the reader of the
/// outputs and has all tasks.
///
/// A lane starts its tasks in order, so all that has completed at the start of one has completed at the start of
/// the next; in a serial lane the task itself as well. So the completed tasks of a serial lane are a prefix.
pub(crate) struct Order {
    positions: Vec<LanePosition>,
    /// For each task, the number of completed tasks of each serial lane.
    first: Vec<[u32; LANES]>,
    /// For each task, the completed tasks of other lanes.
    others: Vec<TaskSet>,
}

const LANES: usize = Lane::ALL.len();

/// Position of a task.
#[derive(Clone, Copy)]
enum LanePosition {
    /// In a serial lane, at this place.
    Serial(usize, u32),
    /// Among the tasks of all other lanes, at this place.
    Other(usize),
}

/// The reader of the outputs comes after all tasks.
const END: LanePosition = LanePosition::Serial(Lane::Compute as usize, u32::MAX - 1);

impl Order {
    pub fn new(body: &Body) -> Self {
        let (mut counts, mut others) = ([0; LANES], 0);
        let position = |task: &partita_program::Task| {
            let lane = task.work.lane();
            if lane.is_serial() {
                counts[lane as usize] += 1;
                return LanePosition::Serial(lane as usize, counts[lane as usize] - 1);
            }
            others += 1;
            LanePosition::Other(others - 1)
        };
        let mut positions: Vec<LanePosition> = body.tasks.iter().map(position).collect();
        positions.push(END);
        let mut order = Self {
            first: vec![[0; LANES]; positions.len()],
            others: vec![TaskSet::default(); positions.len()],
            positions,
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

    /// Adds all that has completed when an earlier task starts.
    fn follow(&mut self, id: usize, before: usize) {
        let (earlier, later) = self.first.split_at_mut(id);
        raise(&mut later[0], &earlier[before]);
        let (earlier, later) = self.others.split_at_mut(id);
        later[0].join(&earlier[before]);
    }

    fn insert(&mut self, id: usize, done: usize) {
        match self.positions[done] {
            LanePosition::Serial(lane, at) => {
                let first = &mut self.first[id][lane];
                *first = (*first).max(at + 1);
            }
            LanePosition::Other(at) => self.others[id].insert(at),
        }
    }

    /// Whether a task has completed whenever another starts.
    pub fn is_before(&self, done: usize, id: usize) -> bool {
        match self.positions[done] {
            LanePosition::Serial(lane, at) => at < self.first[id][lane],
            LanePosition::Other(at) => self.others[id].has(at),
        }
    }

    /// Whether tasks of one lane complete in their order, and which lane it is.
    pub fn serial_lane(&self, id: usize) -> Option<usize> {
        match self.positions[id] {
            LanePosition::Serial(lane, _) => Some(lane),
            LanePosition::Other(_) => None,
        }
    }

    /// The first and the last of some tasks, given in their order. The first of each lane starts before the
    /// others there, and the last of a serial lane completes after them; in the other lanes any may complete
    /// last.
    pub fn ends(&self, body: &Body, tasks: impl DoubleEndedIterator<Item = usize> + Clone) -> Ends {
        let mut ends = Ends::default();
        let lane = |id: usize| {
            body.tasks
                .get(id)
                .map_or(LANES, |task| task.work.lane() as usize)
        };
        let mut known = [false; LANES + 1];
        for id in tasks.clone() {
            if !std::mem::replace(&mut known[lane(id)], true) {
                ends.first.push(id);
            }
        }
        let mut known = [false; LANES + 1];
        for id in tasks.rev() {
            let is_serial = self.serial_lane(id).is_some();
            let is_known = is_serial && std::mem::replace(&mut known[lane(id)], true);
            if !is_known && ends.last.last() != Some(&id) {
                ends.last.push(id);
            }
        }
        ends
    }

    /// Whether all tasks with these ends have completed whenever one of the others starts.
    pub fn all_before(&self, done: &Ends, others: &Ends) -> bool {
        let mut pairs = done.last.iter().flat_map(|&done| {
            let starts = others.first.iter();
            starts.map(move |&id| (done, id))
        });
        pairs.all(|(done, id)| self.is_before(done, id))
    }
}

/// Of the tasks that touch a buffer those that bound its use.
#[derive(Default)]
pub(crate) struct Ends {
    first: Vec<usize>,
    last: Vec<usize>,
}

fn raise(mine: &mut [u32; LANES], theirs: &[u32; LANES]) {
    for (mine, theirs) in mine.iter_mut().zip(theirs) {
        *mine = (*mine).max(*theirs);
    }
}
