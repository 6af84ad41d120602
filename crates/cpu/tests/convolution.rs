//! The convolutions against plain f64 loops: all levels, thread counts, random geometries.
//!
//! Values are small integers, so that every sum is exact and comparison needs no tolerance.

use crate::naive;

use naive::random_epilogue::RandomEpilogue;
use naive::{Case, Random, assert_box, buffer, call, on, teams, to};
use partita_cpu::{
    Call, Canceled, Convolution, Epilogue, Grid, LINEAR, Level, Summed, Sums, Team, View, ViewMut,
    Weights, Window, conv_backward_data, conv_backward_data_scratch, conv_backward_weight,
    conv_backward_weight_scratch, conv_forward, conv_forward_scratch, linear_scratch,
    pack_backward_data, pack_forward, packed_backward_data_elements, packed_forward_elements,
    sums_scratch,
};

const CASES: u64 = 120;

#[test]
fn forward() {
    for seed in 0..CASES {
        println!("seed {seed}");
        let mut random = Random(seed);
        let case = Case::new(&mut random);
        let accumulate = seed % 2 == 1;
        let (c, f, conv) = (case.xg.channels, case.yg.channels, &case.conv);
        let start = buffer(&case.yg, || random.whole());
        let mut want = case.forward();
        if accumulate {
            naive::add_before(&case.yg, &mut want, &start);
        }
        let epilogue = RandomEpilogue::new(&mut random, &case.yg);
        epilogue.apply(&case.yg, &mut want);
        for team in &mut teams() {
            let what = format!("seed {seed} {:?} {}", team.level(), team.threads());
            for packed in [false, true] {
                let (mut y, mut sums) = (start.clone(), epilogue.sums());
                let weights = packed.then(|| pack(team, &case, false));
                let (w, need) = match &weights {
                    Some(w) => (Weights::Packed(w), 0),
                    None => {
                        let o = case.yg.positions();
                        let need = conv_forward_scratch(team.kind(), conv, c, f, o);
                        (Weights::Plain(&case.w), need)
                    }
                };
                let need = need + epilogue.scratch(team, conv, f);
                let (x, yv) = (on(&case.x, &case.xg), to(&mut y, &case.yg));
                let work = call(team, need, |k| {
                    epilogue.with(&mut sums, |e| {
                        conv_forward(k, x, w, yv, conv, accumulate, e)
                    })
                });
                assert_box(&case.yg, &y, &want, None, &what);
                epilogue.assert_sums(&case.yg, &want, &sums, &what);
                assert_eq!(work.flops, 2 * (case.yg.positions() * case.w.len()) as u64);
            }
        }
    }
}

/// The packed weights of a case.
fn pack(team: &mut Team, case: &Case, backward: bool) -> Vec<f32> {
    let (c, f, conv) = (case.xg.channels, case.yg.channels, &case.conv);
    let elements = if backward {
        packed_backward_data_elements(team.level(), conv, c, f)
    } else {
        packed_forward_elements(team.level(), conv, c, f)
    };
    let mut packed = vec![f32::NAN; elements];
    call(team, 0, |k| {
        if backward {
            pack_backward_data(k, &case.w, &mut packed, conv, c, f)
        } else {
            pack_forward(k, &case.w, &mut packed, conv, c, f)
        }
    });
    packed
}

