//! Upsampling, padding and means over unequal windows.

use super::Call;
use super::convolution::dense;
use crate::values::each_element;
use partita_program::{Kernel, View};
use partita_run::RunError;
use partita_space::Resampling;

pub(super) fn execute(
    kernel: &Kernel,
    scratch: &mut Vec<f64>,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    match kernel {
        Kernel::ResampleForward { x, y, maps } => forward(x, y, maps, call),
        Kernel::ResampleBackward {
            dy,
            dx,
            maps,
            accumulate,
        } => backward([dy, dx], maps, *accumulate, scratch, call),
        other => panic!("{} is no resampling", other.name()),
    }
}

/// The inputs that an output reads, with their weights; zeros beyond the border are left out.
fn taps_of(
    maps: &[Resampling; 3],
    [n, d, h, w, c]: [usize; 5],
    extent: [usize; 5],
) -> Vec<([usize; 5], f64)> {
    let along = |dim: usize, output: usize| {
        let mut taps = Vec::new();
        maps[dim].taps(output as i64, extent[dim + 1], |input, weight| {
            taps.push((input, weight));
        });
        taps
    };
    let mut taps = Vec::new();
    for &(d, of_d) in &along(0, d) {
        for &(h, of_h) in &along(1, h) {
            for &(w, of_w) in &along(2, w) {
                taps.push(([n, d, h, w, c], of_d * of_h * of_w));
            }
        }
    }
    taps
}

/// Taps on zeros beyond the border included.
fn flops(maps: &[Resampling; 3], [n, d, h, w, c]: [usize; 5]) -> u64 {
    let each = if maps.iter().all(|map| map.rule.is_copy()) {
        1
    } else {
        2
    };
    let taps = maps.iter().zip([d, h, w]);
    let taps: u128 = taps.map(|(map, outputs)| map.tap_count(outputs)).product();
    (n * c) as u64 * each * taps as u64
}

fn forward(
    x: &View,
    y: &View,
    maps: &[Resampling; 3],
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    let (x, y) = (call.values(x), call.values(y));
    assert_eq!(x.extent()[4], y.extent()[4], "channels of x and y");
    each_element(y.extent(), call.progress, |o| {
        let taps = taps_of(maps, o, x.extent());
        y.set(o, taps.iter().map(|&(i, weight)| weight * x.get(i)).sum());
    })?;
    Ok(flops(maps, y.extent()))
}

fn backward(
    [dy, dx]: [&View; 2],
    maps: &[Resampling; 3],
    accumulate: bool,
    sums: &mut Vec<f64>,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    let (dy, dx) = (call.values(dy), call.result(dx, accumulate));
    let extent = dx.extent();
    assert_eq!(extent[4], dy.extent()[4], "channels of dx and dy");
    sums.clear();
    sums.resize(extent.iter().product(), 0.0);
    each_element(dy.extent(), call.progress, |o| {
        let gradient = dy.get(o);
        for (input, weight) in taps_of(maps, o, extent) {
            sums[dense(extent, input)] += weight * gradient;
        }
    })?;
    let mut sums = sums.iter();
    each_element(extent, call.progress, |i| {
        dx.put(i, sums.next().copied().unwrap_or_default(), accumulate);
    })?;
    Ok(flops(maps, dy.extent()))
}
