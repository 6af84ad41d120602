//! Products of matrices at one point, in tiles of registers.

use crate::conv::walk::P_MAX;
use crate::simd::{Level, Op, Simd};

/// Rows that a product may read and write beyond its own.
pub(crate) const ROWS_BEYOND: usize = P_MAX;

/// y[r, v] (+)= sum over k of x[r, k] * w[k, v] for V vectors v.
///
/// Pointers: rows of x and y, of both up to [`ROWS_BEYOND`] more, and `depth` rows of w; no other
/// thread accesses those of y.
#[derive(Clone, Copy)]
pub(crate) struct Product {
    pub x: *const f32,
    /// Elements between neighboring rows, or columns if `OUTER`, of x; of the others 1.
    pub x_pitch: usize,
    pub w: *const f32,
    pub w_pitch: usize,
    pub depth: usize,
    pub y: *mut f32,
    pub y_pitch: usize,
    pub rows: usize,
    /// Add to the old contents.
    pub load: bool,
}

struct Tiles<const V: usize, const P: usize, const OUTER: bool>(Product);

impl<const V: usize, const P: usize, const OUTER: bool> Op for Tiles<V, P, OUTER> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        if const { V * P > S::ACCUMULATORS } {
            unreachable!("tile larger than the registers of its level");
        }
        let t = self.0;
        let (x_row, x_column) = if OUTER {
            (1, t.x_pitch)
        } else {
            (t.x_pitch, 1)
        };
        for r in (0..t.rows).step_by(P) {
            // SAFETY: rows of x and y, and rows of w, as the caller says.
            unsafe {
                let (mut x, mut w) = (t.x.add(r * x_row), t.w);
                let y = t.y.add(r * t.y_pitch);
                let mut acc = [[S::splat(0.0); V]; P];
                for _ in 0..t.depth / S::UNROLL {
                    for u in 0..S::UNROLL {
                        step::<S, V, P>(x.add(u * x_column), x_row, w, &mut acc);
                        w = w.add(t.w_pitch);
                    }
                    x = x.add(S::UNROLL * x_column);
                }
                for _ in 0..t.depth % S::UNROLL {
                    step::<S, V, P>(x, x_row, w, &mut acc);
                    w = w.wrapping_add(t.w_pitch);
                    x = x.wrapping_add(x_column);
                }
                if t.load {
                    // Sums of sums: the error grows less than along one chain.
                    for (p, row) in acc.iter_mut().enumerate() {
                        for (v, a) in row.iter_mut().enumerate() {
                            *a = S::add(*a, S::load(y.add(p * t.y_pitch + v * S::LANES)));
                        }
                    }
                }
                for (p, row) in acc.iter().enumerate() {
                    for (v, a) in row.iter().enumerate() {
                        S::store(y.add(p * t.y_pitch + v * S::LANES), *a);
                    }
                }
            }
        }
    }
}

/// # Safety
/// The processor has the features of `S`; P rows of x and V vectors of w can be read.
#[inline(always)]
unsafe fn step<S: Simd, const V: usize, const P: usize>(
    x: *const f32,
    x_row: usize,
    w: *const f32,
    acc: &mut [[S::V; V]; P],
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let wv: [S::V; V] = std::array::from_fn(|v| S::load(w.add(v * S::LANES)));
        for (p, row) in acc.iter_mut().enumerate() {
            let b = S::splat(*x.add(p * x_row));
            for v in 0..V {
                row[v] = S::fma(b, wv[v], row[v]);
            }
        }
    }
}

impl Product {
    /// For `v` vectors; x is transposed if `OUTER`.
    ///
    /// # Safety
    /// The processor has the level, and the pointer requirements of [`Product`] hold.
    pub(crate) unsafe fn run<const OUTER: bool>(self, level: Level, v: usize) {
        let p_max = (level.accumulators() / v).min(P_MAX);
        let p = self.rows.div_ceil(self.rows.div_ceil(p_max).max(1));
        macro_rules! pick {
            ($v:literal: $($p:literal)*) => {{
                $(if p <= $p {
                    // SAFETY: guaranteed by the caller.
                    return unsafe { level.run(Tiles::<$v, $p, OUTER>(self)) };
                })*
            }};
        }
        match v {
            1 => pick!(1: 2 4 6 8 10 12),
            2 => match level {
                Level::Portable | Level::Avx2 => pick!(2: 1 2 3 4 5 6),
                Level::Neon | Level::Avx512 | Level::Avx512Bf16 => pick!(2: 2 4 6 8 10 12),
            },
            3 => pick!(3: 2 4 6 8),
            4 => pick!(4: 1 2 3 4 5 6),
            _ => {}
        }
        unreachable!("no tile of {v} vectors and {p} rows");
    }
}
