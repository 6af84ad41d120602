//! No faulty program passes: what `verify` accepts of a mutant gives the same results.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use partita_program::{
    Access, Body, BufferId, Collective, CollectiveKind, Exchange, Kernel, Program, ProgramKind,
    Role, TaskId, TensorRegion, View, Work,
};
use partita_space::{AXES, AxisSet, Offset};
use partita_testkit::{
    Case, Draws, Outcome, Setup, jittery_kernels, mismatch, random_case, random_grouped_case,
    random_layer_case, random_sequence_case, random_staged_case, run_programs, seeds,
};
use std::collections::{BTreeMap, BTreeSet};

/// Where an exchange stands: class and task.
type TaskSite = (usize, usize);

fn exchanges(program: &Program) -> Vec<TaskSite> {
    let mut sites = Vec::new();
    for (class, body) in program.bodies.iter().enumerate() {
        for (task, entry) in body.tasks.iter().enumerate() {
            if matches!(entry.work, Work::Exchange(_)) {
                sites.push((class, task));
            }
        }
    }
    sites
}

fn exchange(program: &mut Program, (class, task): TaskSite) -> &mut Exchange {
    match &mut program.bodies[class].tasks[task].work {
        Work::Exchange(exchange) => exchange,
        other => panic!("{} is no exchange", other.name()),
    }
}

/// Drops a message on both sides, for every rank of the sender's class.
fn drop_pair(program: &mut Program, site: TaskSite, index: usize) {
    let rank = program.representatives()[site.0];
    let sent = exchange(program, site).sends.remove(index);
    let sequence = exchange(program, site).sequence;
    let peer = program
        .mesh
        .neighbor(rank, sent.to)
        .expect("a message goes to a rank");
    let body = &mut program.bodies[program.class_of[peer] as usize];
    for task in &mut body.tasks {
        if let Work::Exchange(exchange) = &mut task.work
            && exchange.sequence == sequence
        {
            let back = sent.to.reversed();
            exchange
                .receives
                .retain(|r| (r.from, r.part) != (back, sent.part));
        }
    }
}

/// A mutant and what was done, or nothing where the draw does not apply.
fn mutate(program: &Program, draws: &mut Draws) -> Option<(Program, String)> {
    let mut mutant = program.clone();
    let sites = exchanges(program);
    if sites.is_empty() {
        return None;
    }
    let site = draws.pick(&sites);
    let kind = draws.between(0, 8);
    let found = exchange(&mut mutant, site);
    let (sends, receives) = (found.sends.len(), found.receives.len());
    match kind {
        0 if sends > 0 => drop(found.sends.remove(draws.between(0, sends - 1))),
        1 if receives > 0 => drop(found.receives.remove(draws.between(0, receives - 1))),
        2 if sends > 0 => drop_pair(&mut mutant, site, draws.between(0, sends - 1)),
        3 if sends > 1 => {
            let (first, last) = (found.sends[0].view, found.sends[sends - 1].view);
            found.sends[0].view = last;
            found.sends[sends - 1].view = first;
        }
        4 if receives > 1 => {
            let (first, last) = (found.receives[0].view, found.receives[receives - 1].view);
            found.receives[0].view = last;
            found.receives[receives - 1].view = first;
        }
        5 if sends > 0 => {
            let send = &mut found.sends[draws.between(0, sends - 1)];
            let axis = draws.between(0, 3);
            let mut steps = send.to.0;
            steps[axis] += if draws.one_in(2) { 1 } else { -1 };
            send.to = Offset(steps);
        }
        6 if receives > 0 => {
            let receive = &mut found.receives[draws.between(0, receives - 1)];
            receive.accumulate = !receive.accumulate;
        }
        7 => {
            let body = &mut mutant.bodies[site.0];
            let with: Vec<usize> = (0..body.tasks.len())
                .filter(|&id| !body.tasks[id].after.is_empty())
                .collect();
            if with.is_empty() {
                return None;
            }
            let after = &mut body.tasks[draws.pick(&with)].after;
            let gone: TaskId = after.remove(draws.between(0, after.len() - 1));
            return Some((
                mutant,
                format!("class {} no longer waits for {gone:?}", site.0),
            ));
        }
        8 => {
            let pool = &mut mutant.bodies[site.0].staging.exchange;
            // A pool may hold two tasks, so that half of it can do.
            pool.0 = draws.between(0, pool.0 as usize / 4) as u64;
        }
        _ => return None,
    }
    Some((mutant, format!("mutation {kind} at {site:?}")))
}

