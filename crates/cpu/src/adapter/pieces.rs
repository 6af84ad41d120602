//! Kernels in micro-batches.

use super::method::Method;
use super::{Run, fused, widened};
use partita_program::descriptor::{Cost, Pass};
use partita_program::{Kernel, KernelShape};
use partita_run::{KernelTally, RunError};

/// Computes a kernel micro-batch by micro-batch; none if these do not cover it.
pub(super) fn execute_pieces(
    kernel: &Kernel,
    (dim, pieces): (usize, &[(usize, usize, Method)]),
    run: &mut Run<'_, '_>,
) -> Result<Option<KernelTally>, RunError> {
    let buffers = &run.memory.body().buffers;
    let shape = KernelShape { kernel, buffers };
    let covered: usize = pieces.iter().map(|&(_, extent, _)| extent).sum();
    if shape
        .cut_extents()
        .is_none_or(|extents| extents[dim] != covered)
    {
        return Ok(None);
    }
    let mut flops = 0;
    for &(start, extent, method) in pieces {
        let Some(piece) = shape.piece(dim, start, extent) else {
            return Ok(None);
        };
        run.method = method;
        flops += widened(&piece, run, |piece, run| fused::execute(piece.parts(), run))?.flops;
    }
    // What several micro-batches read, weights and halos, counts once, as do outputs that contribute to the inputs
    // of several spatial tiles.
    let whole = KernelTally::expected(kernel, buffers);
    let cost = kernel.parts()[0].descriptor().cost;
    let is_data = matches!(
        cost,
        Cost::Convolution {
            pass: Pass::BackwardData,
            ..
        }
    );
    let overlaps = is_data && dim > 0;
    Ok(Some(KernelTally {
        flops: if overlaps { whole.flops } else { flops },
        bytes: whole.bytes,
    }))
}
