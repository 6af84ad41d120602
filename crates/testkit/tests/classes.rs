//! A class stands for its ranks.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use partita_lower::{Strategy, lower, lower_rank, lower_ranks};
use partita_program::{Body, CollectiveKind, Dtype, Optimizer, ProgramKind, Work};
use partita_testkit::verify::verify_classes;
use partita_testkit::{
    Case, Setup, least_of, random_case, random_layer_case, random_sequence_case,
    random_staged_case, random_wide_case, reference_kernels, seeds,
};
use std::collections::BTreeMap;

/// Numbers the exchanges and collectives of all ranks from 1 without gaps, as `lower` does.
fn close_gaps(bodies: &mut [Body]) {
    let number = |work: &mut Work, with: &mut dyn FnMut(&mut u32)| match work {
        Work::Exchange(exchange) => with(&mut exchange.sequence),
        Work::Collective(collective) => with(&mut collective.sequence),
        Work::Compute { .. } | Work::Load(_) | Work::Store(_) => {}
    };
    let mut dense = BTreeMap::new();
    for task in bodies.iter_mut().flat_map(|body| &mut body.tasks) {
        number(&mut task.work, &mut |sequence| {
            dense.insert(*sequence, 0);
        });
    }
    dense.values_mut().zip(1..).for_each(|(to, at)| *to = at);
    for task in bodies.iter_mut().flat_map(|body| &mut body.tasks) {
        number(&mut task.work, &mut |sequence| *sequence = dense[sequence]);
    }
}

/// How many ranks share the body of another one; each has the one that it has alone.
fn compare(cases: impl Iterator<Item = Case>) -> usize {
    let kernels = reference_kernels(Dtype::F64);
    let mut shared = 0;
    for case in cases {
        let setup = Setup::of_case(&case, &kernels);
        for kind in [
            ProgramKind::Train,
            ProgramKind::Evaluate,
            ProgramKind::Fetch,
        ] {
            let request = setup.request(kind);
            let program = lower(&request).unwrap();
            let ranks = 0..program.mesh.ranks();
            let alone: Vec<Body> = ranks
                .clone()
                .map(|rank| lower_rank(&request, rank))
                .collect::<Result<_, _>>()
                .unwrap();
            let mut dense = alone.clone();
            close_gaps(&mut dense);
            let other = |bodies: &[Body]| ranks.clone().find(|&r| bodies[r] != *program.body(r));
            // Gaps are closed where they can be.
            if let (Some(rank), Some(_)) = (other(&alone), other(&dense)) {
                panic!("seed {} {} rank {rank}", case.seed, case.strategy);
            }
            shared += program.mesh.ranks() - program.bodies.len();
        }
    }
    shared
}

#[test]
fn every_rank_lowers_to_the_body_of_its_class() {
    let range = seeds(300, 4, 300);
    let least = least_of(1000, 300, &range);
    let cases = range.flat_map(|seed| {
        [
            random_case(seed),
            random_layer_case(seed),
            random_sequence_case(seed),
        ]
    });
    let shared = compare(cases);
    assert!(shared > least, "only {shared} ranks share a body");
}

