//! Learned position embeddings: a row of a table for each position.

use super::row_kernels::{each_range, read, write};
use crate::grid::{Call, Canceled, Shared, View, ViewMut, Work};
use crate::rows::Rows;
use crate::simd::{Op, Simd};
use crate::team::ELEMENT;
use std::ops::Range;

/// Numbers of the positions of a box in its tensor, in (D, H, W) order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PositionNumbers {
    /// Index of the first position of the box.
    pub corner: [usize; 3],
    /// Extents of the whole tensor.
    pub whole: [usize; 3],
}

impl PositionNumbers {
    /// The number of a position, by its index in the (N, D, H, W) order of the box.
    #[inline(always)]
    fn of(&self, position: usize, [d, h, w]: [usize; 3]) -> usize {
        let index = [position / (h * w) % d, position / w % h, position % w];
        (0..3).fold(0, |number, dim| {
            number * self.whole[dim] + self.corner[dim] + index[dim]
        })
    }
}

/// y = x + the row of w (rows, C) of each position that has one. Counts one flop an element.
pub fn add_position_rows(
    call: &mut Call,
    numbers: PositionNumbers,
    x: View,
    w: &[f32],
    y: ViewMut,
) -> Result<Work, Canceled> {
    x.grid.assert_like(y.grid);
    let (x, y) = (Rows::from(x), Rows::from(y));
    // SAFETY: boxes of one shape, of which y is borrowed alone.
    unsafe {
        each_range(call, y.grid, 1, |positions| AddRows {
            numbers,
            x,
            w,
            y,
            positions,
        })?;
    }
    Ok(Work {
        flops: y.grid.elements() as u64,
        bytes: x.grid.bytes() + y.grid.bytes(),
    })
}

/// Pointers: the boxes have the positions, and no other thread accesses those of y.
struct AddRows<'a> {
    numbers: PositionNumbers,
    x: Rows<'a>,
    w: &'a [f32],
    y: Rows<'a>,
    positions: Range<usize>,
}

impl Op for AddRows<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let channels = self.y.grid.channels;
        for at in self.positions {
            let row = self.numbers.of(at, self.y.grid.extent);
            // SAFETY: each position is in one range.
            let (x, y) = unsafe { (read(&self.x, at), write(&self.y, at)) };
            match self.w.get(row * channels..(row + 1) * channels) {
                Some(row) => {
                    for ((y, x), value) in y.iter_mut().zip(x).zip(row) {
                        *y = *x + *value;
                    }
                }
                None => y.copy_from_slice(x),
            }
        }
    }
}

/// dw (rows, C) (+)= the sums of dy over the samples at the position of each row. Counts one flop an element.
pub fn position_rows_backward(
    call: &mut Call,
    numbers: PositionNumbers,
    dy: View,
    dw: &mut [f32],
    accumulate: bool,
) -> Result<Work, Canceled> {
    let dy = Rows::from(dy);
    let channels = dy.grid.channels;
    let rows = dw.len() / channels;
    let dw = Shared(dw.as_mut_ptr());
    let width = channels.div_ceil(call.team.threads()).max(1);
    let cost = ELEMENT * (dy.grid.positions() * width) as u64;
    let stripes = channels.div_ceil(width);
    call.team
        .units(call.progress, stripes, cost, &|stripe, _| {
            let (first, last) = (stripe * width, ((stripe + 1) * width).min(channels));
            // SAFETY: each stripe of channels is one unit's.
            let row = |row: usize| unsafe {
                let start = dw.get().add(row * channels + first);
                std::slice::from_raw_parts_mut(start, last - first)
            };
            if !accumulate {
                (0..rows).for_each(|at| row(at).fill(0.0));
            }
            for at in 0..dy.grid.positions() {
                let number = numbers.of(at, dy.grid.extent);
                if number >= rows {
                    continue;
                }
                // SAFETY: a position of the box, which is only read.
                let dy = unsafe { &read(&dy, at)[first..last] };
                let target = row(number);
                target.iter_mut().zip(dy).for_each(|(dw, dy)| *dw += *dy);
            }
        })?;
    Ok(Work {
        flops: dy.grid.elements() as u64,
        bytes: dy.grid.bytes(),
    })
}
