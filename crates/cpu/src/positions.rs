//! Kernels that work on the channels of one position at a time: layer norm, embeddings, the sinusoids of
//! positions.

use crate::grid::{Call, Canceled, Grid, Shared, View, ViewMut, Work};
use crate::rows::Rows;
use crate::simd::{Op, Simd};
use crate::team::ELEMENT;
use std::ops::Range;

/// Elements whose sums are taken together.
const TOGETHER: usize = 16;
/// The most channels of which gradients are added up at a time.
const STRIPE: usize = 512;

/// The channels of a position, by its number in (N, D, H, W) order.
///
/// # Safety
/// The box has the position, and nobody writes it.
#[inline(always)]
pub(crate) unsafe fn read<'a>(rows: &Rows<'a>, position: usize) -> &'a [f32] {
    // SAFETY: as the caller says.
    unsafe { std::slice::from_raw_parts(start(rows, position), rows.grid.channels) }
}

/// The same, to be written.
///
/// # Safety
/// The box has the position, and nobody else touches it.
#[inline(always)]
pub(crate) unsafe fn write<'a>(rows: &Rows<'a>, position: usize) -> &'a mut [f32] {
    // SAFETY: as the caller says.
    unsafe { std::slice::from_raw_parts_mut(start(rows, position), rows.grid.channels) }
}

/// # Safety
/// The box has the position.
#[inline(always)]
unsafe fn start(rows: &Rows<'_>, position: usize) -> *mut f32 {
    let width = rows.grid.extent[2];
    // SAFETY: as the caller says.
    unsafe {
        rows.start(position / width)
            .add(position % width * rows.grid.pitch[3])
    }
}

/// Runs `op` on ranges that make up all positions, on the threads of the team.
///
/// # Safety
/// What the operation says of its pointers holds for any range of positions, and ranges do not touch
/// what others write.
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
            // SAFETY: as the caller says; the team has the level, and each position is in one range.
            unsafe { level.run(op(positions)) };
        })
}

/// Where a part of a tensor begins, along W and C, and the channels of the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corner {
    /// Position of the first element.
    pub position: usize,
    /// Channel of the first element.
    pub channel: usize,
    /// Channels of the whole tensor.
    pub channels: usize,
}

/// y = x and the sinusoids of its positions along W, with scratch for W * C elements. Counts one flop an
/// element.
///
/// Errors of all kernels of this module: [`Canceled`]. They panic if boxes differ in shape.
pub fn add_positions(
    call: &mut Call,
    corner: Corner,
    x: View,
    y: ViewMut,
) -> Result<Work, Canceled> {
    x.grid.assert_like(y.grid);
    let (x, y) = (Rows::from(x), Rows::from(y));
    let waves = &mut call.scratch[..y.grid.extent[2] * y.grid.channels];
    fill_waves(waves, corner, y.grid.channels);
    let waves = Shared(waves.as_mut_ptr());
    // SAFETY: boxes of one shape, of which y is borrowed alone; the waves are only read.
    unsafe {
        each_range(call, y.grid, 1, |positions| Shift {
            x,
            waves,
            y,
            positions,
        })?;
    }
    Ok(Work {
        flops: y.grid.elements() as u64,
        bytes: x.grid.bytes() + y.grid.bytes(),
    })
}

/// Position by position, so many channels each.
fn fill_waves(waves: &mut [f32], corner: Corner, channels: usize) {
    for c in 0..channels {
        let channel = corner.channel + c;
        let pair = channel - channel % 2;
        let step = 10_000_f64.powf(-(pair as f64) / corner.channels as f64);
        // From one position to the next by a rotation.
        let (turn_sine, turn_cosine) = step.sin_cos();
        let (mut sine, mut cosine) = (corner.position as f64 * step).sin_cos();
        for wave in waves[c..].iter_mut().step_by(channels) {
            *wave = if channel == pair { sine } else { cosine } as f32;
            (sine, cosine) = (
                sine * turn_cosine + cosine * turn_sine,
                cosine * turn_cosine - sine * turn_sine,
            );
        }
    }
}

/// Pointers: the boxes have the positions, and nobody else touches these of y.
struct Shift<'a> {
    x: Rows<'a>,
    waves: Shared,
    y: Rows<'a>,
    positions: Range<usize>,
}

impl Op for Shift<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (width, channels) = (self.y.grid.extent[2], self.y.grid.channels);
        for at in self.positions {
            // SAFETY: each position is in one range; the waves are those of one row.
            let (x, waves, y) = unsafe {
                let waves = self.waves.get().add(at % width * channels);
                let waves = std::slice::from_raw_parts(waves.cast_const(), channels);
                (read(&self.x, at), waves, write(&self.y, at))
            };
            for ((y, x), wave) in y.iter_mut().zip(x).zip(waves) {
                *y = *x + *wave;
            }
        }
    }
}

