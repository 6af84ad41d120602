//! Exponential moving averages of parameters: of every strategy they are those of one rank, and evaluations read them.

use partita_lower::Strategy;
use partita_program::{AVERAGE, Dtype, Kernel, Optimizer, ProgramKind, Role, Work};
use partita_testkit::verify::{Fault, verify};
use partita_testkit::{
    Case, Outcome, Setup, least_of, mismatch, random_branched_case, random_case,
    random_encoder_decoder, random_layer_case, random_sequence_case, random_staged_case,
    random_tied_case, reference_kernels, run, seeds,
};

const OPTIMIZERS: [Optimizer; 3] = [
    Optimizer::Sgd {
        momentum: 0.0,
        weight_decay: 0.0,
    },
    Optimizer::Nesterov {
        momentum: 0.5,
        weight_decay: 0.05,
    },
    Optimizer::Sgd {
        momentum: 0.9,
        weight_decay: 0.1,
    },
];
const DECAYS: [f64; 3] = [0.9, 0.5, 0.125];

/// The values of a tensor after this many steps.
fn values<'o>(outcome: &'o Outcome, step: usize, name: &str) -> Option<&'o [f64]> {
    let mut all = outcome.parameters[step].iter();
    let found = all.find(|(known, _)| known == name);
    found.map(|(_, values)| values.as_slice())
}

/// Averages begin as the parameters and follow them step by step; returns how many there are.
fn assert_averages(outcome: &Outcome, decay: f64, text: &str) -> usize {
    let averages = outcome.parameters[0].iter().filter_map(|(name, first)| {
        let parameter = name.strip_suffix(AVERAGE)?;
        Some((name, parameter, first.clone()))
    });
    let mut count = 0;
    for (name, parameter, mut expected) in averages {
        assert_eq!(values(outcome, 0, parameter).unwrap(), expected, "{text}");
        for step in 1..outcome.parameters.len() {
            let moved = values(outcome, step, parameter).unwrap();
            for (average, parameter) in expected.iter_mut().zip(moved) {
                *average = decay * *average + (1.0 - decay) * parameter;
            }
            let got = values(outcome, step, name).unwrap();
            let size = expected
                .iter()
                .fold(1.0, |most: f64, it| most.max(it.abs()));
            let error = got.iter().zip(&expected).map(|(a, b)| (a - b).abs());
            let error = error.fold(0.0, f64::max);
            assert!(
                error <= 1e-12 * size,
                "{text}: {name} in step {step}: {error}"
            );
        }
        count += 1;
    }
    count
}

/// The training is the one without averages, bit for bit.
fn assert_same_training(setup: &Setup<'_>, outcome: &Outcome, text: &str) {
    let plain = Setup {
        ema: None,
        ..setup.clone()
    };
    let plain = run(&plain).unwrap();
    assert_eq!(plain.losses, outcome.losses, "{text}");
    for (step, all) in plain.parameters.iter().enumerate() {
        for (name, expected) in all {
            assert_eq!(
                values(outcome, step, name).unwrap(),
                expected,
                "{text}: {name}"
            );
        }
    }
}

/// The evaluation is that of the averages, with the running statistics of the last step.
fn assert_evaluated(setup: &Setup<'_>, outcome: &Outcome, text: &str) {
    let last = outcome.parameters.len() - 1;
    let names = setup.graph.parameters.iter().map(|one| &one.name);
    let read = names.map(|name| {
        let average = values(outcome, last, &format!("{name}{AVERAGE}"));
        average
            .or_else(|| values(outcome, last, name))
            .unwrap()
            .to_vec()
    });
    let averaged = Setup {
        ema: None,
        steps: 0,
        parameters: read.collect(),
        ..setup.clone()
    };
    let expected = run(&averaged).unwrap();
    assert_eq!(expected.evaluation.len(), outcome.evaluation.len());
    for (a, b) in outcome.evaluation.iter().zip(&expected.evaluation) {
        let is_near = (a - b).abs() <= 1e-10 * b.abs().max(1e-3);
        assert!(is_near, "{text}: evaluates to {a}, and the averages to {b}");
    }
}

fn compare(cases: u64, least: usize, draw: fn(u64) -> Case) {
    let mut done = 0;
    let range = seeds(cases, 4, 10 * cases);
    let least = least_of(least, cases, &range);
    for seed in range {
        let case = draw(seed);
        let kernels = reference_kernels(Dtype::F64);
        let decay = DECAYS[seed as usize % 3];
        let mut setup = Setup::of_case(&case, &kernels);
        setup.ema = Some(decay);
        setup.optimizer = OPTIMIZERS[seed as usize / 3 % 3];
        setup.clip = seed.is_multiple_of(4).then_some(0.5);
        let mut alone = setup.clone();
        alone.strategy = Strategy::single();
        alone.strategy.micro = case.strategy.micro;
        let text = format!("seed {seed} {}", case.strategy);
        let [split, one] =
            [&setup, &alone].map(|setup| run(setup).unwrap_or_else(|e| panic!("{text}: {e}")));
        let diverges = |loss: &f64| !loss.is_finite() || loss.abs() > 1e8;
        if one.losses.iter().any(diverges) || one.evaluation.iter().any(diverges) {
            continue;
        }
        if let Some(mismatch) = mismatch(&split, &one, 1e-9) {
            panic!("{text}: {mismatch}");
        }
        let count = assert_averages(&split, decay, &text);
        let trained = case.graph.parameters.iter().filter(|it| it.is_trained());
        assert_eq!(count, trained.count(), "{text}");
        assert_same_training(&setup, &split, &text);
        assert_evaluated(&setup, &split, &text);
        done += 1;
    }
    assert!(done >= least, "{done} of {cases} cases do not diverge");
}

