//! Dropout; the mask is recomputed from the element's key and never stored.

use super::Run;
use crate::grid::{Canceled, Grid, Shared};
use crate::simd::{Level, Op, Simd};
use crate::team::ELEMENT;
use partita_program::random::Draws;
use partita_program::{DropoutMask, fields};
use partita_run::{Inputs, RunError};
use partita_space::{Coord, Mesh};
use std::ops::Range;

/// What a draw costs, next to an element that is read and written.
const COST: u64 = 4 * ELEMENT;
/// Elements whose draws are taken together.
const BLOCK: usize = 64;

pub(super) fn execute(
    of: fields::Dropout<'_>,
    mesh: &Mesh,
    coord: &Coord,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    let (x, y, accumulate) = (of.x, of.y, *of.accumulate);
    assert_eq!(x.extent, y.extent, "{x} and {y} have one shape");
    let mask = Mask {
        inputs: run.inputs,
        rate: *of.rate,
        of: *of.mask,
        operation: *of.operation,
        shape: of.distribution.shape,
        offset: of.distribution.corner(of.halo_low, mesh, coord),
    };
    let mut target = run.result(y, accumulate);
    // In place there is one block, from which both are taken.
    let source = (x != y).then(|| run.input(x));
    if source.is_none() {
        run.count(target.bytes());
    }
    let y = target.view();
    let y_grid = y.grid;
    let to = Shared(y.data.as_mut_ptr());
    let (from, x_grid) = match &source {
        Some(x) => (Shared(x.view().data.as_ptr().cast_mut()), x.view().grid),
        None => (to, y_grid),
    };
    let job = DropoutRows {
        mask,
        from,
        x_grid,
        to,
        y_grid,
        accumulate,
    };
    let cost = COST * (y_grid.extent[2] * y_grid.channels) as u64;
    let level = run.team.level();
    run.team
        .ranges(run.progress, y_grid.rows(), cost, &|rows| {
            // SAFETY: boxes of one shape, of which y is borrowed alone; each row is in one range, and the
            // team has the level.
            unsafe { job.run(level, rows) };
        })
        .map_err(|Canceled| RunError::Cancelled)?;
    Ok(y_grid.elements() as u64)
}

/// Which elements are dropped.
struct Mask<'a> {
    inputs: &'a Inputs,
    rate: f64,
    of: DropoutMask,
    operation: u32,
    /// Of the whole tensor.
    shape: [usize; 5],
    offset: [usize; 5],
}

impl Mask<'_> {
    fn draws(&self, n: usize) -> Draws {
        let n = self.offset[0] + n;
        let sample = self.inputs.samples.get(n);
        let sample = *sample.unwrap_or_else(|| panic!("the step lists no sample {n}"));
        let (seed, epoch) = (self.inputs.seed, self.inputs.epoch);
        Draws::new(seed, epoch, sample as u64, self.operation)
    }

    /// Number of an element of the view within its sample.
    fn element(&self, at: [usize; 4]) -> u64 {
        let first = match self.of {
            DropoutMask::Element => 0,
            DropoutMask::Channel => 3,
            DropoutMask::Sample => return 0,
        };
        (first..4).fold(0, |element, dim| {
            element * self.shape[dim + 1] + self.offset[dim + 1] + at[dim]
        }) as u64
    }
}

/// Pointers: both boxes; no other thread accesses what is written.
struct DropoutRows<'a> {
    mask: Mask<'a>,
    from: Shared,
    x_grid: &'a Grid,
    to: Shared,
    y_grid: &'a Grid,
    accumulate: bool,
}

impl DropoutRows<'_> {
    /// # Safety
    /// The processor has the level, the pointer requirements of [`DropoutRows`] hold, and no other thread accesses
    /// these rows of y.
    unsafe fn run(&self, level: Level, rows: Range<usize>) {
        let (grid, mask) = (self.y_grid, &self.mask);
        let (width, c) = (grid.extent[2], grid.channels);
        let joined =
            mask.of.is_element() && [self.x_grid.pitch[3], grid.pitch[3], mask.shape[4]] == [c; 3];
        let (count, length) = if joined { (1, width * c) } else { (width, c) };
        for row in rows {
            let (h, rest) = (row % grid.extent[1], row / grid.extent[1]);
            let (d, n) = (rest % grid.extent[0], rest / grid.extent[0]);
            let draws = mask.draws(n);
            for w in 0..count {
                let x = self.x_grid.row_offset(row) + w * self.x_grid.pitch[3];
                let y = grid.row_offset(row) + w * grid.pitch[3];
                // SAFETY: guaranteed by the caller; both are stretches of boxes of one shape, and no other row
                // has them.
                unsafe {
                    level.run(Stretch {
                        draws,
                        rate: mask.rate,
                        first: mask.element([d, h, w, 0]),
                        step: u64::from(mask.of != DropoutMask::Sample),
                        from: self.from.get().add(x),
                        to: self.to.get().add(y),
                        length,
                        accumulate: self.accumulate,
                    });
                }
            }
        }
    }
}

/// Elements that lie, and are numbered, one after the other.
///
/// Pointers: `length` elements each; no other thread accesses those of `to`.
struct Stretch {
    draws: Draws,
    rate: f64,
    /// Number of the first element.
    first: u64,
    /// From one element to the next: 1, or 0.
    step: u64,
    /// May be `to`.
    from: *const f32,
    to: *mut f32,
    length: usize,
    accumulate: bool,
}

impl Op for Stretch {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let scale = (1.0 / (1.0 - self.rate)) as f32;
        // Draws are whole multiples of 2^-53, so that integers compare as the fractions do.
        let kept_from = (self.rate * (1u64 << 53) as f64).ceil() as i64;
        let mut bits = [0u32; BLOCK];
        for start in (0..self.length).step_by(BLOCK) {
            let first = self.first + start as u64 * self.step;
            for (i, bits) in bits.iter_mut().enumerate() {
                // No branch on what is random; signed, as vectors compare.
                let draw = self.draws.whole(first + i as u64 * self.step) as i64;
                *bits = u32::from(draw >= kept_from).wrapping_neg();
            }
            let count = (self.length - start).min(BLOCK);
            // SAFETY: inside of the stretches.
            unsafe {
                let (from, to) = (self.from.add(start), self.to.add(start));
                if count == BLOCK {
                    // By way of arrays, as the stretches may be the same.
                    let mut y = to.cast::<[f32; BLOCK]>().read();
                    keep(
                        &from.cast::<[f32; BLOCK]>().read(),
                        &mut y,
                        &bits,
                        scale,
                        self.accumulate,
                    );
                    to.cast::<[f32; BLOCK]>().write(y);
                } else {
                    let (mut x, mut y) = ([0.0; BLOCK], [0.0; BLOCK]);
                    x.as_mut_ptr().copy_from_nonoverlapping(from, count);
                    y.as_mut_ptr().copy_from_nonoverlapping(to, count);
                    keep(&x, &mut y, &bits, scale, self.accumulate);
                    to.copy_from_nonoverlapping(y.as_ptr(), count);
                }
            }
        }
    }
}

/// y (+)= scale * x where the bits are set.
#[inline(always)]
fn keep(x: &[f32; BLOCK], y: &mut [f32; BLOCK], bits: &[u32; BLOCK], scale: f32, accumulate: bool) {
    for i in 0..BLOCK {
        let value = f32::from_bits((scale * x[i]).to_bits() & bits[i]);
        y[i] = if accumulate { y[i] + value } else { value };
    }
}
