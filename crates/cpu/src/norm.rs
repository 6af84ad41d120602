//! Batch normalization, and the sums over positions that it and biases need.
//!
//! Sums are in f64; the caller combines them over ranks. Each thread sums a fixed part of the rows, and the
//! parts are added in order. Group normalization of one sample is in [`group`].

pub(crate) mod group;

use crate::grid::{Call, Canceled, Gradient, Mask, View, ViewMut, Work, part};
use crate::rows::{Apply, Rows, formula, leaky, three};
use crate::simd::{Op, Simd};
use crate::team::{ELEMENT, TeamKind};
use std::ops::Range;

/// Channels that are summed together, at least and at most: whole cache lines, and sums that stay in
/// registers.
const WIDTH: usize = 16;
const WIDTH_MAX: usize = 32;
/// Positions per block of channels: few, so that memory is read in order.
const TILE: usize = 16;
/// Elements of a cache line.
const LINE: usize = 16;

formula!(Normalize { slope }, true, |S, [x, ..], _, k| {
    let y = normalized::<S>(x, k);
    leaky::<S>(y, y, slope)
});
formula!(NormalizeAndAdd { slope }, true, |S, [x, b, _], _, k| {
    let y = S::add(normalized::<S>(x, k), b);
    leaky::<S>(y, y, slope)
});
formula!(Scale {}, true, |S, [dy, ..], _, k| S::mul(dy, k[0]));
formula!(ScaleAgain {}, true, |S, [dy, ..], dx, k| S::fma(
    dy, k[0], dx
));
formula!(Back {}, true, |S, [x, dy, _], _, k| input_gradient::<S>(
    x, dy, k
));
formula!(BackAgain {}, true, |S, [x, dy, _], dx, k| {
    S::add(dx, input_gradient::<S>(x, dy, k))
});
formula!(BackMasked { slope }, true, |S, [x, dy, y], _, k| {
    input_gradient::<S>(x, leaky::<S>(y, dy, slope), k)
});
formula!(BackMaskedAgain { slope }, true, |S, [x, dy, y], dx, k| {
    S::add(dx, input_gradient::<S>(x, leaky::<S>(y, dy, slope), k))
});

/// (x - mean) * scale + beta; the columns are minus the mean, the scale and beta.
#[inline(always)]
fn normalized<S: Simd>(x: S::V, k: [S::V; 4]) -> S::V {
    S::fma(S::add(x, k[0]), k[1], k[2])
}

/// factor * (dy - offset - (x - mean) * slope); the columns are minus the mean, the factor, minus
/// the offset and minus the slope.
#[inline(always)]
fn input_gradient<S: Simd>(x: S::V, dy: S::V, k: [S::V; 4]) -> S::V {
    S::mul(k[1], S::fma(S::add(x, k[0]), k[3], S::add(dy, k[2])))
}

/// Scratch elements that any kernel of this module needs for C channels.
pub fn norm_scratch(team: TeamKind, c: usize) -> usize {
    // Two f64 a channel for the total and for each thread, and room to align them.
    4 * (team.threads + 1) * c + 2
}

/// Batch normalization in training: global sums, count, and parameters.
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
    let total = reduce(call, [x], |[x, ..]| (x, x * x))?;
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
    let total = reduce(call, [dy], |[dy, ..]| (dy, 0.0))?;
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
        mean[c] = -m as f32;
        scale[c] = (inverse * f64::from(norm.gamma[c])) as f32;
    }
    affine(call, x, y, norm.beta, (add, negative_slope))
}

/// Batch normalization in evaluation: running statistics and parameters.
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
        mean[c] = -norm.mean[c];
        scale[c] = (inverse * f64::from(norm.gamma[c])) as f32;
    }
    affine(call, x, y, norm.beta, (add, negative_slope))
}

/// dx (+)= gamma / sqrt(variance + epsilon) * dy. Counts one flop an element.
pub fn norm_inference_backward(
    call: &mut Call,
    dy: View,
    dx: ViewMut,
    (variance, gamma, epsilon): (&[f32], &[f32], f64),
    accumulate: bool,
) -> Result<Work, Canceled> {
    let g = dx.grid;
    let n = g.channels;
    assert!(
        variance.len() >= n && gamma.len() >= n,
        "{n} channels: {variance:?}, {gamma:?}"
    );
    let [scale, ..] = columns(call.scratch, n);
    for c in 0..n {
        let deviation = (f64::from(variance[c]) + epsilon).sqrt();
        scale[c] = (f64::from(gamma[c]) / deviation) as f32;
    }
    let work = Work {
        flops: g.elements() as u64,
        bytes: dy.grid.bytes() + g.bytes() * (1 + u64::from(accumulate)),
    };
    let scale: &[f32] = scale;
    let columns = [scale; 4];
    let (team, progress, dx) = (&mut *call.team, &mut *call.progress, Rows::from(dx));
    if accumulate {
        let apply = Apply::with_columns([dy], dx, columns, ScaleAgain {});
        // SAFETY: the written box is borrowed alone.
        unsafe { apply.all(team, progress) }
    } else {
        let apply = Apply::with_columns([dy], dx, columns, Scale {});
        // SAFETY: the written box is borrowed alone.
        unsafe { apply.all(team, progress) }
    }?;
    Ok(work)
}

