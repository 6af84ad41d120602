//! Kernels allocate nothing once they have run.

use partita_cpu::{
    Adam, Call, Convolution, CpuKernels, CpuMenu, Epilogue, Grid, Level, Normalization, Parameter,
    PoolKind, Pooling, Team, View, ViewMut, Weights, Window, WinogradTile, adam, add, copy,
    fourier_backward_data, fourier_backward_data_scratch, fourier_backward_weight,
    fourier_backward_weight_scratch, fourier_forward, fourier_forward_scratch, norm_forward,
    norm_scratch, norm_statistics, pool_backward, pool_forward, sum_of_squares,
    winograd_backward_data, winograd_backward_data_scratch, winograd_backward_weight,
    winograd_backward_weight_scratch, winograd_forward, winograd_forward_scratch,
};
use partita_program::{Dtype, Kernel};
use partita_run::{KernelTally, RunError};
use partita_space::{Mesh, Rank};
use partita_testkit::{Execute, Maker, wrap_kernels};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Allocations of all threads.
static COUNT: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: all is left to the allocator of the system.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: guaranteed by the caller; all memory is the system's.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(body: impl FnOnce()) -> usize {
    let before = COUNT.load(Ordering::SeqCst);
    body();
    COUNT.load(Ordering::SeqCst) - before
}

/// Runs a kernel twice and counts what the second run allocates.
fn twice(kernel: &Kernel, execute: Execute<'_>) -> Result<KernelTally, RunError> {
    execute(kernel)?;
    let mut worked = None;
    let allocations = count(|| worked = Some(execute(kernel)));
    assert_eq!(allocations, 0, "allocations of {kernel:?}");
    worked.expect("it ran")
}

fn mesh() -> Mesh {
    Mesh::new([2, 1, 2, 1, 1, 1, 1])
}

fn run_twice(maker: &Maker, kernels: &[Kernel], menu: CpuMenu, rank: Rank) {
    for kernel in kernels {
        let team = Team::new(menu.threads, menu.level).expect("the level is available");
        let kernels = Box::new(CpuKernels::new(mesh(), rank, team));
        let mut twice = wrap_kernels(kernels, |kernel, _, execute| twice(kernel, execute));
        let go = &mut || true;
        let ran = maker
            .bench
            .run(kernel, &menu, &mut *twice, &Maker::inputs(), go);
        assert!(ran.is_ok(), "{}", kernel.name());
    }
}

/// All in one test, as the count is of the process.
#[test]
fn a_kernel_that_ran_before_allocates_nothing() {
    let level = Level::detect();
    for threads in [1, 2] {
        let menu = CpuMenu { threads, level };
        for seed in 0..8 {
            let rank = (seed % 4) as Rank;
            let mut maker = Maker::new(seed, Dtype::F32);
            let kernels = maker.all(&mesh(), rank);
            run_twice(&maker, &kernels, menu, rank);
        }
    }
    // Convolutions large enough for all threads.
    let menu = CpuMenu { threads: 2, level };
    for flag in [false, true] {
        let mut maker = Maker::new(8, Dtype::F32);
        let kernels = maker.fused([1, 4, 16, 16, 17], flag);
        run_twice(&maker, &kernels, menu, 0);
    }
    large_kernels_allocate_nothing();
    winograd_allocates_nothing();
    fourier_allocates_nothing();
    assert_eq!(count(|| drop(std::hint::black_box(vec![1u8; 9]))), 1);
}

const RULE: Adam = Adam {
    is_decoupled: false,
    rate: 0.1,
    beta1: 0.9,
    beta2: 0.99,
    epsilon: 1e-8,
    weight_decay: 0.0,
    scale: 1.0,
    step: 1,
};

/// Boxes large enough for all threads.
fn large_kernels_allocate_nothing() {
    let (c, g) = (16, Grid::dense(1, [32, 32, 32], 16));
    let half = Grid::dense(1, [16; 3], c);
    let (x, dy) = (vec![0.5; g.elements()], vec![0.5; half.elements()]);
    let (mut a, mut b) = (x.clone(), dy.clone());
    let (mut m, mut v) = (x.clone(), x.clone());
    let (mut sums, ones) = (vec![1.0; 2 * c], vec![1.0; c]);
    let mut team = Team::new(2, Level::detect()).expect("the level is available");
    let mut scratch = vec![0.0; norm_scratch(team.kind(), c)];
    let mut progress = || true;
    let mut call = Call {
        team: &mut team,
        scratch: &mut scratch,
        progress: &mut progress,
    };
    let k = &mut call;
    let pooling = Pooling {
        kind: PoolKind::Max,
        window: Window {
            kernel: [2; 3],
            stride: [2; 3],
            dilation: [1; 3],
        },
        shift: [0; 3],
    };
    let (xv, dyv) = (View::new(&x, &g), View::new(&dy, &half));
    let mut all = || {
        copy(k, xv, ViewMut::new(&mut a, &g))?;
        add(
            k,
            xv,
            xv,
            ViewMut::new(&mut a, &g),
            Some(0.1),
            Some((&mut sums, false)),
        )?;
        norm_statistics(k, xv, &mut sums, false)?;
        let norm = Normalization {
            sums: &sums,
            count: g.positions() as f64,
            epsilon: 1e-5,
            gamma: &ones,
            beta: &ones,
        };
        norm_forward(k, xv, ViewMut::new(&mut a, &g), &norm, Some(xv), Some(0.1))?;
        pool_forward(k, xv, ViewMut::new(&mut b, &half), &pooling, None)?;
        pool_backward(
            k,
            Some(xv),
            dyv,
            ViewMut::new(&mut a, &g),
            &pooling,
            false,
            None,
        )?;
        adam(
            k,
            &RULE,
            &mut [Parameter::new(&mut a, &x, [&mut m, &mut v])],
        )?;
        sum_of_squares(k, &[&x]).map(|sum| sum.1)
    };
    assert!(all().is_ok());
    assert_eq!(count(|| assert!(all().is_ok())), 0, "large kernels");
}

