//! Speed of the kernels that memory limits, next to the triad a = b + s * c measured in turn with
//! each: one JSON line a kernel.
//!
//! `cargo run --release -p partita-cpu --example streams -- [threads] [level] [part of a name]`

use partita_cpu::{
    Activation, Adam, Call, Canceled, CpuKernels, CpuMenu, Gradient, Grid, Inference, Level, Mask,
    Normalization, Parameter, Planes, PoolKind, PoolMask, Pooling, Sgd, Team, Transform, View,
    ViewMut, Window, Work, accumulate, accumulate_masked, activate_backward_in_place,
    activate_in_place, adam, add, bias_backward, copy, fill, import, norm_backward,
    norm_backward_statistics, norm_forward, norm_inference, norm_scratch, norm_statistics,
    pool_backward, pool_forward, sgd, sum_of_squares,
};
use partita_program::{
    Body, Buffer, BufferId, Distribution, Dtype, Kernel, KernelShape, Menu, Role, View as Box5,
};
use partita_run::{Arena, Inputs, Kernels};
use partita_space::{Bytes, Mesh};
use std::time::Instant;

/// D, H, W of the boxes; with 16 channels 64 MiB, beyond any cache.
const EXTENT: [usize; 3] = [64, 128, 128];
const CHANNELS: usize = 16;
/// Seconds that a kernel and the triad share.
const SECONDS: f64 = 0.6;
const SLOPE: f32 = 0.25;

fn main() {
    let mut args = std::env::args().skip(1);
    let threads = args.next().and_then(|a| a.parse().ok()).unwrap_or(1);
    let level = match args.next().as_deref() {
        Some("portable") => Level::Portable,
        Some("avx2") => Level::Avx2,
        Some("avx512") => Level::Avx512,
        _ => Level::detect(),
    };
    let part = args.next().unwrap_or_default();
    let mut team = Team::new(threads, level).unwrap_or_else(|e| panic!("{e}"));
    let mut meter = Meter::new(threads, part);
    meter.copying();
    maps(&mut team, &mut meter);
    channels(&mut team, &mut meter);
    norms(&mut team, &mut meter);
    pools(&mut team, &mut meter);
    imports(&mut team, &mut meter);
    updates(&mut team, &mut meter);
    programs(team, &mut meter);
}

/// Times kernels, each in turn with the triad.
struct Meter {
    threads: usize,
    part: String,
    a: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
}

impl Meter {
    fn new(threads: usize, part: String) -> Meter {
        let n = 16 << 20;
        let [a, b, c] = [ramp(n), ramp(n), ramp(n)];
        Meter {
            threads,
            part,
            a,
            b,
            c,
        }
    }

    /// Bytes and seconds of a loop over shares of a, b and c on all threads.
    fn shares(&mut self, body: fn(&mut [f32], &[f32], &[f32])) -> f64 {
        let share = self.a.len().div_ceil(self.threads);
        let start = Instant::now();
        std::thread::scope(|scope| {
            let bc = self.b.chunks(share).zip(self.c.chunks(share));
            let mut all = self.a.chunks_mut(share).zip(bc);
            let mine = all.next();
            for (a, (b, c)) in all {
                scope.spawn(move || body(a, b, c));
            }
            if let Some((a, (b, c))) = mine {
                body(a, b, c);
            }
        });
        start.elapsed().as_secs_f64()
    }

    fn triad(&mut self) -> f64 {
        self.shares(|a, b, c| {
            for ((a, b), c) in a.iter_mut().zip(b).zip(c) {
                *a = b + 0.5 * c;
            }
        })
    }

    fn copying(&mut self) {
        let bytes = 8 * self.a.len() as u64;
        self.show("copy of the system", |meter| {
            let seconds = meter.shares(|a, b, _| a.copy_from_slice(b));
            (bytes, seconds)
        });
    }

    fn kernel(&mut self, name: &str, mut run: impl FnMut() -> Result<Work, Canceled>) {
        self.show(name, |_| {
            let start = Instant::now();
            let work = run().unwrap_or_else(|e| panic!("{e}"));
            (work.bytes, start.elapsed().as_secs_f64())
        });
    }

