use super::{Run, touched};
use crate::conv_data::conv_backward_data;
use crate::conv_forward::{Convolution, Weights, conv_forward};
use crate::conv_weight::conv_backward_weight;
use crate::epilogue::Epilogue;
use crate::grid::Window;
use crate::norm::bias_backward;
use partita_program::{Kernel, Taps, View};
use partita_run::{Block, RunError, Worked};

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

pub(super) fn execute(kernel: &Kernel, run: &mut Run<'_, '_>) -> Result<Worked, RunError> {
    match kernel {
        Kernel::ConvolutionForward {
            x,
            w,
            bias,
            y,
            taps,
            groups,
        } => forward([x, w, y], bias.as_ref(), &convolution(taps, *groups), run),
        Kernel::ConvolutionBackwardData {
            dy,
            w,
            dx,
            taps,
            shift,
            groups,
            accumulate,
        } => {
            let conv = convolution(taps, *groups);
            let (dy, w, mut dx) = (run.input(dy), run.dense(w), run.output(dx));
            let work = run.compute(|call| {
                conv_backward_data(
                    call,
                    dy.view(),
                    Weights::Plain(w.data),
                    dx.view(),
                    &conv,
                    *shift,
                    *accumulate,
                    Epilogue::default(),
                )
            })?;
            Ok(Worked {
                flops: work.flops,
                bytes: dy.bytes() + w.box_bytes() + touched(dx.bytes(), *accumulate),
            })
        }
        Kernel::ConvolutionBackwardWeight {
            x,
            dy,
            dw,
            taps,
            groups,
            accumulate,
        } => {
            let conv = convolution(taps, *groups);
            let (x, dy, mut dw) = (run.input(x), run.input(dy), run.output(dw));
            let work = run.compute(|call| {
                conv_backward_weight(
                    call,
                    x.view(),
                    dy.view(),
                    dw.slice(),
                    None,
                    &conv,
                    *accumulate,
                )
            })?;
            Ok(Worked {
                flops: work.flops,
                bytes: x.bytes() + dy.bytes() + touched(dw.bytes(), *accumulate),
            })
        }
        Kernel::BiasBackward { dy, db, accumulate } => {
            let (dy, mut db) = (run.input(dy), run.output(db));
            let work =
                run.compute(|call| bias_backward(call, dy.view(), db.slice(), *accumulate))?;
            Ok(Worked {
                flops: work.flops,
                bytes: dy.bytes() + touched(db.bytes(), *accumulate),
            })
        }
        other => panic!("{} is no convolution", other.name()),
    }
}

fn forward(
    [x, w, y]: [&View; 3],
    bias: Option<&View>,
    conv: &Convolution,
    run: &mut Run<'_, '_>,
) -> Result<Worked, RunError> {
    let (x, w, mut y) = (run.input(x), run.dense(w), run.output(y));
    let bias = bias.map(|bias| run.dense(bias));
    let epilogue = Epilogue {
        bias: bias.as_ref().map(|bias| bias.data),
        ..Epilogue::default()
    };
    let w_data = Weights::Plain(w.data);
    let work =
        run.compute(|call| conv_forward(call, x.view(), w_data, y.view(), conv, false, epilogue))?;
    let bias_bytes = bias.as_ref().map_or(0, Block::box_bytes);
    Ok(Worked {
        flops: work.flops,
        bytes: x.bytes() + w.box_bytes() + bias_bytes + y.bytes(),
    })
}
