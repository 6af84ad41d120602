//! Channels taken from groups in turn.

use crate::grid::{Call, Canceled, View, ViewMut, Work};
use crate::rows::Rows;
use crate::sequence::row_kernels::{each_range, read, write};
use crate::simd::{Op, Simd};
use std::ops::Range;

/// y (+)= x with channel `g C / groups + j` as channel `j groups + g`.
///
/// Errors: [`Canceled`]. It panics if boxes differ in shape.
pub(crate) fn channel_shuffle(
    call: &mut Call,
    x: View,
    y: ViewMut,
    groups: usize,
    accumulate: bool,
) -> Result<Work, Canceled> {
    x.grid.assert_like(y.grid);
    let (x, y) = (Rows::from(x), Rows::from(y));
    // SAFETY: boxes of one shape, of which y is borrowed alone.
    unsafe {
        each_range(call, y.grid, 2, |positions| Shuffle {
            x,
            y,
            groups,
            accumulate,
            positions,
        })?;
    }
    Ok(Work {
        flops: y.grid.elements() as u64,
        bytes: x.grid.bytes() + (1 + u64::from(accumulate)) * y.grid.bytes(),
    })
}

/// Pointers: the boxes have the positions, and no other thread accesses those of y.
struct Shuffle<'a> {
    x: Rows<'a>,
    y: Rows<'a>,
    groups: usize,
    accumulate: bool,
    positions: Range<usize>,
}

impl Op for Shuffle<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for at in self.positions {
            // SAFETY: each position is in one range.
            let (x, y) = unsafe { (read(&self.x, at), write(&self.y, at)) };
            let in_group = x.len() / self.groups;
            for (j, y) in y.chunks_exact_mut(self.groups).enumerate() {
                for (g, y) in y.iter_mut().enumerate() {
                    let value = x[g * in_group + j];
                    *y = if self.accumulate { *y + value } else { value };
                }
            }
        }
    }
}
