//! Convolutions and their gradients.

use super::sums;
use crate::arg::Arg;
use crate::device::KernelError;
use crate::epilogue::Epilogue;
use crate::launch::Run;
use crate::method::Method;
use crate::tensor::Tensor;
use partita_program::descriptor::Layout;
use partita_program::fused::Tail;
use partita_program::{Dtype, Kernel, Taps, View};

/// Results of a work-item along W and along channels, as the kernels have them.
const TILE: usize = 4;
/// Work-items for each multiprocessor from which on sums are not taken in parts.
const ITEMS_PER_UNIT: usize = 512;
/// Terms of a part of a sum, at least.
const TERMS_MIN: usize = 64;

/// A convolution between an input x and an output y, in any direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub taps: Taps,
    pub shift: [i64; 3],
    /// Channels of x and of y in a group, and groups.
    inputs: usize,
    outputs: usize,
    groups: usize,
}

impl Window {
    pub(super) fn new(taps: &Taps, shift: [i64; 3], groups: usize, x: &Tensor, y: &Tensor) -> Self {
        Self {
            taps: *taps,
            shift,
            inputs: x.extent[4] / groups,
            outputs: y.extent[4] / groups,
            groups,
        }
    }

    fn is_depthwise(&self) -> bool {
        self.inputs == 1 && self.outputs == 1
    }

    fn weights(&self) -> usize {
        self.taps.volume() * self.inputs * self.outputs * self.groups
    }

    fn arg(&self) -> Arg {
        Arg::taps(&self.taps, self.shift)
    }

    fn channels(&self) -> Arg {
        Arg::Three([self.inputs, self.outputs, self.groups].map(|value| value as u32))
    }
}

pub(super) fn execute(
    kernel: &Kernel,
    tail: &Tail<'_>,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let descriptor = kernel.descriptor();
    let accumulates = |to: &View| {
        let mut all = kernel.accesses().into_iter();
        all.any(|(view, access)| view == *to && access.reads() && access.writes())
    };
    let Some(of) = descriptor.window else {
        // The gradient of a bias.
        let [dy, db] = [0, 1].map(|number| descriptor.operands[number].view);
        return sums::bias(dy, db, accumulates(db), run);
    };
    match descriptor.layout {
        Layout::Product {
            from,
            to,
            w,
            is_forward,
            bias,
        } => {
            let epilogue = Epilogue {
                bias: run.optional(bias),
                accumulate: accumulates(to),
                ..Epilogue::new(tail, run)?
            };
            let [from, w, to] = [from, w, to].map(|view| run.tensor(view));
            if is_forward {
                let window = Window::new(of.taps, of.shift, of.groups, &from, &to);
                forward([from, w, to], &window, epilogue, run)
            } else {
                let window = Window::new(of.taps, of.shift, of.groups, &to, &from);
                backward_data([from, w, to], &window, epilogue, run)
            }
        }
        Layout::ProductGradient { x, dy, dw } => {
            let accumulate = accumulates(dw);
            let [x, dy, dw] = [x, dy, dw].map(|view| run.tensor(view));
            let window = Window::new(of.taps, of.shift, of.groups, &x, &dy);
            backward_weight([x, dy, dw], &window, accumulate, run)
        }
        Layout::Any | Layout::Table { .. } | Layout::Sequences { .. } | Layout::OwnShare { .. } => {
            panic!(
                "{}: the kernels of devices take plain weights",
                kernel.name()
            )
        }
    }
}

/// Parts of sums with this many terms, and the terms of a part, where this many work-items take one result each.
fn parts_of(terms: usize, items: usize, run: &Run<'_>) -> (usize, usize) {
    let wanted = match run.method {
        Method::Parts => (run.units * ITEMS_PER_UNIT).div_ceil(items.max(1)),
        Method::Serial => 1,
    };
    let parts = wanted.min(terms / TERMS_MIN).max(1);
    let stretch = terms.div_ceil(parts).max(1);
    (terms.div_ceil(stretch).max(1), stretch)
}

/// Tiles of a tensor with this many channels in a group.
fn tiles(of: &Tensor, channels: usize, groups: usize) -> usize {
    let [n, d, h, w, _] = of.extent;
    n * d * h * w.div_ceil(TILE) * channels.div_ceil(TILE) * groups
}

/// The last arguments of a kernel whose sums are taken in parts, and where these lie.
fn in_parts(
    (parts, stretch): (usize, usize),
    elements: usize,
    run: &mut Run<'_>,
) -> (u64, [Arg; 3]) {
    let first = if parts > 1 {
        run.scratch(Dtype::F32, parts * elements)
    } else {
        0
    };
    let numbers = [parts, stretch].map(|value| Arg::Uint(value as u32));
    (first, [numbers[0], numbers[1], Arg::Ulong(first)])
}

