//! The kernels of a device equal the reference kernels, on random geometries, where there is a device.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::device;

use device::device;
use partita_gpu::{GpuKernels, GpuMenu};
use partita_program::fused::is_usual;
use partita_program::{Dtype, Kernel, KernelShape, Menu};
use partita_run::{Inputs, KernelTally, Kernels, RunError};
use partita_space::{Bytes, Mesh, Rank};
use partita_testkit::{
    Bench, Configured, DrawnMenu, Maker, ReferenceMenu, reference_kernels, seeds,
};
use std::sync::Arc;

/// Rounding of f32 and the sums of a few hundred products.
const TOLERANCE: f64 = 3e-6;
/// That of gradients of scales and shifts: sums over all positions of terms of both signs.
const TOLERANCE_SUMS: f64 = 1e-5;
const SEEDS: u64 = 40;
const SEEDS_LONG: u64 = 1000;
/// Multiprocessors that the catalog is told of: with many, sums are taken in many parts.
const UNITS: [usize; 3] = [1, 4, 500];

/// Runs a kernel on both sets and compares every buffer; gives the largest distance.
fn compare(
    bench: &Bench,
    kernel: &Kernel,
    (mesh, rank): (Mesh, Rank),
    gpu: &mut GpuKernels,
    menu: &dyn Menu,
) -> f64 {
    let (bench, kernel) = bench.of_kernel(kernel);
    let (inputs, go) = (Maker::inputs(), &mut || true);
    let mut reference = reference_kernels(Dtype::F32)(mesh, rank);
    let got = bench
        .run(&kernel, menu, gpu, &inputs, go)
        .unwrap_or_else(|error| panic!("{kernel:?}: {error}"));
    let expected = bench
        .run(&kernel, &ReferenceMenu, &mut *reference, &inputs, go)
        .unwrap_or_else(|error| panic!("{kernel:?}: {error}"));
    let due = KernelTally::expected(&kernel, bench.buffers());
    assert_eq!(got.worked, due, "tally of {kernel:?}");
    let tolerance = match &kernel {
        Kernel::GroupNormBackwardStatistics { .. } => TOLERANCE_SUMS,
        _ => TOLERANCE,
    };
    let far = bench.compare(&kernel, [&got, &expected], tolerance);
    far.unwrap_or_else(|what| panic!("{kernel:?}: {what}"))
}

/// Whether kernels of devices do not compute it: fused parts that no kernel set computes as one.
fn is_apart(kernel: &Kernel, bench: &Bench) -> bool {
    matches!(kernel, Kernel::Fused { parts } if !is_usual(parts, bench.buffers()))
}

#[test]
fn every_kernel_equals_its_reference() {
    let Some(device) = device("every_kernel_equals_its_reference") else {
        return;
    };
    let mesh = Mesh::new([2, 1, 2, 1, 1, 1, 1]);
    let mut worst = 0.0f64;
    for seed in seeds(SEEDS, 4, SEEDS_LONG) {
        let rank = (seed % 4) as Rank;
        let menu = GpuMenu {
            units: UNITS[seed as usize % UNITS.len()],
        };
        let mut gpu = GpuKernels::with_units(Arc::clone(&device), mesh, rank, menu.units).unwrap();
        let mut maker = Maker::new(seed, Dtype::F32);
        let mut kernels = maker.all(&mesh, rank);
        kernels.retain(|kernel| !is_apart(kernel, &maker.bench));
        assert_eq!(Maker::kinds(&kernels), Maker::KINDS, "all kinds take part");
        for kernel in &kernels {
            let far = compare(&maker.bench, kernel, (mesh, rank), &mut gpu, &menu);
            worst = worst.max(far);
        }
    }
    assert!(worst > 0.0, "f32 sums in another order differ somewhere");
}

