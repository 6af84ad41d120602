//! Simulations against makespans computed by hand, and of classes against those of ranks.
#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests lie outside test functions"
)]

use crate::fixed_costs;

use fixed_costs::{BodyBuilder, FixedCosts, program, spatial, step, view};
use partita_oracle::{
    Classes, Contention, CostError, Mode, Progress, SimulateError, Simulation, refine, simulate,
};
use partita_program::{CollectiveKind, Phase, Program};
use partita_space::{Axis, AxisSet, Mesh, Seconds};

const COSTS: FixedCosts = FixedCosts {
    contention: Contention::Units,
    progress: Progress::Queued,
    per_node: 64,
    host: 0.0,
};

fn ranks(program: &Program, fixed_costs: &FixedCosts) -> Simulation {
    simulate(program, fixed_costs, Mode::Ranks, 1).unwrap()
}

fn event(simulation: &Simulation, participant: usize, task: u32) -> (f64, f64) {
    let events = &simulation.traces[participant][0].events;
    let event = events.iter().find(|event| event.task.0 == task).unwrap();
    (event.start.0, event.end.0)
}

/// Two ranks; the second computes `other` seconds before the exchange.
fn pair(first: f64, other: f64) -> Program {
    let body = |seconds, by| {
        let mut builder = BodyBuilder::new();
        let before = builder.kernel(Phase::Forward, &[], seconds);
        let halo = builder.exchange(Phase::Forward, &[before], 0, &[step(1, by)], 8);
        builder.kernel(Phase::Forward, &[before], 2.0);
        let border = builder.kernel(Phase::Backward, &[halo], 4.0);
        let all = AxisSet::of([Axis::Depth]);
        let sum = builder.allreduce(Phase::Reduce, &[border], 0, all, 8);
        builder.kernel(Phase::Update, &[sum], 0.5);
        builder.body
    };
    let mesh = Mesh::new([1, 2, 1, 1, 1, 1, 1]);
    program(mesh, vec![body(first, 1), body(other, -1)], vec![0, 1])
}

#[test]
fn a_chain_of_kernels_messages_and_an_allreduce() {
    let simulation = ranks(&pair(5.0, 7.0), &COSTS);
    // Rendezvous: the message moves from 7 on, 1 + 32 / 4 seconds; the interior hides behind it.
    assert_eq!(event(&simulation, 0, 1), (5.0, 16.0));
    assert_eq!(event(&simulation, 1, 1), (7.0, 16.0));
    assert_eq!(event(&simulation, 0, 2), (5.0, 7.0));
    assert_eq!(event(&simulation, 1, 2), (7.0, 9.0));
    assert_eq!(event(&simulation, 0, 3), (16.0, 20.0));
    // Two members and 8 words: 2 + 8 seconds.
    assert_eq!(event(&simulation, 0, 4), (20.0, 30.0));
    assert_eq!(simulation.makespan, Seconds(30.5));
    let breakdown = simulation.breakdown;
    assert_eq!(breakdown.forward_compute, Seconds(7.0));
    assert_eq!(breakdown.forward_exchange, Seconds(9.0));
    assert_eq!(breakdown.backward_compute, Seconds(4.0));
    assert_eq!(breakdown.gradient_allreduce_exposed, Seconds(10.0));
    assert_eq!(breakdown.update, Seconds(0.5));
    assert_eq!(breakdown.total(), simulation.makespan);
    assert_eq!(simulation.path_latency, Seconds(3.0));
}

