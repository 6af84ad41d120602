//! Resampling of programs on the kernels of this crate.

use super::{Run, touched};
use crate::image::resample::{resample, resample_backward};
use partita_program::Kernel;
use partita_run::{KernelTally, RunError};

pub(super) fn execute(kernel: &Kernel, run: &mut Run<'_, '_>) -> Result<KernelTally, RunError> {
    match kernel {
        Kernel::ResampleForward { x, y, maps } => {
            let (x, mut y) = (run.input(x), run.output(y));
            let work = run.compute(|call| resample(call, x.view(), y.view(), maps))?;
            Ok(KernelTally {
                flops: work.flops,
                bytes: x.bytes() + y.bytes(),
            })
        }
        Kernel::ResampleBackward {
            dy,
            dx,
            maps,
            accumulate,
        } => {
            let (dy, mut dx) = (run.input(dy), run.output(dx));
            let adds = *accumulate;
            let work =
                run.compute(|call| resample_backward(call, dy.view(), dx.view(), maps, adds))?;
            Ok(KernelTally {
                flops: work.flops,
                bytes: dy.bytes() + touched(dx.bytes(), adds),
            })
        }
        other => panic!("{} is no resampling", other.name()),
    }
}
