//! A step whose kernels count something else than the program is refused.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use partita_graph::text;
use partita_program::{Count, Dtype, Kernel, Program, ProgramKind, Work};
use partita_run::{KernelTally, RunError};
use partita_space::{Mesh, Rank};
use partita_testkit::{Case, Setup, reference_kernels, run, wrap_kernels};
use partita_threads::LaunchError;

const MODEL: &str = "model line
input x channels=2 extent=8
c = conv x filters=3 kernel=3 pad=1 bias=true
r = relu c
d = conv r filters=2 kernel=3 pad=1 bias=true
loss = mse d
";

/// The error of a run on one rank in which kernels count `more` than they did, if there is one.
fn error(more: fn(&Kernel) -> KernelTally) -> Option<LaunchError> {
    let honest = reference_kernels(Dtype::F64);
    let kernels = move |mesh: Mesh, rank: Rank| {
        wrap_kernels(honest(mesh, rank), move |kernel, _, execute| {
            let mut worked = execute(kernel)?;
            worked += more(kernel);
            Ok(worked)
        })
    };
    let case = case();
    run(&Setup::of_case(&case, &kernels)).err()
}

fn assert_tally_of(error: Option<LaunchError>, quantity: &str) {
    let is_expected = matches!(&error, Some(LaunchError::Rank {
        error: RunError::Tally { what, .. },
        ..
    }) if what == quantity);
    assert!(is_expected, "{quantity}: {error:?}");
}

fn case() -> Case {
    Case {
        graph: text::parse(MODEL).unwrap(),
        strategy: "data=1".parse().unwrap(),
        batch: 2,
        seed: 1,
    }
}

fn is_fused(kernel: &Kernel) -> bool {
    matches!(kernel, Kernel::Fused { .. })
}

#[test]
fn flops_of_all_kernels_and_bytes_of_those_that_are_not_fused_are_compared() {
    assert!(error(|_| KernelTally::default()).is_none());
    assert_tally_of(
        error(|kernel| KernelTally {
            flops: u64::from(!is_fused(kernel)),
            bytes: 0,
        }),
        "flops",
    );
    assert_tally_of(
        error(|kernel| KernelTally {
            flops: u64::from(is_fused(kernel)),
            bytes: 0,
        }),
        "flops",
    );
    assert_tally_of(
        error(|kernel| KernelTally {
            flops: 0,
            bytes: u64::from(!is_fused(kernel)),
        }),
        "bytes of kernels",
    );
}

/// Bytes of fused kernels follow from their views alone: whoever counts some is refused.
#[test]
fn bytes_of_fused_kernels_are_not_counted() {
    let kernels = reference_kernels(Dtype::F64);
    let case = case();
    let program: Program = Setup::of_case(&case, &kernels)
        .program(ProgramKind::Train)
        .unwrap();
    let body = &program.bodies[0];
    let fused = body.tasks.iter().filter_map(|task| match &task.work {
        Work::Compute { kernel, .. } => is_fused(kernel).then_some(kernel),
        Work::Exchange(_) | Work::Collective(_) | Work::Load(_) | Work::Store(_) => None,
    });
    let mut kinds = 0;
    for kernel in fused {
        let count = Count::of_kernel(kernel, &body.buffers);
        assert!(count.read.0 > 0 && count.written.0 > 0, "{kernel:?}");
        let expected = KernelTally {
            flops: count.flops.0,
            bytes: 0,
        };
        assert_eq!(KernelTally::expected(kernel, &body.buffers), expected);
        kinds += 1;
    }
    assert!(kinds > 1, "the program has fused kernels");
    assert_tally_of(
        error(|kernel| KernelTally {
            flops: 0,
            bytes: u64::from(is_fused(kernel)),
        }),
        "bytes of kernels",
    );
}
