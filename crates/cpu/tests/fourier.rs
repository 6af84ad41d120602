//! The convolutions by Fourier transforms against plain f64 loops: all levels, thread counts,
//! random geometries.
//!
//! Values are random and have a mean of zero; errors are taken over a whole box, see
//! `fourier_error_bound`.

use crate::naive;

use naive::random_epilogue::RandomEpilogue;
use naive::transformed::{box_error, call, convolution, error, filled, wide};
use naive::{Case, Random, buffer, inside, on, teams, to};
use partita_cpu::{
    Call, Canceled, Convolution, Epilogue, Grid, Level, Team, fourier_backward_data,
    fourier_backward_data_scratch, fourier_backward_weight, fourier_backward_weight_scratch,
    fourier_error_bound, fourier_forward, fourier_forward_scratch, fourier_offers,
};

const CASES: u64 = 40;
const KERNELS: [[usize; 3]; 10] = [
    [1, 5, 5],
    [1, 7, 7],
    [1, 13, 11],
    [1, 4, 10],
    [3, 3, 3],
    [5, 5, 5],
    [7, 1, 9],
    [5, 6, 1],
    [2, 5, 3],
    [1, 2, 3],
];

/// A random case with values of mean zero and variance 1 / 12.
fn case(random: &mut Random) -> Case {
    let conv = convolution(random.pick(&KERNELS));
    let c = random.pick(&[1, 3, 8, 16, 21]);
    let f = random.pick(&[1, 5, 16, 33, 64]);
    let deep = random.pick(&[1, 4, 9]);
    let out = [
        random.within(1, deep),
        random.within(1, 40 / deep),
        random.within(1, 40 / deep),
    ];
    filled(random, conv, (c, f), out)
}

fn assert_near(error: f64, what: &str) {
    let bound = fourier_error_bound();
    assert!(error <= bound, "{what}: error {error:e} above {bound:e}");
}

/// All teams, each with a description.
fn each(seed: u64, case: &Case, mut body: impl FnMut(&mut Team, &str)) {
    let kernel = case.conv.window.kernel;
    for team in &mut teams() {
        let what = format!(
            "seed {seed} {kernel:?} {:?} {:?} {}",
            case.yg.extent,
            team.level(),
            team.threads()
        );
        body(team, &what);
    }
}

#[test]
fn forward() {
    for seed in 0..CASES {
        println!("seed {seed}");
        let mut random = Random(seed);
        let case = case(&mut random);
        let accumulate = seed % 2 == 1;
        let (conv, yg) = (&case.conv, &case.yg);
        let (c, f) = (case.xg.channels, yg.channels);
        let start = buffer(yg, || random.whole());
        let mut want = case.forward();
        if accumulate {
            naive::add_before(yg, &mut want, &start);
        }
        let epilogue = RandomEpilogue::new(&mut random, yg);
        epilogue.apply(yg, &mut want);
        each(seed, &case, |team, what| {
            let (mut y, mut sums) = (start.clone(), epilogue.sums());
            let mut need = fourier_forward_scratch(team.kind(), conv, c, yg);
            need += epilogue.scratch(team, conv, f);
            let (x, yv) = (on(&case.x, &case.xg), to(&mut y, yg));
            let work = call(team, need, |k| {
                epilogue.with(&mut sums, |e| {
                    fourier_forward(k, x, &case.w, yv, conv, accumulate, e)
                })
            });
            let error = box_error(yg, &y, &want, conv.window.volume() * c);
            assert_near(error, what);
            epilogue.assert_sums_within(1e-5, yg, &wide(&y), &sums, what);
            assert_eq!(work.flops, 2 * (yg.positions() * case.w.len()) as u64);
        });
    }
}

#[test]
fn backward_data() {
    for seed in 0..CASES {
        println!("seed {seed}");
        let mut random = Random(seed + 1000);
        let case = case(&mut random);
        let accumulate = seed % 2 == 1;
        // Any box: beyond dy on all sides, or inside so that dy is complete.
        let extent = [
            random.within(1, 5),
            random.within(1, 9),
            random.within(1, 33),
        ];
        let (c, f) = (case.xg.channels, case.yg.channels);
        let dxg = random.grid(case.yg.samples, extent, c);
        let shift = [0; 3].map(|_: i64| random.within(0, 16) as i64 - 8);
        let start = buffer(&dxg, || random.whole());
        let mut want = case.data(&dxg, shift);
        if accumulate {
            naive::add_before(&dxg, &mut want, &start);
        }
        let epilogue = RandomEpilogue::new(&mut random, &dxg);
        epilogue.apply(&dxg, &mut want);
        let conv = &case.conv;
        each(seed, &case, |team, what| {
            let (mut dx, mut sums) = (start.clone(), epilogue.sums());
            let kind = team.kind();
            let mut need = fourier_backward_data_scratch(kind, conv, f, &dxg);
            need += epilogue.scratch(team, conv, c);
            let (dy, dxv) = (on(&case.dy, &case.yg), to(&mut dx, &dxg));
            let work = call(team, need, |k| {
                epilogue.with(&mut sums, |e| {
                    fourier_backward_data(k, dy, &case.w, dxv, conv, shift, accumulate, e)
                })
            });
            let error = box_error(&dxg, &dx, &want, conv.window.volume() * f);
            assert_near(error, what);
            epilogue.assert_sums_within(1e-5, &dxg, &wide(&dx), &sums, what);
            assert_eq!(work.flops, 2 * (case.yg.positions() * case.w.len()) as u64);
        });
    }
}

