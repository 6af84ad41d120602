//! Kernels over the channels of one position at a time: layer norm, embeddings, sinusoidal positional
//! encoding.

use crate::grid::{Call, Canceled, Grid, Shared, View, ViewMut, Work};
use crate::rows::Rows;
use crate::simd::{LANES_MAX, Op, Simd};
use crate::team::ELEMENT;
use std::ops::Range;

/// Number of independent partial sums.
const CHUNK: usize = 16;
/// Most channels whose gradients are summed at a time.
const STRIPE: usize = 512;
/// Positions that are added in f32 to the sums of channels.
const ROWS: usize = 8;
/// Vectors that are summed in f32 before the sum goes on in f64.
const TOGETHER: usize = 8;

/// The channels of a position, by its index in (N, D, H, W) order.
///
/// # Safety
/// The box has the position, and no thread writes it.
#[inline(always)]
pub(crate) unsafe fn read<'a>(rows: &Rows<'a>, position: usize) -> &'a [f32] {
    // SAFETY: guaranteed by the caller.
    unsafe { std::slice::from_raw_parts(start(rows, position), rows.grid.channels) }
}

/// As [`read`], for writing.
///
/// # Safety
/// The box has the position, and no other thread accesses it.
#[inline(always)]
pub(crate) unsafe fn write<'a>(rows: &Rows<'a>, position: usize) -> &'a mut [f32] {
    // SAFETY: guaranteed by the caller.
    unsafe { std::slice::from_raw_parts_mut(start(rows, position), rows.grid.channels) }
}

/// # Safety
/// The box has the position.
#[inline(always)]
unsafe fn start(rows: &Rows<'_>, position: usize) -> *mut f32 {
    let width = rows.grid.extent[2];
    // SAFETY: guaranteed by the caller.
    unsafe {
        rows.start(position / width)
            .add(position % width * rows.grid.pitch[3])
    }
}

/// Runs `op` on ranges that cover all positions, on the threads of the team.
///
/// # Safety
/// The pointer requirements of the operation hold for any range of positions, and no range accesses what
/// another one writes.
pub(crate) unsafe fn each_range<O: Op<Out = ()>>(
    call: &mut Call,
    grid: &Grid,
    cost: u64,
    op: impl Fn(Range<usize>) -> O + Sync,
) -> Result<(), Canceled> {
    let level = call.team.level();
    let cost = cost * ELEMENT * grid.channels as u64;
    call.team
        .ranges(call.progress, grid.positions(), cost, &|positions| {
            // SAFETY: guaranteed by the caller; the team has the level, and each position is in one range.
            unsafe { level.run(op(positions)) };
        })
}

/// The offset of a box in its tensor along W and C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PositionOffset {
    /// Position of the first element.
    pub position: usize,
    /// Channel of the first element.
    pub channel: usize,
    /// Channels of the whole tensor.
    pub channels: usize,
}

/// y = x + the sinusoidal encoding of its positions along W. Needs scratch for W * C elements. Counts one flop
/// an element.
///
/// Source: Vaswani et al., "Attention Is All You Need", NeurIPS 2017, section 3.5.
///
/// Errors of all kernels of this module: [`Canceled`]. They panic if boxes differ in shape.
pub fn add_positions(
    call: &mut Call,
    offset: PositionOffset,
    x: View,
    y: ViewMut,
) -> Result<Work, Canceled> {
    x.grid.assert_like(y.grid);
    let (x, y) = (Rows::from(x), Rows::from(y));
    let encoding = &mut call.scratch[..y.grid.extent[2] * y.grid.channels];
    fill_encoding(encoding, offset, y.grid.channels);
    let encoding = Shared(encoding.as_mut_ptr());
    // SAFETY: boxes of one shape, of which y is borrowed alone; the encoding are only read.
    unsafe {
        each_range(call, y.grid, 1, |positions| AddEncoding {
            x,
            encoding,
            y,
            positions,
        })?;
    }
    Ok(Work {
        flops: y.grid.elements() as u64,
        bytes: x.grid.bytes() + y.grid.bytes(),
    })
}

