//! Replicated memory, and fragmentation.

use super::replication::Replication;
use super::{Finding, LimitingFactor, SHARE_MIN};
use partita_program::{Body, BufferId, Program, Role, live_at_peak};
use partita_space::{Bytes, Coord};

/// Replication and fragmentation of the memory of the largest rank.
pub(super) fn findings(program: &Program) -> Vec<Finding> {
    let Some((body, rank)) = program.largest() else {
        return Vec::new();
    };
    let live = live_at_peak(body);
    let coord = program.mesh.coord(rank);
    let live_bytes: Bytes = live.iter().map(|&id| body.buffer(id).bytes()).sum();
    let [state, activations, halos] = redundant(program, body, &coord, &live);
    let redundancy = finding(
        body,
        LimitingFactor::MemoryRedundancy,
        state + activations + halos,
        format!(
            "of {} on the largest rank, {state} of training state, {activations} of activations and {halos} \
             of halos are replicas.",
            body.memory()
        ),
    );
    let gaps = finding(
        body,
        LimitingFactor::MemoryGaps,
        Bytes(body.arena.0.saturating_sub(live_bytes.0)),
        format!(
            "live buffers of the largest rank peak at {live_bytes}, in an arena of {}.",
            body.arena
        ),
    );
    [redundancy, gaps].into_iter().flatten().collect()
}

fn finding(body: &Body, factor: LimitingFactor, bytes: Bytes, text: String) -> Option<Finding> {
    let share = bytes.0 as f64 / body.memory().0.max(1) as f64;
    (share >= SHARE_MIN).then(|| Finding {
        bytes: Some(bytes),
        ..Finding::new(factor, Vec::new(), share, format!("{factor}: {text}"))
    })
}

/// Bytes of live buffers that would be saved without replication: of the training state, of activations,
/// and of their halos.
fn redundant(program: &Program, body: &Body, coord: &Coord, live: &[BufferId]) -> [Bytes; 3] {
    let replication = Replication::new(program);
    let [mut state, mut activations, mut halos] = [0.0_f64; 3];
    for &id in live {
        let buffer = body.buffer(id);
        let saved = 1.0 - 1.0 / replication.of(buffer) as f64;
        let size = buffer.dtype.size() as f64;
        let (own, halo) = match &buffer.tensor {
            Some(tensor) => replication.owned_and_halo(tensor, &buffer.view(id), coord),
            None => (buffer.dims.iter().product(), 0),
        };
        let own = own as f64 * size * saved;
        match buffer.role {
            Role::Parameter
            | Role::State
            | Role::Constant
            | Role::Optimizer
            | Role::Average
            | Role::Gradient
            | Role::Gathered => {
                state += own;
            }
            Role::Activation | Role::ActivationGradient => {
                activations += own;
                halos += halo as f64 * size;
            }
            Role::Staging | Role::PackedWeights | Role::Statistics | Role::Workspace => {}
        }
    }
    [state, activations, halos].map(|bytes| Bytes(bytes as u64))
}