/// Along an axis that splits a tensor only before a redistribution, each rank sends to the others what it has.
#[test]
fn ranks_that_send_copies_to_other_places_are_told_apart() {
    const CHAIN: &str = "model chain
input x channels=4 extent=8x8
c1 = conv x filters=8 kernel=1 bias=false
c2 = conv c1 filters=8 kernel=1 bias=false
c3 = conv c2 filters=8 kernel=1 bias=false
loss = mse c3
";
    let kernels = reference_kernels(Dtype::F64);
    let mut copies = 0;
    for strategy in [
        "height=2,width=2; c2..: H=width,W=-",
        "height=2,width=2; c2: H=width,W=-",
        "height=2,width=4; c2..: H=width,W=-",
        "height=4,width=2; c2..: H=-,W=height",
        "data=2,height=2; c2..: N=height,H=-",
        "height=2,filter=2; c1: F=-; c2: C=-,F=-,H=filter; c3: C=-,F=-",
        "height=2,filter=2; c1: F=-; c2: C=-,F=-; c3: C=-,F=-,H=filter",
        "filter=2,channel=2; c1: C=-,F=filter; c2: C=-,F=channel; c3: C=-,F=filter",
    ] {
        let case = Case {
            graph: partita_graph::text::parse(CHAIN).unwrap(),
            strategy: strategy.parse().unwrap(),
            batch: 2,
            seed: 1,
        };
        let setup = Setup::of_case(&case, &kernels);
        let program = setup.program(ProgramKind::Train).unwrap();
        let request = setup.request(ProgramKind::Train);
        for rank in 0..program.mesh.ranks() {
            let alone = lower_rank(&request, rank).unwrap();
            assert!(alone == *program.body(rank), "{strategy} rank {rank}");
            let sends = alone.tasks.iter().filter_map(|task| match &task.work {
                Work::Exchange(exchange) => Some(exchange.sends.len()),
                Work::Compute { .. } | Work::Collective(_) | Work::Load(_) | Work::Store(_) => None,
            });
            copies += sends.filter(|&sends| sends > 0).count();
        }
    }
    assert!(copies > 20, "{copies} exchanges send");
}

/// Data, space, channels and filters; redistributions between layers; uneven extents, and parts of nothing.
#[test]
fn every_rank_of_a_wide_mesh_lowers_to_the_body_of_its_class() {
    let kernels = reference_kernels(Dtype::F64);
    let (mut shared, mut moved, mut empty) = (0, 0, 0);
    for seed in seeds(60, 1, 1000) {
        let case = random_wide_case(seed);
        let setup = Setup::of_case(&case, &kernels);
        for kind in [
            ProgramKind::Train,
            ProgramKind::Evaluate,
            ProgramKind::Fetch,
        ] {
            // Verified: messages match between the ranks of any two classes.
            let program = setup.program(kind).unwrap();
            let request = setup.request(kind);
            let ranks: Vec<usize> = (0..program.mesh.ranks()).collect();
            let mut alone: Vec<Body> = lower_ranks(&request, &ranks)
                .unwrap()
                .collect::<Result<_, _>>()
                .unwrap();
            let is_other = |bodies: &[Body]| {
                let mut ranks = ranks.iter().copied();
                ranks.find(|&rank| bodies[rank] != *program.body(rank))
            };
            if let Some(rank) = is_other(&alone) {
                close_gaps(&mut alone);
                let all = is_other(&alone).is_none();
                assert!(all, "seed {seed} {} {kind:?} rank {rank}", case.strategy);
            }
            shared += ranks.len() - program.bodies.len();
            let has = |of: &dyn Fn(&Body) -> bool| usize::from(program.bodies.iter().any(of));
            empty += has(&|body| body.buffers.iter().any(|one| one.dims == [0; 5]));
            moved += has(&|body| {
                let mut works = body.tasks.iter().map(|task| &task.work);
                works.any(|work| match work {
                    Work::Collective(collective) => match collective.kind {
                        CollectiveKind::AllReduce { .. } => false,
                        CollectiveKind::AllGather { .. }
                        | CollectiveKind::ReduceScatter { .. }
                        | CollectiveKind::AllToAll { .. } => true,
                    },
                    Work::Compute { .. } | Work::Exchange(_) | Work::Load(_) | Work::Store(_) => {
                        false
                    }
                })
            });
        }
    }
    assert!(shared > 500, "{shared} ranks share a body");
    assert!(moved > 50, "{moved} programs redistribute");
    assert!(empty > 50, "{empty} programs have parts of nothing");
}

#[test]
fn every_rank_of_a_pipeline_lowers_to_the_body_of_its_class() {
    let shared = compare((0..200).map(random_staged_case));
    assert!(shared > 100, "only {shared} ranks share a body");
}

