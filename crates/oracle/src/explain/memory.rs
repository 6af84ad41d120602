use super::copies::Copies;
use super::{Finding, Item, SHARE_MIN};
use partita_program::{Body, BufferId, Program, Role};
use partita_space::{Bytes, Coord};

/// What of the memory of the largest rank others hold, too, and what lies idle between buffers.
pub(super) fn findings(program: &Program) -> Vec<Finding> {
    let bodies = program.bodies.iter().zip(program.representatives());
    let Some((body, rank)) = bodies.max_by_key(|(body, _)| body.arena) else {
        return Vec::new();
    };
    let live = at_peak(body);
    let coord = program.mesh.coord(rank);
    let held: Bytes = live.iter().map(|&id| body.buffers[id].bytes()).sum();
    let [state, values, frames] = redundant(program, body, &coord, &live);
    let redundancy = finding(
        body,
        Item::MemoryRedundancy,
        state + values + frames,
        format!(
            "of {} on the largest rank, {state} of parameters and what belongs to them, {values} of \
             activations and {frames} of halos are copies of what others hold.",
            body.arena
        ),
    );
    let gaps = finding(
        body,
        Item::MemoryGaps,
        Bytes(body.arena.0.saturating_sub(held.0)),
        format!(
            "buffers of the largest rank hold at most {held} at a time, in {}.",
            body.arena
        ),
    );
    [redundancy, gaps].into_iter().flatten().collect()
}

fn finding(body: &Body, item: Item, bytes: Bytes, says: String) -> Option<Finding> {
    let share = bytes.0 as f64 / body.arena.0.max(1) as f64;
    (share >= SHARE_MIN).then(|| Finding {
        bytes: Some(bytes),
        ..Finding::new(item, Vec::new(), share, format!("{item}: {says}"))
    })
}

/// Of live buffers, what would be saved if everything were held once: of the training state, of
/// activations, and of the halos around these.
fn redundant(program: &Program, body: &Body, coord: &Coord, live: &[usize]) -> [Bytes; 3] {
    let copies = Copies::new(program);
    let [mut state, mut values, mut frames] = [0.0_f64; 3];
    for &id in live {
        let buffer = &body.buffers[id];
        let saved = 1.0 - 1.0 / copies.of(buffer) as f64;
        let size = buffer.dtype.size() as f64;
        let (own, frame) = match &buffer.home {
            Some(home) => copies.owned_and_framed(home, &buffer.view(BufferId(id as u32)), coord),
            None => (buffer.dims.iter().product(), 0),
        };
        let own = own as f64 * size * saved;
        match buffer.role {
            Role::Parameter | Role::State | Role::Optimizer | Role::Gradient | Role::Gathered => {
                state += own;
            }
            Role::Activation | Role::ActivationGradient => {
                values += own;
                frames += frame as f64 * size;
            }
            Role::Staging | Role::PackedWeights | Role::Statistics | Role::Workspace => {}
        }
    }
    [state, values, frames].map(|bytes| Bytes(bytes as u64))
}

/// The buffers that are live when most is: from the first task that touches one to the last, and those
/// of a run always.
fn at_peak(body: &Body) -> Vec<usize> {
    let last = body.tasks.len().saturating_sub(1);
    let persistent = |role: Role| role.is_persistent().then_some((0, last));
    let lives = body.buffers.iter().map(|buffer| persistent(buffer.role));
    let mut lives: Vec<Option<(usize, usize)>> = lives.collect();
    let mut touch = |id: BufferId, at: usize| {
        let life = &mut lives[id.0 as usize];
        let (birth, death) = life.unwrap_or((at, at));
        *life = Some((birth.min(at), death.max(at)));
    };
    for (at, task) in body.tasks.iter().enumerate() {
        for (view, _) in task.accesses() {
            touch(view.buffer, at);
        }
    }
    for output in &body.outputs {
        touch(output.view.buffer, last);
    }
    let mut changes = vec![0i64; last + 2];
    for (buffer, life) in body.buffers.iter().zip(&lives) {
        if let Some((birth, death)) = *life {
            changes[birth] += buffer.bytes().0 as i64;
            changes[death + 1] -= buffer.bytes().0 as i64;
        }
    }
    let (mut sum, mut most, mut peak) = (0, i64::MIN, 0);
    for (at, change) in changes[..=last].iter().enumerate() {
        sum += change;
        if sum > most {
            (most, peak) = (sum, at);
        }
    }
    let is_live =
        |id: &usize| lives[*id].is_some_and(|(birth, death)| birth <= peak && peak <= death);
    (0..lives.len()).filter(is_live).collect()
}
