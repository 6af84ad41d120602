//! The Winograd convolutions against plain f64 loops: all levels, thread counts, tiles, random
//! geometries.
//!
//! Values are random and have a mean of zero; errors are taken over a whole box, see
//! `winograd_error_bound`.

use crate::naive;

use naive::random_epilogue::RandomEpilogue;
use naive::transformed::{box_error, call, convolution, error, filled, wide};
use naive::{Case, Random, buffer, inside, on, teams, to};
use partita_cpu::{
    Call, Canceled, Convolution, Epilogue, Grid, Level, Team, Weights, WinogradTile,
    conv_backward_data, conv_backward_weight, conv_backward_weight_scratch, conv_forward,
    winograd_backward_data, winograd_backward_data_scratch, winograd_backward_weight,
    winograd_backward_weight_scratch, winograd_error_bound, winograd_forward,
    winograd_forward_scratch, winograd_offers, winograd_pack_backward_data, winograd_pack_forward,
    winograd_packed_backward_data_elements, winograd_packed_forward_elements,
};

const CASES: u64 = 60;
const KERNELS: [[usize; 3]; 4] = [[1, 3, 3], [3, 3, 3], [3, 1, 3], [3, 3, 1]];

/// A random case with values of mean zero and variance 1 / 12.
fn case(random: &mut Random) -> Case {
    let conv = convolution(random.pick(&KERNELS));
    let c = random.pick(&[1, 3, 8, 16, 21, 40]);
    let f = random.pick(&[1, 5, 16, 33, 64, 80, 130]);
    let out = [
        random.within(1, 6),
        random.within(1, 9),
        random.within(1, 9),
    ];
    filled(random, conv, (c, f), out)
}

fn assert_near(tile: WinogradTile, conv: &Convolution, error: f64, what: &str) {
    let bound = winograd_error_bound(tile, conv);
    assert!(error <= bound, "{what}: error {error:e} above {bound:e}");
}

/// The packed weights of a case.
fn pack(team: &mut Team, tile: WinogradTile, case: &Case, backward: bool) -> Vec<f32> {
    let (c, f, conv) = (case.xg.channels, case.yg.channels, &case.conv);
    let level = team.level();
    let elements = if backward {
        winograd_packed_backward_data_elements(level, tile, conv, c, f)
    } else {
        winograd_packed_forward_elements(level, tile, conv, c, f)
    };
    let mut packed = vec![f32::NAN; elements];
    call(team, 0, |k| {
        if backward {
            winograd_pack_backward_data(k, tile, &case.w, &mut packed, conv, c, f)
        } else {
            winograd_pack_forward(k, tile, &case.w, &mut packed, conv, c, f)
        }
    });
    packed
}

