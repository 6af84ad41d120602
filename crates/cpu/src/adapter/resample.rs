//! Resampling of programs on the kernels of this crate.

use super::Run;
use crate::image::resample::{resample, resample_backward};
use partita_program::Kernel;
use partita_run::RunError;

pub(super) fn execute(kernel: &Kernel, run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    match kernel {
        Kernel::ResampleForward { x, y, maps } => {
            let (x, mut y) = (run.input(x), run.output(y));
            run.flops(|call| resample(call, x.view(), y.view(), maps))
        }
        Kernel::ResampleBackward {
            dy,
            dx,
            maps,
            accumulate,
        } => {
            let (dy, mut dx) = (run.input(dy), run.result(dx, *accumulate));
            run.flops(|call| resample_backward(call, dy.view(), dx.view(), maps, *accumulate))
        }
        other => panic!("{} is no resampling", other.name()),
    }
}
