//! The kernels of programs equal the reference kernels, on random geometries.

use partita_cpu::{CpuKernels, CpuMenu, Level, Team};
use partita_program::{Access, Dtype, Kernel, KernelShape, Menu, View};
use partita_run::{Inputs, KernelTally, RunError};
use partita_space::{Mesh, Rank};
use partita_testkit::{
    Bench, Configured, DrawnMenu, Maker, ReferenceMenu, reference_kernels, seeds,
};

/// Rounding of f32 and the sums of a few hundred products.
const TOLERANCE: f64 = 3e-6;
/// That of gradients of a layer norm's scale and shift: each is a sum over all positions of terms of both signs, which with
/// one channel is its own norm.
const TOLERANCE_SUMS: f64 = 1e-5;
/// The same where the gradient of a bias, which may cancel, is rounded after each micro-batch.
const TOLERANCE_DIVIDED: f64 = 1e-4;

fn kernel_set(mesh: Mesh, rank: Rank, menu: CpuMenu) -> CpuKernels {
    let team = Team::new(menu.threads, menu.level).expect("the level is available");
    CpuKernels::new(mesh, rank, team)
}

/// What passes between a kernel and memory: what no earlier part has left, each compared with each.
fn passing(kernel: &Kernel) -> Vec<(View, Access)> {
    let (mut passing, mut touched) = (Vec::new(), Vec::new());
    for part in kernel.parts() {
        let earlier: Vec<(View, Access)> = touched.clone();
        for (view, access) in part.accesses() {
            let is_left = earlier.iter().any(|(other, by)| {
                let is_inside = other.buffer == view.buffer && other.region().holds(&view.region());
                is_inside && (by.writes() || access == Access::Read)
            });
            passing.extend((!is_left).then_some((view, access)));
            touched.push((view, access));
        }
    }
    passing
}

/// Runs a kernel on both sets and compares every buffer; gives the largest distance.
fn compare(bench: &Bench, kernel: &Kernel, mesh: Mesh, rank: Rank, menu: CpuMenu) -> f64 {
    let tolerance = match kernel {
        Kernel::LayerNormBackwardParameters { .. } => TOLERANCE_SUMS,
        _ => TOLERANCE,
    };
    compare_by(bench, kernel, (mesh, rank), (&menu, tolerance), menu)
}

/// The same, with the algorithm that `chosen` gives.
fn compare_by(
    bench: &Bench,
    kernel: &Kernel,
    (mesh, rank): (Mesh, Rank),
    (chosen, tolerance): (&dyn Menu, f64),
    menu: CpuMenu,
) -> f64 {
    let (inputs, go) = (Maker::inputs(), &mut || true);
    let mut cpu = kernel_set(mesh, rank, menu);
    let mut reference = reference_kernels(Dtype::F32)(mesh, rank);
    let got = bench
        .run(kernel, chosen, &mut cpu, &inputs, go)
        .unwrap_or_else(|error| panic!("{kernel:?}: {error}"));
    let expected = bench
        .run(kernel, &ReferenceMenu, &mut *reference, &inputs, go)
        .unwrap_or_else(|error| panic!("{kernel:?}: {error}"));
    let due = KernelTally::expected(kernel, bench.buffers());
    assert_eq!(got.worked, due, "tally of {kernel:?}");
    assert_eq!(kernel.accesses(), passing(kernel), "{kernel:?}");
    let far = bench.compare(kernel, [&got, &expected], tolerance);
    far.unwrap_or_else(|what| panic!("{kernel:?} on {menu:?}: {what}"))
}

fn menus() -> Vec<CpuMenu> {
    let levels = Level::ALL.into_iter().filter(|level| level.available());
    let menu = |level| [1, 3].map(|threads| CpuMenu { threads, level });
    levels.flat_map(menu).collect()
}

