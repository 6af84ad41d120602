//! Fused kernels: a kernel with its epilogue.

use super::native::Native;
use super::{Run, convolution, linear, norm, pointwise, pool, update};
use partita_program::fused::{Tail, bias_gradient, is_one_average, is_one_rule, tail};
use partita_program::{Family, Kernel};
use partita_run::RunError;

pub(super) fn execute(parts: &[Kernel], run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    if is_one_rule(parts) {
        return update::all(parts, run);
    }
    if is_one_average(parts) {
        return update::averages(parts, run);
    }
    let first = &parts[0];
    match first.family() {
        Family::Convolution => execute_convolution::<f32>(parts, run),
        Family::Linear => match bias_gradient(parts) {
            Some(db) => linear::backward_weight(first, Some(db), run),
            None => linear::execute(first, &offered_tail(parts), run),
        },
        Family::BatchNorm => norm::execute(first, &offered_tail(parts), run),
        Family::Pointwise => pointwise::sum(first, &offered_tail(parts), run),
        Family::Pool => pool::execute(first, &offered_tail(parts), run),
        other => panic!("the menu offers no fused kernels of {other:?}"),
    }
}

fn offered_tail(parts: &[Kernel]) -> Tail<'_> {
    if let [_] = parts {
        return Tail::default();
    }
    let (_, tail) = tail(parts).unwrap_or_else(|| panic!("the menu offers these parts as one"));
    tail
}

/// A convolution with its epilogue, or the gradients of its weights and bias.
pub(super) fn execute_convolution<E: Native>(
    parts: &[Kernel],
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    match bias_gradient(parts) {
        Some(db) => convolution::backward_weight::<E>(&parts[0], Some(db), run),
        None => convolution::execute::<E>(&parts[0], &offered_tail(parts), run),
    }
}
