//! Tiles of the weight gradient on pairs of bf16.

use crate::simd::{Level, PairOp, Pairs};

/// Pointers: for each pair of positions a row of words of x, zero beyond `rows` up to the next tile, and V vectors
/// of words of dy; `rows` rows of dw, of the last vector `lanes` lanes, which no other thread accesses.
#[derive(Clone, Copy)]
pub(super) struct PairTileArgs {
    pub x: *const f32,
    pub x_pitch: usize,
    pub dy: *const f32,
    pub pairs: usize,
    pub dw: *mut f32,
    pub dw_pitch: usize,
    pub rows: usize,
    pub lanes: usize,
    /// Add to dw.
    pub load: bool,
}

/// `Q` rows, of which some may not exist, of `V` vectors.
pub(super) struct PairTile<const V: usize, const Q: usize>(PairTileArgs);

impl PairTile<1, 1> {
    /// Runs the smallest tile of at least `t.rows` rows.
    ///
    /// # Safety
    /// The processor has the level, which has pairs, and the pointer requirements of [`PairTileArgs`] hold.
    pub(super) unsafe fn dispatch(level: Level, v: usize, t: PairTileArgs) {
        macro_rules! pick {
            ($v:literal: $($q:literal)*) => {{
                $(if t.rows <= $q {
                    // SAFETY: guaranteed by the caller.
                    return unsafe { level.run_pairs(PairTile::<$v, $q>(t)) };
                })*
            }};
        }
        match v {
            1 => pick!(1: 1 2 4 6 8 10 12),
            2 => pick!(2: 1 2 4 6 8 9 10 11 12),
            _ => {}
        }
        unreachable!("no tile of {v} vectors and {} rows", t.rows);
    }
}

impl<const V: usize, const Q: usize> PairOp for PairTile<V, Q> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Pairs>(self) {
        if const { V * Q > S::ACCUMULATORS } {
            unreachable!("tile larger than the registers of its level");
        }
        let t = self.0;
        // SAFETY: rows and lanes are inside of what the caller answers for.
        unsafe {
            let mut acc = [[S::splat(0.0); V]; Q];
            let lanes = |v: usize| if v + 1 == V { t.lanes } else { S::LANES };
            if t.load {
                // With as many turns as rows, the sums would not stay in registers.
                for q in 0..Q {
                    if q < t.rows {
                        for v in 0..V {
                            let from = t.dw.add(q * t.dw_pitch + v * S::LANES);
                            acc[q][v] = S::load_part(from, lanes(v));
                        }
                    }
                }
            }
            let (mut x, mut dy) = (t.x, t.dy);
            for _ in 0..t.pairs {
                let g: [S::V; V] = std::array::from_fn(|v| S::load(dy.add(v * S::LANES)));
                for q in 0..Q {
                    let b = S::splat(*x.add(q));
                    for v in 0..V {
                        acc[q][v] = S::dot2(acc[q][v], b, g[v]);
                    }
                }
                // The last step may leave the room.
                x = x.wrapping_add(t.x_pitch);
                dy = dy.wrapping_add(V * S::LANES);
            }
            for q in 0..Q {
                if q < t.rows {
                    for v in 0..V {
                        let to = t.dw.add(q * t.dw_pitch + v * S::LANES);
                        S::store_part(to, lanes(v), acc[q][v]);
                    }
                }
            }
        }
    }
}
