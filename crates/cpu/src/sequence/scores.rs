//! Rows of attention scores: biases and masks, the softmax, and gradients.

use crate::grid::Shared;
use crate::math::exp;
use crate::simd::{Op, Simd};
use partita_space::ScoreRows;

/// Elements of a row per block.
const TOGETHER: usize = 16;

/// What is added to the scores of a head.
///
/// Pointers: all rows of the columns, and a number for each position of k; no other thread writes to them.
#[derive(Clone, Copy)]
pub(super) struct Added {
    /// The column of the head; null without a bias.
    pub(super) bias: *const f32,
    /// Elements between two rows.
    pub(super) pitch: usize,
    pub(super) rows: ScoreRows,
    /// The part of the tensor that each position is of; null where all are of one.
    pub(super) parts: *const f32,
    pub(super) mask: f32,
}

impl Added {
    /// Whether nothing is added.
    fn is_nothing(&self) -> bool {
        self.bias.is_null() && self.parts.is_null()
    }

    /// Runs of positions of k whose rows follow each other, from the first of `columns`.
    fn runs(&self, columns: usize) -> (usize, i64) {
        match self.rows {
            ScoreRows::Pairs { .. } => (columns, 1),
            ScoreRows::Relative([_, _, w]) => (w, -1),
        }
    }

    /// Calls `each` with positions of k and the elements of the column for position `i` of q.
    #[inline(always)]
    fn each(&self, i: usize, columns: usize, mut each: impl FnMut(usize, usize)) {
        let (length, step) = self.runs(columns);
        for first in (0..columns).step_by(length.max(1)) {
            let row = self.rows.row(i, first) as i64;
            for (at, j) in (first..columns.min(first + length)).enumerate() {
                each(j, (row + step * at as i64) as usize * self.pitch);
            }
        }
    }

    /// Adds to a row of scores.
    ///
    /// # Safety
    /// The pointer requirements hold, and there is position `i` of q.
    #[inline(always)]
    unsafe fn add(&self, i: usize, scores: &mut [f32]) {
        if !self.bias.is_null() {
            self.each(i, scores.len(), |j, at| {
                // SAFETY: the column has all rows.
                scores[j] += unsafe { *self.bias.add(at) };
            });
        }
        if !self.parts.is_null() {
            // SAFETY: q has the positions of k, each with a number.
            let (parts, own) = unsafe {
                let parts = std::slice::from_raw_parts(self.parts, scores.len());
                (parts, *self.parts.add(i))
            };
            for (score, part) in scores.iter_mut().zip(parts) {
                *score += if *part == own { 0.0 } else { self.mask };
            }
        }
    }

    /// Adds the gradients of a row of scores to the column of a gradient that has the rows of the bias.
    ///
    /// # Safety
    /// There is position `i` of q, and no other thread accesses the column.
    pub(super) unsafe fn scatter(&self, i: usize, slopes: &[f32], column: Shared) {
        self.each(i, slopes.len(), |j, at| {
            // SAFETY: guaranteed by the caller; the column has all rows.
            unsafe { *column.get().add(at) += slopes[j] };
        });
    }
}

/// Rows of scores, with what is added to them, become what adds up to 1; 0 where a position is not seen.
///
/// Pointers: all rows, which no other thread accesses.
pub(super) struct Softmax {
    pub(super) scores: *mut f32,
    /// Position of the first row.
    pub(super) first: usize,
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) causal: bool,
    pub(super) added: Added,
}

impl Op for Softmax {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for row in 0..self.rows {
            // SAFETY: rows of the scratch.
            let scores = unsafe {
                std::slice::from_raw_parts_mut(self.scores.add(row * self.columns), self.columns)
            };
            if !self.added.is_nothing() {
                // SAFETY: guaranteed by the caller.
                unsafe { self.added.add(self.first + row, scores) };
            }
            let seen = if self.causal {
                (self.first + row + 1).min(self.columns)
            } else {
                self.columns
            };
            let (scores, hidden) = scores.split_at_mut(seen);
            hidden.fill(0.0);
            let most = maximum(scores);
            scores.iter_mut().for_each(|x| *x = exp::<S>(*x - most));
            let factor = 1.0 / sum(scores);
            scores.iter_mut().for_each(|x| *x *= factor);
        }
    }
}

/// Gradients of shares become those of scores: `share * (slope - sum of share * slope) * scale`.
///
/// Pointers: all rows of both; no other thread accesses the slopes.
pub(super) struct Slopes {
    pub(super) shares: *const f32,
    pub(super) slopes: *mut f32,
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) scale: f32,
}

impl Op for Slopes {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for row in 0..self.rows {
            let at = row * self.columns;
            // SAFETY: rows of the scratch.
            let (shares, slopes) = unsafe {
                (
                    std::slice::from_raw_parts(self.shares.add(at), self.columns),
                    std::slice::from_raw_parts_mut(self.slopes.add(at), self.columns),
                )
            };
            let mean = product(shares, slopes);
            for (slope, share) in slopes.iter_mut().zip(shares) {
                *slope = self.scale * *share * (*slope - mean);
            }
        }
    }
}

#[inline(always)]
pub(crate) fn maximum(values: &[f32]) -> f32 {
    let larger = |most: f32, x: f32| if x > most { x } else { most };
    let (blocks, rest) = values.as_chunks::<TOGETHER>();
    let mut most = [f32::NEG_INFINITY; TOGETHER];
    for block in blocks {
        for i in 0..TOGETHER {
            most[i] = larger(most[i], block[i]);
        }
    }
    most.iter()
        .chain(rest)
        .fold(f32::NEG_INFINITY, |most, x| larger(most, *x))
}

#[inline(always)]
fn sum(values: &[f32]) -> f32 {
    let (blocks, rest) = values.as_chunks::<TOGETHER>();
    let mut sums = [0.0; TOGETHER];
    for block in blocks {
        for i in 0..TOGETHER {
            sums[i] += block[i];
        }
    }
    sums.iter().sum::<f32>() + rest.iter().sum::<f32>()
}

#[inline(always)]
fn product(a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<TOGETHER>(), b.as_chunks::<TOGETHER>());
    let mut sums = [0.0; TOGETHER];
    for (a, b) in a.iter().zip(b) {
        for i in 0..TOGETHER {
            sums[i] += a[i] * b[i];
        }
    }
    let rest = a_rest.iter().zip(b_rest).map(|(a, b)| a * b);
    sums.iter().sum::<f32>() + rest.sum::<f32>()
}
