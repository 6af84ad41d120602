//! Random cases from a printed seed, and plain f64 kernels to compare with.
#![allow(dead_code, clippy::unwrap_used)]

pub mod random_epilogue;
pub mod transformed;

use partita_cpu::{Call, Canceled, Convolution, Grid, Level, Team, View, ViewMut, Window, Work};
use partita_space::random::SplitMix;

/// Random cases.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        let mut stream = SplitMix(self.0);
        let word = stream.bits();
        self.0 = stream.0;
        word
    }

    /// In `low..=high`.
    pub fn within(&mut self, low: usize, high: usize) -> usize {
        low + (self.next() % (high - low + 1) as u64) as usize
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.within(0, from.len() - 1)]
    }

    /// A small integer: sums of their products are exact in f32.
    pub fn whole(&mut self) -> f32 {
        self.within(0, 8) as f32 - 4.0
    }

    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// A grid whose rows have gaps.
    pub fn grid(&mut self, samples: usize, extent: [usize; 3], channels: usize) -> Grid {
        let w = channels + self.pick(&[0, 0, 1, 3]);
        let h = w * extent[2] + self.pick(&[0, 0, 5]);
        let d = h * extent[1] + self.pick(&[0, 7]);
        let n = d * extent[0] + self.pick(&[0, 2]);
        Grid {
            samples,
            extent,
            channels,
            pitch: [n, d, h, w],
        }
    }

    pub fn window(&mut self) -> Window {
        let mut dim = || {
            (
                self.within(1, 4),
                self.pick(&[1, 1, 2, 3]),
                self.pick(&[1, 1, 2]),
            )
        };
        let d: [(usize, usize, usize); 3] = [dim(), dim(), dim()];
        Window {
            kernel: d.map(|d| d.0),
            stride: d.map(|d| d.1),
            dilation: d.map(|d| d.2),
        }
    }
}

/// Positions of a grid: sample and indices.
pub fn positions(g: &Grid) -> Vec<(usize, [usize; 3])> {
    let mut all = Vec::new();
    for n in 0..g.samples {
        for d in 0..g.extent[0] {
            for h in 0..g.extent[1] {
                for w in 0..g.extent[2] {
                    all.push((n, [d, h, w]));
                }
            }
        }
    }
    all
}

pub fn offset(g: &Grid, n: usize, at: [usize; 3]) -> usize {
    n * g.pitch[0] + at[0] * g.pitch[1] + at[1] * g.pitch[2] + at[2] * g.pitch[3]
}

/// A buffer whose box holds `value`s, and which holds NaN elsewhere.
pub fn buffer(g: &Grid, mut value: impl FnMut() -> f32) -> Vec<f32> {
    let mut data = vec![f32::NAN; g.span() + 3];
    for (n, at) in positions(g) {
        let o = offset(g, n, at);
        data[o..o + g.channels]
            .iter_mut()
            .for_each(|a| *a = value());
    }
    data
}

/// Values of the box, in order.
pub fn inside(g: &Grid, data: &[f32]) -> Vec<f32> {
    let mut all = Vec::new();
    for (n, at) in positions(g) {
        let o = offset(g, n, at);
        all.extend_from_slice(&data[o..o + g.channels]);
    }
    all
}

/// The box of a buffer of exact values.
pub fn inside_wide(g: &Grid, data: &[f64]) -> Vec<f64> {
    let at = positions(g).into_iter();
    let rows = at.flat_map(|(n, at)| &data[offset(g, n, at)..][..g.channels]);
    rows.copied().collect()
}

/// Asserts that nothing outside the box was written.
pub fn assert_untouched_outside(g: &Grid, data: &[f32]) {
    let mut inside = vec![false; data.len()];
    for (n, at) in positions(g) {
        let o = offset(g, n, at);
        inside[o..o + g.channels].fill(true);
    }
    for (i, a) in data.iter().enumerate() {
        assert!(
            inside[i] || a.is_nan(),
            "element {i} outside of {g:?} is {a}"
        );
    }
}

pub fn teams() -> Vec<Team> {
    let levels = Level::ALL.into_iter().filter(|l| l.available());
    levels
        .flat_map(|l| [1, 2, 3].map(|t| Team::new(t, l).unwrap()))
        .collect()
}

/// A call with exactly the scratch it asks for.
pub fn call<R>(
    team: &mut Team,
    scratch: usize,
    body: impl FnOnce(&mut Call) -> Result<R, Canceled>,
) -> R {
    let mut scratch = vec![f32::NAN; scratch];
    let mut progress = || true;
    body(&mut Call {
        team,
        scratch: &mut scratch,
        progress: &mut progress,
    })
    .unwrap()
}

/// A convolution with its boxes and values.
pub struct Case {
    pub conv: Convolution,
    pub xg: Grid,
    pub yg: Grid,
    pub x: Vec<f32>,
    pub dy: Vec<f32>,
    pub w: Vec<f32>,
}