#[test]
fn backward_data() {
    for seed in 0..CASES {
        println!("seed {seed}");
        let mut random = Random(seed + 1000);
        let case = Case::new(&mut random);
        let accumulate = seed % 2 == 1;
        // Any box: beyond dy on all sides, or inside so that dy is complete.
        let extent = [
            random.within(1, 6),
            random.within(1, 7),
            random.within(1, 12),
        ];
        let dxg = random.grid(case.yg.samples, extent, case.xg.channels);
        let shift = [0; 3].map(|_: i64| random.within(0, 10) as i64 - 5);
        let start = buffer(&dxg, || random.whole());
        let mut want = case.data(&dxg, shift);
        if accumulate {
            naive::add_before(&dxg, &mut want, &start);
        }
        let epilogue = RandomEpilogue::new(&mut random, &dxg);
        epilogue.apply(&dxg, &mut want);
        let (c, f, conv) = (case.xg.channels, case.yg.channels, &case.conv);
        for team in &mut teams() {
            let what = format!("seed {seed} {:?} {}", team.level(), team.threads());
            for packed in [false, true] {
                let (mut dx, mut sums) = (start.clone(), epilogue.sums());
                let weights = packed.then(|| pack(team, &case, true));
                let (w, need) = match &weights {
                    Some(w) => (Weights::Packed(w), 0),
                    None => {
                        let i = dxg.positions();
                        let need = conv_backward_data_scratch(team.kind(), conv, c, f, i);
                        (Weights::Plain(&case.w), need)
                    }
                };
                let need = need + epilogue.scratch(team, conv, c);
                let (dy, dxv) = (on(&case.dy, &case.yg), to(&mut dx, &dxg));
                call(team, need, |k| {
                    epilogue.with(&mut sums, |e| {
                        conv_backward_data(k, dy, w, dxv, conv, shift, accumulate, e)
                    })
                });
                assert_box(&dxg, &dx, &want, None, &what);
                epilogue.assert_sums(&dxg, &want, &sums, &what);
            }
        }
    }
}

#[test]
fn backward_weight() {
    for seed in 0..CASES {
        println!("seed {seed}");
        let mut random = Random(seed + 2000);
        let case = Case::new(&mut random);
        let (accumulate, biased) = (seed % 2 == 1, seed % 3 > 0);
        let f = case.yg.channels;
        let mut want = case.weight();
        let mut start: Vec<f32> = case.w.iter().map(|_| random.whole()).collect();
        let mut sums = vec![0.0; f];
        for (n, at) in naive::positions(&case.yg) {
            let o = naive::offset(&case.yg, n, at);
            (0..f).for_each(|i| sums[i] += f64::from(case.dy[o + i]));
        }
        want.extend(sums);
        start.extend((0..f).map(|_| random.whole()));
        for team in &mut teams() {
            let mut got = start.clone();
            let (dw, db) = got.split_at_mut(case.w.len());
            let need = conv_backward_weight_scratch(team.kind(), &case.conv, &case.xg, f);
            let (x, dy, conv) = (on(&case.x, &case.xg), on(&case.dy, &case.yg), &case.conv);
            call(team, need, |k| {
                let db = biased.then_some(db);
                conv_backward_weight(k, x, dy, dw, db, conv, accumulate)
            });
            for (i, got) in got.iter().enumerate() {
                let before = f64::from(start[i]);
                let want = match (i < case.w.len() || biased, accumulate) {
                    (true, true) => want[i] + before,
                    (true, false) => want[i],
                    (false, _) => before,
                };
                assert!(
                    f64::from(*got) == want,
                    "seed {seed} {:?} {i}: {got} not {want}",
                    team.level()
                );
            }
        }
    }
}

/// Channels of which tiles read copies, under groups, taps, strides, partial vectors and several blocks of positions.
#[test]
fn backward_weight_of_copies() {
    let cases = [
        (1, (1, 1), [14, 14], 1024, 264),
        (2, (1, 2), [12, 15], 512, 552),
        (1, (1, 1), [13, 10], 52, 1024),
        (1, (3, 1), [11, 31], 20, 149),
    ];
    for (seed, (groups, taps, extent, c, f)) in cases.into_iter().enumerate() {
        let case = planar(seed, groups, taps, extent, (c, f));
        let want = case.weight();
        for team in &mut teams() {
            let mut dw = vec![f32::NAN; case.w.len()];
            let need = conv_backward_weight_scratch(team.kind(), &case.conv, &case.xg, f);
            let (x, dy) = (on(&case.x, &case.xg), on(&case.dy, &case.yg));
            call(team, need, |k| {
                conv_backward_weight(k, x, dy, &mut dw, None, &case.conv, false)
            });
            let what = format!("{seed} {:?} {}", team.level(), team.threads());
            for (got, want) in dw.iter().zip(&want) {
                assert_eq!(f64::from(*got), *want, "{what}");
            }
        }
    }
}