/// Collectives of a program: classes with the task, by sequence.
fn collectives(program: &Program) -> BTreeMap<u32, Vec<TaskSite>> {
    let mut sites: BTreeMap<u32, Vec<TaskSite>> = BTreeMap::new();
    for (class, body) in program.bodies.iter().enumerate() {
        for (task, entry) in body.tasks.iter().enumerate() {
            if let Work::Collective(collective) = &entry.work {
                let known = sites.entry(collective.sequence).or_default();
                known.push((class, task));
            }
        }
    }
    sites
}

fn collective(program: &mut Program, (class, task): TaskSite) -> &mut Collective {
    match &mut program.bodies[class].tasks[task].work {
        Work::Collective(collective) => collective,
        other => panic!("{} is no collective", other.name()),
    }
}

/// Takes a task away; who waited for it waits for what it waited for.
fn remove(program: &mut Program, (class, task): TaskSite) {
    let tasks = &mut program.bodies[class].tasks;
    let gone = tasks.remove(task);
    for other in tasks {
        if other.after.contains(&TaskId(task as u32)) {
            other.after.extend(&gone.after);
        }
        other.after.retain(|after| after.0 as usize != task);
        let later = |after: &&mut TaskId| after.0 as usize > task;
        other
            .after
            .iter_mut()
            .filter(later)
            .for_each(|after| after.0 -= 1);
        other.after.sort_unstable();
        other.after.dedup();
    }
}

fn swap_two(views: &mut [View], draws: &mut Draws) -> bool {
    if views.len() < 2 {
        return false;
    }
    let first = draws.between(0, views.len() - 1);
    let second = (first + draws.between(1, views.len() - 1)) % views.len();
    views.swap(first, second);
    true
}

/// Leaves each member with its own addend instead of the sum.
fn keep_own(program: &mut Program, site: TaskSite) -> bool {
    let rank = program.representatives()[site.0];
    let Collective { group, kind, .. } = collective(program, site).clone();
    let members = program.mesh.group(rank, group);
    let distribution = members.iter().position(|&member| member == rank).unwrap();
    let (source, target) = match kind {
        CollectiveKind::ReduceScatter { sources, target } => {
            (sources.views().get(distribution).unwrap(), target)
        }
        CollectiveKind::AllReduce { views } => (views[0], views[0]),
        CollectiveKind::AllGather { .. } | CollectiveKind::AllToAll { .. } => return false,
    };
    if source == target || source.is_empty() {
        remove(program, site);
        return true;
    }
    let tasks = program.bodies[site.0].tasks.iter();
    let pinned = tasks.filter_map(|task| match &task.work {
        Work::Compute { algorithm, .. } => Some(algorithm.clone()),
        Work::Exchange(_) | Work::Collective(_) | Work::Load(_) | Work::Store(_) => None,
    });
    let algorithm = pinned.into_iter().next().unwrap();
    let kernel = Kernel::Copy {
        source,
        target,
        accumulate: false,
    };
    program.bodies[site.0].tasks[site.1].work = Work::Compute {
        kernel,
        algorithm,
        workspace: None,
    };
    true
}

