//! Fused kernels: a kernel with its epilogue.

use super::native::Native;
use super::{Run, convolution, linear, norm, pointwise, pool, update};
use partita_program::Kernel;
use partita_program::fused::{Tail, bias_gradient, is_one_rule, tail};
use partita_run::{KernelTally, RunError};

pub(super) fn execute(parts: &[Kernel], run: &mut Run<'_, '_>) -> Result<KernelTally, RunError> {
    if is_one_rule(parts) {
        return update::all(parts, run);
    }
    match &parts[0] {
        Kernel::ConvolutionForward { .. }
        | Kernel::ConvolutionBackwardData { .. }
        | Kernel::ConvolutionBackwardWeight { .. } => execute_convolution::<f32>(parts, run),
        Kernel::LinearForward { .. } | Kernel::LinearBackwardData { .. } => {
            linear::execute(&parts[0], &offered_tail(parts), run)
        }
        Kernel::LinearBackwardWeight { .. } => {
            linear::backward_weight(&parts[0], bias_gradient(parts), run)
        }
        Kernel::BatchNormForward { .. } | Kernel::BatchNormInference { .. } => {
            norm::execute(&parts[0], &offered_tail(parts), run)
        }
        Kernel::Add { a, b, y } => pointwise::sum([a, b, y], &offered_tail(parts), run),
        Kernel::PoolForward { .. } | Kernel::PoolBackward { .. } => {
            pool::execute(&parts[0], &offered_tail(parts), run)
        }
        other => panic!("the menu offers no fused {}", other.name()),
    }
}

fn offered_tail(parts: &[Kernel]) -> Tail<'_> {
    let (_, tail) = tail(parts).unwrap_or_else(|| panic!("the menu offers these parts as one"));
    tail
}

/// A convolution with its epilogue, or the gradients of its weights and bias.
pub(super) fn execute_convolution<E: Native>(
    parts: &[Kernel],
    run: &mut Run<'_, '_>,
) -> Result<KernelTally, RunError> {
    match bias_gradient(parts) {
        Some(db) => convolution::backward_weight::<E>(&parts[0], Some(db), run),
        None => convolution::execute::<E>(&parts[0], &offered_tail(parts), run),
    }
}
