//! Fills, copies, imports, additions and functions of single elements.

use super::{Call, activation, prelu, product};
use crate::values::{each_element, entry};
use partita_program::random::Draws;
use partita_program::{DropoutMask, Kernel, Transform, View};
use partita_run::RunError;
use partita_space::{Coord, Mesh};

pub(super) fn execute(
    kernel: &Kernel,
    mesh: &Mesh,
    coord: &Coord,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    match kernel {
        Kernel::Fill { target, value } => fill(target, *value, call),
        Kernel::Copy {
            source,
            target,
            accumulate,
        } => copy(source, target, *accumulate, call),
        Kernel::Import {
            source,
            target,
            transform,
        } => import(source, target, *transform, call),
        Kernel::LeakyReluForward {
            x,
            y,
            negative_slope,
        } => leaky_relu_forward(x, y, *negative_slope, call),
        Kernel::LeakyReluBackward {
            y,
            dy,
            dx,
            negative_slope,
            accumulate,
        } => leaky_relu_backward([y, dy, dx], *negative_slope, *accumulate, call),
        Kernel::ChannelShuffle {
            x,
            y,
            groups,
            accumulate,
        } => channel_shuffle([x, y], *groups, *accumulate, call),
        Kernel::Dropout {
            x,
            y,
            rate,
            mask: of,
            operation,
            distribution,
            halo_low,
            accumulate,
        } => {
            let mask = Mask {
                rate: *rate,
                of: *of,
                operation: *operation,
                shape: distribution.shape,
                corner: distribution.corner(halo_low, mesh, coord),
            };
            dropout([x, y], &mask, *accumulate, call)
        }
        Kernel::ActivationForward { function, x, y } => {
            activation::forward(*function, [x, y], call)
        }
        Kernel::ActivationBackward {
            function,
            x,
            dy,
            dx,
            accumulate,
        } => activation::backward(*function, [x, dy, dx], *accumulate, call),
        Kernel::Add { a, b, y } => add([a, b, y], call),
        Kernel::PreluForward { .. }
        | Kernel::PreluBackwardData { .. }
        | Kernel::PreluBackwardSlopes { .. }
        | Kernel::SoftmaxForward { .. }
        | Kernel::SoftmaxBackward { .. } => prelu::execute(kernel, call),
        Kernel::Multiply { .. }
        | Kernel::MultiplySum { .. }
        | Kernel::MultiplyChannelSum { .. } => product::execute(kernel, call),
        other => panic!("{} is not computed element by element", other.name()),
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
    [y, dy, dx]: [&View; 3],
    slope: f64,
    accumulate: bool,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    same_extent(y, dy);
    same_extent(y, dx);
    let (y, dy, dx) = (call.values(y), call.values(dy), call.result(dx, accumulate));
    let flops = each_element(dy.extent(), call.progress, |i| {
        let factor = if y.get(i) > 0.0 { 1.0 } else { slope };
        dx.put(i, factor * dy.get(i), accumulate);
    })?;
    Ok(flops)
}

/// The key of a dropout mask.
struct Mask {
    rate: f64,
    of: DropoutMask,
    operation: u32,
    /// Of the whole tensor.
    shape: [usize; 5],
    /// Global index of the first element of the view.
    corner: [usize; 5],
}

fn channel_shuffle(
    [x, y]: [&View; 2],
    groups: usize,
    accumulate: bool,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    same_extent(x, y);
    let (x, y) = (call.values(x), call.result(y, accumulate));
    let in_group = y.extent()[4] / groups;
    let flops = each_element(y.extent(), call.progress, |i| {
        let mut from = i;
        from[4] = i[4] % groups * in_group + i[4] / groups;
        y.put(i, x.get(from), accumulate);
    })?;
    Ok(flops)
}

fn dropout(
    [x, y]: [&View; 2],
    mask: &Mask,
    accumulate: bool,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    same_extent(x, y);
    let (x, y) = (call.values(x), call.result(y, accumulate));
    let inputs = call.inputs;
    let first = mask.corner[0];
    let draws: Vec<Draws> = (first..first + x.extent()[0])
        .map(|n| {
            let sample = inputs.samples.get(n);
            let sample = *sample.unwrap_or_else(|| panic!("the step lists no sample {n}"));
            Draws::new(inputs.seed, inputs.epoch, sample as u64, mask.operation)
        })
        .collect();
    let scale = 1.0 / (1.0 - mask.rate);
    let flops = each_element(x.extent(), call.progress, |i| {
        let at = |from: usize| {
            (from..5).fold(0, |at, dim| {
                at * mask.shape[dim] + mask.corner[dim] + i[dim]
            })
        };
        let element = match mask.of {
            DropoutMask::Element => at(1),
            DropoutMask::Channel => at(4),
            DropoutMask::Sample => 0,
        };
        let kept = draws[i[0]].unit(element as u64) >= mask.rate;
        let value = if kept { scale * x.get(i) } else { 0.0 };
        y.put(i, value, accumulate);
    })?;
    Ok(flops)
}

fn add([a, b, y]: [&View; 3], call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    same_extent(a, y);
    same_extent(b, y);
    let (a, b, y) = (call.values(a), call.values(b), call.values(y));
    let flops = each_element(y.extent(), call.progress, |i| y.set(i, a.get(i) + b.get(i)))?;
    Ok(flops)
}
