//! Speed of the kernels on the layers of CosmoFlow, next to the measured FMA peak, and of kernels of
//! programs that have no counterpart among those.
//!
//! `cargo run --release -p partita-cpu --example kernels -- [threads] [level]`

use partita_cpu::{
    Activation, Adam, Call, Canceled, Convolution, CpuKernels, CpuMenu, Epilogue, Grid, Level,
    Normalization, Parameter, Planes, PoolKind, Pooling, Sgd, Team, Transform, View, ViewMut,
    Weights, Window, Work, activate_backward_in_place, activate_in_place, adam, import,
    linear_backward_data, linear_backward_weight, linear_forward, linear_scratch, multiply_adds,
    norm_backward, norm_backward_statistics, norm_forward, norm_scratch, norm_statistics,
    pool_backward, pool_forward, resample, resample_backward, sgd, sum_of_squares,
};
use partita_program::{
    Body, Buffer, BufferId, Distribution, Dtype, Kernel, KernelShape, Menu, Role,
};
use partita_run::{Arena, Inputs, Kernels};
use partita_space::{Bytes, Mesh, ResampleRule, Resampling};
use std::time::Instant;

fn main() {
    let mut args = std::env::args().skip(1);
    let threads = args.next().and_then(|a| a.parse().ok()).unwrap_or(1);
    let level = match args.next().as_deref() {
        Some("portable") => Level::Portable,
        Some("neon") => Level::Neon,
        Some("avx2") => Level::Avx2,
        Some("avx512") => Level::Avx512,
        Some("avx512_bf16") => Level::Avx512Bf16,
        _ => Level::detect(),
    };
    let mut team = Team::new(threads, level).unwrap_or_else(|e| panic!("{e}"));
    println!("{level:?}, {threads} threads");
    let peak = median(|| multiply_adds(level, 1_000_000).flops);
    println!("GFLOP/s, median (best); multiply-adds in registers of one core: {peak}");
    println!(
        "{:26} {:>14} {:>14} {:>14}",
        "layer", "forward", "data", "weight"
    );
    let layers = [
        ("c0   4->16  @128", 4, 16, 128, 1),
        ("c1  16->32  @64", 16, 32, 64, 1),
        ("c2  32->64  @32", 32, 64, 32, 1),
        ("c3  64->128 @16 stride 2", 64, 128, 16, 2),
        ("c4 128->256 @4", 128, 256, 4, 1),
        ("c5 256->256 @2", 256, 256, 2, 1),
    ];
    for (name, c, f, extent, stride) in layers {
        layer(&mut team, name, c, f, extent, stride);
    }
    println!("GB/s as counted, median (best)");
    resamplings(&mut team);
    streams(&mut team);
    maps(&mut team);
    updates(&mut team);
    linear(&mut team);
    programs(team);
}

/// Kernels of programs on boxes beyond the caches.
fn programs(team: Team) {
    let menu = CpuMenu {
        threads: team.threads(),
        level: team.level(),
    };
    let dims = [1, 96, 96, 96, 16];
    let mut body = Body::default();
    for (id, dims) in [dims, dims, [1; 5], [1, 1, 1, 1, 3 * 1024 * 1024]]
        .into_iter()
        .enumerate()
    {
        let buffer = Buffer {
            name: format!("buffer {id}"),
            role: if id == 2 {
                Role::Statistics
            } else {
                Role::Activation
            },
            dtype: if id == 2 { Dtype::F64 } else { Dtype::F32 },
            dims,
            tensor: None,
            offset: body.arena,
        };
        body.arena = Bytes((body.arena + buffer.bytes()).0.next_multiple_of(64));
        body.buffers.push(buffer);
    }
    let mut arena = Arena::new(body.arena);
    arena.touch();
    let memory = arena.memory(&body);
    let [x, y, loss, scratch] = [0, 1, 2, 3].map(|id| {
        let id = BufferId(id);
        body.buffer(id).view(id)
    });
    let mut kernels = CpuKernels::new(Mesh::new([1; 7]), 0, team);
    let inputs = Inputs {
        loss_scale: None,
        skipped: 0,
        samples: vec![0],
        ..Inputs::default()
    };
    for (name, kernel) in program_kernels(x, y, loss) {
        let shape = KernelShape {
            kernel: &kernel,
            buffers: &body.buffers,
        };
        let choice = menu.choose(&shape).unwrap_or_else(|e| panic!("{e}"));
        assert!(choice.workspace <= scratch.bytes(&body.buffers), "{name}");
        let rate = median(|| {
            let workspace = Some(&scratch);
            let algorithm = &choice.algorithm;
            let go = &mut || true;
            let worked = kernels.execute(&kernel, algorithm, workspace, &memory, &inputs, go);
            worked.unwrap_or_else(|e| panic!("{e}")).bytes
        });
        println!("{name:32} {rate:>14} GB/s");
    }
}

