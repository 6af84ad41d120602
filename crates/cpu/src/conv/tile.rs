//! Tiles of the direct convolution.
//!
//! A tile of P output positions x V vectors of output channels stays in registers while the loops
//! run over taps and input channels: one broadcast of the input against V vectors of weights.
//! Positions are a list of offsets, so rows, strides and samples need no cases of their own.

use crate::conv::epilogue::{BOXES, Moments, TileEpilogue, TileOutputs};
use crate::conv::walk::{Offsets, P_MAX, Walk};
use crate::simd::{Level, Op, Simd};

/// Elements of a cache line.
const LINE: usize = 16;

/// A stretch of the input against as many consecutive rows of the weights.
#[derive(Clone, Copy, Default)]
pub(crate) struct Stretch {
    pub x: usize,
    pub row: usize,
    pub len: usize,
}

/// Pointers: the stretches of x at each position, as many rows of w of whole vectors, `width` channels
/// of y at each position, and of the bias. no other thread accesses those of y.
#[derive(Clone, Copy)]
pub(crate) struct TileArgs<'a> {
    pub x: *const f32,
    pub y: *mut f32,
    pub w: *const f32,
    pub w_pitch: usize,
    pub stretches: &'a [Stretch],
    pub load: bool,
    pub bias: Option<*const f32>,
    /// Factor of the negative outputs.
    pub slope: Option<f32>,
    /// Output channels of the tile that exist; the others are padding.
    pub width: usize,
}

/// A tile of channels at all positions of a range. Pointers as those of the tile and of [`TileOutputs`].
pub(crate) struct RunArgs<'a> {
    pub tile: TileArgs<'a>,
    /// Positions of a tile.
    pub p: usize,
    pub walk: Walk<2>,
    /// In the boxes that the epilogue reads.
    pub epilogue_walk: Option<Walk<BOXES>>,
    pub positions: usize,
    pub tile_epilogue: Option<TileEpilogue>,
    pub level: Level,
}

struct Run<'a, const V: usize, const P: usize>(RunArgs<'a>);

/// Offsets of the positions of a tile, of x and y and of the boxes of the epilogue.
#[derive(Clone, Copy)]
struct Place {
    count: usize,
    offsets: [Offsets; 2],
    boxes: [Offsets; BOXES],
}

impl RunArgs<'_> {
    /// The positions of the next tile, whose outputs and boxes it asks for; the count is 0 at the end.
    #[inline(always)]
    fn advance<S: Simd, const P: usize>(&mut self, place: &mut Place) {
        place.count = self.p.min(self.positions);
        self.positions -= place.count;
        if place.count == 0 {
            return;
        }
        self.walk.take_tile::<P>(place.count, &mut place.offsets);
        let lines = || (0..self.tile.width).step_by(LINE);
        for offset in &place.offsets[1][..place.count] {
            for line in lines() {
                S::prefetch(self.tile.y.wrapping_add(offset + line));
            }
        }
        let (Some(walk), Some(epilogue)) = (&mut self.epilogue_walk, &self.tile_epilogue) else {
            return;
        };
        walk.take_tile::<P>(place.count, &mut place.boxes);
        for (p, offsets) in epilogue.boxes().into_iter().zip(&place.boxes) {
            let Some(p) = p else { continue };
            for offset in &offsets[..place.count] {
                // Lines of all boxes may be of one set of the L1 cache, which does not hold this many.
                for line in lines() {
                    S::expect(p.wrapping_add(offset + line));
                }
            }
        }
    }
}

impl<const V: usize, const P: usize> Op for Run<'_, V, P> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let mut r = self.0;
        let mut moments = Moments::default();
        let mut places = [Place {
            count: 0,
            offsets: [[0; P_MAX]; 2],
            boxes: [[0; P_MAX]; BOXES],
        }; 2];
        r.advance::<S, P>(&mut places[0]);
        // One tile ahead, since the columns of a tile are lines far apart.
        for turn in 0.. {
            let [even, odd] = &mut places;
            let (place, next) = if turn % 2 == 0 {
                (even, odd)
            } else {
                (odd, even)
            };
            if place.count == 0 {
                return;
            }
            r.advance::<S, P>(next);
            // SAFETY: guaranteed by the caller; the offsets are those of the walk.
            unsafe { r.level.run(Tile::<V, P>(&r.tile, &place.offsets)) };
            if let Some(tile_epilogue) = r.tile_epilogue {
                let outputs = TileOutputs {
                    y: r.tile.y,
                    yo: &place.offsets[1][..place.count],
                    unrounded: (),
                    boxes: &place.boxes,
                    width: r.tile.width,
                    is_last: next.count == 0,
                };
                // SAFETY: guaranteed by the caller.
                unsafe { tile_epilogue.apply(r.level, outputs, &mut moments) };
            }
        }
    }
}

