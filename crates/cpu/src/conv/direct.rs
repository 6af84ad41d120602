//! The direct convolution at the core of forward and backward-data: its blocking.
//!
//! Ranges of positions are distributed over threads, stretches of taps and channels over sweeps whose weights
//! stay in the caches, and a sweep over tiles in registers; see [`crate::conv::tile`].
//! Legend: P positions, V vectors, L lanes, C input channels, F output channels.

use crate::conv::epilogue::JobEpilogue;
use crate::conv::loose_weights::{LooseWeights, WEIGHTS_PER_SWEEP};
use crate::conv::tile::{RunArgs, Stretch, TileArgs, dispatch};
use crate::conv::tiles::Tiles;
use crate::conv::values::Values;
use crate::conv::walk::{P_MAX, Positions, Walk};
use crate::grid::{Canceled, Shared, part};
use crate::simd::Level;
use crate::team::{Poll, Team};
use std::ops::Range;

/// Stretches of the input that one sweep over the positions covers, at most.
pub(crate) const RUNS_MAX: usize = 64;
/// The same for unpacked weights, in rows: few enough for the TLB.
const ROWS_PER_SWEEP: usize = 128;
/// Work of one unit; bounds the time between calls of progress.
const FLOPS_PER_UNIT: usize = 30_000_000;
/// Units per thread, so that all threads end at about the same time.
pub(crate) const UNITS_PER_THREAD: usize = 16;
/// Positions for which packed weights are read once, so that bringing them into the caches takes a
/// fraction of the products.
pub(crate) const POSITIONS_PER_WEIGHTS: usize = 192;
/// Elements of x that the tiles of a unit read one after the other: most of them stay in an L2 cache of 512 KiB.
const X_PER_UNIT: usize = 48 * 1024;
/// Positions of a unit, at least, however many channels there are.
const POSITIONS_MIN: usize = 96;
/// Positions of a unit are a multiple of this, which every P divides or nearly does.
const POSITIONS_STEP: usize = 24;

/// The taps of one dim that a job sums over, an arithmetic sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taps {
    pub count: usize,
    /// Row of the first tap in the weights of this dim, and the step.
    pub row: usize,
    pub row_step: usize,
    /// Input offset in elements of the first tap, and the step.
    pub x: usize,
    pub x_step: usize,
}