/// The rows of an embedding that positions ask for.
#[derive(Clone, Copy)]
struct Numbers<'a> {
    x: Rows<'a>,
    rows: usize,
}

impl Numbers<'_> {
    /// Row of a position; nothing if its number names none.
    #[inline(always)]
    fn row(&self, position: usize) -> Option<usize> {
        // SAFETY: a position of the box, which is only read.
        let number = unsafe { read(&self.x, position)[0] };
        let is_row = number >= 0.0 && number < self.rows as f32 && number.fract() == 0.0;
        is_row.then_some(number as usize)
    }

    /// The number of the first position that names no row.
    fn stray(&self) -> Option<f32> {
        let first = (0..self.x.grid.positions()).find(|&at| self.row(at).is_none());
        // SAFETY: as above.
        first.map(|at| unsafe { read(&self.x, at)[0] })
    }
}

/// y becomes the rows of w (rows, C) that the numbers in x (N, D, H, W, 1) name. Counts no flop.
///
/// Answers with the first number that names no row, in which case nothing is written.
pub fn embed(call: &mut Call, x: View, w: &[f32], y: ViewMut) -> Result<Option<f32>, Canceled> {
    let (x, y) = (Rows::from(x), Rows::from(y));
    assert_eq!(x.grid.counts(), y.grid.counts(), "positions of x and y");
    let rows = w.len() / y.grid.channels;
    let numbers = Numbers { x, rows };
    if let Some(stray) = numbers.stray() {
        return Ok(Some(stray));
    }
    // SAFETY: boxes of the same positions, of which y is borrowed alone.
    unsafe {
        each_range(call, y.grid, 1, |positions| Lookup {
            numbers,
            w,
            y,
            positions,
        })?;
    }
    Ok(None)
}

/// Pointers: the boxes have the positions, and nobody else touches these of y.
struct Lookup<'a> {
    numbers: Numbers<'a>,
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
            let row = self.numbers.row(at).unwrap_or_default();
            // SAFETY: each position is in one range.
            let y = unsafe { write(&self.y, at) };
            y.copy_from_slice(&self.w[row * channels..][..channels]);
        }
    }
}

/// dw (rows, C) becomes, or grows by, the sums of dy over the positions of each number. Counts one flop an
/// element.
///
/// Answers as [`embed`].
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
    let numbers = Numbers { x, rows };
    if let Some(stray) = numbers.stray() {
        return Ok(Some(stray));
    }
    let dw = Shared(dw.as_mut_ptr());
    let wide = channels.div_ceil(call.team.threads()).max(1);
    let cost = ELEMENT * (dy.grid.positions() * wide) as u64;
    let stripes = channels.div_ceil(wide);
    call.team
        .units(call.progress, stripes, cost, &|stripe, _| {
            let (first, last) = (stripe * wide, ((stripe + 1) * wide).min(channels));
            // SAFETY: each stripe of channels is one unit's.
            let row = |row: usize| unsafe {
                let start = dw.get().add(row * channels + first);
                std::slice::from_raw_parts_mut(start, last - first)
            };
            if !accumulate {
                (0..rows).for_each(|at| row(at).fill(0.0));
            }
            for at in 0..dy.grid.positions() {
                let target = row(numbers.row(at).unwrap_or_default());
                // SAFETY: a position of the box, which is only read.
                let dy = unsafe { &read(&dy, at)[first..last] };
                target.iter_mut().zip(dy).for_each(|(dw, dy)| *dw += *dy);
            }
        })?;
    Ok(None)
}

/// How the channels of each position are normalized.
#[derive(Clone, Copy)]
pub struct RowNorm<'a> {
    /// Sums of x and of x squared, two for each position.
    pub sums: &'a [f64],
    /// Channels, of all ranks that share them.
    pub count: f64,
    /// Added to the variance.
    pub epsilon: f64,
}

impl RowNorm<'_> {
    /// Mean, and what deviations from it are multiplied by.
    #[inline(always)]
    fn of(&self, position: usize) -> (f32, f32) {
        let mean = self.sums[2 * position] / self.count;
        let square = self.sums[2 * position + 1] / self.count;
        let variance = (square - mean * mean).max(0.0);
        (mean as f32, (1.0 / (variance + self.epsilon).sqrt()) as f32)
    }
}

/// Sums of x and of x squared over the channels of each position. Counts 3 flops an element.
pub fn row_statistics(call: &mut Call, x: View, sums: &mut [f64]) -> Result<Work, Canceled> {
    let x = Rows::from(x);
    assert_eq!(sums.len(), 2 * x.grid.positions(), "two sums per position");
    let sums = Shared(sums.as_mut_ptr().cast());
    // SAFETY: there are two sums for each position, and they are borrowed alone.
    unsafe { each_range(call, x.grid, 1, |positions| Moments { x, sums, positions })? };
    Ok(Work {
        flops: 3 * x.grid.elements() as u64,
        bytes: x.grid.bytes() + 16 * x.grid.positions() as u64,
    })
}