    fn show(&mut self, name: &str, mut run: impl FnMut(&mut Meter) -> (u64, f64)) {
        if !name.contains(&self.part) {
            return;
        }
        let (mut seconds, mut triads, mut bytes) = (Vec::new(), Vec::new(), 0);
        run(self);
        let begin = Instant::now();
        while begin.elapsed().as_secs_f64() < SECONDS || seconds.len() < 5 {
            triads.push(self.triad());
            let (counted, took) = run(self);
            bytes = counted;
            seconds.push(took);
        }
        seconds.sort_by(f64::total_cmp);
        triads.sort_by(f64::total_cmp);
        let (best, median) = (seconds[0], seconds[seconds.len() / 2]);
        let rate = bytes as f64 / best * 1e-9;
        let triad = 12.0 * self.a.len() as f64 / triads[0] * 1e-9;
        let ratio = rate / triad;
        println!(
            "{{\"name\":\"{name}\",\"bytes\":{bytes},\"best_s\":{best:.6},\"median_s\":{median:.6},\
             \"gb_per_s\":{rate:.2},\"triad_gb_per_s\":{triad:.2},\"ratio\":{ratio:.3}}}"
        );
    }
}

fn ramp(n: usize) -> Vec<f32> {
    (0..n)
        .map(|i| ((i * 7919) % 1000) as f32 * 1e-3 - 0.5)
        .collect()
}

fn maps(team: &mut Team, meter: &mut Meter) {
    let g = Grid::dense(1, EXTENT, CHANNELS);
    let (x, b, mut a) = (ramp(g.elements()), ramp(g.elements()), ramp(g.elements()));
    let mut scratch = vec![0.0; norm_scratch(team.kind(), CHANNELS)];
    let mut progress = || true;
    let mut call = Call {
        team,
        scratch: &mut scratch,
        progress: &mut progress,
    };
    let k = &mut call;
    let (xv, bv) = (View::new(&x, &g), View::new(&b, &g));
    let kind = Activation::LeakyRelu { slope: SLOPE };
    let mut sums = vec![0.0; 2 * CHANNELS];
    let mask = Mask {
        y: bv,
        slope: SLOPE,
    };
    meter.kernel("fill", || fill(k, 1.0, ViewMut::new(&mut a, &g)));
    meter.kernel("copy", || copy(k, xv, ViewMut::new(&mut a, &g)));
    meter.kernel("accumulate", || accumulate(k, xv, ViewMut::new(&mut a, &g)));
    meter.kernel("accumulate masked", || {
        accumulate_masked(k, xv, &mask, ViewMut::new(&mut a, &g))
    });
    meter.kernel("leaky relu in place", || {
        activate_in_place(k, kind, ViewMut::new(&mut a, &g))
    });
    meter.kernel("leaky relu backward in place", || {
        activate_backward_in_place(k, kind, xv, ViewMut::new(&mut a, &g))
    });
    meter.kernel("add", || {
        add(k, xv, bv, ViewMut::new(&mut a, &g), None, None)
    });
    meter.kernel("add with slope", || {
        add(k, xv, bv, ViewMut::new(&mut a, &g), Some(SLOPE), None)
    });
    meter.kernel("add with slope and sums", || {
        add(
            k,
            xv,
            bv,
            ViewMut::new(&mut a, &g),
            Some(SLOPE),
            Some((&mut sums, false)),
        )
    });
}