#[test]
fn reduce_scatter_and_alltoall_are_costed_by_the_bytes_of_all_members() {
    let group = AxisSet::of([Axis::Depth]);
    let views = |elements: [usize; 2]| elements.map(view).to_vec().into();
    let body = |rank: usize, seconds: f64, blocks: [usize; 2]| {
        let mut builder = BodyBuilder::new();
        let before = builder.kernel(Phase::Forward, &[], seconds);
        let scatter = CollectiveKind::ReduceScatter {
            sources: views([1, 3]),
            target: view([1, 3][rank]),
        };
        let sum = builder.collective(Phase::Reduce, &[before], 0, group, scatter);
        let turn = CollectiveKind::AllToAll {
            sources: views(blocks),
            targets: Vec::new().into(),
        };
        builder.collective(Phase::Forward, &[sum], 1, group, turn);
        builder.body
    };
    let bodies = vec![body(0, 1.0, [5, 2]), body(1, 3.0, [1, 7])];
    let mesh = Mesh::new([1, 2, 1, 1, 1, 1, 1]);
    let simulation = ranks(&program(mesh, bodies, vec![0, 1]), &COSTS);
    // 4 words of shares; at most 2 words to another member and 8 from one.
    for rank in 0..2 {
        assert_eq!(event(&simulation, rank, 1).1, 7.0);
        assert_eq!(event(&simulation, rank, 2), (7.0, 17.0));
    }
    let breakdown = simulation.breakdown;
    assert_eq!(breakdown.gradient_allreduce_exposed, Seconds(4.0));
    assert_eq!(breakdown.redistribution, Seconds(10.0));
    assert_eq!(simulation.path_latency, Seconds(2.0));
}

#[test]
fn a_gradient_allreduce_overlaps_later_kernels() {
    let body = |reduced_first: bool| {
        let mut builder = BodyBuilder::new();
        let weights = builder.kernel(Phase::Backward, &[], 3.0);
        let all = AxisSet::of([Axis::Data]);
        let after = if reduced_first {
            vec![weights]
        } else {
            vec![weights, 1]
        };
        if reduced_first {
            let sum = builder.allreduce(Phase::Reduce, &after, 0, all, 8);
            let data = builder.kernel(Phase::Backward, &[], 6.0);
            builder.kernel(Phase::Update, &[sum, data], 1.0);
        } else {
            builder.kernel(Phase::Backward, &[], 6.0);
            let sum = builder.allreduce(Phase::Reduce, &after, 0, all, 8);
            builder.kernel(Phase::Update, &[sum], 1.0);
        }
        builder.body
    };
    let mesh = Mesh::new([2, 1, 1, 1, 1, 1, 1]);
    let early = ranks(&program(mesh, vec![body(true)], vec![0, 0]), &COSTS);
    let late = ranks(&program(mesh, vec![body(false)], vec![0, 0]), &COSTS);
    assert_eq!(early.makespan, Seconds(3.0 + 10.0 + 1.0));
    assert_eq!(late.makespan, Seconds(3.0 + 6.0 + 10.0 + 1.0));
    // Six of the ten seconds hide: the path runs through the sum alone.
    assert_eq!(early.breakdown.backward_compute, Seconds(3.0));
    assert_eq!(early.breakdown.gradient_allreduce_exposed, Seconds(10.0));
}

#[test]
fn prefetching_is_hidden_unless_it_is_longer_than_the_step() {
    let body = |elements| {
        let mut builder = BodyBuilder::new();
        builder.load(&[], elements);
        builder.kernel(Phase::Forward, &[], 10.0);
        builder.body
    };
    let mesh = Mesh::new([1; 7]);
    let hidden = ranks(&program(mesh, vec![body(4)], vec![0]), &COSTS);
    assert_eq!(
        (hidden.makespan, hidden.breakdown.io),
        (Seconds(10.0), Seconds(0.0))
    );
    let shown = ranks(&program(mesh, vec![body(12)], vec![0]), &COSTS);
    assert_eq!(
        (shown.makespan, shown.breakdown.io),
        (Seconds(12.0), Seconds(12.0))
    );
}

