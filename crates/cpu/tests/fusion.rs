//! Kernels with what is done to their operands and results on the way, against plain f64 loops.

use crate::naive;

use naive::{
    Random, assert_box, assert_untouched_outside, buffer, call, inside, offset, on, positions,
};
use naive::{teams, to};
use partita_cpu::{
    Gradient, Grid, Inference, Mask, Normalization, PoolKind, Pooling, Window, accumulate_masked,
    add, copy, norm_backward, norm_backward_statistics, norm_forward, norm_inference, norm_scratch,
    norm_statistics, pool_backward,
};

fn grids<const N: usize>(random: &mut Random) -> [Grid; N] {
    let extent = [
        random.within(1, 4),
        random.within(1, 7),
        random.within(1, 70),
    ];
    let (n, c) = (
        random.within(1, 2),
        random.pick(&[1, 3, 8, 16, 21, 32, 40, 64]),
    );
    [0; N].map(|_| random.grid(n, extent, c))
}

fn wide(g: &Grid, data: &[f32]) -> Vec<f64> {
    inside(g, data).into_iter().map(f64::from).collect()
}

fn leaky(sign: f64, value: f64, slope: Option<f32>) -> f64 {
    match slope {
        Some(slope) if sign <= 0.0 => f64::from(slope) * value,
        Some(_) | None => value,
    }
}

fn assert_near(g: &Grid, got: &[f32], want: &[f64], tolerance: f64, what: &str) {
    assert_untouched_outside(g, got);
    for (i, (got, want)) in inside(g, got).iter().zip(want).enumerate() {
        let error = (f64::from(*got) - want).abs();
        assert!(
            error <= tolerance * (1.0 + want.abs()),
            "{what}: {i}: {got} not {want}"
        );
    }
}

/// What a channel is normalized by.
struct Moments {
    mean: f64,
    inverse: f64,
    gamma: f64,
    beta: f64,
}

fn moments(x: &[f64], gamma: &[f32], beta: &[f32]) -> Vec<Moments> {
    let c = gamma.len();
    let count = (x.len() / c) as f64;
    (0..c)
        .map(|ch| {
            let of = || x.iter().skip(ch).step_by(c);
            let mean = of().sum::<f64>() / count;
            let variance = of().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
            Moments {
                mean,
                inverse: 1.0 / (variance + 1e-2).sqrt(),
                gamma: f64::from(gamma[ch]),
                beta: f64::from(beta[ch]),
            }
        })
        .collect()
}

#[test]
fn normalization_with_residual_and_slope() {
    for seed in 0..40 {
        println!("seed {seed}");
        let mut random = Random(seed + 11_000);
        let [xg, bg, yg] = grids(&mut random);
        let c = xg.channels;
        let [x, b, start] = [&xg, &bg, &yg].map(|g| buffer(g, || random.unit() * 2.0 - 1.0));
        let [gamma, beta] = [0; 2].map(|_| (0..c).map(|_| random.unit()).collect::<Vec<_>>());
        let residual = random.pick(&[true, false]);
        let slope = random.pick(&[None, Some(0.0), Some(0.25)]);
        let (xs, bs) = (wide(&xg, &x), wide(&bg, &b));
        let moments = moments(&xs, &gamma, &beta);
        let want: Vec<f64> = (0..xs.len())
            .map(|i| {
                let m = &moments[i % c];
                let y = (xs[i] - m.mean) * m.inverse * m.gamma + m.beta;
                let y = y + if residual { bs[i] } else { 0.0 };
                leaky(y, y, slope)
            })
            .collect();
        let running = [0, 1].map(|which| {
            let values = moments.iter().map(|m| match which {
                0 => m.mean as f32,
                _ => (m.inverse.powi(-2) - 1e-2) as f32,
            });
            values.collect::<Vec<f32>>()
        });
        for team in &mut teams() {
            let what = format!("seed {seed} {:?} {} threads", team.level(), team.threads());
            let need = norm_scratch(team.kind(), c);
            let mut sums = vec![0.0; 2 * c];
            call(team, need, |k| {
                norm_statistics(k, on(&x, &xg), &mut sums, false)
            });
            let norm = Normalization {
                sums: &sums,
                count: xg.positions() as f64,
                epsilon: 1e-2,
                gamma: &gamma,
                beta: &beta,
            };
            let plus = residual.then(|| on(&b, &bg));
            let mut y = start.clone();
            call(team, need, |k| {
                norm_forward(k, on(&x, &xg), to(&mut y, &yg), &norm, plus, slope)
            });
            assert_near(&yg, &y, &want, 1e-5, &what);
            let inference = Inference {
                mean: &running[0],
                variance: &running[1],
                epsilon: 1e-2,
                gamma: &gamma,
                beta: &beta,
            };
            let mut y = start.clone();
            call(team, need, |k| {
                norm_inference(k, on(&x, &xg), to(&mut y, &yg), &inference, plus, slope)
            });
            assert_near(&yg, &y, &want, 1e-5, &what);
        }
    }
}

