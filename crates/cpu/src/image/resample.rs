//! Resampling: upsampling, padding, means over unequal windows, and their transposes.
//!
//! Both directions go over the rows (along W) of what they write. A row adds up rows of the other side, each by one
//! pass along the row.

use crate::grid::{Call, Canceled, Shared, View, ViewMut, Work};
use crate::simd::{Op, Simd};
use crate::team::ELEMENT;
use partita_space::{ResampleRule, Resampling};

/// y = x resampled along D, H and W. Counts 2 flops a tap, or one where all maps copy.
///
/// Errors of all kernels of this module: [`Canceled`]. They panic if samples or channels differ, or if an output is
/// undefined.
pub fn resample(
    call: &mut Call,
    x: View,
    y: ViewMut,
    maps: &[Resampling; 3],
) -> Result<Work, Canceled> {
    let work = check(maps, [&x, &View::new(y.data, y.grid)]);
    let (inputs, outputs) = (x.grid.extent, y.grid.extent);
    let taps = |dim: usize, row: usize, visit: &mut dyn FnMut(usize, f64)| {
        if row < outputs[dim] {
            maps[dim].taps(row as i64, inputs[dim], visit);
        }
    };
    let pass = Pass {
        map: maps[2],
        inputs: inputs[2],
        outputs: outputs[2],
        is_transposed: false,
        accumulate: false,
    };
    rows(call, x, y, &pass, &taps)?;
    Ok(work)
}

/// dx (+)= the transpose of [`resample`] on dy, `x` having the box of dx. Counts 2 flops a tap, or one where all
/// maps copy.
pub fn resample_backward(
    call: &mut Call,
    dy: View,
    dx: ViewMut,
    maps: &[Resampling; 3],
    accumulate: bool,
) -> Result<Work, Canceled> {
    let mut work = check(maps, [&View::new(dx.data, dx.grid), &dy]);
    work.bytes += u64::from(accumulate) * dx.grid.bytes();
    let (inputs, outputs) = (dx.grid.extent, dy.grid.extent);
    let taps = |dim: usize, row: usize, visit: &mut dyn FnMut(usize, f64)| {
        let map = &maps[dim];
        let all = map.outputs_of(row, inputs[dim], outputs[dim]);
        for output in all.start..all.end {
            map.taps(output, inputs[dim], |input, weight| {
                if input == row {
                    visit(output as usize, weight);
                }
            });
        }
    };
    let pass = Pass {
        map: maps[2],
        inputs: inputs[2],
        outputs: outputs[2],
        is_transposed: true,
        accumulate,
    };
    rows(call, dy, dx, &pass, &taps)?;
    Ok(work)
}

/// Counted work of boxes x and y, after checks.
fn check(maps: &[Resampling; 3], [x, y]: [&View; 2]) -> Work {
    let (x, y) = (x.grid, y.grid);
    assert!(
        x.samples == y.samples && x.channels == y.channels,
        "samples and channels of {x:?} and {y:?}"
    );
    for (dim, map) in maps.iter().enumerate() {
        let (inputs, outputs) = (x.extent[dim], y.extent[dim]);
        let is_empty = y.elements() == 0;
        assert!(
            is_empty || map.fits(inputs, outputs),
            "{outputs} outputs of {inputs} inputs by {map:?}"
        );
    }
    let each = if maps.iter().all(|map| map.rule.is_copy()) {
        1
    } else {
        2
    };
    let taps = maps.iter().zip(y.extent);
    let taps: u128 = taps.map(|(map, outputs)| map.tap_count(outputs)).product();
    Work {
        flops: each * (y.samples * y.channels) as u64 * taps as u64,
        bytes: x.bytes() + y.bytes(),
    }
}

/// Rows of the other side that a row adds up, along D or H.
type Taps<'a> = &'a (dyn Fn(usize, usize, &mut dyn FnMut(usize, f64)) + Sync);

/// Computes the rows of the target.
fn rows(
    call: &mut Call,
    source: View,
    target: ViewMut,
    pass: &Pass,
    taps: Taps<'_>,
) -> Result<(), Canceled> {
    let (from, to) = (source.grid, target.grid);
    if to.elements() == 0 {
        return Ok(());
    }
    let out = Shared(target.data.as_mut_ptr());
    let level = call.team.level();
    let longest = pass.inputs.max(pass.outputs) * to.channels;
    let cost = 4 * ELEMENT * longest as u64;
    call.team.ranges(call.progress, to.rows(), cost, &|rows| {
        for row in rows {
            let (h, rest) = (row % to.extent[1], row / to.extent[1]);
            let (d, n) = (rest % to.extent[0], rest / to.extent[0]);
            // SAFETY: the offset of a row of the box lies inside.
            let start = unsafe { out.get().add(to.row_offset(row)) };
            let each = |weights: Option<(usize, usize, f64)>| {
                let (at, weight) = weights.map_or((0, 0.0), |(d, h, weight)| {
                    let at = n * from.pitch[0] + d * from.pitch[1] + h * from.pitch[2];
                    (at, weight)
                });
                let row = Row {
                    pass,
                    source: &source.data[at..],
                    weight: weights.map(|_| weight as f32),
                    target: start,
                    channels: to.channels,
                    pitches: [from.pitch[3], to.pitch[3]],
                };
                // SAFETY: a row of the box, which is borrowed alone; each is in one range, and the team has
                // the level.
                unsafe { level.run(row) };
            };
            if !pass.accumulate {
                each(None);
            }
            taps(0, d, &mut |d, of_d| {
                taps(1, h, &mut |h, of_h| each(Some((d, h, of_d * of_h))));
            });
        }
    })
}

