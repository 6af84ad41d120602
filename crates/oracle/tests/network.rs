//! What is under way at once shares the network: hand values.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fixed_costs;

use fixed_costs::{BodyBuilder, FixedCosts, program, spatial, step};
use partita_oracle::{Mode, Simulation, simulate};
use partita_program::{Body, Phase, Program};
use partita_space::{Axis, AxisSet, Mesh, Seconds};

fn played(program: &Program, per_node: usize) -> Simulation {
    let table = FixedCosts {
        per_node,
        host: 0.0,
    };
    let all = simulate(program, &table, Mode::Ranks, 1).unwrap();
    let classes = simulate(program, &table, Mode::Classes, 1).unwrap();
    let off = (classes.makespan.0 / all.makespan.0 - 1.0).abs();
    assert!(off < 1e-9, "{:?} {:?}", classes.makespan, all.makespan);
    all
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

fn makespan(counts: &[usize], ranks: usize, per_node: usize) -> f64 {
    let program = program(data(ranks), vec![sums(counts)], vec![0; ranks]);
    played(&program, per_node).makespan.0
}

#[test]
fn equal_sums_take_as_often_as_long() {
    // Two members: 2 s, and a second for every word.
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
fn a_small_sum_is_not_held_up_by_a_large_one() {
    let program = program(data(2), vec![sums(&[400, 1])], vec![0; 2]);
    let simulation = played(&program, 64);
    let end = |task: u32| {
        let events = &simulation.traces[0][0].events;
        let event = events.iter().find(|event| event.task.0 == task);
        event.unwrap().end.0
    };
    assert_eq!(end(1), 3.0);
    assert!(end(0) >= 402.0 && end(0) <= 403.0, "{}", end(0));
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
            let simulation = played(&spatial(extents, 5, seed), per_node);
            assert!(simulation.makespan.0 > 0.0);
        }
    }
}
