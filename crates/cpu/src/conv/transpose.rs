//! Transposition of weights.

use crate::simd::{Op, Simd};

/// out[j, i] = from[i, j] for i < rows, j < columns; the rest of the rows of `out` is zero.
pub(crate) struct Transpose<'a> {
    pub from: &'a [f32],
    pub pitch: usize,
    pub rows: usize,
    pub columns: usize,
    pub out: &'a mut [f32],
    pub width: usize,
}

impl Op for Transpose<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let t = self;
        assert!(t.rows == 0 || t.from.len() >= (t.rows - 1) * t.pitch + t.columns);
        assert!(t.rows <= t.width && t.out.len() >= t.columns * t.width);
        let (rows, columns) = (t.rows / 4 * 4, t.columns / S::LANES * S::LANES);
        for j in (0..columns).step_by(S::LANES) {
            for i in (0..rows).step_by(4) {
                // SAFETY: rows and columns that exist, by the assertions.
                unsafe {
                    let row = |k: usize| S::load(t.from.as_ptr().add((i + k) * t.pitch + j));
                    let to = t.out.as_mut_ptr().add(j * t.width + i);
                    S::store_columns([row(0), row(1), row(2), row(3)], to, t.width);
                }
            }
        }
        for (j, out) in t.out.chunks_exact_mut(t.width).enumerate() {
            let done = if j < columns { rows } else { 0 };
            for i in done..t.rows {
                out[i] = t.from[i * t.pitch + j];
            }
            out[t.rows..].fill(0.0);
        }
    }
}