/// Concatenation: boxes of 32 channels among 96, and back.
fn channels(team: &mut Team, meter: &mut Meter) {
    let (part, whole) = (Grid::dense(1, [64; 3], 32), Grid::dense(1, [64; 3], 96));
    let inside = Grid {
        channels: 32,
        ..whole
    };
    let (mut small, mut large) = (ramp(part.elements()), ramp(whole.elements()));
    let mut progress = || true;
    let mut call = Call {
        team,
        scratch: &mut [],
        progress: &mut progress,
    };
    let k = &mut call;
    meter.kernel("copy 32 channels into 96", || {
        let to = ViewMut::new(&mut large[32..], &inside);
        copy(k, View::new(&small, &part), to)
    });
    meter.kernel("copy 32 channels out of 96", || {
        let from = View::new(&large[32..], &inside);
        copy(k, from, ViewMut::new(&mut small, &part))
    });
    meter.kernel("accumulate 32 channels out of 96", || {
        let from = View::new(&large[32..], &inside);
        accumulate(k, from, ViewMut::new(&mut small, &part))
    });
}

fn norms(team: &mut Team, meter: &mut Meter) {
    for (extent, c) in [(EXTENT, 16), ([32, 64, 128], 64), ([32, 64, 128], 50)] {
        let boxes = NormBoxes::new(extent, c);
        let mut scratch = vec![0.0; norm_scratch(team.kind(), c)];
        let mut progress = || true;
        let mut call = Call {
            team: &mut *team,
            scratch: &mut scratch,
            progress: &mut progress,
        };
        boxes.forward(&mut call, meter);
        boxes.backward(&mut call, meter);
    }
}

/// What the kernels of a batch norm read.
struct NormBoxes {
    grid: Grid,
    x: Vec<f32>,
    more: Vec<f32>,
    dy: Vec<f32>,
    gamma: Vec<f32>,
    beta: Vec<f32>,
    sums: Vec<f64>,
}

impl NormBoxes {
    fn new(extent: [usize; 3], c: usize) -> NormBoxes {
        let grid = Grid::dense(1, extent, c);
        let [x, more, dy] = [0; 3].map(|_| ramp(grid.elements()));
        NormBoxes {
            grid,
            x,
            more,
            dy,
            gamma: vec![1.0; c],
            beta: vec![0.5; c],
            sums: vec![1.0; 2 * c],
        }
    }

    fn views(&self) -> [View<'_>; 3] {
        [&self.x, &self.more, &self.dy].map(|data| View::new(data, &self.grid))
    }

    fn name(&self, what: &str) -> String {
        format!("{what}, {} channels", self.grid.channels)
    }

    fn norm(&self) -> Normalization<'_> {
        Normalization {
            sums: &self.sums,
            count: self.grid.positions() as f64,
            epsilon: 1e-5,
            gamma: &self.gamma,
            beta: &self.beta,
        }
    }

    fn forward(&self, k: &mut Call, meter: &mut Meter) {
        let ([x, more, _], g) = (self.views(), &self.grid);
        let mut y = ramp(g.elements());
        let mut sums = self.sums.clone();
        meter.kernel(&self.name("norm statistics"), || {
            norm_statistics(k, x, &mut sums, false)
        });
        let norm = Normalization {
            sums: &sums,
            ..self.norm()
        };
        let running = Inference {
            mean: &self.beta,
            variance: &self.gamma,
            epsilon: 1e-5,
            gamma: &self.gamma,
            beta: &self.beta,
        };
        meter.kernel(&self.name("norm forward"), || {
            norm_forward(k, x, ViewMut::new(&mut y, g), &norm, None, None)
        });
        meter.kernel(&self.name("norm forward with residual and slope"), || {
            let (y, more) = (ViewMut::new(&mut y, g), Some(more));
            norm_forward(k, x, y, &norm, more, Some(SLOPE))
        });
        meter.kernel(&self.name("norm inference"), || {
            norm_inference(k, x, ViewMut::new(&mut y, g), &running, None, Some(SLOPE))
        });
    }

    fn backward(&self, k: &mut Call, meter: &mut Meter) {
        let ([x, y, dy], g) = (self.views(), &self.grid);
        let (mut dx, norm) = (ramp(g.elements()), self.norm());
        let mut totals = vec![0.0; self.sums.len()];
        let slope = SLOPE;
        let masked = Gradient {
            dy,
            mask: Some(Mask { y, slope }),
        };
        meter.kernel(&self.name("norm backward statistics"), || {
            norm_backward_statistics(k, x, dy, &norm, &mut totals, false)
        });
        meter.kernel(&self.name("norm backward statistics masked"), || {
            norm_backward_statistics(k, x, masked, &norm, &mut totals, false)
        });
        meter.kernel(&self.name("norm backward"), || {
            norm_backward(k, x, dy, ViewMut::new(&mut dx, g), &norm, &totals, false)
        });
        meter.kernel(&self.name("norm backward masked"), || {
            let dx = ViewMut::new(&mut dx, g);
            norm_backward(k, x, masked, dx, &norm, &totals, false)
        });
        let mut db = vec![0.0; self.gamma.len()];
        meter.kernel(&self.name("bias backward"), || {
            bias_backward(k, dy, &mut db, false)
        });
    }
}

