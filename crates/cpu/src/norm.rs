//! Batch normalization, and the sums over positions that it and biases need.
//!
//! Sums are kept in f64 and are those of the caller to combine over ranks. Each thread sums a
//! fixed share of the rows, and the shares are added in order.

use crate::elementwise::{Gradient, leaky};
use crate::grid::{Call, Canceled, Grid, Shared, View, ViewMut, Work, part};
use crate::simd::{Op, Simd};
use crate::team::{ELEMENT, Team, TeamKind};

/// Channels that are summed together.
const WIDTH: usize = 16;
/// Positions that are gone through before the next channels, so that memory is read in order.
const TILE: usize = 32;

/// Scratch elements that any kernel of this module needs for C channels.
pub fn norm_scratch(team: TeamKind, c: usize) -> usize {
    // Two f64 a channel for the total and for each thread, and room to align them.
    4 * (team.threads + 1) * c + 2
}

/// What a batch normalization uses: global sums, count, and its parameters.
#[derive(Clone, Copy, Debug)]
pub struct Normalization<'a> {
    /// Global sums of x (C values), then of its squares (C values).
    pub sums: &'a [f64],
    /// Values per channel in the global sums.
    pub count: f64,
    /// Added to the (biased) variance.
    pub epsilon: f64,
    /// Scale per channel; [`norm_backward_statistics`] needs none.
    pub gamma: &'a [f32],
    /// Offset per channel; only [`norm_forward`] needs it.
    pub beta: &'a [f32],
}

impl Normalization<'_> {
    /// Mean and biased variance of a channel.
    pub fn moments(&self, c: usize) -> (f64, f64) {
        let mean = self.sums[c] / self.count;
        let square = self.sums[self.sums.len() / 2 + c] / self.count;
        (mean, (square - mean * mean).max(0.0))
    }

    fn inverse_deviation(&self, c: usize) -> (f64, f64) {
        let (mean, variance) = self.moments(c);
        (mean, 1.0 / (variance + self.epsilon).sqrt())
    }

    fn assert_valid(&self, c: usize) {
        assert!(
            self.sums.len() == 2 * c,
            "normalization of {c} channels: {self:?}"
        );
    }

    fn assert_scales(&self, c: usize) {
        assert!(self.gamma.len() >= c, "scales of {c} channels: {self:?}");
    }
}

/// sums\[c\] (+)= sum of x\[.., c\], sums[C + c] (+)= sum of its squares. Counts 3 flops an element.
///
/// Errors of all kernels of this module: [`Canceled`]. They panic if boxes differ in shape.
pub fn norm_statistics(
    call: &mut Call,
    x: View,
    sums: &mut [f64],
    accumulate: bool,
) -> Result<Work, Canceled> {
    let work = Work {
        flops: 3 * x.grid.elements() as u64,
        bytes: x.grid.bytes(),
    };
    let total = reduce(call, [x], |[x]| (x, x * x))?;
    put(sums, total, accumulate);
    Ok(work)
}

/// Replaces the first sums, or adds to them.
pub(crate) fn put(sums: &mut [f64], total: &[f64], accumulate: bool) {
    for (sum, total) in sums.iter_mut().zip(total) {
        *sum = total + if accumulate { *sum } else { 0.0 };
    }
}

/// db\[f\] (+)= sum over all positions of dy\[.., f\]. Counts one flop an element of dy.
pub fn bias_backward(
    call: &mut Call,
    dy: View,
    db: &mut [f32],
    accumulate: bool,
) -> Result<Work, Canceled> {
    let g = dy.grid;
    assert!(db.len() >= g.channels, "db of {} for {g:?}", db.len());
    let total = reduce(call, [dy], |[dy]| (dy, 0.0))?;
    for (db, sum) in db.iter_mut().zip(&total[..g.channels]) {
        *db = *sum as f32 + if accumulate { *db } else { 0.0 };
    }
    let bytes = g.bytes() + 4 * g.channels as u64 * (1 + u64::from(accumulate));
    Ok(Work {
        flops: g.elements() as u64,
        bytes,
    })
}