impl Case {
    pub fn new(random: &mut Random) -> Case {
        let window = random.window();
        let groups = random.pick(&[1, 1, 1, 2, 3]);
        let mut c = groups * random.pick(&[1, 2, 3, 4, 7, 16, 21]);
        let mut f = groups * random.pick(&[1, 3, 4, 5, 8, 16, 17, 32, 40, 64, 96]);
        // Depthwise.
        let groups = match random.within(0, 5) {
            0 => random.pick(&[5, 16, 24, 67, 100]),
            _ => groups,
        };
        if groups > 3 {
            (c, f) = (groups, groups);
        }
        let out = [
            random.within(1, 4),
            random.within(1, 4),
            random.within(1, 9),
        ];
        let n = random.within(1, 2);
        let conv = Convolution { window, groups };
        let xg = random.grid(n, window.input_extent(out), c);
        let yg = random.grid(n, out, f);
        let x = buffer(&xg, || random.whole());
        let dy = buffer(&yg, || random.whole());
        let w = (0..conv.weight_elements(c, f))
            .map(|_| random.whole())
            .collect();
        Case {
            conv,
            xg,
            yg,
            x,
            dy,
            w,
        }
    }

    /// Every multiply-add: input position, tap, output position and group.
    fn each(&self, mut visit: impl FnMut(usize, usize, usize, usize)) {
        let w = &self.conv.window;
        for (n, o) in positions(&self.yg) {
            for tap in 0..w.volume() {
                let k = [
                    tap / w.kernel[2] / w.kernel[1],
                    tap / w.kernel[2] % w.kernel[1],
                    tap % w.kernel[2],
                ];
                let i = std::array::from_fn(|d| o[d] * w.stride[d] + k[d] * w.dilation[d]);
                for g in 0..self.conv.groups {
                    visit(offset(&self.xg, n, i), tap, offset(&self.yg, n, o), g);
                }
            }
        }
    }

    fn widths(&self) -> (usize, usize) {
        (
            self.xg.channels / self.conv.groups,
            self.yg.channels / self.conv.groups,
        )
    }

    /// Forward without bias: values by offset in y.
    pub fn forward(&self) -> Vec<f64> {
        let (cg, fg) = self.widths();
        let mut y = vec![0.0; self.dy.len()];
        self.each(|x, tap, o, g| {
            for c in 0..cg {
                for f in g * fg..(g + 1) * fg {
                    let w = self.w[(tap * cg + c) * self.yg.channels + f];
                    y[o + f] += f64::from(self.x[x + g * cg + c]) * f64::from(w);
                }
            }
        });
        y
    }

    /// Values by offset in w.
    pub fn weight(&self) -> Vec<f64> {
        let (cg, fg) = self.widths();
        let mut dw = vec![0.0; self.w.len()];
        self.each(|x, tap, o, g| {
            for c in 0..cg {
                for f in g * fg..(g + 1) * fg {
                    dw[(tap * cg + c) * self.yg.channels + f] +=
                        f64::from(self.x[x + g * cg + c]) * f64::from(self.dy[o + f]);
                }
            }
        });
        dw
    }

    /// Gradient of the box `dxg` that begins at `shift`: values by offset in dx.
    pub fn data(&self, dxg: &Grid, shift: [i64; 3]) -> Vec<f64> {
        let (cg, fg) = self.widths();
        let w = &self.conv.window;
        let mut dx = vec![0.0; dxg.span() + 3];
        for (n, i) in positions(dxg) {
            let to = offset(dxg, n, i);
            for tap in 0..w.volume() {
                let k = [
                    tap / w.kernel[2] / w.kernel[1],
                    tap / w.kernel[2] % w.kernel[1],
                    tap % w.kernel[2],
                ];
                let mut o = [0; 3];
                let hit = (0..3).all(|d| {
                    let at = i[d] as i64 + shift[d] - (k[d] * w.dilation[d]) as i64;
                    let s = w.stride[d] as i64;
                    o[d] = (at / s) as usize;
                    at >= 0 && at % s == 0 && at / s < self.yg.extent[d] as i64
                });
                if !hit {
                    continue;
                }
                let from = offset(&self.yg, n, o);
                for c in 0..self.xg.channels {
                    let g = c / cg;
                    for f in g * fg..(g + 1) * fg {
                        let w = self.w[(tap * cg + c % cg) * self.yg.channels + f];
                        dx[to + c] += f64::from(self.dy[from + f]) * f64::from(w);
                    }
                }
            }
        }
        dx
    }
}

/// Exact comparison of a box with a reference by offset, plus what was there before.
pub fn assert_box(g: &Grid, got: &[f32], want: &[f64], before: Option<&[f32]>, what: &str) {
    assert_untouched_outside(g, got);
    for (n, at) in positions(g) {
        for c in 0..g.channels {
            let o = offset(g, n, at) + c;
            let want = want[o] + before.map_or(0.0, |b| f64::from(b[o]));
            assert!(
                f64::from(got[o]) == want,
                "{what}: {} not {want} at {n} {at:?} {c}",
                got[o]
            );
        }
    }
}

/// Adds what was there before to the box.
pub fn add_before(g: &Grid, want: &mut [f64], before: &[f32]) {
    for (n, at) in positions(g) {
        let o = offset(g, n, at);
        (o..o + g.channels).for_each(|i| want[i] += f64::from(before[i]));
    }
}

/// Shorthand of a kernel call on two boxes.
pub fn on<'a>(data: &'a [f32], grid: &'a Grid) -> View<'a> {
    View::new(data, grid)
}

/// Shorthand of a written box.
pub fn to<'a>(data: &'a mut [f32], grid: &'a Grid) -> ViewMut<'a> {
    ViewMut::new(data, grid)
}

pub fn flops(work: Work) -> u64 {
    work.flops
}