#[test]
fn averages_of_hybrids_are_those_of_one_rank() {
    compare(40, 25, random_case);
}

#[test]
fn averages_on_every_axis_are_those_of_one_rank() {
    compare(40, 25, random_layer_case);
}

#[test]
fn averages_of_encoders_and_decoders_are_those_of_one_rank() {
    compare(20, 10, random_encoder_decoder);
}

#[test]
fn averages_of_stages_and_branches_are_those_of_one_rank() {
    compare(30, 20, random_staged_case);
    compare(15, 8, random_branched_case);
}

#[test]
fn averages_of_shared_parameters_are_those_of_one_rank() {
    compare(24, 14, random_tied_case);
}

#[test]
fn averages_of_sequences_are_those_of_one_rank() {
    compare(20, 12, random_sequence_case);
}

/// Layers that are not trained have no averages: evaluations read what they have.
#[test]
fn frozen_layers_have_no_averages() {
    let mut done = 0;
    for seed in 0..40 {
        let mut case = random_case(seed);
        let mut layers = case.graph.nodes.iter();
        let Some(first) = layers.find(|node| !node.parameters.is_empty()) else {
            continue;
        };
        let pattern = [first.name.clone()];
        let Ok(graph) = case.graph.clone().with_frozen(&pattern, true) else {
            continue;
        };
        case.graph = graph;
        let kernels = reference_kernels(Dtype::F64);
        let mut setup = Setup::of_case(&case, &kernels);
        setup.ema = Some(0.75);
        let text = format!("seed {seed} {}", case.strategy);
        let program = setup.program(ProgramKind::Train).unwrap();
        let buffers = program.bodies.iter().flat_map(|body| &body.buffers);
        for buffer in buffers.filter(|buffer| buffer.role == Role::Average) {
            let of_first = buffer.name.starts_with(&format!("{}.", pattern[0]));
            assert!(!of_first, "{text}: {}", buffer.name);
        }
        let outcome = run(&setup).unwrap_or_else(|e| panic!("{text}: {e}"));
        if outcome.losses.iter().all(|loss| loss.abs() < 1e8) {
            assert_averages(&outcome, 0.75, &text);
            assert_evaluated(&setup, &outcome, &text);
            done += 1;
        }
    }
    assert!(done >= 15, "{done}");
}

/// Averages are split as the state of the optimizer is.
#[test]
fn averages_are_shared_out_with_the_state_of_the_optimizer() {
    let mut split = 0;
    for seed in 0..80 {
        let case = random_layer_case(seed);
        let kernels = reference_kernels(Dtype::F64);
        let mut setup = Setup::of_case(&case, &kernels);
        setup.ema = Some(0.9);
        setup.optimizer = OPTIMIZERS[2];
        for kind in [ProgramKind::Train, ProgramKind::Evaluate] {
            let program = setup.program(kind).unwrap();
            for body in &program.bodies {
                let [moments, averages, parameters] =
                    [Role::Optimizer, Role::Average, Role::Parameter]
                        .map(|role| body.bytes_of(role));
                assert_eq!(moments, averages, "seed {seed} {}", case.strategy);
                split += usize::from(averages < parameters);
            }
        }
    }
    assert!(split >= 10, "{split}");
}

/// An average of a weight that has not been updated is refused.
#[test]
fn averages_without_an_update_are_found() {
    let case = random_case(0);
    let kernels = reference_kernels(Dtype::F64);
    let mut setup = Setup::of_case(&case, &kernels);
    setup.strategy = Strategy::single();
    setup.ema = Some(0.9);
    setup.optimizer = OPTIMIZERS[2];
    let mut program = setup.program(ProgramKind::Train).unwrap();
    for task in program.bodies.iter_mut().flat_map(|body| &mut body.tasks) {
        if let Work::Compute { kernel, .. } = &mut task.work {
            forget(kernel);
        }
    }
    let faults = verify(&program).unwrap_err().0;
    let early = |fault: &Fault| matches!(fault, Fault::AveragedEarly { .. });
    assert!(faults.iter().any(early), "{faults:?}");
}

/// Gradients go into velocities and no further.
fn forget(kernel: &mut Kernel) {
    match kernel {
        Kernel::Fused { parts } => parts.iter_mut().for_each(forget),
        Kernel::Update {
            gradient, moments, ..
        } => {
            *kernel = Kernel::Copy {
                source: *gradient,
                target: moments[0],
                accumulate: false,
            };
        }
        _ => {}
    }
}
