//! Frozen parameters stay as they are, and the others get the gradients that they have without freezing.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use partita_graph::{Graph, ParameterRole};
use partita_lower::Strategy;
use partita_program::{Dtype, Optimizer, Program, ProgramKind, Role};
use partita_testkit::verify::verify;
use partita_testkit::{
    Case, Draws, Outcome, Setup, least_of, mismatch, random_branched_case, random_case,
    random_layer_case, random_sequence_case, random_staged_case, random_tied_case,
    reference_kernels, run, seeds,
};

/// The case with half of its layers frozen, and in some cases single parameters; none if nothing is left to train.
fn frozen(mut case: Case) -> Option<Case> {
    let mut draws = Draws::new(case.seed ^ 0xf4ee);
    let mut patterns = Vec::new();
    for node in &case.graph.nodes {
        let mut ids = node.parameters.iter().map(|&id| case.graph.parameter(id));
        let trained = ids.find(|parameter| parameter.is_trained());
        if trained.is_some() && draws.one_in(2) {
            patterns.push(node.name.clone());
        } else if let Some(parameter) = trained
            && draws.one_in(3)
        {
            patterns.push(parameter.name.clone());
        }
    }
    case.graph = case
        .graph
        .with_frozen(&patterns, keeps_statistics(case.seed))
        .ok()?;
    (!patterns.is_empty()).then_some(case)
}

/// Whether batch norms without trained parameters keep their running statistics.
fn keeps_statistics(seed: u64) -> bool {
    !seed.is_multiple_of(3)
}

const OPTIMIZERS: [Optimizer; 4] = [
    Optimizer::Sgd {
        momentum: 0.0,
        weight_decay: 0.0,
    },
    Optimizer::Sgd {
        momentum: 0.9,
        weight_decay: 0.1,
    },
    Optimizer::Nesterov {
        momentum: 0.5,
        weight_decay: 0.05,
    },
    Optimizer::Lars {
        momentum: 0.9,
        weight_decay: 0.1,
        trust: 0.05,
        epsilon: 1e-3,
    },
];

fn is_frozen(graph: &Graph, name: &str) -> bool {
    let mut all = graph.parameters.iter();
    all.any(|parameter| parameter.name == name && parameter.is_frozen)
}

/// Whether trust ratios may jump: a bias before a norm has a gradient of zero, but for noise.
fn has_jumps(graph: &Graph) -> bool {
    let mut parameters = graph.parameters.iter();
    parameters.any(|parameter| parameter.role == ParameterRole::Gamma)
}

/// Frozen parameters have their first values after each step, bit for bit.
fn assert_kept(graph: &Graph, outcome: &Outcome, text: &str) {
    for step in &outcome.parameters {
        for ((name, values), (_, first)) in step.iter().zip(&outcome.parameters[0]) {
            if is_frozen(graph, name) {
                assert!(values == first, "{text}: {name} has moved");
            }
        }
    }
}

/// Norms that keep their statistics sum none.
fn assert_no_statistics(graph: &Graph, program: &Program, text: &str) {
    let norms = graph
        .nodes
        .iter()
        .filter(|node| graph.keeps_statistics(&node.parameters));
    let sums: Vec<String> = norms.map(|node| format!("{}.sums", node.name)).collect();
    let mut buffers = program.bodies.iter().flat_map(|body| &body.buffers);
    assert!(
        !buffers.any(|buffer| sums.contains(&buffer.name)),
        "{text}: sums of {sums:?}"
    );
}