fn program_kernels(
    x: partita_program::View,
    y: partita_program::View,
    loss: partita_program::View,
) -> Vec<(&'static str, Kernel)> {
    let dropout = |y| Kernel::Dropout {
        x,
        y,
        rate: 0.5,
        mask: partita_program::DropoutMask::Element,
        operation: 1,
        distribution: Distribution::replicated(x.extent),
        halo_low: [0; 5],
        accumulate: false,
    };
    // The planes that a periodic convolution wraps around.
    let (mut low, mut high) = (x, x);
    low.extent[1] = 8;
    high.extent[1] = 8;
    high.start[1] = x.extent[1] - 8;
    vec![
        ("dropout", dropout(y)),
        ("dropout in place", dropout(x)),
        (
            "copy within a buffer",
            Kernel::Copy {
                source: low,
                target: high,
                accumulate: false,
            },
        ),
        (
            "mean squared error",
            Kernel::MeanSquaredError {
                x,
                target: y,
                dx: None,
                loss,
                count: 1,
                weight: 1.0,
            },
        ),
    ]
}

/// Upsampling and padding on boxes beyond the caches.
fn resamplings(team: &mut Team) {
    let (c, extent) = (16, 64);
    let xg = Grid::dense(1, [extent; 3], c);
    let mut a = ramp(xg.elements());
    for (name, map, outputs) in [
        (
            "linear upsampling",
            Resampling::linear(extent, 2, false),
            2 * extent,
        ),
        ("nearest upsampling", Resampling::nearest(2), 2 * extent),
        (
            "reflect padding",
            Resampling::pad(ResampleRule::Reflect, 1),
            extent + 2,
        ),
        ("adaptive mean", Resampling::average(extent, 24), 24),
    ] {
        let yg = Grid::dense(1, [outputs; 3], c);
        let mut b = ramp(yg.elements());
        let mut progress = || true;
        let k = &mut Call {
            team,
            scratch: &mut [],
            progress: &mut progress,
        };
        let maps = [map; 3];
        show(&format!("{name} forward"), || {
            resample(k, View::new(&a, &xg), ViewMut::new(&mut b, &yg), &maps)
        });
        show(&format!("{name} backward"), || {
            let (dy, dx) = (View::new(&b, &yg), ViewMut::new(&mut a, &xg));
            resample_backward(k, dy, dx, &maps, false)
        });
    }
}