fn pools(team: &mut Team, meter: &mut Meter) {
    let average = PoolKind::AverageInside;
    for (what, kind, taps, shift) in [
        ("max 2/2", PoolKind::Max, 2, 0),
        ("max 3/2/1", PoolKind::Max, 3, -1),
        ("average 2/2", average, 2, 0),
        ("average 3/2/1", average, 3, -1),
        ("l2 2/2", PoolKind::L2, 2, 0),
        ("l2 3/2/1", PoolKind::L2, 3, -1),
    ] {
        let xg = Grid::dense(1, EXTENT, CHANNELS);
        let yg = Grid::dense(1, EXTENT.map(|e| e / 2), CHANNELS);
        let (x, dy) = (ramp(xg.elements()), ramp(yg.elements()));
        let (mut dx, mut y) = (ramp(xg.elements()), ramp(yg.elements()));
        let pooling = Pooling {
            kind,
            window: Window {
                kernel: [taps; 3],
                stride: [2; 3],
                dilation: [1; 3],
            },
            shift: [shift; 3],
        };
        let mut progress = || true;
        let mut call = Call {
            team: &mut *team,
            scratch: &mut [],
            progress: &mut progress,
        };
        let k = &mut call;
        let (xv, dyv) = (View::new(&x, &xg), View::new(&dy, &yg));
        meter.kernel(&format!("pool {what} forward"), || {
            pool_forward(k, xv, ViewMut::new(&mut y, &yg), &pooling, None)
        });
        meter.kernel(&format!("pool {what} backward"), || {
            let to = ViewMut::new(&mut dx, &xg);
            pool_backward(k, Some(xv), dyv, to, &pooling, false, None)
        });
        let mask = PoolMask {
            y: xv,
            slope: SLOPE,
            at: [0; 3],
        };
        meter.kernel(&format!("pool {what} backward masked"), || {
            let to = ViewMut::new(&mut dx, &xg);
            let mut work = pool_backward(k, Some(xv), dyv, to, &pooling, false, Some(mask))?;
            if kind == PoolKind::Max {
                // The mask is the input, which comes from memory once.
                work.bytes -= 4 * xg.elements() as u64;
            }
            Ok(work)
        });
    }
}

fn imports(team: &mut Team, meter: &mut Meter) {
    let c = 4;
    let g = Grid::dense(1, EXTENT, c);
    let mut a = ramp(g.elements());
    let counts: Vec<i16> = (0..a.len()).map(|i| ((i * 7919) % 999) as i16).collect();
    let floats = ramp(a.len());
    let pitch = [a.len(), a.len() / c, g.extent[1] * g.extent[2], g.extent[2]];
    let mut progress = || true;
    let mut call = Call {
        team,
        scratch: &mut [],
        progress: &mut progress,
    };
    let k = &mut call;
    for (what, transform) in [
        ("identity", Transform::Identity),
        ("log1p", Transform::Log1p),
    ] {
        meter.kernel(&format!("import i16 {what}"), || {
            import(
                k,
                Planes::I16(&counts),
                pitch,
                transform,
                ViewMut::new(&mut a, &g),
            )
        });
        meter.kernel(&format!("import f32 {what}"), || {
            import(
                k,
                Planes::F32(&floats),
                pitch,
                transform,
                ViewMut::new(&mut a, &g),
            )
        });
    }
}