/// As [`mutate`], to collectives.
fn mutate_collective(program: &Program, draws: &mut Draws) -> Option<(Program, String)> {
    let mut mutant = program.clone();
    let all = collectives(program);
    let sequences: Vec<u32> = all.keys().copied().collect();
    if sequences.is_empty() {
        return None;
    }
    let sequence = draws.pick(&sequences);
    let everywhere = draws.one_in(2);
    let mut sites = all[&sequence].clone();
    if !everywhere {
        sites = vec![draws.pick(&sites)];
    }
    let kind = draws.between(0, 6);
    let other = draws.pick(&sequences);
    let seed = draws.between(0, 1 << 20) as u64;
    let changed = sites.iter().all(|&site| {
        // The same draws for every class.
        let mut draws = Draws::new(seed);
        match kind {
            0 => remove(&mut mutant, site),
            1 => return keep_own(&mut mutant, site),
            2 => return swap_views(&mut mutant, site, &mut draws),
            3 => {
                let axes = AXES.into_iter().filter(|_| draws.one_in(2));
                let group = AxisSet::of(axes.filter(|&axis| program.mesh.extent(axis) > 1));
                let collective = collective(&mut mutant, site);
                let is_other = collective.group != group;
                collective.group = group;
                return is_other;
            }
            4 | 5 => {
                let found = all[&other].iter().find(|(class, _)| *class == site.0);
                let Some(&there) = found.filter(|&&there| there != site) else {
                    return false;
                };
                // In another order, or each with the views of the other.
                swap_works(&mut mutant, [site, there], kind == 4);
            }
            _ => {
                // A sum becomes a gather of the addends.
                let found = collective(&mut mutant, site);
                let CollectiveKind::ReduceScatter { sources, .. } = &found.kind else {
                    return false;
                };
                let (source, targets) = (sources.views().get(0).unwrap(), sources.clone());
                found.kind = CollectiveKind::AllGather { source, targets };
            }
        }
        true
    });
    let what = format!("mutation {kind} of collective {sequence} at {sites:?}");
    changed.then_some((mutant, what))
}

/// Two views of a collective in the place of each other, if it has two that differ.
fn swap_views(mutant: &mut Program, site: TaskSite, draws: &mut Draws) -> bool {
    match &mut collective(mutant, site).kind {
        CollectiveKind::ReduceScatter { sources, .. } => swap_two(sources.each_mut(), draws),
        CollectiveKind::AllGather { targets, .. } => swap_two(targets.each_mut(), draws),
        CollectiveKind::AllToAll { sources, targets } => {
            let views = if draws.one_in(2) { sources } else { targets };
            swap_two(views.each_mut(), draws)
        }
        CollectiveKind::AllReduce { .. } => false,
    }
}

/// Two collectives in the place of each other, with their numbers or without.
fn swap_works(mutant: &mut Program, [site, there]: [TaskSite; 2], with_numbers: bool) {
    let [mut first, mut second] = [site, there].map(|at| collective(mutant, at).clone());
    if !with_numbers {
        std::mem::swap(&mut first.sequence, &mut second.sequence);
    }
    *collective(mutant, site) = second;
    *collective(mutant, there) = first;
}

/// Exchanges of a program by their numbers.
fn numbered_exchanges(program: &Program) -> BTreeMap<u32, Vec<TaskSite>> {
    let mut sites: BTreeMap<u32, Vec<TaskSite>> = BTreeMap::new();
    for (class, task) in exchanges(program) {
        if let Work::Exchange(exchange) = &program.bodies[class].tasks[task].work {
            sites
                .entry(exchange.sequence)
                .or_default()
                .push((class, task));
        }
    }
    sites
}

/// Whether a task adds to a gradient of a parameter or to a sum. Of gradients of tensors nothing tells
/// how many contributions they have.
fn adds_up(body: &Body, at: usize) -> Option<BufferId> {
    match &body.tasks[at].work {
        Work::Compute {
            kernel:
                Kernel::Copy {
                    source,
                    target,
                    accumulate: true,
                },
            ..
        } => {
            let role = body.buffer(target.buffer).role;
            matches!(role, Role::Gradient | Role::Statistics).then_some(source.buffer)
        }
        Work::Compute { .. }
        | Work::Exchange(_)
        | Work::Collective(_)
        | Work::Load(_)
        | Work::Store(_) => None,
    }
}

/// Takes an exchange away on all ranks, and with it what adds what came to something else.
fn drop_exchange(program: &mut Program, sites: &[TaskSite]) {
    let mut gone = Vec::new();
    for &(class, task) in sites {
        let receives = exchange(program, (class, task)).receives.clone();
        let came: BTreeSet<_> = receives.iter().map(|receive| receive.view.buffer).collect();
        gone.push((class, task));
        let body = &program.bodies[class];
        let adds = |&at: &usize| adds_up(body, at).is_some_and(|source| came.contains(&source));
        let later = (task..body.tasks.len()).filter(adds);
        gone.extend(later.map(|at| (class, at)));
    }
    gone.sort_unstable();
    gone.dedup();
    gone.into_iter()
        .rev()
        .for_each(|site| remove(program, site));
}