/// Pooling and normalization on boxes beyond the caches.
fn streams(team: &mut Team) {
    let (c, extent) = (16, 96);
    let xg = Grid::dense(1, [extent; 3], c);
    let yg = Grid::dense(1, [extent / 2; 3], c);
    let (x, dy) = (ramp(xg.elements()), ramp(yg.elements()));
    let (mut a, mut b) = (ramp(xg.elements()), ramp(yg.elements()));
    let mut sums = vec![0.0; 2 * c];
    let mut scratch = vec![0.0; norm_scratch(team.kind(), c)];
    let mut progress = || true;
    let mut call = Call {
        team,
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
    let (xv, yv) = (View::new(&x, &xg), View::new(&dy, &yg));
    show("max pool forward", || {
        pool_forward(k, xv, ViewMut::new(&mut b, &yg), &pooling, None)
    });
    show("max pool backward", || {
        pool_backward(
            k,
            Some(xv),
            yv,
            ViewMut::new(&mut a, &xg),
            &pooling,
            false,
            None,
        )
    });
    show("norm statistics", || {
        norm_statistics(k, xv, &mut sums, false)
    });
    let (gamma, beta) = (vec![1.0; c], vec![0.0; c]);
    let count = xg.positions() as f64;
    let norm = Normalization {
        sums: &sums,
        count,
        epsilon: 1e-5,
        gamma: &gamma,
        beta: &beta,
    };
    show("norm forward", || {
        norm_forward(k, xv, ViewMut::new(&mut a, &xg), &norm, None, None)
    });
    let mut gradient = vec![0.0; 2 * c];
    show("norm backward statistics", || {
        norm_backward_statistics(k, xv, xv, &norm, &mut gradient, false)
    });
    show("norm backward", || {
        norm_backward(
            k,
            xv,
            xv,
            ViewMut::new(&mut a, &xg),
            &norm,
            &gradient,
            false,
        )
    });
}

/// Activation and import.
fn maps(team: &mut Team) {
    let (c, extent) = (16, 96);
    let xg = Grid::dense(1, [extent; 3], c);
    let (x, mut a) = (ramp(xg.elements()), ramp(xg.elements()));
    let counts: Vec<i16> = (0..a.len()).map(|i| (i % 999) as i16).collect();
    let xv = View::new(&x, &xg);
    let mut progress = || true;
    let mut call = Call {
        team,
        scratch: &mut [],
        progress: &mut progress,
    };
    let k = &mut call;
    let kind = Activation::LeakyRelu { slope: 0.01 };
    show("leaky relu in place", || {
        activate_in_place(k, kind, ViewMut::new(&mut a, &xg))
    });
    show("leaky relu backward in place", || {
        activate_backward_in_place(k, kind, xv, ViewMut::new(&mut a, &xg))
    });
    let planes = Planes::I16(&counts);
    let pitch = [a.len(), a.len() / c, extent * extent, extent];
    show("import log1p", || {
        import(
            k,
            planes,
            pitch,
            Transform::Log1p,
            ViewMut::new(&mut a, &xg),
        )
    });
}

/// Both optimizers and the norm of the gradient.
fn updates(team: &mut Team) {
    let elements = 14_000_000;
    let (x, mut a) = (ramp(elements), ramp(elements));
    let (mut m, mut v) = (vec![0.0; elements], vec![0.0; elements]);
    let mut progress = || true;
    let mut call = Call {
        team,
        scratch: &mut [],
        progress: &mut progress,
    };
    let k = &mut call;
    let sgd_options = Sgd {
        is_nesterov: false,
        rate: 0.1,
        momentum: 0.9,
        weight_decay: 0.0,
        scale: 1.0,
    };
    show("sgd", || {
        let one = Parameter::new(&mut a, &x, [&mut m, &mut []]);
        sgd(k, &sgd_options, &mut [one])
    });
    let options = Adam {
        is_decoupled: false,
        rate: 0.1,
        beta1: 0.9,
        beta2: 0.99,
        epsilon: 1e-8,
        weight_decay: 0.0,
        scale: 1.0,
        step: 1,
    };
    show("adam", || {
        let one = Parameter::new(&mut a, &x, [&mut m, &mut v]);
        adam(k, &options, &mut [one])
    });
    show("sum of squares", || sum_of_squares(k, &[&x]).map(|s| s.1));
}

/// The first linear layer of CosmoFlow, forward and both gradients.
fn linear(team: &mut Team) {
    let (c, f) = (2048, 2048);
    for n in [1, 4, 64] {
        let (xg, yg) = (Grid::dense(n, [1; 3], c), Grid::dense(n, [1; 3], f));
        let (x, dy, w) = (ramp(n * c), ramp(n * f), ramp(c * f));
        let (mut y, mut dx, mut dw) = (dy.clone(), x.clone(), w.clone());
        let mut scratch = vec![0.0; linear_scratch(team.kind(), n, c, f)];
        let mut progress = || true;
        let mut call = Call {
            team,
            scratch: &mut scratch,
            progress: &mut progress,
        };
        let k = &mut call;
        let (xv, dyv) = (View::new(&x, &xg), View::new(&dy, &yg));
        show(&format!("linear {c}->{f} N={n}"), || {
            let y = ViewMut::new(&mut y, &yg);
            linear_forward(k, xv, Weights::Plain(&w), y, false, Epilogue::default())
        });
        show(&format!("linear {c}->{f} N={n} data"), || {
            let dx = ViewMut::new(&mut dx, &xg);
            linear_backward_data(k, dyv, Weights::Plain(&w), dx, false, Epilogue::default())
        });
        show(&format!("linear {c}->{f} N={n} weight"), || {
            linear_backward_weight(k, xv, dyv, &mut dw, None, false)
        });
    }
}

fn show(name: &str, mut run: impl FnMut() -> Result<Work, Canceled>) {
    let mut work = Work::default();
    let rate = median(|| {
        work = run().unwrap_or_else(|e| panic!("{e}"));
        work.bytes
    });
    let flops = work.flops as f64 / work.bytes as f64;
    println!("{name:32} {rate:>14} GB/s, {flops:.2} flops a byte");
}

fn layer(team: &mut Team, name: &str, c: usize, f: usize, extent: usize, stride: usize) {
    let out = extent / stride;
    let conv = Convolution {
        window: Window {
            kernel: [3; 3],
            stride: [stride; 3],
            dilation: [1; 3],
        },
        groups: 1,
    };
    let full = Grid::dense(1, [extent + 2; 3], c);
    let xg = Grid {
        extent: conv.window.input_extent([out; 3]),
        ..full
    };
    let yg = Grid::dense(1, [out; 3], f);
    let x = ramp(full.elements());
    let w = ramp(conv.weight_elements(c, f));
    let mut y = vec![0.0f32; yg.elements()];
    let need = [
        partita_cpu::conv_forward_scratch(team.kind(), &conv, c, f, yg.positions()),
        partita_cpu::conv_backward_data_scratch(team.kind(), &conv, c, f, extent.pow(3)),
        partita_cpu::conv_backward_weight_scratch(team.kind(), &conv, &xg, f),
    ];
    let mut scratch = vec![0.0; need.into_iter().max().unwrap_or(0)];
    let mut progress = || true;
    let mut call = Call {
        team,
        scratch: &mut scratch,
        progress: &mut progress,
    };
    let (wv, none) = (Weights::Plain(&w), Epilogue::default);
    let forward = median(|| {
        let (xv, yv) = (View::new(&x, &xg), ViewMut::new(&mut y, &yg));
        let work = partita_cpu::conv_forward(&mut call, xv, wv, yv, &conv, false, none());
        work.unwrap_or_else(|e| panic!("{e}")).flops
    });
    // The gradient of the image without padding, from a padded dy: complete for stride 1.
    let padded = Grid::dense(1, [out + 2; 3], f);
    let (dyg, shift) = match stride {
        1 => (padded, [2; 3]),
        _ => (yg, [1; 3]),
    };
    let dy = ramp(padded.elements());
    let dxg = Grid::dense(1, [extent; 3], c);
    let mut dx = vec![0.0f32; dxg.elements()];
    let useful = 2 * (yg.positions() * w.len()) as u64;
    let data = median(|| {
        let (dyv, dxv) = (View::new(&dy, &dyg), ViewMut::new(&mut dx, &dxg));
        let work =
            partita_cpu::conv_backward_data(&mut call, dyv, wv, dxv, &conv, shift, false, none());
        // padded dy counts more than the image needs.
        work.unwrap_or_else(|e| panic!("{e}")).flops.min(useful)
    });
    let mut dw = vec![0.0; w.len()];
    let weight = median(|| {
        let (xv, dyv) = (View::new(&x, &xg), View::new(&dy, &yg));
        let work =
            partita_cpu::conv_backward_weight(&mut call, xv, dyv, &mut dw, None, &conv, false);
        work.unwrap_or_else(|e| panic!("{e}")).flops
    });
    println!("{name:26} {forward:>14} {data:>14} {weight:>14}");
}

fn ramp(n: usize) -> Vec<f32> {
    (0..n)
        .map(|i| ((i * 7919) % 1000) as f32 * 1e-3 - 0.5)
        .collect()
}

/// Median and best GFLOP/s over a second of runs.
fn median(mut run: impl FnMut() -> u64) -> String {
    run();
    let (mut rates, begin) = (Vec::new(), Instant::now());
    while begin.elapsed().as_secs_f64() < 0.6 || rates.len() < 3 {
        let start = Instant::now();
        let flops = run();
        rates.push(flops as f64 / start.elapsed().as_secs_f64() * 1e-9);
    }
    rates.sort_by(f64::total_cmp);
    format!(
        "{:.0} ({:.0})",
        rates[rates.len() / 2],
        rates[rates.len() - 1]
    )
}