/// y = (x - mean) / sqrt(variance + epsilon) * gamma + beta, plus `add`, a box like y, and then
/// times `negative_slope` where not positive.
///
/// Counts 2 flops an element, and one more for each of `add` and `negative_slope`.
pub fn norm_forward(
    call: &mut Call,
    x: View,
    y: ViewMut,
    norm: &Normalization,
    add: Option<View>,
    negative_slope: Option<f32>,
) -> Result<Work, Canceled> {
    let g = y.grid;
    norm.assert_valid(g.channels);
    norm.assert_scales(g.channels);
    assert!(
        norm.beta.len() >= g.channels,
        "offsets of {} channels: {norm:?}",
        g.channels
    );
    let [mean, scale, ..] = columns(call.scratch, g.channels);
    for c in 0..g.channels {
        let (m, inverse) = norm.inverse_deviation(c);
        mean[c] = m as f32;
        scale[c] = (inverse * f64::from(norm.gamma[c])) as f32;
    }
    affine(call, x, y, norm.beta, (add, negative_slope))
}

/// What a batch normalization uses outside of training: its running statistics and parameters.
#[derive(Clone, Copy, Debug)]
pub struct Inference<'a> {
    /// Running mean per channel.
    pub mean: &'a [f32],
    /// Running variance per channel.
    pub variance: &'a [f32],
    /// Added to the variance.
    pub epsilon: f64,
    /// Scale per channel.
    pub gamma: &'a [f32],
    /// Offset per channel.
    pub beta: &'a [f32],
}

/// As [`norm_forward`], by the running statistics.
pub fn norm_inference(
    call: &mut Call,
    x: View,
    y: ViewMut,
    norm: &Inference,
    add: Option<View>,
    negative_slope: Option<f32>,
) -> Result<Work, Canceled> {
    let n = y.grid.channels;
    let all = [norm.mean, norm.variance, norm.gamma, norm.beta];
    assert!(
        all.iter().all(|values| values.len() >= n),
        "normalization of {n} channels: {norm:?}"
    );
    let [mean, scale, ..] = columns(call.scratch, n);
    for c in 0..n {
        let inverse = 1.0 / (f64::from(norm.variance[c]) + norm.epsilon).sqrt();
        mean[c] = norm.mean[c];
        scale[c] = (inverse * f64::from(norm.gamma[c])) as f32;
    }
    affine(call, x, y, norm.beta, (add, negative_slope))
}

/// y = (x - mean) * scale + beta, plus a box, times a slope where not positive; mean and scale
/// lie in the first two columns of the scratch.
fn affine(
    call: &mut Call,
    x: View,
    y: ViewMut,
    beta: &[f32],
    (add, negative_slope): (Option<View>, Option<f32>),
) -> Result<Work, Canceled> {
    let g = y.grid;
    let flops = 2 + u64::from(add.is_some()) + u64::from(negative_slope.is_some());
    let work = Work {
        flops: flops * g.elements() as u64,
        bytes: x.grid.bytes() + g.bytes() + add.map_or(0, |add| add.grid.bytes()),
    };
    let slope = negative_slope.unwrap_or(1.0);
    let [mean, scale, ..] = columns(call.scratch, g.channels);
    let out = (y, [&*mean, scale, beta, beta]);
    let (team, progress) = (&mut *call.team, &mut *call.progress);
    match add {
        None => apply(team, progress, [x], out, |[x], _, k| {
            let y = (x - k[0]) * k[1] + k[2];
            leaky(y, y, slope)
        }),
        Some(add) => apply(team, progress, [x, add], out, |[x, b], _, k| {
            let y = (x - k[0]) * k[1] + k[2] + b;
            leaky(y, y, slope)
        }),
    }?;
    Ok(work)
}

