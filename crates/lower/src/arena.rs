//! Memory planning: the offset of each buffer in the arena of its rank.

use crate::depend::{Accesses, Users, accesses as accesses_of, depend, ordered_by_lane};
use crate::request::LowerError;
use crate::select::{has_faster, refine};
use crate::timeline::Timeline;
use partita_program::{Body, Buffer, Lane, Menu, Role, Work};
use partita_space::limits::{BYTES_MAX, ELEMENTS_MAX};
use partita_space::{Bytes, Mesh};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

const ALIGNMENT: u64 = 64;

/// A buffer with its offset and its first task.
struct Placed {
    start: u64,
    id: usize,
    birth: usize,
}

/// Assigns offsets to buffers and dependencies to tasks.
///
/// Persistent buffers come first, in their order; others share memory where the last use of one comes
/// before the first use of the other in the task list. Such pairs are then ordered by dependencies, since
/// tasks of different lanes may run in another order than the list's.
///
/// With a menu, kernels then get the fastest configurations whose workspaces fit into what is free while
/// they run.
///
/// Errors: sizes beyond [`partita_space::limits`].
pub(crate) fn plan(
    body: &mut Body,
    world: &Mesh,
    menu: Option<&dyn Menu>,
) -> Result<(), LowerError> {
    check_sizes(body)?;
    let mut accesses = accesses_of(body);
    let mut users = Users::of(&accesses, body.buffers.len());
    let mut next = 0;
    for buffer in body
        .buffers
        .iter_mut()
        .filter(|buffer| buffer.role.is_persistent())
    {
        buffer.offset = Bytes(next);
        next += aligned(buffer.bytes().0);
    }
    let floor = next;
    let mut transient: Vec<usize> = (0..body.buffers.len())
        .filter(|&id| !body.buffers[id].role.is_persistent() && !users[id].is_empty())
        .collect();
    transient.sort_by_key(|&id| (Reverse(body.buffers[id].bytes().0), id));
    // Outputs live to the end of the step.
    let outputs: HashSet<usize> = body
        .outputs
        .iter()
        .map(|output| output.view.buffer.0 as usize)
        .collect();
    let end = body.tasks.len();
    let mut timeline = Timeline::new(end + 1);
    let mut top = floor;
    for id in transient {
        let size = aligned(body.buffers[id].bytes().0);
        let (birth, last) = (users[id][0], users[id][users[id].len() - 1]);
        let death = if outputs.contains(&id) { end } else { last };
        let start = timeline.lowest((birth, death), floor, size);
        timeline.take((birth, death), start, start + size);
        body.buffers[id].offset = Bytes(start);
        top = top.max(start + size);
    }
    body.arena = Bytes(top);
    order_tasks(body, &accesses, &users);
    if let Some(menu) = menu
        && use_holes(body, (world, menu), &users, &outputs, floor..top)
    {
        accesses = accesses_of(body);
        users = Users::of(&accesses, body.buffers.len());
        order_tasks(body, &accesses, &users);
    }
    Ok(())
}

/// Sets the dependencies of all tasks of a body with planned memory.
fn order_tasks(body: &mut Body, accesses: &Accesses, users: &Users) {
    let mut extra = Vec::new();
    // Kept between pairs, of which there are many.
    let (mut lasts, mut firsts) = (Vec::new(), Vec::new());
    for (first, second) in successions(body, placed(body, users)) {
        one_of_each_lane(body, users[first].iter().rev(), &mut lasts);
        one_of_each_lane(body, users[second].iter(), &mut firsts);
        order(body, &lasts, &firsts, &mut extra);
    }
    depend(body, accesses, &mut extra);
}

/// The transient buffers that tasks use.
fn placed(body: &Body, users: &Users) -> Vec<Placed> {
    let place = |(id, buffer): (usize, &Buffer)| {
        let birth = *users[id].first()?;
        let start = buffer.offset.0;
        (!buffer.role.is_persistent()).then_some(Placed { start, id, birth })
    };
    body.buffers.iter().enumerate().filter_map(place).collect()
}

/// Lets each kernel use the largest range of the arena that is free while it runs. Memory that other lanes use is
/// free for the kernels that are ordered before or after them already, so that none has to wait for a message.
/// Returns whether any kernel has a faster configuration.
fn use_holes(
    body: &mut Body,
    (world, menu): (&Mesh, &dyn Menu),
    users: &Users,
    outputs: &HashSet<usize>,
    arena: Range<u64>,
) -> bool {
    let end = body.tasks.len();
    let has_faster = |&id: &usize| has_faster(body, menu, world, id);
    let faster: Vec<usize> = (0..end).filter(has_faster).collect();
    if faster.is_empty() {
        return false;
    }
    let between = ordered_kernels(body);
    // Lifetimes and ranges of all but workspaces.
    let mut taken: Vec<(Range<u64>, Range<usize>)> = Vec::new();
    for Placed { start, id, .. } in placed(body, users) {
        if is_workspace_of_kernel(body, &users[id], id) {
            continue;
        }
        let lifetimes = users[id].iter().map(|&user| between[user].clone());
        let lifetime = lifetimes.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end));
        let mut lifetime = lifetime.unwrap_or(0..end);
        if outputs.contains(&id) {
            lifetime.end = end;
        }
        let size = aligned(body.buffers[id].bytes().0);
        taken.push((start..start + size, lifetime));
    }
    taken.sort_by_key(|(range, _)| range.start);
    for id in faster {
        let live = taken.iter().filter(|(_, lifetime)| lifetime.contains(&id));
        let hole = largest_hole(live.map(|(range, _)| range), &arena);
        refine(body, menu, id, hole);
    }
    true
}

