//! Poolings.

use super::Call;
use super::convolution::{Window, dense, tap_list};
use crate::values::{Values, each_element};
use partita_program::fields::{PoolBackward, PoolForward};
use partita_program::{Fields, Kernel, PoolKind};
use partita_run::RunError;

pub(super) fn execute(
    kernel: &Kernel,
    scratch: &mut Vec<f64>,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    match kernel.fields() {
        Fields::PoolForward(of) => forward(of, call),
        Fields::PoolBackward(of) => backward(of, scratch, call),
        _ => panic!("{} is no pooling", kernel.name()),
    }
}

/// The inputs under an output that lie inside, in (D, H, W) order.
fn inputs_of(
    window: &Window,
    taps: &[[usize; 3]],
    [n, d, h, w, c]: [usize; 5],
    extent: [usize; 5],
    found: &mut Vec<[usize; 5]>,
) {
    let spatial = [extent[1], extent[2], extent[3]];
    let inputs = taps
        .iter()
        .filter_map(|&k| window.input([d, h, w], k, spatial));
    found.clear();
    found.extend(inputs.map(|i| [n, i[0], i[1], i[2], c]));
}

/// The first maximum; a NaN counts as the greatest, so that it is not lost.
fn first_maximum(x: &Values<'_>, inputs: &[[usize; 5]]) -> ([usize; 5], f64) {
    let mut best: Option<([usize; 5], f64)> = None;
    for &input in inputs {
        let value = x.get(input);
        let wins = best.is_none_or(|(_, most)| value > most || (value.is_nan() && !most.is_nan()));
        if wins {
            best = Some((input, value));
        }
    }
    best.unwrap_or_else(|| panic!("a maximum over padding alone"))
}

fn norm(x: &Values<'_>, inputs: &[[usize; 5]]) -> f64 {
    let squares = inputs.iter().map(|&i| x.get(i) * x.get(i));
    squares.sum::<f64>().sqrt()
}

fn forward(of: PoolForward<'_>, call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    let kind = *of.kind;
    let window = Window {
        taps: *of.taps,
        shift: *of.shift,
    };
    let (x, y) = (call.values(of.x), call.values(of.y));
    assert_eq!(x.extent()[4], y.extent()[4], "channels of x and y");
    let taps = tap_list(&window.taps);
    let mut inputs = Vec::with_capacity(taps.len());
    let mut flops = 0;
    each_element(y.extent(), call.progress, |o| {
        inputs_of(&window, &taps, o, x.extent(), &mut inputs);
        let sum = || inputs.iter().map(|&i| x.get(i)).sum::<f64>();
        let value = match kind {
            PoolKind::Max => first_maximum(&x, &inputs).1,
            PoolKind::AverageAll => sum() / taps.len() as f64,
            PoolKind::AverageInside => sum() / inputs.len() as f64,
            PoolKind::L2 => norm(&x, &inputs),
        };
        y.set(o, value);
        flops += taps.len() as u64 * if kind == PoolKind::L2 { 2 } else { 1 };
    })?;
    Ok(flops)
}

fn backward(
    of: PoolBackward<'_>,
    sums: &mut Vec<f64>,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    let (kind, accumulate) = (*of.kind, *of.accumulate);
    let window = Window {
        taps: *of.taps,
        shift: *of.shift,
    };
    let x = of.x.map(|x| call.values(&x));
    let (dy, dx) = (call.values(of.dy), call.result(of.dx, accumulate));
    let extent = dx.extent();
    assert_eq!(extent[4], dy.extent()[4], "channels of dx and dy");
    if let Some(x) = &x {
        assert_eq!(x.extent(), extent, "geometry of x and dx");
    }
    sums.clear();
    sums.resize(extent.iter().product(), 0.0);
    let taps = tap_list(&window.taps);
    let mut inputs = Vec::with_capacity(taps.len());
    let mut flops = 0;
    each_element(dy.extent(), call.progress, |o| {
        inputs_of(&window, &taps, o, extent, &mut inputs);
        let gradient = dy.get(o);
        let mut spread = |share: f64| {
            for &input in &inputs {
                sums[dense(extent, input)] += share;
            }
        };
        let x = || {
            x.as_ref()
                .unwrap_or_else(|| panic!("the gradient of {kind:?} needs its input"))
        };
        match kind {
            PoolKind::Max => {
                sums[dense(extent, first_maximum(x(), &inputs).0)] += gradient;
            }
            PoolKind::L2 => {
                let (x, norm) = (x(), norm(x(), &inputs));
                if norm != 0.0 {
                    for &input in &inputs {
                        sums[dense(extent, input)] += gradient / norm * x.get(input);
                    }
                }
            }
            PoolKind::AverageAll => spread(gradient / taps.len() as f64),
            PoolKind::AverageInside => spread(gradient / inputs.len() as f64),
        }
        flops += taps.len() as u64 * if kind == PoolKind::L2 { 4 } else { 1 };
    })?;
    let mut sums = sums.iter();
    each_element(extent, call.progress, |i| {
        dx.put(i, sums.next().copied().unwrap_or_default(), accumulate);
    })?;
    Ok(flops)
}