/// y = (x - mean) * scale + beta, plus a box, times a slope where not positive; minus the mean and
/// the scale lie in the first two columns of the scratch.
pub(crate) fn affine(
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
    let beta = &beta[..g.channels];
    let columns: [&[f32]; 4] = [mean, scale, beta, beta];
    let (team, progress, y) = (&mut *call.team, &mut *call.progress, Rows::from(y));
    match add {
        None => {
            let apply = Apply::with_columns([x], y, columns, Normalize { slope });
            // SAFETY: the written box is borrowed alone.
            unsafe { apply.all(team, progress) }
        }
        Some(add) => {
            let apply = Apply::with_columns([x, add], y, columns, NormalizeAndAdd { slope });
            // SAFETY: the written box is borrowed alone.
            unsafe { apply.all(team, progress) }
        }
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
        None => reduce(call, [x, dy], |[x, dy, _]| (dy, dy * x)),
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
        mean[c] = -m as f32;
        factor[c] = (inverse * f64::from(norm.gamma[c])) as f32;
        offset[c] = (-sums[c] / norm.count) as f32;
        slope[c] = (-inverse * sums[n + c] / norm.count) as f32;
    }
    let Gradient { dy, mask } = dy.into();
    let masked = mask.map_or(0, |mask| mask.y.grid.bytes());
    let work = Work {
        flops: (6 + u64::from(mask.is_some())) * g.elements() as u64,
        bytes: x.grid.bytes() + dy.grid.bytes() + masked + g.bytes() * (1 + u64::from(accumulate)),
    };
    let columns: [&[f32]; 4] = [mean, factor, offset, slope];
    let (team, progress, dx) = (&mut *call.team, &mut *call.progress, Rows::from(dx));
    match (mask, accumulate) {
        (None, false) => {
            let apply = Apply::with_columns([x, dy], dx, columns, Back {});
            // SAFETY: the written box is borrowed alone.
            unsafe { apply.all(team, progress) }
        }
        (None, true) => {
            let apply = Apply::with_columns([x, dy], dx, columns, BackAgain {});
            // SAFETY: the written box is borrowed alone.
            unsafe { apply.all(team, progress) }
        }
        (Some(Mask { y, slope }), false) => {
            let apply = Apply::with_columns([x, dy, y], dx, columns, BackMasked { slope });
            // SAFETY: the written box is borrowed alone.
            unsafe { apply.all(team, progress) }
        }
        (Some(Mask { y, slope }), true) => {
            let apply = Apply::with_columns([x, dy, y], dx, columns, BackMaskedAgain { slope });
            // SAFETY: the written box is borrowed alone.
            unsafe { apply.all(team, progress) }
        }
    }?;
    Ok(work)
}

/// Four columns of C elements of the scratch.
pub(crate) fn columns(scratch: &mut [f32], c: usize) -> [&mut [f32]; 4] {
    let (ab, cd) = scratch[..4 * c].split_at_mut(2 * c);
    let ((a, b), (c, d)) = (ab.split_at_mut(c), cd.split_at_mut(c));
    [a, b, c, d]
}

/// Sums over positions of the two values of `f(inputs)`: C sums of the first, C of the second.
pub(crate) fn reduce<'a, const N: usize, F>(
    call: &'a mut Call,
    inputs: [View; N],
    f: F,
) -> Result<&'a [f64], Canceled>
where
    F: Fn([f64; 3]) -> (f64, f64) + Copy + Sync,
{
    let inputs = three(inputs, Rows::from(inputs[0]));
    // SAFETY: boxes of one shape, which are only read.
    unsafe { reduce_rows(call, inputs, |_| (), f) }
}

/// As `reduce`, with `before` called for each row just before it is read.
///
/// # Safety
/// The boxes have one shape, and nobody but `before` of a row writes that row before this returns.
pub(crate) unsafe fn reduce_rows<'a, F>(
    call: &'a mut Call,
    inputs: [Rows; 3],
    before: impl Fn(usize) + Sync,
    f: F,
) -> Result<&'a [f64], Canceled>
where
    F: Fn([f64; 3]) -> (f64, f64) + Copy + Sync,
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
                let reduce = ReduceRow {
                    inputs,
                    row,
                    sums,
                    f,
                };
                // SAFETY: guaranteed by the caller; the team has the level, and each row is in one part.
                unsafe { level.run(reduce) };
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

// SAFETY: a pointer alone touches nothing; each unit writes sums of its own.
unsafe impl Send for SharedSums {}
// SAFETY: as above.
unsafe impl Sync for SharedSums {}

impl SharedSums {
    fn get(self) -> *mut f64 {
        self.0
    }
}

