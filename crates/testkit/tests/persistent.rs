//! What persists over programs lies the same in all programs of a training, whatever their mini-batches.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use partita_lower::{Request, SampleFormat, lower};
use partita_program::{Buffer, Dtype, Optimizer, Program, ProgramKind, Transform};
use partita_session::persists_over_programs;
use partita_testkit::ReferenceMenu;
use partita_testkit::{
    Case, random_branched_case, random_case, random_layer_case, random_sequence_case,
    random_staged_case, seeds,
};

fn program(case: &Case, kind: ProgramKind, batch: usize) -> Program {
    let request = Request {
        graph: &case.graph,
        strategy: &case.strategy,
        batch,
        kind,
        dtype: Dtype::F64,
        optimizer: Optimizer::Sgd {
            momentum: 0.5,
            weight_decay: 0.0,
        },
        decay_norms: true,
        ema: None,
        clip: None,
        samples: SampleFormat {
            dtype: Dtype::F64,
            transform: Transform::Identity,
        },
        menu: &ReferenceMenu,
    };
    lower(&request).unwrap_or_else(|error| panic!("seed {} {}: {error}", case.seed, case.strategy))
}

fn persistent(program: &Program, rank: usize) -> Vec<&Buffer> {
    let buffers = program.body(rank).buffers.iter();
    buffers
        .filter(|buffer| persists_over_programs(buffer.role))
        .collect()
}

fn compare(draw: fn(u64) -> Case) {
    for seed in seeds(100, 4, 1000) {
        let case = draw(seed);
        let first = program(&case, ProgramKind::Train, case.batch);
        for kind in [ProgramKind::Train, ProgramKind::Evaluate] {
            for batch in [case.batch, 1, 3] {
                // Of one value a batch norm is not trained, only evaluated.
                let is_trained = case.strategy.check_norms(&case.graph, batch).is_ok();
                if kind == ProgramKind::Train && !is_trained {
                    continue;
                }
                let other = program(&case, kind, batch);
                for rank in 0..first.mesh.ranks() {
                    let [expected, found] = [&first, &other].map(|one| persistent(one, rank));
                    let is_same = expected == found;
                    assert!(
                        is_same,
                        "PARTITA_SEED={seed} {}: {kind:?} of {batch} keeps other things on rank \
                         {rank}: {expected:?} and {found:?}",
                        case.strategy
                    );
                }
            }
        }
    }
}

#[test]
fn of_branches() {
    compare(random_branched_case);
}

#[test]
fn of_stages() {
    compare(random_staged_case);
}

#[test]
fn of_layers_apart() {
    compare(random_layer_case);
    compare(random_case);
    compare(random_sequence_case);
}
