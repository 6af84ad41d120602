//! Where each buffer lies in the arena of its rank.

use crate::depend::{depend, ordered_by_lane, users};
use crate::lowering::LowerError;
use partita_program::{Body, Role};
use partita_space::Bytes;
use partita_space::limits::{BYTES_MAX, ELEMENTS_MAX};
use std::cmp::Reverse;
use std::collections::BTreeMap;

const ALIGNMENT: u64 = 64;

/// A buffer with its place in memory, and its first and last task. There are many, and small ones are
/// looked through faster.
struct Placed {
    start: u64,
    end: u64,
    id: u32,
    birth: u32,
    death: u32,
}

/// Gives every buffer its offset and every task its dependencies.
///
/// Persistent buffers come first, in their order; the others share memory where the last use of one
/// comes before the first use of the other in the order of the list. Such pairs are then ordered by
/// dependencies, since tasks of different lanes may run in another order than the list's.
///
/// Errors: buffers larger than can be counted.
pub(crate) fn plan(body: &mut Body) -> Result<(), LowerError> {
    check_sizes(body)?;
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
    // By their offsets.
    let mut placed: Vec<Placed> = Vec::new();
    let mut top = floor;
    for id in transient {
        let size = aligned(body.buffers[id].bytes().0);
        let (birth, last) = (users[id][0] as u32, users[id][users[id].len() - 1]);
        let death = if outputs.contains(&id) {
            u32::MAX
        } else {
            last as u32
        };
        let busy = placed
            .iter()
            .filter(|other| birth <= other.death && other.birth <= death);
        let start = lowest_gap(floor, size, busy.map(|other| (other.start, other.end)));
        let end = start + size;
        body.buffers[id].offset = Bytes(start);
        top = top.max(end);
        let at = placed.partition_point(|other| (other.start, other.end) < (start, end));
        let new = Placed {
            start,
            end,
            id: id as u32,
            birth,
            death,
        };
        placed.insert(at, new);
    }
    let mut extra = Vec::new();
    for (first, second) in successions(body, placed) {
        order(body, &users[first], &users[second], &mut extra);
    }
    body.arena = Bytes(top);
    depend(body, &extra);
    Ok(())
}

/// That the bytes of each buffer, and of all together, can be counted.
fn check_sizes(body: &Body) -> Result<(), LowerError> {
    let mut sum = 0u128;
    for buffer in &body.buffers {
        let fail = |what: &'static str, asked: u128, limit: u64| LowerError::TooLarge {
            what: format!("{what} `{}`", buffer.name),
            asked,
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

/// Buffers with those that had some of their memory right before them. Those that had it earlier still
/// are ordered through these.
fn successions(body: &Body, mut placed: Vec<Placed>) -> Vec<(usize, usize)> {
    placed.sort_by_key(|buffer| (buffer.birth, buffer.id));
    // By their starts, ranges of memory with their ends and who had them last.
    let mut last: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
    let mut pairs = Vec::new();
    for Placed { start, id, .. } in placed {
        let id = id as usize;
        let end = start + body.buffers[id].bytes().0;
        let before = last.range(..end).rev();
        let before = before.map(|(&from, &(to, who))| (from, to, who));
        let before: Vec<_> = before.take_while(|&(_, to, _)| to > start).collect();
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
