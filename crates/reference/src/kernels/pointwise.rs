//! Fills, copies, imports, additions and functions of single elements.

use super::{Call, activation, prelu, product};
use crate::values::{each_element, entry};
use partita_program::fields::{Add, ChannelShuffle, Dropout, LeakyReluBackward};
use partita_program::random::Draws;
use partita_program::{DropoutMask, Fields, Kernel, Transform, View};
use partita_run::RunError;
use partita_space::{Coord, Mesh};

pub(super) fn execute(
    kernel: &Kernel,
    mesh: &Mesh,
    coord: &Coord,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    match kernel.fields() {
        Fields::Fill(of) => fill(of.target, *of.value, call),
        Fields::Copy(of) => copy(of.source, of.target, *of.accumulate, call),
        Fields::Import(of) => import(of.source, of.target, *of.transform, call),
        Fields::LeakyReluForward(of) => leaky_relu_forward(of.x, of.y, *of.negative_slope, call),
        Fields::LeakyReluBackward(of) => leaky_relu_backward(of, call),
        Fields::ChannelShuffle(of) => channel_shuffle(of, call),
        Fields::Dropout(of) => {
            let corner = of.distribution.corner(of.halo_low, mesh, coord);
            dropout(of, corner, call)
        }
        Fields::ActivationForward(of) => activation::forward(of, call),
        Fields::ActivationBackward(of) => activation::backward(of, call),
        Fields::Add(of) => add(of, call),
        Fields::PreluForward(_)
        | Fields::PreluBackwardData(_)
        | Fields::PreluBackwardSlopes(_)
        | Fields::SoftmaxForward(_)
        | Fields::SoftmaxBackward(_) => prelu::execute(kernel, call),
        Fields::Multiply(_) | Fields::MultiplySum(_) | Fields::MultiplyChannelSum(_) => {
            product::execute(kernel, call)
        }
        _ => panic!("{} is not computed element by element", kernel.name()),
    }
}

fn same_extent(a: &View, b: &View) {
    assert_eq!(a.extent, b.extent, "{a} and {b} have one shape");
}

fn fill(target: &View, value: f64, call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    let target = call.values(target);
    each_element(target.extent(), call.progress, |i| target.set(i, value))?;
    Ok(0)
}

fn copy(
    source: &View,
    target: &View,
    accumulate: bool,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    assert_eq!(
        source.volume(),
        target.volume(),
        "{source} and {target} have one volume"
    );
    let dtype = |view: &View| call.memory.body().buffer(view.buffer).dtype;
    assert_eq!(
        dtype(source),
        dtype(target),
        "{source} and {target} have one dtype"
    );
    let (source, target) = (call.values(source), call.result(target, accumulate));
    let extent = source.extent();
    let mut from = [0; 5];
    let visits = each_element(target.extent(), call.progress, |i| {
        target.put(i, source.get(from), accumulate);
        next_index(&mut from, extent);
    })?;
    Ok(if accumulate { visits } else { 0 })
}

/// The next index of a box in memory order.
fn next_index(index: &mut [usize; 5], extent: [usize; 5]) {
    for dim in (0..5).rev() {
        index[dim] += 1;
        if index[dim] < extent[dim] {
            return;
        }
        index[dim] = 0;
    }
}

fn import(
    source: &View,
    target: &View,
    transform: Transform,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    let [n, c, d, h, w] = source.extent;
    assert_eq!([n, d, h, w, c], target.extent, "{source} fills {target}");
    let (source, target) = (call.values(source), call.values(target));
    let flops = each_element(target.extent(), call.progress, |[n, d, h, w, c]| {
        let stored = source.get([n, c, d, h, w]);
        let value = match transform {
            Transform::Identity => stored,
            Transform::Scale { factor } => factor * stored,
            Transform::LogOnePlus => stored.ln_1p(),
        };
        target.set([n, d, h, w, c], value);
    })?;
    Ok(flops)
}

pub(super) fn bias_backward(
    dy: &View,
    db: &View,
    accumulate: bool,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    let (dy, db) = (call.values(dy), call.result(db, accumulate));
    let mut sums = vec![0.0; db.extent()[4]];
    let flops = each_element(dy.extent(), call.progress, |i| sums[i[4]] += dy.get(i))?;
    for (f, &sum) in sums.iter().enumerate() {
        db.put(entry(f), sum, accumulate);
    }
    Ok(flops)
}

fn leaky_relu_forward(
    x: &View,
    y: &View,
    slope: f64,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    same_extent(x, y);
    let (x, y) = (call.values(x), call.values(y));
    let flops = each_element(x.extent(), call.progress, |i| {
        let value = x.get(i);
        y.set(i, if value > 0.0 { value } else { slope * value });
    })?;
    Ok(flops)
}

fn leaky_relu_backward(
    of: LeakyReluBackward<'_>,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    let (slope, accumulate) = (*of.negative_slope, *of.accumulate);
    same_extent(of.y, of.dy);
    same_extent(of.y, of.dx);
    let (y, dy, dx) = (
        call.values(of.y),
        call.values(of.dy),
        call.result(of.dx, accumulate),
    );
    let flops = each_element(dy.extent(), call.progress, |i| {
        let factor = if y.get(i) > 0.0 { 1.0 } else { slope };
        dx.put(i, factor * dy.get(i), accumulate);
    })?;
    Ok(flops)
}

fn channel_shuffle(of: ChannelShuffle<'_>, call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    same_extent(of.x, of.y);
    let (x, y) = (call.values(of.x), call.result(of.y, *of.accumulate));
    let in_group = y.extent()[4] / of.groups;
    let flops = each_element(y.extent(), call.progress, |i| {
        let mut from = i;
        from[4] = i[4] % of.groups * in_group + i[4] / of.groups;
        y.put(i, x.get(from), *of.accumulate);
    })?;
    Ok(flops)
}

/// The view begins at the global index `corner`.
fn dropout(of: Dropout<'_>, corner: [usize; 5], call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    same_extent(of.x, of.y);
    let (x, y) = (call.values(of.x), call.result(of.y, *of.accumulate));
    let inputs = call.inputs;
    let first = corner[0];
    let draws: Vec<Draws> = (first..first + x.extent()[0])
        .map(|n| {
            let sample = inputs.samples.get(n);
            let sample = *sample.unwrap_or_else(|| panic!("the step lists no sample {n}"));
            Draws::new(inputs.seed, inputs.epoch, sample as u64, *of.operation)
        })
        .collect();
    let scale = 1.0 / (1.0 - of.rate);
    let flops = each_element(x.extent(), call.progress, |i| {
        let at = |from: usize| {
            (from..5).fold(0, |at, dim| {
                at * of.distribution.shape[dim] + corner[dim] + i[dim]
            })
        };
        let element = match of.mask {
            DropoutMask::Element => at(1),
            DropoutMask::Channel => at(4),
            DropoutMask::Sample => 0,
        };
        let kept = draws[i[0]].unit(element as u64) >= *of.rate;
        let value = if kept { scale * x.get(i) } else { 0.0 };
        y.put(i, value, *of.accumulate);
    })?;
    Ok(flops)
}

fn add(of: Add<'_>, call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    same_extent(of.a, of.y);
    same_extent(of.b, of.y);
    let (a, b, y) = (call.values(of.a), call.values(of.b), call.values(of.y));
    let flops = each_element(y.extent(), call.progress, |i| y.set(i, a.get(i) + b.get(i)))?;
    Ok(flops)
}
