//! Teams keep to their number of threads, and long kernels call `progress` again and again.

#![allow(clippy::disallowed_methods, reason = "tests read what they wrote")]
#![allow(clippy::unwrap_used, reason = "a helper of tests may")]

mod naive;

use naive::{on, to};
use partita_cpu::{
    Adam, Call, Canceled, Convolution, Epilogue, Grid, Level, Normalization, Parameter, PoolKind,
    Pooling, Summed, Sums, Team, Weights, Window, Work, adam, add, conv_backward_data,
    conv_backward_data_scratch, conv_backward_weight, conv_backward_weight_scratch, conv_forward,
    conv_forward_scratch, copy, norm_backward, norm_backward_statistics, norm_forward,
    norm_scratch, norm_statistics, pool_backward, pool_forward, sum_of_squares, sums_scratch,
};

/// Bytes of memory that may pass between two calls.
const BYTES_PER_CALL: u64 = 32 << 20;

/// Workers of all teams of this process.
#[cfg(target_os = "linux")]
fn workers() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")));
    // A thread may end between the two readings.
    names
        .filter(|name| matches!(name, Ok(name) if name.starts_with("partita-cpu-")))
        .count()
}

/// Waits until all workers are gone: a thread that was joined may still be listed for a moment.
#[cfg(target_os = "linux")]
fn no_workers() {
    let gone = (0..1000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        workers() == 0
    });
    assert!(gone, "{} workers are left", workers());
}