/// Layout: (W, C).
fn fill_encoding(encoding: &mut [f32], offset: PositionOffset, channels: usize) {
    for c in 0..channels {
        let channel = offset.channel + c;
        let pair = channel - channel % 2;
        let step = 10_000_f64.powf(-(pair as f64) / offset.channels as f64);
        // The next position is a rotation by a constant angle.
        let (turn_sine, turn_cosine) = step.sin_cos();
        let (mut sine, mut cosine) = (offset.position as f64 * step).sin_cos();
        for value in encoding[c..].iter_mut().step_by(channels) {
            *value = if channel == pair { sine } else { cosine } as f32;
            (sine, cosine) = (
                sine * turn_cosine + cosine * turn_sine,
                cosine * turn_cosine - sine * turn_sine,
            );
        }
    }
}

/// Pointers: the boxes have the positions, and no other thread accesses those of y.
struct AddEncoding<'a> {
    x: Rows<'a>,
    encoding: Shared,
    y: Rows<'a>,
    positions: Range<usize>,
}

impl Op for AddEncoding<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (width, channels) = (self.y.grid.extent[2], self.y.grid.channels);
        for at in self.positions {
            // SAFETY: each position is in one range; the encoding are those of one row.
            let (x, encoding, y) = unsafe {
                let encoding = self.encoding.get().add(at % width * channels);
                let encoding = std::slice::from_raw_parts(encoding.cast_const(), channels);
                (read(&self.x, at), encoding, write(&self.y, at))
            };
            for ((y, x), value) in y.iter_mut().zip(x).zip(encoding) {
                *y = *x + *value;
            }
        }
    }
}

/// The row indices of an embedding, one per position.
#[derive(Clone, Copy)]
struct RowIndices<'a> {
    x: Rows<'a>,
    rows: usize,
}

impl RowIndices<'_> {
    /// Row of a position; `None` if its index is out of range or no integer.
    #[inline(always)]
    fn row(&self, position: usize) -> Option<usize> {
        // SAFETY: a position of the box, which is only read.
        let index = unsafe { read(&self.x, position)[0] };
        let is_row = index >= 0.0 && index < self.rows as f32 && index.fract() == 0.0;
        is_row.then_some(index as usize)
    }

    /// The first invalid index.
    fn out_of_range(&self) -> Option<f32> {
        let first = (0..self.x.grid.positions()).find(|&at| self.row(at).is_none());
        // SAFETY: as above.
        first.map(|at| unsafe { read(&self.x, at)[0] })
    }
}

/// y = the rows of w (rows, C) at the indices in x (N, D, H, W, 1). Counts no flop.
///
/// Returns the first invalid index, if any; then nothing is written.
pub fn embed(call: &mut Call, x: View, w: &[f32], y: ViewMut) -> Result<Option<f32>, Canceled> {
    let (x, y) = (Rows::from(x), Rows::from(y));
    assert_eq!(x.grid.counts(), y.grid.counts(), "positions of x and y");
    let rows = w.len() / y.grid.channels;
    let indices = RowIndices { x, rows };
    if let Some(invalid) = indices.out_of_range() {
        return Ok(Some(invalid));
    }
    // SAFETY: boxes of the same positions, of which y is borrowed alone.
    unsafe {
        each_range(call, y.grid, 1, |positions| Lookup {
            indices,
            w,
            y,
            positions,
        })?;
    }
    Ok(None)
}

/// Pointers: the boxes have the positions, and no other thread accesses those of y.
struct Lookup<'a> {
    indices: RowIndices<'a>,
    w: &'a [f32],
    y: Rows<'a>,
    positions: Range<usize>,
}

impl Op for Lookup<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let channels = self.y.grid.channels;
        for at in self.positions {
            let row = self.indices.row(at).unwrap_or_default();
            // SAFETY: each position is in one range.
            let y = unsafe { write(&self.y, at) };
            y.copy_from_slice(&self.w[row * channels..][..channels]);
        }
    }
}

