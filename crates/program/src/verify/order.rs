use crate::{Body, Lane};

/// A set of tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bits(Vec<u64>);

impl Bits {
    pub fn empty(length: usize) -> Self {
        Self(vec![0; length.div_ceil(64)])
    }

    pub fn full(length: usize) -> Self {
        let mut bits = Self::empty(length);
        (0..length).for_each(|bit| bits.insert(bit));
        bits
    }

    pub fn insert(&mut self, bit: usize) {
        self.0[bit / 64] |= 1 << (bit % 64);
    }

    pub fn has(&self, bit: usize) -> bool {
        self.0[bit / 64] >> (bit % 64) & 1 == 1
    }

    pub fn unite(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine |= theirs;
        }
    }

    pub fn intersect(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine &= theirs;
        }
    }

    pub fn lies_in(&self, other: &Self) -> bool {
        self.0
            .iter()
            .zip(&other.0)
            .all(|(mine, theirs)| mine & !theirs == 0)
    }
}

/// For each task those that have completed whenever it starts, whatever the timing; and at the end,
/// one row more, all tasks: what is read after the step.
///
/// A lane starts its tasks in their order, so what has completed at the start of one has completed
/// at the start of the next; in a serial lane the one has completed as well.
pub(super) fn completed_before(body: &Body) -> Vec<Bits> {
    let tasks = body.tasks.len();
    let mut rows: Vec<Bits> = Vec::with_capacity(tasks + 1);
    let mut last: [Option<usize>; Lane::ALL.len()] = [None; Lane::ALL.len()];
    for (id, task) in body.tasks.iter().enumerate() {
        let mut row = Bits::empty(tasks + 1);
        for before in &task.after {
            row.unite(&rows[before.0 as usize]);
            row.insert(before.0 as usize);
        }
        let lane = task.work.lane();
        if let Some(previous) = last[lane as usize].replace(id) {
            row.unite(&rows[previous]);
            if lane.is_serial() {
                row.insert(previous);
            }
        }
        rows.push(row);
    }
    let mut end = Bits::empty(tasks + 1);
    (0..tasks).for_each(|task| end.insert(task));
    rows.push(end);
    rows
}