/// What another micro-batch has of a tensor.
fn twin(body: &Body, of: BufferId, draws: &mut Draws) -> Option<BufferId> {
    let buffer = body.buffer(of);
    let like = |&id: &usize| {
        let other = &body.buffers[id];
        id != of.0 as usize
            && (other.role, other.dtype, other.dims) == (buffer.role, buffer.dtype, buffer.dims)
    };
    let tensor = buffer.tensor?;
    let same = |&id: &usize| {
        let other = body.buffers[id].tensor;
        let is_apart = |other: TensorRegion| {
            other.id == tensor.id && other.distribution.micro != tensor.distribution.micro
        };
        other.is_some_and(is_apart)
    };
    let all: Vec<usize> = (0..body.buffers.len()).filter(like).filter(same).collect();
    (!all.is_empty()).then(|| BufferId(draws.pick(&all) as u32))
}

fn accumulates(kernel: &mut Kernel) -> Option<&mut bool> {
    match kernel {
        Kernel::Fused { parts } => parts.iter_mut().find_map(accumulates),
        Kernel::ConvolutionBackwardWeight { accumulate, .. }
        | Kernel::LinearBackwardWeight { accumulate, .. }
        | Kernel::BiasBackward { accumulate, .. }
        | Kernel::BatchNormBackwardParameters { accumulate, .. }
        | Kernel::Copy { accumulate, .. } => Some(accumulate),
        _ => None,
    }
}

/// As [`mutate`], to what crosses between stages and replicas and what they add up.
fn mutate_pipeline(program: &Program, draws: &mut Draws) -> Option<(Program, String)> {
    let mut mutant = program.clone();
    let all = numbered_exchanges(program);
    let numbers: Vec<u32> = all.keys().copied().collect();
    if numbers.is_empty() {
        return None;
    }
    // The last ones bring gradients and weights from replica to replica.
    let late = numbers.len().saturating_sub(12);
    let number = if draws.one_in(2) {
        draws.pick(&numbers)
    } else {
        draws.pick(&numbers[late..])
    };
    let sites = &all[&number];
    let (class, task) = draws.pick(sites);
    let kind = draws.between(0, 6);
    match kind {
        0 | 1 => drop_exchange(&mut mutant, sites),
        2 => exchange_others(
            &mut mutant,
            (class, task),
            &program.bodies[class],
            number.into(),
        )?,
        3 => {
            let at = overwrite(&mut mutant.bodies[class], draws)?;
            return Some((mutant, format!("t{at} of class {class} no longer adds")));
        }
        // A kernel reads what another micro-batch has.
        4 => {
            let body = &mut mutant.bodies[class];
            let at = draws.between(0, body.tasks.len() - 1);
            let accesses = body.tasks[at].accesses();
            let views: Vec<View> = accesses
                .iter()
                .filter(|(_, access)| *access == Access::Read)
                .map(|(view, _)| *view)
                .collect();
            let read = views.get(draws.between(0, 2))?.buffer;
            let other = twin(&program.bodies[class], read, draws)?;
            body.tasks[at].each_view_mut(&mut |view| {
                if view.buffer == read {
                    view.buffer = other;
                }
            });
            return Some((
                mutant,
                format!("t{at} of class {class} takes {other:?} for {read:?}"),
            ));
        }
        5 => remove(&mut mutant, (class, task)),
        _ => {
            let body = &mut mutant.bodies[class];
            let copies: Vec<usize> = (0..body.tasks.len())
                .filter(|&at| adds_up(body, at).is_some())
                .collect();
            let last = copies.len().checked_sub(1)?;
            let at = copies[draws.between(0, last)];
            remove(&mut mutant, (class, at));
            return Some((mutant, format!("class {class} without the addition t{at}")));
        }
    }
    let what = format!("mutation {kind} of exchange {number}, t{task} of class {class}");
    Some((mutant, what))
}

/// An exchange sends, or receives where it sends nothing, what another micro-batch has there.
fn exchange_others(mutant: &mut Program, site: TaskSite, body: &Body, seed: u64) -> Option<()> {
    let found = exchange(mutant, site);
    let views: Vec<&mut View> = if found.sends.is_empty() {
        let receives = found.receives.iter_mut();
        receives.map(|receive| &mut receive.view).collect()
    } else {
        found.sends.iter_mut().map(|send| &mut send.view).collect()
    };
    for view in views {
        view.buffer = twin(body, view.buffer, &mut Draws::new(seed))?;
    }
    Some(())
}

