//! What is under way at once shares the network: hand values.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::fixed_costs;

use fixed_costs::{BodyBuilder, FixedCosts, program, spatial, step};
use partita_oracle::{Contention, Mode, Progress, Simulation, rank_seconds, simulate};
use partita_program::{Body, Phase, Program};
use partita_space::{Axis, AxisSet, Mesh, Seconds};

fn played_with(program: &Program, per_node: usize, progress: Progress) -> Simulation {
    let table = FixedCosts {
        contention: Contention::Units,
        progress,
        per_node,
        host: 0.0,
    };
    let all = simulate(program, &table, Mode::Ranks, 1).unwrap();
    let classes = simulate(program, &table, Mode::Classes, 1).unwrap();
    let off = (classes.makespan.0 / all.makespan.0 - 1.0).abs();
    assert!(off < 1e-9, "{:?} {:?}", classes.makespan, all.makespan);
    for rank in 0..program.mesh.ranks() {
        let bound = rank_seconds(program.body(rank), rank, &program.mesh, &table).0;
        let seconds = all.makespan.0;
        assert!(
            bound <= seconds * (1.0 + 1e-12),
            "rank {rank}: {bound} {seconds}"
        );
    }
    let path = all.breakdown.total().0;
    let off = (path / all.makespan.0 - 1.0).abs();
    assert!(off < 1e-9, "{path} {:?}", all.makespan);
    all
}

fn played(program: &Program, per_node: usize) -> Simulation {
    played_with(program, per_node, Progress::Polled)
}

fn data(ranks: usize) -> Mesh {
    Mesh::new([ranks, 1, 1, 1, 1, 1, 1])
}

fn sums(counts: &[usize]) -> Body {
    let mut maker = BodyBuilder::new();
    let all = AxisSet::of([Axis::Data]);
    for (sequence, &elements) in counts.iter().enumerate() {
        maker.allreduce(Phase::Reduce, &[], sequence as u32, all, elements);
    }
    maker.body
}

fn program_of_sums(counts: &[usize], ranks: usize) -> Program {
    program(data(ranks), vec![sums(counts)], vec![0; ranks])
}

fn end(simulation: &Simulation, task: u32) -> f64 {
    let events = &simulation.traces[0][0].events;
    let event = events.iter().find(|event| event.task.0 == task);
    event.unwrap().end.0
}

#[test]
fn equal_sums_take_as_often_as_long() {
    let makespan = |counts: &[usize], ranks, per_node| {
        let program = program_of_sums(counts, ranks);
        played(&program, per_node).makespan.0
    };
    // Two members: 2 s, and a second for every word. The latencies of sums under way at once overlap.
    let one = makespan(&[4000], 2, 64);
    assert_eq!(one, 4002.0);
    for count in [2, 3, 7] {
        let all = makespan(&vec![4000; count], 2, 64);
        assert!((all - 4000.0 * count as f64).abs() < 1e-6, "{all}");
    }
    // Between nodes as within.
    let [one, three] = [1, 3].map(|count| makespan(&vec![4000; count], 8, 4));
    assert!((three / one - 3.0).abs() < 0.01, "{one} {three}");
}

#[test]
fn sums_of_a_group_run_one_after_the_other_where_the_library_queues_them() {
    for ranks in [2, 8] {
        for per_node in [64, 4] {
            let of = |counts: &[usize]| {
                played_with(&program_of_sums(counts, ranks), per_node, Progress::Queued)
            };
            let one = of(&[4000]).makespan.0;
            let three = of(&[4000; 3]);
            assert_eq!(
                [0, 1, 2].map(|task| end(&three, task)),
                [one, 2.0 * one, 3.0 * one]
            );
            // Of the time in sums, all is told as such, and the latency of each counts.
            assert_eq!(three.breakdown.gradient_allreduce_exposed, three.makespan);
            assert_eq!(three.path_latency, of(&[4000]).path_latency * 3.0);
        }
    }
}

#[test]
fn a_small_sum_is_not_held_up_by_a_large_one_under_way_at_once() {
    let program = program_of_sums(&[400, 1], 2);
    let simulation = played(&program, 64);
    // It asks for a third of a link, the large one for nearly all.
    let small = end(&simulation, 1);
    assert!((3.9..4.0).contains(&small), "{small}");
    let large = end(&simulation, 0);
    assert!((402.0..=403.0).contains(&large), "{large}");
    // In a queue it waits.
    let simulation = played_with(&program, 64, Progress::Queued);
    assert_eq!(end(&simulation, 1), 402.0 + 3.0);
}

#[test]
fn halos_and_sums_share_links() {
    let body = |by: i32, with_sum: bool| {
        let mut maker = BodyBuilder::new();
        maker.exchange(Phase::Forward, &[], 0, &[step(1, by)], 4000);
        if with_sum {
            let all = AxisSet::of([Axis::Depth]);
            maker.allreduce(Phase::Reduce, &[], 0, all, 4000);
        }
        maker.body
    };
    let mesh = Mesh::new([1, 2, 1, 1, 1, 1, 1]);
    let of = |with_sum| {
        let bodies = vec![body(1, with_sum), body(-1, with_sum)];
        played(&program(mesh, bodies, vec![0, 1]), 64).makespan
    };
    assert_eq!(of(false), Seconds(4001.0));
    assert!((of(true).0 - 8000.0).abs() < 2.0, "{:?}", of(true));
}

#[test]
fn classes_share_as_ranks_do() {
    for (seed, per_node) in [(1, 64), (2, 4), (3, 3), (4, 2)] {
        for extents in [[4, 4, 2, 1, 1, 1, 1], [2, 5, 3, 1, 1, 1, 1]] {
            for progress in [Progress::Polled, Progress::Queued] {
                let simulation = played_with(&spatial(extents, 5, seed), per_node, progress);
                assert!(simulation.makespan.0 > 0.0);
            }
        }
    }
}

#[test]
fn a_lower_bound_counts_the_groups_that_share_the_adapters_of_a_node() {
    let mesh = Mesh::new([2, 1, 2, 1, 1, 1, 1]);
    let program = program(mesh, vec![sums(&[4000])], vec![0; 4]);
    // Ranks 0 and 1 are on one node, and sum with 2 and 3.
    let shared = played(&program, 2).makespan.0;
    let table = |per_node| FixedCosts {
        contention: Contention::Units,
        progress: Progress::Polled,
        per_node,
        host: 0.0,
    };
    let bound = |per_node| rank_seconds(program.body(1), 1, &mesh, &table(per_node)).0;
    assert_eq!(bound(2), shared);
    // On one node, or each on a node of its own, they share none.
    assert!(bound(64) < shared && bound(1) < shared, "{shared}");
}
