//! Batch normalization, and the sums over positions that it and biases need.
//!
//! Sums are kept in f64 and are those of the caller to combine over ranks. Each thread sums a
//! fixed share of the rows, and the shares are added in order.

use crate::grid::{Call, Canceled, Grid, Shared, View, ViewMut, Work, part};
use crate::simd::{Op, Simd};
use crate::team::{ELEMENT, Team, TeamKind};

/// Channels that are summed together.
const WIDTH: usize = 16;

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

/// sums\[c\] = sum of x\[.., c\], sums[C + c] = sum of its squares. Counts 3 flops an element.
///
/// Errors of all kernels of this module: [`Canceled`]. They panic if boxes differ in shape.
pub fn norm_statistics(call: &mut Call, x: View, sums: &mut [f64]) -> Result<Work, Canceled> {
    let work = Work {
        flops: 3 * x.grid.elements() as u64,
        bytes: x.grid.bytes(),
    };
    let total = reduce(call, x, x, |x, _| (x, x * x))?;
    sums[..total.len()].copy_from_slice(total);
    Ok(work)
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
    let total = reduce(call, dy, dy, |dy, _| (dy, 0.0))?;
    for (db, sum) in db.iter_mut().zip(&total[..g.channels]) {
        *db = *sum as f32 + if accumulate { *db } else { 0.0 };
    }
    let bytes = g.bytes() + 4 * g.channels as u64 * (1 + u64::from(accumulate));
    Ok(Work {
        flops: g.elements() as u64,
        bytes,
    })
}