#[test]
fn convolutions_in_micro_batches_equal_their_reference() {
    let Some(device) = device("convolutions_in_micro_batches_equal_their_reference") else {
        return;
    };
    let mesh = Mesh::new([2, 1, 2, 1, 1, 1, 1]);
    let (mut divided, mut serial) = (0, 0);
    for seed in 0..SEEDS {
        let rank = (seed % 4) as Rank;
        let menu = GpuMenu { units: 500 };
        let mut gpu = GpuKernels::with_units(Arc::clone(&device), mesh, rank, menu.units).unwrap();
        let mut maker = Maker::new(seed, Dtype::F32);
        for kernel in &maker.all(&mesh, rank) {
            let shape = KernelShape {
                kernel,
                buffers: maker.bench.buffers(),
            };
            let drawn = DrawnMenu { menu: &menu, seed };
            // A micro-batch may be too small for the second implementation.
            let drawn = drawn.draw(&shape);
            let Some(configuration) = drawn.filter(|one| menu.configured(&shape, one).is_some())
            else {
                continue;
            };
            divided += usize::from(configuration.count() > 1);
            serial += usize::from(configuration.uses("serial"));
            let chosen = Configured {
                menu: &menu,
                configuration,
            };
            compare(&maker.bench, kernel, (mesh, rank), &mut gpu, &chosen);
        }
    }
    assert!(
        divided > 100 && serial > 50,
        "{divided} divided, {serial} serial"
    );
}

#[test]
fn f64_and_parts_that_are_not_one_kernel_are_refused() {
    let mesh = Mesh::new([2, 1, 2, 1, 1, 1, 1]);
    let menu = GpuMenu { units: 1 };
    for (dtype, is_refused) in [(Dtype::F32, false), (Dtype::F64, true)] {
        let mut maker = Maker::new(3, dtype);
        for kernel in &maker.all(&mesh, 0) {
            let shape = KernelShape {
                kernel,
                buffers: maker.bench.buffers(),
            };
            let is_wide = is_refused
                && kernel.accesses().iter().any(|(view, _)| {
                    let buffer = &maker.bench.buffers()[view.buffer.0 as usize];
                    buffer.role.is_activation() && buffer.dtype == Dtype::F64
                });
            let refused = menu.choose(&shape).is_err();
            let is_apart = is_apart(kernel, &maker.bench);
            assert_eq!(refused, is_wide || is_apart, "{kernel:?}");
        }
    }
}

#[test]
fn a_canceled_kernel_is_not_given_to_the_device() {
    let Some(device) = device("a_canceled_kernel_is_not_given_to_the_device") else {
        return;
    };
    let mesh = Mesh::new([2, 1, 2, 1, 1, 1, 1]);
    let menu = GpuMenu { units: 1 };
    let mut maker = Maker::new(1, Dtype::F32);
    let kernels = maker.all(&mesh, 0);
    let (bench, kernel) = maker.bench.of_kernel(&kernels[0]);
    let mut gpu = GpuKernels::with_units(device, mesh, 0, 1).unwrap();
    let stopped = bench.run(&kernel, &menu, &mut gpu, &Maker::inputs(), &mut || false);
    assert!(matches!(stopped, Err(RunError::Cancelled)));
    let other = bench.run(
        &kernel,
        &ReferenceMenu,
        &mut gpu,
        &Maker::inputs(),
        &mut || true,
    );
    assert!(matches!(other, Err(RunError::Algorithm { .. })));
}

#[test]
fn an_impossible_allocation_is_an_error_of_the_rank() {
    let Some(device) = device("an_impossible_allocation_is_an_error_of_the_rank") else {
        return;
    };
    let most = device.facts().largest;
    let gpu = GpuKernels::with_units(device, Mesh::new([1; 7]), 0, 1).unwrap();
    let Err(error) = gpu.arena(0, Bytes(most.0.saturating_mul(64))) else {
        panic!("an arena of 64 times {most}");
    };
    assert!(error.to_string().contains("lower the batch"), "{error}");
}

/// Of one weight, and of two in one kernel.
#[test]
fn averages_are_kept_where_the_update_is_skipped() {
    let Some(device) = device("averages_are_kept_where_the_update_is_skipped") else {
        return;
    };
    let menu = GpuMenu { units: 4 };
    let mesh = Mesh::new([1; 7]);
    let mut kernels = GpuKernels::with_units(device, mesh, 0, menu.units).unwrap();
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
