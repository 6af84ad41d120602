//! Group normalization of one sample: sums per channel, moments per group of channels.

use crate::grid::{Call, Canceled, View, ViewMut, Work};
use crate::norm::{affine, columns, reduce};
use crate::rows::{Apply, Rows, formula};
use crate::simd::Simd;

formula!(Back {}, true, |S, [x, dy, _], _, k| input_gradient::<S>(
    x, dy, k
));
formula!(BackAgain {}, true, |S, [x, dy, _], dx, k| {
    S::add(dx, input_gradient::<S>(x, dy, k))
});

/// (x - mean) * slope + dy * factor + offset; the columns are minus the mean, the factor, the offset and the
/// slope.
#[inline(always)]
fn input_gradient<S: Simd>(x: S::V, dy: S::V, k: [S::V; 4]) -> S::V {
    S::fma(S::add(x, k[0]), k[3], S::fma(dy, k[1], k[2]))
}

/// Global sums of a sample, count, and parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupNormalization<'a> {
    /// Global sums of x (C values), then of its squares (C values).
    pub sums: &'a [f64],
    /// Groups of equally many channels.
    pub groups: usize,
    /// Values per group in the global sums.
    pub count: f64,
    /// Added to the (biased) variance.
    pub epsilon: f64,
}

impl GroupNormalization<'_> {
    fn channels(&self) -> usize {
        self.sums.len() / 2
    }

    /// Channels of a group.
    fn size(&self) -> usize {
        self.channels() / self.groups
    }

    /// Sum of a row of sums over the channels of a group.
    fn total(&self, row: usize, group: usize) -> f64 {
        let start = row * self.channels() + group * self.size();
        self.sums[start..start + self.size()].iter().sum()
    }

    /// Mean, and 1 over the standard deviation.
    fn inverse_deviation(&self, group: usize) -> (f64, f64) {
        let [mean, square] = [0, 1].map(|row| self.total(row, group) / self.count);
        let variance = (square - mean * mean).max(0.0);
        (mean, 1.0 / (variance + self.epsilon).sqrt())
    }

    fn assert_valid(&self, channels: usize) {
        let fits = self.channels() == channels && channels.is_multiple_of(self.groups);
        assert!(fits, "normalization of {channels} channels: {self:?}");
    }
}

/// y = (x - mean) / sqrt(variance + epsilon) * gamma + beta. Counts 2 flops an element.
///
/// Errors of all kernels of this module: [`Canceled`]. They panic if boxes differ in shape.
pub(crate) fn group_norm_forward(
    call: &mut Call,
    x: View,
    y: ViewMut,
    norm: &GroupNormalization,
    [gamma, beta]: [&[f32]; 2],
) -> Result<Work, Canceled> {
    let channels = y.grid.channels;
    norm.assert_valid(channels);
    let [mean, scale, ..] = columns(call.scratch, channels);
    for group in 0..norm.groups {
        let (m, inverse) = norm.inverse_deviation(group);
        for c in group * norm.size()..(group + 1) * norm.size() {
            mean[c] = -m as f32;
            scale[c] = (inverse * f64::from(gamma[c])) as f32;
        }
    }
    affine(call, x, y, beta, (None, None))
}

/// sums\[c\] = sum of dy\[.., c\], sums\[C + c\] = sum of dy * xhat, with xhat the normalized x; and dbeta and
/// dgamma (+)= these. Counts 5 flops an element.
pub(crate) fn group_norm_backward_statistics(
    call: &mut Call,
    [x, dy]: [View; 2],
    norm: &GroupNormalization,
    mut sums: Option<&mut [f64]>,
    [dgamma, dbeta]: [&mut [f32]; 2],
    accumulate: bool,
) -> Result<Work, Canceled> {
    let channels = x.grid.channels;
    norm.assert_valid(channels);
    let total = reduce(call, [x, dy], |[x, dy, _]| (dy, dy * x))?;
    let put = |target: &mut f32, sum: f64| {
        let old = if accumulate { f64::from(*target) } else { 0.0 };
        *target = (old + sum) as f32;
    };
    for group in 0..norm.groups {
        let (mean, inverse) = norm.inverse_deviation(group);
        for c in group * norm.size()..(group + 1) * norm.size() {
            let normalized = (total[channels + c] - mean * total[c]) * inverse;
            put(&mut dgamma[c], normalized);
            put(&mut dbeta[c], total[c]);
            if let Some(sums) = &mut sums {
                (sums[c], sums[channels + c]) = (total[c], normalized);
            }
        }
    }
    Ok(Work {
        flops: 5 * x.grid.elements() as u64,
        bytes: x.grid.bytes() + dy.grid.bytes(),
    })
}

/// dx (+)= (gamma * dy - a / count - xhat * b / count) / deviation, with a and b the sums over the channels of
/// the group of gamma times the global sums of [`group_norm_backward_statistics`]. Counts 6 flops an element.
pub(crate) fn group_norm_backward(
    call: &mut Call,
    [x, dy]: [View; 2],
    dx: ViewMut,
    norm: &GroupNormalization,
    gamma: &[f32],
    sums: &[f64],
    accumulate: bool,
) -> Result<Work, Canceled> {
    let (grid, channels) = (dx.grid, dx.grid.channels);
    norm.assert_valid(channels);
    let [mean, factor, offset, slope] = columns(call.scratch, channels);
    for group in 0..norm.groups {
        let (m, inverse) = norm.inverse_deviation(group);
        let of_group = group * norm.size()..(group + 1) * norm.size();
        let mean_of = |row: usize| {
            let terms = of_group
                .clone()
                .map(|c| f64::from(gamma[c]) * sums[row * channels + c]);
            terms.sum::<f64>() / norm.count
        };
        let [a, b] = [mean_of(0), mean_of(1)];
        for c in of_group.clone() {
            mean[c] = -m as f32;
            factor[c] = (inverse * f64::from(gamma[c])) as f32;
            offset[c] = (-inverse * a) as f32;
            slope[c] = (-inverse * inverse * b) as f32;
        }
    }
    let work = Work {
        flops: 6 * grid.elements() as u64,
        bytes: x.grid.bytes() + dy.grid.bytes() + grid.bytes() * (1 + u64::from(accumulate)),
    };
    let columns: [&[f32]; 4] = [mean, factor, offset, slope];
    let (team, progress, dx) = (&mut *call.team, &mut *call.progress, Rows::from(dx));
    if accumulate {
        let apply = Apply::with_columns([x, dy], dx, columns, BackAgain {});
        // SAFETY: the written box is borrowed alone.
        unsafe { apply.all(team, progress) }
    } else {
        let apply = Apply::with_columns([x, dy], dx, columns, Back {});
        // SAFETY: the written box is borrowed alone.
        unsafe { apply.all(team, progress) }
    }?;
    Ok(work)
}
