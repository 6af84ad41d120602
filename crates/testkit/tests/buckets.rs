//! Gradients that are summed in buckets are those summed one by one, bit for bit.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use partita_program::{CollectiveKind, Dtype, Phase, Program, ProgramKind, View, Work};
use partita_space::Bytes;
use partita_testkit::verify::{Fault, verify};
use partita_testkit::{
    Case, Setup, least_of, random_branched_case, random_case, random_layer_case,
    random_sequence_case, random_staged_case, random_tied_case, random_two_stage_case,
    reference_kernels, run, seeds,
};

/// The views of each allreduce of gradients, in all classes.
fn sums(program: &Program) -> Vec<Vec<View>> {
    let tasks = program.bodies.iter().flat_map(|body| &body.tasks);
    let sums = tasks.filter_map(|task| match &task.work {
        Work::Collective(one) if task.origin.phase == Phase::Reduce => match &one.kind {
            CollectiveKind::AllReduce { views } => Some(views.clone()),
            CollectiveKind::AllGather { .. }
            | CollectiveKind::ReduceScatter { .. }
            | CollectiveKind::AllToAll { .. } => None,
        },
        _ => None,
    });
    sums.collect()
}

/// At least this many cases must have a bucket.
fn compare(least: usize, cases: u64, draw: fn(u64) -> Case) {
    let (mut joined, mut fewer) = (0, 0);
    let range = seeds(cases, 4, 10 * cases);
    let least = least_of(least, cases, &range);
    for seed in range {
        let case = draw(seed);
        let kernels = reference_kernels(Dtype::F64);
        let apart = Setup::of_case(&case, &kernels);
        let mut together = apart.clone();
        together.strategy.bucket = Bytes([1, 300, 2000, 1 << 40][seed as usize % 4]);
        let [a, b] = [&apart, &together].map(|setup| {
            let program = setup.program(ProgramKind::Train).unwrap();
            (sums(&program), program.count())
        });
        // All views are summed once, in as many messages or fewer.
        let sorted = |sums: &[Vec<View>]| {
            let mut all: Vec<String> = sums.iter().flatten().map(View::to_string).collect();
            all.sort();
            all
        };
        assert_eq!(sorted(&a.0), sorted(&b.0), "seed {seed}");
        assert_eq!(a.1.collective_bytes, b.1.collective_bytes, "seed {seed}");
        assert!(b.0.len() <= a.0.len(), "seed {seed}");
        fewer += usize::from(b.0.len() < a.0.len());
        joined += usize::from(b.0.iter().any(|views| views.len() > 1));
        let outcome = |setup: &Setup<'_>| {
            run(setup).unwrap_or_else(|error| panic!("seed {seed} {}: {error}", setup.strategy))
        };
        let [a, b] = [&apart, &together].map(outcome);
        let is_number = |loss: &f64| !loss.is_nan();
        if a.losses.iter().all(is_number) && a.evaluation.iter().all(is_number) {
            assert!(a == b, "seed {seed} {}", together.strategy);
        }
    }
    assert!(joined >= least, "only {joined} cases have a bucket");
    assert_eq!(joined, fewer);
}

const MODEL: &str = "model two
input x channels=3 extent=4x4
f = flatten x
a = linear f features=5 bias=true
b = linear a features=2 bias=true
loss = mse b
";

/// Members agree in what they sum, view by view.
#[test]
fn buckets_of_other_gradients_are_found() {
    let case = Case {
        graph: partita_graph::text::parse(MODEL).unwrap(),
        strategy: "data=2,bucket=1GiB".parse().unwrap(),
        batch: 3,
        seed: 0,
    };
    let kernels = reference_kernels(Dtype::F64);
    let program = Setup::of_case(&case, &kernels)
        .program(ProgramKind::Train)
        .unwrap();
    assert_eq!(program.bodies.len(), 2, "of two samples and of one");
    assert_eq!(sums(&program).len(), 2);
    let wrong: [fn(&mut Vec<View>); 3] = [
        |views| views.truncate(views.len() - 1),
        |views| views.swap(0, 1),
        |views| views[0].extent[4] = 1,
    ];
    for change in wrong {
        let mut program = program.clone();
        for task in &mut program.bodies[1].tasks {
            if let Work::Collective(one) = &mut task.work
                && let CollectiveKind::AllReduce { views } = &mut one.kind
                && views.len() > 1
            {
                change(views);
            }
        }
        let faults = verify(&program).unwrap_err().0;
        let differs = |fault: &Fault| matches!(fault, Fault::CollectiveDiffers { .. });
        assert!(faults.iter().any(differs), "{faults:#?}");
    }
}

#[test]
fn buckets_of_hybrids_change_no_bit() {
    compare(30, 120, random_case);
}

#[test]
fn buckets_on_every_axis_change_no_bit() {
    compare(20, 80, random_layer_case);
}

#[test]
fn buckets_of_branches_change_no_bit() {
    compare(15, 60, random_branched_case);
}

#[test]
fn buckets_of_stages_change_no_bit() {
    compare(20, 80, random_staged_case);
    compare(5, 20, random_two_stage_case);
}

#[test]
fn buckets_beside_shared_weights_change_no_bit() {
    compare(5, 60, random_tied_case);
}

#[test]
fn buckets_of_sequences_change_no_bit() {
    compare(15, 60, random_sequence_case);
}
