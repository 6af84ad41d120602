//! Convolutions, their gradients, biases and packed weights.

use super::pointwise::bias_backward;
use super::{Call, Real};
use crate::values::each_position;
use partita_program::fields::{
    ConvolutionBackwardData, ConvolutionBackwardWeight, ConvolutionForward,
};
use partita_program::{Fields, Kernel, Taps};
use partita_run::{Block, BlockMut, RunError};

pub(super) fn execute<T: Real>(
    kernel: &Kernel,
    scratch: &mut Vec<f64>,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    match kernel.fields() {
        Fields::ConvolutionForward(of) => forward::<T>(of, call),
        Fields::ConvolutionBackwardData(of) => backward_data::<T>(of, scratch, call),
        Fields::ConvolutionBackwardWeight(of) => backward_weight::<T>(of, scratch, call),
        Fields::BiasBackward(of) => bias_backward(of.dy, of.db, *of.accumulate, call),
        Fields::PackWeights(_) => panic!("the reference kernels take plain weights"),
        _ => panic!("{} is no convolution", kernel.name()),
    }
}

/// Taps with the place of the first one.
pub(super) struct Window {
    pub(super) taps: Taps,
    pub(super) shift: [i64; 3],
}

impl Window {
    /// The input position under tap `k` of output `o`, where it lies inside an input of `extent`.
    pub(super) fn input(
        &self,
        o: [usize; 3],
        k: [usize; 3],
        extent: [usize; 3],
    ) -> Option<[usize; 3]> {
        let mut input = [0; 3];
        for dim in 0..3 {
            let at = o[dim] * self.taps.stride[dim] + k[dim] * self.taps.dilation[dim];
            let at = usize::try_from(at as i64 - self.shift[dim]).ok()?;
            if at >= extent[dim] {
                return None;
            }
            input[dim] = at;
        }
        Some(input)
    }
}

/// All taps in (D, H, W) order.
pub(super) fn tap_list(taps: &Taps) -> Vec<[usize; 3]> {
    let [depth, height, width] = taps.kernel;
    let mut list = Vec::with_capacity(taps.volume());
    for d in 0..depth {
        for h in 0..height {
            list.extend((0..width).map(|w| [d, h, w]));
        }
    }
    list
}

/// Channels C / groups and filters F / groups of one group.
fn group_sizes(w_kkkcf: [usize; 5], channels: usize, groups: usize) -> (usize, usize) {
    let (per_group, filters) = (w_kkkcf[3], w_kkkcf[4]);
    assert_eq!(
        per_group * groups,
        channels,
        "channels of x in {groups} groups"
    );
    assert_eq!(filters % groups, 0, "{filters} filters in {groups} groups");
    (per_group, filters / groups)
}

fn inside([n, d, h, w]: [usize; 4], taps: &Taps, k: [usize; 3]) -> [usize; 5] {
    let at = |dim: usize, o: usize| o * taps.stride[dim] + k[dim] * taps.dilation[dim];
    [n, at(0, d), at(1, h), at(2, w), 0]
}

fn row<'b, T: Real>(block: &'b Block<'_, T>, index: [usize; 5]) -> &'b [T] {
    let at = block.at(index);
    &block.data()[at..at + block.extent[4]]
}

fn forward<T: Real>(of: ConvolutionForward<'_>, call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    let (taps, accumulate) = (of.taps, *of.accumulate);
    let (x, w) = (call.read::<T>(of.x), call.read::<T>(of.w));
    let bias = of.bias.map(|bias| call.read::<T>(&bias));
    let mut y = call.write::<T>(of.y, accumulate);
    let (channels, filters) = group_sizes(w.extent, x.extent[4], *of.groups);
    assert_eq!(y.extent[4], w.extent[4], "filters of w and y");
    let tap_list = tap_list(taps);
    let mut sums = vec![0.0; y.extent[4]];
    let mut flops = 0;
    each_position(y.extent, call.progress, |o| {
        match &bias {
            Some(bias) => {
                for (sum, b) in sums.iter_mut().zip(bias.data().iter()) {
                    *sum = b.wide();
                }
            }
            None => sums.fill(0.0),
        }
        for &k in &tap_list {
            let x_row = row(&x, inside(o, taps, k));
            for (c, value) in x_row.iter().enumerate() {
                let (group, value) = (c / channels, value.wide());
                let first = group * filters;
                let at = w.at([k[0], k[1], k[2], c % channels, first]);
                let sums = &mut sums[first..first + filters];
                for (sum, w) in sums.iter_mut().zip(&w.data()[at..at + filters]) {
                    *sum += value * w.wide();
                }
                flops += 2 * filters as u64;
            }
        }
        let at = y.at([o[0], o[1], o[2], o[3], 0]);
        for (target, &sum) in y.data_mut()[at..].iter_mut().zip(&sums) {
            let old = if accumulate { target.wide() } else { 0.0 };
            *target = T::narrow(old + sum);
        }
    })?;
    Ok(flops)
}

