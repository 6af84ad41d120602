//! Views of any dtype, read and written as f64.

use half::{bf16, f16};
use partita_program::{Dtype, View};
use partita_run::{Cells, Memory, RunError};

/// A view of any dtype, accessed as f64. Two of them may share elements, so that kernels may work in place.
pub(crate) enum Values<'m> {
    F32(Cells<'m, f32>),
    F64(Cells<'m, f64>),
    Bf16(Cells<'m, bf16>),
    F16(Cells<'m, f16>),
    I16(Cells<'m, i16>),
}

impl<'m> Values<'m> {
    pub(crate) fn of(memory: &'m Memory<'_>, view: &View) -> Self {
        match memory.body().buffer(view.buffer).dtype {
            Dtype::F32 => Self::F32(memory.cells(view)),
            Dtype::F64 => Self::F64(memory.cells(view)),
            Dtype::Bf16 => Self::Bf16(memory.cells(view)),
            Dtype::F16 => Self::F16(memory.cells(view)),
            Dtype::I16 => Self::I16(memory.cells(view)),
        }
    }

    pub(crate) fn extent(&self) -> [usize; 5] {
        match self {
            Self::F32(cells) => cells.extent(),
            Self::F64(cells) => cells.extent(),
            Self::Bf16(cells) => cells.extent(),
            Self::F16(cells) => cells.extent(),
            Self::I16(cells) => cells.extent(),
        }
    }

    /// Bytes of all elements.
    pub(crate) fn bytes(&self) -> u64 {
        let size = match self {
            Self::F32(_) => size_of::<f32>(),
            Self::F64(_) => size_of::<f64>(),
            Self::Bf16(_) => size_of::<bf16>(),
            Self::F16(_) => size_of::<f16>(),
            Self::I16(_) => size_of::<i16>(),
        };
        (self.extent().iter().product::<usize>() * size) as u64
    }

    pub(crate) fn get(&self, index: [usize; 5]) -> f64 {
        match self {
            Self::F32(cells) => f64::from(cells.get(index)),
            Self::F64(cells) => cells.get(index),
            Self::Bf16(cells) => f64::from(cells.get(index)),
            Self::F16(cells) => f64::from(cells.get(index)),
            Self::I16(cells) => f64::from(cells.get(index)),
        }
    }

    /// Rounds to the dtype; integers saturate.
    pub(crate) fn set(&self, index: [usize; 5], value: f64) {
        match self {
            Self::F32(cells) => cells.set(index, value as f32),
            Self::F64(cells) => cells.set(index, value),
            Self::Bf16(cells) => cells.set(index, bf16::from_f64(value)),
            Self::F16(cells) => cells.set(index, f16::from_f64(value)),
            Self::I16(cells) => cells.set(index, value as i16),
        }
    }

    /// Accumulates into the element, or replaces it.
    pub(crate) fn put(&self, index: [usize; 5], value: f64, accumulate: bool) {
        let old = if accumulate { self.get(index) } else { 0.0 };
        self.set(index, old + value);
    }
}

/// The element (0, 0, 0, row, column) of a table of sums.
pub(crate) fn cell(row: usize, column: usize) -> [usize; 5] {
    [0, 0, 0, row, column]
}

/// The element (0, 0, 0, 0, c) of a vector.
pub(crate) fn entry(c: usize) -> [usize; 5] {
    [0, 0, 0, 0, c]
}

/// Visits every (n, d, h, w) in memory order, and returns the number of visits. Calls `progress` before
/// each row of w.
pub(crate) fn each_position(
    extent: [usize; 5],
    progress: &mut dyn FnMut() -> bool,
    mut visit: impl FnMut([usize; 4]),
) -> Result<u64, RunError> {
    let mut visits = 0;
    for n in 0..extent[0] {
        for d in 0..extent[1] {
            for h in 0..extent[2] {
                if !progress() {
                    return Err(RunError::Cancelled);
                }
                for w in 0..extent[3] {
                    visit([n, d, h, w]);
                    visits += 1;
                }
            }
        }
    }
    Ok(visits)
}

/// Visits every element in memory order, and returns the number of visits.
pub(crate) fn each_element(
    extent: [usize; 5],
    progress: &mut dyn FnMut() -> bool,
    mut visit: impl FnMut([usize; 5]),
) -> Result<u64, RunError> {
    let mut visits = 0;
    each_position(extent, progress, |[n, d, h, w]| {
        for c in 0..extent[4] {
            visit([n, d, h, w, c]);
            visits += 1;
        }
    })?;
    Ok(visits)
}
