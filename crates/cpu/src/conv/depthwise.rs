//! Depthwise convolutions, forward and backward-data: every channel is a group of its own.
//!
//! A tile of P positions x V vectors of channels stays in registers while the loop runs over the
//! taps; the weights are not packed, (tap, C).

use crate::conv::direct::DirectConvolution;
use crate::conv::tiles::Tiles;
use crate::conv::values::Values;
use crate::conv::walk::{P_MAX, Positions, Walk};
use crate::grid::{Canceled, part};
use crate::simd::{Level, Op, Simd};
use crate::team::{Poll, Team};
use std::ops::Range;

/// Taps of one sweep.
const TAPS_MAX: usize = 64;

/// Weights (tap, C), and whether the taps are flipped.
pub(crate) type Weights<'a> = (&'a [f32], bool);

impl DirectConvolution<'_> {
    /// [`DirectConvolution::run`] on the weights of a depthwise convolution.
    ///
    /// # Safety
    /// As for [`DirectConvolution::run`]; x has the channels of y.
    pub(crate) unsafe fn run_depthwise(
        &self,
        weights: Weights,
        team: &mut Team,
        progress: &mut dyn FnMut() -> bool,
    ) -> Result<usize, Canceled> {
        let positions: usize = self.count.iter().product();
        let level = team.level();
        let tiles = Tiles { level, f: self.f };
        let block = self.positions_per_unit(team);
        let blocks = positions.div_ceil(block);
        let shares = self.epilogue.shares(blocks);
        let flops = 2 * self.taps_all() * self.f * positions / shares;
        team.units(progress, shares, flops as u64, &|share, poll| {
            // SAFETY: guaranteed by the caller; a share has positions and a slot of its own.
            unsafe { self.clear(share, tiles, 0..tiles.count()) };
            for b in part(blocks, share, shares) {
                let range = b * block..((b + 1) * block).min(positions);
                for (f0, v) in (0..tiles.count()).flat_map(|tile| whole(tiles, tile)) {
                    if v > 0 {
                        let range = range.clone();
                        let to = (self.y.get(), self.y_positions, self.accumulate);
                        // SAFETY: as above; these channels of y.
                        unsafe {
                            let to = (to.0.add(f0), to.1, to.2);
                            self.depthwise_sums(level, weights, range, (f0, v), to, poll);
                        }
                    }
                }
                if !poll.canceled() {
                    // SAFETY: as above.
                    unsafe { self.apply_epilogue_range(tiles, range, share, 0..tiles.count()) };
                }
            }
        })?;
        Ok(shares)
    }
}

impl<E: Values, W> DirectConvolution<'_, E, W> {
    /// V vectors of channels from `f0` on, for a range of positions, to channels of f32 from `to` on at each
    /// position of a box, or added to them.
    ///
    /// # Safety
    /// As for [`DirectConvolution::run`], of these channels and positions of x and `to`; the level is the team's.
    pub(crate) unsafe fn depthwise_sums(
        &self,
        level: Level,
        (w, flipped): Weights,
        range: Range<usize>,
        (f0, v): (usize, usize),
        (to, to_positions, accumulate): (*mut f32, Positions, bool),
        poll: &mut Poll,
    ) {
        let (all, volume) = (self.taps_all(), self.kernel.iter().product::<usize>());
        assert!(w.len() >= volume * self.f, "weights too short");
        let width = (self.f - f0).min(v * level.lanes());
        let p_max = (level.accumulators() / v).min(P_TILE);
        let mut taps = [(0, 0); TAPS_MAX];
        let mut tap = 0;
        // Without any tap the outputs are still to be written.
        loop {
            let count = (all - tap).min(TAPS_MAX);
            for (i, at) in taps[..count].iter_mut().enumerate() {
                let (x, k) = self.tap(tap + i);
                let row = if flipped { volume - 1 - k } else { k };
                *at = (x + f0, row * self.f + f0);
            }
            let mut offsets = [[0; P_MAX]; 2];
            let mut walk = Walk::new(self.count, [self.x_positions, to_positions], range.start);
            let mut at = range.start;
            while at < range.end {
                let n = p_max.min(range.end - at);
                walk.take(n, &mut offsets);
                let [xo, yo] = &offsets;
                let args = TileArgs {
                    x: self.x.as_ptr(),
                    xo,
                    y: to,
                    yo,
                    w: w.as_ptr(),
                    taps: &taps[..count],
                    load: tap > 0 || accumulate,
                    width,
                };
                // SAFETY: guaranteed by the caller; the offsets are those of the walk and the taps.
                unsafe { dispatch(level, (v, n), width < v * level.lanes(), args) };
                at += n;
            }
            tap += count;
            if !poll.tick((2 * count * width * range.len()) as u64) || tap >= all {
                return;
            }
        }
    }
}

