//! A class stands for its ranks.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use partita_lower::{Strategy, lower, lower_rank};
use partita_program::{Body, Dtype, Optimizer, ProgramKind, Work};
use partita_testkit::{
    Case, Setup, random_case, random_layer_case, random_sequence_case, random_staged_case,
    reference_kernels,
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
    let cases = (0..300).flat_map(|seed| {
        [
            random_case(seed),
            random_layer_case(seed),
            random_sequence_case(seed),
        ]
    });
    let shared = compare(cases);
    assert!(shared > 1000, "only {shared} ranks share a body");
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