/// Where the weights of a job are.
#[derive(Clone, Copy)]
pub(crate) enum Operand<'a> {
    /// Packed by tiles of V vectors: rows of V * L, padded with zeros.
    Packed(&'a [f32]),
    /// Plain ones that are packed as they are needed.
    Loose(LooseWeights<'a>),
    /// Rows of `pitch` elements; F must be whole vectors.
    Rows(&'a [f32], usize),
    /// Taps flipped and channels transposed: (tap, F, C), rows of `pitch` elements.
    Transposed(&'a [f32], usize),
    /// Of a depthwise convolution, (tap, F); whether the taps are flipped.
    Depthwise(&'a [f32], bool),
}

impl<'a> Operand<'a> {
    /// Of group `g` of `groups`; `width` channels of a group are contiguous in a row.
    pub(crate) fn group(self, g: usize, groups: usize, width: usize) -> Operand<'a> {
        match self {
            Operand::Packed(w) => {
                let part = w.len() / groups;
                Operand::Packed(&w[g * part..(g + 1) * part])
            }
            Operand::Loose(w) => Operand::Loose(w.at_channel(g * width)),
            Operand::Rows(w, pitch) => Operand::Rows(&w[g * width..], pitch),
            Operand::Transposed(w, pitch) => Operand::Transposed(&w[g * width..], pitch),
            Operand::Depthwise(..) => self,
        }
    }
}

/// y[p, f] (+)= sum over taps and c of x[p + tap, c] * w[tap, c, f], over a grid of positions.
pub(crate) struct DirectConvolution<'a, E = f32, W = Operand<'a>> {
    pub x: &'a [E],
    pub x_positions: Positions,
    pub y: Shared<E>,
    pub y_positions: Positions,
    pub count: [usize; 4],
    pub taps: [Taps; 3],
    /// Taps of the whole kernel in D, H, W, which the rows of the weights count.
    pub kernel: [usize; 3],
    pub c: usize,
    pub f: usize,
    pub weights: W,
    /// Add to the old contents.
    pub accumulate: bool,
    pub epilogue: JobEpilogue<'a, E>,
}

/// Weights of jobs on elements E, which decide how a job is computed.
pub(crate) trait JobWeights<E>: Copy {
    /// Of group `g` of `groups`; `width` channels of a group are contiguous in a row.
    fn of_group(self, g: usize, groups: usize, width: usize) -> Self;
    /// Runs the job on the team; returns how many slots of sums it used.
    ///
    /// # Safety
    /// All positions with all taps lie inside of `x`, and inside of the boxes of the epilogue. `y` is
    /// valid for the `f` channels of each position, positions do not overlap, and no other thread accesses
    /// them or the slots before this returns.
    unsafe fn run(
        job: &DirectConvolution<'_, E, Self>,
        team: &mut Team,
        progress: &mut dyn FnMut() -> bool,
    ) -> Result<usize, Canceled>;
}

impl JobWeights<f32> for Operand<'_> {
    fn of_group(self, g: usize, groups: usize, width: usize) -> Self {
        self.group(g, groups, width)
    }

    unsafe fn run(
        job: &DirectConvolution<'_, f32, Self>,
        team: &mut Team,
        progress: &mut dyn FnMut() -> bool,
    ) -> Result<usize, Canceled> {
        // SAFETY: guaranteed by the caller.
        unsafe { job.run(team, progress) }
    }
}

/// State of the walk over taps and channels.
#[derive(Clone, Copy, Default)]
pub(crate) struct Cursor {
    pub tap: usize,
    within: usize,
}

/// Positions of a block, if blocks are about equal and of at least about `of` positions.
fn even_blocks(positions: usize, of: usize) -> usize {
    let blocks = (positions / of.next_multiple_of(POSITIONS_STEP)).max(1);
    positions.div_ceil(blocks).next_multiple_of(POSITIONS_STEP)
}

impl<E: Values, W> DirectConvolution<'_, E, W> {
    pub(crate) fn taps_all(&self) -> usize {
        self.taps.iter().map(|t| t.count).product()
    }

    /// Input offset of a tap of the job, and its number among all taps of the kernel.
    pub(crate) fn tap(&self, tap: usize) -> (usize, usize) {
        let [d, h, w] = &self.taps;
        let (iw, rest) = (tap % w.count, tap / w.count);
        let (ih, id) = (rest % h.count, rest / h.count);
        let row = |t: &Taps, i: usize| t.row + i * t.row_step;
        let x = [(d, id), (h, ih), (w, iw)]
            .iter()
            .map(|(t, i)| t.x + i * t.x_step)
            .sum();
        let tap = (row(d, id) * self.kernel[1] + row(h, ih)) * self.kernel[2] + row(w, iw);
        (x, tap)
    }

    /// The next stretches, of `rows_max` rows at most; adjacent taps become one stretch. The rows of a
    /// tap are rounded up to a multiple of `align`, as `rows_max` is.
    pub(crate) fn stretches(
        &self,
        cursor: &mut Cursor,
        out: &mut [Stretch; RUNS_MAX],
        rows_max: usize,
        align: usize,
    ) -> usize {
        let (mut n, mut rows, taps) = (0, 0, self.taps_all());
        let tap_rows = self.c.next_multiple_of(align);
        if self.c == 0 {
            // Without channels there is nothing to point to.
            cursor.tap = taps;
        }
        while cursor.tap < taps && rows < rows_max {
            let (x, tap) = self.tap(cursor.tap);
            let (x, row) = (x + cursor.within, tap * tap_rows + cursor.within);
            let len = (self.c - cursor.within).min(rows_max - rows);
            let last = if n > 0 {
                out[n - 1]
            } else {
                Stretch::default()
            };
            if n > 0 && last.x + last.len == x && last.row + last.len == row {
                out[n - 1].len += len;
            } else if n < RUNS_MAX {
                out[n] = Stretch { x, row, len };
                n += 1;
            } else {
                break;
            }
            rows += len.next_multiple_of(align);
            cursor.within += len;
            if cursor.within == self.c {
                *cursor = Cursor {
                    tap: cursor.tap + 1,
                    within: 0,
                };
            }
        }
        n
    }

    /// Positions that one unit computes, at least `least`.
    pub(crate) fn positions_of_unit(&self, team: &Team, least: usize) -> usize {
        let positions: usize = self.count.iter().product();
        let flops = 2 * self.taps_all() * self.c * self.f;
        let slow = if team.level() == Level::Portable {
            4
        } else {
            1
        };
        let by_time = FLOPS_PER_UNIT / slow / flops.max(1);
        let by_share = positions / (4 * team.threads());
        let most = by_time.min(by_share).max(least);
        even_blocks(positions, most)
    }

    /// Zeros the sums of some tiles.
    ///
    /// # Safety
    /// The room of the slots is there, and no other thread uses these sums.
    pub(crate) unsafe fn clear(&self, slot: usize, tiles: Tiles, own: Range<usize>) {
        if let (Some(slots), false) = (self.epilogue.slots, own.is_empty()) {
            let (last, v) = tiles.tile(own.end - 1);
            let channels = tiles.tile(own.start).0..last + v * tiles.level.lanes();
            // SAFETY: guaranteed by the caller.
            unsafe { slots.clear(slot, channels) };
        }
    }
}

impl DirectConvolution<'_> {
    /// Weights from the first row of a tile on, and the distance of rows.
    fn tile_weights(&self, f0: usize, v: usize, level: Level) -> (*const f32, usize) {
        let rows: usize = self.kernel.iter().product::<usize>() * self.c;
        let (slice, pitch, start) = match self.weights {
            Operand::Packed(w) => (w, v * level.lanes(), rows * f0),
            Operand::Rows(w, pitch) => (w, pitch, f0),
            Operand::Loose(_) | Operand::Transposed(..) | Operand::Depthwise(..) => {
                unreachable!("these weights have tiles of their own")
            }
        };
        if rows == 0 {
            return (slice.as_ptr(), pitch);
        }
        let last = start + (rows - 1) * pitch + v * level.lanes();
        assert!(last <= slice.len(), "weights too short");
        (slice[start..].as_ptr(), pitch)
    }

    /// Runs the job on the team; returns how many slots of sums it used.
    ///
    /// # Safety
    /// As for [`JobWeights::run`].
    pub(crate) unsafe fn run(
        &self,
        team: &mut Team,
        progress: &mut dyn FnMut() -> bool,
    ) -> Result<usize, Canceled> {
        let positions: usize = self.count.iter().product();
        if positions == 0 || self.f == 0 {
            return Ok(0);
        }
        if let Operand::Transposed(w, pitch) = self.weights {
            // SAFETY: guaranteed by the caller.
            return unsafe { self.run_dot((w, pitch), team, progress) };
        }
        if let Operand::Depthwise(w, flipped) = self.weights {
            // SAFETY: guaranteed by the caller.
            return unsafe { self.run_depthwise((w, flipped), team, progress) };
        }
        let (level, threads) = (team.level(), team.threads());
        let tiles = Tiles { level, f: self.f };
        let block = self.positions_per_unit(team);
        let blocks = positions.div_ceil(block);
        let split = match self.weights {
            Operand::Rows(..) => tiles.count().min(threads),
            Operand::Packed(_) | Operand::Loose(_) if blocks < UNITS_PER_THREAD * threads => {
                tiles.count()
            }
            Operand::Packed(_)
            | Operand::Loose(_)
            | Operand::Transposed(..)
            | Operand::Depthwise(..) => 1,
        };
        let shares = self.epilogue.shares(blocks);
        let flops = 2 * self.taps_all() * self.c * self.f * positions / (split * shares);
        team.units(progress, shares * split, flops as u64, &|unit, poll| {
            let (share, s) = (unit / split, unit % split);
            let own = part(tiles.count(), s, split);
            // SAFETY: guaranteed by the caller; a unit has tiles or positions of its own, and a slot.
            unsafe { self.clear(share, tiles, own.clone()) };
            for b in part(blocks, share, shares) {
                let range = b * block..((b + 1) * block).min(positions);
                // SAFETY: as above.
                unsafe { self.unit(range, share, tiles, own.clone(), poll) };
            }
        })?;
        Ok(shares)
    }

    /// Positions that one unit computes.
    pub(crate) fn positions_per_unit(&self, team: &Team) -> usize {
        let positions: usize = self.count.iter().product();
        let least = match self.weights {
            Operand::Packed(_) | Operand::Loose(_) => POSITIONS_PER_WEIGHTS.min(positions),
            Operand::Rows(..) | Operand::Transposed(..) | Operand::Depthwise(..) => 1,
        };
        let most = self.positions_of_unit(team, least);
        let cached = (X_PER_UNIT / self.c.max(1)).max(POSITIONS_MIN);
        if matches!(self.weights, Operand::Packed(_)) && cached < most {
            even_blocks(positions, cached)
        } else {
            most
        }
    }

    /// Some tiles of output channels for a range of positions.
    ///
    /// # Safety
    /// As for [`DirectConvolution::run`], of these tiles, positions and this slot.
    unsafe fn unit(
        &self,
        range: Range<usize>,
        slot: usize,
        tiles: Tiles,
        own: Range<usize>,
        poll: &mut Poll,
    ) {
        match self.weights {
            // A few rows for all tiles, so that the rows are read in memory order.
            Operand::Rows(_, pitch) if pitch > tiles.padded() || tiles.count() > 1 => {
                // SAFETY: guaranteed by the caller.
                unsafe { self.block(range, slot, tiles, own, ROWS_PER_SWEEP, poll) };
            }
            Operand::Rows(..)
            | Operand::Packed(_)
            | Operand::Loose(_)
            | Operand::Transposed(..)
            | Operand::Depthwise(..) => {
                for tile in own {
                    let rows = WEIGHTS_PER_SWEEP / (tiles.tile(tile).1 * tiles.level.lanes());
                    let range = range.clone();
                    // SAFETY: guaranteed by the caller.
                    unsafe { self.block(range, slot, tiles, tile..tile + 1, rows, poll) };
                }
            }
        }
    }

    /// Applies the epilogue to all outputs where they lie, with the sums in the first slot.
    ///
    /// # Safety
    /// As for [`DirectConvolution::run`].
    pub(crate) unsafe fn apply_epilogue(
        &self,
        team: &mut Team,
        progress: &mut dyn FnMut() -> bool,
    ) -> Result<(), Canceled> {
        let level = team.level();
        let tiles = Tiles { level, f: self.f };
        let positions: usize = self.count.iter().product();
        let flops = positions * self.f / tiles.count();
        team.units(progress, tiles.count(), flops as u64, &|tile, _| {
            // SAFETY: guaranteed by the caller; each tile is one unit's.
            unsafe {
                self.clear(0, tiles, tile..tile + 1);
                self.apply_epilogue_range(tiles, 0..positions, 0, tile..tile + 1);
            }
        })
    }

    /// Applies the epilogue to some tiles for a range of positions, where they lie.
    ///
    /// # Safety
    /// As for [`DirectConvolution::run`], of these tiles, positions and this slot; the level is the team's.
    pub(crate) unsafe fn apply_epilogue_range(
        &self,
        tiles: Tiles,
        range: Range<usize>,
        slot: usize,
        own: Range<usize>,
    ) {
        if !self.epilogue.is_some() {
            return;
        }
        let sweep = Sweep {
            stretches: &[],
            packed: None,
            load: true,
            first: true,
            slot: Some(slot),
        };
        for tile in own {
            // SAFETY: guaranteed by the caller.
            unsafe { self.sweep(tiles.level, range.clone(), tiles.tile(tile), &sweep) };
        }
    }

    /// Some tiles of output channels for a range of positions, some rows of the weights at a time.
    ///
    /// # Safety
    /// As for [`DirectConvolution::run`], of these tiles, positions and this slot.
    unsafe fn block(
        &self,
        range: Range<usize>,
        slot: usize,
        tiles: Tiles,
        own: Range<usize>,
        rows_per_sweep: usize,
        poll: &mut Poll,
    ) {
        let rows = self.taps_all() * self.c;
        let sweeps = rows.div_ceil(rows_per_sweep).max(1);
        let rows_max = rows.div_ceil(sweeps).next_multiple_of(4);
        let (mut cursor, mut stretches) = (Cursor::default(), [Stretch::default(); RUNS_MAX]);
        let mut first = true;
        loop {
            let n = self.stretches(&mut cursor, &mut stretches, rows_max, 1);
            let last = cursor.tap >= self.taps_all();
            let depth: usize = stretches[..n].iter().map(|s| s.len).sum();
            for tile in own.clone() {
                let (f0, v) = tiles.tile(tile);
                let mut stretches = stretches;
                // SAFETY: guaranteed by the caller; a thread works on one tile at a time.
                let packed = unsafe {
                    self.pack_tile((tiles.level, poll.thread), (f0, v), &mut stretches[..n])
                };
                let sweep = Sweep {
                    stretches: &stretches[..n],
                    packed,
                    load: !first || self.accumulate,
                    first,
                    slot: last.then_some(slot),
                };
                // SAFETY: guaranteed by the caller.
                unsafe { self.sweep(tiles.level, range.clone(), (f0, v), &sweep) };
                let width = v * tiles.level.lanes();
                if !poll.tick((2 * depth * width * range.len()) as u64) {
                    return;
                }
            }
            first = false;
            if last {
                return;
            }
        }
    }

    /// Packs the weights of a tile for some stretches, if they are loose.
    ///
    /// # Safety
    /// The level and the thread are those of the team that runs the job; the thread is done with what it
    /// packed before.
    unsafe fn pack_tile(
        &self,
        (level, thread): (Level, usize),
        (f0, v): (usize, usize),
        stretches: &mut [Stretch],
    ) -> Option<*const f32> {
        let Operand::Loose(weights) = self.weights else {
            return None;
        };
        let width = v * level.lanes();
        let tile = (f0, (self.f - f0).min(width), width);
        // SAFETY: guaranteed by the caller; the weights have room for the team.
        Some(unsafe { weights.pack((level, thread), stretches, (self.c, self.f), tile) })
    }

    /// Adds some stretches to one tile of output channels, for a range of positions.
    ///
    /// # Safety
    /// As for [`DirectConvolution::run`], of this tile, the positions and the slot; the level is the team's.
    unsafe fn sweep(
        &self,
        level: Level,
        range: Range<usize>,
        (f0, v): (usize, usize),
        sweep: &Sweep,
    ) {
        let (w, w_pitch) = match (sweep.stretches, sweep.packed) {
            ([], _) => (std::ptr::null(), 0),
            (_, Some(w)) => (w, v * level.lanes()),
            (_, None) => self.tile_weights(f0, v, level),
        };
        let width = (self.f - f0).min(v * level.lanes());
        let p_max = (level.accumulators() / v).min(P_MAX);
        let p = range.len().div_ceil(range.len().div_ceil(p_max));
        let bias = self.epilogue.bias_of_tile(f0).filter(|_| sweep.first);
        let tile_epilogue = sweep.slot.and_then(|slot| self.epilogue.of_tile(f0, slot));
        let slope = tile_epilogue.and_then(|tile_epilogue| tile_epilogue.slope_alone());
        let has_boxes = tile_epilogue.is_some() && self.epilogue.has_boxes();
        let positions = [self.x_positions, self.y_positions];
        let run = RunArgs {
            tile: TileArgs {
                x: self.x.as_ptr(),
                // SAFETY: a channel of the first position, as the caller says.
                y: unsafe { self.y.get().add(f0) },
                w,
                w_pitch,
                stretches: sweep.stretches,
                load: sweep.load,
                bias,
                slope,
                width,
            },
            p,
            walk: Walk::new(self.count, positions, range.start),
            epilogue_walk: has_boxes
                .then(|| Walk::new(self.count, self.epilogue.positions, range.start)),
            positions: range.len(),
            tile_epilogue: tile_epilogue.filter(|_| slope.is_none()),
            level,
        };
        // SAFETY: guaranteed by the caller; `tile_weights` has asserted that there are the rows.
        unsafe { dispatch(level, v, p, run) };
    }
}

/// What a sweep over the positions does with each tile.
struct Sweep<'a> {
    stretches: &'a [Stretch],
    /// Their weights, where they are packed for this sweep.
    packed: Option<*const f32>,
    /// Add to the old contents.
    load: bool,
    /// Begin with the bias.
    first: bool,
    /// End with the rest of the epilogue, its sums in this slot.
    slot: Option<usize>,
}