#[test]
fn host_overhead_delays_kernels() {
    let fixed_costs = FixedCosts {
        contention: Contention::Units,
        progress: Progress::Queued,
        per_node: 64,
        host: 0.5,
    };
    let simulation = ranks(&pair(5.0, 5.0), &fixed_costs);
    // One send and one receive: a second of host time falls on the interior kernel.
    assert_eq!(event(&simulation, 0, 2), (5.0, 8.0));
    // The message still takes its nine seconds, and nothing else runs during the sum.
    assert_eq!(simulation.makespan, Seconds(5.0 + 9.0 + 4.0 + 10.0 + 0.5));

    let mut long = pair(5.0, 5.0);
    for body in &mut long.bodies {
        let mut builder = BodyBuilder::new();
        builder.kernel(Phase::Forward, &[], 20.0);
        body.tasks[2].work = builder.body.tasks[0].work.clone();
    }
    let simulation = ranks(&long, &fixed_costs);
    assert_eq!(event(&simulation, 0, 2), (5.0, 26.0));
    assert_eq!(simulation.breakdown.forward_exchange, Seconds(1.0));
    assert_eq!(simulation.breakdown.forward_compute, Seconds(25.0));
    assert_eq!(simulation.breakdown.total(), simulation.makespan);
}

#[test]
fn steps_follow_each_other_without_a_barrier() {
    let one = simulate(&pair(5.0, 7.0), &COSTS, Mode::Ranks, 1).unwrap();
    let three = simulate(&pair(5.0, 7.0), &COSTS, Mode::Ranks, 3).unwrap();
    assert_eq!(three.makespan.0, 3.0 * one.makespan.0);
    assert_eq!(three.breakdown.total(), three.makespan);
    assert_eq!(three.traces[0].len(), 3);
    assert!(
        three.traces[1][2]
            .events
            .iter()
            .all(|event| event.start.0 >= 61.0)
    );
}

#[test]
fn messages_of_a_node_contend_for_its_adapters() {
    let body = |by| {
        let mut builder = BodyBuilder::new();
        builder.exchange(Phase::Forward, &[], 0, &[step(1, by)], 8);
        builder.body
    };
    // Depth is the slower axis: ranks 0 to 3 have their peers in ranks 4 to 7.
    let mesh = Mesh::new([1, 2, 4, 1, 1, 1, 1]);
    let across = program(mesh, vec![body(1), body(-1)], vec![0, 0, 0, 0, 1, 1, 1, 1]);
    let makespan = |per_node| {
        ranks(
            &across,
            &FixedCosts {
                contention: Contention::Units,
                progress: Progress::Queued,
                per_node,
                host: 0.0,
            },
        )
        .makespan
        .0
    };
    assert_eq!(makespan(8), 1.0 + 8.0);
    assert_eq!(makespan(1), 10.0 + 8.0);
    assert_eq!(makespan(2), 10.0 + 16.0);
    assert_eq!(makespan(4), 10.0 + 32.0);
}

#[test]
fn simulations_of_classes_and_of_ranks_are_equal() {
    for (seed, per_node, host) in [
        (1, 64, 0.0),
        (2, 4, 0.0),
        (3, 3, 0.0),
        (4, 5, 0.25),
        (5, 2, 0.25),
        (6, 8, 0.1),
    ] {
        for extents in [
            [4, 4, 2, 1, 1, 1, 1],
            [2, 5, 3, 1, 1, 1, 1],
            [8, 1, 4, 2, 1, 1, 1],
        ] {
            let program = spatial(extents, 6, seed);
            let fixed_costs = FixedCosts {
                contention: Contention::Units,
                progress: Progress::Queued,
                per_node,
                host,
            };
            let all = simulate(&program, &fixed_costs, Mode::Ranks, 2).unwrap();
            let few = simulate(&program, &fixed_costs, Mode::Classes, 2).unwrap();
            if extents[0] == 4 && matches!(per_node, 2 | 4 | 8 | 64) {
                assert_eq!(few.participants.len(), 8, "four equal rows of 4 x 2 ranks");
            }
            let off = (few.makespan.0 / all.makespan.0 - 1.0).abs();
            assert!(
                off < 1e-12,
                "{seed} {extents:?}: {:?} {:?}",
                few.makespan,
                all.makespan
            );
            assert!((few.breakdown.total().0 / few.makespan.0 - 1.0).abs() < 1e-12);
            assert!((all.breakdown.total().0 / all.makespan.0 - 1.0).abs() < 1e-12);
            every_task_at_the_same_time(&program, &fixed_costs, &few, &all);
        }
    }
}