fn backward_data<T: Real>(
    of: ConvolutionBackwardData<'_>,
    sums: &mut Vec<f64>,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    let window = Window {
        taps: *of.taps,
        shift: *of.shift,
    };
    let (dy, w) = (call.read::<T>(of.dy), call.read::<T>(of.w));
    let bias = of.bias.map(|bias| call.read::<T>(&bias));
    let mut dx = call.write::<T>(of.dx, *of.accumulate);
    let extent = dx.extent;
    let (channels, filters) = group_sizes(w.extent, extent[4], *of.groups);
    assert_eq!(dy.extent[4], w.extent[4], "filters of w and dy");
    sums.clear();
    sums.resize(extent.iter().product(), 0.0);
    if let Some(bias) = &bias {
        for (sum, b) in sums.iter_mut().zip(bias.data().iter().cycle()) {
            *sum = b.wide();
        }
    }
    let tap_list = tap_list(&window.taps);
    let mut flops = 0;
    each_position(dy.extent, call.progress, |[n, d, h, ow]| {
        let dy_row = row(&dy, [n, d, h, ow, 0]);
        for &k in &tap_list {
            flops += 2 * (dy_row.len() * channels) as u64;
            let spatial = [extent[1], extent[2], extent[3]];
            let Some(i) = window.input([d, h, ow], k, spatial) else {
                continue;
            };
            let base = dense(extent, [n, i[0], i[1], i[2], 0]);
            let dx_row = &mut sums[base..base + extent[4]];
            for (group, sums) in dx_row.chunks_mut(channels).enumerate() {
                let first = group * filters;
                let weights = |c: usize| {
                    let at = w.at([k[0], k[1], k[2], c, first]);
                    &w.data()[at..at + filters]
                };
                add_products(&dy_row[first..first + filters], weights, sums);
            }
        }
    })?;
    store(sums, &mut dx, *of.accumulate);
    Ok(flops)
}

/// Adds to the sum of each channel the product of a row of dy and the channel's weights.
fn add_products<'w, T: Real>(dy_row: &[T], weights: impl Fn(usize) -> &'w [T], sums: &mut [f64]) {
    // A sum waits for each addition before the next, so channels are summed side by side, each in order.
    const CHANNELS: usize = 8;
    let mut blocks = sums.chunks_exact_mut(CHANNELS);
    let mut first = 0;
    for block in &mut blocks {
        let rows: [&[T]; CHANNELS] = std::array::from_fn(|c| &weights(first + c)[..dy_row.len()]);
        let mut products = [0.0; CHANNELS];
        for (f, dy) in dy_row.iter().enumerate() {
            let dy = dy.wide();
            for (product, row) in products.iter_mut().zip(&rows) {
                *product += dy * row[f].wide();
            }
        }
        for (sum, product) in block.iter_mut().zip(products) {
            *sum += product;
        }
        first += CHANNELS;
    }
    for (c, sum) in blocks.into_remainder().iter_mut().enumerate() {
        let pairs = dy_row.iter().zip(weights(first + c));
        *sum += pairs.map(|(dy, w)| dy.wide() * w.wide()).sum::<f64>();
    }
}

fn backward_weight<T: Real>(
    of: ConvolutionBackwardWeight<'_>,
    sums: &mut Vec<f64>,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    let taps = of.taps;
    let (x, dy) = (call.read::<T>(of.x), call.read::<T>(of.dy));
    let mut dw = call.write::<T>(of.dw, *of.accumulate);
    let (channels, filters) = group_sizes(dw.extent, x.extent[4], *of.groups);
    assert_eq!(dy.extent[4], dw.extent[4], "filters of dw and dy");
    sums.clear();
    sums.resize(dw.extent.iter().product(), 0.0);
    let tap_list = tap_list(taps);
    let mut flops = 0;
    each_position(dy.extent, call.progress, |o| {
        let dy_row = row(&dy, [o[0], o[1], o[2], o[3], 0]);
        for &k in &tap_list {
            for (c, value) in row(&x, inside(o, taps, k)).iter().enumerate() {
                let first = c / channels * filters;
                let at = dense(dw.extent, [k[0], k[1], k[2], c % channels, first]);
                let dy_group = &dy_row[first..first + filters];
                for (sum, dy) in sums[at..at + filters].iter_mut().zip(dy_group) {
                    *sum += value.wide() * dy.wide();
                }
                flops += 2 * filters as u64;
            }
        }
    })?;
    store(sums, &mut dw, *of.accumulate);
    Ok(flops)
}

/// Position of an index in a dense box.
pub(super) fn dense(extent: [usize; 5], index: [usize; 5]) -> usize {
    (0..5).fold(0, |at, dim| at * extent[dim] + index[dim])
}

/// Rounds dense sums into a box, or adds them to it.
pub(super) fn store<T: Real>(sums: &[f64], target: &mut BlockMut<'_, T>, accumulate: bool) {
    let width = target.extent[4].max(1);
    let [_, depth, height, length, _] = target.extent;
    for (number, row) in sums.chunks_exact(width).enumerate() {
        let (w, rest) = (number % length, number / length);
        let (h, rest) = (rest % height, rest / height);
        let at = target.at([rest / depth, rest % depth, h, w, 0]);
        for (target, &sum) in target.data_mut()[at..at + width].iter_mut().zip(row) {
            let old = if accumulate { target.wide() } else { 0.0 };
            *target = T::narrow(old + sum);
        }
    }
}
