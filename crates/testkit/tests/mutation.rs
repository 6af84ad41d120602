//! No faulty program passes: what `verify` accepts of a mutant gives the same results.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use partita_program::{Exchange, Program, ProgramKind, TaskId, Work, verify};
use partita_space::Offset;
use partita_testkit::{Draws, Outcome, Setup, jittery_kernels, random_case, run_programs};

/// Where an exchange stands: class and task.
type Site = (usize, usize);

fn exchanges(program: &Program) -> Vec<Site> {
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

fn exchange(program: &mut Program, (class, task): Site) -> &mut Exchange {
    match &mut program.bodies[class].tasks[task].work {
        Work::Exchange(exchange) => exchange,
        other => panic!("{} is no exchange", other.name()),
    }
}

/// Drops a message on both sides, for every rank of the sender's class.
fn drop_pair(program: &mut Program, site: Site, index: usize) {
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
    let kind = draws.between(0, 7);
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
            let after = &mut body.tasks[draws.pick(&with)].after;
            let gone: TaskId = after.remove(draws.between(0, after.len() - 1));
            return Some((
                mutant,
                format!("class {} no longer waits for {gone:?}", site.0),
            ));
        }
        _ => return None,
    }
    Some((mutant, format!("mutation {kind} at {site:?}")))
}

#[test]
fn every_mutant_is_refused_or_equivalent() {
    let long = std::env::var("PARTITA_TEST_LONG").is_ok();
    let cases = if long { 3000 } else { 300 };
    let kernels = jittery_kernels();
    let (mut refused, mut equivalent) = (0, 0);
    for seed in 0..cases {
        let case = random_case(seed);
        let setup = Setup {
            steps: 2,
            ..Setup::of_case(&case, &kernels)
        };
        let [fetch, train, evaluate] = [
            ProgramKind::Fetch,
            ProgramKind::Train,
            ProgramKind::Evaluate,
        ]
        .map(|kind| setup.program(kind).unwrap());
        let mut expected: Option<Outcome> = None;
        let mut draws = Draws::new(seed ^ 0xA5A5);
        for _ in 0..8 {
            let Some((mutant, what)) = mutate(&train, &mut draws) else {
                continue;
            };
            if verify::verify(&mutant).is_err() {
                refused += 1;
                continue;
            }
            let expected = expected.get_or_insert_with(|| {
                run_programs(&setup, &[fetch.clone(), train.clone(), evaluate.clone()]).unwrap()
            });
            for _ in 0..3 {
                let programs = [fetch.clone(), mutant.clone(), evaluate.clone()];
                let got = run_programs(&setup, &programs);
                let got = got.unwrap_or_else(|error| panic!("seed {seed} {what}: {error}"));
                assert!(
                    got == *expected,
                    "PARTITA_SEED={seed} {}: {what}",
                    case.strategy
                );
            }
            equivalent += 1;
        }
    }
    assert!(
        refused > 10 * equivalent,
        "{refused} refused, {equivalent} equivalent"
    );
    assert!(refused > cases as usize, "{refused} mutants are too few");
}
