//! Memory planning: the offset of each buffer in the arena of its rank.

use crate::depend::{accesses, depend, ordered_by_lane, users};
use crate::request::LowerError;
use crate::timeline::Timeline;
use partita_program::{Body, Lane, Role};
use partita_space::Bytes;
use partita_space::limits::{BYTES_MAX, ELEMENTS_MAX};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};

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
/// Errors: sizes beyond [`partita_space::limits`].
pub(crate) fn plan(body: &mut Body) -> Result<(), LowerError> {
    check_sizes(body)?;
    let accesses = accesses(body);
    let users = users(&accesses, body.buffers.len());
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
    let mut placed: Vec<Placed> = Vec::with_capacity(transient.len());
    let mut top = floor;
    for id in transient {
        let size = aligned(body.buffers[id].bytes().0);
        let (birth, last) = (users[id][0], users[id][users[id].len() - 1]);
        let death = if outputs.contains(&id) { end } else { last };
        let start = timeline.lowest((birth, death), floor, size);
        timeline.take((birth, death), start, start + size);
        body.buffers[id].offset = Bytes(start);
        top = top.max(start + size);
        placed.push(Placed { start, id, birth });
    }
    let mut extra = Vec::new();
    for (first, second) in successions(body, placed) {
        order(body, &users[first], &users[second], &mut extra);
    }
    body.arena = Bytes(top);
    depend(body, &accesses, &extra);
    Ok(())
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
    for Placed { start, id, .. } in placed {
        let end = start + body.buffers[id].bytes().0;
        let before: Vec<_> = last
            .range(..end)
            .rev()
            .map(|(&from, &(to, who))| (from, to, who))
            .take_while(|&(_, to, _)| to > start)
            .collect();
        let first = pairs.len();
        for (from, to, who) in before {
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

/// Orders all tasks of the first list before all of the second. In a serial lane the last of the first list
/// and the first of the second suffice.
fn order(body: &Body, first: &[usize], second: &[usize], extra: &mut Vec<(usize, usize)>) {
    let lasts = one_of_each_lane(body, first.iter().rev());
    for after in one_of_each_lane(body, second.iter()) {
        for &before in &lasts {
            if !ordered_by_lane(body, before, after) {
                extra.push((before, after));
            }
        }
    }
}

/// The first of these tasks in each serial lane, and all tasks of other lanes.
fn one_of_each_lane<'t>(body: &Body, tasks: impl Iterator<Item = &'t usize>) -> Vec<usize> {
    let mut known = [false; Lane::ALL.len()];
    let is_new = |&&task: &&usize| {
        let lane = body.tasks[task].work.lane();
        !(lane.is_serial() && std::mem::replace(&mut known[lane as usize], true))
    };
    tasks.filter(is_new).copied().collect()
}

/// Order of persistent roles in the arena: those shared by all programs of a run come first.
pub(crate) fn persistent_order(role: Role) -> u8 {
    match role {
        Role::Parameter => 0,
        Role::State => 1,
        Role::Optimizer => 2,
        Role::Staging => 3,
        Role::Gradient
        | Role::Activation
        | Role::ActivationGradient
        | Role::PackedWeights
        | Role::Gathered
        | Role::Statistics
        | Role::Workspace => 4,
    }
}
