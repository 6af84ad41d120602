//! Poolings of programs on the kernels of this crate.

use super::Run;
use super::convolution::window;
use crate::pool::backward::pool_backward;
use crate::pool::forward::pool_forward;
use crate::pool::{PoolMask, Pooling};
use partita_program::fused::Tail;
use partita_program::{Kernel, PoolKind, Taps};
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
    match kernel {
        Kernel::PoolForward {
            kind,
            x,
            y,
            taps,
            shift,
        } => {
            let pooling = pooling(*kind, taps, shift);
            let slope = tail.slope.map(|slope| slope as f32);
            let (x, mut y) = (run.input(x), run.output(y));
            run.flops(|call| pool_forward(call, x.view(), y.view(), &pooling, slope))
        }
        Kernel::PoolBackward {
            kind,
            x,
            dy,
            dx,
            taps,
            shift,
            accumulate,
        } => {
            let pooling = pooling(*kind, taps, shift);
            let x = x.as_ref().map(|x| run.input(x));
            let mask = tail.mask.map(|(part, y, slope)| {
                let at = [1, 2, 3].map(|dim: usize| part.start[dim] - dx.start[dim]);
                (run.input(y), slope as f32, at)
            });
            let (dy, mut dx) = (run.input(dy), run.result(dx, *accumulate));
            run.flops(|call| {
                let x = x.as_ref().map(|x| x.view());
                let mask = mask.as_ref().map(|(y, slope, at)| PoolMask {
                    y: y.view(),
                    slope: *slope,
                    at: *at,
                });
                pool_backward(call, x, dy.view(), dx.view(), &pooling, *accumulate, mask)
            })
        }
        other => panic!("{} is no pooling", other.name()),
    }
}
