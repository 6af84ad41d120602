//! A class stands for its ranks.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use partita_lower::{Strategy, lower, lower_rank};
use partita_program::{Dtype, Optimizer, ProgramKind};
use partita_testkit::{
    Case, Setup, random_case, random_layer_case, random_sequence_case, reference_kernels,
};

#[test]
fn every_rank_lowers_to_the_body_of_its_class() {
    let kernels = reference_kernels(Dtype::F64);
    let cases = (0..300).flat_map(|seed| {
        [
            random_case(seed),
            random_layer_case(seed),
            random_sequence_case(seed),
        ]
    });
    for case in cases {
        let setup = Setup::of_case(&case, &kernels);
        for kind in [
            ProgramKind::Train,
            ProgramKind::Evaluate,
            ProgramKind::Fetch,
        ] {
            let request = setup.request(kind);
            let program = lower(&request).unwrap();
            for rank in 0..program.mesh.ranks() {
                let alone = lower_rank(&request, rank).unwrap();
                assert!(
                    alone == *program.body(rank),
                    "seed {} {} rank {rank}",
                    case.seed,
                    case.strategy
                );
            }
        }
    }
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