/// The first step without freezing moves the other parameters as much.
fn assert_same_step(frozen: &Setup<'_>, outcome: &Outcome, text: &str) {
    let mut free = frozen.graph.clone();
    for parameter in &mut free.parameters {
        parameter.is_frozen = parameter.is_constant;
    }
    let mut setup = Setup {
        graph: &free,
        ..frozen.clone()
    };
    setup.steps = 1;
    let other = run(&setup).unwrap();
    for ((name, a), (_, b)) in outcome.parameters[1].iter().zip(&other.parameters[1]) {
        if !is_frozen(frozen.graph, name) {
            let error = a
                .iter()
                .zip(b)
                .map(|(a, b)| (a - b).abs())
                .fold(0.0, f64::max);
            let size = b.iter().fold(1.0, |most: f64, b| most.max(b.abs()));
            assert!(error <= 1e-10 * size, "{text}: {name} differs by {error}");
        }
    }
}

/// Compares cases with one rank. Of all at least `least` have frozen layers, and `norms` a batch norm that keeps its
/// statistics.
fn compare([least, norms]: [usize; 2], cases: u64, draw: fn(u64) -> Case) {
    let (mut done, mut kept) = (0, 0);
    let range = seeds(cases, 4, 10 * cases);
    let [least, norms] = [least, norms].map(|count| least_of(count, cases, &range));
    for seed in range {
        let Some(case) = frozen(draw(seed)) else {
            continue;
        };
        let kernels = reference_kernels(Dtype::F64);
        let mut setup = Setup::of_case(&case, &kernels);
        setup.optimizer = OPTIMIZERS[seed as usize % if has_jumps(&case.graph) { 3 } else { 4 }];
        setup.decay_norms = !setup.optimizer.has_trust_ratio();
        setup.clip = [None, Some(0.5)][seed as usize / 4 % 2];
        let mut alone = setup.clone();
        let micro = case.strategy.micro;
        alone.strategy = Strategy::single();
        alone.strategy.micro = micro;
        let text = format!("seed {seed} {}", case.strategy);
        let program = setup.program(ProgramKind::Train).unwrap();
        verify(&program).unwrap_or_else(|faults| panic!("{text}: {faults}"));
        let [split, one] =
            [&setup, &alone].map(|setup| run(setup).unwrap_or_else(|e| panic!("{text}: {e}")));
        if one
            .losses
            .iter()
            .any(|loss| !loss.is_finite() || loss.abs() > 1e12)
        {
            continue;
        }
        if let Some(mismatch) = mismatch(&split, &one, 1e-9) {
            panic!("{text}: {mismatch}");
        }
        assert_kept(&case.graph, &split, &text);
        assert_no_statistics(&case.graph, &program, &text);
        // Other norms of a batch give others gradients.
        let has_other_norms = case
            .graph
            .parameters
            .iter()
            .any(|one| one.is_frozen && !one.role.is_trained());
        kept += usize::from(has_other_norms);
        if setup.clip.is_none() && !has_other_norms {
            assert_same_step(&setup, &split, &text);
        }
        let moments = program.bodies.iter().flat_map(|body| &body.buffers);
        let mut moments = moments.filter(|buffer| buffer.role == Role::Optimizer);
        let of = |name: &str| name.rsplit_once('.').map(|(of, _)| of.to_owned());
        assert!(
            !moments.any(|buffer| of(&buffer.name).is_some_and(|of| is_frozen(&case.graph, &of))),
            "{text}: a frozen parameter has optimizer state"
        );
        done += 1;
    }
    assert!(done >= least, "only {done} cases have frozen layers");
    assert!(kept >= norms, "only {kept} cases keep statistics");
}

#[test]
fn frozen_layers_of_hybrids_are_kept() {
    compare([40, 3], 100, random_case);
}

#[test]
fn frozen_layers_on_every_axis_are_kept() {
    compare([30, 2], 80, random_layer_case);
}

#[test]
fn frozen_layers_of_sequences_are_kept() {
    compare([20, 0], 50, random_sequence_case);
}

#[test]
fn frozen_layers_of_stages_and_branches_are_kept() {
    compare([20, 5], 60, random_staged_case);
    compare([10, 2], 40, random_branched_case);
}

#[test]
fn frozen_layers_that_share_parameters_are_kept() {
    compare([10, 0], 40, random_tied_case);
}