/// For each task the range of the list outside of which kernels are ordered before or after it: itself for a
/// kernel, for another task what lies between the last kernel before it and the first one after it.
fn ordered_kernels(body: &Body) -> Vec<Range<usize>> {
    let count = body.tasks.len();
    let is_kernel = |task: usize| body.tasks[task].work.lane() == Lane::Compute;
    let whole = |id| if is_kernel(id) { id..id + 1 } else { 0..count };
    let mut ranges: Vec<Range<usize>> = (0..count).map(whole).collect();
    for (id, task) in body.tasks.iter().enumerate() {
        if is_kernel(id) {
            continue;
        }
        let before = task.after.iter().map(|before| before.0 as usize);
        let starts = before.map(|before| {
            if is_kernel(before) {
                before + 1
            } else {
                ranges[before].start
            }
        });
        ranges[id].start = starts.max().unwrap_or(0);
    }
    for (id, task) in body.tasks.iter().enumerate().rev() {
        let end = if is_kernel(id) { id } else { ranges[id].end };
        for before in task.after.iter().map(|before| before.0 as usize) {
            // Kernels run one after the other whatever depends on them.
            if !is_kernel(before) {
                ranges[before].end = ranges[before].end.min(end);
            }
        }
    }
    ranges
}

/// Whether a buffer is the workspace of a task.
fn is_workspace_of_kernel(body: &Body, users: &[usize], id: usize) -> bool {
    users.iter().any(|&user| match &body.tasks[user].work {
        Work::Compute { workspace, .. } => {
            workspace.is_some_and(|view| view.buffer.0 as usize == id)
        }
        Work::Exchange(_) | Work::Collective(_) | Work::Load(_) | Work::Store(_) => false,
    })
}

/// Start and size of the largest range of the arena outside of these, which ascend by their start.
fn largest_hole<'r>(taken: impl Iterator<Item = &'r Range<u64>>, arena: &Range<u64>) -> (u64, u64) {
    let (mut from, mut best) = (arena.start, (arena.start, 0));
    for range in taken {
        if range.start > from && range.start - from > best.1 {
            best = (from, range.start - from);
        }
        from = from.max(range.end);
    }
    if arena.end > from && arena.end - from > best.1 {
        best = (from, arena.end - from);
    }
    best
}

/// Checks that the size of each buffer, and of all together, is within the limits.
fn check_sizes(body: &Body) -> Result<(), LowerError> {
    let mut sum = 0u128;
    for buffer in &body.buffers {
        let fail = |what: &'static str, asked: u128, limit: u64| LowerError::TooLarge {
            what: format!("{what} `{}`", buffer.name),
            asked: asked.to_string(),
            limit,
        };
        let extents = buffer.dims.iter().map(|&extent| extent.max(1) as u128);
        let elements = extents.fold(1, u128::saturating_mul);
        if elements > u128::from(ELEMENTS_MAX) {
            return Err(fail("elements of", elements, ELEMENTS_MAX));
        }
        sum += elements * buffer.dtype.size() as u128 + u128::from(ALIGNMENT);
        if sum > u128::from(BYTES_MAX) {
            return Err(fail("bytes of all buffers of a rank up to", sum, BYTES_MAX));
        }
    }
    Ok(())
}

/// Pairs of buffers of which the second reuses memory of the first next. Earlier users of the same memory
/// are ordered transitively.
fn successions(body: &Body, mut placed: Vec<Placed>) -> Vec<(usize, usize)> {
    placed.sort_by_key(|buffer| (buffer.birth, buffer.id));
    // Ranges of memory by start, with their end and last user.
    let mut last: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
    let mut pairs = Vec::new();
    let mut before = Vec::new();
    for Placed { start, id, .. } in placed {
        let end = start + body.buffers[id].bytes().0;
        let earlier = last.range(..end).rev();
        let earlier = earlier.map(|(&from, &(to, who))| (from, to, who));
        before.extend(earlier.take_while(|&(_, to, _)| to > start));
        let first = pairs.len();
        for (from, to, who) in before.drain(..) {
            if !pairs[first..].contains(&(who, id)) {
                pairs.push((who, id));
            }
            last.remove(&from);
            if from < start {
                last.insert(from, (start, who));
            }
            if to > end {
                last.insert(end, (to, who));
            }
        }
        if start < end {
            last.insert(start, (end, id));
        }
    }
    pairs
}

fn aligned(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGNMENT)
}

/// Orders the tasks that end the use of one buffer before those that begin that of another.
fn order(body: &Body, lasts: &[usize], firsts: &[usize], extra: &mut Vec<(usize, usize)>) {
    for &after in firsts {
        for &before in lasts {
            if !ordered_by_lane(body, before, after) {
                extra.push((before, after));
            }
        }
    }
}

/// The first of these tasks in each serial lane, and all tasks of other lanes.
fn one_of_each_lane<'t>(
    body: &Body,
    tasks: impl Iterator<Item = &'t usize>,
    found: &mut Vec<usize>,
) {
    let mut known = [false; Lane::ALL.len()];
    let is_new = |&&task: &&usize| {
        let lane = body.tasks[task].work.lane();
        !(lane.is_serial() && std::mem::replace(&mut known[lane as usize], true))
    };
    found.clear();
    found.extend(tasks.filter(is_new).copied());
}

/// Order of persistent roles in the arena: those shared by all programs of a run come first.
pub(crate) fn persistent_order(role: Role) -> u8 {
    match role {
        Role::Parameter => 0,
        Role::State | Role::Constant => 1,
        Role::Optimizer => 2,
        Role::Average => 3,
        Role::Staging => 4,
        Role::Gradient
        | Role::Activation
        | Role::ActivationGradient
        | Role::PackedWeights
        | Role::Gathered
        | Role::Statistics
        | Role::Workspace => 5,
    }
}