/// sums\[c\] (+)= sum of dy\[.., c\], sums[C + c] (+)= sum of dy * xhat, with xhat the normalized x.
///
/// Their global values are the gradients of beta and gamma. Where dy has a mask, dy times the mask
/// takes its place. Counts 5 flops an element, one more with a mask.
pub fn norm_backward_statistics<'a>(
    call: &mut Call,
    x: View,
    dy: impl Into<Gradient<'a>>,
    norm: &Normalization,
    sums: &mut [f64],
    accumulate: bool,
) -> Result<Work, Canceled> {
    let c = x.grid.channels;
    norm.assert_valid(c);
    let Gradient { dy, mask } = dy.into();
    let total = match mask {
        None => reduce(call, [x, dy], |[x, dy]| (dy, dy * x)),
        Some(mask) => {
            let slope = f64::from(mask.slope);
            reduce(call, [x, dy, mask.y], move |[x, dy, y]| {
                let dy = if y > 0.0 { dy } else { slope * dy };
                (dy, dy * x)
            })
        }
    }?;
    for i in 0..c {
        let (mean, inverse) = norm.inverse_deviation(i);
        let normalized = (total[c + i] - mean * total[i]) * inverse;
        put(&mut sums[i..=i], &total[i..=i], accumulate);
        put(&mut sums[c + i..=c + i], &[normalized], accumulate);
    }
    let masked = mask.map_or(0, |mask| mask.y.grid.bytes());
    Ok(Work {
        flops: (5 + u64::from(mask.is_some())) * x.grid.elements() as u64,
        bytes: x.grid.bytes() + dy.grid.bytes() + masked,
    })
}

/// dx (+)= gamma / deviation * (dy - sums\[c\] / count - xhat * sums[C + c] / count), with the
/// global sums of [`norm_backward_statistics`]. Where dy has a mask, dy times the mask takes its
/// place. Counts 6 flops an element, one more with a mask.
pub fn norm_backward<'a>(
    call: &mut Call,
    x: View,
    dy: impl Into<Gradient<'a>>,
    dx: ViewMut,
    norm: &Normalization,
    sums: &[f64],
    accumulate: bool,
) -> Result<Work, Canceled> {
    let g = dx.grid;
    let n = g.channels;
    norm.assert_valid(n);
    norm.assert_scales(n);
    assert!(
        sums.len() >= 2 * n,
        "sums of {} for {n} channels",
        sums.len()
    );
    let [mean, factor, offset, slope] = columns(call.scratch, n);
    for c in 0..n {
        let (m, inverse) = norm.inverse_deviation(c);
        mean[c] = m as f32;
        factor[c] = (inverse * f64::from(norm.gamma[c])) as f32;
        offset[c] = (sums[c] / norm.count) as f32;
        slope[c] = (inverse * sums[n + c] / norm.count) as f32;
    }
    let Gradient { dy, mask } = dy.into();
    let masked = mask.map_or(0, |mask| mask.y.grid.bytes());
    let work = Work {
        flops: (6 + u64::from(mask.is_some())) * g.elements() as u64,
        bytes: x.grid.bytes() + dy.grid.bytes() + masked + g.bytes() * (1 + u64::from(accumulate)),
    };
    let out = (dx, [&*mean, factor, offset, slope]);
    let (team, progress) = (&mut *call.team, &mut *call.progress);
    let back = |x: f32, dy: f32, k: [f32; 4]| k[1] * (dy - k[2] - (x - k[0]) * k[3]);
    let below = mask.map_or(1.0, |mask| mask.slope);
    match (mask, accumulate) {
        (None, false) => apply(team, progress, [x, dy], out, |[x, dy], _, k| back(x, dy, k)),
        (None, true) => apply(team, progress, [x, dy], out, |[x, dy], dx, k| {
            dx + back(x, dy, k)
        }),
        (Some(mask), false) => apply(team, progress, [x, dy, mask.y], out, |[x, dy, y], _, k| {
            back(x, leaky(y, dy, below), k)
        }),
        (Some(mask), true) => apply(team, progress, [x, dy, mask.y], out, |[x, dy, y], dx, k| {
            dx + back(x, leaky(y, dy, below), k)
        }),
    }?;
    Ok(work)
}

/// Four columns of C elements of the scratch.
fn columns(scratch: &mut [f32], c: usize) -> [&mut [f32]; 4] {
    let (ab, cd) = scratch[..4 * c].split_at_mut(2 * c);
    let ((a, b), (c, d)) = (ab.split_at_mut(c), cd.split_at_mut(c));
    [a, b, c, d]
}

