//! The convolutions against plain f64 loops: all levels, thread counts, random geometries.
//!
//! Values are small integers, so that every sum is exact and comparison needs no tolerance.

mod naive;

use naive::{Case, Random, assert_box, buffer, call, on, teams, to};
use partita_cpu::{
    Call, Canceled, Convolution, Grid, Level, Team, View, ViewMut, Window, conv_backward_data,
    conv_backward_data_scratch, conv_backward_weight, conv_backward_weight_scratch, conv_forward,
    conv_forward_scratch,
};

const CASES: u64 = 120;

#[test]
fn forward() {
    for seed in 0..CASES {
        println!("seed {seed}");
        let mut random = Random(seed);
        let case = Case::new(&mut random);
        let (accumulate, biased) = (seed % 2 == 1, seed % 3 == 1);
        let mut want = case.forward();
        let f = case.yg.channels;
        if biased {
            for (n, at) in naive::positions(&case.yg) {
                let o = naive::offset(&case.yg, n, at);
                (0..f).for_each(|i| want[o + i] += f64::from(case.bias[i]));
            }
        }
        let start = buffer(&case.yg, || random.whole());
        for team in &mut teams() {
            let mut y = start.clone();
            let need = conv_forward_scratch(
                team.kind(),
                &case.conv,
                case.xg.channels,
                f,
                case.yg.positions(),
            );
            let bias = biased.then_some(&case.bias[..]);
            let (x, c) = (on(&case.x, &case.xg), &case.conv);
            let yv = to(&mut y, &case.yg);
            let work = call(team, need, |k| {
                conv_forward(k, x, &case.w, bias, yv, c, accumulate)
            });
            let before = accumulate.then_some(&start[..]);
            assert_box(
                &case.yg,
                &y,
                &want,
                before,
                &format!("seed {seed} {:?}", team.level()),
            );
            assert_eq!(work.flops, 2 * (case.yg.positions() * case.w.len()) as u64);
        }
    }
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
        let want = case.data(&dxg, shift);
        let start = buffer(&dxg, || random.whole());
        for team in &mut teams() {
            let mut dx = start.clone();
            let (c, f) = (case.xg.channels, case.yg.channels);
            let need = conv_backward_data_scratch(team.kind(), &case.conv, c, f, dxg.positions());
            let (dy, conv) = (on(&case.dy, &case.yg), &case.conv);
            let dxv = to(&mut dx, &dxg);
            call(team, need, |k| {
                conv_backward_data(k, dy, &case.w, dxv, conv, shift, accumulate)
            });
            let before = accumulate.then_some(&start[..]);
            assert_box(
                &dxg,
                &dx,
                &want,
                before,
                &format!("seed {seed} {:?}", team.level()),
            );
        }
    }
}

#[test]
fn backward_weight() {
    for seed in 0..CASES {
        println!("seed {seed}");
        let mut random = Random(seed + 2000);
        let case = Case::new(&mut random);
        let accumulate = seed % 2 == 1;
        let want = case.weight();
        let start: Vec<f32> = case.w.iter().map(|_| random.whole()).collect();
        let f = case.yg.channels;
        for team in &mut teams() {
            let mut dw = start.clone();
            let need = conv_backward_weight_scratch(team.kind(), &case.conv, &case.xg, f);
            let (x, dy, conv) = (on(&case.x, &case.xg), on(&case.dy, &case.yg), &case.conv);
            call(team, need, |k| {
                conv_backward_weight(k, x, dy, &mut dw, conv, accumulate)
            });
            for (i, got) in dw.iter().enumerate() {
                let want = want[i] + if accumulate { f64::from(start[i]) } else { 0.0 };
                assert!(
                    f64::from(*got) == want,
                    "seed {seed} {:?} {i}: {got}",
                    team.level()
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
        let (conv, w) = (&self.conv, &self.w);
        let need = conv_forward_scratch(team.kind(), conv, c, f, self.yg.positions());
        let (x, yv) = (on(&self.x, &self.xg), to(&mut y, &self.yg));
        call(team, need, |k| conv_forward(k, x, w, None, yv, conv, false));
        let need = conv_backward_data_scratch(team.kind(), conv, c, f, self.xg.positions());
        let (dy, dxv) = (on(&y, &self.yg), to(&mut dx, &self.xg));
        call(team, need, |k| {
            conv_backward_data(k, dy, w, dxv, conv, [0; 3], false)
        });
        let need = conv_backward_weight_scratch(team.kind(), conv, &self.xg, f);
        call(team, need, |k| {
            conv_backward_weight(k, x, dy, &mut dw, conv, false)
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
        let end = conv_forward(&mut call, x, &large.w, None, yv, &large.conv, false);
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
        conv_forward(k, on(&[], &xg), &w, None, to(&mut [], &yg), &conv, false)
    });
    assert_eq!(work.flops, 0);
    call(&mut team, 0, |k| {
        conv_backward_weight(k, on(&[], &xg), on(&[], &yg), &mut dw, &conv, false)
    });
    assert!(dw.iter().all(|a| *a == 0.0));
    // A gradient that no output reaches is zero.
    let dxg = Grid::dense(1, [2, 4, 4], 2);
    let mut dx = vec![5.0; dxg.elements()];
    let need = conv_backward_data_scratch(team.kind(), &conv, 2, 3, 32);
    call(&mut team, need, |k| {
        conv_backward_data(k, on(&[], &yg), &w, to(&mut dx, &dxg), &conv, [0; 3], false)
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
            &[0.0; 27],
            None,
            to(&mut y, &yg),
            &conv,
            false,
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