/// dw (rows, C) (+)= the sums of dy over the positions of each index. Counts one flop an element.
///
/// returns as [`embed`].
pub fn embed_backward(
    call: &mut Call,
    x: View,
    dy: View,
    dw: &mut [f32],
    accumulate: bool,
) -> Result<Option<f32>, Canceled> {
    let (x, dy) = (Rows::from(x), Rows::from(dy));
    assert_eq!(x.grid.counts(), dy.grid.counts(), "positions of x and dy");
    let channels = dy.grid.channels;
    let rows = dw.len() / channels;
    let indices = RowIndices { x, rows };
    if let Some(invalid) = indices.out_of_range() {
        return Ok(Some(invalid));
    }
    let dw = Shared(dw.as_mut_ptr());
    let width = channels.div_ceil(call.team.threads()).max(1);
    let cost = ELEMENT * (dy.grid.positions() * width) as u64;
    let stripes = channels.div_ceil(width);
    call.team
        .units(call.progress, stripes, cost, &|stripe, _| {
            let (first, last) = (stripe * width, ((stripe + 1) * width).min(channels));
            // SAFETY: each stripe of channels is one unit's.
            let row = |row: usize| unsafe {
                let start = dw.get().add(row * channels + first);
                std::slice::from_raw_parts_mut(start, last - first)
            };
            if !accumulate {
                (0..rows).for_each(|at| row(at).fill(0.0));
            }
            for at in 0..dy.grid.positions() {
                let target = row(indices.row(at).unwrap_or_default());
                // SAFETY: a position of the box, which is only read.
                let dy = unsafe { &read(&dy, at)[first..last] };
                target.iter_mut().zip(dy).for_each(|(dw, dy)| *dw += *dy);
            }
        })?;
    Ok(None)
}

/// Layer normalization of each position.
#[derive(Clone, Copy)]
pub struct RowNorm<'a> {
    /// Sums of x and of x squared, two for each position.
    pub sums: &'a [f64],
    /// Channels of all ranks.
    pub count: f64,
    /// Added to the variance.
    pub epsilon: f64,
}

impl RowNorm<'_> {
    /// Mean and inverse standard deviation.
    #[inline(always)]
    fn of(&self, position: usize) -> (f32, f32) {
        let mean = self.sums[2 * position] / self.count;
        let square = self.sums[2 * position + 1] / self.count;
        let variance = (square - mean * mean).max(0.0);
        (mean as f32, (1.0 / (variance + self.epsilon).sqrt()) as f32)
    }
}

/// Sums of x, or 0 for an RMS norm, and of x squared over the channels of each position. Counts 3 flops an element.
pub fn row_statistics(
    call: &mut Call,
    x: View,
    sums: &mut [f64],
    rms: bool,
) -> Result<Work, Canceled> {
    let x = Rows::from(x);
    assert_eq!(sums.len(), 2 * x.grid.positions(), "two sums per position");
    let sums = Shared(sums.as_mut_ptr().cast());
    // SAFETY: there are two sums for each position, and they are borrowed alone.
    unsafe {
        each_range(call, x.grid, 1, |positions| Moments {
            x,
            sums,
            rms,
            positions,
        })?;
    }
    Ok(Work {
        flops: 3 * x.grid.elements() as u64,
        bytes: x.grid.bytes() + 16 * x.grid.positions() as u64,
    })
}

/// Stores the two sums of a position.
///
/// # Safety
/// `sums` holds two f64 numbers per position, and no other thread accesses those of this one.
#[inline(always)]
unsafe fn put(sums: Shared, position: usize, pair: [f64; 2]) {
    // SAFETY: guaranteed by the caller.
    unsafe { sums.get().cast::<[f64; 2]>().add(position).write(pair) }
}

/// Pointers: the boxes have the positions, and no other thread accesses those of the sums.
struct Moments<'a> {
    x: Rows<'a>,
    sums: Shared,
    rms: bool,
    positions: Range<usize>,
}

impl Op for Moments<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for at in self.positions {
            // SAFETY: each position is in one range.
            unsafe {
                let x = read(&self.x, at);
                let [sum, squares] = sum_pair([x; 3], |[x, ..]| {
                    let x = f64::from(x);
                    (x, x * x)
                });
                put(self.sums, at, [if self.rms { 0.0 } else { sum }, squares]);
            }
        }
    }
}

/// Sums of two values per element of three rows.
#[inline(always)]
pub(crate) fn sum_pair([a, b, c]: [&[f32]; 3], of: impl Fn([f32; 3]) -> (f64, f64)) -> [f64; 2] {
    let [(a, a_rest), (b, b_rest), (c, c_rest)] = [a, b, c].map(|row| row.as_chunks::<CHUNK>());
    let (mut first, mut second) = ([0.0; CHUNK], [0.0; CHUNK]);
    for ((a, b), c) in a.iter().zip(b).zip(c) {
        for i in 0..CHUNK {
            let (x, y) = of([a[i], b[i], c[i]]);
            first[i] += x;
            second[i] += y;
        }
    }
    for ((a, b), c) in a_rest.iter().zip(b_rest).zip(c_rest) {
        let (x, y) = of([*a, *b, *c]);
        first[0] += x;
        second[0] += y;
    }
    // Without the barrier the compiler does not vectorize the loop above.
    let (first, second) = std::hint::black_box((first, second));
    [pairwise_sum(first), pairwise_sum(second)]
}

