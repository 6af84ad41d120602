//! Work that is done more than once.

use super::copies::Copies;
use super::time::{is_much, step, timed};
use super::{Finding, Item};
use crate::simulate::Simulation;
use partita_program::{Access, Body, Count, Kernel, Phase, Program, Task, View, Work};
use partita_space::{Coord, Flops, Seconds};
use std::collections::{BTreeSet, HashMap, HashSet};

/// What is computed more than once: by several ranks from the same values, around the part of a rank in
/// a group of layers that exchange halos once, and again on the way back.
pub(super) fn finding(program: &Program, simulation: &Simulation) -> Option<Finding> {
    let copies = Copies::new(program);
    let mut shares: HashMap<usize, Vec<f64>> = HashMap::new();
    let (mut most, mut flops, mut all) = (0.0_f64, 0.0, 0.0);
    let mut phases = BTreeSet::new();
    for (at, participant) in simulation.participants.iter().enumerate() {
        let body = &program.bodies[participant.body as usize];
        let coord = program.mesh.coord(participant.rank);
        let own = self::shares(&copies, body, &coord);
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
    is_much(path.max(most), step).then(|| {
        let says = format!(
            "{}: {:.1} % of all arithmetic is done by several ranks alike or a second time, {} a step \
             where most, {} of the critical path.",
            Item::ComputationRedundancy,
            100.0 * flops / f64::max(all, 1.0),
            Seconds(most),
            Seconds(path)
        );
        let phases = phases.into_iter().collect();
        let finding = Finding::new(Item::ComputationRedundancy, phases, path / step, says);
        Finding {
            flops: Some(Flops(flops as u64)),
            ..timed(finding, path, most)
        }
    })
}

/// Of each task, the share that others do alike, or that is done a second time.
fn shares(copies: &Copies<'_>, body: &Body, coord: &Coord) -> Vec<f64> {
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
        let is_again = task.origin.phase == Phase::Backward && forward.contains(&key);
        // The way back of these two is their way forth.
        let goes_both_ways = matches!(kernel, Kernel::Add { .. } | Kernel::Dropout { .. });
        if is_again && !goes_both_ways && Count::of(task, &body.buffers).flops.0 > 0 {
            return 1.0;
        }
        let accesses = task.accesses();
        let views: Vec<View> = accesses.iter().map(|(view, _)| *view).collect();
        let alike = copies.of_work(body, &views) as f64;
        1.0 - (1.0 - around(copies, body, coord, &accesses)) / alike
    };
    body.tasks.iter().map(share).collect()
}

/// The first part of the kernel of a task.
fn first(task: &Task) -> Option<&Kernel> {
    match &task.work {
        Work::Compute { kernel, .. } => kernel.parts().first(),
        Work::Exchange(_) | Work::Collective(_) | Work::Load(_) => None,
    }
}

/// Of what a kernel writes, or else of what it reads, the share outside of what its rank owns, where
/// ranks compute copies of what others own.
fn around(copies: &Copies<'_>, body: &Body, coord: &Coord, accesses: &[(View, Access)]) -> f64 {
    let redundant = accesses.iter().filter_map(|(view, access)| {
        let tensor = body.buffer(view.buffer).tensor?;
        tensor.redundant.then_some((tensor, view, access))
    });
    let Some((tensor, view, _)) = redundant.min_by_key(|(_, _, access)| **access == Access::Read)
    else {
        return 0.0;
    };
    let (own, frame) = copies.owned_and_framed(&tensor, view, coord);
    frame as f64 / (own + frame).max(1) as f64
}