#[test]
fn backward_weight() {
    for seed in 0..CASES {
        println!("seed {seed}");
        let mut random = Random(seed + 2000);
        let case = case(&mut random);
        let (accumulate, biased) = (seed % 2 == 1, seed % 3 > 0);
        let (yg, conv) = (&case.yg, &case.conv);
        let (f, weights) = (yg.channels, case.w.len());
        let start: Vec<f32> = (0..weights + f).map(|_| random.whole()).collect();
        let mut want = case.weight();
        want.resize(weights + f, 0.0);
        for (n, at) in naive::positions(yg) {
            let o = naive::offset(yg, n, at);
            (0..f).for_each(|i| want[weights + i] += f64::from(case.dy[o + i]));
        }
        for (want, before) in want.iter_mut().zip(&start) {
            *want += if accumulate { f64::from(*before) } else { 0.0 };
        }
        each(seed, &case, |team, what| {
            let mut got = start.clone();
            let (dw, db) = got.split_at_mut(weights);
            let c = case.xg.channels;
            let need = fourier_backward_weight_scratch(team.kind(), conv, c, yg);
            let (x, dy) = (on(&case.x, &case.xg), on(&case.dy, yg));
            call(team, need, |k| {
                let db = biased.then_some(db);
                fourier_backward_weight(k, x, dy, dw, db, conv, accumulate)
            });
            let got = wide(&got);
            let error = |range: std::ops::Range<usize>| {
                error(&got[range.clone()], &want[range], yg.positions())
            };
            assert_near(error(0..weights), what);
            if biased {
                assert!(error(weights..weights + f) < 1e-6, "{what}: db");
            } else {
                assert_eq!(got[weights..], wide(&start[weights..]), "{what}: db");
            }
        });
    }
}

/// All three directions.
fn run(case: &Case, team: &mut Team) -> [Vec<f32>; 3] {
    let (xg, yg, conv, w) = (&case.xg, &case.yg, &case.conv, &case.w);
    let (c, f, kind) = (xg.channels, yg.channels, team.kind());
    let (mut y, mut dx) = (buffer(yg, || 0.0), buffer(xg, || 0.0));
    let (mut dw, none) = (vec![0.0; w.len()], Epilogue::default);
    let (x, dy) = (on(&case.x, xg), on(&case.dy, yg));
    let need = fourier_forward_scratch(kind, conv, c, yg);
    call(team, need, |k| {
        fourier_forward(k, x, w, to(&mut y, yg), conv, false, none())
    });
    let need = fourier_backward_data_scratch(kind, conv, f, xg);
    call(team, need, |k| {
        let dx = to(&mut dx, xg);
        fourier_backward_data(k, dy, w, dx, conv, [0; 3], false, none())
    });
    let need = fourier_backward_weight_scratch(kind, conv, c, yg);
    call(team, need, |k| {
        fourier_backward_weight(k, x, dy, &mut dw, None, conv, false)
    });
    [inside(yg, &y), inside(xg, &dx), dw]
}

/// Layers that take every path: blocks and slices, parts of gradients and blocks of them, several
/// of each.
fn layers() -> Vec<Case> {
    let large = |channels, kernel, out| filled(&mut Random(7), convolution(kernel), channels, out);
    vec![
        large((64, 192), [1, 5, 5], [1, 27, 27]),
        large((16, 24), [1, 7, 7], [1, 60, 47]),
        large((16, 32), [5, 5, 5], [4, 14, 15]),
        large((5, 8), [7, 7, 7], [12, 20, 11]),
        large((160, 48), [1, 5, 5], [3, 9, 11]),
    ]
}

#[test]
fn same_bits_for_any_number_of_threads() {
    for case in layers() {
        for level in Level::all_available() {
            let [first, others @ ..] = [1, 2, 3].map(|threads| {
                let mut team = Team::new(threads, level).expect("the level is available");
                run(&case, &mut team)
            });
            for (i, other) in others.iter().enumerate() {
                let what = format!("{level:?} {} threads", i + 2);
                let same = first == *other;
                assert!(same, "{what} of {:?} to {:?}", case.xg, case.yg);
            }
        }
    }
}

