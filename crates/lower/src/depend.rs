//! Dependencies of tasks, derived from their reads and writes in list order.

use partita_program::{Access, Body, Kernel, Lane, Task, TaskId, TaskSet, View};
use partita_space::Region;
use std::collections::HashMap;
use std::ops::Index;

/// The accesses of each task, computed once since they are derived from descriptors.
pub(crate) type Accesses = Vec<Vec<(View, Access)>>;

/// The accesses of each task of a body.
pub(crate) fn accesses(body: &Body) -> Accesses {
    body.tasks.iter().map(Task::accesses).collect()
}

/// Sets `after` of every task: conflicting accesses and the pairs of `extra` are ordered as in the list,
/// without redundant dependencies. A reader of packed weights counts as a reader of the original weights, so
/// that they are not updated before it.
pub(crate) fn depend(body: &mut Body, accesses: &Accesses, extra: &mut [(usize, usize)]) {
    let mut buffers: Vec<Touched> = Vec::new();
    buffers.resize_with(body.buffers.len(), Touched::default);
    let packed = packed_weights(body);
    extra.sort_unstable_by_key(|&(_, after)| after);
    let mut extra = extra.iter().peekable();
    let mut reduction = Reduction::new(body);
    // Kept between tasks, of which there are many.
    let (mut own, mut needs) = (Vec::new(), Vec::new());
    for (id, all) in accesses.iter().enumerate() {
        join(all, &mut own);
        for (buffer, region, writes) in &own {
            let conflicts = buffers[*buffer].conflicts(region, *writes);
            needs.extend(conflicts.filter(|&other| !ordered_by_lane(body, other, id)));
        }
        for (buffer, region, writes) in own.drain(..) {
            if let Some(&(weights, region)) = packed.get(&buffer) {
                buffers[weights].add(id, region, false);
            }
            buffers[buffer].add(id, region, writes);
        }
        let before = |&&(_, after): &&(usize, usize)| after == id;
        needs.extend(std::iter::from_fn(|| extra.next_if(before)).map(|&(before, _)| before));
        body.tasks[id].after = reduction.reduced(body, id, &mut needs);
        needs.clear();
    }
}

/// Adds to an empty list what a task accesses: buffer, region, and whether it writes. Of views that border on each other, as those of the members of
/// a large group, all are one.
fn join(own: &[(View, Access)], joined: &mut Vec<(usize, Region, bool)>) {
    for (view, access) in own {
        let (buffer, writes) = (view.buffer.0 as usize, *access != Access::Read);
        let mut region = view.region();
        if region.is_empty() {
            continue;
        }
        let beside = |last: &(usize, Region, bool), region: &Region| {
            let is_alike = (last.0, last.2) == (buffer, writes);
            is_alike.then(|| together(&last.1, region)).flatten()
        };
        while let Some(union) = joined.last().and_then(|last| beside(last, &region)) {
            region = union;
            joined.pop();
        }
        joined.push((buffer, region, writes));
    }
}

/// The union of two regions that border on each other along one dim and are equal along the others.
fn together(a: &Region, b: &Region) -> Option<Region> {
    let mut differing = (0..5).filter(|&dim| a.0[dim] != b.0[dim]);
    let (dim, None) = (differing.next()?, differing.next()) else {
        return None;
    };
    let borders = a.0[dim].end == b.0[dim].start || b.0[dim].end == a.0[dim].start;
    borders.then(|| {
        let mut union = *a;
        union.0[dim] = a.0[dim].hull(&b.0[dim]);
        union
    })
}

/// For each buffer of packed weights the original weights.
fn packed_weights(body: &Body) -> HashMap<usize, (usize, Region)> {
    let kernels = body.tasks.iter().flat_map(|task| task.work.kernels());
    let mut packings = HashMap::new();
    for kernel in kernels {
        if let Kernel::PackWeights { w, packed, .. } = kernel {
            packings.insert(packed.buffer.0 as usize, (w.buffer.0 as usize, w.region()));
        }
    }
    packings
}

/// Accesses to a buffer that later tasks may conflict with. A write replaces the accesses that it covers, as
/// later tasks are ordered after those through it.
#[derive(Default)]
struct Touched {
    reads: Vec<(usize, Region)>,
    writes: Vec<(usize, Region)>,
}

impl Touched {
    fn conflicts(&self, region: &Region, writes: bool) -> impl Iterator<Item = usize> {
        let reads = if writes { &self.reads[..] } else { &[] };
        let all = reads.iter().chain(&self.writes);
        let met = all.filter(|(_, other)| region.touches(other));
        met.map(|&(task, _)| task)
    }

    fn add(&mut self, task: usize, region: Region, writes: bool) {
        if region.is_empty() {
            return;
        }
        if !writes {
            return self.reads.push((task, region));
        }
        for known in [&mut self.reads, &mut self.writes] {
            known.retain(|(_, other)| !region.holds(other));
        }
        self.writes.push((task, region));
    }
}