#[test]
fn gradients_of_normalization_with_a_mask() {
    for seed in 0..40 {
        println!("seed {seed}");
        let mut random = Random(seed + 12_000);
        let [xg, dyg, mg, dxg] = grids(&mut random);
        let (c, count) = (xg.channels, xg.positions() as f64);
        let [x, dy] = [&xg, &dyg].map(|g| buffer(g, || random.unit() * 2.0 - 1.0));
        let m = buffer(&mg, || random.whole());
        let start = buffer(&dxg, || random.unit());
        let gamma: Vec<f32> = (0..c).map(|_| random.unit()).collect();
        let slope = random.pick(&[0.0, 0.25]);
        let (xs, signs, olds) = (wide(&xg, &x), wide(&mg, &m), wide(&dxg, &start));
        let dys: Vec<f64> = wide(&dyg, &dy)
            .iter()
            .zip(&signs)
            .map(|(dy, sign)| leaky(*sign, *dy, Some(slope)))
            .collect();
        let moments = moments(&xs, &gamma, &gamma);
        let hat = |i: usize| (xs[i] - moments[i % c].mean) * moments[i % c].inverse;
        let mut totals = vec![0.0; 2 * c];
        for (i, dy) in dys.iter().enumerate() {
            totals[i % c] += dy;
            totals[c + i % c] += dy * hat(i);
        }
        let add_to = seed % 2 == 1;
        let want: Vec<f64> = (0..xs.len())
            .map(|i| {
                let (ch, m) = (i % c, &moments[i % c]);
                let inner = dys[i] - (totals[ch] + hat(i) * totals[c + ch]) / count;
                m.gamma * m.inverse * inner + if add_to { olds[i] } else { 0.0 }
            })
            .collect();
        for team in &mut teams() {
            let what = format!("seed {seed} {:?} {} threads", team.level(), team.threads());
            let need = norm_scratch(team.kind(), c);
            let mut sums = vec![0.0; 2 * c];
            call(team, need, |k| {
                norm_statistics(k, on(&x, &xg), &mut sums, false)
            });
            let norm = Normalization {
                sums: &sums,
                count,
                epsilon: 1e-2,
                gamma: &gamma,
                beta: &gamma,
            };
            let mask = Mask {
                y: on(&m, &mg),
                slope,
            };
            let gradient = Gradient {
                dy: on(&dy, &dyg),
                mask: Some(mask),
            };
            let mut got = vec![0.0; 2 * c];
            call(team, need, |k| {
                norm_backward_statistics(k, on(&x, &xg), gradient, &norm, &mut got, false)
            });
            for (got, want) in got.iter().zip(&totals) {
                assert!((got - want).abs() < 1e-6 * (1.0 + count), "{what}");
            }
            let mut dx = start.clone();
            call(team, need, |k| {
                let dx = to(&mut dx, &dxg);
                norm_backward(k, on(&x, &xg), gradient, dx, &norm, &got, add_to)
            });
            assert_near(&dxg, &dx, &want, 1e-5, &what);
        }
    }
}

