//! Fused kernels: a kernel with its epilogue.

use super::native::Native;
use super::tail::Tail;
use super::{Run, convolution, linear, norm, pointwise, pool, update};
use partita_program::{Buffer, Kernel, View};
use partita_run::{KernelTally, RunError};

/// Whether a kernel can end with a tail, given its output and the buffers.
type Suits = fn(&Tail<'_>, &View, &[Buffer]) -> bool;

/// The view that a kernel computes, if later parts may go on with it, and which of them.
fn output(kernel: &Kernel) -> Option<(&View, Suits)> {
    if let Kernel::ConvolutionForward { y: out, .. }
    | Kernel::ConvolutionBackwardData { dx: out, .. } = kernel
    {
        Some((out, |tail, out, _| tail.suits_product(out)))
    } else if let Kernel::LinearForward { y: out, .. }
    | Kernel::LinearBackwardData { dx: out, .. } = kernel
    {
        Some((out, |tail, out, buffers| tail.suits_rows(out, buffers)))
    } else if let Kernel::BatchNormForward { y, .. } | Kernel::BatchNormInference { y, .. } = kernel
    {
        Some((y, |tail, _, _| tail.suits_normalization()))
    } else if let Kernel::Add { y, .. } = kernel {
        Some((y, |tail, _, _| tail.suits_addition()))
    } else if let Kernel::PoolForward { y, .. } = kernel {
        Some((y, |tail, _, _| tail.suits_pooling()))
    } else if let Kernel::PoolBackward { dx, .. } = kernel {
        Some((dx, |tail, _, _| tail.suits_pooling_backward()))
    } else {
        None
    }
}

/// The epilogue formed by the parts after the first one, whether or not there is a kernel for it.
pub(super) fn tail(parts: &[Kernel]) -> Option<(&View, Tail<'_>)> {
    let (first, rest) = parts.split_first()?;
    let (out, _) = output(first)?;
    Some((out, Tail::of(rest, out)?))
}

/// The gradient of the bias that goes with that of the weights.
pub(super) fn bias_gradient(parts: &[Kernel]) -> Option<&View> {
    let (Kernel::ConvolutionBackwardWeight { dy, accumulate, .. }
    | Kernel::LinearBackwardWeight { dy, accumulate, .. }) = parts.first()?
    else {
        return None;
    };
    let [
        Kernel::BiasBackward {
            dy: of,
            db,
            accumulate: adds,
        },
    ] = &parts[1..]
    else {
        return None;
    };
    (of == dy && adds == accumulate).then_some(db)
}

/// Whether there is one kernel for these parts.
pub(super) fn is_offered(parts: &[Kernel], buffers: &[Buffer]) -> bool {
    let ends = parts.split_first().and_then(|(first, rest)| {
        let (out, suits) = output(first)?;
        Some(suits(&Tail::of(rest, out)?, out, buffers))
    });
    ends.unwrap_or(false) || bias_gradient(parts).is_some() || update::is_one_rule(parts)
}

pub(super) fn execute(parts: &[Kernel], run: &mut Run<'_, '_>) -> Result<KernelTally, RunError> {
    if update::is_one_rule(parts) {
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
