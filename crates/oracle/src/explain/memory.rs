//! Memory that is held more than once, or lies idle.

use super::copies::Copies;
use super::{Finding, Item, SHARE_MIN};
use partita_program::{Body, BufferId, Program, Role, live_at_peak};
use partita_space::{Bytes, Coord};

/// What of the memory of the largest rank others hold, too, and what lies idle between buffers.
pub(super) fn findings(program: &Program) -> Vec<Finding> {
    let Some((body, rank)) = program.largest() else {
        return Vec::new();
    };
    let live = live_at_peak(body);
    let coord = program.mesh.coord(rank);
    let held: Bytes = live.iter().map(|&id| body.buffer(id).bytes()).sum();
    let [state, values, frames] = redundant(program, body, &coord, &live);
    let redundancy = finding(
        body,
        Item::MemoryRedundancy,
        state + values + frames,
        format!(
            "of {} on the largest rank, {state} of parameters and what belongs to them, {values} of \
             activations and {frames} of halos are copies of what others hold.",
            body.memory()
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
    let share = bytes.0 as f64 / body.memory().0.max(1) as f64;
    (share >= SHARE_MIN).then(|| Finding {
        bytes: Some(bytes),
        ..Finding::new(item, Vec::new(), share, format!("{item}: {says}"))
    })
}

/// Of live buffers, what would be saved if everything were held once: of the training state, of
/// activations, and of the halos around these.
fn redundant(program: &Program, body: &Body, coord: &Coord, live: &[BufferId]) -> [Bytes; 3] {
    let copies = Copies::new(program);
    let [mut state, mut values, mut frames] = [0.0_f64; 3];
    for &id in live {
        let buffer = body.buffer(id);
        let saved = 1.0 - 1.0 / copies.of(buffer) as f64;
        let size = buffer.dtype.size() as f64;
        let (own, frame) = match &buffer.tensor {
            Some(tensor) => copies.owned_and_framed(tensor, &buffer.view(id), coord),
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