/// Pointers: the boxes have the row, and no thread writes it.
struct ReduceRow<'a, F> {
    inputs: [Rows<'a>; 3],
    row: usize,
    sums: &'a mut [f64],
    f: F,
}

impl<F: Fn([f64; 3]) -> (f64, f64)> Op for ReduceRow<'_, F> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (width, c) = (self.inputs[0].grid.extent[2], self.inputs[0].grid.channels);
        let pitch = self.inputs.map(|x| x.grid.pitch[3]);
        // SAFETY: a row of the boxes.
        let start = unsafe { self.inputs.map(|x| x.start(self.row)) };
        let (first, second) = self.sums.split_at_mut(c);
        if c == 0 {
            return;
        }
        if c < WIDTH {
            // Contiguous positions fill a block several at a time.
            let joined =
                WIDTH.is_multiple_of(c) && (width * c).is_multiple_of(WIDTH) && pitch == [c; 3];
            let (count, pitch, n) = if joined {
                (width * c / WIDTH, [WIDTH; 3], WIDTH)
            } else {
                (width, pitch, c)
            };
            // SAFETY: as many blocks are in the row.
            let (a, b) = unsafe { sum_block::<S, F, WIDTH>(start, pitch, 0..count, n, &self.f) };
            for i in 0..n {
                first[i % c] += a[i];
                second[i % c] += b[i];
            }
            return;
        }
        // SAFETY: a row of at least as many channels.
        unsafe {
            if c < WIDTH_MAX {
                sum_row::<S, F, WIDTH>(start, pitch, (width, c), (first, second), &self.f)
            } else {
                sum_row::<S, F, WIDTH_MAX>(start, pitch, (width, c), (first, second), &self.f)
            }
        }
    }
}

/// Adds both values of `f` to the sums of at least `N` channels, over the positions of a row.
///
/// # Safety
/// The pointers are valid for `width` positions of `c` channels.
#[inline(always)]
unsafe fn sum_row<S: Simd, F: Fn([f64; 3]) -> (f64, f64), const N: usize>(
    start: [*mut f32; 3],
    pitch: [usize; 3],
    (width, c): (usize, usize),
    (first, second): (&mut [f64], &mut [f64]),
    f: &F,
) {
    let step = if c == N { width.max(1) } else { TILE };
    for w0 in (0..width).step_by(step) {
        for c0 in (0..c).step_by(N) {
            // The last block begins early, so that it is whole; what it repeats is left out.
            let from = c0.min(c - N);
            let tile = w0..(w0 + step).min(width);
            // SAFETY: channels inside of the row.
            let (a, b) = unsafe {
                let start = start.map(|x| x.add(from));
                sum_block::<S, F, N>(start, pitch, tile, N, f)
            };
            let sums = first[from..][..N].iter_mut().zip(&mut second[from..][..N]);
            let new = a.iter().zip(&b).enumerate();
            for ((p, q), (i, (a, b))) in sums.zip(new) {
                let repeated = i < c0 - from;
                *p += if repeated { 0.0 } else { *a };
                *q += if repeated { 0.0 } else { *b };
            }
        }
    }
}

/// Sums of both values of `f` over positions of a block of `n` channels.
///
/// # Safety
/// The pointers are valid for the positions.
#[inline(always)]
unsafe fn sum_block<S: Simd, F: Fn([f64; 3]) -> (f64, f64), const N: usize>(
    [x, y, z]: [*mut f32; 3],
    [xp, yp, zp]: [usize; 3],
    positions: Range<usize>,
    n: usize,
    f: &F,
) -> ([f64; N], [f64; N]) {
    let (mut a, mut b) = ([0f64; N], [0f64; N]);
    for w in positions {
        // Of a part of the channels, the hardware does not expect the next positions.
        for (p, pitch) in [(x, xp), (y, yp), (z, zp)] {
            if pitch == N {
                continue;
            }
            for line in (0..n).step_by(LINE) {
                S::prefetch(p.wrapping_add((w + TILE) * pitch + line));
            }
        }
        // SAFETY: guaranteed by the caller.
        let (x, y, z) = unsafe {
            (
                block::<N>(x.add(w * xp), n),
                block::<N>(y.add(w * yp), n),
                block::<N>(z.add(w * zp), n),
            )
        };
        for i in 0..N {
            let (p, q) = f([f64::from(x[i]), f64::from(y[i]), f64::from(z[i])]);
            a[i] += p;
            b[i] += q;
        }
    }
    (a, b)
}

/// `n` elements, the rest zero; whole blocks stay in registers.
///
/// # Safety
/// The pointer is valid for `n <= N` elements.
#[inline(always)]
unsafe fn block<const N: usize>(from: *const f32, n: usize) -> [f32; N] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if n == N {
            return from.cast::<[f32; N]>().read_unaligned();
        }
        let mut a = [0.0; N];
        a.as_mut_ptr().copy_from_nonoverlapping(from, n);
        a
    }
}