/// A dense case of these groups, with as many taps in H and W and a stride, on a plane of outputs.
fn planar(
    seed: usize,
    groups: usize,
    (taps, stride): (usize, usize),
    [h, w]: [usize; 2],
    (c, f): (usize, usize),
) -> Case {
    println!("seed {seed}");
    let mut random = Random(seed as u64 + 4000);
    let window = Window {
        kernel: [1, taps, taps],
        stride: [1, stride, stride],
        dilation: [1; 3],
    };
    let (conv, yg) = (Convolution { window, groups }, Grid::dense(1, [1, h, w], f));
    let xg = Grid::dense(1, window.input_extent(yg.extent), c);
    let weights = conv.weight_elements(c, f);
    Case {
        x: buffer(&xg, || random.whole()),
        dy: buffer(&yg, || random.whole()),
        w: (0..weights).map(|_| random.whole()).collect(),
        conv,
        xg,
        yg,
    }
}

/// Weights beyond a part of the L2 cache and few positions: threads pack them as they need them.
#[test]
fn large_weights_of_few_positions() {
    let cases = [
        (1, (3, 1), [5, 11], (99, 170)),
        (2, (3, 2), [6, 9], (140, 300)),
        (1, (1, 1), [7, 7], (420, 330)),
        (1, (1, 2), [7, 9], (330, 420)),
    ];
    for (seed, (groups, window, extent, (c, f))) in cases.into_iter().enumerate() {
        let case = planar(seed, groups, window, extent, (c, f));
        let conv = &case.conv;
        let (y, dx) = (case.forward(), case.data(&case.xg, [0; 3]));
        for team in &mut teams() {
            let kind = team.kind();
            let what = format!("{seed} {:?} {}", kind.level, kind.threads);
            let (w, none) = (Weights::Plain(&case.w), Epilogue::default);
            let mut got = vec![f32::NAN; y.len()];
            let need = conv_forward_scratch(kind, conv, c, f, case.yg.positions());
            let (x, to_y) = (on(&case.x, &case.xg), to(&mut got, &case.yg));
            call(team, need, |k| {
                conv_forward(k, x, w, to_y, conv, false, none())
            });
            assert_box(&case.yg, &got, &y, None, &what);
            let mut got = vec![f32::NAN; dx.len()];
            let need = conv_backward_data_scratch(kind, conv, c, f, case.xg.positions());
            let (dy, to_x) = (on(&case.dy, &case.yg), to(&mut got, &case.xg));
            call(team, need, |k| {
                conv_backward_data(k, dy, w, to_x, conv, [0; 3], false, none())
            });
            assert_box(&case.xg, &got, &dx, None, &what);
        }
    }
}

/// Mean and variance of channels whose mean is far larger than their deviation.
#[test]
fn sums_far_from_zero() {
    for (extent, c) in [([1, 3, 3], 19), ([4, 9, 31], 40), ([1, 40, 50], 7)] {
        let mut random = Random(5);
        let grid = Grid::dense(2, extent, c);
        let x = buffer(&grid, || 10.0 + 3.46 * (random.unit() - 0.5));
        // Each channel passes through.
        let w: Vec<f32> = (0..c * c)
            .map(|i| f32::from(u8::from(i % (c + 1) == 0)))
            .collect();
        let positions = grid.positions() as f64;
        for team in &mut teams() {
            let (mut y, mut sums) = (vec![0.0; grid.elements()], vec![0.0; 2 * c]);
            let need = linear_scratch(team.kind(), grid.positions(), c, c);
            let need = need + sums_scratch(team.kind(), &LINEAR, c);
            call(team, need, |k| {
                let epilogue = Epilogue {
                    sums: Some(Sums {
                        of: Summed::Squares,
                        into: &mut sums,
                        accumulate: false,
                    }),
                    ..Epilogue::default()
                };
                let (x, y) = (on(&x, &grid), to(&mut y, &grid));
                conv_forward(k, x, Weights::Plain(&w), y, &LINEAR, false, epilogue)
            });
            for i in 0..c {
                let column = || y.iter().skip(i).step_by(c).map(|a| f64::from(*a));
                let mean = column().sum::<f64>() / positions;
                let variance = column().map(|a| (a - mean).powi(2)).sum::<f64>() / positions;
                let got = sums[i] / positions;
                let got = (got, sums[c + i] / positions - got * got);
                assert!((got.0 - mean).abs() <= 1e-7 * mean, "{got:?} not {mean}");
                assert!(
                    (got.1 - variance).abs() <= 1e-6 * variance,
                    "{got:?} not {variance}"
                );
            }
        }
    }
}

