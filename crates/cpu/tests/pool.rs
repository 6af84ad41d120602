//! Pooling against plain loops: all levels, thread counts, random geometries.

use crate::naive;

use naive::{Random, assert_box, buffer, call, offset, on, positions, teams, to};
use partita_cpu::{Grid, Level, PoolKind, PoolMask, Pooling, Team, pool_backward, pool_forward};

struct Case {
    pooling: Pooling,
    xg: Grid,
    yg: Grid,
    x: Vec<f32>,
}

impl Case {
    fn new(random: &mut Random) -> Case {
        let kind = random.pick(&PoolKind::ALL);
        let mut window = random.window();
        if kind != PoolKind::Max {
            // Divisors that are powers of two keep the average exact.
            window.kernel = window.kernel.map(|k| if k == 3 { 2 } else { k });
        }
        let shift = [0; 3].map(|_: i64| random.within(0, 5) as i64 - 3);
        let n = random.within(1, 2);
        let c = random.pick(&[1, 3, 4, 8, 13, 16, 33]);
        let extent = [
            random.within(1, 5),
            random.within(1, 6),
            random.within(1, 9),
        ];
        let out = [
            random.within(1, 4),
            random.within(1, 4),
            random.within(1, 6),
        ];
        let (mut extent, mut shift) = (extent, shift);
        if random.pick(&[true, false]) {
            // Windows that fill the input.
            window.stride = window.kernel;
            window.dilation = [1; 3];
            shift = [0; 3];
            extent = std::array::from_fn(|i| out[i] * window.stride[i]);
        }
        let (mut out, mut c) = (out, c);
        if random.pick(&[true, false, false]) {
            // More columns or channels than one block of the kernels has.
            (c, extent[2]) = random.pick(&[(5, 450), (130, 40), (700, 9)]);
            out[2] = extent[2].div_ceil(window.stride[2]);
            extent = [extent[0].min(3), extent[1].min(4), extent[2]];
        }
        let (xg, yg) = (random.grid(n, extent, c), random.grid(n, out, c));
        let x = buffer(&xg, || random.whole());
        Case {
            pooling: Pooling {
                kind,
                window,
                shift,
            },
            xg,
            yg,
            x,
        }
    }

    /// Offsets of the taps of an output that lie inside the input.
    fn taps(&self, n: usize, o: [usize; 3]) -> Vec<usize> {
        let (w, mut all) = (&self.pooling.window, Vec::new());
        for kd in 0..w.kernel[0] {
            for kh in 0..w.kernel[1] {
                for kw in 0..w.kernel[2] {
                    let k = [kd, kh, kw];
                    let at: [i64; 3] = std::array::from_fn(|d| {
                        (o[d] * w.stride[d] + k[d] * w.dilation[d]) as i64 + self.pooling.shift[d]
                    });
                    if (0..3).all(|d| at[d] >= 0 && at[d] < self.xg.extent[d] as i64) {
                        all.push(offset(&self.xg, n, at.map(|a| a as usize)));
                    }
                }
            }
        }
        all
    }

    fn divisor(&self, inside: usize) -> f64 {
        match self.pooling.kind {
            PoolKind::Max | PoolKind::L2 => 1.0,
            PoolKind::AverageAll => self.pooling.window.volume() as f64,
            PoolKind::AverageInside => inside.max(1) as f64,
        }
    }

    /// The tap of the first largest value; what is NaN counts as larger.
    fn first_largest(&self, taps: &[usize], c: usize) -> Option<usize> {
        taps.iter().copied().reduce(|best, t| {
            let x = self.x[t + c];
            if x > self.x[best + c] || x.is_nan() {
                t
            } else {
                best
            }
        })
    }

    fn norm(&self, taps: &[usize], c: usize) -> f64 {
        let values = taps.iter().map(|t| f64::from(self.x[t + c]));
        values.map(|x| x * x).sum::<f64>().sqrt()
    }
}

/// No mask, one of the whole of dx, or one of a box inside of it.
struct Masked {
    on: bool,
    at: [usize; 3],
    slope: f32,
    grid: Grid,
    y: Vec<f32>,
}

