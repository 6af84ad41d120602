//! What the kernels count from their loops is what the program counts from its views.

use partita_program::{Dtype, Kernel};
use partita_run::Worked;
use partita_space::{Mesh, Rank};
use partita_testkit::{Maker, ReferenceMenu, reference_kernels};

fn check(dtype: Dtype, seed: u64) {
    let mesh = Mesh::new([2, 1, 2, 1, 1, 1, 1]);
    let rank = (seed % 4) as Rank;
    let mut maker = Maker::new(seed, dtype);
    let kernels = maker.all(&mesh, rank);
    for kernel in &kernels {
        let mut reference = reference_kernels(dtype)(mesh, rank);
        let (inputs, go) = (Maker::inputs(), &mut || true);
        let ran = maker
            .bench
            .run(kernel, &ReferenceMenu, &mut *reference, &inputs, go);
        let worked = ran.expect("the kernel runs to its end").worked;
        let expected = Worked::expected(kernel, maker.bench.buffers());
        assert_eq!(worked, expected, "seed {seed}: {kernel:?}");
    }
    let mut kinds: Vec<_> = kernels.iter().map(Kernel::name).collect();
    kinds.sort_unstable();
    kinds.dedup();
    assert_eq!(kinds.len(), 41, "all kinds take part");
}

#[test]
fn every_kernel_counts_what_the_program_counts() {
    for seed in 0..if cfg!(miri) { 1 } else { 20 } {
        check(Dtype::F32, seed);
        check(Dtype::F64, seed);
    }
}
