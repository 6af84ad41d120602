//! Linear layers: convolutions with one tap, whose positions are the samples.

use super::contents::copy;
use super::convolution::{Window, backward_data, backward_weight, forward};
use crate::device::KernelError;
use crate::epilogue::Epilogue;
use crate::launch::Run;
use crate::tensor::Tensor;
use partita_program::fused::Tail;
use partita_program::{Fields, Kernel, Taps};

const ONE_TAP: Taps = Taps {
    kernel: [1; 3],
    stride: [1; 3],
    dilation: [1; 3],
};

/// With an epilogue where samples of all boxes are dense.
pub(super) fn execute(
    kernel: &Kernel,
    tail: &Tail<'_>,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    match kernel.fields() {
        Fields::LinearForward(of) => {
            let [x, w, y] = [of.x, of.w, of.y].map(|view| run.tensor(view));
            let epilogue = Epilogue {
                bias: run.optional(of.bias.as_ref()),
                ..Epilogue::new(tail, run)?.into_rows()
            };
            let x = read(&x, run)?;
            write(&y, run, |rows, run| {
                let window = window(&x, rows);
                forward([x, w, *rows], &window, epilogue, run)
            })
        }
        Fields::LinearBackwardData(of) => {
            let [dy, w, dx] = [of.dy, of.w, of.dx].map(|view| run.tensor(view));
            let dy = read(&dy, run)?;
            let epilogue = Epilogue {
                accumulate: *of.accumulate,
                ..Epilogue::new(tail, run)?.into_rows()
            };
            write(&dx, run, |rows, run| {
                let window = window(rows, &dy);
                backward_data([dy, w, *rows], &window, epilogue, run)
            })
        }
        Fields::LinearBackwardWeight(of) => {
            let [x, dy, dw] = [of.x, of.dy, of.dw].map(|view| run.tensor(view));
            let (x, dy) = (read(&x, run)?, read(&dy, run)?);
            backward_weight([x, dy, dw], &window(&x, &dy), *of.accumulate, run)
        }
        _ => panic!("{} is no linear layer", kernel.name()),
    }
}

fn window(x: &Tensor, y: &Tensor) -> Window {
    Window::new(&ONE_TAP, [0; 3], 1, x, y)
}

/// Rows in the workspace.
fn held_rows(of: &Tensor, run: &mut Run<'_>) -> (Tensor, Tensor) {
    let first = run.scratch(of.dtype, of.volume());
    let whole = Tensor::dense(of.dtype, first, of.extent);
    let rows = whole.rows().unwrap_or(whole);
    (whole, rows)
}

/// The samples of a tensor as rows, copied where they have gaps.
fn read(of: &Tensor, run: &mut Run<'_>) -> Result<Tensor, KernelError> {
    if let Some(rows) = of.rows() {
        return Ok(rows);
    }
    let (whole, rows) = held_rows(of, run);
    copy([*of, whole], false, run)?;
    Ok(rows)
}

/// Computes rows where the samples of a tensor are, or beside it where these have gaps.
fn write(
    to: &Tensor,
    run: &mut Run<'_>,
    compute: impl FnOnce(&Tensor, &mut Run<'_>) -> Result<(), KernelError>,
) -> Result<(), KernelError> {
    if let Some(rows) = to.rows() {
        return compute(&rows, run);
    }
    let (whole, rows) = held_rows(to, run);
    // What is added to comes along.
    copy([*to, whole], false, run)?;
    compute(&rows, run)?;
    copy([whole, *to], false, run)
}