#[test]
fn every_kernel_equals_its_reference_and_counts_what_the_program_counts() {
    let mesh = Mesh::new([2, 1, 2, 1, 1, 1, 1]);
    let menus = menus();
    let mut worst = 0.0f64;
    for seed in seeds(60, 3, 60) {
        let rank = (seed % 4) as Rank;
        let mut maker = Maker::new(seed, Dtype::F32);
        let kernels = maker.all(&mesh, rank);
        assert_eq!(Maker::kinds(&kernels), Maker::KINDS, "all kinds take part");
        for (index, kernel) in kernels.iter().enumerate() {
            let menu = menus[(seed as usize + index) % menus.len()];
            worst = worst.max(compare(&maker.bench, kernel, mesh, rank, menu));
        }
    }
    assert!(worst > 0.0, "f32 sums in another order differ somewhere");
}

#[test]
fn convolutions_in_micro_batches_equal_their_reference_and_its_counts() {
    let mesh = Mesh::new([2, 1, 2, 1, 1, 1, 1]);
    let menus = menus();
    let (mut divided, mut others) = ([0; 5], [0; 2]);
    // Levels of vectors change what is drawn, so that counts differ between machines.
    for seed in 0..96 {
        let rank = (seed % 4) as Rank;
        let mut maker = Maker::new(seed, Dtype::F32);
        for (index, kernel) in maker.all(&mesh, rank).iter().enumerate() {
            let menu = menus[(seed as usize + index) % menus.len()];
            let shape = KernelShape {
                kernel,
                buffers: maker.bench.buffers(),
            };
            let drawn = DrawnMenu { menu: &menu, seed };
            let Some(configuration) = drawn.draw(&shape) else {
                continue;
            };
            divided[configuration.count().min(4)] += 1;
            for (count, name) in others.iter_mut().zip(["winograd", "fourier"]) {
                *count += usize::from(configuration.to_string().contains(name));
            }
            let chosen = Configured {
                menu: &menu,
                configuration,
            };
            compare_by(
                &maker.bench,
                kernel,
                (mesh, rank),
                (&chosen, TOLERANCE_DIVIDED),
                menu,
            );
        }
    }
    assert!(divided[2..].iter().all(|&count| count > 20), "{divided:?}");
    assert!(
        others.iter().all(|&count| count > 10),
        "{others:?} by other than the usual implementation"
    );
}

#[test]
fn a_canceled_kernel_stops() {
    let mesh = Mesh::new([2, 1, 2, 1, 1, 1, 1]);
    let menu = menus()[0];
    let rank = 0;
    let mut maker = Maker::new(1, Dtype::F32);
    for kernel in maker.all(&mesh, rank) {
        let mut cpu = kernel_set(mesh, rank, menu);
        let stopped = maker
            .bench
            .run(&kernel, &menu, &mut cpu, &Maker::inputs(), &mut || false);
        assert!(
            matches!(stopped, Err(RunError::Cancelled)),
            "{}",
            kernel.name()
        );
    }
}

#[test]
fn f64_programs_and_other_algorithms_are_refused() {
    let mut maker = Maker::new(2, Dtype::F32);
    let extent = [1, 2, 2, 2, 3];
    let wide = maker
        .bench
        .put(Dtype::F64, extent, vec![0.0; extent.iter().product()]);
    let mut buffers = maker.bench.buffers().to_vec();
    buffers[wide.buffer.0 as usize].role = partita_program::Role::Activation;
    let kernel = Kernel::Fill {
        target: wide,
        value: 1.0,
    };
    let menu = menus()[0];
    let shape = KernelShape {
        kernel: &kernel,
        buffers: &buffers,
    };
    let refused = menu.choose(&shape).expect_err("f64 activations");
    assert!(
        refused.to_string().contains("f32, bf16 and f16"),
        "{refused}"
    );
    let mut cpu = kernel_set(Mesh::new([1; 7]), 0, menu);
    let answer = maker.bench.run(
        &kernel,
        &ReferenceMenu,
        &mut cpu,
        &Maker::inputs(),
        &mut || true,
    );
    assert!(matches!(answer, Err(RunError::Algorithm { .. })));
}