/// A tile at some offsets. Compiled by itself, so that its accumulators stay in the registers.
struct Tile<'a, const V: usize, const P: usize>(&'a TileArgs<'a>, &'a [Offsets; 2]);

impl<const V: usize, const P: usize> Op for Tile<'_, V, P> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        if const { V * P > S::ACCUMULATORS } {
            unreachable!("tile larger than the registers of its level");
        }
        let Tile(t, [xo, yo]) = self;
        // SAFETY: offsets, widths and rows are inside of what the caller answers for.
        unsafe {
            let mut acc = [[S::splat(0.0); V]; P];
            if t.load || t.bias.is_some() {
                start::<S, V, P>(t, yo, &mut acc);
            }
            let xo: [usize; P] = std::array::from_fn(|p| xo[p]);
            for s in t.stretches {
                let mut x = t.x.add(s.x);
                let mut w = t.w.add(s.row * t.w_pitch);
                for _ in 0..s.len / S::UNROLL {
                    for u in 0..S::UNROLL {
                        multiply::<S, V, P>(x.add(u), &xo, w, &mut acc);
                        w = w.add(t.w_pitch);
                    }
                    x = x.add(S::UNROLL);
                }
                for _ in 0..s.len % S::UNROLL {
                    multiply::<S, V, P>(x, &xo, w, &mut acc);
                    w = w.add(t.w_pitch);
                    x = x.add(1);
                }
            }
            if let Some(slope) = t.slope {
                let slope = S::splat(slope);
                for a in acc.as_flattened_mut() {
                    *a = S::where_positive(*a, *a, S::mul(*a, slope));
                }
            }
            for (p, row) in acc.iter().enumerate() {
                let y = t.y.add(yo[p]);
                for (v, a) in row.iter().enumerate() {
                    let left = t.width - v * S::LANES;
                    if left >= S::LANES {
                        S::store(y.add(v * S::LANES), *a)
                    } else {
                        S::store_part(y.add(v * S::LANES), left, *a)
                    }
                }
            }
        }
    }
}

/// # Safety
/// The processor has the features of `S`, `x` can be read at the offsets, and `w` for V vectors.
#[inline(always)]
unsafe fn multiply<S: Simd, const V: usize, const P: usize>(
    x: *const f32,
    xo: &[usize; P],
    w: *const f32,
    acc: &mut [[S::V; V]; P],
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let wv: [S::V; V] = std::array::from_fn(|v| S::load(w.add(v * S::LANES)));
        for p in 0..P {
            let b = S::splat(*x.add(xo[p]));
            for v in 0..V {
                acc[p][v] = S::fma(b, wv[v], acc[p][v]);
            }
        }
    }
}

/// # Safety
/// The processor has the features of `S`; the bias and, where they are loaded, the outputs at the
/// offsets can be read.
#[inline(always)]
unsafe fn start<S: Simd, const V: usize, const P: usize>(
    t: &TileArgs,
    yo: &Offsets,
    acc: &mut [[S::V; V]; P],
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        for v in 0..V {
            let lanes = (t.width - v * S::LANES).min(S::LANES);
            let bias = match t.bias {
                Some(b) => S::load_part(b.add(v * S::LANES), lanes),
                None => S::splat(0.0),
            };
            for p in 0..P {
                acc[p][v] = bias;
                if t.load {
                    let y = S::load_part(t.y.add(yo[p] + v * S::LANES), lanes);
                    acc[p][v] = S::add(acc[p][v], y);
                }
            }
        }
    }
}

/// Runs with the smallest tile of at least `p` positions.
///
/// # Safety
/// The processor has the level, and the pointer requirements of [`RunArgs`] hold.
pub(crate) unsafe fn dispatch(level: Level, v: usize, p: usize, run: RunArgs) {
    macro_rules! pick {
        ($v:literal: $($p:literal)*) => {{
            $(if p <= $p {
                // SAFETY: guaranteed by the caller.
                return unsafe { level.run(Run::<$v, $p>(run)) };
            })*
        }};
    }
    match v {
        1 => pick!(1: 1 2 3 4 6 8 10 12),
        2 => match level {
            Level::Portable | Level::Avx2 => pick!(2: 1 2 3 4 5 6),
            Level::Neon | Level::Avx512 | Level::Avx512Bf16 => pick!(2: 1 2 3 4 6 8 10 12),
        },
        3 => pick!(3: 1 2 3 4 6 8),
        4 => pick!(4: 1 2 3 4 5 6),
        _ => {}
    }
    unreachable!("no tile of {v} vectors and {p} positions");
}