/// Pairwise sum.
#[inline(always)]
fn pairwise_sum(mut sums: [f64; CHUNK]) -> f64 {
    let mut left = CHUNK / 2;
    while left > 0 {
        for i in 0..left {
            sums[i] += sums[i + left];
        }
        left /= 2;
    }
    sums[0]
}

/// y = gamma * normalized x + beta. Counts 4 flops an element.
pub fn row_norm(
    call: &mut Call,
    norm: RowNorm,
    x: View,
    [gamma, beta]: [&[f32]; 2],
    y: ViewMut,
) -> Result<Work, Canceled> {
    x.grid.assert_like(y.grid);
    let (x, y) = (Rows::from(x), Rows::from(y));
    // SAFETY: boxes of one shape, of which y is borrowed alone.
    unsafe {
        each_range(call, y.grid, 1, |positions| Normalize {
            norm,
            x,
            gamma,
            beta,
            y,
            positions,
        })?;
    }
    Ok(Work {
        flops: 4 * y.grid.elements() as u64,
        bytes: x.grid.bytes() + y.grid.bytes(),
    })
}

/// Pointers: the boxes have the positions, and no other thread accesses those of y.
struct Normalize<'a> {
    norm: RowNorm<'a>,
    x: Rows<'a>,
    gamma: &'a [f32],
    beta: &'a [f32],
    y: Rows<'a>,
    positions: Range<usize>,
}

impl Op for Normalize<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for at in self.positions {
            let (mean, inverse) = self.norm.of(at);
            // SAFETY: each position is in one range.
            let (x, y) = unsafe { (read(&self.x, at), write(&self.y, at)) };
            let vectors = self.gamma.iter().zip(self.beta);
            for ((y, x), (gamma, beta)) in y.iter_mut().zip(x).zip(vectors) {
                *y = (*x - mean) * inverse * *gamma + *beta;
            }
        }
    }
}

/// Input and output gradient of a layer normalization.
#[derive(Clone, Copy)]
pub struct RowGradient<'a> {
    /// The input.
    pub x: View<'a>,
    /// The gradient of the output.
    pub dy: View<'a>,
}

/// Sums of dy times gamma, and of that times the normalized x, over the channels of each position. Counts
/// 6 flops an element.
pub fn row_backward_statistics(
    call: &mut Call,
    norm: RowNorm,
    RowGradient { x, dy }: RowGradient,
    gamma: &[f32],
    sums: &mut [f64],
    rms: bool,
) -> Result<Work, Canceled> {
    x.grid.assert_like(dy.grid);
    let (x, dy) = (Rows::from(x), Rows::from(dy));
    assert_eq!(sums.len(), 2 * x.grid.positions(), "two sums per position");
    let sums = Shared(sums.as_mut_ptr().cast());
    // SAFETY: boxes of one shape; there are two sums for each position, and they are borrowed alone.
    unsafe {
        each_range(call, x.grid, 2, |positions| Products {
            norm,
            x,
            dy,
            gamma,
            sums,
            rms,
            positions,
        })?;
    }
    Ok(Work {
        flops: 6 * x.grid.elements() as u64,
        bytes: 2 * x.grid.bytes(),
    })
}

/// Pointers: the boxes have the positions, and no other thread accesses those of the sums.
struct Products<'a> {
    norm: RowNorm<'a>,
    x: Rows<'a>,
    dy: Rows<'a>,
    gamma: &'a [f32],
    sums: Shared,
    rms: bool,
    positions: Range<usize>,
}

impl Op for Products<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for at in self.positions {
            let (mean, inverse) = self.norm.of(at);
            // SAFETY: each position is in one range.
            unsafe {
                let (x, dy) = (read(&self.x, at), read(&self.dy, at));
                let (minus_mean, inverse) = (S::splat(-mean), S::splat(inverse));
                let [x, dy, gamma] = [x, dy, self.gamma].map(<[f32]>::as_ptr);
                let sums = sum_vectors::<S>(self.x.grid.channels, |at, lanes| {
                    let [x, dy, gamma] = [x, dy, gamma].map(|of| load::<S>(of, at, lanes));
                    let gradient = S::mul(dy, gamma);
                    let normalized = S::mul(S::add(x, minus_mean), inverse);
                    [gradient, S::mul(gradient, normalized)]
                });
                let [sum, scaled] = sums;
                put(self.sums, at, [if self.rms { 0.0 } else { sum }, scaled]);
            }
        }
    }
}