/// Transitive reduction, task by task: keeps the dependencies that neither others nor serial lanes imply.
struct Reduction {
    done: Done,
    last_serial: [Option<usize>; LANES],
}

impl Reduction {
    fn new(body: &Body) -> Self {
        Self {
            done: Done::new(body),
            last_serial: [None; LANES],
        }
    }

    /// The dependencies of a task: what is kept of those that it needs. Tasks come in their order.
    fn reduced(&mut self, body: &Body, id: usize, needs: &mut Vec<usize>) -> Vec<TaskId> {
        let done = &mut self.done;
        let lane = body.tasks[id].work.lane();
        if lane.is_serial()
            && let Some(previous) = self.last_serial[lane as usize].replace(id)
        {
            done.include(id, previous);
        }
        needs.sort_unstable_by(|a, b| b.cmp(a));
        needs.dedup();
        let mut after = Vec::new();
        for &other in &*needs {
            if !done.has(id, other) {
                done.include(id, other);
                after.push(TaskId(other as u32));
            }
        }
        after.sort_unstable();
        after
    }
}

const LANES: usize = Lane::ALL.len();

/// Tasks that have completed when each task starts; in a serial lane they are a prefix.
struct Done {
    /// Lane and position of each task; the lanes that are not serial are counted together.
    positions: Vec<(Lane, usize)>,
    /// For each task, the number of completed tasks of each serial lane.
    first: Vec<[u32; LANES]>,
    /// For each task, the completed tasks of other lanes.
    others: Vec<TaskSet>,
}

impl Done {
    fn new(body: &Body) -> Self {
        let (mut counts, mut others) = ([0; LANES], 0);
        let lanes = body.tasks.iter().map(|task| task.work.lane());
        let positions: Vec<(Lane, usize)> = lanes
            .map(|lane| {
                let next = if lane.is_serial() {
                    &mut counts[lane as usize]
                } else {
                    &mut others
                };
                *next += 1;
                (lane, *next - 1)
            })
            .collect();
        Self {
            first: vec![[0; LANES]; positions.len()],
            others: vec![TaskSet::default(); positions.len()],
            positions,
        }
    }

    fn has(&self, id: usize, other: usize) -> bool {
        match self.positions[other] {
            (lane, at) if lane.is_serial() => at < self.first[id][lane as usize] as usize,
            (_, at) => self.others[id].has(at),
        }
    }

    /// Adds a task, and all that have completed when it starts.
    fn include(&mut self, id: usize, other: usize) {
        for lane in 0..LANES {
            self.first[id][lane] = self.first[id][lane].max(self.first[other][lane]);
        }
        let (earlier, later) = self.others.split_at_mut(id);
        later[0].join(&earlier[other]);
        match self.positions[other] {
            (lane, at) if lane.is_serial() => {
                let first = &mut self.first[id][lane as usize];
                *first = (*first).max(at as u32 + 1);
            }
            (_, at) => self.others[id].insert(at),
        }
    }
}

/// For each buffer the tasks that access it, ascending.
pub(crate) struct Users {
    /// The tasks of buffer `b` are `tasks[starts[b]..starts[b + 1]]`.
    starts: Vec<usize>,
    tasks: Vec<usize>,
}

impl Users {
    pub fn of(accesses: &Accesses, buffers: usize) -> Self {
        let mut starts = vec![0; buffers + 1];
        Self::each(accesses, buffers, |buffer, _| starts[buffer + 1] += 1);
        for buffer in 0..buffers {
            starts[buffer + 1] += starts[buffer];
        }
        let mut tasks = vec![0; starts[buffers]];
        let mut next = starts.clone();
        Self::each(accesses, buffers, |buffer, task| {
            tasks[next[buffer]] = task;
            next[buffer] += 1;
        });
        Self { starts, tasks }
    }

    /// Calls with each buffer and task once, tasks ascending.
    fn each(accesses: &Accesses, buffers: usize, mut call: impl FnMut(usize, usize)) {
        let mut last = vec![usize::MAX; buffers];
        for (id, own) in accesses.iter().enumerate() {
            for (view, _) in own {
                let buffer = view.buffer.0 as usize;
                if std::mem::replace(&mut last[buffer], id) != id {
                    call(buffer, id);
                }
            }
        }
    }
}

impl Index<usize> for Users {
    type Output = [usize];

    fn index(&self, buffer: usize) -> &[usize] {
        &self.tasks[self.starts[buffer]..self.starts[buffer + 1]]
    }
}

/// Whether two tasks are the same, or ordered by a serial lane.
pub(crate) fn ordered_by_lane(body: &Body, a: usize, b: usize) -> bool {
    let lane = body.tasks[a].work.lane();
    a == b || lane.is_serial() && lane == body.tasks[b].work.lane()
}