/// A layer large enough to be cut into many units, with values that do not sum exactly.
struct Large {
    conv: Convolution,
    xg: Grid,
    yg: Grid,
    x: Vec<f32>,
    w: Vec<f32>,
}

impl Large {
    fn new(c: usize, f: usize) -> Large {
        let mut random = Random(7);
        let window = Window {
            kernel: [3; 3],
            stride: [1; 3],
            dilation: [1; 3],
        };
        let conv = Convolution { window, groups: 1 };
        let (xg, yg) = (
            Grid::dense(2, [10, 12, 22], c),
            Grid::dense(2, [8, 10, 20], f),
        );
        let x = buffer(&xg, || random.unit() - 0.5);
        let w = (0..conv.weight_elements(c, f))
            .map(|_| random.unit() - 0.5)
            .collect();
        Large { conv, xg, yg, x, w }
    }

    /// All three directions.
    fn run(&self, team: &mut Team) -> [Vec<f32>; 3] {
        let (c, f) = (self.xg.channels, self.yg.channels);
        let mut y = vec![0.0; self.yg.elements()];
        let mut dx = vec![0.0; self.xg.elements()];
        let mut dw = vec![0.0; self.w.len()];
        let (conv, w) = (&self.conv, Weights::Plain(&self.w));
        let need = conv_forward_scratch(team.kind(), conv, c, f, self.yg.positions());
        let (x, yv) = (on(&self.x, &self.xg), to(&mut y, &self.yg));
        let none = Epilogue::default;
        call(team, need, |k| {
            conv_forward(k, x, w, yv, conv, false, none())
        });
        let need = conv_backward_data_scratch(team.kind(), conv, c, f, self.xg.positions());
        let (dy, dxv) = (on(&y, &self.yg), to(&mut dx, &self.xg));
        call(team, need, |k| {
            conv_backward_data(k, dy, w, dxv, conv, [0; 3], false, none())
        });
        let need = conv_backward_weight_scratch(team.kind(), conv, &self.xg, f);
        call(team, need, |k| {
            conv_backward_weight(k, x, dy, &mut dw, None, conv, false)
        });
        [y, dx, dw]
    }
}

#[test]
fn same_bits_again() {
    for level in Level::ALL.into_iter().filter(|l| l.available()) {
        for (c, f) in [(4, 16), (16, 32), (33, 20)] {
            let large = Large::new(c, f);
            let one = large.run(&mut Team::new(1, level).unwrap());
            for threads in 1..=3 {
                let mut team = Team::new(threads, level).unwrap();
                let first = large.run(&mut team);
                assert_eq!(first, large.run(&mut team), "{level:?} {threads} threads");
                assert_eq!(
                    one[..2],
                    first[..2],
                    "{level:?} forward and data of {threads}"
                );
                for (a, b) in one[2].iter().zip(&first[2]) {
                    assert!(
                        (a - b).abs() <= 1e-3 * (1.0 + a.abs()),
                        "{level:?}: {a} {b}"
                    );
                }
            }
        }
    }
}

#[test]
fn cancels() {
    let large = Large::new(32, 64);
    for threads in [1, 2] {
        let mut team = Team::new(threads, Level::detect()).unwrap();
        let mut y = vec![0.0; large.yg.elements()];
        let (mut calls, mut scratch) = (0, vec![0.0; 1 << 20]);
        let mut progress = || {
            calls += 1;
            calls < 2
        };
        let mut call = Call {
            team: &mut team,
            scratch: &mut scratch,
            progress: &mut progress,
        };
        let (x, yv) = (
            View::new(&large.x, &large.xg),
            ViewMut::new(&mut y, &large.yg),
        );
        let w = Weights::Plain(&large.w);
        let none = Epilogue::default();
        let end = conv_forward(&mut call, x, w, yv, &large.conv, false, none);
        // Alone, the caller is sure to ask; a worker may be done before it does.
        assert!(threads > 1 || calls == 2, "{calls} calls");
        assert_eq!(end.is_err(), calls == 2, "{threads} threads");
        assert!(calls <= 2 && (end.is_ok() || end == Err(Canceled)));
    }
}

