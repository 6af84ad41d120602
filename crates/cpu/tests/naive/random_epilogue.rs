//! A random epilogue, and the same in plain f64.

use super::{Random, buffer, offset, on, positions};
use half::bf16;
use partita_cpu::{
    Convolution, Epilogue, Grid, Normalization, Summed, Sums, Team, View, sums_scratch,
};

/// A random epilogue of a box: which parts it has, and their values.
pub struct RandomEpilogue {
    has: [bool; 6],
    bias: Vec<f32>,
    scale: Vec<f32>,
    shift: Vec<f32>,
    slope: f32,
    boxes: [(Grid, Vec<f32>); 3],
    /// Global sums of the third box as a normalization takes them.
    moments: Vec<f64>,
    squares: bool,
    accumulate: bool,
}

const COUNT: f64 = 10.0;
const EPSILON: f64 = 1e-3;

impl RandomEpilogue {
    pub fn new(random: &mut Random, grid: &Grid) -> RandomEpilogue {
        let c = grid.channels;
        let mut values = |from: &[f32]| (0..c).map(|_| random.pick(from)).collect::<Vec<_>>();
        let (bias, scale) = (values(&[-3.0, 0.0, 2.0, 5.0]), values(&[-1.0, 0.5, 2.0]));
        let shift = values(&[-1.0, 4.0, 7.0]);
        let means: Vec<f64> = values(&[-2.0, 0.5, 3.0])
            .into_iter()
            .map(f64::from)
            .collect();
        let squares = means.iter().map(|m| COUNT * (m * m + 4.0));
        let moments = means.iter().map(|m| COUNT * m).chain(squares).collect();
        let boxes = [(); 3].map(|()| {
            let g = random.grid(grid.samples, grid.extent, c);
            (g, buffer(&g, || random.whole()))
        });
        RandomEpilogue {
            has: [(); 6].map(|()| random.pick(&[false, false, true])),
            bias,
            scale,
            shift,
            slope: random.pick(&[0.0, 0.25]),
            boxes,
            moments,
            squares: random.pick(&[false, true]),
            accumulate: random.pick(&[false, true]),
        }
    }

    /// Scratch for the sums, beside that of the convolution.
    pub fn scratch(&self, team: &Team, conv: &Convolution, channels: usize) -> usize {
        if self.has_sums() {
            sums_scratch(team.kind(), conv, channels)
        } else {
            0
        }
    }

    pub fn has_sums(&self) -> bool {
        self.has[5]
    }

    fn norm(&self) -> Normalization<'_> {
        Normalization {
            sums: &self.moments,
            count: COUNT,
            epsilon: EPSILON,
            gamma: &[],
            beta: &[],
        }
    }

    /// What the sums hold before: they may be added to.
    pub fn sums(&self) -> Vec<f64> {
        (0..2 * self.bias.len()).map(|i| i as f64).collect()
    }

    /// Calls `body` with the epilogue.
    pub fn with<R>(&self, sums: &mut [f64], body: impl FnOnce(Epilogue) -> R) -> R {
        let [add, mask, x] = [0, 1, 2].map(|i| on(&self.boxes[i].1, &self.boxes[i].0));
        let norm = self.norm();
        body(Epilogue {
            bias: self.has[0].then_some(&self.bias),
            scale_shift: self.has[1].then_some((&self.scale, &self.shift)),
            add: self.has[2].then_some(add),
            negative_slope: self.has[3].then_some(self.slope),
            mask: self.has[4].then_some((mask, self.slope)),
            sums: self.has[5].then_some(Sums {
                of: if self.squares {
                    Summed::Squares
                } else {
                    Summed::Normalized(x, norm)
                },
                into: sums,
                accumulate: self.accumulate,
            }),
        })
    }

    /// The same on boxes of bf16; the values are small integers.
    pub fn with_bf16<R>(&self, sums: &mut [f64], body: impl FnOnce(Epilogue<bf16>) -> R) -> R {
        let narrow = |all: &[f32]| all.iter().map(|a| bf16::from_f32(*a)).collect();
        let boxes: [Vec<bf16>; 3] = [0, 1, 2].map(|i| narrow(&self.boxes[i].1));
        let [add, mask, x] = [0, 1, 2].map(|i| View::new(&boxes[i], &self.boxes[i].0));
        let norm = self.norm();
        body(Epilogue {
            bias: self.has[0].then_some(&self.bias),
            scale_shift: self.has[1].then_some((&self.scale, &self.shift)),
            add: self.has[2].then_some(add),
            negative_slope: self.has[3].then_some(self.slope),
            mask: self.has[4].then_some((mask, self.slope)),
            sums: self.has[5].then_some(Sums {
                of: if self.squares {
                    Summed::Squares
                } else {
                    Summed::Normalized(x, norm)
                },
                into: sums,
                accumulate: self.accumulate,
            }),
        })
    }

    /// Applies it to a box of values by offset.
    pub fn apply(&self, g: &Grid, want: &mut [f64]) {
        let leaky = |sign: f64, v: f64| {
            if sign > 0.0 {
                v
            } else {
                f64::from(self.slope) * v
            }
        };
        self.each(g, |o, c, [add, mask, _]| {
            let mut v = want[o];
            if self.has[0] {
                v += f64::from(self.bias[c]);
            }
            if self.has[1] {
                v = v * f64::from(self.scale[c]) + f64::from(self.shift[c]);
            }
            if self.has[2] {
                v += add;
            }
            if self.has[3] {
                v = leaky(v, v);
            }
            if self.has[4] {
                v = leaky(mask, v);
            }
            want[o] = v;
        });
    }

    /// Asserts the sums over the final values, small integers.
    pub fn assert_sums(&self, g: &Grid, want: &[f64], got: &[f64], what: &str) {
        self.assert_sums_within(1e-6, g, want, got, what);
    }

    /// Asserts the sums over the final values, up to a tolerance for each term.
    pub fn assert_sums_within(
        &self,
        tolerance: f64,
        g: &Grid,
        want: &[f64],
        got: &[f64],
        what: &str,
    ) {
        let n = g.channels;
        let before = self.sums();
        let (mut sums, mut scales) = (vec![0.0; 2 * n], vec![1e-30; 2 * n]);
        self.each(g, |o, c, [_, _, x]| {
            let (mean, variance) = self.norm().moments(c);
            let other = if self.squares {
                want[o]
            } else {
                (x - mean) / (variance + EPSILON).sqrt()
            };
            for (i, a) in [(c, want[o]), (n + c, want[o] * other)] {
                sums[i] += a;
                scales[i] += a.abs() + want[o].abs();
            }
        });
        for i in 0..2 * n {
            let there = match (self.has[5], self.accumulate) {
                (true, false) => sums[i],
                (true, true) => before[i] + sums[i],
                (false, _) => before[i],
            };
            let off = (got[i] - there).abs();
            assert!(
                off <= tolerance * scales[i] + 1e-12 * there.abs(),
                "{what}: sum {i} of {n} is {} not {there}",
                got[i]
            );
        }
    }

    fn each(&self, g: &Grid, mut visit: impl FnMut(usize, usize, [f64; 3])) {
        for (n, at) in positions(g) {
            for c in 0..g.channels {
                let values = [0, 1, 2].map(|i| {
                    let (grid, data) = &self.boxes[i];
                    f64::from(data[offset(grid, n, at) + c])
                });
                visit(offset(g, n, at) + c, c, values);
            }
        }
    }
}