/// A box as the threads see it: whoever holds it touches only rows that nobody writes.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub(crate) data: Shared,
    pub(crate) grid: &'a Grid,
}

impl<'a> From<View<'a>> for Rows<'a> {
    fn from(view: View<'a>) -> Self {
        Rows {
            data: Shared(view.data.as_ptr().cast_mut()),
            grid: view.grid,
        }
    }
}

impl Rows<'_> {
    /// First element of a flat row in (N, D, H) order.
    ///
    /// # Safety
    /// The box has the row.
    #[inline(always)]
    pub(crate) unsafe fn start(&self, row: usize) -> *mut f32 {
        unsafe { self.data.get().add(self.grid.row_offset(row)) }
    }
}

/// Sums over positions of the two values of `f(inputs)`: C sums of the first, C of the second.
fn reduce<'a, const N: usize, F>(
    call: &'a mut Call,
    inputs: [View; N],
    f: F,
) -> Result<&'a [f64], Canceled>
where
    F: Fn([f64; N]) -> (f64, f64) + Copy + Sync,
{
    for input in &inputs {
        input.grid.assert_like(inputs[0].grid);
    }
    reduce_rows(call, inputs.map(Rows::from), |_| (), f)
}

/// As `reduce`, with `before` called for each row just before it is read.
pub(crate) fn reduce_rows<'a, const N: usize, F>(
    call: &'a mut Call,
    inputs: [Rows; N],
    before: impl Fn(usize) + Sync,
    f: F,
) -> Result<&'a [f64], Canceled>
where
    F: Fn([f64; N]) -> (f64, f64) + Copy + Sync,
{
    let grid = inputs[0].grid;
    let (threads, c, level) = (call.team.threads(), grid.channels, call.team.level());
    // SAFETY: every bit pattern is an f64.
    let (_, scratch, _) = unsafe { call.scratch.align_to_mut::<f64>() };
    let (total, parts) = scratch[..2 * c * (threads + 1)].split_at_mut(2 * c);
    let shares = SharedSums(parts.as_mut_ptr());
    let cost = ELEMENT * grid.elements() as u64 / threads as u64;
    call.team
        .units(call.progress, threads, cost, &|unit, poll| {
            // SAFETY: each unit has sums of its own.
            let sums =
                unsafe { std::slice::from_raw_parts_mut(shares.get().add(unit * 2 * c), 2 * c) };
            sums.fill(0.0);
            for row in part(grid.rows(), unit, threads) {
                before(row);
                level.run(ReduceRow {
                    inputs,
                    row,
                    sums,
                    f,
                });
                if !poll.tick(ELEMENT * (grid.extent[2] * c) as u64) {
                    return;
                }
            }
        })?;
    total.fill(0.0);
    for share in parts.chunks_exact(2 * c.max(1)) {
        total.iter_mut().zip(share).for_each(|(sum, a)| *sum += a);
    }
    Ok(total)
}

#[derive(Clone, Copy)]
struct SharedSums(*mut f64);

// SAFETY: each unit writes sums of its own.
unsafe impl Send for SharedSums {}
// SAFETY: as above.
unsafe impl Sync for SharedSums {}

impl SharedSums {
    fn get(self) -> *mut f64 {
        self.0
    }
}

struct ReduceRow<'a, const N: usize, F> {
    inputs: [Rows<'a>; N],
    row: usize,
    sums: &'a mut [f64],
    f: F,
}