#[test]
fn empty_boxes() {
    let conv = Convolution {
        window: Window {
            kernel: [3; 3],
            stride: [1; 3],
            dilation: [1; 3],
        },
        groups: 1,
    };
    let (xg, yg) = (Grid::dense(1, [0, 4, 4], 2), Grid::dense(1, [0, 2, 2], 3));
    let mut team = Team::new(2, Level::detect()).unwrap();
    let w = vec![1.0; conv.weight_elements(2, 3)];
    let mut dw = vec![1.0; w.len()];
    let work = call(&mut team, 0, |k| {
        let (x, y) = (on(&[], &xg), to(&mut [], &yg));
        conv_forward(
            k,
            x,
            Weights::Plain(&w),
            y,
            &conv,
            false,
            Epilogue::default(),
        )
    });
    assert_eq!(work.flops, 0);
    let need = conv_backward_weight_scratch(team.kind(), &conv, &xg, 3);
    call(&mut team, need, |k| {
        conv_backward_weight(k, on(&[], &xg), on(&[], &yg), &mut dw, None, &conv, false)
    });
    assert!(dw.iter().all(|a| *a == 0.0));
    // A gradient that no output reaches is zero.
    let dxg = Grid::dense(1, [2, 4, 4], 2);
    let mut dx = vec![5.0; dxg.elements()];
    let need = conv_backward_data_scratch(team.kind(), &conv, 2, 3, 32);
    call(&mut team, need, |k| {
        let (dy, dx) = (on(&[], &yg), to(&mut dx, &dxg));
        let none = Epilogue::default();
        conv_backward_data(k, dy, Weights::Plain(&w), dx, &conv, [0; 3], false, none)
    });
    assert!(dx.iter().all(|a| *a == 0.0));
}

#[test]
#[should_panic(expected = "positions overlap")]
fn overlapping_output_is_refused() {
    let grid = Grid {
        pitch: [64, 16, 4, 3],
        ..Grid::dense(1, [1, 1, 4], 4)
    };
    to(&mut [0.0; 64], &grid);
}

#[test]
#[should_panic(expected = "not the complete input")]
fn incomplete_input_is_refused() {
    let window = Window {
        kernel: [3; 3],
        stride: [1; 3],
        dilation: [1; 3],
    };
    let conv = Convolution { window, groups: 1 };
    let (xg, yg) = (Grid::dense(1, [4; 3], 1), Grid::dense(1, [4; 3], 1));
    let (x, mut y) = ([0.0; 64], [0.0; 64]);
    let mut team = Team::new(1, Level::detect()).unwrap();
    call(&mut team, 0, |k| {
        conv_forward(
            k,
            on(&x, &xg),
            Weights::Plain(&[0.0; 27]),
            to(&mut y, &yg),
            &conv,
            false,
            Epilogue::default(),
        )
    });
}

#[test]
fn teams_refuse_what_they_cannot_do() {
    assert!(Team::new(0, Level::Portable).is_err());
    for core in [1023, 1024, usize::MAX] {
        assert!(
            Team::pinned(&[core], Level::Portable).is_err(),
            "core {core}"
        );
    }
    if std::thread::available_parallelism().map_or(1, |n| n.get()) > 1 {
        // A caller that is pinned already can still make a team on other cores.
        for cores in [[0, 1], [1, 0]] {
            assert_eq!(
                Team::pinned(&cores, Level::Portable)
                    .map(|t| t.threads())
                    .ok(),
                Some(2)
            );
        }
    }
    assert_eq!(
        Team::new(3, Level::Portable).map(|t| t.threads()).ok(),
        Some(3)
    );
}