/// dx (+)= the gradient of the input, from complete sums. Counts 7 flops an element.
pub fn row_backward(
    call: &mut Call,
    norm: RowNorm,
    RowGradient { x, dy }: RowGradient,
    (gamma, gradient_sums): (&[f32], &[f64]),
    dx: ViewMut,
    accumulate: bool,
) -> Result<Work, Canceled> {
    x.grid.assert_like(dx.grid);
    dy.grid.assert_like(dx.grid);
    let (x, dy, dx) = (Rows::from(x), Rows::from(dy), Rows::from(dx));
    // SAFETY: boxes of one shape, of which dx is borrowed alone.
    unsafe {
        each_range(call, dx.grid, 2, |positions| InputGradient {
            norm,
            x,
            dy,
            gamma,
            gradient_sums,
            dx,
            accumulate,
            positions,
        })?;
    }
    Ok(Work {
        flops: 7 * dx.grid.elements() as u64,
        bytes: (3 + u64::from(accumulate)) * dx.grid.bytes(),
    })
}

/// Pointers: the boxes have the positions, and no other thread accesses those of dx.
struct InputGradient<'a> {
    norm: RowNorm<'a>,
    x: Rows<'a>,
    dy: Rows<'a>,
    gamma: &'a [f32],
    gradient_sums: &'a [f64],
    dx: Rows<'a>,
    accumulate: bool,
    positions: Range<usize>,
}

impl Op for InputGradient<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for at in self.positions {
            let (mean, inverse) = self.norm.of(at);
            let part = |row| (self.gradient_sums[2 * at + row] / self.norm.count) as f32;
            let (offset, slope) = (part(0), part(1));
            // SAFETY: each position is in one range.
            let (x, dy, dx) =
                unsafe { (read(&self.x, at), read(&self.dy, at), write(&self.dx, at)) };
            let gradients = dy.iter().zip(self.gamma);
            let all = dx.iter_mut().zip(x).zip(gradients);
            let value = |x: f32, dy: f32, gamma: f32| {
                inverse * (dy * gamma - offset - (x - mean) * inverse * slope)
            };
            if self.accumulate {
                all.for_each(|((dx, x), (dy, gamma))| *dx += value(*x, *dy, *gamma))
            } else {
                all.for_each(|((dx, x), (dy, gamma))| *dx = value(*x, *dy, *gamma))
            }
        }
    }
}

/// dgamma (+)= the sum of dy times the normalized x over all positions, dbeta (+)= that of dy. Counts 5 flops
/// an element.
pub fn row_backward_parameters(
    call: &mut Call,
    norm: RowNorm,
    RowGradient { x, dy }: RowGradient,
    [dgamma, dbeta]: [&mut [f32]; 2],
    accumulate: bool,
) -> Result<Work, Canceled> {
    x.grid.assert_like(dy.grid);
    let (x, dy) = (Rows::from(x), Rows::from(dy));
    let channels = x.grid.channels;
    assert_eq!(
        [dgamma.len(), dbeta.len()],
        [channels; 2],
        "a sum per channel"
    );
    let targets = [dgamma, dbeta].map(|target| Shared(target.as_mut_ptr()));
    let level = call.team.level();
    let width = channels.div_ceil(call.team.threads()).clamp(1, STRIPE);
    let cost = 2 * ELEMENT * (x.grid.positions() * width) as u64;
    let stripes = channels.div_ceil(width);
    call.team
        .units(call.progress, stripes, cost, &|stripe, _| {
            let first = width * stripe;
            let stripe = Stripe {
                norm,
                x,
                dy,
                targets,
                accumulate,
                channels: first..(first + width).min(channels),
            };
            // SAFETY: boxes of one shape; each stripe has elements of the targets of its own, which
            // are as long as there are channels and are borrowed alone. The team has the level.
            unsafe { level.run(stripe) };
        })?;
    Ok(Work {
        flops: 5 * x.grid.elements() as u64,
        bytes: 2 * x.grid.bytes(),
    })
}