impl<const N: usize, F: Fn([f64; N]) -> (f64, f64)> Op for ReduceRow<'_, N, F> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (width, c) = (self.inputs[0].grid.extent[2], self.inputs[0].grid.channels);
        // SAFETY: a row of the boxes, and channels inside of it.
        let start = self.inputs.map(|x| unsafe { x.start(self.row) });
        let (first, second) = self.sums.split_at_mut(c);
        for w0 in (0..width).step_by(TILE) {
            for c0 in (0..c).step_by(WIDTH) {
                let n = (c - c0).min(WIDTH);
                let (mut a, mut b) = ([0f64; WIDTH], [0f64; WIDTH]);
                for w in w0..(w0 + TILE).min(width) {
                    let x: [[f32; WIDTH]; N] = std::array::from_fn(|i| {
                        let at = w * self.inputs[i].grid.pitch[3] + c0;
                        // SAFETY: as above.
                        unsafe { block(start[i].add(at), n) }
                    });
                    for i in 0..WIDTH {
                        let (p, q) = (self.f)(x.map(|x| f64::from(x[i])));
                        a[i] += p;
                        b[i] += q;
                    }
                }
                for (sums, sum) in [(&mut *first, &a), (&mut *second, &b)] {
                    let sums = sums[c0..].iter_mut().zip(sum);
                    sums.take(n).for_each(|(sum, a)| *sum += a);
                }
            }
        }
    }
}

/// y = f(inputs, y, the four columns at the channel).
fn apply<const N: usize, F>(
    team: &mut Team,
    progress: &mut dyn FnMut() -> bool,
    inputs: [View; N],
    (y, columns): (ViewMut, [&[f32]; 4]),
    f: F,
) -> Result<(), Canceled>
where
    F: Fn([f32; N], f32, [f32; 4]) -> f32 + Copy + Sync,
{
    let (level, grid) = (team.level(), y.grid);
    for input in &inputs {
        input.grid.assert_like(grid);
    }
    let inputs = inputs.map(Rows::from);
    let y = Rows {
        data: Shared(y.data.as_mut_ptr()),
        grid,
    };
    let cost = ELEMENT * (grid.extent[2] * grid.channels) as u64;
    team.ranges(progress, grid.rows(), cost, &|rows| {
        for row in rows {
            level.run(ApplyRow {
                inputs,
                y,
                row,
                columns,
                f,
            });
        }
    })
}

struct ApplyRow<'a, const N: usize, F> {
    inputs: [Rows<'a>; N],
    y: Rows<'a>,
    row: usize,
    columns: [&'a [f32]; 4],
    f: F,
}

impl<const N: usize, F: Fn([f32; N], f32, [f32; 4]) -> f32> Op for ApplyRow<'_, N, F> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (width, c) = (self.y.grid.extent[2], self.y.grid.channels);
        // SAFETY: rows of the box are disjoint, and each is in one range; channels are inside.
        unsafe {
            let (from, to) = (
                self.inputs.map(|x| x.start(self.row)),
                self.y.start(self.row),
            );
            for w0 in (0..width).step_by(TILE) {
                for c0 in (0..c).step_by(WIDTH) {
                    let n = (c - c0).min(WIDTH);
                    let k = self.columns.map(|k| block(k[c0..c0 + n].as_ptr(), n));
                    for w in w0..(w0 + TILE).min(width) {
                        let a: [[f32; WIDTH]; N] = std::array::from_fn(|i| {
                            block(from[i].add(w * self.inputs[i].grid.pitch[3] + c0), n)
                        });
                        let y = to.add(w * self.y.grid.pitch[3] + c0);
                        let mut r = block(y, n);
                        for i in 0..WIDTH {
                            r[i] = (self.f)(a.map(|a| a[i]), r[i], k.map(|k| k[i]));
                        }
                        if n == WIDTH {
                            y.cast::<[f32; WIDTH]>().write_unaligned(r);
                        } else {
                            y.copy_from_nonoverlapping(r.as_ptr(), n);
                        }
                    }
                }
            }
        }
    }
}

/// `n` elements, the rest zero; whole blocks stay in registers.
///
/// # Safety
/// The pointer is valid for `n <= WIDTH` elements.
#[inline(always)]
unsafe fn block(from: *const f32, n: usize) -> [f32; WIDTH] {
    unsafe {
        if n == WIDTH {
            return from.cast::<[f32; WIDTH]>().read_unaligned();
        }
        let mut a = [0.0; WIDTH];
        a.as_mut_ptr().copy_from_nonoverlapping(from, n);
        a
    }
}
