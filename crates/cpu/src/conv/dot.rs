//! Backward-data for few positions or few input channels: reads unpacked weights.
//!
//! For few positions, transposing the weights would cost more than the convolution itself; few
//! channels would leave most lanes empty. A tile of N positions x Q input channels keeps a vector
//! of partial sums over output channels for each of its elements.
//! Legend as in `tile`, with the roles of a backward job: C output channels, F input channels.

use crate::conv::direct::DirectConvolution;
use crate::conv::tiles::Tiles;
use crate::conv::walk::Positions;
use crate::conv::walk::{P_MAX, Walk};
use crate::grid::{Canceled, part};
use crate::simd::{Level, Op, Simd};
use crate::team::{Poll, Team};
use std::ops::Range;

/// Positions above which packing the weights pays.
pub(crate) const POSITIONS_MAX: usize = 96;
/// Taps of one sweep.
const TAPS_MAX: usize = 64;
/// Weights of one sweep, in elements: stay in the L1 cache.
const WEIGHTS_PER_SWEEP: usize = 6 * 1024;
/// Sums of a tile, at most.
const SUMS_MAX: usize = 24;

/// True if a group of `inputs` input and `outputs` output channels reads unpacked weights at any number of positions.
pub(crate) fn is_narrow(level: Level, inputs: usize, outputs: usize) -> bool {
    2 * inputs <= level.lanes() && outputs >= level.lanes()
}

/// Rows of the weights in a tile, at most.
fn q_max(level: Level) -> usize {
    match level {
        Level::Portable | Level::Avx2 => 4,
        Level::Neon | Level::Avx512 | Level::Avx512Bf16 => 6,
    }
}

