//! Redundant computation.

use super::replication::Replication;
use super::time::{is_significant, step, timed};
use super::{Finding, LimitingFactor};
use crate::simulate::Simulation;
use partita_program::{Access, Body, Count, Kernel, Phase, Program, Task, View, Work};
use partita_space::{Coord, Flops, Seconds};
use std::collections::{BTreeSet, HashMap, HashSet};

/// Redundant computation: by several ranks from the same values, in the halos of layers that exchange them
/// once for several layers, and recomputation in the backward pass.
pub(super) fn finding(program: &Program, simulation: &Simulation) -> Option<Finding> {
    let replication = Replication::new(program);
    let mut shares: HashMap<usize, Vec<f64>> = HashMap::new();
    let (mut most, mut flops, mut all) = (0.0_f64, 0.0, 0.0);
    let mut phases = BTreeSet::new();
    for (at, participant) in simulation.participants.iter().enumerate() {
        let body = &program.bodies[participant.body as usize];
        let coord = program.mesh.coord(participant.rank);
        let own = self::shares(&replication, body, &coord);
        let mut seconds = 0.0;
        for (id, task) in body.tasks.iter().enumerate() {
            let counted = Count::of(task, &body.buffers).flops.0 as f64 * participant.ranks as f64;
            all += counted;
            flops += counted * own[id];
            seconds += simulation.durations[at][id].0 * own[id];
            if own[id] > 0.0 {
                phases.insert(task.origin.phase);
            }
        }
        most = most.max(seconds);
        shares.insert(participant.rank, own);
    }
    let path = simulation.path.iter().map(|segment| {
        let share = shares[&segment.rank][segment.task.0 as usize];
        share * segment.seconds.0
    });
    let path = path.sum::<f64>() / simulation.steps as f64;
    let step = step(simulation);
    is_significant(path.max(most), step).then(|| {
        let message = format!(
            "{}: {:.1} % of all flops are redundant, {} per step on the rank with the most, {} on the \
             critical path.",
            LimitingFactor::ComputationRedundancy,
            100.0 * flops / f64::max(all, 1.0),
            Seconds(most),
            Seconds(path)
        );
        let phases = phases.into_iter().collect();
        let finding = Finding::new(LimitingFactor::ComputationRedundancy, phases, path / step, message);
        Finding {
            flops: Some(Flops(flops as u64)),
            ..timed(finding, path, most)
        }
    })
}

/// The redundant share of each task.
fn shares(replication: &Replication<'_>, body: &Body, coord: &Coord) -> Vec<f64> {
    let forward: HashSet<(&str, &str)> = body
        .tasks
        .iter()
        .filter(|task| task.origin.phase == Phase::Forward)
        .filter_map(|task| Some((task.origin.layer.as_str(), first(task)?.name())))
        .collect();
    let share = |task: &Task| {
        let Some(kernel) = first(task) else {
            return 0.0;
        };
        let key = (task.origin.layer.as_str(), kernel.name());
        let is_recomputation = task.origin.phase == Phase::Backward && forward.contains(&key);
        // These two have the same kernel in both passes.
        let is_in_both_passes = matches!(kernel, Kernel::Add { .. } | Kernel::Dropout { .. });
        if is_recomputation && !is_in_both_passes && Count::of(task, &body.buffers).flops.0 > 0 {
            return 1.0;
        }
        let accesses = task.accesses();
        let views: Vec<View> = accesses.iter().map(|(view, _)| *view).collect();
        let ranks = replication.of_computation(body, &views) as f64;
        1.0 - (1.0 - halo_share(replication, body, coord, &accesses)) / ranks
    };
    body.tasks.iter().map(share).collect()
}

/// The first part of the kernel of a task.
fn first(task: &Task) -> Option<&Kernel> {
    match &task.work {
        Work::Compute { kernel, .. } => kernel.parts().first(),
        Work::Exchange(_) | Work::Collective(_) | Work::Load(_) | Work::Store(_) => None,
    }
}

/// The share of the output of a kernel, or else of its input, that is a redundantly computed halo.
fn halo_share(
    replication: &Replication<'_>,
    body: &Body,
    coord: &Coord,
    accesses: &[(View, Access)],
) -> f64 {
    let redundant = accesses.iter().filter_map(|(view, access)| {
        let tensor = body.buffer(view.buffer).tensor?;
        tensor.redundant.then_some((tensor, view, access))
    });
    let Some((tensor, view, _)) = redundant.min_by_key(|(_, _, access)| **access == Access::Read)
    else {
        return 0.0;
    };
    let (own, halo) = replication.owned_and_halo(&tensor, view, coord);
    halo as f64 / (own + halo).max(1) as f64
}
