//! Poolings of programs on the kernels of this crate.

use super::Run;
use super::convolution::window;
use crate::pool::backward::pool_backward;
use crate::pool::forward::pool_forward;
use crate::pool::{PoolMask, Pooling};
use partita_program::fused::Tail;
use partita_program::{Fields, Kernel, PoolKind, Taps};
use partita_run::RunError;

/// In programs the shift counts from the outputs to the input, here the other way.
fn pooling(kind: PoolKind, taps: &Taps, shift: &[i64; 3]) -> Pooling {
    Pooling {
        kind,
        window: window(taps),
        shift: shift.map(|shift| -shift),
    }
}

pub(super) fn execute(
    kernel: &Kernel,
    tail: &Tail<'_>,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    match kernel.fields() {
        Fields::PoolForward(of) => {
            let pooling = pooling(*of.kind, of.taps, of.shift);
            let slope = tail.slope.map(|slope| slope as f32);
            let (x, mut y) = (run.input(of.x), run.output(of.y));
            run.flops(|call| pool_forward(call, x.view(), y.view(), &pooling, slope))
        }
        Fields::PoolBackward(of) => {
            let pooling = pooling(*of.kind, of.taps, of.shift);
            let x = of.x.map(|x| run.input(&x));
            let mask = tail.mask.map(|(part, y, slope)| {
                let at = [1, 2, 3].map(|dim: usize| part.start[dim] - of.dx.start[dim]);
                (run.input(y), slope as f32, at)
            });
            let (dy, adds) = (run.input(of.dy), *of.accumulate);
            let mut dx = run.result(of.dx, adds);
            run.flops(|call| {
                let x = x.as_ref().map(|x| x.view());
                let mask = mask.as_ref().map(|(y, slope, at)| PoolMask {
                    y: y.view(),
                    slope: *slope,
                    at: *at,
                });
                pool_backward(call, x, dy.view(), dx.view(), &pooling, adds, mask)
            })
        }
        _ => panic!("{} is no pooling", kernel.name()),
    }
}
