//! Elementwise kernels, batch normalization, linear layers and optimizers against plain loops.

use crate::naive;

use naive::{
    Random, assert_box, assert_untouched_outside, buffer, call, inside, offset, on, positions,
};
use naive::{teams, to};
use partita_cpu::{
    Activation, Adam, Call, Canceled, Epilogue, Grid, Normalization, Parameter, Planes, Sgd, Team,
    Transform, View, ViewMut, Weights, Work, accumulate, activate, activate_backward,
    activate_backward_in_place, activate_in_place, adam, add, bias_backward, copy, fill, import,
    linear_backward_data, linear_backward_weight, linear_forward, linear_scratch, norm_backward,
    norm_backward_statistics, norm_forward, norm_scratch, norm_statistics, scale, sgd,
    sum_of_squares,
};

fn grids(random: &mut Random) -> [Grid; 3] {
    // Some cases are large enough for several threads.
    let extent = [
        random.within(1, 5),
        random.within(1, 9),
        random.within(1, 80),
    ];
    let (n, c) = (random.within(1, 2), random.pick(&[1, 3, 4, 16, 21, 32, 40]));
    [0; 3].map(|_| random.grid(n, extent, c))
}

fn near(got: &[f32], want: impl Iterator<Item = f64>, tolerance: f64, what: &str) {
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(*got) - want).abs();
        assert!(
            error <= tolerance * (1.0 + want.abs()),
            "{what}: {i}: {got} not {want}"
        );
    }
}

type Plain = fn(f32, f32, f32) -> f32;
type Binary = fn(&mut Call, View, View, ViewMut) -> Result<Work, Canceled>;

#[test]
fn maps() {
    const RELU: Activation = Activation::Relu;
    const LEAKY: Activation = Activation::LeakyRelu { slope: 0.25 };
    let cases: [(Binary, Plain); 13] = [
        (|k, a, _, y| activate(k, RELU, a, y), |a, _, _| a.max(0.0)),
        (
            |k, a, _, y| activate(k, LEAKY, a, y),
            |a, _, _| a.max(0.25 * a),
        ),
        (
            |k, _, _, y| activate_in_place(k, RELU, y),
            |_, _, y| y.max(0.0),
        ),
        (
            |k, _, _, y| activate_in_place(k, LEAKY, y),
            |_, _, y| y.max(0.25 * y),
        ),
        (
            |k, a, b, y| activate_backward(k, RELU, a, b, y, false),
            |a, b, _| {
                if a > 0.0 { b } else { 0.0 }
            },
        ),
        (
            |k, a, b, y| activate_backward(k, LEAKY, a, b, y, true),
            |a, b, y| y + if a > 0.0 { b } else { 0.25 * b },
        ),
        (
            |k, a, _, y| activate_backward_in_place(k, RELU, a, y),
            |a, _, y| {
                if a > 0.0 { y } else { 0.0 }
            },
        ),
        (
            |k, a, _, y| activate_backward_in_place(k, LEAKY, a, y),
            |a, _, y| {
                if a > 0.0 { y } else { 0.25 * y }
            },
        ),
        (|k, a, b, y| add(k, a, b, y, None, None), |a, b, _| a + b),
        (|k, a, _, y| accumulate(k, a, y), |a, _, y| a + y),
        (|k, _, _, y| scale(k, 0.5, y), |_, _, y| 0.5 * y),
        (|k, a, _, y| copy(k, a, y), |a, _, _| a),
        (|k, _, _, y| fill(k, 3.0, y), |_, _, _| 3.0),
    ];
    for seed in 0..40 {
        println!("seed {seed}");
        let mut random = Random(seed + 5000);
        let [ag, bg, yg] = grids(&mut random);
        let [a, b, start] = [ag, bg, yg].map(|g| buffer(&g, || random.whole()));
        for team in &mut teams() {
            for (i, (kernel, want)) in cases.iter().enumerate() {
                let mut y = start.clone();
                call(team, 0, |k| {
                    kernel(k, on(&a, &ag), on(&b, &bg), to(&mut y, &yg))
                });
                assert_untouched_outside(&yg, &y);
                let old = inside(&yg, &start);
                let both = inside(&ag, &a).into_iter().zip(inside(&bg, &b));
                let want: Vec<f32> = both.zip(old).map(|((a, b), y)| want(a, b, y)).collect();
                assert_eq!(
                    inside(&yg, &y),
                    want,
                    "seed {seed} case {i} {:?}",
                    team.level()
                );
            }
        }
    }
}