/// y = (x - mean) / sqrt(variance + epsilon) * gamma + beta. Counts 2 flops an element.
pub fn norm_forward(
    call: &mut Call,
    x: View,
    y: ViewMut,
    norm: &Normalization,
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
    affine(call, x, y, norm.beta)
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

/// As [`norm_forward`], by the running statistics. Counts 2 flops an element.
pub fn norm_inference(
    call: &mut Call,
    x: View,
    y: ViewMut,
    norm: &Inference,
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
    affine(call, x, y, norm.beta)
}

/// y = (x - mean) * scale + beta, with mean and scale in the first two columns of the scratch.
fn affine(call: &mut Call, x: View, y: ViewMut, beta: &[f32]) -> Result<Work, Canceled> {
    let g = y.grid;
    let bytes = x.grid.bytes() + g.bytes();
    let [mean, scale, ..] = columns(call.scratch, g.channels);
    let columns: [&[f32]; 4] = [mean, scale, beta, beta];
    let (team, progress) = (&mut *call.team, &mut *call.progress);
    apply(team, progress, (x, x), (y, columns), |x, _, _, k| {
        (x - k[0]) * k[1] + k[2]
    })?;
    Ok(Work {
        flops: 2 * g.elements() as u64,
        bytes,
    })
}

/// sums\[c\] = sum of dy\[.., c\], sums[C + c] = sum of dy * xhat, with xhat the normalized x.
///
/// Their global values are the gradients of beta and gamma. Counts 5 flops an element.
pub fn norm_backward_statistics(
    call: &mut Call,
    x: View,
    dy: View,
    norm: &Normalization,
    sums: &mut [f64],
) -> Result<Work, Canceled> {
    let c = x.grid.channels;
    norm.assert_valid(c);
    let total = reduce(call, x, dy, |x, dy| (dy, dy * x))?;
    for i in 0..c {
        let (mean, inverse) = norm.inverse_deviation(i);
        sums[i] = total[i];
        sums[c + i] = (total[c + i] - mean * total[i]) * inverse;
    }
    let bytes = x.grid.bytes() + dy.grid.bytes();
    Ok(Work {
        flops: 5 * x.grid.elements() as u64,
        bytes,
    })
}

/// dx (+)= gamma / deviation * (dy - sums\[c\] / count - xhat * sums[C + c] / count), with the
/// global sums of [`norm_backward_statistics`]. Counts 6 flops an element.
pub fn norm_backward(
    call: &mut Call,
    x: View,
    dy: View,
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
    let bytes = x.grid.bytes() + dy.grid.bytes() + g.bytes() * (1 + u64::from(accumulate));
    let columns: [&[f32]; 4] = [mean, factor, offset, slope];
    let out = (dx, columns);
    let (team, progress) = (&mut *call.team, &mut *call.progress);
    match accumulate {
        false => apply(team, progress, (x, dy), out, |x, dy, _, k| {
            k[1] * (dy - k[2] - (x - k[0]) * k[3])
        }),
        true => apply(team, progress, (x, dy), out, |x, dy, dx, k| {
            dx + k[1] * (dy - k[2] - (x - k[0]) * k[3])
        }),
    }?;
    Ok(Work {
        flops: 6 * g.elements() as u64,
        bytes,
    })
}

/// Four columns of C elements of the scratch.
fn columns(scratch: &mut [f32], c: usize) -> [&mut [f32]; 4] {
    let (ab, cd) = scratch[..4 * c].split_at_mut(2 * c);
    let ((a, b), (c, d)) = (ab.split_at_mut(c), cd.split_at_mut(c));
    [a, b, c, d]
}

/// Sums over positions of the two values of `f(x, y)`: C sums of the first, C of the second.
fn reduce<'a, F>(call: &'a mut Call, x: View, y: View, f: F) -> Result<&'a [f64], Canceled>
where
    F: Fn(f64, f64) -> (f64, f64) + Copy + Sync,
{
    x.grid.assert_like(y.grid);
    let (threads, c, level) = (call.team.threads(), x.grid.channels, call.team.level());
    // SAFETY: every bit pattern is an f64.
    let (_, scratch, _) = unsafe { call.scratch.align_to_mut::<f64>() };
    let (total, parts) = scratch[..2 * c * (threads + 1)].split_at_mut(2 * c);
    let shares = SharedSums(parts.as_mut_ptr());
    let cost = ELEMENT * x.grid.elements() as u64 / threads as u64;
    call.team
        .units(call.progress, threads, cost, &|unit, poll| {
            // SAFETY: each unit has sums of its own.
            let sums =
                unsafe { std::slice::from_raw_parts_mut(shares.get().add(unit * 2 * c), 2 * c) };
            sums.fill(0.0);
            for row in part(x.grid.rows(), unit, threads) {
                level.run(ReduceRow { x, y, row, sums, f });
                if !poll.tick(ELEMENT * (x.grid.extent[2] * c) as u64) {
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

struct ReduceRow<'a, F> {
    x: View<'a>,
    y: View<'a>,
    row: usize,
    sums: &'a mut [f64],
    f: F,
}

impl<F: Fn(f64, f64) -> (f64, f64)> Op for ReduceRow<'_, F> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (xg, yg) = (self.x.grid, self.y.grid);
        let (x0, y0) = (xg.row_offset(self.row), yg.row_offset(self.row));
        let (first, second) = self.sums.split_at_mut(xg.channels);
        for c0 in (0..xg.channels).step_by(WIDTH) {
            let width = (xg.channels - c0).min(WIDTH);
            let (mut a, mut b) = ([0f64; WIDTH], [0f64; WIDTH]);
            for w in 0..xg.extent[2] {
                let (xs, ys) = (x0 + w * xg.pitch[3] + c0, y0 + w * yg.pitch[3] + c0);
                let (x, y) = (
                    block(&self.x.data[xs..xs + width]),
                    block(&self.y.data[ys..ys + width]),
                );
                for i in 0..WIDTH {
                    let (p, q) = (self.f)(f64::from(x[i]), f64::from(y[i]));
                    a[i] += p;
                    b[i] += q;
                }
            }
            first[c0..]
                .iter_mut()
                .zip(a)
                .take(width)
                .for_each(|(sum, a)| *sum += a);
            second[c0..]
                .iter_mut()
                .zip(b)
                .take(width)
                .for_each(|(sum, b)| *sum += b);
        }
    }
}

/// y = f(a, b, y, the four columns at the channel).
fn apply<F>(
    team: &mut Team,
    progress: &mut dyn FnMut() -> bool,
    (a, b): (View, View),
    (y, columns): (ViewMut, [&[f32]; 4]),
    f: F,
) -> Result<(), Canceled>
where
    F: Fn(f32, f32, f32, [f32; 4]) -> f32 + Copy + Sync,
{
    a.grid.assert_like(y.grid);
    b.grid.assert_like(y.grid);
    let (level, grid) = (team.level(), y.grid);
    let out = Shared(y.data.as_mut_ptr());
    let cost = ELEMENT * (grid.extent[2] * grid.channels) as u64;
    team.ranges(progress, grid.rows(), cost, &|rows| {
        for row in rows {
            level.run(ApplyRow {
                a,
                b,
                y: out,
                grid,
                row,
                columns,
                f,
            });
        }
    })
}

struct ApplyRow<'a, F> {
    a: View<'a>,
    b: View<'a>,
    y: Shared,
    grid: &'a Grid,
    row: usize,
    columns: [&'a [f32]; 4],
    f: F,
}

impl<F: Fn(f32, f32, f32, [f32; 4]) -> f32> Op for ApplyRow<'_, F> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let start = |g: &Grid| g.row_offset(self.row);
        let (a0, b0, y0) = (start(self.a.grid), start(self.b.grid), start(self.grid));
        for c0 in (0..self.grid.channels).step_by(WIDTH) {
            let n = (self.grid.channels - c0).min(WIDTH);
            let k = self.columns.map(|k| block(&k[c0..c0 + n]));
            for w in 0..self.grid.extent[2] {
                let a = a0 + w * self.a.grid.pitch[3] + c0;
                let b = b0 + w * self.b.grid.pitch[3] + c0;
                let (a, b) = (block(&self.a.data[a..a + n]), block(&self.b.data[b..b + n]));
                // SAFETY: rows of the box are disjoint, and each is in one range.
                let y = unsafe {
                    let at = y0 + w * self.grid.pitch[3] + c0;
                    std::slice::from_raw_parts_mut(self.y.get().add(at), n)
                };
                let mut r = block(y);
                for i in 0..WIDTH {
                    r[i] = (self.f)(a[i], b[i], r[i], [k[0][i], k[1][i], k[2][i], k[3][i]]);
                }
                match <&mut [f32; WIDTH]>::try_from(&mut *y) {
                    Ok(y) => *y = r,
                    Err(_) => y.copy_from_slice(&r[..n]),
                }
            }
        }
    }
}

/// Up to `WIDTH` elements, the rest zero; whole blocks stay in registers.
#[inline(always)]
fn block(from: &[f32]) -> [f32; WIDTH] {
    match <[f32; WIDTH]>::try_from(from) {
        Ok(whole) => whole,
        Err(_) => {
            let mut a = [0.0; WIDTH];
            a[..from.len()].copy_from_slice(from);
            a
        }
    }
}