/// A team, a tile, whether weights are packed, and a description.
fn each(seed: u64, mut body: impl FnMut(&mut Team, WinogradTile, bool, &str)) {
    for team in &mut teams() {
        for tile in WinogradTile::ALL {
            for packed in [false, true] {
                let (level, threads) = (team.level(), team.threads());
                let what = format!("seed {seed} {level:?} {threads} {tile:?} packed {packed}");
                body(team, tile, packed, &what);
            }
        }
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
        each(seed, |team, tile, packed, what| {
            let (mut y, mut sums) = (start.clone(), epilogue.sums());
            let weights = packed.then(|| pack(team, tile, &case, false));
            let w = weights
                .as_ref()
                .map_or(Weights::Plain(&case.w), |w| Weights::Packed(w));
            let mut need = winograd_forward_scratch(team.kind(), tile, conv, c, yg, packed);
            need += epilogue.scratch(team, conv, f);
            let (x, yv) = (on(&case.x, &case.xg), to(&mut y, yg));
            let work = call(team, need, |k| {
                epilogue.with(&mut sums, |e| {
                    winograd_forward(k, tile, x, w, yv, conv, accumulate, e)
                })
            });
            let error = box_error(yg, &y, &want, conv.window.volume() * c);
            assert_near(tile, conv, error, what);
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
            random.within(1, 6),
            random.within(1, 7),
            random.within(1, 12),
        ];
        let (c, f) = (case.xg.channels, case.yg.channels);
        let dxg = random.grid(case.yg.samples, extent, c);
        let shift = [0; 3].map(|_: i64| random.within(0, 10) as i64 - 5);
        let start = buffer(&dxg, || random.whole());
        let mut want = case.data(&dxg, shift);
        if accumulate {
            naive::add_before(&dxg, &mut want, &start);
        }
        let epilogue = RandomEpilogue::new(&mut random, &dxg);
        epilogue.apply(&dxg, &mut want);
        let conv = &case.conv;
        each(seed, |team, tile, packed, what| {
            let (mut dx, mut sums) = (start.clone(), epilogue.sums());
            let weights = packed.then(|| pack(team, tile, &case, true));
            let w = weights
                .as_ref()
                .map_or(Weights::Plain(&case.w), |w| Weights::Packed(w));
            let kind = team.kind();
            let mut need = winograd_backward_data_scratch(kind, tile, conv, f, &dxg, packed);
            need += epilogue.scratch(team, conv, c);
            let (dy, dxv) = (on(&case.dy, &case.yg), to(&mut dx, &dxg));
            let work = call(team, need, |k| {
                epilogue.with(&mut sums, |e| {
                    winograd_backward_data(k, tile, dy, w, dxv, conv, shift, accumulate, e)
                })
            });
            let error = box_error(&dxg, &dx, &want, conv.window.volume() * f);
            assert_near(tile, conv, error, what);
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
        each(seed, |team, tile, packed, what| {
            if packed {
                return;
            }
            let mut got = start.clone();
            let (dw, db) = got.split_at_mut(weights);
            let c = case.xg.channels;
            let need = winograd_backward_weight_scratch(team.kind(), tile, conv, c, yg);
            let (x, dy) = (on(&case.x, &case.xg), on(&case.dy, yg));
            call(team, need, |k| {
                let db = biased.then_some(db);
                winograd_backward_weight(k, tile, x, dy, dw, db, conv, accumulate)
            });
            let got = wide(&got);
            let error = |range: std::ops::Range<usize>| {
                error(&got[range.clone()], &want[range], yg.positions())
            };
            assert_near(tile, conv, error(0..weights), what);
            if biased {
                assert!(error(weights..weights + f) < 1e-6, "{what}: db");
            } else {
                assert_eq!(got[weights..], wide(&start[weights..]), "{what}: db");
            }
        });
    }
}

/// A layer large enough to be cut into many units.
fn large((c, f): (usize, usize), kernel: [usize; 3], out: [usize; 3]) -> Case {
    filled(&mut Random(7), convolution(kernel), (c, f), out)
}

/// All three directions, in place of the gradient of the outputs their values.
fn run(case: &Case, team: &mut Team, tile: WinogradTile) -> [Vec<f32>; 3] {
    let (xg, yg, conv) = (&case.xg, &case.yg, &case.conv);
    let (c, f, kind) = (xg.channels, yg.channels, team.kind());
    let (mut y, mut dx) = (buffer(yg, || 0.0), buffer(xg, || 0.0));
    let mut dw = vec![0.0; case.w.len()];
    let (w, none) = (Weights::Plain(&case.w), Epilogue::default);
    let need = winograd_forward_scratch(kind, tile, conv, c, yg, false);
    let (x, dy) = (on(&case.x, xg), on(&case.dy, yg));
    call(team, need, |k| {
        winograd_forward(k, tile, x, w, to(&mut y, yg), conv, false, none())
    });
    let need = winograd_backward_data_scratch(kind, tile, conv, f, xg, false);
    call(team, need, |k| {
        let dx = to(&mut dx, xg);
        winograd_backward_data(k, tile, dy, w, dx, conv, [0; 3], false, none())
    });
    let need = winograd_backward_weight_scratch(kind, tile, conv, c, yg);
    call(team, need, |k| {
        winograd_backward_weight(k, tile, x, dy, &mut dw, None, conv, false)
    });
    [inside(yg, &y), inside(xg, &dx), dw]
}

/// Layers that take every path: blocks and slices, parts of gradients and blocks of them, several
/// of each.
fn layers() -> Vec<Case> {
    vec![
        large((16, 32), [3, 3, 3], [8, 10, 20]),
        large((33, 20), [1, 3, 3], [3, 21, 40]),
        large((64, 192), [3, 3, 3], [4, 5, 6]),
        large((256, 144), [1, 3, 3], [1, 11, 9]),
        large((32, 192), [3, 3, 3], [9, 20, 18]),
    ]
}

#[test]
fn same_bits_for_any_number_of_threads() {
    for case in layers() {
        for level in Level::all_available() {
            for tile in WinogradTile::ALL {
                let [first, others @ ..] = [1, 2, 3].map(|threads| {
                    let mut team = Team::new(threads, level).expect("the level is available");
                    run(&case, &mut team, tile)
                });
                for (i, other) in others.iter().enumerate() {
                    let what = format!("{level:?} {tile:?} {} threads", i + 2);
                    let same = first == *other;
                    assert!(same, "{what} of {:?} to {:?}", case.xg, case.yg);
                }
            }
        }
    }
}

#[test]
fn packed_weights_give_the_same_bits() {
    for case in layers() {
        let (xg, yg, conv) = (&case.xg, &case.yg, &case.conv);
        let (c, f) = (xg.channels, yg.channels);
        for level in Level::all_available() {
            let mut team = Team::new(2, level).expect("the level is available");
            for tile in WinogradTile::ALL {
                let [want_y, want_dx, _] = run(&case, &mut team, tile);
                let (mut y, mut dx) = (buffer(yg, || 0.0), buffer(xg, || 0.0));
                let [w, flipped] = [false, true].map(|flip| pack(&mut team, tile, &case, flip));
                let (kind, none) = (team.kind(), Epilogue::default);
                let need = winograd_forward_scratch(kind, tile, conv, c, yg, true);
                call(&mut team, need, |k| {
                    let (x, y, w) = (on(&case.x, xg), to(&mut y, yg), Weights::Packed(&w));
                    winograd_forward(k, tile, x, w, y, conv, false, none())
                });
                let need = winograd_backward_data_scratch(kind, tile, conv, f, xg, true);
                call(&mut team, need, |k| {
                    let (dy, dx) = (on(&case.dy, yg), to(&mut dx, xg));
                    let w = Weights::Packed(&flipped);
                    winograd_backward_data(k, tile, dy, w, dx, conv, [0; 3], false, none())
                });
                let same = inside(yg, &y) == want_y && inside(xg, &dx) == want_dx;
                assert!(same, "{level:?} {tile:?} of {xg:?} to {yg:?}");
            }
        }
    }
}

#[test]
fn errors_of_many_channels_stay_below_the_bound() {
    for case in layers() {
        let terms = case.conv.window.volume();
        let (c, f) = (case.xg.channels, case.yg.channels);
        let want = [case.forward(), case.data(&case.xg, [0; 3])];
        let want_weight = case.weight();
        let (y, dx) = (
            naive::inside_wide(&case.yg, &want[0]),
            naive::inside_wide(&case.xg, &want[1]),
        );
        for level in Level::all_available() {
            for tile in WinogradTile::ALL {
                let mut team = Team::new(2, level).expect("the level is available");
                let [got_y, got_dx, got_dw] = run(&case, &mut team, tile).map(|a| wide(&a));
                let errors = [
                    error(&got_y, &y, terms * c),
                    error(&got_dx, &dx, terms * f),
                    error(&got_dw, &want_weight, case.yg.positions()),
                ];
                let what = format!(
                    "{level:?} {tile:?} {c} to {f} {:?}",
                    case.conv.window.kernel
                );
                println!(
                    "{what}: {errors:.2?}",
                    errors = errors.map(|e| format!("{e:.1e}"))
                );
                for error in errors {
                    assert_near(tile, &case.conv, error, &what);
                }
            }
        }
    }
}

#[test]
fn cancels() {
    let case = large((32, 64), [3, 3, 3], [8, 10, 20]);
    for (threads, tile) in [1, 2].into_iter().zip(WinogradTile::ALL) {
        let mut team = Team::new(threads, Level::detect()).expect("the level is available");
        let mut y = buffer(&case.yg, || 0.0);
        let (mut calls, mut scratch) = (0, vec![0.0; 1 << 22]);
        let mut progress = || {
            calls += 1;
            calls < 2
        };
        let mut call = Call {
            team: &mut team,
            scratch: &mut scratch,
            progress: &mut progress,
        };
        let (x, yv) = (on(&case.x, &case.xg), to(&mut y, &case.yg));
        let (w, none) = (Weights::Plain(&case.w), Epilogue::default());
        let end = winograd_forward(&mut call, tile, x, w, yv, &case.conv, false, none);
        // Alone, the caller is sure to ask; a worker may be done before it does.
        assert!(threads > 1 || calls == 2, "{calls} calls");
        assert_eq!(end.is_err(), calls == 2, "{threads} threads");
        assert!(calls <= 2 && (end.is_ok() || end == Err(Canceled)));
    }
}

#[test]
fn empty_boxes() {
    let conv = convolution([3; 3]);
    let (xg, yg) = (Grid::dense(1, [0, 4, 4], 8), Grid::dense(1, [0, 2, 2], 8));
    let mut team = Team::new(2, Level::detect()).expect("the level is available");
    let w = vec![1.0; conv.weight_elements(8, 8)];
    let tile = WinogradTile::Four;
    let need = winograd_forward_scratch(team.kind(), tile, &conv, 8, &yg, false);
    let work = call(&mut team, need, |k| {
        let (x, y, none) = (on(&[], &xg), to(&mut [], &yg), Epilogue::default());
        winograd_forward(k, tile, x, Weights::Plain(&w), y, &conv, false, none)
    });
    assert_eq!(work.flops, 0);
    let mut dw = w.clone();
    let need = winograd_backward_weight_scratch(team.kind(), tile, &conv, 8, &yg);
    call(&mut team, need, |k| {
        let (x, dy) = (on(&[], &xg), on(&[], &yg));
        winograd_backward_weight(k, tile, x, dy, &mut dw, None, &conv, false)
    });
    assert!(dw.iter().all(|a| *a == 0.0));
    // A gradient that no output reaches is zero.
    let dxg = Grid::dense(1, [2, 4, 4], 8);
    let mut dx = vec![5.0; dxg.elements()];
    let need = winograd_backward_data_scratch(team.kind(), tile, &conv, 8, &dxg, false);
    call(&mut team, need, |k| {
        let (dy, dx, none) = (on(&[], &yg), to(&mut dx, &dxg), Epilogue::default());
        let w = Weights::Plain(&w);
        winograd_backward_data(k, tile, dy, w, dx, &conv, [0; 3], false, none)
    });
    assert!(dx.iter().all(|a| *a == 0.0));
}

/// Without input channels there is only the epilogue.
#[test]
fn no_channels() {
    let conv = convolution([1, 3, 3]);
    let (xg, yg) = (Grid::dense(1, [1, 7, 7], 0), Grid::dense(1, [1, 5, 5], 20));
    let bias = [2.0; 20];
    for team in &mut teams() {
        let mut y = vec![f32::NAN; yg.elements()];
        let need = winograd_forward_scratch(team.kind(), WinogradTile::Two, &conv, 0, &yg, false);
        call(team, need, |k| {
            let epilogue = Epilogue {
                bias: Some(&bias),
                ..Epilogue::default()
            };
            let (x, y, w) = (on(&[], &xg), to(&mut y, &yg), Weights::Plain(&[]));
            winograd_forward(k, WinogradTile::Two, x, w, y, &conv, false, epilogue)
        });
        assert!(y.iter().all(|a| *a == 2.0), "{:?}", team.level());
    }
}

#[test]
fn offers_what_it_computes() {
    for kernel in KERNELS {
        assert!(winograd_offers(&convolution(kernel), 64, 64), "{kernel:?}");
    }
    for kernel in [[1; 3], [1, 1, 3], [3, 3, 2], [5, 3, 3]] {
        assert!(!winograd_offers(&convolution(kernel), 64, 64), "{kernel:?}");
    }
    let of = |change: fn(&mut Convolution)| {
        let mut conv = convolution([3; 3]);
        change(&mut conv);
        winograd_offers(&conv, 64, 64)
    };
    assert!(of(|_| ()));
    assert!(!of(|conv| conv.window.stride[1] = 2));
    assert!(!of(|conv| conv.window.dilation[2] = 2));
    assert!(!of(|conv| conv.groups = 2));
    assert!(!winograd_offers(&convolution([3; 3]), 3, 64));
}

#[test]
#[should_panic(expected = "no Winograd kernel")]
fn other_windows_are_refused() {
    let conv = convolution([1, 1, 3]);
    let (xg, yg) = (Grid::dense(1, [1, 1, 5], 8), Grid::dense(1, [1, 1, 3], 8));
    let (x, w, mut y) = (vec![0.0; 40], vec![0.0; 192], vec![0.0; 24]);
    let mut team = Team::new(1, Level::detect()).expect("the level is available");
    call(&mut team, 0, |k| {
        let (x, y, none) = (on(&x, &xg), to(&mut y, &yg), Epilogue::default());
        let w = Weights::Plain(&w);
        winograd_forward(k, WinogradTile::Two, x, w, y, &conv, false, none)
    });
}

/// All three directions of the direct kernels.
fn run_direct(case: &Case, team: &mut Team) -> [Vec<f32>; 3] {
    let (xg, yg, conv) = (&case.xg, &case.yg, &case.conv);
    let (mut y, mut dx) = (buffer(yg, || 0.0), buffer(xg, || 0.0));
    let mut dw = vec![0.0; case.w.len()];
    let (w, none) = (Weights::Plain(&case.w), Epilogue::default);
    let (x, dy) = (on(&case.x, xg), on(&case.dy, yg));
    let need = 2 * case.w.len();
    call(team, need, |k| {
        conv_forward(k, x, w, to(&mut y, yg), conv, false, none())
    });
    call(team, need, |k| {
        conv_backward_data(k, dy, w, to(&mut dx, xg), conv, [0; 3], false, none())
    });
    let need = conv_backward_weight_scratch(team.kind(), conv, xg, yg.channels);
    call(team, need, |k| {
        conv_backward_weight(k, x, dy, &mut dw, None, conv, false)
    });
    [inside(yg, &y), inside(xg, &dx), dw]
}

/// What the direct kernels may differ from exact sums, which they take along one chain.
const DIRECT_ERROR: f64 = 5e-6;

/// Layers too large for plain loops, whose blocks and slices come several at a time.
#[test]
fn near_the_direct_kernels() {
    for (channels, kernel, out) in [
        ((48, 40), [1, 3, 3], [2, 13, 17]),
        ((128, 192), [3, 3, 3], [22, 23, 24]),
    ] {
        let case = large(channels, kernel, out);
        let mut team = Team::new(2, Level::detect()).expect("the level is available");
        let direct = run_direct(&case, &mut team);
        let taps = case.conv.window.volume();
        let terms = [taps * channels.0, taps * channels.1, case.yg.positions()];
        for tile in WinogradTile::ALL {
            let got = run(&case, &mut team, tile);
            for ((got, direct), terms) in got.iter().zip(&direct).zip(terms) {
                let error = error(&wide(got), &wide(direct), terms);
                let bound = winograd_error_bound(tile, &case.conv) + DIRECT_ERROR;
                assert!(error <= bound, "{tile:?} {channels:?}: {error:e}");
                assert!(error > 0.0, "not the same sums");
            }
        }
    }
}