#[test]
fn a_target_class_out_of_range_is_refused() {
    let mut maker = Maker::new(3, Dtype::F32);
    let x = maker.view([1, 1, 1, 2, 3]);
    let target = maker.bench.put(Dtype::F32, [1, 1, 1, 2, 1], vec![0.0, 3.0]);
    let loss = maker.bench.put(Dtype::F64, [1; 5], vec![0.0]);
    let kernel = Kernel::SoftmaxCrossEntropy {
        x,
        target,
        dx: None,
        loss,
        count: 2,
        weight: 1.0,
        smoothing: 0.0,
    };
    let menu = menus()[0];
    let mut cpu = kernel_set(Mesh::new([1; 7]), 0, menu);
    let answer = maker
        .bench
        .run(&kernel, &menu, &mut cpu, &Maker::inputs(), &mut || true);
    let is_refused = matches!(answer, Err(RunError::Source { .. }));
    assert!(is_refused, "class 3 of 3");
}

#[test]
fn an_embedding_index_out_of_range_is_refused() {
    for index in [3.0, -1.0, 0.5] {
        let mut maker = Maker::new(3, Dtype::F32);
        let [y, dy] = [0; 2].map(|_| maker.view([1, 1, 1, 2, 4]));
        let bench = &mut maker.bench;
        let x = bench.put(Dtype::F32, [1, 1, 1, 2, 1], vec![2.0, index]);
        let w = bench.put(Dtype::F32, [1, 1, 1, 3, 4], vec![1.0; 12]);
        let dw = bench.put(Dtype::F32, [1, 1, 1, 3, 4], vec![1.0; 12]);
        let backward = Kernel::EmbeddingBackward {
            x,
            dy,
            dw,
            accumulate: true,
        };
        let menu = menus()[0];
        let mut cpu = kernel_set(Mesh::new([1; 7]), 0, menu);
        let mut reference = reference_kernels(Dtype::F32)(Mesh::new([1; 7]), 0);
        for kernel in [Kernel::EmbeddingForward { x, w, y }, backward] {
            let (inputs, go) = (Maker::inputs(), &mut || true);
            let answers = [
                bench.run(&kernel, &menu, &mut cpu, &inputs, go).err(),
                bench
                    .run(&kernel, &ReferenceMenu, &mut *reference, &inputs, go)
                    .err(),
            ];
            for answer in answers {
                let is_refused = matches!(answer, Some(RunError::Source { .. }));
                assert!(is_refused, "index {index} of 3 rows: {answer:?}");
            }
        }
    }
}

/// Of one weight, and of two in one kernel.
#[test]
fn averages_are_kept_where_the_update_is_skipped() {
    let menu = *menus().last().expect("a level is available");
    let mut kernels = kernel_set(Mesh::new([1; 7]), 0, menu);
    let inputs = Inputs {
        loss_scale: Some(1024.0),
        ..Maker::inputs()
    };
    for (squares, moved) in [(f64::INFINITY, [1.0, -2.0]), (4.0, [2.0, -1.0])] {
        let mut bench = Bench::default();
        let mut put = |value: f64| bench.put(Dtype::F32, [1, 1, 1, 1, 7], vec![value; 7]);
        let [parameters, averages] = [[5.0, 2.0], [1.0, -2.0]].map(|pair| pair.map(&mut put));
        let total = bench.put(Dtype::F64, [1; 5], vec![squares]);
        let average = |at: usize| Kernel::Average {
            parameter: parameters[at],
            average: averages[at],
            decay: 0.75,
            total: Some(total),
        };
        let both = Kernel::Fused {
            parts: vec![average(0), average(1)],
        };
        for (kernel, count) in [(average(0), 1), (both, 2)] {
            let got = bench
                .run(&kernel, &menu, &mut kernels, &inputs, &mut || true)
                .unwrap_or_else(|error| panic!("{kernel:?}: {error}"));
            for at in 0..count {
                let found = &got.contents[averages[at].buffer.0 as usize];
                assert_eq!(*found, [moved[at]; 7], "{squares}");
            }
            let due = KernelTally::expected(&kernel, bench.buffers());
            assert_eq!(got.worked, due, "{squares}");
        }
    }
}
