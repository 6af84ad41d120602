//! With `batch_norm=local` a data axis gives what as many micro-batches give on one rank.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use partita_graph::{Graph, Loss, Op, text};
use partita_lower::{BatchNormStatistics, Strategy};
use partita_program::{Dtype, ProgramKind};
use partita_space::{Axis, AxisSet};
use partita_testkit::verify::{Fault, verify};
use partita_testkit::{
    Case, Outcome, Setup, least_of, mismatch, random_branched_case, random_case,
    random_grouped_case, random_layer_case, random_staged_case, reference_kernels, run, seeds,
};

/// The run without running statistics: they are those over all samples, and micro-batches update them one
/// after the other.
fn trained(graph: &Graph, mut outcome: Outcome) -> Outcome {
    let is_trained = |name: &str| {
        let mut all = graph.parameters.iter();
        all.any(|parameter| parameter.name == name && parameter.role.is_trained())
    };
    for step in &mut outcome.parameters {
        step.retain(|(name, _)| is_trained(name));
    }
    outcome.evaluation.clear();
    outcome
}

/// The case with local statistics over equal parts; none if it has no batch norm, or no such parts.
fn local(mut case: Case) -> Option<Case> {
    // Dice over a batch is that of a micro-batch, so it differs from that of the whole.
    if case.graph.has_batch_dice() {
        case.graph = case.graph.with_loss(&Loss::CROSS_ENTROPY).ok()?;
    }
    let ops = case.graph.nodes.iter();
    let has_norm = ops
        .map(|node| &node.op)
        .any(|op| matches!(op, Op::BatchNorm { .. }));
    let strategy = &mut case.strategy;
    strategy.batch_norm = BatchNormStatistics::Local;
    if !has_norm || strategy.local_statistics().is_empty() {
        return None;
    }
    let times = 1 + case.seed as usize % 2;
    case.batch = times * strategy.micro * strategy.extent(Axis::Data);
    strategy.check(&case.graph, case.batch).ok()?;
    Some(case)
}

fn micro_batches(strategy: &Strategy) -> Strategy {
    let mut alone = Strategy::single();
    alone.micro = strategy.micro * strategy.extent(Axis::Data);
    alone
}

fn is_finite(outcome: &Outcome) -> bool {
    outcome.losses.iter().all(|loss| loss.abs() < 1e12)
}

fn compare(least: usize, cases: u64, draw: fn(u64) -> Case) {
    let (mut tried, mut failures) = (0, Vec::new());
    let range = seeds(cases, 4, 4 * cases);
    let least = least_of(least, cases, &range);
    for case in range.filter_map(|seed| local(draw(seed))) {
        let kernels = reference_kernels(Dtype::F64);
        let split = Setup::of_case(&case, &kernels);
        let single = Setup {
            strategy: micro_batches(&case.strategy),
            ..split.clone()
        };
        let [split, single] = [split, single].map(|setup| {
            let outcome = run(&setup).unwrap_or_else(|error| {
                panic!("seed {} {}: {error}", case.seed, setup.strategy);
            });
            trained(&case.graph, outcome)
        });
        if !is_finite(&single) {
            continue;
        }
        tried += 1;
        if let Some(what) = mismatch(&split, &single, 1e-9) {
            failures.push(format!(
                "seed {} {} batch {}: {what}\n{}",
                case.seed,
                case.strategy,
                case.batch,
                text::print(&case.graph)
            ));
        }
    }
    assert!(tried >= least, "only {tried} cases");
    assert!(
        failures.is_empty(),
        "{} of {tried} cases differ; the first:\n{}",
        failures.len(),
        failures[0]
    );
}

#[test]
fn local_statistics_of_hybrids_equal_micro_batches() {
    compare(100, 1100, random_case);
}

#[test]
fn local_statistics_on_every_axis_equal_micro_batches() {
    compare(50, 600, random_layer_case);
}

#[test]
fn local_statistics_with_wide_halos_equal_micro_batches() {
    compare(30, 600, random_grouped_case);
}

#[test]
fn local_statistics_of_branches_equal_micro_batches() {
    compare(20, 400, random_branched_case);
}

#[test]
fn local_statistics_of_stages_equal_micro_batches() {
    compare(30, 800, random_staged_case);
}

/// Which sums a batch norm reads follows from the program, not from how it was lowered.
#[test]
fn other_sums_than_those_declared_are_found() {
    let graph = text::parse(MODEL).unwrap();
    let data = AxisSet::of([Axis::Data]);
    for (strategy, declared) in [
        ("data=2,height=2,batch_norm=local", AxisSet::NONE),
        ("data=2,height=2", data),
    ] {
        let case = Case {
            graph: graph.clone(),
            strategy: strategy.parse().unwrap(),
            batch: 4,
            seed: 0,
        };
        let kernels = reference_kernels(Dtype::F64);
        let setup = Setup::of_case(&case, &kernels);
        let mut program = setup.program(ProgramKind::Train).unwrap();
        verify(&program).unwrap();
        assert_ne!(program.local_statistics, declared);
        program.local_statistics = declared;
        let faults = verify(&program).unwrap_err().0;
        let is_expected = |fault: &Fault| match fault {
            Fault::PartialSumRead { axes, .. } => declared.is_empty() && *axes == data,
            Fault::StatisticsNotLocal { local, .. } => *local == declared,
            _ => false,
        };
        assert!(
            !faults.is_empty() && faults.iter().all(is_expected),
            "{faults:#?}"
        );
    }
}

const MODEL: &str = "model norm
input x channels=3 extent=4x4
n = batch_norm x epsilon=1e-3 momentum=0.3
f = flatten n
l = linear f features=2 bias=true
loss = mse l
";

/// The first layer reads the same samples in every step, so that its running statistics do not depend on what
/// is normalized by.
#[test]
fn running_statistics_are_those_over_all_samples() {
    let graph = text::parse(MODEL).unwrap();
    for (strategy, batch) in [
        ("data=2", 4),
        ("data=4", 6),
        ("data=4", 3),
        ("data=2,height=2,micro=2", 4),
        ("data=3,height=2,shard=parameters", 5),
        ("data=2,micro=2,stages=2,schedule=gpipe", 4),
        ("data=2,micro=2,stages=2,schedule=chimera", 4),
    ] {
        let case = |text: String| Case {
            graph: graph.clone(),
            strategy: text.parse().unwrap(),
            batch,
            seed: 7,
        };
        let kernels = reference_kernels(Dtype::F64);
        let [own, common] = ["local", "synchronized"].map(|statistics| {
            let case = case(format!("{strategy},batch_norm={statistics}"));
            let outcome = run(&Setup::of_case(&case, &kernels)).unwrap();
            let last = outcome.parameters.into_iter().next_back().unwrap();
            let running = |name: &str| {
                let mut all = graph.parameters.iter();
                all.any(|parameter| parameter.name == name && !parameter.role.is_trained())
            };
            let is_kept = |(name, _): &(String, Vec<f64>)| running(name);
            (
                outcome.losses,
                last.into_iter().filter(is_kept).collect::<Vec<_>>(),
            )
        });
        assert_eq!(own.1.len(), 2);
        for ((name, ours), (_, theirs)) in own.1.iter().zip(&common.1) {
            for (ours, theirs) in ours.iter().zip(theirs) {
                assert!((ours - theirs).abs() < 1e-12, "{strategy}: {name}");
            }
        }
        assert_ne!(own.0, common.0, "{strategy}: what is normalized by differs");
    }
}