/// Some of the channels, at all positions. Pointers: the boxes, and these channels of both targets,
/// which no other thread accesses.
struct Stripe<'a> {
    norm: RowNorm<'a>,
    x: Rows<'a>,
    dy: Rows<'a>,
    targets: [Shared; 2],
    accumulate: bool,
    channels: Range<usize>,
}

impl Op for Stripe<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (mut of_gamma, mut of_beta) = ([0.0; STRIPE], [0.0; STRIPE]);
        let positions = self.x.grid.positions();
        let whole = positions / ROWS * ROWS;
        // SAFETY: guaranteed by the caller; a stripe has no more channels than sums.
        unsafe {
            for at in (0..whole).step_by(ROWS) {
                self.add::<S, ROWS>(at, [&mut of_gamma, &mut of_beta]);
            }
            for at in whole..positions {
                self.add::<S, 1>(at, [&mut of_gamma, &mut of_beta]);
            }
        }
        for (target, sums) in self.targets.into_iter().zip([of_gamma, of_beta]) {
            for (c, sum) in self.channels.clone().zip(sums) {
                // SAFETY: each channel is in one stripe.
                unsafe {
                    let target = target.get().add(c);
                    let old = if self.accumulate {
                        f64::from(*target)
                    } else {
                        0.0
                    };
                    *target = (old + sum) as f32;
                }
            }
        }
    }
}

impl Stripe<'_> {
    /// Adds N positions to the sums of the channels, which are loaded once for all of them.
    ///
    /// # Safety
    /// The processor has the features of `S`, the boxes have the positions, no thread writes them, and there
    /// are sums for each channel.
    #[inline(always)]
    unsafe fn add<S: Simd, const N: usize>(&self, first: usize, sums: [&mut [f64]; 2]) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let rows: [_; N] = std::array::from_fn(|i| {
                let at = first + i;
                let (mean, inverse) = self.norm.of(at);
                let row = |of| start(of, at).add(self.channels.start).cast_const();
                let (x, dy) = (row(&self.x), row(&self.dy));
                (S::splat(mean), S::splat(inverse), x, dy)
            });
            for at in (0..self.channels.len()).step_by(S::LANES) {
                let lanes = (self.channels.len() - at).min(S::LANES);
                let mut found = [S::splat(0.0); 2];
                for (mean, inverse, x, dy) in rows {
                    let (x, dy) = (load::<S>(x, at, lanes), load::<S>(dy, at, lanes));
                    let normalized = S::mul(S::sub(x, mean), inverse);
                    found = [S::fma(dy, normalized, found[0]), S::add(found[1], dy)];
                }
                for (i, found) in found.into_iter().enumerate() {
                    let mut values = [0f32; LANES_MAX];
                    S::store(values.as_mut_ptr(), found);
                    let values = &values[..S::LANES];
                    for (sum, value) in sums[i][at..][..lanes].iter_mut().zip(values) {
                        *sum += f64::from(*value);
                    }
                }
            }
        }
    }
}

/// Sums of two values per element, of vectors from an element on: over a few of them in f32, then in f64. What is
/// past the end must be zero.
#[inline(always)]
pub(crate) fn sum_vectors<S: Simd>(
    elements: usize,
    of: impl Fn(usize, usize) -> [S::V; 2],
) -> [f64; 2] {
    let mut sums = [0.0; 2];
    for first in (0..elements).step_by(TOGETHER * S::LANES) {
        let end = elements.min(first + TOGETHER * S::LANES);
        let mut found = of(first, (end - first).min(S::LANES));
        for at in (first + S::LANES..end).step_by(S::LANES) {
            let [a, b] = of(at, (end - at).min(S::LANES));
            found = [S::add(found[0], a), S::add(found[1], b)];
        }
        sums[0] += f64::from(S::sum(found[0]));
        sums[1] += f64::from(S::sum(found[1]));
    }
    sums
}

/// `lanes` lanes from an element on, the rest zero.
///
/// # Safety
/// The processor has the features of `S`, and the elements can be read.
#[inline(always)]
pub(crate) unsafe fn load<S: Simd>(from: *const f32, at: usize, lanes: usize) -> S::V {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if lanes == S::LANES {
            S::load(from.add(at))
        } else {
            S::load_part(from.add(at), lanes)
        }
    }
}