#[test]
fn ranks_of_even_shares_are_one_class() {
    const CHAIN: &str = "model chain
input x channels=3 extent=8x8
c1 = conv x filters=8 kernel=3 pad=1 bias=BIAS
n1 = batch_norm c1 epsilon=0.001 momentum=0.1
r1 = relu n1
p1 = max_pool r1 kernel=2 stride=2
c2 = conv p1 filters=16 kernel=3 pad=1 bias=BIAS
c3 = conv c2 filters=4 kernel=1 bias=BIAS
loss = mse c3
";
    let kernels = reference_kernels(Dtype::F64);
    let (train, evaluate) = (ProgramKind::Train, ProgramKind::Evaluate);
    for (strategy, bias, kind, expected) in [
        ("filter=4", "true", evaluate, 1),
        // Of the gradient of whole outputs each rank takes another part.
        ("filter=4", "true", train, 4),
        ("channel=4", "false", train, 1),
        // One of the addends has the bias.
        ("channel=4", "true", train, 2),
        ("filter=2,channel=2", "false", evaluate, 1),
        ("data=2,filter=4", "true", evaluate, 1),
        ("data=2,channel=4", "false", train, 1),
        ("height=2; c2..: H=-,C=height", "false", train, 2),
        ("filter=3", "true", evaluate, 3),
    ] {
        let graph = partita_graph::text::parse(&CHAIN.replace("BIAS", bias)).unwrap();
        let case = Case {
            graph,
            strategy: strategy.parse().unwrap(),
            batch: 4,
            seed: 1,
        };
        let setup = Setup::of_case(&case, &kernels);
        let program = setup.program(kind).unwrap();
        assert_eq!(program.bodies.len(), expected, "{strategy} bias {bias}");
    }
}

#[test]
fn what_is_wrong_with_a_class_is_found_where_it_is_verified() {
    const CHAIN: &str = "model chain
input x channels=2 extent=16
c1 = conv x filters=2 kernel=3 pad=1 bias=false
c2 = conv c1 filters=2 kernel=3 pad=1 bias=false
loss = mse c2
";
    let kernels = reference_kernels(Dtype::F64);
    let case = Case {
        graph: partita_graph::text::parse(CHAIN).unwrap(),
        strategy: "width=8".parse().unwrap(),
        batch: 1,
        seed: 1,
    };
    let setup = Setup::of_case(&case, &kernels);
    let mut program = setup.program(ProgramKind::Train).unwrap();
    let last = program.bodies.len() - 1;
    assert!(last >= 2);
    verify_classes(&program, &[1, last]).unwrap();
    let sends = program.bodies[0].tasks.iter_mut().find_map(|task| {
        let Work::Exchange(exchange) = &mut task.work else {
            return None;
        };
        exchange.sends.pop()
    });
    sends.unwrap();
    // The second rank waits for the message; the last one has none with the first.
    verify_classes(&program, &[1]).unwrap_err();
    verify_classes(&program, &[last]).unwrap();
}

#[test]
fn a_text_reads_as_it_prints_and_keeps_the_digest() {
    let kernels = reference_kernels(Dtype::F64);
    for seed in 300..360 {
        let case = random_case(seed);
        let setup = Setup {
            optimizer: Optimizer::Sgd {
                momentum: 0.9,
                weight_decay: 0.0,
            },
            decay_norms: true,
            ema: None,
            clip: Some(1.0),
            ..Setup::of_case(&case, &kernels)
        };
        let program = setup.program(ProgramKind::Train).unwrap();
        let again = partita_program::Program::parse(&program.to_text()).unwrap();
        assert!(program == again, "seed {seed}");
        assert_eq!(program.digest(), again.digest());
        let other = Setup {
            strategy: Strategy::single(),
            ..setup.clone()
        };
        assert_ne!(
            program.digest(),
            other.program(ProgramKind::Train).unwrap().digest()
        );
    }
}