impl DirectConvolution<'_> {
    /// [`DirectConvolution::run`] on transposed weights.
    ///
    /// # Safety
    /// As for [`DirectConvolution::run`].
    pub(crate) unsafe fn run_dot(
        &self,
        (w, w_pitch): (&[f32], usize),
        team: &mut Team,
        progress: &mut dyn FnMut() -> bool,
    ) -> Result<usize, Canceled> {
        let positions: usize = self.count.iter().product();
        let volume: usize = self.kernel.iter().product();
        assert!(
            self.c == 0 || w.len() >= (volume * self.f - 1) * w_pitch + self.c,
            "weights too short"
        );
        let level = team.level();
        let q_tiles = self.f.div_ceil(q_max(level));
        let narrow = is_narrow(level, self.f, self.c);
        let block = if narrow {
            self.positions_per_unit(team)
        } else {
            positions
        };
        let blocks = positions.div_ceil(block);
        let split = if narrow { 1 } else { q_tiles };
        let shares = self.epilogue.shares(blocks);
        let flops = 2 * self.taps_all() * self.c * self.f * positions / (split * shares);
        team.units(progress, shares * split, flops as u64, &|unit, poll| {
            let (share, s) = (unit / split, unit % split);
            let tiles = Tiles { level, f: self.f };
            if narrow {
                // SAFETY: guaranteed by the caller; a share has a slot of its own.
                unsafe { self.clear(share, tiles, 0..tiles.count()) };
            }
            for b in part(blocks, share, shares) {
                let range = b * block..((b + 1) * block).min(positions);
                for tile in part(q_tiles, s, split) {
                    let q = part(self.f, tile, q_tiles);
                    // SAFETY: guaranteed by the caller; a unit has channels or positions of its own, and
                    // the weights are long enough.
                    unsafe { self.rows(level, (w, w_pitch), range.clone(), q, poll) };
                }
                if narrow && !poll.canceled() {
                    // SAFETY: as above; all tiles of the positions are this unit's.
                    unsafe { self.apply_epilogue_range(tiles, range, share, 0..tiles.count()) };
                }
            }
        })?;
        if narrow {
            return Ok(shares);
        }
        // SAFETY: guaranteed by the caller.
        unsafe { self.apply_epilogue(team, progress)? };
        Ok(1)
    }

    /// Some input channels for a range of positions, some of the weights at a time.
    ///
    /// # Safety
    /// As for [`DirectConvolution::run`], of these channels and positions; the weights hold all taps, and the level
    /// is the team's.
    unsafe fn rows(
        &self,
        level: Level,
        (w, w_pitch): (&[f32], usize),
        range: Range<usize>,
        q: Range<usize>,
        poll: &mut Poll,
    ) {
        // Without channels there is nothing to point to.
        let all = if self.c == 0 { 0 } else { self.taps_all() };
        let volume = self.kernel.iter().product::<usize>();
        let depth = (WEIGHTS_PER_SWEEP / q.len()).next_multiple_of(level.lanes());
        let taps_max = (depth / self.c.max(1)).clamp(1, TAPS_MAX);
        let mut taps = [(0, 0); TAPS_MAX];
        let (mut tap, mut c0, mut load) = (0, 0, self.accumulate);
        // Without any tap the outputs are still to be written.
        loop {
            let count = (all - tap).min(taps_max);
            let channels = (self.c - c0).min(depth);
            for (i, at) in taps[..count].iter_mut().enumerate() {
                let (x, flipped) = self.tap(tap + i);
                let row = (volume - 1 - flipped) * self.f + q.start;
                *at = (x + c0, row * w_pitch + c0);
            }
            let sweep = Sweep {
                w,
                w_pitch,
                taps: &taps[..count],
                channels,
                load,
            };
            // SAFETY: guaranteed by the caller.
            unsafe { self.dots(level, range.clone(), q.clone(), &sweep) };
            if !poll.tick((2 * count * channels * q.len() * range.len()) as u64) {
                return;
            }
            load = true;
            c0 += channels;
            if c0 >= self.c {
                (c0, tap) = (0, tap + count);
            }
            if tap >= all {
                return;
            }
        }
    }

    /// Adds some taps and channels to some input channels, for a range of positions.
    ///
    /// # Safety
    /// As for `rows`.
    unsafe fn dots(&self, level: Level, range: Range<usize>, q: Range<usize>, sweep: &Sweep) {
        let y_positions = Positions {
            base: self.y_positions.base + q.start,
            ..self.y_positions
        };
        let mut offsets = [[0; P_MAX]; 2];
        let mut walk = Walk::new(self.count, [self.x_positions, y_positions], range.start);
        let n_max = (level.accumulators() / q.len()).min(P_MAX);
        let n_tile = range.len().div_ceil(range.len().div_ceil(n_max));
        let mut at = range.start;
        while at < range.end {
            let n = n_tile.min(range.end - at);
            walk.take(n, &mut offsets);
            let [xo, yo] = &offsets;
            let args = TileArgs {
                x: self.x.as_ptr(),
                xo,
                y: self.y.get(),
                yo: &yo[..n],
                w: sweep.w.as_ptr(),
                w_pitch: sweep.w_pitch,
                taps: sweep.taps,
                channels: sweep.channels,
                load: sweep.load,
            };
            // SAFETY: guaranteed by the caller; the offsets are those of the walk and the taps.
            unsafe { dispatch(level, n_tile, q.len(), args) };
            at += n;
        }
    }
}

/// What a sweep over the positions adds.
struct Sweep<'a> {
    w: &'a [f32],
    w_pitch: usize,
    /// Offsets in x and w.
    taps: &'a [(usize, usize)],
    channels: usize,
    load: bool,
}

/// Pointers: `channels` of x at each position and tap, as many of each row of w at each tap, and Q of y
/// at each position, which no other thread accesses.
#[derive(Clone, Copy)]
struct TileArgs<'a> {
    x: *const f32,
    xo: &'a [usize; P_MAX],
    y: *mut f32,
    /// Of the positions that count; the tile repeats the last of them.
    yo: &'a [usize],
    w: *const f32,
    w_pitch: usize,
    /// Offsets in x and w.
    taps: &'a [(usize, usize)],
    channels: usize,
    load: bool,
}