#[test]
fn errors_of_many_channels_stay_below_the_bound() {
    for case in layers() {
        let terms = case.conv.window.volume();
        let (xg, yg) = (&case.xg, &case.yg);
        let want = [case.forward(), case.data(xg, [0; 3]), case.weight()];
        for level in Level::all_available() {
            let mut team = Team::new(2, level).expect("the level is available");
            let [y, dx, dw] = run(&case, &mut team).map(|a| wide(&a));
            let errors = [
                error(&y, &naive::inside_wide(yg, &want[0]), terms * xg.channels),
                error(&dx, &naive::inside_wide(xg, &want[1]), terms * yg.channels),
                error(&dw, &want[2], yg.positions()),
            ];
            let (c, f) = (xg.channels, yg.channels);
            let what = format!("{level:?} {c} to {f} {:?}", case.conv.window.kernel);
            println!(
                "{what}: {:.1e} {:.1e} {:.1e}",
                errors[0], errors[1], errors[2]
            );
            errors
                .into_iter()
                .for_each(|error| assert_near(error, &what));
        }
    }
}

#[test]
fn cancels() {
    let case = &layers()[1];
    for threads in [1, 2] {
        let mut team = Team::new(threads, Level::detect()).expect("the level is available");
        let mut y = buffer(&case.yg, || 0.0);
        let (mut calls, mut scratch) = (0, vec![0.0; 1 << 23]);
        let mut progress = || {
            calls += 1;
            calls < 2
        };
        let mut call = Call {
            team: &mut team,
            scratch: &mut scratch,
            progress: &mut progress,
        };
        let (x, yv, none) = (
            on(&case.x, &case.xg),
            to(&mut y, &case.yg),
            Epilogue::default(),
        );
        let end = fourier_forward(&mut call, x, &case.w, yv, &case.conv, false, none);
        // Alone, the caller is sure to ask; a worker may be done before it does.
        assert!(threads > 1 || calls == 2, "{calls} calls");
        assert_eq!(end.is_err(), calls == 2, "{threads} threads");
        assert!(calls <= 2 && (end.is_ok() || end == Err(Canceled)));
    }
}

/// Without input channels there is only the epilogue; without outputs no gradient.
#[test]
fn empty_boxes() {
    let conv = convolution([1, 5, 5]);
    let (xg, yg) = (Grid::dense(1, [1, 9, 9], 0), Grid::dense(1, [1, 5, 5], 20));
    let bias = [2.0; 20];
    for team in &mut teams() {
        let mut y = vec![f32::NAN; yg.elements()];
        let need = fourier_forward_scratch(team.kind(), &conv, 0, &yg);
        call(team, need, |k| {
            let epilogue = Epilogue {
                bias: Some(&bias),
                ..Epilogue::default()
            };
            let (x, y) = (on(&[], &xg), to(&mut y, &yg));
            fourier_forward(k, x, &[], y, &conv, false, epilogue)
        });
        assert!(y.iter().all(|a| *a == 2.0), "{:?}", team.level());
        let (xg, none) = (Grid::dense(1, [1, 0, 9], 8), Grid::dense(1, [1, 0, 5], 8));
        let mut dw = vec![5.0; conv.weight_elements(8, 8)];
        let need = fourier_backward_weight_scratch(team.kind(), &conv, 8, &none);
        call(team, need, |k| {
            let (x, dy) = (on(&[], &xg), on(&[], &none));
            fourier_backward_weight(k, x, dy, &mut dw, None, &conv, false)
        });
        assert!(dw.iter().all(|a| *a == 0.0));
    }
}

#[test]
fn offers_what_it_computes() {
    for kernel in [[1, 5, 5], [5, 1, 5], [1, 13, 13], [3, 3, 5], [7, 7, 7]] {
        assert!(fourier_offers(&convolution(kernel), 64, 64), "{kernel:?}");
    }
    for kernel in [[1; 3], [1, 1, 25], [3, 3, 3], [1, 4, 17], [7, 7, 8]] {
        assert!(!fourier_offers(&convolution(kernel), 64, 64), "{kernel:?}");
    }
    let of = |change: fn(&mut Convolution)| {
        let mut conv = convolution([1, 5, 5]);
        change(&mut conv);
        fourier_offers(&conv, 64, 64)
    };
    assert!(of(|_| ()));
    assert!(!of(|conv| conv.window.stride[1] = 2));
    assert!(!of(|conv| conv.window.dilation[2] = 2));
    assert!(!of(|conv| conv.groups = 2));
    assert!(!fourier_offers(&convolution([5; 3]), 3, 64));
}

#[test]
#[should_panic(expected = "no Fourier kernel")]
fn other_windows_are_refused() {
    let mut conv = convolution([1, 5, 5]);
    conv.window.stride[2] = 2;
    let team = Team::new(1, Level::detect()).expect("the level is available");
    fourier_forward_scratch(team.kind(), &conv, 8, &Grid::dense(1, [1, 5, 5], 8));
}
