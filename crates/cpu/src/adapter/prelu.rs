//! PReLU and softmax of programs on the kernels of this crate.

use super::Run;
use crate::elementwise::prelu::{prelu_backward, prelu_backward_slopes, prelu_forward};
use crate::sequence::softmax::{softmax, softmax_backward};
use partita_program::Kernel;
use partita_run::RunError;

pub(super) fn execute(kernel: &Kernel, run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    match kernel {
        Kernel::PreluForward { x, slopes, y } => {
            let (x, slopes, mut y) = (run.input(x), run.dense(slopes), run.output(y));
            run.flops(|call| prelu_forward(call, x.view(), slopes.data(), y.view()))
        }
        Kernel::PreluBackwardData {
            x,
            slopes,
            dy,
            dx,
            accumulate,
        } => {
            let (x, slopes, dy) = (run.input(x), run.dense(slopes), run.input(dy));
            let mut dx = run.result(dx, *accumulate);
            run.flops(|call| {
                let inputs = [x.view(), dy.view()];
                prelu_backward(call, inputs, slopes.data(), dx.view(), *accumulate)
            })
        }
        Kernel::PreluBackwardSlopes {
            x,
            dy,
            dslopes,
            one: _,
            accumulate,
        } => {
            let (x, dy) = (run.input(x), run.input(dy));
            let mut dslopes = run.result(dslopes, *accumulate);
            run.flops(|call| {
                let inputs = [x.view(), dy.view()];
                prelu_backward_slopes(call, inputs, dslopes.slice(), *accumulate)
            })
        }
        Kernel::SoftmaxForward { x, y } => {
            let (x, mut y) = (run.input(x), run.output(y));
            run.flops(|call| softmax(call, x.view(), y.view()))
        }
        Kernel::SoftmaxBackward {
            y,
            dy,
            dx,
            accumulate,
        } => {
            let (y, dy, mut dx) = (run.input(y), run.input(dy), run.result(dx, *accumulate));
            run.flops(|call| softmax_backward(call, [y.view(), dy.view()], dx.view(), *accumulate))
        }
        other => panic!("{} is neither PReLU nor softmax", other.name()),
    }
}