fn every_task_at_the_same_time(
    program: &Program,
    fixed_costs: &FixedCosts,
    few: &Simulation,
    all: &Simulation,
) {
    use partita_oracle::Costs;
    let classes = refine(
        program,
        |rank| fixed_costs.node(rank),
        |a, b| fixed_costs.link(a, b),
    )
    .unwrap();
    let ends = |simulation: &Simulation, at: usize| {
        let mut ends = vec![
            0.0;
            program.bodies[simulation.participants[at].body as usize]
                .tasks
                .len()
        ];
        for event in &simulation.traces[at][simulation.steps - 1].events {
            ends[event.task.0 as usize] = event.end.0;
        }
        ends
    };
    for rank in 0..program.mesh.ranks() {
        let by_class = ends(few, classes.class_of[rank] as usize);
        for (task, (one, other)) in by_class.iter().zip(ends(all, rank)).enumerate() {
            assert!(
                (one - other).abs() < 1e-9,
                "rank {rank} task {task}: {one} {other}"
            );
        }
    }
}

#[test]
fn classes_split_by_links_and_by_distance_from_the_edge() {
    let program = spatial([1, 6, 1, 1, 1, 1, 1], 1, 9);
    let count = |per_node: usize| {
        let node = |rank: usize| rank / per_node;
        refine(&program, node, |a, b| u32::from(node(a) != node(b))).unwrap()
    };
    let sizes = |classes: &Classes| classes.sizes.iter().sum::<usize>();
    // Six in a row on one node: the two ends have bodies of their own, so all six differ.
    assert_eq!((count(6).len(), sizes(&count(6))), (6, 6));
    // Four rows beside each other: one row's classes.
    let rows = spatial([4, 6, 1, 1, 1, 1, 1], 1, 9);
    let classes = refine(&rows, |rank| rank / 6, |a, b| u32::from(a / 6 != b / 6)).unwrap();
    assert_eq!(classes.sizes, [4; 6]);
    // On nodes of four, rows start in the middle of a node every other time.
    let classes = refine(&rows, |rank| rank / 4, |a, b| u32::from(a / 4 != b / 4)).unwrap();
    assert_eq!(classes.sizes, [2; 12]);
}

