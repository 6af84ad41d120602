//! Tiles of the direct convolution on pairs of bf16.
//!
//! As in [`crate::conv::tile`], with words of two input channels in place of elements of one.

use crate::conv::tile::Stretch;
use crate::conv::values::Values;
use crate::conv::walk::Offsets;
use crate::simd::{Level, PairOp, Pairs};
use half::bf16;

/// Pointers: the stretches of x at each position, in words; as many rows of w of whole vectors; whole
/// vectors of `sums` for each position, which no other thread accesses.
#[derive(Clone, Copy)]
pub(super) struct TileArgs<'a> {
    pub x: *const bf16,
    pub xo: &'a Offsets,
    pub w: *const f32,
    pub w_pitch: usize,
    /// Their `x` in elements, the rest in words.
    pub stretches: &'a [Stretch],
    /// Add to the sums.
    pub load: bool,
    pub sums: *mut f32,
    pub sums_pitch: usize,
    /// Positions; the tile repeats the last of them.
    pub n: usize,
    /// Outputs that will be stored next.
    pub next: (*const bf16, &'a Offsets),
}

/// Sums to outputs. Pointers: rows of sums, `pitch` elements apart, of whole vectors; `width` channels of y at each
/// offset, which no other thread accesses, and of the bias.
pub(super) struct Outputs<'a> {
    pub sums: *const f32,
    pub pitch: usize,
    pub y: *mut bf16,
    pub yo: &'a [usize],
    /// Add to the old contents.
    pub accumulate: bool,
    pub bias: Option<*const f32>,
    /// Factor of the negative outputs.
    pub slope: Option<f32>,
    pub width: usize,
}

struct Tile<'a, const V: usize, const P: usize>(TileArgs<'a>);

impl<const V: usize, const P: usize> PairOp for Tile<'_, V, P> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Pairs>(self) {
        if const { V * P > S::ACCUMULATORS } {
            unreachable!("tile larger than the registers of its level");
        }
        let t = self.0;
        // SAFETY: offsets, widths and rows are inside of what the caller answers for.
        unsafe {
            let mut acc = [[S::splat(0.0); V]; P];
            let sums = |p: usize| t.sums.add(p.min(t.n - 1) * t.sums_pitch);
            if t.load {
                for (p, row) in acc.iter_mut().enumerate() {
                    for (v, a) in row.iter_mut().enumerate() {
                        *a = S::load(sums(p).add(v * S::LANES));
                    }
                }
            }
            for p in 0..P {
                S::prefetch(t.next.0.wrapping_add(t.next.1[p]).cast());
            }
            let xo: [usize; P] = std::array::from_fn(|p| t.xo[p]);
            for s in t.stretches {
                let mut x = t.x.add(s.x);
                let mut w = t.w.add(s.row * t.w_pitch);
                for _ in 0..s.len / S::UNROLL {
                    for u in 0..S::UNROLL {
                        multiply::<S, V, P>(x.add(2 * u), &xo, w, &mut acc);
                        w = w.add(t.w_pitch);
                    }
                    x = x.add(2 * S::UNROLL);
                }
                for _ in 0..s.len % S::UNROLL {
                    multiply::<S, V, P>(x, &xo, w, &mut acc);
                    w = w.add(t.w_pitch);
                    x = x.add(2);
                }
            }
            for (p, row) in acc.iter().enumerate() {
                for (v, a) in row.iter().enumerate() {
                    S::store(sums(p).add(v * S::LANES), *a);
                }
            }
        }
    }
}

/// # Safety
/// The level has pairs, `x` can be read at the offsets for a word, and `w` for V vectors.
#[inline(always)]
unsafe fn multiply<S: Pairs, const V: usize, const P: usize>(
    x: *const bf16,
    xo: &[usize; P],
    w: *const f32,
    acc: &mut [[S::V; V]; P],
) {
    // SAFETY: guaranteed by the caller; a word is moved, whatever its bits.
    unsafe {
        let wv: [S::V; V] = std::array::from_fn(|v| S::load(w.add(v * S::LANES)));
        for p in 0..P {
            let word = x.add(xo[p]).cast::<f32>().read_unaligned();
            let b = S::splat(word);
            for v in 0..V {
                acc[p][v] = S::dot2(acc[p][v], b, wv[v]);
            }
        }
    }
}

impl PairOp for Outputs<'_> {
    type Out = ();

    /// Bias, old contents and slope, then rounded to y.
    #[inline(always)]
    unsafe fn run<S: Pairs>(self) {
        let slope = self.slope.unwrap_or(1.0);
        // SAFETY: guaranteed by the caller.
        unsafe {
            let slope = S::splat(slope);
            for at in (0..self.width).step_by(S::LANES) {
                let lanes = (self.width - at).min(S::LANES);
                let bias = match self.bias {
                    Some(bias) => f32::load::<S>(bias.add(at), lanes),
                    None => S::splat(0.0),
                };
                for (p, yo) in self.yo.iter().enumerate() {
                    let y = self.y.add(yo + at);
                    let mut a = S::add(S::load(self.sums.add(p * self.pitch + at)), bias);
                    if self.accumulate {
                        a = S::add(a, bf16::load::<S>(y, lanes));
                    }
                    a = S::where_positive(a, a, S::mul(a, slope));
                    if lanes == S::LANES {
                        S::store_normal(y, a);
                    } else {
                        S::store_bf16_part(y, lanes, a);
                    }
                }
            }
        }
    }
}

/// Runs the smallest tile of at least `p` positions.
///
/// # Safety
/// The processor has the level, which has pairs, and the pointer requirements of [`TileArgs`] hold.
pub(super) unsafe fn dispatch(level: Level, v: usize, p: usize, t: TileArgs) {
    macro_rules! pick {
        ($v:literal: $($p:literal)*) => {{
            $(if p <= $p {
                // SAFETY: guaranteed by the caller.
                return unsafe { level.run_pairs(Tile::<$v, $p>(t)) };
            })*
        }};
    }
    match v {
        1 => pick!(1: 1 2 4 8 12),
        2 => pick!(2: 1 2 4 6 8 10 12),
        3 => pick!(3: 1 2 3 4 6 8),
        4 => pick!(4: 1 2 3 4 5 6),
        _ => {}
    }
    unreachable!("no tile of {v} vectors and {p} positions");
}