impl Masked {
    fn new(random: &mut Random, dx: &Grid) -> Masked {
        let whole = random.pick(&[true, false]);
        let at = dx
            .extent
            .map(|e| if whole { 0 } else { random.within(0, e - 1) });
        let extent = std::array::from_fn(|i| {
            if whole {
                dx.extent[i]
            } else {
                random.within(1, dx.extent[i] - at[i])
            }
        });
        let grid = random.grid(dx.samples, extent, dx.channels);
        Masked {
            on: random.pick(&[true, true, false]),
            at,
            slope: random.pick(&[0.0, 0.25]),
            y: buffer(&grid, || random.whole()),
            grid,
        }
    }

    fn mask(&self) -> Option<PoolMask<'_>> {
        let y = on(&self.y, &self.grid);
        let (slope, at) = (self.slope, self.at);
        self.on.then_some(PoolMask { y, slope, at })
    }

    fn factor(&self, n: usize, i: [usize; 3], c: usize) -> f64 {
        let inside = |d: usize| (self.at[d]..self.at[d] + self.grid.extent[d]).contains(&i[d]);
        if !self.on || !(0..3).all(inside) {
            return 1.0;
        }
        let here = std::array::from_fn(|d| i[d] - self.at[d]);
        if self.y[offset(&self.grid, n, here) + c] > 0.0 {
            1.0
        } else {
            f64::from(self.slope)
        }
    }
}

/// Averages over three taps are not exact: f32 against f64.
fn close(g: &Grid, got: &[f32], want: &[f64], what: &str) {
    naive::assert_untouched_outside(g, got);
    for (n, at) in positions(g) {
        for c in 0..g.channels {
            let o = offset(g, n, at) + c;
            let error = (f64::from(got[o]) - want[o]).abs();
            assert!(
                error <= 1e-5 * (1.0 + want[o].abs()),
                "{what}: {} {}",
                got[o],
                want[o]
            );
        }
    }
}

#[test]
fn forward() {
    for seed in 0..150 {
        println!("seed {seed}");
        let mut random = Random(seed + 3000);
        let case = Case::new(&mut random);
        let slope = random.pick(&[None, Some(0.25f64), Some(0.0)]);
        let mut want = vec![0f64; case.yg.span() + 3];
        for (n, o) in positions(&case.yg) {
            let taps = case.taps(n, o);
            for c in 0..case.yg.channels {
                let values = taps.iter().map(|t| f64::from(case.x[t + c]));
                want[offset(&case.yg, n, o) + c] = match case.pooling.kind {
                    PoolKind::Max => values.reduce(f64::max).unwrap_or(0.0),
                    PoolKind::L2 => case.norm(&taps, c),
                    PoolKind::AverageAll | PoolKind::AverageInside => {
                        values.sum::<f64>() / case.divisor(taps.len())
                    }
                };
                let want = &mut want[offset(&case.yg, n, o) + c];
                *want *= if *want > 0.0 {
                    1.0
                } else {
                    slope.unwrap_or(1.0)
                };
            }
        }
        for team in &mut teams() {
            let mut y = buffer(&case.yg, || 9.0);
            let (x, yv) = (on(&case.x, &case.xg), to(&mut y, &case.yg));
            call(team, 0, |k| {
                pool_forward(k, x, yv, &case.pooling, slope.map(|s| s as f32))
            });
            close(
                &case.yg,
                &y,
                &want,
                &format!("seed {seed} {:?}", team.level()),
            );
        }
    }
}