#[test]
fn programs_that_cannot_end_are_errors() {
    let mut alone = BodyBuilder::new();
    alone.exchange(Phase::Forward, &[], 0, &[step(1, 1)], 1);
    let mut other = BodyBuilder::new();
    other.exchange(Phase::Forward, &[], 7, &[step(1, -1)], 1);
    let mesh = Mesh::new([1, 2, 1, 1, 1, 1, 1]);
    let unmatched = program(mesh, vec![alone.body.clone(), other.body], vec![0, 1]);
    let error = simulate(&unmatched, &COSTS, Mode::Ranks, 1).unwrap_err();
    assert!(
        matches!(error, SimulateError::Unmatched { sequence: 0, .. }),
        "{error}"
    );

    let outside = program(mesh, vec![alone.body], vec![0, 0]);
    let error = simulate(&outside, &COSTS, Mode::Classes, 1).unwrap_err();
    assert!(
        matches!(error, SimulateError::Peer { rank: 1, .. }),
        "{error}"
    );

    // Each waits in its first exchange for the other's second.
    let body = |order: [u32; 2], by| {
        let mut builder = BodyBuilder::new();
        let first = builder.exchange(Phase::Forward, &[], order[0], &[step(1, by)], 1);
        builder.exchange(Phase::Forward, &[first], order[1], &[step(1, by)], 1);
        builder.body
    };
    let crossed = program(mesh, vec![body([0, 1], 1), body([1, 0], -1)], vec![0, 1]);
    let error = simulate(&crossed, &COSTS, Mode::Ranks, 1).unwrap_err();
    assert!(
        matches!(error, SimulateError::Deadlock { open: 2, .. }),
        "{error}"
    );

    let mut unknown = pair(1.0, 1.0);
    let mut builder = BodyBuilder::new();
    builder.kernel(Phase::Forward, &[], f64::NAN);
    unknown.bodies[0].tasks[0].work = match builder.body.tasks[0].work.clone() {
        partita_program::Work::Compute { kernel, .. } => partita_program::Work::Compute {
            kernel,
            algorithm: partita_program::Algorithm::unpinned(),
            workspace: None,
        },
        other => other,
    };
    let error = simulate(&unknown, &COSTS, Mode::Ranks, 1).unwrap_err();
    let SimulateError::Cost(CostError::Kernel { algorithm, .. }) = &error else {
        panic!("{error}");
    };
    assert_eq!(algorithm, "unpinned");
    assert_eq!(
        simulate(&unknown, &COSTS, Mode::Ranks, 0),
        Err(SimulateError::NoSteps)
    );
}

#[test]
fn thousands_of_ranks_are_simulated_as_a_few_classes() {
    let fixed_costs = FixedCosts {
        contention: Contention::Units,
        progress: Progress::Queued,
        per_node: 4,
        host: 0.0,
    };
    for (split, ranks, classes) in [([128, 8, 4], 4096, 32), ([256, 8, 8], 16384, 64)] {
        let [data, depth, height] = split;
        let program = spatial([data, depth, height, 1, 1, 1, 1], 85, 3);
        assert_eq!(program.mesh.ranks(), ranks);
        assert!(program.bodies[0].tasks.len() > 500);
        let simulation = simulate(&program, &fixed_costs, Mode::Classes, 1).unwrap();
        assert_eq!(simulation.participants.len(), classes, "{ranks} ranks");
    }
}

#[test]
fn a_kernel_that_ends_as_a_message_starts_is_not_delayed() {
    let mut late = BodyBuilder::new();
    let before = late.kernel(Phase::Forward, &[], 5.0);
    late.exchange(Phase::Forward, &[before], 0, &[step(1, 1)], 8);
    let mut early = BodyBuilder::new();
    early.exchange(Phase::Forward, &[], 0, &[step(1, -1)], 8);
    early.kernel(Phase::Forward, &[], 5.0);
    early.kernel(Phase::Forward, &[], 20.0);
    let mesh = Mesh::new([1, 2, 1, 1, 1, 1, 1]);
    let fixed_costs = FixedCosts {
        contention: Contention::Units,
        progress: Progress::Queued,
        per_node: 64,
        host: 0.5,
    };
    let simulation = ranks(
        &program(mesh, vec![late.body, early.body], vec![0, 1]),
        &fixed_costs,
    );
    assert_eq!(event(&simulation, 1, 1), (0.0, 5.0));
    assert_eq!(event(&simulation, 1, 2), (5.0, 26.0));
}

