//! Where each buffer lies in the arena of its rank.

use crate::depend::{depend, ordered_by_lane, users};
use partita_program::{Body, Role};
use partita_space::Bytes;
use std::cmp::Reverse;

const ALIGNMENT: u64 = 64;

/// A buffer with its place in memory, and its first and last task.
struct Placed {
    id: usize,
    start: u64,
    end: u64,
    lifetime: (usize, usize),
}

/// Gives every buffer its offset and every task its dependencies.
///
/// Persistent buffers come first, in their order; the others share memory where the last use of one
/// comes before the first use of the other in the order of the list. Such pairs are then ordered by
/// dependencies, since tasks of different lanes may run in another order than the list's.
pub(crate) fn plan(body: &mut Body) {
    let users = users(body);
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
    // What can be read after the step lives to its end.
    let outputs: Vec<usize> = body
        .outputs
        .iter()
        .map(|output| output.view.buffer.0 as usize)
        .collect();
    let lifetime = |id: usize| {
        let last = users[id][users[id].len() - 1];
        let is_output = outputs.contains(&id);
        (users[id][0], if is_output { usize::MAX } else { last })
    };
    // By their offsets.
    let mut placed: Vec<Placed> = Vec::new();
    let mut extra = Vec::new();
    let mut top = floor;
    for id in transient {
        let (size, (birth, death)) = (aligned(body.buffers[id].bytes().0), lifetime(id));
        let busy = placed.iter().filter(|other| {
            let (other_birth, other_death) = other.lifetime;
            birth <= other_death && other_birth <= death
        });
        let start = lowest_gap(floor, size, busy.map(|other| (other.start, other.end)));
        let end = start + size;
        body.buffers[id].offset = Bytes(start);
        top = top.max(end);
        let at = placed.partition_point(|other| (other.start, other.end) < (start, end));
        let lifetime = (birth, death);
        let new = Placed {
            id,
            start,
            end,
            lifetime,
        };
        placed.insert(at, new);
    }
    for (i, a) in placed.iter().enumerate() {
        let rest = placed[i + 1..].iter();
        for b in rest.take_while(|b| b.start < a.end) {
            if share(body, a.id, b.id) {
                let (first, second) = if a.lifetime.1 < b.lifetime.0 {
                    (a.id, b.id)
                } else {
                    (b.id, a.id)
                };
                order(body, &users[first], &users[second], &mut extra);
            }
        }
    }
    body.arena = Bytes(top);
    depend(body, &extra);
}

fn aligned(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGNMENT)
}

/// Beside ranges that come by their starts.
fn lowest_gap(floor: u64, size: u64, busy: impl Iterator<Item = (u64, u64)>) -> u64 {
    let mut offset = floor;
    for (start, end) in busy {
        if offset + size <= start {
            break;
        }
        offset = offset.max(end);
    }
    offset
}

fn share(body: &Body, a: usize, b: usize) -> bool {
    let range = |id: usize| {
        let start = body.buffers[id].offset.0;
        (start, start + body.buffers[id].bytes().0)
    };
    let ((a_start, a_end), (b_start, b_end)) = (range(a), range(b));
    a_start < b_end && b_start < a_end
}

fn order(body: &Body, first: &[usize], second: &[usize], extra: &mut Vec<(usize, usize)>) {
    for &after in second {
        for &before in first {
            if !ordered_by_lane(body, before, after) {
                extra.push((before, after));
            }
        }
    }
}

/// Order of persistent roles in the arena: what every program of a run shares comes first.
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