/// The vectors of a tile that exist as a whole, and the one of which a part exists.
pub(crate) fn whole(tiles: Tiles, tile: usize) -> [(usize, usize); 2] {
    let (f0, v) = tiles.tile(tile);
    let whole = ((tiles.f - f0) / tiles.level.lanes()).min(v);
    [(f0, whole), (f0 + whole * tiles.level.lanes(), v - whole)]
}

/// Pointers: `width` channels of x at each position and tap, of w at each tap, and of y at each
/// position, which no other thread accesses.
#[derive(Clone, Copy)]
struct TileArgs<'a, E> {
    x: *const E,
    xo: &'a [usize; P_MAX],
    y: *mut f32,
    yo: &'a [usize; P_MAX],
    w: *const f32,
    /// Offsets in x and w.
    taps: &'a [(usize, usize)],
    load: bool,
    /// Channels of the tile that exist.
    width: usize,
}

/// The widest tile in positions.
const P_TILE: usize = 6;

/// `PART`: only some lanes of the last vector exist. Pointers as those of [`TileArgs`].
struct Tile<'a, E, const V: usize, const P: usize, const PART: bool>(TileArgs<'a, E>);

impl<E: Values, const V: usize, const P: usize, const PART: bool> Op for Tile<'_, E, V, P, PART> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        if const { V * P > S::ACCUMULATORS } {
            unreachable!("tile larger than the registers of its level");
        }
        let t = self.0;
        // SAFETY: offsets and widths are inside of what the caller answers for.
        unsafe {
            let load = |p: *const f32, v: usize| {
                if PART {
                    S::load_part(p.wrapping_add(v * S::LANES), t.width - v * S::LANES)
                } else {
                    S::load(p.add(v * S::LANES))
                }
            };
            let mut acc = [[S::splat(0.0); V]; P];
            if t.load {
                for p in 0..P {
                    for v in 0..V {
                        acc[p][v] = load(t.y.add(t.yo[p]), v);
                    }
                }
            }
            for (x, w) in t.taps {
                let (x, w) = (t.x.add(*x), t.w.add(*w));
                let wv: [S::V; V] = std::array::from_fn(|v| load(w, v));
                for p in 0..P {
                    for v in 0..V {
                        let x = x.add(t.xo[p]).wrapping_add(v * S::LANES);
                        let lanes = if PART {
                            t.width - v * S::LANES
                        } else {
                            S::LANES
                        };
                        acc[p][v] = S::fma(E::load::<S>(x, lanes), wv[v], acc[p][v]);
                    }
                }
            }
            for p in 0..P {
                let y = t.y.add(t.yo[p]);
                for v in 0..V {
                    let to = y.add(v * S::LANES);
                    if PART {
                        S::store_part(to, t.width - v * S::LANES, acc[p][v])
                    } else {
                        S::store(to, acc[p][v])
                    }
                }
            }
        }
    }
}

/// Picks the smallest tile of at least `p` positions; partial ones are of one vector.
///
/// # Safety
/// The processor has the level, and the pointer requirements of [`TileArgs`] hold.
unsafe fn dispatch<E: Values>(level: Level, (v, p): (usize, usize), partial: bool, t: TileArgs<E>) {
    macro_rules! pick {
        ($v:literal, $part:literal: $($p:literal)*) => {{
            $(if p <= $p {
                // SAFETY: guaranteed by the caller.
                return unsafe { level.run(Tile::<E, $v, $p, $part>(t)) };
            })*
        }};
    }
    match (v, partial) {
        (1, true) => pick!(1, true: 1 3 6),
        (1, false) => pick!(1, false: 1 3 6),
        (2, false) => pick!(2, false: 1 3 6),
        (3, false) => pick!(3, false: 1 3 6),
        (4, false) => pick!(4, false: 1 3 6),
        _ => {}
    }
    unreachable!("no tile of {v} vectors and {p} positions");
}