/// Puts two sums of a position where they belong.
///
/// # Safety
/// `sums` holds two numbers in f64 per position, and nobody else touches those of this one.
#[inline(always)]
unsafe fn put(sums: Shared, position: usize, pair: [f64; 2]) {
    // SAFETY: as the caller says.
    unsafe { sums.get().cast::<[f64; 2]>().add(position).write(pair) }
}

/// Pointers: the boxes have the positions, and nobody else touches these of the sums.
struct Moments<'a> {
    x: Rows<'a>,
    sums: Shared,
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
                put(self.sums, at, two_sums([x; 3], |[x, ..]| (x, x * x)));
            }
        }
    }
}

/// Sums of two numbers per element of three rows.
#[inline(always)]
fn two_sums([a, b, c]: [&[f32]; 3], of: impl Fn([f64; 3]) -> (f64, f64)) -> [f64; 2] {
    let [(a, a_rest), (b, b_rest), (c, c_rest)] = [a, b, c].map(|row| row.as_chunks::<TOGETHER>());
    let (mut first, mut second) = ([0.0; TOGETHER], [0.0; TOGETHER]);
    for ((a, b), c) in a.iter().zip(b).zip(c) {
        for i in 0..TOGETHER {
            let (x, y) = of([a[i], b[i], c[i]].map(f64::from));
            first[i] += x;
            second[i] += y;
        }
    }
    for ((a, b), c) in a_rest.iter().zip(b_rest).zip(c_rest) {
        let (x, y) = of([*a, *b, *c].map(f64::from));
        first[0] += x;
        second[0] += y;
    }
    // Else the sums of all of them would be taken one by one, and so would all before.
    let (first, second) = std::hint::black_box((first, second));
    [halved(first), halved(second)]
}

/// The sum, by halves.
#[inline(always)]
fn halved(mut sums: [f64; TOGETHER]) -> f64 {
    let mut left = TOGETHER / 2;
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

/// Pointers: the boxes have the positions, and nobody else touches these of y.
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

/// A gradient of what was normalized.
#[derive(Clone, Copy)]
pub struct RowGradient<'a> {
    /// What was normalized.
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
            positions,
        })?;
    }
    Ok(Work {
        flops: 6 * x.grid.elements() as u64,
        bytes: 2 * x.grid.bytes(),
    })
}

/// Pointers: the boxes have the positions, and nobody else touches these of the sums.
struct Products<'a> {
    norm: RowNorm<'a>,
    x: Rows<'a>,
    dy: Rows<'a>,
    gamma: &'a [f32],
    sums: Shared,
    positions: Range<usize>,
}

impl Op for Products<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for at in self.positions {
            let (mean, inverse) = self.norm.of(at);
            let (mean, inverse) = (f64::from(mean), f64::from(inverse));
            // SAFETY: each position is in one range.
            unsafe {
                let (x, dy) = (read(&self.x, at), read(&self.dy, at));
                let sums = two_sums([x, dy, self.gamma], |[x, dy, gamma]| {
                    let gradient = dy * gamma;
                    (gradient, gradient * ((x - mean) * inverse))
                });
                put(self.sums, at, sums);
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
        each_range(call, dx.grid, 2, |positions| Back {
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

/// Pointers: the boxes have the positions, and nobody else touches these of dx.
struct Back<'a> {
    norm: RowNorm<'a>,
    x: Rows<'a>,
    dy: Rows<'a>,
    gamma: &'a [f32],
    gradient_sums: &'a [f64],
    dx: Rows<'a>,
    accumulate: bool,
    positions: Range<usize>,
}

impl Op for Back<'_> {
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

/// dgamma and dbeta become, or grow by, the sums of dy times the normalized x, and of dy, over all
/// positions. Counts 5 flops an element.
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
    let wide = channels.div_ceil(call.team.threads()).clamp(1, STRIPE);
    let cost = 2 * ELEMENT * (x.grid.positions() * wide) as u64;
    let stripes = channels.div_ceil(wide);
    call.team
        .units(call.progress, stripes, cost, &|stripe, _| {
            let first = wide * stripe;
            let stripe = Stripe {
                norm,
                x,
                dy,
                targets,
                accumulate,
                channels: first..(first + wide).min(channels),
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
/// which nobody else touches.
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
        for at in 0..self.x.grid.positions() {
            let (mean, inverse) = self.norm.of(at);
            // SAFETY: positions of boxes that are only read.
            let (x, dy) = unsafe {
                let range = self.channels.clone();
                (
                    &read(&self.x, at)[range.clone()],
                    &read(&self.dy, at)[range],
                )
            };
            let sums = of_gamma.iter_mut().zip(&mut of_beta);
            for ((gamma, beta), (x, dy)) in sums.zip(x.iter().zip(dy)) {
                *gamma += f64::from(*dy * ((*x - mean) * inverse));
                *beta += f64::from(*dy);
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