/// Pointers as those of [`TileArgs`].
struct Tile<'a, const N: usize, const Q: usize>(TileArgs<'a>);

impl<const N: usize, const Q: usize> Op for Tile<'_, N, Q> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        if const { N * Q > S::ACCUMULATORS } {
            unreachable!("tile larger than the registers of its level");
        }
        let t = self.0;
        // SAFETY: offsets and channels are inside of what the caller answers for.
        unsafe {
            let mut acc = [[S::splat(0.0); Q]; N];
            let tail = t.channels % S::LANES;
            for (x, w) in t.taps {
                let (x, w) = (t.x.add(*x), t.w.add(*w));
                let mut c = 0;
                while c + S::LANES <= t.channels {
                    multiply::<S, N, Q>(&t, x.add(c), w.add(c), |p| S::load(p), &mut acc);
                    c += S::LANES;
                }
                if tail > 0 {
                    let load = |p: *const f32| S::load_part(p, tail);
                    multiply::<S, N, Q>(&t, x.add(c), w.add(c), load, &mut acc);
                }
            }
            let mut sums = [0f32; SUMS_MAX];
            let zero = S::splat(0.0);
            for i in (0..N * Q).step_by(4) {
                let at = |i: usize| if i < N * Q { acc[i / Q][i % Q] } else { zero };
                S::sum4([at(i), at(i + 1), at(i + 2), at(i + 3)], &raw mut sums[i]);
            }
            for (sums, yo) in sums.chunks_exact(Q).zip(t.yo) {
                let y = std::slice::from_raw_parts_mut(t.y.add(*yo), Q);
                for (y, sum) in y.iter_mut().zip(sums) {
                    *y = sum + if t.load { *y } else { 0.0 };
                }
            }
        }
    }
}

/// # Safety
/// `load` can load x at all offsets, and Q rows of w.
#[inline(always)]
unsafe fn multiply<S: Simd, const N: usize, const Q: usize>(
    t: &TileArgs,
    x: *const f32,
    w: *const f32,
    load: impl Fn(*const f32) -> S::V,
    acc: &mut [[S::V; Q]; N],
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        // What there is less of stays in registers.
        if Q <= N {
            let wv: [S::V; Q] = std::array::from_fn(|q| load(w.add(q * t.w_pitch)));
            for n in 0..N {
                let xv = load(x.add(t.xo[n]));
                for q in 0..Q {
                    acc[n][q] = S::fma(xv, wv[q], acc[n][q]);
                }
            }
        } else {
            let xv: [S::V; N] = std::array::from_fn(|n| load(x.add(t.xo[n])));
            for q in 0..Q {
                let wv = load(w.add(q * t.w_pitch));
                for n in 0..N {
                    acc[n][q] = S::fma(xv[n], wv, acc[n][q]);
                }
            }
        }
    }
}

/// Picks the smallest tile of at least `n` positions.
///
/// # Safety
/// The processor has the level, and the pointer requirements of [`TileArgs`] hold.
unsafe fn dispatch(level: Level, n: usize, q: usize, t: TileArgs) {
    macro_rules! pick {
        ($q:literal: $($n:literal)*) => {{
            $(if n <= $n {
                // SAFETY: guaranteed by the caller.
                return unsafe { level.run(Tile::<$n, $q>(t)) };
            })*
        }};
    }
    match q {
        1 => pick!(1: 1 2 4 8 12),
        2 => match level {
            Level::Portable | Level::Avx2 => pick!(2: 1 2 3 4 5 6),
            Level::Neon | Level::Avx512 | Level::Avx512Bf16 => pick!(2: 1 2 4 8 12),
        },
        3 => pick!(3: 1 2 3 4 6 8),
        4 => pick!(4: 1 2 3 4 5 6),
        5 => pick!(5: 1 2 3 4),
        6 => pick!(6: 1 2 3 4),
        _ => {}
    }
    unreachable!("no tile of {n} positions and {q} channels");
}