/// A pass along a row.
struct Pass {
    map: Resampling,
    inputs: usize,
    outputs: usize,
    /// Whether it goes from outputs to inputs.
    is_transposed: bool,
    /// Whether the target keeps what it holds.
    accumulate: bool,
}

/// target += weight * source, mapped along the row; or target = 0 without a weight. Pointers: a row of the box,
/// which no other thread accesses.
struct Row<'a> {
    pass: &'a Pass,
    /// From the first element of the row on.
    source: &'a [f32],
    weight: Option<f32>,
    target: *mut f32,
    channels: usize,
    /// Distance of positions of source and target.
    pitches: [usize; 2],
}

impl Op for Row<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Some(weight) = self.weight else {
            let positions = if self.pass.is_transposed {
                self.pass.inputs
            } else {
                self.pass.outputs
            };
            // SAFETY: these positions are the row.
            self.runs(positions, |_, at, length| unsafe {
                self.target(at, length).fill(0.0);
            });
            return;
        };
        let is_transposed = self.pass.is_transposed;
        self.taps(|input, output, positions, share| {
            let (from, to) = if is_transposed {
                (output, input)
            } else {
                (input, output)
            };
            let weight = weight * share;
            self.runs(positions, |at, _, length| {
                let source = &self.source[(from + at) * self.pitches[0]..][..length];
                // SAFETY: taps are inputs and outputs of the row.
                let target = unsafe { self.target((to + at) * self.pitches[1], length) };
                for (target, source) in target.iter_mut().zip(source) {
                    *target += weight * *source;
                }
            });
        });
    }
}

impl Row<'_> {
    /// Elements of the target from an offset on.
    ///
    /// # Safety
    /// They are elements of the row.
    #[inline(always)]
    unsafe fn target<'t>(&self, at: usize, length: usize) -> &'t mut [f32] {
        // SAFETY: guaranteed by the caller; nobody else accesses the row.
        unsafe { std::slice::from_raw_parts_mut(self.target.add(at), length) }
    }

    /// Contiguous elements of neighboring positions, by the first position, its offset in the target and the number
    /// of elements: all at once where neither side has gaps.
    #[inline(always)]
    fn runs(&self, positions: usize, mut visit: impl FnMut(usize, usize, usize)) {
        if self.pitches == [self.channels; 2] {
            return visit(0, 0, positions * self.channels);
        }
        for at in 0..positions {
            visit(at, at * self.pitches[1], self.channels);
        }
    }

    /// Every input, output, number of neighboring positions that follow in both, and weight.
    #[inline(always)]
    fn taps(&self, mut visit: impl FnMut(usize, usize, usize, f32)) {
        let Pass {
            map,
            inputs,
            outputs,
            ..
        } = *self.pass;
        if map.rule.is_copy() && map.numerator == map.denominator {
            // A shift: the outputs whose input lies inside follow each other.
            let shift = map.shift.div_euclid(map.denominator as i64);
            let inside = |o: i64| o.clamp(0, outputs as i64);
            let (start, end) = (inside(-shift), inside(inputs as i64 - shift));
            let mut one = |output: i64| {
                map.taps(output, inputs, |input, _| {
                    visit(input, output as usize, 1, 1.0);
                });
            };
            (0..start).for_each(&mut one);
            (end.max(start)..outputs as i64).for_each(&mut one);
            if start < end {
                let (input, count) = ((start + shift) as usize, (end - start) as usize);
                visit(input, start as usize, count, 1.0);
            }
            return;
        }
        let steps = Steps::new(&map);
        let last = inputs as i64 - 1;
        let inside = |input: i64| input.clamp(0, last) as usize;
        let mut at = steps.first;
        for output in 0..outputs {
            let (first, rest) = at;
            at = steps.after(at);
            match map.rule {
                ResampleRule::Nearest => visit(inside(first), output, 1, 1.0),
                ResampleRule::Linear => {
                    let weight = (rest as f64 / map.denominator as f64) as f32;
                    visit(inside(first), output, 1, 1.0 - weight);
                    visit(inside(first + 1), output, 1, weight);
                }
                ResampleRule::Average => {
                    let end = at.0 + i64::from(at.1 > 0);
                    let weight = 1.0 / (end - first) as f32;
                    for input in first..end {
                        visit(inside(input), output, 1, weight);
                    }
                }
                ResampleRule::Reflect | ResampleRule::Zero => {
                    map.taps(output as i64, inputs, |input, weight| {
                        visit(input, output, 1, weight as f32);
                    });
                }
            }
        }
    }
}

/// Positions of one output after the other, as whole and remaining parts.
struct Steps {
    first: (i64, i64),
    step: (i64, i64),
    denominator: i64,
}

impl Steps {
    #[inline(always)]
    fn new(map: &Resampling) -> Self {
        let denominator = map.denominator as i64;
        let split = |n: i64| (n.div_euclid(denominator), n.rem_euclid(denominator));
        Self {
            first: split(map.shift),
            step: split(map.numerator as i64),
            denominator,
        }
    }

    #[inline(always)]
    fn after(&self, (whole, rest): (i64, i64)) -> (i64, i64) {
        let (whole, rest) = (whole + self.step.0, rest + self.step.1);
        if rest < self.denominator {
            (whole, rest)
        } else {
            (whole + 1, rest - self.denominator)
        }
    }
}