/// A kernel that adds to what is there writes over it; which.
fn overwrite(body: &mut Body, draws: &mut Draws) -> Option<usize> {
    let tasks = body.tasks.iter_mut().enumerate();
    let flags = tasks.filter_map(|(at, task)| match &mut task.work {
        Work::Compute { kernel, .. } => Some((at, accumulates(kernel)?)),
        Work::Exchange(_) | Work::Collective(_) | Work::Load(_) | Work::Store(_) => None,
    });
    let mut adding: Vec<(usize, &mut bool)> =
        flags.filter(|(_, accumulate)| **accumulate).collect();
    let last = adding.len().checked_sub(1)?;
    let (at, accumulate) = &mut adding[draws.between(0, last)];
    **accumulate = false;
    Some(*at)
}

type Mutate = fn(&Program, &mut Draws) -> Option<(Program, String)>;

/// Runs what is not refused; how many were refused, and how many were not.
fn survey(case: &Case, mutate: Mutate, mutants: usize) -> [usize; 2] {
    let kernels = jittery_kernels();
    let setup = Setup {
        steps: 2,
        ..Setup::of_case(case, &kernels)
    };
    let [fetch, train, evaluate] = [
        ProgramKind::Fetch,
        ProgramKind::Train,
        ProgramKind::Evaluate,
    ]
    .map(|kind| setup.program(kind).unwrap());
    let mut expected: Option<Outcome> = None;
    let mut draws = Draws::new(case.seed ^ 0xA5A5);
    let (mut refused, mut equivalent) = (0, 0);
    for _ in 0..mutants {
        let Some((mutant, what)) = mutate(&train, &mut draws) else {
            continue;
        };
        if partita_verify::verify(&mutant).is_err() {
            refused += 1;
            continue;
        }
        let expected = expected.get_or_insert_with(|| {
            run_programs(&setup, &[fetch.clone(), train.clone(), evaluate.clone()]).unwrap()
        });
        // Shown if the run itself finds something.
        println!("seed {} {}: {what}", case.seed, case.strategy);
        for _ in 0..3 {
            let programs = [fetch.clone(), mutant.clone(), evaluate.clone()];
            let got = run_programs(&setup, &programs)
                .unwrap_or_else(|error| panic!("seed {} {what}: {error}", case.seed));
            // What goes to one element in two messages may come in another order.
            let differs = mismatch(&got, expected, 1e-12);
            assert!(
                differs.is_none(),
                "PARTITA_SEED={} {}: {what}: {differs:?}",
                case.seed,
                case.strategy
            );
        }
        equivalent += 1;
    }
    [refused, equivalent]
}

fn survey_all(of: fn(u64) -> Case, mutate: Mutate) {
    let range = seeds(300, 6, 3000);
    let cases = range.end - range.start;
    let (mut refused, mut equivalent) = (0, 0);
    for seed in range {
        let [no, yes] = survey(&of(seed), mutate, 8);
        refused += no;
        equivalent += yes;
    }
    assert!(
        refused > 10 * equivalent,
        "{refused} refused, {equivalent} equivalent"
    );
    assert!(refused > cases as usize, "{refused} mutants are too few");
}

#[test]
fn every_mutant_is_refused_or_equivalent() {
    survey_all(random_case, mutate);
}

#[test]
fn every_mutant_with_groups_is_refused_or_equivalent() {
    survey_all(random_grouped_case, mutate);
}

#[test]
fn every_mutant_of_a_collective_is_refused_or_equivalent() {
    survey_all(random_layer_case, mutate_collective);
    survey_all(random_case, mutate_collective);
    survey_all(random_sequence_case, mutate_collective);
}

#[test]
fn every_mutant_of_a_pipeline_is_refused_or_equivalent() {
    survey_all(random_staged_case, mutate_pipeline);
}

#[test]
fn every_mutant_of_a_collective_or_message_of_a_pipeline_is_refused_or_equivalent() {
    survey_all(random_staged_case, mutate_collective);
    survey_all(random_staged_case, mutate);
}