#[test]
fn backward() {
    for seed in 0..150 {
        println!("seed {seed}");
        let mut random = Random(seed + 4000);
        let mut case = Case::new(&mut random);
        if case.pooling.kind == PoolKind::Max && random.pick(&[true, false]) {
            for (n, i) in positions(&case.xg) {
                let at = offset(&case.xg, n, i) + random.within(0, 7 * case.xg.channels);
                if at < offset(&case.xg, n, i) + case.xg.channels {
                    case.x[at] = f32::NAN;
                }
            }
        }
        let dy = buffer(&case.yg, || random.whole());
        let accumulate = seed % 2 == 1;
        let dxg = random.grid(case.xg.samples, case.xg.extent, case.xg.channels);
        let start = buffer(&dxg, || random.whole());
        // By offset in x first, then moved to the pitches of dx.
        let mut gradient = vec![0f64; case.x.len()];
        for (n, o) in positions(&case.yg) {
            let taps = case.taps(n, o);
            for c in 0..case.yg.channels {
                let dy = f64::from(dy[offset(&case.yg, n, o) + c]);
                match case.pooling.kind {
                    PoolKind::Max => case
                        .first_largest(&taps, c)
                        .into_iter()
                        .for_each(|t| gradient[t + c] += dy),
                    PoolKind::AverageAll | PoolKind::AverageInside => {
                        taps.iter()
                            .for_each(|t| gradient[t + c] += dy / case.divisor(taps.len()));
                    }
                    PoolKind::L2 => {
                        let norm = case.norm(&taps, c);
                        let taps = taps.iter().filter(|_| norm != 0.0);
                        taps.for_each(|t| gradient[t + c] += dy * f64::from(case.x[t + c]) / norm);
                    }
                }
            }
        }
        let masked = Masked::new(&mut random, &dxg);
        let mut want = vec![0f64; start.len()];
        for (n, i) in positions(&dxg) {
            for c in 0..dxg.channels {
                let o = offset(&dxg, n, i) + c;
                want[o] = gradient[offset(&case.xg, n, i) + c];
                want[o] += if accumulate { f64::from(start[o]) } else { 0.0 };
                want[o] *= masked.factor(n, i, c);
            }
        }
        for team in &mut teams() {
            let mut dx = start.clone();
            let (x, dyv, dxv) = (on(&case.x, &case.xg), on(&dy, &case.yg), to(&mut dx, &dxg));
            let mask = masked.mask();
            call(team, 0, |k| {
                pool_backward(k, Some(x), dyv, dxv, &case.pooling, accumulate, mask)
            });
            let what = format!("seed {seed} {:?} {} threads", team.level(), team.threads());
            match case.pooling.kind {
                PoolKind::Max => assert_box(&dxg, &dx, &want, None, &what),
                PoolKind::AverageAll | PoolKind::AverageInside | PoolKind::L2 => {
                    close(&dxg, &dx, &want, &what);
                }
            }
        }
    }
}

/// Large enough for several slabs and threads, with windows that overlap.
#[test]
fn slabs_agree() {
    let (xg, yg) = (
        Grid::dense(1, [24, 33, 35], 16),
        Grid::dense(1, [12, 17, 18], 16),
    );
    let window = partita_cpu::Window {
        kernel: [3; 3],
        stride: [2; 3],
        dilation: [1; 3],
    };
    let mut random = Random(5);
    let (x, dy) = (buffer(&xg, || random.unit()), buffer(&yg, || random.unit()));
    for kind in [PoolKind::Max, PoolKind::AverageInside, PoolKind::L2] {
        let pooling = Pooling {
            kind,
            window,
            shift: [-1; 3],
        };
        let mut results = Vec::new();
        for (threads, level) in [
            (1, Level::Portable),
            (1, Level::detect()),
            (3, Level::detect()),
        ] {
            let mut team = Team::new(threads, level).unwrap();
            let mut dx = vec![1.0; x.len()];
            let (xv, dyv, dxv) = (on(&x, &xg), on(&dy, &yg), to(&mut dx, &xg));
            call(&mut team, 0, |k| {
                pool_backward(k, Some(xv), dyv, dxv, &pooling, false, None)
            });
            results.push(dx);
        }
        assert_eq!(results[1], results[2]);
        let error = results[0]
            .iter()
            .zip(&results[1])
            .map(|(a, b)| (a - b).abs());
        assert!(error.fold(0.0, f32::max) < 1e-5);
        if kind == PoolKind::Max {
            let sum = |g: &Grid, a: &[f32]| naive::inside(g, a).iter().map(|a| f64::from(*a)).sum();
            let (sum, want): (f64, f64) = (sum(&xg, &results[0]), sum(&yg, &dy));
            assert!((sum - want).abs() < 1e-5 * want, "{sum} {want}");
        }
    }
}

#[test]
fn a_nan_wins() {
    let (xg, yg) = (Grid::dense(1, [1, 1, 4], 1), Grid::dense(1, [1, 1, 2], 1));
    let window = partita_cpu::Window {
        kernel: [1, 1, 2],
        stride: [1, 1, 2],
        dilation: [1; 3],
    };
    let pooling = Pooling {
        kind: PoolKind::Max,
        window,
        shift: [0; 3],
    };
    let x = [f32::NAN, 1.0, 2.0, f32::NAN];
    for team in &mut teams() {
        let mut y = [0.0; 2];
        call(team, 0, |k| {
            pool_forward(k, on(&x, &xg), to(&mut y, &yg), &pooling, None)
        });
        assert!(y[0].is_nan() && y[1].is_nan(), "{y:?}");
    }
}
