//! A loss that divides by a sum over targets divides by that of the whole mini-batch: every strategy gives the loss and the
//! update of one rank that takes the mini-batch at once, however many targets each sample counts.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use partita_graph::{ClassLoss, ClassWeights, Loss, text};
use partita_lower::Strategy;
use partita_program::{Dtype, Kernel, Phase, ProgramKind, Work};
use partita_testkit::verify::{Fault, verify};
use partita_testkit::{
    Case, Draws, Samples, Setup, least_of, mismatch, random_case, random_grouped_case,
    random_layer_case, random_staged_case, random_tied_case, reference_kernels, run, seeds,
};
use std::sync::Arc;

/// The case in micro-batches, with a loss that counts its targets; none where micro-batches change what is computed.
fn counting(mut case: Case, draws: &mut Draws) -> Option<Case> {
    let last = case.graph.nodes.last()?;
    let channels = case.graph.node(last.inputs[0]).shape.channels;
    let weights: Vec<f64> = (0..channels).map(|c| 0.25 + 1.5 * c as f64).collect();
    let dice = draws.pick(&[0.0, 0.0, 0.7]);
    let (ignore, weights) = match draws.between(0, 2) {
        0 => (Some(0), Vec::new()),
        1 => (None, weights),
        _ => (Some(0), weights),
    };
    let loss = Loss::Classes(ClassLoss {
        dice,
        smoothing: draws.pick(&[0.0, 0.1]),
        ignore,
        weights: ClassWeights::Listed(weights),
        ..ClassLoss::CROSS_ENTROPY
    });
    case.graph = case.graph.with_loss(&loss).ok()?;
    if case.strategy.micro == 1 {
        case.strategy.micro = draws.between(1, case.batch);
    }
    let fits = case.strategy.check(&case.graph, case.batch).is_ok();
    (fits && !case.graph.sums_samples()).then_some(case)
}

/// Targets of which each sample counts another share, one of them none.
fn uneven(samples: &Samples, draws: &mut Draws) -> Samples {
    let mut targets = samples.targets.clone();
    for (sample, targets) in targets.iter_mut().enumerate() {
        let of = 1 << (3 * sample).min(9);
        for target in targets.iter_mut() {
            if sample == 1 || draws.between(1, of) > 1 {
                *target = 0.0;
            }
        }
    }
    Samples {
        shape: samples.shape,
        values: samples.values.clone(),
        targets,
        features: samples.features.clone(),
    }
}

fn compare(least: usize, cases: u64, draw: fn(u64) -> Case) {
    let (mut tried, mut failures) = (0, Vec::new());
    let range = seeds(cases, 4, 10 * cases);
    let least = least_of(least, cases, &range);
    for seed in range {
        let mut draws = Draws::new(seed);
        let Some(case) = counting(draw(seed), &mut draws) else {
            continue;
        };
        let kernels = reference_kernels(Dtype::F64);
        let drawn = Setup::of_case(&case, &kernels);
        let split = Setup {
            samples: Arc::new(uneven(&drawn.samples, &mut draws)),
            steps: 2,
            ..drawn
        };
        let single = Setup {
            strategy: Strategy::single(),
            ..split.clone()
        };
        let [got, expected] = [&split, &single].map(|setup| {
            run(setup).unwrap_or_else(|error| panic!("seed {seed} {}: {error}", setup.strategy))
        });
        if expected.losses.iter().any(|loss| loss.abs() > 1e6) {
            continue;
        }
        tried += usize::from(case.strategy.micro > 1);
        if let Some(what) = mismatch(&got, &expected, 1e-10) {
            failures.push(format!(
                "seed {seed} {} batch {}: {what}\n{}",
                case.strategy,
                case.batch,
                partita_graph::text::print(&case.graph)
            ));
        }
    }
    assert!(tried >= least, "only {tried} cases in micro-batches");
    assert!(
        failures.is_empty(),
        "{} of {tried} cases differ; the first:\n{}",
        failures.len(),
        failures[0]
    );
}

#[test]
fn micro_batches_divide_by_the_targets_of_the_mini_batch() {
    compare(20, 150, random_case);
}

#[test]
fn micro_batches_on_every_axis_divide_by_the_targets_of_the_mini_batch() {
    compare(15, 120, random_layer_case);
    compare(8, 100, random_grouped_case);
}

#[test]
fn pipelines_divide_by_the_targets_of_the_mini_batch() {
    compare(25, 100, random_staged_case);
    compare(8, 60, random_tied_case);
}

const MODEL: &str = "model voxels
input x channels=2 extent=4x4
c = conv x filters=3 kernel=1 bias=true
loss = softmax_cross_entropy c ignore=0
";

/// `verify` knows which targets a loss divides by.
#[test]
fn counts_that_lack_a_micro_batch_are_found() {
    for strategy in [
        "micro=2",
        "data=2,micro=2",
        "stages=2,micro=4,schedule=chimera",
    ] {
        let case = Case {
            graph: text::parse(MODEL).unwrap(),
            strategy: strategy.parse().unwrap(),
            batch: 4,
            seed: 0,
        };
        let kernels = reference_kernels(Dtype::F64);
        let setup = Setup::of_case(&case, &kernels);
        let mut program = setup.program(ProgramKind::Train).unwrap();
        let mut changed = 0;
        for task in program.bodies.iter_mut().flat_map(|body| &mut body.tasks) {
            let is_count = task.origin.layer == "loss" && task.origin.phase == Phase::Forward;
            if let Work::Compute { kernel, .. } = &mut task.work
                && let Kernel::Copy { accumulate, .. } = kernel
                && is_count
            {
                *accumulate = false;
                changed += 1;
            }
        }
        assert!(changed > 0, "{strategy}");
        let faults = verify(&program).unwrap_err().0;
        let is_expected = |fault: &Fault| match fault {
            Fault::OutputIncomplete { name, .. } => name == "totals of class_loss",
            _ => false,
        };
        assert!(faults.iter().any(is_expected), "{strategy}: {faults:#?}");
    }
}
