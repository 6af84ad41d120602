//! Fused kernels.

use super::{execute, execute_with};
use crate::device::KernelError;
use crate::launch::Run;
use partita_program::Kernel;
use partita_program::fused::{Tail, tail};

/// The first part with those steps of the epilogue that are taken when a result is stored, then the other parts.
pub(super) fn execute_parts(parts: &[Kernel], run: &mut Run<'_>) -> Result<(), KernelError> {
    let Some((out, tail)) = tail(parts) else {
        return one_by_one(parts, run);
    };
    let stored = Tail {
        // One of a part of the box follows, and so do sums, which come last.
        mask: tail.mask.filter(|(dx, ..)| *dx == out),
        sums: None,
        ..tail
    };
    let is_mask_left = tail.mask.is_some() && stored.mask.is_none();
    let left = usize::from(is_mask_left) + usize::from(tail.sums.is_some());
    execute_with(&parts[0], &stored, run)?;
    one_by_one(&parts[parts.len() - left..], run)
}

fn one_by_one(parts: &[Kernel], run: &mut Run<'_>) -> Result<(), KernelError> {
    parts.iter().try_for_each(|part| {
        run.next_part();
        execute(part, run)
    })
}
