//! Which task must wait for which: derived from what they read and write, in the order of the list.

use partita_program::{Access, Body, TaskId, View, Work};

/// Sets `after` of every task: each conflicting pair of accesses is ordered as in the list, pairs of
/// `extra` too, and what follows from the rest is left out.
pub(crate) fn depend(body: &mut Body, extra: &[(usize, usize)]) {
    let tasks = body.tasks.len();
    let mut needs: Vec<Vec<usize>> = vec![Vec::new(); tasks];
    let mut accesses: Vec<Vec<(usize, View, bool)>> = vec![Vec::new(); body.buffers.len()];
    for (id, task) in body.tasks.iter().enumerate() {
        for (view, access) in task.accesses() {
            let writes = access != Access::Read;
            let region = view.region();
            let earlier = &accesses[view.buffer.0 as usize];
            for (other, other_view, other_writes) in earlier {
                let conflict = (writes || *other_writes)
                    && *other != id
                    && !region.intersect(&other_view.region()).is_empty();
                if conflict {
                    needs[id].push(*other);
                }
            }
        }
        for (view, access) in task.accesses() {
            accesses[view.buffer.0 as usize].push((id, view, access != Access::Read));
        }
    }
    for &(before, after) in extra {
        needs[after].push(before);
    }
    reduce(body, needs);
}

/// Keeps of each task's needs those that no other need, and no serial lane, implies.
fn reduce(body: &mut Body, needs: Vec<Vec<usize>>) {
    let tasks = body.tasks.len();
    let words = tasks.div_ceil(64);
    // Bit b of row t: task b has completed when task t starts.
    let mut before = vec![0u64; tasks * words];
    let mut last_serial: [Option<usize>; 4] = [None; 4];
    for (id, mut needs) in needs.into_iter().enumerate() {
        let lane = body.tasks[id].work.lane();
        let mut row = vec![0u64; words];
        let include = |row: &mut [u64], other: usize| {
            for word in 0..words {
                row[word] |= before[other * words + word];
            }
            row[other / 64] |= 1 << (other % 64);
        };
        if lane.is_serial() {
            if let Some(previous) = last_serial[lane as usize] {
                include(&mut row, previous);
            }
            last_serial[lane as usize] = Some(id);
        }
        needs.sort_unstable_by(|a, b| b.cmp(a));
        needs.dedup();
        let mut after = Vec::new();
        for other in needs {
            if row[other / 64] >> (other % 64) & 1 == 0 {
                include(&mut row, other);
                after.push(TaskId(other as u32));
            }
        }
        after.sort_unstable();
        body.tasks[id].after = after;
        before[id * words..(id + 1) * words].copy_from_slice(&row);
    }
}

/// For each buffer the tasks that touch it, ascending.
pub(crate) fn users(body: &Body) -> Vec<Vec<usize>> {
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); body.buffers.len()];
    for (id, task) in body.tasks.iter().enumerate() {
        for (view, _) in task.accesses() {
            let list = &mut users[view.buffer.0 as usize];
            if list.last() != Some(&id) {
                list.push(id);
            }
        }
    }
    users
}

/// Whether the order of the list alone puts `a` before `b`, both being tasks of one serial lane.
pub(crate) fn ordered_by_lane(body: &Body, a: usize, b: usize) -> bool {
    let lane = |work: &Work| work.lane();
    lane(&body.tasks[a].work) == lane(&body.tasks[b].work) && lane(&body.tasks[a].work).is_serial()
}
