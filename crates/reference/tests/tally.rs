//! What the kernels count from their loops is what the program counts from its views.

use partita_program::Dtype;
use partita_run::KernelTally;
use partita_space::{Mesh, Rank};
use partita_testkit::{Maker, ReferenceMenu, reference_kernels};
use std::collections::BTreeSet;

fn check(dtype: Dtype, seed: u64) {
    let mesh = Mesh::new([2, 1, 2, 1, 1, 1, 1]);
    let rank = (seed % 4) as Rank;
    let mut maker = Maker::new(seed, dtype);
    let mut kernels = maker.all(&mesh, rank);
    if cfg!(miri) {
        // One of each kind.
        let mut seen = BTreeSet::new();
        kernels.retain(|kernel| seen.insert(kernel.name()));
    }
    for kernel in &kernels {
        // A run takes as long as the bench has buffers.
        let (bench, kernel) = maker.bench.of_kernel(kernel);
        let mut reference = reference_kernels(dtype)(mesh, rank);
        let (inputs, go) = (Maker::inputs(), &mut || true);
        let ran = bench.run(&kernel, &ReferenceMenu, &mut *reference, &inputs, go);
        let worked = ran.expect("the kernel runs to its end").worked;
        let expected = KernelTally::expected(&kernel, bench.buffers());
        assert_eq!(worked, expected, "seed {seed}: {kernel:?}");
    }
    assert_eq!(Maker::kinds(&kernels), Maker::KINDS, "all kinds take part");
}

#[test]
fn every_kernel_counts_what_the_program_counts() {
    for seed in 0..if cfg!(miri) { 1 } else { 20 } {
        check(Dtype::F32, seed);
        // Under Miri one type serves for all.
        if !cfg!(miri) {
            check(Dtype::F64, seed);
        }
    }
}
