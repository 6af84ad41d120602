//! Convolutions of programs on the kernels of this crate.

use super::Run;
use super::native::Native;
use super::operand::Output;
use super::tail::{TailOperands, scale_elements};
use crate::conv::convolution::{Convolution, Weights};
use crate::conv::data::pack_backward_data;
use crate::conv::forward::pack_forward;
use crate::grid::{Call, Window};
use partita_program::fused::Tail;
use partita_program::{Direction, Kernel, Role, Taps, View};
use partita_run::{Block, RunError};

/// Taps as the kernels of this crate describe them.
pub(super) fn window(taps: &Taps) -> Window {
    Window {
        kernel: taps.kernel,
        stride: taps.stride,
        dilation: taps.dilation,
    }
}

/// Taps and groups as the kernels of this crate describe them.
pub(super) fn convolution(taps: &Taps, groups: usize) -> Convolution {
    Convolution {
        window: window(taps),
        groups,
    }
}

pub(super) fn execute<E: Native>(
    kernel: &Kernel,
    tail: &Tail<'_>,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    match kernel {
        Kernel::PackWeights { .. } => pack(kernel, run),
        Kernel::ConvolutionForward {
            x,
            w,
            bias,
            y,
            taps,
            groups,
            accumulate,
        } => {
            let conv = convolution(taps, *groups);
            let (flops, is_packed) = (tail.flops(y), is_packed(w, run));
            let mut held = TailOperands::new(tail, run);
            let (x, w) = (run.input_of::<E>(x), run.dense(w));
            let mut y = run.output_of(y, *accumulate);
            let bias = bias.as_ref().map(|bias| run.dense(bias));
            let values = bias.as_ref().map(|bias| bias.data());
            let scales = scale_elements(tail, y.block().extent[4]);
            let method = run.method;
            Ok(run.flops(|call| {
                with_scales(call, scales, |call, scales| {
                    let (w, epilogue) = (weights(is_packed, &w), held.epilogue(values, scales));
                    let (x, y, adds) = (x.view(), y.view(), *accumulate);
                    E::forward(method, call, x, w, y, &conv, adds, epilogue)
                })
            })? + flops)
        }
        Kernel::ConvolutionBackwardData { .. } => backward_data::<E>(kernel, tail, run),
        Kernel::ConvolutionBackwardWeight { .. } => backward_weight::<E>(kernel, None, run),
        Kernel::BiasBackward { dy, db, accumulate } => {
            let (dy, mut db) = (run.input_of::<E>(dy), run.result(db, *accumulate));
            run.flops(|call| E::bias_backward(call, dy.view(), db.slice(), *accumulate))
        }
        other => panic!("{} is no convolution", other.name()),
    }
}

fn is_packed(w: &View, run: &Run<'_, '_>) -> bool {
    run.memory.body().buffer(w.buffer).role == Role::PackedWeights
}

fn weights<'w>(is_packed: bool, w: &'w Block<'_, f32>) -> Weights<'w> {
    if is_packed {
        Weights::Packed(w.data())
    } else {
        Weights::Plain(w.data())
    }
}

fn pack(kernel: &Kernel, run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    let Kernel::PackWeights {
        w,
        packed,
        direction,
        taps,
        groups,
    } = kernel
    else {
        panic!("{} packs no weights", kernel.name());
    };
    let (conv, [.., channels, f]) = (convolution(taps, *groups), w.extent);
    let (c, w, mut packed) = (channels * groups, run.dense(w), run.output(packed));
    run.flops(|call| {
        let (w, packed) = (w.data(), packed.slice());
        match direction {
            Direction::Forward => pack_forward(call, w, packed, &conv, c, f),
            Direction::BackwardData => pack_backward_data(call, w, packed, &conv, c, f),
        }
    })
}

/// Calls `body` with the first elements of the scratch apart.
fn with_scales<R>(
    call: &mut Call,
    scales: usize,
    body: impl FnOnce(&mut Call, &mut [f32]) -> R,
) -> R {
    let (scales, scratch) = call.scratch.split_at_mut(scales);
    let mut call = Call {
        team: &mut *call.team,
        scratch,
        progress: &mut *call.progress,
    };
    body(&mut call, scales)
}

fn backward_data<E: Native>(
    kernel: &Kernel,
    tail: &Tail<'_>,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    let Kernel::ConvolutionBackwardData {
        dy,
        w,
        bias,
        dx,
        taps,
        shift,
        groups,
        accumulate,
    } = kernel
    else {
        panic!("{} is no data gradient", kernel.name());
    };
    let (conv, flops) = (convolution(taps, *groups), tail.flops(dx));
    let is_packed = is_packed(w, run);
    let mut held = TailOperands::new(tail, run);
    let (dy, w) = (run.input_of::<E>(dy), run.dense(w));
    let mut dx = run.output_of(dx, *accumulate);
    let bias = bias.as_ref().map(|bias| run.dense(bias));
    let values = bias.as_ref().map(|bias| bias.data());
    let scales = scale_elements(tail, dx.block().extent[4]);
    let method = run.method;
    Ok(run.flops(|call| {
        with_scales(call, scales, |call, scales| {
            let (w, epilogue) = (weights(is_packed, &w), held.epilogue(values, scales));
            let (dy, dx, shift, adds) = (dy.view(), dx.view(), *shift, *accumulate);
            E::backward_data(method, call, dy, w, dx, &conv, shift, adds, epilogue)
        })
    })? + flops)
}

/// With `db`, the gradient of the bias too; it adds where that of the weights does.
pub(super) fn backward_weight<E: Native>(
    kernel: &Kernel,
    db: Option<&View>,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    let Kernel::ConvolutionBackwardWeight {
        x,
        dy,
        dw,
        taps,
        groups,
        accumulate,
    } = kernel
    else {
        panic!("{} is no weight gradient", kernel.name());
    };
    let conv = convolution(taps, *groups);
    let bias_flops = db.map_or(0, |_| dy.volume() as u64);
    let mut db = db.map(|db| run.result(db, *accumulate));
    let (x, dy) = (run.input_of::<E>(x), run.input_of::<E>(dy));
    let mut dw = run.result(dw, *accumulate);
    let method = run.method;
    Ok(run.flops(|call| {
        let db = db.as_mut().map(Output::slice);
        let (x, dy, dw, adds) = (x.view(), dy.view(), dw.slice(), *accumulate);
        E::backward_weight(method, call, x, dy, dw, db, &conv, adds)
    })? + bias_flops)
}