/// All directions of a convolution with stored weights, and of one whose slices transform their own.
fn winograd_allocates_nothing() {
    let window = Window {
        kernel: [1, 3, 3],
        stride: [1; 3],
        dilation: [1; 3],
    };
    let conv = Convolution { window, groups: 1 };
    let tile = WinogradTile::Four;
    for (c, f) in [(16, 32), (256, 160)] {
        let (xg, yg) = (
            Grid::dense(1, [1, 18, 18], c),
            Grid::dense(1, [1, 16, 16], f),
        );
        let (x, dy) = (vec![0.5; xg.elements()], vec![0.5; yg.elements()]);
        let (mut dx, mut y) = (x.clone(), dy.clone());
        let w = vec![0.1; conv.weight_elements(c, f)];
        let (mut dw, mut db) = (w.clone(), vec![0.0; f]);
        let mut team = Team::new(2, Level::detect()).expect("the level is available");
        let kind = team.kind();
        let need = [
            winograd_forward_scratch(kind, tile, &conv, c, &yg, false),
            winograd_backward_data_scratch(kind, tile, &conv, f, &xg, false),
            winograd_backward_weight_scratch(kind, tile, &conv, c, &yg),
        ];
        let mut scratch = vec![0.0; need.into_iter().max().unwrap_or(0)];
        let mut progress = || true;
        let mut call = Call {
            team: &mut team,
            scratch: &mut scratch,
            progress: &mut progress,
        };
        let (k, none) = (&mut call, Epilogue::default);
        let (xv, dyv, weights) = (View::new(&x, &xg), View::new(&dy, &yg), Weights::Plain(&w));
        let mut all = || {
            let yv = ViewMut::new(&mut y, &yg);
            winograd_forward(k, tile, xv, weights, yv, &conv, false, none())?;
            let dxv = ViewMut::new(&mut dx, &xg);
            winograd_backward_data(k, tile, dyv, weights, dxv, &conv, [0; 3], false, none())?;
            winograd_backward_weight(k, tile, xv, dyv, &mut dw, Some(&mut db), &conv, false)
        };
        assert!(all().is_ok());
        assert_eq!(count(|| assert!(all().is_ok())), 0, "Winograd {c} to {f}");
    }
}

fn fourier_allocates_nothing() {
    let window = Window {
        kernel: [1, 5, 5],
        stride: [1; 3],
        dilation: [1; 3],
    };
    let conv = Convolution { window, groups: 1 };
    for (c, f) in [(16, 32), (96, 192)] {
        let (xg, yg) = (
            Grid::dense(1, [1, 20, 20], c),
            Grid::dense(1, [1, 16, 16], f),
        );
        let (x, dy) = (vec![0.5; xg.elements()], vec![0.5; yg.elements()]);
        let (mut dx, mut y) = (x.clone(), dy.clone());
        let w = vec![0.1; conv.weight_elements(c, f)];
        let mut dw = w.clone();
        let mut team = Team::new(2, Level::detect()).expect("the level is available");
        let kind = team.kind();
        let need = [
            fourier_forward_scratch(kind, &conv, c, &yg),
            fourier_backward_data_scratch(kind, &conv, f, &xg),
            fourier_backward_weight_scratch(kind, &conv, c, &yg),
        ];
        let mut scratch = vec![0.0; need.into_iter().max().unwrap_or(0)];
        let mut progress = || true;
        let mut call = Call {
            team: &mut team,
            scratch: &mut scratch,
            progress: &mut progress,
        };
        let (k, none) = (&mut call, Epilogue::default);
        let (xv, dyv) = (View::new(&x, &xg), View::new(&dy, &yg));
        let mut all = || {
            let yv = ViewMut::new(&mut y, &yg);
            fourier_forward(k, xv, &w, yv, &conv, false, none())?;
            let dxv = ViewMut::new(&mut dx, &xg);
            fourier_backward_data(k, dyv, &w, dxv, &conv, [0; 3], false, none())?;
            fourier_backward_weight(k, xv, dyv, &mut dw, None, &conv, false)
        };
        assert!(all().is_ok());
        assert_eq!(count(|| assert!(all().is_ok())), 0, "Fourier {c} to {f}");
    }
}