#[test]
fn collectives_split_classes() {
    let body = |seconds| {
        let mut builder = BodyBuilder::new();
        let before = builder.kernel(Phase::Forward, &[], seconds);
        let depth = AxisSet::of([Axis::Depth]);
        builder.allreduce(Phase::Forward, &[before], 0, depth, 4);
        builder.body
    };
    let mesh = Mesh::new([4, 2, 1, 1, 1, 1, 1]);
    // Two of the four pairs have a slow member.
    let uneven = program(
        mesh,
        vec![body(1.0), body(9.0)],
        vec![0, 1, 0, 0, 0, 1, 0, 0],
    );
    let few = simulate(&uneven, &COSTS, Mode::Classes, 1).unwrap();
    let sizes: Vec<usize> = few.participants.iter().map(|one| one.ranks).collect();
    assert_eq!(sizes, [2, 2, 4]);
    // One pair of the four lies on two nodes: nodes of three hold 0 to 2, 3 to 5, 6 and 7.
    let even = program(mesh, vec![body(1.0)], vec![0; 8]);
    let fixed_costs = FixedCosts {
        contention: Contention::Units,
        progress: Progress::Queued,
        per_node: 3,
        host: 0.0,
    };
    let few = simulate(&even, &fixed_costs, Mode::Classes, 1).unwrap();
    let all = simulate(&even, &fixed_costs, Mode::Ranks, 1).unwrap();
    every_task_at_the_same_time(&even, &fixed_costs, &few, &all);
    let within = event(&all, 0, 1).1;
    let across = event(&all, 2, 1).1;
    assert_eq!((within, across), (1.0 + 2.0 + 4.0, 1.0 + 3.0 + 4.0));
}

#[test]
fn kinds_of_links_split_classes() {
    let body = |by| {
        let mut builder = BodyBuilder::new();
        builder.exchange(Phase::Forward, &[], 0, &[step(1, by)], 4);
        builder.body
    };
    let mesh = Mesh::new([4, 2, 1, 1, 1, 1, 1]);
    let pairs = program(mesh, vec![body(1), body(-1)], vec![0, 1, 0, 1, 0, 1, 0, 1]);
    let alike = refine(&pairs, |_| 0, |_, _| 1).unwrap();
    assert_eq!(alike.sizes, [4, 4]);
    let slow = refine(&pairs, |_| 0, |a, b| u32::from(a.min(b) == 4)).unwrap();
    assert_eq!(slow.sizes, [3, 3, 1, 1]);
}

#[test]
fn a_task_that_only_sends_does_not_wait() {
    let one_way = |builder: &mut BodyBuilder, after: &[u32], sequence, by: i32| {
        let task = builder.exchange(Phase::Forward, after, sequence, &[step(1, by)], 8);
        let work = &mut builder.body.tasks[task as usize].work;
        if let partita_program::Work::Exchange(exchange) = work {
            match by {
                1 => exchange.receives.clear(),
                _ => exchange.sends.clear(),
            }
        }
        task
    };
    let mut sender = BodyBuilder::new();
    let before = sender.kernel(Phase::Forward, &[], 5.0);
    let first = one_way(&mut sender, &[before], 0, 1);
    one_way(&mut sender, &[first], 1, 1);
    let mut receiver = BodyBuilder::new();
    let first = one_way(&mut receiver, &[], 0, -1);
    let between = receiver.kernel(Phase::Forward, &[first], 20.0);
    one_way(&mut receiver, &[between], 1, -1);
    let mesh = Mesh::new([1, 2, 1, 1, 1, 1, 1]);
    let simulation = ranks(
        &program(mesh, vec![sender.body, receiver.body], vec![0, 1]),
        &COSTS,
    );
    assert_eq!(event(&simulation, 0, 1), (5.0, 14.0));
    assert_eq!(event(&simulation, 0, 2), (14.0, 23.0));
    assert_eq!(event(&simulation, 1, 0), (0.0, 14.0));
    assert_eq!(event(&simulation, 1, 2), (34.0, 43.0));
}