fn updates(team: &mut Team, meter: &mut Meter) {
    let n = 14_000_000;
    let (x, mut a) = (ramp(n), ramp(n));
    let (mut m, mut v) = (vec![0.0; n], vec![0.0; n]);
    let mut progress = || true;
    let mut call = Call {
        team,
        scratch: &mut [],
        progress: &mut progress,
    };
    let k = &mut call;
    let rule = Sgd {
        is_nesterov: false,
        rate: 0.1,
        momentum: 0.9,
        weight_decay: 0.0,
        scale: 1.0,
    };
    meter.kernel("sgd", || {
        sgd(
            k,
            &rule,
            &mut [Parameter::new(&mut a, &x, [&mut m, &mut []])],
        )
    });
    let rule = Adam {
        is_decoupled: false,
        rate: 0.1,
        beta1: 0.9,
        beta2: 0.99,
        epsilon: 1e-8,
        weight_decay: 0.0,
        scale: 1.0,
        step: 1,
    };
    meter.kernel("adam", || {
        adam(
            k,
            &rule,
            &mut [Parameter::new(&mut a, &x, [&mut m, &mut v])],
        )
    });
    meter.kernel("sum of squares", || {
        sum_of_squares(k, &[&x]).map(|sum| sum.1)
    });
}

/// Kernels that exist for programs only.
fn programs(team: Team, meter: &mut Meter) {
    let menu = CpuMenu {
        threads: team.threads(),
        level: team.level(),
    };
    let dims = [1, 64, 96, 96, CHANNELS];
    let one = [1, 64, 96, 96, 1];
    let mut body = Body::default();
    for (id, dims) in [dims, dims, dims, one, [1; 5], [1, 1, 1, 1, 1 << 22]]
        .into_iter()
        .enumerate()
    {
        let (role, dtype) = match id {
            4 => (Role::Statistics, Dtype::F64),
            _ => (Role::Activation, Dtype::F32),
        };
        let buffer = Buffer {
            name: format!("buffer {id}"),
            role,
            dtype,
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
    let [x, y, z, classes, loss, scratch] = [0, 1, 2, 3, 4, 5].map(|id| {
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
    for (name, kernel) in program_kernels([x, y, z, classes, loss]) {
        let shape = KernelShape {
            kernel: &kernel,
            buffers: &body.buffers,
        };
        let choice = menu.choose(&shape).unwrap_or_else(|e| panic!("{e}"));
        assert!(choice.workspace <= scratch.bytes(&body.buffers), "{name}");
        meter.show(name, |_| {
            let start = Instant::now();
            let (workspace, algorithm) = (Some(&scratch), &choice.algorithm);
            let go = &mut || true;
            let worked = kernels.execute(&kernel, algorithm, workspace, &memory, &inputs, go);
            let bytes = worked.unwrap_or_else(|e| panic!("{e}")).bytes;
            (bytes, start.elapsed().as_secs_f64())
        });
    }
}

fn program_kernels([x, y, z, classes, loss]: [Box5; 5]) -> Vec<(&'static str, Kernel)> {
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
    let squared = |dx| Kernel::MeanSquaredError {
        x,
        target: y,
        dx,
        loss,
        count: 1,
        weight: 1.0,
    };
    let entropy = |dx| Kernel::SoftmaxCrossEntropy {
        x,
        target: classes,
        dx,
        loss,
        count: 1,
        weight: 1.0,
        smoothing: 0.0,
    };
    vec![
        ("dropout", dropout(y)),
        ("dropout in place", dropout(x)),
        ("mean squared error", squared(None)),
        ("mean squared error with gradient", squared(Some(z))),
        ("softmax cross-entropy, 16 classes", entropy(None)),
        (
            "softmax cross-entropy with gradient, 16 classes",
            entropy(Some(z)),
        ),
    ]
}