#[test]
fn sums_of_boxes_with_slope_and_statistics() {
    for seed in 0..60 {
        println!("seed {seed}");
        let mut random = Random(seed + 13_000);
        let [ag, bg, yg] = grids(&mut random);
        let [a, b, start] = [&ag, &bg, &yg].map(|g| buffer(g, || random.whole()));
        let slope = random.pick(&[None, Some(0.0), Some(0.25)]);
        let values: Vec<f64> = inside(&ag, &a)
            .iter()
            .zip(inside(&bg, &b))
            .map(|(a, b)| leaky(f64::from(a + b), f64::from(a + b), slope))
            .collect();
        let c = yg.channels;
        let mut totals = vec![0.0; 2 * c];
        for (i, y) in values.iter().enumerate() {
            totals[i % c] += y;
            totals[c + i % c] += y * y;
        }
        for team in &mut teams() {
            let what = format!("seed {seed} {:?} {} threads", team.level(), team.threads());
            let need = norm_scratch(team.kind(), c);
            for wanted in [false, true] {
                let (mut y, mut sums) = (start.clone(), vec![0.0; 2 * c]);
                call(team, need, |k| {
                    let sums = wanted.then_some(&mut sums[..]);
                    add(
                        k,
                        on(&a, &ag),
                        on(&b, &bg),
                        to(&mut y, &yg),
                        slope,
                        sums.map(|sums| (sums, false)),
                    )
                });
                assert_near(&yg, &y, &values, 0.0, &what);
                assert!(!wanted || sums == totals, "{what}: {sums:?} {totals:?}");
            }
        }
    }
}

#[test]
fn masked_contributions() {
    for seed in 0..40 {
        println!("seed {seed}");
        let mut random = Random(seed + 14_000);
        let [xg, mg, yg] = grids(&mut random);
        let [x, m, start] = [&xg, &mg, &yg].map(|g| buffer(g, || random.whole()));
        let olds = inside(&yg, &start);
        let masked = inside(&xg, &x).into_iter().zip(inside(&mg, &m));
        let want: Vec<f64> = masked
            .zip(olds)
            .map(|((x, m), old)| f64::from(old + if m > 0.0 { x } else { 0.25 * x }))
            .collect();
        for team in &mut teams() {
            let mut y = start.clone();
            let mask = Mask {
                y: on(&m, &mg),
                slope: 0.25,
            };
            call(team, 0, |k| {
                accumulate_masked(k, on(&x, &xg), &mask, to(&mut y, &yg))
            });
            assert_near(&yg, &y, &want, 0.0, &format!("seed {seed}"));
        }
    }
}

/// A concatenation along channels: boxes of some channels among those of others.
#[test]
fn channels_of_others_stay() {
    let mut random = Random(15_000);
    for (c, total, first) in [(32, 96, 64), (5, 13, 3), (1, 4, 2), (48, 64, 16)] {
        let extent = [3, 5, 40];
        let (xg, all) = (Grid::dense(2, extent, c), Grid::dense(2, extent, total));
        let yg = Grid { channels: c, ..all };
        let x = buffer(&xg, || random.whole());
        let start = buffer(&all, || random.whole());
        let mut want = start.clone();
        for (n, at) in positions(&xg) {
            let (from, into) = (offset(&xg, n, at), offset(&all, n, at) + first);
            want[into..into + c].copy_from_slice(&x[from..from + c]);
        }
        for team in &mut teams() {
            let mut y = start.clone();
            call(team, 0, |k| copy(k, on(&x, &xg), to(&mut y[first..], &yg)));
            assert_eq!(inside(&all, &y), inside(&all, &want));
        }
    }
}

/// Rows of more outputs than are summed at a time.
#[test]
fn gradients_of_long_rows_of_averages() {
    let window = Window {
        kernel: [1, 2, 2],
        stride: [1, 1, 1],
        dilation: [1; 3],
    };
    let pooling = Pooling {
        kind: PoolKind::AverageAll,
        window,
        shift: [0, -1, -1],
    };
    let mut random = Random(16_000);
    let (xg, yg) = (
        random.grid(1, [2, 3, 700], 5),
        random.grid(1, [2, 4, 701], 5),
    );
    let dy = buffer(&yg, || random.whole());
    let start = buffer(&xg, || random.whole());
    for accumulate in [false, true] {
        let mut want = vec![0.0; start.len()];
        for (n, [d, h, w]) in positions(&xg) {
            for c in 0..xg.channels {
                let taps = [(h, w), (h, w + 1), (h + 1, w), (h + 1, w + 1)];
                let of = |(h, w)| f64::from(dy[offset(&yg, n, [d, h, w]) + c]);
                want[offset(&xg, n, [d, h, w]) + c] = taps.map(of).iter().sum::<f64>() / 4.0;
            }
        }
        for team in &mut teams() {
            let mut dx = start.clone();
            call(team, 0, |k| {
                let dx = to(&mut dx, &xg);
                pool_backward(k, None, on(&dy, &yg), dx, &pooling, accumulate, None)
            });
            let before = accumulate.then_some(&start[..]);
            assert_box(&xg, &dx, &want, before, &format!("{:?}", team.level()));
        }
    }
}
