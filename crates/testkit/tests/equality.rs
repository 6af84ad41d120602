//! Every strategy equals one rank.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use partita_graph::{Op, ParameterRole};
use partita_lower::Strategy;
use partita_program::{Dtype, Optimizer};
use partita_testkit::{
    Case, Outcome, Setup, mismatch, random_branched_case, random_case, random_chunked_case,
    random_encoder_decoder, random_grouped_case, random_layer_case, random_saving_case,
    random_sequence_case, random_staged_case, random_tied_case, random_token_case,
    random_two_stage_case, reference_kernels, run, seeds,
};

/// Whether training has gone astray.
fn diverges(outcome: &Outcome) -> bool {
    let all = outcome.losses.iter().chain(&outcome.evaluation);
    let most = all.fold(0.0f64, |most, value| most.max(value.abs()));
    let parameters = outcome.parameters.iter().flatten();
    let is_known = parameters
        .flat_map(|(_, values)| values)
        .all(|value| value.is_finite());
    !is_known || !most.is_finite() || most > 1e12
}

/// One rank with whole mini-batches, or with the same micro-batches where these change what is computed.
fn alone(case: &Case) -> Strategy {
    let mut alone = Strategy::single();
    if case.graph.sums_samples() {
        alone.micro = case.strategy.micro;
    }
    alone
}

/// Whether a norm divides by the deviation of a single value, so that weights after it may have gradients of zero
/// but for noise.
fn has_constants(case: &Case) -> bool {
    case.graph.nodes.iter().any(|node| {
        let values = match node.op {
            Op::LayerNorm { .. } => node.shape.channels,
            Op::GroupNorm { groups, .. } => {
                let positions: usize = node.shape.extent.iter().product();
                positions * node.shape.channels / groups.unwrap_or(node.shape.channels)
            }
            _ => usize::MAX,
        };
        values == 1
    })
}

/// A third of the cases have SGD with momentum, the others share the rest. Trust ratios jump where a gradient is zero
/// but for noise, so cases with constants have none.
fn optimizer(case: &Case) -> Optimizer {
    let (momentum, weight_decay) = (0.5, 0.01);
    let (beta1, beta2, epsilon) = (0.6, 0.8, 1e-2);
    match case.seed / 2 % 8 {
        1..=4 if has_constants(case) => Optimizer::Sgd {
            momentum,
            weight_decay,
        },
        0 => Optimizer::Nesterov {
            momentum,
            weight_decay,
        },
        1 | 2 => Optimizer::Lars {
            momentum,
            weight_decay,
            trust: 0.05,
            epsilon: 1e-3,
        },
        3 | 4 => Optimizer::Lamb {
            beta1,
            beta2,
            epsilon,
            weight_decay,
        },
        5 => Optimizer::AdamW {
            beta1,
            beta2,
            epsilon,
            weight_decay,
        },
        _ => Optimizer::Sgd {
            momentum,
            weight_decay,
        },
    }
}

/// A bias before a norm has a gradient of zero, but for noise; trust ratios jump there.
fn decays_norms(case: &Case, optimizer: &Optimizer) -> bool {
    let mut parameters = case.graph.parameters.iter();
    let has_norms = parameters.any(|parameter| parameter.role == ParameterRole::Gamma);
    let has_jumps = has_norms && optimizer.has_trust_ratio();
    !has_jumps && !case.seed.is_multiple_of(5)
}

fn outcomes(case: &Case) -> [Outcome; 2] {
    let seed = case.seed;
    let kernels = reference_kernels(Dtype::F64);
    let optimizer = optimizer(case);
    let split = Setup {
        optimizer,
        decay_norms: decays_norms(case, &optimizer),
        clip: seed.is_multiple_of(3).then_some(0.5),
        ..Setup::of_case(case, &kernels)
    };
    let single = Setup {
        strategy: alone(case),
        ..split.clone()
    };
    [&split, &single].map(|setup| {
        run(setup).unwrap_or_else(|error| panic!("seed {seed} {}: {error}", case.strategy))
    })
}

#[test]
fn every_strategy_equals_one_rank_in_f64() {
    compare(600, random_case);
}

#[test]
fn encoders_and_decoders_equal_one_rank_in_f64() {
    compare(150, random_encoder_decoder);
}

#[test]
fn every_axis_equals_one_rank_in_f64() {
    compare(400, random_layer_case);
}

#[test]
fn groups_with_one_wide_halo_equal_one_rank_in_f64() {
    compare(300, random_grouped_case);
}

#[test]
fn blocks_in_chunks_equal_one_rank_in_f64() {
    compare(210, random_chunked_case);
}

#[test]
fn branches_equal_one_rank_in_f64() {
    compare(300, random_branched_case);
}

#[test]
fn stages_equal_one_rank_in_f64() {
    compare(500, random_staged_case);
}

#[test]
fn stages_that_share_weights_equal_one_rank_in_f64() {
    compare(400, random_tied_case);
}

#[test]
fn two_stages_of_different_meshes_equal_one_rank_in_f64() {
    compare(60, random_two_stage_case);
}

#[test]
fn sharded_and_recomputed_splits_equal_one_rank_in_f64() {
    compare(240, random_saving_case);
}

#[test]
fn sequences_equal_one_rank_in_f64() {
    compare(400, random_sequence_case);
}

#[test]
fn attention_of_volumes_equals_one_rank_in_f64() {
    compare(160, random_token_case);
}

fn compare(cases: u64, draw: fn(u64) -> Case) {
    let range = seeds(cases, 6, 20 * cases);
    let cases = range.end - range.start;
    let (mut failures, mut diverged) = (Vec::new(), 0);
    for seed in range {
        let case = draw(seed);
        let [split, single] = outcomes(&case);
        if diverges(&single) {
            // Then any rounding grows without bound.
            diverged += 1;
            continue;
        }
        if let Some(what) = mismatch(&split, &single, 1e-10) {
            failures.push(format!(
                "PARTITA_SEED={seed} {} batch {}: {what}\n{}",
                case.strategy,
                case.batch,
                partita_graph::text::print(&case.graph)
            ));
        }
    }
    assert!(
        20 * diverged <= cases,
        "{diverged} of {cases} cases diverge"
    );
    assert!(
        failures.is_empty(),
        "{} of {cases} cases differ; the first:\n{}",
        failures.len(),
        failures
            .iter()
            .take(4)
            .cloned()
            .collect::<Vec<_>>()
            .join("\n")
    );
}
