//! PReLU and softmax of programs on the kernels of this crate.

use super::sequence::tally;
use super::{Run, touched};
use crate::elementwise::prelu::{prelu_backward, prelu_backward_slopes, prelu_forward};
use crate::sequence::softmax::{softmax, softmax_backward};
use partita_program::Kernel;
use partita_run::{KernelTally, RunError};

pub(super) fn execute(kernel: &Kernel, run: &mut Run<'_, '_>) -> Result<KernelTally, RunError> {
    match kernel {
        Kernel::PreluForward { x, slopes, y } => {
            let (x, slopes, mut y) = (run.input(x), run.dense(slopes), run.output(y));
            let work =
                run.compute(|call| prelu_forward(call, x.view(), slopes.data(), y.view()))?;
            Ok(KernelTally {
                flops: work.flops,
                bytes: work.bytes + slopes.box_bytes(),
            })
        }
        Kernel::PreluBackwardData {
            x,
            slopes,
            dy,
            dx,
            accumulate,
        } => {
            let (x, slopes, dy) = (run.input(x), run.dense(slopes), run.input(dy));
            let mut dx = run.output(dx);
            let work = run.compute(|call| {
                let inputs = [x.view(), dy.view()];
                prelu_backward(call, inputs, slopes.data(), dx.view(), *accumulate)
            })?;
            Ok(KernelTally {
                flops: work.flops,
                bytes: work.bytes + slopes.box_bytes(),
            })
        }
        Kernel::PreluBackwardSlopes {
            x,
            dy,
            dslopes,
            one: _,
            accumulate,
        } => {
            let (x, dy, mut dslopes) = (run.input(x), run.input(dy), run.output(dslopes));
            let work = run.compute(|call| {
                let inputs = [x.view(), dy.view()];
                prelu_backward_slopes(call, inputs, dslopes.slice(), *accumulate)
            })?;
            Ok(KernelTally {
                flops: work.flops,
                bytes: work.bytes + touched(dslopes.bytes(), *accumulate),
            })
        }
        Kernel::SoftmaxForward { x, y } => {
            let (x, mut y) = (run.input(x), run.output(y));
            let work = run.compute(|call| softmax(call, x.view(), y.view()))?;
            Ok(tally(work))
        }
        Kernel::SoftmaxBackward {
            y,
            dy,
            dx,
            accumulate,
        } => {
            let (y, dy, mut dx) = (run.input(y), run.input(dy), run.output(dx));
            let work = run.compute(|call| {
                softmax_backward(call, [y.view(), dy.view()], dx.view(), *accumulate)
            })?;
            Ok(tally(work))
        }
        other => panic!("{} is neither PReLU nor softmax", other.name()),
    }
}
