//! A class stands for its ranks.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use partita_lower::{Strategy, lower, lower_rank};
use partita_program::{Dtype, Optimizer, ProgramKind};
use partita_testkit::{Setup, random_case, reference_kernels};

#[test]
fn every_rank_lowers_to_the_body_of_its_class() {
    let kernels = reference_kernels(Dtype::F64);
    for seed in 0..300 {
        let case = random_case(seed);
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
                    "seed {seed} {} rank {rank}",
                    case.strategy
                );
            }
        }
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
