//! PReLU and softmax of programs on the kernels of this crate.

use super::Run;
use crate::elementwise::prelu::{prelu_backward, prelu_backward_slopes, prelu_forward};
use crate::sequence::softmax::{softmax, softmax_backward};
use partita_program::{Fields, Kernel};
use partita_run::RunError;

pub(super) fn execute(kernel: &Kernel, run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    match kernel.fields() {
        Fields::PreluForward(of) => {
            let (x, slopes, mut y) = (run.input(of.x), run.dense(of.slopes), run.output(of.y));
            run.flops(|call| prelu_forward(call, x.view(), slopes.data(), y.view()))
        }
        Fields::PreluBackwardData(of) => {
            let (x, slopes, dy) = (run.input(of.x), run.dense(of.slopes), run.input(of.dy));
            let mut dx = run.result(of.dx, *of.accumulate);
            run.flops(|call| {
                let inputs = [x.view(), dy.view()];
                prelu_backward(call, inputs, slopes.data(), dx.view(), *of.accumulate)
            })
        }
        Fields::PreluBackwardSlopes(of) => {
            let (x, dy) = (run.input(of.x), run.input(of.dy));
            let mut dslopes = run.result(of.dslopes, *of.accumulate);
            run.flops(|call| {
                let inputs = [x.view(), dy.view()];
                prelu_backward_slopes(call, inputs, dslopes.slice(), *of.accumulate)
            })
        }
        Fields::SoftmaxForward(of) => {
            let (x, mut y) = (run.input(of.x), run.output(of.y));
            run.flops(|call| softmax(call, x.view(), y.view()))
        }
        Fields::SoftmaxBackward(of) => {
            let (y, dy, adds) = (run.input(of.y), run.input(of.dy), *of.accumulate);
            let mut dx = run.result(of.dx, adds);
            run.flops(|call| softmax_backward(call, [y.view(), dy.view()], dx.view(), adds))
        }
        _ => panic!("{} is neither PReLU nor softmax", kernel.name()),
    }
}