/// Adds up the parts of the sums of activations.
fn add_parts(
    y: &Tensor,
    (first, parts): (u64, usize),
    epilogue: Epilogue,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let args = [
        Arg::Ulong(first),
        Arg::Uint(parts as u32),
        Arg::from(y),
        Arg::Extent(y.raw_extent()),
        epilogue.into(),
    ];
    run.elements("add_parts", &args, y)
}

/// Adds up the parts of the sums of weights.
fn add_weight_parts(
    dw: &Tensor,
    (first, parts): (u64, usize),
    accumulate: bool,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let count = dw.volume();
    let args = [
        Arg::Ulong(first),
        Arg::Uint(parts as u32),
        Arg::Ulong(dw.offset),
        Arg::Uint(count as u32),
        Arg::flag(accumulate),
    ];
    run.items("add_weight_parts", &args, count)
}

pub(super) fn forward(
    [x, w, y]: [Tensor; 3],
    window: &Window,
    epilogue: Epilogue,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let last = [Arg::Ulong(w.offset), epilogue.into()];
    let mut args = vec![
        Arg::from(&x),
        Arg::from(&y),
        Arg::Extent(y.raw_extent()),
        window.arg(),
    ];
    if window.is_depthwise() {
        args.extend(last);
        return run.elements("depthwise_forward", &args, &y);
    }
    let items = tiles(&y, window.outputs, window.groups);
    let parts = parts_of(window.taps.volume() * window.inputs, items, run);
    let (first, of_parts) = in_parts(parts, y.volume(), run);
    args.push(window.channels());
    args.extend(last);
    args.extend(of_parts);
    run.items("convolution_forward", &args, items * parts.0)?;
    if parts.0 > 1 {
        add_parts(&y, (first, parts.0), epilogue, run)?;
    }
    Ok(())
}

/// The weights with inputs last, in the workspace.
fn turned(w: &Tensor, window: &Window, run: &mut Run<'_>) -> Result<u64, KernelError> {
    let count = window.weights();
    let first = run.scratch(Dtype::F32, count);
    let args = [
        Arg::Ulong(w.offset),
        Arg::Ulong(first),
        Arg::Uint(window.taps.volume() as u32),
        window.channels(),
    ];
    run.items("transpose_weights", &args, count)?;
    Ok(first)
}

pub(super) fn backward_data(
    [dy, w, dx]: [Tensor; 3],
    window: &Window,
    epilogue: Epilogue,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let mut args = vec![
        Arg::from(&dy),
        Arg::Extent(dy.raw_extent()),
        Arg::from(&dx),
        Arg::Extent(dx.raw_extent()),
        window.arg(),
    ];
    if window.is_depthwise() {
        args.extend([Arg::Ulong(w.offset), epilogue.into()]);
        return run.elements("depthwise_backward_data", &args, &dx);
    }
    let is_turned = run.method == Method::Parts;
    let weights = if is_turned {
        turned(&w, window, run)?
    } else {
        w.offset
    };
    let items = tiles(&dx, window.inputs, window.groups);
    let parts = parts_of(window.taps.volume() * window.outputs, items, run);
    let (first, of_parts) = in_parts(parts, dx.volume(), run);
    args.push(window.channels());
    args.extend([Arg::Ulong(weights), Arg::flag(is_turned), epilogue.into()]);
    args.extend(of_parts);
    run.items("convolution_backward_data", &args, items * parts.0)?;
    if parts.0 > 1 {
        add_parts(&dx, (first, parts.0), epilogue, run)?;
    }
    Ok(())
}

pub(super) fn backward_weight(
    [x, dy, dw]: [Tensor; 3],
    window: &Window,
    accumulate: bool,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let taps = window.taps.volume();
    let mut args = vec![
        Arg::from(&x),
        Arg::from(&dy),
        Arg::Extent(dy.raw_extent()),
        window.arg(),
    ];
    if window.is_depthwise() {
        let items = taps * window.groups;
        let (parts, stretch) = parts_of(dy.positions(), items, run);
        // Even one part lies in the workspace.
        let first = run.scratch(Dtype::F32, parts * dw.volume());
        let numbers = [parts, stretch].map(|value| Arg::Uint(value as u32));
        args.extend([numbers[0], numbers[1], Arg::Ulong(first)]);
        run.items("depthwise_backward_weight", &args, items * parts)?;
        return add_weight_parts(&dw, (first, parts), accumulate, run);
    }
    let tiles = window.outputs.div_ceil(TILE) * window.inputs.div_ceil(TILE) * window.groups;
    let parts = parts_of(dy.positions(), tiles * taps, run);
    let (first, of_parts) = in_parts(parts, dw.volume(), run);
    args.extend([
        window.channels(),
        Arg::Ulong(dw.offset),
        Arg::flag(accumulate),
    ]);
    args.extend(of_parts);
    run.items("convolution_backward_weight", &args, tiles * taps * parts.0)?;
    if parts.0 > 1 {
        add_weight_parts(&dw, (first, parts.0), accumulate, run)?;
    }
    Ok(())
}