#[test]
fn imports() {
    for seed in 0..30 {
        println!("seed {seed}");
        let mut random = Random(seed + 6000);
        let [g, ..] = grids(&mut random);
        let h = g.extent[2] + random.within(0, 3);
        let d = h * g.extent[1] + random.within(0, 3);
        let c = d * g.extent[0] + 1;
        let pitch = [c * g.channels, c, d, h];
        let counts: Vec<i16> = (0..pitch[0] * g.samples)
            .map(|_| random.within(0, 40000) as i16)
            .collect();
        let floats: Vec<f32> = counts.iter().map(|a| f32::from(*a) * 1e-3).collect();
        for (planes, transform) in [
            (Planes::I16(&counts), Transform::Identity),
            (Planes::I16(&counts), Transform::Scale(0.1)),
            (Planes::F32(&floats), Transform::Log1p),
            (Planes::I16(&counts), Transform::Log1p),
        ] {
            let mut want = vec![0.0; g.span() + 3];
            for (n, at) in positions(&g) {
                for i in 0..g.channels {
                    let from = n * pitch[0] + i * c + at[0] * d + at[1] * h + at[2];
                    let x = match planes {
                        Planes::I16(_) => f64::from(counts[from]),
                        Planes::F32(_) => f64::from(floats[from]),
                    };
                    want[offset(&g, n, at) + i] = match transform {
                        Transform::Identity => x,
                        Transform::Scale(s) => x * f64::from(s),
                        Transform::Log1p => x.ln_1p(),
                    };
                }
            }
            for team in &mut teams() {
                let mut y = buffer(&g, || 7.0);
                call(team, 0, |k| {
                    import(k, planes, pitch, transform, to(&mut y, &g))
                });
                assert_untouched_outside(&g, &y);
                for (n, at) in positions(&g) {
                    for o in (0..g.channels).map(|i| offset(&g, n, at) + i) {
                        let (got, want) = (f64::from(y[o]), want[o]);
                        let same = got == want || (got.is_nan() && want.is_nan());
                        let error = (got - want).abs();
                        assert!(
                            same || error <= 4e-7 * want.abs(),
                            "seed {seed} {got} {want}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn log1p_is_accurate() {
    let x: Vec<f32> = (0..200_000)
        .map(|i| {
            let a = f32::from_bits(0x2000_0000 + i * 0x1f00);
            if i % 2 == 0 { a } else { -a % 1.0 }
        })
        .collect();
    let g = Grid::dense(1, [1, 1, x.len()], 1);
    for team in &mut teams() {
        let mut y = vec![0.0; x.len()];
        let pitch = [x.len(); 4];
        call(team, 0, |k| {
            import(k, Planes::F32(&x), pitch, Transform::Log1p, to(&mut y, &g))
        });
        for (x, y) in x.iter().zip(&y) {
            let want = f64::from(*x).ln_1p();
            let error = (f64::from(*y) - want).abs();
            assert!(
                error <= 4.8e-7 * want.abs(),
                "ln_1p({x:e}) = {y:e}, want {want:e}"
            );
        }
    }
    let special = [0.0, -1.0, -2.0, f32::INFINITY, f32::NAN];
    let (g, mut y) = (Grid::dense(1, [1, 1, 5], 1), [0.0; 5]);
    let planes = Planes::F32(&special);
    call(&mut teams()[0], 0, |k| {
        import(k, planes, [5; 4], Transform::Log1p, to(&mut y, &g))
    });
    assert!(
        y[0] == 0.0 && y[1] == f32::NEG_INFINITY && y[2].is_nan(),
        "{y:?}"
    );
    assert!(y[3] == f32::INFINITY && y[4].is_nan(), "{y:?}");
}

struct Norm {
    sums: Vec<f64>,
    gradient: Vec<f64>,
    y: Vec<f32>,
    dx: Vec<f32>,
}

/// All kernels of the normalization in turn.
fn normalize(
    team: &mut Team,
    (x, dy, start): (View, View, &[f32]),
    (gamma, beta): (&[f32], &[f32]),
    add_to: bool,
) -> Norm {
    let (g, c) = (*x.grid(), x.grid().channels);
    let need = norm_scratch(team.kind(), c);
    let (mut sums, mut gradient) = (vec![0.0; 2 * c], vec![0.0; 2 * c]);
    call(team, need, |k| norm_statistics(k, x, &mut sums, false));
    let count = g.positions() as f64;
    let (mut y, mut dx) = (start.to_vec(), start.to_vec());
    let norm = Normalization {
        sums: &sums,
        count,
        epsilon: 1e-5,
        gamma,
        beta,
    };
    call(team, need, |k| {
        norm_forward(k, x, to(&mut y, &g), &norm, None, None)
    });
    call(team, need, |k| {
        norm_backward_statistics(k, x, dy, &norm, &mut gradient, false)
    });
    call(team, need, |k| {
        norm_backward(k, x, dy, to(&mut dx, &g), &norm, &gradient, add_to)
    });
    Norm {
        sums,
        gradient,
        y,
        dx,
    }
}

#[test]
fn normalization() {
    for seed in 0..40 {
        println!("seed {seed}");
        let mut random = Random(seed + 7000);
        let [g, ..] = grids(&mut random);
        let c = g.channels;
        let [x, dy, start] = [3.0, -0.4, 0.0].map(|a| buffer(&g, || random.unit() + a));
        let [gamma, beta] = [0; 2].map(|_| (0..c).map(|_| random.unit()).collect::<Vec<_>>());
        let (xs, dys, olds) = (inside(&g, &x), inside(&g, &dy), inside(&g, &start));
        let count = g.positions() as f64;
        let add_to = seed % 2 == 1;
        for team in &mut teams() {
            let views = (on(&x, &g), on(&dy, &g), &start[..]);
            let got = normalize(team, views, (&gamma, &beta), add_to);
            assert_untouched_outside(&g, &got.y);
            assert_untouched_outside(&g, &got.dx);
            let again = normalize(team, views, (&gamma, &beta), add_to);
            assert_eq!((&got.sums, &got.gradient), (&again.sums, &again.gradient));
            let (ys, dxs) = (inside(&g, &got.y), inside(&g, &got.dx));
            for ch in 0..c {
                let of = |a: &[f32]| -> Vec<f64> {
                    a.iter()
                        .skip(ch)
                        .step_by(c)
                        .map(|a| f64::from(*a))
                        .collect()
                };
                let [x, dy, y, dx, old] = [&xs, &dys, &ys, &dxs, &olds].map(|a| of(a));
                let mean = x.iter().sum::<f64>() / count;
                let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
                let inverse = 1.0 / (variance + 1e-5).sqrt();
                let hat: Vec<f64> = x.iter().map(|x| (x - mean) * inverse).collect();
                let sum = dy.iter().sum::<f64>();
                let product: f64 = dy.iter().zip(&hat).map(|(a, b)| a * b).sum();
                assert!((got.gradient[ch] - sum).abs() < 1e-9 * count);
                assert!(
                    (got.gradient[c + ch] - product).abs() < 1e-7 * count,
                    "seed {seed}"
                );
                let (gamma, beta) = (f64::from(gamma[ch]), f64::from(beta[ch]));
                for i in 0..x.len() {
                    assert!((y[i] - (hat[i] * gamma + beta)).abs() < 2e-3 * inverse.max(1.0) * 0.1);
                    let want = gamma * inverse * (dy[i] - (sum + hat[i] * product) / count);
                    let want = want + if add_to { old[i] } else { 0.0 };
                    let error = (dx[i] - want).abs();
                    assert!(
                        error < 1e-5 * (1.0 + inverse * inverse),
                        "seed {seed}: {error}"
                    );
                }
            }
        }
    }
}

#[test]
fn bias() {
    for seed in 0..40 {
        println!("seed {seed}");
        let mut random = Random(seed + 8000);
        let [g, ..] = grids(&mut random);
        let dy = buffer(&g, || random.whole());
        let start: Vec<f32> = (0..g.channels).map(|_| random.whole()).collect();
        let add_to = seed % 2 == 1;
        let mut want: Vec<f32> = start.iter().map(|b| b * f32::from(add_to)).collect();
        for row in inside(&g, &dy).chunks(g.channels) {
            want.iter_mut().zip(row).for_each(|(w, a)| *w += a);
        }
        for team in &mut teams() {
            let mut db = start.clone();
            let need = norm_scratch(team.kind(), g.channels);
            call(team, need, |k| {
                bias_backward(k, on(&dy, &g), &mut db, add_to)
            });
            assert_eq!(db, want, "seed {seed}");
        }
    }
}

#[test]
fn linear() {
    for seed in 0..60 {
        println!("seed {seed}");
        let mut random = Random(seed + 9000);
        let n = random.within(1, 9);
        let (c, f) = (
            random.within(1, 150),
            random.pick(&[1, 4, 16, 31, 64, 100, 128]),
        );
        let (xg, yg) = (random.grid(n, [1; 3], c), random.grid(n, [1; 3], f));
        let (x, dy) = (
            buffer(&xg, || random.whole()),
            buffer(&yg, || random.whole()),
        );
        let w: Vec<f32> = (0..c * f).map(|_| random.whole()).collect();
        let b: Vec<f32> = (0..f).map(|_| random.whole()).collect();
        let (mut y, mut dx) = (vec![0f64; dy.len()], vec![0f64; x.len()]);
        let mut dw = vec![0f64; w.len()];
        for s in 0..n {
            let (xo, yo) = (s * xg.pitch[0], s * yg.pitch[0]);
            for j in 0..f {
                y[yo + j] = f64::from(b[j]);
                for i in 0..c {
                    let (xv, dyv) = (f64::from(x[xo + i]), f64::from(dy[yo + j]));
                    let wv = f64::from(w[i * f + j]);
                    y[yo + j] += xv * wv;
                    dx[xo + i] += dyv * wv;
                    dw[i * f + j] += xv * dyv;
                }
            }
        }
        for team in &mut teams() {
            let need = linear_scratch(team.kind(), n, c, f);
            let what = format!("seed {seed} {:?}", team.level());
            let (xv, dyv) = (on(&x, &xg), on(&dy, &yg));
            let mut got = buffer(&yg, || 5.0);
            call(team, need, |k| {
                let epilogue = Epilogue {
                    bias: Some(&b),
                    ..Epilogue::default()
                };
                linear_forward(
                    k,
                    xv,
                    Weights::Plain(&w),
                    to(&mut got, &yg),
                    false,
                    epilogue,
                )
            });
            assert_box(&yg, &got, &y, None, &what);
            let mut got = buffer(&xg, || 5.0);
            call(team, need, |k| {
                let (dx, none) = (to(&mut got, &xg), Epilogue::default());
                linear_backward_data(k, dyv, Weights::Plain(&w), dx, false, none)
            });
            assert_box(&xg, &got, &dx, None, &what);
            let mut got = vec![2.0; w.len()];
            call(team, need, |k| {
                linear_backward_weight(k, xv, dyv, &mut got, None, true)
            });
            near(&got, dw.iter().map(|a| a + 2.0), 0.0, &what);
        }
    }
}

/// Lengths of parameters: empty, tiny, of several ranges.
const LENGTHS: [usize; 7] = [3, 0, 50_001, 1, 16_384, 700, 33_000];

/// Slices of a buffer of all parameters.
fn cut(mut from: &mut [f32]) -> [&mut [f32]; 7] {
    LENGTHS.map(|length| {
        let (here, rest) = std::mem::take(&mut from).split_at_mut(length);
        from = rest;
        here
    })
}

/// All parameters, with their gradients and as many moments as asked for.
fn parameters<'a>(
    w: &'a mut [f32],
    g: &'a [f32],
    moments: [Option<&'a mut [f32]>; 2],
) -> Vec<Parameter<'a>> {
    let mut g = g;
    let mut moments = moments.map(|moment| moment.map(|moment| cut(moment).into_iter()));
    let list = cut(w).into_iter().map(|w| {
        let (here, rest) = g.split_at(w.len());
        g = rest;
        let moments = moments.each_mut().map(|moment| {
            let next = moment.as_mut().and_then(Iterator::next);
            next.unwrap_or_default()
        });
        Parameter::new(w, here, moments)
    });
    list.collect()
}

#[test]
fn optimizers() {
    const N: usize = 100_089;
    assert_eq!(LENGTHS.iter().sum::<usize>(), N);
    let mut random = Random(1);
    let [w0, g] = [0; 2].map(|_| (0..N).map(|_| random.unit() - 0.5).collect::<Vec<f32>>());
    let mut squares = Vec::new();
    for team in &mut teams() {
        for (momentum, weight_decay) in [(0.9, 1e-2), (0.0, 1e-2)] {
            let options = Sgd {
                is_nesterov: false,
                rate: 0.1,
                momentum,
                weight_decay,
                scale: 0.5,
            };
            let (mut w, mut v) = (w0.clone(), vec![0.0; N]);
            let mut want: Vec<(f64, f64)> = w0.iter().map(|w| (f64::from(*w), 0.0)).collect();
            for _ in 0..3 {
                let velocity = (momentum != 0.0).then_some(&mut v[..]);
                let mut list = parameters(&mut w, &g, [velocity, None]);
                call(team, 0, |k| sgd(k, &options, &mut list));
                for ((w, v), g) in want.iter_mut().zip(&g) {
                    *v = momentum * *v + 0.5 * f64::from(*g) + weight_decay * *w;
                    *w -= 0.1 * *v;
                }
            }
            near(&w, want.iter().map(|a| a.0), 1e-6, "sgd");
        }
        let (rate, beta1, beta2, epsilon) = (1e-2, 0.9, 0.999, 1e-8);
        let (mut w, mut m, mut v) = (w0.clone(), vec![0.0; N], vec![0.0; N]);
        let mut want: Vec<[f64; 3]> = w0.iter().map(|w| [f64::from(*w), 0.0, 0.0]).collect();
        for step in 1..=3 {
            let options = Adam {
                is_decoupled: false,
                rate,
                beta1,
                beta2,
                epsilon,
                weight_decay: 0.1,
                scale: 0.5,
                step,
            };
            let mut list = parameters(&mut w, &g, [Some(&mut m), Some(&mut v)]);
            call(team, 0, |k| adam(k, &options, &mut list));
            for ([w, m, v], g) in want.iter_mut().zip(&g) {
                let g = 0.5 * f64::from(*g) + 0.1 * *w;
                *m = beta1 * *m + (1.0 - beta1) * g;
                *v = beta2 * *v + (1.0 - beta2) * g * g;
                let (mc, vc) = (1.0 - beta1.powi(step as i32), 1.0 - beta2.powi(step as i32));
                *w -= rate * (*m / mc) / ((*v / vc).sqrt() + epsilon);
            }
        }
        near(&w, want.iter().map(|a| a[0]), 1e-5, "adam");
        let want: f64 = g.iter().map(|g| f64::from(*g).powi(2)).sum();
        let mut got = 0.0;
        call(team, 0, |k| {
            let (first, second) = g.split_at(7);
            got = sum_of_squares(k, &[first, &[], second])?.0;
            Ok(())
        });
        assert!((got - want).abs() < 1e-10 * want);
        squares.push(got.to_bits());
    }
    let mut same = squares.chunks(3);
    assert!(same.all(|threads| threads.iter().all(|bits| *bits == threads[0])));
}