type Run<'a> = Box<dyn FnMut(&mut Call) -> Result<Work, Canceled> + 'a>;
/// A kernel, what it did, and the calls of `progress` that it made.
type Watched = (&'static str, Work, u64);

fn watch(
    name: &'static str,
    team: &mut Team,
    scratch: &mut [f32],
    each: &mut dyn FnMut(),
    mut kernel: Run<'_>,
) -> Watched {
    let mut calls = 0;
    let mut progress = || {
        calls += 1;
        each();
        true
    };
    let mut call = Call {
        team,
        scratch,
        progress: &mut progress,
    };
    let work = kernel(&mut call).unwrap();
    (name, work, calls)
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

const POINTWISE: Convolution = Convolution {
    window: Window {
        kernel: [1; 3],
        stride: [1; 3],
        dilation: [1; 3],
    },
    groups: 1,
};

/// Of every second position.
fn pooling(kind: PoolKind, kernel: usize, shift: i64) -> Pooling {
    Pooling {
        kind,
        window: Window {
            kernel: [kernel; 3],
            stride: [2; 3],
            dilation: [1; 3],
        },
        shift: [shift; 3],
    }
}

/// Every kernel whose work grows with its box.
fn calls(team: &mut Team, mut each: impl FnMut()) -> Vec<Watched> {
    let (c, g) = (16, Grid::dense(1, [64, 64, 128], 16));
    let half = Grid::dense(1, [32, 32, 64], c);
    let (x, dy) = (vec![0.5; g.elements()], vec![0.5; half.elements()]);
    let (mut a, mut b, mut m, mut v) = (x.clone(), dy.clone(), x.clone(), x.clone());
    let (mut sums, totals, ones) = (vec![1.0; 2 * c], vec![1.0; 2 * c], vec![1.0; c]);
    let norm = Normalization {
        sums: &totals,
        count: g.positions() as f64,
        epsilon: 1e-5,
        gamma: &ones,
        beta: &ones,
    };
    let max = pooling(PoolKind::Max, 2, 0);
    let wide = pooling(PoolKind::Max, 3, -1);
    let average = pooling(PoolKind::AverageAll, 3, -1);
    let mut scratch = vec![0.0; norm_scratch(team.kind(), c)];
    let (xv, dyv) = (on(&x, &g), on(&dy, &half));
    let mut all = Vec::new();
    let mut run = |name, kernel: Run<'_>| {
        all.push(watch(name, team, &mut scratch, &mut each, kernel));
    };
    run("copy", Box::new(|k| copy(k, xv, to(&mut a, &g))));
    run(
        "add with sums",
        Box::new(|k| add(k, xv, xv, to(&mut a, &g), None, Some((&mut sums, false)))),
    );
    run(
        "norm statistics",
        Box::new(|k| norm_statistics(k, xv, &mut sums, false)),
    );
    run(
        "norm forward",
        Box::new(|k| norm_forward(k, xv, to(&mut a, &g), &norm, Some(xv), Some(0.1))),
    );
    run(
        "norm backward statistics",
        Box::new(|k| norm_backward_statistics(k, xv, xv, &norm, &mut sums, false)),
    );
    run(
        "norm backward",
        Box::new(|k| norm_backward(k, xv, xv, to(&mut a, &g), &norm, &totals, true)),
    );
    run(
        "pool forward",
        Box::new(|k| pool_forward(k, xv, to(&mut b, &half), &max, None)),
    );
    for (name, pooling) in [("max", &max), ("wide max", &wide), ("average", &average)] {
        run(
            name,
            Box::new(|k| pool_backward(k, Some(xv), dyv, to(&mut a, &g), pooling, false, None)),
        );
    }
    run(
        "adam",
        Box::new(|k| {
            adam(
                k,
                &RULE,
                &mut [Parameter::new(&mut a, &x, [&mut m, &mut v])],
            )
        }),
    );
    run(
        "sum of squares",
        Box::new(|k| sum_of_squares(k, &[&x]).map(|sum| sum.1)),
    );
    all.extend(convolutions(team, each));
    all
}

/// Convolutions with all that they can do in one pass.
fn convolutions(team: &mut Team, mut each: impl FnMut()) -> Vec<Watched> {
    let (c, g) = (16, Grid::dense(1, [64, 64, 128], 16));
    let x = vec![0.5; g.elements()];
    let mut a = x.clone();
    let (mut sums, totals, ones) = (vec![1.0; 2 * c], vec![1.0; 2 * c], vec![1.0; c]);
    let norm = Normalization {
        sums: &totals,
        count: g.positions() as f64,
        epsilon: 1e-5,
        gamma: &ones,
        beta: &ones,
    };
    let conv = POINTWISE;
    let (w, mut dw, mut db) = (vec![0.5; c * c], vec![0.0; c * c], vec![0.0; c]);
    let kind = team.kind();
    let forward = conv_forward_scratch(kind, &conv, c, c, g.positions());
    let data = conv_backward_data_scratch(kind, &conv, c, c, g.positions());
    let elements = forward.max(data) + sums_scratch(kind, &conv, c);
    let weight = conv_backward_weight_scratch(kind, &conv, &g, c);
    let mut scratch = vec![0.0; elements.max(weight).max(norm_scratch(kind, c))];
    let xv = on(&x, &g);
    let mut all = Vec::new();
    let mut run = |name, kernel: Run<'_>| {
        all.push(watch(name, team, &mut scratch, &mut each, kernel));
    };
    run(
        "convolution with a tail",
        Box::new(|k| {
            let epilogue = Epilogue {
                bias: Some(&ones),
                add: Some(xv),
                negative_slope: Some(0.1),
                sums: Some(Sums {
                    of: Summed::Squares,
                    into: &mut sums,
                    accumulate: false,
                }),
                ..Epilogue::default()
            };
            let weights = Weights::Plain(&w);
            conv_forward(k, xv, weights, to(&mut a, &g), &conv, false, epilogue)
        }),
    );
    run(
        "data gradient with a mask",
        Box::new(|k| {
            let epilogue = Epilogue {
                mask: Some((xv, 0.1)),
                sums: Some(Sums {
                    of: Summed::Normalized(xv, norm),
                    into: &mut sums,
                    accumulate: false,
                }),
                ..Epilogue::default()
            };
            let (weights, dx) = (Weights::Plain(&w), to(&mut a, &g));
            conv_backward_data(k, xv, weights, dx, &conv, [0; 3], true, epilogue)
        }),
    );
    run(
        "weight and bias gradient",
        Box::new(|k| conv_backward_weight(k, xv, xv, &mut dw, Some(&mut db), &conv, false)),
    );
    all
}

#[test]
fn long_kernels_call_progress() {
    let mut team = Team::new(1, Level::detect()).unwrap();
    for (name, work, calls) in calls(&mut team, || ()) {
        let least = work.bytes / BYTES_PER_CALL;
        assert!(least >= 1, "{name} is long enough");
        assert!(calls >= least, "{name}: {calls} calls, want {least}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_team_has_as_many_threads_as_asked_for() {
    for threads in [1, 2, 3] {
        no_workers();
        let mut team = Team::new(threads, Level::detect()).unwrap();
        assert_eq!(workers(), threads - 1);
        let mut seen = 0;
        calls(&mut team, || {
            seen += 1;
            assert_eq!(workers(), threads - 1);
        });
        assert!(seen > 0);
        drop(team);
    }
    no_workers();
}