#[test]
fn the_longest_message_between_two_ranks_counts() {
    let body = |by| {
        let mut builder = BodyBuilder::new();
        let offsets = [step(1, by), step(1, by), step(1, by)];
        builder.exchange(Phase::Forward, &[], 0, &offsets, 2);
        if let partita_program::Work::Exchange(exchange) = &mut builder.body.tasks[0].work {
            for (part, elements) in [5, 8, 3].into_iter().enumerate() {
                exchange.sends[part].part = part as u32;
                exchange.sends[part].view = fixed_costs::view(elements);
                exchange.receives[part].part = part as u32;
                exchange.receives[part].view = fixed_costs::view(elements);
            }
        }
        builder.body
    };
    let mesh = Mesh::new([1, 2, 1, 1, 1, 1, 1]);
    let pair = program(mesh, vec![body(1), body(-1)], vec![0, 1]);
    assert_eq!(ranks(&pair, &COSTS).makespan, Seconds(1.0 + 8.0));
    // Over one adapter: 3 words three times, 2 more twice, 3 more alone, 16 in all for the longest.
    let apart = FixedCosts {
        contention: Contention::Units,
        progress: Progress::Queued,
        per_node: 1,
        host: 0.0,
    };
    assert_eq!(ranks(&pair, &apart).makespan, Seconds(10.0 + 16.0));
}

/// Three ranks of one node, each with a kernel of its own and nothing to say.
fn alone(times: [&str; 3]) -> Program {
    let body = |time: &str| {
        let mut builder = BodyBuilder::new();
        builder.kernel_of(Phase::Forward, &[], time);
        builder.body
    };
    let mesh = Mesh::new([3, 1, 1, 1, 1, 1, 1]);
    program(mesh, times.map(body).to_vec(), vec![0, 1, 2])
}

#[test]
fn co_located_kernels_slow_each_other_down() {
    // All three take twice as long together: a third of them half as much longer.
    let simulation = ranks(&alone(["2/4", "2/4", "2/4"]), &COSTS);
    assert_eq!(simulation.makespan, Seconds(4.0));
    // The first ends at 1 and does 1 of 4 seconds' work at its pace; the two others have 3/4 left at
    // 1.5 times the time alone: the second ends after 3/4 * 3 s more, and the third, of twice the
    // work, has done 1/8 and 2.25/6 and has the other half to itself.
    let simulation = ranks(&alone(["1/1", "2/4", "4/8"]), &COSTS);
    assert_eq!(event(&simulation, 0, 0), (0.0, 1.0));
    assert_eq!(event(&simulation, 1, 0), (0.0, 3.25));
    assert_eq!(event(&simulation, 2, 0), (0.0, 3.25 + 2.0));
    // On nodes of their own nobody disturbs them.
    let apart = FixedCosts {
        contention: Contention::Units,
        progress: Progress::Queued,
        per_node: 1,
        host: 0.0,
    };
    let simulation = ranks(&alone(["2/4", "2/4", "2/4"]), &apart);
    assert_eq!(simulation.makespan, Seconds(2.0));
}

/// All kernels access as many bytes, so that one of twice the time has half the traffic.
#[test]
fn kernels_that_share_memory_slow_each_other_down_by_their_traffic() {
    let memory = FixedCosts {
        contention: Contention::Memory,
        ..COSTS
    };
    let simulation = ranks(&alone(["2/4", "2/4", "2/4"]), &memory);
    assert_eq!(simulation.makespan, Seconds(4.0));
    // One of three beside two of half and of a quarter its traffic loses 3/8 of what it would lose beside two of its
    // own kind: it takes 1 + 3/8. The second loses all beside the first, and half beside the third.
    let simulation = ranks(&alone(["1/2", "2/4", "4/4"]), &memory);
    let first = 1.0 + 0.375;
    assert_eq!(event(&simulation, 0, 0), (0.0, first));
    let (before, after) = (2.0 * (1.0 + 0.75), 2.0 * (1.0 + 0.25));
    let second = first + (1.0 - first / before) * after;
    assert!((event(&simulation, 1, 0).1 - second).abs() < 1e-12);
    assert_eq!(event(&simulation, 2, 0), (0.0, 4.0));
}
